from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import probneural as pn
from probneural.active import ActiveLearner, RandomSelection, ResultStore, SimulationOptions
from probneural.active.loop.learner import WINDOW
from probneural.active.simulation.worker_pools import WorkerPool
from probneural.errors import SimulationError
from probneural.fields import Field
from probneural.pairs import FieldPairs
from tests.active import loops
from tests.active.loops import GRID, POOL, Counted, learner, same, square

pytestmark = pytest.mark.usefixtures("no_syncing")


EXECUTORS: dict[str, Callable[[], Executor | None]] = {
    "threads": lambda: ThreadPoolExecutor(3),
    "processes": lambda: ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver")),
}


def executed(executor: Executor | None, folder: Path) -> ActiveLearner:
    loop = learner(folder, pn.problems.Heat(dimension=1), pool=POOL, executor=executor, test=None)
    loop.run(rounds=3)
    return loop


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> ActiveLearner:
    return executed(loops.Here(), tmp_path_factory.mktemp("reference"))


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor_gives_the_same_choices(tmp_path: Path, name: str, reference: ActiveLearner) -> None:
    executor = EXECUTORS[name]()
    try:
        assert same(executed(executor, tmp_path), reference)
    finally:
        if executor is not None:
            executor.shutdown()


def test_failures_are_left_out_counted_and_replaced(tmp_path: Path) -> None:
    simulator = Counted(tmp_path / "calls", fails_above=1.2, nan_below=-1.4)
    loop = learner(tmp_path / "store", simulator, batch=6, acquisition=RandomSelection())
    history = loop.run(rounds=5)
    mean = POOL.values.mean((1, 2))
    bad = ((mean > 1.2) | (mean < -1.4)).tolist()
    request = [position for entry in history.rounds for position in entry.chosen]
    assert len({*request}) == len(request)
    failed = [position for position in request if bad[position]]
    assert failed
    assert sum(entry.simulations.failed for entry in history.rounds) >= len(failed)
    good = [position for position in request if not bad[position]]
    assert torch.equal(loop.pairs.inputs.values, POOL.values[good])
    # Random functions are replaced at once, chosen ones by the next choice.
    assert history[0].labels == 6
    assert len(loop.calibration_pairs) == 4
    for number, entry in enumerate(history.rounds[1:], start=1):
        lost = sum(bad[position] for position in entry.chosen)
        assert entry.labels == 6 + 6 * number - lost
        assert len(entry.chosen) == 6 + 6 * number - history[number - 1].labels
    reasons = " ".join(failure.reason for failure in loop.store.failures())
    assert "no convergence at" in reasons
    again = learner(tmp_path / "store", batch=6, acquisition=RandomSelection())
    assert again.history == history


def test_too_many_failures_stop_the_loop_until_the_simulator_is_mended(tmp_path: Path) -> None:
    broken = Counted(tmp_path / "calls", fails_above=-9.0)
    loop = learner(tmp_path / "store", broken, attempts=1)
    with pytest.raises(SimulationError, match="got 3 failures of the first 3 simulations, the last: RuntimeError"):
        loop.run(rounds=2)
    with pytest.raises(SimulationError):
        learner(tmp_path / "store", broken, attempts=1).run(rounds=2)
    assert len(broken.calls) == 3  # none was tried again
    mended = learner(tmp_path / "store", attempts=2)
    assert mended.run(rounds=2).labels == (6, 10)
    whole = learner(tmp_path / "whole")
    whole.run(rounds=2)
    assert same(mended, whole)


class Broken(loops.Here):
    """Loses every third task, as a pool does whose workers die."""

    def __init__(self) -> None:
        self.count = itertools.count()

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        if next(self.count) % 3:
            return super().submit(call, *arguments, **options)
        lost: Future[Any] = Future()
        lost.set_exception(BrokenExecutor("a worker died"))
        return lost


