"""Trajectories in zarr stores that xarray reads."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural.arrays.reading import grid_attributes
from probneural.checks import check_path, optional, real_tensor
from probneural.errors import ArgumentError, FileError, ForecastError
from probneural.grids import check_unmasked

if TYPE_CHECKING:
    from probneural.distributions.ensemble_forecast import EnsembleForecast

_CHUNK_BYTES = 2**26
"""Bytes of a chunk at most, where one function at one lead is no more."""
_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""Where xarray looks for the names of an array's axes."""


def write_zarr(
    forecast: EnsembleForecast,
    path: str | os.PathLike[str],
    *,
    times: Sequence[float] | Tensor | None,
    attributes: Mapping[str, Any],
) -> None:
    """Write all states; see `EnsembleForecast.to_zarr`."""
    target = check_path(path, "path")
    if times is None and forecast.times is not None:
        times = torch.cat([forecast.times.new_zeros(1), forecast.times])
    numbers = _checked_times(times, forecast.steps)
    if target.exists() or target.is_symlink():
        raise FileError(
            expected="a path where nothing is yet", got=str(target), remedy="choose another, or remove what is there"
        )
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name[:48]}.", dir=target.parent))
    except OSError as error:
        raise FileError(expected="a folder to write into", got=str(error), remedy="check path and space") from error
    try:
        store = folder / "store"
        stopped = _filled(forecast, store, numbers, attributes)
        os.rename(store, target)
    except OSError as error:
        if isinstance(error, FileError):
            raise
        raise FileError(expected=f"a folder to write {target.name} into", got=str(error), remedy="check space") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if stopped is not None:
        raise stopped


def _checked_times(times: Sequence[float] | Tensor | None, steps: int) -> NDArray[np.float64]:
    if times is None:
        return np.arange(steps + 1, dtype=np.float64)
    numbers = real_tensor(times, "times", dtype=torch.float64).numpy()
    if numbers.shape != (steps + 1,) or not np.isfinite(numbers).all() or not (np.diff(numbers) > 0).all():
        raise ArgumentError(
            expected=f"{steps + 1} ascending times, of leads 0 to {steps}",
            got=str(numbers)[:100],
            remedy="the start has one too",
        )
    return numbers


def _filled(
    forecast: EnsembleForecast, store: Path, times: NDArray[np.float64], attributes: Mapping[str, Any]
) -> ForecastError | None:
    """Fill a new store, and return the error that ended the forecast, if one did."""
    optional("zarr", "writing trajectories", extra="data")
    import zarr

    first = forecast.at(0).samples
    members, functions, *rest = first.shape
    per_member = max(1, _CHUNK_BYTES // max(1, first[0].numel() * first.element_size()))
    space = [f"x{number}" for number in range(len(forecast.grid.shape))] if forecast.grid.is_uniform else ["point"]
    told = {**attributes, "probneural_version": version("probneural")}
    group = zarr.create_group(store=store, attributes=told, zarr_format=2)  # what xarray has read for longest
    check_unmasked(forecast.grid, "files of forecasts")
    about_grid: dict[str, Any] = dict(grid_attributes(forecast.grid)) if forecast.grid.is_uniform else {}
    array = group.create_array(
        "states",
        shape=(members, functions, forecast.steps + 1, *rest),
        chunks=(min(members, per_member), functions, 1, *rest),
        dtype=str(first.dtype).removeprefix("torch."),
        fill_value=float("nan"),
        attributes=about_grid | {_DIMENSIONS: ["member", "sample", "time", "channel", *space]},
    )
    _coordinates(group, forecast, space)
    stopped = None
    try:
        for lead, samples in _all_leads(forecast):
            array[:, :, lead] = samples.cpu().numpy()
            written = lead + 1
    except ForecastError as error:
        stopped = error
        array.resize((members, functions, written, *rest))
        group.attrs["ended"] = str(error)
    _coordinate(group, "time", times[:written], ["time"])
    _coordinate(group, "lead", np.arange(written), ["time"])
    zarr.consolidate_metadata(store)
    return stopped


def _all_leads(forecast: EnsembleForecast) -> Iterator[tuple[int, Tensor]]:
    yield 0, forecast.at(0).samples
    for lead, u in forecast.leads():
        yield lead, u.samples


def _coordinates(group: Any, forecast: EnsembleForecast, space: Sequence[str]) -> None:
    """Coordinates of members, functions, channels and space."""
    counts = {"member": forecast.members, "sample": len(forecast), "channel": forecast.channels}
    for name, count in counts.items():
        _coordinate(group, name, np.arange(count), [name])
    if forecast.grid.is_uniform:
        for name, axis in zip(space, forecast.grid.axes, strict=True):
            _coordinate(group, name, axis.coordinates.numpy(), [name])
        return
    for number, along in enumerate(forecast.grid.points.T):
        _coordinate(group, f"x{number}", along.numpy(), ["point"])
    _coordinate(group, "weight", forecast.grid.weights.numpy(), ["point"])


def _coordinate(group: Any, name: str, values: NDArray[Any], dims: list[str]) -> None:
    attributes = {_DIMENSIONS: dims}
    array = group.create_array(name, shape=values.shape, dtype=values.dtype, fill_value=None, attributes=attributes)
    array[:] = values
