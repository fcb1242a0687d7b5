"""Exact posteriors of inverse problems: Gaussian ones in closed form, others on a tensor quadrature.

All have moments, evidence, independent draws, and marginal distribution functions for simulation-based calibration.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy
import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.randomness import stream

EDGE = 1e-14
"""Largest density at the border of a quadrature, relative to its maximum."""
ROUGH_NODES = 12
"""Nodes per parameter on which the box of a quadrature is looked for."""

LogDensity = Callable[[Tensor], Tensor]
"""Logarithms `(n,)` of a density at parameters `(n, d)`."""


class Posterior(ABC):
    """A distribution of parameters given data; abstract.

    Attributes:
        mean: `(d,)`.
        covariance: `(d, d)`.
        log_evidence: Logarithm of the density of the data, in nats.
    """

    mean: Float64[Tensor, " d"]
    covariance: Float64[Tensor, "d d"]
    log_evidence: float

    @abstractmethod
    def sample(self, n: int, seed: int) -> Float64[Tensor, "n d"]:
        """Independent draws."""

    @abstractmethod
    def cdf(self, theta: Float64[Tensor, " d"]) -> Float64[Tensor, " d"]:
        """The marginal distribution function of each parameter: uniform over data sets, if `theta` is the truth."""


@dataclass(frozen=True, eq=False)
class GaussianPosterior(Posterior):
    """A Gaussian distribution."""

    mean: Float64[Tensor, " d"]
    covariance: Float64[Tensor, "d d"]
    log_evidence: float

    @classmethod
    def of(cls, matrix: Float64[Tensor, "m d"], data: Float64[Tensor, " m"], noise: float) -> GaussianPosterior:
        """Condition theta ~ N(0, I) on data = matrix theta + N(0, noise I).

        C = (I + H^T H / s^2)^-1, mean = C H^T data / s^2, and the data have the covariance S = H H^T + s^2 I.
        """
        precision = torch.eye(matrix.shape[1], dtype=torch.float64) + matrix.mT @ matrix / noise
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        total = matrix @ matrix.mT + noise * torch.eye(len(data), dtype=torch.float64)
        return cls(covariance @ (matrix.mT @ data) / noise, covariance, float(gaussian_log_density(data, total)))

    def sample(self, n: int, seed: int) -> Float64[Tensor, "n d"]:
        return self.mean + normal_draws(n, len(self.mean), seed=seed) @ torch.linalg.cholesky(self.covariance).mT

    def cdf(self, theta: Float64[Tensor, " d"]) -> Float64[Tensor, " d"]:
        return torch.special.ndtr((theta - self.mean) / self.covariance.diagonal().sqrt())


@dataclass(frozen=True, eq=False)
class QuadraturePosterior(Posterior):
    """A density at the Gauss-Legendre nodes of a skewed box, theta = centre + root x with x in [-1, 1]^d.

    Between the nodes the density is its polynomial interpolant, which draws and distribution functions integrate.

    Attributes:
        centre: `(d,)`.
        root: `(d, d)`, lower triangular.
        mass: Weights times density at the nodes, one axis per parameter, of sum 1.
        edge: Largest density at the outermost nodes, relative to its maximum.
    """

    mean: Float64[Tensor, " d"]
    covariance: Float64[Tensor, "d d"]
    log_evidence: float
    centre: Float64[Tensor, " d"]
    root: Float64[Tensor, "d d"]
    mass: Float64[Tensor, "..."]
    edge: float

    @classmethod
    def of(
        cls, log_density: LogDensity, centre: Float64[Tensor, " d"], root: Float64[Tensor, "d d"], *, nodes: int
    ) -> QuadraturePosterior:
        """Integrate a density that is not normalised, of parameters `(n, d)`, over a box."""
        d = len(centre)
        weights = legendre(nodes)[1]
        logs, places = _tabulated(log_density, centre, root, nodes=nodes)
        values = (logs - logs.max()).exp()
        mass = values
        for axis in range(d):
            mass = mass * weights.reshape(-1, *(1,) * (d - 1 - axis))
        total = mass.sum()
        mass = mass / total
        mean = mass.flatten() @ places
        off = places - mean
        return cls(
            mean=mean,
            covariance=off.mT @ (off * mass.flatten()[:, None]),
            log_evidence=float(logs.max() + total.log() + root.diagonal().log().sum()),
            centre=centre,
            root=root,
            mass=mass,
            edge=max(float(values.select(axis, end).max()) for axis in range(d) for end in (0, -1)),
        )

    @classmethod
    def fitted(
        cls, log_density: LogDensity, centre: Float64[Tensor, " d"], covariance: Float64[Tensor, "d d"], *, nodes: int
    ) -> QuadraturePosterior:
        """Integrate over a box that ends where the density falls below `EDGE`.

        It is found from an approximate mean and covariance on few nodes, and once more from those that it has.

        Raises:
            ArithmeticError: If there is no such box.
        """
        for _ in range(2):
            centre, root = _enclose(log_density, centre, 8.0 * torch.linalg.cholesky(covariance))
            rough = cls.of(log_density, centre, root, nodes=ROUGH_NODES)
            centre, covariance = rough.mean, rough.covariance
        centre, root = _enclose(log_density, centre, 8.0 * torch.linalg.cholesky(covariance))
        for _ in range(8):  # more nodes may show density at the border that few did not
            posterior = cls.of(log_density, centre, root, nodes=nodes)
            if posterior.edge < 100.0 * EDGE:
                return posterior
            root = 1.1 * root
        raise ArithmeticError(f"the density at the border of the quadrature is {posterior.edge:.1e} of its maximum")

    @property
    def places(self) -> Float64[Tensor, "nodes d"]:
        """The nodes, in the order of `mass.flatten()`."""
        return self.centre + _tensor_grid(legendre(self.mass.shape[0])[0], len(self.centre)) @ self.root.mT

    def sample(self, n: int, seed: int) -> Float64[Tensor, "n d"]:
        """One coordinate after the other, by the inverse of its distribution function given those before."""
        nodes, d = self.mass.shape[0], len(self.mean)
        uniform = torch.special.ndtr(normal_draws(n, d, seed=seed))
        fine = torch.linspace(-1.0, 1.0, 40 * nodes + 1, dtype=torch.float64)
        integrals, places = _integrals(fine, nodes), []
        current = self.mass.reshape(1, nodes, -1)  # of the coordinate in turn, and all after it
        for level in uniform[..., None].unbind(1):
            curve = (current.sum(-1) @ integrals.mT).cummax(-1).values
            curve = (curve / curve[:, -1:]).expand(n, -1).contiguous()
            right = torch.searchsorted(curve, level.contiguous()).clamp(1, len(fine) - 1)
            low, high = curve.gather(1, right - 1), curve.gather(1, right)
            share = ((level - low) / (high - low).clamp_min(1e-300)).clamp(0.0, 1.0)
            place = (fine[right - 1] + share * (fine[right] - fine[right - 1]))[:, 0]
            places.append(place)
            weights = _interpolation(place, nodes)
            slices = weights @ current[0] if len(current) == 1 else (weights[:, None] @ current)[:, 0]
            current = slices.reshape(n, nodes, -1) if slices.shape[-1] > 1 else slices
        return self.centre + torch.stack(places, 1) @ self.root.mT

    def cdf(self, theta: Float64[Tensor, " d"]) -> Float64[Tensor, " d"]:
        nodes, levels = self.mass.shape[0], []
        points = legendre(nodes)[0]
        for i in range(len(theta)):
            rows = self.mass.reshape(nodes**i, nodes, -1).sum(-1)
            # theta_i = centre_i + sum_j<=i root_ij x_j bounds x_i in each row of x_0 ... x_i-1.
            before = _tensor_grid(points, i) @ self.root[i, :i] if i else torch.zeros(1, dtype=torch.float64)
            limit = (theta[i] - self.centre[i] - before) / self.root[i, i]
            levels.append((_integrals(limit.clamp(-1.0, 1.0), nodes) * rows).sum())
        return torch.stack(levels)


def _tabulated(log_density: LogDensity, centre: Tensor, root: Tensor, *, nodes: int) -> tuple[Tensor, Tensor]:
    """Logarithms of a density at the nodes, one axis per parameter, and the nodes, `(nodes^d, d)`."""
    places = centre + _tensor_grid(legendre(nodes)[0], len(centre)) @ root.mT
    return log_density(places).reshape((nodes,) * len(centre)), places


def _enclose(log_density: LogDensity, centre: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Move the sides of a box outwards while the density there exceeds `EDGE`, and inwards to the node before it does."""
    points = legendre(ROUGH_NODES)[0]
    for _ in range(20):
        logs, _ = _tabulated(log_density, centre, root, nodes=ROUGH_NODES)
        ends = []
        for axis in range(len(centre)):
            inside = (logs.movedim(axis, 0).reshape(ROUGH_NODES, -1).amax(1) > logs.max() + math.log(EDGE)).nonzero()[:, 0]
            first, last = int(inside[0]), int(inside[-1])
            low = -1.4 if first == 0 else float(points[first - 1])
            ends.append((low, 1.4 if last == ROUGH_NODES - 1 else float(points[last + 1])))
        low, high = torch.tensor(ends, dtype=torch.float64).unbind(1)
        centre, root = centre + root @ ((low + high) / 2.0), root * ((high - low) / 2.0)
        if bool((high - low > 1.7).all() and (high < 1.0).all() and (low > -1.0).all()):
            break
    return centre, root


