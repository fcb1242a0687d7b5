"""Conformal bands with a finite-sample guarantee, simultaneous or on a fraction of the domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probneural import checks
from probneural.calibration.predictions import (
    CHUNK_VALUES,
    PredictedMoments,
    check_new,
    check_unused,
    distributions,
    group_numbers,
    group_sizes,
    moments,
    number_of,
    warn_of_training_pairs,
)
from probneural.calibration.variance.by_lead import untrained_steps, used_before
from probneural.contexts import Undisturbed, undisturbed
from probneural.distributions.base import FieldDistribution, check_values
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.distributions.predictors.base import Predictor
from probneural.errors import CalibrationError, GridError
from probneural.fields import Field, check_field
from probneural.grids import Grid, check_grid
from probneural.metrics.comparison import compare, domain_average
from probneural.metrics.lead_alignment import TrueTrajectories, check_leads, lead_batches
from probneural.pairs import Dataset
from probneural.pairs.provenance import check_untrained_inputs
from probneural.registry import stored
from probneural.settings import Fraction, Level, Settings

Modulation = Literal["std", "constant"]
FLOOR = 0.1
"""Default floor of a band's local scale, as a fraction of its root mean square over the domain."""
_ROUNDING = 1e-12
"""Tolerance of sums of quadrature weights relative to the requested fraction of the domain."""


def local_scale(
    predicted: PredictedMoments, predictor: Predictor, *, modulation: Modulation, floor: float
) -> Float64[Tensor, "n c *grid"]:
    """Half width of a band of quantile 1, `(n, c, *grid)`, a function of one input and the predictor only.

    Args:
        predicted: Moments of n samples.
        predictor: The predictor of these moments.
        modulation: As in [`SimultaneousBand`][probneural.calibration.SimultaneousBand].
        floor: Likewise.
    """
    if modulation == "std":
        return floored_std(predicted.variance, predicted.grid, floor=floor)
    return _constant_scale(predicted.variance, predictor, predicted.grid)


def ratios(deviation: Float64[Tensor, "n c *grid"], scale: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, "n c *grid"]:
    """|deviation| / scale; a value predicted with certainty has ratio 0 if it is right, and infinity if it is not."""
    size = deviation.abs()
    return torch.where(size > 0, size / scale, torch.zeros_like(size))


def domain_quantile(ratios: Float64[Tensor, "n c *grid"], grid: Grid, *, fraction: float) -> Float64[Tensor, " n"]:
    """The least number that, in every channel, is not exceeded on the given fraction of the domain; 1 is the supremum.

    Fractions are by quadrature, so points of weight zero count for the supremum alone.

    Examples:
        >>> ratios = torch.tensor([[[3.0, 1.0, 2.0, 4.0]]], dtype=torch.float64)
        >>> [domain_quantile(ratios, Grid.uniform((4,)), fraction=part).item() for part in (0.5, 0.75, 1.0)]
        [2.0, 3.0, 4.0]
    """
    if fraction == 1.0:
        return ratios.flatten(1).amax(-1)
    weights = grid.sample_weights.to(ratios)
    ordered, order = ratios.flatten(2).sort(-1)
    mass = weights.expand_as(ordered).gather(-1, order) if grid.is_batch else weights[order]
    reached = mass.cumsum(-1) >= fraction - _ROUNDING
    first = torch.where(reached, ordered, torch.full_like(ordered, torch.inf)).amin(-1)
    return first.amax(-1)


def floored_std(variance: Float64[Tensor, "n c *grid"], grid: Grid, *, floor: float) -> Float64[Tensor, "n c *grid"]:
    """The standard deviation, at least the fraction `floor` of its root mean square over the domain."""
    least = floor * domain_average(variance, grid).sqrt()
    return torch.maximum(variance.sqrt(), least.reshape(*least.shape, *(1,) * (variance.ndim - 2)))


def _constant_scale(variance: Float64[Tensor, "n c *grid"], predictor: Predictor, grid: Grid) -> Float64[Tensor, "n c *grid"]:
    """The root of each channel's residual variance, or the sample's root mean square deviation where that is zero."""
    if variance.shape[1] == 1:
        return torch.ones_like(variance)
    residual = predictor.residual_variance.to(variance)
    unit = torch.where(residual > 0, residual, domain_average(variance, grid)).sqrt()
    return unit.reshape(*unit.shape, *(1,) * (variance.ndim - 2)).expand(variance.shape)


