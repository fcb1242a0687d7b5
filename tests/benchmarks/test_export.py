"""The benchmark of exported files: what it measures, and that it goes on where there is no C++ compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import probneural as pn
from benchmarks import export
from probneural.errors import UnsupportedError


def test_files_and_times_have_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(predictor: pn.distributions.Predictor, example: pn.Field, path: Path) -> export.Run:
        path.write_bytes(bytes(2048))
        run = export._moments
        return lambda values: tuple(1.5 * part for part in run(predictor, pn.Field(values, example.grid)))

    def none(*_: object) -> export.Run:
        raise UnsupportedError(expected="a compiler", got="none", remedy="install one")

    (case,) = export.SMALL
    files, times = export._measured(case, {"file": make, "other": none}, 2)
    assert files["file (KB)"] == 2.0
    assert "other (KB)" not in files
    (row,) = times
    assert row["functions"] == 2
    assert row["file: difference"] == pytest.approx(0.5)
    assert row["PyTorch / file"] > 0.0


def test_predictors_are_calibrated_and_exportable() -> None:
    for case in (*export.CASES, *export.SMALL):
        assert case.inputs(3).shape == (3, 1, *case.grid.shape)
    (case,) = export.SMALL
    predictor = case.predictor()
    assert isinstance(predictor, pn.calibration.ScaledPredictor)
    mean, deviation = export._moments(predictor, pn.Field(case.inputs(1), case.grid))
    assert mean.shape == deviation.shape == (1, 1, 16)
    assert bool((deviation > 0).all() and torch.isfinite(mean).all())


def test_differences_are_relative_to_the_largest_value() -> None:
    expected: Tensor = torch.tensor([-4.0, 1.0])
    assert export._difference(expected + torch.tensor([0.0, 0.5]), expected) == pytest.approx(0.125)
