"""Scheduling of jobs on worker processes: by group, and within a group by the longest chain of jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Job:
    """One call in a worker.

    Attributes:
        name: Name for readers.
        work: Picklable function of `task` and of the target of progress.
        task: Argument of `work`.
        group: Order of groups: lower numbers start first.
        cost: Expected cost, in a common unit.
        needs: Positions of the jobs that must end before.
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
    """Run all jobs, one per worker at a time.

    A free worker takes a job from the first group with jobs whose needs have ended, and in it the job with the most
    dependent work. So groups end early, and no worker idles while another group has work.

    Args:
        jobs: The jobs, each after its needs.
        pool: Executor of the jobs.
        workers: Number of simultaneous jobs.
        ticks: Second argument of every job.
        on_job: Called with each finished job and its result.
        on_group: Called with each finished group and the results of its jobs by position.
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
    """Cost of each job plus the longest chain of jobs that depend on it."""
    roads = [job.cost for job in jobs]
    for number in reversed(range(len(jobs))):
        for need in jobs[number].needs:
            roads[need] = max(roads[need], jobs[need].cost + roads[number])
    return roads
