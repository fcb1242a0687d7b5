"""Draws of what is observed of each function, for scores of whole functions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.distributions.empirical import EmpiricalField
from probneural.metrics.comparison import Comparison, RepeatedDraws
from probneural.randomness import stream, stream_seed


class ObservedDraws:
    """Draws of the observation of each function: the members themselves where that will do, else new draws.

    Args:
        comparison: Prediction and truth.
        draws: Number of new draws, where they are needed.
        seed: Makes them repeatable.
        purpose: The stream of the draws' seeds.
        noise_purpose: The stream of the noise.
        takes_members: Whether members are taken once each even where there is noise, which is added to them.

    Attributes:
        are_members: Whether the draws are the members, all of them with their weights.
    """

    def __init__(
        self,
        comparison: Comparison,
        *,
        draws: int,
        seed: int,
        purpose: str,
        noise_purpose: str,
        takes_members: bool = False,
    ) -> None:
        u, is_noisy = comparison.distribution, bool((comparison.noise > 0).any())
        self.are_members = isinstance(u, EmpiricalField) and (takes_members or not is_noisy)
        self._comparison = comparison
        self._draws = len(u.weights) if isinstance(u, EmpiricalField) and self.are_members else draws
        self._repeated = RepeatedDraws(stream_seed(seed, purpose))
        self._white: Tensor | None = None
        if is_noisy:  # one draw of it serves all functions: each one's score has the right distribution
            shape = (self._draws, *comparison.truth.shape[1:])
            generator = stream(seed, noise_purpose)
            self._white = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(comparison.truth)

    def __iter__(self) -> Iterator[tuple[Float64[Tensor, "s c *grid"], Float64[Tensor, " s"]]]:
        """Yield the draws of one function after the other, with their weights."""
        u, truth = self._comparison.distribution, self._comparison.truth
        for index in range(truth.shape[0]):
            if isinstance(u, EmpiricalField) and self.are_members:
                drawn, weights = u.samples[:, index].detach().to(truth), u.weights.to(truth)
            else:
                drawn = self._repeated.of(u.marginal(index), self._draws)[:, 0].to(truth)
                weights = drawn.new_full((self._draws,), 1.0 / self._draws)
            if self._white is not None:
                drawn = drawn + self._comparison.noise[index].sqrt() * self._white
            yield drawn, weights
