"""Anchored ensembles: posterior samples by randomised optimisation, exact where an operator is linear in its weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property, partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import grad, vjp, vmap
from tqdm.auto import tqdm

from probneural.checks import assign, check_flag, check_instance, check_integer, check_real
from probneural.contexts import jvp, undisturbed
from probneural.curvature.problem import CurvatureProblem, Minibatches
from probneural.errors import ArgumentError, TrainingError
from probneural.heads.ensembles.deep_ensemble import check_members
from probneural.heads.training_data import in_memory, recorded
from probneural.heads.weight_problem import WeightProblem, prepare
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.linear_algebra.conjugate_gradients import solve_truncated
from probneural.pairs import Dataset
from probneural.processes import gathered, own_rows, world_size
from probneural.randomness import stream

_BATCH_POINTS = 2**16
"""Members times functions times grid points optimised at once."""
_SOLVES = 200
"""Products with the curvature per step, at most."""
_LOOSEST = 1e-2
"""Relative residual at which the first steps are solved; later ones as tightly as the gradient has become small."""
_LEAST_DAMPING, _LARGEST_DAMPING = 0.03, 1e8
"""In units of the prior precision: below the first there is none, beyond the second a member cannot move."""


@dataclass(frozen=True, kw_only=True)
class LevenbergMarquardt:
    """Gauss-Newton steps with Levenberg's damping, all members at once, each with its own.

    Args:
        max_iterations: Steps, at most.
        tolerance: On half the squared Newton decrement, g^T H^-1 g / 2 with the Gauss-Newton matrix H: what one more step can
            gain, in nats. A member's distance from its minimum is then (2 tolerance)^1/2 posterior deviations along any
            direction, at most, whatever the units of the outputs.

    Raises:
        ArgumentError: If a number is out of range.

    Reference:
        Nocedal & Wright (2006), Numerical optimization, section 10.3, with truncated conjugate gradients (section 7.1) and the
        damping of Nielsen (1999), Damping parameter in Marquardt's method (begun at none at all).
    """

    max_iterations: int = 50
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        """Check the numbers."""
        assign(self, max_iterations=check_integer(self.max_iterations, "max_iterations"))
        check_real(self.tolerance, "tolerance", above=0.0, below=1.0)

    def minimise(self, objective: _Objective, start: Float[Tensor, "s P"]) -> tuple[Float[Tensor, "s P"], Float[Tensor, " s"]]:
        """Minimise sums of squares of s members, priors white; return where they ended, and what a step could still gain.

        With x of the solver and the residual r = -g - H x, half the squared decrement is -g^T x - x^T H x / 2 + r^T H^-1 r / 2,
        and H is at least the identity, which the prior gives.
        """
        point = start.clone()
        values, gradients = objective.value(point), objective.gradient(point)
        first = gradients.norm(dim=1)
        gain = torch.where(first > 0, torch.inf, 0.0).to(values)
        damping, growth = torch.zeros_like(values), torch.full_like(values, 2.0)
        rounding = 10 * torch.finfo(start.dtype).eps
        for _ in range(self.max_iterations):
            rows = ((gain > self.tolerance) & (damping < _LARGEST_DAMPING)).nonzero()[:, 0]
            if len(rows) == 0:
                break
            part = objective.rows(rows)
            norms = gradients[rows].norm(dim=1)
            enough = math.sqrt(self.tolerance) / norms  # to see that a member has converged
            step, curved = solve_truncated(
                partial(part.product, point[rows]),
                -gradients[rows],
                shift=damping[rows],
                tolerance=(norms / first[rows]).maximum(enough).clamp_max(_LOOSEST),
                max_iterations=_SOLVES,
            )
            trial = point[rows] + step
            reached = part.value(trial)
            predicted = -(gradients[rows] * step).sum(1) - 0.5 * (step * curved).sum(1)
            gain[rows] = predicted + 0.5 * (gradients[rows] + curved).square().sum(1)
            gained = values[rows] - reached
            good = gained >= 1e-4 * predicted - rounding * values[rows].abs()  # near the end both are rounding
            taken = rows[good]
            point[taken], values[taken] = trial[good], reached[good]
            moved = taken[gain[taken] > self.tolerance]  # others need no gradient: they have arrived
            if len(moved) > 0:
                gradients[moved] = objective.rows(moved).gradient(point[moved])
            ratio = gained / predicted.clamp_min(torch.finfo(predicted.dtype).tiny)
            eased = damping[rows] * (1.0 - (2.0 * ratio.clamp(0.0, 1.0) - 1.0) ** 3).clamp_min(1 / 3)
            damping[rows] = torch.where(
                good, torch.where(eased < _LEAST_DAMPING, 0.0, eased), (growth[rows] * damping[rows]).clamp_min(1.0)
            )
            growth[rows] = torch.where(good, 2.0, 2.0 * growth[rows])
        return point, gain


_LEVENBERG_MARQUARDT = LevenbergMarquardt()


@dataclass(frozen=True)
class AnchoredEnsemble:
    """M operators, each at the mode of a randomised posterior: its own draw of the prior, and of noise on the outputs.

    Member i minimises

        sum over functions and channels of m_c / (2 s_c^2 |D|) * integral of (y + e_i - f(theta))^2
            + 1/2 sum over parameters of t_j (theta_j - a_ij)^2

    with anchors a_i ~ N(0, 1/t), m effective observations per field and channel, and noise e_i that is independent between
    quadrature points with the variance that this likelihood gives each of them. Where the operator is linear in its parameters
    the members are exact and independent draws from the posterior; elsewhere they approximate it, several modes included.

    Members are optimised on all data at once by damped Gauss-Newton steps in double precision, from their anchors, many members
    at a time where `torch.func.vmap` can follow the operator. That suits operators of up to some 10^5 parameters and data that
    one pass can hold; there are no minibatches. Look at the predictor's `report`: `converged` is the fraction of members that
    one more step could not improve by more than the tolerance.

    Args:
        members: M.
        parameters: Names of parameters or submodules; all by default. Others stay as they are.
        noise: Observation variance s^2, in physical units squared: one number or one per channel.
        prior_precision: Precision t of the parameters around zero, per parameter unit squared: one number, a vector `(P,)` in
            the order of `ParameterVector`, or by name, a number or a tensor in real pairs each; infinity keeps a parameter at
            the operator's value.
        effective_observations: m, dimensionless, one number or one per channel; by default from the residuals of the operator
            that is given, which then should be a trained one.
        optimizer: Steps and tolerance of the Gauss-Newton method.
        seed: Random seed. Member i is the same one, up to the tolerance, in an ensemble of any size.
        show_progress: Whether to show one progress bar over the members.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Pearce, Leibfried, Brintrup, Zaki & Neely (2020), Uncertainty in neural networks: approximately Bayesian ensembling,
        with the noise on the outputs of Osband, Aslanides & Cassirer (2018), Randomized prior functions for deep reinforcement
        learning, lemma 3. Deviations: quadrature instead of sums over points, effective observations, members start at their
        anchors.
    """

    members: int
    _: KW_ONLY
    parameters: Sequence[str] | None = None
    noise: float | Tensor
    prior_precision: float | Tensor | Mapping[str, Tensor | float]
    effective_observations: float | Tensor | None = None
    optimizer: LevenbergMarquardt = _LEVENBERG_MARQUARDT
    seed: int = 0
    show_progress: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        members, seed = check_members(self.members, self.seed)
        assign(self, members=members, seed=seed, show_progress=check_flag(self.show_progress, "show_progress"))
        learned: tuple[object, ...] = (self.prior_precision, self.noise)
        if any(value is None or isinstance(value, str) for value in learned):
            raise ArgumentError(
                expected="prior_precision and noise, from which members are drawn",
                got=f"prior_precision={self.prior_precision!r}, noise={self.noise!r}",
                remedy="Laplace learns both: take its predictor's prior_precision and noise",
            )
        check_instance(
            self.optimizer, LevenbergMarquardt, "optimizer", remedy="give a LevenbergMarquardt(...)", error=ArgumentError
        )

    @recorded
    @undisturbed()
    @torch.no_grad()
    def fit(self, operator: nn.Module, data: Dataset) -> WeightSampledPredictor:
        """Draw and optimise the members.

        Each has noise of its own on every training output, so memory grows with the data: thousands of functions, no more.
        Where torch.distributed is initialised, every process calls it with the same data, and optimises some of the members.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor of empirical fields, one sample per member; its `report` has `converged`, the fraction of members that
            did, and `largest_gain`, the most that the last step could gain for one, in nats.

        Raises:
            ArgumentError: If a setting is out of range, or a name fits no parameter.
            ShapeError: If the operator's outputs do not fit the data's, or a prior its parameters.
            DataError: If the data are not finite pairs.
            TrainingError: If a member's loss is not finite at its anchor.
        """
        given = prepare(
            operator,
            data,
            parameters=self.parameters,
            noise=self.noise,
            prior_precision=self.prior_precision,
            effective_observations=self.effective_observations,
            is_shared=False,
        )
        problem = given.in_double_precision
        draws = _Draws(problem)
        together = self._can_be_followed(draws)
        step = max(1, _BATCH_POINTS // (problem.data.functions * problem.grid.size)) if together else 1
        vectors, gains = [], []
        own = own_rows(self.members)
        with tqdm(total=len(own), desc="ensemble", unit="member", disable=not self.show_progress) as bar:
            for start in range(own.start, own.stop, step):
                numbers = range(start, min(start + step, own.stop))
                whitened, gain = self._optimised(draws, numbers, together)
                vectors.append(draws.weights(whitened))
                gains.append(gain)
                bar.update(len(numbers))
        gains_of_all = _of_all(torch.cat(gains) if gains else problem.vector.new_empty(0), self.members)
        return WeightSampledPredictor(
            operator=given.operator,
            layout=given.layout,
            vectors=_of_all(torch.cat(vectors) if vectors else problem.vector[None][:0], self.members).to(given.vector),
            noise=given.variance_unit,
            domain=given.data.inputs.grid,
            in_channels=given.data.inputs.channels,
            effective_observations=given.effective_observations,
            report={
                "converged": float((gains_of_all <= self.optimizer.tolerance).double().mean()),
                "largest_gain": float(gains_of_all.max()),
            },
        )

    def _can_be_followed(self, draws: _Draws) -> bool:
        """Whether vmap can follow the operator and its derivatives."""
        anchors, targets = draws.drawn(self.seed, [0])
        try:
            _Objective(draws, anchors, targets, together=True).product(anchors, anchors)
        except (RuntimeError, TypeError, ValueError):  # what modules that vmap cannot follow raise
            return False
        return True

    def _optimised(self, draws: _Draws, numbers: range, together: bool) -> tuple[Tensor, Tensor]:
        """Whitened weights of some members, `(s, P)`, and what a step could still gain, `(s,)`, in nats."""
        anchors, targets = draws.drawn(self.seed, numbers)
        objective = _Objective(draws, anchors, targets, together=together)
        if not bool(torch.isfinite(objective.value(anchors)).all()):
            raise TrainingError(
                expected=f"members {numbers.start} to {numbers.stop - 1} to have finite losses at their anchors",
                got="NaN or infinity",
                remedy="raise prior_precision: draws from this prior overflow",
            )
        return self.optimizer.minimise(objective, anchors)


def _of_all(own: Float[Tensor, "own *rest"], members: int) -> Float[Tensor, "members *rest"]:
    """The rows of all processes' members, each of which has a block of them."""
    if world_size() == 1:
        return own
    padded = own.new_zeros(members, *own.shape[1:])
    rows = own_rows(members)
    padded[rows.start : rows.stop] = own
    return torch.stack(gathered(padded)).sum(0)


