"""Axes of uniform grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_count, real_tensor
from probneural.contexts import remembered
from probneural.errors import GridError
from probneural.linear_algebra.interpolation import (
    evaluate_at_fractions,
    evaluate_trigonometric,
    polynomial_matrix,
    polynomial_stencils,
    trigonometric_matrix,
)
from probneural.registry import stored

CIRCLE, POLE = 360.0, 90.0
"""Degrees of longitude around the sphere, and of latitude from the equator to a pole."""
_MATRIX_ENTRIES = 2**16
"""Largest matrix between two axes; above it, Fourier transforms or the few entries of each row take its place."""
SPACING_TOLERANCE = 1e-4
"""Largest deviation of a coordinate in degrees from equal spacing, as a fraction of the spacing."""


@stored()
@dataclass(frozen=True)
class Axis:
    """One equispaced axis of a grid.

    Args:
        size: Number of points.
        length: Extent of the domain along this axis, in the user's units.
        periodic: Whether the right end is the left end; then the right end point is excluded.
        endpoint: Whether the right end point is a grid point.
        origin: Coordinate of the left end.
        name: Name of the axis, for descriptions; two axes that differ in it alone are equal.
        unit: Unit of the coordinates, likewise.
        latitudes: South and north ends of the cells of a latitude axis in degrees, whose weights are areas of the sphere; None
            on any other axis.
    """

    size: int
    length: float
    periodic: bool
    endpoint: bool
    origin: float = 0.0
    name: str = field(default="", compare=False)
    unit: str = field(default="", compare=False)
    latitudes: tuple[float, ...] | None = None  # two numbers, which grids check: files may hold others

    @property
    def coordinates(self) -> Tensor:
        """Coordinates of the points, `(size,)`, float64."""
        intervals = max(self.size - 1, 1) if self.endpoint else self.size
        return self.origin + torch.arange(self.size, dtype=torch.float64, device="cpu") * self.length / intervals

    @property
    def weights(self) -> Tensor:
        """Quadrature weights, `(size,)`, float64, summing to the length.

        Uniform on a periodic axis (spectrally accurate there), trapezoidal between end points; without the right end
        point, the last cell extrapolates linearly. The two last are exact for linear functions. On a latitude axis, cells end
        half way between points, and weigh sin(north) - sin(south), in degrees: the sum is 360 / pi from pole to pole.
        """
        if self.latitudes is not None:
            # (180 / pi) (sin b - sin a) for the cell from a to b.
            between = 0.5 * (self.coordinates[1:] + self.coordinates[:-1])
            south, north = (torch.tensor([end], dtype=torch.float64, device="cpu") for end in self.latitudes)
            return torch.rad2deg(torch.deg2rad(torch.cat([south, between, north])).sin().diff())
        if self.size == 1:
            return torch.tensor([self.length], dtype=torch.float64, device="cpu")
        intervals = self.size - 1 if self.endpoint else self.size
        weights = torch.full((self.size,), self.length / intervals, dtype=torch.float64, device="cpu")
        if self.periodic:
            return weights
        step = self.length / intervals
        weights[0] -= 0.5 * step
        if self.endpoint:
            weights[-1] -= 0.5 * step
        else:
            weights[-2] -= 0.5 * step
            weights[-1] += step
        return weights

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the domain: those of the cells on a latitude axis, of the length on others."""
        if self.latitudes is None:
            return self.origin, self.origin + self.length
        south, north = self.latitudes
        return south, north

    def matrix(self, points: Tensor, *, order: int = 0) -> Tensor:
        """Weights of the nodal values in the interpolant, or its derivative of some order, at `points`: `(m, size)`."""
        if self.periodic:
            return trigonometric_matrix(self.size, points, length=self.length, origin=self.origin, order=order)
        return polynomial_matrix(self.coordinates, points, order=order)


