"""What options do to weights, compared with the same written out by hand."""

from __future__ import annotations

import copy
import functools
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from probneural.heads import LastLayerLaplace
from probneural.operators import FNO, DeepONet
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from probneural.training import Callback, DataOptions, EarlyStopping, Optimization, RelativeL2, RunOptions, fit
from probneural.training.callbacks import Progress
from probneural.training.loading import BatchOrder
from tests.helpers import one_of_each
from tests.training.cases import built, data, same

SETTINGS: dict[str, Any] = {"epochs": 3, "data": DataOptions(batch_size=6, validation=0.0), "seed": 1, "show_progress": False}


def by_hand(module: nn.Module, pairs: FieldPairs, optimizer: torch.optim.Optimizer, **options: Any) -> list[dict[str, Tensor]]:
    """A plain loop; returns the weights after each step."""
    order, weights = BatchOrder([len(pairs)], batch_size=6, seed=1), []
    module.train()
    for epoch in range(3):
        order.set_epoch(epoch)
        batches = [pairs[rows] for _, rows in order.batches()]
        for first in range(0, len(batches), options.get("accumulation", 1)):
            group = batches[first : first + options.get("accumulation", 1)]
            optimizer.zero_grad()
            count = sum(map(len, group))
            for batch in group:
                loss = RelativeL2()(module(batch.inputs.values), batch.outputs.values, batch.outputs.grid)
                (loss * len(batch) / count).backward()
            if "clip" in options:
                nn.utils.clip_grad_norm_(module.parameters(), options["clip"])
            optimizer.step()
            weights.append(copy.deepcopy(module.state_dict()))
    return weights


def close(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.allclose(first[name], second[name], rtol=1e-12, atol=1e-14) for name in first)


@pytest.mark.parametrize("options", [{}, {"accumulation": 2}, {"clip": 0.05}, {"accumulation": 3, "clip": 0.1}], ids=str)
def test_steps_are_those_of_a_plain_loop(options: dict[str, Any]) -> None:
    pairs = data(20, dtype=torch.float64)
    ours, theirs = built("Tied").double(), built("Tied").double()
    expected = by_hand(theirs, pairs, torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9), **options)
    optimization = Optimization(
        optimizer=functools.partial(torch.optim.SGD, momentum=0.9),
        schedule=None,
        accumulation=options.get("accumulation", 1),
        gradient_clip=options.get("clip"),
    )
    fit(ours, pairs, learning_rate=0.1, optimization=optimization, **SETTINGS)
    assert close(ours.state_dict(), expected[-1])
    assert not close(ours.state_dict(), expected[-2])


def test_schedules_reach_what_they_promise() -> None:
    class Rates(Callback):
        def __init__(self) -> None:
            self.rates: list[float] = []

        def on_step(self, progress: Progress) -> None:
            self.rates.append(progress.learning_rate)

    def linear(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 - step / steps)

    found = {}
    for schedule in ("cosine", None, linear):
        rates = Rates()
        options = Optimization(schedule=schedule)  # type: ignore[arg-type]
        fit(built("Tied"), data(20), learning_rate=0.01, optimization=options, run=RunOptions(callbacks=[rates]), **SETTINGS)
        found[str(schedule)] = rates.rates
    assert found["cosine"][6] == pytest.approx(0.005)  # halfway of 12 steps
    assert found["cosine"][-1] == pytest.approx(0.005 * (1 + math.cos(math.pi * 11 / 12)))  # that of the step, not the next one
    assert found["cosine"][0] == pytest.approx(0.01)
    assert found["None"] == [0.01] * 12
    assert found[str(linear)] == pytest.approx([0.01 * (1 - step / 12) for step in range(12)])


