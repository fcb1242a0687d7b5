"""The Gaussian posterior of weights: the result of every structure, and the dense posterior of a curvature matrix."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.curvature.weights import DenseWeights, WeightRoot
from probneural.heads.evidence import Evidence
from probneural.heads.weight_problem import WeightProblem
from probneural.linear_algebra.principal_components import resolved_eigenpairs
from probneural.registry import stored
from probneural.settings import Settings


@dataclass(frozen=True, eq=False)
class WhitenedHyperparameters:
    """Hyper-parameters of largest evidence.

    Attributes:
        noise: The noise scale.
        scales: Precision of each direction in the whitened basis, `(P,)`.
        prior_precision: Prior precision of each parameter, `(P,)`.
        log_evidence: Log evidence, in nats.
    """

    noise: float
    scales: Float64[Tensor, " P"]
    prior_precision: Float64[Tensor, " P"]
    log_evidence: float


def learn(
    problem: WeightProblem,
    eigenvalues: Float64[Tensor, " P"],
    *,
    groups: Tensor | None = None,
    names: Sequence[str] | None = None,
) -> WhitenedHyperparameters:
    """Maximise the evidence of a curvature with these eigenvalues, one prior precision for all or one per group.

    Args:
        problem: Fixed and free hyper-parameters of the evidence.
        eigenvalues: Eigenvalues of the whitened curvature at noise scale 1, in a basis that does not mix groups.
        groups: Group of each direction, and of each parameter; parameter tensors by default.
        names: Names of the groups.

    Raises:
        EvidenceError: If the evidence determines no noise or prior.
    """
    model = problem.evidence(eigenvalues)
    noise, scale = model.maximise(noise=problem.noise, prior=None if problem.prior is None else 1.0)
    ones = torch.ones_like(eigenvalues)
    if problem.learns_layers:
        members = problem.groups if groups is None else groups.to(eigenvalues.device)

        def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
            return (eigenvalues.cpu() * torch.exp(-log_noise) + log_priors.exp()[members.cpu()]).log().sum()

        layered = problem.layered(log_determinant, groups=groups, names=names)
        noise_scale, priors = layered.maximise(start=(noise, scale), noise=problem.noise)
        value = layered.value(torch.tensor(noise_scale, dtype=torch.float64).log(), priors.log())
        scales = priors.to(eigenvalues)[members]
        return WhitenedHyperparameters(noise=noise_scale, scales=scales, prior_precision=scales, log_evidence=float(value))
    return WhitenedHyperparameters(
        noise=noise,
        scales=scale * ones,
        prior_precision=scale * ones if problem.prior is None else problem.prior.to(eigenvalues),
        log_evidence=model.value(noise=noise, prior=scale),
    )


@dataclass(frozen=True, eq=False)
class WeightPosterior:
    """N(centre, R R^T) and its hyper-parameters.

    Attributes:
        root: R, in weight units; zero for weights that the prior fixes.
        noise: Observation variance, in the units of the curvature's noise variance.
        prior_precision: Prior precision, `(P,)`, float64, per weight unit squared.
        log_evidence: Log evidence, in nats.
        evidence_error: Standard error of an estimated log evidence, in nats.
        report: Diagnostics of the structure by name: ranks, bounds, residuals.
    """

    root: WeightRoot
    noise: float
    prior_precision: Float64[Tensor, " P"]
    log_evidence: float
    evidence_error: float = 0.0
    report: Mapping[str, float] = field(default_factory=dict)


class Structure(Settings, ABC):
    """Structure of the weights' covariance in `Laplace`; abstract.

    Attributes:
        name: Shorthand for the structure with its defaults.
    """

    name: ClassVar[str]

    @abstractmethod
    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Fit the covariance and the free hyper-parameters.

        Args:
            problem: The operator's weights and residuals, and the fixed hyper-parameters.
            seed: Random seed of starts and projections.
            show_progress: Whether to show progress bars.

        Raises:
            UnsupportedError: If the structure does not suit the number of parameters or the prior.
            EvidenceError: If the evidence determines no noise or prior.
        """


@stored(on_cpu=("prior_precision", "effective_observations"))
@dataclass(frozen=True, eq=False)
class FitSummary:
    """Hyper-parameters and diagnostics of a fitted posterior, in physical units.

    Attributes:
        structure: Form of the weights' covariance.
        noise: Observation variance per channel, `(c,)`, float64, in output units squared.
        prior_precision: `(P,)`, float64, per parameter unit squared.
        effective_observations: Independent observations per field and channel, `(c,)`, float64, dimensionless.
        log_evidence: Log evidence of the training outputs, in nats.
        log_evidence_error: Standard error of an estimated log evidence, in nats.
        report: Diagnostics of the structure by name: ranks, bounds, residuals.
    """

    structure: str
    noise: Float64[Tensor, " c"]
    prior_precision: Float64[Tensor, " P"]
    effective_observations: Float64[Tensor, " c"]
    log_evidence: float
    log_evidence_error: float
    report: Mapping[str, float]


def weight_posterior(
    curvature: Float64[Tensor, "P P"],
    centre: Float64[Tensor, " P"],
    *,
    observations: float,
    residual_sum_of_squares: float,
    noise: float | None,
    prior: Float64[Tensor, " P"] | None,
) -> WeightPosterior:
    """Solve for (curvature / noise + diag(prior))^-1 around `centre`; arguments that are None maximise the evidence.

    In whitened weights (unit prior) infinite precisions are exact, and one eigendecomposition suffices. The root is the
    symmetric one of the whitened weights, so draws do not depend on the library's choice of eigenvectors.

    Args:
        curvature: Gauss-Newton matrix at unit noise variance.
        centre: The trained weights.
        observations: Total number of effective observations.
        residual_sum_of_squares: Sum of squared residuals at unit noise variance.
        noise: Observation variance, or None to learn it.
        prior: Prior precision of each weight, or None to learn one for all.

    Raises:
        EvidenceError: If the evidence determines no noise or prior.
    """
    prior_std = torch.ones_like(centre) if prior is None else prior.to(curvature).rsqrt()
    values, vectors = resolved_eigenpairs(prior_std[:, None] * curvature * prior_std)
    free = prior_std > 0
    model = Evidence(
        eigenvalues=values[len(values) - int(free.sum()) :].cpu(),
        observations=observations,
        residual_sum_of_squares=residual_sum_of_squares,
        squared_norm=float((centre[free] / prior_std[free]).square().sum()),
    )
    noise_scale, scale = model.maximise(noise=noise, prior=None if prior is None else 1.0)
    return WeightPosterior(
        root=DenseWeights(prior_std[:, None] * (vectors * (values / noise_scale + scale).rsqrt()) @ vectors.mT),
        noise=noise_scale,
        prior_precision=torch.full_like(centre, scale) if prior is None else prior,
        log_evidence=model.value(noise=noise_scale, prior=scale),
    )
