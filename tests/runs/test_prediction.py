"""Predictions as files: the predictor's own numbers on the inputs' coordinates."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray

import probneural as pn
from probneural import runs
from probneural.errors import DataError, FileError, UnsupportedError
from probneural.runs.sources import open_inputs
from tests.runs.files import cheap, fields, written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a calibrated run of two output channels, with its data beside it."""
    folder = tmp_path_factory.mktemp("run")
    config = cheap(written(folder), outputs=("u", "slope"))
    config = dataclasses.replace(config, calibration=runs.Calibration(noise=0.01))
    runs.calibrate(config, folder / "out", show_progress=False)
    return folder / "out"


@pytest.mark.parametrize("points", [16, 24])
def test_a_file_holds_what_the_predictor_says(run: Path, tmp_path: Path, points: int) -> None:
    given = fields(70, points, seed=3).drop_vars(["u", "slope"]).assign_coords(sample=np.arange(70) + 5)
    given.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    runs.predict(run, tmp_path / "new.nc", output=tmp_path / "out.nc", show_progress=False)
    found = runs.calibrate(None, run, show_progress=False)
    inputs = open_inputs(tmp_path / "new.nc", runs.read_config(run / "config.toml").data)[:]
    u, band = found.predictor(inputs), found.band(inputs)
    lower, upper = u.interval(0.9, noise=found.predictor.noise)
    assert found.predictor.noise.tolist() == pytest.approx([0.01, 0.01])
    std = (u.variance + found.predictor.noise[:, None]).sqrt()
    with xarray.open_dataset(tmp_path / "out.nc") as dataset:
        assert dataset["mean"].dims == ("sample", "channel", "lon")
        assert dataset["channel"].to_numpy().tolist() == ["u", "slope"]
        assert np.array_equal(dataset["lon"], given["lon"])
        assert dataset["sample"].to_numpy().tolist() == list(range(5, 75))
        expected = {"mean": u.mean, "std": std, "lower": lower, "upper": upper, "band_lower": band.lower}
        for name, values in expected.items():
            assert np.allclose(dataset[name], values, rtol=1e-4, atol=1e-5), name
        assert np.allclose(dataset["band_upper"] - dataset["mean"], band.half_width, rtol=1e-4, atol=1e-5)
        assert dataset["lower"].attrs["level"] == dataset.attrs["level"] == 0.9


def test_all_formats_hold_equal_numbers(run: Path, tmp_path: Path) -> None:
    fields(30).drop_vars(["u", "slope"]).assign_coords(sample=np.arange(30) + 5).to_netcdf(tmp_path / "new.nc")
    for name in ("out.nc", "out.zarr", "out.npz", "out.csv"):
        (tmp_path / "out.csv").write_text("old")
        written = runs.predict(run, tmp_path / "new.nc", output=tmp_path / name, show_progress=False)
        assert isinstance(written, xarray.Dataset)
        assert written.encoding["source"] == str(tmp_path / name)
    expected = xarray.load_dataset(tmp_path / "out.nc")
    xarray.testing.assert_equal(xarray.open_zarr(tmp_path / "out.zarr", consolidated=False).load(), expected)
    with np.load(tmp_path / "out.npz") as arrays:
        assert set(arrays) == set(expected.variables)
        assert all(np.array_equal(arrays[name], expected[name]) for name in arrays)
    with (tmp_path / "out.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert list(rows[0]) == ["sample", "channel", "lon", "mean", "std", "lower", "upper", "band_lower", "band_upper"]
    assert [row["channel"] for row in rows[::16]] == ["u", "slope"] * 30
    for name in ("sample", "lon", *expected.data_vars):
        column = expected[name].broadcast_like(expected["mean"]).to_numpy().ravel()
        assert np.array_equal(np.array([row[name] for row in rows], column.dtype), column), name


def test_an_archive_gives_an_archive_with_its_order_of_axes(tmp_path: Path) -> None:
    made = fields(40)
    arrays = {"a": made["a"].to_numpy(), "u": np.stack([made["u"], made["slope"]], -1)}
    np.savez(tmp_path / "waves.npz", **arrays)
    config = cheap(tmp_path / "waves.npz")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, axes="n x -> n x c"))
    runs.calibrate(config, tmp_path / "run", show_progress=False)
    runs.predict(tmp_path / "run", tmp_path / "waves.npz", output=tmp_path / "out", show_progress=False)
    with np.load(tmp_path / "out.npz") as out:
        inside = (out["band_lower"] <= arrays["u"]) & (arrays["u"] <= out["band_upper"])
    assert inside.mean() > 0.8


def test_outputs_on_another_grid_have_its_coordinates(tmp_path: Path) -> None:
    fine = fields(points=32).rename(lon="x")
    dataset = xarray.Dataset({"a": fields()["a"], "u": fine["u"]})
    dataset.to_netcdf(tmp_path / "two.nc", engine="h5netcdf")
    runs.calibrate(cheap(tmp_path / "two.nc"), tmp_path / "run", show_progress=False)
    out = runs.predict(tmp_path / "run", tmp_path / "two.nc", output=tmp_path / "out.nc", show_progress=False)
    assert out["mean"].dims == ("sample", "x")
    assert np.allclose(out["x"], fine["x"])
    assert runs.score(None, tmp_path / "run", show_progress=False).scores.functions == 8


