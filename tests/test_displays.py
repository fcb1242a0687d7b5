"""Notebooks show tables that agree with what is printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from torch import nn

import probneural as pn
from probneural.displays import html_table
from probneural.training.callbacks import History
from tests.active.loop.test_optimizer import made
from tests.active.loops import learner
from tests.autoregression import forecast_and_truth
from tests.helpers import normal


def table(html: str) -> dict[str, str]:
    """Cells by heading, joined by commas; the caption under "table"."""
    caption, *rows = ElementTree.fromstring(html)
    return {"table": caption.text or ""} | {row[0].text or "": ", ".join(cell.text or "" for cell in row[1:]) for row in rows}


def shown(thing: Any) -> dict[str, str]:
    return table(thing._repr_html_())


def test_long_tables_are_cut_and_text_is_escaped() -> None:
    rows = table(html_table("<a> & 'b'", [(f"{number}<", number) for number in range(40)]))
    assert rows.pop("table") == "<a> & 'b'"
    assert [*rows] == [*(f"{number}<" for number in range(15)), "…", *(f"{number}<" for number in range(25, 40))]


def test_training_and_functionals() -> None:
    rows = shown(History(train=(3.0, 1.0, 2.0), validation=(), seconds=(0.5,) * 3, restored=2))
    assert [*rows.values()] == ["History", "3", "3 → 2, least 1", "epoch 2", "1.5"]
    assert shown(History(train=(), validation=(), seconds=()))["epochs"] == "0"
    grid = pn.Grid.uniform(8)
    probe = pn.functionals.sensors(grid, grid.points)
    assert [*shown(probe).values()][1:] == [", ".join(probe.labels[:6]) + ", …", "8", repr(grid)]
    assert shown(2.0 * pn.functionals.integral(grid))["names"] == "none"


def test_scores_have_the_printed_rows() -> None:
    forecast, truth = forecast_and_truth(6, steps=3, members=4)
    for scores in (pn.metrics.score_by_lead(forecast, truth), pn.metrics.score(forecast.at(2), truth.at(2))):
        rows = ElementTree.fromstring(scores._repr_html_())[1:]
        assert "".join(text for row in rows for text in row.itertext()).replace(" ", "") == "".join(str(scores).split())


@pytest.mark.filterwarnings("ignore:last_layer")
def test_predictors() -> None:
    sides = [pn.Field(normal(30, 1, 8, seed=seed), pn.Grid.uniform(8)) for seed in (1, 2)]
    pairs = pn.FieldPairs(sides[0], sides[1])
    operator = nn.Sequential(nn.Conv1d(1, 4, 1), nn.GELU(), nn.Conv1d(4, 1, 1)).double()
    raw = pn.heads.LastLayerLaplace().fit(operator, pairs[:10])
    calibrated = pn.calibration.VarianceScale().fit(raw, pairs[10:])
    for predictor, calibration in ((raw, "no: uncalibrated"), (calibrated, "yes")):
        rows = shown(predictor)
        assert repr(predictor).startswith(rows["predictor"])
        assert float(rows.pop("noise variance")) == pytest.approx(predictor.noise.item(), rel=1e-2)
        expected = ["1 → 1", "Sequential", calibration, "10 inputs, outputs on 8 points"]
        assert [*rows.values()] == [type(predictor).__name__, rows["predictor"], *expected]


def test_loops_before_and_after_rounds(tmp_path: Path) -> None:
    loop, optimizer = learner(tmp_path / "learner"), made(tmp_path / "optimizer")
    empty = ["0", "0", "0", "-"]
    assert [*shown(loop).values()] == ["ActiveLearner", *empty]
    assert [*shown(optimizer).values()] == ["Optimizer", *empty, "-"]
    history, evaluations = loop.run(rounds=2), optimizer.run(evaluations=4)
    assert [*shown(loop).values()] == ["ActiveLearner", "2", "10", "0", f"{history.errors[-1]:#.3g}"]
    assert shown(history)["1"].startswith("10, 4, 0, 0, ")
    assert shown(optimizer)["best value"] == f"{evaluations.objective.max():.6g}"
