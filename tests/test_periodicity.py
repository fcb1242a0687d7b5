"""Data that jump at ends that are said to be periodic: a warning, and silence on everything that is periodic."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probneural import data as files
from probneural.errors import DataWarning
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.periodicity import jumping_axes, looked_at
from probneural.problems import Advection, Burgers, InviscidBurgers, Problem, ShallowWater, Wave
from tests.data.files import write_hdf5
from tests.helpers import normal

X = np.linspace(0.0, 1.0, 32)
LINES = np.stack([slope * X for slope in (1.0, -2.0, 0.5, 3.0)])[:, None]
WAVES = np.stack([np.sin(2 * np.pi * np.arange(32) / 32 + phase) for phase in (0.0, 1.0, 2.0, 3.0)])[:, None]

BOUNDED = FieldPairs.from_numpy(WAVES, LINES, periodic=(False,))


def opened(folder: Path, **options: Any) -> object:
    return files.open(write_hdf5(folder / "f.h5", a=WAVES, u=LINES), inputs=["a"], outputs=["u"], **options)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: FieldPairs.from_numpy(WAVES, LINES, periodic=(True,)),
        lambda folder: FieldPairs.from_numpy(WAVES, LINES, grid=Grid.uniform(32)),
        lambda folder: FieldPairs.from_xarray(
            FieldPairs.from_numpy(WAVES, LINES, periodic=(False,)).to_xarray(), periodic=True
        ),
        lambda folder: files.from_arrays(WAVES, LINES, periodic=True),
        lambda folder: opened(folder, periodic=True),
        lambda folder: opened(folder, grid=Grid.uniform(32)),
    ],
)
def test_ends_that_are_said_to_be_periodic(make: Any, tmp_path: Path) -> None:
    with pytest.warns(DataWarning, match="^axis 0 of the outputs: said to be periodic, .*say periodic=False") as given:
        make(tmp_path)
    assert len(given) == 1


@pytest.mark.bad_input
@pytest.mark.parametrize("grid", [Grid.uniform(32), None])
def test_the_warning_names_the_line_that_gave_the_data(grid: Grid | None, tmp_path: Path) -> None:
    where = {"periodic": (True,)} if grid is None else {"grid": grid}
    for make in (lambda: FieldPairs.from_numpy(WAVES, LINES, **where), lambda: opened(tmp_path, **where)):
        with pytest.warns(DataWarning) as given:
            make()
        assert given[0].filename == __file__


def test_trajectories_are_looked_at_too(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.h5", u=np.stack([LINES[:, 0], 2 * LINES[:, 0]], axis=1))
    with pytest.warns(DataWarning, match="axis 0 of the inputs"):
        files.open(path, inputs=["u"], outputs=["u"], time=[0.0, 1.0], periodic=(True,))


def test_walls_that_are_said_are_walls(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path, periodic=False)
        FieldPairs.from_numpy(WAVES, LINES, periodic=(False,))


def test_values_that_cannot_be_read_are_reported_when_they_are_read(tmp_path: Path) -> None:
    broken = WAVES.copy()
    broken[2, 0, 3] = np.nan
    assert len(files.from_arrays(broken, WAVES, periodic=True)) == 4


@pytest.mark.parametrize("resolution", [64, 128])
@pytest.mark.parametrize(
    "problem",
    [Advection(initial=kind) for kind in ("smooth", "sign", "square", "square_and_bump")]
    + [Burgers(), InviscidBurgers(), ShallowWater(), Wave()],
    ids=lambda problem: f"{problem.name}-{getattr(problem, 'initial', '')}",
)
def test_periodic_problems_are_left_alone(problem: Problem, resolution: int) -> None:
    """Square waves, shocks and rough states too."""
    pairs = problem.sample(8, resolution=resolution, seed=1)
    assert any(pairs.inputs.grid.periodic)
    for side in (pairs.inputs, pairs.outputs):
        assert jumping_axes(side.values, side.grid) == ()


@pytest.mark.parametrize("points", [8, 64])
def test_noise_and_coordinates_are_left_alone(points: int) -> None:
    """And so is a channel that is the same in every function; not so if it varies."""
    grid = Grid.uniform((points, points))
    x = grid.points.T.reshape(1, 2, points, points).expand(8, -1, -1, -1)
    values = torch.cat([normal(8, 1, points, points, seed=0), x], dim=1)
    assert jumping_axes(values, grid) == ()
    assert jumping_axes(values * torch.arange(1.0, 9.0)[:, None, None, None], grid) == (0, 1)


def test_few_numbers_are_looked_at() -> None:
    assert looked_at(1000, 1, Grid.uniform(64)) == 8
    assert looked_at(1000, 1, Grid.uniform((256, 256, 32))) == 2
    assert looked_at(1000, 1, Grid.uniform((256, 256, 64))) == 0
    assert looked_at(1000, 1, Grid.uniform(64, periodic=False)) == 8
