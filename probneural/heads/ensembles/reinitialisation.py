"""Reinitialisation of operators: complete, reproducible, and without side effects on global generators."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from probneural.checks import check_module
from probneural.errors import ArgumentError
from probneural.randomness import seeded

Reinitialise = Callable[[nn.Module], object]
"""Function that draws new weights of a module in place."""
Build = Callable[[int], nn.Module]
"""Function that returns a new operator for a seed."""


@torch.no_grad()
def reinitialise(operator: nn.Module, method: Reinitialise | None) -> None:
    """Draw new trainable weights of a module in place; frozen ones keep their values.

    By default every submodule's `reset_parameters` is called, children before parents, as constructors run.
    """
    frozen = [(parameter, parameter.clone()) for parameter in operator.parameters() if not parameter.requires_grad]
    if method is not None:
        method(operator)
    else:
        for module in reversed(list(operator.modules())):
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    for parameter, value in frozen:
        parameter.copy_(value)


@dataclass(frozen=True)
class Initialisation:
    """Source of a member's initial weights: a factory, a function, or the submodules' `reset_parameters`.

    Attributes:
        reinitialise: Function that draws new weights of a copy of the operator, or None.
        build: Factory of whole members, or None.
    """

    reinitialise: Reinitialise | None = None
    build: Build | None = None

    def member(self, operator: nn.Module, seed: int, device: torch.device) -> nn.Module:
        """A new, untrained member on a device; draws from the global generators, which the caller seeds.

        Raises:
            ArgumentError: If the architecture of the factory differs from that of the operator.
        """
        if self.build is None:
            module = copy.deepcopy(operator).to(device)
            reinitialise(module, self.reinitialise)
            return module
        built = copy.deepcopy(self.build(seed))  # a factory may return one module twice
        check_module(built, "what build returns")
        _check_alike(built, operator)
        return built.to(device)

    def check(self, operator: nn.Module, *, device: torch.device) -> None:
        """Check that reinitialisation is complete and random, without changing the operator.

        Raises:
            ArgumentError: If `reset_parameters` of the submodules miss a trainable parameter, if the factory's architecture
                differs from the operator's, or if two seeds give equal weights.
        """
        if self.reinitialise is None and self.build is None:
            _check_complete(operator, device)
        drawn: list[dict[str, Tensor]] = []
        for number in range(2):
            with seeded(number, "reinitialisation check", devices=[device]):
                module = self.member(operator, number, device)
            drawn.append({name: parameter.detach() for name, parameter in module.named_parameters()})
        if all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items()):
            raise ArgumentError(
                expected="new weights for each seed, in at least one parameter",
                got=f"the same weights for two seeds in all of {len(drawn[0])} parameter tensors",
                remedy="draw from torch's global generator in reinitialise or build (it is seeded around the call), and "
                "unfreeze what should vary",
            )


def _check_alike(built: nn.Module, operator: nn.Module) -> None:
    """Raise an ArgumentError unless two modules have parameters and buffers of the same names, shapes and dtypes."""

    def tensors(module: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return {name: (tuple(value.shape), value.dtype) for name, value in named.items()}

    present, wanted = tensors(built), tensors(operator)
    differ = sorted(name for name in present.keys() | wanted.keys() if present.get(name) != wanted.get(name))
    if differ:
        raise ArgumentError(
            expected=f"build to make operators like the one given, a {type(operator).__name__}",
            got=f"a {type(built).__name__} with another {differ[0]}: {present.get(differ[0])} for {wanted.get(differ[0])}",
            remedy="fit what build returns: fit(build(0), data)",
        )


def _check_complete(operator: nn.Module, device: torch.device) -> None:
    """Fill the trainable parameters with NaN, to detect parameters that reinitialisation misses."""
    module = copy.deepcopy(operator)
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        for parameter in trainable.values():
            parameter.fill_(math.nan)
    with seeded(0, "reinitialisation check", devices=[device]):
        reinitialise(module, None)
    left = [name for name, parameter in trainable.items() if bool(parameter.isnan().any())]
    if left:
        others = f" and {len(left) - 1} others" if len(left) > 1 else ""
        raise ArgumentError(
            expected="a reset_parameters method that draws every trainable parameter anew, or build= or reinitialise=",
            got=f"{type(operator).__name__} with {left[0]}{others}, which none reaches",
            remedy="give build=, a function from a seed to a new operator, or reinitialise=, one that draws the weights of the "
            "module it is given, or freeze that parameter",
        )
