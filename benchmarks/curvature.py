"""Curvature products: supported networks, cost in gradients and memory, compared with other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import products, sections, support

PEERS = ("curvlinops-for-pytorch", "laplace-torch", "backpack-for-pytorch", "neuraloperator")


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Run all parts; other libraries must be installed (`make peers`)."""
    small = mode == "small"
    return sections.write(
        "curvature",
        {
            "support": support.run,
            "cost": lambda: products.rows(small=small),
            "memory": lambda: products.memory(small=small),
        },
        mode=mode,
        output=output,
        peers=PEERS,
        notes=[
            "Costs are medians of rounds in which every product runs once, per vector, in units of the gradient of the same "
            "loss on the same data in the same rounds.",
            "Products are taken at fixed parameters, after the one call that traces and prepares them.",
            "Memory is the peak of the process during one product, beyond model, data, vectors and result.",
        ],
    )
