"""Callbacks and the CSV log report the history."""

from __future__ import annotations

import copy
import csv
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from probneural.training import Callback, DataOptions, EachEpoch, RunOptions, files, fit
from probneural.training.callbacks import CSVLog, Progress
from tests.training.cases import built, data, same

QUICK: dict[str, Any] = {"epochs": 4, "data": DataOptions(batch_size=6), "show_progress": False}


class Killed(BaseException):
    """What a test kills a run with; nothing catches it."""


def test_what_callbacks_are_told() -> None:
    told: list[tuple[str, Any]] = []

    class All(Callback):
        def on_start(self, progress: Progress) -> None:
            told.append(("start", progress))

        def on_step(self, progress: Progress) -> None:
            told.append(("step", progress))

        def on_epoch(self, progress: Progress) -> None:
            told.append(("epoch", progress))

        def on_end(self, history: Any) -> None:
            told.append(("end", history))

    history = fit(built("FNO"), data(), run=RunOptions(callbacks=[All()]), **QUICK)
    assert [name for name, _ in told] == ["start", *(["step"] * 3 + ["epoch"]) * 4, "end"]
    assert told[-1][1] == history
    assert (told[0][1].epoch, told[0][1].step, dict(told[0][1].losses)) == (0, 0, {})
    assert told[0][1].settings["batch_size"] == 6
    steps = [progress for name, progress in told if name == "step"]
    assert [progress.step for progress in steps] == list(range(1, 13))
    for epoch in range(4):
        mean = sum(progress.losses["step"] for progress in steps[3 * epoch : 3 * epoch + 3]) / 3
        assert mean == pytest.approx(history.train[epoch])
    assert steps[5].learning_rate > steps[-2].learning_rate > steps[-1].learning_rate > 0.0
    assert [progress.learning_rate for name, progress in told if name == "epoch"] == [one.learning_rate for one in steps[2::3]]
    assert told[0][1].learning_rate == steps[0].learning_rate == 3e-3


def test_a_resumed_training_tells_the_learning_rate_of_its_next_step(tmp_path: Path) -> None:
    rates: list[float] = []

    class Rates(Callback):
        def on_start(self, progress: Progress) -> None:
            rates.append(progress.learning_rate)

        def on_step(self, progress: Progress) -> None:
            rates.append(progress.learning_rate)
            if len(rates) == 6:
                raise Killed

    with pytest.raises(Killed):
        fit(built("FNO"), data(), run=RunOptions(checkpoint=tmp_path / "run", callbacks=[Rates()]), **QUICK)
    fit(built("FNO"), data(), run=RunOptions(checkpoint=tmp_path / "run", callbacks=[Rates()]), **QUICK)
    assert rates[6] == rates[7] == rates[4] == pytest.approx(3e-3 * (1 + 0.5**0.5) / 2)  # after three steps of twelve


@pytest.mark.parametrize("validation", [0.0, 0.3])
def test_an_operator_is_shown_as_it_was_watched(validation: float, tmp_path: Path) -> None:
    """After each epoch, in evaluation mode; the training itself goes on as if nobody had looked."""
    seen: list[dict[str, torch.Tensor]] = []
    modes: list[bool] = []
    pairs, settings = data(), QUICK | {"data": DataOptions(batch_size=6, validation=validation)}

    class Look(Callback):
        def on_epoch(self, progress: Progress) -> None:
            modes.extend(part.training for part in progress.operator.modules())
            progress.operator(pairs.inputs.values)  # batch norm would take it in in training mode
            seen.append(copy.deepcopy(progress.operator.state_dict()))

    alone, shown = built("Convolutional"), built("Convolutional")
    fit(alone, pairs, run=RunOptions(checkpoint=tmp_path / "alone"), **settings)
    fit(shown, pairs, run=RunOptions(checkpoint=tmp_path / "shown", callbacks=[Look()]), **settings)
    assert not any(modes)
    assert same(seen[-1], alone.state_dict())
    assert same(shown.state_dict(), alone.state_dict())
    assert same(files.read(tmp_path / "shown")[0], files.read(tmp_path / "alone")[0])
    assert not same(seen[-2], seen[-1])


