"""Exported files beside PyTorch: times of one evaluation, sizes, and how far their numbers differ; one thread."""

from __future__ import annotations

import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import sections, studies
from benchmarks.timing import interleaved, quartiles
from probneural.randomness import stream

ROUNDS = 15
WARM_UP = 3
"""Rounds before those that count."""

Row = dict[str, Any]
Run = Callable[[Tensor], tuple[Tensor, ...]]
ONNX = "ONNX Runtime"


@dataclass(frozen=True)
class Case:
    """A calibrated last-layer predictor, and the numbers of functions it is asked for at once."""

    name: str
    operator: Callable[[], pn.operators.Operator]
    grid: pn.Grid
    batches: tuple[int, ...]

    def predictor(self) -> pn.distributions.Predictor:
        """Fit it, to smooth functions whose outputs are their squares: what it says is of no importance here."""
        values = torch.randn(24, 1, *(4,) * self.grid.dimension, generator=stream(0, "export inputs"))
        coarse = pn.Field(values, self.grid.resized((4,) * self.grid.dimension))
        inputs = coarse.resample(self.grid)
        data = pn.FieldPairs(inputs, pn.Field(inputs.values.square(), self.grid))
        operator = self.operator()
        operator.fit_normalizers(data)
        predictor = pn.heads.LastLayerLaplace().fit(operator, data[:16])
        return pn.calibration.VarianceScale().fit(predictor, data[16:])

    def inputs(self, batch: int) -> Tensor:
        """Normal numbers."""
        return torch.randn(batch, 1, *self.grid.shape, generator=stream(1, "export inputs"))


def _fno(*modes: int, width: int = 32) -> Callable[[], pn.operators.Operator]:
    return lambda: pn.operators.FNO(1, 1, modes=modes, width=width, seed=0)


def _deeponet(grid: pn.Grid, *, width: int = 256) -> Callable[[], pn.operators.Operator]:
    layers = pn.operators.HiddenLayers(width=width, depth=3)
    return lambda: pn.operators.DeepONet(1, 1, sensors=grid, basis=64, layers=layers, seed=0)


_LINE, _PLANE, _ENDS = pn.Grid.uniform(256), pn.Grid.uniform((64, 64)), pn.Grid.uniform(128, periodic=False)
CASES = (
    Case("FNO, 256 points", _fno(16), _LINE, (1, 16)),
    Case("FNO, 64 x 64 points", _fno(12, 12), _PLANE, (1, 16)),
    Case("DeepONet, 128 points", _deeponet(_ENDS), _ENDS, (1, 64)),
)
_SMALL_GRID = pn.Grid.uniform(16)
SMALL = (Case("FNO, 16 points", _fno(3, width=4), _SMALL_GRID, (2,)),)


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Run all parts."""
    is_small = mode == "small"
    rounds = 2 if is_small else ROUNDS
    torch.set_num_threads(1)
    measured = functools.cache(lambda: [_measured(case, rounds) for case in (SMALL if is_small else CASES)])
    return sections.write(
        "export",
        {
            "files": lambda: [files for files, _ in measured()],
            "times": lambda: [row for _, times in measured() for row in times],
        },
        mode=mode,
        output=output,
        peers=("onnx", "onnxruntime", "onnxscript"),
        notes=[
            "mean and standard deviation of calibrated last-layer predictors, float32, one thread",
            f"milliseconds are medians of {rounds} rounds in which each runs once, quartiles in brackets",
            "PyTorch is the predictor itself, `predictor(inputs)` with its mean and standard deviation",
            "difference: largest from PyTorch's, relative to the largest value, of mean and of standard deviation",
        ],
    )


def _measured(case: Case, rounds: int) -> tuple[Row, list[Row]]:
    """Write the file of a predictor, and run both in turn."""
    predictor = case.predictor()
    runs: dict[str, Run] = {"PyTorch": lambda inputs: _moments(predictor, pn.Field(inputs, case.grid))}
    files: Row = {"predictor": case.name}
    with tempfile.TemporaryDirectory() as folder:
        path, start = Path(folder, "predictor.onnx"), time.perf_counter()
        runs[ONNX] = _onnx(predictor, pn.Field(case.inputs(1), case.grid), path)
        files |= {f"{ONNX} (KB)": path.stat().st_size / 1024, f"{ONNX}, to write (s)": time.perf_counter() - start}
        return files, [_times(case, runs, batch, rounds) for batch in case.batches]


def _times(case: Case, runs: Mapping[str, Run], batch: int, rounds: int) -> Row:
    values = case.inputs(batch)
    row: Row = {"predictor": case.name, "functions": batch}
    tasks = {name: lambda run=run: run(values) for name, run in runs.items()}
    times = interleaved(tasks, rounds, warm_up=WARM_UP)
    for name in runs:
        row[f"{name} (ms)"] = quartiles(times[name])
    expected = runs["PyTorch"](values)
    for name in (name for name in runs if name != "PyTorch"):
        row[f"PyTorch / {name}"] = statistics.median(times["PyTorch"]) / statistics.median(times[name])
        row[f"{name}: difference"] = max(map(_difference, runs[name](values), expected))
    return row


def _moments(predictor: pn.distributions.Predictor, inputs: pn.Field) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        u = predictor(inputs)
        return u.mean, u.standard_deviation


def _onnx(predictor: pn.distributions.Predictor, example: pn.Field, path: Path) -> Run:
    import onnxruntime

    pn.export.to_onnx(predictor, path, example=example)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options)
    return lambda values: tuple(map(torch.from_numpy, session.run(None, {"values": values.numpy()})))


def _difference(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


if __name__ == "__main__":
    studies.run(main)
