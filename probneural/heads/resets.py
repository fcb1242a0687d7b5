"""Drawing the weights of any module anew: completely, repeatably, and without touching global randomness."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from probneural.errors import ArgumentError
from probneural.threads import GLOBAL_GENERATORS

Reset = Callable[[nn.Module], object]
"""Draws the weights of a module anew, in place."""


@contextlib.contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global generators of the CPU and of a CUDA device, and give their states back afterwards."""
    devices = {device.index or 0} if device.type == "cuda" else set()
    if torch.cuda.is_initialized():
        devices.add(torch.cuda.current_device())
    with GLOBAL_GENERATORS, torch.random.fork_rng(devices=sorted(devices)):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach every other device too
        for index in devices:
            torch.cuda.default_generators[index].manual_seed(seed)
        yield


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


def check_reset(operator: nn.Module, reset: Reset | None, *, seeds: tuple[int, int], device: torch.device) -> None:
    """Check on copies that resetting is complete and draws something.

    Raises:
        ArgumentError: If the modules' own `reset_parameters` leave out a trainable parameter, or if two seeds give equal
            weights throughout.
    """
    if reset is None:
        _check_complete(operator, seeds[0], device)
    drawn: list[dict[str, Tensor]] = []
    for seed in seeds:
        module = copy.deepcopy(operator)
        with seeded(seed, device):
            redraw(module, reset)
        drawn.append({name: parameter.detach() for name, parameter in module.named_parameters()})
    if all(torch.equal(value, drawn[1][name]) for name, value in drawn[0].items()):
        raise ArgumentError(
            expected="a reset that draws at least one parameter at random",
            got=f"the same weights for two seeds in all of {len(drawn[0])} parameter tensors",
            remedy="draw from torch's global generator in reset (it is seeded around the call), and unfreeze what should vary",
        )


def _check_complete(operator: nn.Module, seed: int, device: torch.device) -> None:
    """Fill the trainable parameters with NaN: what is still NaN after a reset was left out, whatever it was initialised to."""
    module = copy.deepcopy(operator)
    trainable = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    with torch.no_grad():
        for parameter in trainable.values():
            parameter.fill_(math.nan)
    with seeded(seed, device):
        redraw(module, None)
    left = [name for name, parameter in trainable.items() if bool(parameter.isnan().any())]
    if left:
        others = f" and {len(left) - 1} others" if len(left) > 1 else ""
        raise ArgumentError(
            expected="a reset_parameters method that draws every trainable parameter anew, or reset=",
            got=f"{type(operator).__name__} with {left[0]}{others}, which none reaches",
            remedy="give reset=, a function that draws the weights of the module it is given, or freeze that parameter",
        )
