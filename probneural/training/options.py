"""Options of a training: the optimisation, the data loading and the run."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import nn

from probneural import checks
from probneural.errors import ArgumentError
from probneural.fingerprints import identity_of
from probneural.pairs import Dataset, check_dataset
from probneural.settings import Count, Index, NotNegative, Positive, ProperFraction, Settings
from probneural.training.callbacks import Callback

MakeOptimizer: TypeAlias = Callable[..., torch.optim.Optimizer]
"""Called as `make(parameters, lr=learning_rate)`: any class of `torch.optim`, or a `functools.partial` of one."""
MakeSchedule: TypeAlias = Callable[[torch.optim.Optimizer, int], torch.optim.lr_scheduler.LRScheduler]
"""Called with the optimiser and the number of its steps; the schedule's `step()` follows each of them."""

OPTIMIZERS = ("muon", "adamw", "lbfgs")
WITH_DECAY = ("muon", "adamw")
"""Optimisers that take `weight_decay`."""
PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
"""Names of the dtypes that autocast may take."""


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Settings):
    """End a training when the loss on the validation split has not fallen for a while.

    Pairs of the validation split then select the weights: calibrate on other pairs.

    Args:
        patience: Number of epochs without improvement of the validation loss before training ends.
        restore_best: Whether the operator gets the weights of the epoch of the least loss; `History.restored` names it.
            Otherwise it keeps the last ones.

    Raises:
        ArgumentError: If the patience is not a positive integer.
    """

    patience: Count
    restore_best: bool = True

    def best(self, watched: list[float]) -> int:
        """Index, from 0, of the first epoch with the smallest loss; NaN is ignored."""
        return min(range(len(watched)), key=lambda number: (watched[number] != watched[number], watched[number]))

    def has_ended(self, watched: list[float]) -> bool:
        """Whether the loss has not improved for `patience` epochs.

        Examples:
            >>> EarlyStopping(patience=2).has_ended([3.0, 1.0, 2.0, 1.5])
            True
        """
        return bool(watched) and len(watched) - 1 - self.best(watched) >= self.patience


@dataclass(frozen=True, kw_only=True)
class Optimization(Settings):
    """Optimisation settings: optimiser, schedule, and treatment of gradients and weights.

    The defaults are Muon for small matrices and AdamW for other weights under a cosine, in the operator's own precision: of
    the candidates that `python -m benchmarks training` compares, none is clearly better on any of its problems.

    Args:
        optimizer: `"muon"`, [Muon][probneural.training.Muon] for matrices and AdamW for the rest; `"adamw"`, for all weights;
            `"lbfgs"` (full batches, few weights, with a strong Wolfe line search: give
            `learning_rate=1.0`, `schedule=None` and a `batch_size` of all pairs); or a callable that is given the parameters
            and `lr=`, as classes of `torch.optim` take them: `functools.partial(torch.optim.SGD, momentum=0.9)`.
        weight_decay: Share of a weight that a step removes, over the learning rate, dimensionless, with Muon and AdamW; other
            optimisers have their own. Values of .3 to .6 help an operator that overfits, and harm others.
        schedule: `"cosine"` (from the learning rate to zero), None for a constant rate, or a callable of the optimiser and the
            total number of steps that returns a schedule of `torch.optim.lr_scheduler`.
        gradient_clip: Largest norm of the gradient of all weights together, in units of loss over weights; None for any.
        accumulation: Number of batches per step; the last step of an epoch may have fewer.
        precision: `"bfloat16"` or `"float16"` for autocast of the operator, float16 with scaled losses; None for the
            operator's own precision. Losses are computed in the data's precision.
        full_precision_tail: Share of the epochs, the last ones, that go without autocast all the same, rounded to whole
            epochs; 0 for none. Weights that a layer rounds to 8 or 11 bits hardly feel the small steps of the end: a tenth
            recovers most of the lost accuracy, and needs the memory of full precision.
        early_stopping: When to end before all epochs are done; None for never.

    Raises:
        ArgumentError: If an option is invalid, or two options contradict each other.

    Examples:
        >>> Optimization(optimizer="adamw", gradient_clip=1.0).accumulation
        1
    """

    optimizer: Literal["muon", "adamw", "lbfgs"] | MakeOptimizer = "muon"
    weight_decay: NotNegative = 0.0
    schedule: Literal["cosine"] | MakeSchedule | None = "cosine"
    gradient_clip: Positive | None = None
    accumulation: Count = 1
    precision: Literal["bfloat16", "float16"] | None = None
    full_precision_tail: ProperFraction = 0.0
    early_stopping: EarlyStopping | None = None

    def __post_init__(self) -> None:
        """Check every option, and that they fit together."""
        super().__post_init__()
        for name, words in (("optimizer", OPTIMIZERS), ("schedule", ("cosine",))):
            value = getattr(self, name)
            if isinstance(value, str):
                checks.check_choice(value, words, name, remedy="choose one of them, or give a callable that makes yours")
            elif value is not None or name == "optimizer":
                checks.check_callable(
                    value, name, remedy=f"choose among {', '.join(words)}, or give a function that makes yours"
                )
        if self.full_precision_tail > 0 and self.precision is None:
            raise ArgumentError(
                expected="full_precision_tail with a lower precision",
                got=f"full_precision_tail={self.full_precision_tail} without one",
                remedy='give precision="bfloat16" too, or leave it out',
            )
        if self.weight_decay > 0 and self.optimizer not in WITH_DECAY:
            raise ArgumentError(
                expected="weight_decay with Muon or AdamW",
                got=f"weight_decay={self.weight_decay} with another optimizer",
                remedy="give it to that one: functools.partial(torch.optim.SGD, weight_decay=...)",
            )
        if self.optimizer == "lbfgs" and self.precision == "float16":
            raise ArgumentError(
                expected="an optimizer of one evaluation a step with float16", got="lbfgs", remedy="leave precision out"
            )

    def precision_in(self, epoch: int, epochs: int) -> Literal["bfloat16", "float16"] | None:
        """The precision of one epoch, counted from 0.

        Examples:
            >>> options = Optimization(precision="bfloat16", full_precision_tail=0.1)
            >>> [options.precision_in(epoch, 20) for epoch in (17, 18)]
            ['bfloat16', None]
        """
        return self.precision if epoch < epochs - round(self.full_precision_tail * epochs) else None

    def settings(self) -> dict[str, Any]:
        """The options, JSON-serialisable; callables by their names."""
        options = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "early_stopping"}
        stop = self.early_stopping
        plain = {name: identity_of(value) if callable(value) else value for name, value in options.items()}
        return plain | {"early_stopping": None if stop is None else [stop.patience, stop.restore_best]}


