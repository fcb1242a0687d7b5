"""Cubic decay, point by point."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from torch import Tensor

from probneural.grids import Grid
from probneural.problems.base import Evolution, GaussianInputProblem
from probneural.settings import Positive


@dataclass(frozen=True)
class CubicDecay(Evolution, GaussianInputProblem):
    """∂u/∂t = −r u³ on the periodic unit interval: u at time 0 to u / √(1 + 2 r t u²).

    Good values: the default inputs have a standard deviation of 0.6, so r t = 10 damps large
    values and keeps small ones.

    Failure modes: none. The map has no spatial coupling, so it does not test an operator's range.

    Args:
        rate: r, per time and squared unit of the state.
        time: t of the output.
        modes: Highest wavenumber K of the distribution of initial states.
        sigma: Amplitude of the distribution, see `GaussianRandomField`.
        tau: Inverse length scale of the distribution.
        alpha: Smoothness of the distribution.
        design_dim: Coordinates of the design space, at most 2K.

    Raises:
        ArgumentError: If an argument is out of range.
    """

    title: ClassVar[str] = "Cubic decay, rate {problem.rate:g}"
    rate: Positive = 10.0
    _: KW_ONLY
    time: Positive = 1.0

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return values / (1.0 + 2.0 * self.rate * self.time * values.square()).sqrt()
