"""Low rank plus prior by block Lanczos."""

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
from probneural.curvature.products.functions import jacobian_vector_product
from probneural.curvature.quadrature import SpectralMeasure, spectral_density
from probneural.curvature.weights import LowRankWeights
from probneural.errors import ConvergenceWarning, EvidenceError, warn
from probneural.heads.evidence import Evidence
from probneural.heads.weight_posterior import Structure, WeightPosterior
from probneural.heads.weight_problem import WeightProblem
from probneural.linear_algebra.symmetric_maps import Map, gaussian, gram, orthonormal
from probneural.randomness import stream
from probneural.settings import Count

LARGEST_RANK = 512
"""Maximum rank by default, of many samples."""
LARGEST_ROWS = 900
"""Maximum number of projected outputs, and rank by default, of few samples: variances as accurate as with rank 512."""
_WORK = 2**35
"""Number of rows squared times weights up to which there may be more rows, up to twice as many."""
_ENTRIES = 2**27
"""Maximum number of entries of their rows (512 MiB in float32, and as much for eigenvectors)."""
_PROJECTIONS = 14
"""Minimum number of projections per sample; with fewer, eigenpairs of all samples together are more accurate."""
_TANGENTS = 24
"""Minimum number of random tangents that show the directions in which the outputs of a sample vary."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-6}
"""Relative residual of eigenpairs, by the operator's dtype; errors of variances are its square over the gaps."""
_FIRST_RANK = 32
_ROUNDING = 50.0
"""Eigenvalues below this multiple of epsilon times the largest one are lost in rounding."""
_HIDDEN = 0.03
"""Largest eigenvalue that float32 may hide, relative to the prior precision; bounds the relative error of variances."""
_NEGLIGIBLE = 0.01
"""Ratio of curvature to prior precision of directions that are left out."""
_PROBES = 8
_STEPS = 40
"""Maximum number of Lanczos steps per probe; 10 to 30 usually suffice, unless noise is far below the first omitted value."""
_USUAL_STEPS = 20
_PRODUCTS_PER_PAIR = 4
"""Expected number of products of a progress bar."""
_SETTLED = 0.05
"""Relative change of noise and prior over five steps below which they have converged."""


@dataclass(frozen=True, eq=False)
class Truncation:
    """Truncated eigenpairs of the whitened curvature, and the resulting hyper-parameters.

    Attributes:
        pairs: Eigenpairs at noise scale 1.
        rest: Spectral measure of the orthogonal complement, or None if it is empty.
        evidence: Evidence of both.
        noise_scale: Noise variance, in variance units.
        scale: Prior precision in whitened units; 1 if the prior is given.
        hidden: Largest eigenvalue that rounding may hide.
        lost: Largest ratio of the curvature that projected outputs omit to the posterior precision without it.
        bias: Its contribution to the evidence along the eigenvectors, to first order, in nats.
    """

    pairs: Eigenpairs
    rest: SpectralMeasure | None
    evidence: Evidence
    noise_scale: float
    scale: float
    hidden: float
    lost: float = 0.0
    bias: float = 0.0

    @property
    def next_ratio(self) -> float:
        """Curvature along the first omitted direction, or hidden by rounding, relative to the prior precision."""
        left = self.pairs.vectors.shape[0] - len(self.pairs.values)
        omitted = max(self.pairs.next_value / (self.noise_scale * self.scale), self.hidden_ratio) if left else 0.0
        return max(omitted, self.lost)

    @property
    def hidden_ratio(self) -> float:
        """The same ratio for a direction hidden by rounding."""
        return self.hidden / (self.noise_scale * self.scale)

    @property
    def error(self) -> float:
        """Standard error of the evidence over probes, and the effect of projection, in nats."""
        if self.rest is None:
            return self.bias
        return self.bias + 0.5 * self.rest.remainder(lambda nodes: torch.log1p(nodes / (self.noise_scale * self.scale)))[1]

    def agrees(self, other: Truncation) -> bool:
        """Whether another truncation agrees to 5 %, and in evidence to a quarter of the standard error."""
        values = (result.evidence.value(noise=result.noise_scale, prior=result.scale) for result in (self, other))
        moved = (self.noise_scale / other.noise_scale, self.scale / other.scale)
        difference = abs(operator.sub(*values))
        return all(abs(math.log(ratio)) <= _SETTLED for ratio in moved) and difference <= max(0.25 * self.error, 1e-6)

    @property
    def ratios(self) -> Float64[Tensor, " r"]:
        """The same ratios along the retained directions."""
        return self.pairs.values.clamp_min(0.0) / (self.noise_scale * self.scale)


