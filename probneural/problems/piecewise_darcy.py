"""Steady flow through a medium of two materials, the usual benchmark, by finite volumes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_integer, check_positive
from probneural.errors import ArgumentError, DataError
from probneural.grids import Grid
from probneural.problems._fourier import modes
from probneural.problems.base import Problem
from probneural.problems.gaussian_input import GaussianInputProblem
from probneural.problems.random_fields import GaussianRandomField

_TOLERANCE = 1e-15
"""Relative error, in the energy norm, at which the iteration stops."""

_MOST_CONTRAST = 1e4
"""Largest over least permeability beyond which the iteration would take more than 1,800 steps."""

_CHUNK_ELEMENTS = 2**20
"""Nodes of the fine mesh solved at once (8 MiB per array)."""


@dataclass(frozen=True)
class PiecewiseDarcy(GaussianInputProblem):
    """Permeability a to pressure u of −∇·(a∇u) = 1 on the unit square, u = 0 on its boundary, where a has two values.

    a is `high` where a Gaussian random field is not negative, and `low` elsewhere. The field is N(0, (−Δ + τ²)^−α) with
    no slope across the boundary (cosines, without the constant one), cut at K modes per axis; its amplitude does not matter.
    With 12 and 3, τ = 3 and α = 2 that is the distribution of Li et al. (2021).

    There is no closed form. The pressure is that of the five-point finite-volume scheme with *harmonic* means of the
    nodal permeabilities on faces, which keeps fluxes continuous across a jump. The linear system is solved to rounding by
    Chebyshev's iteration preconditioned with a fast Poisson solver: its spectrum lies between the least and the largest
    permeability on any mesh, so 33 steps do for 12 and 3, known beforehand, and every step differentiates.

    `sample` evaluates the field on a mesh of `cells` cells per axis (the next multiple of the cells of the grid asked for),
    solves there and keeps every so many nodes. `solve` knows the permeability at the nodes of the inputs' grid only, and
    uses the scheme on that grid.

    Accuracy: of second order where a is smooth (measured against [`Darcy2D`][probneural.problems.Darcy2D]); at jumps the
    staircase of cells limits it to about first order. The default `cells` leave a relative error in the mean square of some
    0.1 %, 42 cells of 0.7 % (measured against 672). Seeds are the same functions on all grids, and pressures agree to
    rounding where the numbers of cells of both grids divide `cells`, otherwise to the error of the scheme.

    Failure modes: these are approximate solutions, of an error that `cells` sets: do not use them where exactness matters.
    Inputs jump as functions of a design (`encode` has no useful gradient), although pressures are differentiable
    functions of permeabilities. Contrasts above 10⁴ are refused. Memory for autograd grows with the number of steps.

    Args:
        high: Permeability where the field is not negative, dimensionless.
        low: Permeability elsewhere, below `high`.
        cells: Least cells per axis of the mesh that `sample` solves on; 420 is that of Li et al.
        random_field: Distribution of the field, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(1, 3, 2) with 20 cosine modes per axis.
        design_dim: Coordinates of the design space, at most the number of the distribution's coefficients.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Li et al. (2021), Fourier Neural Operator, section 5.2 (they use all modes of a 421 x 421 grid). Scheme: Eymard,
        Gallouët and Herbin (2000), Finite volume methods, chapter 3. Iteration: Golub and Van Loan (2013), Matrix
        Computations, chapter 11.

    Examples:
        >>> from probneural.fields import Field
        >>> problem = PiecewiseDarcy()
        >>> uniform = Field(torch.ones(1, 1, 129, 129), problem.grid(129))  # Poisson's equation: 0.07367 in the middle
        >>> round(problem.solve(uniform).values.max().item(), 4)
        0.0737
    """

    periodic: ClassVar[bool] = False

    high: float = 12.0
    low: float = 3.0
    _: KW_ONLY
    cells: int = 168

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_positive(self.high, "high")
        check_positive(self.low, "low")
        if not self.low < self.high <= _MOST_CONTRAST * self.low:
            raise ArgumentError(
                expected=f"low below high, and high at most {_MOST_CONTRAST:g} times low",
                got=f"high {self.high!r} and low {self.low!r}",
                remedy="the larger permeability comes first",
            )
        check_integer(self.cells, "cells", least=2)
        super().__post_init__()

    @property
    def name(self) -> str:
        """Name with both permeabilities."""
        return f"Piecewise Darcy, {self.high:g} and {self.low:g}"

    @property
    def _default_field(self) -> GaussianRandomField:
        return GaussianRandomField(2, 20, sigma=1.0, tau=3.0, boundary="neumann")

    def shifts(self) -> dict[str, Problem]:
        """`"roughness"`: α reduced by a quarter; `"scale"`: τ tripled, so smaller patches; `"contrast"`: `high` doubled."""
        field = self._field
        return {
            "roughness": replace(self, random_field=replace(field, alpha=0.75 * field.alpha)),
            "scale": replace(self, random_field=replace(field, tau=3.0 * field.tau)),
            "contrast": replace(self, high=2.0 * self.high),
        }

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        field = super()._inputs(coefficients, grid)
        return torch.where(field >= 0.0, self.high, self.low).to(field)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return solve_darcy(values, torch.ones_like(values), grid=grid)

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        strides = [math.ceil(self.cells / (size - 1)) for size in grid.shape]
        mesh = self._uniform(tuple(stride * (size - 1) + 1 for stride, size in zip(strides, grid.shape, strict=True)))
        parts = coefficients.split(max(1, _CHUNK_ELEMENTS // mesh.size))
        return torch.cat([self._solve(self._inputs(part, mesh), mesh)[..., :: strides[0], :: strides[1]] for part in parts])


def solve_darcy(
    permeability: Float64[Tensor, "n 1 nx ny"], source: Float64[Tensor, "n 1 nx ny"], *, grid: Grid
) -> Float64[Tensor, "n 1 nx ny"]:
    """Solve the five-point scheme with harmonic means on faces, to rounding and differentiably.

    Args:
        permeability: Positive nodal values, dimensionless.
        source: Nodal values; those on the boundary are not read.
        grid: A uniform grid of the unit square with both end points.

    Returns:
        Nodal pressures, zero on the boundary.

    Raises:
        DataError: If a permeability is not positive, or the contrast exceeds 10⁴.
    """
    least, most = permeability.detach().amin((1, 2, 3), keepdim=True), permeability.detach().amax((1, 2, 3), keepdim=True)
    _check_contrast(float(least.min()), float((most / least).max()))
    faces = (_harmonic_means(permeability[..., 1:-1], -2), _harmonic_means(permeability[..., 1:-1, :], -1))
    steps = [size - 1 for size in grid.shape]
    precondition = _PoissonSolver(grid, permeability.device)
    centre, reach = 0.5 * (most + least), torch.maximum(0.5 * (most - least), 1e-2 * most)
    ratio = centre / reach
    contraction = float((1.0 / (ratio + (ratio**2 - 1.0).sqrt())).max())
    # Chebyshev's three-term recurrence: the error after k steps is at most 2 contraction^k times the first one.
    target = source[..., 1:-1, 1:-1]
    step = 1.0 / ratio
    change = precondition(target) / centre
    pressure = torch.zeros_like(change)
    for _ in range(math.ceil(math.log(_TOLERANCE / 2.0) / math.log(contraction))):
        pressure = pressure + change
        residual = target - _divergence(pressure, faces, steps)
        next_step = 1.0 / (2.0 * ratio - step)
        change = next_step * (step * change + 2.0 / reach * precondition(residual))
        step = next_step
    return torch.nn.functional.pad(pressure + change, (1, 1, 1, 1))


class _PoissonSolver:
    """The inverse of the five-point Laplacian, by sine transforms as matrices."""

    def __init__(self, grid: Grid, device: torch.device) -> None:
        self._waves, levels = [], []
        for axis in grid.axes:
            waves, angular, weights = modes(axis)
            cells = axis.size - 1
            self._waves.append((waves[1:-1] * weights.sqrt()).to(device))
            levels.append((4.0 * cells**2 * torch.sin(0.5 * angular / cells).square()).to(device))
        self._levels = levels[0][:, None] + levels[1]

    def __call__(self, values: Tensor) -> Tensor:
        along, across = self._waves  # both symmetric and orthogonal
        return along @ ((along @ values @ across) / self._levels) @ across


def _harmonic_means(values: Tensor, axis: int) -> Tensor:
    """Of neighbours along an axis."""
    count = values.shape[axis] - 1
    first, second = values.narrow(axis, 0, count), values.narrow(axis, 1, count)
    return 2.0 * first * second / (first + second)


def _divergence(pressure: Tensor, faces: tuple[Tensor, Tensor], cells: Sequence[int]) -> Tensor:
    """−∇·(a∇u) at interior nodes, of u given there."""
    total = torch.zeros_like(pressure)
    for axis, (face, count) in enumerate(zip(faces, cells, strict=True), start=-2):
        border = torch.zeros_like(pressure.narrow(axis, 0, 1))
        flux = face * torch.cat([border, pressure, border], dim=axis).diff(dim=axis)
        total = total - count**2 * flux.diff(dim=axis)
    return total


def _check_contrast(least: float, contrast: float) -> None:
    if not (least > 0.0 and contrast <= _MOST_CONTRAST):
        raise DataError(
            expected=f"positive permeabilities with a contrast up to {_MOST_CONTRAST:g}",
            got=f"a least value of {least:.3g} and a contrast of {contrast:.3g}",
            remedy="give the permeability itself, not its logarithm, and bound it away from zero",
        )
