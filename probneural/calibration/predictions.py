"""Predictions of a calibration set in chunks of bounded memory, their residuals, and groups of samples in cross-validation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.checks import check_finite, check_flag, check_instance, check_squares
from probneural.distributions.base import FieldDistribution, noise_variance
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.distributions.predictors.base import Predictor
from probneural.errors import CalibrationError, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.metrics.comparison import domain_average
from probneural.pairs import Dataset, FieldPairs, batches, check_dataset
from probneural.pairs.provenance import check_units, check_untrained, row_keys, shared_rows

CHUNK_VALUES = 2**16
"""Output values predicted at once; heads keep up to some hundred numbers for each."""
_KEPT_VALUES = 2**21
"""Output values whose predictions are remembered (48 MiB)."""
ROUNDING = 8.0
"""Units in the last place, of a function's largest value, up to which errors and deviations count as none (as in metrics)."""
MOSTLY = 0.8
"""Fraction of values that are rounding from which the others say nothing of errors."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictedMoments:
    """Mean and predictive variance of n functions, float64.

    Args:
        mean: `(n, c, *grid)`, in physical units.
        variance: Variance of the field plus that of the noise, `(n, c, *grid)`, in physical units squared.
        epsilon: Relative spacing of numbers in the dtype the two came in.
        grid: Where they live, weighted as what was observed: masked points do not count.
    """

    mean: Float64[Tensor, "n c *grid"]
    variance: Float64[Tensor, "n c *grid"]
    epsilon: float
    grid: Grid


Pair = tuple[PredictedMoments, Float64[Tensor, "_ c *grid"]]
"""Predicted moments of some functions at a time, and what was observed of them."""


def moments(u: FieldDistribution, noise: float | Tensor) -> PredictedMoments:
    """Read mean and predictive variance off a distribution, detached.

    Raises:
        DataError: If either is not finite.
    """
    raw = u.mean.detach()
    mean = raw.to(torch.float64)
    variance = u.variance.detach().to(torch.float64)
    check_finite(mean, "predicted means")
    check_finite(variance, "predicted variances")
    check_squares(mean, "predicted means")
    observed = noise_variance(noise, tuple(mean.shape), mean).detach()
    return PredictedMoments(mean=mean, variance=variance + observed, epsilon=torch.finfo(raw.dtype).eps, grid=u.grid)


def observed_moments(u: FieldDistribution, noise: float | Tensor, *, grid: Grid) -> PredictedMoments:
    """The same, weighted as what was observed of these functions; the mean is 0 at masked points, as observations are."""
    predicted = moments(u, noise)
    return replace(predicted, mean=grid.fill(predicted.mean), grid=grid)


def distributions(
    predictor: Predictor, pairs: Dataset
) -> Iterator[tuple[FieldDistribution, Float64[Tensor, "n c *grid"], Grid]]:
    """Predict the outputs of a data set on their own grid, in chunks of bounded memory.

    Yields:
        The distribution and the observed outputs of some functions at a time, 0 at masked points, with the grid or grids that
        weigh them; in the order of the data, on the predictor's device.

    Raises:
        DataError: If `pairs` are no data set, or a value is not finite.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_pairs(predictor, pairs)
    for part in batches(pairs, _chunk_size(pairs)):
        check_squares(part.outputs.values, "calibration outputs")
        grid = part.outputs.grid
        u = predictor(part.inputs.detached(), grid.shared)
        yield u, grid.fill(part.outputs.values.detach().to(u.mean.device, torch.float64)), grid


