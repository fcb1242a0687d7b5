from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probneural as pn
from probneural.active import Growth, StochasticSelection
from probneural.active.selectors import Request
from probneural.errors import ArgumentError, DataError, FileError
from probneural.fields import Field
from probneural.pairs import FieldPairs
from tests.active import loops
from tests.active.loops import GRID, POOL, TEST, NearestHead, Spy, functions, learner, square

pytestmark = pytest.mark.usefixtures("no_syncing")


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
        ({"candidates": square}, "candidates None; got candidates 'square'"),
        ({"calibrate": pn.calibration.VarianceScale()}, "calibrate 'None'"),
        (
            {"simulator": pn.problems.Heat(0.02, dimension=1)},
            r'simulator "Heat\(.*diffusivity=0.01.*got simulator "Heat\(.*diffusivity=0.02',
        ),
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
        again = learner(tmp_path, train=functools.partial(loops.kneaded), batch=lambda labels: 4, executor=pool, attempts=3)
        assert again.run(rounds=2).labels == (6, 10)


@pytest.mark.parametrize(
    "settings",
    [
        lambda seed: {"acquisition": StochasticSelection(power=1.0 + 1e-9 * seed)},
        lambda seed: {"calibrate": pn.calibration.VarianceScale(noise=torch.tensor([1e-3 + 1e-9 * seed]))},
        lambda seed: {"train": functools.partial(loops.kneaded, weights=[functions(5, seed=seed)])},
    ],
)
def test_values_of_settings_count(settings: Callable[[int], dict[str, Any]], tmp_path: Path) -> None:
    """Weights and noises of equal shape, whose representations are equal."""
    learner(tmp_path, **settings(1))
    learner(tmp_path, **settings(1))
    with pytest.raises(FileError, match="acquisition|calibrate|train"):
        learner(tmp_path, **settings(2))


class Greedy(Spy):
    def _choose(self, request: Request) -> torch.Tensor:
        return torch.zeros(request.count, dtype=torch.int64)


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"operator": None}, ArgumentError, "train with an operator"),
        (
            {"calibrate": pn.calibration.VarianceScale(), "calibration": 3},
            ArgumentError,
            "an integer of at least 4 as calibration",
        ),
        ({"initial": 1}, ArgumentError, "an integer of at least 2 as initial"),
        ({"calibration": -1}, ArgumentError, "an integer of at least 0 as calibration"),
        ({"batch": 0}, ArgumentError, "an integer of at least 1 as batch at 6 labels"),
        ({"batch": lambda labels: 0}, ArgumentError, "an integer of at least 1 as batch"),
        ({"test": FieldPairs(POOL[:3], square(POOL[:3])).to(torch.float32)}, DataError, "not in the pool; got 3"),
        ({"initial": 58}, DataError, "62 or more different functions in the pool"),
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
        (lambda: loop.run(labels=5), ArgumentError, "an integer of at least 6 as labels"),
        (lambda: loop.predictor, DataError, "a finished round"),
        (lambda: loop.pairs, DataError, "labelled functions; got none yet"),
        (lambda: loop.calibration_pairs, DataError, "calibration functions"),
        (lambda: loop.tell(TEST), ArgumentError, "an open question"),
    ):
        with pytest.raises(kind, match=message):
            call()
    request = loop.ask()
    for pairs in (TEST, FieldPairs(request.to(torch.float32), request.to(torch.float32))):
        with pytest.raises(ArgumentError, match="inputs that ask"):
            loop.tell(pairs)
    with pytest.raises(ArgumentError, match="a choice of 4 different positions below 50"):
        learner(tmp_path / "two", acquisition=Greedy()).run(rounds=2)


@pytest.mark.bad_input
def test_numbers_to_reach_are_integers(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="an integer of at least 0 as rounds"):
        learner(tmp_path).run(rounds=1.0)  # type: ignore[arg-type]


def test_a_pool_that_fails_too_often_for_the_random_start(tmp_path: Path) -> None:
    small = POOL[:12]
    loop = learner(tmp_path, None, pool=small, test=None)
    request = loop.ask()
    outputs = request.values.square()
    outputs[:4] = torch.nan
    loop.tell(FieldPairs(request, Field(outputs, GRID)))
    with pytest.raises(DataError, match="4 or more candidates for the random start; got 2"):
        loop.ask()


class Odd(nn.Conv1d):
    def get_extra_state(self) -> str:
        return "not a tensor"


def test_operators_that_no_file_can_hold(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="made of tensors"):
        learner(tmp_path, operator=Odd(1, 1, 1, dtype=torch.float64))
