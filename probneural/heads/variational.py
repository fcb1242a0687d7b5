"""Gaussian stochastic variational inference over all weights, with Pyro."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn
from tqdm.auto import tqdm

from probneural.checks import optional
from probneural.contexts import GLOBAL_GENERATORS, copy_for_call, undisturbed
from probneural.curvature.jacobian_root import VarianceEstimation
from probneural.curvature.products.functions import gauss_newton_vector_product
from probneural.curvature.weights import DiagonalWeights
from probneural.errors import ConvergenceWarning, warn
from probneural.fields import evaluate
from probneural.heads.laplace.laplace import VARIATIONAL, Laplace, LaplacePredictor
from probneural.heads.training_data import recorded
from probneural.heads.weight_problem import WeightProblem, prepare
from probneural.heads.weight_samples import with_state
from probneural.pairs import Dataset
from probneural.randomness import seeded, stream
from probneural.settings import Count, Seed, Settings

_WINDOW = 250
"""Number of steps per window of the bound."""
_RATES = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Schedule of learning rates."""
_PARTICLES = 2
"""Number of draws per step."""
_SCALE = 0.1
"""Initial standard deviations, in units of those of the Gaussian approximation."""
_DRAWS, _AT_ONCE = 64, 8
"""Number of draws of the Gaussian approximation for the units (root mean squares), and number per chunk."""


@dataclass(frozen=True, eq=False)
class NetworkTarget:
    """Negative log density of all weights, up to a constant, as an unbiased estimate from a batch.

    With N samples and batches of b,

    U(w) = N / b sum over samples of the batch and c of m_c / (2 s_c^2 |D|) * integral of (y - f(w))^2
               + 1/2 sum over j of tau_j w_j^2.

    Attributes:
        problem: Operator, data and given hyper-parameters.
        laplace: The Gaussian approximation; source of hyper-parameters, starting points and scales.
        batch_size: Batch size b, at most N.
    """

    problem: WeightProblem
    laplace: LaplacePredictor
    batch_size: int

    @classmethod
    def of(cls, operator: nn.Module, data: Dataset, *, laplace: Laplace, batch_size: int) -> NetworkTarget:
        """Fit the Gaussian approximation, and adopt its hyper-parameters.

        Raises:
            UnsupportedError: If its structure has no factorised covariance.
        """
        fitted = laplace.fit(operator, data)
        problem = prepare(
            operator,
            data,
            parameters=fitted.layout.names,
            noise=fitted.noise,
            prior_precision=fitted.prior_precision,
            effective_observations=fitted.effective_observations,
            is_shared=False,
        )
        return cls(problem, fitted, min(batch_size, problem.data.functions))

    @cached_property
    def centre(self) -> Float64[Tensor, " P"]:
        """The trained weights."""
        return self.problem.vector.to(torch.float64)

    @cached_property
    def prior_precision(self) -> Float64[Tensor, " P"]:
        """Prior precision tau; zero for weights that the prior fixes, which do not move."""
        assert self.problem.prior is not None
        prior = self.problem.prior.to(self.centre)
        return torch.where(prior.isinf(), 0.0, prior)

    @cached_property
    def _weights(self) -> Float64[Tensor, "c p"]:
        return self.problem.weights

    def potential(self, vector: Float64[Tensor, " P"], rows: Tensor | slice) -> Float64[Tensor, ""]:
        """U on a batch; differentiable."""
        problem = self.problem
        batch = problem.data.pairs[rows]
        weights = problem.layout.unflatten(vector.to(problem.vector))
        predicted = evaluate(copy_for_call(problem.operator, weights), batch.inputs, problem.data.query)
        residuals = batch.outputs.values.to(torch.float64) - predicted.to(torch.float64)
        squares = (residuals.flatten(2).square() * self._weights).sum()
        fraction = problem.data.functions / len(batch)
        return 0.5 * (fraction * squares + (self.prior_precision * vector.square()).sum())

    def batches(self, seed: int, number: int) -> Iterator[Tensor]:
        """Endless iterator over rows of batches; each epoch is a permutation of all samples."""
        generator = stream(seed, "weight batches", number)
        while True:
            order = torch.randperm(self.problem.data.functions, generator=generator)
            whole = len(order) // self.batch_size * self.batch_size
            yield from order[:whole].split(self.batch_size)

    def largest_curvature(self, *, iterations: int = 12) -> float:
        """Largest eigenvalue of R^T H R, with H the Gauss-Newton approximation at the trained weights.

        It is 1 if the Gaussian approximation is exact. Power iteration approaches it from below.
        """
        problem, root, generator = self.problem, self.laplace.weights, stream(0, "stiffest direction")
        direction = torch.randn(root.rank, generator=generator, dtype=torch.float64, device="cpu").to(self.centre)
        for _ in range(iterations):
            # x <- R^T (G + diag tau) R x / |x|
            weights = root.product((direction / direction.norm())[None]).to(problem.vector)
            likelihood = gauss_newton_vector_product(problem.curvature, problem.vector, weights)
            product = likelihood.to(torch.float64) + self.prior_precision * weights
            direction = root.transposed_product(product)[0].to(torch.float64)
        return float(direction.norm())


