"""Quantiles and intervals of single values, of a Gaussian and of weighted members, and log densities of Gaussian fields."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.checks import check_finite, check_shape, real_tensor
from probneural.distributions.roots.base import DenseRoot, Root, root_sum_of_squares, square_root
from probneural.distributions.roots.modulated import ModulatedRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.linear_algebra.conditioning import increment
from probneural.linear_algebra.densities import (
    LOG_TWO_PI,
    FactoredModes,
    log_density,
    log_density_of_gram,
    log_density_without_noise,
)

ENOUGH_MEMBERS = 100
"""Minimum number of effective members for empirical quantiles; with fewer, quantiles are Gaussian."""
_HALVINGS = 200
"""Steps of the bisection at most: components may be far apart, or a quantile at zero."""
_RESOLVED = torch.finfo(torch.float64).eps
"""Relative width of the final bracket of the bisection, in units of the quantile and the smallest deviation."""
_ROUNDING = 1e-12
"""Relative distance from a zero-variance component within which a quantile equals that component."""
_EQUAL_RATIO = 1e-6
"""Relative difference of ratios of standard deviations that count as equal: some rounding errors in float32."""
_LARGEST_TRACE = 1e9
"""Largest trace of the whitened modes' Gram matrix: log densities have errors of 1e-4 nats for hundreds of modes."""
_LARGEST_DENSE = 2**24
"""Maximum number of entries of one sample's root for densities by the dense root (128 MiB in float64)."""
_CHUNK_ELEMENTS = 2**20
"""Number of values per comparison (8 MiB in float64)."""


class Interval(NamedTuple):
    """The two ends of the central interval of every value; it unpacks into them, as that of `scipy.stats` does.

    Attributes:
        lower: Lower ends, `(n, c, *grid)`, in physical units.
        upper: Upper ends, `(n, c, *grid)`, in physical units.

    Examples:
        >>> lower, upper = Interval(torch.zeros(1, 1, 2).double(), torch.ones(1, 1, 2).double())
        >>> Interval(lower, upper).contains([[[0.5, 1.5]]]).tolist()
        [[[True, False]]]
    """

    lower: Float64[Tensor, "n c *grid"]
    upper: Float64[Tensor, "n c *grid"]

    @property
    def width(self) -> Float64[Tensor, "n c *grid"]:
        """Upper minus lower end, `(n, c, *grid)`, in physical units."""
        return self.upper - self.lower

    def contains(self, values: Tensor | Field | Sequence[Any]) -> Bool[Tensor, "n c *grid"]:
        """Mask of the values inside, ends included; NaN is outside.

        Args:
            values: True or measured values, `(n, c, *grid)`: a field, a tensor, or lists and arrays.

        Raises:
            DataError: If they are not real numbers.
            ShapeError: If they have another shape; nothing is broadcast.
        """
        checked = real_tensor(values.values if isinstance(values, Field) else values, "values").to(self.lower)
        remedy = "shapes are not broadcast; truth beside a functional's interval is functional(truth.values)"
        check_shape(checked, "values", *self.lower.shape, remedy=remedy)
        return (self.lower <= checked) & (checked <= self.upper)


def check_probabilities(q: float | Sequence[float] | Tensor) -> Float64[Tensor, "*k"]:
    """Return one probability, or several of them, in float64 on the CPU.

    Raises:
        ArgumentError: If they are not numbers between 0 and 1, or have more than one axis.
    """
    remedy = "the median is 0.5"
    if not isinstance(q, bool):
        numbers = real_tensor(q, "q", dtype=torch.float64, device=torch.device("cpu"), error=ArgumentError).detach()
        if numbers.ndim <= 1 and bool(((numbers > 0) & (numbers < 1)).all()):
            return numbers
    raise ArgumentError(expected="q between 0 and 1, or a list of such numbers", got=repr(q), remedy=remedy)


def tails(level: float) -> tuple[float, float]:
    """The probabilities below the two ends of the central interval of a level, both inside (0, 1)."""
    tail = 0.5 * (1.0 - level)
    return tail, min(1.0 - tail, math.nextafter(1.0, 0.0))


def gaussian_quantiles(mean: Tensor, std: Tensor, probabilities: Float64[Tensor, " k"]) -> Float64[Tensor, "k *values"]:
    """The quantiles mean + z(q) std, for each of k probabilities."""
    z = torch.special.ndtri(probabilities).to(std).reshape(-1, *(1,) * std.ndim)
    return mean.to(std) + z * std


