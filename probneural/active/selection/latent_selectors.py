"""Choose a batch from a pool, one function after another, by what observing each would do to the posterior of the latent.

With xi ~ N(0, I) and rows X_a that standardise the observation of function a, the precision of xi after observing a batch S is
M_S = I + sum over a in S of X_a^T X_a.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.active.selection.candidates import TIE, Candidates
from probneural.active.selection.greedy_selectors import step_size
from probneural.active.selection.pool_features import DEFAULT_SKETCH, FeatureSketch, PoolRows, check_sketch, observation_rows
from probneural.active.selection.selectors import Request, Selector
from probneural.checks import check_variances
from probneural.errors import DataError
from probneural.fields import Field
from probneural.linear_algebra.conditioning import posterior_root, precision_factor
from probneural.linear_algebra.principal_components import eigenpairs

_AT_ONCE = 16
"""Candidates whose reductions of variance are computed at once, those of the largest bounds first."""
_OVERSAMPLING = 2
"""BAIT's forward pass takes so many times the batch, as its authors do."""


@dataclass(frozen=True)
class IntegratedVarianceSelection(Selector):
    """The smallest integrated posterior variance at target functions: tr(T M_S^-1), one function after another.

    T is the average over target inputs of L(a)^T L(a), averaged over the domain and summed over channels in units of their
    variation, for u(a) = mean(a) + L(a) xi: what is left is the expected squared error of the prediction there.

    Args:
        targets: Input functions at which predictions are to become good; all of the pool by default, which costs nothing extra.
        noise: Observation variance, one or one per channel, in physical units squared; the predictor's by default.
        sketch: `latents` bounds the directions of the latent that are followed.

    Raises:
        ArgumentError: If the noise is no number, or not positive.

    Reference:
        Cohn (1996), Neural network exploration using optimal experiment design (active learning by integrated variance).
    """

    targets: Field | None = None
    _: KW_ONLY
    noise: float | Float[Tensor, " c"] | None = None
    sketch: FeatureSketch = DEFAULT_SKETCH

    def __post_init__(self) -> None:
        """Check targets and noise."""
        if self.targets is not None and not isinstance(self.targets, Field):
            raise DataError(
                expected="targets to be a Field of input functions",
                got=type(self.targets).__name__,
                remedy="wrap the tensor: pn.Field(values, grid)",
            )
        _check_settings(self.noise, self.sketch)

    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        view = _view(request, self.noise, self.sketch, targets=self.targets)
        chosen = _smallest_trace(view.rows, view.moment, eligible=request.eligible, count=request.count)
        return request.eligible.completed(chosen, request.count)


@dataclass(frozen=True)
class BAITSelection(Selector):
    """Forward greedy, backward pruned minimum of tr(M_S^-1 F), with F the pool's average Fisher information X_a^T X_a.

    The forward pass takes twice the batch; the backward pass gives back, one by one, the function whose loss raises the trace
    least. F is in units of the noise; apart from that and the pruning it is
    [`IntegratedVarianceSelection`][probneural.active.IntegratedVarianceSelection] over the pool.

    Args:
        noise: Observation variance, one or one per channel, in physical units squared; the predictor's by default.
        sketch: `latents` bounds the directions of the latent that are followed.

    Raises:
        ArgumentError: If the noise is no number, or not positive.

    Reference:
        Ash et al. (2021), Gone fishing: neural active learning with Fisher embeddings, algorithm 1. Deviation: what labelled
        functions say is in the posterior, so that M starts at the identity.
    """

    noise: float | Float[Tensor, " c"] | None = None
    sketch: FeatureSketch = DEFAULT_SKETCH

    def __post_init__(self) -> None:
        """Check the settings."""
        _check_settings(self.noise, self.sketch)

    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        view = _view(request, self.noise, self.sketch)
        fisher = torch.zeros_like(view.moment)
        for part in view.rows.split(step_size(view.rows)):
            flat = part.flatten(0, 1)
            fisher += flat.mT @ flat / len(view.rows)
        forward = _smallest_trace(view.rows, fisher, eligible=request.eligible, count=_OVERSAMPLING * request.count)
        return request.eligible.completed(_pruned(view.rows, fisher, forward, count=request.count), request.count)


def _view(request: Request, noise: float | Tensor | None, sketch: FeatureSketch, *, targets: Field | None = None) -> PoolRows:
    """What observing each function of a request would say of the latent."""
    return observation_rows(
        request.predictor, request.pool, seed=request.seed, targets=targets, query=request.query, noise=noise, sketch=sketch
    )


