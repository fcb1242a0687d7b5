"""Steady flow through a random one-dimensional medium, solved by quadrature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy
import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.grids import Grid
from probneural.problems.base import GaussianInputProblem

_GAUSS_POINTS = 8
"""Gauss-Legendre points per panel."""

_PANELS_PER_WAVE = 4
"""Least panels per wavelength of the distribution's highest mode (at K = 31, 63 grid points get two panels a cell)."""

_MATRIX_ELEMENTS = 2**22
"""Number of entries of the interpolation matrix per chunk (32 MiB)."""


@dataclass(frozen=True)
class Darcy1D(GaussianInputProblem):
    """Log-permeability g to pressure u of −(e^g u′)′ = 1 on [0, 1] with u(0) = u(1) = 0.

    Two integrations give, with C fixed by u(1) = 0,

        u(x) = C A(x) − B(x),   A(x) = ∫₀ˣ e^−g ds,   B(x) = ∫₀ˣ s e^−g ds,   C = B(1)/A(1).

    The map is nonlinear and non-local in g: C couples every point to every other. Grids include both end points, although
    the default distribution is periodic. Integrals are composite Gauss-Legendre over the cells of the grid, so the nodal values
    of u carry no discretisation error beyond rounding.

    Good values: the default distribution has a standard deviation of 0.59 in g, a permeability that varies by a factor of 10 or
    so; the amplitude shift takes it to 1.5, where linearised posteriors are visibly wrong.

    Failure modes: `sample` evaluates g from its coefficients and is exact to rounding. `solve` only knows g at the nodes
    and integrates the local interpolant of degree 5: its error falls as h⁶ once the grid resolves g, and a log-permeability
    with jumps is treated as that interpolant. It multiplies by a matrix with 8 N² elements or more, in parts, so more than
    some 2,000 points get slow. Values of |g| beyond 700 overflow.

    Args:
        random_field: Distribution of g, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Coordinates of the design space, at most 2K.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Lord, Powell and Shardlow (2014), An Introduction to Computational Stochastic PDEs, chapter 2 (the two-point
        boundary value problem); the integrals are elementary.

    Examples:
        >>> from probneural.fields import Field
        >>> problem = Darcy1D()
        >>> flat = Field(torch.zeros(1, 1, 65), problem.grid(65))  # u = x (1 - x) / 2
        >>> problem.solve(flat).values.max().item()
        0.125
    """

    title: ClassVar[str] = "Darcy 1-D"
    periodic: ClassVar[bool] = False
    shifted_amplitude: ClassVar[float] = 2.5

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        points, weights = self._rule(grid)
        return _pressure(_interpolate(values, grid, points), points, weights)

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        points, weights = self._rule(grid)
        return _pressure(self._field.evaluate_on_axes(coefficients, [points])[:, None], points, weights)

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        points, weights = self._rule(grid)
        resistance = torch.exp(-_interpolate(values, grid, points))
        change = -resistance * _interpolate(direction, grid, points)
        flow, lift = _primitives(resistance, points, weights)
        flow_change, lift_change = _primitives(change, points, weights)
        constant = lift[..., -1:] / flow[..., -1:]
        constant_change = (lift_change[..., -1:] - constant * flow_change[..., -1:]) / flow[..., -1:]
        return constant_change * flow + constant * flow_change - lift_change

    def _rule(self, grid: Grid) -> tuple[Float64[Tensor, " points"], Float64[Tensor, " per_cell"]]:
        """Quadrature points, cell by cell, and the weights that all cells share."""
        cells = grid.shape[0] - 1
        panels = math.ceil(_PANELS_PER_WAVE * self._field.modes / cells)
        nodes, weights = (torch.from_numpy(part) for part in numpy.polynomial.legendre.leggauss(_GAUSS_POINTS))
        step = 1.0 / (cells * panels)
        points = (torch.arange(cells * panels)[:, None] + (nodes + 1.0) / 2.0) * step
        return points.flatten(), (weights * step / 2.0).repeat(panels)


def _interpolate(values: Tensor, grid: Grid, points: Tensor) -> Tensor:
    """The grid's local interpolant at points, `(..., points)`."""
    rows = max(1, _MATRIX_ELEMENTS // grid.size)
    pieces = [values @ grid.axes[0].matrix(part).to(values).mT for part in points.split(rows)]
    return torch.cat(pieces, dim=-1)


def _primitives(integrand: Tensor, points: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """∫₀ˣ f ds and ∫₀ˣ s f ds at the grid points, of f given at the quadrature points."""
    both = torch.stack([integrand, integrand * points.to(integrand)])
    per_cell = both.unflatten(-1, (-1, len(weights))) @ weights.to(integrand)
    running = torch.cat([torch.zeros_like(per_cell[..., :1]), per_cell.cumsum(-1)], dim=-1)
    return running[0], running[1]


def _pressure(log_permeability: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    flow, lift = _primitives(torch.exp(-log_permeability), points, weights)
    return lift[..., -1:] / flow[..., -1:] * flow - lift
