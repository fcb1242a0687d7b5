"""Runs that are killed at any moment, and go on to the same bits."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from probneural.errors import FileError, TrainingError
from probneural.training import (
    Callback,
    Checkpoint,
    DataOptions,
    EachEpoch,
    EarlyStopping,
    Optimization,
    RunOptions,
    files,
    fit,
    weights,
)
from probneural.training.callbacks import History, Progress
from tests import file_mutations as change
from tests.helpers import one_of_each
from tests.training.cases import built, data, same

OPTIONS = {
    "default": Optimization(),
    "adamw": Optimization(optimizer="adamw", weight_decay=0.1),
    "cosine, clipped": Optimization(schedule="cosine", gradient_clip=0.1, weight_decay=0.1),
    "constant rate": Optimization(schedule=None),
    "accumulated": Optimization(accumulation=2),
    "stopped early": Optimization(early_stopping=EarlyStopping(patience=1)),
    "lbfgs": Optimization(optimizer="lbfgs", schedule=None),
    "momentum": Optimization(optimizer=functools.partial(torch.optim.SGD, momentum=0.9)),
    "own schedule": Optimization(
        schedule=lambda optimizer, steps: torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=steps)
    ),
    "bfloat16": Optimization(precision="bfloat16"),
    "float16": Optimization(precision="float16"),
    "bfloat16 to the middle": Optimization(precision="bfloat16", full_precision_tail=0.5),
}


some_options = pytest.mark.parametrize(
    "name", one_of_each(OPTIONS, lambda name: name if name in ("stopped early", "lbfgs", "float16") else None)
)
"""Options for tests that train twice: those that keep most state, and one of the others."""


class Killed(BaseException):
    """What a test kills a run with; nothing catches it."""


class KillAt(Callback):
    """Die at a step, before a checkpoint of it is written."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, progress: Progress) -> None:
        if progress.step == self.step:
            torch.rand(5)  # what callbacks draw must not matter either
            raise Killed


def settings(
    name: str,
    checkpoint: Path | Checkpoint | None,
    *,
    callbacks: Sequence[Callback] = (),
    device: str | None = None,
    **changes: Any,
) -> dict[str, Any]:
    each_step = Checkpoint(checkpoint, steps=1) if isinstance(checkpoint, Path) else checkpoint
    run = RunOptions(checkpoint=each_step, callbacks=callbacks, device=device)
    chosen = {"epochs": 4, "data": DataOptions(batch_size=5), "seed": 2, "learning_rate": 0.01, "show_progress": False}
    return chosen | {"run": run, "optimization": OPTIONS[name]} | changes


def outcome(history: History) -> tuple[object, ...]:
    return history.train, history.validation, history.restored


