"""The device rule: the operator's own, one by name, or the best there is."""

from __future__ import annotations

import torch
from torch import nn

from probneural.checks import check_device
from probneural.errors import ArgumentError


def resolve_device(device: str | torch.device | None, operator: nn.Module) -> torch.device:
    """Return the device to work on: `"auto"` is CUDA, MPS or CPU in this order, None the operator's own.

    Raises:
        ArgumentError: If there is no such device here.
    """
    if device is None:
        return next((parameter.device for parameter in operator.parameters()), torch.device("cpu"))
    chosen = check_device(device)
    if chosen.type == "meta":
        raise ArgumentError(expected="a device that holds values", got=repr(device), remedy='give e.g. "cpu" or "auto"')
    return chosen
