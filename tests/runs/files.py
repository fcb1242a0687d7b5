"""Small data files and cheap settings for tests of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray

from probneural.runs import Config, Data, Operator, Scores, Training


def fields(count: int = 40, points: int = 16, *, seed: int = 0) -> xarray.Dataset:
    """Waves and their squares and derivatives on a periodic line of length 2, float64, members first."""
    numbers = np.random.default_rng(seed).normal(size=(count, 2))
    lon = np.arange(points) * (2.0 / points)
    a = numbers[:, :1] * np.sin(np.pi * lon) + numbers[:, 1:] * np.cos(np.pi * lon)
    slope = np.pi * (numbers[:, :1] * np.cos(np.pi * lon) - numbers[:, 1:] * np.sin(np.pi * lon))
    names = ("sample", "lon")
    return xarray.Dataset({"a": (names, a), "u": (names, a + 0.2 * a**2), "slope": (names, slope)}, coords={"lon": lon})


def written(folder: Path, **options: Any) -> Path:
    """A NetCDF file of them."""
    path = folder / "waves.nc"
    fields(**options).to_netcdf(path, engine="h5netcdf")
    return path


def cheap(path: Path, *, epochs: int = 2, outputs: tuple[str, ...] = ("u",)) -> Config:
    """Settings of a run that takes a second."""
    return Config(
        data=Data(path=str(path), inputs=("a",), outputs=outputs, periodic=(True,)),
        operator=Operator(options={"modes": [4], "width": 4, "depth": 1, "projection": 8}),
        training=Training(epochs=epochs),
        scores=Scores(whole=4),
    )
