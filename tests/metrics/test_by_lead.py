from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from probneural import metrics
from probneural.data import Trajectories
from probneural.distributions import EmpiricalField
from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import by_lead, compare, score_by_lead, scores
from probneural.metrics.member_pool import MemberPool, inside_fraction, rank_deviation, suprema
from probneural.metrics.reliability import drawn_suprema
from probneural.trajectories import FieldTrajectories
from tests.autoregression import GRID, Exact, Members, Truth, forecast_and_truth
from tests.helpers import normal


def test_each_lead_has_the_scores_of_its_field() -> None:
    forecast, truth = forecast_and_truth(12, steps=3, members=6, channels=2)
    scores = score_by_lead(forecast, truth, level=0.8)
    assert set(scores.scores) == set(metrics.lead_table.TITLES) - {"joint_nll"}  # type: ignore[attr-defined]
    for lead, u in forecast.leads():
        comparison = compare(u, truth.at(lead))
        corrected = compare(u.scale(torch.full((2,), math.sqrt(7 / 5), dtype=torch.float64)), truth.at(lead))
        expected = {
            "relative_l2": metrics.relative_l2(Field(u.mean, GRID), truth.at(lead)).mean(),
            "rmse": metrics.rmse(Field(u.mean, GRID), truth.at(lead)).mean(),
            "spread": (1.4 * u.variance).mean((0, 2)).sqrt().mean(),
            "spread_skill": metrics.spread_skill(comparison).mean(),
            "chi2": metrics.chi2(corrected).mean(),
            "nll": metrics.nll(corrected).mean(),
            "crps": metrics.crps(comparison, is_fair=True).mean(),
            "energy": metrics.energy_score(comparison, is_fair=True).mean(),
            "rank_deviation": rank_deviation(metrics.rank_histogram(comparison).mean((0, 1))),
        }
        for name, value in expected.items():
            assert scores[name].values[lead - 1].item() == pytest.approx(value.item(), rel=1e-12), name
    crps = torch.stack([metrics.crps(compare(u, truth.at(lead)), is_fair=True).mean(1) for lead, u in forecast.leads()])
    assert scores["crps"].overall == pytest.approx(crps.mean().item())
    assert scores["crps"].overall_error == pytest.approx((crps.mean(0).std() / math.sqrt(12)).item())
    torch.testing.assert_close(scores["crps"].errors, crps.std(1) / math.sqrt(12))
    assert scores.ranks is not None
    torch.testing.assert_close(scores.ranks.frequencies.sum(1), torch.ones(3).double())
    assert scores.ranks.frequencies.shape == (3, 7)


@pytest.mark.parametrize("name", ["crps", "spread_skill", "spread", "rank_deviation", "simultaneous_coverage"])
def test_scores_that_are_not_asked_for_are_not_computed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forecast, truth = forecast_and_truth(12, steps=3, members=6, channels=2)
    every = score_by_lead(forecast, truth)
    monkeypatch.setattr(by_lead, "energy_score", lambda *_, **__: pytest.fail("an energy score"))
    scores = score_by_lead(forecast, truth, scores=[name])
    assert set(scores.scores) == {name}
    torch.testing.assert_close(scores[name].values, every[name].values, rtol=0, atol=0)
    assert (scores.horizon.coverage, scores.horizon.valid_time) == (every.horizon.coverage, every.horizon.valid_time)
    assert (scores.ranks is None) == (name != "rank_deviation")
    assert scores.spectra is None
    assert scores.reasons["energy"] == "not asked for"


def test_the_horizon_is_left_where_one_lead_is() -> None:
    forecast, truth = forecast_and_truth(60, steps=3, members=9)
    largest = torch.stack([suprema(MemberPool(compare(u, truth.at(lead))).distances) for lead, u in forecast.leads()]).amax(0)
    scores = score_by_lead(forecast, truth)
    assert scores.horizon.coverage[0] == pytest.approx(inside_fraction(largest, level=0.9).mean().item())
    states = truth.states.clone()
    states[1] += 50.0
    far = score_by_lead(forecast, Truth(states, truth.start))
    assert far.horizon.coverage[0] == far["simultaneous_coverage"].values[1] == 0.0
    assert far["simultaneous_coverage"].values[2] > 0.7


def test_leads_share_their_latent_and_not_their_noise() -> None:
    forecast = Exact(normal(3, 1, 8), 2)
    for noise, is_equal in ((0.0, True), (0.5, False)):
        comparison = compare(forecast.at(1), Field(normal(3, 1, 8, seed=1), GRID), noise=noise)
        first, second = (drawn_suprema(comparison, draws=20, seed=0, lead=lead) for lead in (1, 2))
        assert torch.equal(first, second) == is_equal


