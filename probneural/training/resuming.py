"""A run's checkpoint: written from its state, and read back into it."""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import torch
from torch import Tensor

from probneural import atomic
from probneural.errors import FileError
from probneural.fingerprints import identity_of
from probneural.processes import first_says, gathered, rank, world_size
from probneural.randomness import global_generator, stream
from probneural.training import files, optimizers, schema, weights
from probneural.training.options import WITH_DECAY, Checkpoint
from probneural.training.run import Run

_STEPS = ("last_epoch", "_step_count", "_last_lr")
"""State of built-in schedules that training changes; the remaining state follows from arguments."""


class _Checkpoint(TypedDict):
    """Content of a checkpoint other than tensors.

    Attributes:
        fingerprint: Fingerprint of data and settings.
        structure: Structure of the weights.
        groups: Settings of the optimiser.
        state: Its state without tensors.
        schedule: State of the schedule.
        scaler: State of the loss scaler, where there is one.
        losses: Mean training loss of every finished epoch.
        watched: Validation loss of every finished epoch.
        seconds: Duration of every finished epoch.
        begin: Loss of the first batch.
        step: Steps done in the epoch that has begun.
        totals: Sum of its losses so far, by process.
        elapsed: Its duration so far, in seconds.
        norms: Norms of the gradients of the terms of a balanced loss.
        weights: Their weights after every finished epoch.
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
    norms: dict[str, float]
    weights: list[dict[str, float]]


class Keeper:
    """Checkpointing of a run.

    Args:
        run: The run.
        checkpoint: File and interval of writing.
    """

    def __init__(self, run: Run, checkpoint: Checkpoint) -> None:
        self.run, self.options, self.path = run, checkpoint, Path(checkpoint.path)
        self.fingerprint = _fingerprint(run)
        self.written, self.steps = time.perf_counter(), 0

    def resume(self) -> bool:
        """Resume from the file; return whether it exists.

        Raises:
            FileError: If it is damaged, belongs to another run, or is not visible on all ranks.
        """
        if rank() == 0:
            atomic.remove_abandoned(self.path.resolve().parent, name=self.path.resolve().name)
        exists = [bool(flag) for flag in gathered(torch.tensor(self.path.exists(), device="cpu", dtype=torch.uint8))]
        if any(exists) and not all(exists):
            raise FileError(
                expected=f"a checkpoint {self.path} that all processes see",
                got=f"{sum(exists)} of {len(exists)} that do",
                remedy="put it into a folder that they share",
            )
        if exists[0]:
            self._read()
        self.written = time.perf_counter()
        return exists[0]

    def after_step(self) -> None:
        """Write the file if it is time to, within an epoch."""
        self.steps += 1
        if self.run.step == self.run.steps:  # the epoch's end is next
            return
        due = self.options.steps is not None and self.steps >= self.options.steps
        if not due and self.options.seconds is not None:
            due = first_says(time.perf_counter() - self.written >= self.options.seconds)
        if due:
            self.write()

    def write(self) -> None:
        """Write the state: weights, optimiser, schedule, history, and where in the epoch it is, in one atomic file.

        Weights that are not finite are not written: the epoch's end reports them, and the last file is from before.
        """
        run = self.run
        self.written, self.steps = time.perf_counter(), 0
        totals = [float(total) for total in gathered(run.total)]
        random: dict[str, Tensor] = {}
        for kind, state in _random_states(run.device).items() if run.step else ():
            random |= {f"{number}.{kind}": value for number, value in enumerate(gathered(state))}
        moments, skeleton = optimizers.packed(run.optimizer.state_dict()["state"])
        parts = {"model": weights.state_of(run.operator), "optimizer": moments, "best": run.best, "random": random}
        if rank() or (run.step and not weights.are_finite(dict(run.operator.named_parameters()))):
            return
        metadata: dict[str, Any] = {
            "kind": "checkpoint",
            "fingerprint": self.fingerprint,
            "structure": _structure(run),
            **_optimization(run),
            "state": skeleton,
            "begin": run.begin,
            "losses": run.losses,
            "watched": run.watched,
            "seconds": run.seconds,
            "step": run.step,
            "totals": totals,
            "elapsed": time.perf_counter() - run.started if run.step else 0.0,
            "norms": run.norms,
            "weights": run.weights,
        }
        tensors = {f"{owner}.{name}": value for owner, part in parts.items() for name, value in part.items()}
        files.write(self.path, tensors, metadata=metadata)

    def _read(self) -> None:
        """Load the state of the file if it belongs to this run; otherwise change nothing."""
        run, options = self.run, self.run.plan.optimization
        tensors, metadata = files.read(self.path)
        extends = self._check_identity(metadata)
        stored = _by_owner(tensors)
        has_our_moments = options.optimizer in WITH_DECAY
        is_builtin = has_our_moments and (options.schedule is None or isinstance(options.schedule, str))
        _check_weights(stored["model"], weights.state_of(run.operator))
        groups, schedule = _check_progress(
            metadata,
            _optimization(run),
            epochs=run.plan.epochs,
            steps=run.steps,
            has_validation=bool(run.validation_order.lengths),
            is_builtin=is_builtin,
        )
        if extends:
            groups, schedule = self._moved_on(len(metadata["losses"]) * run.steps)
        stop = options.early_stopping
        has_best = stop is not None and stop.restore_best and bool(metadata["watched"])
        _check_weights(stored["best"], weights.state_of(run.operator) if has_best else {})
        names = dict(run.operator.named_parameters())
        if not all(weights.are_finite({name: part[name] for name in names if name in part}) for part in stored.values()):
            raise _mismatch("finite weights")
        if bool(stored["random"]) != bool(metadata["step"]):
            raise _mismatch("states of random generators within an epoch, and none between epochs")
        try:
            moments = optimizers.unpacked(stored["optimizer"], metadata["state"])
            if has_our_moments:
                _check_moments(moments, run.optimizer)
            for name, state in stored["random"].items():
                if (kind := name.partition(".")[2]) in ("cpu", run.device.type):
                    stream(0, "checked state", device=kind).set_state(state)  # raises if it is no state
            run.optimizer.load_state_dict({"state": moments, "param_groups": groups})
            run.schedule.load_state_dict({**run.schedule.state_dict(), **schedule})
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise _mismatch("the state of this run's optimiser") from error
        self._take_over(stored, metadata)

    def _take_over(self, stored: dict[str, dict[str, Tensor]], metadata: dict[str, Any]) -> None:
        run = self.run
        if metadata["scaler"]:
            run.scaler.load_state_dict(metadata["scaler"])
        weights.put_back(run.operator, stored["model"])
        run.best = {name: value.to(run.device) for name, value in stored["best"].items()}
        run.begin = metadata["begin"]
        run.losses, run.watched = list(metadata["losses"]), list(metadata["watched"])
        run.seconds, run.weights = list(metadata["seconds"]), list(metadata["weights"])
        run.norms.update(metadata["norms"])
        run.step, run.elapsed = metadata["step"], metadata["elapsed"]
        totals = metadata["totals"]
        if len(totals) != world_size():  # of another number of processes: the first takes all
            totals = [sum(totals)] + [0.0] * rank()
        run.total = torch.tensor(totals[rank()], dtype=torch.float64, device="cpu")
        mine = f"{rank()}."
        run.restored_random = {
            name.removeprefix(mine): state for name, state in stored["random"].items() if name.startswith(mine)
        }

    def _moved_on(self, steps: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Settings of optimiser and schedule after a number of steps, with this run's schedule."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            for _ in range(steps):
                self.run.schedule.step()
        return self.run.optimizer.state_dict()["param_groups"], {}

    def _check_identity(self, metadata: dict[str, Any]) -> bool:
        """Whether the file ends a run of fewer epochs that this one extends.

        Raises:
            FileError: If it was written by a run of other data, settings or weights' shapes.
        """
        losses = metadata.get("losses")
        done = len(losses) if isinstance(losses, list) and metadata.get("step") == 0 else 0
        extends = 0 < done < self.run.plan.epochs and metadata.get("fingerprint") == _fingerprint(self.run, epochs=done)
        if metadata.get("kind") != "checkpoint" or not (extends or metadata.get("fingerprint") == self.fingerprint):
            raise FileError(
                expected="a checkpoint of this run: same data, loss, epochs (or fewer, all done), batch size, seed, rates and "
                "options",
                got=f"another one in {self.path}",
                remedy="remove the file to start again, or use another path",
            )
        if metadata.get("structure") != _structure(self.run):
            raise FileError(
                expected=f"a checkpoint of this {type(self.run.operator).__name__}",
                got=f"one with other weights in {self.path}",
                remedy="build the operator with the same arguments and freeze the same parameters, or name another file",
            )
        return extends


def _fingerprint(run: Run, *, epochs: int | None = None) -> str:
    """Fingerprint of a resumable checkpoint: data, settings and loss; with another number of epochs if given."""
    loss = [] if run.plan.loss is None else [identity_of(run.plan.loss)]
    plan = run.plan if epochs is None else replace(run.plan, epochs=epochs)
    settings = json.dumps([run.data_fingerprint, plan.settings(), *loss], sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()


def _structure(run: Run) -> list[list[Any]]:
    """Names, shapes, dtypes and trainability of the weights, JSON-serialisable."""
    trained = {name for name, parameter in run.operator.named_parameters() if parameter.requires_grad}
    state = weights.state_of(run.operator)
    return [[name, list(value.shape), str(value.dtype), name in trained] for name, value in state.items()]


def _optimization(run: Run) -> dict[str, Any]:
    """Settings of the optimiser and states of schedule and scaler, JSON-serialisable."""
    schedule = {
        name: value for name, value in run.schedule.state_dict().items() if isinstance(value, (bool, int, float, str, list))
    }
    return {"groups": run.optimizer.state_dict()["param_groups"], "schedule": schedule, "scaler": run.scaler.state_dict()}


def _check_progress(
    metadata: dict[str, Any], ours: dict[str, Any], *, epochs: int, steps: int, has_validation: bool, is_builtin: bool
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the settings of the optimiser and the state of the schedule that a checkpoint has reached.

    Args:
        metadata: Metadata of the checkpoint.
        ours: `"groups"`, `"schedule"` and `"scaler"` of a new run, JSON-serialisable.
        epochs: Number of epochs of the whole run.
        steps: Per epoch.
        has_validation: Whether the run watches a loss on a validation split.
        is_builtin: Whether optimiser and schedule are built in, so that the changing state is known.

    Raises:
        FileError: If the checkpoint is of another form, or counts other epochs and steps than it has losses.
    """
    schema.check(metadata, _Checkpoint, where="a checkpoint")
    count, now, step = len(metadata["losses"]), metadata["schedule"], metadata["step"]
    is_alike = _same_form({name: metadata[name] for name in ours}, ours)
    lengths = (len(metadata["seconds"]), len(metadata["watched"])) == (count, count if has_validation else 0)
    lengths &= len(metadata["weights"]) in (0, count)
    done = steps * count + step
    reached = (now.get("last_epoch"), now.get("_step_count")) == (done, done + 1) or not is_builtin
    within = 0 <= step < steps and (step == 0 or count < epochs) and len(metadata["totals"]) > 0
    plain = all(math.isfinite(number) for number in (*metadata["totals"], metadata["elapsed"]))
    if not (is_alike and lengths and reached and within and plain and count <= epochs):
        raise _mismatch("the state of this run's optimiser, and numbers for each epoch")
    if not is_builtin:
        return metadata["groups"], now
    groups = [{**group, "lr": reached["lr"]} for group, reached in zip(ours["groups"], metadata["groups"], strict=True)]
    return groups, {name: now[name] for name in _STEPS}


