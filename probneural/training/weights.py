"""Copies of weights, random states for checkpoints, and modes of modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from probneural.randomness import global_generator


def are_finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether all numbers are."""
    return all(bool(torch.isfinite(value).all()) for value in tensors.values())


def state_of(operator: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers, without the non-tensor entries that some libraries add to the state dict."""
    return {name: value for name, value in operator.state_dict().items() if isinstance(value, Tensor)}


def copied(operator: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and buffers."""
    return {name: value.detach().clone() for name, value in state_of(operator).items()}


def put_back(operator: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Overwrite all weights and buffers.

    Not strict: a wrapper does not expect the non-tensor entries that inner modules add.
    """
    operator.load_state_dict({**operator.state_dict(), **state}, strict=False)


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Set states of torch's global generators, by kind."""
    for place in (torch.device("cpu"), device):
        if place.type in states:
            global_generator(place).set_state(states[place.type])


@contextlib.contextmanager
def modes_kept(module: nn.Module) -> Iterator[None]:
    """Put the mode (train or eval) of every submodule back afterwards."""
    modes = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        for part, mode in modes.items():
            part.training = mode
