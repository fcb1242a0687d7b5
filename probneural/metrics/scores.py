"""All scores of a prediction in one call, and the statistics of samples from which they are computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from probneural.checks import check_flag, check_instance, check_integer, check_real
from probneural.contexts import without_gradients
from probneural.displays import html_table
from probneural.distributions.base import FieldDistribution
from probneural.distributions.predictors.base import Predictor
from probneural.errors import DataError, ProbneuralError
from probneural.fields import Field, check_field
from probneural.fingerprints import row_fingerprints
from probneural.metrics import reliability
from probneural.metrics.comparison import Comparison, compare, mean_relative_l2
from probneural.metrics.proper_scores import crps, energy_score, joint_nll, nll
from probneural.metrics.spread import RankSums, corrected_variance, interval_score, sharpness, spread_skill_ratio
from probneural.pairs import Dataset, FieldSource, check_dataset
from probneural.pairs.provenance import check_units, check_untrained, row_keys
from probneural.registry import stored

_BATCH_VALUES = 2**16
"""Output values per batch, each with all members."""

Compared = TypeVar("Compared")

UNCALIBRATED = "uncalibrated: fit pn.calibration.VarianceScale() to held-out pairs"
"""Last line of a table of scores whose predictor was not calibrated."""
_ROWS: Mapping[str, tuple[str, str]] = {
    "relative_l2": ("relative L2 error of the mean", "1"),
    "rmse": ("RMSE of the mean", "field"),
    "crps": ("CRPS", "field"),
    "nll": ("NLL per value, marginal", "nat"),
    "joint_nll": ("NLL per value, joint", "nat"),
    "coverage": ("coverage @, pointwise", "1"),
    "simultaneous_coverage": ("coverage @, simultaneous", "1"),
    "calibration_error": ("calibration error", "1"),
    "interval_width": ("interval width @", "field"),
    "chi2": ("chi2 per value", "1"),
    "interval_score": ("interval score @", "field"),
    "sharpness": ("sharpness", "field"),
    "spread_skill": ("spread-skill ratio", "1"),
    "energy": ("energy score", "field"),
    "rank_across": ("rank correlation across functions", "1"),
    "rank_across_attainable": ("  attainable as stated", "1"),
    "rank_within": ("rank correlation within functions", "1"),
    "rank_within_attainable": ("  attainable as stated", "1"),
}
"""Scores in the order of the table, with their titles (@ stands for the level) and units."""


@stored()
@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores averaged over samples, domain and channels; `print` shows a table.

    Attributes:
        relative_l2: Relative L2 error of the mean, dimensionless; None if a true field is zero everywhere.
        rmse: Root mean squared error of the mean, in physical units.
        crps: Continuous ranked probability score, in physical units; None for distributions without a closed form.
        nll: Negative log density per value, in nats; None if a predictive variance is zero.
        joint_nll: Joint negative log density per value, in nats; None if the variance of a direction is zero.
        coverage: Fraction of values inside the central intervals at `level`, dimensionless.
        simultaneous_coverage: Fraction of samples inside simultaneous bands at `level`, dimensionless.
        calibration_error: Mean absolute error of coverage over the levels .05 to .95, dimensionless.
        interval_width: Mean width of the central intervals at `level`, in physical units.
        chi2: Mean squared standardised residual, dimensionless; infinite for an error where the variance is zero.
        interval_score: Interval score of the central intervals at `level`, in physical units.
        sharpness: Mean predictive standard deviation, in physical units.
        spread_skill: Root mean predictive variance over RMSE, corrected for the number of members, dimensionless; None if the
            RMSE is zero or there is one member.
        energy: Energy score of output functions, in physical units.
        rank_across: Rank correlation of standard deviation and error between samples, dimensionless; None for fewer than
            three samples or points.
        rank_across_attainable: Mean of `rank_across` for errors drawn from the predicted distribution.
        rank_within: Rank correlation between the points of one sample, averaged over samples.
        rank_within_attainable: Mean of `rank_within` for errors drawn from the predicted distribution.
        level: Nominal level of the coverages, the width and the interval score.
        functions: Number n of samples.
        reasons: Reason for each score that is None.
        is_uncalibrated: Whether the predictor was not calibrated.
        level_coverages: Fraction of values inside the central intervals of the levels .05, .10, ..., .95, `(19,)`,
            dimensionless; empty for scores of earlier versions.
    """

    relative_l2: float | None
    rmse: float
    crps: float | None
    nll: float | None
    joint_nll: float | None
    coverage: float
    simultaneous_coverage: float
    calibration_error: float
    interval_width: float
    chi2: float
    interval_score: float
    sharpness: float
    spread_skill: float | None
    energy: float | None
    rank_across: float | None
    rank_across_attainable: float | None
    rank_within: float | None
    rank_within_attainable: float | None
    level: float
    functions: int
    reasons: Mapping[str, str] = field(default_factory=dict)
    is_uncalibrated: bool = False
    level_coverages: tuple[float, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return numbers for JSON by name, None for scores that are missing or not finite, and `reasons`."""
        values = asdict(self) | {"level_coverages": list(self.level_coverages)}
        infinite = {name: str(value) for name, value in values.items() if isinstance(value, float) and not math.isfinite(value)}
        return values | dict.fromkeys(infinite) | {"reasons": values["reasons"] | infinite}

    def __str__(self) -> str:
        """A table: one line per score, with its unit."""
        rows = [f"{title:<34}{value:>12}  {unit}" for title, value, unit in self._cells()]
        return "\n".join([*rows, *([UNCALIBRATED] if self.is_uncalibrated else [])])

    def _cells(self) -> Iterator[tuple[str, str, str]]:
        """The heading, and title, value and unit of each score."""
        yield f"score over {self.functions} functions", "value", "unit"
        for name, (title, unit) in _ROWS.items():
            value = getattr(self, name)
            reason = f"  ({self.reasons[name]})" if name in self.reasons else ""
            yield title.replace("@", f"at {self.level:g}"), "-" if value is None else f"{value:.4g}", f"{unit}{reason}"

    def _repr_html_(self) -> str:
        """The same table."""
        return html_table("Scores", [*self._cells(), *([(UNCALIBRATED,)] if self.is_uncalibrated else [])])


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Predictions and truth of consecutive samples.

    Attributes:
        u: Distribution of the predictions.
        truth: The true fields.
        rows: Indices of the samples.
        lead: Lead of the forecast, from 1.
    """

    u: FieldDistribution
    truth: Field
    rows: slice
    lead: int = 1

    @property
    def eps(self) -> float:
        """Relative spacing of numbers in the dtype of prediction or truth, whichever is coarser."""
        return max(torch.finfo(self.u.mean.dtype).eps, torch.finfo(self.truth.dtype).eps)

    def first(self, count: int) -> Batch:
        """The batch of the first samples."""
        if count >= len(self.truth):
            return self
        index = slice(0, count)
        return replace(self, u=self.u[index], truth=self.truth[index])


def batch_size(truth: FieldSource) -> int:
    """Number of samples per batch. Random numbers depend on it, so it depends on shapes only."""
    return max(1, _BATCH_VALUES // max(1, truth.channels * truth.grid.size))


def batch_rows(truth: FieldSource) -> Iterator[slice]:
    """Indices of the samples of each batch."""
    size = batch_size(truth)
    return (slice(start, min(start + size, len(truth))) for start in range(0, len(truth), size))


class Accumulator(Generic[Compared]):
    """Statistics of single samples, accumulated over batches.

    A statistic maps compared samples to a tensor `(n, ...)`. If it raises an error for a batch, it is dropped, and the message
    is its reason.

    Args:
        compare: Maps a batch to the argument of the statistics.
        pointwise: Pointwise statistics by name.
        joint: Field-wise statistics by name; they cost more.
        whole: Number of leading samples in `joint`; None for all.

    Attributes:
        reasons: Reasons of missing statistics by name.
    """

    def __init__(
        self,
        compare: Callable[[Batch], Compared],
        *,
        pointwise: Mapping[str, Callable[[Compared], Tensor]],
        joint: Mapping[str, Callable[[Compared], Tensor]],
        whole: int | None = None,
    ) -> None:
        self._compare, self._pointwise, self._joint, self._whole = compare, pointwise, joint, whole
        self._parts: dict[str, list[Tensor]] = {}
        self.reasons: dict[str, str] = {}

    def add(self, batch: Batch) -> Compared | None:
        """Add a batch; return the compared samples of its joint statistics, or None."""
        compared = self._compare(batch)
        self._compute(self._pointwise, compared)
        count = len(batch.truth) if self._whole is None else self._whole - batch.rows.start
        if count <= 0:
            return None
        first = compared if count >= len(batch.truth) else self._compare(batch.first(count))
        self._compute(self._joint, first)
        return first

    def _compute(self, statistics: Mapping[str, Callable[[Compared], Tensor]], compared: Compared) -> None:
        for name, statistic in statistics.items():
            if name in self.reasons:
                continue
            try:
                self._parts.setdefault(name, []).append(statistic(compared).detach().cpu())
            except ProbneuralError as error:
                self.reasons[name] = str(error)
                del self._parts[name]

    def values(self) -> dict[str, Tensor]:
        """Each statistic of all samples, `(n, ...)`, without dropped statistics."""
        return {name: torch.cat(parts) for name, parts in self._parts.items()}

    def sums(self) -> dict[str, tuple[Tensor, int]]:
        """Each statistic summed over samples, and the number of samples."""
        return {
            name: (reduce(torch.add, (part.sum(0) for part in parts)), sum(map(len, parts)))
            for name, parts in self._parts.items()
        }


def score(
    u: FieldDistribution,
    truth: Field,
    *,
    noise: float | Tensor = 0.0,
    level: float = 0.9,
    whole: int | None = None,
    allow_training_data: bool = False,
) -> Scores:
    """Score a distribution over fields against the true fields.

    Averages over the domain use quadrature weights, so they converge under refinement of the grid; only the joint NLL counts
    values. Scores are computed in float64. For zero variance a score has its limit, or is None with a reason.

    Args:
        u: The distribution of n samples with c channels, without observation noise.
        truth: The true fields, `(n, c, *grid)`, on the distribution's grid.
        noise: Variance of the observation noise in `truth`, in physical units squared: a number, or one per channel `(c,)`
            as in `predictor.noise`. The predictive variance is `u.variance + noise`.
        level: Nominal level of the coverages and of the interval width, between 0 and 1.
        whole: Number of leading samples for field-wise scores: joint NLL, simultaneous coverage, energy score and rank
            correlations; all by default. Their cost per sample is proportional to points times rank squared.
        allow_training_data: Whether samples that trained the predictor of `u` cause a warning instead of an error.

    Returns:
        The scores, averaged over channels.

    Raises:
        DataError: If `u` is not a `FieldDistribution` or `truth` not a `Field`, there are no samples, a value is not finite, or
            samples trained the predictor of `u`.
        GridError: If the grids differ.
        ShapeError: If the shapes differ; nothing is broadcast.
        ArgumentError: If the noise is negative or of another shape, the level is not between 0 and 1, or `whole` is below 1.

    Examples:
        >>> import torch
        >>> from probneural.distributions import EmpiricalField
        >>> from probneural.fields import Grid
        >>> grid = Grid.uniform((4,))
        >>> truth = Field(torch.ones(3, 1, 4), grid)
        >>> members = torch.tensor([0.5, 1.5]).reshape(2, 1, 1, 1).expand(2, 3, 1, 4)
        >>> print(score(EmpiricalField(members, grid=grid), truth, noise=0.75))
        score over 3 functions                   value  unit
        relative L2 error of the mean                0  1
        ...
    """
    check_instance(u, FieldDistribution, "u", remedy="score what a predictor returns")
    check_field(truth, "truth")
    source, is_allowed = u.provenance, check_flag(allow_training_data, "allow_training_data")
    if source is not None and source.inputs is not None and len(source.inputs) == len(truth):
        check_units(source.trained_on, truth, name="output")
        if source.trained_on is not None:
            values = [side.grid.fill(side.values) for side in (source.inputs, truth)]
            keys = row_fingerprints(*values)[:, None]
            check_untrained(keys, source.trained_on, allow_training_data=is_allowed, purpose="scores", error=DataError)
    if len(truth) != len(u.mean) or len(truth) <= batch_size(truth):
        return _scored([Batch(u=u, truth=truth, rows=slice(0, len(truth)))], noise=noise, level=level, whole=whole)
    batches = (Batch(u=u[rows], truth=truth[rows], rows=rows) for rows in batch_rows(truth))
    return _scored(batches, noise=noise, level=level, whole=whole)


@without_gradients()
def score_pairs(
    predictor: Predictor, data: Dataset, *, level: float = 0.9, whole: int | None = None, allow_training_data: bool = False
) -> Scores:
    """Score a predictor on a data set of any size, a few samples at a time.

    The scores are those of `score(predictor(data.inputs), data.outputs, noise=predictor.noise)`, up to rounding. Memory does
    not grow with the data, but for some numbers per sample. For predictors whose calls do not share their latent (kernel
    operators), attainable rank correlations have other draws.

    Args:
        predictor: Predictor of any head or calibrator.
        data: Pairs that neither training nor calibration used; outputs may have another grid than inputs.
        level: Nominal level of the coverages and of the interval width, between 0 and 1.
        whole: Number of leading samples for field-wise scores; all by default.
        allow_training_data: Whether pairs that trained the predictor cause a warning instead of an error.

    Returns:
        The scores, averaged over channels.

    Raises:
        DataError: If `predictor` is no `Predictor`, there are no pairs, a value is not finite, the unit of a channel differs
            from training, or pairs trained the predictor.
        ShapeError: If the outputs do not have the predictor's channels.
        ArgumentError: If the level is not between 0 and 1, or `whole` is below 1.
    """
    check_instance(
        predictor, Predictor, "predictor", remedy="fit a head first: pn.heads.LastLayerLaplace().fit(operator, train)"
    )
    is_allowed = check_flag(allow_training_data, "allow_training_data")
    pairs, record = check_dataset(data, "test").detached(), predictor.trained_on
    check_units(record, data.inputs)
    check_units(record, data.outputs, name="output")
    if record is not None:
        check_untrained(row_keys(data), record, allow_training_data=is_allowed, purpose="scores", error=DataError)
    is_alike = pairs.inputs.grid == pairs.outputs.grid
    parts = ((rows, pairs[rows]) for rows in batch_rows(pairs.outputs))
    batches = (
        Batch(u=predictor(part.inputs, None if is_alike else part.outputs.grid.shared), truth=part.outputs, rows=rows)
        for rows, part in parts
    )
    return _scored(batches, noise=predictor.noise, level=level, whole=whole)


def _scored(batches: Iterable[Batch], *, noise: float | Tensor, level: float, whole: int | None) -> Scores:
    """Accumulate the statistics of all samples and average them over samples and channels."""
    level = check_real(level, "level", above=0.0, below=1.0)
    accumulator = Accumulator(
        lambda batch: compare(batch.u, batch.truth, noise=noise),
        pointwise=_pointwise_statistics(level),
        joint={
            "energy": energy_score,
            "simultaneous_coverage": lambda comparison: reliability.simultaneous_coverage(comparison, level=level),
            "joint_nll": joint_nll,
        },
        whole=None if whole is None else check_integer(whole, "whole"),
    )
    ranks, count, is_uncalibrated = RankSums(), 0, False
    for batch in batches:
        first = accumulator.add(batch)
        if first is not None:
            ranks.add(first)
        count += len(batch.truth)
        is_uncalibrated |= batch.u.is_uncalibrated
    sums, reasons = accumulator.sums(), dict(accumulator.reasons)
    means = {name: total / number for name, (total, number) in sums.items()}
    values: dict[str, float | None] = dict.fromkeys(_ROWS)
    values |= {name: float(mean.mean()) for name, mean in means.items()}

    def derive(*names: str, compute: Callable[[], Iterable[Tensor]]) -> None:
        try:
            values.update({name: float(value.mean()) for name, value in zip(names, compute(), strict=True)})
        except DataError as error:
            values.update(dict.fromkeys(names))
            reasons.update(dict.fromkeys(names, str(error)))

    coverages, square = means["calibration_error"], means["rmse"]
    levels = torch.tensor(reliability.LEVELS, device="cpu").to(coverages)[:, None]
    values["calibration_error"] = float((coverages - levels).abs().mean())
    values["rmse"] = float(square.sqrt().mean())
    if "spread_skill" in means or bool((square == 0).any()):  # an RMSE of zero is the first reason
        derive("spread_skill", compute=lambda: [spread_skill_ratio(means.get("spread_skill", square), square)])
    derive("rank_across", "rank_within", "rank_across_attainable", "rank_within_attainable", compute=ranks.result)
    return Scores(
        **values,  # type: ignore[arg-type]
        level=level,
        functions=count,
        reasons=reasons,
        is_uncalibrated=is_uncalibrated,
        level_coverages=tuple((sums["calibration_error"][0].mean(1) / count).tolist()),
    )


def _pointwise_statistics(level: float) -> dict[str, Callable[[Comparison], Tensor]]:
    """Pointwise statistics of each sample, `(n, c)`; scores are computed from their means."""
    return {
        "coverage": lambda comparison: reliability.coverage(comparison, level=level),
        "interval_width": lambda comparison: reliability.interval_width(comparison, level=level),
        "chi2": reliability.chi2,
        "interval_score": lambda comparison: interval_score(comparison, level=level),
        "sharpness": sharpness,
        "relative_l2": mean_relative_l2,
        "crps": crps,
        "nll": nll,
        "rmse": lambda comparison: comparison.average(comparison.residual.square()),
        "calibration_error": lambda comparison: reliability.level_coverages(comparison).movedim(0, 1),
        "spread_skill": lambda comparison: comparison.average(corrected_variance(comparison)),
    }
