from __future__ import annotations

import functools
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probneural as pn
from probneural.active import Growth, RandomSelection
from probneural.active.loop.history import LearningHistory, Round, SimulationCounts
from probneural.active.selectors import Request
from probneural.errors import DataError, SimulationError, TrainingError
from probneural.fields import Field
from probneural.pairs import FieldPairs
from probneural.randomness import seeded, stream, stream_seed
from probneural.training.callbacks import History
from tests.active import loops
from tests.active.loops import GRID, POOL, TEST, Counted, NearestHead, Spy, chosen, interrupted, learner, same_pairs, square

pytestmark = pytest.mark.usefixtures("no_syncing")

NONE = SimulationCounts(simulated=0, reused=0, failed=0)


def test_a_loop_learns_from_what_it_chooses(tmp_path: Path) -> None:
    simulator = Counted(tmp_path / "calls")
    loop = learner(tmp_path / "store", simulator)
    history = loop.run(rounds=4)
    assert history == loop.history
    assert history.labels == (6, 10, 14, 18)
    assert [entry.simulations.simulated for entry in history.rounds] == [10, 4, 4, 4]
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
    order = torch.randperm(len(POOL), generator=stream(0, "random start"))
    assert torch.equal(kept.inputs.values, POOL.values[order[:10]])


def test_history_measures_the_mean_and_the_stated_deviation(tmp_path: Path) -> None:
    loop = learner(tmp_path, calibrate=pn.calibration.VarianceScale())
    last = loop.run(rounds=2)[-1]
    u = loop.predictor(TEST.inputs)
    norm = TEST.outputs.values.square().mean(-1).sqrt()
    error = ((u.mean - TEST.outputs.values).square().mean(-1).sqrt() / norm)[:, 0]
    stated = ((u.variance + loop.predictor.noise.double()).mean(-1).sqrt() / norm)[:, 0]
    assert last.errors.mean == pytest.approx(float(error.mean()), rel=1e-12)
    assert last.errors.quantile_95 == pytest.approx(float(error.quantile(0.95)), rel=1e-12)
    assert last.errors.quantile_99 == pytest.approx(float(error.quantile(0.99)), rel=1e-12)
    assert last.errors.stated == pytest.approx(float(stated.mean()), rel=1e-6)
    weights = loop.store.load_tensors("weights-0001")
    assert last.loss == pytest.approx(sum(float(value.abs().sum()) for value in weights.values()), rel=1e-12)


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
    assert spy.calls[0].predictor.pairs.inputs.values.shape[0] == 6
    free = [position for position in range(60) if bool((POOL.values[position] == spy.calls[0].pool.values[:, 0]).all(-1).any())]
    assert loop.history[1].chosen == tuple(reversed(free[-4:]))


def test_candidates_of_the_last_predictor(tmp_path: Path) -> None:
    """They replace the pool, without copies, functions that were asked for and test functions; ask and tell do the same."""
    spy, seen = Spy(), []

    def proposed(predictor: Any) -> Field:
        known = [predictor.pairs.inputs.values, POOL.values, TEST.inputs.values]
        mean = predictor(POOL[:9]).mean
        seen.append(len(predictor.pairs))
        return Field(torch.cat([*known, mean, mean]), GRID)

    loop = learner(tmp_path / "one", acquisition=spy, candidates=proposed)
    history = loop.run(rounds=3)
    assert seen == [6, 10]
    assert [len(call.pool) for call in spy.calls] == [50 + 9, 50 + 9]
    assert [entry.chosen for entry in history.rounds][1:] == [(60, 61, 62, 63), (64, 65, 66, 67)]
    assert torch.equal(loop.pairs.inputs.values[6:10], spy.calls[0].pool.values[-4:].flip(0))
    asked = learner(tmp_path / "two", None, acquisition=Spy(), candidates=proposed)
    while len(asked.history) < 3:
        inputs = asked.ask()
        asked.tell(FieldPairs(inputs, square(inputs)))
    assert same_pairs(asked.pairs, loop.pairs)


@pytest.mark.parametrize("values", [torch.zeros(3, 1, 6), torch.zeros(3, 2, 8), torch.zeros(0, 1, 8), "fields"])
def test_candidates_that_are_none(tmp_path: Path, values: Any) -> None:
    field = Field(values, loops.Grid.uniform(values.shape[-1])) if isinstance(values, torch.Tensor) else values
    loop = learner(tmp_path, candidates=lambda predictor: field)
    if isinstance(values, torch.Tensor) and not len(values):
        with pytest.warns(RuntimeWarning, match="the pool is used up at 6 labels"):
            loop.run(rounds=2)
    else:
        with pytest.raises(DataError, match="candidates as a Field of 1 channels on the pool's one grid"):
            loop.run(rounds=2)


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
        with seeded(0, "round training", number):
            loops.kneaded(operator, data[:count], seed=stream_seed(0, "round recipe", number), show_progress=False)
    state = operator.state_dict()
    assert all(torch.equal(state[name], value) for name, value in loop.store.load_tensors("weights-0002").items())
    assert all(
        torch.equal(value, loops.convolution().state_dict()[name])
        for name, value in loop.training.operator.state_dict().items()
    )