def test_callbacks_may_change_modes() -> None:
    """One predicts, which switches dropout off; the next one, and the training, find it on."""
    found: list[bool] = []

    class Predict(Callback):
        def on_step(self, progress: Progress) -> None:
            found.extend(part.training for part in progress.operator.modules())
            progress.operator.eval()

    alone, watched = built("Convolutional"), built("Convolutional")
    fit(alone, data(), **QUICK)
    fit(watched, data(), run=RunOptions(callbacks=[Predict(), Predict()]), **QUICK)
    assert all(found)
    assert same(watched.state_dict(), alone.state_dict())


def test_callbacks_draw_from_the_random_state_of_the_caller() -> None:
    """Each goes on where the last one ended, whatever the training draws."""
    drawn: list[float] = []

    class Draw(Callback):
        def on_start(self, progress: Progress) -> None:
            drawn.append(float(torch.rand(())))

        on_step = on_epoch = on_start

    for name in ("Convolutional", "FNO"):  # with dropout, and without
        alone, watched = built(name), built(name)
        torch.manual_seed(7)
        fit(alone, data(), **QUICK)
        expected = [float(torch.rand(())) for _ in range(18)]
        torch.manual_seed(7)
        fit(watched, data(), run=RunOptions(callbacks=[Draw()]), **QUICK)
        assert drawn == expected[:17]  # the start, 4 epochs of 3 steps, and their ends
        assert float(torch.rand(())) == expected[17]
        assert same(watched.state_dict(), alone.state_dict())
        drawn.clear()


def test_the_end_is_told_when_training_fails() -> None:
    ends = []

    class End(Callback):
        def on_end(self, history: Any) -> None:
            ends.append(history.epochs)

    def kill(progress: Progress) -> None:
        if progress.epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        fit(built("FNO"), data(), run=RunOptions(callbacks=[EachEpoch(kill), End()]), **QUICK)
    assert ends == [2]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def test_a_table_goes_on_where_a_killed_run_was(tmp_path: Path) -> None:
    table, run = tmp_path / "losses.csv", tmp_path / "run"

    def kill(progress: Progress) -> None:
        if progress.epoch == 3:
            run.unlink()
            run.write_bytes(kept)
            raise Killed

    def keep(progress: Progress) -> None:
        nonlocal kept
        if progress.epoch == 2:
            kept = run.read_bytes()

    kept = b""
    with pytest.raises(Killed):
        fit(
            built("FNO"),
            data(),
            run=RunOptions(checkpoint=run, callbacks=[CSVLog(table), EachEpoch(keep), EachEpoch(kill)]),
            **QUICK,
        )
    assert len(rows(table)) == 3  # one more than the checkpoint knows
    history = fit(built("FNO"), data(), run=RunOptions(checkpoint=run, callbacks=[CSVLog(table)]), **QUICK)
    assert [int(row["epoch"]) for row in rows(table)] == [1, 2, 3, 4]
    assert [float(row["train"]) for row in rows(table)] == list(history.train)
    assert [float(row["validation"]) for row in rows(table)] == list(history.validation)
    fit(built("FNO"), data(), run=RunOptions(callbacks=[CSVLog(table)]), **QUICK | {"epochs": 1})
    assert len(rows(table)) == 1


def test_the_program_of_the_page_on_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs as it stands, and the tracker has both losses of each epoch."""
    pytest.importorskip("lightning", reason="lightning is not installed")
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "training.md").read_text(encoding="utf-8")
    (program,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "import lightning" in block]
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        exec(compile(program, "training.md", "exec"), {})
    with (tmp_path / "runs" / "burgers" / "version_0" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len([row for row in rows if row["validation"]]) == 2
    assert len([row for row in rows if row["train"]]) == 8


def test_lightning(tmp_path: Path) -> None:
    """Lightning's trainer takes the steps that `fit` takes."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    from probneural.training.lightning import lightning_module, pair_loader

    operator, other = built("Tied"), built("Tied")
    fit(operator, data(), seed=3, **QUICK | {"data": DataOptions(batch_size=6, validation=0.0)})
    trainer = lightning.Trainer(
        max_epochs=4, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(lightning_module(other), pair_loader(data(), batch_size=6, seed=3))
    for name, value in operator.state_dict().items():
        assert float((other.state_dict()[name] - value).abs().max()) < 1e-6
    assert float((value - built("Tied").state_dict()[name]).abs().max()) > 1e-3
