"""Potential flow around Joukowski airfoils, with exact pressure and lift and one mesh per sample."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Bool, Complex128, Float64, Int64
from torch import Tensor

from probneural.checks import check_finite, check_integer, check_real, check_shape, real_tensor
from probneural.contexts import Undisturbed
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.problems.input_distributions import check_sample_dtype
from probneural.randomness import check_seed, stream
from probneural.settings import Settings

_OUTER = 2.5
"""Radius of the outer circle of the mesh, in radii of the circle that is mapped to the airfoil."""
_SURFACE = 720
"""Number of surface points in the search of the nearest one."""


@dataclass(frozen=True)
class JoukowskiAirfoil(Settings, Undisturbed):
    """The pressure coefficient around random airfoils at random angles of attack; two-dimensional potential flow, exact.

    z = ζ + 1/ζ maps the circle ζ = μ + R e^(iθ) around μ = -h + ik through the trailing edge ζ = 1 to an airfoil. With
    ζ' = ζ - μ, β = asin(k / R) and the Kutta condition Γ = 4π U R sin(α + β), the potential and the velocity are

        W = U (ζ' e^(-iα) + R² e^(iα) / ζ') + iΓ/(2π) log ζ'
        (u - iv) / U = e^(i(α+β)) (R/ζ' + e^(-i(2α+β))) ζ² / (ζ' (ζ + 1)),  c_p = 1 - (u² + v²) / U²

    The velocity is dW/dζ / dz/dζ without the common factor ζ - 1, so it is exact at the trailing edge as well, which is a cusp.
    Coordinates are in units of the chord, from the leading edge at (0, 0) to the trailing edge at (1, 0). The chord is the
    distance between the images of the circle's points on the real axis, 3 + 2h + 1/(1 + 2h) in units of z. The lift coefficient
    2Γ / (U chord) is an integral of the output over the surface with the outward normal n of the mesh,

        C_L = ∫ c_p n·(-sin α, cos α) ds.

    Input channels: the angle α in radians, equal at all points; 1 on the surface, 0 elsewhere; distance to the surface in
    chords; the two components of the normal at the nearest point of the surface, into the flow. The output is c_p,
    dimensionless. Its map from shape and angle is nonlinear.

    Args:
        largest_angle: Largest |α|, in radians; α is uniform.
        thickness: Largest h, below 0.5; h is uniform above its half. The airfoil is about 1.3 h chords thick.
        camber: Largest |k|, below 0.5; k is uniform. The mean line is about k/2 chords high.

    Raises:
        ArgumentError: If a number is out of range.

    Examples:
        >>> pairs = JoukowskiAirfoil().sample(2, resolution=200, seed=0)
        >>> pairs.inputs.channels, pairs.outputs.channels, pairs.inputs.grid.dimension
        (5, 1, 2)
    """

    _: KW_ONLY
    largest_angle: Annotated[float, partial(check_real, least=0.0, below=0.5 * math.pi)] = 0.15
    thickness: Annotated[float, partial(check_real, above=0.0, below=0.5)] = 0.2
    camber: Annotated[float, partial(check_real, least=0.0, below=0.5)] = 0.1

    name = "Joukowski airfoil"
    in_channels = 5
    out_channels = 1

    def sample(self, n: int, *, resolution: int, seed: int, dtype: torch.dtype = torch.float32) -> FieldPairs:
        """Draw airfoils and angles and solve for each, on one O-grid of triangles per sample.

        Args:
            n: Number of pairs.
            resolution: Largest number of points of each mesh: rings times points on the airfoil, about seven times as many.
            seed: Seed of the draw: the same seed and n are the same airfoils on every mesh.
            dtype: Dtype of the returned values; the arithmetic is float64.

        Raises:
            ArgumentError: If a number is out of range.
        """
        resolution = check_integer(resolution, "resolution", least=50)
        check_sample_dtype(dtype)
        angle, centre = self._drawn(n, seed)
        disk, cells = _rings(resolution)
        zeta = centre + (1.0 - centre) * disk
        z, cp = _mapped(zeta, centre), _pressure(zeta, centre, angle)
        is_surface = (disk.abs() < 1.0 + 1e-9).expand_as(cp)
        distance, normal = _nearest(z, centre)
        grid = Grid.batch([Grid.mesh(points, cells) for points in torch.view_as_real(z)])
        channels = [angle.expand_as(cp), is_surface.to(torch.float64), distance.masked_fill(is_surface, 0.0), *normal.unbind(2)]
        return FieldPairs(Field(torch.stack(channels, 1).to(dtype), grid), Field(cp[:, None].to(dtype), grid))

    def lift_coefficients(self, n: int, *, seed: int) -> Float64[Tensor, " n"]:
        """Exact lift coefficients 8π R sin(α + β) / chord of the airfoils that `sample` draws, `(n,)`, dimensionless."""
        angle, centre = self._drawn(n, seed)
        # 1 - μ = R e^(-iβ)
        lift = 8.0 * math.pi * (1.0 - centre).abs() * (angle - (1.0 - centre).angle()).sin() / _chord(centre)
        return lift[:, 0]

    @staticmethod
    def on_surface(points: Float64[Tensor, "q 2"]) -> Bool[Tensor, " q"]:
        """Whether boundary points of a mesh are on the airfoil, not on the outer boundary, `(q,)`.

        Args:
            points: Coordinates in chords, `(q, 2)`; the ellipse around (1/2, 0) with semi-axes 0.6 and 0.4 separates the two.

        Raises:
            ShapeError: If points are not `(q, 2)`.
            DataError: If they are not finite.
        """
        where = real_tensor(points, "points", dtype=torch.float64)
        check_shape(where, "points", "q", 2, remedy="give x and y in chords")
        check_finite(where, "points", remedy="drop them")
        return ((where[:, 0] - 0.5) / 0.6).square() + (where[:, 1] / 0.4).square() < 1.0

    def _drawn(self, n: int, seed: int) -> tuple[Float64[Tensor, "n 1"], Complex128[Tensor, "n 1"]]:
        """Angles α and centres μ."""
        uniform = torch.rand(check_integer(n, "n"), 3, generator=stream(check_seed(seed), "airfoils"), dtype=torch.float64)
        size, signed = uniform[:, :1], 2.0 * uniform[:, 1:] - 1.0
        centre = torch.complex(-0.5 * self.thickness * (1.0 + size), self.camber * signed[:, :1])
        return self.largest_angle * signed[:, 1:], centre


def _rings(count: int) -> tuple[Complex128[Tensor, " p"], Int64[Tensor, "m 3"]]:
    """Points of the annulus 1 <= |ζ| <= 2.5 on circles of equal ratios, with cells of about equal sides; and triangles."""
    spacing = math.log(_OUTER) / (2.0 * math.pi)
    rings = 1 + round(math.sqrt(count * spacing))
    around = count // rings
    radii = _OUTER ** (torch.arange(rings, dtype=torch.float64) / (rings - 1))
    turns = torch.exp(2j * math.pi * torch.arange(around, dtype=torch.float64) / around)
    ring, place = (part.flatten() for part in torch.meshgrid(torch.arange(rings - 1), torch.arange(around), indexing="ij"))
    start, end = ring * around + place, ring * around + (place + 1) % around
    cells = torch.cat([torch.stack([start, end, start + around], 1), torch.stack([end, end + around, start + around], 1)])
    return (radii[:, None] * turns).flatten(), cells


def _chord(centre: Complex128[Tensor, "n 1"]) -> Float64[Tensor, "n 1"]:
    """Distance between the trailing edge z = 2 and the image of ζ = -(1 + 2h)."""
    reach = 1.0 - 2.0 * centre.real
    return 2.0 + reach + 1.0 / reach


def _mapped(zeta: Complex128[Tensor, "n p"], centre: Complex128[Tensor, "n 1"]) -> Complex128[Tensor, "n p"]:
    """Coordinates in chords: z = ζ + 1/ζ with the trailing edge at 1."""
    return 1.0 + (zeta + 1.0 / zeta - 2.0) / _chord(centre)


def _nearest(
    z: Complex128[Tensor, "n p"], centre: Complex128[Tensor, "n 1"]
) -> tuple[Float64[Tensor, "n p"], Float64[Tensor, "n p 2"]]:
    """Distance to the nearest surface point, and the normal at it into the flow."""
    turns = torch.exp(2j * math.pi * (torch.arange(_SURFACE, dtype=torch.float64) + 0.5) / _SURFACE)
    zeta = centre + (1.0 - centre) * turns
    # dz = (1 - 1/ζ²) i (ζ - μ) dθ, and -i dz / |dz| is the normal
    normal = (1.0 - zeta**-2) * (zeta - centre)
    pairs = zip(torch.view_as_real(z), torch.view_as_real(_mapped(zeta, centre)), strict=True)
    distances, nearest = zip(*(torch.cdist(*pair).min(1) for pair in pairs), strict=True)
    return torch.stack(distances), torch.view_as_real((normal / normal.abs()).gather(1, torch.stack(nearest)))


def _velocity(
    zeta: Complex128[Tensor, "n p"], centre: Complex128[Tensor, "n 1"], angle: Float64[Tensor, "n 1"]
) -> Complex128[Tensor, "n p"]:
    """(u - iv) / U."""
    offset, radius, beta = zeta - centre, (1.0 - centre).abs(), -(1.0 - centre).angle()
    factor = radius / offset + torch.exp(-1j * (2.0 * angle + beta))
    return torch.exp(1j * (angle + beta)) * factor * zeta.square() / (offset * (zeta + 1.0))


def _pressure(
    zeta: Complex128[Tensor, "n p"], centre: Complex128[Tensor, "n 1"], angle: Float64[Tensor, "n 1"]
) -> Float64[Tensor, "n p"]:
    """c_p = 1 - (u² + v²) / U²."""
    return 1.0 - _velocity(zeta, centre, angle).abs().square()