_LAPLACE = Laplace(show_progress=False)


@dataclass(frozen=True, kw_only=True)
class BayesianOperator(Settings):
    """Mean-field Gaussian variational posterior of all weights, minimising KL(q | p) with Pyro.

    Likelihood, noise variance s_c^2, prior precision tau_j and effective observations m_c are those of `Laplace`,

        -log p(w | y) = sum over samples and c of m_c / (2 s_c^2 |D|) * integral of (y - f(w))^2
                        + 1/2 sum over j of tau_j w_j^2 + constant,

    and the head fits a `Laplace` first, for the free hyper-parameters and the scales of the weights.

    Predictions are linearised at the mean of q, as those of `Laplace`; `predictor.sampled(members, seed=...)` evaluates
    operators with drawn weights. Independent weights underestimate marginal standard deviations: they are those of each weight
    conditional on all others. `report["bound"]` is the evidence lower bound, in nats.

    The optimiser is Adam, with two draws per step, each on a batch of samples, in units of the standard deviations of the
    Gaussian approximation. Learning rates are divided by the root of the largest curvature in those units. Every 250 steps the
    parameters are averaged over the later half. If the bound, the mean over half a window, gains less than twice its
    standard error, the learning rate falls to the next of 0.1, 0.03, 0.01, 0.003 and 0.001; after the last, it has converged.

    Args:
        steps: Maximum number of steps.
        laplace: The Gaussian approximation, with hyper-parameters given or learned by its evidence; its `parameters` are
            the weights that vary. Its evidence sets the width of the posterior; pass the noise if it is known.
        batch_size: Number of samples per gradient.
        seed: Random seed.
        show_progress: Whether to show a progress bar.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Kucukelbir et al. (2017), Automatic differentiation variational inference.
    """

    steps: Count = 20_000
    laplace: Laplace = _LAPLACE
    batch_size: Count = 20
    seed: Seed = 0
    show_progress: bool = True

    @recorded
    @undisturbed()
    def fit(self, operator: nn.Module, data: Dataset) -> LaplacePredictor:
        """Fit the posterior.

        Args:
            operator: A trained module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor of Gaussian fields. A `ConvergenceWarning` is issued if the bound still rises after the last step.

        Raises:
            MissingPackageError: If Pyro is not installed.
            UnsupportedError: If the Gaussian approximation fails, or has no factorised covariance.
            EvidenceError: If the evidence determines no noise or prior.
            ArgumentError: If a setting is out of range, or the operator is not a module.
            ShapeError: If the operator's outputs do not fit the data's.
            DataError: If the data are not finite pairs.
        """
        target = NetworkTarget.of(operator, data, laplace=self.laplace, batch_size=self.batch_size)
        predictor, converged = _variational_posterior(target, self)
        if not converged:
            text = f"the variational posterior has not converged (bound {predictor.report['bound']:.6g}): give it more steps"
            warn(text, ConvergenceWarning)
        return predictor


def _variational_posterior(target: NetworkTarget, head: BayesianOperator) -> tuple[LaplacePredictor, bool]:
    """Optimise a Gaussian over weights; return the predictor, and whether the bound has converged.

    Raises:
        MissingPackageError: If Pyro is not installed.
    """
    pyro = optional("pyro", "BayesianOperator", extra="pyro")
    coordinates = _Coordinates(target)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        GLOBAL_GENERATORS,  # Pyro's handlers are global too
        seeded(head.seed, "network variational"),
        pyro.get_param_store().scope(),
        tqdm(total=head.steps, desc="variational inference", unit="step", disable=not head.show_progress, leave=False) as bar,
    ):
        guide = _guide(coordinates.model(pyro, head.seed), coordinates.centre)
        history, converged = _optimised(pyro, guide, steps=head.steps, rate=target.largest_curvature() ** -0.5, tick=bar.update)
        gaussian = guide.get_posterior()
        location, std = gaussian.mean.detach(), gaussian.base_dist.scale.detach()
    report = {"bound": history[-1], "windows": float(len(history))}
    return _predictor(target, coordinates, location=location, std=std, report=report), converged


