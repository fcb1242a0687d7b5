"""Predictions of a calibration set in chunks of bounded memory, their residuals, and groups of samples in cross-validation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.checks import check_count, check_finite, check_flag, check_instance, check_least, check_squares
from probneural.distributions.base import FieldDistribution, noise_variance, spread_over
from probneural.distributions.predictors.base import Predictor
from probneural.errors import CalibrationError
from probneural.grids import Grid
from probneural.metrics.comparison import domain_average
from probneural.metrics.scores import batch_size
from probneural.pairs import Dataset, FieldPairs, batches, check_dataset
from probneural.pairs.provenance import check_units, check_untrained, row_keys, shared_rows

CHUNK_VALUES = 2**16
"""Number of output values per prediction; heads store up to a few hundred numbers for each."""
_KEPT_VALUES = 2**21
"""Number of output values whose predictions are cached (48 MiB)."""
ROUNDING = 8.0
"""Errors and deviations up to this many units in the last place of the sample's largest value are zero, as in metrics."""
MOSTLY = 0.8
"""Largest fraction of values at rounding level for which the remaining values can be used for calibration."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictedMoments:
    """Mean and predictive variance of n samples, float64.

    Args:
        mean: `(n, c, *grid)`, in physical units.
        variance: Variance of the field plus that of the noise, `(n, c, *grid)`, in physical units squared.
        epsilon: Machine epsilon of the original dtype of the moments.
        grid: Grid of the moments, with the weights of the observations: zero at masked points.
    """

    mean: Float64[Tensor, "n c *grid"]
    variance: Float64[Tensor, "n c *grid"]
    epsilon: float
    grid: Grid


Pair = tuple[PredictedMoments, Float64[Tensor, "_ c *grid"]]
"""Predicted moments of a chunk of samples, and their observations."""


def moments(u: FieldDistribution, noise: float | Tensor) -> PredictedMoments:
    """Return the detached mean and predictive variance of a distribution.

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
    """The same moments with the weights of the observations; the mean is 0 at masked points, as the observations are."""
    predicted = moments(u, noise)
    return replace(predicted, mean=grid.fill(predicted.mean), grid=grid)


def distributions(
    predictor: Predictor, pairs: Dataset
) -> Iterator[tuple[FieldDistribution, Float64[Tensor, "n c *grid"], Grid]]:
    """Predict the outputs of a data set on their own grid, in chunks of bounded memory.

    Yields:
        Distribution, observed outputs (0 at masked points) and weighting grids of a chunk of samples, in the order of the
        data, on the predictor's device.

    Raises:
        DataError: If `pairs` is not a data set, or a value is not finite.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_pairs(predictor, pairs)
    for part in batches(pairs, batch_size(pairs.outputs)):
        check_squares(part.outputs.values, "calibration outputs")
        grid = part.outputs.grid
        u = predictor(part.inputs.detached(), grid.shared)
        yield u, grid.fill(part.outputs.values.detach().to(u.mean.device, torch.float64)), grid


def warn_of_training_pairs(predictor: Predictor, pairs: Dataset, *, purpose: str) -> None:
    """Warn if some pairs trained the predictor."""
    if predictor.trained_on is not None:
        check_untrained(row_keys(pairs), predictor.trained_on, allow_training_data=True, purpose=purpose)


def untrained_keys(predictor: Predictor, pairs: Dataset, *, allow_training_data: bool) -> Int64[Tensor, "n k"]:
    """Return the row keys of calibration pairs that did not train the predictor.

    Raises:
        CalibrationError: If some pairs trained it, and training data are not allowed.
        ArgumentError: If `allow_training_data` is not a bool.

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
        CalibrationError: For such pairs; `allow_training_data` allows training pairs.
        DataError: If `predictor` is not a predictor or `pairs` is not a data set.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_pairs(predictor, pairs)
    check_unused(untrained_keys(predictor, pairs, allow_training_data=allow_training_data), predictor.calibrated_on)


