"""Training: it learns, repeats bit for bit, resumes bit for bit, and leaves everything else as it was."""

from __future__ import annotations

import copy
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.errors import ArgumentError, DataError, FileError, TrainingError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO, LinearRegression
from probneural.pairs import FieldPairs
from probneural.pairs.clocks import WindowClock
from probneural.physics import Residual
from probneural.physics.residual import ResidualLoss
from probneural.training import (
    Callback,
    DataOptions,
    EachEpoch,
    Optimization,
    RelativeL2,
    RunOptions,
    WeightedSum,
    files,
    fit,
    trainer,
)
from probneural.training.callbacks import History, Progress
from probneural.training.losses import relative_l2
from probneural.training.resuming import Keeper
from probneural.training.unrolling import FirstStep
from tests import file_mutations
from tests.training.cases import BUILDERS, Convolutional, built, data, same

modules = pytest.mark.parametrize("name", list(BUILDERS))
DECAY = Optimization(weight_decay=0.01)
QUICK = {"epochs": 4, "data": DataOptions(batch_size=6), "show_progress": False}


def losses(history: History) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return history.train, history.validation


class Killed(BaseException):
    """What a test kills a run with; nothing catches it."""


@modules
def test_loss_falls_and_the_same_seed_gives_the_same_bits(name: str) -> None:
    runs = []
    for seed in (3, 3, 4):
        module = built(name)
        runs.append(
            (
                fit(
                    module,
                    data(),
                    epochs=12,
                    data=DataOptions(batch_size=6),
                    learning_rate=0.03,
                    seed=seed,
                    show_progress=False,
                ),
                module.state_dict(),
            )
        )
    history = runs[0][0]
    assert history.epochs == len(history.validation) == len(history.seconds) == 12
    assert history.train[-1] < 0.95 * history.train[0]
    assert all(second > 0 for second in history.seconds)
    assert losses(runs[0][0]) == losses(runs[1][0])
    assert same(runs[0][1], runs[1][1])
    assert losses(runs[0][0]) != losses(runs[2][0])
    assert not same(runs[0][1], runs[2][1])


