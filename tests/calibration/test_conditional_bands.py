"""Bands by group and under covariate shift: exact coverage over many calibration sets, and what they refuse."""

from __future__ import annotations

import copy
import math
import pickle

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from probneural.calibration import PointwiseBand, SimultaneousBand
from probneural.calibration.conditional_bands import GroupBand, WeightedBand
from probneural.calibration.conformal import conformal_scores, weighted_quantiles
from probneural.errors import ArgumentError, CalibrationError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Synthetic, pairs
from tests.helpers import generator, uniform

HARD = 3.0
"""How much larger the errors of hard functions are; nothing that the predictor states knows of it."""


def two_kinds(n: int, *, seed: int = 0, part: float = 0.5, grid: Grid = GRID) -> tuple[FieldPairs, Tensor]:
    """Pairs of which a part is hard, and which."""
    data, is_hard = pairs(n, seed=seed, grid=grid), uniform(n, seed=seed + 9) < part
    mean = data.inputs.resample(grid).values
    factor = torch.where(is_hard, HARD, 1.0)[:, None, None]
    return FieldPairs(data.inputs, Field(mean + factor * (data.outputs.values - mean), grid)), is_hard


def test_each_group_has_the_band_that_it_would_have_alone() -> None:
    data, is_hard = two_kinds(100)
    names = ["hard" if hard else "easy" for hard in is_hard]
    band = PointwiseBand(0.8, delta=0.2).fit(Synthetic(), data, groups=names)
    assert isinstance(band, GroupBand)
    for name, rows in (("hard", is_hard), ("easy", ~is_hard)):
        alone = PointwiseBand(0.8, delta=0.2).fit(Synthetic(), data[rows])
        assert band.quantiles[name] == alone.quantile
        torch.testing.assert_close(band(data.inputs, groups=names).half_width[rows], alone(data.inputs[rows]).half_width)
        assert band.coverage(data, groups=names)[name] == alone.coverage(data[rows])
    assert band.quantiles["hard"] > 2.0 * band.quantiles["easy"]
    assert "'hard': " in repr(band)
    assert band.level == 0.8
    for copied in (copy.deepcopy(band), pickle.loads(pickle.dumps(band))):  # noqa: S301
        assert copied.quantiles == band.quantiles


@pytest.mark.parametrize("labels", [lambda hard: hard.long(), lambda hard: hard.numpy(), lambda hard: hard.tolist()])
def test_labels_are_lists_arrays_or_tensors(labels: object) -> None:
    data, is_hard = two_kinds(60)
    band = SimultaneousBand(0.8).fit(Synthetic(), data, groups=labels(is_hard))  # type: ignore[operator]
    assert set(band.quantiles) == {0, 1}
    assert band(data.inputs, groups=[1] * 60).half_width[0].amax() > band(data.inputs, groups=[0] * 60).half_width[0].amax()


def test_coverage_within_each_group_is_beta() -> None:
    """200 calibration sets; a common quantile covers hard functions too rarely, and easy ones too often."""
    small, predictor, sets, level = Grid.uniform((8,)), Synthetic(), 200, 0.8
    data, is_hard = two_kinds(40 * sets + 12000, part=0.3, seed=5, grid=small)
    scores = conformal_scores(predictor, data)
    new, new_hard = scores.values[-12000:], is_hard[-12000:]
    covered: dict[str, list[float]] = {"hard": [], "easy": [], "hard, common": []}
    for start in range(0, 40 * sets, 40):
        own, hard = scores[start : start + 40], is_hard[start : start + 40]
        for name, rows, test in (("hard", hard, new_hard), ("easy", ~hard, ~new_hard)):
            block, count = own.values[rows], int(rows.sum())
            rank = math.ceil((count + 1) * level - 1e-9)
            if rank > count:
                continue
            rate = float((new[test] <= own[rows].quantile(level)).double().mean())
            assert float(block.sort().values[rank - 1]) == own[rows].quantile(level)
            covered[name].append(float(scipy.stats.beta(rank, count + 1 - rank).cdf(rate)))  # uniform if coverage is Beta
        covered["hard, common"].append(float((new[new_hard] <= own.quantile(level)).double().mean()))
    for name in ("hard", "easy"):
        assert len(covered[name]) > 150
        assert scipy.stats.kstest(covered[name], "uniform").pvalue > 0.01
    assert np.mean(covered["hard, common"]) < level - 0.2