def _check_settings(noise: float | Tensor | None, sketch: FeatureSketch) -> None:
    """Check that observation variances are positive; their number is checked where channels are known."""
    check_sketch(sketch)
    if noise is not None:
        check_variances(noise, "noise", positive=True)


def _smallest_trace(
    rows: Float64[Tensor, "n r k"], moment: Float64[Tensor, "k k"], *, eligible: Candidates, count: int
) -> list[int]:
    """Take, one after another, the function that lowers tr(moment M_S^-1) most; at most as many as there are."""
    sizes, vectors = eigenpairs(moment)
    half = vectors * sizes.sqrt()
    root = torch.eye(rows.shape[2], dtype=torch.float64)
    available = eligible.available.clone()
    chosen: list[int] = []
    reference = 0.0
    bounds = _ReductionBounds.of(rows)
    for step in range(min(count, len(eligible.fresh))):
        scores = torch.full((len(rows),), -torch.inf, dtype=torch.float64)
        limits = torch.where(available, bounds(root, half), -torch.inf)
        order = limits.argsort(descending=True)
        done, best = 0, -torch.inf
        while done < len(order) and float(limits[order[done]]) >= best - 1e-9 * max(reference, best):
            part = order[done : done + _AT_ONCE]
            scores[part] = _by_chunks(rows[part], partial(_reductions, root=root, half=half))
            scores[~available] = -torch.inf
            done, best = done + len(part), float(scores.max())
        if step == 0:
            reference = float(scores.max())
        index = eligible.best(scores, available, reference=reference)
        chosen.append(index)
        available[index] = False
        root = _observed(root, rows[index])
    return chosen


@dataclass(frozen=True, eq=False)
class _ReductionBounds:
    """Upper bounds of what functions X lower tr(H^T C H), at the cost of a scalar product of k (k + 1) / 2 numbers each.

    tr H^T C X^T (I + X C X^T)^-1 X C H <= tr X^T X C H H^T C, and close to it for functions that say little: most of a pool.

    Args:
        moments: X^T X on and above the diagonal, `(n, k (k + 1) / 2)`.
    """

    moments: Float64[Tensor, "n h"]

    @classmethod
    def of(cls, rows: Float64[Tensor, "n r k"]) -> _ReductionBounds:
        """Form the moments."""
        above = _above_diagonal(rows.shape[2])
        return cls(_by_chunks(rows, lambda part: (part.mT @ part).flatten(1)[:, above]))

    def __call__(self, root: Float64[Tensor, "k k"], half: Float64[Tensor, "k k"]) -> Float64[Tensor, " n"]:
        """The bounds for C = root root^T and H."""
        moved = root @ (root.mT @ half)
        matrix = 2.0 * moved @ moved.mT
        matrix.diagonal().mul_(0.5)
        return self.moments @ matrix.flatten()[_above_diagonal(len(root))]


def _above_diagonal(size: int) -> Int64[Tensor, " h"]:
    """Places of the entries on and above the diagonal of a flattened matrix."""
    row, column = torch.triu_indices(size, size)
    return row * size + column


def _pruned(rows: Float64[Tensor, "n r k"], moment: Float64[Tensor, "k k"], chosen: list[int], *, count: int) -> list[int]:
    """Give back, one by one, the function whose loss raises tr(moment M_S^-1) least."""
    remaining = list(range(len(chosen)))
    grams = rows[chosen].mT @ rows[chosen]
    identity = torch.eye(rows.shape[2], dtype=torch.float64)
    while len(remaining) > count:
        total = identity + grams[remaining].sum(0)
        traces = torch.stack([torch.linalg.solve(total - grams[index], moment).trace() for index in remaining])
        equal = traces <= traces.min() + TIE * moment.trace()
        remaining.pop(int(equal.nonzero()[-1]))  # of equals, the one that came last
    return [chosen[index] for index in remaining]


def _observed(root: Float64[Tensor, "k k"], rows: Float64[Tensor, "r k"]) -> Float64[Tensor, "k k"]:
    """R of the covariance after an observation: R (I + R^T X^T X R)^(-1/2), which stays positive whatever the rounding."""
    moved = rows @ root
    return posterior_root(root, moved.mT @ moved)[0]


def _reductions(
    rows: Float64[Tensor, "n r k"], *, root: Float64[Tensor, "k k"], half: Float64[Tensor, "k k"]
) -> Float64[Tensor, " n"]:
    """How much each function lowers tr(H^T R R^T H): a sum of squares, so that nothing cancels."""
    moved = rows @ root
    factor = precision_factor(moved @ moved.mT)
    return torch.linalg.solve_triangular(factor, moved @ (root.mT @ half), upper=False).square().sum((1, 2))


def _by_chunks(rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    return torch.cat([function(part) for part in rows.split(step_size(rows))])
