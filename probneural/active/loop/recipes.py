"""Calling what the user brings, training recipes and heads, so that it repeats; and measuring what came of it."""

from __future__ import annotations

import copy
import functools
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from probneural.active.loop.ledger import Ledger
from probneural.active.loop.settings import weights_of
from probneural.calibration.chunks import predictions
from probneural.distributions import Predictor
from probneural.errors import TrainingError
from probneural.fields import FieldPairs
from probneural.randomness import seeded, stream_seed
from probneural.training.history import History
from probneural.training.losses import relative_l2

Recipe = Callable[..., object]
"""Called as train(operator, pairs, seed=seed); trains the operator in place."""


@runtime_checkable
class Head(Protocol):
    """What the loop needs of a head."""

    def fit(self, operator: Any, data: FieldPairs, /) -> Predictor:
        """Fit the head."""


@runtime_checkable
class Calibrator(Protocol):
    """What the loop needs of a calibrator."""

    def fit(self, predict: Predictor, calibration: FieldPairs, /) -> Predictor:
        """Fit the calibrator."""


@dataclass(frozen=True)
class Lesson:
    """What a round made of its data.

    Attributes:
        predict: The predictor.
        raw: The same before calibration; it knows nothing of the calibration functions, so it is what chooses.
        loss: Last training loss, or None.
        train_seconds: Time of the training, whenever that was.
        fit_seconds: Time of fitting head and calibration.
    """

    predict: Predictor
    raw: Predictor
    loss: float | None
    train_seconds: float
    fit_seconds: float


@dataclass(frozen=True)
class Course:
    """Training, head and calibration, in this order, each the same however often it is repeated.

    Attributes:
        ledger: What there is to learn from, and where weights are kept.
        operator: The untrained module, or None.
        train: The recipe, or None.
        head: What turns an operator into a predictor.
        calibrate: The calibrator, or None.
        warm_start: Whether training goes on from the weights of the round before.
        seed: Of the loop.
    """

    ledger: Ledger
    operator: nn.Module | None
    train: Recipe | None
    head: Head
    calibrate: Calibrator | None
    warm_start: bool
    seed: int

    def learn(self, number: int) -> Lesson:
        """Train on the labels up to a round, unless that was done before, then fit head and calibration."""
        operator, report = self._trained(number)
        pairs, started = self._pairs(number), time.perf_counter()
        with seeded(self.seed, "round head", number, devices=_devices(operator)):
            predict = raw = self.head.fit(operator, pairs)
            if self.calibrate is not None:
                predict = self.calibrate.fit(predict, self.ledger.pairs(self.ledger.scaling, "calibration"))
        return Lesson(predict, raw, report["loss"], report["seconds"], time.perf_counter() - started)

    def _pairs(self, number: int) -> FieldPairs:
        return self.ledger.pairs(self.ledger.labelled_before(number + 1), "labelled")

    def _trained(self, number: int) -> tuple[nn.Module | None, dict[str, Any]]:
        """The operator of a round, and what its training reported."""
        operator = copy.deepcopy(self.operator)
        if self.train is None or operator is None:
            return operator, {"loss": None, "seconds": 0.0}
        found = self.ledger.trained(number)
        if found is None:
            self._train(number)
            found = self.ledger.trained(number)  # read back, so that a restart cannot see anything else
        assert found is not None
        operator.load_state_dict(found[0])
        return operator, found[1]

    def _train(self, number: int) -> None:
        assert self.train is not None
        before = self._trained(number - 1)[0] if self.warm_start and number else copy.deepcopy(self.operator)
        assert before is not None
        pairs, started = self._pairs(number), time.perf_counter()
        seed = stream_seed(self.seed, "round recipe", number)
        with seeded(self.seed, "round training", number, devices=_devices(before)):
            report = self.train(before, pairs, seed=seed, **silent(self.train))
        weights = weights_of(before)
        broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
        if broken:
            raise TrainingError(
                expected=f"finite weights after the training of round {number}",
                got=f"{broken[0]} that is not",
                remedy="train with a lower learning rate or clipped gradients, in another store with a copy of the results",
            )
        loss = _finite(report.train[-1]) if isinstance(report, History) else None
        self.ledger.keep(number, weights, {"loss": loss, "seconds": time.perf_counter() - started})


def silent(train: Recipe) -> dict[str, Any]:
    """`show_progress=False` for a recipe that takes it and leaves it open: one bar over the rounds is enough."""
    if isinstance(train, functools.partial) and "show_progress" in train.keywords:
        return {}
    try:
        return {"show_progress": False} if "show_progress" in inspect.signature(train).parameters else {}
    except (TypeError, ValueError):  # some built-in callables have no signature
        return {}


def _devices(operator: nn.Module | None) -> set[torch.device]:
    """Where an operator is."""
    return set() if operator is None else {parameter.device for parameter in operator.parameters()}


def measured(predict: Predictor, pairs: FieldPairs | None) -> dict[str, float | None]:
    """Relative L2 errors of a predictor's mean, their quantiles, and the error that its standard deviation states.

    Args:
        predict: Any predictor.
        pairs: Functions that it was not trained on; None measures nothing.

    Returns:
        `error`, `error_95`, `error_99` and `stated`, dimensionless: averages and quantiles over functions of averages over
        channels. What is not finite is None.
    """
    if pairs is None:
        return {"error": None, "error_95": None, "error_99": None, "stated": None}
    grid, errors, stated = pairs.outputs.grid, [], []
    for found, truth in predictions(predict, pairs):
        errors.append(relative_l2(found.mean, truth, grid=grid).mean(1).cpu())
        stated.append(relative_l2(truth + found.variance.sqrt(), truth, grid=grid).mean(1).cpu())
    every = torch.cat(errors)
    high, highest = torch.quantile(every, torch.tensor([0.95, 0.99], dtype=torch.float64)).tolist()
    return {
        "error": _finite(float(every.mean())),
        "error_95": _finite(high),
        "error_99": _finite(highest),
        "stated": _finite(float(torch.cat(stated).mean())),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
