"""Results of a run in one object, and so in one file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from probneural.calibration.bands.conformal import Band
from probneural.checks import check_path
from probneural.distributions import Predictor
from probneural.errors import FileError
from probneural.registry import stored
from probneural.runs.config import Config
from probneural.runs.folder import RunFolder, check_record
from probneural.runs.scoring import TestScores
from probneural.runs.steps import CALIBRATION, SCORES, band_method, calibrated_in, read_history
from probneural.storage import load
from probneural.training import schema
from probneural.training.callbacks import History


@stored()
@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """Results of a calibrated run without its data, for example `pn.save(run, "run.safetensors")`; from `read_run`.

    Attributes:
        predictor: Calibrated predictor; the operator is a part of it.
        quantile: Half width of the simultaneous band in units of the local scale; None without a band.
        history: Losses of the training.
        scores: Scores on the test pairs; None if the run was not scored.
        record: Text of `run.json`: settings, rows of each part, versions.
    """

    predictor: Predictor
    quantile: float | None
    history: History
    scores: TestScores | None
    record: str

    def __post_init__(self) -> None:
        """Validate the record."""
        self.contents, self.config  # noqa: B018

    @cached_property
    def contents(self) -> dict[str, Any]:
        """The record, parsed."""
        return check_record(schema.parsed(self.record))

    @cached_property
    def config(self) -> Config:
        """The settings."""
        return Config.from_dict(self.contents["config"])

    @property
    def band(self) -> Band | None:
        """The simultaneous band; None without one."""
        method = band_method(self.config)
        return None if self.quantile is None else Band(self.predictor, quantile=self.quantile, method=method)


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read the results of a run: `pn.save` writes them to one file, which `pn.load`, `read_run` and `predict` read.

    Args:
        path: Folder of a calibrated run, or a file of its results.

    Raises:
        FileError: If it is something else, or damaged.
    """
    place = check_path(path, "path")
    if place.is_file():
        loaded = load(place, device="auto")
        if not isinstance(loaded, Run):
            remedy = "save one: pn.save(pn.runs.read_run(folder), path)"
            raise FileError(expected=f"results of a run in {place}", got=type(loaded).__name__, remedy=remedy)
        return loaded
    folder = RunFolder.finished(place)
    if not folder.file(CALIBRATION).exists():
        remedy = f"first: probneural calibrate --folder {place}"
        raise FileError(expected=f"a calibrated run in {place}", got="none", remedy=remedy)
    calibrated = calibrated_in(folder)
    return Run(
        predictor=calibrated.predictor,
        quantile=None if calibrated.band is None else calibrated.band.quantile,
        history=read_history(folder),
        scores=TestScores.from_dict(folder.read(SCORES)) if folder.file(SCORES).exists() else None,
        record=json.dumps(folder.record),
    )
