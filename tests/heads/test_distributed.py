"""Two processes fit what one does, and every row is read by one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed import needs_distributed, run_in_ranks

SCRIPT = """
from functools import partial
from probneural import processes
from probneural.heads import DeepEnsemble, Laplace, LastLayerLaplace, Kronecker, LowRank
from probneural.training import fit
from tests.heads.test_streaming import halve, operator_and_pairs
from tests.heads.cases import fields
from tests.helpers import LazyPairs


operator, pairs = operator_and_pairs(41)
fresh = fields(pairs.inputs.grid, 3, 1, seed=9)
named = {"parameters": ["readout"], "show_progress": False}
heads = {
    "last layer": LastLayerLaplace(),
    "moved": LastLayerLaplace(moves_mean=True),
    "low rank": Laplace(LowRank(), **named),
    "kronecker": Laplace(Kronecker(), **named),
    "probes": Laplace(Kronecker(probes=4), show_progress=False),
    "full": Laplace("full", **named),
    "diagonal": Laplace("diagonal", **named),
    "deep": DeepEnsemble(3, train=halve, show_progress=False),
    "trained": DeepEnsemble(2, train=partial(fit, epochs=1, show_progress=False), show_progress=False),
}
own = set(processes.own_rows(41))


def compare(name, found, expected, tolerance=1e-10):
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error <= tolerance, f"{name}: {error}"


for name, head in heads.items():
    lazy = LazyPairs.of(pairs)
    found = head.fit(operator, lazy)
    read = {row for _, rows in lazy.reads for row in rows}
    if name not in ("deep", "trained"):
        assert read == own, (name, read)
    with processes.alone():
        expected = head.fit(operator, pairs)
    compare(name + " mean", found(fresh).mean, expected(fresh).mean)
    compare(name + " variance", found(fresh).variance, expected(fresh).variance)
    compare(name + " noise", found.noise, expected.noise)
    if hasattr(expected, "log_evidence"):
        assert abs(found.log_evidence - expected.log_evidence) <= 1e-9 * abs(expected.log_evidence), name
    if name in ("last layer", "low rank", "full"):
        updated = found.update(LazyPairs.of(pairs[:11]))
        with processes.alone():
            compare(name + " update", updated(fresh).mean, expected.update(pairs[:11])(fresh).mean)
    own_bits = found(fresh).variance.contiguous()
    others = processes.gathered(own_bits)
    assert torch.equal(others[0], others[1]), f"{name}: processes disagree"
"""


@pytest.mark.slow
@needs_distributed
def test_two_processes_equal_one(tmp_path: Path) -> None:
    run_in_ranks(SCRIPT, tmp_path)
