"""Matrix of the first screen: problem by method, coloured by error relative to the best and by coverage."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from benchmarks.report.headlines import Headline, Table, best, headlines, methods
from benchmarks.report.html import boxed, slug
from benchmarks.report.text import shown

RATIOS = (1.1, 2.0, 5.0)
"""Limits of colours of errors, as multiples of the best error."""
_LEGEND = (
    ("e0", "error at most 1.1 times the best"),
    ("e1", "up to 2 times"),
    ("e2", "up to 5 times"),
    ("e3", "more"),
    ("ok", "✓ simultaneous coverage is nominal, within chance"),
    ("wide-band", "▲ too high: bands too wide"),
    ("narrow", "▼ too low: over-confident"),
    ("narrower", "▼▼ by more than twice chance"),
)


def matrix(results: Mapping[str, Any]) -> str:
    """The matrix as HTML, with its legend; empty if no method was evaluated."""
    table = {problem: own for problem, own in headlines(results).items() if own}
    if not table:
        return ""
    names = methods(table)
    head = "".join(f'<th scope="col">{escape(name).replace(", ", "<br><small>")}</small></th>' for name in names)
    body = "".join(_row(problem, own, names) for problem, own in table.items())
    content = f'<table class="matrix"><thead><tr><th scope="col">problem</th>{head}</tr></thead><tbody>{body}</tbody></table>'
    keys = "".join(f'<li><span class="key {kind}"></span>{escape(meaning)}</li>' for kind, meaning in _LEGEND)
    caption = f'<p class="caption">{escape(_caption(table))}</p>'
    return f'{caption}{boxed(content, label="Problem by method")}<ul class="legend">{keys}</ul>'


def _caption(table: Table) -> str:
    first = next(line for own in table.values() for line in own.values())
    return (
        "Above in each cell: relative L2 error on test samples in distribution, and its ratio to the best method's. "
        f"Below: simultaneous coverage of the {100 * first.level:.0f} % band."
    )


def _row(problem: str, own: Mapping[str, Headline], names: list[str]) -> str:
    winner = best(own, "error")
    least = own[winner].error if winner is not None else None
    cells = "".join(_cell(own.get(name), least, is_best=name == winner) for name in names)
    return f'<tr><th scope="row"><a href="#{slug(problem)}">{escape(problem)}</a></th>{cells}</tr>'


def _cell(line: Headline | None, least: float | None, *, is_best: bool) -> str:
    if line is None:
        return '<td class="none">-</td>'
    times = line.error / least if line.error is not None and least else None
    kind = "" if times is None else f"e{sum(times > limit for limit in RATIOS)}"
    kind = "e0" if is_best else kind
    note = "best" if is_best else "" if times is None else f"×{_times(times)}"
    error = f'<span class="cell {kind}"><b>{shown(line.error)}</b> <small>{note}</small></span>'
    return f"<td>{error}{_coverage(line)}</td>"


def _times(ratio: float) -> str:
    """A ratio with two digits."""
    return f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}" if ratio < 1e4 else f"{ratio:.0e}".replace("e+0", "e")


def _coverage(line: Headline) -> str:
    """Simultaneous coverage, with a sign in addition to the colour."""
    if line.whole is None:
        return '<span class="cell">-</span>'
    if line.is_honest:
        kind, sign, meaning = "ok", "✓", "nominal, within chance"
    elif line.whole > line.level:
        kind, sign, meaning = "wide-band", "▲", "bands too wide"
    elif line.level - line.whole <= 2.0 * line.chance:
        kind, sign, meaning = "narrow", "▼", "over-confident"
    else:
        kind, sign, meaning = "narrower", "▼▼", "over-confident by more than twice chance"
    said = f"{meaning}: {shown(line.whole)} of {line.functions} fields inside, {shown(line.level)} nominal"
    return f'<span class="cell {kind}" title="{escape(said)}">{shown(line.whole)} {sign}</span>'
