"""Draws of what is observed of each function, for scores of whole functions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.metrics.comparison import Comparison, RepeatedDraws

_CHUNK_NUMBERS = 2**19
"""Numbers that a score makes of some functions' draws at once (4 MiB in float64)."""


class ObservedDraws:
    """Draws of the observation of each function: the members themselves where that will do, else new draws; for one pass.

    Args:
        comparison: Prediction and truth.
        draws: Number of new draws, where they are needed.
        seed: Random seed of the draws, from a stream of the score's own.
        noise: Where noise is drawn, another one.
        takes_members: Whether members are taken once each even where there is noise, which is added to them.
        width: Numbers that the score makes of one draw of one function; decides how many functions come at once.

    Attributes:
        are_members: Whether the draws are the members, all of them with their weights.
        weights: Of the draws, `(s,)`, summing to 1.
    """

    def __init__(
        self,
        comparison: Comparison,
        *,
        draws: int,
        seed: int,
        noise: torch.Generator,
        takes_members: bool = False,
        width: int,
    ) -> None:
        u, is_noisy = comparison.distribution, bool((comparison.noise > 0).any())
        self.are_members = isinstance(u, EmpiricalField) and (takes_members or not is_noisy)
        if isinstance(u, EmpiricalField) and self.are_members:
            self.weights = u.weights.to(comparison.truth)
        else:
            self.weights = comparison.truth.new_full((draws,), 1.0 / draws)
        self._comparison, self._is_noisy = comparison, is_noisy
        self._repeated, self._noise = RepeatedDraws(seed), noise
        self._functions = max(1, _CHUNK_NUMBERS // (len(self.weights) * width)) if self.are_members or _is_shared(u) else 1

    def __iter__(self) -> Iterator[tuple[Float64[Tensor, "s b c *grid"], Float64[Tensor, "b c *grid"]]]:
        """Yield the draws of some functions, all of them in order, and their truth."""
        u, truth = self._comparison.distribution, self._comparison.truth
        white: Tensor | None = None
        for start in range(0, truth.shape[0], self._functions):
            rows = slice(start, min(start + self._functions, truth.shape[0]))
            if isinstance(u, EmpiricalField) and self.are_members:
                drawn = u.samples[:, rows].detach().to(truth)
            else:
                some = u.marginal(start) if self._functions == 1 else u[rows]
                drawn = self._repeated.of(some, len(self.weights)).to(truth)
            if self._is_noisy:
                # One draw of it serves all functions if there are many: each one's score has the right distribution. That of
                # a few members would not average out.
                shape = drawn.shape if self.are_members else (len(drawn), 1, *drawn.shape[2:])
                if white is None or self.are_members:
                    white = torch.randn(shape, generator=self._noise, dtype=torch.float64, device="cpu").to(drawn)
                drawn = drawn + self._comparison.noise[rows].sqrt() * white
            yield drawn, truth[rows]


def _is_shared(u: FieldDistribution) -> bool:
    """Whether one function takes the same random numbers as several do, so that together they have the draws of each alone."""
    return isinstance(u, GaussianField) and len(u) > 1 and u.base_shape == u[:2].base_shape == u.marginal(0).base_shape
