"""History, callbacks and loggers of a training run; each logger imports its library in its constructor."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from torch import nn

from probneural import atomic
from probneural.checks import check_callable, check_path, optional, validated
from probneural.displays import html_table
from probneural.registry import stored


@stored()
@dataclass(frozen=True, kw_only=True)
class History:
    """Losses by epoch.

    They fall towards the end of any schedule that ends by lowering its rate, however long it is. So none of them tells
    whether longer training would help: only a second training of twice the epochs does.

    Attributes:
        train: Mean training loss of each epoch, dimensionless.
        validation: Loss on the validation split after each epoch, dimensionless; empty without a split.
        seconds: Wall time of each epoch.
        restored: Epoch, from 1, of the restored weights, those of the smallest validation loss; None if it
            kept the last ones.
        weights: Weights of the terms of a balanced loss by name, after each epoch; empty otherwise.
    """

    train: tuple[float, ...]
    validation: tuple[float, ...]
    seconds: tuple[float, ...]
    restored: int | None = None
    weights: tuple[Mapping[str, float], ...] = ()

    @property
    def epochs(self) -> int:
        """Number of epochs trained."""
        return len(self.train)

    def _repr_html_(self) -> str:
        """A table of losses, restored weights and seconds."""
        losses = (("training loss", self.train), ("validation loss", self.validation))
        rows = [(name, f"{part[0]:.4g} → {part[-1]:.4g}, least {min(part):.4g}") for name, part in losses if part]
        restored = "last epoch" if self.restored is None else f"epoch {self.restored}"
        rows += [("weights", restored), ("seconds", f"{sum(self.seconds):.1f}")]
        return html_table("History", [("epochs", self.epochs), *rows])


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Progress of a training run.

    Attributes:
        operator: The trained operator. In evaluation mode after an epoch, in training mode after a step.
        settings: Settings of the run, JSON-serialisable.
        epoch: Epochs done.
        epochs: Total number of epochs.
        step: Number of optimiser steps so far.
        losses: Losses by name: `"step"` after a step; `"train"` and `"validation"`, if there is a split, after an
            epoch, with the weights of a balanced loss. In distributed runs, the loss of a step is that of rank 0's part.
        learning_rate: Learning rate of the last step; at the start and after resuming, of the next step.
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
    """Base class of callbacks; override the methods that you need.

    With torch.distributed, rank 0 calls them. Callbacks use the caller's random state, not the training's.
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
        """Called when training ends, also by an error, with the history so far."""
        return


class EachEpoch(Callback):
    """Call a function after each epoch.

    Args:
        function: Function of the progress.

    Raises:
        ArgumentError: If it cannot be called.
    """

    def __init__(self, function: Callable[[Progress], object]) -> None:
        self.function = check_callable(function, "function", remedy="give a function of the progress")

    def on_epoch(self, progress: Progress) -> None:
        """Call it."""
        self.function(progress)


_COLUMNS = ("epoch", "train", "validation", "learning_rate", "seconds")


class CSVLog(Callback):
    """Write a table with one row per epoch; the file is complete after every epoch.

    Rows of later epochs that an earlier, killed run has left are dropped.

    Args:
        path: The file; a resumed run appends to it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_path(path, "path")
        self.rows: list[dict[str, Any]] = []

    def on_start(self, progress: Progress) -> None:
        """Take over the rows of the epochs that are done."""
        self.rows = []
        if progress.epoch and self.path.exists():
            with open(self.path, newline="", encoding="utf-8") as stream:
                self.rows = [row for row in csv.DictReader(stream) if int(row["epoch"]) <= progress.epoch]

    def on_epoch(self, progress: Progress) -> None:
        """Add a row."""
        self.rows.append(_numbers(progress) | {"epoch": progress.epoch})
        text = io.StringIO()
        columns = dict.fromkeys([*_COLUMNS, *(name for row in self.rows for name in row)])
        table = csv.DictWriter(text, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        atomic.write(self.path, text.getvalue().encode())


class TensorBoardLog(Callback):
    """Write scalars for TensorBoard, by `torch.utils.tensorboard`; needs the extra `logging`.

    Args:
        folder: Folder of the run's event files.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        library = optional("torch.utils.tensorboard", "TensorBoardLog", extra="logging")
        self.writer = library.SummaryWriter(str(check_path(folder, "folder")))

    def on_start(self, progress: Progress) -> None:
        """Write the settings."""
        self.writer.add_text("settings", str(dict(progress.settings)))

    def on_epoch(self, progress: Progress) -> None:
        """Write an epoch's numbers."""
        for name, value in _numbers(progress).items():
            self.writer.add_scalar(name, value, progress.epoch)
        self.writer.flush()

    def on_end(self, history: History) -> None:
        """Close the file."""
        self.writer.close()


@validated
class WandbLog(Callback):
    """Log to Weights & Biases; needs the extra `logging`.

    Args:
        project: Name of the project.
        mode: "online", "offline" or "disabled".
        options: Further arguments of `wandb.init`: `name`, `id` and `resume` of a continued run, `dir`.
    """

    def __init__(self, project: str, *, mode: Literal["online", "offline", "disabled"] = "online", **options: Any) -> None:
        wandb = optional("wandb", "WandbLog", extra="logging")
        self.start = lambda settings: wandb.init(project=project, mode=mode, config=settings, **options)
        self.run: Any = None

    def on_start(self, progress: Progress) -> None:
        """Begin a run with the settings."""
        self.run = self.start(dict(progress.settings))

    def on_epoch(self, progress: Progress) -> None:
        """Log an epoch's numbers."""
        self.run.log(_numbers(progress), step=progress.epoch, commit=True)

    def on_end(self, history: History) -> None:
        """End the run."""
        if self.run is not None:
            self.run.finish()


@validated
class MLflowLog(Callback):
    """Log to MLflow; needs the extra `logging`.

    The dependency is the small package mlflow-skinny without database: it writes to a server, or to a folder if
    `MLFLOW_ALLOW_FILE_STORE=true` is set in the environment. With the package mlflow, data bases are places too.

    Args:
        experiment: Name of the experiment.
        uri: Tracking URI; by default that of MLflow's settings.
    """

    def __init__(self, experiment: str, *, uri: str | None = None) -> None:
        mlflow = optional("mlflow", "MLflowLog", extra="logging")
        self.client = mlflow.MlflowClient(tracking_uri=uri)
        existing = self.client.get_experiment_by_name(experiment)
        self.experiment = self.client.create_experiment(experiment) if existing is None else existing.experiment_id
        self.run = ""

    def on_start(self, progress: Progress) -> None:
        """Begin a run with the settings."""
        self.run = self.client.create_run(self.experiment).info.run_id
        for name, value in progress.settings.items():
            self.client.log_param(self.run, name, str(value))

    def on_epoch(self, progress: Progress) -> None:
        """Log an epoch's numbers."""
        for name, value in _numbers(progress).items():
            self.client.log_metric(self.run, name, value, step=progress.epoch)

    def on_end(self, history: History) -> None:
        """End the run."""
        if self.run:
            self.client.set_terminated(self.run)


def _numbers(progress: Progress) -> dict[str, float]:
    return {**progress.losses, "learning_rate": progress.learning_rate, "seconds": progress.seconds}
