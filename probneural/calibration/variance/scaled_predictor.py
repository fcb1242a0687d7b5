"""Predictors with scaled variances, whose model discrepancy belongs to the field."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.calibration.variance.discrepancy import Decomposition
from probneural.calibration.variance.local_scale import LocalScale, interpolated
from probneural.distributions.base import FieldDistribution, check_factors, spread_over
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import Latent, digest
from probneural.distributions.mixture import gaussian_of
from probneural.distributions.predictors.base import Calibrated, Predictor
from probneural.distributions.roots.base import Root, square_root
from probneural.distributions.roots.modulated import DiagonalRoot, ModulatedRoot, weigh
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.fields import Field
from probneural.registry import stored


@stored(on_cpu=("scale", "noise_scale", "decomposition", "calibrated_on", "local"))
class ScaledPredictor(Calibrated):
    """Predictor with scaled covariances and noise per channel, whose model discrepancy belongs to the field.

    The mean does not change. [`VarianceScale`][probneural.calibration.VarianceScale] defines the covariance.

    Args:
        inner: The wrapped predictor.
        scale: a, factor of the field's variances, `(c,)`, dimensionless.
        noise_scale: b, factor of the noise variances, `(c,)`, dimensionless.
        decomposition: w, f and rho.
        noise: Variance of the measurement noise, `(c,)`, in physical units squared; at most b n.
        calibrated_on: Row keys of the calibration pairs of this predictor and of `inner`, `(n,)`; a conformal band needs
            others.
        local: Local scale h, or None for h = 1.

    Raises:
        ArgumentError: If a scale is not positive and finite.
        ShapeError: If the counts of scales and channels differ.
        DataError: If scales are no real numbers.
    """

    def __init__(
        self,
        inner: Predictor,
        scale: Float64[Tensor, " c"],
        *,
        noise_scale: Float64[Tensor, " c"],
        decomposition: Decomposition,
        noise: Float[Tensor, " c"],
        calibrated_on: Int64[Tensor, " n"],
        local: LocalScale | None = None,
    ) -> None:
        variance = tuple(decomposition.variance.tolist())
        traits = replace(inner.traits, noise=noise, discrepancy_variance=variance)
        super().__init__(inner, calibrated_on=calibrated_on, traits=traits)
        channels = inner.out_channels
        self.scale = check_factors(scale, channels, "scale")
        self.noise_scale = check_factors(noise_scale, channels, "noise_scale")
        self.decomposition = decomposition
        self.local = local

    def _map(self, inputs: Field, field: FieldDistribution) -> GaussianField:
        u = gaussian_of(field)
        ratio = self._local_factor(inputs, u)
        deviation = (self.scale * self.decomposition.root_fraction).sqrt()
        inner = None if u.discrepancy is None else _weighed(u.discrepancy.scale(deviation), ratio)
        return GaussianField(
            u.mean,
            _weighed(u.root.scale(deviation), ratio),
            latent=self._latent(field, u),
            grid=u.grid,
            discrepancy=_side_by_side(inner, *self._discrepancies(u, ratio)),
        )

    def _latent(self, inner: FieldDistribution, u: GaussianField) -> Latent:
        """New latent, since the posterior of xi depends on the scaled root. All calls of an ensemble share its members."""
        parts = self.decomposition
        shape = () if self.local is None else (self.local.coefficients,)
        content = digest(self.scale, self.noise_scale, parts.root_fraction, parts.white_fraction, self.calibrated_on, *shape)
        is_ensemble = isinstance(inner, EmpiricalField)
        source, name = (self.inner._key, self.inner._identity) if is_ensemble else (u.latent.key, u.latent.id)
        return replace(u.latent, id=f"{name}~scaled-{content}", source=source)

    @property
    def _unexplained(self) -> Float64[Tensor, " c"]:
        """Scaled noise variance b n, in physical units squared, on the CPU."""
        return self.noise_scale * self.inner.noise.detach().to("cpu", torch.float64)

    def _local_factor(self, inputs: Field, u: GaussianField) -> Float64[Tensor, "n c p"] | None:
        """Local scale h at the points of a prediction, computed there or interpolated from the calibration grid."""
        if self.local is None:
            return None
        if self.local.covers(u.grid):
            return self._ratio(self.local, u)
        source = self.local.grid if self.local.grid.is_uniform else inputs.grid
        prediction = gaussian_of(self.inner(inputs, source))
        return interpolated(self._ratio(self.local, prediction).log(), source=prediction.grid, target=u.grid).exp()

    def _ratio(self, local: LocalScale, u: GaussianField) -> Float64[Tensor, "n c p"]:
        variance = u.variance.to(torch.float64)
        scale, noise = (spread_over(part, variance) for part in (self.scale, self._unexplained))
        return local.on(u.grid)(u.mean, scale * variance + noise)

    def _discrepancies(
        self, u: GaussianField, ratio: Float64[Tensor, "n c p"] | None
    ) -> tuple[ModulatedRoot | None, DiagonalRoot | None]:
        """Roots of the correlated and white discrepancy."""
        parts = self.decomposition
        if parts.process is None:
            return None, None
        unexplained, noise = self._unexplained, self.noise.detach().to("cpu", torch.float64)
        # D² = h ((1 - w) a v + b n), less the measurement noise: white noise has f D² - noise or 0, the process the rest.
        shape = (*u.mean.shape[:2], u.grid.size)
        factor = torch.ones(1, 1, 1, dtype=torch.float64) if ratio is None else ratio.to("cpu")
        total = (unexplained[:, None] * factor).to(u.mean).expand(shape)
        own_variance = self.scale * (1.0 - parts.root_fraction)
        if bool((own_variance > 0).any()):
            total = total + (own_variance[:, None] * factor).to(u.mean) * u.variance.flatten(2)
        noise = noise.to(total)[:, None]
        white = (parts.white_fraction.to(total)[:, None] * total - noise).clamp_min(0.0)
        smooth = (total - white - noise).clamp_min(0.0)
        rough = square_root(white).to(u.mean).expand(shape)
        return ModulatedRoot(square_root(smooth), parts.process.evaluate(u.grid).to(u.mean)), DiagonalRoot(rough)

    def _details(self) -> str:
        """The scales."""
        return f"scale={self.scale.tolist()}, noise_scale={self.noise_scale.tolist()}"


def _weighed(root: Root, ratio: Float64[Tensor, "n c p"] | None) -> Root:
    return root if ratio is None else weigh(root, ratio.sqrt())


def _side_by_side(*roots: Root | None) -> Root | None:
    """Root of the sum of independent fields; None without fields."""
    present = [root for root in roots if root is not None]
    return functools.reduce(SideBySideRoot, present) if present else None
