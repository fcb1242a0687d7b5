"""Bands with a finite-sample guarantee for whole functions, or for most of each function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch

from probneural.calibration.bands.conformal import check_new, conformal_scores
from probneural.calibration.bands.shapes import FLOOR, BandMethod, FittedBand, Modulation, check_modulation
from probneural.calibration.predictions import warn_of_training_pairs
from probneural.checks import assign, check_real
from probneural.contexts import undisturbed
from probneural.distributions.predictors.base import Predictor
from probneural.pairs import Dataset


class _SplitConformal(BandMethod, ABC):
    """Bands whose quantile is that of the scores of calibration pairs; abstract."""

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
        """Find the band's quantile on fields that training has not used.

        The fields must be the band's own: scales that were fitted on them make their scores smaller than those of new fields.
        With three channels and nine fields a band at .9 then covers .83.

        Args:
            predictor: What any head or calibrator returned.
            calibration: Held-out pairs that scales were not fitted on either; outputs may live on another grid than inputs.
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
    grid it was calibrated on: on a finer one the supremum has more points to fail at. The band is for what was
    calibrated on, so noisy calibration outputs give a band for noisy observations.

    Pairs with groups, such as windows of trajectories, are not exchangeable, but groups are. Then all functions of a group
    count as one, and the probability, `level` or more, is that of a function of a new group, with the level-quantile of
    Σ_k Σ_i δ(s_ki) / (n_k (K + 1)) + δ(∞) / (K + 1) for q, of K groups with n_k functions. It takes as many groups as it takes
    functions otherwise.

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
        """Fraction of the domain that it states, all of it."""
        return 1.0


@dataclass(frozen=True)
class PointwiseBand(_SplitConformal):
    """A band that holds a new function on the fraction `level` of the domain or more, with probability at least 1 - δ.

    In the notation of the literature it is an (α, δ) band, α = 1 - level. The score of a function is the least t for which
    |y - mean| <= t scale on the fraction `level` of the domain, by quadrature, in every channel; q is the ⌈(n + 1)(1 - δ)⌉-th
    smallest of the n calibration scores. If calibration and new pairs are exchangeable, then for any predictor, right or wrong,

        1 - δ <= P(y inside on the fraction `level` of the domain) < 1 - δ + 1/(n + 1)

    (the upper bound without ties). The probability is over calibration set and new pair together; given one calibration set, it
    follows the Beta distribution with parameters k = ⌈(n + 1)(1 - δ)⌉ and n + 1 - k. As a consequence a new value at a point
    drawn from the domain lies inside with probability level (1 - δ) at least. Where a function may leave the band is not
    said: a band may miss every front. `PointwiseBand(1.0, delta)` is `SimultaneousBand(1 - delta)`, for pairs with groups, too.

    **Other grids.** The score is a quantile over the domain, which converges as a grid is refined; a supremum does not stop
    growing in general. On another grid of the same domain the statement holds with `level` less the error of quadrature of the
    part inside: at most m (h + h')/2 on a line of length 1 where a function crosses the band's edges m times, h and h' being
    the two spacings. It does not hold on a part of the domain, nor for other weights.

    Args:
        level: Least fraction of the domain inside, above 0 and at most 1; dimensionless.
        delta: Probability of a function for which it is less, between 0 and 1.
        modulation: As in [`SimultaneousBand`][probneural.calibration.SimultaneousBand].
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
        """Probability over functions that the band states, 1 - δ."""
        return 1.0 - self.delta

    @property
    def fraction(self) -> float:
        """Fraction of the domain that it states."""
        return self.level


class Band(FittedBand[_SplitConformal]):
    """A calibrated band, from a [`SimultaneousBand`][probneural.calibration.SimultaneousBand] or a `PointwiseBand`.

    Call it on inputs. Its level is the nominal coverage: of functions, or of the domain if that is what the method's level is.

    Args:
        predictor: The predictor it belongs to.
        quantile: Half width in units of the local scale: dimensionless, or physical for a constant band of one channel.
        method: Level, modulation and floor it was calibrated with.
    """

    def coverage(self, pairs: Dataset) -> float:
        """The fraction of functions that lie inside, wholly or on the fraction of the domain that the method states.

        Some functions are predicted at a time; dimensionless.

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
