"""What an active learning loop reports: one line for each round."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Round:
    """One round: what was chosen and simulated, and what the operator trained on all of it does.

    Errors are relative L2 errors of the posterior's mean over the test functions; without test functions, over the calibration
    functions that no calibrator has seen, which are random and which training does not see either. Without both they are None,
    as is what is not finite. Seconds are those of the
    process that finished the step, and do not count when two rounds are compared.

    Attributes:
        number: Counts from 0, the random start.
        labels: Functions trained on.
        chosen: Positions in the pool of what was asked for, failures included; in round 0 of the random start.
        simulated: Simulations run, calibration functions included.
        reused: Results that the store had already.
        failed: Simulations without a usable result.
        loss: Last training loss, dimensionless; None if the recipe returns no history.
        error: Mean relative L2 error, dimensionless.
        error_95: Its 95 % quantile over the functions.
        error_99: Its 99 % quantile.
        stated: What the posterior takes that error to be: the mean of ‖predictive standard deviation‖ / ‖truth‖.
        select_seconds: Time of the choice.
        simulate_seconds: Time of the simulations, on the wall.
        train_seconds: Time of the training.
        fit_seconds: Time of fitting the head and its calibration.
    """

    number: int
    labels: int
    chosen: tuple[int, ...]
    simulated: int
    reused: int
    failed: int
    loss: float | None
    error: float | None
    error_95: float | None
    error_99: float | None
    stated: float | None
    select_seconds: float = field(compare=False)
    simulate_seconds: float = field(compare=False)
    train_seconds: float = field(compare=False)
    fit_seconds: float = field(compare=False)


@dataclass(frozen=True)
class LearningHistory:
    """The rounds of an active learning loop, a table that prints.

    Attributes:
        rounds: One entry for each finished round.

    Examples:
        >>> times = {"select_seconds": 0.0, "simulate_seconds": 1.0, "train_seconds": 2.0, "fit_seconds": 0.1}
        >>> first = Round(0, 16, tuple(range(16)), 16, 0, 0, 0.04, 0.2, 0.4, 0.5, 0.1, **times)
        >>> print(LearningHistory((first,)))
        round  labels  simulated  reused  failed   loss  error  95 %  99 %  stated  select s  simulate s  train s  fit s
            0      16         16       0       0  0.0400  0.200  0.400  0.500   0.100       0.0         1.0      2.0    0.1
    """

    rounds: tuple[Round, ...]

    @property
    def labels(self) -> tuple[int, ...]:
        """Functions trained on in each round."""
        return tuple(found.labels for found in self.rounds)

    @property
    def errors(self) -> tuple[float | None, ...]:
        """Mean relative L2 error after each round, dimensionless."""
        return tuple(found.error for found in self.rounds)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a dictionary for each round, by the names of a `Round`: JSON, or the rows of a data frame."""
        return [{**asdict(found), "chosen": list(found.chosen)} for found in self.rounds]

    def __len__(self) -> int:
        """Number of finished rounds."""
        return len(self.rounds)

    def __getitem__(self, index: int) -> Round:
        """One round; negative numbers count from the end."""
        return self.rounds[index]

    def __str__(self) -> str:
        """A table of text."""
        return "\n".join(_aligned([[name for name, _ in _COLUMNS], *self._cells()]))

    def _repr_html_(self) -> str:
        """A table for notebooks."""

        def row(cells: Sequence[str], tag: str) -> str:
            return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"

        body = "".join(row(cells, "td") for cells in self._cells())
        return f"<table><thead>{row([name for name, _ in _COLUMNS], 'th')}</thead><tbody>{body}</tbody></table>"

    def _cells(self) -> list[list[str]]:
        return [[shown(found) for _, shown in _COLUMNS] for found in self.rounds]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:#.3g}"


_COLUMNS: tuple[tuple[str, Callable[[Round], str]], ...] = (
    ("round", lambda found: str(found.number)),
    ("labels", lambda found: str(found.labels)),
    ("simulated", lambda found: str(found.simulated)),
    ("reused", lambda found: str(found.reused)),
    ("failed", lambda found: str(found.failed)),
    ("loss", lambda found: _number(found.loss)),
    ("error", lambda found: _number(found.error)),
    ("95 %", lambda found: _number(found.error_95)),
    ("99 %", lambda found: _number(found.error_99)),
    ("stated", lambda found: _number(found.stated)),
    ("select s", lambda found: f"{found.select_seconds:.1f}"),
    ("simulate s", lambda found: f"{found.simulate_seconds:.1f}"),
    ("train s", lambda found: f"{found.train_seconds:.1f}"),
    ("fit s", lambda found: f"{found.fit_seconds:.1f}"),
)
"""Headings of the table, and what stands below them."""


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
