"""Figure of the scores of heads against their cost."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.over_seeds import Row, grouped

PANELS = {"joint_nll": "joint NLL less the ensemble's (nats per value)", "crps": "CRPS over the ensemble's"}
"""Scores relative to the ensemble, and labels of their axes."""
QUARTILES = (0.25, 0.5, 0.75)


def against_cost(points: Sequence[Row]) -> bytes:
    """One panel per score: medians over problems with quartiles, against processor time in trainings; PNG.

    Args:
        points: One per problem and head, with `cost` and mean scores relative to the ensemble: `joint_nll` in nats per
            value, `crps` as a ratio.
    """
    from matplotlib.figure import Figure  # costs a quarter of a second

    image = Figure(figsize=(11.0, 5.0), layout="constrained")
    for panel, (name, label) in zip(image.subplots(1, 2), PANELS.items(), strict=True):
        neutral = 1.0 if name == "crps" else 0.0
        panel.axhline(neutral, color="0.7", linewidth=0.8)
        for number, (head, own) in enumerate(summary(points, name=name).items()):
            colour, marker = f"C{number % 10}", "o" if number < 10 else "s"
            (left, cost, right), (low, score, high) = own
            panel.plot([left, right], [score, score], color=colour, alpha=0.5)
            panel.plot([cost, cost], [low, high], color=colour, alpha=0.5)
            panel.plot(cost, score, marker, color=colour, label=head)
        panel.set(xscale="log", xlabel="processor time in trainings of one network", ylabel=label)
        panel.set(yscale="log" if name == "crps" else "linear")
        panel.grid(alpha=0.25)
    handles, labels = image.axes[0].get_legend_handles_labels()
    image.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    image.suptitle("Below the line is better than an ensemble of four: medians over problems, with quartiles")
    stream = io.BytesIO()
    image.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def summary(points: Sequence[Row], *, name: str) -> dict[str, tuple[Any, Any]]:
    """Quartiles of cost and one score over problems for each head that has both."""
    found = {}
    for (head,), own in grouped(points, ("head",)).items():
        known = [(point["cost"], point[name]) for point in own if point.get(name) is not None and math.isfinite(point["cost"])]
        if known:
            costs, scores = np.array(known).T
            found[head] = tuple(np.quantile(costs, QUARTILES).tolist()), tuple(np.quantile(scores, QUARTILES).tolist())
    return found
