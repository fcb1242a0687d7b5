"""Numbers on the pages come from committed results: marks like `<!-- results: times -->` become tables and sentences."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import tables  # noqa: E402
from benchmarks.report.matrix import matrix as coloured_matrix  # noqa: E402

_MARK = re.compile(r"<!-- results: ([a-z ]+) -->")


def on_page_markdown(markdown: str, *, page: Page | None = None, **_: Any) -> str:
    """Fill the marks of a page; say which of its tables are older than the code that they measure."""
    if page is not None and page.file.src_uri.startswith("benchmarks/"):
        page.meta["hide"] = ["toc"]  # wide tables take its column
    older = tables.older_results(markdown)
    if older:
        title, _, rest = markdown.partition("\n")
        verb = "were" if len(older) > 1 else "was"
        note = f'!!! note "Older than the code"\n    The code has changed since {", ".join(older)} {verb} measured.'
        markdown = f"{title}\n\n{note}\n{rest}"
    return filled(markdown)


def filled(markdown: str) -> str:
    """Replace every mark by what it names; an unknown name is a KeyError."""
    return _MARK.sub(lambda match: FILLERS[match[1]](), markdown)


def _exact() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / "exact-full.json").read_text(encoding="utf-8"))


def _source(results: dict[str, Any]) -> str:
    facts = results["machine"]
    return f"`{results['command']}` on {facts['cores']} cores ({facts['processor']}), commit {results['commit']}"


def times() -> str:
    """Seconds to train an operator, to fit a head, and to calibrate it: the range over the problems."""
    results = _exact()
    seconds: dict[tuple[int, str, str], list[tuple[float, float, float]]] = {}
    for run in results["runs"]:
        dimension = len(run["evaluations"][0]["resolution"])
        head = run["head_fit"]
        row = (run["train"].get("seconds", 0.0), head["seconds"], head["calibration_seconds"])
        seconds.setdefault((dimension, run["operator"], run["head"]), []).append(row)
    lines = [
        "| dimensions | operator | head | training (s) | fitting the head (s) | calibration (s) |",
        "|--:|---|---|--:|--:|--:|",
    ]
    for (dimension, operator, head), rows in sorted(seconds.items(), key=lambda item: item[0][0]):
        cells = [_range(column) for column in zip(*rows, strict=True)]
        lines.append(f"| {dimension} | {operator} | {head} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", f"From the fastest problem to the slowest: {_source(results)}."])


def chains() -> str:
    """What posteriors over all layers cost, in epochs of their operators."""
    path = ROOT / "benchmarks" / "studies" / "chains.json"
    results = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        "| operator and structure | parameters | to fit; the first two also to calibrate and score (epochs) |",
        "|---|--:|--:|",
    ]
    lines += [f"| {row['chain']} | {row['parameters']} | {row['in epochs']} |" for row in results["sections"]["chains"]]
    return "\n".join([*lines, "", f"Medians, the least and the largest: {_source(results)}."])


def _range(numbers: tuple[float, ...]) -> str:
    low, high = f"{min(numbers):.2g}", f"{max(numbers):.2g}"
    low, high = (f"{float(number):g}" for number in (low, high))
    return "-" if max(numbers) == 0 else low if low == high else f"{low} to {high}"


def _runs(**wanted: str) -> Iterator[dict[str, Any]]:
    return (run for run in _exact()["runs"] if all(run[name] == value for name, value in wanted.items()))


def errors() -> str:
    """The errors of an ensemble of FNOs and of linear regression, on a finer grid."""

    def error(**wanted: str) -> float:
        (run,) = _runs(problem="Burgers, viscosity 0.01", **wanted)
        return next(each for each in run["evaluations"] if each["on"] == "finer grid")["scores"]["relative_l2"]

    ours, linear = error(operator="FNO", head="ensemble of 4"), error(operator="linear regression")
    return f"relative L2 error {ours:.4f} where linear regression has {linear:.2f}"


def intervals() -> str:
    """Coverage of intervals of averages, by the last layer of an FNO."""
    covered = [
        run["evaluations"][0]["intervals"]["averages of quarters"]["0.9"]
        for run in _runs(operator="FNO", head="last-layer Laplace")
        if "averages of quarters" in run["evaluations"][0].get("intervals", {})
    ]
    return f"{min(covered):.2f} to {max(covered):.2f} of the truths on {len(covered)} problems"


def covered() -> tuple[str, str]:
    """What the intervals of `examples/why_joint.py` cover: joint ones, and those that take points as independent."""
    printed = json.loads((ROOT / "docs" / "gallery" / "outputs.json").read_text(encoding="utf-8"))["why_joint"]["printed"]
    found = dict(re.findall(r"^(.*?) *: 90 % intervals cover ([\d.]+)", printed, flags=re.MULTILINE))
    joint, independent = (f"{100 * float(found[name]):.1f} %" for name in ("joint", "points independent"))
    return joint, independent


def joint() -> str:
    """The same as a sentence."""
    return "the truth for {} of 400 test functions, and for {} if the same points are taken as independent".format(*covered())


def matrix() -> str:
    """The matrix of the main benchmark's report: problem by method, with its colours."""
    return re.sub(r'<a href="#[^"]*">(.*?)</a>', r"\1", coloured_matrix(_exact()))


FILLERS: dict[str, Callable[[], str]] = {
    "times": times,
    "chains": chains,
    "errors": errors,
    "intervals": intervals,
    "joint": joint,
    "matrix": matrix,
}
