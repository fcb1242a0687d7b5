"""Plan of an active learning loop: the training of its operator, and the number of simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Any, Protocol, runtime_checkable

from torch import nn

from probneural.checks import assign, check_flag, check_integer, check_real
from probneural.distributions import Predictor
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.pairs import FieldPairs
from probneural.settings import Index, Seed, Settings


def check(holds: bool, expected: str, got: object) -> None:
    """Raise an ArgumentError unless an argument is as expected."""
    if not holds:
        raise ArgumentError(expected=expected, got=repr(got), remedy="see the arguments of the constructor")


Schedule = int | Callable[[int], int]
"""Functions a round adds: a number, or what makes one of the number of labels so far."""


@dataclass(frozen=True)
class Growth(Settings):
    """Rounds that grow with the data: each multiplies the number of labels by a factor.

    The number of trainings then grows like the logarithm of the number of labels.

    Args:
        factor: Labels after a round by labels before it, dimensionless, above 1.

    Raises:
        ArgumentError: If the factor is not above 1, or not finite.

    Examples:
        >>> Growth(2.0)(16), Growth(1.1)(16), Growth(1.1)(1)
        (16, 2, 1)
    """

    factor: Annotated[float, partial(check_real, above=1.0)] = 2.0

    def __call__(self, labels: int) -> int:
        """Functions to add to so many."""
        return max(1, round((self.factor - 1.0) * check_integer(labels, "labels")))


def next_target(schedule: Schedule, labels: int) -> int:
    """The number of labels after the next round.

    Raises:
        ArgumentError: If the schedule adds nothing.
    """
    added = schedule(labels) if callable(schedule) else schedule
    return labels + check_integer(added, f"batch at {labels} labels")


TrainFunction = Callable[..., object]
"""Called as train(operator, pairs, seed=seed); trains the operator in place."""


@runtime_checkable
class Head(Protocol):
    """Interface of a head."""

    def fit(self, operator: Any, data: FieldPairs, /) -> Predictor:
        """Fit the head."""


@runtime_checkable
class Calibrator(Protocol):
    """Interface of a calibrator."""

    def fit(self, predictor: Predictor, calibration: FieldPairs, /) -> Predictor:
        """Fit the calibrator."""


@dataclass(frozen=True, eq=False)
class OperatorTraining:
    """The operator of a loop, and how each round trains it.

    Args:
        operator: The untrained module, which is copied, never changed; None for heads that do without one.
        train: Called as train(operator, pairs, seed=...) before the head is fitted, and trains in place:
            `functools.partial(pn.fit, epochs=50)`, for example. None for heads that train by themselves, as ensembles do.
        warm_start: Whether training goes on from the weights of the round before. Otherwise every round starts from those of
            `operator`, which costs more and can generalise better. Means nothing without `train`.
        every: Rounds from one training to the next. Between trainings the operator is unchanged, and only the head is fitted to
            the new results.

    Raises:
        ArgumentError: If the operator is not a module, there is no operator to train, or `every` is not positive.
    """

    operator: nn.Module | None = None
    train: TrainFunction | None = None
    _: KW_ONLY
    warm_start: bool = True
    every: int = 1

    def __post_init__(self) -> None:
        """Check that what is trained can be."""
        check(self.operator is None or isinstance(self.operator, nn.Module), "an nn.Module or None as operator", self.operator)
        trainable = callable(self.train) and self.operator is not None
        check(self.train is None or trainable, "train with an operator to train", self.train)
        assign(self, warm_start=check_flag(self.warm_start, "warm_start"), every=check_integer(self.every, "every"))


@dataclass(frozen=True, kw_only=True, eq=False)
class LearningPlan(Settings):
    """Sizes of a loop's batches, its candidates, calibration and test functions, and its seed.

    Args:
        initial: Functions of the random start.
        batch: Functions that a round adds: a number, or a function of the number of labels such as `Growth`.
        calibration: Number of calibration functions, simulated beside the labels and not counted among them.
        calibrate: Anything with `fit(predictor, calibration pairs)` that returns a predictor, a `VarianceScale` for example.
            It is fitted on the first half of the calibration functions, so that the others are left for a conformal band. It
            decides about `predictor` and the history; the acquisition is given the predictor before calibration.
        test: Pairs to measure errors on; they change nothing that the loop does.
        candidates: Called as candidates(predictor) after each round: the functions, on the pool's grid, that the next selection
            is made from, in place of the pool. Draws from the posterior of an inverse problem with this predictor buy
            simulations where that posterior is. The pool serves the random start and calibration.
        seed: Names the loop, a non-negative integer.

    Raises:
        ArgumentError: If an argument is of the wrong kind or out of range.
    """

    initial: Annotated[int, partial(check_integer, least=2)] = 16
    batch: Schedule = 16
    calibration: Index = 0
    calibrate: Calibrator | None = None
    test: FieldPairs | None = None
    candidates: Callable[[Predictor], Field] | None = None
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        calibrate = self.calibrate
        check(calibrate is None or isinstance(calibrate, Calibrator), "a calibrator with fit(predictor, pairs)", calibrate)
        check(self.test is None or isinstance(self.test, FieldPairs), "FieldPairs as test", self.test)
        check(self.candidates is None or callable(self.candidates), "a callable as candidates", self.candidates)
        if calibrate is not None:
            check_integer(self.calibration, "calibration", least=4)
        next_target(self.batch, self.initial)
