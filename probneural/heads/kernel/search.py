"""The search for the hyper-parameters of Gaussian processes: damped Newton steps with average information."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.heads.kernel.evidence import SHAPE, Evidence, Objective, Point
from probneural.heads.kernel.gaussian_processes import TRIES, Process, no_root, with_noise
from probneural.heads.kernel.inducing_points import InducingProcess

_LARGEST_NOISE = math.exp(5.0)
"""Of the noise, in units of the mean prior variance."""
_PAIRS = (128, 512, 1024)
"""Pairs from which the search starts, those from which relevances are learned first, and those on the way to many more."""
_LARGEST = 2048
"""The most pairs to learn hyper-parameters from."""
_STARTS = tuple((exponent, length, noise) for exponent in (0.0, 0.5, 1.0) for length, noise in ((1.0, -12.0), (0.3, -5.0)))
_LONGEST_STEP = 2.0
"""Of a hyper-parameter, all of which are logarithms or exponents."""
_DAMPING = (1e-6, 1e-2, 1e8)
"""The least, first and largest multiple of the curvature's diagonal that is added to it."""
_NATS = {"first": 1.0, "last": 0.5}
"""Evidence that is not worth a step, on few pairs and on all; one hyper-parameter is known to half a nat."""


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where a minimisation ended.

    Attributes:
        vector: `(h,)`.
        value: Of the objective there; infinite if it could not be evaluated anywhere.
        converged: Whether a step lowered the value, or Newton's method was expected to lower it, by no more than the tolerance.
        evaluations: Of the objective.
    """

    vector: Float64[Tensor, " h"]
    value: float
    converged: bool
    evaluations: int


def minimise(
    objective: Callable[[Tensor], Point | None],
    start: Float64[Tensor, " h"],
    *,
    lower: Float64[Tensor, " h"],
    upper: Float64[Tensor, " h"],
    iterations: int,
    tolerance: float,
) -> Minimum:
    """Minimise a function within bounds by Levenberg-Marquardt steps: curvature with damping, clipped to the bounds.

    Where a bound holds a coordinate back, the others move as if it were fixed. Steps that raise the value are refused, and
    more damping is taken; each counts as an iteration.

    Args:
        objective: Its value, gradient and positive semi-definite curvature, or None where it cannot be evaluated.
        start: Where to begin.
        lower: Bounds; where they are equal nothing varies.
        upper: Bounds.
        iterations: At most.
        tolerance: Decrease of the value that is not worth a step.
    """
    vector = start.clamp(lower, upper)
    point, evaluations = objective(vector), 1
    if point is None:
        return Minimum(vector, math.inf, False, evaluations)
    damping = _DAMPING[1]
    for _ in range(iterations):
        free = _free(vector, point.gradient, lower, upper)
        if -0.5 * float(point.gradient @ _newton(point, free, _DAMPING[0])) <= tolerance:
            return Minimum(vector, point.value, True, evaluations)
        step = _newton(point, free, damping)
        step = step * (_LONGEST_STEP / step.abs().max().clamp_min(_LONGEST_STEP))
        moved = (vector + step).clamp(lower, upper)
        step = moved - vector
        expected = -float(point.gradient @ step + 0.5 * step @ point.curvature @ step)
        new, evaluations = objective(moved), evaluations + 1
        decrease = -math.inf if new is None else point.value - new.value
        if new is None or decrease < 0.0:
            damping *= 10.0
            if damping > _DAMPING[2]:
                break
            continue
        vector, point = moved, new
        if decrease <= tolerance and damping <= 1.0:
            return Minimum(vector, point.value, True, evaluations)
        if decrease > 0.5 * expected:
            damping = max(damping / 10.0, _DAMPING[0])
        elif decrease < 0.1 * expected:
            damping *= 3.0
    return Minimum(vector, point.value, False, evaluations)


def _free(vector: Tensor, gradient: Tensor, lower: Tensor, upper: Tensor) -> Bool[Tensor, " h"]:
    """Which coordinates may move downhill."""
    held = ((vector <= lower) & (gradient >= 0.0)) | ((vector >= upper) & (gradient <= 0.0))
    return ~held & (lower < upper)


def _newton(point: Point, free: Bool[Tensor, " h"], damping: float) -> Float64[Tensor, " h"]:
    """The damped Newton step in the free coordinates."""
    step = torch.zeros_like(point.gradient)
    if bool(free.any()):
        curvature, gradient = point.curvature[free][:, free], point.gradient[free][:, None]
        diagonal = curvature.diagonal()
        values, vectors = torch.linalg.eigh(curvature + (damping * diagonal).diag())
        values = values.clamp_min(
            _DAMPING[0] * float(diagonal.max()) + torch.finfo(values.dtype).tiny
        )  # what is less is rounding
        step[free] = -(vectors @ ((vectors.mT @ gradient) / values[:, None]))[:, 0]
    return step


@dataclass(frozen=True)
class Fitted:
    """Processes with the hyper-parameters of greatest evidence.

    Attributes:
        process: The processes.
        log_evidence: Of all training values, in nats; a lower bound of it with inducing points.
        converged: Whether the optimiser met its tolerance.
        evaluations: Of the evidence, on all pairs that hyper-parameters were learned from.
        vector: The hyper-parameters, as the search has them.
    """

    process: Process | InducingProcess
    log_evidence: float
    converged: bool
    evaluations: int
    vector: Float64[Tensor, " h"]


@dataclass(frozen=True, eq=False)
class Search:
    """The search for the hyper-parameters of f processes, those of [`Objective`][probneural.heads.kernel.evidence.Objective].

    Args:
        kernel: One of `KERNELS`.
        points: Training coordinates, `(n, r)`.
        std: Their standard deviations, `(r,)`.
        values: Training values, `(n, f)`, of about unit size.
        learns_relevances: Whether each coordinate has a relevance of its own.
        min_noise: The least noise variance, in units of the mean prior variance.
        iterations: Of the optimiser on all pairs, at most.
        like: Hyper-parameters of other processes that these may resemble, to start from as well.
    """

    kernel: str
    points: Float64[Tensor, "n r"]
    std: Float64[Tensor, " r"]
    values: Float64[Tensor, "n f"]
    learns_relevances: bool
    min_noise: float
    iterations: int
    like: Float64[Tensor, " h"] | None = None

    def run(self, *, inducing_points: int | None = None) -> Fitted:
        """Maximise the evidence, and condition on all pairs.

        Args:
            inducing_points: Through the values at how many points the processes are seen; None for all.

        Raises:
            DataError: If no noise makes the covariance positive definite.
        """
        best = self.learned()
        objective = self._objective(len(self.points))
        covariance, nugget = objective.unpacked(best.vector)
        if inducing_points is not None:
            fitted, bound = InducingProcess.fitted(
                covariance, nugget=float(nugget), points=self.points, values=self.values, count=inducing_points
            )
            return Fitted(fitted, bound, best.converged, best.evaluations, best.vector)
        matrix, size = covariance(self.points, self.points), float(nugget)
        for _ in range(TRIES):
            result = Evidence.of(with_noise(matrix, size), self.values)
            if result is not None:
                process = Process(covariance, size, self.points, self.values, result.amplitude)
                return Fitted(process, result.value, best.converged, best.evaluations, best.vector)
            size *= 10.0  # more pairs than were learned from
        raise no_root()

    def learned(self) -> Minimum:
        """From six starts on few pairs, then from the best of each noise on more, then on all up to 2,048."""
        starts = [] if self.like is None else [self.like]
        for exponent, length, noise in _STARTS:
            typical = float((self.points * self.std**-exponent).square().sum(1).mean().log()) / 2.0
            start = self.points.new_zeros(SHAPE + len(self.std))
            start[:SHAPE] = start.new_tensor([typical + length, exponent, 0.0, -4.0, 0.0, noise])
            starts.append(start)
        results = [self._minimised(start, pairs=_PAIRS[0], relevances=False, iterations=10) for start in starts]
        # Local optima differ in the noise: the search goes on from the best of each first noise, and from that of `like`.
        kinds = [results[: -len(_STARTS)], results[-len(_STARTS) :: 2], results[1 - len(_STARTS) :: 2]]
        chosen = [min(kind, key=lambda result: result.value) for kind in kinds if kind]
        relevances = self.learns_relevances and self.kernel != "linear"
        is_all = len(self.points) <= _PAIRS[1]
        size, iterations = (_LARGEST, self.iterations) if is_all else (_PAIRS[1], 20)
        rivals = [self._minimised(one.vector, pairs=size, relevances=relevances, iterations=iterations) for one in chosen]
        nonlinear = min(rivals, key=lambda result: result.value)
        if "+linear" in self.kernel and len(self.points) > _PAIRS[0]:
            # few pairs hide a linear map in many coordinates, and its optimum lies far away
            linear = self._mostly_linear(min(chosen, key=lambda result: result.value).vector)
            rivals.append(self._minimised(linear, pairs=_PAIRS[1], relevances=False, iterations=10))
        best = min(rivals, key=lambda result: result.value)
        if is_all and best is nonlinear:
            return best
        if len(self.points) > 1.5 * _PAIRS[2]:
            best = self._minimised(best.vector, pairs=_PAIRS[2], relevances=relevances, iterations=20)
        return self._minimised(best.vector, pairs=_LARGEST, relevances=relevances, iterations=self.iterations)

    def _mostly_linear(self, vector: Float64[Tensor, " h"]) -> Float64[Tensor, " h"]:
        """The same processes with a linear part that outweighs the rest, as strong along all coordinates, and some noise."""
        moved = vector.clone()
        moved[3:SHAPE] = moved.new_tensor([6.0 - float(self.points.square().sum(1).mean().log()), 0.0, -5.0])
        return moved

    def _objective(self, pairs: int) -> Objective:
        """The objective for some of the pairs, evenly spread."""
        count = min(pairs, len(self.points))
        rows = torch.linspace(0, len(self.points) - 1, count, dtype=torch.float64).round().long().to(self.points.device)
        return Objective(self.kernel, self.points[rows], self.std, self.values[rows])

    def _minimised(self, start: Float64[Tensor, " h"], *, pairs: int, relevances: bool, iterations: int) -> Minimum:
        lower, upper = start.clone(), start.clone()
        is_stationary, has_linear = self.kernel != "linear", self.kernel.endswith("linear")
        centre = float(start[0])
        spans = (
            (is_stationary, centre - 8.0, centre + 8.0),
            (is_stationary, -1.5, 2.0),
            (self.kernel.startswith("rational"), -4.0, 4.0),
            (is_stationary and has_linear, -25.0, 25.0),
            (has_linear, -1.5, 2.0),
            (True, math.log(self.min_noise), math.log(_LARGEST_NOISE)),
        )
        for index, (varies, least, most) in enumerate(spans):
            if varies:
                lower[index], upper[index] = least, most
        if relevances:
            lower[SHAPE:], upper[SHAPE:] = -8.0, 4.0
        objective = self._objective(pairs)
        tolerance = _NATS["last" if pairs == _LARGEST else "first"] / objective.values.numel()
        return minimise(objective, start, lower=lower, upper=upper, iterations=iterations, tolerance=tolerance)
