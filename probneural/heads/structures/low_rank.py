"""Low rank plus prior: the directions that data determine most, found by block Lanczos; everywhere else the prior stays."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.curvature.lanczos import Eigenpairs, top_eigenpairs
from probneural.curvature.quadrature import SpectralMeasure, spectral_density
from probneural.curvature.weight_roots import LowRankWeights
from probneural.heads.evidence import Evidence
from probneural.heads.front import WeightProblem
from probneural.heads.structures.settings import Settings
from probneural.heads.weights import WeightPosterior

LARGEST_RANK = 512
"""Rank at which growth stops by itself."""
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-6}
"""Relative residual of eigenpairs, by the operator's own dtype; variances err by its square over the gaps."""
_FIRST_RANK = 32
_ROUNDING = 50.0
"""Eigenvalues below this many roundings of the largest one cannot be seen."""
_PROBES = 8
_STEPS = 40


@dataclass(frozen=True, eq=False)
class Truncation:
    """Eigenpairs of the whitened curvature with the hyper-parameters they lead to.

    Attributes:
        pairs: At level 1.
        rest: Spectral measure of what they leave out, or None if that is nothing.
        evidence: Of both together.
        level: Noise level.
        scale: Prior precision in whitened units; 1 if the prior is given.
    """

    pairs: Eigenpairs
    rest: SpectralMeasure | None
    evidence: Evidence
    level: float
    scale: float

    @property
    def next_ratio(self) -> float:
        """Precision that data add along the first direction left out, over the prior's; what rounding may hide counts."""
        largest = float(self.pairs.values[0]) if len(self.pairs.values) else 0.0
        hidden = _ROUNDING * torch.finfo(self.pairs.vectors.dtype).eps * largest
        left = self.pairs.vectors.shape[0] - len(self.pairs.values)
        return max(self.pairs.next_value, hidden) / (self.level * self.scale) if left else 0.0

    @property
    def ratios(self) -> Float64[Tensor, " r"]:
        """The same along the directions kept."""
        return self.pairs.values.clamp_min(0.0) / (self.level * self.scale)


def fit(problem: WeightProblem, settings: Settings) -> WeightPosterior:
    """Find eigenpairs of the whitened curvature, to a given rank or until the next carries less than the prior.

    The directions left out keep their prior, which bounds their variance from above. Data add at most `next_ratio` times the
    prior's precision there, so dividing by 1 + `next_ratio` bounds it from below. The evidence counts them by stochastic
    Lanczos quadrature, with its error.

    Everything is computed in float64 where the operator runs in it, and the directions kept in the operator's dtype.

    Raises:
        EvidenceError: If the evidence determines no noise or prior.
    """
    dtype = problem.vector.dtype
    problem = problem.in_double_precision
    found = truncate(problem, settings, tolerance=TOLERANCE[dtype])
    if problem.learns_layers:
        priors, level = _layered(problem, found)
        problem = replace(problem, prior=priors, noise=level, learns_layers=False)
        found = truncate(problem, settings, tolerance=TOLERANCE[dtype])
    if settings.rank is None and found.next_ratio > 1.0:
        warnings.warn(
            f"low rank stopped at {len(found.ratios)} directions; data add {found.next_ratio:.3g} times the prior's precision "
            "along the next, so variances are too large by up to that factor: give rank=, or see variance_bounds",
            stacklevel=2,
        )
    scale = found.scale
    rest, error = 0.0, 0.0
    if found.rest is not None:
        rest = found.rest.remainder(lambda nodes: nodes)[0]
        error = 0.5 * found.rest.remainder(lambda nodes: torch.log1p(nodes / (found.level * scale)))[1]
    captured = float(found.pairs.values.clamp_min(0.0).sum())
    return WeightPosterior(
        root=LowRankWeights(problem.spread / math.sqrt(scale), found.pairs.vectors.to(dtype), (1.0 + found.ratios).rsqrt()),
        noise=found.level,
        prior_precision=torch.full_like(problem.spread, scale) if problem.prior is None else problem.prior.to(problem.spread),
        log_evidence=found.evidence.value(noise=found.level, prior=scale),
        evidence_error=error,
        report={
            "rank": float(len(found.ratios)),
            "smallest_ratio": float(found.ratios[-1]) if len(found.ratios) else 0.0,
            "next_ratio": found.next_ratio,
            "captured_energy": captured / (captured + rest) if captured + rest > 0 else 1.0,
        },
    )


