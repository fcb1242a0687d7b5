"""Summary of a run in a terminal: problem by method in at most 25 lines of 100 columns."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from benchmarks.report.headlines import Headline, Table, best, headlines, methods
from benchmarks.report.text import shown

LINES, COLUMNS = 20, 100
"""Size of the table; five further lines explain it and name the report."""
MARK = "*"
SCORES = {"error": "error", "joint_nll": "joint NLL", "whole": "whole"}
LEGEND = "error: relative L2; joint NLL: nats per value, lower is better; whole: simultaneous coverage of the {level} band"
WIDTH = 10
_GREEN, _RESET = "\x1b[1;32m", "\x1b[0m"


def terminal_summary(results: Mapping[str, Any], *, stream: TextIO | None = None) -> str:
    """Error, joint NLL and simultaneous coverage per problem and method, the best marked.

    If the table is too large, each problem has one line with the best method of each score.

    Args:
        results: See `write_report`.
        stream: Output stream, which determines colours; standard output by default.
    """
    table = {problem: own for problem, own in headlines(results).items() if own}
    if not table:
        return "no method was evaluated"
    colours = (sys.stdout if stream is None else stream).isatty()
    names = methods(table)
    heads = [_folded(name) for name in names]
    deep = max(map(len, heads))
    room = COLUMNS - 10 - (WIDTH + 1) * len(names)
    has_room = deep + 1 + 3 * len(table) <= LINES and room >= 12
    lines = _whole_table(table, names, heads, room=min(room, 26), colours=colours) if has_room else _best_of_each(table)
    level = next(line.level for own in table.values() for line in own.values())
    legend = LEGEND.format(level=f"{100 * level:.0f} %")
    return "\n".join([*lines, *textwrap.wrap(f"{MARK} best. {legend}", COLUMNS)])


def _whole_table(table: Table, names: Sequence[str], heads: Sequence[Sequence[str]], *, room: int, colours: bool) -> list[str]:
    """Three lines per problem, a column per method."""
    deep = max(map(len, heads))
    front = room + 10
    lines = []
    for level in range(deep):
        cells = [([""] * (deep - len(head)) + list(head))[level] for head in heads]
        lines.append(" " * front + " ".join(cell.rjust(WIDTH) for cell in cells))
    lines.append("-" * (front + (WIDTH + 1) * len(names) - 1))
    for problem, own in table.items():
        title = _fitted(problem, room - 1)
        for place, (score, label) in enumerate(SCORES.items()):
            winner = best(own, score)
            cells = [_cell(own.get(name), score, is_best=name == winner, colours=colours) for name in names]
            lines.append(f"{title[place]:<{room}}{label:<10}{' '.join(cells)}".rstrip())
    return lines


def _cell(line: Headline | None, score: str, *, is_best: bool, colours: bool) -> str:
    """A right-aligned number, with a mark if it is the best; colour does not change its width."""
    value = None if line is None else getattr(line, score)
    text = (shown(value) + (MARK if is_best else " ")).rjust(WIDTH)
    return f"{_GREEN}{text}{_RESET}" if is_best and colours else text


def _best_of_each(table: Table) -> list[str]:
    """One line per problem: the best method of each score, and its number."""
    names = methods(table)
    letters = {name: chr(ord("A") + place) for place, name in enumerate(names)}
    width = min(40, max(map(len, table)))
    shown_problems = list(table.items())[: LINES - 3]
    lines = [f"{'best of each':<{width}}  {'error':>12}  {'joint NLL':>12}  {'whole':>12}"]
    for problem, own in shown_problems:
        cells = []
        for score in SCORES:
            winner = best(own, score)
            cells.append("-" if winner is None else f"{shown(getattr(own[winner], score))} {letters[winner]}")
        lines.append(f"{problem[:width]:<{width}}  " + "  ".join(cell.rjust(12) for cell in cells))
    if len(table) > len(shown_problems):
        lines.append(f"and {len(table) - len(shown_problems)} more problems in the report")
    key = "; ".join(f"{letter} {name}" for name, letter in letters.items())
    return lines + textwrap.wrap(key, COLUMNS, max_lines=2, placeholder=" ...")


def _folded(name: str) -> list[str]:
    """Operator and head in lines of the column's width."""
    return [line for part in name.split(", ") for line in textwrap.wrap(part, WIDTH)]


def _fitted(text: str, width: int) -> list[str]:
    """A problem's name in three lines."""
    lines = textwrap.wrap(text, width, max_lines=3, placeholder="...")
    return lines + [""] * (3 - len(lines))
