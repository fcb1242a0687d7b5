"""One process at a time works in a folder: others are told who, and what a dead one has left is taken over."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from probneural import runs
from probneural.errors import FileError, UnsupportedError
from probneural.runs.locking import LOCK, locked
from tests.runs.files import cheap, written

HOLD = """
import sys, time
from pathlib import Path
from probneural.runs.locking import locked
with locked(Path(sys.argv[1])):
    print("in", flush=True)
    time.sleep(600)
"""


def test_another_process_is_named_and_a_dead_one_is_taken_over(tmp_path: Path) -> None:
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
        with pytest.raises(FileError, match=rf"at work in .*run; got process {holder.pid} on {socket.gethostname()}"):
            runs.train(cheap(written(tmp_path)), folder, show_progress=False)
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
    assert json.loads((folder / LOCK).read_text()) == {"pid": holder.pid, "host": socket.gethostname()}
    assert runs.train(cheap(written(tmp_path)), folder, show_progress=False).epochs == 2
    assert not (folder / LOCK).exists()


def test_the_same_process_is_another_one_too(tmp_path: Path) -> None:
    with locked(tmp_path):
        with pytest.raises(FileError, match=f"process {os.getpid()} on"), locked(tmp_path):
            pass
        assert (tmp_path / LOCK).exists()
    with locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def test_locks_of_other_hosts_stay(tmp_path: Path) -> None:
    """Where a file system does not pass them on, nobody here can tell whether that process lives."""
    (tmp_path / LOCK).write_text(json.dumps({"pid": 7, "host": "elsewhere"}))
    with pytest.raises(FileError, match=r"process 7 on elsewhere; if it has ended, remove .*\.lock"), locked(tmp_path):
        pass
    (tmp_path / LOCK).write_text("no JSON")
    with locked(tmp_path):
        pass


@pytest.mark.parametrize("make", [Path.symlink_to, lambda path, target: os.mkfifo(path)], ids=["link", "pipe"])
def test_a_lock_that_is_no_regular_file_is_refused(make: Callable[[Path, Path], object], tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    make(tmp_path / LOCK, target)
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
    with pytest.raises(UnsupportedError, match="one of 2, as torchrun starts them; leave torchrun out; or call pn.fit"):
        step(cheap(written(tmp_path)), tmp_path / "run", show_progress=False)
    assert not (tmp_path / "run").exists()
