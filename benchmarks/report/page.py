"""Tables and a self-contained HTML page from a benchmark's results."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.environment import write_text
from benchmarks.report.rows import COLUMNS, Row, check, evaluations, grid_name, number, rows
from benchmarks.report.text import laid_out, shown
from probneural.errors import DataError

_STYLE, _SCRIPT = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))


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
    check(results)
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


def _reasons(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Per row, heading to why a score is missing."""
    reasons = []
    for _, evaluation in evaluations(results):
        known = evaluation.get("scores", {}).get("reasons") or {}
        paths = {column.heading: column.paths[0].removeprefix("scores.") for column in COLUMNS}
        reasons.append({heading: known[name] for heading, name in paths.items() if name in known})
    return reasons


def _html_table(table: Sequence[Row], *, reasons: Sequence[Mapping[str, str]] = ()) -> str:
    """A table that sorts by the numbers behind its cells."""
    headings, cells, numeric = laid_out(table)
    sides = ["number" if right else "text" for right in numeric]
    head = "".join(
        f'<th class="{side}"><button type="button">{escape(heading)}</button></th>'
        for heading, side in zip(headings, sides, strict=True)
    )
    body = []
    for place, line in enumerate(cells):
        why = reasons[place] if reasons else {}
        row = ""
        for heading, cell, side in zip(headings, line, sides, strict=True):
            value = table[place].get(heading)
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
            flat[name] = grid_name(value) if key == "resolution" else number(_single(value))
    return flat


def _single(value: Any) -> Any:
    """The entry of a list that has only one, so that columns of them sort as numbers."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value


def _method(results: Mapping[str, Any]) -> str:
    levels = sorted({level for _, one in evaluations(results) if (level := one.get("scores", {}).get("level")) is not None})
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
