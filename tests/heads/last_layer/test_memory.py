"""Predictions of many fields go in parts once their features exceed the memory budget."""

from __future__ import annotations

import pytest
import torch

import probneural as pn
from probneural.distributions import FeatureRoot, GaussianField
from probneural.distributions.roots.lazy import LazyFeatureRoot
from probneural.fields import Field
from probneural.functionals import integral, sensors
from tests.curvature.cases import Sizes
from tests.helpers import normal

SAMPLES, POINTS, WIDTH = 24, 64, 32


@pytest.fixture(scope="module")
def predictor() -> pn.distributions.Predictor:
    burgers = pn.problems.Burgers(viscosity=0.1)
    operator = pn.operators.FNO(in_channels=1, out_channels=1, modes=(4,), width=WIDTH, depth=1, seed=0)
    train = burgers.sample(20, resolution=POINTS, seed=0)
    pn.fit(operator, train, epochs=1, seed=0, show_progress=False)
    fitted = pn.heads.LastLayerLaplace(moves_mean=True).fit(operator, train)
    return pn.calibration.VarianceScale().fit(fitted, burgers.sample(20, resolution=POINTS, seed=1))


def results(predictor: pn.distributions.Predictor, inputs: Field, truth: Field) -> dict[str, torch.Tensor]:
    """Everything that users ask of a prediction."""
    u = predictor(inputs)
    probe = sensors(inputs.grid, [[0.25], [0.5]])
    measured = u.condition(probe, probe(truth.values), noise=1e-2)
    return {
        "mean": u.mean,
        "variance": u.variance,
        "samples": u.rsample((2,), seed=3),
        "draws": u.draw([5, 6]),
        "a draw for each sample": u.draw(range(SAMPLES), each=True),
        "integral": u.apply(integral(inputs.grid)).variance,
        "conditioned": measured.mean,
        "constrained": u.constrain(probe, probe(truth.values)).variance,
        "density": u.log_prob(truth.values, noise=1e-2),
        "selected": u[[3, 1]].variance,
        "scores": torch.tensor([pn.metrics.score(u, truth, noise=1e-2).crps]),
    }


def test_results_are_those_of_one_part_in_bounded_memory(
    predictor: pn.distributions.Predictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    test = pn.problems.Burgers(viscosity=0.1).sample(SAMPLES, resolution=POINTS, seed=2)
    expected = results(predictor, test.inputs, test.outputs)
    for name in ("probneural.heads.last_layer.laplace.HELD_ELEMENTS", "probneural.distributions.roots.lazy.HELD_ELEMENTS"):
        monkeypatch.setattr(name, 0)
    for name in ("probneural.heads.last_layer.laplace._BATCH_ELEMENTS", "probneural.distributions.roots.lazy._PART_ELEMENTS"):
        monkeypatch.setattr(name, 4 * POINTS * WIDTH)
    for name, value in results(predictor, test.inputs, test.outputs).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=1e-6, msg=name)
    with Sizes() as sizes:
        u = predictor(test.inputs)
        assert u.variance.shape == u.draw([1])[0].shape == test.outputs.values.shape
    # four samples a part; a held prediction would have 24 x 64 x 33
    assert max(sizes.seen) <= 5 * POINTS * 4 * WIDTH < SAMPLES * POINTS * WIDTH * 1.0


def test_predictions_within_the_budget_hold_their_features(predictor: pn.distributions.Predictor) -> None:
    inputs = Field(normal(3, 1, POINTS, seed="inputs").float(), predictor.domain)
    u = predictor.inner(inputs)
    assert isinstance(u, GaussianField)
    assert isinstance(u.root, FeatureRoot)
    assert not isinstance(u.root, LazyFeatureRoot)
