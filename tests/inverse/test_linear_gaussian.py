"""Solvers and likelihoods against closed forms of linear maps with Gaussian priors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import probneural.inverse.problem as solvers
from probneural.errors import FileError
from probneural.fields import Field
from probneural.inverse import InversePosterior, InverseProblem
from tests.inverse.linear import LinearPredictor, gaussian_posterior, linear_problem

QUIET: dict[str, Any] = {"show_progress": False}


def drawn_maps(problem: InverseProblem, predictor: LinearPredictor, rows: Tensor) -> list[Tensor]:
    """The maps from parameters to data of the operator draws."""
    basis = torch.eye(4).double()[:, None]
    return [rows @ predictor.draw(seed)(basis, grid=predictor.domain)[:, 0].mT for seed in range(problem.targets)]


@pytest.mark.parametrize("count", [2, 5])
def test_the_joint_likelihood_is_the_dense_gaussian(count: int) -> None:
    """With fewer and with more latent dimensions than observations."""
    problem, predictor, rows = linear_problem("joint")
    predictor.parts = predictor.parts[:count]
    predictor.latent = type(predictor.latent)(id="short", rank=count)
    theta = torch.linspace(-2, 2, 24).double().view(2, 3, 4)
    fields = torch.einsum("kpq,...q->...pk", predictor.parts, theta)
    covariance = rows @ (fields @ fields.mT) @ rows.mT + torch.diag(problem.noise)
    dense = torch.distributions.MultivariateNormal(theta @ predictor.matrix.mT @ rows.mT, covariance)
    assert torch.allclose(problem.log_likelihood(theta), dense.log_prob(problem.data), rtol=0, atol=1e-10)
    prior = problem.prior.factors[0].log_prob(theta)
    assert torch.allclose(problem.log_posterior(theta) - problem.log_likelihood(theta), prior, rtol=0, atol=1e-12)


@pytest.mark.parametrize("likelihood", ["mean", "joint", "draws"])
def test_likelihoods_have_derivatives(likelihood: str) -> None:
    problem, _, _ = linear_problem(likelihood, operator_draws=2)
    theta = torch.linspace(-1, 1, 8).double().view(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(problem.log_likelihood, (theta,))


def test_draws_have_one_likelihood_for_each_operator() -> None:
    problem, predictor, rows = linear_problem("draws")
    theta = torch.linspace(-1, 1, 8).double().view(2, 4)
    expected = [
        torch.distributions.MultivariateNormal(theta @ map_.mT, torch.diag(problem.noise)).log_prob(problem.data)
        for map_ in drawn_maps(problem, predictor, rows)
    ]
    assert torch.allclose(problem.log_likelihood(theta), torch.stack(expected), rtol=0, atol=1e-10)


@pytest.mark.parametrize("likelihood", ["mean", "joint", "draws"])
@pytest.mark.parametrize("has_discrepancy", [False, True])
def test_the_gauss_newton_approximation_is_exact_where_the_covariance_is_constant(
    likelihood: str, has_discrepancy: bool
) -> None:
    """Mode, covariance and evidence to 1e-8: of the mean, of each operator draw, and of a certain operator's joint density."""
    discrepancy = torch.linspace(0.1, 1, 8).double().view(1, 1, 4, 2) if has_discrepancy else None
    problem, predictor, rows = linear_problem(likelihood, uncertain=likelihood == "draws", discrepancy=discrepancy)
    covariance = torch.diag(problem.noise)
    maps = [rows @ predictor.matrix]
    shift = torch.zeros(1, 3).double()
    if likelihood == "draws":
        origin = torch.zeros(1, 1, 4).double()
        shift = torch.cat([predictor.draw(seed)(origin, grid=predictor.domain)[:, 0] @ rows.mT for seed in range(6)])
        maps = [map_ - part[:, None] for map_, part in zip(drawn_maps(problem, predictor, rows), shift, strict=True)]
    if discrepancy is not None and likelihood != "mean":
        covariance = covariance + rows @ discrepancy[0, 0] @ discrepancy[0, 0].mT @ rows.mT
    result = problem.approximation()
    data = problem.data
    for number, map_ in enumerate(maps):
        problem.data = data
        mean, spread, evidence = gaussian_posterior(problem, map_, covariance)
        prior = problem.prior.factors[0]
        assert isinstance(prior, torch.distributions.MultivariateNormal)
        factor = prior.scale_tril @ result.factor[number]
        assert torch.allclose(problem.prior.from_normal(result.mode[number]), mean, rtol=0, atol=1e-8)
        assert torch.allclose(factor @ factor.mT, spread, rtol=0, atol=1e-8)
        assert torch.allclose(result.log_evidence[number], evidence, rtol=0, atol=1e-8)
    problem.data = data
    assert torch.equal(problem.map().theta, problem.prior.from_normal(result.mode))