@pytest.mark.parametrize("name", list(OPTIONS))
def test_resumes_at_the_same_bits_within_an_epoch(name: str, tmp_path: Path) -> None:
    """Killed at every step in turn, by a callback, from a checkpoint of every step; only the first weights count."""
    kind = "Convolutional"  # dropout, batch norm and a frozen weight
    whole = built(kind)
    expected = fit(whole, data(23), **settings(name, None))
    path = tmp_path / "run"
    for step in range(2, 8):
        with pytest.raises(Killed):
            fit(built(kind, seed=step - 2), data(23), **settings(name, path, callbacks=[KillAt(step)]))
        assert files.read(path)[1]["step"] < -(-21 // 5)
        if step == 2:
            first = files.read(path)[1]
            assert (first["step"], first["losses"]) == (1, [])
    resumed = built(kind, seed=99)
    torch.rand(7)
    assert outcome(fit(resumed, data(23), **settings(name, path))) == outcome(expected)
    assert same(resumed.state_dict(), whole.state_dict())
    again = built(kind, seed=98)
    assert outcome(fit(again, data(23), **settings(name, path))) == outcome(expected)
    assert same(again.state_dict(), whole.state_dict())


def test_callbacks_draw_without_consequence(tmp_path: Path) -> None:
    class Draws(Callback):
        def on_step(self, progress: Progress) -> None:
            torch.rand(3)

    plain, watched = built("Convolutional"), built("Convolutional")
    fit(plain, data(23), **settings("default", None))
    fit(watched, data(23), **settings("default", None, callbacks=[Draws()]))
    assert same(plain.state_dict(), watched.state_dict())


@pytest.mark.parametrize(("seconds", "steps", "expected"), [(None, None, 0), (None, 3, 3), (0.0, None, 6), (1e9, None, 0)])
def test_how_often_a_checkpoint_is_written(
    seconds: float | None, steps: int | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two epochs of five steps; every epoch's end is written, and counts anew."""
    written: list[int] = []
    write = files.write

    def note(path: Any, tensors: Any, *, metadata: Any) -> None:
        written.append(metadata["step"])
        write(path, tensors, metadata=metadata)

    monkeypatch.setattr(files, "write", note)
    chosen = settings("default", Checkpoint(tmp_path / "run", seconds=seconds, steps=steps), epochs=2)
    fit(built("Convolutional"), data(23), **chosen)
    assert written.count(0) == 2
    within = {0: [], 3: [3, 3], 6: [1, 2, 3, 4, 1, 2, 3, 4]}[expected]
    assert [step for step in written if step] == within


def test_a_checkpoint_of_other_options_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    fit(built("FNO"), data(23), **settings("default", path))
    for name in OPTIONS:
        if name != "default":
            with pytest.raises(FileError, match="rates and options"):
                fit(built("FNO"), data(23), **settings(name, path))


@some_options
def test_a_finished_training_goes_on_for_further_epochs(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run"
    first = fit(built("FNO"), data(23), **settings(name, path))
    extended = built("FNO", seed=1)
    second = fit(extended, data(23), **settings(name, path, epochs=6))
    assert second.train[: first.epochs] == first.train
    assert second.epochs > first.epochs or "stopped" in name
    again = built("FNO")
    assert outcome(fit(again, data(23), **settings(name, path, epochs=6))) == outcome(second)
    assert same(again.state_dict(), extended.state_dict())


def test_at_a_constant_rate_training_on_is_one_long_training(tmp_path: Path) -> None:
    straight, parts = built("FNO"), built("FNO")
    whole = fit(straight, data(23), **settings("constant rate", None, epochs=6))
    fit(parts, data(23), **settings("constant rate", tmp_path / "run", epochs=2))
    history = fit(parts, data(23), **settings("constant rate", tmp_path / "run", epochs=6))
    assert outcome(history) == outcome(whole)
    assert same(parts.state_dict(), straight.state_dict())


def test_further_epochs_have_the_rates_of_the_longer_training(tmp_path: Path) -> None:
    def rates(path: Path | None, epochs: int) -> list[float]:
        noted: list[float] = []
        note = EachEpoch(lambda progress: noted.append(progress.learning_rate))
        fit(built("FNO"), data(23), **settings("default", path, epochs=epochs, callbacks=[note]))
        return noted

    assert rates(tmp_path / "run", 2)[-1] < 0.003
    assert rates(tmp_path / "run", 6) == pytest.approx(rates(None, 6)[2:])


def test_a_training_that_was_stopped_within_is_not_a_finished_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(Killed):
        fit(built("FNO"), data(23), **settings("default", path, callbacks=[KillAt(6)]))
    with pytest.raises(FileError, match="or fewer, all done"):
        fit(built("FNO"), data(23), **settings("default", path, epochs=6))


def test_weights_that_are_not_finite_are_not_kept(tmp_path: Path) -> None:
    """A loss that explodes within an epoch: the checkpoint is from before."""
    path = tmp_path / "run"
    calls = 0

    def explode(predicted: torch.Tensor, target: torch.Tensor, grid: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return (predicted - target).square().mean() * (torch.inf if calls > 2 else 1.0)

    with pytest.raises(Exception, match="finite"):
        fit(built("FNO"), data(23), loss=explode, **settings("default", path))
    assert files.read(path)[1]["step"] == 2
    assert all(bool(torch.isfinite(tensor).all()) for tensor in files.read(path)[0].values())


@pytest.mark.parametrize("name", ["default", "stopped early", "float16"])
def test_a_resume_that_fails_changes_no_weight(name: str, tmp_path: Path) -> None:
    """Checkpoints within and between epochs, with damaged tensors or JSON; a changed learning rate may be too high."""
    path, outcomes = tmp_path / "run", Counter[str]()
    for kind, step in (("FNO", 6), ("FNO" if name == "float16" else "Complex", 20)):  # PyTorch does not scale complex gradients
        path.unlink(missing_ok=True)
        with contextlib.suppress(Killed):
            fit(built(kind), data(23), **settings(name, path, callbacks=[KillAt(step)]))
        opened, draw = change.opened(path), random.Random(step)
        for number in range(9):
            found = change.damaged(opened, draw)[1] if number % 3 else opened
            change.write(path, found, found.content if number % 3 else change.mutated(opened.content, draw)[1])
            operator = built(kind, seed=1)
            before, generator = copy.deepcopy(operator.state_dict()), torch.get_rng_state()
            try:
                fit(operator, data(23), **settings(name, path))
                outcomes["resumed"] += 1
            except TrainingError:
                outcomes["diverged"] += 1
            except FileError:
                assert same(operator.state_dict(), before), (kind, step, number)
                outcomes["refused"] += 1
            assert weights.are_finite(dict(operator.named_parameters())), (kind, step, number)
            assert torch.equal(torch.get_rng_state(), generator)
    assert outcomes["refused"] > outcomes["resumed"]


VICTIM = """
import sys, torch
torch.set_num_threads(1)
from tests.training.cases import built, data
from probneural.training import Checkpoint, DataOptions, EarlyStopping, Optimization, RunOptions, fit, files
from tests.training.lazy import lazy
operator = built("Convolutional")
options = Optimization(gradient_clip=1.0, early_stopping=EarlyStopping(patience=30))
run = RunOptions(checkpoint=Checkpoint(sys.argv[1], seconds=0.01))
batches = DataOptions(batch_size=6)
fit(operator, lazy(data(60)), epochs=30, data=batches, seed=5, optimization=options, run=run, show_progress=False)
files.write(sys.argv[2], operator.state_dict(), metadata={})
"""


def run(path: Path, result: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen([sys.executable, "-c", VICTIM, str(path), str(result)], env=environment)


def final_weights_after(kills: int, tmp_path: Path, *, seed: int) -> tuple[dict[str, torch.Tensor], int]:
    """Kill processes at random moments after they have begun to train, then let one finish; how many died within an epoch."""
    path, result, draw, within = tmp_path / "run", tmp_path / "result", random.Random(seed), 0
    for _ in range(kills):
        before = path.stat().st_mtime_ns if path.exists() else 0
        child = run(path, result)
        deadline = time.monotonic() + 60.0
        while child.poll() is None and time.monotonic() < deadline:
            if path.exists() and path.stat().st_mtime_ns != before:
                time.sleep(draw.uniform(0.0, 0.1))
                break
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        child.wait()
        within += files.read(path)[1]["step"] > 0
    assert run(path, result).wait(timeout=120) == 0
    return files.read(result)[0], within


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_no_bit(kills: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    assert run(tmp_path / "whole" / "run", tmp_path / "whole" / "result").wait(timeout=120) == 0
    expected = files.read(tmp_path / "whole" / "result")[0]
    found, within = final_weights_after(kills, tmp_path, seed=kills)
    assert same(found, expected)
    assert within > 0 or kills < 10
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["result", "run", "whole"]
