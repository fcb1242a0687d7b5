"""One set of settings for every format; trajectories as windows that no part shares with another one."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray

from probneural import data as files
from probneural import runs
from probneural.errors import ArgumentError, DataError
from probneural.runs import Config, Data
from probneural.runs.folder import RunFolder
from probneural.runs.sources import open_inputs, open_pairs, split_rows
from probneural.runs.sources import test_rows as rows_of_test
from probneural.runs.steps import initial_config
from tests.data.files import opened, write_hdf5, write_pdebench, write_the_well, write_zarr
from tests.runs.files import cheap, fields


def written(folder: Path, kind: str) -> Path:
    """The same waves in a file of some format."""
    path, arrays = folder / f"waves.{kind}", {name: fields()[name].to_numpy() for name in ("a", "u")}
    if kind == "h5":
        return write_hdf5(path, **arrays)
    if kind == "zarr":
        return write_zarr(path, 8, **arrays)
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "npy":
        path.mkdir()
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    elif kind == "named zarr":
        fields().to_zarr(path, consolidated=False)
    else:
        fields().to_netcdf(path, engine="h5netcdf" if kind == "nc" else "scipy")
    return path


@pytest.mark.parametrize("kind", ["nc", "cdf", "named zarr", "zarr", "h5", "npz", "npy"])
def test_a_format_does_not_matter(kind: str, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    expected = open_pairs(cheap(written(tmp_path / "first", "nc")).data)
    lengths = {} if kind in ("nc", "cdf", "named zarr") else {"lengths": (2.0,)}
    found = open_pairs(dataclasses.replace(cheap(written(tmp_path, kind)).data, **lengths))
    assert found.fingerprint == expected.fingerprint
    assert len(found) == 40


def trajectories(folder: Path, count: int = 12, steps: int = 7) -> Path:
    """Waves that travel, on their own names, trajectories last."""
    numbers = np.random.default_rng(0).normal(size=(count, 2))
    times, angle = 0.1 * np.arange(steps), np.arange(16) / 16
    phase = 2 * np.pi * (angle[:, None] - times)[..., None]
    values = numbers[:, 0] * np.sin(phase) + numbers[:, 1] * np.cos(phase)
    made = xarray.Dataset({"h": (("angle", "time", "run"), values)}, coords={"angle": angle, "time": times})
    made.to_netcdf(folder / "flow.nc", engine="h5netcdf")
    return folder / "flow.nc"


def moving(folder: Path) -> Config:
    """Settings of a run on them."""
    config = cheap(trajectories(folder))
    data = Data(path=config.data.path, inputs=("h",), outputs=("h",), periodic=(True,), axes="angle t n", history=2, lead=2)
    return dataclasses.replace(config, data=data, calibration=runs.Calibration(level=0.5))


def test_trajectories_become_windows(tmp_path: Path) -> None:
    config = moving(tmp_path)
    pairs = open_pairs(config.data)
    states = xarray.open_dataset(config.data.path)["h"].transpose("run", "time", "angle").to_numpy().astype("f4")
    assert len(pairs) == 12 * 4
    assert np.array_equal(pairs[4 + 1].inputs.values[0], states[1, 1:3])
    assert np.array_equal(pairs[4 + 1].outputs.values[0, 0], states[1, 4])


def test_parts_share_no_trajectory(tmp_path: Path) -> None:
    config = moving(tmp_path)
    pairs = open_pairs(config.data)
    split = split_rows(len(pairs), config, groups=pairs.groups)
    assert sorted(row for rows in split.values() for row in rows) == list(range(48))
    sides = [{*pairs.groups[rows].tolist()} for rows in split.values()]
    assert [len(side) for side in sides] == [8, 1, 1, 2]
    assert len(set().union(*sides)) == 12
    with pytest.raises(DataError, match="1 or more trajectories to train on; got 2 trajectories, of which 1 test"):
        split_rows(8, config, groups=pairs.groups[:8])
    strict = dataclasses.replace(config, calibration=runs.Calibration(level=0.9))
    split = split_rows(48, strict, groups=pairs.groups)
    assert [len(rows) for rows in split.values()] == [36, 4, 0, 8]  # a band at .9 needs nine trajectories
    many = dataclasses.replace(strict, split=runs.Split(scaling=0.05, conformal=0.75, test=0.1))
    assert len(split_rows(48, many, groups=pairs.groups)["conformal"]) == 36


@pytest.fixture(scope="module")
def flow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run on trajectories."""
    folder = tmp_path_factory.mktemp("flow")
    found = runs.report(moving(folder), folder / "out", show_progress=False)
    assert found.verdict[-1].startswith(
        "The test functions are windows of 2 trajectories, and bands were fitted on those of 1:"
    )
    return folder / "out"


def test_a_run_on_trajectories(flow: Path) -> None:
    assert runs.score(None, flow, show_progress=False).scores.functions == 8
    with RunFolder.open(None, flow) as run:
        assert run.subset("train").groups is not None  # so validation divides no trajectory


def test_too_few_trajectories_for_bands_are_reported(tmp_path: Path) -> None:
    config = dataclasses.replace(moving(tmp_path), calibration=runs.Calibration(level=0.9))
    found = runs.report(config, tmp_path / "out", show_progress=False)
    assert found.verdict[-1].startswith("There are no bands of whole functions: at a level of 0.9 they need more trajectories")
    assert runs.calibrate(None, tmp_path / "out", show_progress=False).band is None


