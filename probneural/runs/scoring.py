"""Scores of runs on the test pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from probneural.calibration.bands.conformal import Band
from probneural.distributions import FieldDistribution, Predictor
from probneural.errors import DataError, FileError
from probneural.fields import Field
from probneural.metrics import compare, coverage, relative_l2, score_pairs
from probneural.metrics.scores import Scores, batch_size
from probneural.pairs import Dataset, FieldPairs, batches
from probneural.pairs.clocks import WindowClock
from probneural.registry import stored
from probneural.runs.config import Config


@stored()
@dataclass(frozen=True, kw_only=True)
class TestScores:
    """Scores of a run on test pairs; prints as a table.

    Attributes:
        scores: Scores of the calibrated predictor.
        uncalibrated: Coverage of the pointwise intervals before calibration, dimensionless.
        band_coverage: Fraction of test samples inside the simultaneous band; None without bands.
        band_pairs: Number of conformal pairs behind the band, or of trajectories whose windows they are, 0 without one: its own
            coverage varies with them.
        baseline: Relative L2 error of the mean training output as the prediction; None if a true function is zero everywhere.
        persistence: Relative L2 error of the last input state as prediction; None also if outputs are not later input states.
    """

    __test__ = False  # pytest takes it for a test

    scores: Scores
    uncalibrated: float
    band_coverage: float | None
    band_pairs: int
    baseline: float | None
    persistence: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers by name; ready for JSON."""
        return {**vars(self), "scores": self.scores.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TestScores:
        """Build scores from the result of `to_dict`.

        Raises:
            FileError: If a number is missing.
        """
        try:
            scores = {"level_coverages": (), **values["scores"]}
            scores["level_coverages"] = tuple(scores["level_coverages"])  # a list in JSON
            return cls(**{**values, "scores": Scores(**scores)})
        except (KeyError, TypeError) as error:
            raise FileError(expected="the scores of a run", got=str(error), remedy="remove scores.json, and repeat") from error

    def __str__(self) -> str:
        """A table."""
        level = f"{self.scores.level:g}"
        rows = [
            (f"coverage at {level}, fitted bands", self.band_coverage),
            (f"coverage at {level}, before calibration", self.uncalibrated),
            ("relative L2 error of the mean output", self.baseline),
        ]
        if self.persistence is not None:
            rows.append(("relative L2 error of persistence", self.persistence))
        shown = [f"{name:<34}{'-' if value is None else f'{value:.4g}':>12}  1" for name, value in rows]
        return "\n".join((str(self.scores), *shown))


def predicted(predictor: Predictor, pairs: FieldPairs) -> FieldDistribution:
    """Predictions on the outputs' grid."""
    return predictor(pairs.inputs, None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid.shared)


def scores_of(
    predictor: Predictor,
    data: Dataset,
    *,
    raw: Predictor,
    band: Band | None,
    train: Dataset,
    band_pairs: int,
    config: Config,
    persists: bool,
) -> TestScores:
    """Score a calibrated predictor on test pairs, in chunks; with `persists`, outputs are later states of the inputs."""
    level = config.calibration.level
    return TestScores(
        scores=score_pairs(predictor, data, level=level, whole=int(config.scores.whole)),
        uncalibrated=_coverage(raw, data, level),
        band_coverage=None if band is None else band.coverage(data),
        band_pairs=0 if band is None else band_pairs,
        baseline=_baseline(train, data),
        persistence=_persistence(data) if persists else None,
    )


@torch.no_grad()
def _coverage(predictor: Predictor, data: Dataset, level: float) -> float:
    """Coverage of pointwise intervals, averaged over samples and channels."""
    total = 0.0
    for part in batches(data, batch_size(data.outputs)):
        comparison = compare(predicted(predictor, part), part.outputs, noise=predictor.noise)
        total += float(coverage(comparison, level=level).mean(1).sum())
    return total / len(data)


def _baseline(train: Dataset, data: Dataset) -> float | None:
    """The error of the mean training output as constant prediction."""
    mean, counts = torch.zeros(()).double(), torch.zeros(()).double()
    for part in batches(train, batch_size(train.outputs)):
        grid = part.outputs.grid
        mean = mean + grid.fill(part.outputs.values.double()).sum(0)
        counts = counts + grid.observed.double().expand(len(part), *grid.shape).sum(0)
    mean = mean / counts.clamp_min(1.0)
    return _relative_error(data, lambda part: mean.expand(part.outputs.values.shape))


def _persistence(data: Dataset) -> float | None:
    """The error of the last input state as the prediction."""
    clock: WindowClock | None = getattr(data, "clock", None)
    history, channels = 1 if clock is None else clock.history, data.outputs.channels
    return _relative_error(data, lambda part: part.inputs.values[:, (history - 1) * channels : history * channels].double())


def _relative_error(data: Dataset, predict: Callable[[FieldPairs], Tensor]) -> float | None:
    """Relative L2 error of a baseline, averaged over channels and samples; None if a true sample is zero everywhere."""
    total = 0.0
    try:
        for part in batches(data, batch_size(data.outputs)):
            truth = part.outputs.to(torch.float64)
            guess = Field(predict(part), truth.grid.unmasked)
            total += float(relative_l2(guess, truth).mean(1).sum())
    except DataError:
        return None
    return total / len(data)
