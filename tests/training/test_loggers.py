"""What loggers write is what the history says; each is tested where its package is installed."""

from __future__ import annotations

import ast
import copy
import csv
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from probneural.training import Callback, DataOptions, EachEpoch, RunOptions, callbacks, files, fit
from probneural.training.callbacks import CSVLog, MLflowLog, Progress, TensorBoardLog, WandbLog
from tests.training.cases import built, data, same

QUICK: dict[str, Any] = {"epochs": 4, "data": DataOptions(batch_size=6), "show_progress": False}


MOST_LINES = 40
"""Of an adapter's code."""


def code_lines(node: ast.AST) -> int:
    """Lines that hold code: neither blank nor a docstring nor a comment."""
    texts = [part for part in ast.walk(node) if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)]
    said = {line for part in texts for line in range(part.lineno, part.end_lineno + 1)}
    used = {line for part in ast.walk(node) for line in (getattr(part, "lineno", None), getattr(part, "end_lineno", None))}
    return len(used - said - {None})


def test_code_is_counted() -> None:
    lines = ["class A:", '    """Said,', "", '    at length."""', "", "    # why", "    def f(self):", "        return [", "1]"]
    assert code_lines(ast.parse("\n".join(lines)).body[0]) == 4


def test_adapters_are_small() -> None:
    """Each logger, and all that makes a `LightningModule`."""
    folder = Path(callbacks.__file__).parent
    trees = {name: ast.parse((folder / f"{name}.py").read_text(encoding="utf-8")) for name in ("callbacks", "lightning")}
    sizes = {
        node.name: code_lines(node)
        for node in trees["callbacks"].body
        if isinstance(node, ast.ClassDef) and node.name.endswith("Log")
    }
    parts = [node for node in trees["lightning"].body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    sizes["lightning"] = sum(map(code_lines, parts))
    assert {"CSVLog", "TensorBoardLog", "WandbLog", "MLflowLog"} <= set(sizes)
    assert {name: size for name, size in sizes.items() if not 5 < size <= MOST_LINES} == {}


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


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    history = fit(built("FNO"), data(), run=RunOptions(callbacks=[TensorBoardLog(tmp_path)]), **QUICK)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.step for event in events.Scalars("train")] == [1, 2, 3, 4]
    assert [event.value for event in events.Scalars("validation")] == pytest.approx(list(history.validation))


def test_weights_and_biases(tmp_path: Path) -> None:
    """Offline: its summary holds the last epoch."""
    pytest.importorskip("wandb", reason="wandb is not installed")
    log = WandbLog("tests", mode="offline", dir=str(tmp_path))
    last: dict[str, float] = {}

    class Look(Callback):
        def on_end(self, history: Any) -> None:
            last.update(dict(log.run.summary))

    history = fit(built("FNO"), data(), run=RunOptions(callbacks=[Look(), log]), **QUICK)
    assert last["train"] == pytest.approx(history.train[-1])
    assert last["_step"] == 4
    assert log.run.config["batch_size"] == 6
    assert list(tmp_path.glob("wandb/offline-run-*"))


def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the small package has no data base
    log = MLflowLog("tests", uri=(tmp_path / "runs").as_uri())
    history = fit(built("FNO"), data(), run=RunOptions(callbacks=[log]), **QUICK)
    found = log.client.get_metric_history(log.run, "train")
    assert [(entry.step, entry.value) for entry in found] == list(enumerate(history.train, start=1))
    assert log.client.get_run(log.run).data.params["seed"] == "0"
    assert log.client.get_run(log.run).info.status == "FINISHED"


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
