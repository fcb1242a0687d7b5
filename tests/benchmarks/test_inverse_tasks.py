"""Exact posteriors of inverse problems against dense algebra, plain Riemann sums, and simulation-based calibration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal

from benchmarks.inverse_hierarchical import HierarchicalTask, slice_draws, tempered_ratio
from benchmarks.inverse_operator import UncertainOperator
from benchmarks.inverse_posteriors import GaussianPosterior, Posterior, QuadraturePosterior
from benchmarks.inverse_tasks import BurgersTask, DarcyTask, HeatTask, PoissonTask, SmallTask, Task
from tests.helpers import normal

SMALL = {"points": 9, "modes": 3, "sensors": 8, "nodes": 16}


def heat_matrix() -> tuple[Tensor, Tensor]:
    """Sensors of the damped modes cos, sin 2 pi k x, and standard deviations of their coefficients."""
    x, columns, scales = (torch.arange(10).double()[:, None] + 0.5) / 10.0, [], []
    for k in range(1, 9):
        damping = math.exp(-0.01 * 0.5 * (2 * math.pi * k) ** 2)
        scale = 25.0 / ((2 * math.pi * k) ** 2 + 25.0)
        for wave in (torch.cos, torch.sin):
            columns.append(math.sqrt(2) * damping * wave(2 * math.pi * k * x))
            scales.append(scale)
    return torch.cat(columns, dim=1), torch.tensor(scales, dtype=torch.float64)


def poisson_matrix(task: PoissonTask) -> tuple[Tensor, Tensor]:
    """Sensors of sin sin / (pi^2 |k|^2), in the task's order of the modes, by the positions of the functional's ones."""
    rows = task.functional.adjoint(torch.eye(task.functional.size).double()).flatten(1).argmax(1)
    x, y = task.grid.points[rows].T
    pairs = sorted(((j * j + k * k, j, k) for j in range(1, 9) for k in range(1, 9)), key=lambda mode: mode[0])
    columns = [2 * torch.sin(math.pi * j * x) * torch.sin(math.pi * k * y) / (math.pi**2 * square) for square, j, k in pairs]
    scales = [25.0 / (math.pi**2 * square + 25.0) for square, *_ in pairs]
    return torch.stack(columns, dim=1), torch.tensor(scales, dtype=torch.float64)


@pytest.mark.parametrize(
    ("task", "matrix"),
    [(HeatTask.default(), heat_matrix()), (PoissonTask.default(), poisson_matrix(PoissonTask.default()))],
    ids=["heat", "poisson"],
)
def test_linear_posteriors_are_those_of_dense_kriging(task: HeatTask | PoissonTask, matrix: tuple[Tensor, Tensor]) -> None:
    """Gain and evidence in data space, from the modes' own formulas."""
    _, data = task.simulate(0)
    h = matrix[0] * matrix[1]
    total = h @ h.mT + task.noise * torch.eye(len(data)).double()
    gain = torch.linalg.solve(total, h).mT
    posterior = task.posterior(data)
    torch.testing.assert_close(posterior.mean, gain @ data, atol=1e-8, rtol=0)
    torch.testing.assert_close(posterior.covariance, torch.eye(len(h.mT)).double() - gain @ h, atol=1e-8, rtol=0)
    evidence = MultivariateNormal(torch.zeros_like(data), total).log_prob(data)
    assert posterior.log_evidence == pytest.approx(float(evidence), abs=1e-8)


def differences(first: Posterior, second: Posterior) -> list[float]:
    """Errors of mean and deviation, in the second's deviations, and of the evidence."""
    scale = second.covariance.diagonal().sqrt()
    mean, spread = (first.mean - second.mean) / scale, first.covariance.diagonal().sqrt() / scale - 1.0
    return [float(mean.abs().max()), float(spread.abs().max()), abs(first.log_evidence - second.log_evidence)]


