"""Gaussian processes from a few coordinates to a few others, with a kernel that they share, and their evidence."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from probneural.errors import ArgumentError

STATIONARY = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
"""Kernels that depend on a distance between inputs."""
KERNELS = (*STATIONARY, "linear", *(f"{name}+linear" for name in STATIONARY))
"""All kernels."""
SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Matérn's ν."""

_CHUNK = 2**22
"""Entries of a matrix between queries and training inputs held at once (32 MiB)."""
_LEAST_SQUARE = 1e-30
"""Of squared distances under a root, which has no derivative at zero; dimensionless."""
_JITTER = 1e-13
"""Fraction of the prior variance that joint posterior covariances are known to, by rounding."""
LEAST_NOISE = 1e-12
"""Of the noise, in units of the mean prior variance: what a Cholesky factorisation in double precision still resolves."""
_LARGEST_NOISE = math.exp(5.0)
"""The same, at most."""
_SUBSETS = (256, 512)
"""Pairs from which the search for hyper-parameters starts, and those from which relevances are learned first."""
_LARGEST = 2048
"""The most pairs to learn hyper-parameters from."""
_STARTS = tuple((exponent, length, noise) for exponent in (0.0, 0.5, 1.0) for length, noise in ((1.0, -12.0), (0.3, -5.0)))


@dataclass(frozen=True, eq=False)
class Covariance:
    """The covariance k(z, z') between coordinates of two inputs, at unit amplitude.

    A stationary kernel of the distance |relevance * (z - z')|, plus the linear kernel sum over j of linear_j² z_j z'_j.

    Args:
        kernel: One of `KERNELS`.
        relevance: Inverse length scales, `(r,)`.
        linear: Prior standard deviations of linear coefficients, `(r,)`.
        alpha: Shape of the rational quadratic kernel (1 + d² / 2α)^-α, a number `()`.

    Examples:
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> Covariance("matern12+linear", one, one, one[0])(one[:, None], 3.0 * one[:, None]).item()  # exp(-2) + 1 * 3
        3.1353...
    """

    kernel: str
    relevance: Float64[Tensor, " r"]
    linear: Float64[Tensor, " r"]
    alpha: Float64[Tensor, ""]

    def __post_init__(self) -> None:
        """Check the kernel's name."""
        if self.kernel not in KERNELS:
            raise ArgumentError(expected=f"one of {', '.join(KERNELS)}", got=repr(self.kernel), remedy="name a kernel")

    @property
    def stationary(self) -> str | None:
        """The part that depends on a distance."""
        name = self.kernel.partition("+")[0]
        return name if name in STATIONARY else None

    @property
    def has_linear_part(self) -> bool:
        """Whether there is the linear kernel."""
        return self.kernel.endswith("linear")

    def __call__(self, left: Float64[Tensor, "a r"], right: Float64[Tensor, "b r"]) -> Float64[Tensor, "a b"]:
        """The covariance matrix of two sets of coordinates, differentiable in both and in the hyper-parameters."""
        total = left.new_zeros(len(left), len(right))
        if self.has_linear_part:
            total = total + (left * self.linear) @ (right * self.linear).mT
        if self.stationary is not None and total.numel():
            scaled = left * self.relevance
            squares = _squared_distances(scaled, scaled if right is left else right * self.relevance)
            total = total + _stationary(self.stationary, squares, self.alpha)
        return total

    def diagonal(self, points: Float64[Tensor, "a r"]) -> Float64[Tensor, " a"]:
        """The variances k(z, z)."""
        squares = (points * self.linear).square().sum(1) if self.has_linear_part else points.new_zeros(len(points))
        return squares + (1.0 if self.stationary is not None else 0.0)


def _stationary(name: str, squares: Tensor, alpha: Tensor) -> Tensor:
    """A stationary kernel of squared distances in units of the length scale."""
    if name == "rbf":
        return (-0.5 * squares).exp()
    if name == "rational_quadratic":
        return (-alpha * (squares / (2.0 * alpha)).log1p()).exp()
    order = SMOOTHNESS[name]
    distances = (2.0 * order * squares).clamp_min(_LEAST_SQUARE).sqrt()
    decay = (-distances).exp()
    if order == 0.5:
        return decay
    if order == 1.5:
        return (1.0 + distances) * decay
    return (1.0 + distances + distances.square() / 3.0) * decay


