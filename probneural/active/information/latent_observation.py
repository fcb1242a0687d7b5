"""Observations of a posterior's latent, in the smaller of two forms, with their gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.active.botorch_models.conditioning import LatentPosterior
from probneural.active.information.latent_information import information_gain, variance_reduction, variance_reduction_of_moments
from probneural.errors import UnsupportedError
from probneural.linear_algebra.conditioning import information
from probneural.linear_algebra.principal_components import eigenpairs

_DEPENDENT = 1e-15
"""Fraction of the largest variance along a combination of rows, below which it is rounding."""


@dataclass(frozen=True, eq=False)
class LatentObservation:
    """What is seen of xi, as whitened rows or, where those outnumber the latent's dimensions, as their moments.

    Args:
        values: Rows `(*b, m, k)`, or moments `(*b, k, k)`.
        are_moments: Which.
    """

    values: Tensor
    are_moments: bool

    def grouped(self, count: int) -> LatentObservation:
        """Join the observations of `count` functions each: `(b * count, ...)` to `(b, ...)`."""
        grouped = self.values.unflatten(0, (-1, count))
        return LatentObservation(grouped.sum(1) if self.are_moments else grouped.flatten(1, 2), self.are_moments)

    def cat(self, second: LatentObservation) -> LatentObservation:
        """Add what another, single observation sees, to each of a batch."""
        if self.are_moments:
            return LatentObservation(self.values + second.values, True)
        rows = second.values.expand(len(self.values), -1, -1)
        return LatentObservation(torch.cat([self.values, rows.to(self.values)], dim=1), False)

    def condition_on(self, posterior: LatentPosterior) -> LatentObservation:
        """Take what was learned before into account: rows R become R S with S = I - VᵀCV."""
        rows, core = posterior.rows.to(self.values), posterior.core.to(self.values)
        values = self.values - (self.values @ rows.mT) @ core @ rows
        if self.are_moments:
            values = values - rows.mT @ core.mT @ (rows @ values)
        return LatentObservation(values, self.are_moments)

    def gain(self) -> Tensor:
        """Information gained, `(*b,)`, in nats."""
        return (information if self.are_moments else information_gain)(self.values)

    def reduction(self, targets: LatentObservation) -> Tensor:
        """Variance taken off target fields, whose rows or moments are given likewise, `(*b,)`."""
        compute = variance_reduction_of_moments if self.are_moments else variance_reduction
        name = "moments" if targets.are_moments else "targets"
        return compute(self.values, **{name: targets.values})


def independent_rows(rows: Float64[Tensor, "t k"]) -> Float64[Tensor, "r k"]:
    """Fewer rows of the same moments within rounding: neighbouring values of smooth fields say almost the same."""
    values, vectors = eigenpairs(rows @ rows.mT)
    is_independent = values > _DEPENDENT * len(rows) * values[-1]
    return vectors[:, is_independent].mT @ rows


class Recomputed(torch.autograd.Function):
    """A function of batches, a few at a time, that is evaluated again for its gradient instead of keeping what that needs.

    `torch.utils.checkpoint` would do, but for the transforms of torch.func that Jacobian-backed roots use.
    """

    @staticmethod
    def forward(ctx: Any, batches: Tensor, value: Callable[[Tensor], Tensor], step: int) -> Tensor:
        """Evaluate `value(batches)`, `step` batches at a time."""
        ctx.save_for_backward(batches)
        ctx.value, ctx.step = value, step
        return torch.cat([value(part) for part in batches.split(step)])

    @staticmethod
    def backward(ctx: Any, cotangents: Tensor) -> tuple[Tensor, None, None]:
        """Evaluate it again, with a graph, and differentiate in the batches.

        Raises:
            UnsupportedError: If the gradient is to be differentiated in its turn: its graph is not kept.
        """
        if torch.is_grad_enabled():  # what create_graph=True does; `once_differentiable` would return zeros
            raise UnsupportedError(
                expected="first derivatives of an acquisition function over fields",
                got="create_graph=True, which asks for second ones",
                remedy="take differences of gradients",
            )
        (batches,) = ctx.saved_tensors
        pieces = []
        for part, cotangent in zip(batches.split(ctx.step), cotangents.split(ctx.step), strict=True):
            with torch.enable_grad():
                leaf = part.detach().requires_grad_()
                values = ctx.value(leaf)
            depends = values.requires_grad  # a predictor that is certain of everything has a value without a gradient
            pieces.append(torch.autograd.grad(values, leaf, cotangent)[0] if depends else torch.zeros_like(part))
        return torch.cat(pieces), None, None