def test_exchangeable_members_are_calibrated_however_few() -> None:
    """At each lead, over space, and over all leads jointly."""
    forecast, truth = forecast_and_truth(3000, steps=4, members=5, seed="few")
    scores = score_by_lead(forecast, truth, level=0.85)
    for name, ideal in {"spread_skill": 1.0, "coverage": 0.85, "simultaneous_coverage": 0.85}.items():
        score = scores[name]
        assert bool(((score.values - ideal).abs() < 4 * score.errors).all()), name
        assert abs(score.overall - ideal) < 4 * score.overall_error, name
    assert abs(scores.horizon.coverage[0] - 0.85) < 4 * scores.horizon.coverage[1]
    assert bool((scores["rank_deviation"].values < 0.05).all())
    assert bool((scores["spectrum_error"].values < 0.05).all())
    narrow = score_by_lead(forecast.scaled(torch.full((4,), 0.6)), truth, level=0.85)
    assert bool((narrow["spread_skill"].values - 0.6).abs().max() < 0.03)
    assert narrow.horizon.coverage[0] < narrow["simultaneous_coverage"].overall < narrow["coverage"].overall < 0.8


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_an_exact_gaussian_forecast_is_calibrated(noise: float) -> None:
    members, truth = forecast_and_truth(400, steps=3, members=1, seed="exact")
    observed = Truth(truth.states + noise**0.5 * normal(*truth.states.shape, seed="noise"), truth.start)
    scores = score_by_lead(Exact(members.start, 3), observed, noise=noise)
    for name, ideal in {"spread_skill": 1.0, "chi2": 1.0, "coverage": 0.9, "simultaneous_coverage": 0.9}.items():
        score = scores[name]
        assert bool(((score.values - ideal).abs() < 4 * score.errors + 0.01).all()), name
    assert abs(scores.horizon.coverage[0] - 0.9) < 4 * scores.horizon.coverage[1] + 0.01
    assert scores.ranks is not None
    assert scores.ranks.frequencies.shape == (3, 20)
    assert ("joint_nll" in scores.scores) == (noise > 0)


def test_errors_are_standard_errors() -> None:
    """Over 60 repetitions with 40 functions."""
    found: dict[str, list[tuple[float, float]]] = {"spread_skill": [], "rmse": [], "crps": []}
    for seed in range(60):
        forecast, truth = forecast_and_truth(40, steps=1, members=6, channels=2, seed=seed)
        scores = score_by_lead(forecast, truth)
        for name, pairs in found.items():
            pairs.append((float(scores[name].values), float(scores[name].errors)))
    for name, pairs in found.items():
        values, errors = torch.tensor(pairs).T
        assert errors.square().mean().sqrt() / values.std() == pytest.approx(1.0, abs=0.35), name


def test_valid_time_ends_at_the_first_lead_above_the_threshold() -> None:
    errors = torch.tensor([[0.1, 0.2, 0.4], [0.6, 0.1, 0.1], [0.2, 0.7, 0.2], [0.5, 0.1, 0.3]]).double()
    start = torch.ones(4, 1, 8).double()
    spread = torch.tensor([-1e-3, 1e-3]).double().reshape(1, 2, 1, 1, 1)
    forecast = Members((1.0 + errors.mT)[:, None, :, None, None] * torch.ones(8).double() + spread, start)
    truth = Truth(torch.ones(3, 4, 1, 8).double(), Field(start, GRID))
    scores = score_by_lead(forecast, truth, threshold=0.5000001)
    torch.testing.assert_close(scores["relative_l2"].values, errors.mean(0))
    assert scores.horizon.valid_time[0] == (3 + 0 + 1 + 3) / 4
    assert scores.horizon.still_valid == 0.5
    assert "1.75  leads; 50% to the end" in str(scores)


class Once:
    """A forecast that is gone through once, and that notes how many of its leads are alive together."""

    def __init__(self, inner: Members) -> None:
        self.inner, self.steps, self.grid = inner, inner.steps, inner.grid
        self.alive: list[weakref.ref[Tensor]] = []
        self.most = self.passes = 0

    def at(self, lead: int) -> EmpiricalField:
        raise AssertionError(f"lead {lead} was asked for")

    def leads(self) -> Iterator[tuple[int, EmpiricalField]]:
        self.passes += 1
        for lead in range(1, self.steps + 1):
            samples = self.inner.states[lead - 1].clone()
            self.alive.append(weakref.ref(samples))
            self.most = max(self.most, sum(one() is not None for one in self.alive))
            yield lead, EmpiricalField(samples, grid=self.grid)
            del samples

    def __len__(self) -> int:
        return len(self.inner)


