"""One accounting of the residual variance: noise and the discrepancy of the fields, whatever wraps whatever."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

from probneural.calibration import NoveltyScale, ScaleMixture, Stacking, VarianceScale
from probneural.distributions import FieldDistribution, GaussianField, MixtureField, Predictor
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.functionals import sensors
from probneural.heads import KernelOperator
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.calibration.synthetic import GRID, Members, Synthetic, pairs

STACKING, CALIBRATION, SHIFTED = (pairs(20, seed=10 * number) for number in range(3))
TRAINING = FieldPairs(CALIBRATION.inputs, pairs(20, seed=0, errors=0.3).outputs)  # of means over the same inputs
PROBE = sensors(GRID, [[0.3]])


def mixed(*predictors: Predictor) -> MixturePredictor:
    return MixturePredictor(predictors, torch.tensor([0.25, 0.75], dtype=torch.float64))


HEADS: dict[str, Callable[[], Predictor]] = {
    "gaussian": Synthetic,
    "members": Members,
    "mixture": lambda: mixed(Synthetic(sd=0.5, noise=0.1), Synthetic(sd=2.0, noise=0.4)),
    "stack": lambda: Stacking().fit([Synthetic(sd=0.5), Synthetic(sd=2.0, noise=0.4)], STACKING),
    "kernel": cache(lambda: KernelOperator(groups=1, iterations=2).fit(None, TRAINING)),
}
CALIBRATORS: dict[str, Callable[[Predictor], Predictor]] = {
    "scale": lambda one: VarianceScale().fit(one, CALIBRATION),
    "scale mixture": lambda one: ScaleMixture(draws=64).fit(one, CALIBRATION),
    "inflation": lambda one: NoveltyScale().fit(one, CALIBRATION, shifted=SHIFTED),
    "mixture": lambda one: mixed(one, Synthetic(sd=0.7, noise=0.3)),
    "condition": lambda one: one.condition(STACKING.inputs[:3], PROBE, values=PROBE(STACKING.outputs.values[:3]), noise=0.5),
}


def discrepancy(u: FieldDistribution) -> Tensor:
    """Mean of the variance that samples do not share, by the dense roots."""
    if isinstance(u, MixtureField):
        return torch.stack([discrepancy(one) for one in u.components]).T @ u.weights
    if not isinstance(u, GaussianField) or u.discrepancy is None:
        return torch.zeros(u.mean.shape[1], dtype=torch.float64)
    return u.discrepancy.dense().double().square().sum(-1).mean((0, 2))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("inner", CALIBRATORS)
def test_is_noise_and_mean_discrepancy_of_the_field(head: str, inner: str) -> None:
    """Of a calibrated head, and of that calibrated again."""
    predictor = HEADS[head]()
    for chain in ([inner, outer] for outer in ("", *CALIBRATORS)):
        twice = predictor
        for name in filter(None, chain):
            if name == "condition" and not isinstance(twice(CALIBRATION.inputs), GaussianField):
                break
            twice = CALIBRATORS[name](twice)
        expected = twice.noise.double() + discrepancy(twice(CALIBRATION.inputs))
        assert twice.residual_variance.tolist() == pytest.approx(expected.tolist(), rel=0.05), chain


def test_is_that_of_the_saved_predictor(tmp_path: Path) -> None:
    for number, calibrator in enumerate(("inflation", "scale")):
        predictor = CALIBRATORS[calibrator](HEADS["kernel"]())
        save(predictor, tmp_path / f"{number}.safetensors")
        loaded = load(tmp_path / f"{number}.safetensors")
        assert torch.equal(loaded.residual_variance, predictor.residual_variance)
