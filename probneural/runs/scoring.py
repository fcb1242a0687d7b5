"""The one place where runs score: what is computed on the test pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from probneural.calibration import Band
from probneural.distributions import FieldDistribution, Predictor
from probneural.errors import DataError, FileError
from probneural.fields import Field
from probneural.metrics import Scores, compare, coverage, relative_l2, score
from probneural.pairs import Dataset, FieldPairs, batches

_BATCH = 256
"""Pairs that are read at once where their sum is formed."""


@dataclass(frozen=True, kw_only=True)
class TestScores:
    """What a run is worth on pairs that nothing else has seen; printing gives a table.

    Attributes:
        scores: Of the calibrated predictor.
        uncalibrated: Coverage of the pointwise intervals before calibration, dimensionless.
        band_coverage: Fraction of test functions wholly inside the band that was fitted for them; None without bands.
        band_pairs: Number of conformal pairs behind the band, 0 without one: its own coverage varies with them.
    baseline: Relative L2 error of the mean training output as the prediction; None if a true function is zero everywhere.
    """

    __test__ = False  # pytest takes it for a test

    scores: Scores
    uncalibrated: float
    band_coverage: float | None
    band_pairs: int
    baseline: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers by name; ready for JSON."""
        return {**vars(self), "scores": self.scores.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TestScores:
        """Build them of what `to_dict` returned.

        Raises:
            FileError: If a number is missing.
        """
        try:
            return cls(**{**values, "scores": Scores(**values["scores"])})
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
        shown = [f"{name:<34}{'-' if value is None else f'{value:.4g}':>12}  1" for name, value in rows]
        return "\n".join((str(self.scores), *shown))


def predicted(predictor: Predictor, pairs: FieldPairs) -> FieldDistribution:
    """What is predicted on the outputs' own grid."""
    return predictor(pairs.inputs, None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid)


def scores_of(
    predictor: Predictor,
    data: Dataset,
    *,
    raw: Predictor,
    band: Band | None,
    train: Dataset,
    band_pairs: int,
    level: float,
    whole: int,
) -> TestScores:
    """Score a calibrated predictor on test pairs."""
    pairs = data[:]
    u = predicted(predictor, pairs)
    comparison = compare(predicted(raw, pairs), pairs.outputs, noise=raw.noise)
    return TestScores(
        scores=score(u, pairs.outputs, noise=predictor.noise, level=level, whole=whole),
        uncalibrated=float(coverage(comparison, level=level).mean()),
        band_coverage=None if band is None else _band_coverage(band, pairs),
        band_pairs=0 if band is None else band_pairs,
        baseline=_baseline(train, pairs.outputs),
    )


def _band_coverage(band: Band, pairs: FieldPairs) -> float:
    query = None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid
    return float(band(pairs.inputs, query).contains(pairs.outputs).double().mean())


def _baseline(train: Dataset, truth: Field) -> float | None:
    """The error of one function for all inputs: the mean training output."""
    total = sum((batch.outputs.values.double().sum(0) for batch in batches(train, _BATCH)), torch.zeros(()).double())
    mean = (total / len(train)).expand(truth.values.shape)
    try:
        return float(relative_l2(Field(mean, truth.grid), Field(truth.values.double(), truth.grid)).mean())
    except DataError:
        return None
