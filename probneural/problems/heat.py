"""The heat equation in one to three dimensions and on the sphere, solved mode by mode."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_integer, check_real, check_shape, real_tensor
from probneural.contexts import Undisturbed
from probneural.errors import ArgumentError, DataError
from probneural.fields import Field
from probneural.grids import Axis, Grid, along_axis
from probneural.pairs import FieldPairs
from probneural.problems.base import Dimension, Evolution, GaussianInputProblem
from probneural.problems.input_distributions import check_sample_dtype
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import modes
from probneural.randomness import check_seed, stream
from probneural.settings import Count, NotNegative, Positive, Settings


@dataclass(frozen=True)
class Heat(Evolution, GaussianInputProblem):
    """Initial state to state at time t of the heat equation ∂u/∂t = ν Δu on the unit cube [0, 1]^d.

    Modes decouple and the solution operator is a product over the axes: a sine or cosine of angular wavenumber κ is
    multiplied by e^(−νκ²t), with κ = 2πk on a periodic axis and κ = πk between boundaries held at zero. On a grid this is one
    matrix per axis, exact for every input that the grid resolves.

    Good values: ν t = 0.01 damps the first periodic mode by a third and the eighth to nothing. The map is linear, so it is
    a floor for everything else: a linear regression learns it to rounding from enough pairs.

    Failure modes: with `"dirichlet"`, the input's values on the boundary are not read (the solution vanishes there at once);
    an input that does not vanish there is treated as the sine interpolant of its interior values, with Gibbs oscillations.
    The distribution's coefficients grow like (2K)^d: 4,912 in three dimensions at K = 8.

    Args:
        diffusivity: ν, in length squared per time.
        time: Time t of the output.
        dimension: Number of space dimensions d, from 1 to 3.
        boundary: `"periodic"`, or `"dirichlet"` for zero values on the boundary (grids then include both end points).
        random_field: Distribution of initial states, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 8 modes per axis.
        design_dim: Coordinates of the design space, at most the number of the distribution's coefficients.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 2.3 (the equation), 4.1 (separation of variables).

    Examples:
        >>> import math
        >>> from probneural.fields import Field
        >>> problem = Heat(0.1, dimension=1)
        >>> wave = Field(torch.cos(2 * math.pi * problem.grid(32).points.T)[None], problem.grid(32))
        >>> decayed = problem.solve(wave).values.amax().item()
        >>> math.isclose(decayed, math.exp(-0.1 * (2 * math.pi) ** 2))
        True
    """

    title: ClassVar[str] = "Heat {problem.dimension}-D, diffusivity {problem.diffusivity:g}"
    is_linear: ClassVar[bool] = True

    diffusivity: Positive = 0.01
    _: KW_ONLY
    time: Positive = 1.0
    dimension: Dimension = 2
    boundary: Literal["periodic", "dirichlet"] = "periodic"

    @property
    def _default_field(self) -> GaussianRandomField:  # type: ignore[override]
        return GaussianRandomField(self.dimension, 8, boundary=self.boundary)

    @property
    def periodic(self) -> bool:  # type: ignore[override]
        """Whether the boundary is periodic; otherwise grids include both end points."""
        return self.boundary == "periodic"

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        for number, axis in enumerate(grid.axes):
            values = along_axis(values, self._factor(axis), number - grid.dimension)
        return values

    def _factor(self, axis: Axis) -> Float64[Tensor, "size size"]:
        """The matrix that damps each mode along one axis."""
        waves, angular, weights = modes(axis)
        damping = torch.exp(self.diffusivity * (-self.time * angular**2))
        return (waves * (damping * weights)) @ waves.T


_SLACK = 1e-6
"""Distance from the unit sphere that counts as rounding."""


@dataclass(frozen=True)
class SphereHeat(Settings, Undisturbed):
    """u_t = ν Δu - ω ∂u/∂φ on the unit sphere, from the initial state to the state at time t; linear, exact.

    With real spherical harmonics Y_lm of degree l <= L, orthonormal on the sphere, and longitude φ,

        u(θ, φ, 0) = Σ_lm a_lm Y_lm(θ, φ),   u(θ, φ, t) = Σ_lm e^(-ν l(l+1) t) a_lm Y_lm(θ, φ - ω t).

    The coefficients a_lm are independent and normal with standard deviation 1 / (1 + l). Points are unit vectors `(p, 3)`;
    quadrature weights are the areas of their spherical Voronoi cells, which sum to 4π. The equation is dimensionless.

    Args:
        diffusivity: ν, at least 0.
        time: t, at least 0.
        rotation: ω, in radians per unit of time.
        degree: Largest degree L.

    Raises:
        ArgumentError: If a number is out of range.

    Examples:
        >>> pairs = SphereHeat().sample(2, resolution=100, seed=0)
        >>> pairs.inputs.values.shape, pairs.inputs.grid.dimension, round(pairs.inputs.grid.volume / math.pi, 9)
        (torch.Size([2, 1, 100]), 3, 4.0)
    """

    _: KW_ONLY
    diffusivity: NotNegative = 0.02
    time: NotNegative = 1.0
    rotation: Annotated[float, check_real] = 1.0
    degree: Count = 6

    in_channels = 1
    out_channels = 1

    @property
    def name(self) -> str:
        """Name of the problem in tables."""
        return f"Heat on the sphere, nu={self.diffusivity:g}"

    @staticmethod
    def grid(points: int | Tensor | Sequence[Sequence[float]]) -> Grid:
        """Return a grid of the sphere with areas of Voronoi cells as weights.

        Args:
            points: Unit vectors, `(p, 3)`; or a number of points, 4 or more, of a Fibonacci lattice.

        Raises:
            ArgumentError: If there are fewer than 4 points.
            ShapeError: If points are not `(p, 3)`.
            DataError: If they are not finite, not on the sphere, repeated, or in one plane.

        Reference:
            González (2010), Measurement of areas on a sphere using Fibonacci and latitude-longitude lattices, equation 1.
        """
        from scipy.spatial import QhullError, SphericalVoronoi

        if not isinstance(points, int) or isinstance(points, bool):
            where = real_tensor(points, "points", dtype=torch.float64, device=torch.device("cpu")).detach()
        else:
            number = torch.arange(check_integer(points, "points", least=4), dtype=torch.float64) + 0.5
            height, turn = 1.0 - 2.0 * number / points, math.pi * (3.0 - math.sqrt(5.0)) * number
            radius = (1.0 - height.square()).sqrt()
            where = torch.stack([radius * turn.cos(), radius * turn.sin(), height], 1)
        check_shape(where, "points", "p", 3, remedy="give unit vectors")
        if not bool(((where.norm(dim=1) - 1.0).abs() <= _SLACK).all()):
            raise DataError(expected="points on the unit sphere", got="others", remedy="divide by norms: x / x.norm(dim=1)")
        where = where / where.norm(dim=1, keepdim=True)
        try:
            areas = SphericalVoronoi(where.numpy()).calculate_areas()
        except (ValueError, QhullError) as error:
            raise DataError(
                expected="four points or more that differ and are not in one plane", got=str(error), remedy="use other points"
            ) from error
        return Grid.scattered(where, torch.from_numpy(areas))

    def sample(
        self,
        n: int,
        *,
        resolution: int | None = None,
        points: Tensor | Sequence[Sequence[float]] | None = None,
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> FieldPairs:
        """Draw initial states and solve for each.

        Args:
            n: Number of pairs.
            resolution: Number of points of a Fibonacci lattice, 4 or more.
            points: Other points in its place, unit vectors `(p, 3)`.
            seed: Seed of the draws: the same seed and n give the same functions at all points.
            dtype: Dtype of the returned values; the arithmetic is float64.

        Raises:
            ArgumentError: If a number is out of range, or both or neither of resolution and points are given.
            ShapeError: If points are not `(p, 3)`.
            DataError: If points are not on the sphere, repeated, or in one plane.
        """
        if (resolution is None) == (points is None):
            raise ArgumentError(expected="resolution or points", got="both or neither", remedy="give one of them")
        check_sample_dtype(dtype)
        grid = self.grid(check_integer(resolution, "resolution", least=4) if points is None else points)
        degrees = torch.cat([torch.full((2 * degree + 1,), float(degree)) for degree in range(self.degree + 1)]).double()
        normal = torch.randn(
            check_integer(n, "n"), len(degrees), generator=stream(check_seed(seed), "sphere states"), dtype=torch.float64
        )
        coefficients = normal / (1.0 + degrees)
        decay = (-self.diffusivity * self.time * degrees * (degrees + 1.0)).exp()
        before = coefficients @ harmonics(grid.points, self.degree).mT
        after = (decay * coefficients) @ harmonics(_rotated(grid.points, -self.rotation * self.time), self.degree).mT
        return FieldPairs(Field(before[:, None].to(dtype), grid), Field(after[:, None].to(dtype), grid))


def harmonics(points: Float64[Tensor, "p 3"], degree: int) -> Float64[Tensor, "p k"]:
    """Real spherical harmonics Y_lm, l = 0 ... degree and m = -l ... l, orthonormal on the unit sphere."""
    from scipy.special import sph_harm_y  # half a second to import, and few need it

    polar, longitude = points[:, 2].clamp(-1.0, 1.0).acos().numpy(), torch.atan2(points[:, 1], points[:, 0]).numpy()
    columns = []
    for order in range(degree + 1):
        for m in range(-order, order + 1):
            # √2 (-1)^m Re Y_l|m| for m > 0, and Im for m < 0
            value = torch.from_numpy(sph_harm_y(order, abs(m), polar, longitude))
            factor = 1.0 if m == 0 else math.sqrt(2.0) * (-1.0) ** m
            columns.append(factor * (value.imag if m < 0 else value.real))
    return torch.stack(columns, 1)


def _rotated(points: Float64[Tensor, "p 3"], angle: float) -> Float64[Tensor, "p 3"]:
    """Points turned around the third axis."""
    cosine, sine = math.cos(angle), math.sin(angle)
    turn = torch.tensor([[cosine, -sine, 0.0], [sine, cosine, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    return points @ turn.mT
