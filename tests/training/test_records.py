"""`pn.fit` leaves a record of the training pairs on the operator, and files keep it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.pairs import FieldPairs
from probneural.pairs.provenance import TrainingRecord, row_keys
from probneural.storage import load, save
from probneural.training import DataOptions, EarlyStopping, Optimization, Unroll, files, fit, trainer
from probneural.trajectories import FieldTrajectories
from tests.training.cases import built, data


def recorded(operator: nn.Module) -> set[int]:
    """Keys of the pairs that trained an operator, by its record."""
    record = operator.trained_on
    assert isinstance(record, TrainingRecord)
    return set(record.row_keys.tolist())


def keys(pairs: FieldPairs) -> set[int]:
    return set(row_keys(pairs).flatten().tolist())


def test_the_operator_knows_the_pairs_that_trained_it() -> None:
    pairs, other, operator = data(20), data(8, seed=5), built("FNO")
    fit(operator, pairs, epochs=1, data=DataOptions(validation=0.25), show_progress=False)
    assert len(recorded(operator)) == 15  # validation pairs were watched
    assert recorded(operator) < keys(pairs)
    fit(operator, other, epochs=1, data=DataOptions(validation=0.0), show_progress=False)
    assert len(recorded(operator)) == 23
    assert recorded(copy.deepcopy(operator)) == recorded(operator) > keys(other)
    assert "trained_on" not in operator.state_dict()


def test_pairs_that_early_stopping_chose_by_count_as_trained() -> None:
    pairs, operator = data(20), built("FNO")
    stopping = Optimization(early_stopping=EarlyStopping(patience=3))
    fit(
        operator,
        [pairs[:10], pairs[10:]],
        epochs=1,
        data=DataOptions(validation=0.25),
        optimization=stopping,
        show_progress=False,
    )
    assert recorded(operator) == keys(pairs)


def test_of_windows_of_several_steps_the_first_step_counts() -> None:
    states = torch.randn(4, 6, 1, 16, generator=torch.Generator().manual_seed(0))
    times = torch.arange(1.0, 6.0, dtype=torch.float64)
    grid = Grid.uniform(16)
    trajectories = FieldTrajectories(Field(states[:, 0], grid), states[:, 1:], times=times)
    windows = trajectories.windows(steps=2)
    first = FieldPairs(windows.inputs, Field(windows.outputs.values[:, :1], grid))
    plain = FieldPairs(windows.inputs, windows.outputs)
    states_of_all = {*trajectories.window_keys.flatten().tolist(), *windows.clock.trajectory_keys.tolist()}
    for pairs, expected in ((windows, keys(first) | states_of_all), (plain, keys(first))):
        operator = built("FNO")
        fit(operator, pairs, epochs=1, data=DataOptions(validation=0.0), loss=Unroll(steps=2), show_progress=False)
        assert recorded(operator) == expected


@pytest.mark.parametrize("name", ["FNO", "Convolutional"])
def test_files_of_operators_keep_the_record(name: str, tmp_path: Path) -> None:
    pairs, operator = data(20), built(name)
    given = built(name, seed=1) if name == "Convolutional" else None
    save(operator, tmp_path / "untrained")
    assert load(tmp_path / "untrained", operator=given).trained_on is None
    fit(operator, pairs, epochs=1, data=DataOptions(validation=0.0), show_progress=False)
    save(operator, tmp_path / "trained")
    loaded = load(tmp_path / "trained", operator=given)
    assert isinstance(loaded, nn.Module)
    assert recorded(loaded) == keys(pairs)


def test_files_of_predictors_keep_the_record_and_older_files_have_none(tmp_path: Path) -> None:
    pairs, operator = data(20), built("FNO")
    fit(operator, pairs[:15], epochs=1, data=DataOptions(validation=0.0), show_progress=False)
    predictor = LastLayerLaplace().fit(operator, pairs[10:])
    save(predictor, tmp_path / "predictor")
    loaded = load(tmp_path / "predictor")
    assert loaded.trained_on is not None
    assert set(loaded.trained_on.row_keys.tolist()) == keys(pairs)
    assert (loaded.trained_on.lead, loaded.trained_on.step, loaded.trained_on.input_units) == (1, None, ())
    tensors, metadata = files.read(tmp_path / "predictor")
    del metadata["parts"]["trained_on"], tensors["trained_on.row_keys"], tensors["trained_on.input_keys"]
    files.write(tmp_path / "older", tensors, metadata=metadata)
    older = load(tmp_path / "older")
    assert older.trained_on is None
    assert torch.equal(older(pairs.inputs).variance, predictor(pairs.inputs).variance)


def test_processes_share_out_the_reading_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    states = torch.randn(2, 6, 1, 16, generator=torch.Generator().manual_seed(0))
    windows = FieldTrajectories(Field(states[:, 0], Grid.uniform(16)), states[:, 1:], times=torch.arange(1.0, 6.0)).windows()
    monkeypatch.setattr(trainer, "world_size", lambda: 2)
    monkeypatch.setattr(trainer, "sum_over_processes", lambda keys: keys)
    parts = []
    for rows in (range(7), range(7, 10)):
        monkeypatch.setattr(trainer, "own_rows", lambda count, rows=rows: rows)
        parts.append(trainer._shared_keys(windows, 4))
    assert torch.equal(sum(parts), row_keys(windows, with_inputs=True))
    assert not parts[0][7:].any()
