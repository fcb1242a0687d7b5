"""Files of meshes that meshio reads: one sample per file, each with points and cells of its own."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from probneural.checks import check_regular, optional
from probneural.data.contents import Contents, Request
from probneural.data.fields import FUNCTION, Variable
from probneural.data.gate import check_hdf5, guarded
from probneural.data.readers import ArrayReader
from probneural.errors import DataError, FileError, GridError, ProbneuralError, ShapeError
from probneural.grids import Grid
from probneural.grids.mesh import cell_volumes

FORMATS = {".vtu": "vtu", ".vtk": "vtk", ".msh": "gmsh", ".xdmf": "xdmf", ".xmf": "xdmf", ".med": "med", ".avs": "avsucd"}
"""Modules of meshio that read point data, by the ending of a file's name."""
_CACHE = 2**26
"""Largest bytes of arrays that stay in memory after they are read (64 MiB); at least those of one file do."""
_FACES = {
    "hexahedron": ((0, 1, 2, 3), (4, 5, 6, 7), (0, 1, 5, 4), (1, 2, 6, 5), (2, 3, 7, 6), (3, 0, 4, 7)),
    "wedge": ((0, 1, 2), (3, 4, 5), (0, 1, 4, 3), (1, 2, 5, 4), (2, 0, 3, 5)),
    "pyramid": ((0, 1, 2, 3), (0, 1, 4), (1, 2, 4), (2, 3, 4), (3, 0, 4)),
}
"""Faces of cells that are split into tetrahedra."""
_SECOND_ORDER = {
    "line3": ("line", ((0, 2), (2, 1))),
    "triangle6": ("triangle", ((0, 3, 5), (3, 1, 4), (5, 4, 2), (3, 4, 5))),
    "quad9": ("quad", ((0, 4, 8, 7), (4, 1, 5, 8), (8, 5, 2, 6), (7, 8, 6, 3))),
    "tetra10": (
        "tetra",
        ((0, 4, 6, 7), (4, 1, 5, 8), (6, 5, 2, 9), (7, 8, 9, 3), (6, 8, 4, 5), (6, 8, 5, 9), (6, 8, 9, 7), (6, 8, 7, 4)),
    ),
}
"""First-order cells between all points of a second-order cell."""


def is_mesh(path: Path) -> bool:
    """Whether meshio reads files of this name."""
    return path.suffix.lower() in FORMATS


def mesh_contents(files: Sequence[Path], request: Request) -> Contents:
    """Read the meshes of some files, and the number of channels of their variables; values are read later.

    Points, weights and cells of all files stay in memory. Files of one mesh have one grid.

    Raises:
        FileError: If a file cannot be read.
        GridError: If a mesh is a curve or a surface.
        DataError: If a variable is missing, or a mesh is not valid.
        ShapeError: If the number of channels differs between files.
    """
    grids: list[Grid] = []
    channels: dict[str, int] = {}
    kinds: dict[str, np.dtype[Any]] = {}
    is_planar: dict[str, bool] = {}
    for path in files:
        mesh = _Mesh.read(path)
        names = request.names(mesh.variables, path)
        grids.append(mesh.grid)
        for name in names.both:
            values = mesh.values(name)
            kinds[name] = np.result_type(kinds.get(name, values.dtype), values.dtype)
            if channels.setdefault(name, len(values)) != len(values):
                expected = f"{channels[name]} channels of {name}, as in {files[0]}"
                raise ShapeError(expected=expected, got=f"{len(values)} in {path}", remedy="open files of the same variables")
            is_padded = len(values) == 3 and mesh.grid.dimension == 2 and not values[2].any()
            is_planar[name] = is_planar.get(name, True) and is_padded
    grid = grids[0] if all(other == grids[0] for other in grids[1:]) else Grid.batch(grids)
    channels = {name: count - is_planar[name] for name, count in channels.items()}
    source = _MeshFiles(tuple(files), tuple(channels))
    variables = {
        name: Variable(
            name=name,
            reader=_MeshReader(
                files=source,
                name=name,
                shape=(len(files), count, grid.size),
                dtype=kinds[name],
                chunks=(1, count, grid.size),
                reads_rows=True,
            ),
            leading=(FUNCTION,),
            channel_axes=(0,),
            grid_shape=grid.shape,
        )
        for name, count in channels.items()
    }
    return Contents(names=names, variables=variables, grids=dict.fromkeys(channels, grid))


def mesh_variables(path: Path) -> Mapping[str, str]:
    """Names of the arrays of a mesh file, with their place and shape."""
    return _Mesh.read(path).variables