@dataclass(frozen=True, kw_only=True)
class LowRank(Structure):
    """Leading eigenpairs of the curvature; along the remaining directions the posterior is the prior.

    The variance is an upper bound; see `LaplacePredictor.variance_bounds`.

    Args:
        rank: Number of eigenpairs; by default all above the prior precision, up to 512.

    Raises:
        ArgumentError: If `rank` is not a positive integer.
    """

    name: ClassVar[str] = "low_rank"
    rank: Count | None = None

    def fit(self, problem: WeightProblem, *, seed: int, show_progress: bool) -> WeightPosterior:
        """Find eigenpairs of the whitened curvature, to a given rank or down to the prior precision.

        Omitted directions keep their prior, which bounds their variance from above. Their curvature is at most `next_ratio`
        times the prior precision, so dividing by 1 + `next_ratio` bounds the variance from below. Their contribution to the
        evidence is estimated by stochastic Lanczos quadrature, with its error.

        A float32 operator is tried in float32 first. If rounding hides eigenvalues above 3 % of the prior precision, the
        computation is repeated in float64, if the operator supports it: in float32, an eigenvalue of 1e7 times the prior
        precision may hide eigenvalues up to a hundred times it. Products in both dtypes measure the hidden amount. Directions
        are stored in the operator's dtype.

        With few samples (64 of up to 150,000 weights) and no given rank, the curvature is that of projected outputs, up to
        900: of each sample the directions in which random tangents move it most. Their rows cost one vector-Jacobian product
        of one sample each. The projected curvature is a lower bound, so variances stay upper bounds.

        Raises:
            EvidenceError: If the evidence determines no noise or prior.
        """
        dtype = problem.vector.dtype
        settings = {"rank": self.rank, "seed": seed, "tolerance": TOLERANCE[dtype], "show_progress": show_progress}
        problem, truncated = _resolved(problem, **settings)
        if problem.learns_layers:
            priors, noise_scale = _layered(problem, truncated)
            problem, truncated = _resolved(replace(problem, noise=noise_scale, prior=priors, learns_layers=False), **settings)
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
                "lost_ratio": truncated.lost,
                "captured_energy": captured / whole if whole > 0 else 1.0,
            },
        )


def _resolved(problem: WeightProblem, **settings: Any) -> tuple[WeightProblem, Truncation]:
    """Truncate in the operator's dtype, or in float64 if rounding hides too much; return the problem in that dtype."""
    precise = problem.in_double_precision
    start = None
    rows = _row_count(problem, settings["rank"])
    if rows > 0:
        settings.pop("tolerance")
        projected = _projected(problem, rows, **settings)
        if precise is problem or projected.hidden_ratio <= _HIDDEN:
            return problem, projected
        return precise, _projected(precise, rows, **settings)
    if precise is not problem:
        truncated, pairs = truncate(problem, precise=precise, **settings)
        if truncated is not None:
            return problem, truncated
        start = pairs.vectors.to(torch.float64)
    truncated, _ = truncate(precise, start=start, **settings)
    assert truncated is not None
    return precise, truncated


