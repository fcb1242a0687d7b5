"""Tables in documents, generated from committed results: between `<!-- table: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import environment, exact, heads, report, sections
from benchmarks.fingerprint import fingerprint
from benchmarks.sections import Row

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
PIVOTS = {"errors": "rel. L2", "densities": "NLL", "deviations": "chi2", "twice": "twice as long"}
"""Tables of one score of `exact` with a row per problem and a column per head: name and heading of the score."""
_MARK = re.compile(
    r"(<!-- table: ([a-z0-9_*-]+)(?:/([A-Za-z* -]+?))?(?: on ([a-z ]+))?(, default problems)?((?:; [a-z]+: [^;]+?)*) -->\n).*?"
    r"(<!-- end -->)",
    re.DOTALL,
)


def documents() -> list[Path]:
    """The README and the pages with tables."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in pages if "<!-- table: " in path.read_text(encoding="utf-8")]


def update() -> None:
    """Rewrite every table of every document."""
    for path in documents():
        environment.write_text(rendered(path.read_text(encoding="utf-8")), path)


def rendered(text: str) -> str:
    """Return a document with its tables generated from the committed results.

    A mark `<!-- table: laplace/ranks -->` stands for the table `ranks` of `results/laplace.json`, `<!-- table: exact-full -->`
    for all rows of `results/exact-full.json`, `<!-- table: exact-full on finer grid -->` for those evaluated there, and
    `<!-- table: exact-full on finer grid, default problems -->` for the problems that the default run has.
    `<!-- table: exact-full/errors on finer grid -->` puts one score of `PIVOTS` side by side for all heads,
    `<!-- table: heads/coverage on shifts -->` a score of `heads` on shifts. A star stands for several files or sections.
    Options follow the name: `; rows: head = a or b | seed = 1` selects rows, `; columns: a | b` columns, and
    `; pivot: head | scale by claim = met` writes a row for each head and scale, and a column for each claim.
    """
    return _MARK.sub(_table, text)


def sources(text: str) -> list[Path]:
    """Files of results of a document's tables, in the order of the tables."""
    return list(dict.fromkeys(path for match in _MARK.finditer(text) for path in _files(match[2])))


def older_results(text: str) -> list[str]:
    """Files, commits and days of results that were measured with other code than the present."""
    older = []
    for path in sources(text):
        results = json.loads(path.read_text(encoding="utf-8"))
        if results.get("code") != fingerprint(f"benchmarks.{results['benchmark'].replace('-', '_')}"):
            older.append(f"`{path.name}` (commit {results['commit']}, {results['created'][:10]})")
    return older


def _files(name: str) -> list[Path]:
    return sorted(RESULTS.glob(f"{name}.json")) or [RESULTS / f"{name}.json"]


def _table(match: re.Match[str]) -> str:
    opening, name, section, place, default, options, closing = match.groups()
    found = [json.loads(path.read_text(encoding="utf-8")) for path in _files(name)]
    for results in found:
        if "modified" in results["commit"]:
            raise ValueError(
                f"{name}.json comes from a modified checkout ({results['commit']}): commit, run again, copy it anew"
            )
    rows = [row for results in found for row in _rows(results, section, place, has_default_problems=bool(default))]
    for option in filter(None, options.split("; ")):
        kind, _, argument = option.partition(": ")
        rows = OPTIONS[kind](rows, argument.strip())
    return f"{opening}{report.markdown_table(rows)}\n\n{_source(found)}\n{closing}"


def _rows(results: dict[str, Any], section: str | None, place: str | None, *, has_default_problems: bool) -> list[Row]:
    """Rows of a section of one file of results."""
    if section is not None and place == "shifts":
        rows = heads.side_by_side(results["sections"]["scores"], name=section, shifted=True)
        return [{key: value for key, value in row.items() if key not in ("operator", "regime")} for row in rows]
    if "sections" in results:
        if section != "*":
            return results["sections"][section]
        return [{"problem": title} | row for title, rows in results["sections"].items() for row in rows]
    default_names = {case.source.name for case in exact.chosen("default")}
    runs = [run for run in results["runs"] if not has_default_problems or run["problem"] in default_names]
    chosen = {**results, "runs": runs}
    rows = report.rows(chosen, is_brief=section not in PIVOTS)
    rows = [row for row in rows if place is None or row.get("on", place) == place]
    return report.side_by_side(rows, PIVOTS[section]) if section in PIVOTS else rows


def _source(found: list[dict[str, Any]]) -> str:
    """Command, hardware, version, commits and minutes of one run, or of one for each problem."""
    results = found[0]
    facts, command = results["machine"], results["command"]
    if len(found) > 1:
        command = re.sub(r'--problem ".*"', "--problem ...", command)
    commits = list(dict.fromkeys(each["commit"] for each in found))
    accelerator = f"one {facts['accelerator']} and " if "accelerator" in facts else ""
    minutes = sum(each["wall_seconds"] for each in found) / 60
    source = (
        f"`{command}` on {accelerator}{facts['cores']} cores ({facts['processor']}), torch {results['versions']['torch']}, "
        f"commit{'s' * (len(commits) > 1)} {', '.join(commits)}, {minutes:.1f} minutes."
    )
    return source + "".join(f" {note}." for note in results["notes"] if sections.RESUMED in note and len(found) == 1)


def _selected(rows: list[Row], conditions: str) -> list[Row]:
    """Rows with one of the values of every condition `key = value or value`."""
    wanted = {key: values.split(" or ") for key, _, values in (one.partition(" = ") for one in conditions.split(" | "))}
    return [row for row in rows if all(str(row.get(key)) in values for key, values in wanted.items())]


def _narrowed(rows: list[Row], columns: str) -> list[Row]:
    return [{name: row[name] for name in columns.split(" | ")} for row in rows]


def _pivoted(rows: list[Row], layout: str) -> list[Row]:
    """One row per value of `a | b` in `a | b by c = d`, with the value of `d` for each value of `c`."""
    keys, _, rest = layout.partition(" by ")
    column, _, value = rest.partition(" = ")
    table: dict[tuple[Any, ...], Row] = {}
    names = dict.fromkeys(str(row[column]) for row in rows)
    for row in rows:
        key = {name: row[name] for name in keys.split(" | ")}
        table.setdefault(tuple(key.values()), key | dict.fromkeys(names))[str(row[column])] = row[value]
    return list(table.values())


OPTIONS: dict[str, Callable[[list[Row], str], list[Row]]] = {"rows": _selected, "columns": _narrowed, "pivot": _pivoted}
"""Options after the name in a mark."""
