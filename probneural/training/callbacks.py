"""Callbacks of a training run, and loggers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn

from probneural.checks import check_callable
from probneural.training.history import History


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a training is.

    Attributes:
        operator: Which is trained. After an epoch it is as it was watched: in evaluation mode, with averaged weights where
            there are such. After a step it is in training mode, with the weights themselves.
        settings: Of the run, in types that JSON knows.
        epoch: Epochs done.
        epochs: Epochs in all.
        step: Steps of the optimiser done, over all epochs.
        losses: By name: `"step"` after a step; `"train"` and `"validation"`, if there is a split, after an epoch. In several
            processes, that of a step is the first process's share.
        learning_rate: That of the last step; of the first step to come, before any and when a training is resumed.
        seconds: Wall time of the epoch so far; within an epoch, too.
    """

    operator: nn.Module
    settings: Mapping[str, Any]
    epoch: int
    epochs: int
    step: int
    losses: Mapping[str, float]
    learning_rate: float
    seconds: float


@runtime_checkable
class Callback(Protocol):
    """What is told of a training; derive from it and say what you need, the rest does nothing.

    Of several processes, the first one tells. What a callback draws comes from the caller's random state, not the training's.
    It may call `operator.eval()` to predict: modes are put back when it returns.
    """

    def on_start(self, progress: Progress) -> None:
        """Called before the first step, of a resumed training too."""
        return

    def on_step(self, progress: Progress) -> None:
        """Called after each step of the optimiser."""
        return

    def on_epoch(self, progress: Progress) -> None:
        """Called after each epoch, when its checkpoint is written."""
        return

    def on_end(self, history: History) -> None:
        """Called when training ends, with what there is of its history: also by an error."""
        return


class EachEpoch(Callback):
    """Call a function after each epoch.

    Args:
        function: Of the progress.

    Raises:
        ArgumentError: If it cannot be called.
    """

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self.function = check_callable(function, "function", remedy="give a function of the progress")

    def on_epoch(self, progress: Progress) -> None:
        """Call it."""
        self.function(progress)
