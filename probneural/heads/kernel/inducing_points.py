"""Gaussian processes whose posterior is a function of values at few inducing points, for more pairs than can be factorised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import ArgumentError
from probneural.heads.kernel.gaussian_processes import JITTER, LEAST_NOISE, Covariance, rows_of_variance, triangular_root
from probneural.registry import stored

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
        if not 0.0 < self.nugget < math.inf:
            raise ArgumentError(expected="a finite nugget > 0", got=repr(self.nugget), remedy="it is a variance")

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

    def joint_factor(self, queries: Float64[Tensor, "q r"]) -> Float64[Tensor, "q q"]:
        """A triangular root of the joint posterior covariance at unit amplitude; its row squares are the variances."""
        whitened = self._whitened(queries)
        left = self._shrunk(whitened)
        joint = self.covariance(queries, queries) - whitened.mT @ whitened + left.mT @ left
        prior = float(self.covariance.diagonal(queries).mean())
        root = triangular_root(joint, JITTER * prior if prior > 0.0 else 1.0)
        return rows_of_variance(root, self.variance(queries))

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
