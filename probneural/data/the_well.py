"""Files of The Well: HDF5, whose attributes give the roles of axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from probneural.data.contents import Contents, Request
from probneural.data.readers import hdf5_reader
from probneural.data.sources import described_file, texts
from probneural.data.variables import FUNCTION, TIME, AxisLabels, Variable
from probneural.errors import DataError
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
    grid = request.layout.grid or _grid(file, dims, request)
    coordinates = {dim: file[f"dimensions/{dim}"][...] for dim in dims if f"dimensions/{dim}" in file}
    labels = AxisLabels(sample="trajectory", space=dims, coordinates=coordinates)
    variables: dict[str, Variable] = {}
    for group, order in ORDERS.items():
        for name in texts(_attribute(file, file[group], "field_names")) if group in file else ():
            variables[name] = _variable(file, f"{group}/{name}", grid, labels, order=order)
    defaults = list(variables)
    for name in texts(_attribute(file, file["scalars"], "field_names")) if "scalars" in file else ():
        variables.setdefault(name, _variable(file, f"scalars/{name}", grid, labels, order=None))
    moving = [name for name in defaults if variables[name].count(TIME) is not None]
    names = request.names({name: variable.reader.shape for name, variable in variables.items()}, path, defaults, moving)
    times = _member(file, "dimensions/time")[...] if request.layout.time is None else request.layout.time
    return Contents(names=names, variables=variables, grids=dict.fromkeys(variables, grid), times=times)


def _grid(file: Any, dims: tuple[str, ...], request: Request) -> Grid:
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


def _variable(file: Any, key: str, grid: Grid, labels: AxisLabels, *, order: int | None) -> Variable:
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
