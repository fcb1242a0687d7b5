"""Intervals and quantiles of single values: of a Gaussian, and of weighted members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.checks import real_tensor
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import Field
from probneural.linear_algebra.first_order import increment

ENOUGH_MEMBERS = 100
"""Effective members from which an empirical field has quantiles of its own; below, they are those of a Gaussian."""
_HALVINGS = 200
"""Steps of the bisection at most: components may be far apart, or a quantile at zero."""
_RESOLVED = torch.finfo(torch.float64).eps
"""Width of the bracket, relative to the quantile and the least deviation, at which the bisection ends."""
_ROUNDING = 1e-12
"""Distance of a quantile from a certain component, relative to both, within which it is that component."""
_CHUNK_ELEMENTS = 2**20
"""Values compared at once (8 MiB in float64)."""


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
        """Which values lie inside, ends included; one that is NaN does not.

        Args:
            values: True or measured values, `(n, c, *grid)`: a field, a tensor, or lists and arrays.

        Raises:
            DataError: If they are no real numbers.
            ShapeError: If they have another shape; nothing is broadcast.
        """
        checked = real_tensor(values.values if isinstance(values, Field) else values, "values").to(self.lower)
        if checked.shape != self.lower.shape:
            raise ShapeError(
                expected=f"values of shape {tuple(self.lower.shape)}",
                got=str(tuple(checked.shape)),
                remedy="shapes are not broadcast; truth beside a functional's interval is functional(truth.values)",
            )
        return (self.lower <= checked) & (checked <= self.upper)


def check_probabilities(q: float | Sequence[float] | Tensor) -> Float64[Tensor, "*k"]:
    """Return one probability, or several of them, in float64 on the CPU.

    Raises:
        ArgumentError: If they are no numbers between 0 and 1, or have more than one axis.
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
        members: In float64.
        weights: Probabilities of the members, on their device.
        probabilities: Of the quantiles.
        noise_std: Standard deviation of the noise.

    Raises:
        DataError: If a member is not finite.
    """
    if not bool(torch.isfinite(members).all()):
        raise DataError(expected="finite members", got="NaN or infinite ones", remedy="drop those members")
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
        means: Of the components.
        std: Their standard deviations; zero is legal.
        weights: Their probabilities, of a shape that broadcasts against the values.
        probabilities: Of the quantiles.
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
