"""Figures that compare methods, from small summaries of the workers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

import probneural as pn
from probneural.metrics.comparison import Comparison
from probneural.metrics.reliability import LEVELS, coverage
from probneural.metrics.spread import spread_skill_curve
from probneural.plots.several import series_colour, series_marker
from probneural.plots.single import BLUE, ERROR_MAP, SKY, VALUE_MAP, VERMILION, WIDTH, draw_map, ink, new_figure

Numbers = NDArray[np.float64]
DASHES = (0, (4, 2))
ONE = "one function"
SIDE_BY_SIDE = "methods side by side"
HONESTY = "calibration, and error against stated deviation"
COST = "score against cost"


@dataclass(frozen=True)
class Sketch:
    """One method on one problem: its posterior on one test sample, and its calibration over all.

    Attributes:
        name: Operator and head.
        grid: Coordinates of the values.
        truth: The exact solution, `(*grid)`, of the first channel.
        mean: The posterior's mean, `(*grid)`.
        sd: The posterior's standard deviation with observation noise, `(*grid)`.
        covered: Fraction of values inside the central interval of each of `LEVELS`.
        spread: Predicted standard deviation in bins.
        skill: Root mean squared error in these bins.
    """

    name: str
    grid: pn.Grid
    truth: Numbers
    mean: Numbers
    sd: Numbers
    covered: Numbers
    spread: Numbers
    skill: Numbers

    @classmethod
    def of(cls, name: str, comparison: Comparison, grid: pn.Grid) -> Sketch:
        """Summarise a comparison at its first sample and channel."""
        curve = spread_skill_curve(comparison)
        parts = (comparison.truth, comparison.mean, comparison.variance.sqrt())
        truth, mean, sd = (part[0, 0].cpu().double().numpy() for part in parts)
        covered = np.array([float(coverage(comparison, level=level).mean()) for level in LEVELS])
        spread, skill = (values[0].cpu().double().numpy() for values in (curve.spread, curve.skill))
        return cls(name, grid, truth, mean, sd, covered, spread, skill)


def drawn(sketches: Sequence[Sketch], *, best: str | None, cost: Mapping[str, tuple[float, float]]) -> dict[str, bytes]:
    """All figures of one problem, by caption.

    Args:
        sketches: The methods, all on the same test samples.
        best: Name of the method with a separate figure, or None.
        cost: Seconds and CRPS of the methods, by name.
    """
    figures: dict[str, Figure] = {}
    flat = [sketch for sketch in sketches if sketch.grid.dimension <= 2]
    for sketch in flat:
        if sketch.name == best:
            figures[f"{ONE}: {best}"] = one(sketch)
    if flat:
        figures[SIDE_BY_SIDE] = side_by_side(flat)
    if sketches:
        figures[HONESTY] = honesty(sketches)
    if cost:
        figures[COST] = score_against_cost(cost)
    return {caption: pn.plots.png(figure, dpi=130.0) for caption, figure in figures.items()}


def score_against_cost(points: Mapping[str, tuple[float, float]]) -> Figure:
    """CRPS of each method against its seconds, both on logarithmic axes if CRPS varies by more than a factor of ten."""
    figure = new_figure(WIDTH, 3.6)
    panel = figure.subplots()
    panel.set_xscale("log")
    scores = [score for _, score in points.values()]
    if min(scores) > 0 and max(scores) > 10.0 * min(scores):
        panel.set_yscale("log")
    for number, (name, (seconds, score)) in enumerate(points.items()):
        marker = {"color": series_colour(number), "marker": series_marker(number), "markersize": 6}
        panel.plot([seconds], [score], linestyle="none", label=name, **marker)
    panel.margins(x=0.1, y=0.15)
    figure.legend(loc="outside right upper", fontsize=8)  # outside of the panel, where curves are close together
    panel.set(xlabel="training and fitting (seconds of one core)", ylabel="CRPS, lower is better")
    return figure


def one(sketch: Sketch) -> Figure:
    """Truth, mean and band of one method, and its error with the predicted deviation."""
    if sketch.grid.dimension == 2:
        return _one_map(sketch)
    figure = new_figure(8.0, 3.2)
    left, right = figure.subplots(1, 2)
    _band(left, sketch)
    _error(right, sketch)
    left.set_title("truth, mean and ±2 sd", fontsize=10)
    right.set_title("error beside its stated size", fontsize=10)
    for panel in (left, right):
        panel.set_xlabel("x")
        panel.legend(frameon=False, fontsize=8)
    right.set_ylim(0.0, 1.35 * float(max(_misses(sketch).max(), 2.0 * sketch.sd.max())) or 1.0)
    return figure


def _one_map(sketch: Sketch) -> Figure:
    """Truth and mean on one scale, error and predicted deviation on another."""
    figure = new_figure(9.0, 2.4)
    panels = figure.subplots(1, 4)
    pairs = ((sketch.truth, sketch.mean, VALUE_MAP), (_misses(sketch), sketch.sd, ERROR_MAP))
    names = iter(("truth", "mean", "|truth - mean|", "stated sd"))
    for first, (left, right, colours) in zip((0, 2), pairs, strict=True):
        low = 0.0 if first else float(min(left.min(), right.min()))
        scaling = Normalize(low, float(max(left.max(), right.max())) or 1.0)
        for panel, part in zip(panels[first : first + 2], (left, right), strict=True):
            image = draw_map(panel, sketch.grid, values=part, colours=colours, scaling=scaling)
            panel.set_title(next(names), fontsize=10)
            panel.set_xticks([])
            panel.set_yticks([])
        figure.colorbar(image, ax=list(panels[first : first + 2]), pad=0.02)
    return figure


def side_by_side(sketches: Sequence[Sketch]) -> Figure:
    """A column per method: posterior above, error and predicted deviation below."""
    return _maps(sketches) if sketches[0].grid.dimension == 2 else _curves(sketches)


def honesty(sketches: Sequence[Sketch]) -> Figure:
    """Coverage against level, and error against predicted deviation: on the diagonals if calibrated."""
    figure = new_figure(10.0, 3.9)
    left, right = figure.subplots(1, 2)
    left.plot([0, 1], [0, 1], color=ink(), linewidth=0.9, linestyle=DASHES, label="right")
    ends: list[float] = []
    for number, sketch in enumerate(sketches):
        style = {"color": series_colour(number), "marker": series_marker(number), "markersize": 4, "linewidth": 1.3}
        left.plot(LEVELS, sketch.covered, label=_folded(sketch.name), **style)  # type: ignore[arg-type]
        right.plot(sketch.spread, sketch.skill, **style)  # type: ignore[arg-type]
        ends += [float(value) for value in (*sketch.spread, *sketch.skill) if value > 0 and math.isfinite(value)]
    if ends:
        right.set_xscale("log", nonpositive="mask")
        right.set_yscale("log", nonpositive="mask")
        right.plot([min(ends), max(ends)], [min(ends), max(ends)], color=ink(), linewidth=0.9, linestyle=DASHES)
    left.set(xlim=(0, 1), ylim=(0, 1), xlabel="level of the central interval", ylabel="share of values inside")
    right.set(xlabel="stated standard deviation", ylabel="root mean squared error")
    left.set_title("calibration", fontsize=10)
    right.set_title("error against stated deviation", fontsize=10)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False, labelspacing=0.8)
    return figure


def _curves(sketches: Sequence[Sketch]) -> Figure:
    count = len(sketches)
    figure = new_figure(max(6.0, 2.35 * count), 4.6)
    panels = figure.subplots(2, count, squeeze=False, sharex=True, sharey="row", height_ratios=(3, 2))
    for column, sketch in enumerate(sketches):
        _band(panels[0, column], sketch)
        _error(panels[1, column], sketch, has_band=False)
        panels[0, column].set_title(_folded(sketch.name), fontsize=9)
        panels[1, column].set_xlabel("x")
    if any(part.max() > 0 for sketch in sketches for part in (_misses(sketch), sketch.sd)):
        panels[1, 0].set_yscale("log", nonpositive="mask")
        panels[1, 0].set_ylim(*_error_limits(sketches))
    panels[0, 0].set_ylabel("value")
    panels[1, 0].set_ylabel("error, stated sd")
    handles = [*panels[0, 0].get_legend_handles_labels()[0], *panels[1, 0].get_legend_handles_labels()[0]]
    labels = [*panels[0, 0].get_legend_handles_labels()[1], *panels[1, 0].get_legend_handles_labels()[1]]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=9)
    return figure


def _maps(sketches: Sequence[Sketch]) -> Figure:
    """Rows of means, errors and predicted deviations, with the truth first; errors and deviations share a logarithmic scale."""
    count = len(sketches)
    figure = new_figure(2.0 * (count + 1) + 1.6, 6.2)
    panels = figure.subplots(3, count + 1, squeeze=False, sharex=True, sharey=True)
    grid, truth = sketches[0].grid, sketches[0].truth
    shown = [truth, *(sketch.mean for sketch in sketches)]
    values = Normalize(float(min(part.min() for part in shown)), float(max(part.max() for part in shown)))
    lowest, highest = _error_limits(sketches)
    errors = LogNorm(lowest, highest)
    first = draw_map(panels[0, 0], grid, values=truth, colours=VALUE_MAP, scaling=values)
    panels[0, 0].set_title("truth", fontsize=9)
    second = first
    for column, sketch in enumerate(sketches, start=1):
        draw_map(panels[0, column], grid, values=sketch.mean, colours=VALUE_MAP, scaling=values)
        for row, part in ((1, _misses(sketch)), (2, sketch.sd)):
            second = draw_map(panels[row, column], grid, values=part.clip(lowest), colours=ERROR_MAP, scaling=errors)
        panels[0, column].set_title(_folded(sketch.name), fontsize=9)
    for panel in panels.flat:
        panel.set_xticks([])
        panel.set_yticks([])
    for row, name in enumerate(("mean", "|truth - mean|", "stated sd")):
        panels[row, 1].set_ylabel(name, fontsize=9)
    for row in (1, 2):
        panels[row, 0].remove()
    figure.colorbar(first, ax=list(panels[0]), pad=0.01, label="value")
    figure.colorbar(second, ax=[*panels[1, 1:], *panels[2, 1:]], pad=0.01, label="error, sd")
    return figure


def _error_limits(sketches: Sequence[Sketch]) -> tuple[float, float]:
    """Limits of logarithmic scales: a third of the least typical error or deviation, and the largest."""
    sizes = [part for sketch in sketches for part in (_misses(sketch), sketch.sd)]
    highest = max(float(part.max()) for part in sizes) or 1.0
    return max(0.3 * min(float(np.median(part)) for part in sizes), 1e-7 * highest), 2.0 * highest


def _band(panel: Axes, sketch: Sketch) -> None:
    x, (truth, mean, sd) = _ordered(sketch, sketch.truth, sketch.mean, sketch.sd)
    panel.fill_between(x, mean - 2 * sd, mean + 2 * sd, color=SKY, alpha=0.45, linewidth=0, label="±2 sd")
    panel.plot(x, mean, color=BLUE, linewidth=1.5, label="mean")
    panel.plot(x, truth, color=ink(), linewidth=1.2, linestyle=DASHES, label="truth")


def _error(panel: Axes, sketch: Sketch, *, has_band: bool = True) -> None:
    x, (error, sd) = _ordered(sketch, _misses(sketch), sketch.sd)
    if has_band:
        panel.fill_between(x, 0.0 * sd, 2.0 * sd, color=SKY, alpha=0.3, linewidth=0, label="up to 2 sd")
    panel.plot(x, error, color=VERMILION, linewidth=1.3, label="|truth - mean|")
    panel.plot(x, sd, color=BLUE, linewidth=1.3, linestyle=DASHES, label="stated sd")


def _misses(sketch: Sketch) -> Numbers:
    return np.abs(sketch.truth - sketch.mean)


def _ordered(sketch: Sketch, *parts: Numbers) -> tuple[Numbers, list[Numbers]]:
    """Sorted coordinates along a line, and values in that order."""
    order = sketch.grid.points[:, 0].argsort(stable=True).numpy()
    return sketch.grid.points[:, 0].numpy()[order], [part[order] for part in parts]


def _folded(name: str) -> str:
    """Operator and head on separate lines."""
    return name.replace(", ", "\n")
