"""Samplers of the posterior in standard normal coordinates: pCN, NUTS, tempered SMC and ensemble Kalman inversion.

pCN and NUTS advance a state, a dictionary of tensors, by blocks of steps. Each block has a separate random stream, so a chain
that continues from a file has the same draws as a chain without interruption.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_finite, optional
from probneural.inverse.gauss_newton import GaussianApproximation, potential
from probneural.inverse.model import InverseModel
from probneural.randomness import seeded, stream

State = dict[str, Tensor]
ExactLogLikelihood = Callable[[Float64[Tensor, "t n d"]], Float64[Tensor, "t n"]]
_MOST_STEPS = 20
"""Maximum number of steps between two draws; of delayed acceptance, three times as many."""
_ACCEPTANCE = 0.3
_NUTS_DEPTH = 7
_SMC_MOVES = 8
"""Steps of each particle per temperature."""
_KALMAN_STEPS = 8


@dataclass(frozen=True, eq=False, kw_only=True)
class PreconditionedCrankNicolson:
    """Steps that are reversible for a Gaussian, accepted by the posterior's density relative to it.

    Each step is one of two kinds, by chance. With the Gauss-Newton approximation N(m, C):

        z' = m + sqrt(1 - b²) (z - m) + b C^(1/2) xi    reversible for N(m, C),
        z' = sqrt(I - b² C) z + b C^(1/2) xi            reversible for the prior N(0, I).

    The first moves far where the posterior is nearly Gaussian; the second does not stick in heavier tails. Acceptance depends
    neither on the dimension nor on the number of data. With `exact`, delayed acceptance: a chain of surrogate steps, of random
    length, proposes, and the exact likelihood accepts with the ratio

        min(1, exact(z') surrogate(z) / (exact(z) surrogate(z'))),

    so the posterior is that of the exact solver.

    Reference:
        Rudolf and Sprungk (2018), On a generalization of the preconditioned Crank-Nicolson Metropolis algorithm; Law (2014),
        Proposals which speed up function-space MCMC; Christen and Fox (2005), Markov chain Monte Carlo using an approximation.
    """

    problem: InverseModel
    reference: GaussianApproximation
    warm_up: int
    exact: ExactLogLikelihood | None = None

    def start(self, chains: int, seed: int) -> State:
        """Draws from the approximation."""
        shape = (self.problem.targets, chains, self.problem.size)
        white = torch.randn(shape, dtype=torch.float64, generator=stream(seed, "posterior start"))
        steps = torch.zeros(2, shape[0], 1, dtype=torch.float64) - 0.5
        return {"z": self.reference.moved(white), "log_steps": steps, "accepted": torch.zeros(0)}

    def block(self, state: State, draws: int, generator: torch.Generator) -> tuple[State, Tensor]:
        """Adapt the step sizes, if no draws are requested, or take draws `(t, c, draws, d)`."""
        z, log_steps = state["z"], state["log_steps"].clone()
        logs = self._log_likelihood(z)
        if not draws:
            rates = torch.full_like(log_steps, _ACCEPTANCE)
            for number in range(self.warm_up):
                kind = number % 2
                z, logs, rate = self._step(z, logs, kind, log_steps[kind], generator)
                mean = rate.mean(1, keepdim=True)
                log_steps[kind] = (log_steps[kind] + (mean - _ACCEPTANCE) / math.sqrt(1 + number // 2)).clamp(-7.0, 0.0)
                rates[kind] = 0.9 * rates[kind] + 0.1 * mean
            # a step of size b forgets b² of z where it is accepted
            forgotten = ((2.0 * log_steps).exp() * rates).mean(0)
            steps = (1.0 / forgotten).max().ceil().clamp(2, _MOST_STEPS)
            return state | {"z": z, "log_steps": log_steps, "steps": steps}, z[:, :, None][:, :, :0]
        exact, calls = state.get("exact"), state.get("solver_calls", torch.zeros(1))
        if self.exact is not None and exact is None:
            exact, calls = self.exact(z), calls + z.shape[0] * z.shape[1]
        positions, accepted, most = [], [], int(state["steps"]) * (1 if exact is None else 3)
        for _ in range(draws):
            before, before_logs = z, logs
            count = most if exact is None else math.ceil(most ** float(torch.rand((), generator=generator)))
            for kind in (torch.rand(count, generator=generator) < 0.5).int().tolist():
                z, logs, rate = self._step(z, logs, kind, log_steps[kind], generator)
                accepted += [rate] if exact is None else []
            if exact is not None and self.exact is not None:
                proposed, calls = self.exact(z), calls + z.shape[0] * z.shape[1]
                change = proposed - exact - (logs - before_logs)
                accepts = torch.rand(change.shape, dtype=torch.float64, generator=generator).log() < change
                z = torch.where(accepts[..., None], z, before)
                logs, exact = torch.where(accepts, logs, before_logs), torch.where(accepts, proposed, exact)
                accepted.append(change.exp().clamp_max(1.0))
            positions.append(z)
        rate = torch.cat([state["accepted"], torch.stack(accepted).mean().reshape(1)])
        solver = {} if exact is None else {"exact": exact, "solver_calls": calls}
        return state | solver | {"z": z, "accepted": rate}, torch.stack(positions, dim=2)

    def _log_likelihood(self, z: Tensor) -> Tensor:
        return self.problem.log_densities(self.problem.prior.from_normal(z))

    def _step(
        self, z: Tensor, logs: Tensor, kind: int, log_step: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        step = log_step.exp()[..., None]
        noise = torch.randn(z.shape, dtype=z.dtype, generator=generator)
        if kind:  # in the eigenbasis of C
            variances, basis = self._eigenpairs
            shrinkage = (1.0 - step.square() * variances[:, None]).clamp_min(0.0).sqrt()
            proposal = (shrinkage * (z @ basis) + step * variances.sqrt()[:, None] * noise) @ basis.mT
            reference = torch.zeros_like(logs)
        else:
            white = self.reference.whitened(z)
            moved = (1.0 - step.square()).clamp_min(0.0).sqrt() * white + step * noise
            proposal = self.reference.moved(moved)
            # log of the prior's density relative to N(m, C)
            reference = 0.5 * (z.square() - proposal.square() + moved.square() - white.square()).sum(-1)
        proposed = self._log_likelihood(proposal)
        change = torch.nan_to_num(proposed - logs + reference, nan=-math.inf)
        accepts = torch.rand(change.shape, dtype=z.dtype, generator=generator).log() < change
        return torch.where(accepts[..., None], proposal, z), torch.where(accepts, proposed, logs), change.exp().clamp_max(1.0)

    @cached_property
    def _eigenpairs(self) -> tuple[Float64[Tensor, "t d"], Float64[Tensor, "t d d"]]:
        """Eigenvalues of C, at most 1, and eigenvectors."""
        values, vectors = torch.linalg.eigh(self.reference.factor @ self.reference.factor.mT)
        return values.clamp(1e-300, 1.0), vectors


@dataclass(frozen=True, eq=False, kw_only=True)
class NoUTurn:
    """Pyro's NUTS on all chains together, in coordinates in which the Gauss-Newton approximation is N(0, I).

    The chains of all targets are one chain on their product space, so that each leapfrog step is one batched evaluation.

    Reference:
        Hoffman and Gelman (2014), The No-U-Turn sampler.
    """

    problem: InverseModel
    reference: GaussianApproximation
    warm_up: int
    seed: int

    def start(self, chains: int, seed: int) -> State:
        """Draws from the reference, in whitened coordinates."""
        shape = (self.problem.targets, chains, self.problem.size)
        white = torch.randn(shape, dtype=torch.float64, generator=stream(seed, "posterior start"))
        return {
            "white": white,
            "step": torch.zeros(1, dtype=torch.float64),
            "block": torch.zeros(1),
            "accepted": torch.zeros(0),
        }

    def block(self, state: State, draws: int, generator: torch.Generator) -> tuple[State, Tensor]:
        """Adapt the step size, if no draws are requested, or take draws `(t, c, draws, d)`."""
        del generator  # Pyro draws from the global one
        nuts = optional("pyro.infer", "NUTS", extra="pyro").NUTS
        adapts = not draws
        kernel = nuts(
            potential_fn=lambda parameters: potential(self.problem, self.reference.moved(parameters["white"])).sum(),
            step_size=1.0 if adapts else float(state["step"]),
            adapt_step_size=adapts,
            adapt_mass_matrix=False,
            max_tree_depth=_NUTS_DEPTH,
        )
        parameters, positions = {"white": state["white"]}, []
        number = int(state["block"])
        with seeded(self.seed, "posterior steps", number):
            kernel.initial_params = parameters
            kernel.setup(self.warm_up if adapts else 0)
            for _ in range(self.warm_up if adapts else draws):
                parameters = kernel.sample(parameters)
                positions.append(self.reference.moved(parameters["white"].detach()))
            rate = torch.tensor([kernel._mean_accept_prob])
            step = torch.tensor([float(kernel.step_size)], dtype=torch.float64)
            kernel.cleanup()
        white = parameters["white"].detach()
        moved = {"white": white, "step": step if adapts else state["step"], "block": torch.tensor([number + 1.0])}
        moved["accepted"] = state["accepted"] if adapts else torch.cat([state["accepted"], rate])
        return moved, white[:, :, None][:, :, :0] if adapts else torch.stack(positions, dim=2)


@torch.no_grad()
def tempered(
    problem: InverseModel, *, particles: int, seed: int, tick: Callable[[float], object]
) -> tuple[Float64[Tensor, "t n d"], Float64[Tensor, " t"], float]:
    """Sequential Monte Carlo from the prior to the posterior: particles, log evidence and mean acceptance.

    At temperatures b, targets are prior x likelihood^b. Each b halves the effective number of particles; they are
    resampled, and moved by steps that are reversible for the Gaussian of their mean and covariance.

    Reference:
        Del Moral, Doucet and Jasra (2006), Sequential Monte Carlo samplers; Kantas, Beskos and Jasra (2014), Sequential
        Monte Carlo methods for high-dimensional inverse problems.
    """
    generator = stream(seed, "posterior sampling")
    z = torch.randn(problem.targets, particles, problem.size, dtype=torch.float64, generator=generator)
    logs = problem.log_densities(problem.prior.from_normal(z))
    check_finite(logs, "log likelihoods of draws from the prior", remedy="check the predictor or solver on such draws")
    temperature = torch.zeros(len(z), 1, dtype=torch.float64)
    evidence, log_step, rates = torch.zeros(len(z), dtype=torch.float64), torch.zeros(len(z), 1, dtype=torch.float64), []
    while bool((temperature < 1.0).any()):
        raised = _next_temperature(logs, temperature)
        weights = (raised - temperature) * logs
        # log of the mean of likelihood^(b' - b)
        evidence += weights.logsumexp(1) - math.log(particles)
        chosen = _systematic(weights.softmax(1), generator)
        z, logs, temperature = z.take_along_dim(chosen[..., None], 1), logs.take_along_dim(chosen, 1), raised
        mean, factor = _gaussian_of(z)
        for _ in range(_SMC_MOVES):
            white = torch.linalg.solve_triangular(factor, (z - mean).mT, upper=False).mT
            step = log_step.exp()[..., None]
            noise = torch.randn(z.shape, dtype=z.dtype, generator=generator)
            proposal = mean + ((1.0 - step.square()).clamp_min(0.0).sqrt() * white + step * noise) @ factor.mT
            moved = torch.linalg.solve_triangular(factor, (proposal - mean).mT, upper=False).mT
            proposed = problem.log_densities(problem.prior.from_normal(proposal))
            reference = 0.5 * (moved.square().sum(-1) - white.square().sum(-1))
            change = temperature * (proposed - logs) - 0.5 * (proposal.square().sum(-1) - z.square().sum(-1)) + reference
            change = torch.nan_to_num(change, nan=-math.inf)
            accepts = torch.rand(change.shape, dtype=z.dtype, generator=generator).log() < change
            z, logs = torch.where(accepts[..., None], proposal, z), torch.where(accepts, proposed, logs)
            rate = change.exp().clamp_max(1.0).mean(1, keepdim=True)
            log_step = (log_step + 0.5 * (rate - _ACCEPTANCE)).clamp(-5.0, 0.0)
            rates.append(float(rate.mean()))
        tick(float(temperature.min()))
    return z, evidence, sum(rates) / len(rates)


@torch.no_grad()
def kalman_inverted(problem: InverseModel, *, members: int, seed: int) -> Float64[Tensor, "t n d"]:
    """Ensemble Kalman inversion in K equal steps: z <- z + C_zg (C_gg + K S)^-1 (data + sqrt(K) e - g).

    g are the members' predicted data, e their errors, of covariance S. In the limit of many members it is exact for linear maps
    with Gaussian priors.

    Reference:
        Iglesias, Law and Stuart (2013), Ensemble Kalman methods for inverse problems; Emerick and Reynolds (2013), Ensemble
        smoother with multiple data assimilation.
    """
    generator = stream(seed, "Kalman inversion")
    z = torch.randn(problem.targets, members, problem.size, dtype=torch.float64, generator=generator)
    for _ in range(_KALMAN_STEPS):
        moments = [problem.moments(problem.prior.from_normal(part)) for part in problem.chunks(z)]
        predicted = torch.cat([mean for mean, _ in moments], dim=1)
        covariance = torch.stack([part.sum(1) for _, part in moments]).sum(0) / members
        noise = torch.randn(predicted.shape, dtype=z.dtype, generator=generator)
        errors = math.sqrt(_KALMAN_STEPS) * noise @ torch.linalg.cholesky(covariance).mT
        deviations, spread = z - z.mean(1, keepdim=True), predicted - predicted.mean(1, keepdim=True)
        cross, between = deviations.mT @ spread / (members - 1), spread.mT @ spread / (members - 1)
        residual = problem.data + errors - predicted
        z = z + torch.linalg.solve(between + _KALMAN_STEPS * covariance, residual.mT).mT @ cross.mT
    return z


def _next_temperature(logs: Tensor, temperature: Tensor) -> Tensor:
    """The temperature at which weights have half of the effective number of particles, by bisection, or 1."""
    low, high = temperature.clone(), torch.ones_like(temperature)
    for _ in range(60):
        middle = 0.5 * (low + high)
        weights = ((middle - temperature) * logs).softmax(1)
        enough = weights.square().sum(1, keepdim=True).reciprocal() >= 0.5 * logs.shape[1]
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    whole = ((1.0 - temperature) * logs).softmax(1).square().sum(1, keepdim=True).reciprocal() >= 0.5 * logs.shape[1]
    return torch.where(whole, 1.0, low.clamp_min(temperature + 1e-12))


def _systematic(weights: Tensor, generator: torch.Generator) -> Tensor:
    """Indices of systematic resampling, `(t, n)`."""
    count = weights.shape[1]
    offsets = torch.rand(len(weights), 1, dtype=weights.dtype, generator=generator)
    places = (torch.arange(count, dtype=weights.dtype) + offsets) / count
    return torch.searchsorted(weights.cumsum(1), places).clamp_max(count - 1)


def _gaussian_of(z: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and triangular factor of the particles' covariance, shrunk to its diagonal where they are few."""
    mean = z.mean(1, keepdim=True)
    deviations = z - mean
    covariance = deviations.mT @ deviations / max(1, z.shape[1] - 1)
    fraction = z.shape[2] / (z.shape[1] + z.shape[2])
    diagonal = torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1).clamp_min(1e-12))
    return mean, torch.linalg.cholesky((1.0 - fraction) * covariance + fraction * diagonal)
