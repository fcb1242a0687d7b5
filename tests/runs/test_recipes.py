"""The choice of operator and head in a run: made from the data, stated before training, recorded, and reported."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from probneural import runs
from probneural.errors import ConfigurationError
from probneural.runs.recipes import resolved
from probneural.runs.sources import open_pairs
from tests.runs.files import cheap, written


def parameters(folder: Path, count: int = 70) -> runs.Config:
    """A run from one parameter, constant along the line, to a sine of that amplitude."""
    numbers = np.random.default_rng(0).uniform(1.0, 3.0, size=(count, 1))
    x = np.arange(16) / 16
    np.savez(folder / "parameters.npz", q=np.repeat(numbers, 16, 1), u=np.sin(2 * np.pi * x) * numbers)
    data = runs.Data(path=str(folder / "parameters.npz"), inputs=("q",), outputs=("u",), periodic=(True,))
    return runs.Config(data=data, training=runs.Training(epochs=20), scores=runs.Scores(whole=4))


def test_inputs_constant_in_space_get_an_operator_that_represents_the_map(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = runs.report(parameters(tmp_path), tmp_path / "run")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("data: 70 samples; 1 channel (q) to 1 channel (u); x0 16 over 1, periodic")
    assert lines[1].startswith("PODDeepONet, LastLayerLaplace: the inputs are constant in space, so they are parameters (1")
    assert lines[2].startswith("training PODDeepONet")
    assert report.scores.scores.relative_l2 is not None
    assert report.scores.scores.relative_l2 < 0.1 < (report.scores.baseline or 0.0)
    assert "an FNO maps constants to constants" in report.path.read_text()
    assert runs.read_config(tmp_path / "run" / "config.toml").operator.name == "PODDeepONet"
    assert "constant in space" in json.loads((tmp_path / "run" / "run.json").read_text())["reason"]
    runs.score(None, tmp_path / "run", show_progress=False)


def test_few_samples_train_no_operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = dataclasses.replace(cheap(written(tmp_path)), operator=runs.Operator())
    report = runs.report(config, tmp_path / "run")
    assert "KernelOperator: 19 samples are few for a neural operator" in capsys.readouterr().err.splitlines()[1]
    assert not (tmp_path / "run" / "operator.safetensors").exists()
    assert report.scores.scores.relative_l2 is not None
    assert report.scores.scores.relative_l2 < 0.1
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()}
    assert runs.train(None, tmp_path / "run", show_progress=False).epochs == 0
    assert runs.score(None, tmp_path / "run", show_progress=False) == report.scores
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "run").iterdir()} == before
    assert runs.info(tmp_path / "run")["head"] == "KernelOperator"
    prediction = runs.predict(tmp_path / "run", tmp_path / "waves.nc", output=tmp_path / "out.nc", show_progress=False)
    assert prediction["mean"].shape == (40, 16)


@pytest.mark.parametrize(
    ("operator", "head", "expected"),
    [
        (runs.Operator(), runs.Head(), ("none", "KernelOperator")),
        (runs.Operator(), runs.Head(name="KernelOperator"), ("none", "KernelOperator")),
        (runs.Operator(), runs.Head(name="Laplace"), ("FNO", "Laplace")),
        (runs.Operator(options={"width": 4}), runs.Head(), ("FNO", "LastLayerLaplace")),
        (runs.Operator(name="none"), runs.Head(), ("none", "KernelOperator")),
        (runs.Operator(name="FNO"), runs.Head(name="KernelOperator"), ("FNO", "KernelOperator")),
    ],
)
def test_a_choice_that_is_stated_stays(
    tmp_path: Path, operator: runs.Operator, head: runs.Head, expected: tuple[str, str]
) -> None:
    config = dataclasses.replace(cheap(written(tmp_path)), operator=operator, head=head)
    config = resolved(config, open_pairs(config.data), train=19)
    assert (config.operator.name, config.head.name) == expected


def test_a_head_that_needs_an_operator_gets_one(tmp_path: Path) -> None:
    config = dataclasses.replace(cheap(written(tmp_path)), operator=runs.Operator(name="none"), head=runs.Head(name="Laplace"))
    with pytest.raises(
        ConfigurationError, match='expected an operator for Laplace; got operator.name = "none"; name one, "FNO" or "auto"'
    ):
        resolved(config, open_pairs(config.data), train=19)
