from __future__ import annotations

import functools
import itertools
import json
import math
import multiprocessing
import os
import random
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probneural as pn
from probneural.active import (
    ActiveLearner,
    Growth,
    LearningHistory,
    RandomSelection,
    Request,
    Round,
    Selector,
    StochasticSelection,
)
from probneural.active.loop.learner import WINDOW
from probneural.active.simulation.result_files import RESULTS
from probneural.active.simulation.running import open_pool
from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import ProcessPool
from probneural.errors import ArgumentError, DataError, FileError, SimulationError, TrainingError
from probneural.fields import Field, FieldPairs
from probneural.training.history import History
from tests.active import loops
from tests.active.loops import GRID, POOL, TEST, Counted, NearestHead, Watched, functions, learner, same_pairs, square


@pytest.fixture(autouse=True)
def _no_syncing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process loses nothing it has written; waiting for the disk is for power cuts, which no test here makes."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def chosen(found: ActiveLearner) -> list[tuple[int, ...]]:
    return [entry.chosen for entry in found.history.rounds]


def same(first: ActiveLearner, second: ActiveLearner) -> bool:
    """Whether two loops ended with equal data, calibration data, history and weights."""
    weights = [
        [loop.store.load_tensors(f"weights-{number:04d}") for number in range(len(loop.history))] for loop in (first, second)
    ]
    return (
        first.history == second.history
        and same_pairs(first.pairs, second.pairs)
        and same_pairs(first.calibration_pairs, second.calibration_pairs)
        and all(torch.equal(one[key], other[key]) for one, other in zip(*weights, strict=True) for key in one)
    )


def test_a_loop_learns_from_what_it_chooses(tmp_path: Path) -> None:
    simulator = Counted(tmp_path / "calls")
    loop = learner(tmp_path / "store", simulator)
    history = loop.run(rounds=4)
    assert history == loop.history
    assert history.labels == (6, 10, 14, 18)
    assert [entry.simulated for entry in history.rounds] == [10, 4, 4, 4]
    assert len(simulator.calls) == len({*simulator.calls}) == 22
    positions = list(itertools.chain(*chosen(loop)))
    assert len({*positions}) == 18
    assert torch.equal(loop.pairs.inputs.values, POOL.values[positions])
    assert torch.equal(loop.pairs.outputs.values, POOL.values[positions].square())
    assert history.errors[0] > history.errors[-1]
    assert loop.run(rounds=4) == loop.run(labels=18) == history  # nothing is left to do
    assert len(simulator.calls) == 22


def test_calibration_functions_are_random_and_kept_apart(tmp_path: Path) -> None:
    loop = learner(tmp_path / "one", calibration=10)
    loop.run(rounds=3)
    kept = loop.calibration_pairs
    other = learner(tmp_path / "two", calibration=10, acquisition=RandomSelection(), head=NearestHead(0.5))
    other.run(rounds=2)
    assert same_pairs(kept, other.calibration_pairs)  # they do not depend on what is chosen, nor on the head
    rows = {tuple(row.tolist()) for row in loop.pairs.inputs.values.flatten(1)}
    assert not rows & {tuple(row.tolist()) for row in kept.inputs.values.flatten(1)}
    order = torch.randperm(len(POOL), generator=torch.Generator().manual_seed(0))
    assert torch.equal(kept.inputs.values, POOL.values[order[:10]])


def test_history_measures_the_mean_and_the_stated_deviation(tmp_path: Path) -> None:
    loop = learner(tmp_path, calibrate=pn.calibration.VarianceScale())
    last = loop.run(rounds=2)[-1]
    u = loop.predict(TEST.inputs)
    norm = TEST.outputs.values.square().mean(-1).sqrt()
    error = ((u.mean - TEST.outputs.values).square().mean(-1).sqrt() / norm)[:, 0]
    stated = ((u.variance + loop.predict.noise.double()).mean(-1).sqrt() / norm)[:, 0]
    assert last.error == pytest.approx(float(error.mean()), rel=1e-12)
    assert last.error_95 == pytest.approx(float(error.quantile(0.95)), rel=1e-12)
    assert last.error_99 == pytest.approx(float(error.quantile(0.99)), rel=1e-12)
    assert last.stated == pytest.approx(float(stated.mean()), rel=1e-6)
    weights = loop.store.load_tensors("weights-0001")
    assert last.loss == pytest.approx(sum(float(value.abs().sum()) for value in weights.values()), rel=1e-12)


