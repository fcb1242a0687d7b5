"""A linear operator that is uncertain itself: the two expected posteriors, exactly, and the gap between them.

u = (B + E) theta with theta ~ N(0, I), and E, `(p, d)`, has independent N(0, 1) entries between two factors, E = L Z M^T: the
covariance of vec(E) is M M^T (x) L L^T. Given theta, u is N(B theta, |M^T theta|^2 L L^T). With sensors A, H = A (B + E) and
noise s^2,

    joint   p(theta | data) ~ N(theta; 0, I) N(data; A B theta, |M^T theta|^2 A L L^T A^T + s^2 I),
    draws   p(theta | data) = E_E [N(theta; m_H, C_H)],  C_H = (I + H^T H / s^2)^-1,  m_H = C_H H^T data / s^2.

The first is the posterior under the marginal likelihood: draws with a larger evidence N(data; 0, H H^T + s^2 I) count more in
it. The second gives all the same weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy
import torch
from jaxtyping import Float64
from torch import Tensor

import probneural as pn
from benchmarks.inverse_posteriors import LogDensity, QuadraturePosterior, gaussian_log_density
from benchmarks.inverse_tasks import noisy, prior_levels, standard_normal
from probneural.functionals import Functional
from probneural.randomness import stream


@dataclass(frozen=True, eq=False, kw_only=True)
class UncertainOperator:
    """A linear operator with Gaussian uncertainty, sensors, and noise.

    Attributes:
        operator: B, `(p, d)`.
        rows: L, `(p, r)`, the factor of the covariance over the grid.
        columns: M, `(d, d)`, the factor of the covariance over the parameters.
        functional: A, m sensors on the grid of p points.
        noise: Variance of the noise.
        draw_nodes: Gauss-Hermite nodes for each of the m d numbers in A E.
        nodes: Quadrature nodes per parameter.
    """

    operator: Float64[Tensor, "p d"]
    rows: Float64[Tensor, "p r"]
    columns: Float64[Tensor, "d d"]
    functional: Functional
    noise: float
    draw_nodes: int
    nodes: int

    @classmethod
    def default(cls, *, parameters: int = 1, spread: float = 0.3) -> UncertainOperator:
        """One parameter and two sensors, or two and one, on 16 points; E has entries of standard deviation `spread`."""
        grid = pn.Grid.uniform(16)
        x = grid.points[:, 0]
        waves = torch.stack([torch.cos(2.0 * math.pi * x), torch.sin(2.0 * math.pi * x)], dim=1)
        places = torch.tensor([[0.0625], [0.25]][: 3 - parameters], dtype=torch.float64)
        distance = (x[:, None] - x).abs()
        kernel = torch.exp(-torch.sin(math.pi * distance).square() / (2.0 * 0.5**2))
        return cls(
            operator=1.0 + 0.5 * waves[:, :1] if parameters == 1 else waves,
            rows=torch.linalg.cholesky(kernel + 1e-10 * torch.eye(16, dtype=torch.float64)),
            columns=spread * torch.eye(parameters, dtype=torch.float64),
            functional=pn.functionals.sensors(grid, places),
            noise=0.5**2,
            draw_nodes=128 if parameters == 1 else 56,
            nodes=160 if parameters == 1 else 80,
        )

    @property
    def sensed(self) -> Float64[Tensor, "m d"]:
        """A B."""
        return self.functional(self.operator.mT).mT

    @property
    def sensed_rows(self) -> Float64[Tensor, "m r"]:
        """A L."""
        return self.functional(self.rows.mT).mT

    def sample(self, n: int, seed: int) -> Float64[Tensor, "n p d"]:
        """Draws of the operator."""
        shape = n, self.rows.shape[1], self.columns.shape[1]
        normal = torch.randn(shape, generator=stream(seed, "inverse operators"), dtype=torch.float64)
        return self.operator + self.rows @ normal @ self.columns.mT

    def simulate(self, seed: int) -> tuple[Float64[Tensor, " d"], Float64[Tensor, " m"]]:
        """Parameters from the prior, and noisy data of a drawn operator."""
        theta = torch.special.ndtri(prior_levels(1, len(self.columns), seed=seed))[0]
        return theta, noisy(self.functional(self.sample(1, seed)[0] @ theta), self.noise, seed=seed)

    def mean_log_likelihood(self, theta: Float64[Tensor, "n d"], data: Float64[Tensor, " m"]) -> Float64[Tensor, " n"]:
        """Logarithm of N(data; A B theta, |M^T theta|^2 A L L^T A^T + s^2 I)."""
        size = (theta @ self.columns).square().sum(-1)[:, None, None]
        identity = torch.eye(len(data), dtype=torch.float64)
        covariance = size * (self.sensed_rows @ self.sensed_rows.mT) + self.noise * identity
        return gaussian_log_density(data - theta @ self.sensed.mT, covariance)

    def joint(self, data: Float64[Tensor, " m"]) -> QuadraturePosterior:
        """The posterior under the likelihood averaged over operators."""
        d = len(self.columns)
        return self._integrated(lambda theta: standard_normal(d).log_prob(theta) + self.mean_log_likelihood(theta, data))

    def draws(self, data: Float64[Tensor, " m"]) -> QuadraturePosterior:
        """The average of the operators' posteriors. Its `log_evidence` is 0: they are normalised."""
        weights, means, precisions, _ = self.mixture(data)
        return self._integrated(lambda theta: mixture_log_density(theta, weights.log(), means, precisions))

    def _integrated(self, log_density: LogDensity) -> QuadraturePosterior:
        d = len(self.columns)
        start = torch.zeros(d, dtype=torch.float64), torch.eye(d, dtype=torch.float64)
        return QuadraturePosterior.fitted(log_density, *start, nodes=self.nodes)

    def mixture(self, data: Float64[Tensor, " m"]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Weights, means, precisions and log evidences of the posteriors at the Gauss-Hermite nodes of A E."""
        (m, d), root = self.sensed.shape, torch.linalg.cholesky(self.sensed_rows @ self.sensed_rows.mT)
        points, line = (torch.from_numpy(part) for part in numpy.polynomial.hermite_e.hermegauss(self.draw_nodes))
        places = torch.cartesian_prod(*[points] * (m * d)).reshape(-1, m, d)
        weights = torch.cartesian_prod(*[line / line.sum()] * (m * d)).reshape(-1, m * d).prod(-1)
        h = self.sensed + root @ places @ self.columns.mT
        precisions = torch.eye(d, dtype=torch.float64) + h.mT @ h / self.noise
        means = torch.linalg.solve(precisions, h.mT @ data / self.noise)
        evidence = gaussian_log_density(data.expand(len(h), -1), h @ h.mT + self.noise * torch.eye(m, dtype=torch.float64))
        return weights, means, precisions, evidence

    def total_variation(self, data: Float64[Tensor, " m"], *, points: int = 80) -> float:
        """Half the integral of the absolute difference of both densities, on [-6, 6]^d."""
        line = torch.linspace(-6.0, 6.0, points, dtype=torch.float64)
        theta = torch.cartesian_prod(*[line] * len(self.columns)).reshape(-1, len(self.columns))
        weights, means, precisions, _ = self.mixture(data)
        joint = standard_normal(len(self.columns)).log_prob(theta) + self.mean_log_likelihood(theta, data)
        draws = torch.cat([mixture_log_density(part, weights.log(), means, precisions) for part in theta.split(1024)])
        return float(0.5 * (joint.softmax(0) - draws.softmax(0)).abs().sum())


def mixture_log_density(
    theta: Float64[Tensor, "n d"],
    log_weights: Float64[Tensor, " k"],
    means: Float64[Tensor, "k d"],
    precisions: Float64[Tensor, "k d d"],
) -> Float64[Tensor, " n"]:
    """Logarithm of a mixture of Gaussian densities."""
    # (theta - m)^T P (theta - m) = <P, theta theta^T> - 2 theta^T P m + m^T P m, as one product.
    shifts = (precisions @ means[..., None])[..., 0]
    constants = torch.logdet(precisions) - (shifts * means).sum(-1) - means.shape[1] * math.log(2.0 * math.pi)
    features = torch.cat([(theta[:, :, None] * theta[:, None]).flatten(1), theta], dim=1)
    slopes = torch.cat([-0.5 * precisions.flatten(1), shifts], dim=1)
    return torch.logsumexp(features @ slopes.mT + log_weights + 0.5 * constants, dim=1)
