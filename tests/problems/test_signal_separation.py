"""Signal separation against dense Gaussian conditioning on the samples, simulated errors, and the filter's own recursion."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch

from probneural.errors import DataError, GridError, ResolutionError, ShapeError
from probneural.fields import Field
from probneural.functionals import sensors
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.problems import SignalSeparation


def kernel(frequencies: tuple[float, ...]) -> torch.Tensor:
    """Covariance of a sum of tones between samples: ½ Σ cos 2πf (t - s), `(200, 200)`."""
    t = torch.arange(200, dtype=torch.float64) / 100
    gaps = t[:, None] - t
    return sum(0.5 * torch.cos(2 * math.pi * f * gaps) for f in frequencies)


def condition(noise: float, target: float, seen: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Gain `(200, seen)` and covariance `(200, 200)` of the target given the first samples, from kernels alone."""
    cross = kernel((target,))[:, :seen]
    data = kernel((1.0, 3.0, 5.0, 7.0))[:seen, :seen] + noise * torch.eye(seen, dtype=torch.float64)
    gain = torch.linalg.solve(data, cross.mT).mT
    return gain, kernel((target,)) - gain @ cross.mT


def mixtures(problem: SignalSeparation, n: int, seed: int = 0) -> FieldPairs:
    return problem.sample(n, resolution=200, seed=seed, dtype=torch.float64)


