"""Methods that select the next design: all but two maximise the same acquisition function of different surrogates."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gpytorch
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective, MCAcquisitionObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import HigherOrderGP, SingleTaskGP
from botorch.models.higher_order_gp import FlattenedStandardize
from botorch.models.model import Model
from botorch.models.transforms import Standardize
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from torch import Tensor

import probneural as pn
from benchmarks.bo_higher_order import SingleDesignHigherOrderGP
from benchmarks.bo_problems import DesignProblem
from probneural.randomness import seeded, stream, stream_seed

MIN_NOISE = 1e-8
"""Least noise variance of all Gaussian processes relative to the prior variance; in BoTorch, of standardised outputs."""
_LEAST = 1e-300
"""Lower bound before a logarithm."""
_EXPECTED: dict[str, type[Warning]] = {
    "Sparse invariant checks are implicitly disabled": UserWarning,  # linear_operator builds a sparse matrix of its own
}
"""Starts of irrelevant warnings."""


MANY = 20
"""Number of observations above which `HigherOrderGP` has fewer fit iterations."""


@dataclass(frozen=True)
class Budget:
    """Effort per choice, the same for every surrogate.

    Attributes:
        draws: Posterior draws of the acquisition function.
        raw: Random designs at which it is first evaluated.
        restarts: Number of these that gradients improve.
        iterations: Iterations on the acquisition function.
        fit_iterations: Iterations on hyper-parameters of a BoTorch model.
        slow_fit_iterations: Iterations of `HigherOrderGP` with more than `MANY` observations: a fit of 200 takes 20
            seconds.
        epochs: Epochs of a network on the initial pairs.
        more_epochs: Epochs after every further pair.
    """

    draws: int = 64
    raw: int = 128
    restarts: int = 4
    iterations: int = 60
    fit_iterations: int = 200
    slow_fit_iterations: int = 50
    epochs: int = 300
    more_epochs: int = 60


SMALL = Budget(draws=16, raw=16, restarts=1, iterations=5, fit_iterations=5, slow_fit_iterations=5, epochs=2, more_epochs=1)


@dataclass
class History:
    """State of one run: designs, results of the simulator, and the network.

    Attributes:
        designs: Evaluated designs, `(n, d)`.
        pairs: Input and output functions.
        observations: Observations of the outputs, `(n, m)`.
        seed: Seed of the run.
        operator: The network, trained further after each evaluation.
        parameters: Initial hyper-parameters of the next fit by name, from the last fit.
    """

    designs: Tensor
    pairs: pn.FieldPairs
    observations: Tensor
    seed: int
    operator: torch.nn.Module | None = field(default=None)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def extended(self, design: Tensor, problem: DesignProblem) -> None:
        """Simulate one more design."""
        new = problem.simulate(design)
        self.designs, self.pairs = torch.cat([self.designs, design]), pn.FieldPairs.cat([self.pairs, new])
        self.observations = torch.cat([self.observations, problem.read(new.outputs)])


Build = Callable[[DesignProblem, History, Budget], tuple[Model, MCAcquisitionObjective | None, float]]
"""Returns a surrogate of the evaluated designs, an objective of its outputs to maximise, and its best value so far."""


def names() -> tuple[str, ...]:
    """All methods, in the order of the tables."""
    return ("random", "Sobol", *_BUILDERS)


def run(method: str, problem: DesignProblem, *, seed: int, budget: Budget, evaluations: int | None = None) -> dict[str, Any]:
    """Select designs sequentially; return the losses in order, and processor seconds per choice and in total."""
    count = problem.evaluations if evaluations is None else evaluations
    generator = stream(seed, "initial designs")  # the same for every method
    designs = torch.rand(problem.initial, problem.dimension, generator=generator, dtype=torch.double)
    pairs = problem.simulate(designs)
    history = History(designs, pairs, problem.read(pairs.outputs), seed)
    sobol = torch.quasirandom.SobolEngine(problem.dimension, scramble=True, seed=stream_seed(seed, "Sobol designs"))
    fitting = choosing = 0.0
    with warnings.catch_warnings(), seeded(seed, "design methods"):
        for message, category in _EXPECTED.items():  # show all others, such as failed fits
            warnings.filterwarnings("ignore", message=message, category=category)
        for number in range(count):
            start = time.process_time()
            if method == "random":
                design = torch.rand(1, problem.dimension, generator=generator, dtype=torch.double)
            elif method == "Sobol":
                design = sobol.draw(1, dtype=torch.double)
            else:
                model, objective, best = _BUILDERS[method](problem, history, budget)
                fitting += time.process_time() - start
                start = time.process_time()
                design = _improved(model, objective, best, problem, budget, seed=stream_seed(seed, "acquisition", number))
                choosing += time.process_time() - start
            history.extended(design, problem)
    return {
        "losses": problem.loss(history.observations).tolist(),
        "fit_seconds": fitting / count,
        "choice_seconds": choosing / count,
        "seconds": fitting + choosing,
    }


def _improved(
    model: Model, objective: MCAcquisitionObjective | None, best: float, problem: DesignProblem, budget: Budget, *, seed: int
) -> Tensor:
    """Design of largest (log) expected improvement, `(1, d)`."""
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, problem.dimension)
    with torch.no_grad():
        posterior = model.posterior(bounds[:1])
    sampler = get_sampler(posterior, torch.Size([budget.draws]), seed=stream_seed(seed, "acquisition draws"))
    acquisition = qLogExpectedImprovement(model, best_f=best, objective=objective, sampler=sampler)
    design, _ = optimize_acqf(
        acquisition,
        bounds,
        q=1,
        num_restarts=budget.restarts,
        raw_samples=budget.raw,
        options={"maxiter": budget.iterations, "seed": stream_seed(seed, "acquisition starts")},
    )
    return design.detach().clamp(0.0, 1.0)


def _composite(problem: DesignProblem) -> GenericMCObjective:
    """Minus the known loss of predicted observations."""
    return GenericMCObjective(lambda samples, X=None: -problem.loss(samples))


def _best(problem: DesignProblem, history: History) -> float:
    return -float(problem.loss(history.observations).min())


def fitted(model: Any, iterations: int) -> Any:
    """A BoTorch model with hyper-parameters of largest marginal likelihood."""
    marginal = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(marginal, optimizer_kwargs={"options": {"maxiter": iterations}})
    return model


def learned_noise(batch: torch.Size, *, has_prior: bool) -> GaussianLikelihood:
    """BoTorch's likelihood with our lower bound of the noise instead of 1e-4, and without its prior, which exceeds both."""
    prior = LogNormalPrior(-4.0, 1.0)
    bound = GreaterThan(MIN_NOISE, transform=None, initial_value=prior.mode)
    return GaussianLikelihood(noise_prior=prior if has_prior else None, noise_constraint=bound, batch_shape=batch)


