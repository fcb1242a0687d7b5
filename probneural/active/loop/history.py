"""History of an active learning loop: one line for each round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from probneural.displays import html_table
from probneural.registry import stored


@stored()
@dataclass(frozen=True, kw_only=True)
class SimulationCounts:
    """Numbers of a round's simulations.

    Attributes:
        simulated: Simulations run that gave a usable result, calibration functions included.
        reused: Usable results that the store had already.
        failed: Simulations without a usable result, new or in the store.
    """

    simulated: int
    reused: int
    failed: int


@stored()
@dataclass(frozen=True, kw_only=True)
class RoundErrors:
    """Relative L2 errors of a posterior's mean, dimensionless: averages over channels; None where they are unknown.

    Attributes:
        mean: Over the functions.
        quantile_95: 95 % quantile over the functions.
        quantile_99: 99 % quantile.
        stated: The error that the posterior predicts: the mean of ‖predictive standard deviation‖ / ‖truth‖.
    """

    mean: float | None = None
    quantile_95: float | None = None
    quantile_99: float | None = None
    stated: float | None = None


@stored()
@dataclass(frozen=True, kw_only=True)
class RoundSeconds:
    """Seconds of the process that finished a step.

    Attributes:
        select: Time of the choice.
        simulate: Time of the simulations, on the wall.
        train: Time of the training.
        fit: Time of fitting the head and its calibration.
    """

    select: float
    simulate: float
    train: float
    fit: float


@stored()
@dataclass(frozen=True, kw_only=True)
class Round:
    """One round: what was chosen and simulated, and what the operator trained on all of it does.

    Errors are those over the test functions; without test functions, over the calibration functions that no calibrator has
    seen, which are random and which training does not see either. Seconds do not count when two rounds are compared.

    Attributes:
        number: Counts from 0, the random start.
        labels: Functions trained on.
        chosen: Positions in the pool of the requested functions, failures included; in round 0 of the random start.
        simulations: Numbers of its simulations.
        loss: Last training loss, dimensionless; None if it is not finite, or the training function returns no history.
        errors: Errors of the posterior's mean.
        seconds: Durations of its steps.
    """

    number: int
    labels: int
    chosen: tuple[int, ...]
    simulations: SimulationCounts
    loss: float | None
    errors: RoundErrors
    seconds: RoundSeconds = field(compare=False)

    def to_row(self) -> dict[str, Any]:
        """Return all numbers in one dictionary, which JSON can hold; `from_row` undoes it."""
        return {
            "number": self.number,
            "labels": self.labels,
            "chosen": list(self.chosen),
            **asdict(self.simulations),
            "loss": self.loss,
            **{row: getattr(self.errors, name) for row, name in _ERRORS.items()},
            **{f"{name}_seconds": value for name, value in asdict(self.seconds).items()},
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Round:
        """Return the round that `to_row` made a dictionary of."""
        return cls(
            number=row["number"],
            labels=row["labels"],
            chosen=tuple(row["chosen"]),
            simulations=SimulationCounts(**{name: row[name] for name in ("simulated", "reused", "failed")}),
            loss=row["loss"],
            errors=RoundErrors(**{name: row[key] for key, name in _ERRORS.items()}),
            seconds=RoundSeconds(**{name: row[f"{name}_seconds"] for name in ("select", "simulate", "train", "fit")}),
        )


_ERRORS = {"error": "mean", "error_95": "quantile_95", "error_99": "quantile_99", "stated": "stated"}
"""Names of errors in rows, and in `RoundErrors`."""


@stored()
@dataclass(frozen=True)
class LearningHistory:
    """The rounds of an active learning loop, a table that prints.

    Attributes:
        rounds: One entry for each finished round.

    Examples:
        >>> first = Round(
        ...     number=0,
        ...     labels=16,
        ...     chosen=tuple(range(16)),
        ...     simulations=SimulationCounts(simulated=16, reused=0, failed=0),
        ...     loss=0.04,
        ...     errors=RoundErrors(mean=0.2, quantile_95=0.4, quantile_99=0.5, stated=0.1),
        ...     seconds=RoundSeconds(select=0.0, simulate=1.0, train=2.0, fit=0.1),
        ... )
        >>> print(LearningHistory((first,)))
        round  labels  simulated  reused  failed    loss  error   95 %   99 %  stated  select s  simulate s  train s  fit s
            0      16         16       0       0  0.0400  0.200  0.400  0.500   0.100       0.0         1.0      2.0    0.1
    """

    rounds: tuple[Round, ...]

    @property
    def labels(self) -> tuple[int, ...]:
        """Functions trained on in each round."""
        return tuple(entry.labels for entry in self.rounds)

    @property
    def errors(self) -> tuple[float | None, ...]:
        """Mean relative L2 error after each round, dimensionless."""
        return tuple(entry.errors.mean for entry in self.rounds)

    def to_rows(self) -> list[dict[str, Any]]:
        """Return a flat dictionary for each round: JSON, or the rows of a data frame."""
        return [entry.to_row() for entry in self.rounds]

    def __len__(self) -> int:
        """Number of finished rounds."""
        return len(self.rounds)

    def __getitem__(self, index: int) -> Round:
        """One round; negative numbers count from the end."""
        return self.rounds[index]

    def __str__(self) -> str:
        """A table of text."""
        rows = self._cells()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)

    def _repr_html_(self) -> str:
        """The same table."""
        return html_table("Rounds", self._cells())

    def summary(self) -> dict[str, object]:
        """Return numbers of rounds, labels and failed simulations, and the error after the last round."""
        failed = sum(entry.simulations.failed for entry in self.rounds)
        last = (self.labels[-1], _number(self.errors[-1])) if self.rounds else (0, "-")
        return {"rounds": len(self), "labels": last[0], "failed simulations": failed, "relative L2 error": last[1]}

    def _cells(self) -> list[list[str]]:
        """The heading, and a row for each round."""
        rows = [[shown(row[name]) for _, name, shown in _COLUMNS] for row in self.to_rows()]
        return [[heading for heading, _, _ in _COLUMNS], *rows]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:#.3g}"


_COLUMNS: tuple[tuple[str, str, Callable[[Any], str]], ...] = (
    ("round", "number", str),
    *((name, name, str) for name in ("labels", "simulated", "reused", "failed")),
    *((heading, name, _number) for heading, name in (("loss", "loss"), ("error", "error"), ("95 %", "error_95"))),
    *((heading, name, _number) for heading, name in (("99 %", "error_99"), ("stated", "stated"))),
    *((f"{name} s", f"{name}_seconds", "{:.1f}".format) for name in ("select", "simulate", "train", "fit")),
)
"""Headings of the table, the numbers below them, and how those are written."""
