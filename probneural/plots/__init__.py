"""Figures of predicted fields, of their calibration, and of training; needs Matplotlib, the extra `plots`.

Every function returns a new `matplotlib.figure.Figure`. None of them touches `pyplot` or the user's style: save a figure
with `figure.savefig(path)`, or turn it into bytes with [`png`][probneural.plots.single.png].
"""

from probneural.plots.designs import optimisation
from probneural.plots.evolution import fan, snapshots, space_time
from probneural.plots.quantities import quantity
from probneural.plots.several import (
    active_learning,
    lead_scores,
    lead_spread_skill,
    rank_histograms,
    spread_skill,
    variance_shares,
)
from probneural.plots.single import band, calibration, field, png, training

__all__ = [
    "active_learning",
    "band",
    "calibration",
    "fan",
    "field",
    "lead_scores",
    "lead_spread_skill",
    "optimisation",
    "png",
    "quantity",
    "rank_histograms",
    "snapshots",
    "space_time",
    "spread_skill",
    "training",
    "variance_shares",
]

__dir__ = __all__.copy
