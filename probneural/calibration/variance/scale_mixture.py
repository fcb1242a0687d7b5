"""Scale mixtures: a random scale per sample, for nominal simultaneous coverage."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probneural.calibration.predictions import MOSTLY, check_pairs, distributions, untrained_keys
from probneural.calibration.stacking import stacking_weights
from probneural.checks import check_integer
from probneural.contexts import without_gradients
from probneural.distributions.base import FieldDistribution
from probneural.distributions.mixture import checked_weights, gaussian_of
from probneural.distributions.predictors.base import Calibrated, Predictor
from probneural.distributions.scale_mixture import ScaleMixtureField, checked_scales
from probneural.errors import CalibrationError, DataWarning, warn
from probneural.fields import Field
from probneural.metrics.comparison import Comparison, compare
from probneural.metrics.reliability import scaled_suprema, true_supremum
from probneural.pairs import Dataset
from probneural.randomness import stream_seed
from probneural.registry import stored
from probneural.settings import Seed, Settings

_BANDWIDTH = 0.25
"""Bandwidth of the density of drawn suprema, in standard deviations of their logarithms."""
_TOGETHER = 8
"""Samples whose draws share random numbers: fewer take more time, more increase the sampling error."""
_LEAST = 1e-3
"""Weight below which a scale is dropped."""


@dataclass(frozen=True)
class ScaleMixture(Settings):
    """Fit a random scale per sample to the largest standardised errors, for nominal simultaneous coverage.

    Variances that are right on average do not give simultaneous coverage: some samples have larger errors than predicted and
    others smaller ones, and errors vary over shorter distances than draws. Both show in the largest standardised error of a
    sample, T = sup |y - m|/sd over channels and points, compared with that of draws. The field N(m, C) becomes a scale mixture,

        sum over k of w_k N(m, s_k² C),

    an elliptical process with a discrete mixing distribution. Its scales s_k lie between a quarter and four times the median of
    T over the median of draws. Its weights w_k maximise the likelihood of log T over the calibration samples, where the density
    of log T under one scale is that of draws, smoothed over a quarter of their standard deviation.

    If log T varies more for errors than for draws, the suprema of mixture draws have the distribution of T, so simultaneous
    coverage is right at all levels. There is no finite-sample guarantee; a conformal band has one, at one level. If log T
    varies less, the mixture reduces to one scale, and simultaneous coverage is too high. The standard deviation of coverage at
    .9 is .03 with two hundred calibration samples, .05 with thirty.

    Means and correlations do not change. Variances grow by the sum of w_k s_k². After `VarianceScale` it is about 1 if samples
    differ in scale only, and larger if draws are too smooth; pointwise coverage is then too high. `VarianceScale`
    moment-matches a mixture, so apply it first. A predictor with a scale mixture gets a new one, fitted to the inner predictor.
    If more than four fifths of the predicted standard deviations are rounding errors, the scale stays 1, with a warning.

    Args:
        draws: Number of draws per calibration sample.
        seed: Seed of the draws.

    Raises:
        ArgumentError: If there are fewer than 50 draws, or the seed is invalid.

    Reference:
        Bånkestad, Sjölund, Taghia and Schön (2020), The elliptical processes: a family of fat-tailed stochastic processes, for
        learned mixing distributions. Deviations: the distribution is discrete, and fitted to suprema, since joint densities are
        dominated by variation over the shortest distances.

    Examples:
        For any calibrated predictor::

            scaled = pn.calibration.VarianceScale().fit(predictor, calibration)
            predictor = pn.calibration.ScaleMixture().fit(scaled, calibration)
    """

    _: KW_ONLY
    draws: Annotated[int, partial(check_integer, least=50)] = 400
    seed: Seed = 0

    @without_gradients()
    def fit(self, predictor: Predictor, calibration: Dataset, *, allow_training_data: bool = False) -> ScaleMixturePredictor:
        """Fit the weights of the scales to held-out samples.

        Args:
            predictor: Predictor of any head or calibrator; it is wrapped, not changed.
            calibration: Held-out pairs, possibly those of `VarianceScale`; outputs may have another grid.
            allow_training_data: Whether pairs that trained the predictor cause a warning instead of an error.

        Returns:
            A predictor of scale mixtures, which stores the row keys of these pairs.

        Raises:
            CalibrationError: If there are no samples, the predicted variance is zero everywhere or at some errors, or pairs
                trained the predictor.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        check_pairs(predictor, calibration, least=1)
        keys = untrained_keys(predictor, calibration, allow_training_data=allow_training_data)
        inner = predictor.inner if isinstance(predictor, ScaleMixturePredictor) else predictor
        logs, every, rounded = self._log_densities(inner, calibration)
        if rounded > MOSTLY:
            warn(f"{rounded:.0%} of the predicted deviations are rounding errors: the scale stays 1", DataWarning)
        weights = stacking_weights(every, torch.full((len(every),), 1.0 / len(every), dtype=torch.float64))
        has_weight = weights > _LEAST
        return ScaleMixturePredictor(
            inner,
            logs[has_weight].exp(),
            weights=weights[has_weight] / weights[has_weight].sum(),
            calibrated_on=torch.cat([inner.calibrated_on.cpu(), keys.flatten()]),
        )

    def _comparisons(self, predictor: Predictor, calibration: Dataset) -> Iterator[tuple[Comparison, int]]:
        """Yield Gaussian predictions with the truth, some samples at a time, and the seed of their draws."""
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
                        remedy="apply VarianceScale first, which adds the head's noise to the field",
                    )
                yield comparison, stream_seed(self.seed, "scale mixture draws", start + first)
            start += len(truth)

    def _log_densities(
        self, predictor: Predictor, calibration: Dataset
    ) -> tuple[Float64[Tensor, " k"], Float64[Tensor, "n k"], float]:
        """Return log scales, log densities of log T under each scale, and the fraction of deviations that are rounding errors.

        Samples whose deviations are rounding errors at all points are omitted.

        Raises:
            CalibrationError: If the predicted variance is zero everywhere.
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
        logs = torch.linspace(-1.4, 1.4, 29, dtype=torch.float64, device="cpu")  # a quarter to four times the middle scale
        logs = logs + (middle if bool(middle.isfinite()) else 0.0)  # most errors may be zero
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
        """Yield log suprema of draws at all scales, a few samples at a time: a third of a MiB per sample."""
        if not bool((predictor.noise > 0).any()):
            yield from (part[:, :, None] + logs for part in drawn.split(_TOGETHER, 1))
            return
        for comparison, seed in self._comparisons(predictor, calibration):
            yield self._suprema(comparison, logs.exp().tolist(), seed=seed)[:, :, _uncertain(comparison)].movedim(0, -1)

    def _suprema(self, comparison: Comparison, scales: Sequence[float], *, seed: int) -> Float64[Tensor, "k draws n"]:
        """Log suprema of draws of the scaled field plus unscaled noise, standardised by the unscaled deviations."""
        drawn = scaled_suprema(comparison, scales, draws=self.draws, seed=seed)
        return drawn.clamp_min(torch.finfo(torch.float64).tiny).log().cpu()


def _uncertain(comparison: Comparison) -> Bool[Tensor, " n"]:
    """Samples with a predicted deviation above rounding."""
    return ~comparison.grid.fill(comparison.certain, 1).flatten(1).all(1).cpu()


@stored(on_cpu=("scales", "weights", "calibrated_on"))
class ScaleMixturePredictor(Calibrated):
    """Predictor whose deviations from the mean have a random scale per sample; means and correlations do not change.

    See [`ScaleMixture`][probneural.calibration.ScaleMixture]. A draw, of the predictor or of a prediction, has one scale for
    all samples.

    Args:
        inner: The wrapped predictor.
        scales: Scales of deviations, `(k,)`, positive, dimensionless.
        weights: Probabilities of the scales, `(k,)`; the constructor normalises them.
        calibrated_on: Row keys of the calibration pairs of this predictor and of `inner`, `(n,)`; a conformal band needs
            others.

    Raises:
        ArgumentError: If scales are no vector, or one is not positive and finite.
        ShapeError: If the counts of weights and scales differ.
        DataError: If weights are negative, not finite or all zero.
    """

    def __init__(
        self, inner: Predictor, scales: Float[Tensor, " k"], *, weights: Float[Tensor, " k"], calibrated_on: Int64[Tensor, " n"]
    ) -> None:
        self.scales = checked_scales(scales)
        self.weights = checked_weights(weights, len(self.scales)).cpu()
        scaled = tuple(self.variance_factor * variance for variance in inner.discrepancy_variance)
        super().__init__(inner, calibrated_on=calibrated_on, traits=replace(inner.traits, discrepancy_variance=scaled))

    @property
    def variance_factor(self) -> float:
        """Factor of the field's variances, sum over k of w_k s_k², dimensionless."""
        return float(self.weights @ self.scales.square())

    def _map(self, inputs: Field, field: FieldDistribution) -> ScaleMixtureField:
        return ScaleMixtureField(gaussian_of(field), self.scales, weights=self.weights)

    def _details(self) -> str:
        """The scales with their weights."""
        pairs = zip(self.weights.tolist(), self.scales.tolist(), strict=True)
        return f"scales: {', '.join(f'{weight:.3g} x {scale:.3g}' for weight, scale in pairs)}"
