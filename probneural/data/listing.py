"""What a file holds, before it is said which variables are inputs and outputs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from probneural.checks import check_path
from probneural.data.formats import Format, format_of, open_hdf5
from probneural.data.hdf5 import arrays_of, texts
from probneural.data.named import described_axes, open_xarray
from probneural.data.opening import arrays_in
from probneural.data.the_well import ORDERS


@dataclass(frozen=True, kw_only=True)
class FileVariable:
    """A variable of a data file.

    Attributes:
        name: As `inputs=` and `outputs=` of [`open`][probneural.data.open] take it.
        axes: Names and lengths of its axes, lengths alone where they have no names.
    """

    name: str
    axes: str

    def __str__(self) -> str:
        """Name and axes: `u (member 100, lon 64)`."""
        return f"{self.name} {self.axes}"


def list_variables(path: str | os.PathLike[str]) -> list[FileVariable]:
    """The variables of a file of any format that [`open`][probneural.data.open] knows; no values are read.

    Args:
        path: A file, a zarr store, or a folder of .npy files.

    Returns:
        Them, coordinates left out where the format tells which they are.

    Raises:
        FileError: If there is no such file, or it is of another format.
        UnsupportedError: If the library that reads the format is not installed; the extra is `probneural[data]`.

    Examples:
        >>> import numpy as np, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/flow.npz", a=np.zeros((10, 8)), u=np.zeros((10, 2, 8)))
        ...     [str(variable) for variable in list_variables(f"{folder}/flow.npz")]
        ['a (10, 8)', 'u (10, 2, 8)']
    """
    where = check_path(path, "path")
    kind = format_of(where)
    if kind.has_names:
        with open_xarray(where, kind.value) as opened:
            return [FileVariable(name=str(name), axes=described_axes(one)) for name, one in opened.data_vars.items()]
    if kind is Format.THE_WELL:
        with open_hdf5(where) as file:
            groups = [group for group in (*ORDERS, "scalars") if group in file]
            names = [(group, name) for group in groups for name in texts(file[group].attrs.get("field_names", ()))]
            return [FileVariable(name=name, axes=str(file[group][name].shape)) for group, name in names if name in file[group]]
    if kind in (Format.PDEBENCH, Format.HDF5):
        with open_hdf5(where) as file:
            shapes = {name: array.shape for name, array in arrays_of(file).items()}
    else:
        shapes = {name: array.shape for name, array in arrays_in(where, kind).items()}
    return [FileVariable(name=name, axes=str(shape)) for name, shape in shapes.items()]