def _scalar(problem: DesignProblem, history: History, budget: Budget, *, logarithmic: bool) -> tuple[Model, None, float]:
    """One Gaussian process on minus the loss, or on minus its logarithm (of minus a negative loss, plus)."""
    losses = problem.loss(history.observations)
    values = -losses
    if logarithmic:
        sign = 1.0 if bool((losses >= 0).all()) else -1.0
        values = -sign * losses.abs().clamp_min(_LEAST).log()
    likelihood = learned_noise(torch.Size(), has_prior=True)
    model = SingleTaskGP(history.designs, values[:, None], likelihood=likelihood, outcome_transform=Standardize(1))
    return fitted(model, budget.fit_iterations), None, float(values.max())


def _processes(
    problem: DesignProblem, history: History, budget: Budget, *, learns_noise: bool
) -> tuple[Model, MCAcquisitionObjective, float]:
    """Independent Gaussian processes for all observations, as in a ModelListGP but fitted together."""
    observations = history.observations
    count = observations.shape[1]
    if learns_noise:
        noise: dict[str, Any] = {"likelihood": learned_noise(torch.Size([count]), has_prior=False)}
    else:
        noise = {"train_Yvar": (MIN_NOISE * observations.var(0)).expand_as(observations)}
    with gpytorch.settings.min_fixed_noise(double_value=0.5 * MIN_NOISE):  # the default 1e-6 would be the lower bound
        model = SingleTaskGP(history.designs, observations, **noise, outcome_transform=Standardize(count))
    return fitted(model, budget.fit_iterations), _composite(problem), _best(problem, history)


