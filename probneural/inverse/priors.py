"""Priors over parameters, as maps from standard normal numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    TransformedDistribution,
)

from probneural.contexts import Undisturbed
from probneural.errors import ArgumentError, UnsupportedError
from probneural.problems import InputDistribution

PriorLike = Distribution | InputDistribution | Sequence[Distribution | InputDistribution]
"""A distribution of event shape (d,) or (), a problem's input distribution, or several independent ones of both kinds."""
_REMEDY = "give a torch.distributions.Distribution of event shape (d,), a problem's input_distribution, or a list of these"


class Prior(Undisturbed):
    """Independent distributions, side by side, as one distribution of theta in R^d.

    Every solver works in standard normal coordinates z with theta = T(z), in which prior densities are those of N(0, I).

    Args:
        prior: See [`InverseProblem`][probneural.inverse.InverseProblem].

    Raises:
        ArgumentError: If it is none of these, or has batch axes.
        UnsupportedError: If a distribution has no map from standard normal numbers.
    """

    def __init__(self, prior: PriorLike) -> None:
        parts: Sequence[Any] = prior if isinstance(prior, list | tuple) else [prior]
        factors = [factor for part in parts for factor in (part.factors if isinstance(part, InputDistribution) else [part])]
        self.factors = tuple(map(_dense, factors))
        for factor in self.factors:
            if not isinstance(factor, Distribution) or len(factor.batch_shape) or len(factor.event_shape) > 1:
                raise ArgumentError(
                    expected="a prior without batch axes",
                    got=repr(factor),
                    remedy=f"{_REMEDY}; see torch.distributions.Independent",
                )
        self._sizes = [math.prod(factor.event_shape) for factor in self.factors]
        if not sum(self._sizes):
            raise ArgumentError(expected="a prior of at least one parameter", got="none", remedy=_REMEDY)
        self.from_normal(torch.zeros(1, self.size, dtype=torch.float64))

    @property
    def size(self) -> int:
        """Number d of parameters."""
        return sum(self._sizes)

    def from_normal(self, z: Float64[Tensor, "*n d"]) -> Float64[Tensor, "*n d"]:
        """The parameters T(z), differentiable; standard normal z give draws from the prior."""
        parts = zip(self.factors, z.split(self._sizes, dim=-1), strict=True)
        moved = [_moved(factor, part if len(factor.event_shape) else part[..., 0]) for factor, part in parts]
        columns = [
            part if len(factor.event_shape) else part[..., None] for factor, part in zip(self.factors, moved, strict=True)
        ]
        return torch.cat([column.to(torch.float64) for column in columns], dim=-1)

    def log_prob(self, theta: Float[Tensor, "*n d"]) -> Float64[Tensor, "*n"]:
        """Log density of parameters, in nats; -inf outside the support."""
        total = theta.new_zeros(theta.shape[:-1], dtype=torch.float64)
        for factor, part in zip(self.factors, theta.to(torch.float64).split(self._sizes, dim=-1), strict=True):
            values = part if len(factor.event_shape) else part[..., 0]
            inside = getattr(factor.support, "check", torch.isfinite)(values)
            anchor = _moved(factor, torch.zeros_like(values)).to(values)
            safe = torch.where(inside[..., None] if len(factor.event_shape) else inside, values, anchor)
            total = total + torch.where(inside, factor.log_prob(safe), -math.inf)
        return total


def _dense(factor: Distribution) -> Distribution:
    """A low-rank normal distribution with its covariance matrix, in float64; others as they are."""
    if not isinstance(factor, LowRankMultivariateNormal):
        return factor
    return MultivariateNormal(factor.loc.to(torch.float64), factor.covariance_matrix.to(torch.float64))


def _moved(distribution: Distribution, z: Tensor) -> Tensor:
    """Map standard normal numbers to draws: affine for Gaussians, else by the inverse distribution function."""
    if isinstance(distribution, Independent):
        return _moved(distribution.base_dist, z)
    if isinstance(distribution, Normal):
        return distribution.loc.to(z) + distribution.scale.to(z) * z
    if isinstance(distribution, MultivariateNormal):
        return distribution.loc.to(z) + z @ distribution.scale_tril.to(z).mT
    if isinstance(distribution, TransformedDistribution):
        moved = _moved(distribution.base_dist, z)
        for transform in distribution.transforms:
            moved = transform(moved)
        return moved
    epsilon = torch.finfo(torch.float64).eps
    try:
        return distribution.icdf(torch.special.ndtr(z).clamp(epsilon, 1.0 - epsilon))
    except NotImplementedError as error:
        raise UnsupportedError(
            expected="a Gaussian prior, one with an inverse distribution function (icdf), or a transformation of one",
            got=repr(distribution),
            remedy="write the parameter as a function of such a variable, within encode",
        ) from error