@dataclass(frozen=True, eq=False, repr=False)
class BandField(Undisturbed):
    """Bands around n samples.

    Args:
        mean: Predicted mean, `(n, c, *grid)`, in physical units.
        half_width: Half the bands' width, `(n, c, *grid)`, in physical units.
        grid: Grid of the bands.

    Raises:
        ShapeError: If the shapes do not fit together.
    """

    mean: Float64[Tensor, "n c *grid"]
    half_width: Float64[Tensor, "n c *grid"]
    _: KW_ONLY
    grid: Grid

    def __post_init__(self) -> None:
        """Check that the shapes fit together."""
        check_values(self.mean, (*self.mean.shape[:2], *self.grid.shape), "mean")
        check_values(self.half_width, tuple(self.mean.shape), "half width")

    @property
    def lower(self) -> Float64[Tensor, "n c *grid"]:
        """Lower edge, `(n, c, *grid)`, in physical units."""
        return self.mean - self.half_width

    @property
    def upper(self) -> Float64[Tensor, "n c *grid"]:
        """Upper edge, `(n, c, *grid)`, in physical units."""
        return self.mean + self.half_width

    def contains(self, truth: Field) -> Bool[Tensor, " n"]:
        """Mask of the samples inside at every point and in every channel, edges included.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        return self.inside(truth).flatten(1).all(-1)

    def fraction_inside(self, truth: Field) -> Float64[Tensor, "n c"]:
        """The fraction of the domain, by quadrature, on which each sample lies inside, `(n, c)`, dimensionless.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        return domain_average(self.inside(truth).to(torch.float64), truth.grid)

    def inside(self, truth: Field) -> Bool[Tensor, "n c *grid"]:
        """Mask of the values inside, `(n, c, *grid)`, edges included.

        Raises:
            GridError: If the grids differ.
            ShapeError: If the shapes differ; nothing is broadcast.
            DataError: If a value is not finite.
        """
        if not check_field(truth, "truth").grid.has_points_of(self.grid):
            raise GridError(
                expected=f"samples on the band's grid {self.grid!r}", got=repr(truth.grid), remedy="pass query=truth.grid"
            )
        check_values(truth.values, tuple(self.mean.shape), "truth")
        checks.check_finite(truth.values, "true values")
        distance = (truth.values.detach().to(self.mean) - self.mean).abs()
        return truth.grid.fill(distance) <= self.half_width

    def width(self) -> Float64[Tensor, "n c"]:
        """Width averaged over the domain by quadrature, `(n, c)`, in physical units."""
        return 2.0 * domain_average(self.half_width, self.grid)

    def __len__(self) -> int:
        """Number of samples n."""
        return self.mean.shape[0]

    def __repr__(self) -> str:
        """A short description."""
        return f"BandField({len(self)} x {self.mean.shape[1]} on {self.grid!r})"


@dataclass(frozen=True, eq=False)
class ConformalScores:
    """Conformity score of each sample: its error in units of the band's local scale.

    Args:
        values: sup over channels and points of |y - mean| / scale, or over the given fraction of the domain, `(n,)`.
        scale: The local scale averaged over the domain, `(n, c)`; a band with quantile q has mean width 2 q scale.
        groups: Group of each sample, such as its trajectory, `(n,)`; None if samples are independent.
    """

    values: Float64[Tensor, " n"]
    scale: Float64[Tensor, "n c"]
    _: KW_ONLY
    groups: Int64[Tensor, " n"] | None = None

    def quantile(self, level: float) -> float:
        """Return the ⌈(n + 1) level⌉-th smallest score: a band of that half width covers a new function with P >= level.

        The probability is over calibration and new function together; without ties it is below level + 1/(n + 1). With
        groups see `conformal_quantile`.

        Args:
            level: Nominal coverage, between 0 and 1.

        Raises:
            ArgumentError: If the level is not between 0 and 1.
            CalibrationError: If there are too few samples or groups for the level, or the score of that rank is infinite.

        Examples:
            >>> scores = ConformalScores(torch.arange(1.0, 10.0).double(), torch.ones(9, 1).double())
            >>> scores.quantile(0.9), scores.quantile(0.5)
            (9.0, 5.0)
        """
        return conformal_quantile(self.values, level, groups=self.groups)

    def __len__(self) -> int:
        """Number of samples n."""
        return self.values.shape[0]

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> ConformalScores:
        """Select samples, for another split without another prediction."""
        rows = index if isinstance(index, (slice, Tensor)) else torch.as_tensor(index)
        groups = None if self.groups is None else self.groups[rows.cpu() if isinstance(rows, Tensor) else rows]
        return ConformalScores(self.values[rows], self.scale[rows], groups=groups)


