"""Reports of benchmarks: tables as text, a summary for terminals, and a self-contained HTML page."""

from benchmarks.report.headlines import brief_rows, headlines
from benchmarks.report.page import write_report, write_tables
from benchmarks.report.rows import COLUMNS, Column, Row, rows, side_by_side
from benchmarks.report.summary import terminal_summary
from benchmarks.report.text import markdown_table, shown, terminal_table

__all__ = [
    "COLUMNS",
    "Column",
    "Row",
    "brief_rows",
    "headlines",
    "markdown_table",
    "rows",
    "shown",
    "side_by_side",
    "terminal_summary",
    "terminal_table",
    "write_report",
    "write_tables",
]
