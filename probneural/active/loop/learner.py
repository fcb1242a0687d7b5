"""The active learning loop: choose, simulate, train, fit, and again; it survives being killed at any moment."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch
from tqdm.auto import tqdm

from probneural.active.loop.fit_pipeline import FitPipeline, FitResult, digest_of_operator, measured
from probneural.active.loop.history import LearningHistory
from probneural.active.loop.plan import Head, LearningPlan, OperatorTraining, check, next_target
from probneural.active.loop.run_log import BatchOutcome, RunLog, SimulationBatch, digest, keys_of
from probneural.active.selectors import Selector
from probneural.active.simulation.running import SimulationReport, simulate_in
from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import SimulationOptions, WorkerPool
from probneural.active.simulation.workers import Simulator
from probneural.checks import check_integer, check_least, check_path
from probneural.displays import html_table
from probneural.distributions import Predictor
from probneural.errors import ArgumentError, DataError, SimulationError, warn
from probneural.fields import Field
from probneural.fingerprints import identity_of
from probneural.pairs import FieldPairs
from probneural.problems import Problem
from probneural.randomness import seeded, stream, stream_seed

WINDOW = 8
"""Fewest simulations that the fraction of failures is taken over."""
_FIRST = 3
"""Number of simulations that a loop starts with; if all fail, it ends."""
_TOLERATED = 0.5
"""Largest fraction of failures among them that the loop goes on with."""


class ActiveLearner:
    """Learn an operator from simulations that its posterior selects.

    A round simulates a selection, trains the operator on all results, fits the head, calibrates it, writes a line of history
    and selects the next inputs. The first round learns from functions drawn at random from the pool. Calibration functions are
    drawn at random too, before any selection, and are never trained on: a conformal guarantee needs calibration scores that are
    exchangeable with those of new functions of the pool's distribution.

    Arguments, seed and results determine everything, and each decision is stored before it is acted on. A loop that was killed
    continues if it is constructed again with the same arguments and store. Its data set and history are those of an
    uninterrupted loop, bit for bit on one thread if the head repeats itself (ensembles do with `prediction="loop"`).

    A simulation that fails, exceeds its time, returns NaN or a field on another grid is left out, counted in the history, and
    never selected again. At the random start the next random functions replace failed ones; later the next selection is larger.
    If the first three simulations fail, or more than half of a batch's (of the last 8 in smaller batches), the loop stops.

    Args:
        simulator: A problem, or any callable from a Field of inputs to the Field of their outputs; None for `ask` and `tell`.
            A store refuses another problem, but cannot distinguish callables: use another store for another simulator.
        head: Anything with `fit(operator, pairs)` that returns a predictor.
        acquisition: The selection rule.
        pool: Candidate inputs, drawn from the distribution of inputs; of equal functions one is a candidate. With
            `LearningPlan.candidates` later rounds select from other functions, whose positions follow the pool's.
        store: A folder, or its `ResultStore`, which belongs to this loop alone.
        training: The operator, and its training; none by default, for heads without an operator.
        plan: Batch sizes, calibration, test functions and the seed.
        simulation: Workers, time limits and progress bars.

    Raises:
        ArgumentError: If an argument is of the wrong kind or out of range.
        DataError: If the pool has too few different functions for the random start.
        FileError: If the store belongs to a loop of other settings, which the message names, or its memory has gaps.

    Reference:
        Musekamp et al. (2025), Active learning for neural PDE solvers (the loop over a pool). Deviations: any head's
        posterior, separate calibration functions, replaced failures, and warm starts as in Ash and Adams (2020), On
        warm-starting neural network training.

    Examples:
        >>> import tempfile
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> import probneural as pn
        >>> heat = pn.problems.Heat(dimension=1)
        >>> with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(1) as executor:
        ...     learner = ActiveLearner(
        ...         heat,
        ...         pn.heads.KernelOperator("linear", output_components=3),
        ...         acquisition=pn.active.RandomSelection(),
        ...         pool=heat.sample_inputs(40, resolution=64, seed=0),
        ...         store=folder,
        ...         simulation=pn.active.SimulationOptions(executor=executor, show_progress=False),
        ...     )
        ...     learner.run(labels=36).labels
        (16, 32, 36)
    """

    def __init__(
        self,
        simulator: Problem | Simulator | None,
        head: Head,
        *,
        acquisition: Selector,
        pool: Field,
        store: ResultStore | str | os.PathLike[str],
        training: OperatorTraining | None = None,
        plan: LearningPlan | None = None,
        simulation: SimulationOptions | None = None,
    ) -> None:
        self.training = OperatorTraining() if training is None else training
        self.plan = LearningPlan() if plan is None else plan
        self.simulation = SimulationOptions() if simulation is None else simulation
        check(simulator is None or isinstance(simulator, Problem) or callable(simulator), "a problem or a callable", simulator)
        check(isinstance(head, Head), "a head with fit(operator, pairs)", head)
        check(isinstance(acquisition, Selector), "a Selector as acquisition", acquisition)
        check(isinstance(pool, Field), "a Field as pool", pool)
        check(isinstance(self.training, OperatorTraining), "an OperatorTraining as training", training)
        check(isinstance(self.plan, LearningPlan), "a LearningPlan as plan", plan)
        check(isinstance(self.simulation, SimulationOptions), "SimulationOptions as simulation", simulation)
        self.simulator, self.head, self.acquisition = simulator, head, acquisition
        self.pool = Field(pool.values.detach().cpu(), pool.grid)
        self.store = store if isinstance(store, ResultStore) else ResultStore(check_path(store, "store"))
        self._log = RunLog(self.store, self.pool)
        self._pipeline = FitPipeline(self._log, head, self.training, self.plan)
        self._result: FitResult | None = None
        self._log.check_pool(self.plan.initial + self.plan.calibration, self.plan.test)
        self._log.begin(self._settings())

    @property
    def history(self) -> LearningHistory:
        """A line for each finished round."""
        return self._log.history

    @property
    def pairs(self) -> FieldPairs:
        """All labelled functions, in the order of choice.

        Raises:
            DataError: If there is none yet.
        """
        return self._log.pairs(self._log.labelled, "labelled")

    @property
    def calibration_pairs(self) -> FieldPairs:
        """All calibration functions; `calibrate` is fitted on the first half of them.

        Raises:
            DataError: If there is none, or none yet.
        """
        return self._log.pairs(self._log.calibration, "calibration")

    @property
    def conformal_pairs(self) -> FieldPairs:
        """The calibration functions that `calibrate` has not seen: what a conformal band is to be fitted on.

        Raises:
            DataError: If there is none, or none yet.
        """
        return self._log.pairs(self._unseen, "calibration")

    @property
    def _unseen(self) -> list[int]:
        return self._log.calibration if self.plan.calibrate is None else self._log.conformal

    @property
    def predictor(self) -> Predictor:
        """The predictor of the last finished round; after a restart its head is fitted again, once.

        Raises:
            DataError: If no round is finished.
        """
        return self._fitted().predictor

    def _fitted(self) -> FitResult:
        """The result of the last finished round, fitted again after a restart."""
        if self._result is None:
            number = len(self._log.rounds) - 1
            if number < 0:
                raise DataError(expected="a finished round", got="none", remedy="call run, or tell what ask asked for")
            self._result = self._pipeline.learn(number)
        return self._result

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
        labels = None if labels is None else check_integer(labels, "labels", least=self.plan.initial)
        if self.simulator is None:
            raise ArgumentError(expected="a simulator to run", got="None", remedy="use ask and tell, or construct with one")
        simulator = self.simulator.solve if isinstance(self.simulator, Problem) else self.simulator
        with self._bar(rounds, labels) as bar, contextlib.closing(WorkerPool(simulator, self.simulation)) as pool:
            self._settle()
            while True:
                self._show(bar)
                if self._log.open is None and rounds is not None and len(self._log.rounds) >= rounds:
                    return self.history
                batch = self._pending(labels)
                if batch is None:
                    self._warn_of_end(labels)
                    return self.history
                self._close(self._simulated(batch, pool))

    def ask(self) -> Field:
        """Return the inputs to simulate next, choosing them if need be; those already told are left out.

        Returns:
            Functions on the pool's grid; none when the pool is used up.
        """
        self._settle()
        while (batch := self._pending(None)) is not None:
            if missing := self._log.missing(batch):
                return self._log.pool[missing]
            self._close(BatchOutcome(failed=self._log.failed(batch), seconds=0.0))  # killed in `tell`, or known already
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
        batch = self._log.open
        if batch is None:
            raise ArgumentError(expected="an open question", got="none", remedy="call ask first")
        missing = {self._log.keys[position] for position in self._log.without_result(batch)}  # failed ones too
        keys = keys_of(self.store, pairs.inputs)
        unknown = [number for number, key in enumerate(keys) if key not in missing]
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
            else:
                self.store.add(inputs, outputs, seconds=0.0)
        if not self._log.missing(batch):
            self._close(BatchOutcome(failed=self._log.failed(batch), seconds=0.0))

    def _pending(self, limit: int | None) -> SimulationBatch | None:
        """The open batch, or the next one; None when the labels are enough or the pool is used up."""
        if self._log.open is not None:
            return self._log.open
        batch = self._chosen(limit) if self._log.rounds else self._start()
        return None if batch is None else self._log.ask(batch)

    def _start(self) -> SimulationBatch:
        """Missing functions of the random start: the next ones of a random order of the pool."""
        calibration, training = self._lacking()
        order = torch.randperm(len(self._log.distinct), generator=stream(self.plan.seed, "random start"), device="cpu")
        free = {*self._log.free}
        drawn = [self._log.distinct[rank] for rank in order.tolist() if self._log.distinct[rank] in free]
        remedy = "give a larger pool, or find out why simulations fail: store.failures()"
        check_least(len(drawn), calibration + training, "candidates for the random start", remedy=remedy)
        labelled = tuple(drawn[calibration : calibration + training])
        return SimulationBatch(0, self.plan.initial, tuple(drawn[:calibration]), labelled, seconds=0.0)

    def _lacking(self) -> tuple[int, int]:
        """Calibration functions and labels that the random start is short of."""
        return self.plan.calibration - len(self._log.calibration), self.plan.initial - len(self._log.labelled_before(1))

    def _chosen(self, limit: int | None) -> SimulationBatch | None:
        """Ask the acquisition."""
        number, free = len(self._log.rounds), self._log.free
        target = next_target(self.plan.batch, self._log.batches[-1].target)
        target = target if limit is None else min(target, limit)
        lacking = target - len(self._log.labelled)
        if lacking < 1 or not (free or self.plan.candidates):
            return None
        pairs, predictor = self.pairs, self._fitted().raw  # calibrated, calibration functions would influence what is chosen
        started = time.perf_counter()
        if self.plan.candidates is None:
            candidates = self.pool[free]
        else:
            with seeded(self.plan.seed, "round candidates", number):
                candidates = self._log.unasked(self.plan.candidates(predictor), self.plan.test)
        count = min(lacking, len(candidates))
        if count < 1:
            return None
        query = None if pairs.outputs.grid == self.pool.grid else pairs.outputs.grid
        seed = stream_seed(self.plan.seed, "round choice", number)
        chosen = self.acquisition.select(predictor, candidates, count=count, seed=seed, labelled=pairs.inputs, query=query)
        ranks = [int(rank) for rank in chosen]
        if len(ranks) != count or len({*ranks}) != count or not all(0 <= rank < len(candidates) for rank in ranks):
            raise ArgumentError(
                expected=f"a choice of {count} different positions below {len(candidates)}",
                got=str(ranks),
                remedy="mend its select",
            )
        is_pool = self.plan.candidates is None
        positions = tuple(free[rank] for rank in ranks) if is_pool else self._log.append(candidates[ranks])
        return SimulationBatch(number, target, (), positions, time.perf_counter() - started)

    def _simulated(self, batch: SimulationBatch, pool: WorkerPool) -> BatchOutcome:
        """Run the open batch's simulations; every result is stored when it arrives.

        Raises:
            SimulationError: If outcomes are lost, or the first three of the loop fail.
        """
        inputs, seconds = self._log.pool[list(batch.positions)], 0.0
        if not self._log.labelled and len(inputs) > _FIRST:
            first = self._report(inputs[:_FIRST], pool)
            seconds = first.seconds
            if not any(first.succeeded):
                reason = [*first.failures.values()][-1]
                raise SimulationError(
                    expected="a simulator that works",
                    got=f"{_FIRST} failures of the first {_FIRST} simulations, the last: {reason}",
                    remedy="mend the simulator, and run again with a higher attempts=",
                )
        report = self._report(inputs, pool)
        return BatchOutcome(failed=self._log.failed(batch), seconds=seconds + report.seconds)

    def _report(self, inputs: Field, pool: WorkerPool) -> SimulationReport:
        """Run simulations, or raise a SimulationError if outcomes are lost."""
        report = simulate_in(pool, inputs, store=self.store, options=self.simulation)
        lost = report.lost | report.failures.keys() - {failure.key for failure in self.store.failures()}
        if lost:
            raise SimulationError(
                expected="simulations that succeed or fail",
                got=f"{len(lost)} of which nothing is known, the first: {report.failures[min(lost)]}",
                remedy="run again with an executor that works; no result is lost",
            )
        return report

    def _close(self, outcome: BatchOutcome) -> None:
        """Close the open batch unless too much failed in it, and learn if the round is complete."""
        batch = self._log.open
        assert batch is not None
        failed = [position in outcome.failed for position in batch.positions]
        before = self._log.recent(max(0, WINDOW - len(failed))) if len(failed) < WINDOW else []
        recent = [*before, *failed]
        if sum(recent) > _TOLERATED * len(recent):
            reason = next((failure.reason for failure in reversed(self.store.failures())), "unknown")
            raise SimulationError(
                expected=f"at most {_TOLERATED:.0%} failures among {len(recent)} simulations",
                got=f"{sum(recent)}, the last: {reason}",
                remedy="read store.failures(), mend the simulator, and go on with a higher attempts=, or tell their results",
            )
        self._log.close(outcome)
        self._settle()

    def _settle(self) -> None:
        """Train, fit, calibrate and measure if the results of the round are complete."""
        number = len(self._log.rounds)
        has_results = self._log.open is None and self._log.round_of(number)
        if not has_results or (number == 0 and max(self._lacking()) > 0):
            return
        self._result = result = self._pipeline.learn(number)
        test = self.conformal_pairs if self.plan.test is None and self._unseen else self.plan.test
        self._log.finish(
            loss=result.loss,
            errors=measured(result.predictor, test),
            train_seconds=result.train_seconds,
            fit_seconds=result.fit_seconds,
        )

    def _warn_of_end(self, labels: int | None) -> None:
        """Say it if the loop ends elsewhere than it was asked to."""
        count = len(self._log.labelled)
        if labels is not None and count > labels:
            warn(f"there are {count} labels already, more than {labels}", RuntimeWarning)
        elif count != labels:
            warn(f"the pool is used up at {count} labels", RuntimeWarning)

    def _bar(self, rounds: int | None, labels: int | None) -> Any:
        """A progress bar; its estimate of the time left counts labels of this call only."""
        if rounds is not None:
            labels = self.plan.initial
            for _ in range(rounds - 1):
                labels = next_target(self.plan.batch, labels)
        is_off = not self.simulation.show_progress
        return tqdm(total=labels, initial=len(self._log.labelled), desc="active learning", unit="label", disable=is_off)

    def _show(self, bar: Any) -> None:
        bar.n = len(self._log.labelled)
        if self._log.rounds:
            number, error = self._log.rounds[-1].number, self._log.rounds[-1].errors.mean
            bar.set_postfix(round=number, **({} if error is None else {"error": f"{error:.2e}"}))
        bar.refresh()

    def _repr_html_(self) -> str:
        """A table of rounds, labels, failures and the last error."""
        return html_table("ActiveLearner", self.history.summary().items())

    def _settings(self) -> dict[str, Any]:
        """Everything that decides what the loop does, as JSON can hold it."""
        test = self.plan.test
        return {
            "simulator": identity_of(self.simulator) if isinstance(self.simulator, Problem) else None,
            "acquisition": identity_of(self.acquisition),
            "head": identity_of(self.head),
            "train": identity_of(self.training.train),
            "operator": digest_of_operator(self.training.operator),
            "warm_start": self.training.warm_start,
            "every": self.training.every,
            "initial": self.plan.initial,
            "batch": identity_of(self.plan.batch),
            "calibration": self.plan.calibration,
            "calibrate": identity_of(self.plan.calibrate),
            "candidates": None if self.plan.candidates is None else identity_of(self.plan.candidates),
            "test": None if test is None else digest(keys_of(self.store, test.inputs) + keys_of(self.store, test.outputs)),
            "seed": self.plan.seed,
        }
