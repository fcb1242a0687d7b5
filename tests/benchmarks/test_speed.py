"""The benchmark of speed: that it times what it says, and counts operations as PyTorch does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import gpu, speed

CASES = [
    speed.Fourier((16,), (4,), 8, 3),
    speed.Fourier((12, 14), (3, 4), 6, 2),
    speed.Fourier((8, 6, 10), (2, 2, 3), 4, 2),
    speed.Products(5, 11, sensors=7, width=6),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operations_are_those_of_the_matrix_products(case: speed.Case) -> None:
    """Counted by PyTorch, whose counter passes over products with a vector, the read-out here, and those added in place."""
    model, (inputs, targets) = case.ours(), case.data()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert model(inputs).shape == targets.shape
    unseen = 2 * inputs.numel() * (case.projection + case.depth * case.width**2) if isinstance(case, speed.Fourier) else 0
    assert case.operations() == counter.get_total_flops() + unseen


def test_failed_tests_are_named(tmp_path: Path) -> None:
    marked = "import pytest\n\n@pytest.mark.gpu\n@pytest.mark.parametrize('value', [0, 1])\ndef test_it(value): assert value\n"
    (tmp_path / "test_it.py").write_text(marked)
    rows = {row["result"]: row for row in gpu.results_of_tests(tmp_path / "report.xml", seconds=100.0, folder=tmp_path)}
    assert (rows["passed"]["tests"], rows["failed"]["tests"], rows["failed"]["names"]) == (1, 1, "test_it[0]")
    assert gpu.results_of_tests(tmp_path / "report.xml", seconds=0.0, folder=tmp_path)[0]["result"] == "no time left"
