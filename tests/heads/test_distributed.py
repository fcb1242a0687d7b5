"""Two processes fit what one does, and every row is read by one of them."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = """
import sys
from functools import partial
import torch
import torch.distributed as dist
from probneural import processes
from probneural.heads import AnchoredEnsemble, DeepEnsemble, Laplace, LastLayerLaplace, Kronecker, LowRank
from probneural.training import fit
from tests.heads.test_streaming import halve, operator_and_pairs
from tests.heads.cases import fields
from tests.helpers import LazyPairs

torch.set_num_threads(1)
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2)
operator, pairs = operator_and_pairs(41)
fresh = fields(pairs.inputs.grid, 3, 1, seed=9)
named = {"parameters": ["readout"], "show_progress": False}
heads = {
    "last layer": LastLayerLaplace(),
    "moved": LastLayerLaplace(moves_mean=True),
    "low rank": Laplace(LowRank(), **named),
    "kronecker": Laplace(Kronecker(eigenvalue_correction=True), **named),
    "probes": Laplace(Kronecker(probes=4), show_progress=False),
    "full": Laplace("full", **named),
    "diagonal": Laplace("diagonal", **named),
    "iterative": Laplace("iterative", **named),
    "deep": DeepEnsemble(3, train=halve, show_progress=False),
    "trained": DeepEnsemble(2, train=partial(fit, epochs=1, show_progress=False), show_progress=False),
    "anchored": AnchoredEnsemble(3, prior_precision=1.0, noise=0.1, **named),
}
own = set(processes.own_rows(41))


def compare(name, found, expected, tolerance=1e-10):
    error = float((found - expected).abs().max() / expected.abs().max())
    assert error <= tolerance, f"{name}: {error}"


for name, head in heads.items():
    lazy = LazyPairs.of(pairs)
    found = head.fit(operator, lazy)
    read = {row for _, rows in lazy.reads for row in rows}
    if name not in ("iterative", "deep", "trained", "anchored"):
        assert read == own, (name, read)
    with processes.alone():
        expected = head.fit(operator, pairs)
    tolerance = 1e-6 if name == "anchored" else 1e-10  # rows of members that are optimised together round differently
    compare(name + " mean", found(fresh).mean, expected(fresh).mean, tolerance)
    compare(name + " variance", found(fresh).variance, expected(fresh).variance, 1e-6 if name == "iterative" else tolerance)
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
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
def test_two_processes_equal_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    start = f"import sys, runpy; sys.path.insert(0, {root!r}); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    command = [sys.executable, "-c", start, str(script)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(port)], stderr=subprocess.PIPE, text=True, cwd=root) for rank in range(2)
    ]
    try:
        messages = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, message in zip(ranks, messages, strict=True):
        assert process.returncode == 0, message
