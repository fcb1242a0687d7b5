"""Inference by Pyro: its late import, and variational inference with falling learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import missing

_WINDOW = 250
"""Steps between looks at the bound."""
_RATES = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Learning rates, one after the other."""


def pyro_module(head: str) -> ModuleType:
    """Pyro, which is imported when it is needed and not before.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import pyro
        import pyro.infer.autoguide
    except ModuleNotFoundError as error:
        raise missing(head, error, "pyro") from error
    module: ModuleType = pyro
    return module


def optimise(
    pyro: ModuleType,
    model: Callable[[], None],
    guide: Any,
    *,
    loss: Any,
    steps: int,
    rate: float = 1.0,
    tick: Callable[[], object],
    bound: Callable[[Sequence[float]], tuple[float, float]],
) -> tuple[Float64[Tensor, " w"], bool]:
    """Run stochastic variational inference.

    Args:
        pyro: The module.
        model: The joint density, for Pyro.
        guide: The family, for Pyro; a module.
        loss: Pyro's estimator of minus the bound.
        steps: The most steps.
        rate: What learning rates are multiplied by.
        tick: Called after every step.
        bound: From the losses of a window to the bound, in nats, and the least gain for which the rate is kept.

    Returns:
        The bound after every window, and whether it has converged.
    """
    history: list[float] = []
    parameters = list(guide.parameters())
    left = steps
    for factor in _RATES:
        step = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": rate * factor}), loss=loss).step
        gained, least = math.inf, 0.0
        while gained >= least:
            if left == 0:
                return torch.tensor(history, dtype=torch.float64), False
            length = min(_WINDOW, left)
            sums, losses = [torch.zeros_like(parameter) for parameter in parameters], list[float]()
            for number in range(length):
                losses.append(step())
                tick()
                if number >= length // 2:
                    for total, parameter in zip(sums, parameters, strict=True):
                        total += parameter.detach()
            left -= length
            with torch.no_grad():
                for total, parameter in zip(sums, parameters, strict=True):
                    parameter.copy_(total / (length - length // 2))
                value, least = bound(losses)
                history.append(value)
            gained = history[-1] - history[-2] if len(history) > 1 else math.inf
    return torch.tensor(history, dtype=torch.float64), True