def _higher_order(problem: DesignProblem, history: History, budget: Budget) -> tuple[Model, MCAcquisitionObjective, float]:
    """BoTorch's Kronecker-structured Gaussian process over all observations, with its posterior in closed form.

    Its fit needs hundreds of iterations instead of tens, and its iterations cost most, so each fit
    starts from the last hyper-parameters.
    """
    model = HigherOrderGP(
        history.designs,
        history.observations.unflatten(1, problem.shape),
        likelihood=learned_noise(torch.Size(), has_prior=False),
        outcome_transform=FlattenedStandardize(torch.Size(problem.shape)),
    )
    with torch.no_grad():  # BoTorch's load_state_dict requires outcome scales, which changed
        for name, values in history.parameters.items():
            model.get_parameter(name).copy_(values)
    is_slow = history.observations.shape[1] > MANY
    trained = fitted(model, budget.slow_fit_iterations if is_slow else budget.fit_iterations)
    history.parameters = {name: values.detach().clone() for name, values in trained.named_parameters()}
    return SingleDesignHigherOrderGP(trained), _composite(problem), _best(problem, history)


def _kernel(
    problem: DesignProblem, history: History, budget: Budget, *, kernel: str | None
) -> tuple[Model, MCAcquisitionObjective, float]:
    """`KernelOperator`: Gaussian processes between principal components of input and output functions."""
    options = {} if kernel is None else {"kernel": kernel}
    head = pn.heads.KernelOperator(**options, min_noise=MIN_NOISE)
    return _operator_model(head.fit(None, history.pairs), problem, history)


def _last_layer(
    problem: DesignProblem, history: History, budget: Budget, *, interpolates: bool
) -> tuple[Model, MCAcquisitionObjective, float]:
    """Last-layer Laplace of a network: around the trained weights, or by regression with the common least noise."""
    operator, pairs = _trained(history, budget)
    head = pn.heads.LastLayerLaplace()
    if interpolates:
        variance = float(pairs.outputs.values.var(0).mean())
        count = float(pairs.outputs.grid.size)
        head = pn.heads.LastLayerLaplace(noise=MIN_NOISE * variance, effective_observations=count, moves_mean=True)
    return _operator_model(head.fit(operator, pairs), problem, history)


def _trained(history: History, budget: Budget) -> tuple[torch.nn.Module, pn.FieldPairs]:
    """A network trained on the evaluated pairs only, and trained further after every evaluation.

    It is trained in double precision. The DeepONet has more features than observations in a run, the FNO fewer.
    """
    epochs, pairs = budget.more_epochs, history.pairs
    if history.operator is None:
        grid, channels = pairs.inputs.grid, (pairs.inputs.channels, pairs.outputs.channels)
        if grid.is_uniform:
            walls, axes = not all(grid.periodic), grid.periodic
            sizes = {"modes": (9,), "width": 16, "depth": 3, "projection": 32}
            history.operator = pn.operators.FNO(*channels, **sizes, periodic=axes, embeds_position=walls, seed=history.seed)
        else:
            box = pn.Grid.uniform((3, 4), lengths=(2.5, 45.0), origin=(0.0, 15.0), periodic=False)
            history.operator = pn.operators.DeepONet(*channels, sensors=grid, domain=box, basis=512, seed=history.seed)
        history.operator.double()
        epochs = budget.epochs
    pn.fit(
        history.operator,
        pairs,
        epochs=epochs,
        seed=history.seed,
        data=pn.training.DataOptions(validation=0.0),
        show_progress=False,
    )
    return history.operator, pairs


def _operator_model(
    predictor: pn.distributions.Predictor, problem: DesignProblem, history: History
) -> tuple[Model, MCAcquisitionObjective, float]:
    model = pn.active.OperatorModel(predictor, encode=problem.encode, functional=problem.functional)
    return model, _composite(problem), _best(problem, history)


_BUILDERS: dict[str, Build] = {
    "GP on the objective": lambda *known: _scalar(*known, logarithmic=False),
    "GP on its logarithm": lambda *known: _scalar(*known, logarithmic=True),
    "composite GPs, learned noise": lambda *known: _processes(*known, learns_noise=True),
    "composite GPs, least noise": lambda *known: _processes(*known, learns_noise=False),
    "HigherOrderGP": _higher_order,
    "network, last-layer Laplace": lambda *known: _last_layer(*known, interpolates=False),
    "network, last-layer regression": lambda *known: _last_layer(*known, interpolates=True),
    "kernel operator, Matérn 5/2": lambda *known: _kernel(*known, kernel="matern52"),
    "kernel operator": lambda *known: _kernel(*known, kernel=None),
}
