"""Gaussian processes from a few coordinates to a few others, with a kernel that they share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_choice, check_positive, check_real
from probneural.errors import DataError
from probneural.registry import stored

STATIONARY = ("rbf", "matern12", "matern32", "matern52", "rational_quadratic")
"""Kernels that depend on a distance between inputs."""
KERNELS = (*STATIONARY, "linear", *(f"{name}+linear" for name in STATIONARY))
"""All kernels."""
SMOOTHNESS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Matérn's ν."""

_CHUNK = 2**22
"""Entries of a matrix between queries and training inputs held at once (32 MiB)."""
LEAST_SQUARE = 1e-30
"""Of squared distances under a root, which has no derivative at zero; dimensionless."""
JITTER = 1e-13
"""Fraction of the prior variance that joint posterior covariances are known to, by rounding."""
_KNOWN = 1e-200
"""Fraction of the largest prior variance below which a value counts as known: a linear function of zero is zero."""
TRIES = 20
"""Powers of ten of jitter that are tried: the last are larger than any covariance asks for."""
LEAST_NOISE = 1e-12
"""Of the noise, in units of the mean prior variance: what a Cholesky factorisation in double precision still resolves."""


@stored()
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
        check_choice(self.kernel, KERNELS, "kernel")

    @property
    def stationary(self) -> str | None:
        """The part that depends on a distance."""
        name = self.kernel.partition("+")[0]
        return name if name in STATIONARY else None

    @property
    def has_linear_part(self) -> bool:
        """Whether there is the linear kernel."""
        return self.kernel.endswith("linear")

    def __call__(self, left: Float64[Tensor, "*t a r"], right: Float64[Tensor, "*t b r"]) -> Float64[Tensor, "*t a b"]:
        """The covariance matrix of two sets of coordinates, differentiable in both and in the hyper-parameters."""
        total = left.new_zeros(*left.shape[:-1], right.shape[-2])
        if self.has_linear_part:
            total = total + (left * self.linear) @ (right * self.linear).mT
        if self.stationary is not None and total.numel():
            scaled = left * self.relevance
            squares = squared_distances(scaled, scaled if right is left else right * self.relevance)
            total = total + _stationary(self.stationary, squares, self.alpha)
        return total

    def diagonal(self, points: Float64[Tensor, "*t a r"]) -> Float64[Tensor, "*t a"]:
        """The variances k(z, z)."""
        squares = (points * self.linear).square().sum(-1) if self.has_linear_part else points.new_zeros(points.shape[:-1])
        return squares + (1.0 if self.stationary is not None else 0.0)


def _stationary(name: str, squares: Tensor, alpha: Tensor) -> Tensor:
    """A stationary kernel of squared distances in units of the length scale."""
    if name == "rbf":
        return (-0.5 * squares).exp()
    if name == "rational_quadratic":
        return (-alpha * (squares / (2.0 * alpha)).log1p()).exp()
    order = SMOOTHNESS[name]
    distances = (2.0 * order * squares).clamp_min(LEAST_SQUARE).sqrt()
    decay = (-distances).exp()
    if order == 0.5:
        return decay
    if order == 1.5:
        return (1.0 + distances) * decay
    return (1.0 + distances + distances.square() / 3.0) * decay


def squared_distances(left: Float64[Tensor, "*t a r"], right: Float64[Tensor, "*t b r"]) -> Float64[Tensor, "*t a b"]:
    """|z - z'|² as one matrix product, |z|² - 2 z z' + |z'|² about the mean; zero from a set of points to itself.

    Distances below some 1e-8 of the points' extent are rounding.
    """
    centre = left.detach().mean(-2, keepdim=True)
    first = left - centre
    second = first if right is left else right - centre
    norms, others = first.square().sum(-1, keepdim=True), second.square().sum(-1, keepdim=True)
    columns = torch.cat([-2.0 * first, norms, torch.ones_like(norms)], dim=-1)
    squares = columns @ torch.cat([second, torch.ones_like(others), others], dim=-1).mT
    if right is left:
        squares.diagonal(dim1=-2, dim2=-1).zero_()
    return squares.clamp_min(0.0)