def _stationary_slopes(name: str, squares: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
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
    distances = (2.0 * order * squares).clamp_min_(_LEAST_SQUARE).sqrt_()
    decay = (-distances).exp()
    if order == 0.5:
        return decay, -0.5 * decay / distances, None
    if order == 1.5:
        return (1.0 + distances) * decay, -1.5 * decay, None
    linear = (1.0 + distances) * decay
    return linear + distances.square() * decay / 3.0, (-5.0 / 6.0) * linear, None


def _squared_distances(left: Float64[Tensor, "a r"], right: Float64[Tensor, "b r"]) -> Float64[Tensor, "a b"]:
    """|z - z'|² as one matrix product, |z|² - 2 z z' + |z'|² about the mean; zero from a set of points to itself.

    Distances below some 1e-8 of the points' extent are rounding.
    """
    centre = left.detach().mean(0)
    first = left - centre
    second = first if right is left else right - centre
    norms, others = first.square().sum(1, keepdim=True), second.square().sum(1, keepdim=True)
    columns = torch.cat([-2.0 * first, norms, torch.ones_like(norms)], dim=1)
    squares = columns @ torch.cat([second, torch.ones_like(others), others], dim=1).mT
    if right is left:
        squares.fill_diagonal_(0.0)
    return squares.clamp_min(0.0)


@dataclass(frozen=True, eq=False)
class Process:
    """Independent Gaussian processes f_k ~ N(0, amplitude_k² (k + nugget δ)) given training values, all of one kernel.

    Args:
        covariance: k.
        nugget: Variance of the noise in units of amplitude², dimensionless.
        points: Training coordinates, `(n, r)`.
        values: Training values, `(n, f)`.
        amplitude: `(f,)`, in the units of the values.
    """

    covariance: Covariance
    nugget: float
    points: Float64[Tensor, "n r"]
    values: Float64[Tensor, "n f"]
    amplitude: Float64[Tensor, " f"]

    def __post_init__(self) -> None:
        """Check the nugget: with another one no matrix can be factorised."""
        if not 0.0 <= self.nugget < math.inf:
            raise ArgumentError(expected="a finite nugget >= 0", got=repr(self.nugget), remedy="it is a variance")

    @cached_property
    def factor(self) -> Float64[Tensor, "n n"]:
        """Cholesky factor of k + nugget at the training points."""
        with torch.inference_mode(False), torch.no_grad():
            return _factor(self.covariance(self.points, self.points), self.nugget)

    @cached_property
    def multipliers(self) -> Float64[Tensor, "n f"]:
        """(k + nugget)^-1 values."""
        with torch.inference_mode(False), torch.no_grad():
            return torch.cholesky_solve(self.values, self.factor)

    def scaled(self, units: Float64[Tensor, " f"]) -> Process:
        """The processes in other units: values and amplitudes times a factor each."""
        return replace(self, values=self.values * units, amplitude=self.amplitude * units)

    def fingerprint(self) -> tuple[Tensor, ...]:
        """The tensors that it follows from."""
        covariance = self.covariance
        nugget = torch.tensor(self.nugget, dtype=torch.float64, device="cpu")
        tensors = (self.points, self.values, self.amplitude, nugget)
        return (*tensors, covariance.relevance, covariance.linear, covariance.alpha)

    def mean(self, queries: Float64[Tensor, "m r"]) -> Float64[Tensor, "m f"]:
        """The posterior mean, a few queries at a time."""
        parts = [self.covariance(part, self.points) @ self.multipliers for part in queries.split(self._step)]
        return torch.cat(parts)

    def variance(self, queries: Float64[Tensor, "m r"]) -> Float64[Tensor, " m"]:
        """The posterior variances at unit amplitude, a few queries at a time."""
        parts = []
        for part in queries.split(self._step):
            explained = self._whitened(part).square().sum(0)
            prior = self.covariance.diagonal(part)
            parts.append((prior - explained).clamp_min(0.0) + _JITTER * prior)
        return torch.cat(parts)

    def joint_factor(self, queries: Float64[Tensor, "m r"]) -> Float64[Tensor, "m m"]:
        """A triangular root of the joint posterior covariance at unit amplitude; its row squares are the variances."""
        whitened = self._whitened(queries)
        joint = self.covariance(queries, queries) - whitened.mT @ whitened
        prior = self.covariance.diagonal(queries)
        jitter = _JITTER
        while True:
            root, failed = torch.linalg.cholesky_ex(joint + (jitter * prior).diag())
            if not bool(failed):
                break
            jitter *= 10.0
        exact = self.variance(queries)
        return root * (exact / root.square().sum(1)).sqrt()[:, None]

    def _whitened(self, queries: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.factor, self.covariance(self.points, queries), upper=False)

    @property
    def _step(self) -> int:
        return max(1, _CHUNK // len(self.points))


def _factor(matrix: Tensor, nugget: float) -> Tensor:
    """Cholesky factor of a covariance matrix plus a multiple of the identity, which grows if rounding asks for it."""
    while True:
        root, failed = torch.linalg.cholesky_ex(_noisy(matrix, nugget))
        if not bool(failed):
            return root
        nugget = 10.0 * max(nugget, LEAST_NOISE * float(matrix.diagonal().mean()))


@dataclass(frozen=True)
class Fitted:
    """Processes with the hyper-parameters of greatest evidence.

    Attributes:
        process: The processes.
        log_evidence: Of all training values, in nats.
        converged: Whether the optimiser met its tolerance.
        evaluations: Of the evidence, on all pairs that hyper-parameters were learned from.
        vector: The hyper-parameters, as the search has them.
    """

    process: Process
    log_evidence: float
    converged: bool
    evaluations: int
    vector: NDArray[np.float64]


@torch.no_grad()
def log_evidence(
    matrix: Float64[Tensor, "n n"], values: Float64[Tensor, "n f"]
) -> tuple[float, Float64[Tensor, " f"], Float64[Tensor, "n n"]] | None:
    """Log evidence of f processes, each at its best amplitude, these amplitudes, and the gradient in C; None if C is singular.

    With C the covariance matrix at unit amplitude, noise included: amplitude_k² = y_k^T C^-1 y_k / n, and the evidence is
    -(1/2) sum over k of (n log(2 pi e amplitude_k²) + log det C), in nats.

    Args:
        matrix: C.
        values: y.
    """
    root, failed = torch.linalg.cholesky_ex(matrix)
    if bool(failed):
        return None
    inverse = torch.cholesky_inverse(root)
    solved = inverse @ values
    squares = (values * solved).mean(0)
    if not bool((squares > 0).all()):
        return None
    count, outputs = values.shape
    total = count * (squares.log() + 1.0 + math.log(2.0 * math.pi)).sum() + 2.0 * outputs * root.diagonal().log().sum()
    gradient = (solved / squares) @ solved.mT - outputs * inverse
    return -0.5 * float(total), squares.sqrt(), 0.5 * gradient


@dataclass(frozen=True, eq=False)
class Search:
    """The search for the hyper-parameters of f processes.

    Inverse length scales are exp(-length) * spread_j^-exponent * exp(relevance_j): an exponent of 0 measures the distance of
    two input functions in L2, an exponent of 1 that of whitened coordinates. Log relevances have a standard normal hyper-prior.

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
    like: NDArray[np.float64] | None = None

    def run(self) -> Fitted:
        """Maximise the evidence: from six starts on few pairs, then, against a mostly linear start, on more, then on all."""
        starts = [] if self.like is None else [self.like]
        for exponent, length, noise in _STARTS:
            typical = float((self.points * self.std**-exponent).square().sum(1).mean().log()) / 2.0
            start = np.zeros(6 + len(self.std))
            start[:6] = typical + length, exponent, 0.0, -4.0, 0.0, noise
            starts.append(start)
        results = [self._maximise(start, pairs=_SUBSETS[0], relevances=False, iterations=10) for start in starts]
        best = min(results, key=lambda result: float(result.fun))
        best = self._maximise(best.x, pairs=_SUBSETS[0], relevances=False, iterations=30)
        relevances = self.learns_relevances and self.kernel != "linear"
        if len(self.points) > _SUBSETS[0]:
            rivals = [self._maximise(best.x, pairs=_SUBSETS[1], relevances=relevances, iterations=60)]
            if "+linear" in self.kernel:  # few pairs hide a linear map in many coordinates, and its optimum lies far away
                linear = self._mostly_linear(best.x)
                rivals.append(self._maximise(linear, pairs=_SUBSETS[1], relevances=False, iterations=30))
            best = min(rivals, key=lambda result: float(result.fun))
        best = self._maximise(best.x, pairs=_LARGEST, relevances=relevances, iterations=self.iterations)
        covariance, nugget = self._unpacked(torch.from_numpy(best.x).to(self.points.device), self.points)
        matrix, size = covariance(self.points, self.points), float(nugget)
        while (result := log_evidence(_noisy(matrix, size), self.values)) is None:  # more pairs than were learned from
            size *= 10.0
        process = Process(covariance, size, self.points, self.values, result[1])
        return Fitted(process, result[0], bool(best.success), int(best.nfev), best.x)

    def _mostly_linear(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """The same processes with a linear part that outweighs the rest, as strong along all coordinates, and some noise."""
        moved = vector.copy()
        moved[3:6] = 6.0 - float(self.points.square().sum(1).mean().log()), 0.0, -5.0
        return moved

    def _unpacked(self, vector: Tensor, points: Tensor) -> tuple[Covariance, Tensor]:
        length, exponent, alpha, weight, slope, noise = vector[:6]
        decay = self.std.log()
        covariance = Covariance(
            kernel=self.kernel,
            relevance=(vector[6:] - length - exponent * decay).exp(),
            linear=(0.5 * weight - slope * decay).exp(),
            alpha=alpha.exp(),
        )
        return covariance, noise.exp() * covariance.diagonal(points).mean()

    def _maximise(self, start: NDArray[np.float64], *, pairs: int, relevances: bool, iterations: int) -> Any:
        from scipy.optimize import minimize  # costs a third of a second to import

        count = min(pairs, len(self.points))
        rows = torch.linspace(0, len(self.points) - 1, count, dtype=torch.float64).round().long().to(self.points.device)
        points, values = self.points[rows], self.values[rows]
        centre = float(start[0])
        varies = (
            self.kernel != "linear",
            self.kernel != "linear",
            self.kernel.startswith("rational"),
            "+linear" in self.kernel,
            self.kernel.endswith("linear"),
        )
        ranges = ((centre - 8.0, centre + 8.0), (-1.5, 2.0), (-4.0, 4.0), (-25.0, 25.0), (-1.5, 2.0))
        bounds = [span if free else (value, value) for span, free, value in zip(ranges, varies, start, strict=False)]
        bounds += [(math.log(self.min_noise), math.log(_LARGEST_NOISE))]
        bounds += [(-8.0, 4.0) if relevances else (value, value) for value in start[6:]]
        objective: Callable[..., Any] = partial(self._objective, points=points, values=values)
        return minimize(
            objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": iterations, "ftol": 1e-6, "gtol": 1e-4, "maxcor": 40},
        )

    @torch.no_grad()
    def _objective(self, numbers: NDArray[np.float64], *, points: Tensor, values: Tensor) -> tuple[float, NDArray[np.float64]]:
        """Minus log evidence and log hyper-prior, per value, and the gradient: sums over entries of C, times those of G.

        With G the gradient of the evidence in C = k + nugget, k' the derivative of the kernel in squared distances, H = G * k'
        entry by entry and h = H 1, for points z and relevances a,

            d / d log a_j = 4 a_j² (sum over i of h_i z_ij² - (Zᵀ H Z)_jj),   d / d log linear_j = 2 linear_j² (Zᵀ G Z)_jj,

        and the nugget, which is a multiple of the mean diagonal of k, adds to the second.
        """
        vector = torch.from_numpy(numbers).to(points.device)
        covariance, nugget = self._unpacked(vector, points)
        centred = points - points.mean(0)
        name, slopes, in_alpha = covariance.stationary, None, None
        if name is not None:
            scaled = centred * covariance.relevance
            matrix, slopes, in_alpha = _stationary_slopes(name, _squared_distances(scaled, scaled), covariance.alpha)
        else:
            matrix = points.new_zeros(len(points), len(points))
        if covariance.has_linear_part:
            moved = points * covariance.linear
            matrix.addmm_(moved, moved.mT)
        matrix.diagonal().add_(nugget)
        value = log_evidence(matrix, values)
        if value is None:
            return 1e10, np.zeros_like(numbers)
        log_std, gradient = self.std.log(), vector.new_zeros(len(vector))
        in_nugget = value[2].diagonal().sum()
        gradient[5] = in_nugget * nugget
        if covariance.has_linear_part:
            squares = (points * (value[2] @ points)).sum(0) + in_nugget * vector[5].exp() * points.square().mean(0)
            in_linear = 2.0 * covariance.linear.square() * squares
            gradient[3], gradient[4] = 0.5 * in_linear.sum(), -(log_std * in_linear).sum()
        if slopes is not None:
            if in_alpha is not None:
                gradient[2] = (value[2] * in_alpha).sum()
            weights = slopes.mul_(value[2]).fill_diagonal_(0.0)
            products = torch.cat([centred, centred.new_ones(len(centred), 1)], dim=1)
            products = weights @ products
            spread = (centred.square() * products[:, -1:]).sum(0) - (centred * products[:, :-1]).sum(0)
            in_relevance = 4.0 * covariance.relevance.square() * spread
            gradient[0], gradient[1] = -in_relevance.sum(), -(log_std * in_relevance).sum()
            gradient[6:] = in_relevance
        gradient[6:] -= vector[6:]
        total = 0.5 * float(vector[6:].square().sum()) - value[0]
        return total / values.numel(), -gradient.cpu().numpy() / values.numel()


def _noisy(matrix: Tensor, nugget: Tensor | float) -> Tensor:
    return matrix + nugget * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