@dataclass(frozen=True, eq=False)
class _Draws:
    """Randomised problems of one posterior, in coordinates z in which the prior is white: theta = centre + prior_std * z."""

    problem: WeightProblem

    @cached_property
    def prior_std(self) -> Tensor:
        """Prior standard deviations, `(P,)`, zero where a parameter is kept."""
        return self.problem.prior_std.to(self.problem.vector)

    @cached_property
    def centre(self) -> Tensor:
        """Zero, or what a parameter is kept at, `(P,)`."""
        return torch.where(self.prior_std > 0, 0.0, self.problem.vector)

    @cached_property
    def curvature(self) -> CurvatureProblem:
        """The problem in minibatches of a bounded number of points."""
        batch = max(1, _BATCH_POINTS // self.problem.grid.size)
        return replace(self.problem.curvature, batches=Minibatches(size=batch))

    def weights(self, whitened: Float[Tensor, "*s P"]) -> Float[Tensor, "*s P"]:
        """Parameters at white coordinates."""
        return self.centre + self.prior_std * whitened

    def drawn(self, seed: int, numbers: Iterable[int]) -> tuple[Float[Tensor, "s P"], Float[Tensor, "s n c p"]]:
        """White anchors and noisy outputs of the members with these numbers."""
        target = self.problem.dtype_and_device
        outputs = in_memory(self.problem.data.outputs).values.flatten(2).to(**target)
        weights = self.problem.weights.to(**target)
        noise_std = torch.where(weights > 0, weights.rsqrt(), 0.0)  # what no weight rests on needs no noise
        anchors, targets = [], []
        for number in numbers:
            generator = stream(seed, "anchored member", number)
            normal = [
                torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(**target)
                for shape in (self.prior_std.shape, outputs.shape)
            ]
            anchors.append(torch.where(self.prior_std > 0, normal[0], 0.0))
            targets.append(outputs + noise_std * normal[1])
        return torch.stack(anchors), torch.stack(targets)


@dataclass(frozen=True, eq=False)
class _Objective:
    """The losses of s members, each at its own weights: values `(s,)`, gradients and Gauss-Newton products `(s, P)`."""

    draws: _Draws
    anchors: Float[Tensor, "s P"]
    targets: Float[Tensor, "s n c p"]
    together: bool

    def rows(self, chosen: Tensor) -> _Objective:
        """The objective of some of the members."""
        return _Objective(self.draws, self.anchors[chosen], self.targets[chosen], self.together)

    def value(self, whitened: Tensor) -> Tensor:
        """Losses in nats, up to a constant."""
        return self._each(self._loss, whitened, self.anchors, self.targets)

    def gradient(self, whitened: Tensor) -> Tensor:
        """Their gradients."""
        return self._each(grad(self._loss), whitened, self.anchors, self.targets)

    def product(self, whitened: Tensor, vectors: Tensor) -> Tensor:
        """Gauss-Newton matrices, prior included, times one vector each."""
        return self._each(self._one_product, whitened, vectors)

    def _each(self, function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
        if self.together:
            result: Tensor = vmap(function)(*rows)
            return result
        return torch.stack([function(*row) for row in zip(*rows, strict=True)])

    def _loss(self, whitened: Tensor, anchor: Tensor, target: Tensor) -> Tensor:
        problem = self.draws.curvature
        vector = self.draws.weights(whitened)
        misfit = sum(problem.likelihood.loss(problem.outputs(vector, rows), target[rows]) for rows in problem.minibatches())
        return 0.5 * (whitened - anchor).square().sum() + misfit

    def _one_product(self, whitened: Tensor, direction: Tensor) -> Tensor:
        problem = self.draws.curvature
        weights = problem.likelihood.weights.to(whitened)
        total = direction
        for rows in problem.minibatches():

            def outputs(moved: Tensor, rows: slice = rows) -> Tensor:
                return problem.outputs(self.draws.weights(moved), rows)

            change = jvp(outputs, (whitened,), (direction,))[1]
            total = total + vjp(outputs, whitened)[1](weights * change)[0]
        return total
