"""Whether stated uncertainty is large where errors are: rank correlations, beside what the stated distribution allows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import ArgumentError, DataError
from probneural.metrics.comparison import Comparison
from probneural.randomness import stream, stream_seed

_DRAWS = 16
"""Draws behind the attainable values."""


class RankCorrelation(NamedTuple):
    """Spearman's rank correlations of standard deviation and absolute error, and their expectation if errors were as stated.

    Errors are random, so 1 is out of reach even for a perfect statement: compare each value with the attainable one.

    Attributes:
        across: Between functions, of root mean squares over the domain, `(c,)`, dimensionless.
        within: Between the points of one function, averaged over functions, `(c,)`, dimensionless.
        attainable_across: `across` of errors that are drawn from the stated distribution, `(c,)`.
        attainable_within: `within` of such errors, `(c,)`.
    """

    across: Float64[Tensor, " c"]
    within: Float64[Tensor, " c"]
    attainable_across: Float64[Tensor, " c"]
    attainable_within: Float64[Tensor, " c"]


def rank_correlation(comparison: Comparison, *, draws: int = _DRAWS, seed: int = 0) -> RankCorrelation:
    """Rank correlation of the predictive standard deviation, noise included, with the absolute error.

    A standard deviation that does not vary ranks nothing: its correlation is 0.

    Args:
        comparison: Prediction and truth.
        draws: How many draws of all functions the attainable values are averaged over.
        seed: Makes them repeatable.

    Raises:
        ArgumentError: If there are no draws.
        DataError: If there are fewer than three functions, or three points: ranks then say nothing.

    Reference:
        Spearman (1904), The proof and measurement of association between two things, with mean ranks at ties.

    Examples:
        >>> from probneural import distributions, fields, metrics
        >>> grid = fields.Grid.uniform((4,))
        >>> size = torch.tensor([1.0, 2.0, 3.0]).reshape(3, 1, 1) * torch.ones(3, 1, 4)
        >>> u = distributions.EmpiricalField(torch.stack([-size, size]), grid=grid)
        >>> round(rank_correlation(metrics.compare(u, fields.Field(0.5 * size, grid))).across.item(), 9)
        1.0
    """
    if draws < 1:
        raise ArgumentError(expected="at least one draw", got=str(draws), remedy=f"the default is {_DRAWS}")
    count, points = len(comparison.truth), comparison.grid.size
    if min(count, points) < 3:
        raise DataError(
            expected="at least three functions and three points", got=f"{count} and {points}", remedy="ranks need some"
        )
    across, within = _correlations(comparison, comparison.residual)
    attainable = []
    for number in range(draws):
        drawn = comparison.distribution.rsample((1,), seed=stream_seed(seed, "rank correlation draws", number))[0].detach()
        white = torch.randn(drawn.shape, generator=stream(seed, "rank correlation noise", number), dtype=torch.float64)
        error = drawn.to(comparison.truth) - comparison.mean + comparison.noise.sqrt() * white.to(comparison.truth)
        attainable.append(_correlations(comparison, error))
    mean = [torch.stack(values).mean(0) for values in zip(*attainable, strict=True)]
    return RankCorrelation(across, within, mean[0], mean[1])


def _correlations(comparison: Comparison, error: Tensor) -> tuple[Tensor, Tensor]:
    """Across and within functions, `(c,)` each."""
    std, size = comparison.variance.sqrt(), error.abs()
    totals = [comparison.average(values.square()).sqrt().mT for values in (std, size)]
    across = _spearman(totals[0], totals[1])
    inside = (comparison.grid.weights > 0).to(std.device)
    within = _spearman(std.flatten(2)[..., inside], size.flatten(2)[..., inside])
    return across, within.mean(0)


def _spearman(first: Tensor, second: Tensor) -> Tensor:
    """Spearman's correlation along the last axis; 0 where one of the two does not vary."""
    from scipy.stats import rankdata  # loads much of SciPy

    ranks = [torch.as_tensor(rankdata(values.cpu().numpy(), axis=-1), dtype=torch.float64) for values in (first, second)]
    left, right = (rank - rank.mean(-1, keepdim=True) for rank in ranks)
    norm = left.norm(dim=-1) * right.norm(dim=-1)
    return torch.where(norm > 0, (left * right).sum(-1) / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0.0).to(first.device)
