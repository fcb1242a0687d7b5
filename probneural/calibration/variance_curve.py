"""Curve from nominal to calibrated variances, on logarithmic scales."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import ShapeError
from probneural.registry import stored

_QUANTILES = (0.005, 0.02, 0.06, 0.15, 0.3, 0.5, 0.7, 0.85, 0.94, 0.98, 0.995)
"""Where knots lie among the logarithms: the largest variances make most of the squared error, so knots are dense there."""
_LEAST_SPAN = 0.1
"""Distance of the outer knots below which there is nothing to bend."""


def knots_of(logs: Float64[Tensor, " n"]) -> Float64[Tensor, " k"] | None:
    """Knots at quantiles of the logarithms of variances; None where these hardly differ."""
    ordered = logs.sort().values
    places = (torch.tensor(_QUANTILES, dtype=torch.float64) * (len(ordered) - 1)).round().long()
    knots = ordered[places]
    return knots if bool((knots.diff() > _LEAST_SPAN / len(knots)).all()) else None


def bends(logs: Float64[Tensor, "*s"], knots: Float64[Tensor, " k"]) -> Float64[Tensor, "*s k1"]:
    """What spans the curves: the logarithm, kept between the outer knots, and its excess over each inner one.

    Examples:
        >>> bends(
        ...     torch.tensor([0.0, 1.5, 9.0], dtype=torch.float64), torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
        ... ).tolist()
        [[0.0, 0.0], [1.5, 0.5], [2.0, 1.0]]
    """
    kept = logs.clamp(knots[0], knots[-1])[..., None]
    return torch.cat([kept, (kept - knots[1:-1]).clamp_min(0.0)], -1)


@stored(on_cpu=("knots", "heights"))
@dataclass(frozen=True, eq=False, kw_only=True)
class VarianceCurve:
    """What is added to the logarithm of a variance, as a function of it: straight between knots, constant beyond.

    Args:
        knots: Increasing, `(c, m)`.
        heights: At the knots, `(c, m)`; zero in channels to which nothing is added.

    Raises:
        ShapeError: If the two do not fit together, or knots do not increase.

    Examples:
        >>> curve = VarianceCurve(
        ...     knots=torch.tensor([[0.0, 1.0, 3.0]]).double(), heights=torch.tensor([[2.0, 0.0, 1.0]]).double()
        ... )
        >>> curve(torch.tensor([[[-5.0, 0.5, 2.0, 7.0]]]).double()).tolist()
        [[[2.0, 1.0, 0.5, 1.0]]]
    """

    knots: Float64[Tensor, "c m"]
    heights: Float64[Tensor, "c m"]

    def __post_init__(self) -> None:
        """Check that knots and heights fit together."""
        shape = tuple(self.knots.shape)
        if shape != tuple(self.heights.shape) or len(shape) != 2 or not bool((self.knots.diff(dim=-1) > 0).all()):
            raise ShapeError(
                expected="knots that increase, and as many heights",
                got=f"{shape} and {tuple(self.heights.shape)}",
                remedy="fit it with VarianceScale",
            )

    def raised(self, heights: Float64[Tensor, " c"]) -> VarianceCurve:
        """The same, with one number more per channel."""
        return replace(self, heights=self.heights + heights[:, None])

    def __call__(self, logs: Float64[Tensor, "n c p"]) -> Float64[Tensor, "n c p"]:
        """Heights at logarithms of variances."""
        knots, heights = self.knots.to(logs)[..., None], self.heights.to(logs)[..., None]
        widths = knots.diff(dim=1)
        slopes = heights.diff(dim=1) / widths
        total = heights[:, 0].expand_as(logs)
        for piece in range(widths.shape[1]):  # not a table lookup, which exported files could not hold
            beyond = (logs - knots[:, piece]).clamp_min(0.0)
            total = total + slopes[:, piece] * torch.minimum(beyond, widths[:, piece])
        return total
