from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from probneural.calibration import SimultaneousBand
from probneural.calibration.bands.conformal import ConformalScores, conformal_scores
from probneural.errors import ArgumentError, CalibrationError, DataError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Members, Synthetic, pairs


def scores_of(values: torch.Tensor) -> ConformalScores:
    return ConformalScores(values.double(), torch.ones(len(values), 1, dtype=torch.float64))


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("floor", [0.0, 0.4])
def test_scores_are_suprema_of_standardised_errors(channels: int, floor: float) -> None:
    predictor, data = Synthetic(channels=channels), pairs(6, channels=channels)
    scores = conformal_scores(predictor, data, floor=floor)
    u = predictor(data.inputs)
    for field in range(6):
        worst, widths = 0.0, []
        for channel in range(channels):
            sd = (u.variance[field, channel] + 0.1).sqrt()
            scale = sd.clamp_min(floor * float((sd.square() * GRID.weights).sum().sqrt()))
            error = (data.outputs.values - u.mean)[field, channel].abs()
            worst = max(worst, float((error / scale).max()))
            widths.append(float((scale * GRID.weights).sum()))
        assert scores.values[field].item() == pytest.approx(worst, rel=1e-12)
        assert scores.scale[field].tolist() == pytest.approx(widths, rel=1e-12)


def test_constant_scores_are_errors_in_units_of_the_noise() -> None:
    data = pairs(6)
    error = (data.outputs.values - data.inputs.values).abs().flatten(1).amax(-1)
    torch.testing.assert_close(conformal_scores(Synthetic(noise=0.0), data, modulation="constant").values, error)
    predictor, data = Synthetic(noise=torch.tensor([0.04, 0.25]), channels=2), pairs(6, channels=2)
    error = (data.outputs.values - data.inputs.values).abs().amax(-1) / torch.tensor([0.2, 0.5]).double()
    scores = conformal_scores(predictor, data, modulation="constant")
    torch.testing.assert_close(scores.values, error.amax(-1))
    torch.testing.assert_close(scores.scale, torch.tensor([0.2, 0.5]).double().expand(6, 2))


@example(n=24, percent=56)  # in floating point, 25 * 0.56 lies above 14
@given(n=st.integers(1, 60), percent=st.integers(1, 99))
def test_the_quantile_has_the_rank_of_the_definition(n: int, percent: int) -> None:
    scores = scores_of(torch.randperm(n, generator=torch.Generator().manual_seed(n)) + 1)
    rank = -(-(n + 1) * percent // 100)  # in whole numbers
    if rank <= n:
        assert scores.quantile(percent / 100) == rank
    else:
        needed = -(-percent // (100 - percent))
        assert needed > n
        with pytest.raises(CalibrationError, match=f"at least {needed} calibration fields.*got {n};"):
            scores.quantile(percent / 100)


@pytest.mark.parametrize(("n", "level"), [(12, 0.8), (19, 0.9), (9, 0.5), (30, 0.93)])
@pytest.mark.parametrize("modulation", ["std", "constant"])
def test_coverage_of_a_new_function_is_what_finite_samples_promise(n: int, level: float, modulation: str) -> None:
    """4000 calibration sets of n fields, each with a new field, for a predictor that is wrong in size and in shape."""
    count = 4000
    small = Grid.uniform((8,))
    data = pairs(count * (n + 1), grid=small, seed=7 * n)
    skewed = Field(data.outputs.values + 0.3 * data.outputs.values.square(), small)
    scores = conformal_scores(Synthetic(sd=0.3), FieldPairs(data.inputs, skewed), modulation=modulation)
    blocks = scores.values.reshape(count, n + 1)
    covered = [float(block[n]) <= scores_of(block[:n]).quantile(level) for block in blocks]
    rate = sum(covered) / count
    exact = math.ceil((n + 1) * level - 1e-9) / (n + 1)
    error = 4.0 * math.sqrt(exact * (1 - exact) / count)
    assert level <= exact < level + 1 / (n + 1)
    assert abs(rate - exact) < error


def test_resplitting_scores_is_the_same_as_predicting_again() -> None:
    predictor, data = Synthetic(channels=2), pairs(40, channels=2)
    scores = conformal_scores(predictor, data)
    for seed in range(5):
        order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
        first, second = order[:25], order[25:]
        band = SimultaneousBand(0.8).fit(predictor, data[first])
        assert scores[first].quantile(0.8) == pytest.approx(band.quantile, rel=1e-12)
        inside = scores[second].values <= band.quantile
        assert band.coverage(data[second]) == inside.double().mean().item()
        torch.testing.assert_close(2 * band.quantile * scores[second].scale, band(data.inputs[second]).width())


@pytest.mark.parametrize("kind", [Synthetic, Members])
def test_chunks_do_not_change_the_scores(kind: type[Synthetic], monkeypatch: pytest.MonkeyPatch) -> None:
    data = pairs(11)
    whole = conformal_scores(kind(), data)
    monkeypatch.setattr("probneural.metrics.scores._BATCH_VALUES", 16 * 3)
    predictor = kind()
    parts = conformal_scores(predictor, data)
    torch.testing.assert_close(parts.values, whole.values)
    torch.testing.assert_close(parts.scale, whole.scale)
    assert [count for count, _ in predictor.calls] == [3, 3, 3, 2]


@pytest.mark.bad_input
def test_errors() -> None:
    data = pairs(12)
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(ArgumentError, match="above 0 and below 1 as level"):
            scores_of(torch.arange(5)).quantile(level)
    with pytest.raises(CalibrationError, match="infinite scores"):
        conformal_scores(Synthetic(sd=0.0, noise=0.0), data).quantile(0.5)
    with pytest.raises(CalibrationError, match="1 or more pairs"):
        conformal_scores(Synthetic(), data[:0])
    broken = Field(torch.full((12, 1, 16), math.inf).double(), GRID)
    with pytest.raises(DataError, match="calibration outputs"):
        conformal_scores(Synthetic(), FieldPairs(data.inputs, broken))
    with pytest.raises(ShapeError, match="2 channels of outputs"):
        conformal_scores(Synthetic(channels=2), FieldPairs(pairs(12, channels=2).inputs, data.outputs))
