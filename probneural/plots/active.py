"""Active learning loops: error against number of labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from probneural.errors import DataError
from probneural.plots.several import series_colour, series_marker
from probneural.plots.single import DASHED, WIDTH, ink, new_figure

if TYPE_CHECKING:
    import probneural.active.loop.history  # whose package imports BoTorch


def active_learning(
    histories: probneural.active.loop.history.LearningHistory | Mapping[str, probneural.active.loop.history.LearningHistory],
) -> Figure:
    """Draw the error against the number of labels, on logarithmic axes, for one active learning loop or several.

    The line is the mean relative L2 error, the shade reaches up to its 95 % quantile over the functions, and the dashes are the
    error that the posterior states: below the line it is too sure.

    Args:
        histories: The history of [`ActiveLearner.run`][probneural.active.ActiveLearner.run], or several by name.

    Returns:
        The figure.

    Raises:
        DataError: If there is no history, one is something else, or one has no errors.
    """
    from probneural.active.loop.history import LearningHistory

    named = {"error": histories} if isinstance(histories, LearningHistory) else histories
    if (
        not isinstance(named, Mapping)
        or not named
        or not all(isinstance(history, LearningHistory) for history in named.values())
    ):
        raise DataError(
            expected="a LearningHistory, or several by name", got=repr(histories)[:200], remedy='{"random": learner.history}'
        )
    figure = new_figure(WIDTH, 3.8)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log", nonpositive="mask")
    ticks: set[int] = set()
    for number, (name, history) in enumerate(named.items()):
        rounds = [entry for entry in history.rounds if entry.errors.mean is not None]
        if not rounds:
            raise DataError(
                expected=f"errors in the history {name!r}",
                got="none",
                remedy="give the learner test= or calibration functions, and run a round",
            )
        labels, colour = [entry.labels for entry in rounds], series_colour(number)
        error, high, stated = ([getattr(entry.errors, part) for entry in rounds] for part in ("mean", "quantile_95", "stated"))
        axes.plot(labels, error, color=colour, marker=series_marker(number), markersize=4, linewidth=1.5, label=name)
        axes.fill_between(labels, error, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(labels, stated, color=colour, linewidth=0.9, linestyle=DASHED)
        ticks |= {*labels} if len(labels) <= 8 else {labels[0], labels[-1]}
    axes.plot([], [], color=ink(), linewidth=0.9, linestyle=DASHED, label="stated")
    axes.set_xticks(sorted(ticks))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="labels", ylabel="relative L2 error")
    axes.legend(frameon=False, fontsize=9)
    return figure
