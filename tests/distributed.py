"""Programs that several processes run together, over gloo on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
needs_distributed = pytest.mark.skipif(not torch.distributed.is_available(), reason="this torch has no distributed")
_BEGIN = """
import sys
import torch
import torch.distributed as dist

torch.set_num_threads(1)
rank, world = int(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{sys.argv[3]}", rank=rank, world_size=world)
"""
_END = "\ndist.destroy_process_group()\n"


def run_in_ranks(script: str, folder: Path, *, processes: int = 2) -> None:
    """Run a script in so many processes of one group, and fail if one of them does.

    Args:
        script: Knows `rank`, `torch` and `dist`, and finds modules of `tests`.
        folder: Where it is written.
        processes: How many.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = folder / "rank.py"
    path.write_text(_BEGIN + script + _END)
    start = f"import sys, runpy; sys.path.insert(0, {str(ROOT)!r}); sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0])"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", start, str(path), str(rank), str(processes), str(port)],
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(processes)
    ]
    try:
        messages = [process.communicate(timeout=300)[1] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    for process, message in zip(ranks, messages, strict=True):
        assert process.returncode == 0, message


def run_by_torchrun(module: str, *arguments: str, processes: int) -> subprocess.CompletedProcess[str]:
    """Run a module as torchrun does, alone if there is one process."""
    runner = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "--module"] if processes > 1 else []
    return subprocess.run(
        [sys.executable, "-m", *runner, module, *arguments],
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