def check_moments(posterior: InversePosterior, mean: Tensor, covariance: Tensor, count: float) -> None:
    """Means within 4 standard errors, and covariances within 5, both of `count` independent draws."""
    std = covariance.diagonal().sqrt()
    assert bool(((posterior.mean - mean).abs() < 4 * std / count**0.5).all())
    assert bool(((posterior.covariance - covariance).abs() < 5 * std[:, None] * std / (0.5 * count) ** 0.5).all())


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("pcn", {"draws": 2000}), ("nuts", {"draws": 400, "chains": 8, "warm_up": 40}), ("smc", {"draws": 2000})],
)
def test_samplers_have_the_exact_moments(method: str, arguments: dict[str, Any]) -> None:
    problem, predictor, rows = linear_problem("mean")
    mean, covariance, evidence = gaussian_posterior(problem, rows @ predictor.matrix, torch.diag(problem.noise))
    posterior = problem.sample(method, **arguments, **QUIET)
    count = float(posterior.effective_samples.min()) if method != "smc" else 500.0  # particles that share ancestors
    assert count >= 200
    assert float(posterior.r_hat.max()) < 1.05
    check_moments(posterior, mean, covariance, count)
    assert posterior.log_evidence is not None
    assert torch.allclose(posterior.log_evidence[0], evidence, rtol=0, atol=1e-8 if method != "smc" else 0.3)


def test_ensemble_kalman_inversion_is_exact_for_many_members() -> None:
    problem, predictor, rows = linear_problem("mean")
    mean, covariance, _ = gaussian_posterior(problem, rows @ predictor.matrix, torch.diag(problem.noise))
    check_moments(problem.kalman(members=4000), mean, covariance, 1000)


