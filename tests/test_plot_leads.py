from __future__ import annotations

import math
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from probneural import plots
from probneural.distributions.base import draw_stream
from probneural.distributions.forecasts.trajectory import VarianceShares
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import integral, sensors
from probneural.grids import Grid
from probneural.metrics import score_by_lead
from probneural.metrics.lead_table import LeadScores
from tests.autoregression import DECAY, GRID, Exact, Members, Truth, forecast_and_truth
from tests.helpers import normal
from tests.test_plots import curve

PROBE = sensors(GRID, [[0.25]])


@pytest.fixture(scope="module")
def scores() -> dict[str, LeadScores]:
    forecast, truth = forecast_and_truth(12, steps=8, members=5, channels=2)
    return {
        "first": score_by_lead(forecast, truth),
        "second": score_by_lead(forecast.scaled(torch.full((8,), 0.5)), truth, times=[0.1 * lead for lead in range(1, 9)]),
    }


def shown(figure: Figure) -> bool:
    """Also lays the figure out, which is where warnings would arise; pyplot's settings stay."""
    before = dict(matplotlib.rcParams)
    image = plots.png(figure, dpi=40.0)
    return image.startswith(b"\x89PNG") and dict(matplotlib.rcParams) == before


def test_a_fan_has_the_quantiles_of_each_lead() -> None:
    forecast, truth = forecast_and_truth(4, steps=3, members=6, channels=2)
    figure = plots.fan(forecast, PROBE, truth=truth, index=-1, channel=1, draws=2, times=[0.5, 1.0, 1.5])
    (axes,) = figure.axes
    x, mean = curve(axes, "mean").get_xydata().T
    np.testing.assert_allclose(x, [0.0, 0.5, 1.0, 1.5])
    points = [PROBE(u.mean)[3, 1, 0] for u in (forecast.at(lead) for lead in range(4))]
    np.testing.assert_allclose(mean, points)
    np.testing.assert_allclose(curve(axes, "truth").get_ydata(), [PROBE(truth.at(lead).values)[3, 1, 0] for lead in range(4)])
    shades = {shade.get_label(): shade.get_paths()[0].vertices for shade in axes.collections}
    lower, upper = forecast.at(2).apply(PROBE).interval(0.9)
    assert list(shades) == ["90 % interval", "50 % interval"]
    outer, inner = (shade.get_facecolor()[0] for shade in axes.collections)
    np.testing.assert_array_equal([patch.get_facecolor() for patch in figure.legends[0].get_patches()], [outer, inner])
    assert outer[3] == inner[3] == 1.0  # opaque: one above the other looks as in the legend
    assert inner[:3].mean() + 0.1 < outer[:3].mean() < 0.9
    ends = [y for x, y in shades["90 % interval"] if x == 1.0]
    assert (min(ends), max(ends)) == pytest.approx((lower[3, 1, 0].item(), upper[3, 1, 0].item()))
    draws = [line.get_ydata() for line in axes.lines if line.get_color() == plots.single.ORANGE]
    assert len(draws) == 2
    members = torch.stack([PROBE(forecast.at(lead).samples)[:, 3, 1, 0] for lead in range(4)])  # type: ignore[attr-defined]
    for draw in draws:  # one member at all leads
        assert (members - torch.as_tensor(draw)[:, None]).abs().sum(0).min() == 0.0
    assert axes.get_ylabel() == "at (0.25)"
    assert shown(figure)


def test_shades_end_at_zero_if_ten_true_trajectories_are_not_negative() -> None:
    forecast, truth = forecast_and_truth(12, steps=3, members=6)
    start = forecast.start.abs()
    forecast, truth = Members(forecast.states.abs(), start), Truth(truth.states.abs(), Field(start, GRID))
    signed = Truth(truth.states - 0.1, truth.start)
    for true, name in ((truth, "90 % interval, cut at 0"), (signed, "90 % interval")):
        outer = plots.fan(forecast, PROBE, truth=true, index=1).axes[0].collections[0]
        smallest = outer.get_paths()[0].vertices[:, 1].min()
        assert (outer.get_label(), smallest < 0.0, smallest <= 0.0) == (name, true is signed, True)


def test_shades_and_whiskers_of_scores_keep_to_their_range() -> None:
    scores = score_by_lead(*forecast_and_truth(3, steps=8, members=5))
    coverage, ranks = scores["simultaneous_coverage"], scores.ranks
    assert ranks is not None
    assert (coverage.values + 2 * coverage.errors).max() > 1.0
    assert (ranks.frequencies - 2 * ranks.errors).min() < 0.0
    panel = plots.lead_scores(scores, names=["simultaneous_coverage"]).axes[0]
    assert panel.collections[0].get_paths()[0].vertices[:, 1].max() == 1.0
    whiskers = [line.get_segments() for axes in plots.rank_histograms(scores).axes for line in axes.collections]
    assert np.concatenate(whiskers)[..., 1].min() == 0.0


