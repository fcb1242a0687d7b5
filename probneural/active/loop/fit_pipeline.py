"""Repeatable training, fit and calibration of one round, and its errors."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probneural.active.loop.history import RoundErrors
from probneural.active.loop.plan import Head, LearningPlan, OperatorTraining, TrainFunction, check
from probneural.active.loop.run_log import RunLog, digest
from probneural.calibration.predictions import predictions
from probneural.checks import takes_show_progress
from probneural.distributions import Predictor
from probneural.errors import TrainingError
from probneural.fingerprints import identity_of
from probneural.pairs import FieldPairs
from probneural.randomness import seeded, stream_seed
from probneural.training.callbacks import History
from probneural.training.losses import relative_l2


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """Result of the training, fit and calibration of a round.

    Attributes:
        predictor: The predictor.
        raw: The predictor before calibration, which does not depend on the calibration functions: selection uses it.
        loss: Last training loss, or None.
        train_seconds: Time of the training, whenever that was.
        fit_seconds: Time of fitting head and calibration.
    """

    predictor: Predictor
    raw: Predictor
    loss: float | None
    train_seconds: float
    fit_seconds: float


@dataclass(frozen=True)
class FitPipeline:
    """Training, head and calibration, in this order, each the same however often it is repeated.

    Attributes:
        log: The log of the loop, with its data and weights.
        head: The head.
        training: The operator, and how it is trained.
        plan: The calibrator, and the seed of the loop.
    """

    log: RunLog
    head: Head
    training: OperatorTraining
    plan: LearningPlan

    def learn(self, number: int) -> FitResult:
        """Train on the labels up to a round, unless that was done before, then fit head and calibration."""
        operator, report = self._trained(number)
        pairs, started = self._pairs(number), time.perf_counter()
        with seeded(self.plan.seed, "round head", number, devices=_devices(operator)):
            predictor = raw = self.head.fit(operator, pairs)
            if self.plan.calibrate is not None:
                predictor = self.plan.calibrate.fit(predictor, self.log.pairs(self.log.scaling, "calibration"))
        return FitResult(
            predictor=predictor,
            raw=raw,
            loss=report["loss"],
            train_seconds=report["seconds"],
            fit_seconds=time.perf_counter() - started,
        )

    def _pairs(self, number: int) -> FieldPairs:
        return self.log.pairs(self.log.labelled_before(number + 1), "labelled")

    def _trained(self, number: int) -> tuple[nn.Module | None, dict[str, Any]]:
        """The operator of a round, and what its training reported."""
        operator, train = copy.deepcopy(self.training.operator), self.training.train
        if train is None or operator is None:
            return operator, {"loss": None, "seconds": 0.0}
        if number % self.training.every:
            operator, report = self._trained(number - 1)
            return operator, report | {"seconds": 0.0}
        if self.log.trained(number) is None:
            self._train(train, number)
        stored = self.log.trained(number)  # read back, so that a restart cannot see anything else
        assert stored is not None
        operator.load_state_dict(stored[0])
        return operator, stored[1]

    def _train(self, train: TrainFunction, number: int) -> None:
        warm = self.training.warm_start and number
        operator = self._trained(number - 1)[0] if warm else copy.deepcopy(self.training.operator)
        assert operator is not None
        pairs, started = self._pairs(number), time.perf_counter()
        seed = stream_seed(self.plan.seed, "round recipe", number)
        with seeded(self.plan.seed, "round training", number, devices=_devices(operator)):
            silent = {"show_progress": False} if takes_show_progress(train) else {}  # one bar over the rounds is enough
            report = train(operator, pairs, seed=seed, **silent)
        weights = weights_of(operator)
        broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
        if broken:
            raise TrainingError(
                expected=f"finite weights after the training of round {number}",
                got=f"{broken[0]} that is not",
                remedy="train with a lower learning rate or clipped gradients, in another store with a copy of the results",
            )
        loss = _finite(report.train[-1]) if isinstance(report, History) else None
        self.log.keep(number, weights, {"loss": loss, "seconds": time.perf_counter() - started})


def weights_of(operator: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module.

    Raises:
        ArgumentError: If a part of it is not a tensor.
    """
    state = operator.state_dict()
    check(all(isinstance(value, Tensor) for value in state.values()), "an operator whose state is made of tensors", operator)
    return state


def digest_of_operator(operator: nn.Module | None) -> str | None:
    """The class of a module, and a digest of its state.

    Raises:
        ArgumentError: If a part of the state is not a tensor.
    """
    if operator is None:
        return None
    return f"{type(operator).__name__} {digest([identity_of(weights_of(operator))])}"


def _devices(operator: nn.Module | None) -> set[torch.device]:
    """Devices of an operator."""
    return set() if operator is None else {parameter.device for parameter in operator.parameters()}


def measured(predictor: Predictor, pairs: FieldPairs | None) -> RoundErrors:
    """Relative L2 errors of a predictor's mean, their quantiles, and the error that its standard deviation states.

    Args:
        predictor: Any predictor.
        pairs: Functions that it was not trained on; None measures nothing.
    """
    if pairs is None:
        return RoundErrors()
    grid, errors, stated = pairs.outputs.grid, [], []
    for u, truth in predictions(predictor, pairs):
        errors.append(relative_l2(u.mean, truth, grid=grid).mean(1).cpu())
        stated.append(relative_l2(truth + u.variance.sqrt(), truth, grid=grid).mean(1).cpu())
    every = torch.cat(errors)
    high, highest = torch.quantile(every, torch.tensor([0.95, 0.99], dtype=torch.float64)).tolist()
    return RoundErrors(
        mean=_finite(float(every.mean())),
        quantile_95=_finite(high),
        quantile_99=_finite(highest),
        stated=_finite(float(torch.cat(stated).mean())),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
