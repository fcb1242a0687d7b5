"""Units of work that are one problem of the main benchmark under one seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from benchmarks import environment, exact, kept_units
from benchmarks.sources import ProblemSource

SEEDS = 5
"""Of a run that does not say how many."""


@dataclass(frozen=True)
class ProblemUnit(kept_units.Unit):
    """One problem under one seed; a benchmark's own unit says what is done, by `run`.

    Attributes:
        problem: Its name in `exact`.
        seed: Of functions and weights.
        commit: Of the code.
        is_small: Whether it takes seconds and means nothing.
    """

    problem: str
    seed: int
    commit: str
    is_small: bool = False

    @classmethod
    def planned(cls, mode: str, problem: str | None, *, seeds: int | None) -> list[Self]:
        """Units of a run, seed by seed, so that one that was cut off has all problems; of one problem if it is small.

        Args:
            mode: `default` or `small`.
            problem: How names of problems begin, or None for all.
            seeds: How many; None: five, one if it is small.

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
        """The problem, sizes and recipes."""
        return exact.chosen("small" if self.is_small else "full", problem=self.problem)[0]

    @property
    def source(self) -> ProblemSource:
        """Where its functions come from."""
        assert isinstance(self.case.source, ProblemSource)
        return self.case.source

    @property
    def settings(self) -> tuple[object, ...]:
        """What results depend on beyond the fields."""
        return (self.case,)


def chosen(problem: str | None) -> list[str]:
    """Names of the problems of a run.

    Raises:
        ValueError: If no problem's name begins so.
    """
    return [case.source.name for case in exact.chosen("full", problem=problem)]
