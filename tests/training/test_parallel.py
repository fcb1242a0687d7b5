"""Two processes that torchrun starts train as one does."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from probneural import processes
from probneural.errors import ArgumentError
from probneural.processes import alone
from probneural.training import DataOptions, files, fit
from tests.distributed import needs_distributed, run_by_torchrun
from tests.training.cases import built, data, same
from tests.training.ranks import CHUNK, SETTINGS

pytestmark = needs_distributed


def started(folder: Path, name: str, *, processes: int) -> subprocess.CompletedProcess[str]:
    """Run the program in so many processes."""
    folder.mkdir(exist_ok=True)
    return run_by_torchrun("tests.training.ranks", str(folder), name, processes=processes)


def facts(folder: Path, rank: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"facts-{rank}.json").read_text())
    return found


@pytest.mark.parametrize(
    ("name", "processes"),
    [
        ("plain", 2),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("plain", 4), ("accumulated", 2), ("lbfgs", 2), ("unrolled", 2), ("pushed forward", 2))
        ),
    ],
)
@pytest.mark.slow
def test_several_processes_equal_one(name: str, processes: int, tmp_path: Path) -> None:
    """20 steps in float64; uneven shares, and of four processes one that has no pair of the last batch; equal units.

    LBFGS takes 20 iterations a step, and each multiplies what rounding has left.
    """
    tolerance = 1e-6 if name == "lbfgs" else 1e-10
    for folder, count in ((tmp_path / "one", 1), (tmp_path / "many", processes)):
        done = started(folder, name, processes=count)
        assert done.returncode == 0, done.stderr
    expected = files.read(tmp_path / "one" / "weights-0")[0]
    whole, first = facts(tmp_path / "one", 0), facts(tmp_path / "many", 0)
    assert (whole["world"], first["world"]) == (1, processes)
    for rank in range(processes):
        found = files.read(tmp_path / "many" / f"weights-{rank}")[0]
        for key, value in expected.items():
            assert float((found[key] - value).abs().max()) <= (0.0 if "normalizer" in key else tolerance), key
        torch.testing.assert_close(facts(tmp_path / "many", rank)["losses"], whole["losses"], rtol=tolerance, atol=0.0)
        assert facts(tmp_path / "many", rank)["told"] == (rank == 0)
    # Every pair is read once an epoch, by one process, and those of the training part once more for the record.
    counts = sum((Counter(facts(tmp_path / "many", rank)["read"]) for rank in range(processes)), Counter())
    assert sorted(counts.values()) == [SETTINGS["epochs"]] * 3 + [SETTINGS["epochs"] + 1] * 23
    # For the units, sides are read apart from pairs: each function of the training part once, by one process.
    for side in ("inputs", "outputs"):
        parts = [facts(tmp_path / "many", rank)["read for units"][side] for rank in range(processes)]
        assert sorted(itertools.chain(*parts)) == sorted(whole["read for units"][side])
        assert len(set(whole["read for units"][side])) == len(whole["read for units"][side]) == 23
        assert all(0 < len(part) <= CHUNK * math.ceil(math.ceil(23 / CHUNK) / processes) for part in parts)


@pytest.mark.slow
def test_a_killed_process_ends_all_and_the_run_resumes(tmp_path: Path) -> None:
    whole = started(tmp_path / "whole", "die", processes=2)
    assert whole.returncode == 0, whole.stderr
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "kill").touch()
    start = time.monotonic()
    done = started(folder, "die", processes=2)
    assert time.monotonic() - start < 60.0
    assert done.returncode != 0
    assert "exitcode: -9" in done.stderr or "exitcode  : -9" in done.stderr, done.stderr
    assert files.read(folder / "run")[1]["step"] > 0
    again = started(folder, "die", processes=2)
    assert again.returncode == 0, again.stderr
    assert same(files.read(folder / "weights")[0], files.read(tmp_path / "whole" / "weights")[0])


def test_a_program_of_its_own_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    processes.join()
    assert not torch.distributed.is_initialized()
    assert processes.own_device(torch.device("cuda")) == torch.device("cuda")
    assert processes.first_says(True)
    assert not processes.first_says(False)


def test_who_is_alone_joins_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """As members of an ensemble are, in workers that have the environment of who has started them."""
    joined = []
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *arguments, **options: joined.append(arguments))
    monkeypatch.setattr(processes.atexit, "register", lambda function: None)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with alone():
        processes.join()
    assert not joined
    processes.join()
    assert len(joined) == 1


@pytest.mark.bad_input
def test_a_batch_has_a_pair_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "world_size", lambda: 4)
    with pytest.raises(ArgumentError, match="an integer of at least 4 as batch_size"):
        fit(built("FNO"), data(), data=DataOptions(batch_size=3))