def test_errors_without_test_functions_are_those_of_calibration(tmp_path: Path) -> None:
    loop = learner(tmp_path / "one", test=None)
    loop.run(rounds=2)
    kept = loop.calibration_pairs
    error = (loop.predict(kept.inputs).mean - kept.outputs.values).square().mean(-1).sqrt()
    expected = (error / kept.outputs.values.square().mean(-1).sqrt()).mean()
    assert loop.history[-1].error == pytest.approx(float(expected), rel=1e-12)
    alone = learner(tmp_path / "two", test=None, calibration=0)
    found = alone.run(rounds=1)[0]
    assert (found.error, found.error_95, found.error_99, found.stated) == (None,) * 4
    assert "-" in str(alone.history)


class Spy(Selector):
    """Takes the last ones, and writes down what it was asked."""

    def __init__(self) -> None:
        self.calls: list[Request] = []

    def __repr__(self) -> str:
        return "Spy()"

    def _choose(self, asked: Request) -> torch.Tensor:
        self.calls.append(asked)
        return torch.arange(len(asked.pool) - 1, len(asked.pool) - 1 - asked.count, -1)


def test_acquisitions_see_the_posterior_and_what_is_free(tmp_path: Path) -> None:
    spy = Spy()
    half = Field(POOL.values, POOL.grid)

    def coarse(inputs: Field) -> Field:
        return square(inputs).resample(GRID.resized((4,)))

    test = FieldPairs(TEST.inputs, TEST.outputs.resample(GRID.resized((4,))))
    loop = learner(tmp_path, coarse, acquisition=spy, pool=half, test=test)
    loop.run(rounds=3)
    assert [call.count for call in spy.calls] == [4, 4]
    assert [len(call.pool) for call in spy.calls] == [60 - 10, 60 - 14]
    assert [len(call.labelled) for call in spy.calls] == [6, 10]
    assert spy.calls[0].seed != spy.calls[1].seed
    assert all(call.query == GRID.resized((4,)) for call in spy.calls)
    assert spy.calls[0].predict.pairs.inputs.values.shape[0] == 6
    free = [position for position in range(60) if bool((POOL.values[position] == spy.calls[0].pool.values[:, 0]).all(-1).any())]
    assert loop.history[1].chosen == tuple(reversed(free[-4:]))


@pytest.mark.parametrize(
    ("batch", "labels"),
    [(5, (6, 11, 16, 21)), (Growth(2.0), (6, 12, 24, 48)), (Growth(1.01), (6, 7, 8, 9)), (lambda n: n - 3, (6, 9, 15, 27))],
)
def test_batches_follow_their_schedule(tmp_path: Path, batch: Any, labels: tuple[int, ...]) -> None:
    assert learner(tmp_path, batch=batch).run(rounds=4).labels == labels


def test_a_number_of_labels_is_met_exactly_and_the_pool_can_be_used_up(tmp_path: Path) -> None:
    loop = learner(tmp_path, batch=10)
    assert loop.run(labels=20).labels == (6, 16, 20)
    assert loop.run(labels=25).labels == (6, 16, 20, 25)
    with pytest.warns(RuntimeWarning, match="the pool is used up at 56 labels"):
        assert loop.run(rounds=99).labels == (6, 16, 20, 25, 35, 45, 55, 56)  # 60 less those for calibration
    with pytest.warns(RuntimeWarning, match="56 labels already, more than 30"):
        loop.run(labels=30)
    assert len(loop.ask()) == 0


