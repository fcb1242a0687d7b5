from __future__ import annotations

import json
import math
from dataclasses import FrozenInstanceError

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probneural import functionals, metrics
from probneural.distributions import EmpiricalField, FieldDistribution, GaussianField
from probneural.errors import DataError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import compare, score
from probneural.metrics.scores import Scores
from tests.metrics.cases import GRIDS, Maker, empirical, gaussian, truth_for

NAMES = ("relative_l2", "rmse", "crps", "nll", "joint_nll", "coverage", "simultaneous_coverage", "calibration_error", "chi2")


class Unknown(FieldDistribution):
    """A distribution of a third kind."""

    def __init__(self, inner: GaussianField) -> None:
        self.inner, self.grid = inner, inner.grid

    mean = property(lambda self: self.inner.mean)
    variance = property(lambda self: self.inner.variance)
    base_shape = property(lambda self: self.inner.base_shape)

    def rsample(self, sample_shape=(), *, seed=None, base_samples=None):
        return self.inner.rsample(sample_shape, seed=seed, base_samples=base_samples)

    def apply(self, functional):
        raise NotImplementedError

    def scale(self, factors):
        raise NotImplementedError

    def __getitem__(self, index):
        return Unknown(self.inner[index])


@pytest.mark.parametrize("make", [gaussian, empirical])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_each_score_is_the_mean_of_its_function(grid: Grid, make: Maker) -> None:
    u = make(grid)
    truth = truth_for(u)
    noise = torch.tensor([0.3, 1.7])
    scores = score(u, truth, noise=noise, level=0.8)
    comparison = compare(u, truth, noise=noise)
    mean = Field(u.mean, grid)
    expected = {
        "relative_l2": metrics.relative_l2(mean, truth),
        "rmse": metrics.rmse(mean, truth),
        "crps": metrics.crps(comparison),
        "nll": metrics.nll(comparison),
        "joint_nll": metrics.joint_nll(comparison),
        "coverage": metrics.coverage(comparison, level=0.8),
        "simultaneous_coverage": metrics.simultaneous_coverage(comparison, level=0.8),
        "calibration_error": metrics.calibration_error(comparison),
        "interval_width": metrics.interval_width(comparison, level=0.8),
        "chi2": metrics.chi2(comparison),
    }
    for name, value in expected.items():
        assert getattr(scores, name) == pytest.approx(float(value.mean()), rel=1e-12), name
    assert (scores.level, scores.functions, scores.reasons) == (0.8, 5, {})


@pytest.mark.parametrize("make", [gaussian, empirical])
def test_scores_of_whole_functions_can_be_had_for_the_first_ones(make: Maker) -> None:
    u = make(GRIDS[next(iter(GRIDS))])
    truth = truth_for(u)
    scores, everything, first = (
        score(u, truth, noise=0.5, whole=2),
        score(u, truth, noise=0.5),
        score(u[:2], truth[:2], noise=0.5),
    )
    for name in NAMES:
        source = first if name in ("joint_nll", "simultaneous_coverage") else everything
        assert getattr(scores, name) == getattr(source, name), name
    assert scores.functions == len(truth)


def smooth(resolution: int) -> tuple[EmpiricalField, Field]:
    grid = Grid.uniform((resolution,), lengths=1.0)
    x = 2 * math.pi * grid.points[:, 0]
    members = torch.stack([torch.sin(x), 1.4 + torch.sin(x) + 0.2 * torch.cos(2 * x)])[:, None, None]
    return EmpiricalField(members, grid=grid), Field((0.5 * torch.sin(x) + 0.6)[None, None], grid)


def test_scores_do_not_depend_on_the_resolution() -> None:
    coarse, fine = (score(*smooth(resolution), noise=0.2) for resolution in (64, 512))
    for name in ("relative_l2", "rmse", "crps", "nll", "interval_width", "chi2"):
        assert getattr(coarse, name) == pytest.approx(getattr(fine, name), rel=1e-9), name
    for name in ("coverage", "calibration_error"):  # a share of the domain, known to a cell
        assert getattr(coarse, name) == pytest.approx(getattr(fine, name), abs=2 / 64), name


def test_scattered_points_with_the_same_quadrature_score_alike() -> None:
    u = gaussian(GRIDS["interval"])
    truth = truth_for(u)
    loose = Grid.scattered(u.grid.points, u.grid.weights)
    moved = GaussianField(u.mean, u.root, latent=u.latent, grid=loose)
    a, b = score(u, truth, noise=0.1), score(moved, Field(truth.values, loose), noise=0.1)
    for name in NAMES:
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-12), name


