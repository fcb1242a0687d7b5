"""Scales that make stated variances as large as the errors on held-out fields."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

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
from probneural.checks import assign, check_flag, check_variances
from probneural.contexts import undisturbed
from probneural.distributions.base import noise_variance
from probneural.distributions.predictors.base import Predictor, with_discrepancy
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import CalibrationError, DataWarning, warn
from probneural.metrics.comparison import domain_average
from probneural.pairs import Dataset

FRACTIONS = (0.05, 0.95)
"""Smallest and largest fraction of the mean predictive variance that separate scales leave to the noise."""
_CANDIDATES = 91
"""Shares tried between the two: steps of one per cent."""
_SLACK = 1e-6
"""Relative difference of variances that counts as none."""


@dataclass(frozen=True)
class VarianceScale:
    """Scale covariance and noise, per channel, so that stated variances are as large as the errors on held-out fields.

    With separate scales a and b, the predictive variance a v + b n maximises the Gaussian marginal likelihood of the
    calibration fields; so chi² on them is 1, and the noise no longer hides where the field's own variance v knows the errors
    to be large. The noise keeps between 5 and 95 % of the mean predictive variance. With one common scale, a = b = chi² in
    closed form.

    Errors are rarely spread as evenly as that: they are larger at a front, smaller at a wall where the solution is given, and
    larger for inputs that are harder. A local scale h
    ([`LocalScale`][probneural.calibration.variance.local_scale.LocalScale]) of prediction and position multiplies the variance
    at each point. It is fitted by the same
    likelihood, and left out where functions held out in turn do not gain by it, or are fewer than ten; windows of one
    trajectory are held out together, and count as one. On meshes its fit counts points equally: area weights would hide errors
    at a surface, where cells are small. Scattered points and masked grids have no local scale. A channel where
    errors and stated deviations are rounding at more than four fifths of the values has no local scale: the others say nothing
    of where errors are large. Where all are, there is nothing to fit: the channel's variances stay as they are, with a
    warning.

    What the head calls noise n is, on exact data, what its operator cannot express: uncertainty about the field, and
    correlated from point to point. So the calibrated field holds it, as a discrepancy of each function's own:

        covariance = h^½ (w a C + (1 - f) D rho D + f D²) h^½,        D² = (1 - w) a v + b n,

    with C the head's covariance (of what it states as each function's own, too), h its local scale and rho the correlation of
    the standardised residuals, a stationary process whose spectrum the calibration fields give. The weights w and f, and the
    number of waves, maximise the likelihood of calibration fields, taken jointly over their points, given the spectrum of the
    others. Of the part without correlation, f D², only the measurement noise that you state stays outside as `noise`.
    Pointwise predictions do not depend on w and f; intervals of functionals, bands of whole functions and densities do.

    The mean stays as it is. An ensemble becomes the Gaussian field of its mean and covariance. So does a mixture, after each of
    its predictors is calibrated by itself: what members state and what they disagree about have other scales. A calibrated
    predictor is calibrated anew from what it wraps.

    Args:
        separate: Whether covariance and noise have scales of their own. A part that is zero leaves one common scale.
        noise: Variance of the measurement noise in the calibration outputs, in physical units squared: a number, or one per
            channel `(c,)`. Zero for solutions of a solver. What exceeds the scaled noise b n is left out, with a warning. No
            variance falls below it: where a local scale would take it there, chi² on the calibration fields is less than 1.
        local: Whether variances may have a factor that varies along each function. It is fitted to single values. Where a
            head's covariance knows well how the values of a function go together, it may cost more joint density than they
            gain.

    Raises:
        ArgumentError: If the noise is negative or not finite, or a choice is no truth value.

    Reference:
        Laves et al. (2021), Recalibration of aleatoric and epistemic regression uncertainty in medical imaging (σ scaling,
        whose optimum under a Gaussian likelihood is the common scale). Deviations: averages over the domain are weighted
        by quadrature, scales per channel, and two of them. Kennedy and O'Hagan (2001), section 4.1, for the discrepancy.
    """

    separate: bool = True
    noise: float | Float[Tensor, " c"] = 0.0
    local: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings."""
        flags = {name: check_flag(getattr(self, name), name) for name in ("separate", "local")}
        assign(self, **flags, noise=check_variances(self.noise, "noise"))

    @undisturbed()
    def fit(self, predictor: Predictor, calibration: Dataset, *, allow_training_data: bool = False) -> ScaledPredictor:
        """Fit the scales on fields that neither training nor testing uses, in up to eight passes, a few functions at a time.

        Args:
            predictor: What any head or calibrator returned; it is wrapped, not changed.
            calibration: Held-out pairs; outputs may live on another grid than inputs.
            allow_training_data: Whether pairs that trained the predictor give a warning instead of an error.

        Returns:
            A predictor whose covariances and noise are scaled, and which remembers these pairs, and those that stacking or
            another calibrator inside it used.

        Raises:
            CalibrationError: If there are fewer than 2 fields, no predictive variance where there are errors, or no errors
                where there is one, or if pairs trained the predictor.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        check_pairs(predictor, calibration)
        if len(calibration) < 2:
            raise CalibrationError(
                expected="at least 2 calibration fields", got=str(len(calibration)), remedy="hold out some training fields"
            )
        keys = untrained_keys(predictor, calibration, allow_training_data=allow_training_data)
        return self._fitted(predictor, calibration, keys=keys)

    def _fitted(self, predictor: Predictor, calibration: Dataset, *, keys: Int64[Tensor, "n k"]) -> ScaledPredictor:
        """Fit the scales on checked pairs with these row keys."""
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
                "latter is taken",
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
        self,
        predicted: CalibrationPredictions,
        *,
        field_variance: Float64[Tensor, " c"],
        noise: Float64[Tensor, " c"],
    ) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
        """The most likely a and b/a; 1 where errors and what is stated of them are rounding."""
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
                remedy="infinite: errors where no variance is stated, give the head noise > 0; zero: nothing to calibrate",
            )
        return scale, ratio

    def _ratios(self, field_variance: Float64[Tensor, " c"], noise: Float64[Tensor, " c"]) -> Float64[Tensor, "k c"]:
        """Candidates of b/a per channel: 1 alone, or those that leave the noise a fraction between the two bounds."""
        if not bool((field_variance + noise > 0).any()):
            raise CalibrationError(
                expected="a positive predictive variance somewhere",
                got="zero everywhere, which no scale can mend",
                remedy="use a head that is uncertain, or one with noise > 0",
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
    """The mean variance of the fields, and covariances for the joint likelihood, which are formed for the same predictions."""
    field_variance = torch.zeros_like(noise)
    shared: list[SharedCovariance] = []
    rows, start = likelihood_rows(predicted.pairs), 0
    for u, (stated, _) in predicted.distributions():
        of_field = stated.variance - noise.to(stated.variance).reshape(-1, *(1,) * len(u.grid.shape))
        field_variance += domain_average(of_field, stated.grid).sum(0).cpu() / len(predicted.pairs)
        shared += shared_covariances(u, rows[(rows >= start) & (rows < start + len(u))] - start)
        start += len(u)
    return field_variance, shared


def _moved(predicted: CalibrationPredictions, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]) -> Iterator[Pair]:
    """Moments whose variances are a scale times those that are stated plus a shift, beside the truth."""
    for stated, truth in predicted:
        per_channel = (-1, *(1,) * (truth.ndim - 2))
        factor, extra = (numbers.reshape(per_channel).to(stated.variance) for numbers in (scale, shift))
        yield replace(stated, variance=factor * stated.variance + extra), truth


def _parts(predicted: CalibrationPredictions, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]) -> Iterator[Part]:
    """Means, variances times a scale plus a shift, and squares of the residuals standardised by these, on the CPU."""
    for moved, truth in _moved(predicted, scale=scale, shift=shift):
        squares = standardised_squares(moved, truth, dtype=predicted.pairs.outputs.dtype)
        yield moved.mean.cpu(), moved.variance.cpu(), squares.cpu()


def _rounded(
    predicted: CalibrationPredictions, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]
) -> Float64[Tensor, " c"]:
    """The fraction of each channel's values where errors and deviations are rounding."""
    count, values = torch.zeros_like(scale), 0
    for moved, truth in _moved(predicted, scale=scale, shift=shift):
        rounded = moved.grid.fill(are_rounding(moved, truth, dtype=predicted.pairs.outputs.dtype), 0)
        count += rounded.flatten(2).sum((0, 2)).cpu()
        values += int(moved.grid.observed.sum()) * (1 if moved.grid.is_batch else len(truth))
    return count / values
