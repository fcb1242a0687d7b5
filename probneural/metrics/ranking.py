"""Rank correlation of errors and standard deviations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_integer
from probneural.errors import DataError
from probneural.metrics.comparison import Comparison, check_comparison
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
    check_comparison(comparison)
    sums = RankSums(draws=draws, seed=seed)
    sums.add(comparison)
    return sums.result()


class RankSums:
    """What rank correlations follow from, of functions that are given some at a time.

    Root mean squares of every function are kept. The draws behind the attainable values are, from one part to the next, the
    same operators where predictions share a latent; discrepancies start anew.

    Args:
        draws: How many draws of all functions the attainable values are averaged over.
        seed: Makes them repeatable.

    Raises:
        ArgumentError: If there are no draws.
    """

    def __init__(self, *, draws: int = _DRAWS, seed: int = 0) -> None:
        draws = check_integer(draws, "draws")
        self._seed = seed
        self._noise = [stream(seed, "rank correlation noise", number) for number in range(draws)]
        self._count = self._points = 0
        self._totals: list[Tensor] = []  # root mean squares of std, errors and drawn errors, (2 + draws, c, n) each
        self._within: Tensor | None = None  # sums over functions, (1 + draws, c)

    def add(self, comparison: Comparison) -> None:
        """Add some functions."""
        inside = comparison.grid.weights > 0
        self._count, self._points = self._count + len(comparison.truth), int(inside.sum(-1).min())
        if self._points < 3:
            return
        std = comparison.variance.sqrt()
        inside = inside.to(std.device)
        errors = [comparison.residual, *self._drawn(comparison)]
        totals = [comparison.average(values.square()).sqrt().mT for values in (std, *errors)]
        rows_of = [slice(row, row + 1) for row in range(len(inside))] if comparison.grid.is_batch else [slice(None)]
        within = [std.new_zeros(std.shape[1]) for _ in errors]
        for rows, points in zip(rows_of, inside.reshape(len(rows_of), -1), strict=True):
            ranks = _ranks(std[rows].flatten(2)[..., points])
            for number, error in enumerate(errors):
                within[number] = within[number] + _correlation(ranks, _ranks(error[rows].abs().flatten(2)[..., points])).sum(0)
        self._totals.append(torch.stack(totals).cpu())
        part = torch.stack(within)
        self._within = part if self._within is None else self._within + part

    def _drawn(self, comparison: Comparison) -> Iterator[Tensor]:
        """Errors that are drawn from the stated distribution."""
        is_noisy = bool((comparison.noise > 0).any())
        for number, generator in enumerate(self._noise):
            seed = stream_seed(self._seed, "rank correlation draws", number)
            drawn = comparison.distribution.rsample((1,), seed=seed)[0].detach()
            error = drawn.to(comparison.truth) - comparison.mean
            if is_noisy:
                white = torch.randn(drawn.shape, generator=generator, dtype=torch.float64, device="cpu")
                error = error + comparison.noise.sqrt() * white.to(error)
            yield error

    def result(self) -> RankCorrelation:
        """The correlations of all functions so far.

        Raises:
            DataError: If there are fewer than three functions, or three points.
        """
        if min(self._count, self._points) < 3 or self._within is None:
            raise DataError(
                expected="at least three functions and three points",
                got=f"{self._count} and {self._points}",
                remedy="ranks need some",
            )
        ranks = [_ranks(total) for total in torch.cat(self._totals, dim=-1)]
        across = torch.stack([_correlation(ranks[0], error_ranks) for error_ranks in ranks[1:]]).to(self._within)
        within = self._within / self._count
        return RankCorrelation(across[0], within[0], across[1:].mean(0), within[1:].mean(0))


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the last axis, mean ones at ties, about their mean."""
    from scipy.stats import rankdata  # loads much of SciPy

    ranks = torch.as_tensor(rankdata(values.cpu().numpy(), axis=-1), dtype=torch.float64, device="cpu")
    return (ranks - ranks.mean(-1, keepdim=True)).to(values.device)


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    """Correlation of ranks along the last axis; 0 where one of the two does not vary."""
    norm = first.norm(dim=-1) * second.norm(dim=-1)
    return torch.where(norm > 0, (first * second).sum(-1) / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0.0)
