"""Conformal bands with a finite-sample guarantee, simultaneous or on a fraction of the domain."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.bands.shapes import (
    FLOOR,
    BandField,
    Modulation,
    check_modulation,
    domain_quantile,
    local_scale,
    ratios,
)
from probneural.calibration.predictions import (
    check_new,
    distributions,
    group_numbers,
    group_sizes,
    moments,
    number_of,
    warn_of_training_pairs,
)
from probneural.checks import assign, check_real
from probneural.contexts import Undisturbed, undisturbed
from probneural.distributions.predictors.base import Predictor
from probneural.errors import CalibrationError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics.comparison import domain_average
from probneural.pairs import Dataset


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
    check_modulation(modulation, floor)
    fraction = check_real(fraction, "fraction", above=0.0, most=1.0)
    values, scales = [], []
    for u, truth, grid in distributions(predictor, pairs):
        predicted = moments(u, predictor.noise)
        scale = local_scale(predicted, predictor, modulation=modulation, floor=floor)
        values.append(domain_quantile(grid.fill(ratios(truth - predicted.mean, scale)), grid, fraction=fraction))
        scales.append(domain_average(scale, grid))
    if not values:
        raise CalibrationError(expected="at least one pair", got="none", remedy="hold out some fields")
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
    level = check_real(level, "level", above=0.0, below=1.0)
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


class _SplitConformal(ABC):
    """Split conformal bands; abstract."""

    level: float
    modulation: Modulation
    floor: float

    @property
    @abstractmethod
    def probability(self) -> float:
        """Probability over functions that the band states."""

    @property
    @abstractmethod
    def fraction(self) -> float:
        """Fraction of the domain that it states."""

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

    level: float = 0.9
    _: KW_ONLY
    modulation: Modulation = "std"
    floor: float = FLOOR

    def __post_init__(self) -> None:
        """Validate."""
        assign(self, level=check_real(self.level, "level", above=0.0, below=1.0))
        check_modulation(self.modulation, self.floor)

    @property
    def probability(self) -> float:
        """Probability over functions that the band states."""
        return self.level

    @property
    def fraction(self) -> float:
        """Fraction of the domain inside the band: 1."""
        return 1.0


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

    level: float = 0.9
    _: KW_ONLY
    delta: float = 0.05
    modulation: Modulation = "std"
    floor: float = FLOOR

    def __post_init__(self) -> None:
        """Validate."""
        assign(
            self,
            level=check_real(self.level, "level", above=0.0, most=1.0),
            delta=check_real(self.delta, "delta", above=0.0, below=1.0),
        )
        check_modulation(self.modulation, self.floor)

    @property
    def probability(self) -> float:
        """Nominal probability over samples, 1 - δ."""
        return 1.0 - self.delta

    @property
    def fraction(self) -> float:
        """Fraction of the domain that it states."""
        return self.level


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
