"""Implausible data sets are refused; periodic problems of all kinds are not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probneural import data as files
from probneural.arrays.plausibility import jumping_axes, repeating_axes, rows_to_check
from probneural.errors import DataError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.problems import Advection, Burgers, Problem, ShallowWater, Wave
from tests.data.files import opened as opened_file
from tests.data.files import write_hdf5
from tests.helpers import normal

X = np.linspace(0.0, 1.0, 32)
LINES = np.stack([slope * X for slope in (1.0, -2.0, 0.5, 3.0)])[:, None]
WAVES = np.stack([np.sin(2 * np.pi * np.arange(32) / 32 + phase) for phase in (0.0, 1.0, 2.0, 3.0)])[:, None]

BOUNDED = FieldPairs.from_numpy(WAVES, LINES, periodic=(False,))


def opened(folder: Path, **options: Any) -> object:
    return opened_file(write_hdf5(folder / "f.h5", a=WAVES, u=LINES), inputs=["a"], outputs=["u"], **options)


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
def test_jumps_at_ends_that_are_said_to_be_periodic_are_refused(make: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the outputs to be periodic along axis 0; got most samples jump .*say periodic=False"):
        make(tmp_path)


def test_trajectories_are_checked_too(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.h5", u=np.stack([LINES[:, 0], 2 * LINES[:, 0]], axis=1))
    with pytest.raises(DataError, match="the inputs to be periodic along axis 0"):
        opened_file(path, inputs=["u"], outputs=["u"], time=[0.0, 1.0], periodic=(True,))


def test_a_repeated_end_point_is_refused(tmp_path: Path) -> None:
    """Dropping it, as the message says, works; so does a second axis."""
    closed = np.concatenate([WAVES, WAVES[..., :1]], axis=-1)
    for take in (FieldPairs.from_numpy, files.from_arrays):
        with pytest.raises(DataError, match=r"axis 0 of the inputs without its right end point.*values\[..., :-1\]"):
            take(closed, 2 * closed, periodic=(True,))
        assert len(take(closed[..., :-1], 2 * closed[..., :-1], periodic=(True,))) == 4
    plane = np.stack([closed + shift for shift in (0.1, 0.3, 0.2)], axis=2)[:, 0]
    with pytest.raises(DataError, match=r"axis 1 of the inputs.*array.isel\(y=slice\(0, -1\)\)"):
        FieldPairs.from_numpy(plane, 2 * plane, axes="n x y", periodic=(False, True))
    turned = plane.swapaxes(1, 2)
    with pytest.raises(DataError, match=r"axis 0 of the inputs.*numpy.delete\(values, -1, axis=-2\)"):
        FieldPairs.from_numpy(turned, 2 * turned, periodic=(True, False))
    turned = np.delete(turned, -1, axis=-2)
    assert len(FieldPairs.from_numpy(turned, 2 * turned, periodic=(True, False))) == 4
    walls = np.sin(np.pi * X * np.array([[1], [2], [3], [4]])) + 0.1 * np.sin(2 * np.pi * X)
    with pytest.raises(DataError, match="say periodic=False if it has walls"):
        FieldPairs.from_numpy(walls, 2 * walls, periodic=True)


def test_samples_that_vanish_or_are_symmetric_at_the_ends_say_nothing() -> None:
    grid = Grid.uniform(32)
    x = grid.points[:, 0] + 0.5 / 32  # centres of cells, about which these samples are symmetric
    symmetric = torch.stack([(-((x - 0.5) ** 2) * width).exp() for width in (5.0, 20.0, 60.0)])[:, None]
    bumps = torch.stack([torch.where((x - shift).abs() < 0.2, 1.0, 0.0) for shift in (0.4, 0.5, 0.6)])[:, None]
    assert symmetric[0, 0, 0] == pytest.approx(float(symmetric[0, 0, -1]))
    assert repeating_axes(symmetric, grid) == repeating_axes(bumps, grid) == ()


def test_inputs_that_equal_outputs_are_refused(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "f.h5", a=WAVES, b=WAVES, u=2 * WAVES)
    for output in ("a", "b"):
        with pytest.raises(DataError, match=r"outputs that differ from the inputs.*4 samples; 1 channel \(a\)"):
            opened_file(path, inputs=["a"], outputs=[output], periodic=True)
    assert len(opened_file(path, inputs=["a"], outputs=["u"], periodic=True)) == 4
    dataset = FieldPairs.from_numpy(WAVES, 2 * WAVES, periodic=True).to_xarray()
    for take in (FieldPairs.from_numpy, files.from_arrays):
        with pytest.raises(DataError, match=r"outputs that differ.*pn.FieldPairs\(field, field\)"):
            take(WAVES, WAVES, periodic=True)
    with pytest.raises(DataError, match="outputs that differ"):
        FieldPairs.from_xarray(dataset["inputs"], dataset["inputs"])
    field = Field.from_numpy(WAVES, periodic=True)
    assert len(FieldPairs(field, field)) == 4


def test_walls_that_are_said_are_walls(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened(tmp_path, periodic=False)
        pairs = FieldPairs.from_numpy(WAVES, LINES, periodic=(False,))
    assert pairs.outputs.grid.periodic == (False,)


def test_values_that_cannot_be_read_are_reported_when_they_are_read(tmp_path: Path) -> None:
    broken = WAVES.copy()
    broken[2, 0, 3] = np.nan
    assert len(files.from_arrays(broken, WAVES, periodic=True)) == 4


@pytest.mark.parametrize("resolution", [64, 128])
@pytest.mark.parametrize(
    "problem",
    [Advection(initial=kind) for kind in ("smooth", "sign", "square")] + [Burgers(), ShallowWater(), Wave()],
    ids=lambda problem: f"{problem.name}-{getattr(problem, 'initial', '')}",
)
def test_periodic_problems_are_left_alone(problem: Problem, resolution: int) -> None:
    """Square waves, shocks and rough states too."""
    pairs = problem.sample(8, resolution=resolution, seed=1)
    assert any(pairs.inputs.grid.periodic)
    for side in (pairs.inputs, pairs.outputs):
        assert jumping_axes(side.values, side.grid) == repeating_axes(side.values, side.grid) == ()


@pytest.mark.parametrize("points", [8, 64])
def test_noise_and_coordinates_are_left_alone(points: int) -> None:
    """And so is a channel that is the same in every function; not so if it varies."""
    grid = Grid.uniform((points, points))
    x = grid.points.T.reshape(1, 2, points, points).expand(8, -1, -1, -1)
    values = torch.cat([normal(8, 1, points, points, seed=0), x], dim=1)
    assert jumping_axes(values, grid) == ()
    assert jumping_axes(values * torch.arange(1.0, 9.0)[:, None, None, None], grid) == (0, 1)


def test_few_values_are_read() -> None:
    assert rows_to_check(1000, 1, Grid.uniform(64)) == 8
    assert rows_to_check(1000, 1, Grid.uniform((256, 256, 256))) == 2
    assert rows_to_check(1000, 1, Grid.uniform((512, 256, 256))) == 0


def test_samples_that_cannot_be_read_hide_no_others() -> None:
    closed = np.concatenate([WAVES, WAVES[..., :1]], axis=-1)
    closed[1, 0, 4] = np.nan
    with pytest.raises(DataError, match="without its right end point"):
        files.from_arrays(closed, 2 * closed, periodic=True)
    states = np.concatenate([WAVES, WAVES[..., :1]], axis=-1)[:, None]
    with pytest.raises(DataError, match="without its right end point"):
        files.Trajectories.from_array(np.concatenate([states, 2 * states], axis=1), times=[0.0, 1.0], periodic=True)
