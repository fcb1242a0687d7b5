"""Remedies of errors about data: what a message says to write is run, and works."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray

import probneural as pn
from probneural import runs
from probneural.__main__ import main
from probneural.errors import ArgumentError, DataError, GridError, ProbneuralError, ShapeError, TrainingError
from tests.runs.files import cheap, fields, written

pytestmark = pytest.mark.bad_input

GRID, FINE = pn.Grid.uniform(8), pn.Grid.uniform(16)
POINTS = pn.Grid.scattered([[0.1], [0.5], [0.8]], [0.3, 0.3, 0.4])
VALUES = torch.randn(6, 1, 8, generator=torch.Generator().manual_seed(0))
FIELD, WIDE = pn.Field(VALUES, GRID), pn.Field(VALUES.expand(6, 2, 8), GRID)
PAIRS = pn.FieldPairs(FIELD, FIELD)


def dataset(**coordinates: Any) -> xarray.Dataset:
    values = VALUES[:, 0].numpy()
    return xarray.Dataset(
        {"a": (("sample", "x"), values), "u": (("sample", "x"), -values)}, coords={"x": np.arange(8) / 8} | coordinates
    )


NAMED = dataset(groups=("sample", [0.5, 0.5, 1.5, 1.5, 2.5, 2.5]))
A = np.random.default_rng(1).normal(size=(6, 8))
LAST = np.random.default_rng(2).normal(size=(4, 6, 5, 2))
WAVES = np.sin(2 * np.pi * (np.arange(8) / 8 + np.arange(6)[:, None] / 5))
CLOSED = np.concatenate([WAVES, WAVES[:, :1]], axis=1)
TABLE: dict[str, tuple[Callable[[], Any], type[ProbneuralError], str, Callable[[], Any]]] = {
    "a tensor as a field": (
        lambda: pn.FieldPairs(VALUES, VALUES),
        DataError,
        "pn.Field(values, grid)",
        lambda: pn.FieldPairs(pn.Field(VALUES, GRID), pn.Field(VALUES, GRID)),
    ),
    "values without channels": (
        lambda: pn.Field(VALUES[0, 0], GRID),
        ShapeError,
        "values[None, None]",
        lambda: pn.Field(VALUES[0, 0][None, None], GRID),
    ),
    "a tuple as a data set": (
        lambda: pn.heads.KernelOperator().fit(None, (FIELD, FIELD)),
        DataError,
        "pn.FieldPairs(inputs, outputs)",
        lambda: pn.heads.KernelOperator().fit(None, pn.FieldPairs(FIELD, FIELD)),
    ),
    "several data sets": (
        lambda: pn.heads.KernelOperator().fit(None, [PAIRS, PAIRS]),
        DataError,
        "pn.FieldPairs.cat",
        lambda: pn.heads.KernelOperator().fit(None, pn.FieldPairs.cat([PAIRS, PAIRS])),
    ),
    "a Dataset of other names": (
        lambda: pn.FieldPairs.from_xarray(dataset()),
        DataError,
        "pn.FieldPairs.from_xarray(dataset['a'], dataset['u'], periodic=...)",
        lambda: pn.FieldPairs.from_xarray(dataset()["a"], dataset()["u"], periodic=True),
    ),
    "groups that are no whole numbers": (
        lambda: pn.FieldPairs.from_xarray(NAMED["a"], NAMED["u"], periodic=True),
        DataError,
        "dataset.assign_coords(groups=('sample', numpy.unique(groups, return_inverse=True)[1]))",
        lambda: pn.FieldPairs.from_xarray(
            NAMED.assign_coords(groups=("sample", np.unique(NAMED["groups"], return_inverse=True)[1]))["a"],
            NAMED["u"],
            periodic=True,
        ),
    ),
    "groups as a list": (
        lambda: pn.FieldPairs(FIELD, FIELD, groups=[0, 0, 1, 1, 2, 2]),
        DataError,
        "torch.as_tensor(numbers, dtype=torch.int64)",
        lambda: pn.FieldPairs(FIELD, FIELD, groups=torch.as_tensor([0, 0, 1, 1, 2, 2], dtype=torch.int64)),
    ),
    "fields of two grids": (
        lambda: pn.Field.cat([FIELD, FIELD.resample(FINE)]),
        GridError,
        "field.resample(grid)",
        lambda: pn.Field.cat([FIELD, FIELD.resample(FINE).resample(GRID)]),
    ),
    "fields of other channels": (
        lambda: pn.Field.cat([FIELD, WIDE]),
        ShapeError,
        "torch.cat([a.values, b.values], dim=1)",
        lambda: pn.Field(torch.cat([FIELD.values, WIDE.values], dim=1), GRID),
    ),
    "fields of two dtypes": (
        lambda: pn.Field.cat([FIELD, FIELD.to(torch.float64)]),
        DataError,
        "field.to(torch.float32).to('cpu')",
        lambda: pn.Field.cat([FIELD, FIELD.to(torch.float64).to(torch.float32).to("cpu")]),
    ),
    "one field in place of a list": (
        lambda: pn.Field.cat(FIELD),
        DataError,
        "Field.cat([a, b])",
        lambda: pn.Field.cat([FIELD, FIELD]),
    ),
    "no axis": (lambda: pn.Grid.uniform(()), ArgumentError, "give e.g. (64, 64)", lambda: pn.Grid.uniform((64, 64))),
    "an entry for another number of axes": (
        lambda: pn.Grid.uniform((8, 8), periodic=(True,)),
        ArgumentError,
        "give 2, e.g. periodic=(True, True)",
        lambda: pn.Grid.uniform((8, 8), periodic=(True, True)),
    ),
    "a periodic end point": (
        lambda: pn.Grid.uniform(9, endpoint=True),
        ArgumentError,
        "set periodic=False",
        lambda: pn.Grid.uniform(9, endpoint=True, periodic=False),
    ),
    "negative weights": (
        lambda: pn.Grid.scattered([[0.0], [1.0]], [-1.0, 1.0]),
        DataError,
        "equal weights volume / p",
        lambda: pn.Grid.scattered([[0.0], [1.0]], [1.0 / 2] * 2),
    ),
    "a shape as a grid": (
        lambda: FIELD.resample(16),
        GridError,
        "inputs.grid.resized(128)",
        lambda: FIELD.resample(FIELD.grid.resized(128)),
    ),
    "another domain": (
        lambda: FIELD.resample(pn.Grid.uniform(16, lengths=2.0)),
        GridError,
        "source.resized(shape)",
        lambda: FIELD.resample(FIELD.grid.resized(16)),
    ),
    "channels last": (
        lambda: pn.FieldPairs.from_numpy(LAST, LAST, periodic=(True, True)),
        ShapeError,
        'axes="n x y c" for channels last',
        lambda: pn.FieldPairs.from_numpy(LAST, 2 * LAST, axes="n x y c", periodic=(True, True)),
    ),
    "a repeated end point": (
        lambda: pn.FieldPairs.from_numpy(CLOSED, CLOSED, periodic=True),
        DataError,
        "values[..., :-1]",
        lambda: pn.FieldPairs.from_numpy(CLOSED[..., :-1], 2 * CLOSED[..., :-1], periodic=True),
    ),
    "masked values": (
        lambda: pn.Field.from_numpy(np.ma.masked_greater(A, 1.0), periodic=True),
        DataError,
        "pass mask=True",
        lambda: pn.Field.from_numpy(np.ma.masked_greater(A, 1.0), periodic=True, mask=True),
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_remedy_works(name: str) -> None:
    bad, kind, words, good = TABLE[name]
    with pytest.raises(kind) as caught:
        bad()
    assert words in caught.value.remedy
    good()


def test_a_windows_remedy_for_values_that_are_not_finite() -> None:
    values = VALUES.numpy().copy()
    values[2, 0, 3] = np.nan
    data = pn.data.from_arrays(values, 2 * values, periodic=False)
    with pytest.raises(DataError, match=r"in function 2; repair it, or leave it out: data.subset\(rows\)"):
        data[:]
    assert len(data.subset([0, 1, 3, 4, 5])[:]) == 5


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            TrainingError(expected="a finite loss", got="nan", remedy="lower learning_rate, or check the data"),
            "lower --training.learning_rate, or check the data",
        ),
        (
            ArgumentError(expected="a split", got="validation=0.1", remedy="give validation=0 to train on all"),
            "got validation=0.1; give --training.validation 0 to train on all",
        ),
        (
            DataError(expected="a", got="b", remedy="fit a head first: pn.heads.KernelOperator().fit(None, data)"),
            "b; in a Python program, fit a head first: pn.heads.KernelOperator",
        ),
        (
            DataError(expected="a", got="b", remedy="name it: data.nc (of pn.data.open)"),
            "b; name it: data.nc (of pn.data.open)",
        ),
    ],
)
def test_remedies_on_the_command_line(
    error: ProbneuralError, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(pn.runs, "info", fail)
    monkeypatch.setattr(sys, "argv", ["probneural", "info", "waves.nc"])
    assert main() == 1
    assert said in capsys.readouterr().err


def test_inputs_to_predict_for_are_named_as_in_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program `predict` has no options of data, since the run has them."""
    runs.calibrate(cheap(written(tmp_path)), tmp_path / "run", show_progress=False)
    fields().rename(sample="member").to_netcdf(tmp_path / "numbered.nc", engine="h5netcdf")
    words = ["probneural", "predict", str(tmp_path / "run"), str(tmp_path / "numbered.nc"), str(tmp_path / "out.nc")]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 1
    message = capsys.readouterr().err
    assert "--sample" not in message.rpartition(";")[2]
    assert "write it as the training data are: variables, dimensions and coordinates of the same names" in message
    words[3] = str(tmp_path / "waves.nc")
    assert main() == 0


def test_a_remedy_of_the_command_line_works_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Too few pairs: the message names the option that leaves out bands."""
    written(tmp_path, count=12)
    monkeypatch.chdir(tmp_path)
    words = ["probneural", "score", "waves.nc", "--inputs", "a", "--outputs", "u", "--periodic", "true", "--quiet"]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 1
    assert "leave out bands: --calibration.bands false" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", [*words, "--calibration.bands", "false"])
    assert main() == 0
