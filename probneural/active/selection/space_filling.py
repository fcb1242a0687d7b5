"""Designs and choices that cover the inputs evenly and ask no predictor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.active.selection.greedy_selectors import farthest_points, squared_distances
from probneural.active.selection.selectors import Request, Selector
from probneural.checks import check_choice, check_integer
from probneural.fields import Field
from probneural.randomness import stream_seed


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
