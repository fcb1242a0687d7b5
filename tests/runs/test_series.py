"""Runs on one long series: parts in the order of time, persistence beside the mean, and words about it in the report."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray

import probneural as pn
from probneural import runs
from probneural.command_line import main
from probneural.errors import ArgumentError, DataError, DataWarning
from probneural.runs import Config
from probneural.runs.reporting import verdict
from probneural.training.history import History
from tests.runs.files import cheap

TIMES, POINTS = 90, 16


def states() -> np.ndarray:
    """A field that drifts and slowly forgets, `(times, points)`."""
    generator = np.random.default_rng(0)
    x = np.arange(POINTS) / POINTS
    noise = generator.normal(size=(TIMES, 2)) @ np.stack([np.sin(2 * np.pi * x), np.cos(2 * np.pi * x)])
    values = [noise[0]]
    for kick in noise[1:]:
        values.append(0.9 * np.roll(values[-1], 1) + 0.3 * kick)
    return np.stack(values)


def series_file(folder: Path) -> Path:
    path = folder / "long.nc"
    variables = {"a": (("time", "lon"), states()), "u": (("time", "lon"), 2.0 * states() + 1.0)}
    dataset = xarray.Dataset(variables, coords={"time": np.arange(TIMES) * 6.0, "lon": np.arange(POINTS) * 22.5})
    dataset.to_netcdf(path, engine="h5netcdf")
    return path


def settings(path: Path, *, split: runs.Split | None = None, **data: Any) -> Config:
    config = cheap(path, outputs=("a",))
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **data), split=split or runs.Split())


def split_of(folder: Path) -> dict[str, list[int]]:
    return json.loads((folder / "run.json").read_text())["split"]


def test_one_series_is_trained_on_its_earlier_part_and_scored_on_its_latest(tmp_path: Path) -> None:
    path, folder = series_file(tmp_path), tmp_path / "out"
    found = runs.report(settings(path), folder, show_progress=False)
    parts = [split_of(folder)[name] for name in ("train", "scaling", "conformal", "test")]
    assert [len(part) for part in parts[1:]] == [9, 9, 18]
    assert all(earlier[-1] + 1 < later[0] for earlier, later in itertools.pairwise(parts))  # one shares a state
    assert parts[-1][-1] == TIMES - 2
    assert runs.read_config(folder / "config.toml").split.by == "time"
    values = torch.from_numpy(states())[parts[-1][0] :]
    error = ((values[1:] - values[:-1]).square().mean(1) / values[1:].square().mean(1)).sqrt().mean()
    assert found.scores.persistence == pytest.approx(float(error), rel=1e-6)
    text = " ".join(found.verdict)
    assert "later in time than all that was trained on" in text
    history, persistence = History(train=(1.0,), validation=(), seconds=(1.0,)), found.scores.persistence
    for error, words in ((0.9, "has 200 %, and persistence"), (1.1, "no better than persistence")):
        scores = dataclasses.replace(found.scores.scores, relative_l2=error * persistence)
        assert words in verdict(dataclasses.replace(found.scores, scores=scores, baseline=2.0), history)[0]
    assert "persistence" in str(found.scores)
    assert "persistence" in found.path.read_text()


def test_a_command_reports_on_one_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--inputs a --outputs a --periodic true --training.epochs 1 --quiet --operator.options width=4 depth=1 modes=[4]"
    words = ["report", str(series_file(tmp_path)), "--folder", str(tmp_path / "out"), *options.split()]
    assert main([*words, "--split.embargo", "2"]) == 0
    assert "relative L2 error of persistence" in capsys.readouterr().out
    split = split_of(tmp_path / "out")
    assert split["scaling"][0] - split["train"][-1] == 4  # one shares a state, two lie in the embargo


def test_samples_that_are_times_are_split_in_time_and_have_no_persistence(tmp_path: Path) -> None:
    config = settings(series_file(tmp_path), sample="time")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, outputs=("u",)))
    scores = runs.score(config, tmp_path / "out", show_progress=False)
    split = split_of(tmp_path / "out")
    assert [row for part in split.values() for row in part] == list(range(TIMES))
    assert scores.persistence is None


def test_a_random_split_over_time_is_said_in_a_warning_and_in_the_report(tmp_path: Path) -> None:
    config = settings(series_file(tmp_path), split=runs.Split(by="random"), sample="time")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, outputs=("u",)))
    with pytest.warns(DataWarning, match="--split.by time"):
        found = runs.report(config, tmp_path / "out", show_progress=False)
    assert "split at random" in " ".join(found.verdict)


def test_blocks_are_dealt_out_by_the_seed(tmp_path: Path) -> None:
    path = series_file(tmp_path)
    for seed in (0, 1):
        split = runs.Split(by="blocks", seed=seed)
        runs.train(settings(path, split=split, sample="auto"), tmp_path / str(seed), show_progress=False)
    parts, others = split_of(tmp_path / "0"), split_of(tmp_path / "1")
    assert parts != others
    rows = sorted(row for part in parts.values() for row in part)
    assert len(rows) == len(set(rows)) < TIMES - 1


def test_splits_that_do_not_fit_the_data_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = series_file(tmp_path)
    with pytest.raises(DataError, match="lower --split.embargo"):
        runs.train(settings(path, split=runs.Split(embargo=60)), tmp_path / "out", show_progress=False)
    config = settings(path, split=runs.Split(by="random", embargo=1), sample="time")
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, outputs=("u",)))
    with pytest.raises(ArgumentError, match="--split.by time"), pytest.warns(DataWarning, match="in time"):
        runs.train(config, tmp_path / "out", show_progress=False)


def test_the_watched_part_of_a_series_is_its_latest(tmp_path: Path) -> None:
    data = pn.data.open(series_file(tmp_path), inputs=["a"], outputs=["a"], periodic=True, dtype=torch.float32)
    pairs = data.windows()
    by_fraction, by_pairs = (pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1, seed=0) for _ in range(2))
    train, later = pairs.split(80, by="time")
    first = pn.fit(by_fraction, pairs, epochs=2, validation=9 / 89, show_progress=False)
    second = pn.fit(by_pairs, train, epochs=2, validation=later, show_progress=False)
    assert first.train == second.train
    assert first.validation == second.validation