@pytest.mark.parametrize("warm", [True, False])
def test_training_starts_from_the_round_before_or_anew(tmp_path: Path, warm: bool) -> None:
    loop = learner(tmp_path, warm_start=warm)
    loop.run(rounds=3)
    operator, data = loops.convolution(), loop.pairs
    for number, count in enumerate(loop.history.labels):
        operator = operator if warm else loops.convolution()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            loops.kneaded(operator, data[:count], seed=number, show_progress=False)
    state = operator.state_dict()
    assert all(torch.equal(state[name], value) for name, value in loop.store.load_tensors("weights-0002").items())
    assert all(torch.equal(value, loops.convolution().state_dict()[name]) for name, value in loop.operator.state_dict().items())


def test_heads_that_train_themselves_and_heads_without_an_operator(tmp_path: Path) -> None:
    ensemble = pn.heads.DeepEnsemble(
        2, train=functools.partial(shaken, scale=0.1), progress=False, execution="loop", prediction="loop"
    )
    first = learner(tmp_path / "one", head=ensemble, train=None)
    assert first.run(rounds=2)[-1].loss is None
    again = learner(tmp_path / "one", head=ensemble, train=None)
    assert torch.equal(again.predict(TEST.inputs).samples, first.predict(TEST.inputs).samples)
    bare = learner(tmp_path / "two", operator=None, train=None)
    assert bare.run(rounds=2).labels == (6, 10)


def shaken(operator: nn.Module, pairs: FieldPairs, *, seed: int, scale: float) -> None:
    """Draws on the global generator, as recipes of other libraries do."""
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(scale * torch.randn_like(parameter) + pairs.outputs.values.mean())


def test_global_random_state_and_the_callers_operator_are_left_alone(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    operator = loops.convolution()
    learner(tmp_path, train=functools.partial(shaken, scale=0.1), operator=operator).run(rounds=2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(operator.weight, loops.convolution().weight)


class Killed(BaseException):
    """As sudden as a signal."""


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, after: bool, start: Callable[[], object]) -> bool:
    """Run until the loop writes for the at-th time, and die before or after that; whether it died."""
    count, rename = itertools.count(), os.replace

    def replace_and_die(*arguments: Any, **options: Any) -> None:
        is_result = Path(arguments[1]).parent.name == RESULTS  # those are the store's, which has tests of its own
        doomed = not is_result and next(count) == at
        if doomed and not after:
            raise Killed
        rename(*arguments, **options)
        if doomed:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_and_die)
        try:
            start()
        except Killed:
            return True
    return False


def small_run(folder: Path, calls: Counted) -> ActiveLearner:
    found = learner(folder, calls, initial=2, batch=2, calibration=1)
    found.run(rounds=2)
    return found


@pytest.mark.parametrize("after", [False, True])
def test_dying_at_any_write_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    whole = small_run(tmp_path / "whole", Counted(tmp_path / "calls"))
    for at in itertools.count():
        folder, calls = tmp_path / f"{at}", Counted(tmp_path / f"calls-{at}")
        died = interrupted(monkeypatch, at, after, functools.partial(small_run, folder, calls))
        again = small_run(folder, calls)
        assert same(again, whole)
        assert len(calls.calls) == len({*calls.calls})
        if not died:
            assert at > 9
            return


