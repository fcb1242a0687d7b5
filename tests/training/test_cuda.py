"""Training on CUDA: half precision, pinned batches, and runs that go on to the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from probneural.operators import FNO
from probneural.pairs import Dataset
from probneural.training import DataOptions, Optimization, RunOptions, fit
from probneural.training.callbacks import History
from tests.device import simulated
from tests.helpers import accelerator
from tests.training.cases import built, data, same
from tests.training.lazy import lazy
from tests.training.test_resuming import KillAt, Killed, outcome, settings

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def deterministic_convolutions() -> Iterator[None]:
    """Without this, cuDNN may add up gradients of convolutions in any order."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


def trained(train: Dataset, **changes: Any) -> tuple[History, dict[str, torch.Tensor]]:
    chosen = {
        "epochs": 10,
        "data": DataOptions(batch_size=6),
        "seed": 4,
        "run": RunOptions(device=accelerator()),
        "show_progress": False,
    } | changes
    operator = FNO(1, 1, modes=(4,), width=8, depth=2, seed=0)
    history = fit(operator, train, **chosen)
    assert {one.device.type for one in operator.state_dict().values()} == {accelerator()}
    assert {parameter.dtype for parameter in operator.parameters()} == {torch.float32}
    return history, operator.state_dict()


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_learns_as_much(precision: Any) -> None:
    """float16 with scaled losses."""
    exact, _ = trained(data(60))
    history, _ = trained(data(60), optimization=Optimization(precision=precision))
    assert history.train != exact.train
    assert history.train[-1] == pytest.approx(exact.train[-1], rel=0.1)
    assert history.validation[-1] == pytest.approx(exact.validation[-1], rel=0.1)


def test_agrees_with_the_cpu() -> None:
    there, _ = trained(data(60))
    here = fit(
        FNO(1, 1, modes=(4,), width=8, depth=2, seed=0),
        data(60),
        epochs=10,
        data=DataOptions(batch_size=6),
        seed=4,
        show_progress=False,
    )
    assert there.train[0] == pytest.approx(here.train[0], rel=1e-2)
    assert there.train[-1] == pytest.approx(here.train[-1], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_change_no_bit(workers: int) -> None:
    expected, weights = trained(data(33), data=DataOptions(batch_size=6, pin_memory=False))
    for pin_memory in (None, True, False):
        for train in (lazy(data(33)), data(33)):
            found, theirs = trained(train, data=DataOptions(batch_size=6, workers=workers, pin_memory=pin_memory))
            assert outcome(found) == outcome(expected)
            assert same(theirs, weights)


def test_data_on_the_device_are_not_pinned() -> None:
    expected, weights = trained(data(33))
    found, theirs = trained(data(33).to(accelerator()), data=DataOptions(batch_size=6, pin_memory=True))
    assert outcome(found) == outcome(expected)
    assert same(theirs, weights)


@pytest.mark.parametrize("is_moved", [False, True])
def test_needs_no_double_precision(is_moved: bool) -> None:
    """MPS has none, whether the data lie there or come in batches."""
    device = accelerator()
    if device != simulated.NAME:
        pytest.skip("CUDA has float64")
    train = data(33).to(device) if is_moved else data(33)
    expected, weights = trained(data(33))
    with simulated.without_float64():
        found, theirs = trained(train)
    assert outcome(found) == outcome(expected)
    assert same(theirs, weights)


def test_groups_of_data_on_the_device() -> None:
    groups = torch.arange(11).repeat(3)
    expected, weights = trained(replace(data(33), groups=groups))
    found, theirs = trained(replace(data(33), groups=groups).to(accelerator()))
    assert outcome(found) == outcome(expected)
    assert same(theirs, weights)


@pytest.mark.parametrize("name", ["default", "adamw", "bfloat16", "float16"])
def test_resumes_at_the_same_bits_within_an_epoch(name: str, tmp_path: Path) -> None:
    """Dropout draws on the device, so its generator is part of what is kept."""
    options = {"device": accelerator()}
    whole = built("Convolutional")
    expected = fit(whole, data(23), **settings(name, None, **options))
    path = tmp_path / "run"
    for step in range(2, 8):
        with pytest.raises(Killed):
            fit(built("Convolutional", seed=step - 2), data(23), **settings(name, path, **options, callbacks=[KillAt(step)]))
    resumed = built("Convolutional", seed=99)
    torch.rand(7, device=accelerator())
    assert outcome(fit(resumed, data(23), **settings(name, path, **options))) == outcome(expected)
    assert same(resumed.state_dict(), whole.state_dict())
