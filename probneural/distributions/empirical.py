"""Empirical fields: weighted samples, as ensembles produce them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_callable, check_finite, check_floating, check_integer, check_least, check_shape, real_tensor
from probneural.contexts import undisturbed
from probneural.distributions.base import (
    FieldDistribution,
    check_deviation_factors,
    check_values,
    held_variance,
    index_grid,
    inherit,
    inherit_image,
    inherit_rows,
    noise_variance,
    sample_size,
    spread_over,
)
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.intervals import ENOUGH_MEMBERS, check_probabilities, member_quantiles
from probneural.distributions.latent import Latent, checked_seeds, digest, draw_stream
from probneural.distributions.roots.base import DenseRoot, square_root, square_units
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import select_rows
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid, check_grid
from probneural.grids.grid import check_same_grid
from probneural.randomness import check_seed, stream_seed

_CHUNK_ELEMENTS = 2**21
"""Number of values per chunk of draws (16 MiB in float64)."""


class EmpiricalField(FieldDistribution):
    """The discrete distribution that takes sample i with probability weights[i].

    Mean and variance are those of this distribution (the variance has no small-sample correction). Draws return members.

    A few members determine no 90 % interval: below 100 effective members, 1 / sum of weights², quantiles and
    intervals are those of the Gaussian with the same mean and variance, as in
    [`coverage`][probneural.metrics.reliability.coverage]. From 100 on they are the members' own.

    Args:
        samples: Members, `(s, n, c, *grid.shape)`, in physical units; member i is one operator at all n inputs.
        weights: `(s,)`, not negative, dimensionless, normalised here; equal by default.
        grid: Grid of the functions.

    Raises:
        ShapeError: If the shapes do not fit together.
        DataError: If weights are negative, not finite, or all zero.

    Examples:
        >>> members = torch.tensor([0.0, 2.0]).reshape(2, 1, 1, 1)
        >>> field = EmpiricalField(members, grid=Grid.uniform((1,)))
        >>> field.mean.item(), field.variance.item()
        (1.0, 1.0)
    """

    def __init__(self, samples: Float[Tensor, "..."], weights: Float[Tensor, " s"] | None = None, *, grid: Grid) -> None:
        check_floating(samples, "samples")
        check_grid(grid)
        check_shape(samples, "samples", "s", "n", "c", *grid.shape, remedy="stack the members in front")
        check_least(len(samples), 1, "members", remedy="stack the members in front", error=ShapeError)
        weights = torch.ones(samples.shape[0], device="cpu") if weights is None else real_tensor(weights, "weights")
        check_values(weights, (samples.shape[0],), "weights")
        mass = weights.to(samples.device, torch.float64)
        if not bool((torch.isfinite(mass) & (mass >= 0)).all() and mass.sum() > 0):
            raise DataError(expected="finite weights >= 0 that are not all zero", got=str(mass.tolist()), remedy="check them")
        self.samples = samples
        self.weights = mass / mass.sum()
        self.grid = grid

    @property
    def has_equal_weights(self) -> bool:
        """Whether all members are equally likely, to rounding."""
        return bool((self.weights - 1.0 / len(self.weights)).abs().max() <= 1e-12)

    @property
    def mean(self) -> Float[Tensor, "n c *grid"]:
        """The weighted mean, `(n, c, *grid.shape)`, in physical units."""
        likely = self.samples[int(self.weights.argmax())]  # avoids cancellation for large offsets
        return likely + torch.tensordot(self.weights.to(self.samples), self.samples - likely, dims=1)

    @property
    def variance(self) -> Float[Tensor, "n c *grid"]:
        """The weighted variance, `(n, c, *grid.shape)`, in physical units squared.

        Raises:
            DataError: If the samples' dtype does not hold it; it holds the standard deviation.
        """
        return held_variance(self._variance(self.samples - self.mean), self)

    @property
    def standard_deviation(self) -> Float[Tensor, "n c *grid"]:
        """The weighted standard deviation, `(n, c, *grid.shape)`, in physical units, however small or large."""
        deviation = self.samples - self.mean
        variance = self._variance(deviation)
        units = square_units(variance)
        units = units.reshape(*units.shape, *(1,) * len(self.grid.shape))
        if bool((units == 1.0).all()):
            return square_root(variance)
        return square_root(self._variance(deviation / units)) * units

    @undisturbed()
    def _variance(self, deviation: Tensor) -> Tensor:
        return torch.tensordot(self.weights.to(self.samples), deviation.square(), dims=1)

    @property
    def base_shape(self) -> torch.Size:
        """`()`: the base sample of a draw is the number of a member."""
        return torch.Size([])

    def rsample(
        self, sample_shape: torch.Size | Sequence[int] = (), *, seed: int | None = None, base_samples: Tensor | None = None
    ) -> Float[Tensor, "*s n c *grid"]:
        """Draw members; see the base class. Base samples are member numbers, integers of shape `sample_shape`."""
        count = sample_size(sample_shape)
        if base_samples is None:
            weights = self.weights.detach().cpu()
            drawn = torch.multinomial(weights, max(count, 1), replacement=True, generator=draw_stream(seed, self.source))
            base_samples = drawn[:count].reshape(tuple(sample_shape))
        elif seed is not None:
            raise ArgumentError(expected="a seed or base samples", got="both", remedy="drop one")
        check_values(base_samples, tuple(sample_shape), "base samples")
        whole = not (base_samples.is_floating_point() or base_samples.is_complex() or base_samples.dtype == torch.bool)
        if not whole or not bool(((base_samples >= 0) & (base_samples < len(self.weights))).all()):
            raise ArgumentError(
                expected=f"member numbers from 0 to {len(self.weights) - 1}",
                got=f"{base_samples.dtype} base samples outside them",
                remedy="base samples of an empirical field are integers",
            )
        return self.samples[base_samples.to(self.samples.device)]

    def draw(self, seeds: Sequence[int], *, each: bool = False) -> Float[Tensor, "..."]:
        """Evaluate the members of seeds: a member is one operator; see the base class."""
        checked = checked_seeds(seeds, each=each, samples=self.samples.shape[1])
        members = drawn_members(self.weights, checked, name=self.source).to(self.samples.device)
        return self.samples[members, torch.arange(len(members), device=members.device)] if each else self.samples[members]

    def quantile(
        self, q: float | Sequence[float] | Tensor, *, noise: float | Float[Tensor, "..."] = 0.0
    ) -> Float64[Tensor, "*k n c *grid"]:
        """Quantiles of every value; see the base class and the class docstring.

        The members' own are interpolated between members, each of which stands in the middle of its probability; those beyond
        the outermost members are these members. With noise they are quantiles of the mixture of Gaussians around the members,
        found by bisection, with their first derivatives.
        """
        if 1.0 / float(self.weights.square().sum()) < ENOUGH_MEMBERS * (1 - 1e-9):
            return super().quantile(q, noise=noise)
        probabilities, members = check_probabilities(q), self.samples.to(torch.float64)
        noise_std = noise_variance(noise, tuple(members.shape[1:]), members).sqrt()
        quantiles = member_quantiles(members, self.weights.to(members), probabilities.reshape(-1), noise_std=noise_std)
        return quantiles if probabilities.ndim else quantiles[0]

    def apply(self, functional: Functional) -> EmpiricalField:
        """Push every member forward."""
        check_functional(functional, grid=self.grid)
        numbers = torch.stack([functional(member.to(torch.float64)) for member in self.samples]).to(self.samples)
        image = EmpiricalField(numbers, self.weights, grid=index_grid(functional.size))
        return inherit_image(image, self, functional.labels)

    def scale(self, factors: Float[Tensor, "..."]) -> EmpiricalField:
        """Move the members away from, or towards, their mean by factors."""
        mean = self.mean
        factors = spread_over(check_deviation_factors(factors, tuple(mean.shape)), mean)
        scaled = EmpiricalField(mean + factors * (self.samples - mean), self.weights, grid=self.grid)
        scaled.labels, scaled.source = self.labels, self.source
        return scaled

    def moment_matched(self) -> GaussianField:
        """Return the Gaussian field of the same mean and covariance; its rank is the number of members."""
        mean = self.mean
        columns = (self.samples - mean) * self.weights.sqrt().to(self.samples).reshape(-1, *(1,) * mean.ndim)
        root = DenseRoot(columns.flatten(3).movedim(0, -1))
        latent = Latent(id=f"members-{digest(self.samples, self.weights)}", rank=root.shape[3], source="members")
        return inherit(GaussianField(mean, root, latent=latent, grid=self.grid), self)

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> EmpiricalField:
        """Select samples of every member."""
        rows = select_rows(index, self.samples.shape[1])
        return inherit_rows(EmpiricalField(self.samples[:, rows], self.weights, grid=self.grid.select(rows)), self, rows)


class LazyEmpiricalField(EmpiricalField):
    """An empirical field with lazily evaluated members; draws evaluate only the members of their seeds.

    Args:
        samples: Evaluates all members, `(s, n, c, *grid.shape)`, in physical units.
        draw: Evaluates the draws of seeds, as [`draw`][probneural.distributions.FieldDistribution.draw] does.
        size: Number of members s and of samples n.
        grid: Grid of the members.
        like: A tensor on the members' device.
        source: Name of the predictor.
    """

    def __init__(
        self,
        samples: Callable[[], Float[Tensor, "s n c *grid"]],
        *,
        draw: Callable[[tuple[int, ...], bool], Tensor],
        size: tuple[int, int],
        grid: Grid,
        like: Tensor,
        source: str,
    ) -> None:
        self._evaluate, self._draw_lazily, self._samples_count = samples, draw, size[1]
        self.weights = torch.full(size[:1], 1.0 / size[0], dtype=torch.float64, device=like.device)
        self.grid, self.source = grid, source

    @cached_property
    def samples(self) -> Float[Tensor, "s n c *grid"]:  # type: ignore[override]
        """Members, `(s, n, c, *grid.shape)`, in physical units."""
        return EmpiricalField(self._evaluate(), grid=self.grid).samples

    def draw(self, seeds: Sequence[int], *, each: bool = False) -> Float[Tensor, "..."]:
        """Evaluate the draws of seeds; see the base class."""
        return self._draw_lazily(checked_seeds(seeds, each=each, samples=len(self)), each)

    def __len__(self) -> int:
        """Number of samples n."""
        return self._samples_count


def drawn_members(weights: Float[Tensor, " s"], seeds: Sequence[int], *, name: str | None) -> Int64[Tensor, " m"]:
    """The number of the member that the draw of each seed is, on the CPU: that of `EmpiricalField.rsample`."""
    mass = weights.detach().cpu()
    members = {seed: int(torch.multinomial(mass, 1, generator=draw_stream(seed, name))) for seed in dict.fromkeys(seeds)}
    return torch.tensor([members[seed] for seed in seeds], dtype=torch.int64, device="cpu")


def push_draws(u: FieldDistribution, function: Callable[[Tensor], Tensor], *, draws: int, seed: int) -> EmpiricalField:
    """The empirical distribution of a function's values; see `FieldDistribution.apply_by_draws`."""
    check_callable(function, "function", remedy="give a function of values (s, n, c, *grid) that returns (s, n, c, m)")
    draws, seed = check_integer(draws, "draws"), check_seed(seed)
    where = getattr(function, "grid", None)
    if isinstance(where, Grid):
        check_same_grid(where, u.grid, "a function", remedy="build it on the distribution's grid")
    if isinstance(u, EmpiricalField):
        samples, weights = _image(function, u.samples), u.weights
    else:
        batch = min(draws, max(1, _CHUNK_ELEMENTS // max(u.mean.numel(), math.prod(u.base_shape), 1)))
        pieces = []
        for number, start in enumerate(range(0, draws, batch)):
            drawn = u.rsample((min(batch, draws - start),), seed=stream_seed(seed, "nonlinear functional draws", number))
            pieces.append(_image(function, drawn))
        samples, weights = torch.cat(pieces), None
    image = EmpiricalField(samples, weights, grid=index_grid(samples.shape[3]))
    labels = getattr(function, "labels", None)
    return inherit_image(image, u, labels if isinstance(labels, tuple) and len(labels) == samples.shape[3] else None)


def _image(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    image = check_floating(function(values), "the result of the function")
    if image.ndim != 4 or image.shape[:2] != values.shape[:2] or 0 in image.shape[2:]:
        raise ShapeError(
            expected=f"{tuple(values.shape[:2])} draws and functions, then channels and m numbers",
            got=f"shape {tuple(image.shape)}",
            remedy="keep the axes: values.flatten(3).amax(-1, keepdim=True)",
        )
    check_finite(image, "values of the function", remedy="make it finite on every draw")
    return image


FieldDistribution._push_draws = push_draws
