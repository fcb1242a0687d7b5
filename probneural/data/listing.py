"""The variables of a file, before any is an input or an output."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from probneural.checks import check_path
from probneural.data.formats import Format, format_of, open_hdf5
from probneural.data.gate import guarded
from probneural.data.hdf5 import texts
from probneural.data.named import groups_of, named_sources
from probneural.data.opening import sources_of
from probneural.data.sources import Source
from probneural.data.the_well import ORDERS
from probneural.errors import DataError


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
    """The variables of a file of any format of [`open`][probneural.data.open]; no values are read.

    Args:
        path: A file, a zarr store, or a folder of .npy files.

    Returns:
        The variables, without coordinates where the format marks these.

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
    with guarded(where):
        return _listed(where, kind)


def _listed(where: Path, kind: Format) -> list[FileVariable]:
    if kind is Format.THE_WELL:
        with open_hdf5(where) as file:
            groups = [group for group in (*ORDERS, "scalars") if group in file]
            names = [(group, name) for group in groups for name in texts(file[group].attrs.get("field_names", ()))]
            return [FileVariable(name=name, axes=str(file[group][name].shape)) for group, name in names if name in file[group]]
    if kind.has_names:
        inside = [
            (group, variable) for group in (None, *groups_of(where, kind.value)) for variable in _in_group(where, kind, group)
        ]
        return [
            FileVariable(name=f"{group}/{variable.name}" if group else variable.name, axes=variable.axes)
            for group, variable in inside
        ]
    return [FileVariable(name=source.name, axes=source.axes) for source in sources_of(where, kind).values()]


def _in_group(path: Path, kind: Format, group: str | None) -> list[Source]:
    try:
        return list(named_sources(path, kind.value, group).values())
    except DataError:  # no variables
        return []
