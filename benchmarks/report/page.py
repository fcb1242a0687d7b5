"""Self-contained pages: the report of the main benchmark, and a plain page for others."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.environment import write_text
from benchmarks.report.headlines import best, brief_rows, headlines
from benchmarks.report.html import boxed, figure, folded, html_table, page, paragraphs, slug
from benchmarks.report.mathematics import mathml, statement
from benchmarks.report.matrix import matrix
from benchmarks.report.provenance import method, provenance
from benchmarks.report.rows import COLUMNS, Row, check, evaluations, grid_name, number, rows
from benchmarks.report.text import shown
from benchmarks.report.verdict import question, verdict

_SMALL = '<p class="notice"><strong>A small run, to test the machinery: its numbers have no meaning.</strong></p>'
_HERO = "one function"
"""Text in the caption of figures for the first screen."""


def write_report(
    results: Mapping[str, Any], figures: Mapping[str, Mapping[str, str | bytes]], path: str | os.PathLike[str]
) -> None:
    """Write one page: first verdict, figure and matrix, then all numbers and a section per problem.

    Args:
        results: JSON of the benchmark with `runs` and their `evaluations`; `to_come` names the problems
            that are not finished.
        figures: PNG images (bytes) or SVG ones (text) by problem and caption.
        path: The page, written atomically.

    Raises:
        DataError: If runs, or what identifies them, are missing, or a figure is neither PNG nor SVG.
    """
    check(results)
    names = list(dict.fromkeys([run["problem"] for run in results["runs"]] + list(figures)))
    parts = [_first_screen(results, figures)]
    if names:
        parts.append("<h2>Problems</h2>")
    for name in names:
        own = [run for run in results["runs"] if run["problem"] == name]
        parts.append(_problem(results, name, own, figures.get(name, {}), is_open=len(names) == 1))
    parts += [
        "<h2>Method</h2>",
        method(results),
        "<h2>Where the numbers come from</h2>",
        provenance(results),
    ]
    write_text(page(f"probneural benchmark: {results.get('benchmark', 'results')}", "".join(parts)), Path(path))


def write_tables(
    results: Mapping[str, Any], *, title: str, figures: Mapping[str, str | bytes], path: str | os.PathLike[str]
) -> None:
    """Write one page of a benchmark whose results are `sections`: figures, a sortable table per section, and notes.

    Args:
        results: JSON of the benchmark.
        title: Title of the page.
        figures: PNG images (bytes) or SVG ones (text) by caption.
        path: The page, written atomically.

    Raises:
        DataError: If a figure is neither PNG nor SVG.
    """
    pictures = "".join(figure(caption, image, title) for caption, image in figures.items())
    tables = "".join(f"<h2>{escape(name)}</h2>{html_table(some, label=name)}" for name, some in results["sections"].items())
    body = f"""{_SMALL if results.get("mode") == "small" else ""}<div class="figures">{pictures}</div>{tables}
