"""Steps of a run: what each leaves is what the library gives by hand, none is done twice, and nothing is mixed up."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xarray
from safetensors.torch import load_file

import probneural as pn
from probneural import atomic, runs
from probneural.errors import ArgumentError, ConfigurationError, DataError, FileError, GridError, ResolutionError
from probneural.runs import Config
from probneural.runs.folder import LOCK, RunFolder
from probneural.runs.prediction import write_netcdf
from probneural.runs.recipes import resolved
from probneural.runs.sources import open_pairs, split_rows
from probneural.training import files
from probneural.training.resuming import Keeper
from tests.runs.files import cheap, fields, written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, with its data beside it."""
    folder = tmp_path_factory.mktemp("run")
    runs.score(cheap(written(folder)), folder / "out", show_progress=False)
    return folder / "out"


def test_a_run_is_what_the_library_gives_by_hand(run: Path) -> None:
    config = runs.read_config(run / "config.toml")
    split = json.loads((run / "run.json").read_text())["split"]
    dataset = fields()
    pairs = pn.FieldPairs.from_xarray(dataset["a"], dataset["u"], periodic=True, dtype=torch.float32)
    train, scaling, conformal, test = (pairs[rows] for rows in split.values())
    operator = pn.operators.FNO(1, 1, **config.operator.options, seed=0)
    pn.fit(operator, train, epochs=2, show_progress=False)
    saved = pn.load(run / "operator.safetensors")
    assert all(torch.equal(one, other) for one, other in zip(operator.parameters(), saved.parameters(), strict=True))
    raw = pn.heads.LastLayerLaplace().fit(operator, train)
    predictor = pn.calibration.VarianceScale().fit(raw, scaling)
    band = pn.calibration.SimultaneousBand(0.9).fit(predictor, conformal)
    found = runs.calibrate(None, run, show_progress=False)
    assert torch.equal(found.predictor(test.inputs).variance, predictor(test.inputs).variance)
    assert found.band.quantile == band.quantile
    scores = runs.score(None, run, show_progress=False)
    assert scores.scores == pn.metrics.score(predictor(test.inputs), test.outputs, noise=predictor.noise, whole=4)
    assert scores.band_coverage == band.coverage(test)
    mean = train.outputs.values.double().mean(0).expand(test.outputs.values.shape)
    truth = test.outputs.values.double()
    expected = ((mean - truth).square().mean(-1) / truth.square().mean(-1)).sqrt().mean()
    assert scores.baseline == pytest.approx(float(expected), rel=1e-6)


def test_a_run_in_one_file_predicts_the_same_bits(run: Path, tmp_path: Path) -> None:
    saved, file = runs.read_run(run), tmp_path / "run.safetensors"
    pn.save(saved, file)
    loaded = pn.load(file)
    assert (loaded.scores, loaded.history, loaded.record) == (saved.scores, saved.history, saved.record)
    assert loaded.config == runs.read_config(run / "config.toml")
    data = run.parent / "waves.nc"
    there, here = (runs.predict(path, data, output=tmp_path / f"{path.name}.nc", show_progress=False) for path in (file, run))
    assert there.identical(here)
    assert runs.info(file)["what"] == "Run"
    tensors, metadata = files.read(file)
    metadata["parts"]["record"] = "{}"
    files.write(file, tensors, metadata=metadata)
    for path, message in ((file, "run.json"), (run / "predictor.safetensors", "results of a run"), (data, "safetensors")):
        with pytest.raises(FileError, match=message):
            runs.read_run(path)


def test_parts_are_disjoint_and_follow_from_the_seed() -> None:
    split = split_rows(100, Config())
    assert sorted(row for rows in split.values() for row in rows) == list(range(100))
    assert {name: len(rows) for name, rows in split.items()} == {"train": 60, "scaling": 10, "conformal": 10, "test": 20}
    other = split_rows(100, dataclasses.replace(Config(), split=runs.Split(seed=1)))
    assert other["test"] != split["test"]
    assert len(split_rows(40, Config())["conformal"]) == 9  # the least that a band at 0.9 takes


def test_nothing_is_done_twice(run: Path) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in run.iterdir()}
    runs.score(None, run, show_progress=False)
    assert {path.name: path.stat().st_mtime_ns for path in run.iterdir()} == before
    assert not (run / "checkpoint.safetensors").exists()


