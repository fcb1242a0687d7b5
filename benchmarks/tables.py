"""Tables in documents, generated from committed results: between `<!-- table: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import environment, exact, heads, report, sections

ROOT = Path(__file__).parent.parent
PAGES = (
    "baselines.md",
    "benchmarks.md",
    "heads.md",
    "how-to/export.md",
    "how-to/large-data.md",
    "how-to/trust.md",
    "laplace.md",
)
DOCUMENTS = (ROOT / "README.md", *(ROOT / "docs" / name for name in PAGES))
RESULTS = Path(__file__).parent / "results"
PIVOTS = {
    "errors": "rel. L2",
    "densities": "NLL",
    "joint densities": "joint NLL",
    "whole functions": "whole cov.",
    "energies": "energy",
    "merci": "n-MeRCI",
    "deviations": "chi2",
    "raw deviations": "raw chi2",
    "scales": "scale",
    "unexplained": "unexplained",
    "ranks across": "rank across",
    "attainable ranks across": "attainable across",
    "ranks within": "rank within",
    "attainable ranks within": "attainable within",
    "bands": "band cov.",
    "promised": "promised",
    "widths": "band ratio",
    "twice": "twice as long",
}
"""Tables of one score, a problem per row and a head per column: their names, and the score's heading."""
OF_HEADS = {
    "joint densities": "joint_nll",
    "crps": "crps",
    "whole functions": "simultaneous_coverage",
    "coverage": "coverage",
    "widths": "interval_width",
    "ause of functions": "ause of functions",
    "told apart": "auroc",
}
"""Tables of one score of `heads`, a problem per row and a head per column, in distribution or on shifts."""
LAYOUTS = {"intervals": report.interval_rows, "members": report.member_rows}
"""Tables of another form."""
_MARK = re.compile(
    r"(<!-- table: ([a-z0-9_-]+)(?:/([A-Za-z -]+?))?(?: on ([a-z ]+))?(, default problems)? -->\n).*?(<!-- end -->)", re.DOTALL
)


def update() -> None:
    """Write every table of every document anew."""
    for path in DOCUMENTS:
        environment.write_text(rendered(path.read_text(encoding="utf-8")), path)


def rendered(text: str) -> str:
    """Return a document with its tables generated from the committed results.

    A mark `<!-- table: laplace/ranks -->` stands for the table `ranks` of `results/laplace.json`, `<!-- table: exact-full -->`
    for all rows of `results/exact-full.json`, `<!-- table: exact-full on finer grid -->` for those evaluated there, and
    `<!-- table: exact-full on finer grid, default problems -->` for the problems that the default run has.
    `<!-- table: exact-full/errors on finer grid -->` puts one score of `PIVOTS` side by side for all heads, and
    `<!-- table: heads/coverage on shifts -->` one of `OF_HEADS`.
    """
    return _MARK.sub(_table, text)


def _table(match: re.Match[str]) -> str:
    opening, name, section, place, default, closing = match.groups()
    results: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    if "modified" in results["commit"]:
        raise ValueError(f"{name}.json comes from a modified checkout ({results['commit']}): commit, run again, copy it anew")
    if results.get("benchmark") == "heads" and section in OF_HEADS:
        rows = heads.side_by_side(results["sections"]["scores"], name=OF_HEADS[section], shifted=place == "shifts")
        rows = [{key: value for key, value in row.items() if key not in ("operator", "regime")} for row in rows]
    elif "sections" in results:
        rows = results["sections"][section]
    else:
        default_names = {case.source.name for case in exact.chosen("default")}
        chosen = {**results, "runs": [run for run in results["runs"] if not default or run["problem"] in default_names]}
        rows = LAYOUTS.get(section, report.rows)(chosen) if section not in PIVOTS else report.rows(chosen, is_brief=False)
        rows = [row for row in rows if place is None or row.get("on", place) == place]
        if section in PIVOTS:
            rows = report.side_by_side(rows, PIVOTS[section])
    facts = results["machine"]
    accelerator = f"one {facts['accelerator']} and " if "accelerator" in facts else ""
    source = (
        f"`{results['command']}` on {accelerator}{facts['cores']} cores ({facts['processor']}), torch "
        f"{results['versions']['torch']}, commit {results['commit']}, {results['wall_seconds'] / 60:.1f} minutes."
    )
    source += "".join(f" {note}." for note in results["notes"] if sections.RESUMED in note)
    return f"{opening}{report.markdown_table(rows)}\n\n{source}\n{closing}"
