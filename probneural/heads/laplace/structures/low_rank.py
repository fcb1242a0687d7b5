"""Low rank plus prior by block Lanczos, and the exact posterior by iterative solves."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from tqdm import tqdm

from probneural.curvature.lanczos import Eigenpairs, top_eigenpairs
from probneural.curvature.products.functions import jacobian_vector_product, vector_jacobian_product
from probneural.curvature.quadrature import SpectralMeasure, spectral_density
from probneural.curvature.weights import IterativeWeights, LowRankWeights
from probneural.distributions.latent import digest
from probneural.errors import ConvergenceWarning, EvidenceError, warn
from probneural.heads.evidence import Evidence
from probneural.heads.training_data import in_memory
from probneural.heads.weight_posterior import Structure, WeightPosterior
from probneural.heads.weight_problem import Given, WeightProblem
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.linear_algebra.symmetric_maps import Map, gaussian, orthonormal
from probneural.randomness import stream

LARGEST_RANK = 512
"""Rank at which growth stops by itself."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-6}
"""Relative residual of eigenpairs, by the operator's own dtype; variances err by its square over the gaps."""
_FIRST_RANK = 32
_ROUNDING = 50.0
"""Eigenvalues below this many roundings of the largest one cannot be seen."""
_HIDDEN = 0.03
"""Precision that float32 may hide, over the prior's: variances err by that at most."""
_PROBES = 8
_STEPS = 40
"""Lanczos steps of each probe at most; some 10 to 30 settle what is learned, unless noise is far below the first left out."""
_USUAL_STEPS = 20
_PRODUCTS_PER_PAIR = 4
"""Products that a progress bar expects."""
_SETTLED = 0.05
"""Relative change of noise and prior over five steps from which on they have settled."""


@dataclass(frozen=True, eq=False)
class Truncation:
    """Eigenpairs of the whitened curvature with the hyper-parameters they lead to.

    Attributes:
        pairs: At noise scale 1.
        rest: Spectral measure of what they leave out, or None if that is nothing.
        evidence: Of both together.
        noise_scale: Noise variance, in variance units.
        scale: Prior precision in whitened units; 1 if the prior is given.
        hidden: An eigenvalue that rounding may hide.
    """

    pairs: Eigenpairs
    rest: SpectralMeasure | None
    evidence: Evidence
    noise_scale: float
    scale: float
    hidden: float

    @property
    def next_ratio(self) -> float:
        """Precision that data add along the first direction left out, over the prior's; what rounding may hide counts."""
        left = self.pairs.vectors.shape[0] - len(self.pairs.values)
        return max(self.pairs.next_value / (self.noise_scale * self.scale), self.hidden_ratio) if left else 0.0

    @property
    def hidden_ratio(self) -> float:
        """The same of a direction that rounding hides."""
        return self.hidden / (self.noise_scale * self.scale)

    @property
    def error(self) -> float:
        """Standard error of the evidence over probes, in nats."""
        if self.rest is None:
            return 0.0
        return 0.5 * self.rest.remainder(lambda nodes: torch.log1p(nodes / (self.noise_scale * self.scale)))[1]

    def agrees(self, other: Truncation) -> bool:
        """Whether another has learned the same, to a twentieth, and its evidence to a quarter of the standard error."""
        values = (result.evidence.value(noise=result.noise_scale, prior=result.scale) for result in (self, other))
        moved = (self.noise_scale / other.noise_scale, self.scale / other.scale)
        difference = abs(operator.sub(*values))
        return all(abs(math.log(ratio)) <= _SETTLED for ratio in moved) and difference <= max(0.25 * self.error, 1e-6)

    @property
    def ratios(self) -> Float64[Tensor, " r"]:
        """The same along the directions kept."""
        return self.pairs.values.clamp_min(0.0) / (self.noise_scale * self.scale)


