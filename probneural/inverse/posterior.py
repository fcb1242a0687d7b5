"""The result of every solver: draws of parameters, their diagnostics, and the fields that they imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_least, check_real, optional
from probneural.contexts import Undisturbed
from probneural.distributions import EmpiricalField, FieldDistribution, GaussianField, MixtureField, Predictor
from probneural.distributions.intervals import Interval, tails
from probneural.distributions.mixture import gaussian_of
from probneural.errors import ArgumentError, DataWarning, warn
from probneural.inverse.model import GaussianNumbers, InverseModel, components_of, operator_values
from probneural.pairs import evenly_spread_rows
from probneural.randomness import stream

if TYPE_CHECKING:
    import arviz

_UNUSUAL = 0.05
"""p-value below which an input counts as unlike the training inputs."""
_TESTED = 64
"""Maximum number of draws that are tested for novelty."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class InversePosterior(Undisturbed):
    """Draws from the posterior of an inverse problem, from one of the solvers of `InverseProblem`.

    Attributes:
        problem: The problem.
        method: Name of the solver.
        chains: Parameters, `(t, c, n, d)`: t targets (operator draws of `"draws"`, else 1), c chains each, n draws of each.
        seconds: Wall-clock time of the solver.
        evaluations: Number of parameter vectors that the predictor was evaluated at.
        solver_calls: Number of calls of the exact solver; 0 without one.
        log_evidence: Log density of the data under each target, `(t,)`, in nats; None where the solver does not estimate it.
        acceptance: Mean acceptance probability; None for solvers without proposals.
        chi2: Squared standardised residual per observation at the most probable parameters, `(t,)`; None without them.
        is_correlated: Whether draws of a chain are correlated, as those of Markov chains are.
        seed: Seed of the solver, which also names the draws of `outputs`.
        novelty: p-values of the inputs of up to 64 draws, `(m,)`; None if the problem has no novelty test.
    """

    problem: InverseModel
    method: str
    chains: Float64[Tensor, "t c n d"]
    seconds: float
    evaluations: int
    solver_calls: int = 0
    log_evidence: Float64[Tensor, " t"] | None = None
    acceptance: float | None = None
    chi2: Float64[Tensor, " t"] | None = None
    is_correlated: bool = False
    seed: int = 0
    novelty: Float64[Tensor, " m"] | None = None

    @property
    def theta(self) -> Float64[Tensor, "n d"]:
        """All draws of the parameters, `(n, d)`; those of each target, then of each chain, follow each other."""
        return self.chains.flatten(0, 2)

    @property
    def mean(self) -> Float64[Tensor, " d"]:
        """Posterior mean of the parameters."""
        return self.theta.mean(0)

    @property
    def standard_deviation(self) -> Float64[Tensor, " d"]:
        """Posterior standard deviations of the parameters; 0 for a single draw."""
        return self.theta.std(0, correction=0)

    @property
    def std(self) -> Float64[Tensor, " d"]:
        """Short for `standard_deviation`."""
        return self.standard_deviation

    @property
    def covariance(self) -> Float64[Tensor, "d d"]:
        """Posterior covariance of the parameters."""
        return torch.cov(self.theta.mT, correction=0).reshape(self.theta.shape[1], -1)

    def interval(self, level: float = 0.9) -> Interval:
        """Central intervals of the parameters, `(d,)` each, from quantiles of the draws.

        Raises:
            ArgumentError: If the level is not between 0 and 1.
        """
        below, above = tails(check_real(level, "level", above=0.0, below=1.0))
        return Interval(self.theta.quantile(below, 0), self.theta.quantile(above, 0))

    @cached_property
    def r_hat(self) -> Float64[Tensor, " d"]:
        """Split R-hat of each parameter, the largest over targets; near 1 for converged chains. Needs the extra `pyro`.

        Reference:
            Gelman et al. (2013), Bayesian data analysis, section 11.4.
        """
        return self._statistic("split_gelman_rubin").amax(0)

    @cached_property
    def effective_samples(self) -> Float64[Tensor, " d"]:
        """Effective number of independent draws of each parameter, summed over targets; antithetic ones count once.

        Needs the extra `pyro`.

        Reference:
            Geyer (1992), Practical Markov chain Monte Carlo.
        """
        sizes = self._statistic("effective_sample_size")
        count = float(self.chains.shape[1] * self.chains.shape[2])
        return torch.where(sizes > 0, sizes, count).clamp_max(count).sum(0)  # estimates of antithetic chains may be negative

    def _statistic(self, name: str) -> Float64[Tensor, "t d"]:
        """A convergence statistic of each target's chains."""
        count, draws = self.chains.shape[1:3]
        if not self.is_correlated:
            independent = torch.full((len(self.chains), self.problem.size), float(count * draws), dtype=torch.float64)
            return independent if name == "effective_sample_size" else torch.ones_like(independent)
        check_least(draws, 4, "draws per chain", remedy="sample more draws", error=ArgumentError)
        statistics = optional("pyro.ops.stats", "convergence of chains", extra="pyro")
        return torch.stack([getattr(statistics, name)(chains) for chains in self.chains])

    @cached_property
    def inputs(self) -> EmpiricalField:
        """Posterior of the input: one field per draw of the parameters, `(n, 1, c, *grid)`."""
        with torch.no_grad():
            fields = self.problem.inputs_of(self.theta)
        return EmpiricalField(fields.values[:, None], grid=fields.grid)

    @cached_property
    def outputs(self) -> EmpiricalField:
        """Posterior of the output: one field per draw of the parameters, with the predictor's uncertainty given the data.

        With `"draws"` a field is that of its operator draw, with its discrepancy given the data. With `"joint"` it is a draw
        u + C A^T S^-1 (data + e - A u) from the prediction given the data, with e of the noise's variance and S = A C A^T +
        noise (Matheron's rule). With `"mean"` it is the predicted mean.
        """
        problem, parts = self.problem, []
        with torch.no_grad():
            for target, theta in enumerate(self.chains.flatten(1, 2)):
                for number, part in enumerate(theta.split(_TESTED)):
                    parts.append(self._outputs(part, target, stream(self.seed, "outputs given data", target, number)))
        return EmpiricalField(torch.cat(parts)[:, None], grid=problem.functional.grid)

    def _outputs(self, theta: Float64[Tensor, "n d"], target: int, generator: torch.Generator) -> Tensor:
        problem, inputs = self.problem, self.problem.inputs_of(theta)
        query, predictor = problem.functional.grid, problem.predictor
        if not isinstance(predictor, Predictor):
            return predictor(inputs).values
        field, seeds = predictor(inputs, query), [target] * len(theta)
        if problem.likelihood == "mean":
            return field.mean
        if problem.likelihood == "joint":
            return given_data(problem, field, generator)
        chosen = components_of(field, seeds) if isinstance(field, MixtureField) else torch.zeros(len(theta), dtype=torch.long)
        outputs = torch.zeros_like(field.mean)
        for number in chosen.unique().tolist():
            rows = (chosen == number).nonzero()[:, 0]
            part = (field.components[number] if isinstance(field, MixtureField) else field)[rows]
            drawn = operator_values(part, [target] * len(rows))
            if isinstance(part, GaussianField) and part.discrepancy is not None:
                discrepant = GaussianField(drawn, part.discrepancy, latent="discrepancy", grid=part.grid)
                drawn = given_data(problem, discrepant, generator)
            outputs[rows] = drawn
        return outputs

    def to_arviz(self) -> arviz.InferenceData:
        """The draws for ArviZ, with all chains of all targets side by side; needs the extra `arviz`.

        Raises:
            MissingPackageError: If ArviZ is not installed.
        """
        library = optional("arviz", "to_arviz", extra="arviz")
        data: arviz.InferenceData = library.from_dict({"theta": self.chains.flatten(0, 1).numpy()})
        return data

    def __repr__(self) -> str:
        """Method, draws, mean and standard deviation of the first parameters, diagnostics and the novelty test."""
        count, size = self.theta.shape
        lines = [f"InversePosterior({self.problem.likelihood!r} likelihood, {self.method}, {count} draws of {size} parameters)"]
        if self.is_unusual:
            lines.insert(0, "WARNING: " + _NOVEL)
        for index in range(min(size, 6)):
            lines.append(f"  theta[{index}] = {self.mean[index]:.4g} ± {self.std[index]:.2g}")
        if self.acceptance is not None:
            lines.append(f"  acceptance {self.acceptance:.2f}")
        similarity = "not tested: give novelty= or a predictor from calibrate" if self.novelty is None else "as in training"
        lines.append(f"  inputs {'unlike those of training' if self.is_unusual else similarity}; {self.seconds:.1f} s")
        return "\n".join(lines)

    @property
    def is_unusual(self) -> bool:
        """Whether the median novelty p-value of the posterior's inputs is below .05; False without a test."""
        return self.novelty is not None and bool(self.novelty.median() < _UNUSUAL)


