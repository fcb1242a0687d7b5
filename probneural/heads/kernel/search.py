"""The search for the hyper-parameters of Gaussian processes: damped Newton steps with average information."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.heads.kernel.gaussian_processes import (
    LEAST_SQUARE,
    SMOOTHNESS,
    TRIES,
    Covariance,
    InducingProcess,
    Process,
    no_root,
    squared_distances,
    with_noise,
)

SHAPE = 6
"""Hyper-parameters before the relevances: log length, exponent, log alpha, log linear variance, its exponent, log noise."""
_OUTPUTS = 4
"""Components of the outputs that the curvature is taken from; the others count as alike."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Log evidence of f processes, each at its best amplitude.

    amplitude_k² = y_k^T C^-1 y_k / n, and the evidence is -(1/2) sum over k of (n log(2 pi e amplitude_k²) + log det C).

    Attributes:
        value: In nats.
        amplitude: `(f,)`.
        root: Cholesky factor of C, `(n, n)`.
        solved: C^-1 y, `(n, f)`.
    """

    value: float
    amplitude: Float64[Tensor, " f"]
    root: Float64[Tensor, "n n"]
    solved: Float64[Tensor, "n f"]

    @classmethod
    @torch.no_grad()
    def of(cls, matrix: Float64[Tensor, "n n"], values: Float64[Tensor, "n f"]) -> Evidence | None:
        """Evaluate it for the covariance matrix C and the values y; None if C is singular."""
        root, failed = torch.linalg.cholesky_ex(matrix)
        if bool(failed):
            return None
        solved = torch.cholesky_solve(values, root)
        squares = (values * solved).mean(0)
        if not bool((squares > 0).all()):
            return None
        count, outputs = values.shape
        total = count * (squares.log() + 1.0 + math.log(2.0 * math.pi)).sum() + 2.0 * outputs * root.diagonal().log().sum()
        return cls(-0.5 * float(total), squares.sqrt(), root, solved)

    def gradient(self) -> Float64[Tensor, "n n"]:
        """The gradient in C, which takes its inverse: twice the operations of the value."""
        gradient = torch.cholesky_inverse(self.root).mul_(-0.5 * len(self.amplitude))
        return gradient.addmm_(self.solved / self.amplitude.square(), self.solved.mT, alpha=0.5)


@dataclass(frozen=True, eq=False)
class Point:
    """The objective of a search at one vector of hyper-parameters, per training value; derivatives only where a step ends.

    Args:
        value: Minus the log evidence and the log hyper-prior.
        find_gradient: Computes the gradient.
        find_curvature: Computes the curvature.
    """

    value: float
    find_gradient: Callable[[], Float64[Tensor, " h"]]
    find_curvature: Callable[[], Float64[Tensor, "h h"]]

    @cached_property
    def gradient(self) -> Float64[Tensor, " h"]:
        """`(6 + r,)`."""
        return self.find_gradient()

    @cached_property
    def curvature(self) -> Float64[Tensor, "h h"]:
        """A positive semi-definite estimate of the second derivatives, `(6 + r, 6 + r)`."""
        return self.find_curvature()


@dataclass(frozen=True, eq=False)
class Objective:
    """Minus log evidence and log hyper-prior as a function of hyper-parameters.

    Inverse length scales are exp(-length) * std_j^-exponent * exp(relevance_j): an exponent of 0 measures the distance of
    two input functions in L2, an exponent of 1 that of whitened coordinates. Log relevances have a standard normal hyper-prior.

    Args:
        kernel: One of `KERNELS`.
        points: Training coordinates, `(n, r)`.
        std: Their standard deviations, `(r,)`.
        values: Training values, `(n, f)`.
    """

    kernel: str
    points: Float64[Tensor, "n r"]
    std: Float64[Tensor, " r"]
    values: Float64[Tensor, "n f"]

    def unpacked(self, vector: Float64[Tensor, " h"]) -> tuple[Covariance, Tensor]:
        """The covariance and the nugget that hyper-parameters stand for."""
        length, exponent, alpha, weight, slope, noise = vector[:SHAPE]
        decay = self.std.log()
        covariance = Covariance(
            kernel=self.kernel,
            relevance=(vector[SHAPE:] - length - exponent * decay).exp(),
            linear=(0.5 * weight - slope * decay).exp(),
            alpha=alpha.exp(),
        )
        return covariance, noise.exp() * covariance.diagonal(self.points).mean()

    @torch.no_grad()
    def __call__(self, vector: Float64[Tensor, " h"]) -> Point | None:
        """Evaluate it; None where the covariance is singular to rounding.

        With G the gradient of the evidence in C, k' the derivative of the kernel in squared distances and H = G * k' entry by
        entry, the gradient is, for points z and relevances a,

            d / d log a_j = 4 a_j² (sum over i of (H 1)_i z_ij² - (Z^T H Z)_jj),
            d / d log linear_j = 2 linear_j² (Z^T G Z)_jj,

        and the nugget, which is a multiple of the mean diagonal of k, adds to the second. The curvature is the average of
        observed and expected information, in which traces cancel. With C_i the derivatives of C and
        b_k = C^-1 y_k / amplitude_k:

            (1/2) sum over k of (b_k^T C_i C^-1 C_j b_k - (b_k^T C_i b_k) (b_k^T C_j b_k) / n),

        the second term for the amplitudes, which follow.

        Reference:
            Gilmour, Thompson & Cullis (1995), Average information REML, an efficient algorithm for variance parameter
            estimation in linear mixed models. Deviations: amplitudes are eliminated, and of many outputs four stand for all.
        """
        covariance, nugget = self.unpacked(vector)
        centred = self.points - self.points.mean(0)
        matrix, slopes, in_alpha = _matrices(covariance, centred)
        if covariance.has_linear_part:
            moved = self.points * covariance.linear
            matrix.addmm_(moved, moved.mT)
        matrix.diagonal().add_(nugget)
        evidence = Evidence.of(matrix, self.values)
        if evidence is None:
            return None
        derivatives = _Derivatives(self, vector, covariance, nugget, evidence, centred, slopes, in_alpha)
        value = (0.5 * float(vector[SHAPE:].square().sum()) - evidence.value) / self.values.numel()
        return Point(value, derivatives.gradient, derivatives.curvature)


@dataclass(frozen=True, eq=False)
class _Derivatives:
    """Derivatives of the objective at one vector of hyper-parameters, by those of C."""

    objective: Objective
    vector: Tensor
    covariance: Covariance
    nugget: Tensor
    evidence: Evidence
    centred: Tensor
    slopes: Tensor | None
    in_alpha: Tensor | None

    @torch.no_grad()
    def gradient(self) -> Float64[Tensor, " h"]:
        """Minus the sum over entries of C's derivatives times those of the evidence, and what the hyper-prior adds."""
        points, relevance, weights = self.objective.points, self.covariance.relevance, self.evidence.gradient()
        in_nugget = weights.diagonal().sum()
        in_relevance, in_linear, in_alpha = torch.zeros_like(relevance), torch.zeros_like(relevance), in_nugget.new_zeros(())
        if self.covariance.has_linear_part:
            squares = (points * (weights @ points)).sum(0) + in_nugget * self._mean_squares
            in_linear = 2.0 * self.covariance.linear.square() * squares
        if self.slopes is not None:
            if self.in_alpha is not None:
                in_alpha = weights.flatten() @ self.in_alpha.flatten()
            both = weights.mul_(self.slopes)
            squares_apart = (self.centred.square() * both.sum(1, keepdim=True) - self.centred * (both @ self.centred)).sum(0)
            in_relevance = 4.0 * relevance.square() * squares_apart
        gradient = -self._joined(in_relevance, in_linear, in_alpha, in_nugget * self.nugget)
        gradient[SHAPE:] += self.vector[SHAPE:]
        return gradient / self.objective.values.numel()

    @torch.no_grad()
    def curvature(self) -> Float64[Tensor, "h h"]:
        """The average information, and what the hyper-prior adds."""
        evidence, count = self.evidence, len(self.centred)
        outputs = evidence.solved.shape[1]
        chosen = torch.linspace(0, outputs - 1, min(outputs, _OUTPUTS)).round().long().to(evidence.solved.device)
        columns = (evidence.solved / evidence.amplitude)[:, chosen]
        images = self._images(columns)
        along = torch.einsum("nmh,nm->mh", images, columns)
        # sum over columns of b^T C_i C^-1 C_j b, with C = L L^T
        whitened = torch.linalg.solve_triangular(evidence.root, images.flatten(1), upper=False).reshape(-1, len(self.vector))
        total = (whitened.mT @ whitened - along.mT @ along / count) * (0.5 * outputs / len(chosen))
        total.diagonal()[SHAPE:] += 1.0
        return total / self.objective.values.numel()

    def _images(self, columns: Float64[Tensor, "n m"]) -> Float64[Tensor, "n m h"]:
        """C_i b for each column b and each hyper-parameter."""
        points, relevance = self.objective.points, self.covariance.relevance
        in_relevance, in_linear = columns.new_zeros(2, *columns.shape, len(relevance))
        in_alpha = torch.zeros_like(columns)
        if self.covariance.has_linear_part:
            along = points[:, None] * (columns.mT @ points) + self._mean_squares * columns[..., None]
            in_linear = 2.0 * self.covariance.linear.square() * along
        if self.slopes is not None:
            if self.in_alpha is not None:
                in_alpha = self.in_alpha @ columns
            centred = self.centred[:, None]
            weighted = centred * columns[..., None]
            stacked = torch.cat([weighted, centred * weighted, columns[..., None]], dim=2)
            products = (self.slopes @ stacked.flatten(1)).view_as(stacked)
            first, second, last = products.split([len(relevance), len(relevance), 1], dim=2)
            in_relevance = 2.0 * relevance.square() * (centred.square() * last - 2.0 * centred * first + second)
        return self._joined(in_relevance, in_linear, in_alpha, self.nugget * columns)

    @property
    def _mean_squares(self) -> Tensor:
        """What the nugget adds: exp(noise) times the mean of z_j²."""
        return self.vector[SHAPE - 1].exp() * self.objective.points.square().mean(0)

    def _joined(
        self,
        in_relevance: Float64[Tensor, "*b r"],
        in_linear: Float64[Tensor, "*b r"],
        in_alpha: Float64[Tensor, "*b"],
        in_noise: Float64[Tensor, "*b"],
    ) -> Float64[Tensor, "*b h"]:
        """Derivatives in all hyper-parameters from those in log a, log linear, log alpha and log noise."""
        log_std = self.objective.std.log()
        shape = [
            -in_relevance.sum(-1),
            -(in_relevance @ log_std),
            in_alpha,
            0.5 * in_linear.sum(-1),
            -(in_linear @ log_std),
            in_noise,
        ]
        return torch.cat([torch.stack(shape, dim=-1), in_relevance], dim=-1)