def check_unused(keys: Int64[Tensor, "n *w k"], used: Int64[Tensor, " m"]) -> None:
    """Raise a CalibrationError if variances were scaled on some of these samples, identified by row keys."""
    count = shared_rows(keys, used)
    if count:
        raise CalibrationError(
            expected="calibration fields that the predictor's variances were not scaled on",
            got=f"{count} of {len(keys)} used for scaling",
            remedy="split them: scaling, conformal = calibration.split(len(calibration) // 2, seed=0)",
        )


def predictions(predictor: Predictor, pairs: Dataset) -> Iterator[tuple[PredictedMoments, Float64[Tensor, "n c *grid"]]]:
    """Yield the moments of [`distributions`][probneural.calibration.predictions.distributions] and the outputs."""
    for u, truth, grid in distributions(predictor, pairs):
        yield observed_moments(u, predictor.noise, grid=grid), truth


class CalibrationPredictions:
    """Moments and observations of a calibration set for repeated iteration, in chunks.

    Small sets are cached; large sets are predicted again in each iteration.

    Args:
        predictor: The predictor.
        pairs: The calibration set.
    """

    def __init__(self, predictor: Predictor, pairs: Dataset) -> None:
        self.predictor = predictor
        self.pairs = pairs
        self.is_kept = len(pairs) * pairs.outputs.channels * pairs.outputs.grid.size <= _KEPT_VALUES
        self._kept: list[Pair] = []

    def distributions(self) -> Iterator[tuple[FieldDistribution, Pair]]:
        """Predict all samples, and yield their moments and distributions."""
        self._kept = []
        for u, truth, grid in distributions(self.predictor, self.pairs):
            pair = observed_moments(u, self.predictor.noise, grid=grid), truth
            if self.is_kept:
                self._kept.append(pair)
            yield u, pair

    def __iter__(self) -> Iterator[Pair]:
        """Yield the moments and the observed outputs."""
        if self._kept:
            yield from self._kept
        else:
            yield from (pair for _, pair in self.distributions())


def check_pairs(predictor: Predictor, pairs: Dataset, *, least: int = 0) -> None:
    """Raise an error unless the predictor can be compared with these pairs, `least` or more.

    Raises:
        DataError: If `predictor` is not a `Predictor`, `pairs` is not a data set, a value in memory is not finite, or the unit
            of a channel differs from that in training.
        ShapeError: If the outputs do not have the predictor's channels.
        CalibrationError: If there are fewer pairs.
    """
    check_instance(
        predictor, Predictor, "predictor", remedy="fit a head first: pn.heads.LastLayerLaplace().fit(operator, train)"
    )
    check_dataset(pairs, "calibration", least=0)
    remedy = "calibrate with data of the same problem"
    check_count(pairs.outputs.channels, predictor.out_channels, "channels of outputs, as predicted", remedy=remedy)
    check_units(predictor.trained_on, pairs.inputs)
    check_units(predictor.trained_on, pairs.outputs, name="output")
    if isinstance(pairs, FieldPairs):
        check_squares(pairs.outputs.values, "calibration outputs")
    remedy = "hold out some training fields"
    check_least(len(pairs), least, "calibration fields", remedy=remedy, error=CalibrationError)


def likelihood_profile(
    predictor: Predictor, moments: Iterable[Pair], *, calibration: Dataset, ratios: Float64[Tensor, "k c"]
) -> tuple[Float64[Tensor, "k c"], Float64[Tensor, "k c"]]:
    """χ² and mean log variance of the calibration fields, with variance = field variance + `ratio` × noise.

    log χ² + mean log variance is twice the negative log likelihood at the best common scale, up to a constant.
    """
    chi2, spread = torch.zeros_like(ratios), torch.zeros_like(ratios)
    for predicted, truth in moments:
        grid = predicted.grid
        noise = spread_over(predictor.noise.detach(), predicted.variance)
        for number, ratio in enumerate(ratios.to(predicted.variance.device)):
            extra = spread_over(ratio - 1.0, predicted.variance) * noise
            moved = replace(predicted, variance=predicted.variance + extra)
            chi2[number] += (
                domain_average(standardised_squares(moved, truth, dtype=calibration.outputs.dtype), grid).sum(0).cpu()
            )
            if len(ratios) > 1:
                spread[number] += domain_average(moved.variance.log(), grid).sum(0).cpu()
    return chi2 / len(calibration), spread / len(calibration)


