"""Scale mixtures of one Gaussian field."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_instance, real_tensor
from probneural.distributions.base import FieldDistribution, check_deviation_factors, held_variance, inherit, noise_variance
from probneural.distributions.gaussian import GaussianField, around, checked_residual, joint_log_densities, value_counts
from probneural.distributions.intervals import check_probabilities, log_density_of_values, mixture_quantiles
from probneural.distributions.mixture import MixtureField, checked_weights, choose
from probneural.distributions.roots.base import root_sum_of_squares
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import ArgumentError
from probneural.functionals import Functional


class ScaleMixtureField(MixtureField):
    """p(u) = Σ_k w_k N(u; m, s_k² C): deviations from the mean of a Gaussian field, times a random number.

    The field is elliptical: it has the correlations of the Gaussian field, and heavier tails. It is a mixture whose
    components share their computations: functionals, deviations and draws cost as much as those of one field.

    Args:
        field: N(m, C), of n samples.
        scales: s_k of deviations, `(k,)`, positive, dimensionless.
        weights: `(k,)`, or `(k, n)` if they depend on the sample; as in a mixture.

    Raises:
        DataError: If the field is not Gaussian, or weights are negative, not finite or all zero.
        ArgumentError: If scales are not a vector, or one is not positive and finite.
        ShapeError: If there is not one weight for each scale.

    Examples:
        >>> from probneural.distributions.roots.base import DenseRoot
        >>> from probneural.grids import Grid
        >>> field = GaussianField(torch.zeros(1, 1, 1), DenseRoot(torch.ones(1, 1, 1, 1)), latent="xi", grid=Grid.uniform((1,)))
        >>> mixed = ScaleMixtureField(field, torch.tensor([1.0, 3.0]))
        >>> mixed.variance.item(), len(mixed.components)
        (5.0, 2)
    """

    def __init__(
        self, field: GaussianField, scales: Float[Tensor, " k"], *, weights: Float[Tensor, "k *n"] | None = None
    ) -> None:
        check_instance(field, GaussianField, "field", remedy="of an ensemble's field: field.moment_matched()")
        self.field, self.grid = field, field.grid
        self.scales = checked_scales(scales)
        self.weights = checked_weights(weights, len(self.scales), len(field))
        self._scaled: tuple[GaussianField, ...] | None = None

    @property
    def components(self) -> tuple[GaussianField, ...]:
        """The field at each scale, evaluated lazily."""
        if self._scaled is None:
            ones = torch.ones(self.field.mean.shape[1], dtype=torch.float64)
            self._scaled = tuple(self.field.scale(scale * ones) for scale in self.scales.tolist())
        return self._scaled

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.field)

    @property
    def variance_factor(self) -> Float64[Tensor, "n *ones"]:
        """Σ w_k s_k², the ratio of the mixture's variance to the field's; `(n, 1, ...)` or `(1, ...)`, dimensionless."""
        return self._factor.expand(len(self)).reshape(len(self), *(1,) * (1 + len(self.grid.shape)))

    @property
    def _factor(self) -> Float64[Tensor, "*n"]:
        """The same, `()`, or `(n,)` where weights depend on the function; scales without weight may be of any size."""
        squares = self.scales.square().to(self.weights).reshape(-1, *(1,) * (self.weights.ndim - 1))
        squares = torch.where((self.weights > 0) | squares.isfinite(), squares, torch.zeros_like(squares))
        return (self.weights * squares).sum(0)

    @property
    def mean(self) -> Float[Tensor, "n c *grid"]:
        """That of the field, `(n, c, *grid.shape)`, in physical units."""
        return self.field.mean

    @property
    def variance(self) -> Float[Tensor, "n c *grid"]:
        """Σ w_k s_k² times that of the field, `(n, c, *grid.shape)`, in physical units squared.

        Raises:
            DataError: If the mean's dtype does not hold it; it holds the standard deviation.
        """
        return held_variance(self.variance_factor.to(self.field.mean) * self.field.variance, self)

    @property
    def standard_deviation(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise standard deviation, `(n, c, *grid.shape)`, in physical units, however small or large."""
        return self.variance_factor.sqrt().to(self.field.mean) * self.field.standard_deviation

    @property
    def base_shape(self) -> torch.Size:
        """`(1 + k,)`: a number that selects the scale, then the latent vector of the field."""
        return torch.Size([1 + self.field.base_shape[0]])

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] = (), *, seed: int | None = None, base_samples: Tensor | None = None
    ) -> Float[Tensor, "*s n c *grid"]:
        """Draw samples; see the base class. A draw is differentiable through the field, not through the choice of the scale."""
        field = self.field
        numbers, chosen = self._chosen(sample_shape, seed=seed, base_samples=base_samples)
        count = len(numbers)
        deviation = around(field, torch.zeros_like(field.mean)).rsample((count,), base_samples=numbers[:, 1:])
        scale = self.scales[chosen].reshape(count, len(self), *(1,) * (field.mean.ndim - 1)).to(deviation)
        return (field.mean + scale * deviation).reshape(*sample_shape, *field.mean.shape)

    @property
    def _latent_name(self) -> str:
        return self.field.latent.key

    def _draw_at(self, uniform: Float64[Tensor, " s"], seeds: Sequence[int], *, each: bool) -> Float[Tensor, "..."]:
        mean, chosen = self.field.mean, choose(self.weights.detach().cpu(), uniform, len(self))
        scales = (self.scales[chosen].diagonal() if each else self.scales[chosen]).to(mean)
        deviation = self.field.draw(seeds, each=each) - mean
        return mean + scales.reshape(*scales.shape, *(1,) * (mean.ndim - 1)) * deviation

    def _component_means(self) -> list[Float[Tensor, "n c *grid"]]:
        return [self.field.mean] * len(self.scales)

    def _component_variances(self) -> list[Float[Tensor, "n c *grid"]]:
        variance, nothing = self.field.variance, torch.zeros_like(self.field.mean)
        pairs = zip(self._held(), self.scales.tolist(), strict=True)
        return [scale**2 * variance if held else nothing for held, scale in pairs]

    def _component_deviations(self, noise: float | Tensor) -> list[Float64[Tensor, "n c *grid"]]:
        std = self.field.standard_deviation.to(torch.float64)
        observed = noise_variance(noise, tuple(std.shape), std).sqrt()
        return [root_sum_of_squares(scale * std, observed) for scale in self.scales.tolist()]

    def _has_noise(self, noise: float | Tensor) -> bool:
        return bool((noise_variance(noise, tuple(self.mean.shape), self.mean) > 0).any())

    def _log_densities(
        self, values: Float[Tensor, "n c *grid"], held: list[bool], *, noise: float | Tensor, joint: bool
    ) -> list[Tensor]:
        if self._has_noise(noise):
            return super()._log_densities(values, held, noise=noise, joint=joint)
        # log N(y; m, s² C) = log N(m; m, C) - M log s - q / (2 s²) for M values, q / 2 = log N(m; m, C) - log N(y; m, C)
        residual, count = checked_residual(self.field, values), torch.ones(())
        both = torch.stack([torch.zeros_like(residual), residual])
        if joint:
            count = value_counts(self.field)
            at_mean, at_values = joint_log_densities(self.field, both, noise=torch.zeros_like(residual))
        else:
            std = self.field.standard_deviation.to(residual)
            at_mean, at_values = log_density_of_values(both, std=std, noise=torch.zeros_like(std))
        half = at_mean - at_values
        return [
            at_mean - count.to(half) * math.log(scale) - half / scale**2
            for scale in itertools.compress(self.scales.tolist(), held)
        ]

    def quantile(
        self, q: float | Sequence[float] | Tensor, *, noise: float | Float[Tensor, "..."] = 0.0
    ) -> Float64[Tensor, "*k n c *grid"]:
        """Quantiles of every value; see the base class. Without noise they are the mean plus multiples of the deviation."""
        if self._has_noise(noise):
            return super().quantile(q, noise=noise)
        probabilities, weights = check_probabilities(q), self.weights.reshape(len(self.scales), -1).to("cpu", torch.float64)
        scales = self.scales[:, None].expand_as(weights)
        units = mixture_quantiles(torch.zeros_like(scales), scales, weights, probabilities.reshape(-1))
        mean, std = (part.to(torch.float64) for part in (self.field.mean, self.field.standard_deviation))
        return mean + units.to(mean).reshape(*probabilities.shape, weights.shape[1], *(1,) * (mean.ndim - 1)) * std

    def _changed(self, change: Callable[[GaussianField], GaussianField], weights: Float64[Tensor, "k *n"]) -> ScaleMixtureField:
        return ScaleMixtureField(change(self.field), self.scales, weights=weights)

    def constrain(self, functional: Functional, values: Float[Tensor, "n c m"]) -> ScaleMixtureField:
        """Impose an exact linear constraint on every sample; large residuals increase the posterior scale."""
        constrained = self.field.constrain(functional, values)
        return inherit(ScaleMixtureField(constrained, self.scales, weights=self._given(functional, values)), self)

    def scale(self, factors: Float[Tensor, "..."]) -> ScaleMixtureField:
        """Multiply the deviation from the mean by factors."""
        checked = check_deviation_factors(factors, tuple(self.mean.shape))
        scaled = ScaleMixtureField(self.field.scale(checked), self.scales, weights=self.weights)
        scaled.labels = self.labels
        return scaled

    def moment_matched(self) -> GaussianField:
        """Return the Gaussian field of the same mean and covariance: the field, with larger or smaller deviations."""
        shape = self.mean.shape
        per_channel = self.weights.ndim == 1
        factors = self._factor.sqrt().expand(shape[1]) if per_channel else self.variance_factor.sqrt().expand(shape)
        return inherit(self.field.scale(factors), self)