@pytest.mark.parametrize("kills", [5, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(tmp_path: Path, kills: int) -> None:
    whole = learner(tmp_path / "whole")
    whole.run(rounds=4)
    context, moments = multiprocessing.get_context("forkserver"), random.Random(kills)
    context.set_forkserver_preload(["tests.active.loops"])
    repeats, survived, runs = tmp_path / "repeats", 0, 0
    while survived < kills:
        store, results = tmp_path / f"store-{runs}", set[str]()
        while survived < kills:
            started = context.Event()
            process = context.Process(target=loops.work, args=(store, repeats, started))
            process.start()
            started.wait()
            process.join(moments.uniform(0.0, 0.5))
            process.kill()  # SIGKILL
            process.join()
            if process.exitcode == 0:
                break
            survived += 1
            found = {path.name for path in (store / "results").glob("[!.]*.safetensors")}
            assert results <= found  # no result is lost
            results = found
        again = learner(store, Watched(store, repeats))
        again.run(rounds=4)
        assert same(again, whole)
        runs += 1
    assert not repeats.exists()  # and none repeated


def test_what_is_finished_is_read_back(tmp_path: Path) -> None:
    calls = Counted(tmp_path / "calls")
    first = learner(tmp_path / "store", calls)
    first.run(rounds=2)
    second = learner(tmp_path / "store", calls)
    assert second.history == first.history
    assert second.history[0].train_seconds == first.history[0].train_seconds
    assert torch.equal(second.predict(TEST.inputs).mean, first.predict(TEST.inputs).mean)
    second.run(rounds=3)
    whole = learner(tmp_path / "whole")
    whole.run(rounds=3)
    assert same(second, whole)
    assert len(calls.calls) == 18


def test_damaged_weights_are_trained_again(tmp_path: Path) -> None:
    whole = learner(tmp_path / "whole")
    whole.run(rounds=3)
    learner(tmp_path / "store").run(rounds=2)
    (path,) = (tmp_path / "store").rglob("weights-0001*")
    path.write_bytes(path.read_bytes()[:-7])
    again = learner(tmp_path / "store")
    with pytest.warns(RuntimeWarning, match="broken"):
        again.run(rounds=3)
    assert same(again, whole)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"seed": 1}, "seed 0; got seed 1"),
        ({"initial": 5}, "initial 6; got initial 5"),
        ({"batch": Growth(2.0)}, r"batch '4'; got batch 'Growth\(factor=2.0\)'"),
        ({"calibration": 5}, "calibration 4"),
        ({"acquisition": StochasticSelection(power=2.0)}, r"acquisition 'StochasticSelection\(power=1.0\)'"),
        ({"head": NearestHead(0.1)}, "head"),
        ({"train": functools.partial(loops.kneaded)}, "train"),
        ({"operator": nn.Conv1d(1, 1, 1, dtype=torch.float64)}, "operator 'Conv1d "),
        ({"pool": functions(60, seed=9)}, "pool '"),
        ({"pool": POOL[:50]}, "pool size 60; got pool '.*', pool size 50"),
        ({"warm_start": False}, "warm_start True"),
        ({"test": TEST[:3]}, "test"),
        ({"calibrate": pn.calibration.VarianceScale()}, "calibrate 'None'"),
        ({"simulator": pn.problems.Heat(0.02, dimension=1)}, r'simulator "Heat\(diffusivity=0.01.*got simulator "Heat\(.*0.02'),
    ],
)
def test_a_store_of_other_settings_is_refused(tmp_path: Path, changes: dict[str, Any], names: str) -> None:
    learner(tmp_path, pn.problems.Heat(dimension=1))
    learner(tmp_path, square)  # callables are not told apart
    with pytest.raises(FileError, match=names):
        learner(tmp_path, **changes)


def test_settings_do_not_depend_on_addresses_or_on_how_simulations_run(tmp_path: Path) -> None:
    learner(tmp_path, train=functools.partial(loops.kneaded), batch=lambda labels: 4).run(rounds=1)
    with ThreadPoolExecutor(1) as pool:
        again = learner(
            tmp_path, train=functools.partial(loops.kneaded), batch=lambda labels: 4, executor=pool, timeout=9.0, attempts=3
        )
        assert again.run(rounds=2).labels == (6, 10)


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


def test_dask_gives_the_same_choices(tmp_path: Path, reference: ActiveLearner) -> None:
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=False, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert same(executed(client.get_executor(), tmp_path), reference)


def test_failures_are_left_out_counted_and_replaced(tmp_path: Path) -> None:
    simulator = Counted(tmp_path / "calls", fails_above=1.2, nan_below=-1.4)
    loop = learner(tmp_path / "store", simulator, batch=6, acquisition=RandomSelection())
    history = loop.run(rounds=5)
    mean = POOL.values.mean((1, 2))
    bad = ((mean > 1.2) | (mean < -1.4)).tolist()
    asked = [position for entry in history.rounds for position in entry.chosen]
    assert len({*asked}) == len(asked)
    failed = [position for position in asked if bad[position]]
    assert failed
    assert sum(entry.failed for entry in history.rounds) >= len(failed)
    good = [position for position in asked if not bad[position]]
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


