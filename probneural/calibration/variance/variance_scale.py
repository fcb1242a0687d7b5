"""Variance scales from the errors of held-out samples."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.calibration.predictions import (
    MOSTLY,
    ROUNDING,
    CalibrationPredictions,
    Pair,
    are_rounding,
    check_pairs,
    group_numbers,
    likelihood_profile,
    standardised_squares,
    untrained_keys,
)
from probneural.calibration.variance.discrepancy import SharedCovariance, decompose, likelihood_rows, shared_covariances
from probneural.calibration.variance.local_fit import Part, fit_local_scale
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.checks import check_variances
from probneural.contexts import undisturbed
from probneural.distributions.base import noise_variance, spread_over
from probneural.distributions.predictors.base import Predictor, with_discrepancy
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import CalibrationError, DataWarning, warn
from probneural.metrics.comparison import domain_average
from probneural.pairs import Dataset
from probneural.settings import Settings

FRACTIONS = (0.05, 0.95)
"""Least and largest fraction of the mean predictive variance that is noise, for separate scales."""
_CANDIDATES = 91
"""Number of candidate fractions, in steps of one per cent."""
_SLACK = 1e-6
"""Relative tolerance of variances that count as equal."""


@dataclass(frozen=True)
class VarianceScale(Settings):
    """Scale covariance and noise per channel, so that predictive variances equal the squared errors on held-out samples.

    The scales a of the head's variance v and b of its noise n maximise the Gaussian marginal likelihood of the calibration
    samples with predictive variance a v + b n, so chi² on them is 1. The noise is between 5 and 95 % of the mean predictive
    variance. With one common scale, a = b = chi² in closed form.

    A local scale h ([`LocalScale`][probneural.calibration.variance.local_scale.LocalScale]) then multiplies the variance at
    each point, since errors are larger at fronts, smaller at walls with given values, and larger for some inputs. It depends on
    prediction and position, and is fitted by the same likelihood. There is none without a gain in cross-validation (windows of
    one trajectory count as one sample), with fewer than ten samples, on scattered points or masked grids, and in channels where
    more than four fifths of errors and standard deviations are rounding errors. If all are, the channel's variances do not
    change, with a warning. On meshes the fit weights points equally: area weights would hide errors at a surface, where cells
    are small.

    On exact data, the head's noise n is model discrepancy: correlated errors that its operator cannot express. So the
    calibrated field contains it, as a discrepancy that is independent for each sample:

        covariance = h^½ (w a C + (1 - f) D rho D + f D²) h^½,        D² = (1 - w) a v + b n,

    with the head's covariance C and the correlation rho of standardised residuals, a stationary Gaussian process whose power
    spectrum is estimated from the calibration samples. The fractions w and f and the number of Fourier modes maximise the joint
    likelihood of calibration samples, given the spectrum of others. Of the white noise f D², only the measurement noise stays
    outside of the field, as `noise`. Pointwise predictions do not depend on w and f; intervals of functionals, simultaneous
    bands and joint densities do.

    The mean does not change. An ensemble becomes the Gaussian field of its mean and covariance. In a mixture each predictor is
    calibrated first, because variances of members and differences of their means have different scales; the mixture then
    becomes the Gaussian field of its moments. For a calibrated predictor, the inner predictor is calibrated again.

    Args:
        separate: Whether covariance and noise have separate scales. If one of them is zero, there is one common scale.
        noise: Variance of the measurement noise in the calibration outputs, in physical units squared: a number, or one per
            channel `(c,)`; zero for solutions of a solver. If it exceeds the scaled noise b n, the latter is used, with a
            warning.
            It bounds all variances from below: if it replaces a smaller locally scaled variance, chi² is less than 1.
        local: Whether to fit a local scale. Its likelihood is pointwise, so it may reduce joint densities if the head's
            covariance has the right correlations.

    Raises:
        ArgumentError: If the noise is negative or not finite, or a choice is no flag.

    Reference:
        Laves et al. (2021), Recalibration of aleatoric and epistemic regression uncertainty in medical imaging (σ scaling,
        whose optimum under a Gaussian likelihood is the common scale). Deviations: averages over the domain are weighted
        by quadrature, scales per channel, and two of them. Kennedy and O'Hagan (2001), section 4.1, for the discrepancy.
    """

    separate: bool = True
    noise: Annotated[float | Float[Tensor, " c"], check_variances] = 0.0
    local: bool = field(default=True, kw_only=True)

    @undisturbed()
    def fit(self, predictor: Predictor, calibration: Dataset, *, allow_training_data: bool = False) -> ScaledPredictor:
        """Fit the scales to held-out samples, in up to eight passes, a few samples at a time.

        Args:
            predictor: Predictor of any head or calibrator; it is wrapped, not changed.
            calibration: Held-out pairs; outputs may have another grid than inputs.
            allow_training_data: Whether pairs that trained the predictor cause a warning instead of an error.

        Returns:
            A predictor with scaled covariances and noise. It stores the row keys of these pairs and of those that calibrators
            inside it used.

        Raises:
            CalibrationError: If there are fewer than 2 samples, the predictive variance is zero where errors are not, all
                errors are zero, or pairs trained the predictor.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        check_pairs(predictor, calibration, least=2)
        keys = untrained_keys(predictor, calibration, allow_training_data=allow_training_data)
        return self._fitted(predictor, calibration, keys=keys)

    def _fitted(self, predictor: Predictor, calibration: Dataset, *, keys: Int64[Tensor, "n k"]) -> ScaledPredictor:
        """Fit the scales to validated pairs with these row keys."""
        inner = predictor.inner if isinstance(predictor, ScaledPredictor) else predictor
        if isinstance(inner, MixturePredictor):
            parts = zip(inner.predictors, inner.weights.tolist(), strict=True)
            inner = inner.with_predictors(
                [self._fitted(member, calibration, keys=keys) if weight > 0.0 else member for member, weight in parts]
            )
        predicted = CalibrationPredictions(inner, calibration)
        noise = inner.noise.detach().to("cpu", torch.float64)
        field_variance, shared = _read(predicted, noise=noise)
        scale, ratio = self._scales(predicted, field_variance=field_variance, noise=noise)
        shift = (scale * ratio) * noise - scale * noise
        local = None
        if self.local:
            left_out = _rounded(predicted, scale=scale, shift=shift) > MOSTLY
            parts_of = functools.partial(_parts, predicted, scale=scale, shift=shift)
            groups = group_numbers(calibration)
            local = fit_local_scale(parts_of, groups=groups, grid=calibration.outputs.grid, left_out=left_out)
        unexplained = (scale * ratio) * noise
        stated_noise = noise_variance(self.noise, (1, len(scale)), scale)[0]
        measured = stated_noise.minimum(unexplained)
        if bool((stated_noise > (1.0 + _SLACK) * unexplained).any()):
            warn(
                f"the stated noise {stated_noise.tolist()} is more than errors leave for noise, {unexplained.tolist()}: the "
                "latter is used",
                DataWarning,
            )
        scaled = functools.partial(
            ScaledPredictor,
            inner,
            scale,
            noise_scale=scale * ratio,
            local=local,
            noise=measured.to(inner.noise),
            calibrated_on=torch.cat([inner.calibrated_on.cpu(), keys.flatten()]),
        )
        decomposition = decompose(inner, predicted, shared=shared, scale=scale, noise=unexplained, local=local)
        variance = with_discrepancy(scaled(decomposition=decomposition), calibration).discrepancy_variance
        return scaled(decomposition=replace(decomposition, variance=scale.new_tensor(variance)))

    def _scales(
        self, predicted: CalibrationPredictions, *, field_variance: Float64[Tensor, " c"], noise: Float64[Tensor, " c"]
    ) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
        """Most likely a and b/a; 1 in channels where all errors and deviations are rounding errors."""
        ratios = self._ratios(field_variance, noise)
        chi2, spread = likelihood_profile(predicted.predictor, predicted, calibration=predicted.pairs, ratios=ratios)
        best = (chi2.log() + spread).argmin(dim=0, keepdim=True)
        scale, ratio = chi2.gather(0, best)[0], ratios.gather(0, best)[0]
        exact = _rounded(predicted, scale=torch.ones_like(scale), shift=torch.zeros_like(scale)) == 1.0
        exact |= (scale == 0.0) & bool((scale > 0.0).any())
        scale, ratio = scale.masked_fill(exact, 1.0), ratio.masked_fill(exact, 1.0)
        if bool(exact.any()):
            warn(
                f"channels {exact.nonzero().flatten().tolist()} are predicted exactly, to rounding: their variances stay as "
                "they are",
                DataWarning,
            )
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise CalibrationError(
                expected="a positive finite chi2 in every channel of the calibration fields",
                got=str(scale.tolist()),
                remedy="infinite: errors where the variance is zero, set the head's noise > 0; zero: nothing to calibrate",
            )
        return scale, ratio

    def _ratios(self, field_variance: Float64[Tensor, " c"], noise: Float64[Tensor, " c"]) -> Float64[Tensor, "k c"]:
        """Candidates of b/a per channel: 1 for a common scale, else those with a noise fraction between the two bounds."""
        if not bool((field_variance + noise > 0).any()):
            raise CalibrationError(
                expected="a positive predictive variance somewhere",
                got="zero everywhere, which no scale changes",
                remedy="use a head with a positive variance or with noise > 0",
            )
        if not self.separate:
            return torch.ones(1, len(noise), dtype=torch.float64)
        fractions = torch.linspace(*FRACTIONS, _CANDIDATES, dtype=torch.float64)
        ratios = (fractions / (1.0 - fractions))[:, None] * (field_variance / noise)
        both = (field_variance > ROUNDING * torch.finfo(torch.float64).eps * noise) & (noise > 0)
        return torch.where(both, ratios, torch.ones_like(ratios))


