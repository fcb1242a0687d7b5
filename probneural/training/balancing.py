"""Weights of the terms of a loss, from norms of their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_DECAY = 0.9
"""Decay of the running means of norms, per update."""
BALANCED_STEPS = 10
"""Steps between updates; a new term leads to one at once."""
_DATA, _EQUATION, _SCALE = "data", "equation", "initial norm of equation"


class Balance:
    """Weights lambda_i = |grad L_data| / |grad L_i|, from running means of norms over all trained parameters.

    Without labels, lambda_i = |grad L_equation| / (g_0 |grad L_i|) with the first norm g_0 of the equation's gradient, so all
    gradients are as large and the first one has norm 1.

    Attributes:
        norms: Running means of the norms by term; JSON-serialisable.
    """

    def __init__(self) -> None:
        self.norms: dict[str, float] = {}

    def has(self, terms: Mapping[str, Tensor]) -> bool:
        """Whether there is a norm of each term."""
        return set(terms) <= set(self.norms)

    def update(self, terms: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> None:
        """Update the norms with the gradients of the terms of a batch; norms of zero and NaN do not count."""
        for name, term in terms.items():
            if not term.requires_grad:
                continue
            gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            squares = [part.detach().abs().to(torch.float64).square().sum() for part in gradients if part is not None]
            norm = float(torch.stack(squares).sum().sqrt()) if squares else 0.0
            if 0.0 < norm < float("inf"):
                before = self.norms.get(name, norm)
                self.norms[name] = _DECAY * before + (1.0 - _DECAY) * norm
                if name == _EQUATION:
                    self.norms.setdefault(_SCALE, norm)

    @property
    def weights(self) -> dict[str, float]:
        """Weights by term."""
        norms = {name: norm for name, norm in self.norms.items() if name != _SCALE}
        reference = norms.get(_DATA, norms.get(_EQUATION, 1.0) / self.norms.get(_SCALE, 1.0))
        return {name: reference / norm for name, norm in norms.items()}

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of the terms of a batch."""
        weights = self.weights
        return torch.stack([weights.get(name, 1.0) * term for name, term in terms.items()]).sum()
