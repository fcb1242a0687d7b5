"""A random scale for every function, so that whole functions are covered as often as is stated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probneural.calibration.predictions import MOSTLY, check_pairs, distributions, gaussian_of, untrained_keys
from probneural.calibration.stacking import stacking_weights
from probneural.checks import assign, check_integer
from probneural.contexts import without_gradients
from probneural.distributions.base import FieldDistribution
from probneural.distributions.mixture import checked_weights
from probneural.distributions.predictors.base import Calibrated, Predictor
from probneural.distributions.scale_mixture import ScaleMixtureField, checked_scales
from probneural.errors import CalibrationError, DataWarning, warn
from probneural.fields import Field
from probneural.metrics.comparison import Comparison, compare
from probneural.metrics.reliability import scaled_suprema, true_supremum
from probneural.pairs import Dataset
from probneural.randomness import check_seed, stream_seed
from probneural.registry import stored

_LOGS = torch.linspace(-1.4, 1.4, 29, dtype=torch.float64, device="cpu")
"""Logarithms of the scales that weights are found for: a quarter to four times the middle one."""
_BANDWIDTH = 0.25
"""Of the density of drawn suprema, in standard deviations of their logarithms."""
_TOGETHER = 8
"""Functions whose draws share random numbers: fewer take more time, and more leave more to chance."""
_LEAST = 1e-3
"""Weight below which a scale is left out."""


@dataclass(frozen=True)
class ScaleMixture:
    """Give every function a random scale, with the distribution that the errors of whole functions show.

    Variances may be right on average and whole functions still be missed: some functions are harder than is stated and others
    easier, and errors vary over shorter distances than draws. Both show in the largest standardised error of a function,
    T = sup |y - m|/sd over channels and points, beside that of draws. So the field N(m, C) becomes a scale mixture,

        sum over k of w_k N(m, s_k² C),

    an elliptical process with a discrete mixing distribution. The s_k lie between a quarter and four times their middle, the
    median of T over the median of draws. The weights maximise the likelihood of log T over the calibration functions; the
    density of log T under one scale is that of draws, smoothed over a quarter of their standard deviation. So where log T of
    errors scatters more than that of draws, draws of the mixture have suprema as errors have them, at every level, while a
    conformal band has them at one; there is no finite-sample guarantee. Where it scatters less, a random scale cannot help: the
    likelihood prefers one near the middle, and whole functions are covered more often than is stated. Two hundred functions
    tell coverage at .9 to within .03, thirty to within .05 (standard deviations).

    Means and correlations stay. Variances grow by sum of w_k s_k², about 1 after `VarianceScale` where functions
    differ in scale alone, and larger where draws are too smooth: then values by themselves are covered more often than is
    stated. A predictor with a random scale gets a new one, fitted to what it wraps. `VarianceScale` takes mean and covariance
    of the mixture, so scale first. Where stated deviations are rounding at more than four fifths of the values, the scale
    stays 1, with a warning.

    Args:
        draws: Of each calibration function, whose suprema errors are compared with.
        seed: Names the draws.

    Raises:
        ArgumentError: If there are fewer than 50 draws, or the seed is none.

    Reference:
        Bånkestad, Sjölund, Taghia and Schön (2020), The elliptical processes: a family of fat-tailed stochastic processes, for
        mixing distributions that are learned. Deviations: the distribution is discrete, and fitted to suprema; densities of
        whole functions mostly see what varies over the shortest distances.

    Examples:
        Few lines do, for any calibrated predictor::

            scaled = pn.calibration.VarianceScale().fit(predictor, calibration)
            predictor = pn.calibration.ScaleMixture().fit(scaled, calibration)
    """

    _: KW_ONLY
    draws: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        assign(self, draws=check_integer(self.draws, "draws", least=50), seed=check_seed(self.seed))

    @without_gradients()
    def fit(self, predictor: Predictor, calibration: Dataset, *, allow_training_data: bool = False) -> ScaleMixturePredictor:
        """Find the distribution of scales on fields that training has not used.

        Args:
            predictor: What any head or calibrator returned; it is wrapped, not changed.
            calibration: Held-out pairs, which scales of variances may have been fitted on; outputs may live on another grid.
            allow_training_data: Whether pairs that trained the predictor give a warning instead of an error.

        Returns:
            A predictor of mixtures that remembers these pairs.

        Raises:
            CalibrationError: If there are no fields, no variance is stated where there are errors, or none at all, or pairs
                trained the predictor.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        check_pairs(predictor, calibration)
        if len(calibration) < 1:
            raise CalibrationError(
                expected="at least one calibration field", got="none", remedy="hold out some training fields"
            )
        keys = untrained_keys(predictor, calibration, allow_training_data=allow_training_data)
        inner = predictor.inner if isinstance(predictor, ScaleMixturePredictor) else predictor
        logs, every, rounded = self._log_densities(inner, calibration)
        if rounded > MOSTLY:
            warn(
                f"{rounded:.0%} of the stated deviations are rounding, and so say nothing of errors: the scale stays 1",
                DataWarning,
            )
        weights = stacking_weights(every, torch.full((len(every),), 1.0 / len(every), dtype=torch.float64))
        has_weight = weights > _LEAST
        return ScaleMixturePredictor(
            inner,
            logs[has_weight].exp(),
            weights=weights[has_weight] / weights[has_weight].sum(),
            calibrated_on=torch.cat([inner.calibrated_on.cpu(), keys.flatten()]),
        )

    def _comparisons(self, predictor: Predictor, calibration: Dataset) -> Iterator[tuple[Comparison, int]]:
        """Gaussian predictions beside the truth, some functions at a time, and the seed of their draws."""
        start = 0
        for u, truth, grid in distributions(predictor, calibration):
            field = gaussian_of(u)
            for first in range(0, len(truth), _TOGETHER):
                rows = slice(first, first + _TOGETHER)
                comparison = compare(field[rows], Field(truth[rows], grid.select(rows)), noise=predictor.noise)
                largest = true_supremum(comparison)
                if not bool(largest.isfinite().all()):
                    raise CalibrationError(
                        expected="a variance wherever there are errors",
                        got=f"none for {int((~largest.isfinite()).sum())} functions",
                        remedy="calibrate first: VarianceScale moves what a head calls noise into the field",
                    )
                yield comparison, stream_seed(self.seed, "scale mixture draws", start + first)
            start += len(truth)

    def _log_densities(
        self, predictor: Predictor, calibration: Dataset
    ) -> tuple[Float64[Tensor, " k"], Float64[Tensor, "n k"], float]:
        """Logarithms of scales, and log densities of the largest standardised error of each function under each of them.

        Functions that are certain everywhere have none. Last comes the fraction of values whose stated deviations are rounding.

        Raises:
            CalibrationError: If nothing is uncertain.
        """
        errors, draws, certain, count, states = [], [], 0, 0, False
        for comparison, seed in self._comparisons(predictor, calibration):
            uncertain = _uncertain(comparison)
            errors.append(true_supremum(comparison).cpu()[uncertain])
            draws.append(self._suprema(comparison, [1.0], seed=seed)[0][:, uncertain])
            inside = comparison.grid.fill(comparison.certain, 0)
            certain += int(inside.sum())
            count += int(comparison.grid.fill(torch.ones_like(inside), 0).sum())
            states = states or bool((comparison.grid.fill(comparison.variance) > 0).any())
        fraction = certain / count
        if not states:
            raise CalibrationError(
                expected="a predictor that is uncertain somewhere", got="no variance at all", remedy="use another head"
            )
        if fraction > MOSTLY:
            return torch.zeros(1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64), fraction
        largest, drawn = torch.cat(errors), torch.cat(draws, 1)
        middle = largest.median().log() - drawn.median()
        logs = _LOGS + (middle if bool(middle.isfinite()) else 0.0)  # most errors may be zero
        width = _BANDWIDTH * drawn.std(0)
        suprema = largest.clamp_min(torch.finfo(torch.float64).tiny).log().maximum(drawn.amin(0) + logs.min())
        parts, start = [], 0
        for scaled in self._scaled(predictor, calibration, drawn, logs=logs):
            rows = slice(start, start + scaled.shape[1])
            squares = ((suprema[rows, None] - scaled) / width[rows, None]).square()
            parts.append(torch.logsumexp(-0.5 * squares, 0) - width[rows, None].log())
            start = rows.stop
        return logs, torch.cat(parts) - math.log(self.draws) - 0.5 * math.log(2.0 * math.pi), fraction

    def _scaled(
        self, predictor: Predictor, calibration: Dataset, drawn: Float64[Tensor, "draws n"], *, logs: Float64[Tensor, " k"]
    ) -> Iterator[Float64[Tensor, "draws some k"]]:
        """Logarithms of suprema of draws at all scales, a few functions at a time: a third of a MiB for each."""
        if not bool((predictor.noise > 0).any()):
            yield from (part[:, :, None] + logs for part in drawn.split(_TOGETHER, 1))
            return
        for comparison, seed in self._comparisons(predictor, calibration):
            yield self._suprema(comparison, logs.exp().tolist(), seed=seed)[:, :, _uncertain(comparison)].movedim(0, -1)

    def _suprema(self, comparison: Comparison, scales: Sequence[float], *, seed: int) -> Float64[Tensor, "k draws n"]:
        """Logarithms of suprema of draws whose field is scaled, and noise not, standardised by the deviations before."""
        drawn = scaled_suprema(comparison, scales, draws=self.draws, seed=seed)
        return drawn.clamp_min(torch.finfo(torch.float64).tiny).log().cpu()