@pytest.mark.parametrize(("noise", "target"), [(1.0, 3.0), (0.04, 1.0), (25.0, 7.0)])
def test_posterior_is_dense_conditioning_on_the_samples(noise: float, target: float) -> None:
    problem = SignalSeparation(noise, target=target)
    pairs = mixtures(problem, 3)
    gain, covariance = condition(noise, target, 200)
    expected = pairs.inputs.values @ gain.mT
    posterior = problem.posterior(pairs.inputs)
    torch.testing.assert_close(problem.solve(pairs.inputs).values, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(posterior.mean, expected, atol=1e-11, rtol=0)
    torch.testing.assert_close(posterior.variance, covariance.diagonal().expand(3, 1, -1), atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(posterior.covariance.to_dense(), covariance.expand(3, -1, -1), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("noise", "target"), [(1.0, 3.0), (0.16, 5.0)])
def test_causal_posterior_is_dense_conditioning_on_the_past(noise: float, target: float) -> None:
    problem = SignalSeparation(noise, target=target)
    pairs = mixtures(problem, 2)
    mean, variance = problem.causal_posterior(pairs.inputs)
    for seen in (1, 2, 17, 100, 200):
        gain, covariance = condition(noise, target, seen)
        expected = pairs.inputs.values[..., :seen] @ gain[seen - 1]
        torch.testing.assert_close(mean.values[..., seen - 1], expected, atol=1e-11, rtol=0)
        assert variance.values[1, 0, seen - 1].item() == pytest.approx(covariance[seen - 1, seen - 1].item(), rel=1e-9)
    torch.testing.assert_close(mean.values[..., -1], problem.solve(pairs.inputs).values[..., -1], atol=1e-12, rtol=0)


def test_floors() -> None:
    problem = SignalSeparation()
    pairs = mixtures(problem, 3000)
    _, variance = problem.causal_posterior(pairs.inputs[:1])
    floors = [variance.values[0, 0, seen - 1].sqrt().item() for seen in (1, 10, 50, 100, 200)]
    assert floors == pytest.approx([0.645, 0.62, 0.192, 0.139, 0.099], abs=2e-3)
    error = (problem.solve(pairs.inputs).values - pairs.outputs.values).square().mean().item()
    assert error == pytest.approx(1 / 102, rel=0.05)
    causal, variance = problem.causal_posterior(pairs.inputs)
    errors = (causal.values - pairs.outputs.values).square().mean(0)[0]
    # 3000 squares of normal variables average to within 1 ± .026; the largest deviation of 200 dependent ones is below .1.
    torch.testing.assert_close(errors, variance.values[0, 0], rtol=0.1, atol=0)


def test_posterior_covers_what_it_says() -> None:
    problem = SignalSeparation(4.0)
    pairs = mixtures(problem, 400)
    posterior = problem.posterior(pairs.inputs)
    standardised = (pairs.outputs.values - posterior.mean) / posterior.variance.sqrt()
    assert standardised[..., 30].var().item() == pytest.approx(1.0, abs=0.25)
    inside = (standardised.abs() < 1.6449).double().mean().item()
    assert inside == pytest.approx(0.9, abs=0.025)


def test_sequences_are_independent_given_their_mixtures() -> None:
    problem = SignalSeparation()
    pairs = mixtures(problem, 3)
    posterior = problem.posterior(pairs.inputs)
    assert posterior.base_shape == (6,)
    assert problem.posterior(pairs.inputs[:1]).base_shape == (2,)
    joint = posterior.cross_covariance(posterior)
    assert joint[:200, 200:].abs().max() == 0.0
    # What is measured of one sequence says nothing about the others.
    probe = sensors(pairs.inputs.grid, [[0.5]])
    measured = posterior.condition(probe, probe(pairs.outputs.values) + 0.3, noise=1e-4)
    alone = problem.posterior(pairs.inputs[1:2])
    alone = alone.condition(probe, probe(pairs.outputs.values[1:2]) + 0.3, noise=1e-4)
    torch.testing.assert_close(measured.mean[1:2], alone.mean, atol=1e-10, rtol=0)
    torch.testing.assert_close(measured.variance[1:2], alone.variance, atol=1e-12, rtol=0)
    assert problem.posterior(pairs.inputs[:1]).latent.id != problem.posterior(pairs.inputs[1:2]).latent.id
    assert problem.posterior(pairs.inputs[:1]).latent.id == problem.posterior(pairs.inputs[:1]).latent.id


def test_distribution_of_tones_and_noise() -> None:
    problem = SignalSeparation(0.25)
    pairs = mixtures(problem, 20_000)
    torch.testing.assert_close(pairs.outputs.values[:, 0].T.cov(), kernel((3.0,)), atol=0.02, rtol=0)
    noisy = kernel((1.0, 3.0, 5.0, 7.0)) + 0.25 * torch.eye(200, dtype=torch.float64)
    torch.testing.assert_close(pairs.inputs.values[:, 0].T.cov(), noisy, atol=0.1, rtol=0)
    assert pairs.inputs.grid.points[:, 0].tolist() == pytest.approx([i / 100 for i in range(200)])


def test_encode_places_amplitudes_first() -> None:
    problem = SignalSeparation()
    grid = problem.grid(200)
    design = torch.full((8,), 0.5, dtype=torch.float64)
    design[3] = 1.0  # the sine of 3 Hz
    t = grid.points[:, 0]
    amplitude = math.sqrt(0.5) * float(scipy.stats.norm.ppf(0.999))
    expected = amplitude * torch.sin(6 * math.pi * t)
    torch.testing.assert_close(problem.encode(design, grid=grid).values[0, 0], expected, atol=1e-13, rtol=0)


def test_single_precision_and_gradients() -> None:
    problem = SignalSeparation()
    pairs = mixtures(problem, 2)
    posterior = problem.posterior(pairs.inputs.to(torch.float32))
    assert posterior.mean.dtype == posterior.variance.dtype == torch.float32
    mean, variance = problem.causal_posterior(pairs.inputs.to(torch.float32))
    assert mean.dtype == variance.dtype == torch.float32
    values = pairs.inputs.values.clone().requires_grad_()
    problem.posterior(Field(values, pairs.inputs.grid)).mean.sum().backward()
    gain, _ = condition(1.0, 3.0, 200)
    torch.testing.assert_close(values.grad[0, 0], gain.sum(0), atol=1e-11, rtol=0)


@pytest.mark.bad_input
def test_the_samples_are_the_only_grid() -> None:
    problem = SignalSeparation()
    for size in (199, 201, 400):
        with pytest.raises(ResolutionError, match="exactly 200"):
            problem.grid(size)
        other = Field(torch.zeros(1, 1, size), Grid.uniform((size,), lengths=2.0))
        for use in (problem.solve, problem.posterior, problem.causal_posterior):
            with pytest.raises(ResolutionError, match="another problem"):
                use(other)


@pytest.mark.bad_input
def test_bad_mixtures() -> None:
    problem = SignalSeparation()
    grid = problem.grid(200)
    for use in (problem.posterior, problem.causal_posterior):
        with pytest.raises(GridError, match="uniform grid"):
            use(Field(torch.zeros(1, 1, 200), Grid.uniform((200,))))
        with pytest.raises(ShapeError, match="1 channels"):
            use(Field(torch.zeros(1, 2, 200), grid))
        with pytest.raises(ShapeError, match="at least one"):
            use(Field(torch.zeros(0, 1, 200), grid))
        with pytest.raises(DataError, match="finite mixtures"):
            use(Field(torch.full((1, 1, 200), math.nan), grid))
