"""Errors of a forecast at each lead beside their nominal variances: sums over all samples, and values of some."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.local_fit import Part, fit_local_scale
from probneural.calibration.local_scale import LocalScale
from probneural.calibration.saturation import fit_saturation
from probneural.distributions.trajectory import Forecast
from probneural.grids import Grid
from probneural.metrics.comparison import compare
from probneural.metrics.lead_alignment import TrueTrajectories, lead_batches
from probneural.metrics.spread import size_factor
from probneural.pairs import evenly_spread_rows

_KEPT_VALUES = 2**21
"""Values of a lead that are kept, in whole functions (48 MiB)."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LeadErrors:
    """Spread and errors of n functions at one lead, without measurement noise, on the CPU.

    Attributes:
        square: Squared errors, averaged over the domain and added up over the functions, `(c,)`, in physical units squared.
        variance: The same of the variances of what members are drawn from.
        kept: Means, predictive variances and squared errors of some functions, `(n', c, *grid)`; an error that is zero up to
            rounding is zero, any other is infinite where nothing is uncertain. None are kept if nobody asks.
        grid: Where they live.
        noise: Variance of the measurement noise in the kept variances, `(c,)`.
        size_factor: What the variance of members was multiplied by, which are a sample; 1 of a Gaussian forecast.
    """

    square: Float64[Tensor, " c"]
    variance: Float64[Tensor, " c"]
    kept: list[Part]
    grid: Grid
    noise: Float64[Tensor, " c"]
    size_factor: float

    @property
    def scale(self) -> Float64[Tensor, " c"]:
        """What variances are multiplied by so that both sums are equal; not finite or not positive where nothing does it."""
        return self.square / self.variance

    def local_scale(self) -> tuple[LocalScale | None, Float64[Tensor, " c"], Float64[Tensor, " c"]]:
        """The factor of the scaled predictive variance that makes the kept values most likely, if there is one.

        With it come the saturation of what it makes of the variances, in physical units to the power -2, and the largest of
        those, in physical units squared.
        """
        nothing = torch.zeros_like(self.noise)
        per_channel = (-1, *(1,) * len(self.grid.shape))
        scale, noise = self.scale.reshape(per_channel), self.noise.reshape(per_channel)

        def parts() -> Iterator[Part]:
            for mean, variance, squares in self.kept:
                scaled = scale * (variance - noise) + noise
                yield mean, scaled, torch.where(squares > 0, squares / scaled, 0.0)

        if not all(bool(torch.isfinite(ratios).all()) for _, _, ratios in parts()):
            return None, nothing, nothing
        local = fit_local_scale(parts, groups=torch.arange(sum(len(mean) for mean, _, _ in self.kept)), grid=self.grid)
        if local is None:
            return None, nothing, nothing
        factor = local.on(self.grid)
        variances = torch.cat([factor(mean, variance) * variance.flatten(2) for mean, variance, _ in parts()])
        squares = torch.cat([part for _, _, part in self.kept]).flatten(2)
        saturation, largest = fit_saturation(variances, squares, weights=self.grid.mean_weights)
        return local, saturation, largest


def errors_by_lead(forecast: Forecast, truth: TrueTrajectories, *, noise: float | Tensor, keeps: bool) -> Iterator[LeadErrors]:
    """Go through the leads in order.

    Args:
        forecast: Of n functions.
        truth: What they truly were.
        noise: Variance of the measurement noise in the truth, a number or `(c,)`.
        keeps: Whether values of some functions, evenly spread, are kept.

    Raises:
        DataError, ShapeError, GridError, ArgumentError: As `LeadScale.fit` says.
    """
    for _, parts in itertools.groupby(lead_batches(forecast, truth), key=lambda part: part.lead):
        sums: list[Tensor] = []
        kept: list[Part] = []
        for part in parts:
            found = compare(part.u, part.truth, noise=noise)
            variance, squares = (found.variance - found.noise) * size_factor(part.u), found.residual.square()
            sums.append(torch.stack([found.average(squares - found.noise).sum(0), found.average(variance).sum(0)]).cpu())
            if keeps:
                rows = _kept(part.rows, len(truth), size=variance[0].numel())
                right = (squares <= found.rounding.square()) & found.certain
                squares = torch.where(right, 0.0, torch.where(found.certain, math.inf, squares))
                kept.append((found.mean[rows].cpu(), (variance + found.noise)[rows].cpu(), squares[rows].cpu()))
            grid, factor, measured = found.grid, size_factor(part.u), found.noise[0].flatten(1)[:, 0].cpu()
        square, variance = torch.stack(sums).sum(0)
        yield LeadErrors(square=square, variance=variance, kept=kept, grid=grid, noise=measured, size_factor=factor)


def _kept(rows: slice, count: int, *, size: int) -> Int64[Tensor, " m"]:
    """Which of a part's functions are kept, by their numbers within it."""
    wanted = torch.arange(count, device="cpu")[evenly_spread_rows(count, max(1, _KEPT_VALUES // size))]
    return wanted[(wanted >= rows.start) & (wanted < rows.stop)] - rows.start
