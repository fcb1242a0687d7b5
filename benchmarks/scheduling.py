"""Jobs for worker processes: those of the first group first, and in a group the longest road first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """One call in a worker.

    Attributes:
        name: What readers call it.
        work: A function of `task` and of what it tells its progress to; picklable.
        task: Its argument.
        group: Its place in the order: lower numbers begin first.
        cost: Expected cost, in any unit that all jobs share.
        needs: Positions of the jobs that must have ended before.
    """

    name: str
    work: Callable[..., Any]
    task: Any
    group: int
    cost: float
    needs: tuple[int, ...] = ()


def run(
    jobs: Sequence[Job],
    pool: Executor,
    *,
    workers: int,
    ticks: Any,
    on_job: Callable[[Job, Any], None],
    on_group: Callable[[int, dict[int, Any]], None],
) -> None:
    """Run all jobs, as many at a time as there are workers.

    A worker that is free takes, of the jobs whose needs have ended, one of the first group that has any; there the one behind
    which most work waits. So a group ends early, and no worker idles while another group has work.

    Args:
        jobs: The jobs; needs come before what needs them.
        pool: Where they run.
        workers: How many of them at a time.
        ticks: Passed to every job as its second argument.
        on_job: Called with each job that has ended and its result.
        on_group: Called with each group that has ended, and the results of its jobs by position.
    """
    roads = _roads(jobs)
    waiting = sorted(range(len(jobs)), key=lambda number: (jobs[number].group, -roads[number], number))
    left = {group: sum(job.group == group for job in jobs) for group in {job.group for job in jobs}}
    results: dict[int, Any] = {}
    running: dict[Future[Any], int] = {}
    try:
        while waiting or running:
            ready = [number for number in waiting if set(jobs[number].needs) <= results.keys()]
            for number in ready[: workers - len(running)]:
                waiting.remove(number)
                running[pool.submit(jobs[number].work, jobs[number].task, ticks)] = number
            done = wait(running, return_when=FIRST_COMPLETED).done
            for future in sorted(done, key=running.__getitem__):
                number = running.pop(future)
                job, results[number] = jobs[number], future.result()
                on_job(job, results[number])
                left[job.group] -= 1
                if not left[job.group]:
                    on_group(job.group, {one: result for one, result in results.items() if jobs[one].group == job.group})
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _roads(jobs: Sequence[Job]) -> list[float]:
    """Cost of each job and of the longest chain of jobs that wait for it."""
    roads = [job.cost for job in jobs]
    for number in reversed(range(len(jobs))):
        for need in jobs[number].needs:
            roads[need] = max(roads[need], jobs[need].cost + roads[number])
    return roads