def _uncertain(comparison: Comparison) -> Bool[Tensor, " n"]:
    """Functions whose stated deviations are more than rounding somewhere."""
    return ~comparison.grid.fill(comparison.certain, 1).flatten(1).all(1).cpu()


@stored(on_cpu=("scales", "weights", "calibrated_on"))
class ScaleMixturePredictor(Calibrated):
    """A predictor whose deviations from the mean have a random scale, one for each function; means and correlations stay.

    See [`ScaleMixture`][probneural.calibration.ScaleMixture]. A draw has one scale for all functions, whether it is one of the
    predictor or one of a prediction; so what adds up several functions has the scale of each of them at once.

    Args:
        inner: The predictor it wraps.
        scales: Of deviations, `(k,)`, positive, dimensionless.
        weights: Their probabilities, `(k,)`, normalised here.
        calibrated_on: Row keys of the calibration pairs, and of those that `inner` was calibrated on, `(n,)`: a conformal
            band needs others.

    Raises:
        ArgumentError: If scales are no vector, or one is not positive and finite.
        ShapeError: If there is not one weight for each scale.
        DataError: If weights are negative, not finite or all zero.
    """

    def __init__(
        self,
        inner: Predictor,
        scales: Float[Tensor, " k"],
        *,
        weights: Float[Tensor, " k"],
        calibrated_on: Int64[Tensor, " n"],
    ) -> None:
        self.scales = checked_scales(scales)
        self.weights = checked_weights(weights, len(self.scales)).cpu()
        scaled = tuple(self.variance_factor * variance for variance in inner.discrepancy_variance)
        super().__init__(inner, calibrated_on=calibrated_on, traits=replace(inner.traits, discrepancy_variance=scaled))

    @property
    def variance_factor(self) -> float:
        """By how much variances of the field grow, sum over k of w_k s_k², dimensionless."""
        return float(self.weights @ self.scales.square())

    def _map(self, inputs: Field, field: FieldDistribution) -> ScaleMixtureField:
        return ScaleMixtureField(gaussian_of(field), self.scales, weights=self.weights)

    def _details(self) -> str:
        """The scales with their weights."""
        pairs = zip(self.weights.tolist(), self.scales.tolist(), strict=True)
        return f"scales: {', '.join(f'{weight:.3g} x {scale:.3g}' for weight, scale in pairs)}"
