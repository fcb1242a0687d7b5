"""Predict with a finished run: from a file of inputs to a file of fields with error bars, written part by part."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from probneural import atomic
from probneural.arrays.layouts import CHANNEL, SAMPLE, layouts_of
from probneural.arrays.meshes import write_meshes
from probneural.checks import check_count, check_least, check_path
from probneural.data.fields import FUNCTION, TIME, StoredFields
from probneural.data.meshes import is_mesh
from probneural.data.opening import paths_of
from probneural.data.readers import require
from probneural.data.sources import open_xarray
from probneural.distributions import Predictor
from probneural.errors import ArgumentError, DataError, FileError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics.scores import batch_size
from probneural.runs.folder import RunFolder, versions
from probneural.runs.inspection import read_run
from probneural.runs.sources import axis_names, is_window, open_inputs
from probneural.runs.steps import Calibrated, Progress

if TYPE_CHECKING:
    import xarray


_MEANINGS = {
    "mean": "mean of the prediction",
    "std": "standard deviation of what is observed, measurement noise included",
    "lower": "lower end of the pointwise interval",
    "upper": "upper end of the pointwise interval",
    "band_lower": "lower edge of the band that holds the whole function",
    "band_upper": "upper edge of the band that holds the whole function",
}

_ENDINGS = (".nc", ".nc4", ".zarr", ".npz", ".csv")
"""Endings of files of predictions on grids."""
_ROOM = 2**20
"""Bytes of free space beside the values of a part."""


def predict(
    folder: str | os.PathLike[str],
    inputs: str | os.PathLike[str],
    *,
    output: str | os.PathLike[str],
    show_progress: bool = True,
) -> xarray.Dataset | list[Path]:
    """Predict fields with error bars for the inputs of a file, and write them in its format or another one.

    The file holds `mean`, `std`, and `lower` and `upper`, the ends of each value's own interval; `band_lower` and `band_upper`
    hold whole functions, if the run has bands. Levels are attributes. Coordinates are those of the inputs; where the outputs
    that the run was trained on live on another grid, space has theirs. Of trajectories, all windows are predicted, up to the
    last step. A few functions at a time are read, predicted and written; .npz and .csv files are held whole. The arrays of
    .npz have the order of axes that the run's outputs have; .csv has one row per sample, channel and point. Of meshes, each
    file has these as point data.

    Args:
        folder: Folder of a calibrated run, or a file of its results.
        inputs: A file with the input variables of the run, on its grid or another one of the same domain; a file of a mesh, or
            a pattern of such files, "cases/*.vtu".
        output: The file to write, .nc, .zarr, .npz or .csv; without an ending it gets that of the inputs. An existing one is
            replaced when all is written. For meshes a file .vtu or .vtk, replaced one by one, with `{}` in place of the names
            of several input files: "predicted/{}.vtu".
        show_progress: Whether to report progress on the standard error stream.

    Returns:
        The written dataset, of .nc and .zarr read lazily; for meshes the written files.

    Raises:
        FileError: If the folder is not that of a calibrated run, or a file cannot be read or written.
        DataError: If a variable is missing, there are no samples, or values are not finite.
        ArgumentError: If the output has the ending of another format, or lacks `{}` for several meshes.
    """
    results = read_run(folder)
    run, calibrated = RunFolder(Path(folder), results.config, results.contents), Calibrated(results.predictor, results.band)
    target, source = check_path(output, "output"), check_path(inputs, "inputs")
    files = paths_of(source)
    target = target if target.suffix else target.with_name(target.name + files[0].suffix)
    meshes = [file for file in files if is_mesh(file)]
    _check_target(target, source, meshes)
    progress = Progress(show_progress)
    fields = open_inputs(source, run.config.data, domain=calibrated.predictor.domain)
    channels = calibrated.predictor.in_channels
    check_count(fields.channels, channels, "input channels", remedy="give those of training", error=DataError)
    check_least(len(fields), 1, f"functions in {source}", remedy="give inputs to predict for")
    progress.say(f"predicting {len(fields)} functions")
    if meshes:
        return _write_meshes(run, calibrated, fields, [target.with_name(_named(target, file)) for file in meshes])
    layout = _Layout.of(run, fields, calibrated.predictor.out_channels)
    parts = (_dataset(run, calibrated, fields, layout, rows) for rows in _rows(fields))
    real = target.resolve()
    atomic.remove_abandoned(real.parent, name=real.name)
    if target.suffix in (".npz", ".csv"):
        written = _joined(parts, layout)
        with atomic.replacing(target) as temporary:
            (write_npz if target.suffix == ".npz" else write_csv)(temporary, written)
    elif target.suffix == ".zarr":
        with atomic.replacing_folder(target) as folder:
            write_zarr(folder, parts, along=layout.sample)
        written = open_xarray(target, "zarr")
    else:
        with atomic.replacing(target) as temporary:
            write_netcdf(temporary, parts, along=layout.sample)
        written = open_xarray(target, "h5netcdf")
    atomic.remove_abandoned(real.parent, name=real.name)
    written.encoding["source"] = str(target)
    return written


def _named(target: Path, source: Path) -> str:
    """Name of the output file of a mesh."""
    return target.name.replace("{}", source.stem)


def _check_target(target: Path, source: Path, meshes: Sequence[Path]) -> None:
    """Raise unless predictions can be written there."""
    if meshes:
        names = {_named(target, file) for file in meshes}
        if target.suffix not in (".vtu", ".vtk") or len(names) < len(meshes):
            raise ArgumentError(
                expected=f"a path .vtu or .vtk with {{}} for the names of {len(meshes)} files of meshes",
                got=str(target),
                remedy='write "predicted/{}.vtu"',
            )
        if any(target.with_name(_named(target, file)).resolve() == file.resolve() for file in meshes):
            raise FileError(expected="an output beside the inputs", got="the same file", remedy="name another folder")
        return
    if target.suffix not in _ENDINGS:
        expected = f"a file to write that ends in {', '.join(_ENDINGS)}"
        raise UnsupportedError(expected=expected, got=target.name, remedy='name it so: "predicted.nc"')
    if target.resolve() == source.resolve():
        raise FileError(expected="an output beside the inputs", got="the same file", remedy="name another")
    if target.suffix == ".zarr" and target.exists() and not any((target / name).exists() for name in ("zarr.json", ".zgroup")):
        raise FileError(expected=f"a zarr store to replace at {target}", got="something else", remedy="name another")


@dataclass(frozen=True, eq=False)
class _Layout:
    """Dimensions and coordinates of the output.

    Attributes:
        sample: The dimension of samples, or of windows of trajectories.
        channel: The dimension of channels; "" where there is one.
        space: The dimensions of space.
        fixed: Coordinates of channels and space: dimension, values, attributes.
        varying: Coordinates along the first dimension by name: values and attributes.
        order: The dimensions in the order of the run's output arrays, if axes were stated; the others follow.
    """

    sample: str
    channel: str
    space: tuple[str, ...]
    fixed: dict[str, tuple[str, Any, Mapping[str, Any]]]
    varying: dict[str, tuple[Any, Mapping[str, Any]]]
    order: tuple[str, ...]

    @classmethod
    def of(cls, run: RunFolder, inputs: StoredFields, channels: int) -> _Layout:
        """Coordinates of the inputs, and of space if outputs have the same grid."""
        labels, query = inputs.labels, run.output_grid
        names = axis_names(inputs) if query is None else tuple(run.record["outputs"]["axes"])
        fixed = {}
        for name, axis in zip(names, (inputs.grid if query is None else query).axes, strict=True):
            stored = labels.coordinates.get(name) if query is None else None
            fixed[name] = (name, axis.coordinates.numpy() if stored is None else stored, labels.attributes.get(name, {}))
        channel = run.config.data.channel if channels > 1 else ""
        if channel and len(run.record["outputs"]["names"]) == channels:
            fixed[channel] = (channel, np.array(run.record["outputs"]["names"], dtype=object), {})
        sample = labels.sample
        varying: dict[str, tuple[Any, Mapping[str, Any]]] = {}
        if is_window(inputs):
            places = inputs.places.numpy()
            last = places[:, TIME] + run.config.data.history - 1
            attributes = {"long_name": "step of the last state of the input", "lead": run.config.data.lead}
            sample, varying = "window", {"trajectory": (places[:, FUNCTION], {}), "step": (last, attributes)}
        elif sample in labels.coordinates:
            varying = {sample: (labels.coordinates[sample], labels.attributes.get(sample, {}))}
        stated = layouts_of(run.config.data.axes or None)[1]
        roles = {SAMPLE: sample, CHANNEL: channel}
        order = () if stated is None else tuple(dict.fromkeys(roles.get(role, role) for role in stated.roles))
        return cls(sample, channel, names, fixed, varying, order)


def _write_meshes(run: RunFolder, calibrated: Calibrated, inputs: StoredFields, paths: Sequence[Path]) -> list[Path]:
    """Write one file per sample, each whole or not at all."""
    level = run.config.calibration.level
    for rows in _rows(inputs):
        part = inputs[rows]
        values = dict(_predicted(calibrated, part, run.output_grid, level))
        for row, path in enumerate(paths[rows]):
            single = slice(row, row + 1)
            write_meshes(path, part.grid.select(single), {name: array[single] for name, array in values.items()})
    return list(paths)


def _rows(inputs: StoredFields) -> Iterator[slice]:
    size = batch_size(inputs)
    return (slice(start, min(start + size, len(inputs))) for start in range(0, len(inputs), size))


def _dataset(run: RunFolder, calibrated: Calibrated, inputs: StoredFields, layout: _Layout, rows: slice) -> xarray.Dataset:
    """Predictions for a chunk of samples."""
    import xarray

    level = run.config.calibration.level
    dims = [name for name in (layout.sample, layout.channel, *layout.space) if name]
    variables = {}
    units = _units(calibrated.predictor)
    for name, values in _predicted(calibrated, inputs[rows], run.output_grid, level):
        attributes = {"long_name": _MEANINGS[name], **units} | ({} if name in ("mean", "std") else {"level": level})
        array = values.detach().cpu().numpy()
        variables[name] = (dims, array if layout.channel else array[:, 0], attributes)
    coordinates: dict[str, Any] = {**layout.fixed}
    coordinates |= {name: (layout.sample, values[rows], attributes) for name, (values, attributes) in layout.varying.items()}
    attributes = {
        "predicted": ", ".join(run.record["outputs"]["names"]),
        "level": level,
        "probneural_version": versions()["probneural"],
    }
    return xarray.Dataset(variables, coords=coordinates, attrs=attributes)


def _units(predictor: Predictor) -> dict[str, str]:
    """The attribute of the unit of the training outputs, or the units of their channels, if they are known."""
    units = () if predictor.trained_on is None else predictor.trained_on.output_units
    return {"units": ", ".join(dict.fromkeys(units))} if any(units) else {}


@torch.no_grad()
def _predicted(calibrated: Calibrated, inputs: Field, query: Grid | None, level: float) -> Iterator[tuple[str, Tensor]]:
    u, noise = calibrated.predictor(inputs, query), calibrated.predictor.noise
    interval = u.interval(level, noise=noise)
    spread_out = noise.to(u.mean.device).reshape(-1, *(1,) * (u.mean.ndim - 2))
    yield "mean", u.mean
    yield "std", (u.variance + spread_out).sqrt().to(u.mean)
    yield "lower", interval.lower.to(u.mean)
    yield "upper", interval.upper.to(u.mean)
    if calibrated.band is not None:
        band = calibrated.band(inputs, query)
        yield "band_lower", band.lower.to(u.mean)
        yield "band_upper", band.upper.to(u.mean)


def write_netcdf(path: Path, parts: Iterable[xarray.Dataset], *, along: str) -> None:
    """Write datasets one after the other along a dimension, as one NetCDF file.

    Args:
        path: The file to write.
        parts: One or several datasets; the first defines variables, dimensions, coordinates and attributes.
        along: The dimension that they follow each other along: the first of every variable that has it.

    Raises:
        MissingPackageError: If h5netcdf is not installed.
        FileError: If the disk has no room for a part: HDF5 would end the process.

    Examples:
        >>> import pathlib, tempfile, xarray
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "u.nc"
        >>> parts = [xarray.Dataset({"u": (("n", "x"), np.full((2, 3), number))}) for number in (1.0, 2.0)]
        >>> write_netcdf(path, parts, along="n")
        >>> xarray.open_dataset(path, engine="h5netcdf")["u"][:, 0].values.tolist()
        [1.0, 1.0, 2.0, 2.0]
    """
    library = require("h5netcdf", "NetCDF files")
    with path.open("w+b") as stream:  # by its name HDF5 would lock the file
        for number, part in enumerate(parts):
            free = shutil.disk_usage(path.parent).free
            if free < part.nbytes + _ROOM:
                raise FileError(expected=f"{part.nbytes} bytes of free space for {path}", got=str(free), remedy="make room")
            varying = {str(name): variable for name, variable in part.variables.items() if along in variable.dims}
            if not number:
                chunks: Any = {name: {"chunksizes": variable.shape} for name, variable in varying.items()}
                stream.write(part.to_netcdf(engine="h5netcdf", unlimited_dims=[along], encoding=chunks))
                continue
            with library.File(stream, "a") as file:
                start = file.dimensions[along].size
                file.resize_dimension(along, start + part.sizes[along])
                for name, variable in varying.items():
                    file.variables[name][start:] = variable.to_numpy()


def write_zarr(folder: Path, parts: Iterable[xarray.Dataset], *, along: str) -> None:
    """The same as a zarr store, in an empty folder; chunks are those of the first part.

    Raises:
        MissingPackageError: If zarr is not installed.
    """
    require("zarr", "zarr stores")
    options: dict[str, Any] = {"mode": "w"}
    for part in parts:
        part.to_zarr(folder, consolidated=False, **options)
        options = {"append_dim": along}


def _joined(parts: Iterable[xarray.Dataset], layout: _Layout) -> xarray.Dataset:
    """All predictions, their axes in the order of the run's output arrays."""
    import xarray

    whole = xarray.concat(list(parts), layout.sample, data_vars="minimal", coords="minimal", compat="override", join="override")
    order = [name for name in layout.order if name in whole.dims]
    return whole.transpose(*([] if layout.sample in order else [layout.sample]), *order, ...)


def write_npz(path: Path, dataset: xarray.Dataset) -> None:
    """Write variables and coordinates as arrays of an .npz archive; names of channels as texts."""
    arrays: dict[str, Any] = {str(name): variable.to_numpy() for name, variable in dataset.variables.items()}
    with path.open("wb") as stream:
        np.savez(stream, **{name: array.astype(str) if array.dtype == object else array for name, array in arrays.items()})


def write_csv(path: Path, dataset: xarray.Dataset) -> None:
    """Write a table with one row per sample, channel and point: coordinates, then variables, in all their digits."""
    table = dataset.to_dataframe()
    table[[name for name in (*dataset.coords, *dataset.data_vars) if name in table]].to_csv(path)
