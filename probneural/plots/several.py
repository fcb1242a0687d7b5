"""Several predictors or loops side by side: spread against skill, and errors by labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter
from torch import Tensor

from probneural.checks import check_instance
from probneural.distributions.base import FieldDistribution
from probneural.errors import DataError
from probneural.fields import Field
from probneural.metrics.comparison import Comparison, compare
from probneural.metrics.spread import spread_skill_curve
from probneural.plots.single import (
    BLUE,
    DASHED,
    ORANGE,
    SKY,
    VERMILION,
    WIDTH,
    checked_position,
    ink,
    new_figure,
    with_unit,
)

if TYPE_CHECKING:
    import probneural.active.loop.history  # whose package imports BoTorch

_COLOURS = (BLUE, VERMILION, "#009E73", ORANGE, "#CC79A7", SKY)
_MARKERS = "osD^vP"


def spread_skill(
    predictions: Mapping[str, FieldDistribution],
    truth: Field,
    *,
    channel: int = 0,
    noise: float | Float[Tensor, "..."] = 0.0,
    bins: int = 10,
    unit: str = "",
) -> Figure:
    """Draw error against stated standard deviation, in bins of the latter; on the diagonal if calibrated.

    Args:
        predictions: Distributions over the same n samples, by name.
        truth: The true samples, `(n, c, *grid)`, on the distributions' grid.
        channel: Which of the c channels.
        noise: Variance of the observation noise, in physical units squared: a number, or one per channel `(c,)`.
        bins: Number of bins of an equal fraction of the domain.
        unit: Unit of the values.

    Returns:
        The figure. An error or standard deviation of zero is left out of its logarithmic axes.

    Raises:
        DataError: If there is no prediction, one is no distribution, `truth` is not a `Field`, or a value is not finite.
        GridError: If the grids differ.
        ShapeError: If the numbers of samples or channels differ.
        ArgumentError: If the channel is out of range, the bins are too many, or the noise is unusable.
    """
    compared = _compared(predictions, truth, noise)
    column = checked_position(channel, truth.channels, name="channel")
    figure = new_figure(WIDTH * 0.75, 4.2)
    panel = figure.subplots()
    panel.set_xscale("log", nonpositive="mask")
    panel.set_yscale("log", nonpositive="mask")
    ends: list[float] = []
    for number, (name, comparison) in enumerate(compared.items()):
        curve = spread_skill_curve(comparison, bins=bins)
        x, y = curve.spread[column].cpu().numpy(), curve.skill[column].cpu().numpy()
        ends += [float(value) for value in (*x, *y) if value > 0 and math.isfinite(value)]
        panel.plot(x, y, color=series_colour(number), marker=series_marker(number), markersize=4, linewidth=1.4, label=name)
    if ends:
        diagonal = [min(ends), max(ends)]
        panel.plot(diagonal, diagonal, color=ink(), linewidth=0.9, linestyle=DASHED, label="calibrated")
    panel.set(xlabel=with_unit("predictive standard deviation", unit), ylabel=with_unit("root mean squared error", unit))
    panel.legend(frameon=False, fontsize=8)
    return figure


def _compared(predictions: Mapping[str, FieldDistribution], truth: Field, noise: float | Tensor) -> dict[str, Comparison]:
    if not isinstance(predictions, Mapping) or not predictions:
        raise DataError(expected="predictions by name", got=repr(predictions), remedy='{"Laplace": predict(inputs)}')
    for name, u in predictions.items():
        check_instance(u, FieldDistribution, repr(name), remedy="plot what predictors return")
    return {
        f"{name} (uncalibrated)" if u.is_uncalibrated else name: compare(u, truth, noise=noise)
        for name, u in predictions.items()
    }


def series_colour(number: int) -> str:
    """The colour of one of several series."""
    return _COLOURS[number % len(_COLOURS)]


def series_marker(number: int) -> str:
    """Markers move on once the colours are used up, so that pairs stay apart."""
    return _MARKERS[(number + number // len(_COLOURS)) % len(_MARKERS)]


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