@stored()
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
        check_real(self.nugget, "nugget", least=0.0)

    @cached_property
    def factor(self) -> Float64[Tensor, "n n"]:
        """Cholesky factor of k + nugget at the training points."""
        with torch.inference_mode(False), torch.no_grad():
            return triangular_root(self.covariance(self.points, self.points), self.nugget)

    @cached_property
    def multipliers(self) -> Float64[Tensor, "n f"]:
        """(k + nugget)^-1 values."""
        with torch.inference_mode(False), torch.no_grad():
            return torch.cholesky_solve(self.values, self.factor)

    @property
    def basis(self) -> Float64[Tensor, "n r"]:
        """Points whose kernels the mean is a sum of."""
        return self.points

    def correction(self, prior: Callable[[Tensor], Tensor], normal: Callable[..., Tensor]) -> Float64[Tensor, "n f"]:
        """Multipliers of the kernels that make a posterior draw of one from the prior.

        Args:
            prior: The draw, at any points.
            normal: Standard normal numbers of a shape.
        """
        noise = math.sqrt(self.nugget) * self.amplitude * normal(*self.values.shape)
        return torch.cholesky_solve(self.values - prior(self.points) - noise, self.factor)

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
            parts.append((prior - explained).clamp_min(0.0) + JITTER * prior)
        return torch.cat(parts)

    def joint_factor(self, queries: Float64[Tensor, "*t m r"]) -> Float64[Tensor, "*t m m"]:
        """A triangular root of the joint posterior covariance at unit amplitude; its row squares are the variances."""
        whitened = _in_batches(self._whitened(queries.flatten(0, -2)), queries)
        joint = self.covariance(queries, queries) - whitened.mT @ whitened
        variance = self.variance(queries.flatten(0, -2)).view(queries.shape[:-1])
        return _posterior_root(joint, self.covariance.diagonal(queries), variance)

    def _whitened(self, queries: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self.factor, self.covariance(self.points, queries), upper=False)

    @property
    def _step(self) -> int:
        return max(1, _CHUNK // len(self.points))


def triangular_root(matrix: Float64[Tensor, "n n"], nugget: float) -> Float64[Tensor, "n n"]:
    """Cholesky factor of a covariance matrix plus a multiple of the identity, which grows if rounding asks for it."""
    for _ in range(TRIES):
        root, failed = torch.linalg.cholesky_ex(with_noise(matrix, nugget))
        if not bool(failed):
            return root
        nugget = 10.0 * max(nugget, LEAST_NOISE * float(matrix.diagonal().mean()))
    raise no_root()


def _in_batches(columns: Float64[Tensor, "n tm"], queries: Float64[Tensor, "*t m r"]) -> Float64[Tensor, "*t n m"]:
    """Columns that belong to queries, in the batches of those."""
    return columns.unflatten(1, queries.shape[:-1]).movedim(0, -2)


def _posterior_root(
    joint: Float64[Tensor, "*t m m"], prior: Float64[Tensor, "*t m"], variances: Float64[Tensor, "*t m"]
) -> Float64[Tensor, "*t m m"]:
    """A triangular root of covariances, each with the jitter that it takes; its row squares are the variances, or zero."""
    is_known = prior <= _KNOWN * prior.amax(-1, keepdim=True)
    size = torch.full_like(prior[..., :1], JITTER)
    for _ in range(TRIES):
        root, failed = torch.linalg.cholesky_ex(joint + torch.where(is_known, 1.0, size * prior).diag_embed())
        if not bool(failed.any()):
            is_uncertain = variances > 0  # elsewhere a standard deviation has no derivative
            scale = (torch.where(is_uncertain, variances, 1.0) / root.square().sum(-1)).sqrt()
            return root * torch.where(is_uncertain, scale, 0.0)[..., None]
        size = torch.where(failed[..., None] > 0, 10.0 * size, size)
    raise no_root()


def no_root() -> DataError:
    """What is raised where no jitter helps."""
    return DataError(
        expected="coordinates whose covariance has a Cholesky factor",
        got="one that has none with a jitter as large as its variances",
        remedy="look for inputs that are not finite, or far larger than the training inputs",
    )


def with_noise(matrix: Float64[Tensor, "n n"], nugget: float) -> Float64[Tensor, "n n"]:
    """A covariance matrix plus a multiple of the identity."""
    return matrix + nugget * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


_CHUNK = 2**22
"""Entries of a matrix between pairs, or queries, and inducing points held at once (32 MiB)."""
_GROWTH = math.e
"""Factor between the noise variances that are tried."""
_NOISES = 40
"""How many of them at most."""


@stored()
@dataclass(frozen=True, eq=False)
class InducingProcess:
    """Independent Gaussian processes f_k ~ N(0, amplitude_k² k) given noisy values, seen through their values at m points Z.

    With k(Z, Z) = L Lᵀ and V = L⁻¹ k(Z, X) for the training inputs X, the whitened values L⁻¹ f(Z) are normal with mean
    (nugget + V Vᵀ)⁻¹ V y and covariance nugget (nugget + V Vᵀ)⁻¹, in units of the amplitude: the best Gaussian posterior of
    this form. Training costs n m² operations, a prediction m². Away from Z the prior's variance stays, and the noise takes what
    the points leave out, so the posterior is wide. Of smooth maps without noise, pairs beyond the points tell little.

    Args:
        covariance: k.
        nugget: Variance of the noise in units of amplitude², dimensionless.
        inducing: Z, `(m, r)`.
        gram: V Vᵀ, `(m, m)`.
        projected: V y, `(m, f)`, in the units of the values.
        amplitude: `(f,)`, in the units of the values.

    Reference:
        Titsias (2009), Variational learning of inducing variables in sparse Gaussian processes, equations 6 and 10.
    """

    covariance: Covariance
    nugget: float
    inducing: Float64[Tensor, "m r"]
    gram: Float64[Tensor, "m m"]
    projected: Float64[Tensor, "m f"]
    amplitude: Float64[Tensor, " f"]

    def __post_init__(self) -> None:
        """Check the nugget."""
        check_positive(self.nugget, "nugget")

    @classmethod
    @torch.no_grad()
    def fitted(
        cls,
        covariance: Covariance,
        *,
        nugget: float,
        points: Float64[Tensor, "n r"],
        values: Float64[Tensor, "n f"],
        count: int,
    ) -> tuple[InducingProcess, float]:
        """Condition on training values, with `count` of the training inputs, evenly spread, as inducing points.

        The amplitudes, and the noise from `nugget` upwards, maximise the bound

            -(1/2) sum over k of (n log(2 pi e amplitude_k²) + log det(Q + nugget) + tr(k - Q) / nugget),   Q = Vᵀ V,

        of the log evidence. The noise takes what the inducing points leave out.

        Returns:
            The processes, and the bound in nats.
        """
        rows = torch.linspace(0, len(points) - 1, count, dtype=torch.float64).round().long().to(points.device)
        inducing = points[rows]
        root = _root(covariance, inducing)
        gram, projected = points.new_zeros(count, count), values.new_zeros(count, values.shape[1])
        step = max(1, _CHUNK // count)
        for some, targets in zip(points.split(step), values.split(step), strict=True):
            part = torch.linalg.solve_triangular(root, covariance(inducing, some), upper=False)
            gram.addmm_(part, part.mT)
            projected.addmm_(part, targets)
        squares, left_out = values.square().sum(0), covariance.diagonal(points).sum() - gram.diagonal().sum()
        tried: list[tuple[float, Tensor, float]] = []
        for number in range(_NOISES):
            noise = nugget * _GROWTH**number
            lower = triangular_root(gram, noise)
            along = torch.linalg.solve_triangular(lower, projected, upper=False).square().sum(0)
            amplitude = ((squares - along) / (noise * len(points))).clamp_min(torch.finfo(squares.dtype).tiny).sqrt()
            log_determinant = (len(points) - count) * math.log(noise) + 2.0 * float(lower.diagonal().log().sum())
            normal = len(points) * float((2.0 * amplitude.log() + 1.0 + math.log(2.0 * math.pi)).sum())
            loss = normal + values.shape[1] * (log_determinant + max(float(left_out), 0.0) / noise)
            tried.append((-0.5 * loss, amplitude, noise))
            if number > 1 and tried[-1][0] < tried[-2][0] < tried[-3][0]:
                break
        bound, amplitude, noise = max(tried, key=lambda one: one[0])
        return cls(covariance, noise, inducing, gram, projected, amplitude), bound

    @property
    def basis(self) -> Float64[Tensor, "m r"]:
        """Points whose kernels the mean is a sum of."""
        return self.inducing

    @cached_property
    def multipliers(self) -> Float64[Tensor, "m f"]:
        """What the kernels are multiplied with in the mean."""
        with torch.inference_mode(False), torch.no_grad():
            return self._unwhitened(torch.cholesky_solve(self.projected, self._posterior_root))

    def scaled(self, units: Float64[Tensor, " f"]) -> InducingProcess:
        """The processes in other units: values and amplitudes times a factor each."""
        return replace(self, projected=self.projected * units, amplitude=self.amplitude * units)

    def fingerprint(self) -> tuple[Tensor, ...]:
        """The tensors that it follows from."""
        covariance = self.covariance
        nugget = torch.tensor(self.nugget, dtype=torch.float64, device="cpu")
        tensors = (self.inducing, self.gram, self.projected, self.amplitude, nugget)
        return (*tensors, covariance.relevance, covariance.linear, covariance.alpha)

    def mean(self, queries: Float64[Tensor, "q r"]) -> Float64[Tensor, "q f"]:
        """The posterior mean, a few queries at a time."""
        return torch.cat([self.covariance(part, self.inducing) @ self.multipliers for part in queries.split(self._step)])

    def variance(self, queries: Float64[Tensor, "q r"]) -> Float64[Tensor, " q"]:
        """The posterior variances at unit amplitude, a few queries at a time."""
        parts = []
        for part in queries.split(self._step):
            whitened = self._whitened(part)
            prior = self.covariance.diagonal(part)
            missing = (prior - whitened.square().sum(0)).clamp_min(0.0)
            parts.append(missing + self._shrunk(whitened).square().sum(0) + JITTER * prior)
        return torch.cat(parts)

    def joint_factor(self, queries: Float64[Tensor, "*t q r"]) -> Float64[Tensor, "*t q q"]:
        """A triangular root of the joint posterior covariance at unit amplitude; its row squares are the variances."""
        columns = self._whitened(queries.flatten(0, -2))
        whitened, shrunk = _in_batches(columns, queries), _in_batches(self._shrunk(columns), queries)
        joint = self.covariance(queries, queries) - whitened.mT @ whitened + shrunk.mT @ shrunk
        variance = self.variance(queries.flatten(0, -2)).view(queries.shape[:-1])
        return _posterior_root(joint, self.covariance.diagonal(queries), variance)

    def correction(self, prior: Callable[[Tensor], Tensor], normal: Callable[..., Tensor]) -> Float64[Tensor, "m f"]:
        """Multipliers of the kernels that make a posterior draw of one from the prior.

        Args:
            prior: The draw, at any points.
            normal: Standard normal numbers of a shape.
        """
        noise = math.sqrt(self.nugget) * self.amplitude * normal(*self.projected.shape)
        drawn = torch.cholesky_solve(self.projected, self._posterior_root)
        drawn = drawn + torch.linalg.solve_triangular(self._posterior_root.mT, noise, upper=True)
        at_points = torch.linalg.solve_triangular(self._prior_root, prior(self.inducing), upper=False)
        return self._unwhitened(drawn - at_points)

    @cached_property
    def _prior_root(self) -> Float64[Tensor, "m m"]:
        """L."""
        with torch.inference_mode(False), torch.no_grad():
            return _root(self.covariance, self.inducing)

    @cached_property
    def _posterior_root(self) -> Float64[Tensor, "m m"]:
        """Cholesky factor of nugget + V Vᵀ."""
        with torch.inference_mode(False), torch.no_grad():
            return triangular_root(self.gram, self.nugget)

    def _whitened(self, queries: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self._prior_root, self.covariance(self.inducing, queries), upper=False)

    def _shrunk(self, whitened: Tensor) -> Tensor:
        """Columns whose squares are what is still unknown of the inducing values."""
        return math.sqrt(self.nugget) * torch.linalg.solve_triangular(self._posterior_root, whitened, upper=False)

    def _unwhitened(self, whitened: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self._prior_root.mT, whitened, upper=True)

    @property
    def _step(self) -> int:
        return max(1, _CHUNK // len(self.inducing))


def _root(covariance: Covariance, points: Tensor) -> Tensor:
    """Cholesky factor of the covariance at some points, with as much noise as double precision asks for."""
    matrix = covariance(points, points)
    return triangular_root(matrix, LEAST_NOISE * float(matrix.diagonal().mean()))