@dataclass(frozen=True)
class Checkpoint(Settings):
    """A file that a training run writes regularly, and from which it resumes bit-equally.

    It is written after every epoch, and within an epoch too, so that little work is lost whenever the process dies. Of
    distributed runs, rank 0 writes it and all ranks read it: use a shared file system.

    Args:
        path: The file; it is replaced in one step.
        seconds: Interval of writing within an epoch, in seconds; None for never.
        steps: Interval of writing within an epoch, in optimiser steps; None for never.

    Raises:
        ArgumentError: If the path is invalid, or a number is not positive.
    """

    path: str | os.PathLike[str]
    _: KW_ONLY
    seconds: NotNegative | None = 60.0
    steps: Count | None = None

    def __post_init__(self) -> None:
        """Check the path and the intervals."""
        super().__post_init__()
        checks.assign(self, path=checks.check_path(self.path, "checkpoint"))


@dataclass(frozen=True, kw_only=True)
class DataOptions(Settings):
    """Batches, the validation split and the loading of data, as in a `torch.utils.data.DataLoader`.

    Args:
        batch_size: Pairs per batch, over all processes.
        validation: Fraction of the pairs that is only watched; 0 trains on all. Of a series in time, these are the latest
            pairs. Or a data set of your own to watch, in addition to the training pairs.
        workers: Processes that read; 0 reads in this one, lazy sources in a separate thread. Changes no bit of the result.
        prefetch: Batches that each worker reads ahead. Changes no bit of the result.
        pin_memory: Whether batches wait in pinned memory; by default if training is on CUDA. Changes no bit of the result.

    Raises:
        ArgumentError: If a number is out of range.
        DataError: If the validation data set is empty.

    Examples:
        >>> DataOptions(batch_size=64, workers=4).validation
        0.1
    """

    batch_size: Count = 20
    validation: Annotated[float | Dataset, _check_validation] = 0.1
    workers: Index = 0
    prefetch: Count = 2
    pin_memory: bool | None = None


def _check_validation(value: Any, name: str) -> float | Dataset:
    return check_dataset(value, name) if hasattr(value, "subset") else checks.check_real(value, name, least=0.0, below=1.0)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The device, the checkpoint, the callbacks and the compilation of a training.

    Args:
        device: Training device, `"auto"` (CUDA, MPS or CPU), or by default the operator's. Data are moved a batch
            at a time.
        checkpoint: File to write after every epoch, and within it every minute, and to resume from, at the same bits, if it
            exists; `Checkpoint(path, seconds=..., steps=...)` sets the intervals.
        callbacks: Callbacks and loggers, in the order in which they are called.
        compile: Whether `torch.compile` compiles the operator for the training, on CUDA with CUDA graphs where a step is one
            forward pass. It changes rounding, and takes a minute or two.

    Raises:
        ArgumentError: If the device does not exist, the checkpoint is not a path, a callback is not a `Callback`, or `compile`
            is no truth value.

    Examples:
        >>> RunOptions(device="auto", checkpoint="run.safetensors").checkpoint.seconds
        60.0
    """

    device: str | torch.device | None = None
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None
    callbacks: Sequence[Callback] = ()
    compile: bool = False

    def __post_init__(self) -> None:
        """Check the checkpoint and the callbacks."""
        remedy = "derive from pn.training.Callback, or wrap a function: [EachEpoch(lambda progress: ...)]"
        callbacks = checks.check_sequence(self.callbacks, "callbacks", remedy=remedy)
        for callback in callbacks:
            if isinstance(callback, type):
                raise ArgumentError(expected="a Callback among callbacks", got=checks.described(callback), remedy="build it")
            checks.check_instance(callback, Callback, "each of callbacks", remedy=remedy, error=ArgumentError)
        if self.device is not None:
            checks.check_device(self.device)
        checks.assign(self, compile=checks.check_flag(self.compile, "compile"))
        is_path = self.checkpoint is not None and not isinstance(self.checkpoint, Checkpoint)
        checks.assign(self, callbacks=callbacks, checkpoint=Checkpoint(self.checkpoint) if is_path else self.checkpoint)  # type: ignore[arg-type]


def resolve_device(device: str | torch.device | None, operator: nn.Module) -> torch.device:
    """Return the device to work on: `"auto"` is CUDA, MPS or CPU in this order, None the operator's own.

    Raises:
        ArgumentError: If the device does not exist.
    """
    if device is None:
        return next((parameter.device for parameter in operator.parameters()), torch.device("cpu"))
    chosen = checks.check_device(device)
    if chosen.type == "meta":
        raise ArgumentError(expected="a device that holds values", got=repr(device), remedy='give e.g. "cpu" or "auto"')
    return chosen
