"""Bayesian optimisation: choose designs by an acquisition function, simulate, refit, and again."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.acquisition.logei import qLogNoisyExpectedImprovement, qLogProbabilityOfFeasibility
from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
from botorch.acquisition.multi_objective.objective import GenericMCMultiOutputObjective
from botorch.acquisition.objective import GenericMCObjective
from botorch.optim.optimize import optimize_acqf
from botorch.posteriors.torch import TorchPosterior
from botorch.sampling.get_sampler import get_sampler
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.active.botorch_models.model import OperatorModel, encoded_inputs
from probneural.active.loop.evaluations import Evaluations
from probneural.active.loop.history import LearningHistory
from probneural.active.loop.learner import ActiveLearner
from probneural.active.loop.plan import Head, LearningPlan, OperatorTraining, check, next_target
from probneural.active.selectors import Request, Selector
from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import SimulationOptions
from probneural.active.simulation.workers import Simulator
from probneural.checks import check_callable, check_finite, check_instance, check_integer, check_path, check_shape
from probneural.displays import html_table, number_or_dash
from probneural.distributions import Predictor
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.fingerprints import identity_of
from probneural.functionals import Functional, sensors
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.problems import Problem
from probneural.randomness import stream_seed

Goal: TypeAlias = Callable[[Tensor], Tensor]
"""Map from the numbers that a functional reads, `(..., m)`, to one number each, `(...)`."""
_DRAWS, _RAW, _RESTARTS = 64, 128, 4
"""Posterior draws of the acquisition function, random designs it is evaluated at, and starts of its maximisation."""
_SEARCH: dict[str, Any] = {"maxiter": 60, "factr": None, "ftol": 1e-6}
"""Options of its maximisation; with a smaller tolerance line searches may fail at the rounding errors of the posterior."""
_GOAL, _PLAN = "give a function of numbers (..., m)", "give LearningPlan(initial=9, batch=4, seed=0)"
_ACQUISITION = "give a function that returns a BoTorch acquisition function"
_NEAREST = 1e-9
"""Least distance of a candidate from other designs; a nearer one is replaced by a random design."""


@dataclass(frozen=True)
class _InOrder(Selector):
    """The first candidates, however near they are to labelled inputs: the acquisition function has chosen them."""

    def select(self, predictor: Predictor, pool: Field, *, count: int, **_: object) -> Int64[Tensor, " count"]:
        """Indices of the first candidates."""
        return torch.arange(count)

    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        return torch.arange(request.count)


class Optimizer:
    """Maximise an objective of the output field over designs in the unit cube, by Bayesian optimisation.

    The first designs are points of a Sobol sequence. Each round then fits the head to all results and maximises an acquisition
    function of an [`OperatorModel`][probneural.active.OperatorModel] for several designs, one after the other, each conditioned
    on those before it. The posterior is over the numbers that `functional` reads from the field, and the objective is a known
    function of them. The engine is that of [`ActiveLearner`][probneural.active.ActiveLearner]: results and choices are
    stored, a loop that was killed continues with the same arguments and store, failed simulations are left out. Computations
    are in double precision, those of an operator too.

    Args:
        simulator: A problem, or a callable from a Field of inputs to the Field of their outputs; None for `ask` and `tell`.
        head: Anything with `fit(operator, pairs)` that returns a predictor; `KernelOperator(min_noise=1e-8)` for exact
            simulations.
        encode: Maps designs `(N, d)` to a Field of N inputs, differentiably.
        dimension: Number of design coordinates d.
        objective: Larger is better: a functional of one value, or a function of the numbers of `functional`,
            `(..., m)` to `(...)`, differentiable; for several objectives, such functions by name.
        store: A folder, or its `ResultStore`, which belongs to this loop alone.
        functional: Numbers that objective and constraints depend on, channel by channel; by default the values at all points
            of the outputs' grid. Fewer numbers are faster.
        constraints: Functions like the objective, by name; feasible where at most 0.
        acquisition: Called as `acquisition(model, baseline, objective=..., constraints=..., sampler=...)` with evaluated
            designs `(n, d)` and BoTorch's objective and constraints, with several objectives also `ref_point=`; by default
            `qLogNoisyExpectedImprovement`, or `qLogNoisyExpectedHypervolumeImprovement`; `qLogProbabilityOfFeasibility` while
            the model predicts none of them to be feasible.
        training: The operator, and its training; none by default.
        plan: Designs of the Sobol sequence, `initial`; designs of a round, `batch`; and the seed. By default 2 d + 1, 4 and 0.
        simulation: Workers, time limits and progress bars.

    Raises:
        ArgumentError: If an argument is of the wrong kind or out of range.
        FileError: If the store belongs to a loop of other settings.

    Reference:
        Astudillo and Frazier (2019), Bayesian optimization of composite functions; Ament et al. (2023), Unexpected
        improvements to expected improvement for Bayesian optimization; Daulton et al. (2021), Parallel Bayesian optimization
        of multiple noisy objectives with expected hypervolume improvement.
    """

    def __init__(
        self,
        simulator: Problem | Simulator | None,
        head: Head,
        *,
        encode: Callable[[Tensor], Field],
        dimension: int,
        objective: Functional | Goal | Mapping[str, Goal],
        store: ResultStore | str | os.PathLike[str],
        functional: Functional | None = None,
        constraints: Mapping[str, Goal] | None = None,
        acquisition: Callable[..., AcquisitionFunction] | None = None,
        training: OperatorTraining | None = None,
        plan: LearningPlan | None = None,
        simulation: SimulationOptions | None = None,
    ) -> None:
        self.dimension = check_integer(dimension, "dimension")
        plan = LearningPlan(initial=2 * self.dimension + 1, batch=4) if plan is None else plan
        check_instance(plan, LearningPlan, "plan", remedy=_PLAN, error=ArgumentError)
        if plan.candidates is not None:
            raise ArgumentError(
                expected="a plan without candidates",
                got=repr(plan.candidates),
                remedy="the acquisition function chooses designs: give acquisition=, or use ActiveLearner",
            )
        self.plan = replace(plan, candidates=self.propose)
        if isinstance(objective, Functional):
            if functional is not None or objective.size != 1:
                raise ArgumentError(
                    expected="a functional of one value as objective, without functional=",
                    got=f"one of {objective.size} values",
                    remedy="give functional= and a function of its numbers as objective",
                )
            functional, objective = objective, _first
        self._objectives = _goals(objective if isinstance(objective, Mapping) else {"objective": objective})
        check(len(self._objectives) > 0, "an objective", objective)
        self._constraints = _goals(constraints or {})
        self._functional, self._encode = functional, check_callable(encode, "encode", remedy="give designs (N, d) to a Field")
        self._acquisition = check_callable(acquisition or _improvement_or_feasibility, "acquisition", remedy=_ACQUISITION)
        self.goal = identity_of((self._objectives, self._constraints, self._acquisition))
        self.store = store if isinstance(store, ResultStore) else ResultStore(check_path(store, "store"))
        sobol = torch.quasirandom.SobolEngine(self.dimension, scramble=True, seed=stream_seed(self.plan.seed, "first designs"))
        self._designs: dict[str, Tensor] = {}
        pool = self._encoded(sobol.draw(2 * self.plan.initial, dtype=torch.float64))
        number = 1
        while (stored := self.store.load_tensors(_name(number))) is not None:
            self._encoded(stored["designs"])
            number += 1
        self._learner = ActiveLearner(
            simulator,
            head,
            acquisition=_InOrder(),
            pool=pool,
            store=self.store,
            training=_in_double_precision(training),
            plan=self.plan,
            simulation=simulation,
        )

    @property
    def history(self) -> LearningHistory:
        """A line for each finished round."""
        return self._learner.history

    @property
    def predictor(self) -> Predictor:
        """The predictor of the last finished round."""
        return self._learner.predictor

    @property
    def evaluations(self) -> Evaluations:
        """All evaluated designs.

        Raises:
            DataError: If there is none yet.
        """
        pairs = self._learner.pairs
        designs = torch.stack([self._designs[self.store.key(pairs.inputs[row])] for row in range(len(pairs))])
        numbers = self._reads(pairs.outputs.grid)(pairs.outputs.values).flatten(1).to(torch.float64)
        objectives, constraints = (
            {name: _values(goal, numbers, name) for name, goal in goals.items()}
            for goals in (self._objectives, self._constraints)
        )
        return Evaluations(designs, objectives, constraints=constraints, pairs=pairs)

    def run(self, *, evaluations: int) -> Evaluations:
        """Go on until there are so many evaluations in all, those of earlier calls and processes included.

        Raises:
            ArgumentError: If there is no simulator, or the number is less than `initial`.
            SimulationError: If too many simulations failed.
        """
        self._learner.run(labels=check_integer(evaluations, "evaluations", least=self.plan.initial))
        return self.evaluations

    def ask(self) -> Float64[Tensor, "n d"]:
        """The pending designs: those of the round that have no result, chosen now if need be; `encode` makes inputs of them."""
        inputs = self._learner.ask()
        return torch.stack([self._designs[self.store.key(inputs[row])] for row in range(len(inputs))])

    def tell(self, designs: Float64[Tensor, "n d"], outputs: Field) -> None:
        """Store results of pending designs, all or some; the last of them ends the round.

        Args:
            designs: Rows that `ask` returned.
            outputs: Their outputs; NaN marks a failure.

        Raises:
            ArgumentError: If a design is not pending.
            SimulationError: If too many simulations failed.
        """
        inputs = self._encode(designs.to(torch.float64)).detached().to(torch.float64)
        self._learner.tell(FieldPairs(inputs, outputs))

    def propose(self, predictor: Predictor) -> Field:
        """Choose the next q designs, and store them.

        Args:
            predictor: The predictor of all results.

        Returns:
            Their inputs.
        """
        number = len(self._learner.history)
        evaluations = self.evaluations
        functional = self._reads(evaluations.pairs.outputs.grid)
        model = OperatorModel(predictor, encode=lambda X: self._encode(X).to(torch.float64), functional=functional)
        seed = stream_seed(self.plan.seed, "next designs", number)
        count = next_target(self.plan.batch, len(evaluations)) - len(evaluations)
        bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, self.dimension)
        with torch.no_grad():
            posterior = cast(TorchPosterior, model.posterior(bounds[:1]))
            sampler = get_sampler(posterior, torch.Size([_DRAWS]), seed=seed)
        goals = [*self._objectives.values()]
        targets: dict[str, Any] = {"objective": GenericMCObjective(lambda samples, X: goals[0](samples))}
        if len(goals) > 1:

            def stacked(samples: Tensor, X: Tensor | None = None) -> Tensor:
                return torch.stack([goal(samples) for goal in goals], -1)

            targets = {"objective": GenericMCMultiOutputObjective(stacked), "ref_point": evaluations.reference_point}
        acquisition = self._acquisition(
            model, evaluations.designs, constraints=[*self._constraints.values()] or None, sampler=sampler, **targets
        )
        designs, _ = optimize_acqf(
            acquisition,
            bounds,
            q=count,
            num_restarts=_RESTARTS,
            raw_samples=_RAW,
            options=_SEARCH | {"seed": seed},
            sequential=True,
        )
        designs = _distinct(designs.detach().clamp(0.0, 1.0), evaluations.designs, seed=seed)
        self.store.save_tensors(_name(number), {"designs": designs})
        return self._encoded(designs)

    def _reads(self, grid: Grid) -> Functional:
        """The functional, by default the values at all points."""
        return sensors(grid, grid.points) if self._functional is None else self._functional

    def _encoded(self, designs: Float64[Tensor, "n d"]) -> Field:
        """Inputs of designs, which are stored under the keys of their inputs."""
        with torch.no_grad():
            inputs = encoded_inputs(self._encode, designs).detached()
        inputs = inputs.to(torch.float64).to("cpu")
        for row, design in enumerate(designs):
            self._designs[self.store.key(inputs[row])] = design
        return inputs

    def _repr_html_(self) -> str:
        """A table of rounds, evaluations, failures, the last error and the best value."""
        best = number_or_dash(lambda: self.evaluations.running_best[-1])
        return html_table("Optimizer", {**self.history.summary(), "best value": best}.items())


def _improvement_or_feasibility(model: OperatorModel, baseline: Tensor, **options: Any) -> AcquisitionFunction:
    """The logarithm of noisy expected improvement over the evaluated designs, or of that of their hypervolume."""
    if options["constraints"] is not None:
        with torch.no_grad():
            means = cast(TorchPosterior, model.posterior(baseline)).mean
        if not torch.stack([constraint(means) <= 0 for constraint in options["constraints"]]).all(0).any():
            constraints, sampler = options["constraints"], options["sampler"]
            return qLogProbabilityOfFeasibility(model, constraints=constraints, sampler=sampler)
    kind = qLogNoisyExpectedHypervolumeImprovement if "ref_point" in options else qLogNoisyExpectedImprovement
    return kind(model, X_baseline=baseline, prune_baseline=True, **options)


def _goals(goals: Mapping[str, object]) -> dict[str, Goal]:
    """Checked functions of numbers, by name."""
    return {name: cast(Goal, check_callable(goal, name, remedy=_GOAL)) for name, goal in goals.items()}


def _in_double_precision(training: OperatorTraining | None) -> OperatorTraining | None:
    """The training of a copy of the operator in double precision."""
    if training is None or training.operator is None:
        return training
    return replace(training, operator=copy.deepcopy(training.operator).double())


def _first(numbers: Tensor) -> Tensor:
    """The first number."""
    return numbers[..., 0]


def _name(number: int) -> str:
    """Name of the designs of a round in the store."""
    return f"designs-{number:04d}"


def _values(goal: Goal, numbers: Float64[Tensor, "n m"], name: str) -> Float64[Tensor, " n"]:
    """Values of an objective or a constraint."""
    values = check_instance(goal(numbers), Tensor, name, remedy="return a tensor")
    check_shape(values, name, *numbers.shape[:1], remedy="reduce m of numbers (..., m)")
    check_finite(values, name, remedy="return finite numbers")
    return values.to(torch.float64)


def _distinct(designs: Float64[Tensor, "q d"], evaluated: Float64[Tensor, "n d"], *, seed: int) -> Float64[Tensor, "q d"]:
    """Designs; those that equal an evaluated one, or each other, are replaced by random ones."""
    sobol = torch.quasirandom.SobolEngine(designs.shape[1], scramble=True, seed=stream_seed(seed, "replaced designs"))
    result = evaluated
    for design in designs:
        is_near = (result - design).abs().amax(1).min() < _NEAREST
        result = torch.cat([result, sobol.draw(1, dtype=torch.float64) if is_near else design[None]])
    return result[len(evaluated) :]
