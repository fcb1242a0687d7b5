"""Drawing the weights of any module anew: completely, repeatably, and without touching global randomness."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from probneural.errors import ArgumentError
from probneural.randomness import seeded

Reset = Callable[[nn.Module], object]
"""Draws the weights of a module anew, in place."""


@torch.no_grad()
def redraw(operator: nn.Module, reset: Reset | None) -> None:
    """Draw the trainable weights of a module anew, in place; frozen ones keep their values.

    Without `reset`, every submodule's own `reset_parameters` is called, children before parents, as constructors run.
    """
    frozen = [(parameter, parameter.clone()) for parameter in operator.parameters() if not parameter.requires_grad]
    if reset is not None:
        reset(operator)
    else:
        for module in reversed(list(operator.modules())):
            own = getattr(module, "reset_parameters", None)
            if callable(own):
                own()
    for parameter, value in frozen:
        parameter.copy_(value)


def check_reset(operator: nn.Module, reset: Reset | None, *, device: torch.device) -> None:
    """Check on copies that resetting is complete and draws something.

    Raises:
        ArgumentError: If the modules' own `reset_parameters` leave out a trainable parameter, or if two seeds give equal
            weights throughout.
    """
    if reset is None:
        _check_complete(operator, device)
    drawn: list[dict[str, Tensor]] = []
    for number in range(2):
        module = copy.deepcopy(operator)
        with seeded(number, "reset check", devices=[device]):
            redraw(module, reset)
        drawn.append({name: parameter.detach() for name, parameter in module.named_parameters()})
    if all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items()):
        raise ArgumentError(
            expected="a reset that draws at least one parameter at random",
            got=f"the same weights for two seeds in all of {len(drawn[0])} parameter tensors",
            remedy="draw from torch's global generator in reset (it is seeded around the call), and unfreeze what should vary",
        )


def _check_complete(operator: nn.Module, device: torch.device) -> None:
    """Fill the trainable parameters with NaN: what is still NaN after a reset was left out, whatever it was initialised to."""
    module = copy.deepcopy(operator)
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        for parameter in trainable.values():
            parameter.fill_(math.nan)
    with seeded(0, "reset check", devices=[device]):
        redraw(module, None)
    left = [name for name, parameter in trainable.items() if bool(parameter.isnan().any())]
    if left:
        others = f" and {len(left) - 1} others" if len(left) > 1 else ""
        raise ArgumentError(
            expected="a reset_parameters method that draws every trainable parameter anew, or reset=",
            got=f"{type(operator).__name__} with {left[0]}{others}, which none reaches",
            remedy="give reset=, a function that draws the weights of the module it is given, or freeze that parameter",
        )