<h2>Method</h2>{paragraphs(results.get("notes", ()))}<h2>Where the numbers come from</h2>{provenance(results)}"""
    write_text(page(title, body), Path(path))


def _first_screen(results: Mapping[str, Any], figures: Mapping[str, Mapping[str, str | bytes]]) -> str:
    """Question, verdict, one figure and the matrix, then the folded table."""
    sentences = verdict(results)
    parts = [f'<p class="question">{escape(question(results))}</p>' if results["runs"] else ""]
    if results.get("mode") == "small":
        parts.append(_SMALL)
    if results.get("to_come"):
        parts.append(f'<p class="notice">The run goes on; to come: {escape("; ".join(results["to_come"]))}.</p>')
    hero = _hero(results, figures)
    kind = "first" if hero else "alone"
    parts.append(f'<div class="{kind}"><section><h2>Verdict</h2>{paragraphs(sentences)}</section>{hero}</div>')
    shown_matrix = matrix(results)
    if shown_matrix:
        parts.append(f"<h2>Error and simultaneous coverage</h2>{shown_matrix}")
    table = rows(results, is_brief=False)
    if table:
        filters = _filters(table, ("problem", "operator", "head", "on"))
        content = html_table(table, label="Every score", reasons=_reasons(results))
        parts.append(
            "<h2>All scores</h2>" + folded(f"{len(table)} rows: every problem, method and place", filters + content, kind="all")
        )
    return "".join(parts)


def _hero(results: Mapping[str, Any], figures: Mapping[str, Mapping[str, str | bytes]]) -> str:
    """Figure of one method on one sample of the problem with the largest best error."""
    table = headlines(results)
    hardest: tuple[float, str, str] | None = None
    for problem, images in figures.items():
        winner = best(table.get(problem, {}), "error")
        error = table[problem][winner].error if winner is not None else None
        caption = next((caption for caption in images if _HERO in caption), None)
        if caption is not None and (hardest is None or (error or 0.0) > hardest[0]):
            hardest = (error or 0.0, problem, caption)
    if hardest is None:
        return ""
    _, problem, caption = hardest
    return f'<section class="hero">{figure(f"{problem}, {caption}", figures[problem][caption], "")}</section>'


def _filters(table: Sequence[Row], headings: Sequence[str]) -> str:
    """Menus that hide rows of the following table."""
    menus = ""
    for heading in headings:
        entries = dict.fromkeys(str(row[heading]) for row in table)
        options = "".join(f'<option value="{escape(entry)}">{escape(entry)}</option>' for entry in entries)
        menus += f'<label>{heading} <select data-column="{heading}"><option value="">all</option>{options}</select></label>'
    return f'<div class="filters">{menus}<span class="count" role="status"></span></div>'


def _problem(
    results: Mapping[str, Any],
    name: str,
    runs: Sequence[Mapping[str, Any]],
    figures: Mapping[str, str | bytes],
    *,
    is_open: bool,
) -> str:
    """One problem: statement, methods, figures, and all numbers."""
    own = headlines({"runs": runs}).get(name, {})
    winner = best(own, "error")
    said = f" <small>lowest error {shown(own[winner].error)}, {escape(winner)}</small>" if winner is not None else ""
    parts = [_statement(name)]
    if runs:
        parts.append(html_table(brief_rows(runs), label=f"{name}: methods"))
    pictures = "".join(figure(caption, image, name) for caption, image in figures.items())
    parts.append(f'<div class="figures">{pictures}</div>')
    fits, numbers = [], []
    for run in runs:
        who = {"operator": run["operator"], "head": run["head"], "seed": run.get("seed")}
        fits.append(who | _flat({"training": run.get("train", {}), "head": run.get("head_fit", {})}))
        numbers += [who | _flat(evaluation) for evaluation in run["evaluations"]]
    for title, table in (("How each run was trained and fitted", fits), ("Every number", numbers)):
        if table:
            parts.append(folded(title, html_table(table, label=f"{name}: {title}")))
    command = str(results.get("command", ""))
    if command and "--problem" not in command and "--data" not in command and runs:
        alone = escape(f'{command} --problem "{name}"')
        parts.append(f"<p>This problem alone:</p>{boxed(alone, label=f'Command for {name}', kind='command')}")
    return folded(f"<h3>{escape(name)}</h3>{said}", "".join(parts), kind="problem", anchor=slug(name), is_open=is_open)


def _statement(name: str) -> str:
    """Equation and input distribution, if the problem is one of ours."""
    known = statement(name)
    if known is None:
        return ""
    parts = ""
    for title, formulas in (("Equation", known.equations), ("Distribution of inputs", known.inputs)):
        parts += f"<div><h4>{title}</h4>{boxed(''.join(map(mathml, formulas)), label=f'{name}: {title}')}</div>"
    return f'<p>{escape(known.words)}</p><div class="statement">{parts}</div>'


def _reasons(results: Mapping[str, Any]) -> list[dict[str, str]]:
    """Reasons of missing scores by heading, per row."""
    reasons = []
    for _, evaluation in evaluations(results):
        known = evaluation.get("scores", {}).get("reasons") or {}
        paths = {column.heading: column.paths[0].removeprefix("scores.") for column in COLUMNS}
        reasons.append({heading: known[name] for heading, name in paths.items() if name in known})
    return reasons


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> Row:
    """Flattened numbers without loss curves, which are in figures, and without reasons of missing scores."""
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
    """The entry of a list of length one, so that columns sort as numbers."""
    return value[0] if isinstance(value, (list, tuple)) and len(value) == 1 else value