@dataclass(frozen=True, kw_only=True)
class LowRank(Structure):
    """Only directions that data determine more than the prior does are informed; elsewhere the posterior is the prior.

    That is an upper bound; see `LaplacePredictor.variance_bounds`.

    Args:
        rank: Directions; by default they grow until the next one carries less than the prior, up to 512.

    Raises:
        ArgumentError: If `rank` is not a positive integer.
    """

    name: ClassVar[str] = "low_rank"
    rank: int | None = None

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Find eigenpairs of the whitened curvature, to a given rank or until the next carries less than the prior.

        The directions left out keep their prior, which bounds their variance from above. Data add at most `next_ratio` times
        the prior's precision there, so dividing by 1 + `next_ratio` bounds it from below. The evidence counts them by
        stochastic Lanczos quadrature, with its error.

        An operator in float32 is tried as it is. Where rounding hides directions to which data add more than 3 % of the prior's
        precision, all is computed again in float64, if the operator runs in it: data that determine a direction ten million
        times better than the prior may hide, in float32, those that they determine up to a hundred times better. How much
        is hidden is measured by products in both. Directions are kept in the operator's dtype.

        Raises:
            EvidenceError: If the evidence determines no noise or prior.
        """
        dtype = problem.vector.dtype
        settings = {"rank": self.rank, "seed": seed, "tolerance": TOLERANCE[dtype], "show_progress": show_progress}
        problem, truncated = _resolved(problem, **settings)
        if problem.given.learns_layers:
            priors, noise_scale = _layered(problem, truncated)
            problem, truncated = _resolved(replace(problem, given=Given(noise=noise_scale, prior=priors)), **settings)
        if self.rank is None and truncated.next_ratio > 1.0:
            warn(
                f"low rank stopped at {len(truncated.ratios)} directions; data add {truncated.next_ratio:.3g} times "
                "the prior's precision along the next, so variances are too large by up to that factor: give "
                "LowRank(rank=...), or see variance_bounds",
                ConvergenceWarning,
            )
        scale = truncated.scale
        captured = float(truncated.pairs.values.clamp_min(0.0).sum())
        whole = captured if truncated.rest is None else truncated.rest.trace(lambda nodes: nodes)[0]
        return WeightPosterior(
            root=LowRankWeights(
                problem.prior_std / math.sqrt(scale),
                truncated.pairs.vectors.to(dtype),
                factors=(1.0 + truncated.ratios).rsqrt(),
            ),
            noise=truncated.noise_scale,
            prior_precision=torch.full_like(problem.prior_std, scale)
            if problem.prior is None
            else problem.prior.to(problem.prior_std),
            log_evidence=truncated.evidence.value(noise=truncated.noise_scale, prior=scale),
            evidence_error=truncated.error,
            report={
                "rank": float(len(truncated.ratios)),
                "smallest_ratio": float(truncated.ratios[-1]) if len(truncated.ratios) else 0.0,
                "next_ratio": truncated.next_ratio,
                "captured_energy": captured / whole if whole > 0 else 1.0,
            },
        )


def _resolved(problem: WeightProblem, **settings: Any) -> tuple[WeightProblem, Truncation]:
    """Truncate in the operator's dtype, and in float64 where that hides too much; return the problem in the dtype it took."""
    precise = problem.in_double_precision
    start = None
    if precise is not problem:
        truncated, pairs = truncate(problem, precise=precise, **settings)
        if truncated is not None:
            return problem, truncated
        start = pairs.vectors.to(torch.float64)
    truncated, _ = truncate(precise, start=start, **settings)
    assert truncated is not None
    return precise, truncated


