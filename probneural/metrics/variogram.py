"""The variogram score: whether differences between points are as large as stated."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.checks import check_flag, check_integer, check_positive
from probneural.errors import GridError
from probneural.grids import Grid
from probneural.metrics.comparison import Comparison, check_comparison
from probneural.metrics.observed_draws import ObservedDraws
from probneural.metrics.ranked_probability import fair_factor
from probneural.randomness import stream, stream_seed

_DRAWS = 128
"""Draws behind a score that members do not give."""
_PAIRS = 2048
"""Pairs of points that are compared; fields of 64 points have fewer."""


def variogram_score(
    comparison: Comparison,
    *,
    order: float = 0.5,
    pairs: int = _PAIRS,
    draws: int = _DRAWS,
    seed: int = 0,
    is_fair: bool = False,
) -> Float64[Tensor, "n c"]:
    """The variogram score, the mean over pairs of points of (|y_i - y_j|^p - E|X_i - X_j|^p)².

    It sees wrong correlations between points better than the energy score, and does not see the mean: a number added
    everywhere changes nothing. It is proper. Smaller is better.

    Args:
        comparison: Prediction and truth.
        order: p, dimensionless.
        pairs: How many pairs of points at most; of more, that many are drawn in proportion to the product of their
            quadrature weights, the same ones for all functions.
        draws: Number of draws behind the expectation, where members do not give it.
        seed: Makes pairs and draws repeatable.
        is_fair: Whether members count as a sample of the distribution that is scored: their own sampling variance then does
            not count as error.

    Returns:
        `(n, c)`, in physical units to the power 2 p. A fair score can be negative.

    Raises:
        ArgumentError: If the order is not positive, there are no pairs or fewer than two draws, or the seed is none.
        GridError: If the grid has a single point with weight.
        DataError: If a fair score is asked of one member.

    Reference:
        Scheuerer and Hamill (2015), Variogram-based proper scoring rules for probabilistic forecasts of multivariate
        quantities, equation 9. Deviation: a mean weighted by quadrature in place of a sum over all ordered pairs.
    """
    check_comparison(comparison)
    order, draws = check_positive(order, "order"), check_integer(draws, "draws", least=2)
    is_fair, grid = check_flag(is_fair, "is_fair"), comparison.grid
    where = grid.unmasked if grid.is_batch else grid
    first, second, weights = _pairs(where, check_integer(pairs, "pairs"), seed=seed)
    weights = weights.to(comparison.truth)
    if grid.is_batch:  # of each sample, the pairs of which both points are observed
        inside = grid.observed.flatten(1).to(weights.device)
        weights = weights * (inside[:, first] & inside[:, second])
        if not bool((weights.sum(1) > 0).all()):
            raise GridError(expected="two or more observed points", got=repr(grid), remedy="take more pairs, or score the CRPS")
        weights = (weights / weights.sum(1, keepdim=True))[:, None]

    def differences(values: Tensor) -> Tensor:
        flat = values.flatten(-len(comparison.grid.shape))
        return (flat[..., first] - flat[..., second]).abs().pow(order)

    observed = ObservedDraws(
        comparison,
        draws=draws,
        seed=stream_seed(seed, "variogram draws"),
        noise=stream(seed, "variogram noise"),
        takes_members=is_fair,
        width=comparison.truth.shape[1] * len(weights),
    )
    mass, is_sample = observed.weights, is_fair or not observed.are_members
    sampling = fair_factor(mass) * float(mass.square().sum()) if is_sample else 0.0
    scores, start = [], 0
    for drawn, truth in observed:
        each = differences(drawn)  # (s, b, c, pairs)
        mean = torch.tensordot(mass, each, dims=1)
        score = (differences(truth) - mean).square()
        if is_sample:
            score = score - sampling * torch.tensordot(mass, (each - mean).square(), dims=1)
        scores.append((score * weights[start : start + len(truth)]).sum(-1) if grid.is_batch else score @ weights)
        start += len(truth)
    return torch.cat(scores)


def _pairs(grid: Grid, most: int, *, seed: int) -> tuple[Int64[Tensor, " k"], Int64[Tensor, " k"], Float64[Tensor, " k"]]:
    """Pairs of different points and the weights of a mean over them: all pairs, or some of very many."""
    inside = grid.weights.nonzero()[:, 0]
    count, quadrature = len(inside), grid.weights[inside]
    if count < 2:
        raise GridError(expected="two or more points", got=repr(grid), remedy="the CRPS judges a single value")
    if count * (count - 1) // 2 <= most:
        first, second = torch.triu_indices(count, count, offset=1, device="cpu")
        weights = quadrature[first] * quadrature[second]
        return inside[first], inside[second], weights / weights.sum()
    generator = stream(seed, "variogram pairs")
    first, second = quadrature.multinomial(2 * most, replacement=True, generator=generator).unflatten(0, (2, -1))
    while len(twice := (first == second).nonzero()[:, 0]):  # so different ones come as often as the product of their weights
        again = quadrature.multinomial(2 * len(twice), replacement=True, generator=generator)
        first[twice], second[twice] = again.unflatten(0, (2, -1))
    return inside[first], inside[second], torch.full((most,), 1.0 / most, dtype=torch.float64, device="cpu")