@pytest.mark.parametrize(
    ("make", "nodes", "limit"), [(BurgersTask.default, 40, 1e-10), (DarcyTask.default, 20, 3e-3)], ids=["burgers", "darcy"]
)
def test_quadratures_are_converged_and_equal_a_riemann_sum(make: Callable[..., SmallTask], nodes: int, limit: float) -> None:
    task = make(nodes=nodes)
    _, data = task.simulate(4)
    posterior = task.posterior(data)
    d = len(posterior.mean)
    finer = make(nodes=2 * nodes if d == 2 else 28).posterior(data)
    assert max(differences(posterior, finer)) < limit
    # The rectangle rule on the same box, whose border has no density, is exact to as many digits.
    line = torch.linspace(-1.0, 1.0, 121 if d == 2 else 33, dtype=torch.float64)
    places = finer.centre + torch.cartesian_prod(*[line] * d) @ finer.root.mT
    logs = task.log_joint(places, data)
    cell = finer.root.diagonal().prod() * (2.0 / (len(line) - 1)) ** d
    weights = logs.softmax(0)
    mean = weights @ places
    covariance = (places - mean).mT @ ((places - mean) * weights[:, None])
    assert max(differences(finer, GaussianPosterior(mean, covariance, float(logs.logsumexp(0) + cell.log())))) < 10 * limit


@pytest.mark.parametrize("task", [BurgersTask.default(nodes=24), HierarchicalTask.default(**SMALL)], ids=["burgers", "poisson"])
def test_sensors_of_many_are_those_of_the_solution(task: Task) -> None:
    theta = task.draw(12, 5).reshape(3, 4, -1)
    torch.testing.assert_close(task.observe(theta), Task.observe(task, theta), atol=1e-11, rtol=0)
    pairs = task.pairs(3, 5, dtype=torch.float64)
    torch.testing.assert_close(pairs.inputs.values, task.encode(theta).values[:3], atol=1e-12, rtol=0)
    torch.testing.assert_close(task.functional(pairs.outputs.values)[:, 0], task.observe(theta[0, :3]), atol=1e-11, rtol=0)
    assert task.encode(theta.float()).dtype == torch.float32


def uniformity(levels: Tensor) -> float:
    """Smallest Kolmogorov-Smirnov p-value over the parameters, times their number."""
    return min(float(stats.kstest(column.numpy(), "uniform").pvalue) for column in levels.unbind(1)) * levels.shape[1]


def calibrated(task: Task, count: int) -> float:
    """Simulation-based calibration of the posterior."""
    levels = []
    for seed in range(count):
        theta, data = task.simulate(seed)
        levels.append(task.posterior(data).cdf(theta))
    return uniformity(torch.stack(levels))


@pytest.mark.parametrize(
    ("task", "count"),
    [
        pytest.param(HeatTask.default(), 200, id="heat"),
        pytest.param(PoissonTask.default(), 200, id="poisson"),
        pytest.param(BurgersTask.default(nodes=20), 20, id="burgers"),
        pytest.param(BurgersTask.default(nodes=24), 200, id="burgers-200", marks=pytest.mark.slow),
        pytest.param(DarcyTask.default(nodes=20), 100, id="darcy", marks=pytest.mark.slow),
        pytest.param(HierarchicalTask.default(**SMALL), 100, id="hierarchical", marks=pytest.mark.slow),
    ],
)
def test_levels_of_the_truth_are_uniform(task: Task, count: int) -> None:
    assert calibrated(task, count) > 0.01


def test_levels_tell_a_wrong_posterior() -> None:
    """Half the noise: the test above would fail."""

    class Overconfident(HeatTask):
        def posterior(self, data: Tensor) -> GaussianPosterior:
            return GaussianPosterior.of(self.matrix, data, self.noise / 4.0)

    assert calibrated(Overconfident(**vars(HeatTask.default())), 200) < 1e-4


@pytest.mark.parametrize("task", [BurgersTask.default(nodes=32), DarcyTask.default(nodes=24)], ids=["burgers", "darcy"])
def test_draws_of_a_quadrature_have_its_moments_and_levels(task: SmallTask) -> None:
    posterior = task.posterior(task.simulate(1)[1])
    draws = posterior.sample(2000, 0)
    root = torch.linalg.cholesky(posterior.covariance)
    white = torch.linalg.solve_triangular(root, (draws - posterior.mean).mT, upper=False).mT
    assert float(white.mean(0).abs().max()) < 4.0 / math.sqrt(2000)
    assert float((white.mT @ white / 2000 - torch.eye(len(root))).abs().max()) < 0.15
    assert uniformity(torch.stack([posterior.cdf(draw) for draw in draws[:200]])) > 0.01