def truncate(
    problem: WeightProblem,
    *,
    rank: int | None,
    seed: int,
    tolerance: float,
    start: Float[Tensor, "P k"] | None = None,
    precise: WeightProblem | None = None,
    show_progress: bool = False,
) -> tuple[Truncation | None, Eigenpairs]:
    """Grow the span until the next direction carries less than the prior, or to the rank that is asked for.

    Args:
        problem: What to truncate, in the dtype to do it in.
        rank: Directions, or None.
        seed: Of random starts and probes.
        tolerance: Relative residual of eigenpairs.
        start: Directions near the wanted ones.
        precise: The problem in float64, against which rounding is held.
        show_progress: Whether to show a bar.

    Returns:
        The truncation, or None as soon as rounding is seen to hide too much; and the pairs.
    """
    size = problem.layout.size
    largest = min(size, LARGEST_RANK)
    width = min(size, rank) if rank is not None else min(largest, _FIRST_RANK)
    with tqdm(desc="curvature", unit="product", disable=not show_progress, leave=False) as bar:

        def product(vectors: Tensor) -> Tensor:
            result = problem.product(vectors)
            bar.update(len(vectors))
            return result

        while True:
            _expect(bar, _PRODUCTS_PER_PAIR * width + _PROBES * _USUAL_STEPS)
            pairs = top_eigenpairs(
                product,
                size,
                rank=width,
                seed=seed,
                start=start,
                tolerance=tolerance,
                max_products=None if precise is None else _PRODUCTS_PER_PAIR * width + 16,
                like=problem.vector,
            )
            if precise is not None and not pairs.is_converged:
                return None, pairs
            _expect(bar, _PROBES * _USUAL_STEPS)
            # What is below a Lanczos residual is found in float64 alone.
            is_enough = precise is None or (rank is not None and len(pairs.values) == width)
            result = _learn(problem, product, pairs, seed=seed, most_hidden=math.inf if is_enough else _HIDDEN)
            if precise is not None and result.hidden_ratio > _HIDDEN:
                hidden = _rounding(problem, precise, pairs, seed=seed) if is_enough else math.inf
                result = replace(result, hidden=hidden)
                if result.hidden_ratio > _HIDDEN:
                    return None, pairs
            if rank is not None or width >= largest or result.next_ratio < 1.0:
                return result, pairs
            width, start = min(largest, 2 * width), pairs.vectors


@torch.no_grad()
def _rounding(problem: WeightProblem, precise: WeightProblem, pairs: Eigenpairs, *, seed: int) -> float:
    """Three times the largest error of products with vectors off the pairs, from one step of a power iteration on the error."""
    span = orthonormal(pairs.vectors.to(torch.float64).mT)
    errors = gaussian(4, problem.layout.size, generator=stream(seed, "rounding of products"), like=span)
    for _ in range(2):
        rows = orthonormal(errors, against=span).to(problem.vector.dtype)
        errors = problem.product(rows).to(torch.float64) - precise.single_product(rows.to(torch.float64))
        errors = errors - (errors @ span.mT) @ span
    return 3.0 * float(torch.linalg.matrix_norm(errors, 2))


def _expect(bar: tqdm[None], more: int) -> None:
    """Tell a bar how many products are still to come."""
    bar.total = bar.n + more
    bar.refresh()


def _learn(problem: WeightProblem, product: Map, pairs: Eigenpairs, *, seed: int, most_hidden: float) -> Truncation:
    """Learn what is not given, counting the directions left out by their spectral measure."""
    left = problem.layout.size - len(pairs.values)
    if left == 0 or pairs.next_value <= 0:
        known = pairs.values.clamp_min(0.0).cpu()
        values = torch.cat([known, known.new_zeros(min(left, 1))])
        multiplicities = torch.cat([torch.ones_like(known), known.new_full((min(left, 1),), float(left))])
        return _learned(problem, pairs, None, problem.evidence(values, multiplicities))
    last: Truncation | None = None

    def is_settled(measure: SpectralMeasure) -> bool:
        """Whether more steps would hardly move what is learned from the measure, or serve nobody."""
        nonlocal last
        before = last
        try:
            last = _learned(problem, pairs, measure, _evidence_of(problem, measure))
        except EvidenceError:  # more steps may find a maximum
            last = None
        return last is not None and (last.hidden_ratio > most_hidden or (before is not None and last.agrees(before)))

    rest = spectral_density(
        product,
        problem.layout.size,
        probes=_PROBES,
        steps=min(_STEPS, left),
        seed=seed,
        deflate=pairs,
        is_settled=is_settled,
        like=problem.vector,
    )
    return _learned(problem, pairs, rest, _evidence_of(problem, rest))


def _evidence_of(problem: WeightProblem, rest: SpectralMeasure) -> Evidence:
    """Evidence of eigenvalues that are known and of the measure of the others."""
    known = rest.deflated.clamp_min(0.0).cpu()
    values = torch.cat([known, rest.nodes.flatten().cpu()])
    return problem.evidence(values, torch.cat([torch.ones_like(known), rest.weights.flatten().cpu() / len(rest.weights)]))


