"""Every head rolls out: a member is the repeated application of one draw, or of fresh ones."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from torch import Tensor

from probneural.calibration import VarianceScale
from probneural.distributions import Predictor
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.fields import Field, evaluate
from probneural.heads import KernelOperator, LastLayerLaplace, weight_samples
from probneural.operators import FNO, Rollout
from tests.heads.cases import ALL_PAIRS, data_for, fields, fitted, operator_case, small_fno

# four draws are for contracts only
pytestmark = pytest.mark.filterwarnings("ignore:the variational posterior has not converged")
MORE = [("last-layer", "fno-outputs"), ("last-layer", "channels-last"), ("kronecker", "fno-outputs"), ("deep-ensemble", "conv")]
"""Beside every head on one operator: several channels, channels last, running statistics that differ between members."""
QUICK = ("last-layer", "diagonal", "deep-ensemble")
PAIRS = [
    pytest.param(*pair, marks=[pytest.mark.slow] * (pair[0] not in QUICK)) for pair in ALL_PAIRS if pair[1] == "complex"
] + [pytest.param(*pair) for pair in MORE]


@cache
def other(name: str) -> Predictor:
    """Heads and calibrators beyond the list of cases, by name."""
    case = operator_case("fno-1d")
    held_out = data_for(copy.deepcopy(case.operator).eval(), fields(case.data.inputs.grid, 6, 1, seed=31), seed=32)
    if name == "kernel":
        return KernelOperator(groups=1, iterations=2).fit(None, case.data)
    if name == "updated":
        return LastLayerLaplace(noise=0.01, prior_precision=2.0).fit(case.operator, case.data).update(held_out)
    if name == "weight samples":
        return fitted("diagonal", "fno-1d").sampled(3, seed=1)
    if name == "mixture":
        second = small_fno(seed=5)().double()
        head = LastLayerLaplace().fit(second, data_for(second, case.data.inputs, seed=8))
        return MixturePredictor([fitted("last-layer", "fno-1d"), head], torch.tensor([0.7, 0.3], dtype=torch.float64))
    inner = {"scaled kernel": other("kernel")} if name == "scaled kernel" else {}
    inner |= {name: other("mixture")} if name == "scaled mixture" else {}
    inner |= {"scaled ensemble": fitted("deep-ensemble", "fno-1d"), "scaled last layer": fitted("last-layer", "fno-1d")}
    return VarianceScale().fit(inner[name], held_out)


OTHERS = (
    "kernel",
    "updated",
    "weight samples",
    "scaled kernel",
    "scaled ensemble",
    "scaled last layer",
    "mixture",
    "scaled mixture",
)


def check(predictor: Predictor, start: Field, draws: str) -> None:
    forecast = predictor.rollout(start, steps=3, members=5, draws=draws, seed=2)
    states: list[Tensor] = [start.values] * 5
    for lead, u in forecast.leads():
        operators = [predictor.draw(seed) for seed in forecast.ensemble.seeds(lead)]
        with torch.no_grad():
            states = [evaluate(operator, Field(state, start.grid)) for operator, state in zip(operators, states, strict=True)]
        expected = torch.stack(states)
        assert u.samples.dtype == predictor.dtype
        # Steps of a process that is nearly certain amplify rounding; another draw differs by the samples' size.
        assert float((u.samples - expected).abs().max()) <= 1e-6 * float(expected.abs().max())
        assert bool((u.variance.amax((1, 2)) > 0).all())


@pytest.mark.parametrize(("head", "operator"), PAIRS)
def test_members_are_draws(head: str, operator: str) -> None:
    case = operator_case(operator)
    for draws in ("trajectory", "step"):
        check(fitted(head, operator), case.inputs, draws)


@pytest.mark.parametrize("name", OTHERS)
def test_members_of_others_are_draws(name: str) -> None:
    for draws in ("trajectory", "step"):
        check(other(name), operator_case("fno-1d").inputs, draws)


def test_a_member_is_the_repeated_draw() -> None:
    predictor, start = fitted("last-layer", "fno-1d"), operator_case("fno-1d").inputs
    forecast = predictor.rollout(start, steps=4, members=2, seed=0)
    repeated = Rollout(predictor.draw(forecast.ensemble.seeds(1)[1]), 4)
    torch.testing.assert_close(forecast.at(4).samples[1], evaluate(repeated, start), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("name", "expected"), [("scaled last layer", 1), ("scaled ensemble", 4), ("scaled mixture", 2)])
def test_a_calibrated_step_evaluates_each_operator_once(name: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added is as large as the variance, which takes every operator; the draw is one of these evaluations."""
    predictor, start = other(name), operator_case("fno-1d").inputs
    monkeypatch.setattr(weight_samples, "_VMAP_POINTS", 0)  # members one after the other, so that they can be counted
    seen: list[int] = []
    forward = FNO.forward
    monkeypatch.setattr(FNO, "forward", lambda self, values, **rest: seen.append(len(values)) or forward(self, values, **rest))
    predictor.rollout(start, steps=3, members=4, seed=0).at(3)
    assert sum(seen) == expected * 3 * 4 * len(start)
