"""Scales that make stated variances as large as the errors on held-out fields."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.calibration.chunks import Moments, check_pairs, domain_average, predictions
from probneural.checks import assign, check_flag
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.gaussian import check_factors
from probneural.distributions.predictor import Predictor
from probneural.errors import CalibrationError
from probneural.fields import Field, FieldPairs
from probneural.grids import Grid

ROUNDING = 8.0
"""Units in the last place, of a function's largest value, up to which errors and deviations count as none (as in metrics)."""


SHARES = (0.05, 0.95)
"""Smallest and largest share of the mean predictive variance that separate scales leave to the noise."""
_CANDIDATES = 91
"""Shares tried between the two: steps of one per cent."""


@dataclass(frozen=True)
class VarianceScale:
    """Scale covariance and noise, per channel, so that stated variances are as large as the errors on held-out fields.

    With separate scales a and b, the predictive variance a v + b n maximises the Gaussian marginal likelihood of the
    calibration fields; so chi² on them is 1, and the noise no longer hides where the field's own variance v knows the errors
    to be large.
    The noise keeps between 5 and 95 % of the mean predictive variance: without it, errors that no direction of the root can
    express would count as impossible in every joint statement. With one common scale, a = b = chi² in closed form.

    The mean and all correlations of the field stay as they are.

    Args:
        separate: Whether covariance and noise have scales of their own. A part that is zero leaves one common scale.

    Reference:
        Laves et al. (2021), Recalibration of aleatoric and epistemic regression uncertainty in medical imaging (σ scaling,
        whose optimum under a Gaussian likelihood is the common scale). Deviations: averages over the domain are weighted
        by quadrature, scales per channel, and two of them.
    """

    separate: bool = True

    def __post_init__(self) -> None:
        """Check the setting."""
        assign(self, separate=check_flag(self.separate, "separate"))

    @undisturbed()
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
        ratios = self._ratios(predict, calibration)
        chi2, spread = _profile(predict, calibration, ratios)
        best = (chi2.log() + spread).argmin(dim=0, keepdim=True)
        scale, ratio = chi2.gather(0, best)[0], ratios.gather(0, best)[0]
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise CalibrationError(
                expected="a positive finite chi2 in every channel of the calibration fields",
                got=str(scale.tolist()),
                remedy="infinite: errors where no variance is stated, give the head noise > 0; zero: nothing to calibrate",
            )
        return ScaledPredictor(predict, scale, noise_scale=scale * ratio)

    def _ratios(self, predict: Predictor, calibration: FieldPairs) -> Float64[Tensor, "k c"]:
        """Candidates of b/a per channel: 1 alone, or those that leave the noise a share between the two bounds."""
        grid = calibration.outputs.grid
        noise = predict.noise.detach().to("cpu", torch.float64)
        field_variance = torch.zeros_like(noise)
        for found, _ in predictions(predict, calibration):
            own = found.variance - noise.to(found.variance).reshape(-1, *(1,) * len(grid.shape))
            field_variance += domain_average(own, grid).sum(0).cpu() / len(calibration)
        if not bool((field_variance + noise > 0).any()):
            raise CalibrationError(
                expected="a positive predictive variance somewhere",
                got="zero everywhere, which no scale can mend",
                remedy="use a head that is uncertain, or one with noise > 0",
            )
        if not self.separate:
            return torch.ones(1, len(noise), dtype=torch.float64)
        shares = torch.linspace(*SHARES, _CANDIDATES, dtype=torch.float64)
        ratios = (shares / (1.0 - shares))[:, None] * (field_variance / noise)
        both = (field_variance > ROUNDING * torch.finfo(torch.float64).eps * noise) & (noise > 0)
        return torch.where(both, ratios, torch.ones_like(ratios))


