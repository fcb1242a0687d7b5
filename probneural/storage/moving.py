"""Copies of predictors on another device, made of the parts that files hold."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from probneural.distributions.predictors.base import Predictor
from probneural.errors import UnsupportedError
from probneural.registry import kind_of
from probneural.storage.kinds import build_instance, parts_of
from probneural.training.options import resolve_device

_CPU = torch.device("cpu")


def moved(predictor: Predictor, device: torch.device | str) -> Predictor:
    """Return a copy of a predictor on a device; see [`Predictor.to`][probneural.distributions.Predictor.to].

    Raises:
        ArgumentError: If there is no such device.
        UnsupportedError: If the predictor has a part that files cannot hold.
    """
    copied: Predictor = _moved(predictor, resolve_device(device, nn.Identity()))
    return copied


Predictor._moved = staticmethod(moved)


def _moved(thing: Any, device: torch.device) -> Any:
    if isinstance(thing, nn.Module):
        return copy.deepcopy(thing).to(device)
    if isinstance(thing, Tensor):
        return thing.to(device)
    kind = kind_of(thing)
    if kind is not None:
        parts = parts_of(kind, thing).items()
        return build_instance(kind, {name: _moved(part, _CPU if name in kind.on_cpu else device) for name, part in parts})
    if isinstance(thing, Mapping):
        return {name: _moved(part, device) for name, part in thing.items()}
    if isinstance(thing, tuple | list):
        return tuple(_moved(part, device) for part in thing)
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    raise UnsupportedError(
        expected="a predictor of this library", got=type(thing).__name__, remedy="move the operator, and fit the head again"
    )