def conformal_scores(
    predictor: Predictor, pairs: Dataset, *, modulation: Modulation = "std", floor: float = FLOOR, fraction: float = 1.0
) -> ConformalScores:
    """Score every pair: the supremum over channels and grid points of |y - mean| / scale.

    Scores of exchangeable pairs are exchangeable, since the scale is a function of one input and the predictor only. So one
    call serves any number of splits: `scores[first].quantile(level)` calibrates, `scores[second].values <= quantile` tests.

    Args:
        predictor: Fitted without these pairs.
        pairs: Inputs and outputs; the grids may differ.
        modulation: "std" for a local scale max(sd, floor * rms of sd over the domain), sd being the predictive standard
            deviation; "constant" for a scale that is the same everywhere (see
            `SimultaneousBand`).
        floor: Dimensionless, from 0 to 1.
        fraction: Fraction of the domain inside the band, above 0 and at most 1, dimensionless. Below 1 the score is a
            quantile over the domain, by quadrature, in place of the supremum; the largest one over the channels.

    Returns:
        The scores of the n samples, on the predictor's device.

    Raises:
        ArgumentError: If the modulation, the floor or the fraction does not exist.
        CalibrationError: If the scale is constant with several channels and no noise.
        DataError: If a value is not finite.
        ShapeError: If the outputs do not have the predictor's channels.

    Reference:
        Diquigiovanni, Fontana and Vantini (2022), Conformal prediction bands for multivariate functional data, section 2;
        Ma, Pitt, Azizzadenesheli and Anandkumar (2024), Calibrated uncertainty quantification for operator learning via
        conformal prediction (quantiles over the domain).
    """
    checks.check_choice(modulation, get_args(Modulation), "modulation")
    checks.check_real(floor, "floor", least=0.0, most=1.0)
    fraction = checks.check_real(fraction, "fraction", above=0.0, most=1.0)
    values, scales = [], []
    for u, truth, grid in distributions(predictor, pairs):
        predicted = moments(u, predictor.noise)
        scale = local_scale(predicted, predictor, modulation=modulation, floor=floor)
        values.append(domain_quantile(grid.fill(ratios(truth - predicted.mean, scale)), grid, fraction=fraction))
        scales.append(domain_average(scale, grid))
    checks.check_least(len(values), 1, "pairs", remedy="hold out some fields", error=CalibrationError)
    groups = None if getattr(pairs, "groups", None) is None else group_numbers(pairs)
    return ConformalScores(torch.cat(values), torch.cat(scales), groups=groups)


def conformal_quantile(scores: Float64[Tensor, " n"], level: float, *, groups: Int64[Tensor, " n"] | None = None) -> float:
    """The ⌈(n + 1) level⌉-th smallest score.

    Samples of one group, such as windows of a trajectory, are correlated. For K groups, with n_k samples in the k-th, it is
    the level-quantile of Σ_k Σ_i δ(s_ki) / (n_k (K + 1)) + δ(∞) / (K + 1): if groups are exchangeable, and samples within
    each, a sample of a new group lies below it with probability `level` or more. Groups of one sample give the same as above.

    Raises:
        ArgumentError: If the level is not between 0 and 1.
        CalibrationError: If there are too few samples or groups for the level, or the score of that rank is infinite.

    Reference:
        Lee, Barber and Willett (2023), Distribution-free inference with hierarchical data, section 3, for groups.

    Examples:
        >>> scores = torch.arange(1.0, 19.0).double()  # windows of nine trajectories, two of each
        >>> conformal_quantile(scores, 0.8, groups=torch.arange(18) // 2), conformal_quantile(scores, 0.8)
        (16.0, 16.0)
        >>> conformal_quantile(scores[:10], 0.8, groups=torch.tensor([0, 1, 2, 3, 3, 3, 3, 3, 3, 3]))
        10.0
    """
    level = checks.check_real(level, "level", above=0.0, below=1.0)
    count = len(scores) if groups is None else number_of(groups := groups.unique(return_inverse=True)[1])
    rank = math.ceil((count + 1) * level - 1e-9)  # ⌈(n + 1) level⌉: 25 * 0.56 lands just above an integer
    things = "calibration fields" if groups is None else "groups of calibration fields"
    if rank > count:
        raise CalibrationError(
            expected=f"at least {math.ceil(level / (1.0 - level) - 1e-9)} {things} for a band at level {level:g}",
            got=str(count),
            remedy="hold out more fields, or lower the level (where functions may fail with probability delta, raise delta)",
        )
    if groups is None:
        quantile = float(scores.sort().values[max(1, rank) - 1])
    else:
        # the least s with Σ_i w_i [s_i <= s] >= level (K + 1), w_i = 1/n_k
        ordered, order = scores.sort()
        reached = (1.0 / group_sizes(groups).to(scores))[order].cumsum(0)
        above = torch.searchsorted(reached, level * (reached[-1:] + 1.0) * (1.0 - 1e-9))
        quantile = float(torch.cat([ordered, ordered.new_full((1,), torch.inf)])[above])
    if not math.isfinite(quantile):
        raise CalibrationError(
            expected=f"a finite score of rank {rank} among {count}",
            got="infinite scores: errors in samples without predictive variance",
            remedy="use a predictor that is uncertain there: VarianceScale(), or noise > 0",
        )
    return quantile