def truncate(problem: WeightProblem, settings: Settings, *, tolerance: float) -> Truncation:
    """Grow the span until the next direction carries less than the prior, or to the rank that is asked for."""
    size = problem.layout.size
    largest = min(size, LARGEST_RANK)
    rank = min(size, settings.rank) if settings.rank is not None else min(largest, _FIRST_RANK)
    start = None
    while True:
        pairs = top_eigenpairs(
            problem.product,
            size,
            rank=rank,
            seed=settings.seed,
            start=start,
            tolerance=tolerance,
            progress=settings.progress,
            **problem.place,
        )
        found = _learn(problem, pairs, settings)
        if settings.rank is not None or rank >= largest or found.next_ratio < 1.0:
            return found
        rank, start = min(largest, 2 * rank), pairs.vectors


def _learn(problem: WeightProblem, pairs: Eigenpairs, settings: Settings) -> Truncation:
    """Learn what is not given, counting the directions left out by their spectral measure."""
    size, known = problem.layout.size, pairs.values.clamp_min(0.0).cpu()
    values, multiplicities, rest = known, torch.ones_like(known), None
    left = size - len(known)
    if left > 0 and pairs.next_value > 0:
        steps = min(_STEPS, left)
        rest = spectral_density(
            problem.product, size, probes=_PROBES, steps=steps, seed=settings.seed, deflate=pairs, **problem.place
        )
        values = torch.cat([known, rest.nodes.flatten().cpu()])
        multiplicities = torch.cat([multiplicities, rest.weights.flatten().cpu() / rest.weights.shape[0]])
    elif left > 0:
        values = torch.cat([known, known.new_zeros(1)])
        multiplicities = torch.cat([multiplicities, known.new_full((1,), float(left))])
    evidence = Evidence(
        eigenvalues=values,
        observations=problem.observations,
        energy=problem.energy,
        squared_norm=float(problem.whitened_centre.square().sum()),
        multiplicities=multiplicities,
    )
    level, scale = evidence.maximise(noise=problem.noise, prior=None if problem.prior is None else 1.0)
    return Truncation(pairs=pairs, rest=rest, evidence=evidence, level=level, scale=scale)


def _layered(problem: WeightProblem, found: Truncation) -> tuple[Float64[Tensor, " P"], float]:
    """One prior precision per layer, from the directions found: a determinant of their number, whatever that of weights."""
    root = found.pairs.vectors.to(torch.float64) * found.pairs.values.clamp_min(0.0).sqrt()
    groups = problem.groups
    count = len(problem.layout.names)
    grams = torch.stack([root[groups == layer].mT @ root[groups == layer] for layer in range(count)]).cpu()
    sizes = torch.bincount(groups.cpu(), minlength=count).to(torch.float64)

    def log_determinant(log_noise: Tensor, log_priors: Tensor) -> Tensor:
        matrix = torch.einsum("l,lij->ij", torch.exp(-log_priors - log_noise), grams)
        identity = torch.eye(matrix.shape[0], dtype=matrix.dtype)
        gain = 2.0 * torch.linalg.cholesky(identity + matrix).diagonal().log().sum()
        return gain + (sizes * log_priors).sum()

    layered = problem.layered(log_determinant)
    level, priors = layered.maximise(start=(found.level, found.scale), noise=problem.noise)
    return priors.to(groups.device)[groups], level