def test_heads_that_train_themselves_and_heads_without_an_operator(tmp_path: Path) -> None:
    ensemble = pn.heads.DeepEnsemble(2, train=functools.partial(shaken, scale=0.1), show_progress=False)
    first = learner(tmp_path / "one", head=ensemble, train=None)
    assert first.run(rounds=2)[-1].loss is None
    again = learner(tmp_path / "one", head=ensemble, train=None)
    assert torch.equal(again.predictor(TEST.inputs).samples, first.predictor(TEST.inputs).samples)
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


def test_asking_and_telling_is_running(tmp_path: Path) -> None:
    whole = learner(tmp_path / "whole", simulator=square)
    whole.run(rounds=3)
    store = tmp_path / "store"
    loop = learner(store, None)
    generator = torch.Generator().manual_seed(3)
    while len(loop.history) < 3:
        request = loop.ask()
        assert torch.equal(request.values, loop.ask().values)  # asking again asks the same
        order = torch.randperm(len(request), generator=generator)
        some = request[order[: max(1, len(request) // 2)]]
        loop.tell(FieldPairs(some, square(some)))
        loop = learner(store, None)  # a process of its own for each step
    told, ran = ([replace(entry, simulations=NONE) for entry in history.rounds] for history in (loop.history, whole.history))
    assert told == ran
    assert [entry.simulations.failed for entry in loop.history.rounds] == [0] * 3
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
    request = loop.ask()
    with pytest.raises(SimulationError, match="or tell their results"):
        loop.tell(answered(request, bad=10))
    with pytest.raises(SimulationError):
        learner(tmp_path, None).ask()
    again = learner(tmp_path, None)
    again.tell(answered(request))
    assert again.history.labels == (6,)
    assert len(again.ask()) == 4


class Observation(Spy):
    """Chooses by the variances it is given, to the last digits."""

    def _choose(self, request: Request) -> torch.Tensor:
        total = float(request.predictor(request.pool).variance.sum()) + float(request.predictor.noise.sum())
        return (torch.arange(request.count) + int(total * 1e6)) % len(request.pool)


def test_calibration_outputs_do_not_influence_what_is_chosen(tmp_path: Path) -> None:
    kept = learner(tmp_path / "zero", initial=2, calibration=4)
    kept.run(rounds=1)
    apart = {kept.store.key(kept.calibration_pairs.inputs[row]) for row in range(4)}

    def other(inputs: Field) -> Field:
        outputs = square(inputs)
        return Field(outputs.values + 3.0, GRID) if kept.store.key(inputs) in apart else outputs

    settings = {"acquisition": Observation(), "calibrate": pn.calibration.VarianceScale()}
    one, two = learner(tmp_path / "one", square, **settings), learner(tmp_path / "two", other, **settings)
    one.run(rounds=3)
    two.run(rounds=3)
    assert chosen(one) == chosen(two)
    assert one.history[-1].errors.stated != two.history[-1].errors.stated  # which the history's predictor does heed


def endless(operator: nn.Module, pairs: FieldPairs, *, seed: int) -> History:
    return History(train=(math.inf,), validation=(), seconds=(0.0,))


def broken(operator: nn.Module, pairs: FieldPairs, *, seed: int) -> None:
    with torch.no_grad():
        next(operator.parameters()).fill_(torch.nan)


def test_what_is_not_finite_has_a_name(tmp_path: Path) -> None:
    assert learner(tmp_path / "one", train=endless).run(rounds=2)[-1].loss is None
    with pytest.raises(TrainingError, match="finite weights after the training of round 0"):
        learner(tmp_path / "two", train=broken).run(rounds=2)
    huge = FieldPairs(TEST.inputs, Field(TEST.outputs.values * 1e200, GRID))
    with pytest.raises(DataError, match="which torch.float64 holds squared"):
        learner(tmp_path / "three", test=huge).run(rounds=2)


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
    assert LearningHistory(tuple(Round.from_row(row) for row in rows)) == loop.history
    assert len(loop.history) == 3
    slower = replace(loop.history[0], seconds=replace(loop.history[0].seconds, train=99.0))
    assert slower == loop.history[0]