def test_forecasts_start_from_every_window(flow: Path, tmp_path: Path) -> None:
    path = trajectories(tmp_path)
    config = runs.read_config(flow / "config.toml")
    found = runs.predict(flow, path, output=tmp_path / "out.zarr", show_progress=False)
    given = open_inputs(path, config.data)
    u = runs.calibrate(None, flow, show_progress=False).predictor(given[:])
    assert found["mean"].dims == ("window", "angle")
    assert np.allclose(found["mean"], u.mean[:, 0], atol=1e-6)
    assert found["trajectory"].to_numpy().tolist()[5:8] == [0, 1, 1]
    assert found["step"].to_numpy().tolist()[4:8] == [5, 6, 1, 2]
    assert found["step"].attrs["lead"] == 2


def test_a_file_of_the_well_needs_no_names(tmp_path: Path) -> None:
    made = write_the_well(tmp_path / "small.hdf5")
    data = Data(path=str(tmp_path / "small.hdf5"), inputs=("density", "mask"), outputs=("density",))
    assert open_pairs(data)[0].inputs.values.shape == (1, 2, 8, 6)
    free = Data(path=data.path)
    pairs = open_pairs(free)
    assert np.array_equal(pairs[0].outputs.values[0, 0], made["density"][0, 1])
    config, notes = initial_config(dataclasses.replace(Config(), data=free, calibration=runs.Calibration(bands=False)))
    assert config.data.outputs == ("density", "velocity", "stress")
    assert "velocity (3, 5, 8, 6, 2)" in notes["data.inputs"]


def test_a_file_of_pdebench_asks_for_boundaries(tmp_path: Path) -> None:
    write_pdebench(tmp_path / "flow.h5", "burgers")
    with pytest.raises(ArgumentError, match=r"periodic in .data. \(--periodic\), one entry"):
        open_pairs(Data(path=str(tmp_path / "flow.h5")))
    assert len(open_pairs(Data(path=str(tmp_path / "flow.h5"), periodic=(True,), stride=2))) == 4 * 2


def test_pairs_in_memory_are_the_same_pairs(tmp_path: Path) -> None:
    pairs = open_pairs(moving(tmp_path).data)
    held = pairs[:]
    assert held.fingerprint == pairs.fingerprint
    assert torch.equal(held.groups, pairs.groups)
    assert all(torch.equal(held[rows].inputs.values, pairs[rows].inputs.values) for rows in ([7, 3], slice(5, 9)))
    first, second = held.split(8, seed=0)
    assert not {*first.groups.tolist()} & {*second.groups.tolist()}
    assert isinstance(
        opened(tmp_path / "flow.nc", inputs=["h"], outputs=["h"], axes="angle t n", periodic=True).windows(),
        files.StoredPairs,
    )


def test_a_test_file_of_its_own_is_the_test_part(tmp_path: Path) -> None:
    """Of one series that the test file continues, no other part shares a state with it."""
    (tmp_path / "later").mkdir()
    config = cheap(written(tmp_path, "nc"))
    data = dataclasses.replace(config.data, test_path=str(written(tmp_path / "later", "nc")))
    with RunFolder.open(dataclasses.replace(config, data=data), tmp_path / "run") as run:
        assert run.record["split"]["test"] == [*range(40, 80)]
        others = [row for part in ("train", "scaling", "conformal") for row in run.record["split"][part]]
        assert sorted(others) == [*range(40)]
    states = np.random.default_rng(0).normal(size=(60, 8))
    for name, rows in {"first": slice(0, 45), "second": slice(45, 60)}.items():
        made = xarray.Dataset({"s": (("time", "x"), states[rows])}, coords={"time": np.arange(60)[rows], "x": np.arange(8) / 8})
        made.to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf")
    paths = {"path": str(tmp_path / "first.nc"), "test_path": str(tmp_path / "second.nc")}
    series = dataclasses.replace(config, data=Data(**paths, inputs=("s",), outputs=("s",), periodic=(True,)))
    with RunFolder.open(dataclasses.replace(series, calibration=runs.Calibration(level=0.5)), tmp_path / "series") as run:
        assert run.record["split"]["test"] == [*range(45, 59)]
        assert max(run.record["split"]["conformal"]) == 43  # the window from 44 to 45 ends in the test file


def test_outputs_of_a_test_file_are_the_last_files_of_outputs(tmp_path: Path) -> None:
    waves = {name: fields()[name].to_numpy() for name in ("a", "u")}
    for part, rows in {"": slice(0, 30), "test_": slice(30, 40)}.items():
        for name, array in waves.items():
            np.save(tmp_path / f"{part}{name}.npy", array[rows])
    path, test_path, *outputs = (str(tmp_path / f"{name}.npy") for name in ("a", "test_a", "u", "test_u"))
    data = Data(path=path, test_path=test_path, outputs_path=os.pathsep.join(outputs), axes="n x", periodic=(True,))
    pairs = open_pairs(data)
    assert np.array_equal(pairs[30:].outputs.values[:, 0], waves["u"][30:].astype("f4"))
    rows = rows_of_test(data, pairs)
    assert rows is not None
    assert rows.tolist() == [*range(30, 40)]
    with pytest.raises(ArgumentError, match=r"2 files in outputs_path in .data. \(--outputs_path\).*got 1"):
        open_pairs(dataclasses.replace(data, outputs_path=outputs[0]))
