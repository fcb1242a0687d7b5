"""Problems that evolve in time: the state at any times, from the inputs that are states at time 0."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_integer
from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems.base import Problem
from probneural.problems.input_distributions import check_sample_dtype
from probneural.trajectories import FieldTrajectories, check_times


class Evolution(Problem):
    """A problem whose output is the state at `time` of an evolution equation with the input as initial state; abstract.

    The state at any time is the input's first `out_channels` channels moved on, the solution operators are a semigroup,
    S(s + t) = S(s) S(t), and further channels of an input are parameters that do not vary in time.

    Attributes:
        time: Time t of the output; trajectories take explicit times.
        state_first: Whether an input's channels are the state's followed by the parameters.
    """

    state_first: ClassVar[bool] = True

    if TYPE_CHECKING:  # at run time a dataclass would take an inherited property for the default of its field

        @property
        @abstractmethod
        def time(self) -> float:
            """When the output is read."""

    def trajectory(
        self,
        n: int,
        *,
        times: Sequence[float] | NDArray[Any] | Tensor,
        resolution: int | Sequence[int],
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> FieldTrajectories:
        """Draw inputs from the distribution and give the state at each of some times, as exactly as `sample` gives it at one.

        The problem's own `time` is not used. Channels of the start are the state's, then parameters, whichever order an input
        of the problem has them in.

        Args:
            n: Number of trajectories.
            times: Times since the start, positive and ascending, in the problem's units.
            resolution: Points per axis.
            seed: Seed of the draws; the same seed and n give the same functions at every resolution and in `sample`.
            dtype: Dtype of the returned values; the arithmetic is float64.

        Returns:
            States on one grid, on the CPU, computed in chunks of inputs.

        Raises:
            ArgumentError: If n is less than 1, or the times are not finite, positive and ascending.
            ResolutionError: If an axis has fewer points than the distribution needs.
            UnsupportedError: If the output of the problem is not a state at one time.

        Examples:
            >>> from probneural.problems import Heat
            >>> truth = Heat(0.1, dimension=1).trajectory(3, times=[0.1, 0.2], resolution=32, seed=0)
            >>> later = Heat(0.1, dimension=1, time=0.1).solve(truth.at(1))
            >>> bool((later.values - truth.at(2).values).abs().max() < 1e-6)
            True
        """
        check_sample_dtype(dtype)
        n, when, grid = check_integer(n, "n"), check_times(times), self.grid(resolution)
        coefficients = self.input_distribution.draw(n, seed)
        starts = torch.empty(n, self.in_channels, *grid.shape, dtype=dtype)
        values = torch.empty(n, len(when), self.out_channels, *grid.shape, dtype=dtype)
        done = 0
        for part in self._chunks(coefficients, grid):
            rows = slice(done, done + len(part))
            starts[rows] = self._inputs(part, grid)
            for number, states in enumerate(self._solve_coefficients_at(part, grid, when)):
                values[rows, number] = states
            done = rows.stop
        if not self.state_first:
            starts = starts.roll(self.out_channels, dims=1)
        return FieldTrajectories(Field(starts, grid), values, times=when)

    def _solve_coefficients_at(self, coefficients: Tensor, grid: Grid, times: Tensor) -> Iterator[Tensor]:
        """Map coefficients to the states `(n, out_channels, *grid)` at each of ascending times, in order and in float64.

        Override where later states are cheaper from earlier ones.
        """
        for time in times.tolist():
            yield self._at(time)._solve_coefficients(coefficients, grid)

    def _at(self, time: float) -> Evolution:
        """The same problem with another output time."""
        moved: Evolution = replace(self, time=time)  # type: ignore[type-var]
        return moved
