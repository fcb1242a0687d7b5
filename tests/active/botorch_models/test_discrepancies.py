"""Models over calibrated predictors, whose fields have a discrepancy of their own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.active import OperatorModel
from probneural.active.botorch_models.posteriors import Measurements
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import GaussianField
from probneural.fields import Field

PROBLEM = pn.problems.Heat(dimension=1)
TRAIN = PROBLEM.sample(20, resolution=32, seed=0)
PROBE = pn.functionals.stack([pn.functionals.integral(TRAIN.outputs.grid), pn.functionals.sensors(TRAIN.outputs.grid, [[0.3]])])


def encode(designs: Tensor) -> Field:
    return PROBLEM.encode(designs, grid=TRAIN.inputs.grid)


@pytest.fixture(scope="module", params=["last-layer", "kernel"])
def predictor(request: pytest.FixtureRequest) -> ScaledPredictor:
    """A poor operator (it returns half its input, and noise), calibrated."""
    rough = 0.05 * torch.randn(TRAIN.inputs.values.shape, generator=torch.Generator().manual_seed(0))
    wrong = pn.FieldPairs(TRAIN.inputs, Field(0.5 * TRAIN.inputs.values + rough, TRAIN.inputs.grid))
    if request.param == "last-layer":
        raw: pn.distributions.Predictor = pn.heads.LastLayerLaplace().fit(pn.operators.LinearRegression.fitted(wrong), TRAIN)
    else:
        raw = pn.heads.KernelOperator().fit(None, wrong)
    return pn.calibration.VarianceScale().fit(raw, PROBLEM.sample(30, resolution=32, seed=1))


def designs(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, PROBLEM.design_dim, generator=generator, dtype=torch.double)


def test_posteriors_are_those_of_the_field(predictor: ScaledPredictor) -> None:
    X = designs(3)
    model = OperatorModel(predictor, encode=encode, functional=PROBE)
    posterior, field = model.posterior(X[:, None]), predictor(encode(X)).apply(PROBE)
    assert isinstance(field, GaussianField)
    assert field.discrepancy is not None
    torch.testing.assert_close(posterior.mean[:, 0], field.mean[:, 0].double(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(posterior.variance[:, 0], field.variance[:, 0].double(), rtol=1e-4, atol=1e-12)
    discrepancy_variance = field.discrepancy.row_squares()[:, 0].double()
    assert (discrepancy_variance[:, 1] > 0.01 * posterior.variance[:, 0, 1]).all()


def test_observing_counts_the_discrepancy_as_noise(predictor: ScaledPredictor) -> None:
    """Against dense algebra over two designs and a third."""
    X, Y = designs(3, seed=1), torch.tensor([[0.3, -0.2], [0.1, 0.4]], dtype=torch.double)
    model = OperatorModel(predictor, encode=encode, functional=PROBE, noise=1e-3)
    known = model.condition_on_observations(X[:2], Y)
    field = predictor(encode(X)).apply(PROBE)
    assert isinstance(field, GaussianField)
    root = field.root.dense().double()[:, 0].flatten(0, 1)
    discrepancy = field.discrepancy.dense().double()[:, 0]
    mean = field.mean.double()[:, 0].flatten()
    shared, blocks = root @ root.mT, torch.block_diag(*(discrepancy @ discrepancy.mT))
    noisy = (shared + blocks)[:4, :4] + 1e-3 * torch.eye(4, dtype=torch.double)
    gain = shared[4:, :4] @ torch.linalg.inv(noisy)
    expected = mean[4:] + gain @ (Y.flatten() - mean[:4])
    variance = (shared[4:, 4:] - gain @ shared[:4, 4:]).diagonal() + blocks[4:, 4:].diagonal()
    posterior = known.posterior(X[2:])
    torch.testing.assert_close(posterior.mean[0], expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(posterior.variance[0], variance, rtol=1e-4, atol=1e-10)


def test_fantasies_are_what_conditioning_expects(predictor: ScaledPredictor) -> None:
    """Law of total variance: what fantasies move the mean by is what they take from the variance."""
    from botorch.sampling.normal import SobolQMCNormalSampler

    X, new = designs(3, seed=6), designs(1, seed=7)
    for functional, tolerance in ((PROBE, 0.05), (pn.functionals.sensors(TRAIN.outputs.grid, [[0.3]]), 0.05)):
        model = OperatorModel(predictor, encode=encode, functional=functional, noise=1e-4)
        known = model.fantasize(X, SobolQMCNormalSampler(torch.Size([2048]), seed=0)).posterior(new)
        moved = known.mean.var(0)
        learned = model.posterior(new).variance - known.variance[0]
        assert ((moved / learned - 1.0).abs() < tolerance).all()


def test_fantasies_have_a_discrepancy_for_each_design() -> None:
    generator = torch.Generator().manual_seed(0)
    root, discrepancy = (torch.randn(5, 3, 2, rank, generator=generator, dtype=torch.double) for rank in (4, 6))
    noise = torch.rand(3, 2, generator=generator, dtype=torch.double)
    flat = root.flatten(1, 2)
    blocks = torch.stack([torch.block_diag(*one) for one in discrepancy @ discrepancy.mT])
    expected = flat @ flat.mT + blocks + noise.flatten().diag()
    found = Measurements(torch.zeros(5, 3, 2, dtype=torch.double), root, noise, discrepancy=discrepancy)
    torch.testing.assert_close(found.triangle @ found.triangle.mT, expected)
    assert (found.triangle.triu(1) == 0).all()
