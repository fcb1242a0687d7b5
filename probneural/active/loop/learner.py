"""The active learning loop: choose, simulate, train, fit, and again; it survives being killed at any moment."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from probneural.active.loop.history import LearningHistory, Round
from probneural.active.loop.ledger import Ledger, Outcome, Stage
from probneural.active.loop.recipes import Calibrator, Course, Head, Lesson, Recipe, measured
from probneural.active.loop.schedule import Schedule, next_target
from probneural.active.loop.settings import (
    check,
    described,
    digest_of_operator,
    digest_of_pairs,
    keys_of,
    shared,
)
from probneural.active.selection.selectors import Selector
from probneural.active.simulation.running import open_pool, simulate_in
from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import BorrowedPool, ProcessPool
from probneural.active.simulation.workers import kind_of
from probneural.checks import check_flag, check_integer, check_path, check_positive
from probneural.distributions import Predictor
from probneural.errors import ArgumentError, DataError, SimulationError
from probneural.fields import Field, FieldPairs
from probneural.problems import Problem
from probneural.randomness import check_seed, stream, stream_seed

WINDOW = 8
"""Fewest simulations that the share of failures is taken over."""
TOLERATED = 0.5
"""Largest share of failures among them that the loop goes on with."""


class ActiveLearner:
    """Learn an operator from simulations that its own posterior chooses.

    A round simulates what was chosen, trains the operator on all results, fits the head, calibrates it, writes a line of
    history, and chooses what is next. The first round learns from functions drawn at random from the pool.

    Calibration functions are drawn at random from the pool too, before anything is chosen, and are never trained on or chosen.
    A conformal guarantee, and any honest scale, needs calibration scores that are exchangeable with those of new functions of
    the pool's law; chosen functions are those that the posterior knows least, so they are not.

    Everything is decided by the arguments, the seed and the store's results, and each decision is in the store before anything
    acts on it. A loop that was killed goes on where it was when it is constructed again with the same arguments and the same
    store, and its data set and history are then those of a loop that ran through, bit for bit on one thread if the head
    repeats itself (ensembles do with `prediction="loop"`). Results the store has are never simulated again.

    A simulation that fails, exceeds its time, returns NaN or something on another grid than the others is left out, counted in
    the history, and never chosen again. At the random start the next random functions take the place of failed ones; later the
    next choice is larger by as many. When more than half of a stage's simulations fail (of the last 8, if the stage is
    smaller), the loop stops.

    Args:
        simulator: A problem, or any callable from a Field of inputs to the Field of their outputs; None where the simulations
            are done elsewhere, by `ask` and `tell`. Another problem than before is refused; callables are not told apart, so
            after a change of the simulator name another store, or two operators are mixed.
        head: Anything with `fit(operator, pairs)` that returns a predictor.
        acquisition: The rule that chooses.
        operator: The untrained module, which is copied, never changed; None for heads that do without one.
        pool: Candidate inputs: draws of the law on which the operator is to be good. Of equal functions one is a candidate.
        store: A folder, or its `ResultStore`, which belongs to this loop alone.
        train: Called as train(operator, pairs, seed=...) before the head is fitted, and trains in place:
            `functools.partial(pn.fit, epochs=50)`, for example. None for heads that train by themselves, as ensembles do.
        initial: Functions of the random start.
        batch: Functions that a round adds: a number, or a function of the number of labels such as `Growth`.
        calibration: Number of calibration functions, simulated beside the labels and not counted among them.
        calibrate: Anything with `fit(predict, calibration pairs)` that returns a predictor, a `VarianceScale` for example. It
            is fitted on the first half of the calibration functions, so that the others are left for a conformal band. It
            decides about `predict` and the history; `acquisition` is given the predictor before calibration.
        test: Pairs to measure errors on; they change nothing that the loop does.
        executor: Where simulations run; see [`simulate`][probneural.active.simulate].
        timeout: Seconds that one simulation may take.
        attempts: Times that a simulation is tried.
        seed: Names the loop, a non-negative integer.
        warm_start: Whether training goes on from the weights of the round before. Otherwise every round starts from those of
            `operator`, which costs more and can generalise better. Means nothing without `train`.
        progress: Whether to show progress bars.

    Raises:
        ArgumentError: If an argument is of the wrong kind or out of range.
        DataError: If the pool has too few different functions for the random start.
        FileError: If the store belongs to a loop of other settings, which the message names, or its memory has gaps.

    Reference:
        Musekamp et al. (2025), Active learning for neural PDE solvers (the loop over a pool). Deviations: any head's
        posterior, calibration functions are kept apart, failures are replaced, and weights may be kept. On keeping them: Ash
        and Adams (2020), On warm-starting neural network training.

    Examples:
        >>> import tempfile
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> from functools import partial
        >>> import probneural as pn
        >>> heat = pn.problems.Heat(dimension=1)
        >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as executor:
        ...     learner = ActiveLearner(
        ...         heat,
        ...         pn.heads.LastLayerLaplace(),
        ...         pn.active.RandomSelection(),
        ...         operator=pn.operators.FNO(in_channels=1, out_channels=1, modes=(4,), width=4, depth=1),
        ...         pool=heat.sample_inputs(40, resolution=64, seed=0),
        ...         store=folder,
        ...         train=partial(pn.fit, epochs=1),
        ...         executor=executor,
        ...         progress=False,
        ...     )
        ...     learner.run(labels=36).labels
        (16, 32, 36)
    """

    def __init__(  # noqa: PLR0913 (three nouns, and keywords of which most loops need five)
        self,
        simulator: Problem | Callable[[Field], Field] | None,
        head: Head,
        acquisition: Selector,
        *,
        operator: nn.Module | None,
        pool: Field,
        store: ResultStore | str | os.PathLike[str],
        train: Recipe | None = None,
        initial: int = 16,
        batch: Schedule = 16,
        calibration: int = 0,
        calibrate: Calibrator | None = None,
        test: FieldPairs | None = None,
        executor: Executor | None = None,
        timeout: float | None = None,
        attempts: int = 2,
        seed: int = 0,
        warm_start: bool = True,
        progress: bool = True,
    ) -> None:
        check(simulator is None or isinstance(simulator, Problem) or callable(simulator), "a problem or a callable", simulator)
        check(isinstance(head, Head), "a head with fit(operator, pairs)", head)
        check(isinstance(acquisition, Selector), "a Selector as acquisition", acquisition)
        check(operator is None or isinstance(operator, nn.Module), "an nn.Module or None as operator", operator)
        check(isinstance(pool, Field), "a Field as pool", pool)
        check(train is None or (callable(train) and operator is not None), "train with an operator to train", train)
        check(calibrate is None or isinstance(calibrate, Calibrator), "a calibrator with fit(predict, pairs)", calibrate)
        check(test is None or isinstance(test, FieldPairs), "FieldPairs as test", test)
        initial = check_integer(initial, "initial", least=2, most=len(pool))
        calibration = check_integer(calibration, "calibration", least=0 if calibrate is None else 4, most=len(pool))
        seed = check_seed(seed)
        attempts = check_integer(attempts, "attempts")
        timeout = None if timeout is None else check_positive(timeout, "timeout")
        warm_start, progress = check_flag(warm_start, "warm_start"), check_flag(progress, "progress")
        next_target(batch, initial)
        self.simulator, self.head, self.acquisition, self.train = simulator, head, acquisition, train
        self.operator, self.pool, self.test = operator, Field(pool.values.detach().cpu(), pool.grid), test
        self.initial, self.batch, self.calibration, self.calibrate = initial, batch, calibration, calibrate
        self.executor, self.timeout, self.attempts, self.progress = executor, timeout, attempts, progress
        self.seed, self.warm_start = seed, warm_start
        self.store = store if isinstance(store, ResultStore) else ResultStore(check_path(store, "store"))
        self._ledger = Ledger(self.store, self.pool)
        self._course = Course(self._ledger, operator, train, head, calibrate, warm_start, self.seed)
        self._lesson: Lesson | None = None
        self._check_pool()
        self._ledger.begin(self._settings())

    @property
    def history(self) -> LearningHistory:
        """A line for each finished round."""
        return self._ledger.history

    @property
    def pairs(self) -> FieldPairs:
        """All labelled functions, in the order of choice.

        Raises:
            DataError: If there is none yet.
        """
        return self._ledger.pairs(self._ledger.labelled, "labelled")

    @property
    def calibration_pairs(self) -> FieldPairs:
        """All calibration functions; `calibrate` is fitted on the first half of them.

        Raises:
            DataError: If there is none, or none yet.
        """
        return self._ledger.pairs(self._ledger.calibration, "calibration")

    @property
    def conformal_pairs(self) -> FieldPairs:
        """The calibration functions that `calibrate` has not seen: what a conformal band is to be fitted on.

        Raises:
            DataError: If there is none, or none yet.
        """
        return self._ledger.pairs(self._unseen, "calibration")

    @property
    def _unseen(self) -> list[int]:
        return self._ledger.calibration if self.calibrate is None else self._ledger.conformal

    @property
    def predict(self) -> Predictor:
        """The predictor of the last finished round; after a restart its head is fitted again, once.

        Raises:
            DataError: If no round is finished.
        """
        return self._learnt().predict

    def _learnt(self) -> Lesson:
        """What the last finished round made of its data."""
        if self._lesson is None:
            number = len(self._ledger.rounds) - 1
            if number < 0:
                raise DataError(expected="a finished round", got="none", remedy="call run, or tell what ask asked for")
            self._lesson = self._course.learn(number)
        return self._lesson

    def run(self, *, rounds: int | None = None, labels: int | None = None) -> LearningHistory:
        """Go on until there are so many rounds, or so many labels, in all; or until the pool is used up.

        What earlier calls and processes did counts, so a script may simply be started again.

        Args:
            rounds: Rounds in the history, the random start included.
            labels: Functions to learn from, at least `initial`; the last round is as small as it takes not to exceed it,
                unless it was chosen by an earlier call: what is begun is finished.

        Returns:
            The history. A warning says so if there were more labels already, or the pool is used up.

        Raises:
            ArgumentError: If not exactly one of the two is given, it is no such number, there is no simulator, or a choice is
                not one.
            FileError: If another learner uses the store.
            SimulationError: If too many simulations failed.
        """
        if (rounds is None) == (labels is None):
            raise ArgumentError(expected="rounds= or labels=", got=f"{rounds=}, {labels=}", remedy="give one of them")
        rounds = None if rounds is None else check_integer(rounds, "rounds", least=0)
        labels = None if labels is None else check_integer(labels, "labels", least=self.initial)
        if self.simulator is None:
            raise ArgumentError(expected="a simulator to run", got="None", remedy="use ask and tell, or construct with one")
        simulator = self.simulator.solve if isinstance(self.simulator, Problem) else self.simulator
        with (
            tqdm(total=labels, desc="active learning", unit="label", disable=not self.progress) as bar,
            contextlib.closing(open_pool(simulator, self.executor, workers=None, timeout=self.timeout)) as pool,
        ):
            self._settle()
            while True:
                self._show(bar)
                if self._ledger.open is None and rounds is not None and len(self._ledger.rounds) >= rounds:
                    return self.history
                stage = self._pending(labels)
                if stage is None:
                    self._warn_of_end(labels)
                    return self.history
                self._close(self._simulated(stage, pool))

    def ask(self) -> Field:
        """Return the inputs to simulate next, choosing them if need be; those already told are left out.

        Returns:
            Functions on the pool's grid; none when the pool is used up.
        """
        self._settle()
        while (stage := self._pending(None)) is not None:
            if missing := self._missing(stage):
                return self.pool[missing]
            self._close(Outcome(failed=self._failed(stage), seconds=0.0))  # killed in `tell`, or known already
        return self.pool[[]]

    def tell(self, pairs: FieldPairs) -> None:
        """Store results of what `ask` returned, all or some, in any order; the last of them ends the round.

        Args:
            pairs: The inputs as they were asked for, bit for bit, and their outputs. An output with a NaN says that the
                simulation failed.

        Raises:
            ArgumentError: If nothing was asked, or an input was not.
            SimulationError: If too many simulations failed.
        """
        stage = self._ledger.open
        if stage is None:
            raise ArgumentError(expected="an open question", got="none", remedy="call ask first")
        missing = {self._ledger.keys[position] for position in self._without_result(stage)}  # also of what was called failed
        example = self._ledger.example
        told = keys_of(self.store, pairs.inputs)
        unknown = [number for number, key in enumerate(told) if key not in missing]
        if unknown:
            raise ArgumentError(
                expected="inputs that ask() returned, in its dtype, and that have not been told",
                got=f"{len(unknown)} others, the first at position {unknown[0]}",
                remedy="pair what ask() returned with its outputs",
            )
        for number in range(len(pairs)):
            inputs, outputs = pairs.inputs[number], pairs.outputs[number]
            if not bool(torch.isfinite(outputs.values).all()):
                self.store.fail(inputs, reason="an output that is not finite was told", seconds=0.0)
            elif example is not None and (outputs.grid, kind_of(outputs)) != (example.grid, kind_of(example)):
                self.store.fail(inputs, reason=f"{outputs!r} was told after {example!r}", seconds=0.0)
            else:
                self.store.add(inputs, outputs, seconds=0.0)
        if not self._missing(stage):
            self._close(Outcome(failed=self._failed(stage), seconds=0.0))

    def _missing(self, stage: Stage) -> list[int]:
        """Positions without a result that nobody has called failed."""
        failed = {failure.key for failure in self.store.failures()}
        return [position for position in self._without_result(stage) if self._ledger.keys[position] not in failed]

    def _failed(self, stage: Stage) -> tuple[int, ...]:
        """Positions without a result, or with one of another grid, channels or dtype than the others."""
        unlike = self._ledger.unlike(stage)
        for position in unlike:
            if not self.store.attempts(self._ledger.keys[position]):
                self.store.fail(self.pool[position], reason="a result of another grid, channels or dtype", seconds=0.0)
        return self._without_result(stage) + unlike

    def _without_result(self, stage: Stage) -> tuple[int, ...]:
        return tuple(position for position in stage.positions if self._ledger.keys[position] not in self.store)

    def _pending(self, limit: int | None) -> Stage | None:
        """The open stage, or the next one; None when the labels are enough or the pool is used up."""
        ledger = self._ledger
        if ledger.open is not None:
            return ledger.open
        stage = self._chosen(limit) if ledger.rounds else self._start()
        return None if stage is None else ledger.ask(stage)

    def _start(self) -> Stage:
        """What the random start lacks: the next functions of one random order of the pool."""
        calibration, training = self._lacking()
        order = torch.randperm(len(self._ledger.distinct), generator=stream(self.seed, "random start"), device="cpu")
        free = {*self._ledger.free}
        drawn = [self._ledger.distinct[rank] for rank in order.tolist() if self._ledger.distinct[rank] in free]
        if len(drawn) < calibration + training:
            raise DataError(
                expected=f"{calibration + training} more candidates for the random start",
                got=str(len(drawn)),
                remedy="give a larger pool, or find out why simulations fail: store.failures()",
            )
        return Stage(0, self.initial, tuple(drawn[:calibration]), tuple(drawn[calibration : calibration + training]), 0, 0.0)

    def _lacking(self) -> tuple[int, int]:
        """Calibration functions and labels that the random start is short of."""
        return self.calibration - len(self._ledger.calibration), self.initial - len(self._ledger.labelled_before(1))

    def _chosen(self, limit: int | None) -> Stage | None:
        """Ask the acquisition."""
        number, free = len(self._ledger.rounds), self._ledger.free
        labelled = self._ledger.labelled
        target = next_target(self.batch, self._ledger.stages[-1].target)
        target = target if limit is None else min(target, limit)
        count = min(target - len(labelled), len(free))
        if count < 1:
            return None
        pairs, predict = self.pairs, self._learnt().raw  # calibrated, calibration functions would influence what is chosen
        started = time.perf_counter()
        query = None if pairs.outputs.grid == self.pool.grid else pairs.outputs.grid
        seed = stream_seed(self.seed, "round choice", number)
        chosen = self.acquisition.select(predict, self.pool[free], count, seed=seed, labelled=pairs.inputs, query=query)
        ranks = [int(rank) for rank in chosen]
        if len(ranks) != count or len({*ranks}) != count or not all(0 <= rank < len(free) for rank in ranks):
            raise ArgumentError(
                expected=f"a choice of {count} different positions below {len(free)}",
                got=str(ranks),
                remedy=f"mend {type(self.acquisition).__name__}.select",
            )
        return Stage(number, target, (), tuple(free[rank] for rank in ranks), 0, time.perf_counter() - started)

    def _simulated(self, stage: Stage, pool: ProcessPool | BorrowedPool) -> Outcome:
        """Run the open stage's simulations; every result is stored as it comes."""
        example = self._ledger.example
        report = simulate_in(
            pool,
            self.pool[list(stage.positions)],
            store=self.store,
            timeout=self.timeout,
            attempts=self.attempts,
            out_grid=None if example is None else example.grid,
            out_kind=None if example is None else kind_of(example),
            progress=self.progress,
        )
        lost = report.lost | report.failures.keys() - {failure.key for failure in self.store.failures()}
        if lost:
            raise SimulationError(
                expected="simulations that succeed or fail",
                got=f"{len(lost)} of which nothing is known, the first: {report.failures[min(lost)]}",
                remedy="run again with an executor that works; no result is lost",
            )
        return Outcome(failed=self._failed(stage), seconds=report.seconds)

    def _close(self, outcome: Outcome) -> None:
        """Close the open stage unless too much failed in it, and learn if the round is complete."""
        stage = self._ledger.open
        assert stage is not None
        failed = [position in outcome.failed for position in stage.positions]
        before = self._ledger.recent(max(0, WINDOW - len(failed))) if len(failed) < WINDOW else []
        seen = [*before, *failed]
        if sum(seen) > TOLERATED * len(seen):
            reason = next((failure.reason for failure in reversed(self.store.failures())), "unknown")
            raise SimulationError(
                expected=f"at most {TOLERATED:.0%} failures among {len(seen)} simulations",
                got=f"{sum(seen)}, the last: {reason}",
                remedy="read store.failures(), mend the simulator, and go on with a higher attempts=, or tell their results",
            )
        self._ledger.close(outcome)
        self._settle()

    def _settle(self) -> None:
        """Learn from a round whose results are complete."""
        ledger = self._ledger
        number = len(ledger.rounds)
        if ledger.open is None and ledger.round_of(number) and (number > 0 or max(self._lacking()) <= 0):
            self._learn(number)

    def _learn(self, number: int) -> None:
        """Train, fit, calibrate, measure, and write a line of history."""
        lesson = self._course.learn(number)
        self._lesson = lesson
        stages = self._ledger.round_of(number)
        watched = self.test
        if watched is None and self._unseen:
            watched = self.conformal_pairs
        self._ledger.finish(
            Round(
                number=number,
                labels=len(self._ledger.labelled),
                chosen=tuple(position for stage, _ in stages for position in stage.training),
                simulated=sum(len(stage.positions) - stage.known - len(outcome.failed) for stage, outcome in stages),
                reused=sum(stage.known for stage, _ in stages),
                failed=sum(len(outcome.failed) for _, outcome in stages),
                loss=lesson.loss,
                **measured(lesson.predict, watched),
                select_seconds=sum(stage.seconds for stage, _ in stages),
                simulate_seconds=sum(outcome.seconds for _, outcome in stages),
                train_seconds=lesson.train_seconds,
                fit_seconds=lesson.fit_seconds,
            )
        )

    def _warn_of_end(self, labels: int | None) -> None:
        """Say it if the loop ends elsewhere than it was asked to."""
        there = len(self._ledger.labelled)
        if labels is not None and there > labels:
            warnings.warn(f"there are {there} labels already, more than {labels}", RuntimeWarning, stacklevel=3)
        elif there != labels:
            warnings.warn(f"the pool is used up at {there} labels", RuntimeWarning, stacklevel=3)

    def _show(self, bar: Any) -> None:
        bar.n = len(self._ledger.labelled)
        if self._ledger.rounds:
            last = self._ledger.rounds[-1]
            bar.set_postfix(round=last.number, **({} if last.error is None else {"error": f"{last.error:.2e}"}))
        bar.refresh()

    def _settings(self) -> dict[str, Any]:
        """Everything that decides what the loop does, as JSON can hold it."""
        return {
            "simulator": described(self.simulator) if isinstance(self.simulator, Problem) else None,
            "acquisition": described(self.acquisition),
            "head": described(self.head),
            "train": described(self.train),
            "operator": digest_of_operator(self.operator),
            "initial": self.initial,
            "batch": described(self.batch),
            "calibration": self.calibration,
            "calibrate": described(self.calibrate),
            "test": digest_of_pairs(self.store, self.test),
            "seed": self.seed,
            "warm_start": self.warm_start,
        }

    def _check_pool(self) -> None:
        """Check that the random start fits, and that no test function is a candidate."""
        needed, distinct = self.initial + self.calibration, len(self._ledger.distinct)
        if needed > distinct:
            raise DataError(
                expected=f"a pool of at least {needed} different functions for the random start and calibration",
                got=str(distinct),
                remedy="draw a larger pool, or lower initial or calibration",
            )
        if self.test is not None:
            common = shared(self.pool, self.test.inputs)
            if common:
                raise DataError(
                    expected="test functions that are not in the pool",
                    got=f"{common} that are",
                    remedy="draw them with another seed: what may be trained on measures nothing",
                )
