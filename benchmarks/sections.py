"""Benchmarks with several small tables: run each part, print it, and write one JSON file."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import environment, report
from benchmarks.fingerprint import fingerprint
from benchmarks.workers import spawned

Row = dict[str, Any]
Some = TypeVar("Some")
RESUMED = "were finished by an earlier run of this commit"
"""Note on results of earlier runs, whose minutes are not counted; tables repeat it."""


def write(
    name: str,
    parts: Mapping[str, Callable[[], Sequence[Row]]],
    *,
    mode: str,
    output: Path,
    notes: Sequence[str] = (),
    peers: Sequence[str] = (),
    commit: str | None = None,
    chosen: Mapping[str, str | int | None] = {},
    seeds: int | None = None,
    device: str = "cpu",
) -> dict[str, Any]:
    """Run every part, print its table, and write all tables with their provenance.

    Args:
        name: Name of the benchmark.
        parts: Functions that return the rows of each table, by title.
        mode: `default` or `small`.
        output: Folder of NAME.json; the name of a partial run has its options.
        notes: Notes for readers.
        peers: Compared distributions, whose versions are recorded.
        commit: Commit at the start of the run; by default the present one.
        chosen: Values of the options that select a part of the benchmark, by name; None if not given.
        seeds: Value of `--seeds`.
        device: Value of `--device`.
    """
    start = time.perf_counter()
    sections: dict[str, list[Row]] = {}
    for title, make in parts.items():
        rows = list(make())
        headings = list(dict.fromkeys(key for row in rows for key in row))
        sections[title] = [{heading: row.get(heading) for heading in headings} for row in rows]
        print(f"\n{title}\n{report.terminal_table(sections[title])}", flush=True)
    flags = "" if mode == "default" else f" --{mode}"
    said = {option: f'"{value}"' if option == "problem" else value for option, value in chosen.items() if value is not None}
    flags += "".join(f" --{option} {value}" for option, value in said.items())
    flags += f" --seeds {seeds}" if seeds else ""
    flags += f" --device {device}" if device != "cpu" else ""
    module = name.replace("-", "_")
    is_study = (Path(__file__).parent / "studies" / f"{module}.py").exists()
    module = f"studies.{module}" if is_study else module
    results = {
        "benchmark": name,
        "command": f"python -m benchmarks{f'.{module}' if is_study else f' {name}'}{flags}",
        "mode": mode,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": environment.machine(device),
        "versions": environment.versions() | environment.installed(peers),
        "commit": commit or environment.commit(),
        "code": fingerprint(f"benchmarks.{module}"),
        "wall_seconds": round(time.perf_counter() - start, 1),
        "notes": list(notes),
        "sections": sections,
    }
    path = output / f"{stem(name, chosen=chosen, device=device)}.json"
    environment.write_json(results, path)
    print(f"\n{path}\n{results['wall_seconds']:.0f} s")
    return results


def made_of(
    run: Callable[[], Some], parts: Mapping[str, Callable[[Some], Sequence[Row]]]
) -> dict[str, Callable[[], Sequence[Row]]]:
    """Parts computed from one shared run, which the first part starts.

    Examples:
        >>> parts = made_of(lambda: print("once") or [1, 2], {"sum": lambda run: [{"of": sum(run)}], "none": lambda run: []})
        >>> [make() for make in parts.values()]
        once
        [[{'of': 3}], []]
    """
    results = functools.cache(run)
    return {title: functools.partial(lambda make: make(results()), make) for title, make in parts.items()}


def repeated(work: Callable[..., Any], tasks: Sequence[Sequence[tuple[Any, ...]]], *, workers: int) -> list[list[Any]]:
    """Results of a function for the repetitions of each task, from single-threaded processes, in the order of the tasks.

    Args:
        work: A module-level function.
        tasks: Arguments of the repetitions of each task.
        workers: Number of processes.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    with spawned(workers) as pool:
        futures = [[pool.submit(work, *arguments) for arguments in repetitions] for repetitions in tasks]
        return [[future.result() for future in own] for own in futures]


def stem(name: str, *, chosen: Mapping[str, str | int | None] = {}, device: str = "cpu") -> str:
    """Name of a benchmark's files without suffix: selected values in words, numbers with their option.

    Examples:
        >>> stem("heads", chosen={"problem": "Burgers, viscosity 0.01", "functions": 25}), stem("speed", device="cuda")
        ('heads-burgers-viscosity-0-01-25-functions', 'speed-cuda')
    """
    words = [f"{value} {option}" if isinstance(value, int) else value for option, value in chosen.items() if value is not None]
    words += [] if device == "cpu" else [device]
    return "-".join([name, *(re.sub(r"[^a-z0-9]+", "-", one.lower()) for one in words)])
