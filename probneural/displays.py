"""Tables in HTML, which notebooks show in place of a `repr`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from probneural.errors import ProbneuralError

_ROWS = 30
"""Maximum number of rows of a table."""


def html_table(title: str, rows: Iterable[Sequence[Any]]) -> str:
    """Return a table whose first column holds headings; of many rows, it shows the first and the last ones.

    Examples:
        >>> html_table("Losses", [("epoch 1", "<2")])
        '<table><caption>Losses</caption><tr><th>epoch 1</th><td>&lt;2</td></tr></table>'
    """
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    if len(cells) > _ROWS:
        cells[_ROWS // 2 : -_ROWS // 2] = [["…"]]
    lines = (f"<tr><th>{row[0]}</th>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in cells)
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


def number_or_dash(compute: Callable[[], Any]) -> str:
    """Return the text of a number, or a dash if it does not exist yet."""
    try:
        return f"{compute():.6g}"
    except ProbneuralError:
        return "-"
