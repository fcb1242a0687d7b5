"""An operator-learning problem whose posterior is known in closed form, solved with the library's own layers.

The unknown operator is diagonal in frequency, l_k ~ N(0, (2/k)^2) real for k = 1 ... 16, seen through 4 pairs with white
noise of sd .05 on 64 points. Every coefficient has posterior precision 1/tau_k^2 + 2 N sum_n |x_nk|^2 / sigma^2.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from probneural.distributions import GaussianField
from probneural.errors import UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import Laplace, LastLayerLaplace
from probneural.operators.layers import SpectralConv
from probneural.pairs import FieldPairs
from tests.heads.cases import structured
from tests.helpers import cross_covariance

MODES, POINTS, PAIRS, NOISE = 16, 64, 4, 0.05
GRID = Grid.uniform(POINTS)
NUMBERS = torch.arange(1, MODES + 1, dtype=torch.float64)
PRIOR = 2.0 / NUMBERS


def inputs(count: int, *, seed: int) -> Tensor:
    """Coefficients of GRF(25, 5, 2), `(n, 16)`, complex."""
    spectrum = 25.0 * ((2 * math.pi * NUMBERS).square() + 25.0).pow(-2)
    generator = torch.Generator().manual_seed(seed)
    pairs = torch.randn(count, MODES, 2, generator=generator, dtype=torch.float64)
    return (spectrum / 2).sqrt() * torch.view_as_complex(pairs)


def waves(coefficients: Tensor) -> Tensor:
    """g_k(x) = 2 Re(x_k exp(2 pi i k x)), `(n, 16, 64)`."""
    phase = torch.exp(2j * math.pi * NUMBERS[:, None] * GRID.points[:, 0])
    return 2.0 * (coefficients[:, :, None] * phase).real


def data() -> tuple[Tensor, FieldPairs]:
    generator = torch.Generator().manual_seed(2)
    truth = PRIOR * torch.randn(MODES, generator=generator, dtype=torch.float64)
    coefficients = inputs(PAIRS, seed=0)
    features = waves(coefficients)
    outputs = torch.einsum("k,nkp->np", truth, features)
    outputs = outputs + NOISE * torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    return coefficients, FieldPairs(Field(features.sum(1)[:, None], GRID), Field(outputs[:, None], GRID))


def exact() -> tuple[Tensor, Tensor, FieldPairs]:
    """Posterior mean and variance of every l_k, in closed form."""
    coefficients, pairs = data()
    precision = 1.0 / PRIOR.square() + 2 * POINTS * coefficients.abs().square().sum(0) / NOISE**2
    moments = torch.einsum("nkp,np->k", waves(coefficients), pairs.outputs.values[:, 0])
    return moments / NOISE**2 / precision, 1.0 / precision, pairs


def check(field: GaussianField, features: Tensor, mean: Tensor, variance: Tensor) -> tuple[float, float, float]:
    """Largest errors of mean, variance and joint covariance: relative, the last to the product of standard deviations."""
    expected = torch.einsum("k,nkp->np", mean, features)
    joint = torch.einsum("nkp,k,mkq->npmq", features, variance, features).reshape(2 * [features.shape[0] * POINTS])
    prior_std = joint.diagonal().sqrt()
    mean_error = float((field.mean[:, 0] - expected).norm() / expected.norm())
    variance_error = float((field.variance.flatten() / joint.diagonal() - 1).abs().max())
    joint_error = float(((cross_covariance(field, field) - joint) / prior_std / prior_std[:, None]).abs().max())
    return mean_error, variance_error, joint_error


def trained(ratio: float = 0.0) -> tuple[SpectralConv, Tensor, FieldPairs]:
    """The layer at the mode of its posterior, found by Newton's method on the loss, which is quadratic.

    Imaginary parts have prior standard deviations `ratio` times those of the real ones: none if the operator is symmetric.
    """
    _, pairs = data()
    layer = SpectralConv(1, 1, modes=(MODES + 1,)).to(torch.float64)
    precision = torch.full_like(layer.weight, math.inf).detach()
    precision[0, ..., 0] = 1.0  # the mean, of which these inputs have none
    precision[1:, 0, 0] = 1.0 / torch.stack([PRIOR, ratio * PRIOR], dim=1).square()
    free = precision.flatten() < math.inf

    def loss(numbers: Tensor) -> Tensor:
        vector = torch.zeros(len(free), dtype=torch.float64).masked_scatter(free, numbers)
        predicted = torch.func.functional_call(layer, {"weight": vector.reshape(layer.weight.shape)}, pairs.inputs.values)
        misfit = (pairs.outputs.values - predicted).square().sum() / NOISE**2
        return 0.5 * misfit + 0.5 * (precision.flatten()[free] * numbers.square()).sum()

    start = torch.zeros(int(free.sum()), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(loss(start), start)
    step = torch.linalg.solve(torch.autograd.functional.hessian(loss, start.detach()), gradient)
    with torch.no_grad():
        vector = torch.zeros(len(free), dtype=torch.float64).masked_scatter(free, -step)
        layer.weight.copy_(vector.reshape(layer.weight.shape))
    return layer, precision, pairs


@pytest.mark.parametrize("structure", ["full", "low_rank", "kronecker", "diagonal"])
def test_laplace_on_a_spectral_layer_is_the_exact_posterior(structure: str) -> None:
    """Every structure is exact here: frequencies do not interact, and 16 directions are all that data inform."""
    layer, precision, pairs = trained()
    mean, variance, _ = exact()
    head = Laplace(
        structured(structure, rank=20),
        noise=NOISE**2,
        prior_precision={"weight": precision},
        effective_observations=float(POINTS),
    )
    predictor = head.fit(layer, pairs)
    features = waves(inputs(3, seed=9))
    errors = check(predictor(Field(features.sum(1)[:, None], GRID)), features, mean, variance)
    assert errors[0] <= 1e-6
    assert max(errors[1:]) <= 1e-4
    weights = predictor.weight_covariance.diagonal().reshape(layer.weight.shape)
    torch.testing.assert_close(weights[1:, 0, 0, 0], variance, rtol=1e-8, atol=0)
    assert float(weights[..., 1].max()) == 0.0
    assert float(weights[0, 0, 0, 0]) == pytest.approx(1.0)  # the prior, where the data say nothing


@pytest.mark.parametrize("ratio", [0.1, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("structure", ["full", "low_rank", "kronecker", "diagonal"])
def test_real_and_imaginary_parts_have_priors_of_their_own(structure: str, ratio: float) -> None:
    """An operator that need not be symmetric: i l_k moves waves by a quarter of a period, which data tell apart."""
    layer, precision, pairs = trained(ratio)

    def both(coefficients: Tensor) -> Tensor:
        return torch.cat([waves(coefficients), waves(1j * coefficients)], dim=1)

    coefficients, _ = data()
    informed = 2 * POINTS * coefficients.abs().square().sum(0) / NOISE**2
    variance = 1.0 / (1.0 / torch.cat([PRIOR, ratio * PRIOR]).square() + informed.repeat(2))
    mean = torch.einsum("nkp,np->k", both(coefficients), pairs.outputs.values[:, 0]) / NOISE**2 * variance
    head = Laplace(
        structured(structure, rank=34),
        noise=NOISE**2,
        prior_precision={"weight": precision},
        effective_observations=float(POINTS),
    )
    if structure == "kronecker" and ratio != 1.0:
        with pytest.raises(UnsupportedError, match="different ones in weight"):
            head.fit(layer, pairs)
        return
    predictor = head.fit(layer, pairs)
    coefficients = inputs(3, seed=9)
    errors = check(predictor(Field(waves(coefficients).sum(1)[:, None], GRID)), both(coefficients), mean, variance)
    assert errors[0] <= 1e-6
    assert max(errors[1:]) <= 1e-4
    weights = predictor.weight_covariance.diagonal().reshape(layer.weight.shape)[1:, 0, 0]
    torch.testing.assert_close(weights.mT.flatten(), variance, rtol=1e-8, atol=0)


@pytest.mark.parametrize("structure", ["full", "low_rank", "kronecker", "diagonal"])
def test_evidence_is_the_exact_marginal_likelihood(structure: str) -> None:
    layer, precision, pairs = trained()
    head = Laplace(
        structured(structure, rank=20),
        noise=NOISE**2,
        prior_precision={"weight": precision},
        effective_observations=float(POINTS),
    )
    coefficients, _ = data()
    design = waves(coefficients).movedim(1, 2).flatten(0, 1)
    covariance = NOISE**2 * torch.eye(len(design), dtype=torch.float64) + (design * PRIOR.square()) @ design.mT
    zero = torch.zeros(len(design), dtype=torch.float64)
    marginal = torch.distributions.MultivariateNormal(zero, covariance).log_prob(pairs.outputs.values.flatten())
    assert head.fit(layer, pairs).log_evidence == pytest.approx(float(marginal), rel=1e-9)


class FrozenWaves(nn.Module):
    """The g_k as a feature map without parameters, under a read-out without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Conv1d(MODES, 1, 1, bias=False)

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values[:, 0], norm="forward")[:, 1 : MODES + 1]
        return self.last(waves(spectrum).to(values))


def test_last_layer_on_frozen_features_is_the_exact_posterior() -> None:
    mean, variance, pairs = exact()
    module = FrozenWaves().to(torch.float64)
    with torch.no_grad():
        module.last.weight.copy_(mean[None, :, None])
    head = LastLayerLaplace(noise=NOISE**2, prior_precision=1.0 / PRIOR.square(), effective_observations=float(POINTS))
    predictor = head.fit(module, pairs)
    features = waves(inputs(3, seed=9))
    errors = check(predictor(Field(features.sum(1)[:, None], GRID)), features, mean, variance)
    assert max(errors) <= 1e-9