def riemann(task: HierarchicalTask, data: Tensor, points: int) -> tuple[float, Tensor, Tensor]:
    """Evidence, mean and variance of the coefficients, by a midpoint rule over the uniform quantiles of alpha and tau."""
    line = (torch.arange(points).double() + 0.5) / points
    logs, means, squares = [], [], []
    for z in torch.special.ndtri(torch.cartesian_prod(line, line)):
        scale = task.eigenvalues(z).sqrt()
        h = task.matrix * scale
        precision = torch.eye(len(scale)).double() + h.mT @ h / task.noise
        total = h @ h.mT + task.noise * torch.eye(len(h)).double()
        logs.append(MultivariateNormal(torch.zeros_like(data), total).log_prob(data))
        means.append(torch.linalg.solve(precision, h.mT @ data / task.noise))
        squares.append(torch.linalg.inv(precision) + means[-1][:, None] * means[-1])
    weights = torch.stack(logs).softmax(0)
    mean = weights @ torch.stack(means)
    covariance = torch.einsum("k,kij->ij", weights, torch.stack(squares)) - mean[:, None] * mean
    return float(torch.stack(logs).logsumexp(0)) - 2 * math.log(points), mean, covariance


def test_the_hierarchical_posterior_is_a_riemann_sum_over_hyperparameters() -> None:
    task = HierarchicalTask.default(**SMALL)
    _, data = task.simulate(2)
    posterior = task.posterior(data)
    evidence, mean, covariance = riemann(task, data, 40)
    assert posterior.log_evidence == pytest.approx(evidence, abs=1e-3)
    torch.testing.assert_close(posterior.mean[2:], mean, atol=1e-3, rtol=0)
    torch.testing.assert_close(posterior.covariance[2:, 2:], covariance, atol=1e-3, rtol=0)
    torch.testing.assert_close(posterior.covariance.diagonal(), posterior.variance, atol=1e-9, rtol=0)
    finer = replace(task, nodes=32).posterior(data)
    assert posterior.log_evidence == pytest.approx(finer.log_evidence, abs=1e-8)
    torch.testing.assert_close(posterior.mean[2:], finer.mean[2:], atol=1e-8, rtol=0)
    torch.testing.assert_close(posterior.mean[:2], finer.mean[:2], atol=0.01, rtol=0)
    draws = posterior.sample(2000, 0)
    assert float(((draws.mean(0) - posterior.mean) / posterior.variance.sqrt()).abs().max()) < 4.5 / math.sqrt(2000)
    torch.testing.assert_close(draws.var(0), posterior.variance, atol=0, rtol=0.2)


def test_slice_draws_are_those_of_a_gaussian_posterior() -> None:
    matrix, data = normal(3, 5, seed="matrix"), normal(3, seed="data")
    exact = GaussianPosterior.of(matrix, data, 0.5)

    def log_likelihood(theta: Tensor) -> Tensor:
        return -(theta @ matrix.mT - data).square().sum(-1)

    draws = slice_draws(log_likelihood, normal(200, 5, seed="start"), steps=400, seed=0).flatten(0, 1)
    torch.testing.assert_close(draws.mean(0), exact.mean, atol=0.04, rtol=0)
    torch.testing.assert_close(torch.cov(draws.mT), exact.covariance, atol=0.04, rtol=0)