def member_quantiles(
    members: Float64[Tensor, "s *values"],
    weights: Float64[Tensor, " s"],
    probabilities: Float64[Tensor, " k"],
    *,
    noise_std: Float64[Tensor, "*values"],
) -> Float64[Tensor, "k *values"]:
    """Quantiles of weighted members, blurred by independent Gaussian noise where there is some.

    Without noise the distribution function jumps at every member. The middle of the jump is taken to be the member's own
    probability, and quantiles between members are interpolated; beyond the outermost ones they are those.

    Args:
        members: Members, float64.
        weights: Probabilities of the members, on their device.
        probabilities: Probabilities of the quantiles.
        noise_std: Standard deviation of the noise.

    Raises:
        DataError: If a member is not finite.
    """
    check_finite(members, "members", remedy="drop those members")
    held = weights > 0
    members, weights, levels = members[held], weights[held], probabilities.to(members)
    exact = _interpolated(members, weights, levels)
    if not bool((noise_std > 0).any()):
        return exact
    mass = weights.reshape(-1, *(1,) * noise_std.ndim)
    return torch.where(noise_std > 0, mixture_quantiles(members, noise_std.expand_as(members), mass, levels), exact)


def _interpolated(members: Tensor, weights: Tensor, probabilities: Tensor) -> Tensor:
    ordered, order = members.movedim(0, -1).sort(-1)
    mass = weights[order]
    positions = (mass.cumsum(-1) - 0.5 * mass).contiguous()  # the distribution function, in the middle of its jumps
    levels = probabilities.expand(*positions.shape[:-1], -1).contiguous()
    above = torch.searchsorted(positions, levels).clamp(max=len(members) - 1)
    below = (above - 1).clamp_min(0)
    lower, upper = positions.gather(-1, below), positions.gather(-1, above)
    gap = torch.where(upper > lower, upper - lower, torch.ones_like(lower))
    fraction = ((levels - lower) / gap).clamp(0.0, 1.0)
    return torch.lerp(ordered.gather(-1, below), ordered.gather(-1, above), fraction).movedim(-1, 0)


def mixture_quantiles(
    means: Float64[Tensor, "s *values"],
    std: Float64[Tensor, "s *values"],
    weights: Float64[Tensor, "s *ones"],
    probabilities: Float64[Tensor, " k"],
) -> Float64[Tensor, "k *values"]:
    """Quantiles of mixtures of Gaussians, value by value, by bisection.

    First derivatives in means and deviations are those of the equation that a quantile solves: each component moves it in
    proportion to its density there. Weights are constants.

    Args:
        means: Means of the components.
        std: Standard deviations of the components; zero is allowed.
        weights: Probabilities of the components, broadcastable to the values.
        probabilities: Probabilities of the quantiles.
    """
    if not len(probabilities):
        return means.new_empty(0, *means.shape[1:])
    quantiles = _bisected(means.detach(), std.detach(), weights.detach(), probabilities)
    if torch.is_grad_enabled() and (means.requires_grad or std.requires_grad):
        return torch.stack([value + _change(value, means, std, weights.detach()) for value in quantiles])
    return quantiles


def _change(
    quantile: Float64[Tensor, "*values"],
    means: Float64[Tensor, "s *values"],
    std: Float64[Tensor, "s *values"],
    weights: Tensor,
) -> Float64[Tensor, "*values"]:
    """Zeros with the first derivative of a quantile; at a component that is certain, it is that component's mean."""
    at, width = means.detach(), std.detach()
    spread = width > 0
    z = torch.where(spread, quantile - at, torch.zeros_like(at)) / torch.where(spread, width, torch.ones_like(width))
    density = weights.to(at) * torch.exp(-0.5 * z.square()) / torch.where(spread, width, torch.ones_like(width))
    share = torch.where(spread, density, torch.zeros_like(density))
    on_it = weights.to(at) * (~spread & ((quantile - at).abs() <= _ROUNDING * (at.abs() + quantile.abs())))
    share = torch.where(on_it.sum(0) > 0, on_it.to(share), share)
    total = share.sum(0)
    share = share / torch.where(total > 0, total, torch.ones_like(total))
    return (share * (increment(means) + z * increment(std))).sum(0)