_NOVEL = (
    "the posterior lies where the predictor was not trained (median novelty p-value below .05): its predictions and their "
    "uncertainty are extrapolations there; simulate inputs of this posterior, and train again"
)


def tested(posterior: InversePosterior) -> InversePosterior:
    """The posterior with the novelty of its inputs; warns if it lies where the predictor was not trained."""
    detector = posterior.problem.novelty
    if detector is None:
        return posterior
    with torch.no_grad():
        p_values = detector(posterior.problem.inputs_of(posterior.theta[evenly_spread_rows(len(posterior.theta), _TESTED)]))
    object.__setattr__(posterior, "novelty", p_values)
    if posterior.is_unusual:
        warn(_NOVEL, DataWarning)
    return posterior


def given_data(problem: InverseModel, field: FieldDistribution, generator: torch.Generator) -> Tensor:
    """One draw of each sample's prediction given the data, by Matheron's rule; of mixtures by their mean and covariance."""
    matched = gaussian_of(field)
    roots = [matched.root] if matched.discrepancy is None else [matched.root, matched.discrepancy]

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    def product(latents: Sequence[Tensor]) -> Tensor:
        parts = [root.product_each(vector.to(root.like)).to(torch.float64) for root, vector in zip(roots, latents, strict=True)]
        return torch.stack(parts).sum(0).unflatten(-1, matched.grid.shape)

    samples = matched.mean.to(torch.float64) + product([normal(len(field), root.shape[3]) for root in roots])
    numbers = GaussianNumbers.of(matched.apply(problem.functional))
    noise = normal(*numbers.mean.shape) * problem.noise.sqrt()
    residual = problem.data + noise - problem.functional(samples).flatten(1)
    # w = S^-1 (data + e - A u); the correction is C A^T w
    weights = torch.linalg.solve(numbers.covariance(problem.noise), residual[..., None])[..., 0]
    spread = problem.functional.adjoint(weights.unflatten(1, (samples.shape[1], -1))).flatten(2)
    corrected = samples + product([root.pull(spread[:, None].to(root.like))[:, 0] for root in roots])
    return corrected.to(matched.mean)
