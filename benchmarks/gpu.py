"""Every test and benchmark that needs a GPU, in eight minutes at most, for machines that are rented by the minute.

Tests and benchmarks for which no time is left are reported as such; failed tests end the command with status 1.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import devices, sections, speed
from benchmarks.speed import PEERS

ROOT = Path(__file__).parent.parent
SECONDS = 480.0
"""Limit of the whole run."""
BENCHMARKS: dict[str, tuple[Callable[..., dict[str, Any]], float, tuple[str, ...]]] = {
    "speed": (speed.main, 200.0, ("fno", "deeponet", "growth")),
    "devices": (devices.main, 120.0, ("stages", "answers")),
}
"""Benchmarks with their expected seconds and the names of their tables."""

Row = dict[str, Any]


def main(*, mode: str, output: Path, device: str = "cuda") -> dict[str, Any]:
    """Run the benchmarks, then the tests in the remaining time.

    Raises:
        SystemExit: If a test fails.
    """
    start = time.perf_counter()

    @functools.cache
    def tables(name: str) -> dict[str, list[Row]]:
        run, expected, titles = BENCHMARKS[name]
        if time.perf_counter() - start + expected > SECONDS:
            return {title: [{"result": "no time left"}] for title in titles}
        return dict(run(mode=mode, output=output, device=device)["sections"])

    parts: dict[str, Callable[[], list[Row]]] = {
        f"{name}: {title}": lambda name=name, title=title: tables(name).get(title, [])  # type: ignore[misc]
        for name, (_, _, titles) in BENCHMARKS.items()
        for title in titles
    }
    parts["tests"] = lambda: results_of_tests(output / "gpu-tests.xml", seconds=SECONDS - (time.perf_counter() - start))
    notes = ["tests: number of tests marked gpu by result, their seconds, and the names of those that failed"]
    written = sections.write("gpu", parts, mode=mode, output=output, device=device, peers=PEERS, notes=notes)
    if any(row["result"] in ("failed", "no time left") for row in written["sections"]["tests"]):
        raise SystemExit(1)
    return written


def results_of_tests(report: Path, *, seconds: float, folder: Path = ROOT / "tests") -> list[Row]:
    """Run the tests marked gpu; rows of results.

    Args:
        report: File of pytest's report.
        seconds: Limit of their time.
        folder: Folder of the tests.
    """
    files = [str(path) for path in sorted(folder.rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", f"--junitxml={report}", *files]
    report.unlink(missing_ok=True)
    try:
        subprocess.run(command, cwd=ROOT, timeout=max(seconds, 0.0), check=False)
    except subprocess.TimeoutExpired:
        return [{"result": "no time left", "tests": None, "seconds": seconds, "names": ""}]
    results: dict[str, list[ET.Element]] = {}
    for case in ET.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        result = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        results.setdefault(result, []).append(case)
    rows: list[Row] = []
    for result, cases in results.items():
        seconds, names = sum(float(case.attrib["time"]) for case in cases), [case.attrib["name"] for case in cases]
        rows.append({"result": result, "tests": len(cases), "seconds": seconds})
        rows[-1]["names"] = ", ".join(names) if result == "failed" else ""
    return rows
