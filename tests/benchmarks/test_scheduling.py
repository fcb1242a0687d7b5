from __future__ import annotations

import io
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from benchmarks.progress import Progress
from benchmarks.scheduling import Job, run


def jobs(begun: list[str], *, fails: str = "") -> list[Job]:
    """Two problems: operators a and b of the first, its posterior c that needs both, a short d; the second has e."""

    def work(task: str, ticks: Any) -> str:
        begun.append(task)
        if task == fails:
            raise RuntimeError(f"{task} failed")
        ticks.put(1.0)
        return task.upper()

    table = [("a", 0, 5.0, ()), ("b", 0, 2.0, ()), ("c", 0, 4.0, (0, 1)), ("d", 0, 5.5, ()), ("e", 1, 99.0, ())]
    return [Job(name, work, name, group, cost, needs) for name, group, cost, needs in table]


def outcome(*, workers: int, fails: str = "") -> tuple[list[str], list[tuple[int, dict[int, str]]], list[str]]:
    begun: list[str] = []
    groups: list[tuple[int, dict[int, str]]] = []
    ended: list[str] = []
    with ThreadPoolExecutor(workers) as pool:
        run(
            jobs(begun, fails=fails),
            pool,
            workers=workers,
            ticks=queue.Queue(),
            on_job=lambda job, result: ended.append(result),
            on_group=lambda group, results: groups.append((group, results)),
        )
    return begun, groups, ended


def test_the_first_group_ends_first_and_long_roads_begin() -> None:
    begun, groups, ended = outcome(workers=1)
    assert begun == ["a", "b", "d", "c", "e"]  # behind a lie 9, behind b 6, before d of 5.5; c may not begin before both
    assert groups == [(0, {0: "A", 1: "B", 3: "D", 2: "C"}), (1, {4: "E"})]
    assert ended == ["A", "B", "D", "C", "E"]


def test_no_worker_idles_while_another_group_has_work() -> None:
    barrier = threading.Barrier(2, timeout=10.0)

    def together(task: str, ticks: Any) -> None:
        barrier.wait()  # passes only if both run at the same time

    ended: list[str] = []
    several = [Job("first", together, "", 0, 1.0), Job("second", together, "", 1, 1.0)]
    with ThreadPoolExecutor(2) as pool:
        run(several, pool, workers=2, ticks=None, on_job=lambda job, _: ended.append(job.name), on_group=lambda *_: None)
    assert sorted(ended) == ["first", "second"]


def test_a_failure_ends_the_run() -> None:
    with pytest.raises(RuntimeError, match="b failed"):
        outcome(workers=1, fails="b")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_bar_that_never_passes_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    with Progress(2.0, stream=stream) as progress:
        progress.add(1.0)
        progress.finished("first")
        progress.say("a table")
        progress.add(5.0)
        assert progress.fraction == 1.0
    assert "100%" in stream.getvalue()
    assert "250%" not in stream.getvalue()
    assert capsys.readouterr().out == "a table\n"