@modules
@pytest.mark.parametrize("kill", [1, *(pytest.param(kill, marks=pytest.mark.slow) for kill in (2, 3)), 4])
def test_resumes_at_the_same_bits(name: str, kill: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = built(name)
    expected = fit(whole, data(), seed=2, optimization=DECAY, **QUICK)  # type: ignore[arg-type]

    path = tmp_path / "checkpoint"
    write = Keeper.write

    def write_and_die(keeper: Keeper) -> None:
        write(keeper)
        if len(keeper.run.losses) == kill:
            raise Killed

    killed = built(name)
    monkeypatch.setattr(Keeper, "write", write_and_die)
    with pytest.raises(Killed):
        fit(killed, data(), seed=2, optimization=DECAY, run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
    monkeypatch.undo()
    # Another process: other initial weights and another global state; the checkpoint must overrule both.
    resumed = built(name, seed=99)
    torch.rand(7)
    history = fit(resumed, data(), seed=2, optimization=DECAY, run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
    assert losses(history) == losses(expected)
    assert same(resumed.state_dict(), whole.state_dict())
    # A finished run resumes to itself.
    again = built(name, seed=98)
    assert losses(fit(again, data(), seed=2, optimization=DECAY, run=RunOptions(checkpoint=path), **QUICK)) == losses(expected)  # type: ignore[arg-type]
    assert same(again.state_dict(), whole.state_dict())
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint"]


VICTIM = """
import sys, torch
torch.set_num_threads(1)
from tests.training.cases import built, data
from probneural.training import DataOptions, RunOptions, fit
run = RunOptions(checkpoint=sys.argv[1])
fit(built("Convolutional"), data(), epochs=40, data=DataOptions(batch_size=6), seed=5, run=run, show_progress=False)
"""


def test_a_killed_process_is_resumed_by_another(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen([sys.executable, "-c", VICTIM, str(path)], env=environment)
    deadline = time.monotonic() + 60.0
    while not path.exists() and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert 1 <= len(files.read(path)[1]["losses"]) < 40
    resumed, whole = built("Convolutional", seed=1), built("Convolutional")
    settings = {"epochs": 40, "data": DataOptions(batch_size=6), "seed": 5, "show_progress": False}
    history = fit(resumed, data(), run=RunOptions(checkpoint=path), **settings)  # type: ignore[arg-type]
    assert losses(history) == losses(fit(whole, data(), **settings))  # type: ignore[arg-type]
    assert same(resumed.state_dict(), whole.state_dict())


def test_global_state_and_modes_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    module = Convolutional().eval()
    module.dropout.train()
    modes = [part.training for part in module.modules()]
    state, grad = torch.get_rng_state(), torch.is_grad_enabled()
    fit(module, data(), **QUICK)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled() == grad
    assert [part.training for part in module.modules()] == modes
    assert capsys.readouterr() == ("", "")
    fit(module, data(), epochs=2)
    captured = capsys.readouterr()
    assert "training: 100%" in captured.err
    assert "2/2" in captured.err
    assert "validation=" in captured.err


def test_state_is_left_alone_when_training_fails() -> None:
    module = built("FNO").eval()
    state = torch.get_rng_state()

    def fail(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(module, data(), loss=fail, **QUICK)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(part.training for part in module.modules())


def test_other_devices_are_not_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torch.manual_seed` would seed all accelerators, whose state training on the CPU has no business with."""

    def refuse(seed: int) -> None:
        raise AssertionError("all devices were seeded")

    monkeypatch.setattr(torch, "manual_seed", refuse)
    monkeypatch.setattr(torch.random, "manual_seed", refuse)
    module = FNO(1, 1, modes=(2,), width=2, depth=1)
    assert fit(module, data(), **QUICK).epochs == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [None, "cpu", "auto", torch.device("cpu")], ids=str)
def test_device(device: str | torch.device | None) -> None:
    module = built("FNO")
    fit(module, data(), run=RunOptions(device=device), **QUICK)  # type: ignore[arg-type]
    expected = "cpu"
    if device == "auto":
        expected = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert {parameter.device.type for parameter in module.parameters()} == {expected}


class Recorder(nn.Module):
    """Remembers which inputs it saw in which mode."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.seen: dict[bool, list[float]] = {True: [], False: []}

    def forward(self, values: Tensor) -> Tensor:
        self.seen[self.training] += values[:, 0, 0].tolist()
        return values * self.scale


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.1, 2), (0.5, 10), (0.95, 19)])
def test_validation_pairs_are_only_watched(share: float, count: int) -> None:
    module, pairs = Recorder(), data()
    history = fit(module, pairs, epochs=3, data=DataOptions(batch_size=4, validation=share), show_progress=False)
    everything = set(pairs.inputs.values[:, 0, 0].tolist())
    trained, watched = set(module.seen[True]), set(module.seen[False])
    assert len(watched) == count
    assert trained == everything - watched
    assert len(module.seen[True]) == 3 * (20 - count)  # each pair once an epoch
    assert len(module.seen[False]) == 3 * count
    assert len(history.validation) == (3 if count else 0)


def test_own_validation_pairs_are_watched_beside_all_training_pairs(tmp_path: Path) -> None:
    train, watched = data(20), data(6, seed=1)
    settings = {"epochs": 2, "data": DataOptions(batch_size=4), "show_progress": False}
    own, alone = built("FNO"), built("FNO")
    history = fit(
        own,
        train,
        run=RunOptions(checkpoint=tmp_path / "run"),
        **settings | {"data": DataOptions(batch_size=4, validation=watched)},
    )
    assert history.train == fit(alone, train, **settings | {"data": DataOptions(batch_size=4, validation=0.0)}).train
    difference = own(watched.inputs.values).detach() - watched.outputs.values
    errors = (difference.square().mean(2) / watched.outputs.values.square().mean(2)).sqrt()
    assert history.validation[-1] == pytest.approx(float(errors.mean()), rel=1e-5)
    with pytest.raises(FileError, match="validation"):
        fit(
            built("FNO"),
            train,
            run=RunOptions(checkpoint=tmp_path / "run"),
            **settings | {"data": DataOptions(batch_size=4, validation=data(6, seed=2))},
        )
    two = FieldPairs(Field(watched.inputs.values.repeat(1, 2, 1), watched.inputs.grid), watched.outputs)
    with pytest.raises(DataError, match="1 input channels to validate; got 2"):
        fit(built("FNO"), train, **settings | {"data": DataOptions(batch_size=4, validation=two)})


def test_of_one_series_the_latest_pairs_are_watched() -> None:
    pairs = data(20)
    series = FieldPairs(pairs.inputs, pairs.outputs, clock=WindowClock(torch.arange(20.0).flip(0)))
    histories = [
        fit(built("FNO"), train, data=DataOptions(validation=watched), epochs=2, show_progress=False)
        for train, watched in ((series, 0.2), (pairs[4:], pairs[:4]))
    ]
    assert losses(histories[0]) == losses(histories[1])
    steps = FieldPairs(pairs.inputs, pairs.outputs, clock=WindowClock(torch.arange(20.0)[:, None] + torch.tensor([0.0, 1.0])))
    with pytest.raises(ArgumentError, match="share no state with training"):
        fit(built("FNO"), steps, data=DataOptions(validation=0.05), epochs=1, show_progress=False)
    fit(built("FNO"), steps, data=DataOptions(validation=0.1), epochs=1, show_progress=False)


def test_units_come_from_the_training_part_alone() -> None:
    pairs = data()
    rows = trainer._split([pairs], 0.5, 0)[0][0][:].outputs.values
    module = built("FNO")
    assert isinstance(module, FNO)
    fit(module, pairs, **QUICK | {"data": DataOptions(batch_size=6, validation=0.5)})  # type: ignore[arg-type]
    torch.testing.assert_close(module.output_normalizer.mean, rows.mean((0, 2)))
    torch.testing.assert_close(module.output_normalizer.scale, rows.std((0, 2), correction=0))
    assert not torch.allclose(module.output_normalizer.mean, pairs.outputs.values.mean((0, 2)), rtol=1e-3)


def test_losses_are_means_over_pairs() -> None:
    """A learning rate too small to matter: the epoch's loss is that of the fixed operator, uneven batches included."""
    module, pairs = Recorder(), data(7)
    expected = relative_l2(pairs.inputs.values, pairs.outputs.values, grid=pairs.outputs.grid).mean().item()
    history = fit(
        module, pairs, epochs=1, data=DataOptions(batch_size=3, validation=0.0), learning_rate=1e-12, show_progress=False
    )
    assert history.train == pytest.approx((expected,), rel=1e-6)
    watched = fit(
        Recorder(), pairs, epochs=1, data=DataOptions(batch_size=2, validation=0.43), learning_rate=1e-12, show_progress=False
    )
    held = trainer._split([pairs], 0.43, 0)[1][0][:]
    assert len(held) == 3
    expected = relative_l2(held.inputs.values, held.outputs.values, grid=pairs.outputs.grid).mean().item()
    assert watched.validation == pytest.approx((expected,), rel=1e-6)


def test_own_loss_and_other_output_grid() -> None:
    pairs = data()
    finer = FieldPairs(pairs.inputs, pairs.outputs.resample(Grid.uniform(24)))
    shapes = set()

    def absolute(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
        shapes.add((predicted.shape[1:], target.shape[1:], grid))
        return (predicted - target).abs().mean()

    history = fit(built("FNO"), finer, loss=absolute, **QUICK)  # type: ignore[arg-type]
    assert shapes == {((1, 24), (1, 24), Grid.uniform(24))}
    assert history.train[-1] < history.train[0]


def test_frozen_parameters_stay() -> None:
    module = built("Convolutional")
    assert isinstance(module, Convolutional)
    fit(module, data(), optimization=Optimization(weight_decay=1.0), **QUICK)  # type: ignore[arg-type]
    assert module.gain.item() == 2.0
    assert module.gain.grad is None


def test_regression_trains_its_readout() -> None:
    pairs = data()
    module = LinearRegression.fitted(pairs, components=3)
    matrix = module.matrix.clone()
    history = fit(module, pairs, epochs=5, show_progress=False)
    assert torch.equal(module.matrix, matrix)
    assert history.train[-1] <= history.train[0]


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_loss_that_is_not_finite_ends_training_with_weights_from_before(epoch: int) -> None:
    module = built("FNO").eval()
    calls = 0
    kept: dict[str, Tensor] = {}

    def explode(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
        nonlocal calls, kept
        if calls == 3 * epoch:  # three batches of six in an epoch of eighteen
            kept = copy.deepcopy(module.state_dict())
        calls += torch.is_grad_enabled()
        return (predicted - target).square().mean() * (torch.nan if calls == 3 * epoch + 2 else 1.0)

    with pytest.raises(TrainingError, match=f"a mean loss of nan in epoch {epoch}.*lower learning_rate"):
        fit(module, data(), loss=explode, **QUICK)  # type: ignore[arg-type]
    assert kept
    assert same(module.state_dict(), kept)
    assert not module.training


def test_a_gradient_that_is_not_finite_ends_training() -> None:
    """The loss of the last step is finite, and the weights after it are not."""
    module = built("FNO")

    def steep(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
        return (predicted - predicted.detach()).abs().sum().sqrt() + target.square().mean()

    with pytest.raises(TrainingError, match="weights not finite after it"):
        fit(module, data(6), epochs=1, loss=steep, show_progress=False)


class Poison(Callback):
    def on_step(self, progress: Progress) -> None:
        next(progress.operator.parameters()).data.fill_(torch.nan)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (TrainingError, {"optimization": Optimization(optimizer="lbfgs", schedule=None), "learning_rate": 1e30}),
        (KeyboardInterrupt, {"run": RunOptions(callbacks=[Poison()])}),
    ],
)
def test_an_epoch_that_fails_at_weights_that_are_not_finite_restores_them(
    error: type[BaseException], options: dict[str, Any]
) -> None:
    module = built("FNO")
    with pytest.raises(error):
        fit(module, data(), **{**QUICK, **options})
    assert all(bool(value.isfinite().all()) for value in module.state_dict().values())
    assert all(bool(torch.isfinite(parameter).all()) for parameter in module.parameters())


def change(pairs: FieldPairs, what: str) -> FieldPairs:
    """The same pairs but for one thing that a checkpoint must notice."""
    inputs, outputs, grid = pairs.inputs.values.clone(), pairs.outputs.values.clone(), pairs.inputs.grid
    if what == "input":
        inputs[5, 0, 3] += 1e-6
    elif what == "output":
        outputs[5, 0, 3] += 1e-6
    elif what == "lengths":
        grid = Grid.uniform(grid.shape, lengths=2.0)
    elif what == "origin":
        grid = Grid.uniform(grid.shape, origin=0.25)
    return FieldPairs(Field(inputs, grid), Field(outputs, grid))


@pytest.mark.parametrize("what", ["input", "output", "lengths", "origin"])
def test_a_checkpoint_of_other_data_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    # Whether pair 5 is trained on or watched, it belongs to the data.
    for share in (0.0, 0.9):
        fit(
            built("FNO"),
            data(),
            run=RunOptions(checkpoint=path),
            **QUICK | {"data": DataOptions(batch_size=6, validation=share)},
        )  # type: ignore[arg-type]
        with pytest.raises(FileError, match="all done., batch size, seed, rates and options; got another one in .*checkpoint"):
            fit(
                built("FNO"),
                change(data(), what),
                run=RunOptions(checkpoint=path),
                **QUICK | {"data": DataOptions(batch_size=6, validation=share)},
            )  # type: ignore[arg-type]
        path.unlink()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 1),
        ("seed", 1),
        ("data", DataOptions(batch_size=5)),
        ("learning_rate", 1e-3),
        ("optimization", DECAY),
        ("data", DataOptions(batch_size=6, validation=0.2)),
    ],
)
def test_a_checkpoint_of_other_settings_is_refused(name: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit(built("FNO"), data(), run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
    before = path.read_bytes()
    module = built("FNO")
    weights = copy.deepcopy(module.state_dict())
    with pytest.raises(FileError, match="remove the file to start again"):
        fit(module, data(), run=RunOptions(checkpoint=path), **{**QUICK, name: value})  # type: ignore[arg-type]
    assert same(module.state_dict(), weights)
    assert path.read_bytes() == before


def mean_square(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
    return (predicted - target).square().mean()


def mean_error(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
    return (predicted - target).abs().mean()


class Power(nn.Module):
    """A loss of a user's, with a number and a buffer."""

    def __init__(self, power: float, *, factor: float = 1.0) -> None:
        super().__init__()
        self.power = power
        self.register_buffer("factor", torch.tensor(factor))

    def forward(self, predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
        return self.factor * (predicted - target).abs().pow(self.power).mean()


def squared() -> ResidualLoss:
    """A residual that is another object whenever it is asked for, as in another process."""

    def error(u: Field, inputs: Field | None) -> Tensor:
        assert inputs is not None
        return u.values - inputs.values.square()

    return Residual(error).loss(weight=1.0)


LOSSES: list[Callable[[], Any]] = [
    lambda: None,
    RelativeL2,
    lambda: WeightedSum([(1.0, RelativeL2()), (0.1, mean_square)]),
    lambda: WeightedSum([(1.0, RelativeL2()), (0.2, mean_square)]),
    lambda: WeightedSum([(1.0, squared())]),
    squared,
    lambda: mean_square,
    lambda: mean_error,
    lambda: Power(3.0),
    lambda: Power(4.0),
    lambda: Power(3.0, factor=2.0),
    lambda: functools.partial(mean_square),
]


def test_a_checkpoint_of_another_loss_is_refused(tmp_path: Path) -> None:
    """It gave back the operator that the other loss had trained, without a word."""
    path = tmp_path / "checkpoint"
    settings: dict[str, Any] = {**QUICK, "epochs": 1}
    for number, loss in enumerate(LOSSES):
        path.unlink(missing_ok=True)
        expected = fit(built("FNO"), data(), run=RunOptions(checkpoint=path), loss=loss(), **settings)
        assert losses(fit(built("FNO"), data(), run=RunOptions(checkpoint=path), loss=loss(), **settings)) == losses(expected)
        for other in LOSSES[:number]:
            with pytest.raises(FileError, match="a checkpoint of this run: same data, loss, epochs"):
                fit(built("FNO"), data(), run=RunOptions(checkpoint=path), loss=other(), **settings)


def test_a_checkpoint_of_another_operator_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit(built("FNO"), data(), run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
    frozen = built("FNO")
    next(frozen.parameters()).requires_grad_(False)
    wider = FNO(1, 1, modes=(4,), width=4, depth=2, projection=5)
    for module in (built("Convolutional"), built("FNO").double(), frozen, wider):
        weights = copy.deepcopy(module.state_dict())
        dtype = next(module.parameters()).dtype
        with pytest.raises(FileError, match=f"a checkpoint of (this {type(module).__name__}|this run)"):
            fit(module, data(dtype=dtype), run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
        assert same(module.state_dict(), weights)


def test_changed_checkpoints_are_refused_or_resumed(tmp_path: Path) -> None:
    """Mutations of the JSON in a checkpoint, with the digest made again."""

    def stop(progress: Progress) -> None:
        if progress.epoch == 2:
            raise Killed

    path = tmp_path / "checkpoint"
    settings = {"epochs": 3, "data": DataOptions(batch_size=16, validation=0.2), "seed": 1, "show_progress": False}
    with pytest.raises(Killed):
        fit(built("FNO"), data(), run=RunOptions(checkpoint=path, callbacks=[EachEpoch(stop)]), **settings)  # type: ignore[arg-type]
    opened, draw = file_mutations.opened(path), random.Random(5)
    outcomes = []
    for _ in range(100):
        file_mutations.write(path, opened, file_mutations.mutated(opened.content, draw)[1])
        try:
            assert fit(built("FNO"), data(), run=RunOptions(checkpoint=path), **settings).epochs == 3  # type: ignore[arg-type]
            outcomes.append("resumed")
        except (FileError, TrainingError) as error:  # a changed learning rate may be too high
            outcomes.append(type(error).__name__)
    assert outcomes.count("FileError") > 50
    assert outcomes.count("resumed") > 0


@pytest.mark.parametrize("entry", ["complex", "orders", "losses", "seconds", "last_epoch", "groups"])
def test_checkpoints_that_do_not_fit_their_run_are_refused(entry: str, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    fit(built("FNO"), data(), run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
    opened = file_mutations.opened(path)
    content = copy.deepcopy(opened.content)
    metadata = content["metadata"]
    if entry == "complex":
        content["complex"] = ["model.spectral.0.weight"]
    elif entry == "orders":
        content["orders"] = {"optimizer.0.step": [0]}
    elif entry == "last_epoch":
        metadata["schedule"]["last_epoch"] += 1
    elif entry == "groups":
        metadata["groups"].append(metadata["groups"][0])
    else:
        metadata[entry].append(1.0)
    file_mutations.write(path, opened, content)
    operator = built("FNO")
    before = copy.deepcopy(operator.state_dict())
    with pytest.raises(FileError):
        fit(operator, data(), run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
    assert same(operator.state_dict(), before)


def test_damaged_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    for payload in (b"", b"garbage" * 10):
        path.write_bytes(payload)
        with pytest.raises(FileError):
            fit(built("FNO"), data(), run=RunOptions(checkpoint=path), **QUICK)  # type: ignore[arg-type]
    with pytest.raises(FileError, match="a folder to write"):
        fit(built("FNO"), data(), run=RunOptions(checkpoint=tmp_path / "missing" / "checkpoint"), **QUICK)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_unusable_arguments_are_refused() -> None:
    module = built("FNO")
    with pytest.raises(DataError, match="expected a Dataset as training data"):
        fit(module, torch.zeros(4, 1, 16))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="2 or more training pairs; got 1"):
        fit(module, data(1))
    with pytest.raises(ArgumentError, match="pairs beside those for validation; got 0; lower it"):
        fit(module, data(4), data=DataOptions(validation=0.9))
    windows = FieldPairs(data().inputs, data().outputs, groups=torch.zeros(20, dtype=torch.int64))
    with pytest.raises(
        ArgumentError, match=r"got validation=0.1 of 20 pairs of 1 trajectory; give validation=0 to train on all"
    ):
        fit(module, windows)
    with pytest.raises(ArgumentError, match="a count that leaves a trajectory of 1"):  # a data set that hides its groups
        fit(module, FirstStep(windows, 1))
    windows = FieldPairs(data().inputs, data().outputs, groups=torch.arange(20) // 10)
    with pytest.raises(ArgumentError, match=r"got validation=0.8 of 20 pairs of 2 trajectories; .* a smaller share"):
        fit(module, windows, data=DataOptions(validation=0.8))
    assert fit(module, windows, data=DataOptions(validation=0.0), epochs=1, show_progress=False).epochs == 1
    for side in ("inputs", "outputs"):
        pairs = data()
        getattr(pairs, side).values[3, 0, 2] = torch.inf
        with pytest.raises(DataError, match=f"finite training {side}"):
            fit(module, pairs)
    with pytest.raises(ArgumentError, match="with parameters to train; got none"):
        fit(nn.Identity(), data())
    with pytest.raises(ArgumentError, match="with parameters to train; got none"):
        fit(built("FNO").requires_grad_(False), data())


def test_training_again_keeps_the_units() -> None:
    operator = FNO(1, 1, modes=(3,), width=4, depth=1, projection=4)
    first = data()
    fit(operator, first, epochs=1, show_progress=False)
    before = {name: value.clone() for name, value in operator.named_buffers()}
    larger = FieldPairs(
        Field(10 * first.inputs.values, first.inputs.grid), Field(10 * first.outputs.values + 3, first.outputs.grid)
    )
    fit(operator, larger, epochs=1, show_progress=False)
    assert before
    assert all(torch.equal(value, before[name]) for name, value in operator.named_buffers())