def test_tempered_posteriors_are_twelve_to_fourteen_times_too_wide() -> None:
    """One unknown and 128 sensors: 12.0 if all are as sensitive, 13.3 to 14.4 for one sine mode; the mean weight of noise."""
    assert tempered_ratio(torch.ones(128).double()) == pytest.approx(11.979, abs=1e-3)
    line = torch.linspace(-8.0, 8.0, 2001, dtype=torch.float64)
    weights = (-(line[:, None] - normal(20_000, seed="noise")).abs().mean(1).square() / 2.0).softmax(0)
    mean = weights @ line
    spread = float((weights @ (line - mean).square()).sqrt())
    assert spread * math.sqrt(128) == pytest.approx(tempered_ratio(torch.ones(128).double()), rel=0.01)
    places = torch.rand(128, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert 13.3 < tempered_ratio(torch.sin(math.pi * places).prod(1)) < 14.4


def test_tempered_draws_are_those_of_importance_sampling_and_wide() -> None:
    """From the exact posterior of noisier data, by the ratio of both weights: moments of the sensors, in noise units."""
    task = HierarchicalTask.default(**SMALL)
    _, data = task.simulate(2)
    noisier = replace(task, noise=36.0 * task.noise)
    theta = noisier.posterior(data).sample(4000, 0)
    residual = (task.observe(theta) - data) / math.sqrt(task.noise)
    weights = (task.tempered_log_likelihood(theta, data) + residual.square().sum(-1) / 72.0).softmax(0)
    assert 1.0 / float(weights.square().sum()) > 500  # effective draws
    chains = (task.observe(task.tempered(data, steps=300, chains=64)) - data) / math.sqrt(task.noise)
    drawn, mean = chains.flatten(0, 1), weights @ residual
    std = (weights @ (residual - mean).square()).sqrt()
    errors = (chains.mean(0).var(0) / 64 + std.square() * weights.square().sum()).sqrt()  # of chains, and of weighted draws
    assert float(((drawn.mean(0) - mean) / errors).abs().max()) < 4.0
    torch.testing.assert_close(drawn.std(0), std, atol=0, rtol=0.15)
    exact = task.observe(task.posterior(data).sample(500, 0)).std(0) / math.sqrt(task.noise)
    assert float((drawn.std(0) / exact).min()) > 2.0


@pytest.mark.parametrize("parameters", [1, 2])
def test_evidence_weights_turn_the_draws_posterior_into_the_joint_one(parameters: int) -> None:
    """Joint: the posterior under the averaged likelihood, which is the average of posteriors weighted by evidence."""
    model = UncertainOperator.default(parameters=parameters)
    _, data = model.simulate(0)
    weights, means, precisions, evidence = model.mixture(data)
    joint, draws = model.joint(data), model.draws(data)
    weighted = (weights.log() + evidence).softmax(0)
    assert joint.log_evidence == pytest.approx(float((weights.log() + evidence).logsumexp(0)), abs=1e-8)
    torch.testing.assert_close(weighted @ means, joint.mean, atol=1e-8, rtol=0)
    assert draws.log_evidence == pytest.approx(0.0, abs=1e-8)
    torch.testing.assert_close(weights @ means, draws.mean, atol=1e-8, rtol=0)
    second = torch.einsum("k,kij->ij", weights, torch.linalg.inv(precisions) + means[:, :, None] * means[:, None])
    torch.testing.assert_close(second - draws.mean[:, None] * draws.mean, draws.covariance, atol=1e-8, rtol=0)
    assert float(draws.covariance[0, 0] / joint.covariance[0, 0]) > 1.1  # the gap of this data set
    assert model.total_variation(data) > 0.08


def test_the_draws_posterior_is_the_average_over_drawn_operators() -> None:
    model = UncertainOperator.default()
    _, data = model.simulate(1)
    h = model.functional(model.sample(20_000, 3).mT).mT[:, :, 0]
    precision = 1.0 + h.square().sum(1) / model.noise
    means = (h @ data) / model.noise / precision
    draws = model.draws(data)
    assert float(means.mean()) == pytest.approx(float(draws.mean), abs=4.0 * float(means.std()) / math.sqrt(20_000))
    variance = float(precision.reciprocal().mean() + means.var())
    assert variance == pytest.approx(float(draws.covariance), rel=0.03)


def test_a_certain_operator_has_one_posterior() -> None:
    model = UncertainOperator.default(spread=1e-6)
    _, data = model.simulate(0)
    exact = GaussianPosterior.of(model.sensed, data, model.noise)
    assert max(differences(model.joint(data), exact)) < 1e-8
    assert max(differences(model.draws(data), exact)[:2]) < 1e-8
    assert model.total_variation(data) < 1e-8


def test_a_density_that_no_box_encloses_is_refused() -> None:
    options: dict[str, Any] = {"centre": torch.zeros(1).double(), "covariance": torch.eye(1).double(), "nodes": 16}
    with pytest.raises(ArithmeticError, match="border"):
        QuadraturePosterior.fitted(lambda theta: torch.zeros(len(theta)).double(), **options)
