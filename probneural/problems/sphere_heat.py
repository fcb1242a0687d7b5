"""Heat conduction and solid rotation on the unit sphere, at any points of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_integer, check_real, check_shape, real_tensor
from probneural.contexts import Undisturbed
from probneural.errors import ArgumentError, DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.problems.input_distributions import check_sample_dtype
from probneural.randomness import check_seed, stream
from probneural.settings import Count, NotNegative, Settings

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
        degrees = self._degrees()
        normal = torch.randn(
            check_integer(n, "n"), len(degrees), generator=stream(check_seed(seed), "sphere states"), dtype=torch.float64
        )
        coefficients = normal / (1.0 + degrees)
        decay = (-self.diffusivity * self.time * degrees * (degrees + 1.0)).exp()
        before = coefficients @ harmonics(grid.points, self.degree).mT
        after = (decay * coefficients) @ harmonics(_rotated(grid.points, -self.rotation * self.time), self.degree).mT
        return FieldPairs(Field(before[:, None].to(dtype), grid), Field(after[:, None].to(dtype), grid))

    def _degrees(self) -> Float64[Tensor, " k"]:
        """Degree l of each harmonic."""
        return torch.cat([torch.full((2 * degree + 1,), float(degree)) for degree in range(self.degree + 1)]).double()


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
