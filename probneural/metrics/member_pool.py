"""Members and truth: ranks of the truth among exchangeable members, and draws of observations."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_floating, check_least
from probneural.distributions.empirical import EmpiricalField
from probneural.errors import UnsupportedError
from probneural.metrics.comparison import Comparison, RepeatedDraws, check_comparison
from probneural.randomness import check_seed, stream

_CHUNK_NUMBERS = 2**19
"""Numbers of a score's intermediate results in memory (4 MiB in float64)."""


def rank_histogram(comparison: Comparison, *, seed: int = 0) -> Float64[Tensor, "n c ranks"]:
    """Frequency of each rank of the truth among the s members, from below all to above all members.

    If truth and members are exchangeable, the histogram is flat, 1/(s + 1), for any distribution. High at both ends: the
    members' spread is too small; high in the middle: too large; high at one end: members are biased. Among equal values, up to
    rounding, all ranks of the truth have equal probability. With noise, each member gets an independent noise.

    Args:
        comparison: Prediction, an empirical field with equal weights, and truth.
        seed: Seed of the noise.

    Returns:
        `(n, c, s + 1)`, dimensionless, averaged over the domain by quadrature; its sum over ranks is 1. Values of one sample
        are dependent, so a histogram needs many samples.

    Raises:
        UnsupportedError: If the distribution is not empirical, or its weights differ.
        DataError: If there is one member.

    Reference:
        Hamill (2001), Interpretation of rank histograms for verifying ensemble forecasts, section 2.
    """
    check_comparison(comparison)
    return MemberPool(comparison, seed=check_seed(seed)).rank_histogram()


def rank_deviation(histogram: Float64[Tensor, "*batch ranks"]) -> Float64[Tensor, "*batch"]:
    """Reliability index Σ_k |f_k - 1/K| of a histogram of K ranks: 0 if flat, below 2.

    By chance, n independent ranks of calibrated members have about √(2 (K - 1)/(π n)).

    Reference:
        Delle Monache et al. (2006), Probabilistic aspects of meteorological and ozone regional ensemble forecasts, section 4.

    Examples:
        >>> rank_deviation(torch.tensor([0.5, 0.0, 0.0, 0.5]).double()).item()
        1.0
    """
    check_floating(histogram, "histogram")
    return (histogram - 1.0 / histogram.shape[-1]).abs().sum(-1)


class MemberPool:
    """The truth and s members of equal weight, with noise, and their distances from the mean of all s + 1.

    If truth and members are exchangeable, the rank of the truth among the s + 1 distances is uniform for any s and any
    distribution. So the distances of rank level (s + 1) or less are a region with the nominal probability. A band between
    quantiles of the members is too narrow, by some per cent for 32 members.

    Args:
        comparison: Prediction and truth.
        seed: Seed of the noise.

    Raises:
        UnsupportedError: If the distribution is not empirical, or its weights differ.
        DataError: If there is one member.
    """

    def __init__(self, comparison: Comparison, *, seed: int = 0) -> None:
        u = comparison.distribution
        if not isinstance(u, EmpiricalField) or bool((u.weights != u.weights[0]).any()):
            raise UnsupportedError(
                expected="members of equal weight",
                got=f"weights {u.weights.tolist()[:4]}" if isinstance(u, EmpiricalField) else type(u).__name__,
                remedy="use pit_histogram and coverage, or draw members",
            )
        check_least(len(u.weights), 2, "members", remedy="one member has no spread")
        members = u.samples.detach().to(comparison.truth)
        if bool((comparison.noise > 0).any()):
            generator = stream(seed, "rank noise")
            white = torch.randn(members.shape, generator=generator, dtype=torch.float64, device="cpu").to(members)
            members = members + comparison.noise.sqrt() * white
        self._comparison, self._members = comparison, members
        self._all = torch.cat([comparison.truth[None], members])

    @property
    def distances(self) -> Float64[Tensor, "_ n c *grid"]:
        """|value - mean| / sd with mean and sd over truth and members, the truth first; 0 where all are equal."""
        deviation = self._all - self._all.mean(0)
        sd = deviation.square().mean(0).sqrt()
        has_spread = sd > self._comparison.rounding
        return torch.where(
            has_spread, deviation.abs() / torch.where(has_spread, sd, torch.ones_like(sd)), torch.zeros_like(deviation)
        )

    def coverage(self, distances: Float64[Tensor, "_ n c *grid"], *, level: float) -> Float64[Tensor, "n c"]:
        """Fraction of the domain where the truth is among the fraction `level` of smallest distances."""
        return self._comparison.average(inside_fraction(distances, level=level))

    def rank_histogram(self) -> Float64[Tensor, "n c ranks"]:
        """Frequencies of the truth's rank among the members over the domain."""
        gap = self._members - self._comparison.truth
        equal = (gap.abs() <= self._comparison.rounding).sum(0)
        below = ((gap < 0) & (gap.abs() > self._comparison.rounding)).sum(0)
        fraction = 1.0 / (1.0 + equal.to(gap))
        parts = [
            self._comparison.average(
                torch.where((below <= rank) & (rank <= below + equal), fraction, torch.zeros_like(fraction))
            )
            for rank in range(len(self._members) + 1)
        ]
        return torch.stack(parts, dim=-1)