def test_a_step_that_is_done_anew_takes_later_ones_with_it(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    (copy / "head.safetensors").unlink()
    runs.fit(None, copy, show_progress=False)
    assert {"calibration.json", "scores.json"} & {path.name for path in copy.iterdir()} == set()


def test_another_configuration_is_refused(run: Path) -> None:
    config = runs.read_config(run / "config.toml")
    other = dataclasses.replace(config, training=dataclasses.replace(config.training, epochs=3, seed=1))
    with pytest.raises(FileError, match="got others: training.epochs = 3, not 2; training.seed = 1, not 0; name another"):
        runs.train(other, run)


def test_an_edited_configuration_is_refused(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    text = (copy / "config.toml").read_text().replace("level = 0.9", "level = 0.8")
    (copy / "config.toml").write_text(text)
    with pytest.raises(FileError, match="calibration.level = 0.8, not 0.9"):
        runs.score(None, copy)


def test_other_data_are_refused_and_moved_ones_are_not(run: Path, tmp_path: Path) -> None:
    config = runs.read_config(run / "config.toml")
    moved = shutil.copy(config.data.path, tmp_path / "moved.nc")
    runs.score(dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(moved))), run, show_progress=False)
    for options, words in (({"seed": 1}, "other values"), ({"count": 41}, "41 pairs, not 40")):
        other = dataclasses.replace(config.data, path=str(written(tmp_path, **options)))
        with pytest.raises(FileError, match=f"the data in waves.nc .{words}.*; name another folder"):
            runs.score(dataclasses.replace(config, data=other), run)


def test_a_device_belongs_to_no_results(run: Path) -> None:
    config = runs.read_config(run / "config.toml")
    other = dataclasses.replace(config.training, device="cpu", workers=1)
    assert config.training.device == "auto"
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    scores = runs.score(dataclasses.replace(config, training=other), run, show_progress=False)
    assert scores.to_dict() == json.loads(before["scores.json"])
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_folder_without_results_takes_other_settings(tmp_path: Path) -> None:
    config = cheap(written(tmp_path))
    many = dataclasses.replace(config.operator, options={"modes": [40]})
    with pytest.raises(ResolutionError):
        runs.train(dataclasses.replace(config, operator=many), tmp_path / "run", show_progress=False)
    assert {path.name for path in (tmp_path / "run").iterdir()} - {LOCK} == {"config.toml", "run.json"}
    assert runs.train(config, tmp_path / "run", show_progress=False).epochs == 2
    assert runs.read_config(tmp_path / "run" / "config.toml").operator.options["modes"] == [4]


def test_descending_coordinates_are_turned_round(tmp_path: Path) -> None:
    fields().isel(lon=slice(None, None, -1)).to_netcdf(tmp_path / "down.nc", engine="h5netcdf")
    data = cheap(written(tmp_path)).data
    down = open_pairs(dataclasses.replace(data, path=str(tmp_path / "down.nc")))
    assert down.fingerprint == open_pairs(data).fingerprint
    assert down.outputs.labels.coordinates["lon"][0] == 0.0


def test_folders_that_hold_something_else_are_left_alone(tmp_path: Path) -> None:
    config = cheap(written(tmp_path))
    with pytest.raises(FileError, match="one with waves.nc"):
        runs.train(config, tmp_path)
    with pytest.raises(FileError, match="folder at"):
        runs.train(config, tmp_path / "waves.nc" / "below")
    with pytest.raises(FileError, match="a run's folder at .*; got none"):
        runs.train(None, tmp_path / "none")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    with pytest.raises(FileError, match="JSON at"):
        runs.train(config, tmp_path / "run")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for the administrator")
def test_a_read_only_folder_is_a_typed_error(tmp_path: Path) -> None:
    config = cheap(written(tmp_path))
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(FileError, match="a folder"):
        runs.train(config, tmp_path / "locked" / "run")


