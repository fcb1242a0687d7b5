"""Time and peak memory of marginal standard deviations by field size, each in a separate process."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import torch

import probneural as pn
from benchmarks.memory import peak_memory, reset_peak_memory
from benchmarks.workers import spawned

SIZES = (16, 32, 64, 128, 256, 512, 1024)
MODELS: dict[str, dict[str, Any]] = {
    "3,400 parameters": {"modes": (3, 3), "width": 9, "depth": 1, "projection": 80},
    "300,000 parameters": {"modes": (8, 8), "width": 20, "depth": 3, "projection": 64},
}
RANK = 100
_TRAIN_SIZE = 32
_REPEATS = 3


@dataclass(frozen=True)
class Measurement:
    """One head of one model at one size."""

    model: str
    head: str
    size: int


def measurements(*, small: bool = False) -> list[Measurement]:
    """All measurements, small sizes first; posteriors over all layers stop at 256 points per side."""
    sizes = SIZES[:2] if small else SIZES
    found = [Measurement(model, "last layer", size) for model in MODELS for size in sizes]
    found += [Measurement("3,400 parameters", "low rank", size) for size in sizes if size <= 256]
    found += [Measurement("300,000 parameters", "low rank", size) for size in sizes if size in (64, 128)]
    peers = ("laplace-torch, all/diag", "laplace-torch, last layer/full") if _has_laplace() else ()
    found += [Measurement("3,400 parameters", head, size) for head in peers for size in sizes if size <= 64]
    return found


def run(*, small: bool = False) -> list[dict[str, Any]]:
    """Measure one after the other, without interference."""
    os.environ["OMP_NUM_THREADS"] = "2"
    rows = []
    for measurement in measurements(small=small):
        with spawned(1) as pool:
            future = pool.submit(measure, measurement)
            try:
                facts = future.result(timeout=300)
            except TimeoutError:
                facts = {"failed": "more than 300 s"}
                for process in list((pool._processes or {}).values()):
                    process.kill()
            except Exception as error:  # noqa: BLE001 (a peer may fail in any way, and how is the result)
                facts = {"failed": f"{type(error).__name__}: {error}"[:200]}
        rows.append({"model": measurement.model, "head": measurement.head, "size": measurement.size, **facts})
    return rows


def measure(measurement: Measurement) -> dict[str, Any]:
    """Fit to few samples at a low resolution, then predict one field of the requested size, in float32."""
    operator = pn.operators.FNO(1, 1, **MODELS[measurement.model], seed=0)
    problem = pn.problems.Heat(dimension=2, random_field=pn.problems.GaussianRandomField(2, 7))
    train = problem.sample(2, resolution=(_TRAIN_SIZE, _TRAIN_SIZE), seed=30_000)
    operator.fit_normalizers(train)
    inputs = problem.sample(1, resolution=(measurement.size, measurement.size), seed=30_001).inputs
    if measurement.head.startswith("laplace-torch"):
        return _laplace_torch(operator.eval(), inputs, measurement.head)
    start = time.perf_counter()
    if measurement.head == "last layer":
        predictor: Any = pn.heads.LastLayerLaplace(noise=1e-4, prior_precision=1.0).fit(operator, train)
    else:
        head = pn.heads.Laplace(pn.heads.LowRank(rank=RANK), noise=1e-4, prior_precision=1.0)
        predictor = head.fit(operator, train)
    fitted = time.perf_counter() - start
    facts: dict[str, Any] = {"fit_seconds": fitted, "parameters": sum(part.numel() for part in operator.parameters())}
    before = reset_peak_memory()
    times = []
    with torch.no_grad():
        for _ in range(1 if measurement.size >= 512 else _REPEATS):
            start = time.perf_counter()
            field = predictor(inputs)
            deviation = field.standard_deviation
            times.append(time.perf_counter() - start)
    facts |= {"seconds": sorted(times)[len(times) // 2], "peak_mb": (peak_memory() - before) / 2**20}
    if hasattr(field.root, "row_squares_error"):
        error = field.root.row_squares_error().unflatten(-1, field.grid.shape)
        facts["relative_error"] = float((error / deviation.square()).mean()) / 2
    return facts


def _laplace_torch(operator: torch.nn.Module, inputs: pn.Field, head: str) -> dict[str, Any]:
    """The same network with flattened output and one sample for the fit, as laplace-torch requires."""
    from laplace import Laplace
    from torch.utils.data import DataLoader, TensorDataset

    class Flattened(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.operator = operator
            self.last = torch.nn.Flatten()

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.last(self.operator(values))

    subset, structure = ("all", "diag") if head.endswith("diag") else ("last_layer", "full")
    module = Flattened()
    with torch.no_grad():
        targets = module(inputs.values)
    before = reset_peak_memory()
    start = time.perf_counter()
    posterior = Laplace(module, "regression", subset_of_weights=subset, hessian_structure=structure)
    posterior.fit(DataLoader(TensorDataset(inputs.values, targets), batch_size=1))
    fitted = time.perf_counter()
    _, variance = posterior(inputs.values)
    variance.diagonal(dim1=-2, dim2=-1).sqrt()
    return {
        "fit_seconds": fitted - start,
        "seconds": time.perf_counter() - fitted,
        "peak_mb": (peak_memory() - before) / 2**20,
        "total_mb": peak_memory() / 2**20,
    }


def _has_laplace() -> bool:
    try:
        import laplace  # noqa: F401
    except ImportError:
        return False
    return True
