"""Work items with stored results, so that an interrupted benchmark continues."""

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
    """Commit of the code at the start of the benchmark."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in progress messages."""

    @property
    def settings(self) -> tuple[object, ...]:
        """Settings of the results beyond the fields of the dataclass."""
        return ()

    @abstractmethod
    def run(self, folder: Path) -> dict[str, Any]:
        """Compute the result."""

    def path(self, folder: Path) -> Path:
        """Path of the result; its name has all settings and the commit."""
        return folder / environment.file_name(self.name, self, *self.settings, suffix=".json")


Some = TypeVar("Some", bound=Unit)


def spread(todo: Sequence[Some], folder: Path, *, workers: int, notes: list[str] | None = None) -> dict[Some, dict[str, Any]]:
    """Results of all work items; those stored by an earlier run of this commit are marked `resumed`.

    Args:
        todo: The work items.
        folder: Folder of results.
        workers: Number of processes.
        notes: List to which a note on stored results is appended.
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
    """Run one work item on one thread, and store its result before use."""
    torch.set_num_threads(1)
    start, used = time.perf_counter(), time.process_time()
    result = unit.run(folder)
    result |= {"wall_seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - used}
    if environment.is_clean(unit.commit):
        environment.keep(result, unit.path(folder))
    return result


@contextlib.contextmanager
def noted(failed: list[dict[str, Any]], what: str) -> Iterator[None]:
    """Convert an error into a failed row, so that other work continues."""
    try:
        yield
    except (ProbneuralError, RuntimeError) as error:
        traceback.print_exc()
        failed.append({"what": what, "error": f"{type(error).__name__}: {error}"})


def failures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Notes on failed rows by problem, head and seed."""
    return [f"failed: {row['problem']}, {row['head']}, seed {row['seed']}, {row['what']}: {row['error'][:200]}" for row in rows]
