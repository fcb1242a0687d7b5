"""Tables and a self-contained HTML page from a benchmark's results."""

from __future__ import annotations

import base64
import math
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.environment import write_text
from probneural.errors import DataError

Row = dict[str, Any]
"""A line of a table: heading to text or number, None where there is none."""


@dataclass(frozen=True)
class Column:
    """One number of an evaluation.

    Args:
        heading: What stands above it.
        paths: Where it is found in the evaluation, the first that exists counts; dots go down.
        unit: Its unit; "field" is that of the output functions.
        meaning: What it says and which values are good.
        is_brief: Whether it belongs into a terminal.
    """

    heading: str
    paths: tuple[str, ...]
    unit: str
    meaning: str
    is_brief: bool = True


COLUMNS = (
    Column("rel. L2", ("scores.relative_l2",), "1", "‖mean - truth‖ / ‖truth‖ per function, averaged; 0 is exact"),
    Column("RMSE", ("scores.rmse",), "field", "root mean squared error of the mean", is_brief=False),
    Column("CRPS", ("scores.crps",), "field", "continuous ranked probability score of single values; lower is better"),
    Column("NLL", ("scores.nll",), "nat per value", "negative log density of single values; lower is better"),
    Column("joint NLL", ("scores.joint_nll",), "nat per value", "negative log density of whole functions; lower is better"),
    Column("coverage", ("scores.coverage",), "1", "share of values inside their central interval; should be the level"),
    Column(
        "whole cov.",
        ("scores.simultaneous_coverage",),
        "1",
        "share of functions inside the posterior's own band everywhere; should be the level",
    ),
    Column(
        "cal. error", ("scores.calibration_error",), "1", "mean miss in coverage over the levels .05 to .95; 0 is calibrated"
    ),
    Column(
        "width",
        ("scores.interval_width",),
        "field",
        "mean width of the central intervals; narrower is better where coverage is right",
        is_brief=False,
    ),
    Column("chi2", ("scores.chi2",), "1", "mean squared error over stated variance; 1 is honest, above is over-confident"),
    Column("energy", ("scores.energy",), "field", "energy score of whole functions; lower is better", is_brief=False),
    Column(
        "n-MeRCI",
        ("scores.n_merci",),
        "1",
        "0: the sd follows the errors; 1: no better than one number everywhere",
        is_brief=False,
    ),
    Column(
        "rank across",
        ("scores.rank_across",),
        "1",
        "rank correlation of sd and error between functions; compare with the attainable one",
        is_brief=False,
    ),
    Column(
        "attainable across",
        ("scores.rank_across_attainable",),
        "1",
        "what it would be on average if errors were as stated",
        is_brief=False,
    ),
    Column(
        "rank within",
        ("scores.rank_within",),
        "1",
        "rank correlation of sd and error between the points of a function, averaged over functions",
        is_brief=False,
    ),
    Column(
        "attainable within",
        ("scores.rank_within_attainable",),
        "1",
        "what it would be on average if errors were as stated",
        is_brief=False,
    ),
    Column("raw chi2", ("raw.chi2",), "1", "chi2 of the head before it was scaled", is_brief=False),
    Column("scale", ("raw.scale",), "1", "factor on the field's own variances, the largest over channels", is_brief=False),
    Column(
        "unexplained",
        ("raw.noise_share",),
        "1",
        "share of the predictive variance that the head calls noise: what its operator cannot express",
        is_brief=False,
    ),
    Column(
        "band cov.",
        ("band_coverage", "bands.coverage"),
        "1",
        "share of functions inside conformal bands that were each calibrated on functions of their own",
    ),
    Column("promised", ("bands.expected",), "1", "coverage that the bands promise, for the size of their sets", is_brief=False),
    Column(
        "band ratio",
        ("bands.width_ratio",),
        "1",
        "mean width of the conformal bands over that of bands of one width everywhere; below 1, the sd knows where errors are",
    ),
    Column("band width", ("band_width", "bands.width"), "field", "mean width of the conformal bands", is_brief=False),
    Column(
        "const. width",
        ("constant_band_width", "bands.constant_width"),
        "field",
        "mean width of conformal bands of one width everywhere, for comparison",
        is_brief=False,
    ),
)


