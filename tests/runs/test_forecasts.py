from __future__ import annotations

from html import unescape
from pathlib import Path
from unittest import mock

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor

from probneural import plots
from probneural.distributions.forecasts.trajectory import VarianceShares
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import score_by_lead
from probneural.runs import report_forecast
from probneural.runs.forecasts import forecast_verdict
from tests.autoregression import Members, Truth, forecast_and_truth
from tests.forecasts.cases import affine, initial_of, start_of
from tests.helpers import normal


def test_the_page_holds_scores_and_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    render = plots.png
    monkeypatch.setattr(plots, "png", lambda figure: render(figure, dpi=30.0))
    forecast, truth = forecast_and_truth(40, steps=3, members=6)
    narrow = forecast.scaled(torch.tensor([1.0, 0.5, 0.5]).double())
    report = report_forecast(narrow, truth, path=tmp_path / "forecast.html", title="A & B", level=0.8)
    page = unescape(report.path.read_text(encoding="utf-8"))
    assert page.startswith("<!doctype html>")
    assert "<h1>A & B</h1>" in page
    assert page.count("<img ") == 5
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


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures of a report, in the order of the page."""
    kept: list[Figure] = []
    monkeypatch.setattr(plots, "png", lambda figure: kept.append(figure) or b"")
    return kept


def titles(path: Path) -> list[str]:
    """Headings of the figures of a page."""
    return [part.split("<")[0] for part in path.read_text(encoding="utf-8").split("<h2>")[2:]]


def line(figure: Figure, name: str) -> Tensor:
    """The heights of a curve."""
    (found,) = [each for axes in figure.axes for each in axes.lines if each.get_label() == name]
    return torch.as_tensor(found.get_ydata())


def test_the_fan_is_of_the_middle_of_the_domain(tmp_path: Path, drawn: list[Figure]) -> None:
    forecast, truth = forecast_and_truth(3, steps=4, members=5)
    report = report_forecast(forecast, truth, path=tmp_path / "line.html", noise=0.3, times=[0.1, 0.2, 0.3, 0.4])
    assert titles(report.path)[-2:] == ["A quantity over the leads", "One function over space and time"]
    fan = drawn[-2]
    torch.testing.assert_close(line(fan, "truth"), torch.stack([truth.at(lead).values[0, 0, 4] for lead in range(5)]))
    torch.testing.assert_close(line(fan, "mean")[3], forecast.at(3).mean[0, 0, 4])
    shade = next(each for each in fan.axes[0].collections if each.get_label() == "90 % interval")
    heights = [y for x, y in shade.get_paths()[0].vertices if abs(x - 0.3) < 1e-9]
    lower, upper = forecast.at(3).interval(0.9, noise=0.3)
    assert (min(heights), max(heights)) == pytest.approx((lower[0, 0, 4].item(), upper[0, 0, 4].item()))


def test_at_scattered_points_the_fan_is_of_the_integral(tmp_path: Path, drawn: list[Figure]) -> None:
    grid = Grid.scattered([[0.1], [0.4], [0.8]], [0.2, 0.3, 0.5])
    start = normal(2, 1, 3)
    truth, forecast = (
        Truth(normal(2, 2, 1, 3, seed=1), Field(start, grid)),
        Members(normal(2, 3, 2, 1, 3, seed=2), start, grid=grid),
    )
    report = report_forecast(forecast, truth, path=tmp_path / "scattered.html")
    assert titles(report.path)[-1] == "A quantity over the leads"
    expected = torch.stack([truth.at(lead).values[0, 0] @ grid.weights for lead in range(3)])
    torch.testing.assert_close(line(drawn[-1], "truth"), expected)


def test_a_forecast_in_the_plane_has_maps_at_some_leads(tmp_path: Path, drawn: list[Figure]) -> None:
    grid = Grid.uniform((4, 4))
    start = normal(2, 1, 4, 4)
    truth = Truth(normal(2, 2, 1, 4, 4, seed=1), Field(start, grid))
    forecast = Members(normal(2, 3, 2, 1, 4, 4, seed=2), start, grid=grid)
    report = report_forecast(forecast, truth, path=tmp_path / "plane.html", times=[0.1, 0.5])
    assert titles(report.path)[-2:] == ["A quantity over the leads", "One function at some leads"]
    maps = [axes.images[0].get_array() for axes in drawn[-1].axes if axes.images]
    assert len(maps) == 8  # four kinds at two leads
    assert torch.equal(torch.as_tensor(maps[1]), truth.at(2).values[0, 0].mT)
    torch.testing.assert_close(line(drawn[-2], "mean")[1], forecast.at(1).mean[0, 0, 2, 2])


def test_shares_of_the_variance_are_drawn_where_the_start_is_uncertain(tmp_path: Path, drawn: list[Figure]) -> None:
    predictor = affine()
    start, initial = start_of(predictor), initial_of(predictor)
    truth = Truth(normal(3, 2, 1, 5, seed=1), start)
    known = predictor.rollout(start, steps=3, members=4, seed=0)
    assert "Where the variance comes from" not in titles(report_forecast(known, truth, path=tmp_path / "known.html").path)
    forecast = predictor.rollout(start, steps=3, members=4, initial=initial, seed=0)
    report = report_forecast(forecast, truth, path=tmp_path / "unknown.html", noise=0.1, times=[0.5, 1.0, 1.5])
    assert titles(report.path)[-1] == "Where the variance comes from"
    shares = forecast.variance_shares(noise=0.1)
    total = shares.total.sum((1, 2))
    for name in ("initial", "operator", "interaction", "noise"):
        torch.testing.assert_close(line(drawn[-1], name), getattr(shares, name).sum((1, 2)) / total)
    assert drawn[-1].axes[0].lines[0].get_xdata().tolist() == [0.5, 1.0, 1.5]
    nothing = torch.zeros(3, 2, 1, dtype=torch.float64)
    static = VarianceShares(initial=nothing, operator=nothing, interaction=nothing, noise=nothing)
    with mock.patch.object(type(forecast), "variance_shares", return_value=static):
        report = report_forecast(forecast, truth, path=tmp_path / "static.html")
    assert "Where the variance comes from" not in titles(report.path)