def test_a_damaged_file_is_a_typed_error(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    whole = (copy / "predictor.safetensors").read_bytes()
    (copy / "predictor.safetensors").write_bytes(whole[:-8] + b"12345678")
    with pytest.raises(FileError, match="damaged"):
        runs.calibrate(None, copy)
    (copy / "scores.json").write_text('{"scores": {}}')
    (copy / "predictor.safetensors").write_bytes(whole)
    with pytest.raises(FileError, match="remove scores.json"):
        runs.score(None, copy)
    (copy / "scores.json").write_text('{"scores"')
    with pytest.raises(FileError, match="remove this file, and its step is done anew"):
        runs.score(None, copy)


SCRIPT = """
import os, signal, sys
from probneural import runs
from probneural.training.resuming import Keeper

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it from birth

class Killed(Keeper):
    written_files = 0

    def write(self):
        super().write()
        Killed.written_files += 1
        if Killed.written_files == 5:
            os.kill(os.getpid(), int(sys.argv[3]))

import probneural.training.trainer
probneural.training.trainer.Keeper = Killed
getattr(runs, sys.argv[4])(runs.read_config(sys.argv[1]), sys.argv[2])
"""


def killed_run(config: Path, folder: Path, step: str, *, kill: signal.Signals) -> None:
    """A step in a process of its own, which dies as it has written its fifth checkpoint."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(config), str(folder), str(int(kill)), step],
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads()), "PYTHONPATH": os.getcwd()},
    )
    assert process.wait() != 0


def equal(first: Path, second: Path) -> bool:
    """Whether two saved files hold the same bits."""
    one, other = load_file(first), load_file(second)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kill", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_killed_training_goes_on_to_the_same_bits(tmp_path: Path, kill: signal.Signals) -> None:
    config = cheap(written(tmp_path, points=64), epochs=60)
    runs.write_config(config, tmp_path / "run.toml")
    runs.train(config, tmp_path / "whole", show_progress=False)
    folder = tmp_path / "killed"
    killed_run(tmp_path / "run.toml", folder, "train", kill=kill)
    assert not (folder / "operator.safetensors").exists()
    assert runs.info(folder / "checkpoint.safetensors")["epochs done"] == 5
    history = runs.train(None, folder, show_progress=False)
    assert history.epochs == 60
    assert equal(tmp_path / "whole" / "operator.safetensors", folder / "operator.safetensors")


def test_a_killed_ensemble_goes_on_with_the_member_it_was_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three members of three epochs, the first of which is the operator: the process dies in the second epoch of the third."""
    config = cheap(written(tmp_path), epochs=3)
    config = dataclasses.replace(config, head=runs.Head(name="DeepEnsemble", options={"members": 3}))
    runs.write_config(config, tmp_path / "run.toml")
    runs.fit(config, tmp_path / "whole", show_progress=False)
    folder = tmp_path / "killed"
    runs.train(config, folder, show_progress=False)
    killed_run(tmp_path / "run.toml", folder, "fit", kill=signal.SIGKILL)
    kept = sorted(runs.info(path)["epochs done"] for path in folder.glob("member-*"))
    assert kept == [2, 3]
    written_files = []
    keep = Keeper.write
    monkeypatch.setattr(Keeper, "write", lambda keeper: (written_files.append(keeper.path.name), keep(keeper)))
    runs.fit(None, folder, show_progress=False)
    assert len(written_files) == 1  # the third epoch of the third member
    assert equal(tmp_path / "whole" / "head.safetensors", folder / "head.safetensors")
    assert not list(folder.glob("member-*"))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"path": "none.nc"}, FileError, "No such file"),
        ({"periodic": ()}, ArgumentError, r"periodic in .data. \(--periodic\), .*whether lon is periodic"),
        ({"lengths": (3.0,)}, GridError, r"lengths in .data. \(--lengths\) = 2 along 'lon'"),
    ],
)
def test_data_that_do_not_fit(tmp_path: Path, change: dict[str, object], error: type[Exception], words: str) -> None:
    config = cheap(written(tmp_path))
    with pytest.raises(error, match=words):
        runs.train(dataclasses.replace(config, data=dataclasses.replace(config.data, **change)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.bad_input
def test_data_that_are_unusable(tmp_path: Path) -> None:
    (tmp_path / "text.nc").write_text("no data")
    with pytest.raises(FileError, match=r"text.nc"):
        runs.train(cheap(tmp_path / "text.nc"), tmp_path / "run")
    with pytest.raises(DataError, match="4 or more pairs to train on; got 12 pairs, of which 2 test, 9 conformal, 2 scaling"):
        runs.train(cheap(written(tmp_path, count=12)), tmp_path / "run")
    broken = fields()
    broken["u"][3, 2] = float("nan")
    broken.to_netcdf(tmp_path / "nan.nc", engine="h5netcdf")
    with pytest.raises(DataError, match="finite u in torch.float32; got values that are NaN or infinite in function 3"):
        runs.train(cheap(tmp_path / "nan.nc"), tmp_path / "run")


def test_a_dimension_whose_name_says_no_role_is_asked_for(tmp_path: Path) -> None:
    fields().rename(sample="member").to_netcdf(tmp_path / "numbered.nc", engine="h5netcdf")
    config = cheap(tmp_path / "numbered.nc")
    with pytest.raises(ArgumentError, match=r"role of axis 'member' of a \(member 40, lon 16\).*\"n lon\" if it is samples"):
        open_pairs(config.data)
    assert len(open_pairs(dataclasses.replace(config.data, axes="n lon"))) == 40
    pairs = open_pairs(dataclasses.replace(config.data, sample="member"))
    assert len(pairs) == 40
    assert pairs.outputs.labels.space == ("lon",)


def test_what_follows_from_the_data_is_resolved_once(tmp_path: Path) -> None:
    pairs = open_pairs(cheap(written(tmp_path)).data)
    config = resolved(Config(), pairs, train=600)
    assert config.operator.options["modes"] == [8]
    assert "embeds_position" not in config.operator.options
    assert (config.training.epochs, config.training.learning_rate, config.scores.whole) == (50, 3e-3, 200)
    assert resolved(config, pairs, train=600) == config
    bounded = pn.FieldPairs.from_numpy(pairs[:].inputs.values.numpy(), pairs[:].outputs.values.numpy(), periodic=[False])
    assert resolved(Config(), bounded, train=600).operator.options["embeds_position"]
    wrong = dataclasses.replace(Config(), operator=runs.Operator(options={"widht": 3}))
    with pytest.raises(ConfigurationError, match="got 'widht' in operator.options; did you mean 'width'"):
        resolved(wrong, pairs, train=600)


@pytest.mark.parametrize(
    ("operator", "head"),
    [
        (runs.Operator(name="DeepONet", options={"basis": 4}), runs.Head(name="LastLayerLaplace")),
        (runs.Operator(name="PODDeepONet", options={"basis": 2}), runs.Head(name="KernelOperator")),
        (None, runs.Head(name="DeepEnsemble", options={"members": 2})),
        (None, runs.Head(name="Laplace", options={"structure": "diagonal"})),
    ],
)
def test_every_operator_and_head_runs(tmp_path: Path, operator: runs.Operator | None, head: runs.Head) -> None:
    config = cheap(written(tmp_path), outputs=("u", "slope"))
    config = dataclasses.replace(config, operator=operator or config.operator, head=head)
    scores = runs.score(config, tmp_path / "run", show_progress=False)
    assert 0.0 <= scores.scores.coverage <= 1.0
    assert RunFolder.finished(tmp_path / "run").config.head == resolved(config, open_pairs(config.data), train=19).head


def test_calibration_can_be_left_out(tmp_path: Path) -> None:
    settings = runs.Calibration(scales=False, bands=False)
    config = dataclasses.replace(cheap(written(tmp_path)), calibration=settings)
    found = runs.calibrate(config, tmp_path / "run", show_progress=False)
    assert found.band is None
    assert type(found.predictor).__name__ == "LastLayerPredictor"
    assert runs.score(None, tmp_path / "run", show_progress=False).band_coverage is None


# NetCDF files on disks that become full


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 would end the process, whether it wrote by name or through a stream that raised."""
    parts = (xarray.Dataset({"u": (("n", "x"), np.full((10, 1000), float(number)))}) for number in range(10))
    space = iter((2**30, 2**30, 80_000))
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=next(space)))
    with (
        pytest.raises(FileError, match="80000 bytes of free space .*; got 80000"),
        atomic.replacing(tmp_path / "out.nc") as temporary,
    ):
        write_netcdf(temporary, parts, along="n")
    assert not list(tmp_path.iterdir())