def write_report(
    results: Mapping[str, Any], figures: Mapping[str, Mapping[str, str | bytes]], path: str | os.PathLike[str]
) -> None:
    """Write a summary page, and beside it in `problems/` one page per problem; they need no network and no fonts.

    Args:
        results: What the benchmark wrote to JSON, `runs` with their `evaluations` above all.
        figures: Per problem, caption to a PNG image (bytes) or an SVG one (text).
        path: The summary page; every page is written atomically, the summary last.

    Raises:
        DataError: If runs, or what identifies them, are missing, or a figure is neither PNG nor SVG.
    """
    _check(results)
    runs = results["runs"]
    target = Path(path)
    names = list(dict.fromkeys([run["problem"] for run in runs] + list(figures)))
    files = {name: f"problems/{number:02d}-{_slug(name)}.html" for number, name in enumerate(names, start=1)}
    title = f"probneural benchmark: {results.get('benchmark', 'results')}"
    pages = {}
    for name, file in files.items():
        own = {**results, "runs": [run for run in runs if run["problem"] == name]}
        if results.get("command") and "--problem" not in results["command"] and "--data" not in results["command"]:
            own["command"] = f'{results["command"]} --problem "{name}"'
        body = f"<h2>Scores</h2>{_summary(own)}{_section(name, own['runs'], figures.get(name, {}))}"
        home = f'<a href="../{escape(target.name)}">All problems</a>'
        pages[target.parent / file] = _page(own, name, links=home, about="", body=body)
    links = " · ".join(f'<a href="{escape(file)}">{escape(name)}</a>' for name, file in files.items())
    pages[target] = _page(results, title, links=links, about=_ABOUT, body=f"<h2>Summary</h2>{_summary(results)}")
    for place, page in pages.items():
        write_text(page, place)


def write_tables(
    results: Mapping[str, Any], *, title: str, figures: Mapping[str, str | bytes], path: str | os.PathLike[str]
) -> None:
    """Write one page of a benchmark whose results are `sections`: figures, a sortable table per section, and notes.

    Args:
        results: What the benchmark wrote to JSON.
        title: Of the page.
        figures: Caption to a PNG image (bytes) or an SVG one (text).
        path: The page, written atomically.

    Raises:
        DataError: If a figure is neither PNG nor SVG.
    """
    pictures = "".join(_figure(caption, image, title) for caption, image in figures.items())
    tables = "".join(f"<h2>{escape(name)}</h2>{_html_table(rows)}" for name, rows in results["sections"].items())
    page = _PAGE.format(
        title=escape(title),
        style=_STYLE,
        script=_SCRIPT,
        about="",
        small=_SMALL if results.get("mode") == "small" else "",
        links="",
        body=f'<div class="figures">{pictures}</div>{tables}',
        method=f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in results.get('notes', ()))}</ul>",
        provenance=_provenance(results),
    )
    write_text(page, Path(path))


def _page(results: Mapping[str, Any], title: str, *, links: str, about: str, body: str) -> str:
    return _PAGE.format(
        title=escape(title),
        style=_STYLE,
        script=_SCRIPT,
        about=f"<p>{escape(about)}</p>" if about else "",
        small=_SMALL if results.get("mode") == "small" else "",
        links=links,
        body=body,
        method=_method(results),
        provenance=_provenance(results),
    )


def _summary(results: Mapping[str, Any]) -> str:
    return _html_table(rows(results, is_brief=False), reasons=_reasons(results))


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "problem"


