"""Flow through two materials, where papers compare error bars of operators: heads beside one another, and (α, δ) bands.

The setting is that of Li et al. (2021), at a size that two cores can train; `two_materials_units` says what is done.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment, kept_units, sections, studies
from benchmarks.over_seeds import CONFIDENCE, Row, average, grouped, mean_of, ratio
from benchmarks.studies.two_materials_units import (
    CONSTANT,
    DEFAULT,
    FAILED,
    RANK,
    SCRATCH,
    SIZES,
    WEIGHT_DECAY,
    WHOLE,
    Unit,
)

SEEDS = 5
PUBLISHED = {DEFAULT: 0.0621, SCRATCH: 0.0462}
"""CRPS that Bülte et al. (2025) report, as quoted elsewhere, of nine seeds: on other data and in other units."""


def main(*, mode: str, output: Path, workers: int, device: str = "cpu", seeds: int | None = None) -> dict[str, Any]:
    """Run all seeds, and write both tables; on a GPU at the size of the papers."""
    commit, sizes = environment.commit(), SIZES[mode if device == "cpu" or mode == "small" else "published"]
    todo = [Unit(sizes, seed, commit, device) for seed in range(seeds or (1 if mode == "small" else SEEDS))]
    notes = [
        f"Permeability 12 or 3 on {sizes.points} points per axis, solved by finite volumes on {sizes.cells + 1}; "
        f"{sizes.pairs} training functions, a tenth of which training only watches, {sizes.held_out} that variances are scaled "
        f"on, {sizes.conformal} that bands are calibrated on, {sizes.tests} tests; an FNO of width {sizes.width} with "
        f"{sizes.modes} modes per axis, {sizes.epochs} epochs (fine-tuning half of them more, the ensemble four times, and "
        f"as many evaluations with copies), weights that decay by {WEIGHT_DECAY:g} of the learning rate a step. Means over "
        f"seeds; intervals are {CONFIDENCE:.0%} intervals, those of ratios about geometric means.",
        "CRPS and energy score: over the root mean square of the outputs. scale none: as the head states it, with what it "
        f"calls noise; local: VarianceScale as it is by default; mixed: with ScaleMixture after that, on the same functions. "
        f"whole: part of the first {WHOLE} functions within 90 % bands of draws.",
        "with copies: the network also learned from the images of its functions under the seven mirrors and turns of the "
        "square; its head is fitted to the functions alone.",
        "published: CRPS that Bülte et al. (2025) report for Darcy flow, as others quote it, in units and on data of their "
        "own, with last-layer Laplace and an operator trained by the energy score. Only ratios can be compared; "
        "nothing there was calibrated.",
        "bands: mean ± q scale(x). A promise is kept by functions that lie within on the part 1 - α of the domain or more; "
        "1 - δ of them have to. ranks: PointwiseBand. bound: a part of α is kept for Hoeffding's bound, as in the code "
        "published with UQNO (Ma et al. 2024), which counts all grid points alike; empty where the bound leaves nothing.",
        "second network: learns the .9 quantile of absolute errors, whatever α, in as many steps as the first, from the "
        f"{sizes.held_out} functions that others scale their variances on (a fifth of them decide when it stops), or from "
        f"{sizes.pairs} functions of its own, which no other head has. width: half of it, averaged over the domain, over the "
        "root mean square of the outputs.",
    ]

    def run() -> list[dict[str, Any]]:
        results = list(kept_units.spread(todo, output / "two-materials", workers=workers, notes=notes).values())
        seconds = statistics.median(found["processor_seconds"] for found in results)
        notes.append(f"a seed takes {seconds:.0f} s of one processor")
        notes.extend(f"failed: {row['what']}: {row['error'][:200]}" for found in results for row in found[FAILED])
        return results

    return sections.write(
        "two-materials",
        sections.made_of(
            run,
            {
                "heads": lambda results: head_rows(numbered(results, "heads")),
                "bands": lambda results: promise_rows(numbered(results, "bands")),
            },
        ),
        mode=mode,
        output=output,
        notes=notes,
        commit=commit,
        device=device,
        seeds=seeds,
    )


def numbered(results: Sequence[dict[str, Any]], part: str) -> list[Row]:
    """Rows of all seeds, which they name."""
    return [{"seed": found["seed"]} | row for found in results for row in found[part]]


def head_rows(rows: Sequence[Row]) -> list[Row]:
    """One row per head and scale, with CRPS beside that of the operator that was trained by the energy score."""
    reference = {(row["scale"], row["seed"]): row["CRPS"] for row in rows if row["head"] == SCRATCH}
    table = []
    for (head, scale), own in grouped(rows, ("head", "scale")).items():
        over = [row["CRPS"] / reference[scale, row["seed"]] for row in own if (scale, row["seed"]) in reference]
        published = PUBLISHED.get(head) if scale == "none" else None
        table.append(
            {
                "head": head,
                "scale": scale,
                "seeds": len(own),
                "relative L2": mean_of(own, "relative L2"),
                "CRPS": average([row["CRPS"] for row in own], digits=5),
                f"CRPS over {SCRATCH}": ratio(over),
                "published": published,
                "published, over the same": None if published is None else published / PUBLISHED[SCRATCH],
                "energy": mean_of(own, "energy"),
                "coverage": average([row["coverage"] for row in own], digits=3),
                "whole": mean_of(own, "whole"),
            }
        )
    return table


def promise_rows(rows: Sequence[Row]) -> list[Row]:
    """One row per promise, band and rule: how many functions keep it, and its width beside that of a constant band by ranks."""
    constant = {
        (row["α"], row["δ"], row["seed"]): row["width"] for row in rows if (row["band"], row["rule"]) == (CONSTANT, RANK)
    }
    table = []
    for (alpha, delta, band, rule), own in grouped(rows, ("α", "δ", "band", "rule")).items():
        known = [row for row in own if row["held"] is not None]
        over = [row["width"] / constant[alpha, delta, row["seed"]] for row in known if (alpha, delta, row["seed"]) in constant]
        table.append(
            {
                "α": alpha,
                "δ": delta,
                "band": band,
                "rule": rule,
                "seeds": len(known),
                "promised": 1.0 - delta,
                "held": average([row["held"] for row in known], digits=3),
                "width": mean_of(known, "width"),
                "over constant": ratio(over),
            }
        )
    return sorted(table, key=lambda row: (-row["α"], -row["δ"], row["rule"] != RANK))


if __name__ == "__main__":
    studies.run(main)