@torch.no_grad()
def _bisected(means: Tensor, std: Tensor, weights: Tensor, probabilities: Tensor) -> Tensor:
    """The values."""
    z = torch.special.ndtri(probabilities).to(means)
    held = (weights.to(means) > 0).expand_as(means)
    ends = [means + quantile * std for quantile in z]  # the quantile lies between those of the components
    low = torch.stack([torch.where(held, quantile, math.inf).amin(0) for quantile in ends])
    high = torch.stack([torch.where(held, quantile, -math.inf).amax(0) for quantile in ends])
    unit = torch.where(held & (std > 0), std, math.inf).amin(0)
    unit = torch.where(unit.isfinite(), unit, 0.0)
    levels = probabilities.to(means).reshape(-1, *(1,) * (means.ndim - 1))
    rows = max(1, _CHUNK_ELEMENTS // max(low.numel(), 1))
    parts = list(zip(means.split(rows), std.split(rows), weights.to(means).split(rows), strict=True))
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        reached = torch.zeros_like(middle)
        for part, width, mass in parts:
            gap = middle - part[:, None]
            standardised = torch.where(gap == 0, torch.zeros_like(gap), gap / width[:, None])
            reached += (mass[:, None] * torch.special.ndtr(standardised)).sum(0)
        low, high = torch.where(reached < levels, middle, low), torch.where(reached < levels, high, middle)
        if bool((high - low <= _RESOLVED * (middle.abs() + unit)).all()):
            break
    return 0.5 * (low + high)


def log_density_of_values(
    residual: Float64[Tensor, "*values"], *, std: Float64[Tensor, "*values"], noise: Float64[Tensor, "*values"]
) -> Float64[Tensor, "*values"]:
    """Marginal log density of each value, in nats.

    Args:
        residual: Distances from the mean, in physical units.
        std: Standard deviations of the field, in those units, of any size.
        noise: Variances of the observations, in those units squared.

    Raises:
        ArgumentError: If a value has no variance at all.
    """
    unit = root_sum_of_squares(std, noise.sqrt()).detach()
    _check_positive(unit)
    total = (std / unit).square() + noise / unit / unit  # about 1, where float64 may not hold squares of deviations
    return -0.5 * ((residual / unit).square() / total + total.log() + LOG_TWO_PI) - unit.log()


def log_density_of_function(
    root: Root | None, residual: Float64[Tensor, " cp"], *, noise: Float64[Tensor, " cp"], dtype: torch.dtype
) -> Float64[Tensor, ""]:
    """Log density of one sample's values, in nats, from its root, or from its Gram matrix if that is much smaller.

    Args:
        root: Root of that sample, or None if all of its variance is in the noise.
        residual: Distances from the mean, channels first, in physical units.
        noise: Variances of the white noise, in those units squared.
        dtype: Dtype that root and mean were computed in.

    Raises:
        ArgumentError: If the density does not exist because some direction has no variance at all.
    """
    if root is None:
        root = DenseRoot(residual.new_zeros(1, 1, residual.shape[0], 0))
    size, rank = residual.shape[0], root.shape[3]
    if rank > size and size * rank > _LARGEST_DENSE:
        density = log_density_of_gram(root.gram()[0], residual, noise, dtype=dtype)
        if bool(density.isnan()):
            raise ArgumentError(
                expected="a variance in every direction that is not negligible compared with the largest one",
                got=f"less, in a covariance of {size} values with {rank} latent dimensions",
                remedy="pass a larger observation variance as noise, or take the density of a functional's values",
            )
        return density
    matrix = root.dense().to(torch.float64).flatten(0, 2)
    if bool((noise > 0).all()):
        return log_density(matrix, residual, noise, groups=root.shape[1])
    rows = noise.nonzero()[:, 0]
    if rank + len(rows) < size:  # fewer directions than values: nothing of size p² is formed
        _check_positive(noise)
    columns = noise.new_zeros(size, len(rows))
    columns[rows, torch.arange(len(rows))] = square_root(noise)[rows]
    density = log_density_without_noise(torch.cat([matrix, columns], dim=1), residual, dtype=dtype)
    _check_positive(~density.isnan())
    return density


class SharedModes:
    """Log densities of samples whose discrepancies have modes, and their ratio to the white noise, in common.

    The modes are then factored once. Their standard deviations may vary over points and samples with those of the noise.
    """

    def __init__(self) -> None:
        self._ratio: Float64[Tensor, "c 1"] | None = None
        self._modes: FactoredModes | None = None

    def log_densities(
        self, root: Root | None, residuals: Float64[Tensor, "m cp"], *, noise: Float64[Tensor, " cp"]
    ) -> Float64[Tensor, " m"] | None:
        """Log densities of one sample's values, in nats, as in `log_density_of_function`; None for another discrepancy."""
        if not (isinstance(root, SideBySideRoot) and isinstance(root.second, ModulatedRoot)) or root.second.is_per_sample:
            return None
        is_recorded = torch.is_grad_enabled() and any(each.requires_grad for each in (root.like, residuals, noise))
        if is_recorded or not bool((noise > 0).all()):
            return None
        std = noise.sqrt().unflatten(0, root.shape[1:3])
        ratio = root.second.std[0].to(std) / std
        if self._ratio is None:
            self._ratio = ratio.mean(1, keepdim=True)
            if float(self._ratio.square().sum()) * root.shape[2] <= _LARGEST_TRACE:
                self._modes = FactoredModes(self._ratio[..., None] * root.second.modes.to(std))
        if self._modes is None or not torch.allclose(ratio, self._ratio.expand_as(ratio), rtol=_EQUAL_RATIO, atol=0.0):
            return None
        whitened = root.first.dense()[0].to(std) / std[..., None]
        return self._modes.log_densities(whitened, residuals.unflatten(1, std.shape) / std) - std.log().sum()


def _check_positive(variance: Tensor) -> None:
    """Raise an ArgumentError unless all variances, or deviations, are positive (or all flags true)."""
    if not bool((variance > 0).all()):
        raise ArgumentError(
            expected="a positive variance in every direction", got="zero", remedy="pass the observation variance as noise > 0"
        )
