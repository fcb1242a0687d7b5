"""One scale per channel that makes stated variances as large as the errors on held-out fields."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.calibration.chunks import Moments, check_pairs, domain_average, predictions
from probneural.distributions.base import FieldDistribution
from probneural.distributions.predictor import Predictor
from probneural.errors import ArgumentError, CalibrationError
from probneural.fields import Field, FieldPairs, Grid

ROUNDING = 8.0
"""Units in the last place, of a function's largest value, up to which errors and deviations count as none (as in metrics)."""


@dataclass(frozen=True)
class VarianceScale:
    """Multiply covariance and noise by one positive number per channel, so that chi² on the calibration fields is 1.

    With v the predictive variance (field plus noise), the scale of a channel is the mean of (y - mean)²/v over the calibration
    fields and, by quadrature, over the domain: the maximiser of the Gaussian marginal likelihood in closed form. Correlations,
    relative sizes and the mean stay as they are, so it cannot mend a variance that is large in the wrong places.

    A value that has no predictive variance counts 0 if it is right (up to rounding), as in `pn.metrics.chi2`.

    Reference:
        Laves et al. (2021), Recalibration of aleatoric and epistemic regression uncertainty in medical imaging (σ scaling,
        whose optimum under a Gaussian likelihood is this one). Deviation: averages over the domain are weighted by
        quadrature, there is one scale per channel, and it multiplies the whole covariance and the noise alike.
    """

    def fit(self, predict: Predictor, calibration: FieldPairs) -> ScaledPredictor:
        """Fit the scales on fields that neither training nor testing uses.

        Args:
            predict: What any head or calibrator returned; it is wrapped, not changed.
            calibration: Held-out pairs; outputs may live on another grid than inputs.

        Returns:
            A predictor whose covariances and noise are scaled.

        Raises:
            CalibrationError: If there are fewer than 2 fields, no predictive variance where there are errors, or no errors.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        check_pairs(predict, calibration)
        if len(calibration) < 2:
            raise CalibrationError(
                expected="at least 2 calibration fields", got=str(len(calibration)), remedy="hold out some training fields"
            )
        grid = calibration.outputs.grid
        total = torch.zeros(predict.out_channels, dtype=torch.float64, device="cpu")
        varies = False
        for found, truth in predictions(predict, calibration):
            total += domain_average(_squares(found, truth, calibration.outputs.dtype), grid).sum(0).cpu()
            varies = varies or bool((found.variance > 0).any())
        if not varies:
            raise CalibrationError(
                expected="a positive predictive variance somewhere",
                got="zero everywhere, which no scale can mend",
                remedy="use a head that is uncertain, or one with noise > 0",
            )
        scale = total / len(calibration)
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise CalibrationError(
                expected="a positive finite chi2 in every channel of the calibration fields",
                got=str(scale.tolist()),
                remedy="infinite: errors where no variance is stated, give the head noise > 0; zero: nothing to calibrate",
            )
        return ScaledPredictor(predict, scale)


@dataclass(frozen=True, eq=False, repr=False)
class ScaledPredictor(Predictor):
    """A predictor whose covariances and noise are multiplied by a scale per channel; the mean stays.

    Args:
        inner: The predictor it wraps.
        scale: Factor of the variances, `(c,)`, dimensionless.

    Raises:
        ArgumentError: If the scale is not positive and finite, one per channel.
    """

    inner: Predictor
    scale: Float64[Tensor, " c"]
    in_channels: int = field(init=False)
    out_channels: int = field(init=False)
    noise: Float[Tensor, " c"] = field(init=False)
    domain: Grid = field(init=False)

    def __post_init__(self) -> None:
        """Check the scale and take over what does not change."""
        fits = tuple(self.scale.shape) == (self.inner.out_channels,)
        if not fits or not bool((torch.isfinite(self.scale) & (self.scale > 0)).all()):
            raise ArgumentError(
                expected=f"{self.inner.out_channels} positive finite scales, one per channel",
                got=str(self.scale.tolist()),
                remedy="fit them with VarianceScale",
            )
        noise = self.inner.noise.to(torch.float64) * self.scale.to(self.inner.noise.device)
        object.__setattr__(self, "in_channels", self.inner.in_channels)
        object.__setattr__(self, "out_channels", self.inner.out_channels)
        object.__setattr__(self, "noise", noise.to(self.inner.noise.dtype))
        object.__setattr__(self, "domain", self.inner.domain)

    @property
    def dtype(self) -> torch.dtype:
        """The inner predictor's dtype."""
        return self.inner.dtype

    @property
    def device(self) -> torch.device:
        """The inner predictor's device."""
        return self.inner.device

    def _predict(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        return self.inner(inputs, query).scale(self.scale.sqrt())

    def __repr__(self) -> str:
        """The scales and what they scale."""
        return f"ScaledPredictor({self.inner!r}, scale={self.scale.tolist()})"


def _squares(found: Moments, truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Standardised squared residuals; 0 where residual and deviation are both zero up to rounding."""
    residual = truth - found.mean
    axes = tuple(range(2, truth.ndim))
    unit = ROUNDING * max(found.epsilon, torch.finfo(dtype).eps)
    rounding = unit * torch.maximum(found.mean.abs(), truth.abs()).amax(axes, keepdim=True)
    none = (residual.abs() <= rounding) & (found.variance <= rounding.square())
    return torch.where(none, torch.zeros_like(residual), residual.square() / found.variance)