def test_labels_are_made_up_for_failures(tmp_path: Path) -> None:
    loop = learner(tmp_path / "store", Counted(tmp_path / "calls", fails_above=0.8), batch=6)
    assert loop.run(labels=20).labels[-1] == 20
    assert any(entry.failed for entry in loop.history.rounds)


def test_too_many_failures_stop_the_loop_until_the_simulator_is_mended(tmp_path: Path) -> None:
    broken = Counted(tmp_path / "calls", fails_above=-9.0)
    loop = learner(tmp_path / "store", broken, attempts=1)
    with pytest.raises(SimulationError, match="at most 50% failures among 10 simulations; got 10"):
        loop.run(rounds=2)
    with pytest.raises(SimulationError):
        learner(tmp_path / "store", broken, attempts=1).run(rounds=2)
    assert len(broken.calls) == 10  # none was tried again
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
    with pytest.raises(SimulationError, match="got 4 of which nothing is known, the first: the executor is broken"):
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
        asked = loop.ask()
        assert len(asked) == count
        loop.tell(answer(asked, failing=True))
    asked = loop.ask()
    with pytest.raises(SimulationError, match=f"among {WINDOW} simulations; got 6"):
        loop.tell(answer(asked, failing=True))


def test_simulations_that_hang_are_failures(tmp_path: Path) -> None:
    hanging = Counted(tmp_path / "calls", hangs_above=1.5)
    assert 1 <= int((POOL.values.mean((1, 2)) > 1.5).sum()) <= 5
    loop = learner(tmp_path / "store", hanging, initial=30, batch=26, calibration=0, timeout=0.5, attempts=1)
    history = loop.run(rounds=2)
    bad = [position for position in range(60) if float(POOL.values[position].mean()) > 1.5]
    asked = {position for entry in history.rounds for position in entry.chosen} & {*bad}
    assert asked
    assert {failure.key for failure in loop.store.failures()} == {loop.store.key(POOL[position]) for position in asked}


def test_equal_candidates_are_one(tmp_path: Path) -> None:
    twice = Field(torch.cat([POOL.values[:20], POOL.values[:20]]), GRID)
    calls = Counted(tmp_path / "calls")
    loop = learner(tmp_path / "store", calls, pool=twice)
    with pytest.warns(RuntimeWarning, match="used up at 16"):
        loop.run(rounds=99)
    assert loop.history.labels[-1] == 16
    assert len(calls.calls) == 20


