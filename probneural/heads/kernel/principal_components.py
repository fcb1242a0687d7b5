"""Principal components of fields: a few numbers per function, orthonormal in L2 whatever the grid."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.fields import Field
from probneural.grids import Grid, resample
from probneural.linear_algebra.principal_components import eigenpairs, singular_values
from probneural.registry import stored

_FOLDS = 5
"""Parts into which the training functions are divided to see what the components of the others leave out."""
_TINY = torch.finfo(torch.float64).tiny
_RESOLVED = 1e-13
"""Fraction of the largest eigenvalue of a Gram matrix below which the others are rounding."""


@stored()
@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """An affine subspace of functions: u = centre + unit * sum over j of z_j modes_j.

    The modes are orthonormal in 1/|D| * integral of sum over channels, by quadrature; z has no dimension.

    Args:
        grid: Where the training functions live.
        centre: Their mean, `(c, *grid)`, in physical units.
        unit: Root mean square of each channel about the centre, `(c,)`, in physical units; 1 where that is rounding.
        modes: `(r, c, p)`, dimensionless.
        std: Standard deviation of each coordinate over the training functions, `(r,)`, dimensionless, falling.
    """

    grid: Grid
    centre: Float64[Tensor, "c *grid"]
    unit: Float64[Tensor, " c"]
    modes: Float64[Tensor, "r c p"]
    std: Float64[Tensor, " r"]

    @classmethod
    def of(
        cls,
        functions: Field,
        *,
        components: int | None,
        tolerance: float,
        largest: int,
        rounding: Float64[Tensor, " c"] | None = None,
    ) -> PrincipalComponents:
        """Find the leading components of training functions.

        Args:
            functions: At least two of them.
            components: How many to keep, at most one less than there are functions; by default as many as `tolerance` asks for.
            tolerance: Share of the variance that may be left out, dimensionless.
            largest: The most to keep by default.
            rounding: Root mean square of the values' rounding errors, `(c,)`, in physical units; by default by their dtype.

        Returns:
            The components, those without any variance left out. A channel that varies by no more than rounding has no part in
            them, and rounding of one channel hides components of another only as far as they share them.
        """
        grid, values = functions.grid, functions.values.to(torch.float64)
        centre = values.mean(0)
        deviations = values - centre
        rounding = rounding_errors(functions) if rounding is None else rounding
        size = _root_mean_square(deviations, grid.mean_weights.to(values.device))
        varies = size > rounding
        unit = torch.where(varies, size, 1.0)
        rows = _weighted(deviations.flatten(2) * varies[:, None], grid, unit)
        _, sizes, right = singular_values(rows)
        rest = sizes.square().flip(0).cumsum(0).flip(0)
        shares = right.unflatten(1, (functions.channels, grid.size)).square().sum(2)
        least = (shares @ (rounding / unit).square() * len(functions)).sqrt()  # what is smaller is rounding
        resolved = (sizes > least).nonzero()[:, 0]
        needed = int((rest > tolerance * rest[0]).sum())
        chosen = resolved[resolved < needed][:largest] if components is None else resolved[:components]
        chosen = chosen[: len(functions) - 1]
        mean_weights = grid.mean_weights.to(rows.device).sqrt()
        safe = torch.where(
            mean_weights > 0, mean_weights, torch.ones_like(mean_weights)
        )  # a point without weight has no say, and no mode
        modes = right[chosen].unflatten(1, (functions.channels, grid.size)) / safe * (mean_weights > 0)
        return cls(grid=grid, centre=centre, unit=unit, modes=modes, std=sizes[chosen] / len(functions) ** 0.5)

    @property
    def count(self) -> int:
        """Number of components r."""
        return self.modes.shape[0]

    def scores(self, functions: Field) -> Float64[Tensor, "n r"]:
        """Coordinates of functions, which are brought to the training grid first; differentiable in their values."""
        values = resample(functions.values.to(torch.float64), functions.grid, self.grid)
        rows = _weighted(values - self.centre, self.grid, self.unit)
        mean_weights = self.grid.mean_weights.to(rows.device).sqrt()
        return rows @ (self.modes * mean_weights).flatten(1).mT

    def mean_on(self, grid: Grid) -> Float64[Tensor, "c *grid"]:
        """The centre on another grid, in physical units."""
        return resample(self.centre, self.grid, grid)

    def modes_on(self, grid: Grid) -> Float64[Tensor, "r c p"]:
        """The modes on another grid of p points, in physical units."""
        fields = (self.modes * self.unit[:, None]).unflatten(-1, self.grid.shape)
        return resample(fields, self.grid, grid).flatten(2)

    def mean_squares(self) -> Float64[Tensor, "r c"]:
        """Mean square of each mode over the domain, in physical units squared."""
        mean_weights = self.grid.mean_weights.to(self.modes.device)
        return (self.modes.square() @ mean_weights) * self.unit.square()


def rounding_errors(functions: Field, *, dtype: torch.dtype | None = None) -> Float64[Tensor, " c"]:
    """Root mean square of what a dtype rounds off the values of each channel, mean included; `(c,)`, in physical units.

    Args:
        functions: Some functions.
        dtype: That rounded them; by default their own.
    """
    values = functions.values.to(torch.float64)
    equal = torch.full((functions.grid.size,), 1.0 / functions.grid.size, dtype=torch.float64, device=values.device)
    return torch.finfo(functions.dtype if dtype is None else dtype).eps * _root_mean_square(values, equal)


def _root_mean_square(values: Float64[Tensor, "n c *grid"], mean_weights: Float64[Tensor, " p"]) -> Float64[Tensor, " c"]:
    """Of each channel, in the units of the values."""
    largest = values.abs().flatten(2).amax((0, 2)).clamp_min(_TINY)  # whose square may be too large
    return largest * ((values.flatten(2) / largest[:, None]).square() @ mean_weights).mean(0).sqrt()


def left_out(
    functions: Field, components: PrincipalComponents, *, groups: Int64[Tensor, " n"] | None = None
) -> Float64[Tensor, " c"]:
    """Mean square of what as many components leave out of functions that they were not made from, in physical units squared.

    From five folds of the training functions: what the components of four fifths leave out of the last fifth. Functions of one
    group lie in one fold, unless all are of one.
    """
    rows = _weighted(functions.values.to(torch.float64) - components.centre, functions.grid, components.unit)
    owner = torch.arange(len(rows), device="cpu") if groups is None else groups.unique(return_inverse=True)[1]
    if int(owner.max()) == 0:
        owner = torch.arange(len(rows), device="cpu")
    folds = min(_FOLDS, int(owner.max()) + 1)
    fold = owner.to(rows.device) % folds
    total = torch.zeros_like(components.unit)
    has_part = (components.modes != 0).any(2).any(0).repeat_interleave(functions.grid.size)  # channels without are rounding
    for number in range(folds):
        others, held = rows[fold != number], rows[fold == number]
        centre = others.mean(0)
        others, held = others - centre, held - centre
        others = others * has_part
        is_wide = others.shape[0] < others.shape[1]
        values, vectors = eigenpairs(others @ others.mT if is_wide else others.mT @ others)
        keep = values > _RESOLVED * values[-1]
        keep[: max(0, len(values) - components.count)] = False
        directions = (vectors[:, keep] * values[keep].rsqrt()).mT @ others if is_wide else vectors[:, keep].mT
        rest = held - (held @ directions.mT) @ directions
        total += rest.unflatten(1, (functions.channels, -1)).square().sum((0, 2))
    return total / len(rows) * components.unit.square()


def _weighted(values: Float[Tensor, "n c *grid"], grid: Grid, unit: Float64[Tensor, " c"]) -> Float64[Tensor, "n cp"]:
    """Rows whose scalar products are those of the functions, in units of the channels."""
    mean_weights = grid.mean_weights.to(values.device).sqrt()
    return (values.flatten(2) / unit[:, None] * mean_weights).flatten(1)
