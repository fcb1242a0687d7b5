from __future__ import annotations

from html import unescape
from pathlib import Path

import pytest
import torch

from probneural import plots
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import score_by_lead
from probneural.runs import report_forecast
from probneural.runs.forecasts import forecast_verdict
from tests.autoregression import Members, Truth, forecast_and_truth
from tests.helpers import normal


def test_the_page_holds_scores_and_figures(tmp_path: Path) -> None:
    forecast, truth = forecast_and_truth(40, steps=3, members=6)
    narrow = forecast.scaled(torch.tensor([1.0, 0.5, 0.5]).double())
    report = report_forecast(narrow, truth, path=tmp_path / "forecast.html", title="A & B", level=0.8)
    page = unescape(report.path.read_text(encoding="utf-8"))
    assert page.startswith("<!doctype html>")
    assert "<h1>A & B</h1>" in page
    assert page.count("<img ") == 4
    scores = score_by_lead(narrow, truth, level=0.8)
    assert report.scores.to_dict() == scores.to_dict()
    row = next(line for line in page.split("<tr>") if line.startswith('<th scope="row">CRPS, fair'))
    assert [cell.split("<")[0] for cell in row.split('"number">')[1:]] == [
        f"{value:.3g}" for value in (*scores["crps"].values.tolist(), scores["crps"].overall)
    ]
    assert all(sentence in page for sentence in report.verdict)


def test_the_verdict_says_where_spread_and_error_differ() -> None:
    forecast, truth = forecast_and_truth(800, steps=3, members=6)
    good = forecast_verdict(score_by_lead(forecast, truth))
    assert "at 3 of 3 leads" in good[1]
    assert "LeadScale" not in " ".join(good)
    bad = forecast_verdict(score_by_lead(forecast.scaled(torch.tensor([1.0, 0.5, 0.5]).double()), truth))
    assert "at 1 of 3 leads" in bad[1]
    assert "LeadScale" in bad[2]
    assert "as close to the mean as 90 %" in bad[3]


def test_a_forecast_in_the_plane_has_no_map_of_space_and_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "png", lambda figure: b"")
    grid = Grid.uniform((4, 4))
    start = normal(2, 1, 4, 4)
    truth = Truth(normal(2, 2, 1, 4, 4, seed=1), Field(start, grid))
    forecast = Members(normal(2, 3, 2, 1, 4, 4, seed=2), start, grid=grid)
    report = report_forecast(forecast, truth, path=tmp_path / "plane.html", times=[0.1, 0.5])
    assert report.path.read_text(encoding="utf-8").count("<img ") == 3
