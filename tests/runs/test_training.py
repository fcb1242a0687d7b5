"""Settings of the training: each is what `pn.fit` takes, and what early stopping chose is written and said."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural import runs
from probneural.runs.recipes import MemberTraining, train_operator
from probneural.training import EarlyStopping, Optimization
from tests.runs.files import cheap, fields, written

EPOCHS = 4
WILD: dict[str, Any] = {"learning_rate": 1.0, "optimization": {"schedule": "none"}}
"""Settings under which losses rise."""

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "optimizer": ({"optimization": {"optimizer": "adamw"}}, {"optimization": Optimization(optimizer="adamw")}),
    "decay": ({"optimization": {"weight_decay": 0.5}}, {"optimization": Optimization(weight_decay=0.5)}),
    "no schedule": ({"optimization": {"schedule": "none"}}, {"optimization": Optimization(schedule=None)}),
    "clip": ({"optimization": {"gradient_clip": 0.01}}, {"optimization": Optimization(gradient_clip=0.01)}),
    "accumulation": ({"optimization": {"accumulation": 2}}, {"optimization": Optimization(accumulation=2)}),
    "tail": (
        {"optimization": {"precision": "bfloat16", "full_precision_tail": 0.5}},
        {"optimization": Optimization(precision="bfloat16", full_precision_tail=0.5)},
    ),
    "precision": ({"optimization": {"precision": "bfloat16"}}, {"optimization": Optimization(precision="bfloat16")}),
    "stopping": (
        WILD | {"early_stopping": {"patience": 1}},
        {"learning_rate": 1.0, "optimization": Optimization(schedule=None, early_stopping=EarlyStopping(patience=1))},
    ),
    "stopping with the last weights": (
        WILD | {"early_stopping": {"patience": 1, "restore_best": False}},
        {
            "learning_rate": 1.0,
            "optimization": Optimization(schedule=None, early_stopping=EarlyStopping(patience=1, restore_best=False)),
        },
    ),
}
"""Settings as a file has them, and the arguments of `pn.fit` that they stand for."""


@cache
def pairs() -> pn.FieldPairs:
    dataset = fields(24)
    return pn.FieldPairs.from_xarray(dataset["a"], dataset["u"], periodic=True, dtype=torch.float32)


def by_settings(**settings: Any) -> dict[str, Tensor]:
    """Weights that a run's settings lead to."""
    config = runs.Config.from_dict({"training": {"epochs": EPOCHS, "batch_size": 6, "learning_rate": 3e-3} | settings})
    operator = pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1, projection=4, seed=0)
    train_operator(operator, pairs(), training=config.training)
    return operator.state_dict()


@pytest.mark.parametrize("case", CASES)
def test_settings_are_arguments_of_fit(case: str) -> None:
    """To the same bits, which differ from those without the setting."""
    settings, arguments = CASES[case]
    operator = pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1, projection=4, seed=0)
    given = {"epochs": EPOCHS, "data": pn.training.DataOptions(batch_size=6), "show_progress": False, "seed": 0, **arguments}
    pn.fit(operator, pairs(), **given)
    found = by_settings(**settings)
    assert all(torch.equal(found[name], value) for name, value in operator.state_dict().items())
    plain = by_settings(**WILD if "early_stopping" in settings else {})
    assert any(not torch.equal(plain[name], value) for name, value in found.items())


def test_members_of_an_ensemble_are_trained_alike(tmp_path: Path) -> None:
    settings = {"batch_size": 6, "learning_rate": 3e-3, "optimization": {"gradient_clip": 0.01}}
    training = runs.Config.from_dict({"training": {"epochs": EPOCHS} | settings}).training
    operator = pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1, projection=4, seed=0)
    MemberTraining(training, tmp_path)(operator, pairs(), seed=0, show_progress=False)
    expected = by_settings(**settings)
    assert all(torch.equal(expected[name], value) for name, value in operator.state_dict().items())


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training that early stopping has ended."""
    folder = tmp_path_factory.mktemp("stopped")
    config = cheap(written(folder), epochs=40)
    training = dataclasses.replace(config.training, learning_rate=0.3, early_stopping=runs.EarlyStopping(patience=3))
    runs.train(dataclasses.replace(config, training=training), folder / "out", show_progress=False)
    return folder / "out"


def test_what_early_stopping_chose_is_written(stopped: Path) -> None:
    history = runs.train(None, stopped, show_progress=False)
    assert history.restored is not None
    assert history.epochs == history.restored + 3 < 40
    assert min(history.validation) == history.validation[history.restored - 1]
    assert json.loads((stopped / "history.json").read_text())["restored"] == history.restored
    assert runs.info(stopped)["weights of epoch"] == history.restored


def test_nothing_is_written_where_nothing_was_chosen(tmp_path: Path) -> None:
    runs.train(cheap(written(tmp_path)), tmp_path / "run", show_progress=False)
    assert json.loads((tmp_path / "run" / "history.json").read_text())["restored"] is None
    assert "weights of epoch" not in runs.info(tmp_path / "run")


FILE = """[data]
path = "waves.nc"
inputs = ["a"]
outputs = ["u"]
periodic = [true]

[operator]
options = { modes = [4], width = 4, depth = 1, projection = 8 }

[training]
epochs = 2
"""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("waves.nc", "none.nc"), r"No such file"),
        (("path", "#"), r"a data file; got none"),
        (('["a"]', '["slop"]'), r"a variable 'slop' of .*; did you mean 'slope'"),
        (('["u"]', '["v"]'), r"a variable 'v' of "),
        (("inputs", "#"), r"inputs in .data. "),
        (("[true]", "[]"), r"periodic in .data. "),
        (("periodic", "#"), r"periodic in .data. "),
        (("[true]", "[true, false]"), r"one entry per space dimension"),
        (("[true]", "[true]\nsample = 'lat'"), r"got 'lat'"),
        (("[true]", "[true]\nhistory = 2"), r"history of 1 in .data. .*got .2."),
        (("width", "widht"), r"options of FNO; got 'widht' in operator.options; did you mean 'width'"),
        (("width = 4", "width = 0"), r"width"),
        (
            ("[training]", "[head]\noptions = { member = 3 }\n[training]"),
            r"LastLayerLaplace; got 'member' in head.options",
        ),
        (("[training]", "[head]\nname = 'DeepEnsemble'\noptions = { members = 0 }\n[training]"), r"members"),
    ],
)
def test_errors_that_come_late_name_the_setting(tmp_path: Path, change: tuple[str, str], words: str) -> None:
    written(tmp_path)
    (tmp_path / "run.toml").write_text(FILE.replace(*change, 1))
    with pytest.raises(pn.errors.ProbneuralError, match=words):
        runs.fit(runs.read_config(tmp_path / "run.toml"), tmp_path / "run", show_progress=False)