def rows(results: Mapping[str, Any], *, is_brief: bool = True) -> list[Row]:
    """One row per evaluation of every run, with the same headings in all of them.

    Args:
        results: As for `write_report`.
        is_brief: Leave out what a terminal has no room for.

    Raises:
        DataError: If runs, or what identifies them, are missing.
    """
    _check(results)
    several_seeds = len({run.get("seed") for run in results["runs"]}) > 1
    columns = [column for column in COLUMNS if column.is_brief or not is_brief]
    table = []
    for run, evaluation in _evaluations(results):
        row: Row = {"problem": run["problem"], "operator": run["operator"], "head": run["head"]}
        if several_seeds:
            row["seed"] = run.get("seed")
        row |= {"on": evaluation["on"], "grid": _grid(evaluation.get("resolution"))}
        row |= {column.heading: _number(_first(evaluation, column.paths)) for column in columns}
        table.append(row | {"twice as long": _number(run.get("train", {}).get("twice_as_long"))})
    return table


def interval_rows(results: Mapping[str, Any]) -> list[Row]:
    """Coverage of intervals of functionals: a row per run, a column per quantity and level.

    Examples:
        >>> run = {"problem": "Heat", "operator": "FNO", "head": "Laplace"}
        >>> one = {"on": "in distribution", "intervals": {"integral": {"0.9": 0.91, "0.95": 0.94}}}
        >>> interval_rows({"runs": [run | {"evaluations": [one]}]})[0]["integral, 0.9"]
        0.91
    """
    table = []
    for run, evaluation in _evaluations(results):
        if "intervals" in evaluation:
            row: Row = {"problem": run["problem"], "operator": run["operator"], "head": run["head"]}
            for name, levels in evaluation["intervals"].items():
                row |= {f"{name}, {level}": value for level, value in levels.items()}
            table.append(row)
    return table


def member_rows(results: Mapping[str, Any]) -> list[Row]:
    """Errors of single operators that differ in their seed: a row per problem, operator and place."""
    table = []
    for run, evaluation in _evaluations(results):
        errors = sorted(evaluation.get("member_errors", ()))
        if errors:
            table.append(
                {
                    "problem": run["problem"],
                    "operator": run["operator"],
                    "on": evaluation["on"],
                    "seeds": len(errors),
                    "least": errors[0],
                    "median": statistics.median(errors),
                    "most": errors[-1],
                }
            )
    return table


def side_by_side(rows: Sequence[Row], score: str) -> list[Row]:
    """One score of all heads: a row per problem and place, a column per operator and head.

    Examples:
        >>> row = {"problem": "Heat", "operator": "FNO", "on": "finer grid", "grid": "64"}
        >>> side_by_side([row | {"head": "Laplace", "chi2": 1.25}, row | {"head": "ensemble", "chi2": 1.5}], "chi2")
        [{'problem': 'Heat', 'grid': '64', 'FNO, Laplace': 1.25, 'FNO, ensemble': 1.5}]
    """
    heads = list(dict.fromkeys(f"{row['operator']}, {row['head']}" for row in rows))
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        line = {"problem": row["problem"], "grid": row["grid"], **dict.fromkeys(heads)}
        found.setdefault((row["problem"], row["on"], row["grid"]), line)[f"{row['operator']}, {row['head']}"] = row[score]
    return list(found.values())


def terminal_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Align rows for a terminal: text to the left, numbers to the right, a dash where there is nothing.

    Columns without any entry are left out.

    Examples:
        >>> print(terminal_table([{"head": "Laplace", "NLL": -1.25}, {"head": "ensemble", "NLL": None}]))
        head        NLL
        --------  -----
        Laplace   -1.25
        ensemble      -
    """
    headings, cells, numeric = _laid_out(rows)
    widths = [max(len(line[place]) for line in [headings, *cells]) for place in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *cells] if headings else []
    return "\n".join("  ".join(_aligned(line, widths, numeric)).rstrip() for line in lines)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Lay rows out as a Markdown table, numbers to the right.

    Columns without any entry are left out.

    Examples:
        >>> print(markdown_table([{"head": "Laplace", "NLL": -1.25}]))
        | head    |   NLL |
        | :------ | ----: |
        | Laplace | -1.25 |
    """
    headings, cells, numeric = _laid_out(rows)
    if not headings:
        return ""
    table = [[_markdown(cell) for cell in line] for line in [headings, *cells]]
    widths = [max(3, *(len(line[place]) for line in table)) for place in range(len(headings))]
    rule = ["-" * (width - 1) + ":" if right else ":" + "-" * (width - 1) for width, right in zip(widths, numeric, strict=True)]
    lines = [table[0], rule, *table[1:]]
    return "\n".join(f"| {' | '.join(_aligned(line, widths, numeric))} |" for line in lines)


