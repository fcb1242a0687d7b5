"""Steady flow through random media: in one dimension by quadrature, in two by a closed form."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar

import numpy
import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import DataError
from probneural.grids import Grid
from probneural.problems.base import GaussianInputProblem, Problem
from probneural.problems.input_distributions import IndependentDistributions, UniformParameters
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import divide, eigenvalues
from probneural.settings import Count, Positive

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


_OUTSIDE = 1e-5
"""Tolerated relative distance of a function from the family: rounding of float32 values."""


@dataclass(frozen=True)
class Darcy2D(GaussianInputProblem):
    """Permeability a and source f to pressure u of −∇·(a∇u) = f on the unit square, with u = 0 on its boundary.

    With a = φ² and u = v/φ the equation becomes −Δv + (Δφ/φ) v = f/φ. Where φ is positive and harmonic that is Poisson's
    equation, so

        u = φ⁻¹ (−Δ)⁻¹ (φ⁻¹ f),

    with (−Δ)⁻¹ exact in sine modes. The map is nonlinear in a, linear in f, non-local in both.

    Inputs have two channels: φ, the *square root* of the permeability, and f. Admissible roots form a linear space, the
    harmonic polynomials up to `degree` D, so directional derivatives within it exist. The distribution is

        φ = 1/(2D + 1) Σ_j w_j F(x; θ_j),   log w_j uniform on (−spread, spread),   f = φ h,

    with F(·; θ_j) the harmonic polynomial that equals Fejér's kernel of degree D around the angle θ_j on the circle through
    the corners of the square, and h a Gaussian random field of sine modes. Fejér's kernels are non-negative and sum to
    one, so φ is a weighted average of positive weights and is positive. Any harmonic polynomial of the degree is such a sum.

    Contrast: by default the largest permeability of a draw is about five times the smallest, and at most e⁴ = 55 times.

    Failure modes: `solve` and `derivative` raise an error for permeabilities outside the family (detected on grids of more
    than 2D + 1 points). Harmonic functions have no interior extrema, so there are no islands of high or low permeability.
    Sources that you pass are treated as f = φh with h the sine interpolant of f/φ; their values on the boundary are ignored.

    Args:
        degree: Degree D of the harmonic polynomials.
        spread: Largest |log w|, dimensionless; log a stays within ±2 `spread`.
        random_field: Distribution of h, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 15 sine modes per axis.
        design_dim: Number of coordinates of the design space, assigned alternately to the weights and h.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Sylvester and Uhlmann (1987), A global uniqueness theorem for an inverse boundary value problem, section 1 (the
        transformation to a Schrödinger equation); Evans (2010), Partial Differential Equations, section 2.2 (harmonic
        functions).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = Darcy2D()
        >>> x, y = problem.grid(33).points.T
        >>> source = 2 * torch.sin(math.pi * x) * torch.sin(math.pi * y)
        >>> inputs = torch.stack([torch.full_like(x, 2.0), source]).reshape(1, 2, 33, 33)  # a = 4
        >>> pressure = problem.solve(Field(inputs, problem.grid(33))).values
        >>> math.isclose(pressure.max().item(), 2 / (4 * 2 * math.pi**2))
        True
    """

    title: ClassVar[str] = "Darcy 2-D"
    _default_field: ClassVar[GaussianRandomField] = GaussianRandomField(2, 15, boundary="dirichlet")
    in_channels: ClassVar[int] = 2
    periodic: ClassVar[bool] = False

    _: KW_ONLY
    degree: Count = 8
    spread: Positive = 1.0

    @property
    def input_distribution(self) -> IndependentDistributions:
        """The logarithms of the weights, uniform, then the random field h."""
        count, field = 2 * self.degree + 1, self._field
        weights = UniformParameters(
            (-self.spread,) * count, (self.spread,) * count, dimension=2, minimum_resolution=field.minimum_resolution
        )
        return IndependentDistributions((weights, field))

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: h twice as large; `"roughness"`: its α reduced by a quarter; `"contrast"`: 1.5 times the spread.

        The roughness shift preserves the mean variance of h.
        """
        return super().shifts() | {"contrast": replace(self, spread=1.5 * self.spread)}

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        logarithms, source = self.input_distribution.split(coefficients)
        root = (logarithms.exp() @ self._kernels(grid.points).to(logarithms)).unflatten(1, grid.shape)
        return torch.stack([root, root * self._field.evaluate(source, grid)], dim=1)

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        root, source = values[:, :1], values[:, 1:]
        self._check_harmonic(root.detach(), grid, "the first channel, the root of a permeability,")
        self._check_positive(root, "first channel, the root of a permeability", remedy="take the positive root")
        return divide(source / root, grid, divisor=eigenvalues(grid).to(values)) / root

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        self._check_harmonic(direction[:, :1].detach(), grid, "the first channel of a direction")
        return super()._differentiate(values, direction, grid)

    def _harmonics(self, points: Float64[Tensor, "m 2"]) -> Float64[Tensor, "m basis"]:
        """The harmonic polynomials ρ^m cos mθ for m ≤ D, then ρ^m sin mθ for 1 ≤ m ≤ D; ρ is 1 at the corners."""
        centred = math.sqrt(2.0) * (points.double() - 0.5)
        powers = torch.linalg.vander(torch.complex(centred[:, 0], centred[:, 1]), N=self.degree + 1)
        return torch.cat([powers.real, powers.imag[:, 1:]], dim=1)

    def _kernels(self, points: Float64[Tensor, "m 2"]) -> Float64[Tensor, "kernels m"]:
        """F(x; θ_j)/(2D + 1) for 2D + 1 equispaced angles."""
        degrees = torch.arange(self.degree + 1, dtype=torch.float64)
        gains = 2.0 * (1.0 - degrees / (self.degree + 1))
        gains[0] = 1.0
        count = 2 * self.degree + 1
        angles = 2.0 * math.pi * torch.remainder(torch.arange(count)[:, None] * degrees, count) / count
        expansion = torch.cat([gains * angles.cos(), (gains * angles.sin())[:, 1:]], dim=1)
        return expansion @ self._harmonics(points).T / count

    def _check_harmonic(self, root: Tensor, grid: Grid, what: str) -> None:
        basis = torch.linalg.qr(self._harmonics(grid.points))[0].to(root)
        flat = root.flatten(1)
        worst = float(((flat - flat @ basis @ basis.T).norm(dim=1) / (flat.norm(dim=1) + 1e-300)).max())
        if worst > _OUTSIDE:
            raise DataError(
                expected=f"{what} that is a harmonic polynomial of degree up to {self.degree}",
                got=f"a field with a fraction of {worst:.3g} outside the family",
                remedy="the closed form is for these only; raise the degree, or solve for the pressure numerically",
            )
