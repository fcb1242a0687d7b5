"""Files: equal to PyTorch in other runtimes, whole or not at all, and of use where this library is not."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import probneural as pn
from probneural import atomic
from probneural.errors import ArgumentError, FileError, UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from tests.heads import cases
from tests.helpers import held_out, normal
from tests.operators.cases import CASES, Case

onnxruntime = pytest.importorskip("onnxruntime")
LINE = Grid.uniform(8)
OUTPUTS = ("mean", "standard_deviation")
WITHOUT_LIBRARY = """
import sys
sys.modules["probneural"] = None  # importing it fails
"""


def run(path: Path, values: np.ndarray, names: tuple[str, ...] = OUTPUTS) -> list[np.ndarray]:
    return onnxruntime.InferenceSession(path).run(list(names), {"values": values})


def assert_equal(found: np.ndarray, expected: torch.Tensor) -> None:
    """To a hundred roundings of the field's largest value: 1e-5 in single precision."""
    expected = expected.detach().numpy()
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    scale = 100 * np.finfo(expected.dtype).eps * np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=scale)


def in_dtype(name: str, dtype: torch.dtype) -> tuple[pn.distributions.Predictor, Field]:
    """A calibrated predictor of the last layer, and inputs."""
    case = cases.operator_case(name)
    operator = cases.to_dtype(copy.deepcopy(case.operator), dtype)
    data = pn.FieldPairs(case.data.inputs.to(dtype), case.data.outputs.to(dtype))
    predictor = pn.heads.LastLayerLaplace(readout=case.readout).fit(operator, data)
    inputs = cases.fields(case.data.inputs.grid, 7, case.data.inputs.channels, seed=5).to(dtype)
    return pn.calibration.VarianceScale().fit(predictor, held_out(data)), inputs


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operators(case: Case, tmp_path: Path) -> None:
    operator = case.operator(torch.float32).eval()
    inputs = Field(case.values(count=7, dtype=torch.float32), case.grid)
    path = tmp_path / "operator.onnx"
    pn.export.to_onnx(operator, path, example=inputs[:1])
    for count in (1, 2, 7):
        (found,) = run(path, inputs.values[:count].numpy(), ("output",))
        assert_equal(found, evaluate(operator, inputs[:count]))