def _learned(problem: WeightProblem, pairs: Eigenpairs, rest: SpectralMeasure | None, evidence: Evidence) -> Truncation:
    """Maximise the evidence in what is not given."""
    noise_scale, scale = evidence.maximise(noise=problem.noise, prior=None if problem.prior is None else 1.0)
    largest = float(pairs.values[0]) if len(pairs.values) else 0.0
    hidden = _ROUNDING * torch.finfo(pairs.vectors.dtype).eps * largest
    return Truncation(pairs=pairs, rest=rest, evidence=evidence, noise_scale=noise_scale, scale=scale, hidden=hidden)


def _layered(problem: WeightProblem, truncated: Truncation) -> tuple[Float64[Tensor, " P"], float]:
    """One prior precision per layer, from the directions truncated: a determinant of their number, whatever that of weights."""
    root = truncated.pairs.vectors.to(torch.float64) * truncated.pairs.values.clamp_min(0.0).sqrt()
    groups = problem.groups
    count = len(problem.layout.names)
    grams = torch.stack([root[groups == layer].mT @ root[groups == layer] for layer in range(count)]).cpu()
    sizes = torch.bincount(groups.cpu(), minlength=count).to(torch.float64)

    def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
        matrix = torch.einsum("l,lij->ij", torch.exp(-log_priors - log_noise), grams)
        values = torch.linalg.eigvalsh(matrix).clamp_min(0.0)  # in a search, large ones may hide the identity
        return values.log1p().sum() + (sizes * log_priors).sum()

    layered = problem.layered(log_determinant)
    noise_scale, priors = layered.maximise(start=(truncated.noise_scale, truncated.scale), noise=problem.noise)
    return priors.to(groups.device)[groups], noise_scale


@dataclass(frozen=True, kw_only=True)
class Iterative(Structure):
    """Nothing is assumed, for any number of parameters: draws solve linear systems over the training data.

    A draw has a random number for every value of the training outputs, so memory grows with their number: some thousand
    functions, not a million. Several processes each do all of it.

    Args:
        rank: Directions of the preconditioner; by default they grow until the next one carries less than the prior.

    Raises:
        ArgumentError: If `rank` is not a positive integer.
    """

    name: ClassVar[str] = "iterative"
    is_sum: ClassVar[bool] = False
    rank: int | None = None

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Learn hyper-parameters from a low-rank structure, which then preconditions.

        Raises:
            EvidenceError: If the evidence determines no noise or prior.
        """
        problem = problem.in_double_precision.with_own_inputs()
        truncated = LowRank(rank=self.rank).fit(problem, seed=seed, show_progress=show_progress)
        root = truncated.root
        assert isinstance(root, LowRankWeights)
        noise = truncated.noise
        ratios = root.factors.reciprocal().square() - 1.0
        prior_std = root.prior_std.to(problem.vector)
        weight = (problem.weights / noise).sqrt().to(problem.vector)
        shape = (problem.data.functions, *weight.shape)

        def forward(vectors: Tensor) -> Tensor:
            return (jacobian_vector_product(problem.curvature, problem.vector, vectors * prior_std) * weight).flatten(1)

        def transposed(numbers: Tensor) -> Tensor:
            values = numbers.unflatten(-1, shape) * weight
            return vector_jacobian_product(problem.curvature, problem.vector, values) * prior_std

        inputs = in_memory(problem.data.inputs)
        return WeightPosterior(
            root=IterativeWeights(
                forward,
                transposed,
                observations=math.prod(shape),
                prior_std=prior_std,
                name=digest(problem.vector, prior_std, weight, inputs.values),
                preconditioner=LowRankUpdate(root.directions.mT, 1.0 / (ratios + 1.0)).product,
                tolerance=1e-4 if prior_std.dtype == torch.float32 else 1e-9,
            ),
            noise=noise,
            prior_precision=truncated.prior_precision,
            log_evidence=truncated.log_evidence,
            evidence_error=truncated.evidence_error,
            report={"preconditioner_rank": truncated.report["rank"]},
        )