@dataclass(frozen=True, eq=False)
class _Mesh:
    """A mesh that was read: its grid, the points of the file that are in cells, and the cell of the file of each simplex."""

    path: Path
    arrays: Any
    grid: Grid
    points: NDArray[np.int64]
    parents: NDArray[np.int64]
    blocks: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> _Mesh:
        """Read a file, with a FileError or DataError that names it."""
        library = optional("meshio", "the reader of mesh files", extra="mesh")
        check_regular(path, "a mesh file")
        if path.suffix.lower() == ".med":
            with guarded(path), optional("h5py", "the reader of MED files", extra="data").File(path) as file:
                check_hdf5(file)
        with guarded(path):
            arrays = getattr(library, FORMATS[path.suffix.lower()]).read(str(path))
            cells, parents, blocks = _simplices(arrays.cells, path)
        try:
            if not len(cells) or cells.min() < 0 or cells.max() >= len(arrays.points):
                raise DataError(
                    expected=f"cells of points from 0 to {len(arrays.points) - 1}",
                    got=f"{cells.min()} to {cells.max()}" if len(cells) else "no cells",
                    remedy="write the mesh again, with its cells",
                )
            points, renumbered = np.unique(cells, return_inverse=True)
            where = _flat(np.asarray(arrays.points, dtype=np.float64)[points], cells.shape[1] - 1)
            grid = Grid.mesh(torch.from_numpy(where), torch.from_numpy(renumbered.reshape(cells.shape)))
        except ProbneuralError as error:
            raise type(error)(expected=error.expected, got=f"{error.got} in {path}", remedy=error.remedy) from error
        return cls(path, arrays, grid, points, parents, blocks)

    @property
    def variables(self) -> dict[str, str]:
        """Arrays by name, with their place and shape; one of points hides one of cells."""
        names = {name: f"(constant {np.size(values)})" for name, values in self.arrays.field_data.items()}
        names |= {name: f"(cell {sum(map(len, parts))})" for name, parts in self.arrays.cell_data.items()}
        shapes = {name: np.shape(values) for name, values in self.arrays.point_data.items()}
        return names | {name: f"(point {', '.join(map(str, shape))})" for name, shape in shapes.items()}

    def values(self, name: str) -> NDArray[Any]:
        """Values `(c, p)` at the points of the grid.

        Raises:
            DataError: If the variable does not exist, or it holds no numbers.
        """
        if name in self.arrays.point_data:
            values = np.asarray(self.arrays.point_data[name])
            values = values.reshape(len(values), -1)[self.points].T
        elif name in self.arrays.cell_data:
            values = np.concatenate([np.asarray(self.arrays.cell_data[name][block]) for block in self.blocks])
            values = self._averages(values.reshape(len(values), -1)[self.parents])
        elif name in self.arrays.field_data:
            constants = np.ravel(self.arrays.field_data[name])
            values = np.broadcast_to(constants[:, None], (len(constants), self.grid.size))
        else:
            raise DataError(expected=f"a variable {name!r} of {self.path}", got="none", remedy="open the files again")
        if values.dtype.kind not in "biuf":
            raise DataError(expected=f"real {name} of {self.path}", got=str(values.dtype), remedy="write real numbers")
        if not np.isfinite(values).all():
            raise DataError(expected=f"finite {name}", got=f"NaN or infinity in {self.path}", remedy="leave out this file")
        return values

    def arrays_of(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """Copies of some variables, `(c, p)` each."""
        return {name: self.values(name).copy() for name in names}

    def _averages(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Averages over the cells of each point, weighted by volumes: sum_m V_m v_m / sum_m V_m, for values `(m, c)`."""
        cells, points = self.grid.cells, self.grid.points
        assert cells is not None
        volumes = cell_volumes(points, cells).numpy().repeat(cells.shape[1])
        corners = cells.flatten().numpy()
        sums = [np.bincount(corners, volumes * column.repeat(cells.shape[1]), len(points)) for column in values.T]
        return np.stack(sums) / np.bincount(corners, volumes, len(points))


@dataclass(eq=False)
class _MeshFiles:
    """Arrays of mesh files, read when they are needed; those that were used last stay in memory, up to a size."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    _cache: OrderedDict[int, dict[str, NDArray[Any]]] = field(default_factory=OrderedDict, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """All but the arrays in memory."""
        return self.__dict__ | {"_cache": OrderedDict()}

    def arrays(self, number: int) -> dict[str, NDArray[Any]]:
        """The arrays of a file by name, `(c, p)` each."""
        arrays = self._cache.pop(number, None)
        if arrays is None:
            arrays = _Mesh.read(self.paths[number]).arrays_of(self.names)
        self._cache[number] = arrays
        while len(self._cache) > 1 and sum(a.nbytes for part in [*self._cache.values()] for a in part.values()) > _CACHE:
            self._cache.popitem(last=False)
        return arrays


@dataclass(eq=False, kw_only=True)
class _MeshReader(ArrayReader):
    """A variable of mesh files, `(n, c, p)`, zero at the padding of smaller meshes."""

    files: _MeshFiles
    name: str

    def read(self, box: tuple[slice, ...]) -> NDArray[Any]:
        """Read a box."""
        rows = np.arange(self.shape[0])[box[0]] if box else np.arange(self.shape[0])
        return self.read_rows(rows)[(slice(None), *box[1:])]

    def read_rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Read the values of some files.

        Raises:
            FileError: If a file has changed.
        """
        values = np.zeros((len(rows), *self.shape[1:]), self.dtype)
        for place, number in enumerate(rows.tolist()):
            array = self.files.arrays(number)[self.name]
            if array.shape[0] < self.shape[1] or array.shape[1] > self.shape[2]:
                expected = f"{self.name} in {self.files.paths[number]} as the file was when it was opened"
                raise FileError(expected=expected, got=f"values of shape {array.shape}", remedy="open the files again")
            values[place, :, : array.shape[1]] = array[: self.shape[1]]
        return values


def _flat(points: NDArray[np.float64], dimension: int) -> NDArray[np.float64]:
    """Points without the coordinates that are constant, where there are more coordinates than cells have dimensions.

    Raises:
        GridError: If the cells are curves or surfaces.
    """
    if points.shape[1] > dimension:
        varies = ~(points == points[:1]).all(0)
        if varies.sum() != dimension:
            raise GridError(
                expected=f"cells of {points.shape[1]} dimensions, or {dimension} coordinates that are not constant",
                got=f"a {'curve' if dimension == 1 else 'surface'} in {points.shape[1]} dimensions",
                remedy="read its arrays by meshio, and make pairs by pn.FieldPairs.from_meshes(points=..., cells=...)",
            )
        points = points[:, varies]
    return np.ascontiguousarray(points)


def _simplices(blocks: Sequence[Any], path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64], tuple[int, ...]]:
    """Simplices of the cells of the highest dimension, the cell of each, and the blocks of these cells."""
    highest = max((block.dim for block in blocks), default=0)
    chosen = tuple(number for number, block in enumerate(blocks) if block.dim == highest and len(block.data))
    cells, parents, start = [np.empty((0, highest + 1), np.int64)], [np.empty(0, np.int64)], 0
    for number in chosen:
        simplices, rows = _split(blocks[number].type, np.asarray(blocks[number].data, dtype=np.int64), path)
        cells.append(simplices)
        parents.append(start + rows)
        start += len(blocks[number].data)
    return np.concatenate(cells), np.concatenate(parents), chosen


def _split(kind: str, cells: NDArray[np.int64], path: Path) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Simplices that cells `(m, k)` of a kind consist of, and the cell that each is part of.

    A face is divided from its point of the least number, so that neighbours divide it alike.
    """
    rows = np.arange(len(cells))
    if kind in ("line", "triangle", "tetra"):
        return cells, rows
    if kind in _SECOND_ORDER:
        inner, corners = _SECOND_ORDER[kind]
        simplices, parents = _split(inner, cells[:, corners].reshape(-1, len(corners[0])), path)
        return simplices, rows.repeat(len(corners))[parents]
    if kind == "quad":
        return np.concatenate(_triangles(cells)), np.tile(rows, 2)
    if kind not in _FACES:
        raise DataError(
            expected="lines, triangles, quads, tetrahedra, hexahedra, wedges or pyramids, or line3, triangle6, quad9, tetra10",
            got=f"cells of type {kind} in {path}",
            remedy="write the mesh with first-order cells",
        )
    cones: list[NDArray[np.int64]] = []
    origins: list[NDArray[np.int64]] = []
    least = cells.argmin(1)
    for corner in range(cells.shape[1]):  # cones from the point of the least number to the faces without it
        rows = np.flatnonzero(least == corner)
        for face in _FACES[kind]:
            if corner not in face:
                triangles = _triangles(cells[rows][:, face])
                cones += [np.column_stack([cells[rows, corner], triangle]) for triangle in triangles]
                origins += [rows] * len(triangles)
    return np.concatenate(cones), np.concatenate(origins)


def _triangles(faces: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Triangles `(m, 3)` of triangular or quadrilateral faces, from the point of the least number."""
    if faces.shape[1] == 3:
        return [faces]
    turned = np.take_along_axis(faces, (faces.argmin(1)[:, None] + np.arange(4)) % 4, axis=1)
    return [turned[:, [0, 1, 2]], turned[:, [0, 2, 3]]]
