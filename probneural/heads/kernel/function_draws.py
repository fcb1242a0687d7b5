"""Function draws from Gaussian process posteriors: a prior draw from random features, corrected by the data."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.heads.kernel.gaussian_processes import SMOOTHNESS, Process
from probneural.heads.kernel.inducing_points import InducingProcess


@dataclass(frozen=True, eq=False)
class Path:
    """One draw of the f functions of a process, given its data: evaluated anywhere at the cost of a mean.

    f(z) = g(z) + k(z, Z) (k + nugget)^-1 (y - g(Z) - e), with g a draw from the prior and e one of the noise.

    Args:
        process: Where it is drawn from.
        frequencies: Of the prior draw's cosines, `(m, r)`.
        phases: `(m,)`, in radians.
        weights: `(m, f)`, in the units of the values.
        slopes: The prior draw's linear part, `(r, f)`.
        multipliers: Of the correction, `(n, f)`, or a row for each inducing point.
    """

    process: Process | InducingProcess
    frequencies: Float64[Tensor, "m r"]
    phases: Float64[Tensor, " m"]
    weights: Float64[Tensor, "m f"]
    slopes: Float64[Tensor, "r f"]
    multipliers: Float64[Tensor, "n f"]

    @classmethod
    @torch.no_grad()
    def drawn(cls, process: Process | InducingProcess, *, generator: torch.Generator, features: int) -> Path:
        """Draw one.

        Args:
            process: Where from.
            generator: Of the randomness, on the CPU.
            features: Number m of cosines.

        Reference:
            Wilson et al. (2020), equation 13; Rahimi & Recht (2007), algorithm 1, for the cosines.
        """
        covariance, amplitude = process.covariance, process.amplitude
        coordinates, outputs = process.basis.shape[1], len(amplitude)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(process.basis.device)

        count = features if covariance.stationary is not None else 0
        precision = _precisions(covariance.stationary, float(covariance.alpha), count, generator).to(process.basis.device)
        phases = 2.0 * math.pi * torch.rand(count, generator=generator, dtype=torch.float64, device="cpu")
        frequencies = normal(count, coordinates) * precision.sqrt()[:, None] * covariance.relevance
        slopes = normal(coordinates, outputs) * covariance.linear[:, None] * amplitude * float(covariance.has_linear_part)
        prior = cls(
            process=process,
            frequencies=frequencies,
            phases=phases.to(process.basis.device),
            weights=normal(count, outputs) * amplitude * math.sqrt(2.0 / max(1, count)),
            slopes=slopes,
            multipliers=torch.zeros(len(process.basis), outputs, dtype=torch.float64, device=amplitude.device),
        )
        return cls(
            process=process,
            frequencies=prior.frequencies,
            phases=prior.phases,
            weights=prior.weights,
            slopes=slopes,
            multipliers=process.correction(prior._prior, normal),
        )

    def __call__(self, queries: Float64[Tensor, "q r"]) -> Float64[Tensor, "q f"]:
        """Evaluate, differentiably."""
        return self._prior(queries) + self.process.covariance(queries, self.process.basis) @ self.multipliers

    def _prior(self, queries: Tensor) -> Tensor:
        return (queries @ self.frequencies.mT + self.phases).cos() @ self.weights + queries @ self.slopes


def _precisions(kernel: str | None, alpha: float, count: int, generator: torch.Generator) -> Tensor:
    """What a kernel's frequencies are normal given: squared length scales are mixed by a gamma distribution, or are one.

    (1 + d²/2α)^-α is the mean of exp(-t d²/2) over t ~ Gamma(α, rate α). The spectral density of Matérn's kernel is Student's t
    with 2ν degrees of freedom: normal with variance 1/t, t ~ Gamma(ν, rate ν).
    """
    if kernel == "rational_quadratic":
        return _gamma(alpha, count, generator)
    if kernel in SMOOTHNESS:
        return 1.0 / _gamma(SMOOTHNESS[kernel], count, generator)
    return torch.ones(count, dtype=torch.float64, device="cpu")


def _gamma(shape: float, count: int, generator: torch.Generator) -> Tensor:
    """Draws from Gamma(shape, rate shape), of mean one."""
    parameter = torch.full((count,), shape, dtype=torch.float64, device="cpu")
    return torch._standard_gamma(parameter, generator=generator) / shape