def test_draws_of_a_gaussian_forecast_are_one_latent_each() -> None:
    forecast = Exact(torch.zeros(1, 1, 8).double(), 3)
    (axes,) = plots.fan(forecast, integral(GRID), draws=1).axes
    (draw,) = [line.get_ydata() for line in axes.lines if line.get_color() == plots.single.ORANGE]
    kicks = np.diff(draw) + (1.0 - DECAY) * draw[:-1]  # u_k - DECAY u_{k-1}: the latent's numbers for the constant wave
    latent = torch.randn(1, 12, generator=draw_stream(0, "kicks"), dtype=torch.float64)
    np.testing.assert_allclose(kicks, latent[0, [0, 4, 8]], rtol=1e-10)
    assert axes.get_xlabel() == "lead"


def test_space_and_time_are_the_axes() -> None:
    forecast, truth = forecast_and_truth(3, steps=4, members=6)
    figure = plots.space_time(forecast, truth, index=2, noise=0.3, axes=("x (m)",))
    maps = {axes.get_title(): axes.images[0] for axes in figure.axes if axes.images}
    assert set(maps) == {"truth", "mean", "one draw", "|truth - mean|", "sd"}
    expected = torch.stack([truth.at(lead).values[2, 0] for lead in range(5)])
    np.testing.assert_allclose(maps["truth"].get_array(), expected)
    np.testing.assert_allclose(maps["sd"].get_array()[3], (forecast.at(3).variance[2, 0] + 0.3).sqrt())
    np.testing.assert_allclose(maps["sd"].get_array()[0], 0.0, atol=1e-7)
    drawn = torch.as_tensor(maps["one draw"].get_array())
    gaps = torch.stack([forecast.at(lead).samples[:, 2, 0] for lead in range(5)], 1) - drawn  # type: ignore[attr-defined]
    assert gaps.abs().sum((1, 2)).min() == 0.0
    assert maps["mean"].get_extent()[2:] == [-0.5, 4.5]
    assert figure.axes[0].get_ylabel() == "lead"
    assert shown(figure)
    assert shown(plots.space_time(forecast))


def plane_forecast() -> tuple[Members, Truth]:
    grid = Grid.uniform((4, 3), lengths=(2.0, 1.0))
    start = normal(3, 2, 4, 3, seed="start")
    truth = Truth(normal(6, 3, 2, 4, 3, seed="truth"), Field(start, grid))
    return Members(normal(6, 5, 3, 2, 4, 3, seed="members"), start, grid=grid), truth


def test_snapshots_have_a_column_per_lead() -> None:
    forecast, truth = plane_forecast()
    figure = plots.snapshots(forecast, truth, index=-1, channel=1, noise=0.3, label="m/s", axes=("x (m)", "y (m)"))
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in panels[:2]] == ["lead 1", "lead 3"]
    names = ("truth", "mean", "|truth - mean|", "sd")
    assert [axes.get_ylabel() for axes in panels[::4]] == [f"{name}\ny (m)" for name in names]
    for column, lead in enumerate((1, 3, 4, 6)):
        true, u = truth.at(lead).values[2, 1], forecast.at(lead)
        expected = (true, u.mean[2, 1], (true - u.mean[2, 1]).abs(), (u.variance[2, 1] + 0.3).sqrt())
        for axes, part in zip(panels[column::4], expected, strict=True):
            np.testing.assert_allclose(axes.images[0].get_array(), part.mT)
    scales = [axes.images[0].norm for axes in panels]
    assert (
        len({(scale.vmin, scale.vmax) for scale in scales[:8]}) == len({(scale.vmin, scale.vmax) for scale in scales[8:]}) == 1
    )
    assert shown(figure)
    assert len([axes for axes in plots.snapshots(forecast).axes if axes.images]) == 8  # no truth, no error


def test_shares_are_fractions_of_the_total_of_all_functions() -> None:
    parts = {name: normal(3, 4, 2, seed=name).square() for name in ("initial", "operator", "interaction", "noise")}
    shares = VarianceShares(**parts)
    figure = plots.variance_shares(shares, channel=-1)
    (axes,) = figure.axes
    for name, part in parts.items():
        expected = part[:, :, 1].sum(1) / sum(parts.values())[:, :, 1].sum(1)
        np.testing.assert_allclose(curve(axes, name).get_xydata().T, [[1.0, 2.0, 3.0], expected])
    assert axes.get_xlabel() == "lead"
    assert shown(figure)


