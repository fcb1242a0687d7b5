"""A predictor whose variances are scaled, and whose misfit belongs to the field."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.calibration.decomposition import Decomposition, gaussian_of
from probneural.calibration.local_scale import LocalScale, interpolated
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution, check_factors
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import Latent, digest
from probneural.distributions.predictor import DrawsWithField, JointDraws, Predictor
from probneural.distributions.roots.base import Root, square_root
from probneural.distributions.roots.modulated import DiagonalRoot, ModulatedRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.distributions.roots.weighted import weigh
from probneural.errors import ShapeError
from probneural.fields import Field
from probneural.grids import Grid

_DRAWN_POINTS = 2**18
"""Grid points of inputs at which draws are evaluated together."""


class ScaledPredictor(Predictor):
    """A predictor whose covariances and noise are scaled per channel, and whose misfit belongs to the field; the mean stays.

    See [`VarianceScale`][probneural.calibration.VarianceScale] for the covariance that it states.

    Args:
        inner: The predictor it wraps.
        scale: a, factor of the field's variances, `(c,)`, dimensionless.
        noise_scale: b, factor of the noise variances, `(c,)`, dimensionless.
        decomposition: w, f and rho.
        noise: Measurement noise, `(c,)`, in physical units squared; at most b n.
        calibrated_on: Row keys of the calibration pairs, and of those that `inner` was calibrated on, `(n,)`: a conformal
            band needs others.
        local: h, or None where it is 1 everywhere.

    Raises:
        ArgumentError: If a scale is not positive and finite.
        ShapeError: If there is not one scale per channel.
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
        super().__init__(replace(inner.traits, noise=noise, discrepancy_variance=tuple(decomposition.variance.tolist())))
        channels = inner.out_channels
        self.inner = inner
        self.scale = check_factors(scale, channels, "scale")
        self.noise_scale = check_factors(noise_scale, channels, "noise_scale")
        if decomposition.variance.shape != (channels,):
            raise ShapeError(
                expected=f"a decomposition of {channels} channels",
                got=str(tuple(decomposition.variance.shape)),
                remedy="fit it with VarianceScale",
            )
        if local is not None and len(local.units) != channels:
            raise ShapeError(
                expected=f"a local scale of {channels} channels", got=str(len(local.units)), remedy="fit it with VarianceScale"
            )
        self.decomposition = decomposition
        self.local = local
        self.calibrated_on = calibrated_on
        self.effective_observations = inner.effective_observations

    def _predict(self, inputs: Field, query: Grid | None) -> GaussianField:
        return self._calibrated(inputs, query).field

    def _predict_together(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        predicted = zip(sets, self.inner._together(sets), strict=True)
        return [self._calibrated(inputs, query, inner).field for (inputs, query), inner in predicted]

    def _calibrated(self, inputs: Field, query: Grid | None, inner: FieldDistribution | None = None) -> _Calibrated:
        """The calibrated field, the part of its discrepancy that draws know, and the root of the local scale.

        Args:
            inputs: Input functions.
            query: Where to evaluate, or None for the inputs' grid.
            inner: What the inner predictor predicts there, if it is known.
        """
        with undisturbed():
            inner = self.inner(inputs, query) if inner is None else inner
            u = gaussian_of(inner)
            ratio = self._local_factor(inputs, u)
            deviation = (self.scale * self.decomposition.root_fraction).sqrt()
            root = _weighed(u.root.scale(deviation), ratio)
            smooth, white = self._discrepancies(u, ratio)
            own = None if u.discrepancy is None else _weighed(u.discrepancy.scale(deviation), ratio)
            calibrated = GaussianField(
                u.mean,
                root,
                latent=self._latent(inner, u),
                grid=u.grid,
                discrepancy=_side_by_side(own, smooth, white),
            )
            return _Calibrated(
                calibrated, smooth, None if ratio is None else ratio.sqrt().to(u.mean).unflatten(-1, u.grid.shape)
            )

    def _latent(self, inner: FieldDistribution, u: GaussianField) -> Latent:
        """A latent of its own: what data say about xi depends on the root that it came through. Members are in every call."""
        parts = self.decomposition
        shape = () if self.local is None else (self.local.coefficients,)
        content = digest(self.scale, self.noise_scale, parts.root_fraction, parts.white_fraction, self.calibrated_on, *shape)
        is_ensemble = isinstance(inner, EmpiricalField)
        source, name = (self.inner._key, self.inner._identity) if is_ensemble else (u.latent.key, u.latent.id)
        return replace(u.latent, id=f"{name}~scaled-{content}", source=source)

    @property
    def _unexplained(self) -> Float64[Tensor, " c"]:
        """B n, in physical units squared, on the CPU."""
        return self.noise_scale * self.inner.noise.detach().to("cpu", torch.float64)

    def _local_factor(self, inputs: Field, u: GaussianField) -> Float64[Tensor, "n c p"] | None:
        """H at the points of a prediction: read off it, or interpolated from the grid of the calibration outputs."""
        if self.local is None:
            return None
        if self.local.covers(u.grid):
            return self._ratio(self.local, u)
        there = gaussian_of(self.inner(inputs, self.local.grid))
        return interpolated(self._ratio(self.local, there).log(), source=there.grid, target=u.grid).exp()

    def _ratio(self, local: LocalScale, u: GaussianField) -> Float64[Tensor, "n c p"]:
        per_channel = (-1, *(1,) * len(u.grid.shape))
        variance = u.variance.to(torch.float64)
        scale, noise = (part.to(variance).reshape(per_channel) for part in (self.scale, self._unexplained))
        return local.on(u.grid)(u.mean, scale * variance + noise)

    def _discrepancies(
        self, u: GaussianField, ratio: Float64[Tensor, "n c p"] | None
    ) -> tuple[ModulatedRoot | None, DiagonalRoot | None]:
        """D times the process, and what has no correlation; D needs the field's variance where the root leaves some of it."""
        parts = self.decomposition
        if parts.process is None:
            return None, None
        unexplained, noise = self._unexplained, self.noise.detach().to("cpu", torch.float64)
        shape = (*u.mean.shape[:2], u.grid.size)
        factor = torch.ones(1, 1, 1, dtype=torch.float64) if ratio is None else ratio.to("cpu")
        white = ((parts.white_fraction * unexplained)[:, None] * factor - noise[:, None]).clamp_min(0.0)
        smooth = (unexplained[:, None] * factor - white - noise[:, None]).clamp_min(0.0).to(u.mean).expand(shape)
        left = self.scale * (1.0 - parts.root_fraction)
        if bool((left > 0).any()):
            smooth = smooth + (left[:, None] * factor).to(u.mean) * u.variance.flatten(2)
        rough = square_root(white).to(u.mean).expand(shape)
        return ModulatedRoot(square_root(smooth), parts.process.evaluate(u.grid).to(u.mean)), DiagonalRoot(rough)

    def _draw(self, inputs: Field, query: Grid | None, seed: int) -> Float[Tensor, "n c *grid"]:
        """The inner predictor's draw, its deviation from the mean scaled, and one draw of the process for all functions.

        What has no correlation is left out: it is another one on every grid.
        """
        calibrated = self._calibrated(inputs, query)
        u, smooth, _ = calibrated
        drawn = self._scaled(calibrated, self.inner.draw(seed)(inputs.values, grid=inputs.grid, query=query))
        return drawn if smooth is None else drawn + self._draw_discrepancy(smooth, u, seed)

    def _draw_shared(self, inputs: Field, query: Grid | None, seed: int) -> Float[Tensor, "n c *grid"]:
        return self._scaled(self._calibrated(inputs, query), self.inner._draw_shared(inputs, query, seed))

    def _scaled(self, calibrated: _Calibrated, drawn: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
        """A draw of the inner predictor, its deviation from the mean scaled."""
        u, _, local = calibrated
        factor = (self.scale * self.decomposition.root_fraction).sqrt().to(u.mean).reshape(-1, *(1,) * len(u.grid.shape))
        factor = factor if local is None else factor * local
        return u.mean + factor * (drawn - u.mean)

    def _joint_draws(self, seeds: Sequence[int]) -> JointDraws:
        of_some = functools.cache(self._draws_with_field)  # few points at once: features of all need much memory

        def evaluated(values: Tensor, grid: Grid) -> Tensor:
            step = max(1, _DRAWN_POINTS // (values.shape[1] * grid.size))
            parts = [tuple(seeds[start : start + step]) for start in range(0, len(seeds), step)]
            return torch.cat([of_some(own)(given, grid)[0] for own, given in zip(parts, values.split(step), strict=True)])

        return evaluated

    def _draws_with_field(self, seeds: Sequence[int]) -> DrawsWithField:
        inner = self.inner._draws_with_field(seeds)

        def evaluated(values: Tensor, grid: Grid) -> tuple[Tensor, GaussianField]:
            drawn, u = inner(values, grid)
            found = self._calibrated(Field(values.flatten(0, 1), grid), None, u)
            return self._scaled_draws(found, drawn, seeds), found.field

        return evaluated

    def _scaled_draws(self, calibrated: _Calibrated, drawn: Float[Tensor, "s n c *grid"], seeds: Sequence[int]) -> Tensor:
        """What `_draw` makes of the inner predictor's draws; calibrated are all s n functions."""
        leading = drawn.shape[:2]
        u, smooth, local = calibrated
        grid = u.grid
        mean = u.mean.unflatten(0, leading)
        factor = (self.scale * self.decomposition.root_fraction).sqrt().to(mean).reshape(-1, *(1,) * len(grid.shape))
        factor = factor if local is None else factor * local.unflatten(0, leading)
        scaled = mean + factor * (drawn - mean)
        if smooth is None:
            return scaled
        latents = torch.cat([self._drawn_discrepancy(smooth.shape[3], seed) for seed in seeds])
        each = smooth.product_each(latents.to(smooth.device).repeat_interleave(leading[1], 0))
        return scaled + each.unflatten(-1, grid.shape).unflatten(0, leading).to(scaled)

    def _description(self) -> str:
        """The scales and what they scale."""
        scales = f"scale={self.scale.tolist()}, noise_scale={self.noise_scale.tolist()}"
        return f"ScaledPredictor({self.inner._description()}, {scales})"


class _Calibrated(NamedTuple):
    """A calibrated field and what draws need beside it.

    Attributes:
        field: Calibrated.
        smooth: D times the process, or None.
        local: The root of the local scale, or None where it is 1.
    """

    field: GaussianField
    smooth: ModulatedRoot | None
    local: Float[Tensor, "n c *grid"] | None


def _weighed(root: Root, ratio: Float64[Tensor, "n c p"] | None) -> Root:
    return root if ratio is None else weigh(root, ratio.sqrt())


def _side_by_side(*roots: Root | None) -> Root | None:
    """The root of the sum of independent fields, or None of none."""
    known = [root for root in roots if root is not None]
    return functools.reduce(SideBySideRoot, known) if known else None