def shown(value: Any) -> str:
    """Write a value for readers: three significant digits, four from a thousand on, a dash for None.

    Examples:
        >>> [shown(value) for value in (0.9, 0.000123, 12345.6, 200, None, float("inf"), True)]
        ['0.900', '1.23e-4', '1.235e4', '200', '-', 'inf', 'yes']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value) or value == 0.0:
        return f"{value:g}"
    text = f"{value:#.4g}" if abs(value) >= 1e3 else f"{value:#.3g}" if abs(value) >= 1e-3 else f"{value:.2e}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa.rstrip('.')}e{int(exponent)}" if exponent else mantissa.rstrip(".")


def _check(results: Mapping[str, Any]) -> None:
    runs = results.get("runs")
    if not isinstance(runs, Sequence) or isinstance(runs, str):
        raise DataError(expected="results with a list of runs", got=str(type(runs)), remedy="pass what the benchmark wrote")
    for number, run in enumerate(runs):
        missing = [key for key in ("problem", "operator", "head", "evaluations") if key not in run]
        if not missing:
            missing = [f"evaluations[{place}].on" for place, one in enumerate(run["evaluations"]) if "on" not in one]
        if missing:
            raise DataError(expected=f"run {number} with {', '.join(missing)}", got="one without", remedy="complete the run")


def _evaluations(results: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for run in results["runs"]:
        for evaluation in run["evaluations"]:
            yield run, evaluation


def _first(evaluation: Mapping[str, Any], paths: Sequence[str]) -> Any:
    for path in paths:
        value: Any = evaluation
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def _number(value: Any) -> Any:
    """Numbers that JSON does not know are strings in it."""
    return float(value) if value in ("inf", "-inf", "nan") else value


def _grid(resolution: Any) -> str | None:
    sizes = resolution if isinstance(resolution, (list, tuple)) else [resolution]
    return None if resolution is None else "×".join(map(str, sizes))


def _laid_out(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headings of the columns with any entry, cells as text, and which columns hold numbers."""
    known = dict.fromkeys(heading for row in rows for heading in row)
    headings = [heading for heading in known if any(row.get(heading) is not None for row in rows)]
    cells = [[shown(row.get(heading)) for heading in headings] for row in rows]
    return headings, cells, [_is_numeric(rows, heading) for heading in headings]


def _is_numeric(rows: Sequence[Mapping[str, Any]], heading: str) -> bool:
    present = [row[heading] for row in rows if row.get(heading) is not None]
    return bool(present) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present)