def standardised_squares(predicted: PredictedMoments, truth: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Standardised squared residuals; 0 if residual and deviation are both zero up to rounding."""
    residual = truth - predicted.mean
    none = are_rounding(predicted, truth, dtype=dtype)
    return torch.where(none, torch.zeros_like(residual), residual.square() / predicted.variance)


def are_rounding(predicted: PredictedMoments, truth: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Mask of points whose residual and deviation are both zero up to rounding."""
    axes = tuple(range(2, truth.ndim))
    unit = ROUNDING * max(predicted.epsilon, torch.finfo(dtype).eps)
    rounding = unit * torch.maximum(predicted.mean.abs(), truth.abs()).amax(axes, keepdim=True)
    return ((truth - predicted.mean).abs() <= rounding) & (predicted.variance <= rounding.square())


FOLDS = 5
"""Number of cross-validation folds of a calibration set."""
_ERRORS = 2.0
"""Number of standard errors by which the mean gain must exceed zero."""
_UPPER = 0.95
"""Gains above the quantile of this level are clipped to it."""


def group_numbers(pairs: Dataset) -> Int64[Tensor, " n"]:
    """Group index of each pair, from 0; without groups (trajectories), each pair is a group.

    Cross-validation holds out whole groups: windows of one trajectory are correlated.
    """
    groups = getattr(pairs, "groups", None)
    return torch.arange(len(pairs), device="cpu") if groups is None else groups.unique(return_inverse=True)[1]


def number_of(groups: Int64[Tensor, " n"]) -> int:
    """Number of groups."""
    return int(groups.max()) + 1 if len(groups) else 0


def mean_size(groups: Int64[Tensor, " n"]) -> float:
    """Mean number of samples per group; penalties per sample are multiplied by it, so that a group counts as one sample."""
    return len(groups) / max(1, number_of(groups))


def group_sizes(groups: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """Number of samples in the group of each sample."""
    return groups.bincount()[groups]


def group_means(values: Float64[Tensor, " n"], groups: Int64[Tensor, " n"]) -> Float64[Tensor, " g"]:
    """Mean of each group.

    Examples:
        >>> group_means(torch.tensor([1.0, 3.0, 5.0]).double(), torch.tensor([0, 0, 1])).tolist()
        [2.0, 5.0]
    """
    return values.new_zeros(number_of(groups)).index_add(0, groups, values) / groups.bincount()


def is_gain(gains: Float64[Tensor, " n"]) -> bool:
    """Whether cross-validated gains are significant: the mean exceeds two standard errors.

    With heavy-tailed errors, a few samples may gain a hundred times as much as others. They raise the standard error more
    than the mean: one such sample among two hundred would hide the gain of all others. So the mean may also exceed two
    standard errors after the largest twentieth of the gains is clipped to the next smaller one. Losses are not clipped.

    Args:
        gains: Gain of each sample or group of samples, in nats, or twice that.

    Examples:
        >>> gains = torch.full((200,), 0.5).double().index_fill(0, torch.tensor([0]), 150.0)
        >>> bool(gains.mean() > 2.0 * gains.std() / math.sqrt(200)), is_gain(gains), is_gain(-gains)
        (False, True, False)
    """
    capped = gains.clamp(max=float(gains.quantile(_UPPER)))
    return any(bool(sample.mean() > _ERRORS * sample.std() / math.sqrt(len(sample))) for sample in (gains, capped))