def _matrices(covariance: Covariance, centred: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The stationary part of k, its derivative in squared distances without the diagonal, and that in log alpha."""
    if covariance.stationary is None:
        return centred.new_zeros(len(centred), len(centred)), None, None
    scaled = centred * covariance.relevance
    kernel, slopes, in_alpha = _with_slopes(covariance.stationary, squared_distances(scaled, scaled), covariance.alpha)
    return kernel, slopes.fill_diagonal_(0.0), in_alpha


def _with_slopes(name: str, squares: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """A stationary kernel k, its derivative in squared distances, and that in log alpha if it has one; no graph is kept."""
    if name == "rational_quadratic":
        ratio = squares / (2.0 * alpha)
        logs, above = ratio.log1p(), ratio + 1.0
        kernel = (-alpha * logs).exp_()
        slope = kernel / above
        in_alpha = ratio.mul_(slope).sub_(logs.mul_(kernel)).mul_(alpha)
        return kernel, slope.mul_(-0.5), in_alpha
    if name == "rbf":
        kernel = (-0.5 * squares).exp_()
        return kernel, -0.5 * kernel, None
    order = SMOOTHNESS[name]
    distances = (2.0 * order * squares).clamp_min_(LEAST_SQUARE).sqrt_()
    decay = (-distances).exp()
    if order == 0.5:
        return decay, -0.5 * decay / distances, None
    if order == 1.5:
        return (1.0 + distances) * decay, -1.5 * decay, None
    linear = (1.0 + distances) * decay
    return linear + distances.square() * decay / 3.0, (-5.0 / 6.0) * linear, None


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
    """The search for the hyper-parameters of f processes, those of [`Objective`][probneural.heads.kernel.search.Objective].

    Args:
        kernel: One of `KERNELS`.
        points: Training coordinates, `(n, r)`.
        std: Their standard deviations, `(r,)`.
        values: Training values, `(n, f)`, of about unit size.
        min_noise: The least noise variance, in units of the mean prior variance.
        iterations: Of the optimiser on all pairs, at most.
        like: Hyper-parameters of other processes that these may resemble, to start from as well.
    """

    kernel: str
    points: Float64[Tensor, "n r"]
    std: Float64[Tensor, " r"]
    values: Float64[Tensor, "n f"]
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
        relevances = self.kernel != "linear"
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