SINGLE = ["fno-1d", "fno-ends", "fno-2d", "deeponet", "pod-deeponet", "regression"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.float32) for name in SINGLE), ("regression", torch.float64)], ids=str
)
def test_calibrated_predictors(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    predictor, inputs = in_dtype(name, dtype)
    query = inputs.grid.resized([size + 2 for size in inputs.grid.shape])
    path = tmp_path / "predictor.onnx"
    pn.export.to_onnx(predictor, path, example=inputs[:2], query=query)
    u = predictor(inputs, query)
    for count in (1, 2, 7):
        for found, expected in zip(run(path, inputs.values[:count].numpy()), (u.mean, u.standard_deviation), strict=True):
            assert_equal(found, expected[:count])


@pytest.mark.slow
def test_bands(tmp_path: Path) -> None:
    scaled, inputs = in_dtype("regression", torch.float32)
    other = cases.fields(inputs.grid, 40, inputs.channels, seed=11).to(torch.float32)
    mean = scaled(other).mean
    predictor = pn.calibration.calibrate(
        scaled, pn.FieldPairs(other, Field(mean + 0.1 * normal(*mean.shape).float(), other.grid)), level=0.8
    )
    u, band = predictor(inputs), predictor.band(inputs)
    path, names = tmp_path / "predictor.onnx", (*OUTPUTS, "lower", "upper")
    pn.export.to_onnx(predictor, path, example=inputs[:1])
    pn.export.to_torch_export(predictor, path.with_suffix(".pt2"), example=inputs[:1])
    program = torch.export.load(path.with_suffix(".pt2")).module()
    for outputs in (run(path, inputs.values.numpy(), names), [output.numpy() for output in program(inputs.values)]):
        for output, expected in zip(outputs, (u.mean, u.standard_deviation, band.lower, band.upper), strict=True):
            assert_equal(output, expected.float())
    metadata = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map["probneural"]
    assert json.loads(metadata)["level"] == 0.8


@pytest.mark.slow
@pytest.mark.parametrize(("head", "name"), [("deep-ensemble", "fno-1d"), ("last-layer", "channels-last")])
def test_ensembles_and_foreign_modules(head: str, name: str, tmp_path: Path) -> None:
    case = cases.operator_case(name)
    inputs = case.inputs.to(torch.float32)
    data = pn.FieldPairs(case.data.inputs.to(torch.float32), case.data.outputs.to(torch.float32))
    predictor = cases.ALL_HEADS[head].fit(cases.to_dtype(copy.deepcopy(case.operator), torch.float32), data)
    pn.export.to_onnx(predictor, tmp_path / "predictor.onnx", example=inputs)
    u = predictor(inputs)
    for found, expected in zip(
        run(tmp_path / "predictor.onnx", inputs.values.numpy()), (u.mean, u.standard_deviation), strict=True
    ):
        assert_equal(found, expected)


class Offset(nn.Module):
    """Fields of size 1e-9, and their mean."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return 1e-9 * values + 3e-9


def test_small_constants_are_kept(tmp_path: Path) -> None:
    """An optimiser with absolute tolerances takes them for zero."""
    inputs = Field(normal(3, 1, 8).float(), LINE)
    pn.export.to_onnx(Offset(), tmp_path / "operator.onnx", example=inputs)
    (found,) = run(tmp_path / "operator.onnx", inputs.values.numpy(), ("output",))
    assert_equal(found, Offset()(inputs.values))


def test_a_file_says_what_it_is_and_not_where_it_was_made(tmp_path: Path) -> None:
    path = tmp_path / "operator.onnx"
    pn.export.to_onnx(nn.Conv1d(1, 2, 1), path, example=Field(normal(3, 1, 8).float(), LINE))
    metadata = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    description = json.loads(metadata["probneural"])
    assert description["version"] == pn.__version__
    assert description["outputs"][0]["shape"] == ["n", 2, 8]
    assert b".py" not in path.read_bytes()


@pytest.mark.parametrize("module", [nn.Conv1d(1, 1, 3, padding=1), nn.GELU()], ids=["convolution", "error function"])
def test_operations_that_a_runtime_has_in_single_precision_only(module: nn.Module, tmp_path: Path) -> None:
    path, inputs = tmp_path / "operator.onnx", Field(normal(3, 1, 8), LINE)
    with pytest.raises(UnsupportedError, match=r"export operator\.float\(\)"):
        pn.export.to_onnx(module.double(), path, example=inputs)
    assert not path.exists()
    pn.export.to_onnx(module.float(), path, example=inputs.to(torch.float32))
    (output,) = run(path, inputs.values.float().numpy(), ("output",))
    assert_equal(output, module(inputs.values.float()))


def test_a_file_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Field(normal(2, 1, 8).float(), LINE)
    path = tmp_path / "program.pt2"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "replace", _full)
        with pytest.raises(FileError, match="No space left"):
            pn.export.to_torch_export(nn.Conv1d(1, 1, 1), path, example=inputs)
    assert [file.name for file in tmp_path.iterdir()] == ["program.pt2"]
    assert path.read_bytes() == b"old"
    pn.export.to_torch_export(nn.Conv1d(1, 1, 1), path, example=inputs)
    assert torch.export.load(path).module()(inputs.values[:1]).shape == (1, 1, 8)


def _full(*_: object) -> None:
    raise OSError("No space left on device")


@pytest.mark.slow
def test_files_run_without_this_library(tmp_path: Path) -> None:
    predictor, inputs = in_dtype("fno-1d", torch.float32)
    pn.export.to_onnx(predictor, tmp_path / "predictor.onnx", example=inputs)
    pn.export.to_torch_export(predictor, tmp_path / "predictor.pt2", example=inputs)
    np.save(tmp_path / "values.npy", inputs.values.numpy())
    run_apart(
        "import numpy, onnxruntime",
        "session = onnxruntime.InferenceSession('predictor.onnx')",
        "mean, sd = session.run(['mean', 'standard_deviation'], {'values': numpy.load('values.npy')})",
        "numpy.savez('onnx.npz', mean=mean, sd=sd)",
        "assert 'torch' not in sys.modules",
        folder=tmp_path,
    )
    run_apart(
        "import numpy, torch",
        "program = torch.export.load('predictor.pt2').module()",
        "mean, sd = program(torch.from_numpy(numpy.load('values.npy')))",
        "numpy.savez('torch.npz', mean=mean, sd=sd)",
        folder=tmp_path,
    )
    u = predictor(inputs)
    for file in ("onnx.npz", "torch.npz"):
        found = np.load(tmp_path / file)
        assert_equal(found["mean"], u.mean)
        assert_equal(found["sd"], u.standard_deviation)
    with pytest.raises(subprocess.CalledProcessError):
        run_apart("import probneural", folder=tmp_path)


def run_apart(*lines: str, folder: Path) -> None:
    """In a process of its own, where this library is not."""
    program = WITHOUT_LIBRARY + "\n".join(lines)
    subprocess.run([sys.executable, "-c", program], cwd=folder, check=True, capture_output=True)


def test_names_that_pytorch_does_not_load_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"ends in \.pt2"):
        pn.export.to_torch_export(nn.Conv1d(1, 1, 1), tmp_path / "program.txt", example=Field(normal(2, 1, 8).float(), LINE))
    assert not list(tmp_path.iterdir())
