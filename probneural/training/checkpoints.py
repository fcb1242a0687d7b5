"""What a checkpoint of a training run may say: its schema, compared with the run before anything is taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from torch import Tensor

from probneural.errors import FileError
from probneural.training import schema

_RATES = ("lr", "betas")
_STEPS = ("last_epoch", "_step_count", "_last_lr")
"""What training changes in the settings of the optimiser and the state of the schedule; the rest follows from the arguments."""


class _Checkpoint(TypedDict):
    """What a checkpoint holds besides weights and moments."""

    kind: Literal["checkpoint"]
    fingerprint: str
    structure: list[Any]
    groups: list[dict[str, Any]]
    schedule: dict[str, Any]
    losses: list[float]
    watched: list[float]
    seconds: list[float]
    begin: float | None


def progress(
    metadata: dict[str, Any], ours: dict[str, Any], *, epochs: int, steps: int, has_validation: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the settings of the optimiser and the state of the schedule that a checkpoint has reached.

    Args:
        metadata: Of the checkpoint.
        ours: `"groups"` and `"schedule"` of a run that has not begun, in types that JSON knows.
        epochs: Of the whole run.
        steps: Per epoch.
        has_validation: Whether the run watches a loss on a validation split.

    Raises:
        FileError: If the checkpoint is of another form, or counts other epochs and steps than it has losses.
    """
    schema.check(metadata, _Checkpoint, where="a checkpoint")
    count, now = len(metadata["losses"]), metadata["schedule"]
    is_alike = _same_form({name: metadata[name] for name in ours}, ours)
    lengths = (len(metadata["seconds"]), len(metadata["watched"])) == (count, count if has_validation else 0)
    reached = (now.get("last_epoch"), now.get("_step_count")) == (steps * count, steps * count + 1)
    if not (is_alike and lengths and reached and count <= epochs):
        raise _other("the state of this run's optimiser, and numbers for each epoch")
    rates = [{name: group[name] for name in _RATES} for group in metadata["groups"]]
    groups = [{**group, **rate} for group, rate in zip(ours["groups"], rates, strict=True)]
    return groups, {name: now[name] for name in _STEPS}


def sorted_tensors(
    tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], *, parameters: Sequence[Tensor]
) -> tuple[dict[str, Tensor], dict[int, dict[str, Tensor]]]:
    """Sort a checkpoint's tensors into weights by name and moments by the parameter's number and name.

    Args:
        tensors: `model.NAME` and `optimizer.NUMBER.NAME`.
        state: Of the operator; the weights have its names, shapes and dtypes.
        parameters: That are trained; a moment has the shape of its parameter, or none.

    Raises:
        FileError: If a tensor is missing, is of another shape, or belongs to none of them.
    """
    weights: dict[str, Tensor] = {}
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        owner, _, inner_name = name.partition(".")
        number, _, moment = inner_name.partition(".")
        if owner == "model":
            weights[inner_name] = tensor
        elif owner == "optimizer" and number in map(str, range(len(parameters))):
            if tuple(tensor.shape) not in ((), tuple(parameters[int(number)].shape)):
                raise _other(f"moments of this run's parameters, not {name} of shape {tuple(tensor.shape)}")
            moments.setdefault(int(number), {})[moment] = tensor
        else:
            raise _other(f"weights and moments, not {name[:80]}")
    forms = [{name: (tensor.shape, tensor.dtype) for name, tensor in side.items()} for side in (weights, state)]
    if forms[0] != forms[1]:
        raise _other("weights of the operator's names, shapes and dtypes")
    return weights, moments


def _same_form(one: object, other: object) -> bool:
    """Whether JSON has the keys, lengths and types of other JSON."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same_form(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same_form, one, other))
    return type(one) is type(other)


def _other(expected: str) -> FileError:
    return FileError(
        expected=expected,
        got="others in the checkpoint",
        remedy="it is damaged, or of another version: remove it to start anew",
    )
