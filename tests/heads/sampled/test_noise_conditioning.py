"""Operators conditioned on noise as a head: draws, members, files and calibration; the contract suite has the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import SimultaneousBand, VarianceScale
from probneural.errors import ArgumentError, ShapeError, TrainingError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads import NoiseConditioning
from probneural.heads.sampled.noise_conditioning import NoiseConditionedPredictor
from probneural.operators import FNO, NoiseConditionedOperator, NoiseField
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.heads.cases import PERIODIC, fields, fitted, operator_case
from tests.helpers import generator


class Shifted(nn.Module):
    """u + z with one number z, whose law is known: N(u, 1) at every point, fully correlated."""

    noise_size = 1

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones((), dtype=torch.float64))

    def conditioned(self, values: Tensor, noise: Tensor, *, grid: Grid | None = None, query: Grid | None = None) -> Tensor:
        found = self.factor * values + noise[:, :, None]
        return found if query is None else Field(found, PERIODIC if grid is None else grid).resample(query).values


def pairs(count: int = 30, *, seed: int = 3, spread: float = 1.0) -> FieldPairs:
    inputs = fields(PERIODIC, count, 1, seed=seed)
    shifts = spread * torch.randn(count, 1, 1, generator=generator(seed), dtype=torch.float64)
    return FieldPairs(inputs, Field(inputs.values + shifts, PERIODIC))


def test_members_and_draws_are_of_the_operators_law() -> None:
    """2,000 members: the standard error of a mean is 1 / sqrt(2000) = .022, and of a deviation .016; four of each."""
    predictor = NoiseConditioning(2000).fit(Shifted(), pairs())
    inputs = fields(PERIODIC, 2, 1, seed=9)
    u = predictor(inputs)
    assert float((u.mean - inputs.values).abs().max()) < 0.09
    assert float((u.standard_deviation - 1.0).abs().max()) < 0.064
    drawn = torch.stack([evaluate(predictor.draw(seed), inputs) for seed in range(200)])
    assert float((drawn.std(0) - 1.0).abs().max()) < 4 / (2 * 200) ** 0.5
    members = u.samples[:, 0, 0, 0]
    assert not torch.isin(drawn[:, 0, 0, 0], members).any()  # fresh ones
    assert torch.equal(u.samples, NoiseConditioning(2000).fit(Shifted(), pairs())(inputs).samples)  # same seed, same bits
    assert not torch.equal(u.samples, NoiseConditioning(2000, seed=1).fit(Shifted(), pairs())(inputs).samples)
    assert predictor.noise.item() == pytest.approx(1e-12 * float(pairs().outputs.values.var()), rel=0.05)
    assert NoiseConditioning(noise=0.25).fit(Shifted(), pairs()).noise.tolist() == [0.25]


def test_training_changes_no_data_of_the_users() -> None:
    given = pairs()
    before = given.inputs.values.clone()

    def train(operator: Shifted, data: FieldPairs, *, seed: int) -> None:
        data.inputs.values.mul_(0.5)

    NoiseConditioning(8, train=train).fit(Shifted(), given)
    assert torch.equal(given.inputs.values, before)


def test_small_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, inputs = fitted("noise-conditioned", "fno-1d"), operator_case("fno-1d").inputs
    u, seeds = predictor(inputs), [number % 3 for number in range(len(inputs))]
    together = predictor.evaluate_draws(inputs, seeds=seeds, each=True)
    monkeypatch.setattr("probneural.heads.sampled.noise_conditioning._BATCH_POINTS", 1)
    torch.testing.assert_close(predictor(inputs).samples, u.samples, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(predictor.evaluate_draws(inputs, seeds=seeds, each=True), together, rtol=1e-12, atol=1e-12)


def test_calibrated_banded_and_rolled_out() -> None:
    """Members spread by 1, errors by 2: the common scale is the mean of 60 squares of N(0, 2^2), 4 with standard error .73."""
    predictor = NoiseConditioning(200).fit(Shifted(), pairs())
    scaled = VarianceScale(separate=False, local=False).fit(predictor, pairs(60, seed=5, spread=2.0))
    assert float(scaled.scale) == pytest.approx(4.0, abs=4 * 0.73)
    band = SimultaneousBand(level=0.9).fit(scaled, pairs(60, seed=6, spread=2.0))
    test = pairs(60, seed=7, spread=2.0)
    assert 0.75 < band.coverage(test) < 1.0  # .9, with standard errors of .04 from each of two sets of 60
    forecast = predictor.rollout(test.inputs[:2], steps=3, members=64, draws="step", show_progress=False)
    variance = float(forecast.at(3).variance.mean())  # three independent shifts
    assert variance == pytest.approx(3.0, abs=4 * 3.0 * (2 / 64) ** 0.5)


def test_files(tmp_path: Path) -> None:
    predictor, inputs = fitted("noise-conditioned", "fno-1d"), operator_case("fno-1d").inputs
    save(predictor, tmp_path / "predictor")
    loaded = load(tmp_path / "predictor")
    assert torch.equal(loaded(inputs).samples, predictor(inputs).samples)
    assert torch.equal(evaluate(loaded.draw(3), inputs), evaluate(predictor.draw(3), inputs))


@pytest.mark.bad_input
def test_bad_settings() -> None:
    case = operator_case("fno-1d")
    for settings, match in (
        ({"members": 1}, "members"),
        ({"seed": -1}, "seed"),
        ({"condition": 3, "train": print}, "condition"),
        ({"condition": lambda operator: operator}, "train= beside condition="),
        ({"train": 3}, "train"),
    ):
        with pytest.raises((ArgumentError, ValueError, TypeError), match=match):
            NoiseConditioning(**settings)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="conditioned on noise"):
        NoiseConditioning().fit(case.operator, case.data)
    fresh = NoiseConditionedOperator(FNO(1, 1, modes=(3,), width=4, depth=2), layers=["spectral"], noise=NoiseField(2)).double()
    with pytest.raises(TrainingError, match="vary with the noise"):
        NoiseConditioning().fit(fresh, case.data)

    def breaks(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
        next(operator.parameters()).data.fill_(torch.nan)

    with pytest.raises(TrainingError, match="finite weights"):
        NoiseConditioning(train=breaks).fit(fresh, case.data)
    with pytest.raises(ShapeError, match="noise of shape"):
        NoiseConditionedPredictor(
            operator=Shifted(),
            latents=torch.zeros(3, 2),
            noise=torch.ones(1, dtype=torch.float64),
            domain=PERIODIC,
            in_channels=1,
        )
