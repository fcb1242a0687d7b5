"""Small files in the layouts that are read: of one's own, of The Well, of PDEBench."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
import xarray
import zarr

from probneural import data as pn_data
from tests.helpers import normal


def numbers(*shape: int, seed: int | str = 0, dtype: str = "f4") -> np.ndarray:
    """Standard normal numbers."""
    return normal(*shape, seed=seed, dtype=torch.float64).numpy().astype(dtype)


def opened(path: Any, **options: Any) -> Any:
    """A data set of files; options may be those of their layout."""
    return pn_data.open(path, **with_layout(options))


def opened_inputs(path: Any, **options: Any) -> Any:
    """Inputs of files, likewise."""
    return pn_data.open_inputs(path, **with_layout(options))


def with_layout(options: dict[str, Any]) -> dict[str, Any]:
    """Options of `open`, those of a layout in one."""
    names = [field.name for field in dataclasses.fields(pn_data.FileLayout) if field.name in options]
    others = {name: value for name, value in options.items() if name not in names}
    return {"layout": pn_data.FileLayout(**{name: options[name] for name in names}), **others}


def write_hdf5(path: Path, chunks: tuple[int, ...] | None = None, **arrays: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            options: dict[str, Any] = {} if chunks is None else {"chunks": chunks[: array.ndim], "compression": "gzip"}
            file.create_dataset(name, data=array, **options)
    return path


def write_zarr(path: Path, chunk: int, **arrays: np.ndarray) -> Path:
    group = zarr.open_group(path, mode="w")
    for name, array in arrays.items():
        stored = group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=(chunk, *array.shape[1:]))
        stored[...] = array
    return path


def labelled(**arrays: np.ndarray) -> xarray.Dataset:
    """Arrays `(n, c, *grid)` as variables with dimensions, on equispaced points of the unit interval, as on a periodic axis."""
    variables = {}
    for name, array in arrays.items():
        dims = ("sample", f"channel_{name}", *(f"x{axis}" for axis in range(array.ndim - 2)))
        variables[name] = xarray.DataArray(array, dims=dims, attrs={"channel_dimension": f"channel_{name}"})
    first = next(iter(arrays.values()))
    points = {f"x{axis}": np.arange(size) / size for axis, size in enumerate(first.shape[2:])}
    return xarray.Dataset(variables, coords=points)


def write_the_well(path: Path, *, kind: str = "cartesian") -> dict[str, np.ndarray]:
    """Three trajectories of five times on a periodic axis of 8 points and a wall-bounded one of 6; what they hold."""
    shape = (3, 5, 8, 6)
    fields = {
        "density": numbers(*shape, seed="density"),
        "mask": numbers(8, 6, seed="mask"),
        "profile": numbers(3, 6, seed="profile"),
        "velocity": numbers(*shape, 2, seed="velocity"),
        "stress": numbers(*shape, 2, 2, seed="stress"),
        "viscosity": numbers(3, seed="viscosity"),
        "gravity": numbers(1, seed="gravity"),
        "ratio": numbers(seed="ratio"),
        "forcing": numbers(5, seed="forcing"),
    }
    with h5py.File(path, "w") as file:
        file.attrs.update(dataset_name="small", grid_type=kind, n_spatial_dims=2, n_trajectories=3)
        file.attrs["simulation_parameters"] = ["viscosity"]
        dimensions = file.create_group("dimensions")
        dimensions.attrs["spatial_dims"] = ["x", "y"]
        for name, points in (("x", np.arange(8) / 8), ("y", np.linspace(-1, 1, 6)), ("time", 0.25 * np.arange(5))):
            dimensions[name] = points.astype("f4")
            dimensions[name].attrs["sample_varying"] = False
            dimensions[name].attrs["time_varying"] = name == "time"
        conditions = file.create_group("boundary_conditions")
        for axis, word in (("x", "PERIODIC"), ("y", "WALL")):
            condition = conditions.create_group(f"{axis}_{word.lower()}")
            condition.attrs.update(bc_type=word, sample_varying=False, time_varying=False)
            condition.attrs["associated_dims"] = axis if axis == "x" else [axis]  # both are found
        groups = {
            "t0_fields": {
                "density": (True, True, (True, True)),
                "mask": (False, False, (True, True)),
                "profile": (True, False, (False, True)),
            },
            "t1_fields": {"velocity": (True, True, (True, True))},
            "t2_fields": {"stress": (True, True, (True, True))},
            "scalars": {
                "viscosity": (True, False, None),
                "gravity": (False, False, None),
                "ratio": (False, False, None),
                "forcing": (False, True, None),
            },
        }
        for group, members in groups.items():
            made = file.create_group(group)
            made.attrs["field_names"] = list(members)
            for name, (by_sample, by_time, by_dim) in members.items():
                made[name] = fields[name]
                made[name].attrs.update(sample_varying=by_sample, time_varying=by_time)
                if by_dim is not None:
                    made[name].attrs["dim_varying"] = list(by_dim)
    return fields


def centres(size: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """Centres of cells of an interval, as PDEBench writes them."""
    return (low + (high - low) * (np.arange(size) + 0.5) / size).astype("f4")


def write_pdebench(path: Path, equation: str) -> dict[str, np.ndarray]:
    """A file in the layout of one of the equations of PDEBench; what it holds."""
    if equation in _GROUPS:
        return _write_groups(path, equation)
    coordinates = {"x-coordinate": centres(8), "y-coordinate": centres(6)}
    later = {"t-coordinate": (0.1 * np.arange(6)).astype("f4")}  # one more than there are states
    attributes: dict[str, float] = {}
    if equation == "burgers":
        arrays = {"tensor": numbers(4, 5, 8)}
        rest = {"x-coordinate": centres(8)} | later
    elif equation == "darcy":
        arrays = {"nu": numbers(4, 8, 6, seed="nu"), "tensor": numbers(4, 1, 8, 6)}
        rest = coordinates
    elif equation == "compressible":
        arrays = {key: numbers(4, 5, 8, 6, seed=key) for key in ("density", "pressure", "Vx", "Vy")}
        rest = coordinates | later
    elif equation == "compressible in space":
        arrays = {key: numbers(4, 5, 8, 6, 7, seed=key) for key in ("density", "pressure", "Vx", "Vy", "Vz")}
        rest = coordinates | {"z-coordinate": centres(7)} | later
        attributes = {"eta": 1e-8, "zeta": 1e-8, "M": 1.0}
    else:
        arrays = {
            "velocity": numbers(4, 5, 8, 6, 2, seed="velocity"),
            "particles": numbers(4, 5, 8, 6, 1, seed="particles"),
            "force": numbers(4, 8, 6, 2, seed="force"),
        }
        rest = {"t": np.tile(0.1 * np.arange(5), (4, 1)).astype("f4")}
    with h5py.File(path, "w") as file:
        file.attrs.update(attributes)
        for key, array in (arrays | rest).items():
            file[key] = array
    return arrays


_GROUPS = {
    "diffusion-reaction": ((8, 6, 2), {"x": centres(8), "y": centres(6)}),
    "diffusion-sorption": ((1024, 1), {"x": centres(1024)}),  # as many cells as there are: float32 rounds their distance
    "dam break": ((8, 6, 1), {"x": centres(8, -2.5, 2.5), "y": centres(6, -2.5, 2.5)}),
}
"""Equations whose files have a group per seed: axes of a state, and coordinates."""


def _write_groups(path: Path, equation: str) -> dict[str, np.ndarray]:
    """Settings are where each generator writes them: beside the groups for diffusion and sorption, else in them."""
    axes, coordinates = _GROUPS[equation]
    data = numbers(4, 5, *axes)
    grid = {f"grid/{axis}": points for axis, points in coordinates.items()} | {"grid/t": (0.1 * np.arange(5)).astype("f4")}
    compression = None if equation == "dam break" else "lzf"
    with h5py.File(path, "w") as file:
        for seed in range(4):
            name, settings = f"{seed:04d}", f"sim:\n  seed: {seed}\n"
            for key, array in ({"data": data[seed]} | grid).items():
                file.create_dataset(f"{name}/{key}", data=array, compression=compression)
            if equation == "diffusion-sorption":
                file.attrs[f"{name}/config"] = settings
            else:
                file[name].attrs["config"] = settings
    return {"data": data}