def test_samplers_of_the_joint_likelihood_agree_with_quadrature() -> None:
    """Its covariance depends on the parameters, so it is not Gaussian: pCN and tempering against each other's evidence."""
    problem, _, _ = linear_problem("joint")
    tempered, chain = problem.sample("smc", draws=4000, **QUIET), problem.sample("pcn", draws=4000, **QUIET)
    errors = (tempered.mean - chain.mean).abs() / chain.std
    assert float(errors.max()) < 0.15
    assert bool(((tempered.std / chain.std).log().abs() < 0.1).all())
    # importance sampling from the prior, the definition of the evidence and of the mean
    prior = problem.prior.from_normal(torch.randn(200_000, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    logs = problem.log_likelihood(prior)
    weights = logs.softmax(0)
    assert float(1 / weights.square().sum()) > 1000
    assert tempered.log_evidence is not None
    assert abs(float(logs.logsumexp(0)) - torch.tensor(200_000.0).log() - tempered.log_evidence[0]) < 0.2
    assert float(((weights @ prior - chain.mean) / chain.std).abs().max()) < 0.15


def test_draws_average_normalised_posteriors() -> None:
    """The mean and covariance of the mixture with equal weights, whatever the evidence of each operator."""
    problem, predictor, rows = linear_problem("draws")
    parts = [gaussian_posterior(problem, map_, torch.diag(problem.noise)) for map_ in drawn_maps(problem, predictor, rows)]
    means, covariances = torch.stack([mean for mean, _, _ in parts]), torch.stack([part for _, part, _ in parts])
    evidence = torch.stack([part for _, _, part in parts])
    assert float(evidence.max() - evidence.min()) > 1.0
    posterior = problem.sample("pcn", draws=6000, **QUIET)
    assert posterior.log_evidence is not None
    assert torch.allclose(posterior.log_evidence, evidence, rtol=0, atol=1e-8)
    check_moments(posterior, means.mean(0), covariances.mean(0) + torch.cov(means.mT, correction=0), 1500)


def test_delayed_acceptance_has_the_solver_s_posterior() -> None:
    """A surrogate whose mean is wrong proposes; the draws are those of the exact solver."""
    exact_problem, predictor, rows = linear_problem("mean")
    problem, wrong, _ = linear_problem("joint")
    wrong.matrix = predictor.matrix + 0.2
    mean, covariance, _ = gaussian_posterior(exact_problem, rows @ predictor.matrix, torch.diag(problem.noise))

    def solver(inputs: Field) -> Field:
        return Field(inputs.values @ predictor.matrix.mT, inputs.grid)

    posterior = problem.sample("pcn", draws=3000, exact=solver, **QUIET)
    check_moments(posterior, mean, covariance, float(posterior.effective_samples.min()))
    assert posterior.solver_calls == 3000 + 4
    assert float(posterior.effective_samples.min()) > 60
    surrogate = problem.sample("pcn", draws=3000, **QUIET)
    assert float(((surrogate.mean - mean).abs() / covariance.diagonal().sqrt()).max()) > 0.3


def test_outputs_are_those_given_the_data() -> None:
    """Of a certain linear map with a discrepancy, mean and covariance of the output given the data are closed forms."""
    discrepancy = torch.linspace(0.1, 1, 8).double().view(1, 1, 4, 2)
    problem, predictor, rows = linear_problem("joint", uncertain=False, discrepancy=discrepancy)
    prior = problem.prior.factors[0]
    assert isinstance(prior, torch.distributions.MultivariateNormal)
    spread = predictor.matrix @ prior.covariance_matrix @ predictor.matrix.mT + discrepancy[0, 0] @ discrepancy[0, 0].mT
    gain = torch.linalg.solve(rows @ spread @ rows.mT + torch.diag(problem.noise), rows @ spread).mT
    centre = predictor.matrix @ prior.loc
    mean, covariance = centre + gain @ (problem.data - rows @ centre), spread - gain @ rows @ spread
    outputs = problem.laplace(draws=4000).outputs
    samples = outputs.samples[:, 0, 0]
    std = covariance.diagonal().sqrt()
    assert bool(((samples.mean(0) - mean).abs() < 4 * std / 4000**0.5).all())
    assert bool(((torch.cov(samples.mT) - covariance).abs() < 5 * std[:, None] * std / 2000**0.5).all())


@pytest.mark.parametrize("method", ["pcn", "nuts"])
def test_a_killed_chain_resumes_to_the_same_bits(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, predictor, _ = linear_problem("joint")
    arguments: dict[str, Any] = {"draws": 80, "warm_up": 10, "seed": 3, **QUIET}
    if method == "pcn":
        arguments["exact"] = lambda inputs: Field(inputs.values @ predictor.matrix.mT, inputs.grid)
    whole = problem.sample(method, **arguments)
    path, writes, write = tmp_path / "chain", [0], solvers._write

    def killed(*content: Any) -> None:
        write(*content)
        writes[0] += 1
        if writes[0] == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(solvers, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        problem.sample(method, path=path, **arguments)
    resumed = problem.sample(method, path=path, **arguments)
    assert torch.equal(resumed.theta, whole.theta)
    assert (resumed.acceptance, resumed.solver_calls) == (whole.acceptance, whole.solver_calls)
    with pytest.raises(FileError, match="chains of the same problem"):
        problem.sample(method, path=path, **arguments | {"seed": 4})
    other, _, _ = linear_problem("joint", noise=0.3)
    with pytest.raises(FileError, match="chains of the same problem"):
        other.sample(method, path=path, **arguments)


def test_the_gap_between_joint_and_draws() -> None:
    """u = (1 + s xi) theta with theta ~ N(0, 1): the averaged likelihood and averaged posteriors, by quadrature.

    Operators that do not explain the data weigh less in the first, so that it is narrower, here by a quarter.
    """
    s, data, noise = 0.5, 2.0, 0.01
    problem, predictor, _ = linear_problem("joint")
    grid = predictor.domain
    scalar = LinearPredictor(torch.eye(4).double(), s * torch.eye(4).double()[None])
    one = InverseProblem(
        scalar,
        prior=torch.distributions.Normal(torch.tensor(0.0), torch.tensor(1.0)),
        encode=lambda theta: Field(theta[:, None].expand(-1, 1, 4), grid),
        functional=problem.functional.__class__(grid, torch.eye(4).double()[:1]),  # type: ignore[call-arg]
        data=torch.tensor([data]),
        noise=noise,
    )
    theta = torch.linspace(-6, 6, 4001).double()
    joint = one.log_posterior(theta[:, None]).softmax(0)
    nodes = torch.linspace(-6, 6, 4001).double()
    slopes = 1 + s * nodes
    variance = 1 / (1 + slopes**2 / noise)
    densities = torch.exp(-0.5 * (theta[:, None] - variance * slopes * data / noise) ** 2 / variance) / variance.sqrt()
    draws = densities @ torch.exp(-0.5 * nodes**2)
    draws = draws / draws.sum()
    closed = (
        torch.exp(-0.5 * (data - theta) ** 2 / (s**2 * theta**2 + noise) - 0.5 * theta**2) / (s**2 * theta**2 + noise).sqrt()
    )
    assert torch.allclose(joint, closed / closed.sum(), rtol=0, atol=1e-12)
    distance = 0.5 * float((joint - draws).abs().sum())
    means = [float(weights @ theta) for weights in (joint, draws)]
    stds = [float(weights @ (theta - mean) ** 2) ** 0.5 for weights, mean in zip((joint, draws), means, strict=True)]
    assert 0.1 < distance < 0.9, (distance, means, stds)
    assert stds[0] < stds[1]