class _SplitConformal(Settings):
    """Base class of split conformal bands."""

    level: float
    modulation: Modulation
    floor: float

    @property
    def probability(self) -> float:
        """Nominal probability over samples."""
        return self.level

    @property
    def fraction(self) -> float:
        """Fraction of the domain inside the band."""
        return 1.0

    @undisturbed()
    def fit(self, predictor: Predictor, calibration: Dataset, *, allow_training_data: bool = False) -> Band:
        """Calibrate the band's quantile on held-out fields.

        The fields must not be used for variance scaling: this makes their scores smaller than those of new fields.
        With three channels and nine fields a band at .9 then covers .83.

        Args:
            predictor: Predictor of any head or calibrator.
            calibration: Held-out pairs that were not used for scaling; outputs may have another grid than inputs.
            allow_training_data: Whether pairs that trained the predictor give a warning instead of an error.

        Raises:
            CalibrationError: If there are too few fields or groups for the probability p, p / (1 - p) at least (9 at .9, 19 at
                .95, 99 at .99), too many of them have errors but no predictive variance, or the predictor was trained or
                scaled on some of them.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        check_new(predictor, calibration, allow_training_data=allow_training_data)
        scores = conformal_scores(predictor, calibration, modulation=self.modulation, floor=self.floor, fraction=self.fraction)
        return Band(predictor, quantile=scores.quantile(self.probability), method=self)


@stored()
@dataclass(frozen=True)
class SimultaneousBand(_SplitConformal):
    """A band mean ± q scale(x) that contains a whole new function with probability at least `level`, by split conformal.

    q is the ⌈(n + 1) level⌉-th smallest of the n calibration scores sup |y - mean| / scale. If calibration and new pairs are
    exchangeable, then for any predictor, right or wrong,

        level <= P(y inside everywhere) < level + 1/(n + 1)

    (the upper bound without ties). The probability is over calibration set and new pair together; given one calibration set,
    coverage varies around it like a Beta variable with standard deviation √(level (1 - level)/n). The guarantee holds for the
    calibration grid: on a finer one the supremum is over more points. Noisy calibration outputs give a band for noisy
    observations.

    Pairs with groups, such as windows of trajectories, are not exchangeable, but groups are. The probability, `level` or
    more, is then that of a sample of a new group, and q is the level-quantile of
    Σ_k Σ_i δ(s_ki) / (n_k (K + 1)) + δ(∞) / (K + 1), for K groups with n_k samples. The required number of groups equals the
    required number of samples without groups.

    Args:
        level: Nominal coverage, between 0 and 1.
        modulation: "std": scale(x) is the predictive standard deviation (field and noise), so the band is wide where the
            predictor is uncertain. "constant": one width everywhere; with several channels, in proportion to the roots of the
            predictor's residual variance, or of a sample's mean variance in a channel without residual variance.
        floor: Least local scale, as a fraction of the scale's root mean square over the domain of the same function and
            channel, from 0 to 1; keeps points without predictive variance from deciding the width of the whole band.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Diquigiovanni, Fontana and Vantini (2022), Conformal prediction bands for multivariate functional data, section 2, with
        the predictive standard deviation as modulation function; Lei et al. (2018), Distribution-free predictive inference
        for regression, section 2.2 and 5.2 (split conformal, local weights); Vovk, Gammerman and Shafer (2005). Groups: Lee,
        Barber and Willett (2023), Distribution-free inference with hierarchical data, section 3.
    """

    level: Level = 0.9
    _: KW_ONLY
    modulation: Modulation = "std"
    floor: Fraction = FLOOR


@stored()
@dataclass(frozen=True)
class PointwiseBand(_SplitConformal):
    """A band that contains a new sample on at least the fraction `level` of the domain with probability at least 1 - δ.

    In the notation of the literature it is an (α, δ) band, α = 1 - level. The score of a function is the least t for which
    |y - mean| <= t scale on the fraction `level` of the domain, by quadrature, in every channel; q is the ⌈(n + 1)(1 - δ)⌉-th
    smallest of the n calibration scores. If calibration and new pairs are exchangeable, then for any predictor, right or wrong,

        1 - δ <= P(y inside on the fraction `level` of the domain) < 1 - δ + 1/(n + 1)

    (the upper bound without ties). The probability is over calibration set and new pair together; given one calibration set, it
    follows the Beta distribution with parameters k = ⌈(n + 1)(1 - δ)⌉ and n + 1 - k. As a consequence a new value at a point
    drawn from the domain lies inside with probability at least level (1 - δ). Points outside the band may be anywhere:
    a band may miss every front. `PointwiseBand(1.0, delta)` is `SimultaneousBand(1 - delta)`, for pairs with groups, too.

    **Other grids.** The score is a quantile over the domain, which converges as a grid is refined; a supremum does not stop
    growing in general. On another grid of the same domain the statement holds with `level` less the error of quadrature of the
    part inside: at most m (h + h')/2 on a line of length 1 where a function crosses the band's edges m times, h and h' being
    the two spacings. It does not hold on a part of the domain, nor for other weights.

    Args:
        level: Least fraction of the domain inside, above 0 and at most 1; dimensionless.
        delta: Probability of samples with a smaller fraction, between 0 and 1.
        modulation: Scale of the band, as in [`SimultaneousBand`][probneural.calibration.SimultaneousBand].
        floor: Likewise.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Ma et al. (2024), Calibrated uncertainty quantification for operator learning via conformal prediction, section 4.
        Deviations: the head's standard deviation in place of a second network that learns quantiles of the residual, and
        quadrature on the grid of the outputs in place of a bound for points drawn at random.
    """

    level: Annotated[float, partial(checks.check_real, above=0.0, most=1.0)] = 0.9
    _: KW_ONLY
    delta: Level = 0.05
    modulation: Modulation = "std"
    floor: Fraction = FLOOR

    @property
    def probability(self) -> float:
        """Nominal probability over samples, 1 - δ."""
        return 1.0 - self.delta

    @property
    def fraction(self) -> float:
        """Fraction of the domain that it states."""
        return self.level


@stored()
@dataclass(frozen=True, eq=False, repr=False)
class Band(Undisturbed):
    """A calibrated band, from a [`SimultaneousBand`][probneural.calibration.SimultaneousBand] or a `PointwiseBand`.

    Call it on inputs. Its level is the nominal coverage of samples or, for `PointwiseBand`, of the domain.

    Args:
        predictor: The calibrated predictor.
        quantile: Half width in units of the local scale: dimensionless, or physical for a constant band of one channel.
        method: Level, modulation and floor it was calibrated with.
    """

    predictor: Predictor
    _: KW_ONLY
    quantile: float
    method: _SplitConformal

    @property
    def level(self) -> float:
        """The method's level."""
        return self.method.level

    def coverage(self, pairs: Dataset) -> float:
        """The fraction of samples inside, simultaneously or on the method's fraction of the domain.

        Dimensionless; predictions are made in chunks.

        Raises:
            CalibrationError: If there are no pairs.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.

        Warns:
            DataWarning: If some pairs trained the predictor.
        """
        method = self.method
        scores = conformal_scores(
            self.predictor, pairs, modulation=method.modulation, floor=method.floor, fraction=method.fraction
        )
        warn_of_training_pairs(self.predictor, pairs, purpose="coverage")
        return float((scores.values <= self.quantile).to(torch.float64).mean())

    def __call__(self, inputs: Field, query: Grid | None = None) -> BandField:
        """Return the bands of n inputs.

        Args:
            inputs: Inputs, `(n, in_channels, *grid)`.
            query: Grid of the outputs; the inputs' grid by default.

        Raises:
            DataError: If the inputs or predictions are not finite.
            ShapeError: If the number of channels is not the predictor's.
        """
        u = self.predictor(inputs, query)
        predicted = moments(u, self.predictor.noise)
        scale = local_scale(predicted, self.predictor, modulation=self.method.modulation, floor=self.method.floor)
        return BandField(mean=predicted.mean, half_width=self.quantile * scale, grid=u.grid)

    def __repr__(self) -> str:
        """The quantile and the method."""
        return f"Band(quantile={self.quantile:.4g}, {self.method!r})"


Residual = Callable[[Tensor, Field, Grid], Tensor]
"""Map from predictions `(n, c, *grid)`, inputs and the predictions' grid to PDE residuals."""


@stored()
@dataclass(frozen=True)
class ResidualBand(Settings):
    """A conformal bound q of the PDE residual, |D(û)(x)| <= q, calibrated on inputs only.

    The physics residual error of a prediction û is D(û), D being the equation with the solution at D(u) = 0. Its score is the
    supremum of |D(û)|; q is the ⌈(n + 1) level⌉-th smallest of n calibration scores. No
    solution is needed. If calibration and new inputs are exchangeable, then for any predictor

        level <= P(residual of a new prediction within ± q) < level + 1/(n + 1)

    (the upper bound without ties). **The guarantee is about residuals, not about errors.** It measures the consistency of
    in-distribution predictions with the equation; a prediction outside the band is unusual. The error e = u - û depends on the
    inverse: for a linear equation D e = D(û), so |e| <= q times the norm of the inverse, which may be large (near a
    resonance) and depends on boundary and initial values that an interior residual does not contain. Errors in the null
    space of D, such as a wrong constant or initial value, have no residual.

    Args:
        residual: A [`pn.physics.Residual`][probneural.physics.Residual], or a function called as
            `residual(predicted, inputs, grid)` that returns `(n, k, *grid)`. With k equations, give them comparable units.
        level: Nominal coverage, between 0 and 1.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Gopakumar et al. (2025), Calibrated physics-informed uncertainty quantification, section 4 (joint conformal
        prediction). Deviations: the residual is the user's, with derivatives of any order of accuracy, and is not
        divided by its standard deviation over the calibration set, which would not leave scores exchangeable.

    Examples:
        >>> def residual(predicted, inputs, grid):  # of u' = f on a periodic grid, by differences
        ...     step = 1.0 / grid.size
        ...     return (predicted.roll(-1, -1) - predicted.roll(1, -1)) / (2 * step) - inputs.values
        >>> ResidualBand(residual, 0.9).level
        0.9
    """

    residual: Annotated[Residual, partial(checks.check_callable, remedy="give a function of prediction, inputs and grid")]
    level: Level = 0.9

    @undisturbed()
    @torch.no_grad()
    def fit(
        self, predictor: Predictor, inputs: Field, *, query: Grid | None = None, allow_training_data: bool = False
    ) -> ResidualBound:
        """Calibrate the bound on held-out inputs; their solutions are not needed.

        Args:
            predictor: Predictor of any head or calibrator.
            inputs: Held-out inputs.
            query: Grid of the predictions; the inputs' grid by default. The bound holds for this grid.
            allow_training_data: Whether inputs that trained the predictor give a warning instead of an error.

        Raises:
            CalibrationError: If there are too few samples for the level, or some trained the predictor.
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample, or channels are not the predictor's.
        """
        checks.check_instance(
            predictor, Predictor, "predictor", remedy="fit a head first: pn.heads.LastLayerLaplace().fit(...)"
        )
        is_allowed = checks.check_flag(allow_training_data, "allow_training_data")
        check_untrained_inputs(check_field(inputs, "inputs"), predictor.trained_on, allow_training_data=is_allowed)
        bound = ResidualBound(predictor, quantile=torch.inf, method=self)
        return ResidualBound(predictor, quantile=conformal_quantile(bound.scores(inputs, query), self.level), method=self)


@stored()
@dataclass(frozen=True, eq=False, repr=False)
class ResidualBound:
    """A calibrated bound of residuals, from [`ResidualBand`][probneural.calibration.ResidualBand].

    Args:
        predictor: The calibrated predictor.
        quantile: The bound, in units of the residual.
        method: Residual and level it was calibrated with.
    """

    predictor: Predictor
    _: KW_ONLY
    quantile: float
    method: ResidualBand

    @property
    def level(self) -> float:
        """Nominal coverage."""
        return self.method.level

    @undisturbed()
    @torch.no_grad()
    def residuals(self, inputs: Field, query: Grid | None = None) -> Float64[Tensor, "n k *grid"]:
        """PDE residuals of the predictions, `(n, k, *grid)`, in units of the residual.

        Raises:
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample.
        """
        return torch.cat(list(self._parts(inputs, query)))

    @undisturbed()
    @torch.no_grad()
    def scores(self, inputs: Field, query: Grid | None = None) -> Float64[Tensor, " n"]:
        """The largest residual of each prediction, `(n,)`, in units of the residual.

        Raises:
            CalibrationError: If there are no samples.
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample.
        """
        parts = [part.abs().flatten(1).amax(-1) for part in self._parts(inputs, query)]
        checks.check_least(len(parts), 1, "input functions", remedy="hold out some", error=CalibrationError)
        return torch.cat(parts)

    def holds(self, inputs: Field, query: Grid | None = None) -> Bool[Tensor, " n"]:
        """Mask of the predictions whose residual is within the bound, `(n,)`.

        Raises:
            CalibrationError: If there are no samples.
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample.
        """
        return self.scores(inputs, query) <= self.quantile

    def _parts(self, inputs: Field, query: Grid | None) -> Iterator[Float64[Tensor, "n k *grid"]]:
        """Residuals of chunks of samples."""
        grid = check_field(inputs, "inputs").grid if query is None else check_grid(query, "query")
        rows = max(1, CHUNK_VALUES // (self.predictor.out_channels * grid.size))
        for start in range(0, len(inputs), rows):
            part = inputs[start : start + rows]
            predicted = self.predictor(part, query).mean.to(torch.float64)
            residuals = self.method.residual(predicted, Field(part.values.to(predicted), part.grid), grid)
            remedy = "return its values on the predictions' grid"
            checks.check_shape(residuals, "a residual", len(part), "k", *grid.shape, remedy=remedy)
            checks.check_finite(residuals, "residuals", remedy="return 0 where the residual is not defined")
            yield residuals.to(torch.float64)

    def __repr__(self) -> str:
        """Short description of the bound."""
        return f"ResidualBound(quantile={self.quantile:.4g}, level={self.level:g})"


@stored()
@dataclass(frozen=True)
class HorizonBand(Settings):
    """A band mean ± q sd(x, lead) that contains a whole new trajectory with probability at least `level`, by split conformal.

    The score of a trajectory is the largest standardised error over leads, channels and points; q is the ⌈(n + 1) level⌉-th
    smallest of n calibration scores. If calibration and new trajectories are exchangeable, then for any forecast, right or
    wrong,

        level <= P(inside at all leads everywhere) < level + 1/(n + 1)

    (the upper bound without ties). The probability is over calibration set and new trajectory together; given one calibration
    set, coverage follows the Beta distribution with parameters k = ⌈(n + 1) level⌉ and n + 1 - k. One q serves all leads, so
    a lead whose spread is too small next to the others' makes the band wide everywhere: fit
    [`LeadScale`][probneural.calibration.LeadScale] first, on other trajectories.

    Roll out calibration and new samples with the same seed and number of members: the forecast is then one map of the start,
    as exchangeability requires. The guarantee holds for the grid, the leads and the noise that it was calibrated with.

    Args:
        level: Nominal coverage, between 0 and 1.
        noise: Variance of the measurement noise in the trajectories that the band is for, in physical units squared: a number,
            or one per channel `(c,)`.
        floor: Least local scale, as a fraction of the scale's root mean square over the domain of the same function, channel
            and lead, from 0 to 1.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Stankevičiūtė, Alaa and van der Schaar (2021), Conformal time-series forecasting, section 4 (one score per series).
        Deviation: the largest standardised error over the leads in place of Bonferroni's correction. Diquigiovanni, Fontana
        and Vantini (2022), Conformal prediction bands for multivariate functional data, section 2.
    """

    level: Level = 0.9
    _: KW_ONLY
    noise: Annotated[float | Float[Tensor, " c"], checks.check_variances] = 0.0
    floor: Fraction = FLOOR

    @undisturbed()
    @torch.no_grad()
    def fit(self, forecast: Forecast, truth: TrueTrajectories, *, allow_training_data: bool = False) -> TrajectoryBand:
        """Find the band's quantile on trajectories that neither training nor scaling has used, in one pass.

        Args:
            forecast: Forecast of the calibration samples.
            truth: True states.
            allow_training_data: Whether trajectories with steps that trained the predictor give a warning instead of an error.

        Raises:
            CalibrationError: If there are too few trajectories for the level (9 at .9, 19 at .95), too many of them have errors
                but no predictive variance, or the forecast was trained or scaled on some of them.
            DataError: If the forecast is invalid, the truth has no states by lead, or a value is not finite.
            ShapeError: If the number of samples or channels differs.
            GridError: If the grids differ.
            ArgumentError: If the truth ends before the forecast.
        """
        scores = conformal_scores_by_lead(forecast, truth, noise=self.noise, floor=self.floor)
        check_unused(untrained_steps(forecast, truth, allow_training_data=allow_training_data), used_before(forecast))
        quantile, times = conformal_quantile(scores.amax(1), self.level), getattr(forecast, "times", None)
        return TrajectoryBand(quantile, steps=scores.shape[1], method=self, times=times)


class BandCoverage(NamedTuple):
    """Fraction of trajectories inside a band.

    Attributes:
        leads: Fraction wholly inside at each lead, `(leads,)`, dimensionless.
        horizon: Fraction wholly inside at all leads.
    """

    leads: Float64[Tensor, " leads"]
    horizon: float


@stored(on_cpu=("method", "times"))
@dataclass(frozen=True, eq=False, repr=False)
class TrajectoryBand:
    """A calibrated band, from [`HorizonBand`][probneural.calibration.HorizonBand]; call it on forecasts of the same predictor.

    Args:
        quantile: Half width in standard deviations; dimensionless.
        steps: Number of leads that the band was calibrated at.
        method: Level, noise and floor it was calibrated with.
        times: Time of each lead since the start, `(leads,)`; None if it is unknown.
    """

    quantile: float
    _: KW_ONLY
    steps: int
    method: HorizonBand
    times: Float64[Tensor, " leads"] | None = None

    @property
    def level(self) -> float:
        """Nominal coverage."""
        return self.method.level

    def __call__(self, forecast: Forecast) -> BandTrajectory:
        """Return the bands around a forecast, lazily.

        Raises:
            DataError: If it is not a forecast.
            ArgumentError: If it has not the leads that the band was calibrated at, or has them at other times.
        """
        return BandTrajectory(check_leads(forecast, steps=self.steps, times=self.times, name="bands"), self)

    def coverage(self, forecast: Forecast, truth: TrueTrajectories) -> BandCoverage:
        """The fraction of trajectories inside, at each lead and at all leads; dimensionless.

        Raises:
            DataError: If the forecast is invalid, the truth has no states by lead, or a value is not finite.
            ShapeError: If the number of samples or channels differs.
            GridError: If the grids differ.
            ArgumentError: If the forecast has more leads than the band, or the truth fewer than the forecast.

        Warns:
            DataWarning: If some trajectories have a step that trained the predictor.
        """
        self(forecast)
        scores = conformal_scores_by_lead(forecast, truth, noise=self.method.noise, floor=self.method.floor)
        untrained_steps(forecast, truth, allow_training_data=True, purpose="coverage")
        inside = (scores <= self.quantile).to(torch.float64)
        return BandCoverage(inside.mean(0), float(inside.amin(1).mean()))

    def __repr__(self) -> str:
        """The quantile and the method."""
        return f"TrajectoryBand(quantile={self.quantile:.4g}, {self.method!r})"


class BandTrajectory:
    """Bands around n samples at every lead, from a [`TrajectoryBand`][probneural.calibration.bands.conformal.TrajectoryBand].

    Args:
        forecast: Centre of the bands.
        band: The calibrated band.
    """

    def __init__(self, forecast: Forecast, band: TrajectoryBand) -> None:
        self.forecast, self.band = forecast, band

    @property
    def steps(self) -> int:
        """The largest lead."""
        return self.forecast.steps

    def at(self, lead: int) -> BandField:
        """The bands at one lead, from 1.

        Raises:
            ArgumentError: If the lead is out of range.
        """
        lead = checks.check_integer(lead, "lead", most=self.steps)
        return self._around(lead, self.forecast.at(lead))

    def leads(self) -> Iterator[tuple[int, BandField]]:
        """Leads 1 to `steps` in order, each with its bands."""
        for lead, u in self.forecast.leads():
            yield lead, self._around(lead, u)

    def _around(self, lead: int, u: FieldDistribution) -> BandField:
        method = self.band.method
        predicted = moments(u, method.noise)
        scale = floored_std(predicted.variance, u.grid, floor=method.floor)
        return BandField(mean=predicted.mean, half_width=self.band.quantile * scale, grid=u.grid)

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.forecast)


def conformal_scores_by_lead(
    forecast: Forecast, truth: TrueTrajectories, *, noise: float | Float[Tensor, "..."] = 0.0, floor: float = FLOOR
) -> Float64[Tensor, "n leads"]:
    """Score every trajectory at every lead: the supremum over channels and points of |y - mean| / sd.

    Scores of exchangeable trajectories are exchangeable, and so are their largest ones over the leads: one call serves any
    number of splits.

    Args:
        forecast: Forecast of n samples.
        truth: True states.
        noise: Variance of the measurement noise, as in [`HorizonBand`][probneural.calibration.HorizonBand].
        floor: Least local scale, likewise.

    Returns:
        `(n, leads)`, dimensionless, on the forecast's device.

    Raises:
        DataError: If the forecast is invalid, the truth has no states by lead, or a value is not finite.
        ShapeError: If the number of samples or channels differs.
        GridError: If the grids differ.
        ArgumentError: If the truth ends before the forecast, or noise or floor are unusable.
    """
    floor = checks.check_real(floor, "floor", least=0.0, most=1.0)
    columns: list[list[Tensor]] = []
    for part in lead_batches(forecast, truth):
        comparison = compare(part.u, part.truth, noise=noise)
        scale = floored_std(comparison.variance, part.u.grid, floor=floor)
        scores = domain_quantile(ratios(comparison.residual, scale), part.u.grid, fraction=1.0)
        if part.rows.start == 0:
            columns.append([])
        columns[-1].append(scores)
    return torch.stack([torch.cat(column) for column in columns], dim=1)