@dataclass(frozen=True, eq=False, repr=False)
class ScaledPredictor(Predictor):
    """A predictor whose covariances and noise are multiplied by scales per channel; the mean stays.

    Args:
        inner: The predictor it wraps.
        scale: Factor of the field's variances, `(c,)`, dimensionless.
        noise_scale: Factor of the noise variances, `(c,)`, dimensionless; the same as `scale` by default.

    Raises:
        ArgumentError: If a scale is not positive and finite.
        ShapeError: If there is not one per channel.
        DataError: If scales are no real numbers.
    """

    inner: Predictor
    scale: Float64[Tensor, " c"]
    noise_scale: Float64[Tensor, " c"] | None = None
    in_channels: int = field(init=False)
    out_channels: int = field(init=False)
    noise: Float[Tensor, " c"] = field(init=False)
    domain: Grid = field(init=False)
    effective_observations: Float[Tensor, " c"] | None = field(init=False)

    def __post_init__(self) -> None:
        """Check the scales and take over what does not change."""
        scale = check_factors(self.scale, self.inner.out_channels, "scale")
        noise_scale = scale if self.noise_scale is None else check_factors(self.noise_scale, len(scale), "noise_scale")
        noise = self.inner.noise.to(torch.float64) * noise_scale.to(self.inner.noise.device)
        assign(self, scale=scale, noise_scale=noise_scale, noise=noise.to(self.inner.noise.dtype))
        for name in ("in_channels", "out_channels", "domain", "effective_observations"):
            assign(self, **{name: getattr(self.inner, name)})

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

    def _draw(self, inputs: Field, query: Grid | None, seed: int) -> Float[Tensor, "n c *grid"]:
        """The inner predictor's draw, its deviation from the mean scaled: as coherent across calls as that one."""
        mean = self.inner(inputs, query).mean
        drawn = self.inner.draw(seed)(inputs.values, grid=inputs.grid, query=query)
        return mean + self.scale.sqrt().to(mean).reshape(-1, *(1,) * (mean.ndim - 2)) * (drawn - mean)

    def __repr__(self) -> str:
        """The scales and what they scale."""
        scales = f"scale={self.scale.tolist()}, noise_scale={self.noise.div(self.inner.noise).tolist()}"
        return f"ScaledPredictor({self.inner!r}, {scales})"


def _profile(
    predict: Predictor, calibration: FieldPairs, ratios: Float64[Tensor, "k c"]
) -> tuple[Float64[Tensor, "k c"], Float64[Tensor, "k c"]]:
    """chi² and mean log variance of the calibration fields for field variance plus `ratio` times the noise.

    Their sum with a logarithm on chi² is twice the negative log likelihood at the best common scale, up to a constant.
    """
    grid = calibration.outputs.grid
    chi2, spread = torch.zeros_like(ratios), torch.zeros_like(ratios)
    for found, truth in predictions(predict, calibration):
        noise = predict.noise.detach().to(found.variance).reshape(-1, *(1,) * len(grid.shape))
        for number, ratio in enumerate(ratios.to(found.variance.device)):
            extra = (ratio - 1.0).reshape(-1, *(1,) * len(grid.shape)) * noise
            moved = replace(found, variance=found.variance + extra)
            chi2[number] += domain_average(_squares(moved, truth, calibration.outputs.dtype), grid).sum(0).cpu()
            if len(ratios) > 1:
                spread[number] += domain_average(moved.variance.log(), grid).sum(0).cpu()
    return chi2 / len(calibration), spread / len(calibration)


def _squares(found: Moments, truth: Tensor, dtype: torch.dtype) -> Tensor:
    """Standardised squared residuals; 0 where residual and deviation are both zero up to rounding."""
    residual = truth - found.mean
    axes = tuple(range(2, truth.ndim))
    unit = ROUNDING * max(found.epsilon, torch.finfo(dtype).eps)
    rounding = unit * torch.maximum(found.mean.abs(), truth.abs()).amax(axes, keepdim=True)
    none = (residual.abs() <= rounding) & (found.variance <= rounding.square())
    return torch.where(none, torch.zeros_like(residual), residual.square() / found.variance)
