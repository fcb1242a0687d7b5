"""Schema of checkpoints, compared with the run before any state is restored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from torch import Tensor

from probneural.errors import FileError
from probneural.training import schema

_STEPS = ("last_epoch", "_step_count", "_last_lr")
"""What training changes in the state of our schedules; the rest follows from arguments."""


class _Checkpoint(TypedDict):
    """What a checkpoint holds besides tensors.

    Attributes:
        fingerprint: Of data and settings.
        structure: Of the weights.
        groups: Settings of the optimiser.
        state: What is no tensor in its state.
        schedule: State of the schedule.
        scaler: State of the loss scaler, where there is one.
        losses: Mean training loss of every finished epoch.
        watched: Validation loss of every finished epoch.
        seconds: Of every finished epoch.
        begin: Loss of the first batch.
        step: Steps done in the epoch that has begun.
        totals: Sum of its losses so far, by process.
        elapsed: Its seconds so far.
    """

    kind: Literal["checkpoint"]
    fingerprint: str
    structure: list[Any]
    groups: list[dict[str, Any]]
    state: dict[str, dict[str, Any]]
    schedule: dict[str, Any]
    scaler: dict[str, float]
    losses: list[float]
    watched: list[float]
    seconds: list[float]
    begin: float | None
    step: int
    totals: list[float]
    elapsed: float


@dataclass(frozen=True, kw_only=True)
class Tensors:
    """A checkpoint's tensors by owner.

    Attributes:
        model: Weights by name.
        optimizer: Moments, by the parameter's number and their name, `3.exp_avg`.
        best: The best weights so far by name.
        random: States of generators, by process and kind, `0.cpu`.
    """

    model: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    best: dict[str, Tensor] = field(default_factory=dict)
    random: dict[str, Tensor] = field(default_factory=dict)

    def by_name(self) -> dict[str, Tensor]:
        """All of them, `OWNER.NAME`."""
        return {f"{owner}.{name}": value for owner, tensors in vars(self).items() for name, value in tensors.items()}


def check_progress(
    metadata: dict[str, Any], ours: dict[str, Any], *, epochs: int, steps: int, has_validation: bool, is_builtin: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the settings of the optimiser and the state of the schedule that a checkpoint has reached.

    Args:
        metadata: Of the checkpoint.
        ours: `"groups"`, `"schedule"` and `"scaler"` of a run that has not begun, in types that JSON knows.
        epochs: Of the whole run.
        steps: Per epoch.
        has_validation: Whether the run watches a loss on a validation split.
        is_builtin: Whether optimiser and schedule are ours, of which is known what changes.

    Raises:
        FileError: If the checkpoint is of another form, or counts other epochs and steps than it has losses.
    """
    schema.check(metadata, _Checkpoint, where="a checkpoint")
    count, now, step = len(metadata["losses"]), metadata["schedule"], metadata["step"]
    is_alike = _same_form({name: metadata[name] for name in ours}, ours)
    lengths = (len(metadata["seconds"]), len(metadata["watched"])) == (count, count if has_validation else 0)
    done = steps * count + step
    reached = (now.get("last_epoch"), now.get("_step_count")) == (done, done + 1) or not is_builtin
    within = 0 <= step < steps and (step == 0 or count < epochs) and len(metadata["totals"]) > 0
    plain = all(math.isfinite(number) for number in (*metadata["totals"], metadata["elapsed"]))
    if not (is_alike and lengths and reached and within and plain and count <= epochs):
        raise mismatch("the state of this run's optimiser, and numbers for each epoch")
    if not is_builtin:
        return metadata["groups"], now
    groups = [{**group, "lr": reached["lr"]} for group, reached in zip(ours["groups"], metadata["groups"], strict=True)]
    return groups, {name: now[name] for name in _STEPS}


def sorted_tensors(tensors: Mapping[str, Tensor]) -> Tensors:
    """Sort a checkpoint's tensors by owner.

    Raises:
        FileError: If one belongs to none.
    """
    by_owner = Tensors()
    for name, tensor in tensors.items():
        owner, _, inner_name = name.partition(".")
        if owner not in vars(by_owner):
            raise mismatch(f"weights, moments and random states, not {name[:80]}")
        vars(by_owner)[owner][inner_name] = tensor
    return by_owner


def check_weights(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a FileError unless weights have the names, shapes and dtypes of others."""
    forms = [{name: (tensor.shape, tensor.dtype) for name, tensor in side.items()} for side in (weights, expected)]
    if forms[0] != forms[1]:
        raise mismatch("weights and moments of this run's names, shapes and dtypes")


def check_moments(moments: Mapping[int, Mapping[str, Any]], expected: Mapping[int, Mapping[str, Any]]) -> None:
    """Raise a FileError unless the moments of each parameter have the names, shapes and dtypes of others."""
    for number, tensors in moments.items():
        if number not in expected or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise mismatch("moments of this run's parameters")
        check_weights(tensors, expected[number])


def mismatch(expected: str) -> FileError:
    """The error about a checkpoint that holds something else than it should."""
    return FileError(
        expected=expected,
        got="others in the checkpoint",
        remedy="it is damaged, or of another version: remove it to start anew",
    )


def _same_form(first: object, second: object) -> bool:
    """Whether JSON has the keys, lengths and types of other JSON."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same_form(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same_form, first, second))
    return type(first) is type(second)
