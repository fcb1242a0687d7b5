"""Ranking of errors by standard deviations: rank correlations and sparsification."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_integer
from probneural.errors import DataError
from probneural.metrics.comparison import Comparison, check_comparison, flat_values, flat_weights
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
        totals = [_total(comparison, std)]
        errors = [comparison.residual, *self._drawn(comparison)]
        totals += [_total(comparison, error) for error in errors]
        parts: list[tuple[slice, Tensor]] = [(slice(None), inside)]
        if comparison.grid.is_batch:
            parts = [(slice(row, row + 1), points) for row, points in enumerate(inside)]
        within = [std.new_zeros(std.shape[1]) for _ in errors]
        for rows, points in parts:
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


def _total(comparison: Comparison, values: Tensor) -> Tensor:
    """Root mean squares over the domain, `(c, n)`."""
    return comparison.average(values.square()).sqrt().mT


def _ranks(values: Tensor) -> Tensor:
    """Ranks along the last axis, mean ones at ties, about their mean."""
    from scipy.stats import rankdata  # loads much of SciPy

    ranks = torch.as_tensor(rankdata(values.cpu().numpy(), axis=-1), dtype=torch.float64, device="cpu")
    return (ranks - ranks.mean(-1, keepdim=True)).to(values.device)


def _correlation(first: Tensor, second: Tensor) -> Tensor:
    """Correlation of ranks along the last axis; 0 where one of the two does not vary."""
    norm = first.norm(dim=-1) * second.norm(dim=-1)
    return torch.where(norm > 0, (first * second).sum(-1) / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0.0)


class SparsificationError(NamedTuple):
    """Areas under the sparsification error curve: 0 if uncertainties rank as errors do; smaller is better.

    Attributes:
        values: Over the values of all functions, `(c,)`, dimensionless.
        functions: Over whole functions, by root mean squares over the domain, `(c,)`, dimensionless.
        constant_values: `values` of a constant standard deviation, `(c,)`; a random order has as much, or a little less.
        constant_functions: `functions` of one, `(c,)`.
    """

    values: Float64[Tensor, " c"]
    functions: Float64[Tensor, " c"]
    constant_values: Float64[Tensor, " c"]
    constant_functions: Float64[Tensor, " c"]


def ause(comparison: Comparison) -> SparsificationError:
    """The area under the sparsification error curve (AUSE), of values and of functions.

    Values are left out in the order of their predictive standard deviation, largest first. The root mean squared error of the
    rest, over that of all, is a curve over the fraction left out, from 0 to 1; the same in the order of the errors themselves
    is the oracle's. AUSE is the area between them. It judges the order of standard deviations only: not their size, nor
    whether errors are random. Equal standard deviations share their errors, so a constant one has the area
    of a random order, 1 - the oracle's: compare each value with that.

    Args:
        comparison: Prediction and truth; the standard deviation includes the noise.

    Raises:
        DataError: If `comparison` is none, there are fewer than two functions, or a channel has no error at all.

    Reference:
        Ilg et al. (2018), Uncertainty estimates and multi-hypotheses networks for optical flow, section 5.1. Deviation: root
        mean squared errors, each value with its quadrature weight.

    Examples:
        >>> from probneural import distributions, fields, metrics
        >>> grid = fields.Grid.uniform((2,))
        >>> size = torch.tensor([1.0, 2.0]).reshape(2, 1, 1) * torch.ones(2, 1, 2)
        >>> u = distributions.EmpiricalField(torch.stack([-size, size]), grid=grid)
        >>> right, wrong = (metrics.compare(u, fields.Field(error, grid)) for error in (size - 1.0, 2.0 - size))
        >>> ause(right).functions.item(), round(ause(wrong).functions.item() / 2**0.5, 9)  # (√2 + 1)/4 + √2/2 - 1/4 = .75 √2
        (0.0, 0.75)
    """
    check_comparison(comparison)
    areas = []
    for over_functions in (False, True):
        std, square, weights = _units(comparison, over_functions=over_functions)
        oracle = _area(_curve(square, square, weights))
        areas.append((_area(_curve(std, square, weights)) - oracle, 1.0 - oracle))
    (values, constant_values), (functions, constant_functions) = areas
    return SparsificationError(values, functions, constant_values, constant_functions)


class _Curve(NamedTuple):
    """Nodes: fraction left out, from 0, and error of the rest over that of all; constant after the last one."""

    removed: Float64[Tensor, "c m"]
    error: Float64[Tensor, "c m"]


def _units(comparison: Comparison, *, over_functions: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Variances and squared errors of values or of whole functions, `(c, m)`, and weights of sum one, `(m,)`."""
    count = len(comparison.truth)
    if count < 2:
        raise DataError(expected="at least two functions", got=str(count), remedy="ranks need some")
    parts = comparison.variance, comparison.residual.square()
    if over_functions:
        variance, square = (comparison.average(part).mT for part in parts)
        weights = square.new_full((count,), 1.0 / count)
    else:
        variance, square = (flat_values(comparison, part) for part in parts)
        weights = flat_weights(comparison) / count
    if not bool(((square @ weights) > 0).all()):
        raise DataError(expected="errors in every channel", got="none", remedy="there is nothing to rank")
    return variance, square, weights


def _curve(order: Float64[Tensor, "c m"], square: Float64[Tensor, "c m"], weights: Float64[Tensor, " m"]) -> _Curve:
    """Leave units out by decreasing `order`; those of equal order share their squared errors."""
    ranked, index = order.sort(dim=1, descending=True, stable=True)
    mass = weights[index]
    shared = torch.stack([_shared(*row) for row in zip(ranked, square.gather(1, index), mass, strict=True)])
    zero = mass.new_zeros(len(mass), 1)
    removed = torch.cat([zero, mass.cumsum(1)[:, :-1]], dim=1)
    # sums from the end: what remains is never a difference of large numbers
    remaining, weight = ((part.flip(1).cumsum(1)).flip(1) for part in (shared * mass, mass))
    total = (square @ weights)[:, None]
    return _Curve(removed, (remaining / weight / total).sqrt())


def _shared(order: Float64[Tensor, " m"], square: Float64[Tensor, " m"], mass: Float64[Tensor, " m"]) -> Float64[Tensor, " m"]:
    """Weighted means of squared errors over runs of equal order."""
    run = torch.unique_consecutive(order, return_inverse=True)[1]
    sums = torch.zeros(2, len(order), device="cpu").to(mass).index_add_(1, run, torch.stack([mass * square, mass]))
    return (sums[0] / sums[1])[run]


def _area(curve: _Curve) -> Float64[Tensor, " c"]:
    """Area over [0, 1]: trapezoids between nodes, and a rectangle after the last one."""
    return torch.trapezoid(curve.error, curve.removed, dim=1) + curve.error[:, -1] * (1.0 - curve.removed[:, -1])