@given(factor=st.floats(1e-4, 1e4), flip=st.booleans())
def test_units_change_the_scores_that_have_units(factor: float, flip: bool) -> None:
    u = empirical(GRIDS["interval"])
    truth = truth_for(u)
    signed = -factor if flip else factor
    a = score(u, truth, noise=0.3)
    rescaled = EmpiricalField(signed * u.samples, u.weights, grid=u.grid)
    b = score(rescaled, Field(signed * truth.values, u.grid), noise=0.3 * factor**2)
    for name in ("relative_l2", "chi2", "coverage", "calibration_error"):
        assert getattr(b, name) == pytest.approx(getattr(a, name), rel=1e-9), name
    for name in ("rmse", "crps", "interval_width"):
        assert getattr(b, name) == pytest.approx(factor * getattr(a, name), rel=1e-9), name
    for name in ("nll", "joint_nll"):
        assert getattr(b, name) == pytest.approx(getattr(a, name) + math.log(factor), rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_constrained_fields_are_scored_in_the_limit(dtype: torch.dtype) -> None:
    grid = GRIDS["interval"]
    u = gaussian(grid, rank=6, dtype=dtype)
    truth = Field(u.rsample(seed=1), grid)
    ends = functionals.sensors(grid, [[0.0], [3.0]])
    constrained = u.constrain(ends, ends(truth.values))
    scores = score(constrained, truth)
    assert math.isfinite(scores.chi2)
    assert scores.chi2 < 5.0  # not the 0/0 of rounding errors at the two ends
    assert scores.nll is None
    assert scores.joint_nll is None
    assert "none at 20 of 90 values" in scores.reasons["nll"]
    assert scores.crps is not None
    assert math.isfinite(scores.crps)
    assert score(constrained, truth, noise=1e-3).nll is not None


def test_what_a_functional_gives_can_be_scored() -> None:
    u = gaussian(GRIDS["plane"])
    total = functionals.integral(u.grid)
    pushed = u.apply(total)
    scores = score(pushed, Field(total(u.rsample(seed=3)), pushed.grid), noise=1e-6)
    missing = {name for name, value in scores.to_dict().items() if value is None}
    assert missing == {name for name in scores.to_dict() if name.startswith("rank_")}  # one number per function has no ranks


def test_missing_scores_print_as_a_dash_with_the_reason() -> None:
    grid = Grid.uniform((4,))
    scores = score(EmpiricalField(torch.ones(1, 2, 1, 4), grid=grid), Field(torch.zeros(2, 1, 4), grid))
    lines = str(scores).splitlines()
    assert len(lines) == 19
    assert "score over 2 functions" in lines[0]
    for row, start in ((1, "relative L2"), (4, "NLL per value, marginal"), (5, "NLL per value, joint")):
        assert lines[row].startswith(start)
        assert lines[row].split("(expected")[0].split()[-2] == "-"
        assert "; got" in lines[row]
    assert lines[2].split()[-2:] == ["1", "field"]
    assert lines[10].split()[-2:] == ["inf", "1"]
    assert scores.relative_l2 is scores.nll is scores.joint_nll is None
    assert "nan" not in str(scores).lower()


def test_a_distribution_of_a_third_kind_is_scored_by_its_moments() -> None:
    inner = gaussian(GRIDS["periodic"])
    truth = truth_for(inner)
    scores, expected = score(Unknown(inner), truth, noise=0.2), score(inner, truth, noise=0.2)
    for name in set(NAMES) - {"crps", "joint_nll"}:
        assert getattr(scores, name) == getattr(expected, name), name
    assert set(scores.reasons) == {"crps", "joint_nll"}
    with pytest.raises(UnsupportedError, match="Unknown"):
        metrics.pit(compare(Unknown(inner), truth))


def test_coverage_of_all_levels_is_that_of_each() -> None:
    u = gaussian(GRIDS["periodic"])
    truth = truth_for(u)
    comparison = compare(u, truth, noise=0.1)
    each = [float(metrics.coverage(comparison, level=step / 20).mean()) for step in range(1, 20)]
    assert score(u, truth, noise=0.1).level_coverages == pytest.approx(each)


def test_scores_are_frozen_and_go_to_json() -> None:
    u = gaussian(GRIDS["periodic"])
    scores = score(u, truth_for(u))
    with pytest.raises(FrozenInstanceError):
        scores.rmse = 0.0
    row = json.loads(json.dumps(scores.to_dict()))
    back = Scores(**row | {"level_coverages": tuple(row["level_coverages"])})
    assert back == scores
    assert back.nll is not None
    assert back.joint_nll is None


def test_scoring_leaves_the_global_generator_alone() -> None:
    u = gaussian(GRIDS["periodic"])
    before = torch.random.get_rng_state()
    first, second = (score(u, truth_for(u), noise=0.1) for _ in range(2))
    assert first == second
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.bad_input
def test_errors_of_the_arguments_are_raised_and_not_reported_as_missing() -> None:
    u = gaussian(GRIDS["periodic"])
    truth = truth_for(u)
    with pytest.raises(ShapeError):
        score(u, truth[:2])
    with pytest.raises(GridError):
        score(u, truth_for(gaussian(GRIDS["interval"])))
    with pytest.raises(DataError):
        score(u, Field(truth.values * math.nan, u.grid))


def test_what_is_not_finite_is_ready_for_json_too() -> None:
    grid = Grid.uniform(8)
    found = score(EmpiricalField(torch.ones(1, 3, 1, 8), grid=grid), Field(torch.zeros(3, 1, 8), grid))
    assert math.isinf(found.chi2)
    numbers = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert numbers["chi2"] is None
    assert numbers["reasons"]["chi2"] == "inf"