def gauss_newton(
    observe: Callable[[Tensor], Tensor], data: Tensor, *, noise: float, location: Tensor, scale: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """Mode and Laplace covariance under a prior N(location, diag(scale^2)), by damped steps with central differences."""
    steps = 1e-4 * torch.diag(scale)

    def residual(theta: Tensor) -> Tensor:
        return torch.cat([(observe(theta) - data) / math.sqrt(noise), (theta - location) / scale], dim=-1)

    theta, damping = start, 1e-3
    value = residual(theta[None])[0]
    for _ in range(60):
        sides = residual(torch.cat([theta + steps, theta - steps]))
        jacobian = ((sides[: len(theta)] - sides[len(theta) :]) / (2e-4 * scale[:, None])).mT
        normal, slope = jacobian.mT @ jacobian, jacobian.mT @ value
        for _ in range(12):
            step = torch.linalg.solve(normal + damping * torch.diag(normal.diagonal()), slope)
            trial = residual((theta - step)[None])[0]
            if trial.square().sum() <= value.square().sum():
                break
            damping *= 4.0
        else:
            break
        theta, value, damping = theta - step, trial, damping / 8.0
        if float((step @ normal @ step).sqrt()) < 1e-6:
            break
    return theta, torch.cholesky_inverse(torch.linalg.cholesky(normal))


def gaussian_log_density(residual: Float64[Tensor, "*n m"], covariance: Float64[Tensor, "*n m m"]) -> Float64[Tensor, "*n"]:
    """Logarithm of N(residual; 0, covariance)."""
    root = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(root, residual[..., None], upper=False)[..., 0]
    log = -0.5 * white.square().sum(-1) - root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return log - 0.5 * residual.shape[-1] * math.log(2.0 * math.pi)


def normal_draws(n: int, d: int, *, seed: int, index: int = 0) -> Float64[Tensor, "n d"]:
    """The standard normal numbers behind draws from posteriors."""
    return torch.randn(n, d, generator=stream(seed, "inverse draws", index), dtype=torch.float64)


def legendre(nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss-Legendre quadrature on [-1, 1]."""
    points, weights = numpy.polynomial.legendre.leggauss(nodes)
    return torch.from_numpy(points), torch.from_numpy(weights)


def _tensor_grid(points: Tensor, d: int) -> Tensor:
    """Points of a tensor product, `(nodes^d, d)`, the last coordinate fastest."""
    return torch.cartesian_prod(*[points] * d).reshape(-1, d)


def _polynomials(places: Tensor, degree: int) -> Tensor:
    """Legendre polynomials 0 ... degree at places, `(..., degree + 1)`."""
    return torch.from_numpy(numpy.polynomial.legendre.legvander(places.numpy(), degree))


def _interpolation(places: Tensor, nodes: int) -> Tensor:
    """Interpolants through one of the nodes, over its weight: sum_l (l + 1/2) P_l(x_j) P_l(x), `(..., nodes)`."""
    orders = torch.arange(nodes) + 0.5
    return (_polynomials(places, nodes - 1) * orders) @ _polynomials(legendre(nodes)[0], nodes - 1).mT


def _integrals(places: Tensor, nodes: int) -> Tensor:
    """Their integrals from -1 to places: sum_l P_l(x_j) (P_l+1(x) - P_l-1(x)) / 2, with P_-1 = -1, `(..., nodes)`."""
    high = _polynomials(places, nodes)
    below = torch.cat([-torch.ones_like(high[..., :1]), high[..., : nodes - 1]], dim=-1)
    return (high[..., 1:] - below) / 2.0 @ _polynomials(legendre(nodes)[0], nodes - 1).mT
