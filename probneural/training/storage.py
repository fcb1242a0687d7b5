"""Save and load operators."""

from __future__ import annotations

import os

import torch
from torch import nn

from probneural.errors import FileError, UnsupportedError
from probneural.operators import FNO, LinearRegression, Operator
from probneural.training import files
from probneural.training.devices import resolve_device

_KINDS: dict[str, type[Operator]] = {"FNO": FNO, "LinearRegression": LinearRegression}


def save(operator: nn.Module, path: str | os.PathLike[str]) -> None:
    """Save an operator of this library, weights and configuration, in one safetensors file, atomically.

    Args:
        operator: An operator of this library; for other modules use `safetensors.torch.save_model`.
        path: Where to; an existing file is replaced in one step.

    Raises:
        UnsupportedError: If the module is not one of ours: its constructor's arguments are unknown.
        FileError: If the folder cannot be written to.
    """
    kind = type(operator).__name__
    if not isinstance(operator, Operator) or _KINDS.get(kind) is not type(operator):
        raise UnsupportedError(
            expected=f"one of {', '.join(_KINDS)}", got=kind, remedy="save its state_dict with safetensors.torch.save_model"
        )
    dtype = str(next(operator.parameters()).dtype).removeprefix("torch.")
    metadata = {"kind": kind, "dtype": dtype, "configuration": operator.configuration()}
    files.write(path, operator.state_dict(), metadata)


def load(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Operator:
    """Load an operator that [`save`][probneural.training.save] wrote.

    Args:
        path: The file.
        device: Where to put it; `"auto"` takes the best there is.

    Returns:
        The operator, in evaluation mode.

    Raises:
        FileError: If the file is missing, damaged, or holds something else.
        ArgumentError: If there is no such device here.
    """
    tensors, metadata = files.read(path)
    kind = metadata.get("kind")
    if kind not in _KINDS:
        raise FileError(
            expected=f"an operator, one of {', '.join(_KINDS)}", got=str(kind), remedy="is this a fit's checkpoint?"
        )
    state = torch.get_rng_state()  # building draws weights that the file replaces
    try:
        operator = _KINDS[kind].from_configuration(metadata["configuration"])
    finally:
        torch.set_rng_state(state)
    operator.to(getattr(torch, metadata["dtype"])).load_state_dict(tensors)
    return operator.to(resolve_device(device, operator)).eval()