class _Coordinates:
    """The weights that move, in units of their standard deviations under the Gaussian approximation: w = trained + D x."""

    def __init__(self, target: NetworkTarget) -> None:
        self.target = target
        self.free = torch.nonzero(target.prior_precision > 0)[:, 0]
        generator, root = stream(0, "weight units"), target.laplace.weights
        total = torch.zeros_like(target.centre)
        for _ in range(_DRAWS // _AT_ONCE):
            drawn = torch.randn(_AT_ONCE, root.rank, generator=generator, dtype=torch.float64, device="cpu")
            total += root.product(drawn.to(target.centre)).to(torch.float64).square().sum(0)
        self.units = (total / _DRAWS).sqrt()[self.free]
        self.centre = torch.zeros_like(self.units)

    def physical(self, values: Float64[Tensor, " f"]) -> Float64[Tensor, " P"]:
        """Values of the weights that move, in physical units; zero for the other weights."""
        return values.new_zeros(len(self.target.centre)).index_copy(0, self.free, self.units * values)

    @property
    def constant(self) -> float:
        """Log density of data and x at U = 0, in nats."""
        problem, target = self.target.problem, self.target
        observations = problem.effective_observations.to(problem.variance_unit) * problem.data.functions
        likelihood = -0.5 * (observations * (2.0 * math.pi * problem.variance_unit).log()).sum()
        prior = 0.5 * (target.prior_precision[self.free] / (2.0 * math.pi)).log().sum()
        return float(likelihood + prior + self.units.log().sum())

    def model(self, pyro: Any, seed: int) -> Callable[[], None]:
        """The joint density of x and the data; each call uses the next batch."""
        rows, constant = self.target.batches(seed, 0), self.constant

        def model() -> None:
            flat = pyro.distributions.ImproperUniform(torch.distributions.constraints.real_vector, (), (len(self.units),))
            x = pyro.sample("x", flat)
            potential = self.target.potential(self.target.centre + self.physical(x), next(rows))
            pyro.factor("joint", constant - potential)

        return model


def _guide(model: Callable[[], None], start: Float64[Tensor, " f"]) -> Any:
    """Pyro's family, which starts at the trained weights."""
    from pyro.infer.autoguide import AutoDiagonalNormal, init_to_value

    guide: Any = AutoDiagonalNormal(model, init_loc_fn=init_to_value(values={"x": start}), init_scale=_SCALE)
    guide()  # creates its parameters
    return guide


def _optimised(
    pyro: ModuleType, guide: Any, *, steps: int, rate: float, tick: Callable[[], object]
) -> tuple[list[float], bool]:
    """Run stochastic variational inference.

    Args:
        pyro: The module `pyro`.
        guide: The Pyro guide with its model; a module.
        steps: Maximum number of steps.
        rate: Factor of all learning rates.
        tick: Callback after every step.

    Returns:
        The bound after every window, in nats, and whether it has converged.
    """
    history: list[float] = []
    parameters = list(guide.parameters())
    remaining = steps
    loss = pyro.infer.Trace_ELBO(num_particles=_PARTICLES)
    for factor in _RATES:
        step = pyro.infer.SVI(guide.model, guide, pyro.optim.Adam({"lr": rate * factor}), loss=loss).step
        gain, least = math.inf, 0.0
        while gain >= least:
            if remaining == 0:
                return history, False
            length = min(_WINDOW, remaining)
            sums, losses = [torch.zeros_like(parameter) for parameter in parameters], list[float]()
            for number in range(length):
                losses.append(step())
                tick()
                if number >= length // 2:
                    for total, parameter in zip(sums, parameters, strict=True):
                        total += parameter.detach()
            remaining -= length
            with torch.no_grad():
                for total, parameter in zip(sums, parameters, strict=True):
                    parameter.copy_(total / (length - length // 2))
            bound, least = _noisy_bound(losses)
            history.append(bound)
            gain = history[-1] - history[-2] if len(history) > 1 else math.inf
    return history, True


def _noisy_bound(losses: Sequence[float]) -> tuple[float, float]:
    """Mean over the later half of a window, and twice the standard error of the difference of two."""
    later = losses[len(losses) // 2 :]
    error = statistics.stdev(later) / len(later) ** 0.5 if len(later) > 1 else math.inf
    return -statistics.fmean(later), 2.0 * math.sqrt(2.0) * error


def _predictor(
    target: NetworkTarget,
    coordinates: _Coordinates,
    *,
    location: Float64[Tensor, " f"],
    std: Float64[Tensor, " f"],
    report: dict[str, float],
) -> LaplacePredictor:
    """Weight posterior of the variational Gaussian, linearised at its mean."""
    problem = target.problem
    centre = problem.layout.unflatten((target.centre + coordinates.physical(location)).to(problem.vector))
    return LaplacePredictor(
        operator=with_state(problem.operator, centre),
        layout=problem.layout,
        weights=DiagonalWeights(coordinates.physical(std)),
        summary=replace(
            target.laplace.summary, structure=VARIATIONAL, log_evidence=math.nan, log_evidence_error=math.nan, report=report
        ),
        domain=problem.data.inputs.grid,
        in_channels=problem.data.inputs.channels,
        variance_estimation=VarianceEstimation(),
    )
