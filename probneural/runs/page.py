"""The report's page: plain HTML without scripts, with its style and figures inside."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from probneural.runs.config import paths_in
from probneural.runs.folder import PARTS, RunFolder
from probneural.runs.scoring import TestScores
from probneural.runs.toml import text_of

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5a6474; --line: #d5dae2; --paper: #ffffff; --card: #f5f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --soft: #a8b2c1; --line: #3a4352; --paper: #161b22; --card: #1f2630; }
}
body { margin: 0 auto; max-width: 52rem; padding: 1.5rem 1rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; }
.facts, figcaption { color: var(--soft); }
.verdict { background: var(--card); border-left: .25rem solid #0072B2; padding: .75rem 1rem; margin: 1rem 0; }
.verdict p { margin: .35rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .5rem; text-align: left; vertical-align: top; }
td.number { text-align: right; white-space: nowrap; }
figure { margin: 1rem 0 1.75rem; }
figure img { width: 100%; height: auto; background: #ffffff; border-radius: .3rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; }
pre { background: var(--card); padding: .75rem 1rem; overflow-x: auto; font-size: .85rem; }
summary { cursor: pointer; }
"""
_MEANINGS = (
    ("relative_l2", "relative L2 error of the mean", "0 is best"),
    ("rmse", "RMSE of the mean", "in units of the field"),
    ("crps", "CRPS", "in units of the field; smaller is better"),
    ("nll", "NLL per value, marginal", "nats; smaller is better"),
    ("joint_nll", "NLL per value, of whole functions", "nats; smaller is better"),
    ("coverage", "coverage of pointwise intervals", "the level is best"),
    ("simultaneous_coverage", "coverage of the predictor's own whole-function bands", "the level is best"),
    ("calibration_error", "mean miss in coverage over all levels", "0 is best"),
    ("interval_width", "width of the intervals", "in units of the field"),
    ("chi2", "squared standardised error per value", "1 is best"),
    ("spread_skill", "standard deviation over error", "1 is best"),
    ("rank_across", "rank correlation of stated and true errors across functions", "1 is best"),
)

_LEVELLED = ("coverage", "simultaneous_coverage", "interval_width")
"""Scores at the nominal level."""


class Figure(NamedTuple):
    """A figure with its words.

    Attributes:
        title: Its heading.
        caption: What one sees.
        image: A PNG.
    """

    title: str
    caption: str
    image: bytes


def page(run: RunFolder, scores: TestScores, *, sentences: Sequence[str], figures: Iterable[Figure]) -> str:
    """The report as HTML.

    Args:
        run: Whose settings and split are told.
        scores: On the test pairs.
        sentences: The verdict.
        figures: In the order of the page.
    """
    data = run.config.data
    files = ", ".join(Path(path).name for path in (*paths_in(data.path), *paths_in(data.outputs_path)))
    title = f"{', '.join(data.inputs)} → {', '.join(data.outputs)} of {files}"
    split = run.record["split"]
    counts = ", ".join(f"{len(split[part])} {part}" for part in PARTS if split[part])
    reading = run.record["reading"]
    facts = f"{reading}. {sum(map(len, split.values()))} pairs: {counts}. {run.choice}"
    settings = f'<details><summary>All settings</summary><pre tabindex="0">{escape(text_of(run.config))}</pre></details>'
    sections = (
        "<h2>Scores on test functions</h2>",
        _table(scores),
        *(figure_section(figure) for figure in figures),
        "<h2>How it was made</h2>",
        _provenance(run),
        settings,
    )
    return document(title, facts, sentences=sentences, sections=sections)


def document(title: str, facts: str, *, sentences: Sequence[str], sections: Iterable[str]) -> str:
    """A page of its own: a heading, facts, a verdict, and sections in HTML."""
    return "\n".join(
        (
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>",
            f'<h1>{escape(title)}</h1><p class="facts">{escape(facts)}</p>',
            f'<div class="verdict">{"".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)}</div>',
            *sections,
            "</main></body></html>\n",
        )
    )


def _table(scores: TestScores) -> str:
    found = scores.scores
    at = f"at {found.level:g}"
    rows = [(f"{name}, {at}" if key in _LEVELLED else name, getattr(found, key), best) for key, name, best in _MEANINGS]
    rows += [
        (f"coverage of fitted bands of whole functions, {at}", scores.band_coverage, "the level or more"),
        (f"coverage of pointwise intervals before calibration, {at}", scores.uncalibrated, "the level is best"),
        ("relative L2 error of the mean training output", scores.baseline, "what has to be beaten"),
    ]
    if scores.persistence is not None:
        rows.append(("relative L2 error of persistence, the last input state", scores.persistence, "what has to be beaten"))
    shown = [(escape(name), "–" if value is None else f"{value:.4g}", escape(best)) for name, value, best in rows]
    cells = "".join(f'<tr><td>{name}</td><td class="number">{value}</td><td>{best}</td></tr>' for name, value, best in shown)
    head = '<thead><tr><th scope="col">score</th><th scope="col">value</th><th scope="col">how to read it</th></tr></thead>'
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Scores"><table>{head}<tbody>{cells}</tbody></table></div>'
    )


def figure_section(figure: Figure) -> str:
    """A figure under its heading, inside the page."""
    source = base64.b64encode(figure.image).decode()
    image = f'<img alt="{escape(figure.title)}: {escape(figure.caption)}" src="data:image/png;base64,{source}">'
    return f"<h2>{escape(figure.title)}</h2><figure>{image}<figcaption>{escape(figure.caption)}</figcaption></figure>"


def _provenance(run: RunFolder) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.record["versions"].items())
    rows = (
        ("data", run.config.data.path),
        ("fingerprint of the data", run.record["fingerprint"][:16]),
        ("versions", versions),
        ("again", f"probneural report --config {run.path / 'config.toml'} --folder NAME"),
    )
    cells = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(text))}</td></tr>' for name, text in rows)
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Provenance"><table><tbody>{cells}</tbody></table></div>'