def _read(
    predicted: CalibrationPredictions, *, noise: Float64[Tensor, " c"]
) -> tuple[Float64[Tensor, " c"], list[SharedCovariance]]:
    """Mean variance of the fields, and covariances for the joint likelihood, in one pass over the predictions."""
    field_variance = torch.zeros_like(noise)
    shared: list[SharedCovariance] = []
    rows, start = likelihood_rows(predicted.pairs), 0
    for u, (stated, _) in predicted.distributions():
        of_field = stated.variance - spread_over(noise, stated.variance)
        field_variance += domain_average(of_field, stated.grid).sum(0).cpu() / len(predicted.pairs)
        shared += shared_covariances(u, rows[(rows >= start) & (rows < start + len(u))] - start)
        start += len(u)
    return field_variance, shared


def _moved(predicted: CalibrationPredictions, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]) -> Iterator[Pair]:
    """Yield moments with variances scale * v + shift, and the truth."""
    for stated, truth in predicted:
        factor, extra = (spread_over(numbers, stated.variance) for numbers in (scale, shift))
        yield replace(stated, variance=factor * stated.variance + extra), truth


def _parts(predicted: CalibrationPredictions, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]) -> Iterator[Part]:
    """Yield means, variances scale * v + shift, and squares of the residuals standardised by these, on the CPU."""
    for moved, truth in _moved(predicted, scale=scale, shift=shift):
        squares = standardised_squares(moved, truth, dtype=predicted.pairs.outputs.dtype)
        yield moved.mean.cpu(), moved.variance.cpu(), squares.cpu()


def _rounded(
    predicted: CalibrationPredictions, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]
) -> Float64[Tensor, " c"]:
    """Fraction of each channel's values where errors and deviations are rounding errors."""
    count, values = torch.zeros_like(scale), 0
    for moved, truth in _moved(predicted, scale=scale, shift=shift):
        rounded = moved.grid.fill(are_rounding(moved, truth, dtype=predicted.pairs.outputs.dtype), 0)
        count += rounded.flatten(2).sum((0, 2)).cpu()
        values += int(moved.grid.observed.sum()) * (1 if moved.grid.is_batch else len(truth))
    return count / values
