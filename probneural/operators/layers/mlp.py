"""Fully connected networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_instance, check_integer
from probneural.errors import ArgumentError
from probneural.registry import stored
from probneural.settings import Count, Settings

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "relu": nn.functional.relu,
    "silu": nn.functional.silu,
    "tanh": torch.tanh,
}


@stored()
@dataclass(frozen=True, kw_only=True)
class HiddenLayers(Settings):
    """The hidden layers of a fully connected network, h -> s(Wh + b).

    Args:
        width: Numbers in each layer.
        depth: Number of layers.
        activation: s, `"gelu"`, `"relu"`, `"silu"` or `"tanh"`.

    Raises:
        ArgumentError: If a size is not a positive integer, or the activation is another one.
    """

    width: Count = 256
    depth: Count = 3
    activation: Literal["gelu", "relu", "silu", "tanh"] = "gelu"


class MLP(nn.Module):
    """Hidden layers of equal width, and a linear layer without activation.

    Args:
        in_features: Number of input features.
        out_features: Numbers that go out.
        layers: The hidden layers.

    Raises:
        ArgumentError: If a size is not a positive integer, or `layers` is something else.

    Examples:
        >>> MLP(3, 2, layers=HiddenLayers(width=8, depth=2))(torch.ones(5, 3)).shape
        torch.Size([5, 2])
    """

    def __init__(self, in_features: int, out_features: int, *, layers: HiddenLayers) -> None:
        super().__init__()
        check_instance(layers, HiddenLayers, "layers", remedy="give HiddenLayers(width=64, depth=2)", error=ArgumentError)
        self.activation = layers.activation
        first, last = check_integer(in_features, "in_features"), check_integer(out_features, "out_features")
        sizes = itertools.chain([first], (layers.width for _ in range(layers.depth)), [last])
        self.layers = nn.ModuleList(nn.Linear(have, want) for have, want in itertools.pairwise(sizes))

    def reset_parameters(self) -> None:
        """Reinitialise all weights, as `nn.Linear` does."""
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, values: Float[Tensor, "m in"]) -> Float[Tensor, "m out"]:
        """Map `(m, in_features)` to `(m, out_features)`."""
        first, *others = self.layers
        hidden = first(values)
        for layer in others:
            hidden = layer(_ACTIVATIONS[self.activation](hidden))
        return hidden
