"""Learning curves of the active-learning benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import probneural as pn
from benchmarks.active_runs import RANDOM
from probneural.plots.several import series_colour, series_marker

_SCORES = {"rmse": "RMSE (sd of outputs)", "q99": "99 % quantile of the RMSE"}


def figures(rows: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """One PNG image per problem: error and its 99 % quantile over labels, one column per head.

    Args:
        rows: Rows of `active_summary.curves`.
    """
    return {name: _drawn([row for row in rows if row["problem"] == name]) for name in dict.fromkeys(r["problem"] for r in rows)}


def _drawn(rows: Sequence[dict[str, Any]]) -> bytes:
    from matplotlib.figure import Figure  # independent of pyplot
    from matplotlib.ticker import NullLocator

    heads = list(dict.fromkeys(row["head"] for row in rows))
    names = list(dict.fromkeys(row["selector"] for row in rows))
    figure = Figure(figsize=(4.8 * len(heads), 7.2), layout="constrained")
    panels = figure.subplots(len(_SCORES), len(heads), squeeze=False, sharex=True, sharey="row")
    for panel_row, (score, label) in zip(panels, _SCORES.items(), strict=True):
        for panel, head in zip(panel_row, heads, strict=True):
            for number, name in enumerate(names):
                own = [row for row in rows if row["head"] == head and row["selector"] == name]
                if own:
                    style = {"color": "black", "linestyle": "--"} if name == RANDOM else {"color": series_colour(number - 1)}
                    x, y = [row["labels"] for row in own], [row[score] for row in own]
                    panel.loglog(x, y, marker=series_marker(number), markersize=4, label=name, **style)
            sizes = sorted({row["labels"] for row in rows})
            panel.set_xticks(sizes, [str(size) for size in sizes])
            panel.xaxis.set_minor_locator(NullLocator())
            panel.grid(visible=True, alpha=0.3)
            if score == "rmse":
                panel.set_title(head)
                panel.legend(fontsize="small")
            else:
                panel.set_xlabel("labels")
        panel_row[0].set_ylabel(label)
    image: bytes = pn.plots.png(figure, dpi=110.0)
    return image