def _row_count(problem: WeightProblem, rank: int | None) -> int:
    """Number of projected outputs, or 0 if they would be too few for the samples or the rank."""
    size, samples, values = problem.layout.size, problem.data.functions, math.prod(problem.weights.shape[-2:])
    most = min(max(LARGEST_ROWS, math.isqrt(_WORK // size)), 7 * LARGEST_ROWS // 4, _ENTRIES // size)
    if samples * values <= most:
        return samples * values
    least = samples * min(values, _PROJECTIONS if rank is None else _PROJECTIONS // 2)
    most = min(most, size)
    rows = most if rank is None else max(least, 4 * rank)
    return rows if least <= rows <= most else 0


def _projected(problem: WeightProblem, count: int, *, rank: int | None, seed: int, show_progress: bool) -> Truncation:
    """Eigenpairs of the curvature of projected outputs.

    With P_i the leading left singular vectors of sqrt(w) J_i Omega, Omega random, the rows are B = (P_i^T sqrt(w) J_i) and the
    eigenvectors V = B^T U L^(-1/2) with B B^T = U L U^T.
    """
    samples = problem.data.functions
    roots = problem.weights.sqrt().to(problem.vector)
    tangents = min(max(_TANGENTS, 5 * count // (4 * samples)), math.prod(roots.shape[-2:]))
    gigabytes = 2 * count * problem.layout.size * problem.vector.element_size() / 1e9
    description = f"curvature of {problem.layout.size:,} weights, {gigabytes:.1g} GB"
    with tqdm(total=tangents + count, desc=description, unit="product", disable=not show_progress, leave=False) as bar:
        directions = gaussian(tangents, problem.layout.size, generator=stream(seed, "tangents of outputs"), like=problem.vector)
        directions *= problem.prior_std.to(directions)
        moved = []
        for piece in directions.split(problem.curvature.width):
            moved.append(jacobian_vector_product(problem.curvature, problem.vector, piece) * roots)
            bar.update(len(piece))
        left, sizes, _ = torch.linalg.svd(torch.cat(moved).flatten(2).permute(1, 2, 0).to(torch.float64), full_matrices=False)
        first = problem.data.first
        all_sizes = sizes.new_zeros(samples, sizes.shape[1])  # of all processes
        all_sizes[first : first + len(sizes)] = sizes
        problem.data.summed(all_sizes)
        is_kept = all_sizes >= all_sizes.flatten().kthvalue(all_sizes.numel() - count + 1).values
        projections = [
            columns[:, kept].mT.unflatten(1, roots.shape[-2:]).to(roots)
            for columns, kept in zip(left, is_kept[first : first + len(sizes)], strict=True)
        ]
        rows = roots.new_zeros(int(is_kept.sum()), problem.layout.size)
        start = int(is_kept[:first].sum())
        for piece in problem.rows(probes=projections)():
            rows[start : start + len(piece)] = piece
            start += len(piece)
            bar.update(len(piece))
    if problem.data.is_sharded:
        rows = problem.data.summed(rows.to(torch.float64)).to(rows)
    values, mixing = torch.linalg.eigh(gram(rows).cpu())
    values, mixing = values.flip(0), mixing.flip(1)
    accuracy = max(torch.finfo(rows.dtype).eps ** 1.5, _ROUNDING * torch.finfo(torch.float64).eps) * float(values[0])
    is_complete = count == samples * math.prod(roots.shape[-2:])
    # Smaller eigenvalues have eigenvectors that are not orthonormal, which probes must be deflated by.
    is_resolved = values > (accuracy if is_complete else max(accuracy, 1e-12 * float(values[0])))
    values, mixing = values[is_resolved], mixing[:, is_resolved]
    vectors = rows.mT @ (mixing * values.rsqrt()).to(rows)
    del rows
    pairs = Eigenpairs(
        values=values.to(vectors.device),
        vectors=vectors,
        residuals=torch.zeros_like(values),
        next_value=0.0 if is_complete or len(values) == problem.layout.size else accuracy,
        is_converged=True,
        products=tangents + count,
    )
    result = _learn(problem, problem.single_product, pairs, seed=seed, most_hidden=math.inf, probes=_PROBES // 2)
    result = replace(result, hidden=accuracy)
    rank = min(rank, len(values)) if rank is not None else max(1, int((result.ratios > _NEGLIGIBLE).sum()))
    kept = replace(
        pairs,
        values=pairs.values[:rank],
        vectors=pairs.vectors[:, :rank].contiguous(),  # as files hold them, for equal bits
        next_value=max([*pairs.values[rank : rank + 1].tolist(), 0.0]),
    )
    lost, bias = (0.0, 0.0) if is_complete else _lost(problem, pairs, result, seed=seed)
    return replace(result, pairs=kept, lost=lost, bias=bias)


@torch.no_grad()
def _lost(problem: WeightProblem, pairs: Eigenpairs, learned: Truncation, *, seed: int) -> tuple[float, float]:
    """Largest eigenvalue of C^(1/2) E C^(1/2) by power iteration, and tr(V^T C E V) / 2.

    E = G - V L V^T is the omitted curvature and C = (V L V^T + noise * prior)^-1, so G + noise * prior is at most the first
    plus one times C^-1.
    """
    threshold, span = learned.noise_scale * learned.scale, pairs.vectors
    factors = (1.0 + pairs.values / threshold).rsqrt().to(span)

    def sharpened(rows: Tensor) -> Tensor:
        return rows + ((rows @ span) * (factors - 1.0)) @ span.mT

    def omitted(rows: Tensor) -> Tensor:
        rows = sharpened(rows)
        images = problem.single_product(rows) - ((rows @ span) * pairs.values.to(span)) @ span.mT
        return sharpened(images / threshold)

    latents = gaussian(4, len(factors), generator=stream(seed, "omitted curvature"), like=span)
    images = omitted(latents @ span.mT)
    trace = float((latents * (images @ span)).sum(1).mean())
    for _ in range(3):
        images = omitted(orthonormal(images))
    return float(torch.linalg.matrix_norm(images, 2)), max(0.5 * trace, 0.0)


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
    """Grow the span down to the prior precision, or to a given rank.

    Args:
        problem: The problem, in the dtype of the computation.
        rank: Number of directions, or None.
        seed: Seed of random starts and probes.
        tolerance: Relative residual of eigenpairs.
        start: Approximate eigenvectors.
        precise: The problem in float64, the reference for rounding.
        show_progress: Whether to show a bar.

    Returns:
        The truncation, or None if rounding hides too much; and the pairs.
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
            # Eigenvalues below a Lanczos residual are found in float64 only.
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
    """Three times the largest error of products orthogonal to the pairs, by one power iteration on the error."""
    span = orthonormal(pairs.vectors.to(torch.float64).mT)
    errors = gaussian(4, problem.layout.size, generator=stream(seed, "rounding of products"), like=span)
    for _ in range(2):
        rows = orthonormal(errors, against=span).to(problem.vector.dtype)
        errors = problem.product(rows).to(torch.float64) - precise.single_product(rows.to(torch.float64))
        errors = errors - (errors @ span.mT) @ span
    return 3.0 * float(torch.linalg.matrix_norm(errors, 2))


def _expect(bar: tqdm[None], more: int) -> None:
    """Set the expected number of products of a progress bar."""
    bar.total = bar.n + more
    bar.refresh()


def _learn(
    problem: WeightProblem, product: Map, pairs: Eigenpairs, *, seed: int, most_hidden: float, probes: int = _PROBES
) -> Truncation:
    """Learn the free hyper-parameters, with the spectral measure of omitted directions."""
    left = problem.layout.size - len(pairs.values)
    if left == 0 or pairs.next_value <= 0:
        known = pairs.values.clamp_min(0.0).cpu()
        values = torch.cat([known, known.new_zeros(min(left, 1))])
        multiplicities = torch.cat([torch.ones_like(known), known.new_full((min(left, 1),), float(left))])
        return _learned(problem, pairs, None, problem.evidence(values, multiplicities))
    last: Truncation | None = None

    def is_settled(measure: SpectralMeasure) -> bool:
        """Whether the hyper-parameters have converged, or rounding hides too much for the result to be used."""
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
        probes=probes,
        steps=min(_STEPS, left),
        seed=seed,
        deflate=pairs,
        is_settled=is_settled,
        like=problem.vector,
    )
    return _learned(problem, pairs, rest, _evidence_of(problem, rest))


def _evidence_of(problem: WeightProblem, rest: SpectralMeasure) -> Evidence:
    """Evidence of the known eigenvalues and the spectral measure of the others."""
    known = rest.deflated.clamp_min(0.0).cpu()
    values = torch.cat([known, rest.nodes.flatten().cpu()])
    return problem.evidence(values, torch.cat([torch.ones_like(known), rest.weights.flatten().cpu() / len(rest.weights)]))


def _learned(problem: WeightProblem, pairs: Eigenpairs, rest: SpectralMeasure | None, evidence: Evidence) -> Truncation:
    """Maximise the evidence in the free hyper-parameters."""
    noise_scale, scale = evidence.maximise(noise=problem.noise, prior=None if problem.prior is None else 1.0)
    largest = float(pairs.values[0]) if len(pairs.values) else 0.0
    hidden = _ROUNDING * torch.finfo(pairs.vectors.dtype).eps * largest
    return Truncation(pairs=pairs, rest=rest, evidence=evidence, noise_scale=noise_scale, scale=scale, hidden=hidden)


def _layered(problem: WeightProblem, truncated: Truncation) -> tuple[Float64[Tensor, " P"], float]:
    """One prior precision per layer, from the truncated directions: a determinant of size rank, not number of weights."""
    root = truncated.pairs.vectors.to(torch.float64) * truncated.pairs.values.clamp_min(0.0).sqrt()
    groups = problem.groups
    count = len(problem.layout.names)
    grams = torch.stack([root[groups == layer].mT @ root[groups == layer] for layer in range(count)]).cpu()
    sizes = torch.bincount(groups.cpu(), minlength=count).to(torch.float64)

    def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
        matrix = torch.einsum("l,lij->ij", torch.exp(-log_priors - log_noise), grams)
        values = torch.linalg.eigvalsh(matrix).clamp_min(0.0)  # during a search, large values may hide the identity
        return values.log1p().sum() + (sizes * log_priors).sum()

    layered = problem.layered(log_determinant)
    noise_scale, priors = layered.maximise(start=(truncated.noise_scale, truncated.scale), noise=problem.noise)
    return priors.to(groups.device)[groups], noise_scale
