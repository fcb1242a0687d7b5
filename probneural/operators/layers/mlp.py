"""Fully connected networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_choice, check_integer

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "relu": nn.functional.relu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}


class MLP(nn.Module):
    """`depth` hidden layers h -> s(Wh + b) of equal width, and a linear layer without activation.

    Args:
        in_features: Numbers that come in.
        out_features: Numbers that go out.
        width: Numbers in each hidden layer.
        depth: Number of hidden layers.
        activation: s, `"gelu"`, `"relu"`, `"silu"` or `"tanh"`.

    Raises:
        ArgumentError: If a size is not a positive integer, or the activation is another one.

    Examples:
        >>> MLP(3, 2, width=8, depth=2)(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, in_features: int, out_features: int, *, width: int, depth: int, activation: str = "gelu") -> None:
        super().__init__()
        self.activation = check_choice(activation, _ACTIVATIONS, "activation")
        first, last = check_integer(in_features, "in_features"), check_integer(out_features, "out_features")
        hidden = check_integer(width, "width")
        sizes = itertools.chain([first], (hidden for _ in range(check_integer(depth, "depth"))), [last])
        self.layers = nn.ModuleList(nn.Linear(have, want) for have, want in itertools.pairwise(sizes))

    def reset_parameters(self) -> None:
        """Draw all weights anew, as `nn.Linear` does."""
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, values: Float[Tensor, "m in"]) -> Float[Tensor, "m out"]:
        """Map `(m, in_features)` to `(m, out_features)`."""
        hidden = self.layers[0](values)
        for layer in self.layers[1:]:
            hidden = layer(_ACTIVATIONS[self.activation](hidden))
        return hidden
