"""Laplace structures: accuracy against the dense posterior, evidence, time and memory against field size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import field_size, sections, structures

PEERS = ("laplace-torch",)


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Run all parts, one after the other."""
    small = mode == "small"
    found: dict[str, Any] = {}

    def accuracy() -> list[dict[str, Any]]:
        found.update(structures.run(small=small))
        return list(found["rows"])

    return sections.write(
        "laplace",
        {
            "structures": accuracy,
            "ranks": lambda: found["ranks"],
            "evidence": lambda: found["learned"],
            "size": lambda: field_size.run(small=small),
        },
        mode=mode,
        output=output,
        peers=PEERS,
        notes=[
            "structures, ranks, evidence: an FNO of about a thousand parameters, float64, 50 Burgers functions on 64 points, "
            "all structures at the noise and prior that the dense evidence chose (evidence: each at its own).",
            "size: one predicted field in float32 with two threads; peak memory beyond model and root; last layer and rank 100 "
            "over all parameters with its stochastic complement.",
        ],
    )