@pytest.mark.parametrize("restore", [True, False])
def test_early_stopping(restore: bool) -> None:
    """A rate so high that the loss soon rises: it ends after the patience, with the weights that were asked for."""
    pairs = data(40)
    settings = SETTINGS | {"epochs": 60, "data": DataOptions(batch_size=6, validation=0.5), "learning_rate": 0.3}
    stop = EarlyStopping(patience=4, restore_best=restore)
    operator = built("FNO")
    history = fit(operator, pairs, optimization=Optimization(early_stopping=stop, schedule=None), **settings)
    best = min(range(history.epochs), key=lambda number: history.validation[number])
    assert history.epochs == best + 1 + 4 < 60
    assert history.restored == (best + 1 if restore else None)
    length = best + 1 if restore else history.epochs
    plain = built("FNO")
    fit(plain, pairs, optimization=Optimization(schedule=None), **settings | {"epochs": length})
    assert same(operator.state_dict(), plain.state_dict())


def test_lbfgs_fits_a_linear_map_in_a_few_steps() -> None:
    pairs = data(20, dtype=torch.float64)
    linear = FieldPairs(pairs.inputs, type(pairs.inputs)(2.0 * pairs.inputs.values - 1.0, pairs.inputs.grid))
    operator = nn.Conv1d(1, 1, 1).double()
    history = fit(
        operator,
        linear,
        epochs=6,
        data=DataOptions(batch_size=20, validation=0.0),
        learning_rate=1.0,
        loss=lambda predicted, target, grid: (predicted - target).square().mean(),
        optimization=Optimization(optimizer="lbfgs", schedule=None),
        show_progress=False,
    )
    assert history.train[-1] < 1e-10


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("kind", one_of_each(["FNO", "DeepONet", "Convolutional"], type))
def test_lower_precision_learns_as_much(kind: str, precision: Any) -> None:
    pairs = data(60)
    losses = {}
    for name in (None, precision):
        operator: nn.Module = built("Convolutional")
        if kind == "FNO":
            operator = FNO(1, 1, modes=(4,), width=8, depth=2, seed=0)
        elif kind == "DeepONet":
            operator = DeepONet(1, 1, sensors=pairs.inputs.grid, seed=0)
        settings = SETTINGS | {"epochs": 10, "optimization": Optimization(precision=name)}
        losses[name] = fit(operator, pairs, **settings).train
        assert {parameter.dtype for parameter in operator.parameters()} == {torch.float32}
    assert losses[precision] != losses[None]
    assert losses[precision][-1] == pytest.approx(losses[None][-1], rel=0.1)


def test_the_last_epochs_go_without_autocast() -> None:
    """Both to train and to judge; whatever share is asked for is rounded to whole epochs."""
    seen: list[bool] = []

    class Watched(FNO):
        def forward(self, values: torch.Tensor, **where: Any) -> torch.Tensor:
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().forward(values, **where)

    operator = Watched(1, 1, modes=(4,), width=4, depth=1, seed=0)
    options = Optimization(precision="bfloat16", full_precision_tail=0.3)
    fit(
        operator, data(20), epochs=5, data=DataOptions(batch_size=18, validation=0.1), optimization=options, show_progress=False
    )
    assert seen == [True] * 6 + [False] * 4


def test_compiled_operators_train_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Afterwards the operator is as before."""
    graphs, compile_in_place, settings = list[Any](), nn.Module.compile, SETTINGS | {"epochs": 2}

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", lambda self, *, mode: compile_in_place(self, backend=backend))
    plain, trained = built("FNO"), built("FNO")
    fit(plain, data(), **settings)
    assert not graphs
    fit(trained, data(), run=RunOptions(compile=True), **settings)
    assert graphs
    assert trained._compiled_call_impl is None
    for one, two in zip(plain.parameters(), trained.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)
    compile_in_place(trained, backend=backend)  # for good: it is saved and a head's operator as any other
    save(trained, tmp_path / "compiled.safetensors")
    inputs = data().inputs
    for predicted in (
        load(tmp_path / "compiled.safetensors")(inputs.values),
        LastLayerLaplace().fit(trained, data())(inputs).mean,
    ):
        torch.testing.assert_close(predicted, trained(inputs.values), rtol=1e-4, atol=1e-5)