@given(st.lists(st.tuples(st.floats(0.0, 9.0), st.integers(0, 4)), min_size=1, max_size=12), st.integers(0, 9))
def test_weighted_quantiles_are_those_of_the_definition(points: list[tuple[float, int]], new: int) -> None:
    """Whole weights are repetitions of a score."""
    total = sum(weight for _, weight in points)
    if total == 0:
        return
    repeated = sorted([score for score, weight in points for _ in range(weight)] + [math.inf] * new)
    scores, weights = (torch.tensor(column, dtype=torch.float64) for column in zip(*points, strict=True))
    found = weighted_quantiles(scores, weights, new=torch.tensor([float(new)]).double(), level=0.75).item()
    assert found == repeated[-(-3 * len(repeated) // 4) - 1]


def test_equal_weights_change_nothing() -> None:
    data, new = pairs(40, channels=2), pairs(9, channels=2, seed=50)
    plain = SimultaneousBand(0.9).fit(Synthetic(channels=2), data)
    band = SimultaneousBand(0.9).fit(Synthetic(channels=2), data, weights=torch.full((40,), 3.0))
    assert isinstance(band, WeightedBand)
    assert band.effective_sample_size == pytest.approx(40.0)
    torch.testing.assert_close(band(new.inputs, weights=[3.0] * 9).half_width, plain(new.inputs).half_width)
    assert band.coverage(new, weights=[3.0] * 9) == plain.coverage(new)
    assert "40 effective" in repr(band)
    assert band.level == 0.9


def test_weights_restore_coverage_under_a_shift_of_inputs() -> None:
    """A fifth of calibration functions are hard, and four fifths of new ones. 2000 sets of 60, each with a new one."""
    sets, n, level = 2000, 60, 0.8
    small = Grid.uniform((8,))
    pool, is_hard = two_kinds(12000, part=0.5, seed=8, grid=small)
    scores = conformal_scores(Synthetic(), pool).values
    hard, easy = scores[is_hard], scores[~is_hard]
    random = generator(0)

    def drawn(count: int, part: float) -> tuple[Tensor, Tensor]:
        kinds = torch.rand(count, generator=random, dtype=torch.float64) < part
        picks = torch.where(
            kinds,
            hard[torch.randint(len(hard), (count,), generator=random)],
            easy[torch.randint(len(easy), (count,), generator=random)],
        )
        return picks, torch.where(kinds, 4.0, 0.25).double()  # .8/.2 and .2/.8

    covered = {"weighted": 0.0, "plain": 0.0}
    for _ in range(sets):
        (own, weights), (new, ratio) = drawn(n, 0.2), drawn(1, 0.8)
        covered["weighted"] += float(new <= weighted_quantiles(own, weights, new=ratio, level=level)) / sets
        plain = weighted_quantiles(own, torch.ones_like(own), new=torch.ones(1).double(), level=level)
        covered["plain"] += float(new <= plain) / sets
    noise = 4 * math.sqrt(level * (1 - level) / sets)
    assert level - noise < covered["weighted"] < level + 4.0 / (n * 0.2 * 4.0) + noise  # largest weight over all weight
    assert covered["plain"] < 0.6


def test_an_input_that_is_too_unlike_gets_an_infinite_band() -> None:
    predictor, data = Synthetic(noise=0.0), pairs(20)  # no predictive variance at the left end
    band = SimultaneousBand(0.9, floor=0.0).fit(predictor, data, weights=torch.ones(20))
    weights = [0.0, 1.0, 2.2, 2.3, 1e6]
    quantiles = band.quantiles(weights)
    assert bool(torch.isinf(quantiles).all())  # infinite calibration scores count as such
    floored = SimultaneousBand(0.9).fit(predictor, data, weights=torch.ones(20))
    assert torch.isinf(floored.quantiles(weights)).tolist() == [False, False, False, True, True]  # 20 / 22.2 > .9 > 20 / 22.3
    new = floored(data.inputs[:5], weights=weights)
    assert torch.isinf(new.half_width).flatten(1).all(1).tolist() == [False, False, False, True, True]
    assert not torch.isnan(new.lower).any()
    everywhere = Field(torch.full((5, 1, 16), 1e9, dtype=torch.float64), GRID)
    assert new.contains(everywhere).tolist() == [False, False, False, True, True]
    assert torch.isinf(new.width()[:, 0]).tolist() == [False, False, False, True, True]


def test_what_the_effective_sample_size_says() -> None:
    band = SimultaneousBand(0.5).fit(Synthetic(), pairs(4), weights=[1.0, 1.0, 0.0, 0.0])
    assert band.effective_sample_size == pytest.approx(2.0)


@pytest.mark.bad_input
def test_errors_of_groups() -> None:
    data = pairs(30)
    labels = ["a"] * 25 + ["b"] * 5
    with pytest.raises(CalibrationError, match="at least 9 calibration fields.*, in the group 'b'; got 5"):
        SimultaneousBand(0.9).fit(Synthetic(), data, groups=labels)
    band = SimultaneousBand(0.8).fit(Synthetic(), data, groups=labels)
    with pytest.raises(ArgumentError, match=r"labels among \['a', 'b'\]; got 'c'"):
        band(data.inputs[:2], groups=["a", "c"])
    with pytest.raises(ArgumentError, match="labels among"):
        band.coverage(data[:1], groups=[3])
    with pytest.raises(ShapeError, match="30 labels"):
        SimultaneousBand(0.8).fit(Synthetic(), data, groups=labels[:4])
    with pytest.raises(ShapeError, match="2 labels"):
        band(data.inputs[:2], groups=["a"])
    for groups in ("abc", 3, [["a"]] * 30):
        with pytest.raises(ArgumentError, match="groups|labels"):
            SimultaneousBand(0.8).fit(Synthetic(), data, groups=groups)
    with pytest.raises(CalibrationError, match="finite score"):
        SimultaneousBand(0.8, floor=0.0).fit(Synthetic(noise=0.0), data, groups=labels)
    with pytest.raises(ArgumentError, match="groups or weights; got both"):
        SimultaneousBand(0.8).fit(Synthetic(), data, groups=labels, weights=[1.0] * 30)  # type: ignore[call-overload]
    with pytest.raises(CalibrationError, match="at least one pair"):
        band.coverage(data[:0], groups=[])


@pytest.mark.bad_input
def test_errors_of_weights() -> None:
    data = pairs(30)
    for weights in ([1.0] * 29 + [-1.0], [math.nan] * 30, [[1.0]] * 30, "1" * 30):
        with pytest.raises(ArgumentError, match="weights"):
            SimultaneousBand(0.8).fit(Synthetic(), data, weights=weights)
    with pytest.raises(ArgumentError, match="positive weight"):
        SimultaneousBand(0.8).fit(Synthetic(), data, weights=[0.0] * 30)
    with pytest.raises(ShapeError, match="weights of shape"):
        SimultaneousBand(0.8).fit(Synthetic(), data, weights=[1.0] * 29)
    band = SimultaneousBand(0.8).fit(Synthetic(), data, weights=[1.0] * 30)
    with pytest.raises(ShapeError, match="weights of shape"):
        band(data.inputs[:2], weights=[1.0])
    with pytest.raises(ArgumentError, match="weights"):
        band(data.inputs[:1], weights=[-1.0])
    with pytest.raises(ShapeError, match="weights of shape"):
        band.coverage(data, weights=[1.0])
