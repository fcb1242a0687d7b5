from __future__ import annotations

import functools
import itertools
import math
import multiprocessing
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import probneural as pn
from probneural.active import ActiveLearner, Growth, LearningPlan, OperatorTraining, SimulationOptions, StochasticSelection
from probneural.active.simulation.store import ResultStore
from probneural.distributions import Predictor
from probneural.errors import FileError
from tests.active import loops
from tests.active.loops import POOL, TEST, Counted, Watched, interrupted, learner, same, square

pytestmark = pytest.mark.usefixtures("no_syncing")


def proposed(predictor: Predictor) -> pn.Field:
    """Candidates that depend on the predictor and on torch's global generator."""
    mean = predictor(POOL[:8]).mean
    return pn.Field(mean + torch.randn_like(mean), POOL.grid)


def small_run(folder: Path, calls: Counted, candidates: Callable[[Predictor], pn.Field] | None) -> ActiveLearner:
    loop = learner(folder, calls, initial=2, batch=2, calibration=1, candidates=candidates)
    loop.run(rounds=2 if candidates is None else 3)
    return loop


@pytest.mark.parametrize("candidates", [None, proposed])
@pytest.mark.parametrize("after", [False, True])
def test_dying_at_any_write_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, candidates: Callable[[Predictor], pn.Field] | None
) -> None:
    whole = small_run(tmp_path / "whole", Counted(tmp_path / "calls"), candidates)
    for at in itertools.count():
        folder, calls = tmp_path / f"{at}", Counted(tmp_path / f"calls-{at}")
        died = interrupted(monkeypatch, at, after, functools.partial(small_run, folder, calls, candidates))
        again = small_run(folder, calls, candidates)
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
            names = {path.name for path in (store / "results").glob("[!.]*.safetensors")}
            assert results <= names  # no result is lost
            results = names
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
    assert second.history[0].seconds == first.history[0].seconds
    assert torch.equal(second.predictor(TEST.inputs).mean, first.predictor(TEST.inputs).mean)
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


def test_results_that_the_store_has_are_reused(tmp_path: Path) -> None:
    store = ResultStore(tmp_path / "store")
    for position in range(40):
        store.add(POOL[position], square(POOL[position]), seconds=1.0)
    calls = Counted(tmp_path / "calls")
    loop = learner(store, calls)
    loop.run(rounds=3)
    reused = sum(entry.simulations.reused for entry in loop.history.rounds)
    assert reused > 0
    assert len(calls.calls) == 18 - reused


def test_a_gap_in_the_memory_is_found(tmp_path: Path) -> None:
    learner(tmp_path).run(rounds=3)
    (tmp_path / "decisions" / "batch-0001.safetensors").rename(tmp_path / "kept")
    with pytest.raises(FileError, match="got batch-0002, but no usable batch-0001"):
        learner(tmp_path)
    (tmp_path / "kept").rename(tmp_path / "decisions" / "batch-0001.safetensors")
    (tmp_path / "decisions" / "batch-0002.safetensors").unlink()
    with pytest.raises(FileError, match="got 2 batches, 3 outcomes and 3 rounds"):
        learner(tmp_path)


def test_memory_of_another_version_is_refused(tmp_path: Path) -> None:
    ResultStore(tmp_path).remember("batch-0000", {"round": 0, "target": 2, "known": 1})
    with pytest.raises(FileError, match="a SimulationBatch of the loop's memory; got no calibration, .* and known beside it"):
        learner(tmp_path)


def test_two_learners_on_one_store_are_noticed(tmp_path: Path) -> None:
    one, two = learner(tmp_path), learner(tmp_path)
    one.run(rounds=2)
    with pytest.raises(FileError, match="a store that one learner uses; got batch-0000"):
        two.run(rounds=2)


def small_operator() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return pn.operators.FNO(1, 1, modes=(4,), width=4, depth=1, projection=4)


def small_loop(folder: Path, problem: pn.problems.Heat) -> ActiveLearner:
    return ActiveLearner(
        problem,
        pn.heads.LastLayerLaplace(),
        acquisition=StochasticSelection(),
        pool=problem.sample_inputs(40, resolution=32, seed=0),
        store=folder,
        training=OperatorTraining(
            small_operator(), functools.partial(pn.fit, epochs=3, data=pn.training.DataOptions(validation=0.0))
        ),
        plan=LearningPlan(
            initial=8,
            batch=Growth(1.5),
            calibration=8,
            calibrate=pn.calibration.VarianceScale(),
            test=problem.sample(10, resolution=32, seed=1),
        ),
        simulation=SimulationOptions(executor=loops.Here(), show_progress=False),
    )


def test_an_operator_with_its_last_layers_posterior(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = pn.problems.Heat(0.01, dimension=1)
    whole = small_loop(tmp_path / "whole", problem)
    history = whole.run(labels=20)
    assert history.labels == (8, 12, 18, 20)
    assert all(entry.loss and entry.errors.mean and math.isfinite(entry.errors.stated or math.nan) for entry in history.rounds)
    again = None
    for at in (5, 9):  # dies again and again; nothing is different afterwards
        assert interrupted(monkeypatch, at, False, lambda: small_loop(tmp_path / "store", problem).run(labels=20))
    again = small_loop(tmp_path / "store", problem)
    again.run(labels=20)
    assert same(again, whole)
    fine = problem.sample_inputs(3, resolution=48, seed=5)
    assert torch.equal(again.predictor(fine).mean, whole.predictor(fine).mean)
    assert torch.equal(again.predictor(fine).variance, whole.predictor(fine).variance)