def test_what_cannot_be_predicted(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "new.nc"
    fields(3).drop_vars("a").to_netcdf(path, engine="h5netcdf")
    with pytest.raises(DataError, match=r"a variable 'a' of .*new.nc"):
        runs.predict(run, path, output=tmp_path / "out.nc")
    with pytest.raises(FileError, match="the same file"):
        runs.predict(run, path, output=path)
    with pytest.raises(UnsupportedError, match=r"\.nc, \.nc4, \.zarr, \.npz, \.csv"):
        runs.predict(run, path, output=tmp_path / "out.txt")
    with pytest.raises(FileError, match="a run's folder"):
        runs.predict(tmp_path, path, output=tmp_path / "out.nc")
    raw = dataclasses.replace(cheap(written(tmp_path)))
    runs.train(raw, tmp_path / "raw", show_progress=False)
    with pytest.raises(FileError, match="first: probneural calibrate"):
        runs.predict(tmp_path / "raw", path, output=tmp_path / "out.nc")


def test_files_say_what_they_are(run: Path, tmp_path: Path) -> None:
    assert runs.info(run)["done"] == "trained, head fitted, calibrated"
    assert runs.info(run)["split"] == "19 train, 4 scaling, 9 conformal, 8 test"
    operator = runs.info(run / "operator.safetensors")
    assert (operator["what"], operator["is"]) == ("FNO", "an operator")
    assert operator["configuration of FNO"]["modes"] == [4]
    pn.save(pn.operators.Rollout(pn.operators.FNO(1, 1, modes=(2,), width=2, depth=1), 2), tmp_path / "rollout.safetensors")
    assert runs.info(tmp_path / "rollout.safetensors")["is"] == "an operator"
    assert runs.info(run / "predictor.safetensors")["made of"].startswith("LastLayerPredictor")
    assert "a (sample 40, lon 16)" in runs.info(run.parent / "waves.nc")["variables"]
    (tmp_path / "other.txt").write_text("")
    for path, words in (
        (tmp_path / "other.txt", "begins with b''"),
        (tmp_path / "none", "No such file"),
        (tmp_path, "neither"),
    ):
        with pytest.raises(FileError, match=words):
            runs.info(path)
    torch.save({}, tmp_path / "pickle.safetensors")
    with pytest.raises(FileError, match="safetensors file"):
        runs.info(tmp_path / "pickle.safetensors")


def test_no_functions_are_no_inputs(run: Path, tmp_path: Path) -> None:
    given = fields(3, 16, seed=3).drop_vars(["u", "slope"]).isel(sample=slice(0, 0))
    given.to_netcdf(tmp_path / "none.nc", engine="h5netcdf")
    with pytest.raises(DataError, match="1 or more functions in"):
        runs.predict(run, tmp_path / "none.nc", output=tmp_path / "out.nc", show_progress=False)


def test_units_are_compared_and_written(tmp_path: Path) -> None:
    """A file in other units is refused by both names; one that says none is taken as it is."""
    made = fields(40)
    for name, unit in {"a": "K", "u": "m s-1"}.items():
        made[name].attrs["units"] = unit
    made.to_netcdf(tmp_path / "train.nc", engine="h5netcdf")
    runs.calibrate(cheap(tmp_path / "train.nc"), tmp_path / "run", show_progress=False)
    for unit in ("K", ""):
        made["a"].attrs["units"] = unit
        made.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
        out = runs.predict(tmp_path / "run", tmp_path / "new.nc", output=tmp_path / "out.nc", show_progress=False)
        assert {out[name].attrs["units"] for name in ("mean", "std", "lower", "upper")} == {"m s-1"}
        out.close()
    made["a"].attrs["units"] = "degC"
    made.to_netcdf(tmp_path / "new.nc", engine="h5netcdf")
    with pytest.raises(DataError, match="'K', the unit of the training inputs; got 'degC'"):
        runs.predict(tmp_path / "run", tmp_path / "new.nc", output=tmp_path / "out.nc", show_progress=False)


def test_arrays_without_names_from_report_to_prediction(tmp_path: Path) -> None:
    """Parameters in a table of text, and channels last; the axes that are stated once hold for new inputs."""
    table = np.random.default_rng(0).uniform(1.0, 3.0, size=(60, 2))
    x = np.arange(16) / 16
    waves = table[:, :1] * np.sin(2 * np.pi * x) + table[:, 1:]
    np.savetxt(tmp_path / "q.csv", table, delimiter=",")
    np.save(tmp_path / "u.npy", waves[..., None])
    paths = {"path": str(tmp_path / "q.csv"), "outputs_path": str(tmp_path / "u.npy")}
    data = runs.Data(**paths, axes="n c -> n x c", periodic=(True,))
    config = runs.Config(data=data, training=runs.Training(epochs=1), scores=runs.Scores(whole=4))
    report = runs.report(config, tmp_path / "run", show_progress=False)
    assert "60 samples; 2 channels (values) to 1 channel (values); x 16 over 1, periodic" in report.path.read_text()
    out = runs.predict(tmp_path / "run", tmp_path / "q.csv", output=tmp_path / "out", show_progress=False)
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 60 * 16 + 1
    assert dict(out.sizes) == {"sample": 60, "x": 16}
    assert runs.read_config(tmp_path / "run" / "config.toml").operator.name == "PODDeepONet"