def test_an_executor_that_breaks_is_no_failure_of_the_simulator(tmp_path: Path) -> None:
    calls = Counted(tmp_path / "calls")
    with pytest.raises(SimulationError, match="got 1 of which nothing is known, the first: the executor is broken"):
        learner(tmp_path / "store", calls, executor=Broken()).run(rounds=2)
    again = learner(tmp_path / "store", calls)
    again.run(rounds=2)
    whole = learner(tmp_path / "whole")
    whole.run(rounds=2)
    assert same(again, whole)
    assert len(calls.calls) == 14


def test_failures_of_small_batches_are_counted_together(tmp_path: Path) -> None:
    loop = learner(tmp_path, None, batch=1, initial=6, calibration=4)

    def answer(inputs: Field, *, failing: bool) -> FieldPairs:
        outputs = torch.full_like(inputs.values, torch.nan) if failing else inputs.values.square()
        return FieldPairs(inputs, Field(outputs, inputs.grid))

    loop.tell(answer(loop.ask(), failing=False))
    for count in (1, 2):  # what failed is made up for: 1 of the last 8, then 3 of them
        request = loop.ask()
        assert len(request) == count
        loop.tell(answer(request, failing=True))
    request = loop.ask()
    with pytest.raises(SimulationError, match=f"among {WINDOW} simulations; got 6"):
        loop.tell(answer(request, failing=True))


def test_equal_candidates_are_one(tmp_path: Path) -> None:
    twice = Field(torch.cat([POOL.values[:20], POOL.values[:20]]), GRID)
    calls = Counted(tmp_path / "calls")
    loop = learner(tmp_path / "store", calls, pool=twice)
    with pytest.warns(RuntimeWarning, match="used up at 16"):
        loop.run(rounds=99)
    assert loop.history.labels[-1] == 16
    assert len(calls.calls) == 20


@pytest.mark.parametrize("kind", ["grid", "channels", "dtype"])
def test_results_of_another_kind_are_failures(tmp_path: Path, kind: str) -> None:
    def odd(inputs: Field) -> Field:
        outputs = square(inputs)
        if abs(float(inputs.values.mean())) < 1.2:
            return outputs
        if kind == "grid":
            return outputs.resample(GRID.resized((4,)))
        return outputs.to(torch.float32) if kind == "dtype" else Field(outputs.values.repeat(1, 2, 1), GRID)

    loop = learner(tmp_path, odd, batch=10)
    history = loop.run(rounds=3)
    assert sum(entry.simulations.failed for entry in history.rounds) >= 2
    assert float(loop.pairs.inputs.values.mean((1, 2)).abs().max()) < 1.2
    assert loop.store.failures()
    assert learner(tmp_path, odd, batch=10).history == history


@pytest.mark.parametrize("first", [True, False])
def test_a_result_that_was_there_and_is_of_another_kind_counts_once(tmp_path: Path, first: bool) -> None:
    """Of the first batch, where the others' results decide, and of later ones."""
    store = ResultStore(tmp_path / "store")
    used = learner(tmp_path / "before")
    used.run(rounds=3)
    asked = used.history.rounds[0 if first else 2].chosen
    store.add(POOL[asked[0]], square(POOL[asked[0]]), seconds=0.0)
    store.add(POOL[asked[1]], square(POOL[asked[1]]).to(torch.float32), seconds=0.0)
    calls = Counted(tmp_path / "calls")
    loop = learner(store, calls)
    loop.run(rounds=3)
    counts = loop.history.rounds[0 if first else 2].simulations
    assert (counts.reused, counts.failed) == (1, 1)
    assert sum(entry.simulations.simulated for entry in loop.history.rounds) == len(calls.calls)
    assert learner(store, calls).history == loop.history


def test_own_workers_live_for_all_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def one_pool(*arguments: Any) -> WorkerPool:
        opened.append(WorkerPool(*arguments))
        return opened[-1]

    monkeypatch.setattr("probneural.active.loop.learner.WorkerPool", one_pool)
    learner(tmp_path).run(rounds=3)
    assert len(opened) == 1
    WorkerPool(square, SimulationOptions(workers=2)).close()  # none has started