def test_one_pass_holds_one_lead_at_a_time() -> None:
    inner, truth = forecast_and_truth(4, steps=4, members=3)
    forecast = Once(inner)
    found, expected = score_by_lead(forecast, truth), score_by_lead(inner, truth)
    assert found.to_dict() == expected.to_dict()
    assert forecast.passes == 1
    assert forecast.most <= 2


def test_functions_are_taken_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    forecast, truth = forecast_and_truth(7, steps=2, members=3, channels=2)
    together = score_by_lead(forecast, truth).to_dict()
    monkeypatch.setattr(scores, "_BATCH_VALUES", 40)
    apart = score_by_lead(forecast, truth).to_dict()
    for name, score in together["scores"].items():
        assert apart["scores"][name]["values"] == pytest.approx(score["values"], rel=1e-12), name
    assert apart["horizon"]["coverage"] == pytest.approx(together["horizon"]["coverage"])


def test_trajectories_in_memory_and_stored_ones_are_truth() -> None:
    forecast, truth = forecast_and_truth(5, steps=3, members=4)
    values = truth.states.movedim(0, 1)
    expected = score_by_lead(forecast, truth).to_dict()
    in_memory = FieldTrajectories(truth.start, values, times=torch.tensor([1.0, 2.0, 3.0]).double())
    stored = Trajectories.from_array(torch.cat([truth.start.values[:, None], values], 1), times=[0.0, 1.0, 2.0, 3.0], grid=GRID)
    assert score_by_lead(forecast, in_memory).to_dict() == expected
    assert score_by_lead(forecast, stored).to_dict() == expected


def test_what_does_not_exist_is_said() -> None:
    grid = Grid.scattered(normal(8, 2, seed=1), torch.ones(8))
    forecast, truth = forecast_and_truth(3, steps=2, members=1)
    moved = Members(forecast.states, forecast.start, grid=grid)
    scores = score_by_lead(moved, Truth(0.0 * truth.states, Field(truth.start.values, grid)))
    assert scores.spectra is None
    assert {"crps", "energy", "spectrum_error", "relative_l2", "nll"} <= set(scores.reasons)
    assert "uniform grid" in scores.reasons["spectrum_error"]
    assert set(scores.reasons) <= set(metrics.lead_table.TITLES)  # type: ignore[attr-defined]
    assert "two or more members" in scores.reasons["crps"]
    assert math.isnan(scores.horizon.valid_time[0])
    assert "crps" not in scores.scores
    printed = str(scores)
    assert "two or more members" in printed
    found = scores.to_dict()
    assert found["horizon"]["valid_time"] == [None, None]
    json.dumps(found)


def test_a_score_that_is_missing_at_one_lead_is_missing_over_all() -> None:
    forecast, truth = forecast_and_truth(3, steps=3, members=4)
    states = truth.states.clone()
    states[1] = 0.0
    scores = score_by_lead(forecast, Truth(states, truth.start))
    assert scores["relative_l2"].values.isnan().tolist() == [False, True, False]
    assert math.isnan(scores["relative_l2"].overall)
    assert math.isnan(scores.horizon.valid_time[0])
    assert not math.isnan(scores["crps"].overall)


def test_tables() -> None:
    forecast, truth = forecast_and_truth(6, steps=9, members=4)
    scores = score_by_lead(forecast, truth, times=[0.5 * lead for lead in range(1, 10)])
    lines = str(scores).splitlines()
    assert lines[0].split() == ["6", "functions,", "lead", "1", "3", "4", "6", "7", "9", "all", "unit"]
    assert next(line for line in lines if line.startswith("CRPS"))[30:39].strip() == f"{scores['crps'].values[0]:.3g}"
    table = scores.to_xarray()
    assert table.sizes == {"lead": 9, "rank": 5, "band": 3}
    assert table["time"].values[-1] == 4.5
    assert table["crps"].attrs["overall"] == scores["crps"].overall
    assert table["band"].values.tolist() == [1.0, 2.0, 4.0]
    json.dumps(scores.to_dict(), allow_nan=False)
    assert scores.steps == 9


def test_what_does_not_fit_is_refused() -> None:
    forecast, truth = forecast_and_truth(3, steps=2, members=4)
    short, shorter = forecast_and_truth(3, steps=1, members=4)
    with pytest.raises(ArgumentError, match="a lead up to 1"):
        score_by_lead(forecast, shorter)
    assert score_by_lead(short, truth).steps == 1
    with pytest.raises(ShapeError, match="3 true trajectories"):
        score_by_lead(forecast, forecast_and_truth(4, steps=2)[1])
    with pytest.raises(ShapeError, match="times of shape"):
        score_by_lead(forecast, truth, times=[1.0])
    fine = Field(normal(3, 1, 16), Grid.uniform(16))
    with pytest.raises(GridError, match="grid"):
        score_by_lead(forecast, Truth(normal(2, 3, 1, 16), fine))
