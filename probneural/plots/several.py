"""Several predictors or loops side by side: fields, spread against skill, cost and errors by labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_instance, check_text
from probneural.distributions.base import FieldDistribution
from probneural.errors import DataError, GridError
from probneural.fields import Field
from probneural.functionals.base import check_labels
from probneural.grids import Grid
from probneural.metrics.comparison import Comparison, compare
from probneural.metrics.spread import spread_skill_curve
from probneural.plots.single import (
    BLUE,
    DASHED,
    ERROR_MAP,
    ORANGE,
    SKY,
    VALUE_MAP,
    VERMILION,
    WIDTH,
    check_axis_names,
    checked_position,
    draw_map,
    ink,
    limits,
    new_figure,
    with_unit,
)

if TYPE_CHECKING:
    import probneural.active.loop.history  # whose package imports BoTorch

_COLOURS = (BLUE, VERMILION, "#009E73", ORANGE, "#CC79A7", SKY)
_MARKERS = "osD^vP"


def fields(
    predictions: Mapping[str, FieldDistribution],
    truth: Field,
    *,
    index: int = 0,
    noise: float | Float[Tensor, "..."] = 0.0,
    labels: Sequence[str] | None = None,
    axes: Sequence[str] = ("x", "y"),
) -> Figure:
    """Draw one sample as several predictors see it: one row per predictor and channel.

    In a plane, each row has maps of the truth, the mean, |truth - mean| and the standard deviation; in three dimensions, of
    the slice in the middle of the last axis; on a line, curves of truth and mean with two standard deviations shaded, beside
    the error and the standard deviation. All rows of a channel share their scales. The standard deviation
    includes observation noise, √(variance + noise).

    Args:
        predictions: Distributions over the same n samples, by name.
        truth: The true samples, `(n, c, *grid)`, on the distributions' grid.
        index: Which of the n samples; negative numbers count from the end.
        noise: Variance of the observation noise, in physical units squared: a number, or one per channel `(c,)`.
        labels: Names of the channels, with their units.
        axes: Names of the coordinates, with their units.

    Returns:
        The figure.

    Raises:
        DataError: If there is no prediction, one is no distribution, `truth` is not a `Field`, or a value is not finite.
        ArgumentError: If the index is out of range, labels or axis names are too few, or the noise is unusable.
        GridError: If the grids differ, have more than three dimensions, or scattered points in three.
        ShapeError: If the numbers of samples or channels differ.
    """
    compared = _compared(predictions, truth, noise)
    row, channels = checked_position(index, len(truth), name="index"), truth.channels
    names = [f"channel {number}" if channels > 1 else "value" for number in range(channels)] if labels is None else labels
    names = check_labels(names, channels)
    grid, select = _plane(truth.grid)
    check_axis_names(axes, grid)
    count = len(compared) * channels
    figure = new_figure(10.0 if grid.dimension == 2 else WIDTH, 0.6 + 2.1 * count)
    panels = figure.subplots(count, 4 if grid.dimension == 2 else 2, squeeze=False, sharex=True)
    for channel in range(channels):
        parts = {
            name: tuple(values[row, channel][select].cpu() for values in (c.truth, c.mean, c.residual.abs(), c.variance.sqrt()))
            for name, c in compared.items()
        }
        rows = panels[channel * len(compared) : (channel + 1) * len(compared)]
        if grid.dimension == 2:
            _draw_maps(figure, rows, grid, parts, label=names[channel], axis=axes[1])
        else:
            _draw_curves(rows, grid, parts, label=names[channel])
    for panel in panels[-1]:
        panel.set_xlabel(axes[0])
    return figure


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


def cost(points: Mapping[str, tuple[float, float]], *, score: str = "score", axis: str = "time (s)", title: str = "") -> Figure:
    """Draw a score against its cost, one labelled point each.

    Cost is on a logarithmic axis; so are scores that are all positive and of more than one order of magnitude.

    Args:
        points: (seconds, score) by name; seconds positive.
        score: Name of the score, with its unit and direction.
        axis: Name of the cost in seconds.
        title: Above the figure.

    Returns:
        The figure.

    Raises:
        DataError: If there is no point, a value is not finite, or seconds are not positive.
    """
    pairs = list(points.values()) if isinstance(points, Mapping) else []
    are_pairs = [
        isinstance(pair, Sequence) and len(pair) == 2 and all(isinstance(part, Real) for part in pair) for pair in pairs
    ]
    if not pairs or not all(are_pairs) or not all(math.isfinite(x) and x > 0 and math.isfinite(y) for x, y in pairs):
        raise DataError(
            expected="points of finite positive seconds and finite scores", got=repr(points), remedy="leave failures out"
        )
    for name, text in (("score", score), ("axis", axis), ("title", title)):
        check_text(text, name)
    figure = new_figure(WIDTH, 3.6)
    panel = figure.subplots()
    panel.set_xscale("log")
    scores = [y for _, y in points.values()]
    if min(scores) > 0 and max(scores) > 10.0 * min(scores):
        panel.set_yscale("log")
    for number, (name, (x, y)) in enumerate(points.items()):
        panel.plot(
            [x], [y], linestyle="none", color=series_colour(number), marker=series_marker(number), markersize=6, label=name
        )
    panel.margins(x=0.1, y=0.15)
    figure.legend(loc="outside right upper", fontsize=8)  # beside the panel: good methods lie close together
    panel.set(xlabel=axis, ylabel=score, title=title)
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


def _plane(grid: Grid) -> tuple[Grid, tuple[int | slice, ...]]:
    """A grid of one or two dimensions, and its index: the middle slice of three dimensions."""
    if grid.dimension <= 2:
        return grid, (slice(None),)
    if grid.dimension > 3 or not grid.is_uniform:
        raise GridError(
            expected="a grid of one or two dimensions, or a uniform one of three",
            got=repr(grid),
            remedy="evaluate on a slice of it: query=pn.Grid.scattered(points, weights)",
        )
    plane_axes = grid.axes[:2]
    flat = Grid(shape=tuple(axis.size for axis in plane_axes), axes=plane_axes)
    return flat, (slice(None), slice(None), grid.shape[2] // 2)


_TITLES = ("truth", "mean", "|truth - mean|", "sd")
_Parts = Mapping[str, tuple[Tensor, ...]]
"""Truth, mean, size of the error and standard deviation, by predictor."""


def _draw_maps(figure: Figure, rows: NDArray[Any], grid: Grid, parts: _Parts, *, label: str, axis: str) -> None:
    values = limits([part for maps in parts.values() for part in maps[:2]])
    errors = Normalize(0.0, max(float(part.max()) for maps in parts.values() for part in maps[2:]) or 1.0)
    for panels, (name, maps) in zip(rows, parts.items(), strict=True):
        for number, (panel, title, part) in enumerate(zip(panels, _TITLES, maps, strict=True)):
            colours, scale = (VALUE_MAP, values) if number < 2 else (ERROR_MAP, errors)
            image = draw_map(panel, grid, values=part.numpy(), colours=colours, scaling=scale)
            panel.set_title(title, fontsize=10)
            panel.tick_params(labelleft=number == 0)
            if number % 2:
                figure.colorbar(image, ax=list(panels[number - 1 : number + 1]), label=label, pad=0.02)
        panels[0].set_ylabel(f"{name}\n{axis}")


def _draw_curves(rows: NDArray[Any], grid: Grid, parts: _Parts, *, label: str) -> None:
    order = grid.points[:, 0].argsort(stable=True)
    x = grid.points[order, 0].numpy()
    ends = [part for true, mean, _, sd in parts.values() for part in (true, mean - 2 * sd, mean + 2 * sd)]
    scale = limits(ends)
    low, high = scale.vmin or 0.0, scale.vmax or 0.0
    margin = 0.05 * (high - low)
    largest = max(float(part.max()) for maps in parts.values() for part in maps[2:])
    for (curves, deviations), (name, maps) in zip(rows, parts.items(), strict=True):
        true, mean, error, sd = (part[order].numpy() for part in maps)
        curves.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=SKY, alpha=0.35, linewidth=0, label="±2 sd")
        curves.plot(x, mean, color=BLUE, linewidth=1.6, label="mean")
        curves.plot(x, true, color=ink(), linewidth=1.3, linestyle=DASHED, label="truth")
        deviations.plot(x, error, color=VERMILION, linewidth=1.3, label="|truth - mean|")
        deviations.plot(x, sd, color=BLUE, linewidth=1.3, linestyle=DASHED, label="sd")
        curves.set_ylim(low - margin, high + margin)
        deviations.set_ylim(0.0, 1.05 * largest or 1.0)
        curves.set_ylabel(f"{name}\n{label}")
        for panel in (curves, deviations):
            panel.legend(frameon=False, fontsize=8)


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
