"""Fully connected networks."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import torch
import torch.autograd.forward_ad as forward_ad
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_instance, check_integer
from probneural.contexts import is_transformed
from probneural.errors import ArgumentError
from probneural.registry import stored
from probneural.settings import Count, Settings

_BLOCK = 2**20
"""Bytes of a layer's output for which a CPU core has room in its cache."""


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
        self.activation, self.width = layers.activation, layers.width
        first, last = check_integer(in_features, "in_features"), check_integer(out_features, "out_features")
        sizes = itertools.chain([first], (layers.width for _ in range(layers.depth)), [last])
        self.layers = nn.ModuleList(nn.Linear(have, want) for have, want in itertools.pairwise(sizes))

    def reset_parameters(self) -> None:
        """Reinitialise all weights, as `nn.Linear` does."""
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def forward(self, values: Float[Tensor, "m in"]) -> Float[Tensor, "m out"]:
        """Map `(m, in_features)` to `(m, out_features)`, on a CPU in blocks of rows that its cache holds."""
        if values.device.type != "cpu" or torch.compiler.is_compiling() or is_hooked(*self.layers):
            return self._evaluated(values)
        rows = max(1, torch.get_num_threads() * _BLOCK // (self.width * values.element_size()))
        parts = [self._evaluated(block) for block in values.split(rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _evaluated(self, values: Float[Tensor, "m in"]) -> Float[Tensor, "m out"]:
        hidden: Tensor = self.layers[0](values)
        for previous, layer in itertools.pairwise(self.layers):
            hidden = layer(activated(hidden, previous, activation=self.activation))
        return hidden


def is_hooked(*modules: nn.Module) -> bool:
    """Whether hooks see inputs, outputs or gradients of modules."""
    return nn.modules.module._has_any_global_hook() or any(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
        for module in modules
    )


def is_plain(*modules: nn.Module) -> bool:
    """Whether no gradient, hook, transform or trace refers to outputs of modules."""
    is_recorded = torch.is_grad_enabled() or torch.compiler.is_compiling() or is_transformed()
    return not (is_recorded or forward_ad._current_level >= 0 or is_hooked(*modules))


def activated(values: Tensor, layer: nn.Module, *, activation: str = "gelu") -> Tensor:
    """Activate the output of a layer, in its memory if nothing else refers to it."""
    result: Tensor = getattr(torch.ops.aten, f"{activation}_" if is_plain(layer) else activation)(values)
    return result
