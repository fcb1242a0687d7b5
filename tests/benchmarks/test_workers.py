"""Workers of benchmarks: they work, and do not outlive a benchmark that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.workers import spawned

KILLED = """
import os
import time
from benchmarks.workers import spawned

if __name__ == "__main__":
    with spawned(1) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600).result()
"""


def test_they_work() -> None:
    with spawned(1) as pool:
        assert pool.submit(pow, 2, 5).result() == 32


@pytest.mark.skipif(os.name != "posix", reason="kills by a signal")
def test_they_end_with_a_benchmark_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    }
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        os.kill(worker, 0)  # it is there
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    for _ in range(100):
        if not _is_running(worker):
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker went on for ten seconds")


def _is_running(process: int) -> bool:
    """Whether it is there and no zombie, which nobody may collect."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{process}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
