"""Choose a batch from a pool, one function after another, each far from those before it in posterior features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from probneural.active.selection.candidates import TIE, Candidates
from probneural.active.selection.pool_features import (
    DEFAULT_SKETCH,
    FeatureSketch,
    PoolFeatures,
    check_sketch,
    posterior_features,
)
from probneural.active.selection.selectors import Request, Selector
from probneural.checks import check_choice, check_integer
from probneural.fields import Field
from probneural.randomness import stream_seed

_CHUNK = 2**21
"""Entries of temporary tensors (16 MiB each)."""


@dataclass(frozen=True)
class LCMDSelection(Selector):
    """Largest cluster, maximum distance: the farthest function of the cluster that has most left to tell.

    Every function of the pool belongs to the cluster of its nearest centre, chosen or labelled; a cluster's size is the sum of
    its squared distances. The squared distance of two samples is the posterior variance of u(a) - u(a'), averaged over the
    domain and summed over channels in units of their variation. Samples without variance come after all others.

    Args:
        sketch: How features are kept small.

    Reference:
        Holzmüller et al. (2023), A framework and benchmark for deep batch active learning for regression (LCMD-TP). Deviation:
        features are those of the posterior over functions.
    """

    sketch: FeatureSketch = DEFAULT_SKETCH

    def __post_init__(self) -> None:
        """Check the sketch."""
        check_sketch(self.sketch)

    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        features = _features(request, self.sketch)
        return _largest_clusters(features.pool, features.labelled, eligible=request.eligible, count=request.count)


def _features(request: Request, sketch: FeatureSketch) -> PoolFeatures:
    """Where the functions of a request are, for the posterior."""
    return posterior_features(
        request.predictor, request.pool, seed=request.seed, labelled=request.labelled, query=request.query, sketch=sketch
    )


def farthest_points(
    points: Float64[Tensor, "n d"],
    centres: Float64[Tensor, "m d"],
    *,
    first: Float64[Tensor, " n"],
    available: Bool[Tensor, " n"],
    eligible: Candidates,
    count: int,
) -> Int64[Tensor, " count"]:
    """Take, one after another, the point farthest from all centres and all points taken.

    Args:
        points: Where the functions are.
        centres: Points that count as taken.
        first: Scores that decide the first point where there is no centre.
        available: Which points may be taken; others follow when these are used up.
        eligible: In which order ties and others are taken.
        count: How many.
    """
    available = available.clone()
    nearest = torch.full((len(points),), torch.inf, dtype=torch.float64)
    for centre in centres:
        nearest = torch.minimum(nearest, squared_distances(points, centre))
    chosen: list[int] = []
    reference = 0.0
    for step in range(min(count, int(available.sum()))):
        scores = nearest if len(centres) or step else first
        if step < 2:  # the first distances may come after the first point
            reference = float(scores[available].abs().max())
        index = eligible.best(scores, available, reference=reference)
        chosen.append(index)
        available[index] = False
        nearest = torch.minimum(nearest, squared_distances(points, points[index]))
    return eligible.completed(chosen, count)


def squared_distances(points: Float64[Tensor, "n d"], centre: Float64[Tensor, " d"]) -> Float64[Tensor, " n"]:
    """Squared distances to one point, from differences: nothing cancels."""
    return torch.cat([(part - centre).square_().sum(1) for part in points.split(step_size(points))])


def _largest_clusters(
    points: Float64[Tensor, "n d"], centres: Float64[Tensor, "m d"], *, eligible: Candidates, count: int
) -> Int64[Tensor, " count"]:
    """Take, one after another, the farthest point of the largest cluster."""
    norms = squared_distances(points, torch.zeros_like(points[0]))
    available = _uncertain(norms, eligible)
    member = torch.zeros(len(points), dtype=torch.float64)
    member[torch.cat([eligible.fresh, eligible.spare])] = 1.0
    nearest = torch.full((len(points),), torch.inf, dtype=torch.float64)
    owner = torch.zeros(len(points), dtype=torch.int64)
    number, chosen = 0, []
    for centre in centres:
        nearest, owner = _assigned(points, centre, nearest, owner, number=number)
        number += 1
    reference = 0.0
    for step in range(min(count, int(available.sum()))):
        scores = norms
        if number:
            sizes = torch.zeros(number, dtype=torch.float64).index_add(0, owner, nearest * member)
            in_largest = owner == sizes.argmax()
            usable = bool((available & in_largest & (nearest > 0)).any())
            scores = torch.where(in_largest, nearest, torch.zeros_like(nearest)) if usable else nearest
        if step < 2:  # the first distances may come after the first point
            reference = float(scores[available].max())
        index = eligible.best(scores, available, reference=reference)
        chosen.append(index)
        available[index] = False
        nearest, owner = _assigned(points, points[index], nearest, owner, number=number)
        number += 1
    return eligible.completed(chosen, count)


def _assigned(points: Tensor, centre: Tensor, nearest: Tensor, owner: Tensor, *, number: int) -> tuple[Tensor, Tensor]:
    """Squared distance to, and number of, the nearest centre, after one more."""
    distances = squared_distances(points, centre)
    closer = distances < nearest
    return torch.where(closer, distances, nearest), torch.where(closer, number, owner)


def _uncertain(variances: Float64[Tensor, " n"], eligible: Candidates) -> Bool[Tensor, " n"]:
    """Which functions may be chosen and have a variance beyond rounding."""
    return eligible.available & (variances > TIE * variances.max())


def step_size(values: Tensor) -> int:
    """How many rows of a tensor to take at once."""
    return max(1, _CHUNK // max(1, values[0].numel()))


@dataclass(frozen=True)
class SpaceFillingSelection(Selector):
    """The input function farthest, in L2, from all chosen and labelled ones; predictions play no part.

    Channels count in units of their root mean square deviation from the pool's mean. Without labelled functions the first one
    is the one nearest to that mean. It keeps one copy of the pool in float64, and two while it is made.

    Reference:
        Johnson, Moore and Ylvisaker (1990), Minimax and maximin distance designs; greedy as in Gonzalez (1985).
    """

    def _choose(self, request: Request) -> Int64[Tensor, " count"]:
        pool = request.pool
        labelled = Field(pool.values[:0], pool.grid) if request.labelled is None else request.labelled
        labelled = labelled if labelled.grid == pool.grid else labelled.resample(pool.grid)
        mean_weights = pool.grid.mean_weights.sqrt()
        both = torch.cat([field.values.detach().flatten(2).to("cpu", torch.float64) for field in (pool, labelled)])
        points = (both - both[: len(pool)].mean(0)).mul_(mean_weights)
        del both
        scales = points[: len(pool)].square().sum(2).mean(0).sqrt()
        points = points.div_(torch.where(scales > 0, scales, torch.ones_like(scales))[:, None]).flatten(1)
        central = -squared_distances(points[: len(pool)], torch.zeros_like(points[0]))
        pool_points, known_points = points[: len(pool)], points[len(pool) :]
        return farthest_points(
            pool_points,
            known_points,
            first=central,
            available=request.eligible.available,
            eligible=request.eligible,
            count=request.count,
        )


def space_filling_designs(
    count: int, dimension: int, *, seed: int, kind: Literal["sobol", "latin_hypercube"] = "sobol"
) -> Float64[Tensor, "count dimension"]:
    """Points that cover the unit cube more evenly than random ones, for `problem.encode`.

    Args:
        count: How many; Sobol points are balanced at powers of two.
        dimension: Of the cube: `problem.design_dim`.
        seed: Of the scrambling.
        kind: `"sobol"`, scrambled (a random linear matrix scramble with a digital shift), or `"latin_hypercube"`, with one
            point in each of `count` slices of every axis.

    Returns:
        `(count, dimension)` in [0, 1), dimensionless.

    Raises:
        ArgumentError: If a number is no positive integer, there are more than 21,201 dimensions of Sobol points, the kind is
            another one, or the seed is none.

    Reference:
        Matoušek (1998), On the L2-discrepancy for anchored boxes; McKay et al. (1979); both by `scipy.stats.qmc`.

    Examples:
        >>> designs = space_filling_designs(5, 2, seed=0, kind="latin_hypercube")
        >>> sorted((designs[:, 0] * 5).int().tolist())
        [0, 1, 2, 3, 4]
    """
    from scipy.stats import qmc  # half a second to import

    count = check_integer(count, "count")
    check_choice(kind, ("sobol", "latin_hypercube"), "kind")
    dimension = check_integer(dimension, "dimension", most=qmc.Sobol.MAXDIM if kind == "sobol" else math.inf)
    named = stream_seed(seed, "designs")
    if kind == "latin_hypercube":
        return torch.from_numpy(qmc.LatinHypercube(dimension, rng=named).random(count))
    # All of a power of two, or SciPy warns; the first of them are the same points.
    return torch.from_numpy(qmc.Sobol(dimension, rng=named).random_base2((count - 1).bit_length())[:count].copy())
