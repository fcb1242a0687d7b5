"""The evidence of a Gaussian approximation in noise and prior precision, global or per layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import EvidenceError

_LAYER_SPAN = 34.0
"""Search interval of log hyper-parameters, relative to the starting point."""


@dataclass(frozen=True)
class LayeredEvidence:
    """Laplace evidence of weights with a Gaussian prior N(0, 1/tau_l) in each layer l and Gaussian noise of variance s2.

        log p(y) = -(N/2) log(2 pi s2) - E/(2 s2) - (1/2) sum over l of (tau_l W_l - k_l log tau_l) - (1/2) log det(G/s2 + T)

    Args:
        log_determinant: log det(G/s2 + T) of (log s2, log tau `(l,)`), differentiable, float64.
        names: Names of the layers.
        sizes: k_l, number of parameters per layer.
        squared_norms: W_l, squared norms of the trained weights.
        observations: N, the total number of effective observations.
        residual_sum_of_squares: E, the sum of squared residuals at unit noise variance.

    Reference:
        MacKay (1992), Bayesian interpolation, section 4; several priors as in Tipping (2001), Sparse Bayesian learning.
        Deviation: quasi-Newton steps in the logarithms instead of fixed-point iterations.
    """

    log_determinant: Callable[[Tensor, Tensor], Tensor]
    names: Sequence[str]
    sizes: Float64[Tensor, " l"]
    squared_norms: Float64[Tensor, " l"]
    observations: float
    residual_sum_of_squares: float

    def value(self, log_noise: Float64[Tensor, ""], log_priors: Float64[Tensor, " l"]) -> Float64[Tensor, ""]:
        """The log evidence in nats, differentiable."""
        fit = self.observations * (math.log(2 * math.pi) + log_noise) + self.residual_sum_of_squares * torch.exp(-log_noise)
        penalty = (log_priors.exp() * self.squared_norms - self.sizes * log_priors).sum()
        return -0.5 * (fit + penalty + self.log_determinant(log_noise, log_priors))

    def maximise(self, *, start: tuple[float, float], noise: float | None = None) -> tuple[float, Float64[Tensor, " l"]]:
        """Return the noise (unchanged if given) and the prior precisions `(l,)` of largest evidence.

        Args:
            start: Starting values of noise and prior precision, best the maximum with one precision for all layers.
            noise: Fixed noise, or None.

        Raises:
            EvidenceError: If the evidence has no maximum in some layer's precision, or in the noise.
        """
        from scipy.optimize import minimize  # takes a third of a second to import

        for name, norm in zip(self.names, self.squared_norms.tolist(), strict=True):
            if norm <= 0:
                raise EvidenceError(
                    expected=f"weights of {name} that are not all zero",
                    got="an evidence that grows with its prior precision for ever",
                    remedy="leave it out of parameters=, or learn one precision for all layers (per_layer=False)",
                )
        centre = torch.tensor([math.log(start[0])] + len(self.names) * [math.log(start[1])], dtype=torch.float64)

        def loss(point: Any) -> tuple[float, Any]:
            variables = torch.as_tensor(point, dtype=torch.float64).clone().requires_grad_()
            log_noise = variables[0] if noise is None else torch.tensor(math.log(noise), dtype=torch.float64)
            with torch.enable_grad():
                total = -self.value(log_noise, variables[1:])
                (gradient,) = torch.autograd.grad(total, variables)
            return float(total.detach()), gradient.numpy()

        bounds = [(float(number) - _LAYER_SPAN, float(number) + _LAYER_SPAN) for number in centre]
        optimum = minimize(
            loss,
            centre.numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-15, "gtol": 1e-9},
        )
        reached = torch.as_tensor(optimum.x, dtype=torch.float64)
        stuck = ((reached - centre).abs() >= _LAYER_SPAN - 1e-6).tolist()
        stuck[0] = stuck[0] and noise is None
        if any(stuck):
            names = [name for name, flag in zip(["the noise", *self.names], stuck, strict=True) if flag]
            raise EvidenceError(
                expected="an interior maximum of the evidence",
                got=f"none in {', '.join(names)}",
                remedy="give noise=, leave these out of parameters=, or learn one precision for all layers",
            )
        return (math.exp(float(reached[0])) if noise is None else noise), reached[1:].exp()


_SPAN = (-46.0, 46.0)
"""Search interval of log hyper-parameters, relative to their natural scale."""
_NEAR = 1e-3
"""Half width, in logarithms, of the interval around the smallest value in which the root of the slope is sought."""


@dataclass(frozen=True)
class Evidence:
    """Laplace evidence of weights w with Gaussian prior N(0, 1/tau) and Gaussian noise of variance s2.

        log p(y) = -(N/2) log(2 pi s2) - E/(2 s2) - tau W/2 + (k/2) log tau - (1/2) sum over j of n_j log(g_j/s2 + tau)

    with k = sum over j of n_j.

    Exact if the model is linear in w and the weights are the posterior mean; otherwise the Laplace approximation around
    the trained weights.

    Args:
        eigenvalues: g_j, eigenvalues of the curvature at unit noise variance, `(k,)`, float64, >= 0.
        observations: N, the total number of effective observations.
        residual_sum_of_squares: E, the sum of squared residuals at unit noise variance.
        squared_norm: W, squared norm of the trained weights.
        multiplicities: n_j, multiplicities of the eigenvalues, `(k,)`, float64, >= 0; 1 by default. Not integers for a
            stochastic quadrature.

    Reference:
        MacKay (1992), Bayesian interpolation, section 4. Deviation: joint maximisation over noise and prior, in the ratio
        tau s2, for which the best s2 has a closed form.
    """

    eigenvalues: Float64[Tensor, " k"]
    observations: float
    residual_sum_of_squares: float
    squared_norm: float
    multiplicities: Float64[Tensor, " k"] | None = None

    @property
    def dimension(self) -> float:
        """Number of directions."""
        return float(self._sum(torch.ones_like(self.eigenvalues)))

    def _sum(self, terms: Tensor) -> Tensor:
        return terms.sum() if self.multiplicities is None else terms @ self.multiplicities

    def value(self, *, noise: float, prior: float) -> float:
        """The log evidence in nats, at noise variance s2 and prior precision tau."""
        fit = self.observations * math.log(2 * math.pi * noise) + self.residual_sum_of_squares / noise
        penalty = prior * self.squared_norm - self.dimension * math.log(prior)
        return -0.5 * (fit + penalty + float(self._sum((self.eigenvalues / noise + prior).log())))

    def maximise(self, *, noise: float | None = None, prior: float | None = None) -> tuple[float, float]:
        """Return (noise, prior) of largest evidence; given values are fixed.

        Raises:
            EvidenceError: If the evidence has no maximum: zero residuals, weights or curvature.
        """
        if noise is not None and prior is not None:
            return noise, prior
        if noise is None:
            self._need(
                self.residual_sum_of_squares > 0, "residuals that are not all zero", "give noise=, the observation variance"
            )
        if prior is None:
            self._need(self.squared_norm > 0, "weights that are not all zero", "give prior_precision=")
            self._need(float(self.eigenvalues.max()) > 0, "curvature that is not zero", "give prior_precision=")
        if prior is not None:
            return self._noise(prior), prior
        if noise is not None:
            return noise, self._prior(noise)
        ratio = self._ratio()
        best = (self.residual_sum_of_squares + ratio * self.squared_norm) / self.observations
        return best, ratio / best

    def _ratio(self) -> float:
        """The tau s2 of largest evidence at s2 = (E + tau s2 W)/N."""
        from scipy.optimize import minimize_scalar  # takes a third of a second to import

        centre = math.log(float(self.eigenvalues.max()))

        def loss(log_ratio: float) -> float:
            ratio = math.exp(log_ratio)
            log_determinant = -self._sum(torch.log1p(self.eigenvalues / ratio))
            return 0.5 * (
                self.observations * math.log(self.residual_sum_of_squares + ratio * self.squared_norm) - float(log_determinant)
            )

        def slope(log_ratio: float) -> float:
            scaled = math.exp(log_ratio) * self.squared_norm
            determined = float(self._sum(self.eigenvalues / (self.eigenvalues + math.exp(log_ratio))))
            return self.observations * scaled / (self.residual_sum_of_squares + scaled) - determined

        # Below E/W the ratio no longer matters to the fit: an operator that interpolates its data has its maximum near there.
        low = min(centre + _SPAN[0], math.log(self.residual_sum_of_squares) - math.log(self.squared_norm) - 10.0)
        count = round(2 * (centre + _SPAN[1] - low)) + 1
        grid = torch.linspace(low, centre + _SPAN[1], count, dtype=torch.float64).tolist()
        losses = [loss(point) for point in grid]
        best = min(range(len(grid)), key=losses.__getitem__)
        self._need(0 < best < len(grid) - 1, "an interior maximum of the evidence", "give prior_precision= or noise=")
        optimum = minimize_scalar(loss, bounds=(grid[best - 1], grid[best + 1]), method="bounded", options={"xatol": 1e-12})
        return math.exp(_refined(slope, float(optimum.x)))

    def _prior(self, noise: float) -> float:
        """Solve tau W = gamma(tau), the number of directions the data determine; one side rises, the other falls."""
        scaled = self.eigenvalues / noise

        def excess(log_prior: float) -> float:
            prior = math.exp(log_prior)
            return prior * self.squared_norm - float(self._sum(scaled / (scaled + prior)))

        return self._root(excess, math.log(self.dimension / self.squared_norm))

    def _noise(self, prior: float) -> float:
        """Solve E/s2 = N - gamma(s2)."""

        def excess(log_noise: float) -> float:
            noise = math.exp(log_noise)
            determined = float(self._sum(self.eigenvalues / (self.eigenvalues + prior * noise)))
            return noise * (self.observations - determined) - self.residual_sum_of_squares

        return self._root(excess, math.log(self.residual_sum_of_squares / self.observations))

    def _root(self, function: Callable[[float], float], centre: float) -> float:
        from scipy.optimize import brentq  # takes a third of a second to import

        low, high = centre + _SPAN[0], centre + _SPAN[1]
        remedy = "give both noise= and prior_precision="
        self._need(function(low) < 0 < function(high), "an interior maximum of the evidence", remedy)
        return math.exp(brentq(function, low, high, xtol=1e-13))

    @staticmethod
    def _need(holds: bool, expected: str, remedy: str) -> None:
        if not holds:
            raise EvidenceError(expected=expected, got="an evidence without a maximum", remedy=remedy)


def _refined(slope: Callable[[float], float], optimum: float) -> float:
    """The minimum, refined as a root of the slope.

    Values locate a minimum to sqrt(epsilon) only, the slope to epsilon. So sums over distributed ranks, which round
    differently, lead to the same hyper-parameters.
    """
    from scipy.optimize import brentq

    low, high = optimum - _NEAR, optimum + _NEAR
    return float(brentq(slope, low, high, xtol=1e-14)) if slope(low) < 0 < slope(high) else optimum
