"""Snapshot ensembles against the training that they are the stations of."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from probneural.errors import ArgumentError, ShapeError, TrainingError
from probneural.fields import Field
from probneural.heads import SnapshotEnsemble
from probneural.pairs import FieldPairs
from probneural.randomness import stream_seed
from probneural.storage import load, save
from probneural.training import EachEpoch, Optimization, fit
from probneural.training.callbacks import Progress
from tests.heads.cases import PERIODIC, briefly, fields, operator_case, small_fno

CASE = operator_case("fno-1d")
CYCLE = partial(fit, epochs=2, learning_rate=0.01, optimization=Optimization(schedule="cosine"), validation=0.0)


def test_members_are_the_ends_of_cycles_that_follow_each_other() -> None:
    rates: list[float] = []

    def note(progress: Progress) -> None:
        rates.append(progress.learning_rate)

    train = partial(CYCLE, batch_size=3, callbacks=[EachEpoch(note)], show_progress=False)
    predictor = SnapshotEnsemble(3, train=train, seed=5, show_progress=False).fit(CASE.operator, CASE.data)
    walked = copy.deepcopy(CASE.operator)
    for number, sample in enumerate(predictor(CASE.inputs).samples):
        CYCLE(walked, CASE.data, batch_size=3, seed=stream_seed(5, "training snapshot", number), show_progress=False)
        with torch.no_grad():
            torch.testing.assert_close(copy.deepcopy(walked).eval()(CASE.inputs.values), sample, rtol=1e-12, atol=1e-13)
    assert rates[:2] == rates[2:4] == rates[4:6]  # each cycle begins at the full rate
    last = [0.005 * (1.0 + math.cos(part * math.pi / 4)) for part in (1, 3)]  # of the two steps of each epoch
    assert rates[:2] == pytest.approx(last)


def test_a_kept_operator_is_the_first_member() -> None:
    predictor = SnapshotEnsemble(3, train=briefly, keeps_operator=True, show_progress=False).fit(CASE.operator, CASE.data)
    own = copy.deepcopy(CASE.operator).eval()
    later = SnapshotEnsemble(2, train=briefly, show_progress=False).fit(CASE.operator, CASE.data)
    with torch.no_grad():
        torch.testing.assert_close(predictor(CASE.inputs).samples[0], own(CASE.inputs.values))
    assert torch.equal(predictor.vectors[1:], later.vectors)


def test_running_statistics_are_the_members_own() -> None:
    case = operator_case("conv")
    operator = copy.deepcopy(case.operator).train()  # whatever mode other tests left it in
    predictor = SnapshotEnsemble(3, train=briefly, show_progress=False).fit(operator, case.data)
    assert len({float(member.norm.running_mean.sum()) for member in predictor.operators()}) == 3  # type: ignore[union-attr]


def test_noise_is_what_the_mean_of_the_members_leaves() -> None:
    predictor = SnapshotEnsemble(3, train=briefly, show_progress=False).fit(CASE.operator, CASE.data)
    left = CASE.data.outputs.values - predictor(CASE.data.inputs).mean
    torch.testing.assert_close(predictor.noise, left.square().mean((0, 2)))


def test_saved(tmp_path: Path) -> None:
    predictor = SnapshotEnsemble(3, train=briefly, show_progress=False).fit(CASE.operator, CASE.data)
    save(predictor, tmp_path / "snapshots")
    loaded = load(tmp_path / "snapshots")
    assert torch.equal(loaded(CASE.inputs).samples, predictor(CASE.inputs).samples)  # type: ignore[operator]


@pytest.mark.bad_input
class TestBadInput:
    def test_settings(self) -> None:
        for settings in ({"members": 1}, {"train": None}, {"keeps_operator": 2}, {"seed": -1}, {"show_progress": None}):
            with pytest.raises(ArgumentError):
                SnapshotEnsemble(**{"train": briefly, **settings})  # type: ignore[arg-type]

    def test_a_cycle_that_does_nothing(self) -> None:
        with pytest.raises(TrainingError, match="member 0"):
            SnapshotEnsemble(2, train=lambda operator, data, seed: None, show_progress=False).fit(CASE.operator, CASE.data)

    def test_outputs_that_do_not_fit_cost_no_training(self) -> None:
        def never(operator: nn.Module, data: FieldPairs, *, seed: int) -> None:
            raise AssertionError

        outputs = Field(torch.ones(6, 2, 12, dtype=torch.float64), PERIODIC)
        with pytest.raises(ShapeError, match="check its channels"):
            SnapshotEnsemble(2, train=never).fit(small_fno()().double(), FieldPairs(fields(PERIODIC, 6, 1, seed=1), outputs))
