"""Ways to choose the next design: all but two maximise the same acquisition function, under models of their own."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

import probneural as pn
from benchmarks.bo_problems import DesignProblem
from probneural.randomness import seeded, stream, stream_seed

_LEAST = 1e-300
"""Before taking a logarithm."""
_EXPECTED: dict[str, type[Warning]] = {
    "Very small noise values detected": NumericalWarning,  # a noise of 1e-6 that rounding put just below GPyTorch's least
    "Sparse invariant checks are implicitly disabled": UserWarning,  # linear_operator builds a sparse matrix of its own
}
"""Beginnings of messages that say nothing about a run."""


MANY = 20
"""Readings."""


@dataclass(frozen=True)
class Effort:
    """How much work goes into a choice; the same for every model.

    Attributes:
        draws: Posterior draws of the acquisition function.
        raw: Random designs that it is first evaluated at.
        restarts: Of these, how many are improved by gradients.
        iterations: Of the optimiser of the acquisition function.
        fit_iterations: Of the optimiser of a BoTorch model's hyper-parameters.
        slow_fit_iterations: The same of `HigherOrderGP` where it has more than `MANY` readings: a fit of 200 takes 20 seconds.
        epochs: Of a network on the initial pairs.
        more_epochs: Of the same network after every further pair.
    """

    draws: int = 64
    raw: int = 128
    restarts: int = 4
    iterations: int = 60
    fit_iterations: int = 200
    slow_fit_iterations: int = 50
    epochs: int = 300
    more_epochs: int = 60


SMALL = Effort(draws=16, raw=16, restarts=1, iterations=5, fit_iterations=5, slow_fit_iterations=5, epochs=2, more_epochs=1)


@dataclass
class History:
    """What one run knows: designs, what the simulator returned, and the network that is trained on.

    Attributes:
        designs: `(n, d)`.
        pairs: Input and output functions.
        readings: `(n, m)`.
        seed: Of the run.
        operator: The network, kept between evaluations.
        parameters: Those of a model whose fit goes on from the last evaluation's, by name.
    """

    designs: Tensor
    pairs: pn.FieldPairs
    readings: Tensor
    seed: int
    operator: torch.nn.Module | None = field(default=None)
    parameters: dict[str, Tensor] = field(default_factory=dict)

    def extended(self, design: Tensor, problem: DesignProblem) -> None:
        """Simulate one more design."""
        new = problem.simulate(design)
        self.designs, self.pairs = torch.cat([self.designs, design]), pn.FieldPairs.cat([self.pairs, new])
        self.readings = torch.cat([self.readings, problem.read(new.outputs)])


Build = Callable[[DesignProblem, History, Effort], tuple[Model, MCAcquisitionObjective | None, float]]
"""Makes a model of what is known, an objective to maximise over its outputs, and the best value of it so far."""


def names() -> tuple[str, ...]:
    """All methods, in the order of the tables."""
    return ("random", "Sobol", *_BUILDERS)


def run(method: str, problem: DesignProblem, *, seed: int, effort: Effort, evaluations: int | None = None) -> dict[str, Any]:
    """Choose designs one after the other; returns the losses in order, and seconds."""
    count = problem.evaluations if evaluations is None else evaluations
    generator = stream(seed, "initial designs")  # the same for every method
    designs = torch.rand(problem.initial, problem.dimension, generator=generator, dtype=torch.double)
    pairs = problem.simulate(designs)
    history = History(designs, pairs, problem.read(pairs.outputs), seed)
    sobol = torch.quasirandom.SobolEngine(problem.dimension, scramble=True, seed=stream_seed(seed, "Sobol designs"))
    fitting = choosing = 0.0
    with warnings.catch_warnings(), seeded(seed, "design methods"):
        for message, category in _EXPECTED.items():  # all others are shown: a fit that is retried or fails must be seen
            warnings.filterwarnings("ignore", message=message, category=category)
        for number in range(count):
            if float(problem.loss(history.readings).min()) <= problem.solved:
                break
            start = time.process_time()
            if method == "random":
                design = torch.rand(1, problem.dimension, generator=generator, dtype=torch.double)
            elif method == "Sobol":
                design = sobol.draw(1, dtype=torch.double)
            else:
                model, objective, best = _BUILDERS[method](problem, history, effort)
                fitting += time.process_time() - start
                start = time.process_time()
                design = _improved(model, objective, best, problem, effort, seed=stream_seed(seed, "acquisition", number))
                choosing += time.process_time() - start
            history.extended(design, problem)
    losses = problem.loss(history.readings).tolist()
    chosen = len(losses) - problem.initial
    return {
        "losses": losses,
        "evaluations": problem.initial + count,
        "fit_seconds": fitting / max(1, chosen),
        "choice_seconds": choosing / max(1, chosen),
    }


def _improved(
    model: Model, objective: MCAcquisitionObjective | None, best: float, problem: DesignProblem, effort: Effort, *, seed: int
) -> Tensor:
    """The design of largest (log) expected improvement, `(1, d)`."""
    bounds = torch.tensor([[0.0], [1.0]], dtype=torch.double).expand(2, problem.dimension)
    with torch.no_grad():
        posterior = model.posterior(bounds[:1])
    sampler = get_sampler(posterior, torch.Size([effort.draws]), seed=stream_seed(seed, "acquisition draws"))
    acquisition = qLogExpectedImprovement(model, best_f=best, objective=objective, sampler=sampler)
    design, _ = optimize_acqf(
        acquisition,
        bounds,
        q=1,
        num_restarts=effort.restarts,
        raw_samples=effort.raw,
        options={"maxiter": effort.iterations, "seed": stream_seed(seed, "acquisition starts")},
    )
    return design.detach().clamp(0.0, 1.0)


def _composite(problem: DesignProblem) -> GenericMCObjective:
    """Minus the loss of the readings, which the models predict: what is known of the objective is used."""
    return GenericMCObjective(lambda samples, X=None: -problem.loss(samples))


def _best(problem: DesignProblem, history: History) -> float:
    return -float(problem.loss(history.readings).min())


def _fitted(model: Any, iterations: int) -> Any:
    marginal = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(marginal, optimizer_kwargs={"options": {"maxiter": iterations}})
    return model


def _scalar(problem: DesignProblem, history: History, effort: Effort, *, logarithmic: bool) -> tuple[Model, None, float]:
    """One Gaussian process on minus the loss, or on minus its logarithm (of minus a negative loss, plus)."""
    losses = problem.loss(history.readings)
    values = -losses
    if logarithmic:
        sign = 1.0 if bool((losses >= 0).all()) else -1.0
        values = -sign * losses.abs().clamp_min(_LEAST).log()
    model = SingleTaskGP(history.designs, values[:, None], outcome_transform=Standardize(1))
    return _fitted(model, effort.fit_iterations), None, float(values.max())


def _processes(
    problem: DesignProblem, history: History, effort: Effort, *, noise: float | None
) -> tuple[Model, MCAcquisitionObjective, float]:
    """An independent Gaussian process for every reading: as a ModelListGP, but fitted together."""
    readings = history.readings
    variances = None if noise is None else (noise * readings.var(0)).expand_as(readings)
    model = SingleTaskGP(history.designs, readings, variances, outcome_transform=Standardize(readings.shape[1]))
    return _fitted(model, effort.fit_iterations), _composite(problem), _best(problem, history)


def _higher_order(problem: DesignProblem, history: History, effort: Effort) -> tuple[Model, MCAcquisitionObjective, float]:
    """BoTorch's Kronecker-structured Gaussian process over all readings.

    Its optimiser needs hundreds of iterations where those of the others need tens, and its iterations cost the most: each fit
    goes on from the parameters that the last evaluation left.
    """
    readings = history.readings.unflatten(1, problem.shape)
    model = HigherOrderGP(history.designs, readings, outcome_transform=FlattenedStandardize(torch.Size(problem.shape)))
    with torch.no_grad():  # BoTorch's load_state_dict would want the scales of the outcomes too, which are new
        for name, values in history.parameters.items():
            model.get_parameter(name).copy_(values)
    axes = len(problem.shape)
    objective = GenericMCObjective(lambda samples, X=None: -problem.loss(samples.flatten(-axes)))
    is_slow = history.readings.shape[1] > MANY
    fitted = _fitted(model, effort.slow_fit_iterations if is_slow else effort.fit_iterations)
    history.parameters = {name: values.detach().clone() for name, values in fitted.named_parameters()}
    return fitted, objective, _best(problem, history)


def _kernel(
    problem: DesignProblem, history: History, effort: Effort, *, kernel: str | None
) -> tuple[Model, MCAcquisitionObjective, float]:
    """Ours without a network: Gaussian processes between principal components of input and output functions."""
    head = pn.heads.KernelOperator() if kernel is None else pn.heads.KernelOperator(kernel)
    return _operator_model(head.fit(None, history.pairs), problem, history)


def _network(problem: DesignProblem, history: History, effort: Effort) -> tuple[Model, MCAcquisitionObjective, float]:
    """Ours with a network trained on nothing but the evaluated pairs, and trained on after every evaluation."""
    pairs = pn.FieldPairs(history.pairs.inputs.to(torch.float32), history.pairs.outputs.to(torch.float32))
    epochs = effort.more_epochs
    if history.operator is None:
        grid, channels = pairs.inputs.grid, (pairs.inputs.channels, pairs.outputs.channels)
        with seeded(history.seed, "weights"):
            if grid.is_uniform:
                walls = not all(grid.periodic)
                history.operator = pn.operators.FNO(
                    *channels, modes=(9,), width=16, depth=3, projection=32, periodic=grid.periodic, embeds_position=walls
                )
            else:
                box = pn.Grid.uniform((3, 4), lengths=(2.5, 45.0), origin=(0.0, 15.0), periodic=False)
                history.operator = pn.operators.DeepONet(*channels, sensors=grid, domain=box)
        epochs = effort.epochs
    pn.fit(history.operator, pairs, epochs=epochs, seed=history.seed, validation=0.0, show_progress=False)
    return _operator_model(pn.heads.LastLayerLaplace().fit(history.operator, pairs), problem, history)


def _operator_model(
    predict: pn.distributions.Predictor, problem: DesignProblem, history: History
) -> tuple[Model, MCAcquisitionObjective, float]:
    model = pn.active.OperatorModel(predict, encode=problem.encode, functional=problem.functional)
    return model, _composite(problem), _best(problem, history)


_BUILDERS: dict[str, Build] = {
    "GP on the objective": lambda *known: _scalar(*known, logarithmic=False),
    "GP on its logarithm": lambda *known: _scalar(*known, logarithmic=True),
    "composite GPs": lambda *known: _processes(*known, noise=None),
    "composite GPs, noise 1e-6": lambda *known: _processes(*known, noise=1e-6),
    "HigherOrderGP": _higher_order,
    "network, last-layer Laplace": _network,
    "kernel operator, Matérn 5/2": lambda *known: _kernel(*known, kernel="matern52"),
    "kernel operator": lambda *known: _kernel(*known, kernel=None),
}
