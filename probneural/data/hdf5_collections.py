"""Files of The Well and of PDEBench: HDF5, whose attributes or keys determine the roles of axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.arrays.layouts import Layout
from probneural.data.contents import Contents, Request
from probneural.data.fields import FUNCTION, TIME, AxisLabels, Variable, variable_of
from probneural.data.readers import ArrayReader, hdf5_reader, stacked
from probneural.data.sources import described_file, texts
from probneural.errors import ArgumentError, DataError
from probneural.grids import Grid
from probneural.grids.coordinates import grid_of_coordinates

ORDERS = {"t0_fields": 0, "t1_fields": 1, "t2_fields": 2}
"""Groups of fields by tensor order, and the number of component axes of each."""


def is_the_well(file: Any) -> bool:
    """Whether an open HDF5 file has the attributes of The Well."""
    return {"n_trajectories", "n_spatial_dims"} <= set(file.attrs) and "dimensions" in file


def the_well_contents(file: Any, request: Request) -> Contents:
    """Fields of a file of The Well, each component a channel; requested scalars as constant fields.

    Axes follow from the attributes `sample_varying`, `time_varying` and `dim_varying` and from the group, periodic axes from
    the boundary conditions, the grid and the times from `dimensions`.

    Raises:
        DataError: If an attribute or array is missing, or the shape of an array contradicts the attributes.
        GridError: If coordinates are descending or not equispaced.

    Reference:
        Ohana et al. (2024), The Well: the specification of its data format.
    """
    path = Path(file.filename)
    kind = texts(file.attrs.get("grid_type", "cartesian"))[0]
    if kind != "cartesian":
        raise _unlike(file, "a cartesian grid in the attribute grid_type", repr(kind))
    dims = texts(_attribute(file, file["dimensions"], "spatial_dims"))
    grid = request.layout.grid or _well_grid(file, dims, request)
    coordinates = {dim: file[f"dimensions/{dim}"][...] for dim in dims if f"dimensions/{dim}" in file}
    labels = AxisLabels(sample="trajectory", space=dims, coordinates=coordinates)
    variables: dict[str, Variable] = {}
    for group, order in ORDERS.items():
        for name in texts(_attribute(file, file[group], "field_names")) if group in file else ():
            variables[name] = _well_variable(file, f"{group}/{name}", grid, labels, order=order)
    defaults = list(variables)
    for name in texts(_attribute(file, file["scalars"], "field_names")) if "scalars" in file else ():
        variables.setdefault(name, _well_variable(file, f"scalars/{name}", grid, labels, order=None))
    moving = [name for name in defaults if variables[name].count(TIME) is not None]
    names = request.names({name: variable.reader.shape for name, variable in variables.items()}, path, defaults, moving)
    times = _member(file, "dimensions/time")[...] if request.layout.time is None else request.layout.time
    return Contents(names=names, variables=variables, grids=dict.fromkeys(variables, grid), times=times)


def _well_grid(file: Any, dims: tuple[str, ...], request: Request) -> Grid:
    """The grid of the coordinates, periodic where a boundary condition of that type is on an axis."""
    coordinates = {}
    for dim in dims:
        array = _member(file, f"dimensions/{dim}")
        if any(bool(array.attrs.get(name, False)) for name in ("sample_varying", "time_varying")) or array.ndim != 1:
            raise _unlike(file, f"one coordinate {dim} for all trajectories and times", f"shape {array.shape}")
        coordinates[dim] = array[...]
    around = set()
    for condition in file["boundary_conditions"].values() if "boundary_conditions" in file else ():
        if texts(_attribute(file, condition, "bc_type"))[0].lower() == "periodic":
            around |= set(texts(_attribute(file, condition, "associated_dims")))
    periodic = [dim in around for dim in dims]
    return grid_of_coordinates(coordinates, periodic=periodic, lengths=request.spans(len(dims)))


def _well_variable(file: Any, key: str, grid: Grid, labels: AxisLabels, *, order: int | None) -> Variable:
    """A field of a tensor order, with axes from its attributes: trajectories, times, space, components; or a number (None)."""
    array = _member(file, key)
    flags = ((FUNCTION, "sample_varying"), (TIME, "time_varying"))
    leading = tuple(column for column, name in flags if bool(_attribute(file, array, name)))
    varies = (False,) * len(grid.shape)
    if order is not None:
        varies = tuple(bool(flag) for flag in np.atleast_1d(_attribute(file, array, "dim_varying")))
        if len(varies) != len(grid.shape):
            raise _unlike(file, f"dim_varying of {len(grid.shape)} axes at {key}", str(varies))
    components = array.ndim - len(leading) if order is None else order
    return Variable(
        name=key.rsplit("/", maxsplit=1)[-1],
        reader=hdf5_reader(array),
        leading=leading,
        channel_axes=tuple(range(sum(varies), sum(varies) + components)),
        grid_shape=grid.shape,
        varies=varies,
        labels=labels,
    )


def _member(file: Any, key: str) -> Any:
    if key not in file:
        raise _unlike(file, f"an array {key}", "none")
    return file[key]


def _attribute(file: Any, owner: Any, name: str) -> Any:
    if name not in owner.attrs:
        raise _unlike(file, f"the attribute {name} of {owner.name}", f"@{', @'.join(owner.attrs) or 'none'}")
    return owner.attrs[name]


def _unlike(file: Any, expected: str, got: str) -> DataError:
    return DataError(
        expected=f"{expected}, in {file.filename}",
        got=f"{got}; the file has {described_file(file)}",
        remedy="see the format of The Well, or read its arrays with pn.data.from_arrays",
    )


_COORDINATES = ("x-coordinate", "y-coordinate", "z-coordinate")
_FLOW = ("density", "pressure", "Vx", "Vy", "Vz")
"""Variables of compressible flow."""
_INCOMPRESSIBLE = ("velocity", "particles", "force")


def is_pdebench(file: Any) -> bool:
    """Whether an open HDF5 file has the keys of a file of PDEBench."""
    keys = set(file)
    has_coordinates = "x-coordinate" in keys and bool(keys & {"tensor", *_FLOW})
    return has_coordinates or {"velocity", "particles", "force", "t"} <= keys or bool(_seeds(file))


def pdebench_contents(file: Any, request: Request) -> Contents:
    """Variables of a file of PDEBench.

    * `tensor` beside `t-coordinate`: trajectories `(n, times, *space)` of one variable; `density`, `pressure`, `Vx`, ...
      likewise.
    * `nu` and `tensor` `(n, 1, *space)`: coefficients and solutions of Darcy's equation.
    * A group per seed, "0000" and so on, of `data` `(times, *space, c)` and `grid`: trajectories of c variables.
    * `velocity`, `particles` `(n, times, *space, c)`, `force` `(n, *space, c)`, `t`: incompressible flow.

    The number of axes of space is that of the coordinates. `t-coordinate` may have one entry more than there are times, as
    the files of one dimension do, whose last entry belongs to no state.

    Raises:
        DataError: If shapes contradict keys and coordinates.
        ArgumentError: If `periodic` is missing: the files lack boundary conditions.
        GridError: If coordinates are not equispaced.

    Reference:
        Takamoto et al. (2022), PDEBench: An Extensive Benchmark for Scientific Machine Learning.
    """
    path, seeds = Path(file.filename), _seeds(file)
    if request.layout.grid is None and request.periodic is None:
        raise ArgumentError(
            expected=f"periodic=, one entry per axis of space or one for all, for {path}",
            got="None",
            remedy="files of PDEBench do not tell boundary conditions; those of 1-D advection and Burgers are periodic",
        )
    first = file[seeds[0]] if seeds else file
    fields: dict[str, ArrayReader]
    names = [f"grid/{axis}" for axis in "xyz"] if seeds else _COORDINATES
    coordinates = {key: first[key][...] for key in names if key in first}
    if seeds:
        fields = {"data": stacked([hdf5_reader(file[f"{group}/data"]) for group in seeds], "data")}
    else:
        fields = {key: hdf5_reader(file[key]) for key in ("nu", "tensor", *_FLOW, *_INCOMPRESSIBLE) if key in file}
    grid = request.layout.grid or _grid(coordinates, fields, request)
    is_darcy, has_channels = "nu" in fields, seeds or not coordinates
    axes = {key: (len(grid.shape),) if has_channels else (0,) * (is_darcy and key == "tensor") for key in fields}
    variables = {
        key: _variable(key, reader, _leading(key, is_darcy), axes[key], grid=grid, layout=request.layouts[0])
        for key, reader in fields.items()
    }
    moving = [key for key in fields if key != "force"]
    sides = (["nu"], ["tensor"]) if is_darcy else (list(fields), moving)
    chosen = request.names({key: reader.shape for key, reader in fields.items()}, path, *sides)
    stored = next((first[key][...] for key in ("grid/t", "t-coordinate", "t") if key in first), None)
    times = None if is_darcy else _times(file, stored, variables, request)
    return Contents(names=chosen, variables=variables, grids=dict.fromkeys(fields, grid), times=times)


def _grid(coordinates: dict[str, NDArray[Any]], fields: dict[str, ArrayReader], request: Request) -> Grid:
    """The grid of the coordinates; of incompressible flow, which has none, that of the unit cube or of `lengths`."""
    if coordinates:
        count = len(coordinates)
        return grid_of_coordinates(coordinates, periodic=request.rounds(count), lengths=request.spans(count))
    shape = fields["velocity"].shape[2:-1]
    periodic, ends = request.rounds(len(shape)), (False,) * len(shape)
    return Grid.uniform(shape, lengths=request.layout.lengths or 1.0, periodic=periodic, endpoint=ends)


def _seeds(file: Any) -> list[str]:
    """Names of groups of one seed each, which are numbers, in their order."""
    keys = sorted(file)
    return keys if keys and all(key.isdigit() for key in keys) and "data" in file[keys[0]] and "grid" in file[keys[0]] else []


def _variable(
    key: str, reader: ArrayReader, leading: tuple[int, ...], channel_axes: tuple[int, ...], *, grid: Grid, layout: Layout | None
) -> Variable:
    """A variable by the user's layout, if that has as many axes, or by the file's."""
    if layout is not None and len(layout.roles) == len(reader.shape):
        layout.check(reader.shape, key)
        return variable_of(reader, layout, grid, key)
    return Variable(name=key, reader=reader, leading=leading, channel_axes=channel_axes, grid_shape=grid.shape)


def _leading(key: str, is_darcy: bool) -> tuple[int, ...]:
    """The first axes of a variable: samples, and times where it varies in time."""
    return (FUNCTION,) if is_darcy or key == "force" else (FUNCTION, TIME)


def _times(file: Any, times: NDArray[Any] | None, variables: dict[str, Variable], request: Request) -> Any:
    """The times, without the entry that some files have beyond the last state."""
    steps = next((count for variable in variables.values() if (count := variable.count(TIME)) is not None), None)
    if steps is None:  # the user states other roles of the axes
        return None
    stated = times if request.layout.time is None else request.layout.time
    if stated is None:
        raise DataError(
            expected=f"{steps} times in {file.filename}", got=described_file(file), remedy="give them: time=[0.0, 0.1, ...]"
        )
    count = np.asarray(stated).shape[-1]
    return np.asarray(stated)[..., :steps] if count == steps + 1 else stated