def test_results_that_the_store_has_are_reused(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store")
    for position in range(40):
        store.add(POOL[position], square(POOL[position]), seconds=1.0)
    calls = Counted(tmp_path / "calls")
    loop = learner(store, calls)
    loop.run(rounds=3)
    reused = sum(entry.reused for entry in loop.history.rounds)
    assert reused > 0
    assert len(calls.calls) == 18 - reused


def test_asking_and_telling_is_running(tmp_path: Path) -> None:
    whole = learner(tmp_path / "whole", simulator=square)
    whole.run(rounds=3)
    store = tmp_path / "store"
    loop = learner(store, None)
    generator = torch.Generator().manual_seed(3)
    while len(loop.history) < 3:
        asked = loop.ask()
        assert torch.equal(asked.values, loop.ask().values)  # asking again asks the same
        order = torch.randperm(len(asked), generator=generator)
        some = asked[order[: max(1, len(asked) // 2)]]
        loop.tell(FieldPairs(some, square(some)))
        loop = learner(store, None)  # a process of its own for each step
    assert [replace(entry, simulated=0, reused=0) for entry in loop.history.rounds] == [
        replace(entry, simulated=0, reused=0) for entry in whole.history.rounds
    ]
    assert same_pairs(loop.pairs, whole.pairs)
    assert len(whole.ask()) == 4  # both ways on one learner


def answered(inputs: Field, *, dtype: torch.dtype = torch.float64, bad: int = 0) -> FieldPairs:
    """What `tell` takes; the first `bad` outputs are NaN."""
    values = inputs.values.square()
    values[:bad] = torch.nan
    return FieldPairs(inputs, Field(values.to(dtype), GRID))


def test_killed_inside_tell_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = learner(tmp_path, None)
    pairs = answered(loop.ask())
    assert interrupted(monkeypatch, 0, False, lambda: loop.tell(pairs))
    assert len(loop.store) == 10
    again = learner(tmp_path, None)
    assert len(again.ask()) == 4
    assert again.history.labels == (6,)


def test_after_too_many_failures_told_results_can_be_told(tmp_path: Path) -> None:
    loop = learner(tmp_path, None)
    asked = loop.ask()
    with pytest.raises(SimulationError, match="or tell their results"):
        loop.tell(answered(asked, bad=10))
    with pytest.raises(SimulationError):
        learner(tmp_path, None).ask()
    again = learner(tmp_path, None)
    again.tell(answered(asked))
    assert again.history.labels == (6,)
    assert len(again.ask()) == 4


def test_results_of_another_kind_are_failures_when_told(tmp_path: Path) -> None:
    loop = learner(tmp_path, None)
    loop.tell(answered(loop.ask()))
    asked = loop.ask()
    loop.tell(answered(asked[:1], dtype=torch.float32))
    loop.tell(answered(asked[1:]))
    assert loop.history.labels == (6, 9)
    assert "float32" in loop.store.failures()[0].reason
    assert loop.history[-1].failed == 1


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
    assert sum(entry.failed for entry in history.rounds) >= 2
    assert float(loop.pairs.inputs.values.mean((1, 2)).abs().max()) < 1.2
    assert loop.store.failures()
    assert learner(tmp_path, odd, batch=10).history == history


class Reading(Spy):
    """Chooses by the variances it is given, to the last digits."""

    def _choose(self, asked: Request) -> torch.Tensor:
        total = float(asked.predict(asked.pool).variance.sum()) + float(asked.predict.noise.sum())
        return (torch.arange(asked.count) + int(total * 1e6)) % len(asked.pool)


def test_calibration_outputs_do_not_influence_what_is_chosen(tmp_path: Path) -> None:
    kept = learner(tmp_path / "zero", initial=2, calibration=4)
    kept.run(rounds=1)
    apart = {kept.store.key(kept.calibration_pairs.inputs[row]) for row in range(4)}

    def other(inputs: Field) -> Field:
        outputs = square(inputs)
        return Field(outputs.values + 3.0, GRID) if kept.store.key(inputs) in apart else outputs

    settings = {"acquisition": Reading(), "calibrate": pn.calibration.VarianceScale()}
    one, two = learner(tmp_path / "one", square, **settings), learner(tmp_path / "two", other, **settings)
    one.run(rounds=3)
    two.run(rounds=3)
    assert chosen(one) == chosen(two)
    assert one.history[-1].stated != two.history[-1].stated  # which the history's predictor does heed


def test_a_gap_in_the_memory_is_found(tmp_path: Path) -> None:
    learner(tmp_path).run(rounds=3)
    (tmp_path / "decisions" / "stage-0001.json").rename(tmp_path / "kept")
    with pytest.raises(FileError, match="got stage-0002, but no usable stage-0001"):
        learner(tmp_path)
    (tmp_path / "kept").rename(tmp_path / "decisions" / "stage-0001.json")
    (tmp_path / "decisions" / "stage-0002.json").unlink()
    with pytest.raises(FileError, match="got 2 stages, 3 outcomes and 3 rounds"):
        learner(tmp_path)


def test_two_learners_on_one_store_are_noticed(tmp_path: Path) -> None:
    one, two = learner(tmp_path), learner(tmp_path)
    one.run(rounds=2)
    with pytest.raises(FileError, match="a store that one learner uses; got stage-0000"):
        two.run(rounds=2)


def endless(operator: nn.Module, pairs: FieldPairs, *, seed: int) -> History:
    return History(train=(math.inf,), validation=(), seconds=(0.0,))


def broken(operator: nn.Module, pairs: FieldPairs, *, seed: int) -> None:
    with torch.no_grad():
        next(operator.parameters()).fill_(torch.nan)


def test_what_is_not_finite_has_a_name(tmp_path: Path) -> None:
    huge = FieldPairs(TEST.inputs, Field(TEST.outputs.values * 1e200, GRID))  # their squares overflow
    found = learner(tmp_path / "one", train=endless, test=huge).run(rounds=2)[-1]
    assert (found.loss, found.error, found.error_99) == (None, None, None)
    with pytest.raises(TrainingError, match="finite weights after the training of round 0"):
        learner(tmp_path / "two", train=broken).run(rounds=2)


def test_own_workers_live_for_all_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []

    def one_pool(*arguments: Any, **settings: Any) -> Any:
        opened.append(open_pool(*arguments, **settings))
        return opened[-1]

    monkeypatch.setattr("probneural.active.loop.learner.open_pool", one_pool)
    learner(tmp_path).run(rounds=3)
    assert len(opened) == 1
    own = ProcessPool(square, workers=2, limit=None)
    assert own.has_room
    own.close()  # none has started


def test_history_is_a_table(tmp_path: Path) -> None:
    loop = learner(tmp_path)
    loop.run(rounds=3)
    lines = str(loop.history).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert lines[0].split()[:2] == ["round", "labels"]
    assert lines[3].split()[:2] == ["2", "14"]
    rows = json.loads(json.dumps(loop.history.to_rows()))
    assert [row["labels"] for row in rows] == [6, 10, 14]
    assert LearningHistory(tuple(Round(**{**row, "chosen": tuple(row["chosen"])}) for row in rows)) == loop.history
    assert loop.history._repr_html_().count("<tr>") == 4
    assert len(loop.history) == 3
    slower = replace(loop.history[0], train_seconds=99.0)
    assert slower == loop.history[0]


def small_operator() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1, projection=4)


def small_loop(folder: Path, problem: pn.problems.Heat) -> ActiveLearner:
    return ActiveLearner(
        problem,
        pn.heads.LastLayerLaplace(),
        StochasticSelection(),
        operator=small_operator(),
        train=functools.partial(pn.fit, epochs=3, validation=0.0),
        pool=problem.sample_inputs(40, resolution=32, seed=0),
        store=folder,
        initial=8,
        batch=Growth(1.5),
        calibration=8,
        calibrate=pn.calibration.VarianceScale(),
        test=problem.sample(10, resolution=32, seed=1),
        executor=loops.Here(),
        progress=False,
    )


def test_an_operator_with_its_last_layers_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = pn.problems.Heat(0.01, dimension=1)
    whole = small_loop(tmp_path / "whole", problem)
    history = whole.run(labels=20)
    assert history.labels == (8, 12, 18, 20)
    assert all(entry.loss and entry.error and math.isfinite(entry.stated or math.nan) for entry in history.rounds)
    again = None
    for at in (5, 9):  # dies again and again; nothing is different afterwards
        assert interrupted(monkeypatch, at, False, lambda: small_loop(tmp_path / "store", problem).run(labels=20))
    again = small_loop(tmp_path / "store", problem)
    again.run(labels=20)
    assert same(again, whole)
    fine = problem.sample_inputs(3, resolution=48, seed=5)
    assert torch.equal(again.predict(fine).mean, whole.predict(fine).mean)
    assert torch.equal(again.predict(fine).variance, whole.predict(fine).variance)


class Greedy(Spy):
    def _choose(self, asked: Request) -> torch.Tensor:
        return torch.zeros(asked.count, dtype=torch.int64)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"simulator": 3}, ArgumentError, "a problem or a callable"),
        ({"head": 3}, ArgumentError, "a head with fit"),
        ({"acquisition": 3}, ArgumentError, "a Selector"),
        ({"operator": 3}, ArgumentError, "an nn.Module or None"),
        ({"pool": POOL.values}, ArgumentError, "a Field as pool"),
        ({"train": 3}, ArgumentError, "train with an operator"),
        ({"operator": None}, ArgumentError, "train with an operator"),
        ({"calibrate": 3}, ArgumentError, "a calibrator"),
        ({"calibrate": pn.calibration.VarianceScale(), "calibration": 1}, ArgumentError, "calibration as an integer from 2"),
        ({"test": TEST.inputs}, ArgumentError, "FieldPairs as test"),
        ({"initial": 1}, ArgumentError, "initial as an integer from 2 to 60"),
        ({"initial": 4.0}, ArgumentError, "initial"),
        ({"calibration": -1}, ArgumentError, "calibration as an integer from 0"),
        ({"seed": -1}, ArgumentError, "seed"),
        ({"seed": True}, ArgumentError, "seed"),
        ({"batch": 0}, ArgumentError, "a batch of at least 1 at 6 labels"),
        ({"batch": 1.5}, ArgumentError, "a batch of at least 1"),
        ({"batch": lambda labels: 0}, ArgumentError, "a batch of at least 1"),
        ({"test": FieldPairs(POOL[:3], square(POOL[:3])).to(torch.float32)}, DataError, "not in the pool; got 3"),
        ({"initial": 58}, DataError, "a pool of at least 62"),
        ({"test": FieldPairs(POOL[:3], square(POOL[:3]))}, DataError, "test functions that are not in the pool; got 3"),
    ],
)
def test_wrong_arguments(tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        learner(tmp_path, **changes)


def test_wrong_calls(tmp_path: Path) -> None:
    loop = learner(tmp_path / "one", None)
    for call, kind, message in (
        (loop.run, ArgumentError, "rounds= or labels="),
        (lambda: loop.run(rounds=1, labels=1), ArgumentError, "rounds= or labels="),
        (lambda: loop.run(rounds=1), ArgumentError, "a simulator to run"),
        (lambda: loop.run(labels=5), ArgumentError, "labels as an integer of at least 6"),
        (lambda: loop.predict, DataError, "a finished round"),
        (lambda: loop.pairs, DataError, "labelled functions; got none yet"),
        (lambda: loop.calibration_pairs, DataError, "calibration functions"),
        (lambda: loop.tell(TEST), ArgumentError, "an open question"),
    ):
        with pytest.raises(kind, match=message):
            call()
    asked = loop.ask()
    for pairs in (TEST, FieldPairs(asked.to(torch.float32), asked.to(torch.float32))):
        with pytest.raises(ArgumentError, match="inputs that ask"):
            loop.tell(pairs)
    with pytest.raises(ArgumentError, match="a choice of 4 different positions below 50"):
        learner(tmp_path / "two", acquisition=Greedy()).run(rounds=2)
    with pytest.raises(ArgumentError, match="a factor above 1"):
        Growth(1.0)


@pytest.mark.bad_input
def test_numbers_to_reach_are_integers(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="rounds as an integer of at least 0"):
        learner(tmp_path).run(rounds=1.0)  # type: ignore[arg-type]


def test_a_pool_that_fails_too_often_for_the_random_start(tmp_path: Path) -> None:
    small = POOL[:12]
    loop = learner(tmp_path, None, pool=small, test=None)
    asked = loop.ask()
    outputs = asked.values.square()
    outputs[:4] = torch.nan
    loop.tell(FieldPairs(asked, Field(outputs, GRID)))
    with pytest.raises(DataError, match="4 more candidates for the random start; got 2"):
        loop.ask()


class Odd(nn.Conv1d):
    def get_extra_state(self) -> str:
        return "not a tensor"


def test_operators_that_no_file_can_hold(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="made of tensors"):
        learner(tmp_path, operator=Odd(1, 1, 1, dtype=torch.float64))