def test_scores_are_drawn_with_two_standard_errors(scores: dict[str, LeadScores]) -> None:
    figure = plots.lead_scores(scores, names=["crps", "spread_skill", "joint_nll"], unit="K")
    first, second, third = figure.axes
    np.testing.assert_allclose(curve(first, "second").get_xydata().T, [scores["second"].times, scores["second"]["crps"].values])
    vertices = first.collections[0].get_paths()[0].vertices
    top = scores["first"]["crps"].values[4] + 2 * scores["first"]["crps"].errors[4]
    assert vertices[vertices[:, 0] == 5.0, 1].max() == pytest.approx(top.item())
    assert first.get_title() == "CRPS, fair (K)"
    assert second.lines[-1].get_ydata()[0] == 1.0
    assert len(third.lines) == 0  # there is none without noise
    assert shown(figure)
    assert shown(plots.lead_scores(scores["first"]))
    coverage = plots.lead_scores(scores["first"], names=["simultaneous_coverage"]).axes[0]
    assert coverage.lines[-1].get_ydata()[0] == 0.9


def test_spread_stands_beside_the_error(scores: dict[str, LeadScores]) -> None:
    figure = plots.lead_spread_skill(scores, unit="K")
    left, right = figure.axes
    np.testing.assert_allclose(curve(left, "spread").get_ydata(), scores["first"]["spread"].values)
    np.testing.assert_allclose(curve(right, "RMSE of the mean").get_ydata(), scores["second"]["rmse"].values)
    assert right.get_title() == f"second, ratio {scores['second']['spread_skill'].overall:.3g}"
    assert (left.get_xlabel(), right.get_xlabel()) == ("lead", "time")
    assert shown(figure)
    assert shown(plots.lead_spread_skill(scores["first"]))


def test_ranks_have_a_panel_per_lead(scores: dict[str, LeadScores]) -> None:
    figure = plots.rank_histograms(scores["first"])
    assert [axes.get_title() for axes in figure.axes] == [f"lead {lead}" for lead in (1, 2, 4, 5, 7, 8)]
    heights = [bar.get_height() for bar in figure.axes[-1].patches]
    assert scores["first"].ranks is not None
    np.testing.assert_allclose(heights, scores["first"].ranks.frequencies[7])
    assert math.isclose(sum(heights), 1.0)
    assert shown(figure)


def test_what_cannot_be_drawn_is_refused(scores: dict[str, LeadScores]) -> None:
    forecast, _ = forecast_and_truth(2, steps=3, members=3)
    with pytest.raises(ArgumentError, match="index"):
        plots.fan(forecast, PROBE, index=2)
    with pytest.raises(ArgumentError, match="channel"):
        plots.fan(forecast, PROBE, channel=1)
    with pytest.raises(GridError, match="grid"):
        plots.fan(forecast, integral(Grid.uniform(9)))
    with pytest.raises(ShapeError, match="times"):
        plots.fan(forecast, PROBE, times=[1.0])
    plane = Members(normal(2, 3, 1, 1, 4, 4), normal(1, 1, 4, 4), grid=Grid.uniform((4, 4)))
    with pytest.raises(GridError, match="one dimension"):
        plots.space_time(plane)
    with pytest.raises(GridError, match="two dimensions"):
        plots.snapshots(forecast)
    with pytest.raises(ArgumentError, match="a variance > 0"):
        plots.variance_shares(
            VarianceShares(**dict.fromkeys(("initial", "operator", "interaction", "noise"), torch.zeros(2, 1, 1).double()))
        )
    with pytest.raises(ArgumentError, match="names among"):
        plots.lead_scores(scores, names=["rmsd"])
    with pytest.raises(DataError, match="rank histograms"):
        plots.rank_histograms(replace(scores["first"], ranks=None))


@pytest.mark.bad_input
def test_what_is_no_forecast_is_not_drawn() -> None:
    with pytest.raises(DataError, match="roll a predictor out"):
        plots.space_time(Field(torch.zeros(1, 1, 8), GRID))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="roll a predictor out"):
        plots.snapshots(Field(torch.zeros(1, 1, 8), GRID))  # type: ignore[arg-type]
    for draw in (plots.lead_scores, plots.lead_spread_skill):
        with pytest.raises(DataError, match="score a forecast"):
            draw({})
