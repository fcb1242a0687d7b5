"""A trained operator is accurate: on functions it has not seen, on another grid, in whatever units and order the data come."""

from __future__ import annotations

import pytest
import torch

import probneural as pn
from benchmarks.studies import published
from probneural.fields import Field, evaluate
from probneural.pairs import FieldPairs

BURGERS = pn.problems.Burgers(viscosity=0.1)


def relative_error(operator: torch.nn.Module, test: FieldPairs) -> float:
    """Mean relative L2 error over functions."""
    with torch.no_grad():
        predicted = Field(evaluate(operator, test.inputs), test.outputs.grid)
    return float(pn.metrics.relative_l2(predicted, test.outputs).mean())


def in_units(pairs: FieldPairs, *, inputs: float, outputs: float) -> FieldPairs:
    return FieldPairs(
        Field(inputs * pairs.inputs.values, pairs.inputs.grid), Field(outputs * pairs.outputs.values, pairs.outputs.grid)
    )


def test_a_small_operator_learns_burgers_equation() -> None:
    """1.5 % on twice the training resolution after seconds.

    Data come as simulators write them: in units of their own, and sorted, here by size. Linear regression leaves seven times as
    much, and so does an operator with wrong units or frequencies; batches in the order of the data leave 2 %.
    """
    train, test = BURGERS.sample(200, resolution=64, seed=0), BURGERS.sample(50, resolution=128, seed=1)
    train = train[train.inputs.norm()[:, 0].argsort()]
    train, test = (in_units(pairs, inputs=64.0, outputs=1.0 / 64.0) for pairs in (train, test))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        operator = pn.operators.FNO(1, 1, modes=(12,), width=16, depth=3, projection=32)
    untrained = relative_error(operator, test)
    pn.fit(operator, train, epochs=15, data=pn.training.DataOptions(validation=0.0), show_progress=False)
    assert relative_error(operator, test) <= 0.015
    assert untrained > 0.5
    assert relative_error(pn.operators.LinearRegression.fitted(train), test) > 0.05


@pytest.mark.slow
def test_the_published_setting_is_reached() -> None:
    """Burgers at viscosity .1, 1,000 pairs on 128 points, as the study `published` trains it: .1 % on 192 points."""
    setting = next(one for one in published.settings() if "viscosity 0.1" in one.title)
    recipe = next(one for one in setting.operators if one.kind == "FNO")
    assert (setting.pairs, setting.resolution, recipe.epochs, recipe.options["modes"]) == (1000, (128,), 100, (16,))
    train = setting.problem.sample(setting.pairs, resolution=setting.resolution, seed=published.SEEDS["train"][0])
    test = setting.problem.sample(200, resolution=192, seed=published.SEEDS["test"][0])
    operator, facts, _ = recipe.train(train, seed=0, tick=lambda: None)
    assert facts["parameters"] == 137537
    assert relative_error(operator, test) <= 1e-3
