"""Work items of one problem of the main benchmark and one seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks import environment, exact, kept_units
from benchmarks.sources import ProblemSource

SEEDS = 5
"""Default number of seeds."""


@dataclass(frozen=True)
class ProblemUnit(kept_units.Unit):
    """One problem and seed; subclasses define the work in `run`.

    Attributes:
        problem: Name in `exact`.
        seed: Seed of samples and weights.
        commit: Commit of the code.
        is_small: Whether it is a test of the script, in seconds.
    """

    problem: str
    seed: int
    commit: str
    is_small: bool = False

    @classmethod
    def planned(cls, mode: str, problem: str | None, *, seeds: int | None) -> list[Self]:
        """Work items of a run by seed, so that an interrupted run has all problems; one problem in a small run.

        Args:
            mode: `default` or `small`.
            problem: Start of problem names, or None for all.
            seeds: Number of seeds; by default five, one in a small run.

        Raises:
            ValueError: If no problem's name begins so.
        """
        is_small, commit = mode == "small", environment.commit()
        names = chosen(problem)[: 1 if is_small else None]
        repetitions = seeds or (1 if is_small else SEEDS)
        return [cls(name, seed, commit, is_small) for seed in range(repetitions) for name in names]

    @property
    def name(self) -> str:
        """Name in progress messages."""
        return f"{self.problem}, seed {self.seed}"

    @property
    def case(self) -> exact.Case:
        """Problem, sizes and recipes."""
        return exact.chosen("small" if self.is_small else "full", problem=self.problem)[0]

    @property
    def source(self) -> ProblemSource:
        """Distribution of the samples."""
        assert isinstance(self.case.source, ProblemSource)
        return self.case.source

    @property
    def settings(self) -> tuple[object, ...]:
        """Settings of the results beyond the fields."""
        return (self.case,)


def chosen(problem: str | None) -> list[str]:
    """Names of the problems of a run.

    Raises:
        ValueError: If no problem's name begins so.
    """
    return [case.source.name for case in exact.chosen("full", problem=problem)]
