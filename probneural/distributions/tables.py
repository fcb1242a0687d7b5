"""Tables of values and their intervals as Datasets of xarray, which is optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from numpy.typing import NDArray

from probneural.arrays.reading import to_array
from probneural.checks import optional
from probneural.distributions.base import FieldDistribution, index_grid

if TYPE_CHECKING:
    import xarray

_NAMES = ("mean", "std", "lower", "upper")


def dataset(u: FieldDistribution, table: Mapping[str, NDArray[Any]], *, level: float) -> xarray.Dataset:
    """A Dataset of the arrays of `FieldDistribution.to_numpy`."""
    optional("xarray", "to_xarray", extra="xarray")
    import xarray

    if u.grid.is_uniform:
        space = [f"x{number}" for number in range(u.grid.dimension)]
        options: dict[str, Any] = {"sample": "sample", "channel": "channel", "space": space}
        return xarray.Dataset(
            {name: to_array(torch.from_numpy(table[name]), u.grid, **options) for name in _NAMES}, attrs={"level": level}
        )
    coordinates: dict[str, Any]
    if u.grid == index_grid(u.grid.size):  # what a functional made
        last = "quantity"
        coordinates = {last: table.get(last, range(u.grid.size))}
    else:
        last = "point"
        coordinates = {f"x{number}": (last, along.numpy()) for number, along in enumerate(u.grid.points.T)}
    arrays = {name: (("sample", "channel", last), table[name]) for name in _NAMES}
    return xarray.Dataset(arrays, coords=coordinates, attrs={"level": level})