def transfer(
    values: Tensor, source: Axis, target: Axis, *, dim: int, order: int = 0, transposed: bool = False
) -> Float[Tensor, "..."]:
    """Evaluate the interpolant of nodal values, or its derivative, at the nodes of another axis of the same domain.

    Time and memory are linear in the number of nodes, up to a logarithm.

    Args:
        values: Values at the source's nodes along one dimension, real numbers.
        source: Axis of the values.
        target: Axis of evaluation.
        dim: The dimension.
        order: Derivative to evaluate; 0 is the value.
        transposed: Whether to apply the transposed map instead, from an axis to itself.
    """
    moved = values.movedim(dim, -1)
    if source.size * target.size <= _MATRIX_ENTRIES or (source.periodic and torch.compiler.is_exporting()):
        matrix = _matrix(source, target, order, values.dtype, values.device)
        result = moved @ (matrix if transposed else matrix.mT)
    elif source.periodic:
        # D^T = (-1)^order D: Fourier modes are differentiated by (2 pi i k / length)^order.
        sign = -1.0 if transposed and order % 2 else 1.0
        wide = moved if moved.dtype in (torch.float32, torch.float64) else moved.float()  # no transform of half precision
        result = sign * evaluate_at_fractions(wide, target.size, length=source.length, order=order).to(moved)
    else:
        indices, weights = _stencils(source, target, order, values.dtype, values.device)
        parts = zip(indices, weights, strict=True)
        if transposed:
            result = torch.zeros_like(moved)
            for index, weight in parts:
                result = result.index_add(-1, index, moved * weight)
        else:
            result = torch.stack([moved.index_select(-1, index) * weight for index, weight in parts]).sum(0)
    return result.movedim(-1, dim)


def read_line(values: Float[Tensor, "*b size"], axis: Axis, points: Float64[Tensor, " m"]) -> Float[Tensor, "*b m"]:
    """Evaluate the interpolant along an axis, the last one of the values, at any points, without its matrix."""
    if axis.periodic:
        wide = values if values.dtype in (torch.float32, torch.float64) else values.float()
        result = evaluate_trigonometric(wide, points.to(values.device), length=axis.length, origin=axis.origin)
        return result.to(values)
    indices, weights = polynomial_stencils(axis.coordinates, points)
    parts = zip(indices.mT.to(values.device), weights.mT.to(values), strict=True)
    return torch.stack([values.index_select(-1, index) * weight for index, weight in parts]).sum(0)


@remembered(2**26)
def _matrix(source: Axis, target: Axis, order: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return source.matrix(target.coordinates, order=order).to(device, dtype)


@remembered(2**26)
def _stencils(
    source: Axis, target: Axis, order: int, dtype: torch.dtype, device: torch.device
) -> tuple[Int64[Tensor, "w m"], Tensor]:
    indices, weights = polynomial_stencils(source.coordinates, target.coordinates, order=order)
    return indices.mT.contiguous().to(device), weights.mT.contiguous().to(device, dtype)


def axis_in_degrees(coordinates: Tensor | NDArray[Any] | Sequence[float], name: str) -> Axis:
    """The axis from the first to the last of some coordinates, or a GridError unless they ascend in equal steps."""
    points = real_tensor(coordinates, name, dtype=torch.float64, device=torch.device("cpu")).detach()
    remedy = "give ascending, equispaced degrees: latitudes from south to north, with the values in that order"
    if points.ndim != 1 or len(points) < 2 or not bool(torch.isfinite(points).all()):
        raise GridError(expected=f"two or more finite {name}", got=f"shape {tuple(points.shape)}", remedy=remedy)
    axis = Axis(len(points), float(points[-1] - points[0]), periodic=False, endpoint=True, origin=float(points[0]))
    slack = SPACING_TOLERANCE * axis.length / (axis.size - 1) + 1e-5  # float32 rounds 360 to 3e-5
    if axis.length <= 0 or float((points - axis.coordinates).abs().max()) > slack:
        raise GridError(
            expected=f"ascending, equispaced {name}",
            got=f"steps from {float(points.diff().min()):g} to {float(points.diff().max()):g}",
            remedy=remedy,
        )
    return axis


def check_latitudes(axis: Axis, latitudes: tuple[float, ...] | None) -> None:
    """Raise a GridError unless the ends of latitude cells enclose the points of their axis, on the sphere."""
    if latitudes is None:
        return
    check_count(len(latitudes), 2, "ends of latitudes", remedy="give south and north, in degrees", error=GridError)
    points = axis.coordinates
    slack = 1e-9 * axis.length
    south, north = latitudes
    is_between = -POLE <= south <= points[0] + slack and points[-1] - slack <= north <= POLE
    if axis.periodic or axis.size < 2 or not is_between:
        raise GridError(
            expected="two or more latitudes from -90 to 90 degrees on an axis that is not periodic",
            got=f"{axis.size} from {float(points[0]):g} to {float(points[-1]):g}, periodic={axis.periodic}",
            remedy="make it from degrees: pn.Grid.latlon(latitudes, longitudes)",
        )
