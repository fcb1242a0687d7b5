"""The evidence with one prior precision per parameter tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import EvidenceError

_SPAN = 34.0
"""Logarithms of hyper-parameters, relative to where the search starts, between which maxima are sought."""


@dataclass(frozen=True)
class LayeredEvidence:
    """Laplace evidence of weights with a Gaussian prior N(0, 1/tau_l) in each layer l and Gaussian noise of variance s2.

        log p(y) = -(N/2) log(2 pi s2) - E/(2 s2) - (1/2) sum over l of (tau_l W_l - k_l log tau_l) - (1/2) log det(G/s2 + T)

    Args:
        log_determinant: log det(G/s2 + T) of (log s2, log tau `(l,)`), differentiable, float64.
        names: What the layers are called.
        sizes: k_l, numbers of parameters.
        squared_norms: W_l, of the trained weights.
        observations: N, the number of effective observations in all.
        residual_sum_of_squares: E, the sum of squared residuals at unit noise variance.

    Reference:
        MacKay (1992), Bayesian interpolation, section 4; several priors as in Tipping (2001), Sparse Bayesian learning.
        Found by quasi-Newton steps on the logarithms instead of fixed-point ones.
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
        """Return the noise (kept if given) and the prior precisions `(l,)` of largest evidence.

        Args:
            start: Noise and prior precision to start from, best those of the evidence with one precision for all layers.
            noise: Keep this one.

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

        bounds = [(float(number) - _SPAN, float(number) + _SPAN) for number in centre]
        optimum = minimize(
            loss,
            centre.numpy(),
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": 500, "ftol": 1e-15, "gtol": 1e-9},
        )
        reached = torch.as_tensor(optimum.x, dtype=torch.float64)
        stuck = ((reached - centre).abs() >= _SPAN - 1e-6).tolist()
        stuck[0] = stuck[0] and noise is None
        if any(stuck):
            names = [name for name, flag in zip(["the noise", *self.names], stuck, strict=True) if flag]
            raise EvidenceError(
                expected="an interior maximum of the evidence",
                got=f"none in {', '.join(names)}",
                remedy="give noise=, leave these out of parameters=, or learn one precision for all layers",
            )
        return (math.exp(float(reached[0])) if noise is None else noise), reached[1:].exp()