def suprema(distances: Float64[Tensor, "k n c *grid"]) -> Float64[Tensor, "k n"]:
    """Largest distance of each sample over channels and points."""
    return distances.flatten(2).amax(-1)


def inside_fraction(distances: Float64[Tensor, "k *points"], *, level: float) -> Float64[Tensor, "*points"]:
    """Return 1 if the first of k exchangeable distances is among the `level` k smallest ones, else 0.

    If `level` k is no integer, one rank has a value between 0 and 1, the mean of a randomised region.

    Examples:
        >>> inside_fraction(torch.tensor([[0.2], [0.1], [0.3], [0.4]]).double(), level=0.375).item()
        0.5
    """
    closer = (distances[1:] < distances[:1]).sum(0).to(distances)
    return (level * len(distances) - closer).clamp(0.0, 1.0)


class ObservedDraws:
    """Draws of the observations of all samples, for one pass: the members of an ensemble, else new draws.

    Args:
        comparison: Prediction and truth.
        draws: Number of new draws.
        seed: Seed of the draws, from the score's random stream.
        noise: Generator of the noise.
        takes_members: Whether to use each member once with added noise; by default noise requires new draws.
        width: Size of the score's intermediate results per draw and sample; it limits the samples per batch.

    Attributes:
        are_members: Whether the draws are the members with their weights.
        weights: Weights of the draws with sum 1, `(s,)`.
    """

    def __init__(
        self, comparison: Comparison, *, draws: int, seed: int, noise: torch.Generator, takes_members: bool = False, width: int
    ) -> None:
        u, is_noisy = comparison.distribution, bool((comparison.noise > 0).any())
        self.are_members = isinstance(u, EmpiricalField) and (takes_members or not is_noisy)
        if isinstance(u, EmpiricalField) and self.are_members:
            self.weights = u.weights.to(comparison.truth)
        else:
            self.weights = comparison.truth.new_full((draws,), 1.0 / draws)
        self._comparison, self._is_noisy = comparison, is_noisy
        self._repeated, self._noise = RepeatedDraws(seed), noise
        self._samples = max(1, _CHUNK_NUMBERS // (len(self.weights) * width))

    def __iter__(self) -> Iterator[tuple[Float64[Tensor, "s b c *grid"], Float64[Tensor, "b c *grid"]]]:
        """Yield draws and truth of consecutive samples, some at a time."""
        truth, white = self._comparison.truth, None
        for rows, values in self._pieces():
            drawn = values.to(truth)
            if self._is_noisy:
                # All samples can share the noise of many draws: each score has the right distribution. With few members, shared
                # noise would not average out.
                shape = drawn.shape if self.are_members else (len(drawn), 1, *drawn.shape[2:])
                if white is None or self.are_members:
                    white = torch.randn(shape, generator=self._noise, dtype=torch.float64, device="cpu").to(drawn)
                drawn = drawn + self._comparison.noise[rows].sqrt() * white
            yield drawn, truth[rows]

    def _pieces(self) -> Iterator[tuple[slice, Tensor]]:
        u = self._comparison.distribution
        if not (isinstance(u, EmpiricalField) and self.are_members):
            yield from self._repeated.pieces(u, len(self.weights), samples=self._samples)
            return
        for start in range(0, len(u), self._samples):
            rows = slice(start, start + self._samples)
            yield rows, u.samples[:, rows].detach()
