"""One process at a time works in a folder, and the lock of a dead one is free."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from probneural import runs
from probneural.errors import FileError, UnsupportedError
from probneural.runs.folder import LOCK, locked
from tests.runs.files import cheap, written

HOLD = """
import sys, time
from pathlib import Path
from probneural.runs.folder import locked
with locked(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(600)
"""


def test_another_process_is_refused_until_it_dies(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"in\n"
        with pytest.raises(FileError, match=r"no other process at work in .*run; got one that holds .*\.lock; wait for it"):
            runs.train(cheap(written(tmp_path)), folder, show_progress=False)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert runs.train(cheap(written(tmp_path)), folder, show_progress=False).epochs == 2


def test_the_same_process_is_another_one_too(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FileError, match="no other process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_the_target_of_a_link_is_not_locked(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    (tmp_path / LOCK).symlink_to(target)
    with pytest.raises(FileError, match="a regular file"), locked(tmp_path):
        pass
    assert target.read_text() == "precious"


def test_an_error_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("step", [runs.train, runs.report])
def test_several_processes_of_torchrun_are_refused(
    step: Callable[..., object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a folder, in each of them."""

    def wait(*arguments: object, **options: object) -> None:
        raise AssertionError("this process waits for the others")

    monkeypatch.setattr(torch.distributed, "init_process_group", wait)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UnsupportedError, match="1 process for a run and its folder"):
        step(cheap(written(tmp_path)), tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()