def _by_owner(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """A checkpoint's tensors by owner: weights and best weights by name, moments, and random states by process and kind.

    Raises:
        FileError: If a moment belongs to no parameter.
    """
    parts: dict[str, dict[str, Tensor]] = {owner: {} for owner in ("model", "optimizer", "best", "random")}
    for name, tensor in tensors.items():
        owner, _, inner_name = name.partition(".")
        if owner not in parts:
            raise _mismatch(f"weights, moments and random states, not {name[:80]}")
        parts[owner][inner_name] = tensor
    return parts


def _check_weights(weights: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a FileError unless weights have the expected names, shapes and dtypes."""
    forms = [{name: (tensor.shape, tensor.dtype) for name, tensor in side.items()} for side in (weights, expected)]
    if forms[0] != forms[1]:
        raise _mismatch("weights and moments of this run's names, shapes and dtypes")


def _check_moments(moments: Mapping[int, Mapping[str, Tensor]], optimizer: torch.optim.Optimizer) -> None:
    """Raise a FileError unless the moments of each parameter have its shape, and step counts are scalars."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, entries in moments.items():
        if any(entry.shape != (() if name == "step" else parameters[number].shape) for name, entry in entries.items()):
            raise _mismatch("moments of this run's parameters")


def _random_states(device: torch.device) -> dict[str, Tensor]:
    """States of torch's global generators that a training on this device draws from, by kind."""
    return {place.type: global_generator(place).get_state() for place in (torch.device("cpu"), device)}


def _mismatch(expected: str) -> FileError:
    """The error about a checkpoint that holds something else than it should."""
    return FileError(
        expected=expected,
        got="others in the checkpoint",
        remedy="the file is damaged, or of another version: remove it to start again",
    )


def _same_form(first: object, second: object) -> bool:
    """Whether JSON has the keys, lengths and types of other JSON."""
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(_same_form(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(_same_form, first, second))
    return type(first) is type(second)
