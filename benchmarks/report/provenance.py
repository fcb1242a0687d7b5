"""Provenance of numbers: method, machine, versions and command."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from benchmarks.report.html import boxed
from benchmarks.report.rows import COLUMNS, evaluations
from benchmarks.report.text import shown


def method(results: Mapping[str, Any]) -> str:
    levels = sorted({level for _, one in evaluations(results) if (level := one.get("scores", {}).get("level")) is not None})
    lines = "".join(
        f"<tr><th>{escape(column.heading)}</th><td>{escape(column.unit)}</td><td>{escape(column.meaning)}</td></tr>"
        for column in COLUMNS
    )
    notes = [f"Nominal level of intervals and bands: {', '.join(map(shown, levels))}."] if levels else []
    notes += [*_NOTES, *results.get("notes", ())]
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    head = "<thead><tr><th>score</th><th>unit</th><th>meaning</th></tr></thead>"
    return f"<ul>{items}</ul>" + boxed(f"<table>{head}<tbody>{lines}</tbody></table>", label="Scores and what they mean")


def provenance(results: Mapping[str, Any]) -> str:
    def listing(entries: Mapping[str, Any]) -> str:
        return ", ".join(f"{key.replace('_', ' ')} {shown(value)}" for key, value in entries.items())

    lines = ""
    for key in ("created", "mode", "commit", "machine", "versions", "seeds", "wall_seconds"):
        if results.get(key) is not None:
            text = listing(results[key]) if isinstance(results[key], Mapping) else shown(results[key])
            lines += f"<tr><th>{key.replace('_', ' ')}</th><td>{escape(text)}</td></tr>"
    command = ""
    if results.get("command"):
        command = "<p>Reproduce it with</p>" + boxed(escape(results["command"]), label="Command", kind="command")
    return boxed(f"<table><tbody>{lines}</tbody></table>", label="Machine and versions") + command


_NOTES = (
    "Nothing is fitted to test samples: normalisers, weights, noise and prior come from the training pairs, the "
    "scale of the variance and the conformal bands from calibration pairs.",
    "Averages over the domain use quadrature weights, so that they do not depend on the grid. The joint NLL counts "
    "values, and simultaneous bands must hold at more points on a finer grid.",
    "A dash marks a score that does not exist or was not computed for that row; pointing at the dash shows the reason, "
    "if it is known.",
    "The guarantee of conformal bands requires exchangeable samples on the grid of calibration; it does not extend to "
    "shifted inputs.",
)