def with_shared_discrepancy(u: FieldDistribution) -> FieldDistribution:
    """Return a field whose samples share the latents of their discrepancy, if it is Gaussian or a scale mixture.

    Each sample keeps its distribution, and draws of all samples cost as many random numbers as those of one.
    """
    if isinstance(u, ScaleMixtureField):
        return inherit(ScaleMixtureField(with_shared_discrepancy(u.field), u.scales, weights=u.weights), u)  # type: ignore[arg-type]
    if not isinstance(u, GaussianField) or u.discrepancy is None:
        return u
    root = SideBySideRoot(u.root, u.discrepancy)
    return inherit(GaussianField(u.mean, root, latent=f"{u.latent.id}|shared-discrepancy", grid=u.grid), u)


def checked_scales(scales: Float[Tensor, " k"]) -> Float64[Tensor, " k"]:
    """Return scales of deviations, on the CPU, in float64; lists and arrays will do.

    Raises:
        ArgumentError: If they are no vector, or one is not positive and finite.
    """
    checked = real_tensor(scales, "scales").to("cpu", torch.float64)
    if checked.ndim != 1 or not len(checked) or not bool((checked.isfinite() & (checked > 0)).all()):
        raise ArgumentError(
            expected="positive finite scales (k,)", got=str(checked.tolist())[:200], remedy="fit them with ScaleMixture"
        )
    return checked