def _chunk_size(pairs: Dataset) -> int:
    """How many functions are read and predicted at once."""
    return max(1, CHUNK_VALUES // (pairs.outputs.channels * pairs.outputs.grid.size))


def warn_of_training_pairs(predictor: Predictor, pairs: Dataset, *, purpose: str) -> None:
    """Warn if some pairs trained the predictor."""
    if predictor.trained_on is not None:
        check_untrained(row_keys(pairs), predictor.trained_on, allow_training_data=True, purpose=purpose)


def untrained_keys(predictor: Predictor, pairs: Dataset, *, allow_training_data: bool) -> Int64[Tensor, "n k"]:
    """Return the row keys of calibration pairs that did not train the predictor.

    Raises:
        CalibrationError: If some pairs trained it, and training data are not allowed.
        ArgumentError: If `allow_training_data` is no truth value.

    Warns:
        DataWarning: If some pairs trained it, and training data are allowed.
    """
    is_allowed = check_flag(allow_training_data, "allow_training_data")
    keys = row_keys(pairs)
    check_untrained(keys, predictor.trained_on, allow_training_data=is_allowed, purpose="calibration")
    return keys


def check_new(predictor: Predictor, pairs: Dataset, *, allow_training_data: bool) -> None:
    """Raise a CalibrationError if the predictor was trained on some of these pairs, or its variances were scaled on some.

    Raises:
        CalibrationError: If so; `allow_training_data` allows pairs that trained it.
        DataError: If `predictor` or `pairs` are none.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_pairs(predictor, pairs)
    check_unused(untrained_keys(predictor, pairs, allow_training_data=allow_training_data), predictor.calibrated_on)


def check_unused(keys: Int64[Tensor, "n *w k"], used: Int64[Tensor, " m"]) -> None:
    """Raise a CalibrationError if variances were scaled on some of these samples, given by row keys."""
    count = shared_rows(keys, used)
    if count:
        raise CalibrationError(
            expected="calibration fields that the predictor's variances were not scaled on",
            got=f"{count} of {len(keys)} that they were",
            remedy="split them: scaling, conformal = calibration.split(len(calibration) // 2, seed=0)",
        )


def predictions(predictor: Predictor, pairs: Dataset) -> Iterator[tuple[PredictedMoments, Float64[Tensor, "n c *grid"]]]:
    """Yield the moments alone of [`distributions`][probneural.calibration.predictions.distributions], and the outputs."""
    for u, truth, grid in distributions(predictor, pairs):
        yield observed_moments(u, predictor.noise, grid=grid), truth


class CalibrationPredictions:
    """Moments of a calibration set beside what was observed, to be gone through several times, some functions at a time.

    Few are remembered from the first time; many are predicted anew.

    Args:
        predictor: Whose they are.
        pairs: The set.
    """

    def __init__(self, predictor: Predictor, pairs: Dataset) -> None:
        self.predictor = predictor
        self.pairs = pairs
        self.is_kept = len(pairs) * pairs.outputs.channels * pairs.outputs.grid.size <= _KEPT_VALUES
        self._kept: list[Pair] = []

    def distributions(self) -> Iterator[tuple[FieldDistribution, Pair]]:
        """Predict all, and yield their moments with the distributions that these were read off."""
        self._kept = []
        for u, truth, grid in distributions(self.predictor, self.pairs):
            pair = observed_moments(u, self.predictor.noise, grid=grid), truth
            if self.is_kept:
                self._kept.append(pair)
            yield u, pair

    def __iter__(self) -> Iterator[Pair]:
        """Yield the moments alone, and the observed outputs."""
        if self._kept:
            yield from self._kept
        else:
            yield from (pair for _, pair in self.distributions())


def check_pairs(predictor: Predictor, pairs: Dataset) -> None:
    """Raise unless the predictor can be held against these pairs.

    Raises:
        DataError: If `predictor` is not a `Predictor`, `pairs` are no data set, a value in memory is not finite, or a channel
            has another unit than in training.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_instance(
        predictor, Predictor, "predictor", remedy="fit a head first: pn.heads.LastLayerLaplace().fit(operator, train)"
    )
    check_dataset(pairs, "calibration", least=0)
    if pairs.outputs.channels != predictor.out_channels:
        raise ShapeError(
            expected=f"outputs of {predictor.out_channels} channels, as predicted",
            got=str(pairs.outputs.channels),
            remedy="calibrate with data of the same problem",
        )
    check_units(predictor.trained_on, pairs.inputs)
    check_units(predictor.trained_on, pairs.outputs, name="output")
    if isinstance(pairs, FieldPairs):
        check_squares(pairs.outputs.values, "calibration outputs")


def likelihood_profile(
    predictor: Predictor, moments: Iterable[Pair], *, calibration: Dataset, ratios: Float64[Tensor, "k c"]
) -> tuple[Float64[Tensor, "k c"], Float64[Tensor, "k c"]]:
    """chi² and mean log variance of the calibration fields for field variance plus `ratio` times the noise.

    Their sum with a logarithm on chi² is twice the negative log likelihood at the best common scale, up to a constant.
    """
    chi2, spread = torch.zeros_like(ratios), torch.zeros_like(ratios)
    for predicted, truth in moments:
        grid = predicted.grid
        noise = predictor.noise.detach().to(predicted.variance).reshape(-1, *(1,) * len(grid.shape))
        for number, ratio in enumerate(ratios.to(predicted.variance.device)):
            extra = (ratio - 1.0).reshape(-1, *(1,) * len(grid.shape)) * noise
            moved = replace(predicted, variance=predicted.variance + extra)
            chi2[number] += (
                domain_average(standardised_squares(moved, truth, dtype=calibration.outputs.dtype), grid).sum(0).cpu()
            )
            if len(ratios) > 1:
                spread[number] += domain_average(moved.variance.log(), grid).sum(0).cpu()
    return chi2 / len(calibration), spread / len(calibration)


def standardised_squares(predicted: PredictedMoments, truth: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Standardised squared residuals; 0 where residual and deviation are both zero up to rounding."""
    residual = truth - predicted.mean
    none = are_rounding(predicted, truth, dtype=dtype)
    return torch.where(none, torch.zeros_like(residual), residual.square() / predicted.variance)


def are_rounding(predicted: PredictedMoments, truth: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Where residual and deviation are both zero up to rounding."""
    axes = tuple(range(2, truth.ndim))
    unit = ROUNDING * max(predicted.epsilon, torch.finfo(dtype).eps)
    rounding = unit * torch.maximum(predicted.mean.abs(), truth.abs()).amax(axes, keepdim=True)
    return ((truth - predicted.mean).abs() <= rounding) & (predicted.variance <= rounding.square())


def gaussian_of(u: FieldDistribution) -> GaussianField:
    """The Gaussian field that a prediction is, or that has the moments of its draws.

    Raises:
        UnsupportedError: If the field is neither Gaussian nor empirical nor a mixture.
    """
    matched = u.moment_matched() if isinstance(u, EmpiricalField | MixtureField) else u
    if not isinstance(matched, GaussianField):
        raise UnsupportedError(
            expected="a predictor of Gaussian or empirical fields",
            got=type(u).__name__,
            remedy="wrap its samples as an EmpiricalField",
        )
    return matched


FOLDS = 5
"""Parts of a calibration set, each held out once."""
_ERRORS = 2.0
"""Standard errors by which the mean has to exceed zero."""
_UPPER = 0.95
"""Level of the quantile that larger gains count as."""


def group_numbers(pairs: Dataset) -> Int64[Tensor, " n"]:
    """Which group each pair is of, numbered from 0; without groups, such as trajectories, each is one of its own.

    What is held out in turn are whole groups: windows of one trajectory resemble each other.
    """
    groups = getattr(pairs, "groups", None)
    return torch.arange(len(pairs), device="cpu") if groups is None else groups.unique(return_inverse=True)[1]


def number_of(groups: Int64[Tensor, " n"]) -> int:
    """How many groups there are."""
    return int(groups.max()) + 1 if len(groups) else 0


def mean_size(groups: Int64[Tensor, " n"]) -> float:
    """Functions per group, on average, by which penalties in functions are multiplied: a group then counts as one."""
    return len(groups) / max(1, number_of(groups))


def group_sizes(groups: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """How many functions there are in the group of each."""
    return groups.bincount()[groups]


def group_means(values: Float64[Tensor, " n"], groups: Int64[Tensor, " n"]) -> Float64[Tensor, " g"]:
    """The mean of each group.

    Examples:
        >>> group_means(torch.tensor([1.0, 3.0, 5.0]).double(), torch.tensor([0, 0, 1])).tolist()
        [2.0, 5.0]
    """
    return values.new_zeros(number_of(groups)).index_add(0, groups, values) / groups.bincount()


def is_gain(gains: Float64[Tensor, " n"]) -> bool:
    """Whether gains of functions that were held out in turn are more than chance: two standard errors more than nothing.

    Where errors have heavy tails, a few functions may gain a hundred times as much as others. They raise the mean, and the
    standard error more: one such function among two hundred would hide what all others gain. So it is enough if the mean
    exceeds two standard errors with the largest twentieth of the gains counted as the next smaller one. Losses count in full.

    Args:
        gains: One per function, or per group of functions, in nats, or twice that.

    Examples:
        >>> gains = torch.full((200,), 0.5).double().index_fill(0, torch.tensor([0]), 150.0)
        >>> bool(gains.mean() > 2.0 * gains.std() / math.sqrt(200)), is_gain(gains), is_gain(-gains)
        (False, True, False)
    """
    capped = gains.clamp(max=float(gains.quantile(_UPPER)))
    return any(bool(sample.mean() > _ERRORS * sample.std() / math.sqrt(len(sample))) for sample in (gains, capped))
