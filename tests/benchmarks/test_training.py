"""The benchmark of training: every candidate trains every weight, at any rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probneural as pn
from benchmarks import training
from benchmarks.__main__ import parser
from probneural.training.callbacks import History
from tests.training.cases import built, data


@pytest.mark.parametrize("name", list(training.candidates()))
def test_candidates_move_all_weights(name: str) -> None:
    operator, before = built("FNO"), built("FNO")
    history = pn.fit(operator, data(), epochs=4, optimization=training.candidates()[name], show_progress=False)
    assert history.validation[-1] < history.validation[0]
    for moved, kept in zip(operator.parameters(), before.parameters(), strict=True):
        assert not torch.equal(moved, kept)


def test_trainings_run_where_the_command_line_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def record(
        operator: nn.Module, train: pn.FieldPairs, *, run: pn.training.RunOptions, epochs: int, **settings: object
    ) -> History:
        asked.append(run.device)
        return History(train=(1.0,), validation=(1.0,), seconds=(1.0,))

    def in_turn(work: Callable[..., object], tasks: Sequence[Sequence[tuple[Any, ...]]], *, workers: int) -> list[list[object]]:
        return [[work(*arguments) for arguments in repetitions] for repetitions in tasks]

    monkeypatch.setattr(training.pn, "fit", record)
    monkeypatch.setattr(training.sections, "repeated", in_turn)
    line = parser().parse_args(["training", "--small", "--device", "meta", "--output", str(tmp_path)])
    found = training.main(mode=line.mode, output=line.output, device=line.device)
    assert len(asked) == 2 * 3 + 4 * 2 * len(training.candidates())
    assert set(asked) == {"meta"}
    assert "autocast of the operator on meta" in " ".join(found["notes"])
