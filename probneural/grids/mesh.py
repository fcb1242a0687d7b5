"""Simplicial meshes: volumes of cells, quadrature weights, boundaries, triangulation of points."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_count
from probneural.errors import DataError, GridError, ShapeError

_DEGENERATE = 1e-12
"""Largest volume of a degenerate simplex, in units of its longest edge to the power of its dimension."""
_SLACK = 1e-9
"""Tolerance of negative barycentric coordinates of points inside a cell."""


def cell_volumes(points: Float64[Tensor, "p d"], cells: Int64[Tensor, "m k"]) -> Float64[Tensor, " m"]:
    """Volumes of simplices of k points: lengths, areas or volumes, also of curves and surfaces in a space of more dimensions.

    Examples:
        >>> cell_volumes(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double(), torch.tensor([[0, 1, 2]])).item()
        0.5
    """
    return simplex_volumes(points[cells])


def simplex_volumes(vertices: Float64[Tensor, "*m k d"]) -> Float64[Tensor, "*m"]:
    """Volumes of simplices from their corners."""
    edges = vertices[..., 1:, :] - vertices[..., :1, :]
    # volume = det(E E^T)^1/2 / (k - 1)!
    if edges.shape[-2] == edges.shape[-1]:
        return torch.linalg.det(edges).abs() / math.factorial(edges.shape[-2])
    triangle = torch.linalg.qr(edges.mT, mode="r").R
    return triangle.diagonal(dim1=-2, dim2=-1).prod(-1).abs() / math.factorial(edges.shape[-2])


def lumped_weights(points: Float64[Tensor, "p d"], cells: Int64[Tensor, "m k"]) -> Float64[Tensor, " p"]:
    """Quadrature weights of the points: each cell gives every one of its points an equal part of its volume.

    The sum over points is exact for functions that are linear in each cell.
    """
    each = cell_volumes(points, cells) / cells.shape[1]
    return torch.zeros(len(points), dtype=torch.float64).index_add_(0, cells.flatten(), each.repeat_interleave(cells.shape[1]))


def check_cells(points: Float64[Tensor, "p d"], cells: Tensor) -> Int64[Tensor, "m k"]:
    """Return the cells of a mesh as int64 on the CPU.

    Raises:
        ShapeError: If they are not `(m, k)` with k from 2 to d + 1.
        DataError: If they are not integers, out of range, degenerate, or occur twice.
    """
    if cells.dtype == torch.bool or cells.is_floating_point() or cells.is_complex():
        raise DataError(expected="cells of integers", got=str(cells.dtype), remedy="give the indices of each cell's points")
    cells = cells.detach().to("cpu", torch.int64, copy=True)
    count, dimension = points.shape
    if cells.ndim != 2 or not len(cells) or not 2 <= cells.shape[1] <= dimension + 1:
        raise ShapeError(
            expected=f"cells of shape (m, k), simplices of 2 to {dimension + 1} points",
            got=str(tuple(cells.shape)),
            remedy="split other cells into simplices, as pn.data.open does for files",
        )
    if bool((cells < 0).any() or (cells >= count).any()):
        raise DataError(
            expected=f"indices from 0 to {count - 1}", got=f"{int(cells.min())} to {int(cells.max())}", remedy="count from 0"
        )
    edges = points[cells[:, 1:]] - points[cells[:, :1]]
    longest = edges.square().sum(-1).amax(-1).sqrt()
    flat = cell_volumes(points, cells) <= _DEGENERATE * longest ** (cells.shape[1] - 1)
    if bool(flat.any()):
        raise DataError(
            expected="cells with a volume",
            got=f"{int(flat.sum())} degenerate cells, the first with points {cells[flat][0].tolist()}",
            remedy="remove them, or merge points that coincide",
        )
    if len(cells.sort(1).values.unique(dim=0)) < len(cells):
        raise DataError(expected="each cell once", got="repeated cells", remedy="remove repetitions: cells.unique(dim=0)")
    return cells


def boundary_facets(cells: Int64[Tensor, "m k"]) -> Int64[Tensor, "b f"]:
    """Return the facets that belong to one cell only, as indices of their points.

    Examples:
        >>> boundary_facets(torch.tensor([[0, 1, 2], [1, 2, 3]])).tolist()
        [[0, 1], [0, 2], [1, 3], [2, 3]]
    """
    facets = _facets(cells)[0].sort(1).values
    unique, counts = facets.unique(dim=0, return_counts=True)
    return unique[counts == 1]


def boundary_areas(
    points: Float64[Tensor, "p d"], cells: Int64[Tensor, "m k"]
) -> tuple[Int64[Tensor, "b d"], Float64[Tensor, "b d"]]:
    """Facets of a mesh of full dimension that belong to one cell only, and their areas times outward unit normals.

    Raises:
        GridError: If cells are not full-dimensional.

    Examples:
        >>> points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double()
        >>> facets, areas = boundary_areas(points, torch.tensor([[0, 1, 2]]))
        >>> facets.tolist(), areas.tolist()
        ([[1, 2], [0, 2], [0, 1]], [[1.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    """
    dimension = points.shape[1]
    remedy = "curves and surfaces have no outward normal: integrate over them by pn.functionals.integral"
    check_count(cells.shape[1], dimension + 1, "points of each cell", remedy=remedy, error=GridError)
    facets, owners, opposite = _facets(cells)
    inverse, counts = facets.sort(1).values.unique(dim=0, return_inverse=True, return_counts=True)[1:]
    single = counts[inverse] == 1
    owners, opposite = owners[single], opposite[single]
    # area normal = -d volume grad(lambda_opposite), and E^-1 has the gradients of lambda_1 ... lambda_d as columns
    edges = points[cells[owners, 1:]] - points[cells[owners, :1]]
    gradients = torch.linalg.inv(edges).mT
    gradients = torch.cat([-gradients.sum(1, keepdim=True), gradients], 1)
    volumes = torch.linalg.det(edges).abs() / math.factorial(dimension)
    areas = -dimension * volumes[:, None] * gradients[torch.arange(len(owners)), opposite]
    return facets[single], areas + 0.0


def boundary_distances(points: Float64[Tensor, "p d"], facets: Int64[Tensor, "b d"]) -> Float64[Tensor, " p"]:
    """Distances of points to the nearest corner or centre of a boundary facet.

    Examples:
        >>> boundary_distances(torch.tensor([[0.0], [1.0], [3.0]]).double(), torch.tensor([[0], [2]])).tolist()
        [0.0, 1.0, 0.0]
    """
    from scipy.spatial import cKDTree

    sites = torch.cat([points[facets].flatten(0, 1), points[facets].mean(1)])
    return torch.from_numpy(cKDTree(sites.numpy()).query(points.numpy())[0])


def nodal_gradients(
    values: Float[Tensor, "*b p"], points: Float[Tensor, "p d"], cells: Int64[Tensor, "m k"]
) -> Float[Tensor, "*b d p"]:
    """Gradients of functions that are linear in each cell of full dimension, averaged over the cells of each point by volume.

    Examples:
        >>> points, cells = torch.tensor([[0.0], [1.0], [3.0]]).double(), torch.tensor([[0, 1], [1, 2]])
        >>> nodal_gradients(torch.tensor([0.0, 2.0, 6.0]).double(), points, cells).tolist()
        [[2.0, 2.0, 2.0]]
    """
    edges, differences = points[cells[:, 1:]] - points[cells[:, :1]], values[..., cells[:, 1:]] - values[..., cells[:, :1]]
    volumes, flat, corners = torch.linalg.det(edges).abs(), cells.flatten(), cells.shape[1]
    # g = E^-1 (u_1 - u_0, ..., u_d - u_0) in each cell
    slopes = torch.einsum("mij,...mj->...im", torch.linalg.inv(edges), differences) * volumes
    sums = values.new_zeros(*slopes.shape[:-1], len(points)).index_add(-1, flat, slopes.repeat_interleave(corners, -1))
    return sums / values.new_zeros(len(points)).index_add(0, flat, volumes.repeat_interleave(corners))


def _facets(cells: Int64[Tensor, "m k"]) -> tuple[Int64[Tensor, "f k1"], Int64[Tensor, " f"], Int64[Tensor, " f"]]:
    """Facets of all cells, the cell of each, and the place of the cell's opposite point."""
    count, size = cells.shape
    facets = torch.cat([cells[:, [place for place in range(size) if place != left_out]] for left_out in range(size)])
    return facets, torch.arange(count).repeat(size), torch.arange(size).repeat_interleave(count)


def triangulated(points: Float64[Tensor, "p d"]) -> Int64[Tensor, "m k"]:
    """Return the Delaunay triangulation of points, which fills their convex hull.

    Raises:
        DataError: If points coincide, or lie in a subspace.
    """
    from scipy.spatial import Delaunay, QhullError  # a third of a second to import, and few need it

    count, dimension = points.shape
    if len(points.unique(dim=0)) < count:
        raise DataError(expected="points that differ", got="points that coincide", remedy="give weights=, or merge the points")
    if dimension == 1:
        order = points[:, 0].argsort()
        cells = torch.stack([order[:-1], order[1:]], 1)
    else:
        try:
            cells = torch.from_numpy(Delaunay(points.numpy()).simplices).to(torch.int64)
        except QhullError as error:
            raise DataError(
                expected=f"{dimension + 2} points or more that span {dimension} dimensions",
                got=f"{count} points without a triangulation",
                remedy="give weights=, or cells by Grid.mesh(points, cells)",
            ) from error
    if not len(cells):
        raise DataError(expected="two points or more", got="one", remedy="give weights=")
    return cells


def barycentric(
    points: Float64[Tensor, "p d"], cells: Int64[Tensor, "m k"], where: Float64[Tensor, "q d"]
) -> tuple[Int64[Tensor, "q k"], Float64[Tensor, "q k"], Bool[Tensor, " q"]]:
    """Return the points of the cell that holds each location, its barycentric coordinates there, and whether one holds it.

    A location outside, as of a finer mesh of a curved domain, has coordinates in the cell next to it, some of them negative.

    Args:
        points: Points of the mesh.
        cells: Simplices of d + 1 points.
        where: Locations.

    Raises:
        GridError: If cells are not full-dimensional.
    """
    from scipy.spatial import cKDTree

    if cells.shape[1] != points.shape[1] + 1 or where.ndim != 2 or where.shape[1] != points.shape[1]:
        raise GridError(
            expected=f"cells and locations of {points.shape[1]} dimensions",
            got=f"{cells.shape[1] - 1} and {tuple(where.shape)}",
            remedy="curves and surfaces have no interpolant: evaluate the operator there by query=",
        )
    # x = x_0 + E^T b for the edges E of a cell
    inverse = torch.linalg.inv(points[cells[:, 1:]] - points[cells[:, :1]])
    tree = cKDTree(points[cells].mean(1).numpy())
    best = torch.full((len(where),), -1)
    inside = torch.full((len(where),), -math.inf, dtype=torch.float64)
    coordinates = torch.zeros(len(where), cells.shape[1], dtype=torch.float64)
    for count in (min(8, len(cells)), min(64, len(cells))):
        rows = (inside < -_SLACK).nonzero()[:, 0]
        if not len(rows):
            break
        near = torch.from_numpy(tree.query(where[rows].detach().numpy(), k=count)[1]).reshape(len(rows), count)
        offset = where[rows][:, None] - points[cells[near][..., 0]]
        weights = torch.einsum("qne,qned->qnd", offset, inverse[near])
        weights = torch.cat([1.0 - weights.sum(-1, keepdim=True), weights], -1)
        inside[rows], place = weights.amin(-1).max(1)
        number = torch.arange(len(rows))
        best[rows], coordinates[rows] = near[number, place], weights[number, place]
    return cells[best], coordinates, inside >= -_SLACK