def _aligned(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> list[str]:
    placed = zip(cells, widths, numeric, strict=True)
    return [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in placed]


def _markdown(cell: str) -> str:
    for character in "\\|*_<`":
        cell = cell.replace(character, "\\" + character)
    return cell.replace("\n", " ")


def _reasons(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Per row, heading to why a score is missing."""
    reasons = []
    for _, evaluation in _evaluations(results):
        known = evaluation.get("scores", {}).get("reasons") or {}
        paths = {column.heading: column.paths[0].removeprefix("scores.") for column in COLUMNS}
        reasons.append({heading: known[name] for heading, name in paths.items() if name in known})
    return reasons


def _html_table(table: Sequence[Row], *, reasons: Sequence[Mapping[str, str]] = ()) -> str:
    """A table that sorts by the numbers behind its cells."""
    headings, cells, numeric = _laid_out(table)
    sides = ["number" if right else "text" for right in numeric]
    head = "".join(
        f'<th class="{side}"><button type="button">{escape(heading)}</button></th>'
        for heading, side in zip(headings, sides, strict=True)
    )
    body = []
    for number, line in enumerate(cells):
        why = reasons[number] if reasons else {}
        row = ""
        for heading, cell, side in zip(headings, line, sides, strict=True):
            value = table[number].get(heading)
            key = "" if value is None else str(value)
            title = f' title="{escape(why[heading])}"' if value is None and heading in why else ""
            row += f'<td class="{side}" data-key="{escape(key)}"{title}>{escape(cell)}</td>'
        body.append(f"<tr>{row}</tr>")
    return f'<div class="wide"><table class="sorts"><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _section(name: str, runs: Sequence[Mapping[str, Any]], figures: Mapping[str, str | bytes]) -> str:
    pictures = "".join(_figure(caption, image, name) for caption, image in figures.items())
    fits, numbers = [], []
    for run in runs:
        who = {"operator": run["operator"], "head": run["head"], "seed": run.get("seed")}
        fits.append(who | _flat({"training": run.get("train", {}), "head": run.get("head_fit", {})}))
        numbers += [who | _flat(evaluation) for evaluation in run["evaluations"]]
    tables = ""
    for title, table in (("How each run was trained and fitted", fits), ("Every number", numbers)):
        if table:
            tables += f"<details><summary>{title}</summary>{_html_table(table)}</details>"
    return f'<section><h2>Figures and details</h2><div class="figures">{pictures}</div>{tables}</section>'


def _figure(caption: str, image: str | bytes, problem: str) -> str:
    if isinstance(image, bytes) and image.startswith(b"\x89PNG\r\n"):
        kind, content = "image/png", image
    elif isinstance(image, str) and "<svg" in image:
        # As an image, its scripts do not run and its ids cannot clash with those of another figure.
        kind, content = "image/svg+xml", image.encode()
    else:
        raise DataError(
            expected=f"a PNG image or SVG text as figure {caption!r}",
            got=str(type(image)),
            remedy="render it with probneural.plots.png",
        )
    data = f"data:{kind};base64,{base64.b64encode(content).decode()}"
    alternative = escape(f"{problem}: {caption}")
    return f'<figure><img alt="{alternative}" src="{data}"><figcaption>{escape(caption)}</figcaption></figure>'


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Row:
    """Nested numbers side by side, without loss curves (there are figures for them) and the reasons of missing scores."""
    flat: Row = {}
    for key, value in mapping.items():
        if key in ("history", "reasons"):
            continue
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            flat |= _flat(value, "" if key == "scores" else f"{name}: ")
        else:
            flat[name] = _grid(value) if key == "resolution" else _number(_single(value))
    return flat


def _single(value: Any) -> Any:
    """The entry of a list that has only one, so that columns of them sort as numbers."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _method(results: Mapping[str, Any]) -> str:
    levels = sorted({level for _, one in _evaluations(results) if (level := one.get("scores", {}).get("level")) is not None})
    lines = "".join(
        f"<tr><th>{escape(column.heading)}</th><td>{escape(column.unit)}</td><td>{escape(column.meaning)}</td></tr>"
        for column in COLUMNS
    )
    notes = [f"Nominal level of intervals and bands: {', '.join(map(shown, levels))}."] if levels else []
    notes += [*_NOTES, *results.get("notes", ())]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    head = "<thead><tr><th>score</th><th>unit</th><th>meaning</th></tr></thead>"
    return f'<ul>{items}</ul><div class="wide"><table>{head}<tbody>{lines}</tbody></table></div>'


def _provenance(results: Mapping[str, Any]) -> str:
    def listing(entries: Mapping[str, Any]) -> str:
        return ", ".join(f"{key.replace('_', ' ')} {shown(value)}" for key, value in entries.items())

    lines = ""
    for key in ("created", "mode", "commit", "machine", "versions", "seeds", "wall_seconds"):
        if results.get(key) is not None:
            text = listing(results[key]) if isinstance(results[key], Mapping) else shown(results[key])
            lines += f"<tr><th>{key.replace('_', ' ')}</th><td>{escape(text)}</td></tr>"
    command = f"<p>Reproduce it with</p><pre>{escape(results['command'])}</pre>" if results.get("command") else ""
    return f'<div class="wide"><table><tbody>{lines}</tbody></table></div>{command}'


_ABOUT = (
    "Operators are trained on pairs of input functions and exact solutions. A head turns each trained operator into a "
    "distribution over output functions, whose variance is scaled on calibration functions. The table says, for test "
    "functions that neither training nor calibration has seen, how far the mean is from the exact solution, and whether the "
    "errors are as large as the distribution states: on the grid of the training data, on finer grids, and for inputs from "
    "shifted distributions. Click a heading to sort by it."
)
_NOTES = (
    "Nothing is fitted on test functions: normalisers, weights, noise and prior come from the training pairs, the "
    "scale of the variance and the conformal bands from calibration pairs.",
    "Averages over the domain use quadrature weights, so that a finer grid alone does not move them. The joint NLL counts "
    "values, and bands for whole functions have more points to hold at on a finer grid.",
    "A dash stands where a score does not exist, or was not computed for that row; where a reason is known, pointing at the "
    "dash shows it.",
    "The guarantee of conformal bands needs exchangeable functions on the grid they were calibrated on; it does not extend to "
    "shifted inputs.",
)
_SMALL = "<p><strong>A small run, made to test the machinery: its numbers mean nothing.</strong></p>"

_STYLE = """
:root { color-scheme: light dark;
        --ink: #1b1f24; --paper: #fff; --faint: #59636e; --line: #d1d9e0; --tint: #f3f6f9; --link: #0059b3 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --paper: #14171a; --faint: #9aa4af; --line: #3a424b; --tint: #1e2328; --link: #7db8f5 }
}
body { margin: 0 auto; padding: 1.5rem; max-width: 80rem; background: var(--paper); color: var(--ink);
       font: 16px/1.5 system-ui, sans-serif }
h1 { font-size: 1.6rem } h2 { font-size: 1.25rem; margin-top: 2.5rem }
p, ul { max-width: 50rem } a { color: var(--link) }
pre { background: var(--tint); padding: .75rem 1rem; border-radius: 6px; overflow-x: auto;
      font: .875rem/1.5 ui-monospace, monospace }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
.sorts td, .sorts th { white-space: nowrap } .sorts tbody tr:hover { background: var(--tint) }
.number, .number button { text-align: right } td.text em { color: var(--faint) }
th button { all: unset; cursor: pointer; width: 100% } th button:focus-visible { outline: 2px solid var(--link) }
th[aria-sort=ascending] button::after { content: " ▲" } th[aria-sort=descending] button::after { content: " ▼" }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(30rem, 100%), 1fr)); gap: 1rem }
figure { margin: 0 } img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 6px }
figcaption { color: var(--faint); font-size: .875rem; padding: .25rem 0 } summary { cursor: pointer; margin: .5rem 0 }
"""

_SCRIPT = """
for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    const numeric = head.className === "number";
    const key = row => row.cells[place].dataset.key;
    const number = text => text === "inf" ? Infinity : text === "-inf" ? -Infinity : Number(text);
    const missing = text => text === "" || text === "nan";
    const rows = [...table.tBodies[0].rows].sort((first, second) => {
      const [a, b] = [key(first), key(second)];
      if (missing(a) || missing(b)) return missing(a) - missing(b);
      const [x, y] = [number(a), number(b)];
      const order = numeric ? (x < y ? -1 : x > y ? 1 : 0) : a.localeCompare(b, undefined, {numeric: true});
      return down ? -order : order;
    });
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.tBodies[0].append(...rows);
  }));
}
"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<h1>{title}</h1>
{about}
{small}
<nav>{links}</nav>
{body}
<h2>Method</h2>
{method}
<h2>Where the numbers come from</h2>
{provenance}
<script>{script}</script>
</body>
</html>
"""
