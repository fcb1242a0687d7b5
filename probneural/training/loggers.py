"""Callbacks that write down how a training goes, for programs that draw curves; each imports its library when it is made.

All of them log losses by epoch, the learning rate and the seconds, and the settings once.
"""

from __future__ import annotations

import csv
import io
import os
from typing import Any, Literal

from probneural.checks import check_path
from probneural.training import atomic
from probneural.training.callbacks import Callback, Progress
from probneural.training.history import History

_COLUMNS = ("epoch", "train", "validation", "learning_rate", "seconds")


class CSVLog(Callback):
    """Write a table with a row for each epoch, which is whole whenever it is looked at.

    Rows of later epochs that an earlier, killed run has left are dropped.

    Args:
        path: The file; a resumed training goes on in it.
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
        table = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(self.rows)
        atomic.write(self.path, text.getvalue().encode())


class TensorBoardLog(Callback):
    """Write scalars for TensorBoard, by `torch.utils.tensorboard`; needs the extra `logging`.

    Args:
        folder: Of the run's event files.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(check_path(folder, "folder")))

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


class WandbLog(Callback):
    """Log to Weights & Biases; needs the extra `logging`.

    Args:
        project: Its name.
        mode: "online", "offline" or "disabled".
        options: Others of `wandb.init`: `name`, `id` and `resume` of a run that goes on, `dir`.
    """

    def __init__(self, project: str, *, mode: Literal["online", "offline", "disabled"] = "online", **options: Any) -> None:
        import wandb

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


class MLflowLog(Callback):
    """Log to MLflow; needs the extra `logging`.

    That is the small package mlflow-skinny, which has no data base: it writes to a server, or to a folder if
    `MLFLOW_ALLOW_FILE_STORE=true` is set in the environment. With the package mlflow, data bases are places too.

    Args:
        experiment: Its name.
        uri: Where runs are tracked; by default what MLflow's own settings say.
    """

    def __init__(self, experiment: str, *, uri: str | None = None) -> None:
        import mlflow

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
