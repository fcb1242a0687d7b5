"""Tables as text for terminals and Markdown, and readable numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def terminal_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Align rows for a terminal: text to the left, numbers to the right, a dash for None.

    Columns without any entry are left out.

    Examples:
        >>> print(terminal_table([{"head": "Laplace", "NLL": -1.25}, {"head": "ensemble", "NLL": None}]))
        head        NLL
        --------  -----
        Laplace   -1.25
        ensemble      -
    """
    headings, cells, numeric = laid_out(rows)
    widths = [max(len(line[place]) for line in [headings, *cells]) for place in range(len(headings))]
    lines = [headings, ["-" * width for width in widths], *cells] if headings else []
    return "\n".join("  ".join(_aligned(line, widths, numeric)).rstrip() for line in lines)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as a Markdown table, numbers to the right.

    Columns without any entry are left out.

    Examples:
        >>> print(markdown_table([{"head": "Laplace", "NLL": -1.25}]))
        | head    |   NLL |
        | :------ | ----: |
        | Laplace | -1.25 |
    """
    headings, cells, numeric = laid_out(rows)
    if not headings:
        return ""
    table = [[_markdown(cell) for cell in line] for line in [headings, *cells]]
    widths = [max(3, *(len(line[place]) for line in table)) for place in range(len(headings))]
    rule = ["-" * (width - 1) + ":" if right else ":" + "-" * (width - 1) for width, right in zip(widths, numeric, strict=True)]
    lines = [table[0], rule, *table[1:]]
    return "\n".join(f"| {' | '.join(_aligned(line, widths, numeric))} |" for line in lines)


def shown(value: Any) -> str:
    """Format a value: three significant digits, four from a thousand on, a dash for None.

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


def laid_out(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]], list[bool]]:
    """Headings of the columns with entries, cells as text, and flags of number columns."""
    known = dict.fromkeys(heading for row in rows for heading in row)
    headings = [heading for heading in known if any(row.get(heading) is not None for row in rows)]
    cells = [[shown(row.get(heading)) for heading in headings] for row in rows]
    return headings, cells, [is_numeric(rows, heading) for heading in headings]


def is_numeric(rows: Sequence[Mapping[str, Any]], heading: str) -> bool:
    present = [row[heading] for row in rows if row.get(heading) is not None]
    return bool(present) and all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in present)


def _aligned(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> list[str]:
    placed = zip(cells, widths, numeric, strict=True)
    return [cell.rjust(width) if right else cell.ljust(width) for cell, width, right in placed]


def _markdown(cell: str) -> str:
    for character in "\\|*_<`":
        cell = cell.replace(character, "\\" + character)
    return cell.replace("\n", " ")
