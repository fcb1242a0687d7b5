"""Units of work that are kept in files, so that a benchmark that was cut off goes on where it was."""

from __future__ import annotations

import contextlib
import os
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm.auto import tqdm

from benchmarks import environment, sections
from benchmarks.workers import spawned
from probneural.errors import ProbneuralError


class Unit(ABC):
    """A work item of one process, abstract; subclasses are frozen dataclasses, so hashable and picklable."""

    commit: str
    """Of the code, taken once per benchmark: it may change while a long one goes on."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in progress messages."""

    @property
    def settings(self) -> tuple[object, ...]:
        """What results depend on beyond the dataclass's own fields."""
        return ()

    @abstractmethod
    def run(self, folder: Path) -> dict[str, Any]:
        """Compute the result."""

    def path(self, folder: Path) -> Path:
        """The file of its result; the name depends on all that the result does, the commit included."""
        return folder / environment.file_name(self.name, self, *self.settings, suffix=".json")


Some = TypeVar("Some", bound=Unit)


def spread(todo: Sequence[Some], folder: Path, *, workers: int, notes: list[str] | None = None) -> dict[Some, dict[str, Any]]:
    """Results of all units, those of an earlier run of this very commit included; `resumed` says which they are.

    Args:
        todo: The units.
        folder: Where results are kept.
        workers: Number of processes.
        notes: Where to note those that were finished before, if there are any.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    results: dict[Some, dict[str, Any]] = {}
    for unit in todo:
        if environment.is_clean(unit.commit) and unit.path(folder).exists():
            results[unit] = environment.kept(unit.path(folder)) | {"resumed": True}
    if notes is not None and results:
        minutes = sum(found["wall_seconds"] for found in results.values()) / 60
        notes.append(
            f"{len(results)} of {len(todo)} units {sections.RESUMED}: {minutes:.1f} minutes of one thread that are not in "
            "those of the run"
        )
    remaining = [unit for unit in todo if unit not in results]
    if workers == 1:
        for number, unit in enumerate(remaining, start=1):
            results[unit] = work(unit, folder)
            print(f"{number} of {len(remaining)}: {unit.name}, {results[unit]['processor_seconds']:.0f} s", flush=True)
        return {unit: results[unit] for unit in todo}
    with (
        tqdm(total=len(todo), initial=len(results), unit="unit") as bar,
        spawned(workers) as pool,
    ):
        futures = {pool.submit(work, unit, folder): unit for unit in remaining}
        try:
            for future in as_completed(futures):
                results[futures[future]] = future.result()
                bar.set_postfix_str(futures[future].name)
                bar.update()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return {unit: results[unit] for unit in todo}


def work(unit: Unit, folder: Path) -> dict[str, Any]:
    """Run one unit on one thread, and keep its result before it is used."""
    torch.set_num_threads(1)
    start, used = time.perf_counter(), time.process_time()
    result = unit.run(folder)
    result |= {"wall_seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - used}
    if environment.is_clean(unit.commit):
        environment.keep(result, unit.path(folder))
    return result


@contextlib.contextmanager
def noted(failed: list[dict[str, Any]], what: str) -> Iterator[None]:
    """Turn an error into a row that says what it ended: it must not cost the work on all else."""
    try:
        yield
    except (ProbneuralError, RuntimeError) as error:
        traceback.print_exc()
        failed.append({"what": what, "error": f"{type(error).__name__}: {error}"})


def failures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A note for each such row, of a problem, head and seed."""
    return [f"failed: {row['problem']}, {row['head']}, seed {row['seed']}, {row['what']}: {row['error'][:200]}" for row in rows]
