"""Predict with a finished run: from a file of inputs to a file of fields with error bars."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_path
from probneural.errors import DataError, FileError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.runs.folder import RunFolder, versions
from probneural.runs.progress import Progress
from probneural.runs.sources import Axes, open_inputs
from probneural.runs.steps import CALIBRATION, Calibrated, calibrated_in
from probneural.training import atomic

if TYPE_CHECKING:
    import xarray

_BATCH = 64
"""Functions that are predicted at once."""
_MEANINGS = {
    "mean": "mean of the prediction",
    "std": "standard deviation of what is observed, measurement noise included",
    "lower": "lower end of the pointwise interval",
    "upper": "upper end of the pointwise interval",
    "band_lower": "lower edge of the band that holds the whole function",
    "band_upper": "upper edge of the band that holds the whole function",
}


def predict(
    folder: str | os.PathLike[str],
    inputs: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    show_progress: bool = True,
) -> xarray.Dataset:
    """Predict fields with error bars for the inputs of a file, and write them to a NetCDF file.

    The file holds `mean`, `std`, and `lower` and `upper`, the ends of each value's own interval; `band_lower` and `band_upper`
    hold whole functions, if the run has bands. Levels are attributes. Coordinates are those of the inputs; where the outputs
    that the run was trained on live on another grid, space has theirs.

    Args:
        folder: Of a run that is calibrated.
        inputs: A file with the input variables of the run, on its grid or another one of the same domain.
        output: The NetCDF file to write; an existing one is replaced in one step.
        show_progress: Whether to say on the standard error stream how far it is.

    Returns:
        What was written.

    Raises:
        FileError: If the folder is none of a calibrated run, or a file cannot be read or written.
        DataError: If a variable is missing, or its values are not finite.
    """
    run = RunFolder.finished(folder)
    if not run.file(CALIBRATION).exists():
        raise FileError(
            expected=f"a calibrated run in {run.path}",
            got="one without",
            remedy=f"first: probneural calibrate --folder {run.path}",
        )
    target, source = check_path(output, "output"), check_path(inputs, "inputs")
    if target.suffix not in (".nc", ".nc4"):
        raise UnsupportedError(expected="a NetCDF file to write, .nc", got=target.name, remedy="name it so")
    if target.resolve() == source.resolve():
        raise FileError(expected="an output beside the inputs", got="the same file", remedy="name another")
    progress = Progress(show_progress)
    given, axes = open_inputs(source, run.config.data)
    found = calibrated_in(run)
    if given.channels != found.predictor.in_channels:
        raise DataError(
            expected=f"inputs of {found.predictor.in_channels} channels",
            got=str(given.channels),
            remedy="as in the training data",
        )
    progress.say(f"predicting {len(given)} functions")
    dataset = _dataset(run, found, given, axes)
    atomic.write(target, bytes(dataset.to_netcdf(None, engine="h5netcdf")))
    return dataset


def _dataset(run: RunFolder, found: Calibrated, given: Field, axes: Axes) -> xarray.Dataset:
    import xarray

    query = run.output_grid
    parts: dict[str, list[NDArray[Any]]] = {}
    for batch in _batches(given):
        for name, values in _predicted(found, batch, query, run.config.calibration.level):
            parts.setdefault(name, []).append(values.detach().cpu().numpy())
    names = list(axes.names) if query is None else list(run.record["outputs"]["axes"])
    channels = run.record["outputs"]["names"]
    count = found.predictor.out_channels
    dims = [axes.sample, run.config.data.channel, *names] if count > 1 else [axes.sample, *names]
    coordinates: dict[str, Any] = _coordinates(given.grid if query is None else query, names)
    coordinates |= {name: values for name, values in axes.coordinates.items() if name == axes.sample or query is None}
    if count > 1 and len(channels) == count:
        coordinates[run.config.data.channel] = channels
    level = run.config.calibration.level
    variables = {}
    for name, batches in parts.items():
        whole = np.concatenate(batches)
        attributes = {"long_name": _MEANINGS[name]} | ({} if name in ("mean", "std") else {"level": level})
        variables[name] = (dims, whole if count > 1 else whole[:, 0], attributes)
    attributes = {"predicted": ", ".join(channels), "level": level, "probneural_version": versions()["probneural"]}
    return xarray.Dataset(variables, coords=coordinates, attrs=attributes)


def _batches(given: Field) -> Iterator[Field]:
    for start in range(0, len(given), _BATCH):
        yield given[start : start + _BATCH]


@torch.no_grad()
def _predicted(found: Calibrated, inputs: Field, query: Grid | None, level: float) -> Iterator[tuple[str, Tensor]]:
    u, noise = found.predictor(inputs, query), found.predictor.noise
    interval = u.interval(level, noise=noise)
    spread_out = noise.to(u.mean.device).reshape(-1, *(1,) * (u.mean.ndim - 2))
    yield "mean", u.mean
    yield "std", (u.variance + spread_out).sqrt().to(u.mean)
    yield "lower", interval.lower.to(u.mean)
    yield "upper", interval.upper.to(u.mean)
    if found.band is not None:
        band = found.band(inputs, query)
        yield "band_lower", band.lower.to(u.mean)
        yield "band_upper", band.upper.to(u.mean)


def _coordinates(grid: Grid, names: list[str]) -> dict[str, Any]:
    return {name: axis.coordinates.numpy() for name, axis in zip(names, grid.axes, strict=True)}
