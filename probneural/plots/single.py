"""Plots of one prediction, its band and its calibration, and of the losses of one training run."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import matplotlib
import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.tri import Triangulation
from numpy.typing import NDArray
from torch import Tensor

from probneural import checks
from probneural.calibration.bands.conformal import BandField
from probneural.distributions.base import FieldDistribution, noise_variance
from probneural.errors import ArgumentError, GridError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics.comparison import Comparison, checked_values, compare
from probneural.metrics.reliability import LEVELS, calibration_error, level_coverages, pit_histogram
from probneural.training.callbacks import History

# Colours of Okabe and Ito, distinct for every kind of colour vision; colour maps of monotone lightness.
BLUE, SKY, ORANGE, VERMILION = "#0072B2", "#56B4E9", "#E69F00", "#D55E00"
VALUE_MAP, ERROR_MAP = "viridis", "cividis"
DASHED = (0, (4, 2))
"""Line style of truths and references."""
WIDTH = 6.4
"""Figure width in inches: a column of text at 9 points."""
_POSITIVE = 10
"""Least number of samples without negative values that make a quantity positive."""
_BINS = 20
_DRAWS = 3
"""Number of draws in one dimension; in two dimensions the first is shown."""


def field(
    u: FieldDistribution,
    truth: Field | None = None,
    *,
    index: int = 0,
    channel: int = 0,
    noise: float | Float[Tensor, "..."] = 0.0,
    level: float = 0.9,
    label: str = "value",
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw one predicted sample.

    In one dimension: truth, mean, central interval and three draws, and below them their deviations from the mean. In two:
    maps of truth, mean and one draw on one colour scale, and of |truth - mean| and the standard deviation on another, with
    latitudes upward. Draws are without observation noise; interval and standard deviation include it. If ten true samples or
    more have no negative values, the interval is cut at zero, and labelled so.

    Args:
        u: The distribution, of n samples with c channels, without observation noise.
        truth: The true samples, `(n, c, *grid)`, on the distribution's grid.
        index: Index of the sample; negative numbers count from the end.
        channel: Index of the channel.
        noise: Variance of the observation noise, in physical units squared: a number, or one per channel `(c,)`.
        level: Nominal level of the interval, between 0 and 1.
        label: Name of the values, with their unit: "velocity (m/s)".
        axes: Names of the coordinates, with their units: "x (m)", "t (s)"; those of the grid by default.

    Returns:
        The figure.

    Raises:
        ArgumentError: If index or channel is out of range, the level is not between 0 and 1, `axes` has
            fewer names than the grid dimensions, or the noise is negative or of another shape.
        GridError: If the grid has neither one nor two dimensions, or the truth has a different grid.
        ShapeError: If the numbers of samples or channels differ.
        DataError: If `u` is not a distribution, `truth` is not a `Field`, or a value is not finite.
    """
    checks.check_instance(u, FieldDistribution, "u", remedy="plot what a predictor returns")
    names = axis_names(axes, u.grid, label=label)
    shape = tuple(u.mean.shape)
    row, channel = checked_position(index, shape[0], name="index"), checked_position(channel, shape[1], name="channel")
    level = checks.check_real(level, "level", above=0.0, below=1.0)
    true, truths = _checked_truth(truth, u.grid, shape=shape, row=row, channel=channel)
    predicted = u[row]
    observed = noise_variance(noise, shape, u.mean.detach())[row : row + 1]
    mean = _one(predicted.mean, 0, channel)
    sd = _one(predicted.variance.detach().double() + observed, 0, channel).sqrt()
    drawn = predicted.rsample(torch.Size([_DRAWS]), seed=0)[:, 0, channel].detach().cpu().double()
    for values, name in ((mean, "predicted means"), (sd, "predicted variances")):
        checks.check_finite(values, name)
    noisy = bool((observed[:, channel] > 0).any())
    grid = predicted.grid.first
    mean, sd, drawn = (part[..., : grid.size] for part in (mean, sd, drawn))  # without padding
    true = None if true is None else true[..., : grid.size]
    if grid.dimension == 2:
        spread, sample = "sd with noise" if noisy else "sd", Sample(grid, mean, truth=true, draws=drawn[:1])
        return noted(draw_planes(sample, sd, spread=spread, label=label, axes=names), u.is_uncalibrated)
    ends = [_one(end, 0, channel)[..., : grid.size] for end in predicted.interval(level, noise=observed)]
    shade = above_zero(ends, f"{100 * level:g} % interval" + (" with noise" if noisy else ""), truth=truths)
    return noted(_curves(Sample(grid, mean, truth=true, draws=drawn), shade, label=label, axis=names[0]), u.is_uncalibrated)


def band(
    bands: BandField,
    truth: Field | None = None,
    *,
    index: int = 0,
    channel: int = 0,
    label: str = "value",
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw one band and the points of the truth outside it.

    In one dimension, a shaded band, cut at zero and labelled so if ten true samples or more have no negative values; in two,
    maps of truth and mean, and of |truth - mean| and the band's half width, with a dot at each point outside, and latitudes
    upward.

    Args:
        bands: Bands of a calibrated [`Band`][probneural.calibration.bands.conformal.Band] for n samples.
        truth: The true samples, `(n, c, *grid)`, on the bands' grid.
        index: Index of the sample; negative numbers count from the end.
        channel: Index of the channel. A sample is inside a simultaneous band only if all its channels are.
        label: Name of the values, with their unit: "velocity (m/s)".
        axes: Names of the coordinates, with their units: "x (m)"; those of the grid by default.

    Returns:
        The figure.

    Raises:
        ArgumentError: If index or channel is out of range, or `axes` has too few names.
        GridError: If the grid has neither one nor two dimensions, or the truth has a different grid.
        ShapeError: If the numbers of samples or channels differ.
        DataError: If `bands` is not a `BandField`, `truth` is not a `Field`, or a value is not finite.
    """
    checks.check_instance(bands, BandField, "bands", remedy="call a fitted band: band(inputs)")
    names = axis_names(axes, bands.grid, label=label)
    shape = tuple(bands.mean.shape)
    row, channel = checked_position(index, shape[0], name="index"), checked_position(channel, shape[1], name="channel")
    true, truths = _checked_truth(truth, bands.grid, shape=shape, row=row, channel=channel)
    mean, half = (_one(part, row, channel) for part in (bands.mean, bands.half_width))
    grid = bands.grid.select(slice(row, row + 1)).first
    mean, half = mean[..., : grid.size], half[..., : grid.size]  # without padding
    true = None if true is None else true[..., : grid.size]
    outside = None if true is None else (true - mean).abs() > half
    for values, name in ((mean, "predicted means"), (half, "half widths")):
        checks.check_finite(values, name)
    sample = Sample(grid, mean, truth=true, outside=outside)
    if grid.dimension == 2:
        return draw_planes(sample, half, spread="half width", label=label, axes=names)
    shade = above_zero((mean - half, mean + half), "band", truth=truths)
    return _curves(sample, shade, label=label, axis=names[0])


def calibration(u: FieldDistribution, truth: Field, *, noise: float | Float[Tensor, "..."] = 0.0) -> Figure:
    """Draw the coverage of central intervals against their level, and a histogram of the probability integral transform.

    Both average over samples, channels and, by quadrature, the domain; shading and the bars' whiskers are two
    standard errors over the samples (values within one sample are dependent). A calibrated prediction lies on the diagonal
    and has a flat histogram; an over-confident one lies below it, with a histogram that is high at both ends.

    Args:
        u: The distribution, of n samples with c channels, without observation noise.
        truth: The true samples, `(n, c, *grid)`, on the distribution's grid.
        noise: Variance of the observation noise in `truth`, in physical units squared: a number, or one per channel `(c,)`.

    Returns:
        The figure.

    Raises:
        DataError: If `u` is not a distribution, `truth` is not a `Field`, there are no samples, or a value is not finite.
        GridError: If the grids differ.
        ShapeError: If the numbers of samples or channels differ.
        ArgumentError: If the noise is negative, not finite, or of another shape.
        UnsupportedError: If the distribution is neither Gaussian nor empirical.
    """
    checks.check_instance(u, FieldDistribution, "u", remedy="plot what a predictor returns")
    comparison = compare(u, truth, noise=noise)
    figure = new_figure(WIDTH, 3.1)
    first, second = figure.subplots(1, 2)
    _reliability(first, comparison)
    _transform(second, pit_histogram(comparison, bins=_BINS))
    return noted(figure, u.is_uncalibrated)


def training(history: History) -> Figure:
    """Draw losses by epoch on a logarithmic axis, and mark the epoch of the restored weights, if any.

    Args:
        history: The history of [`fit`][probneural.training.trainer.fit].

    Returns:
        The figure. A loss that is not positive and finite leaves a gap.

    Raises:
        DataError: If `history` is not a `History`, or holds no epoch.
    """
    checks.check_instance(history, History, "history", remedy="plot what pn.fit returned")
    checks.check_least(len(history.train), 1, "epochs", remedy="train first")
    figure = new_figure(WIDTH, 3.0)
    axes = figure.subplots()
    axes.set_yscale("log", nonpositive="mask")
    for losses, colour, name in ((history.train, BLUE, "training"), (history.validation, VERMILION, "validation")):
        if losses:
            marker = "o" if len(losses) < 5 else None
            axes.plot(range(1, len(losses) + 1), losses, color=colour, linewidth=1.5, marker=marker, markersize=4, label=name)
    if history.restored is not None:
        axes.axvline(history.restored, color=ORANGE, linewidth=1.5, label=f"weights of epoch {history.restored}")
    axes.set(xlim=(0.5, history.epochs + 0.5), xlabel="epoch", ylabel="loss")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    legend_above(figure, axes)
    return figure


def png(figure: Figure, *, dpi: float = 200.0) -> bytes:
    """Render a figure; the same figure gives the same bytes.

    Args:
        figure: Matplotlib figure.
        dpi: Pixels per inch, from 10 to 2000; 200 is sharp at twice the figure's size.

    Returns:
        A PNG image.

    Raises:
        ArgumentError: If `dpi` is out of range.
    """
    checks.check_instance(figure, Figure, "figure", remedy="render what a plot returned")
    dpi = checks.check_real(dpi, "dpi", least=10.0, most=2000.0)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=dpi, metadata={"Software": None})
    return stream.getvalue()


def axis_names(axes: Sequence[str] | None, grid: Grid, *, label: str) -> list[str]:
    """Names of the horizontal and the vertical axis, in one dimension of the one axis; by default the grid's.

    Raises a GridError above two dimensions, or an ArgumentError unless every axis has a name and the label is a string.
    """
    if grid.dimension > 2:
        remedy = "evaluate on a slice of it: query=pn.Grid.scattered(points, weights)"
        raise GridError(expected="a grid of dimension 1 or 2", got=repr(grid), remedy=remedy)
    checks.check_text(label, "label")
    if axes is None:
        angles = ["longitude" if axis.latitudes is None else "latitude" for axis in grid.axes]
        words = [f"{angle} (degrees)" for angle in angles] if "latitude" in angles else ["x", "y"]
        axes = [with_unit(axis.name, axis.unit) or word for axis, word in zip(grid.axes, words, strict=False)] or words
    names = checks.check_sequence(axes, "axis names", remedy="name every coordinate")
    if len(names) < grid.dimension or not all(isinstance(name, str) for name in names):
        raise ArgumentError(expected=f"{grid.dimension} axis names", got=repr(axes), remedy="name every coordinate")
    return [names[number] for number in _upright(grid)[: grid.dimension]]


def _upright(grid: Grid) -> tuple[int, int]:
    """Numbers of the horizontal and the vertical axis: latitude is vertical, and otherwise the second axis."""
    return (1, 0) if grid.dimension == 2 and grid.axes and grid.axes[0].latitudes is not None else (0, 1)


def above_zero(
    ends: Sequence[Float64[Tensor, "*values"]], name: str, *, truth: Float64[Tensor, "n *quantities"] | None
) -> tuple[Float64[Tensor, "*values"], Float64[Tensor, "*values"], str]:
    """Ends of intervals, cut at zero if ten or more true samples are never negative, and their name, which says so.

    Args:
        ends: Lower and upper ends.
        name: Name of the intervals.
        truth: Smallest true value in each sample.
    """
    lower, upper = ends
    if truth is None or len(truth) < _POSITIVE:
        return lower, upper, name
    below, above = (torch.where((truth.amin(0) >= 0) & (end < 0), 0.0, end) for end in ends)
    return below, above, name if torch.equal(below, lower) else f"{name}, cut at 0"


def tint(strength: float) -> tuple[float, ...]:
    """A colour between the background and blue, opaque: overlapping shades look as in the legend."""
    colours = (np.array(to_rgb(colour)) for colour in (BLUE, matplotlib.rcParams["axes.facecolor"]))
    return tuple(np.average(list(colours), axis=0, weights=(strength, 1.0 - strength)))


def with_unit(name: str, unit: str) -> str:
    """A name followed by its unit in brackets, if there is one."""
    return f"{name} ({unit})" if checks.check_text(unit, "unit") else name


def checked_position(number: int, count: int, *, name: str) -> int:
    """A position counted from the start, or an ArgumentError."""
    return checks.check_integer(number, name, least=-count, most=count - 1) % count


def _one(values: Float[Tensor, "n c *grid"], row: int, channel: int) -> Float64[Tensor, "*grid"]:
    """One channel of one sample, detached, on the CPU."""
    return values[row, channel].detach().cpu().double()


def _checked_truth(
    truth: Field | None, grid: Grid, *, shape: tuple[int, ...], row: int, channel: int
) -> tuple[Float64[Tensor, "*grid"] | None, Float64[Tensor, " n"] | None]:
    """One channel of one true sample, and the smallest values of the channel in all samples."""
    if truth is None:
        return None, None
    values = checked_values(truth, "truth", grid=grid, shape=shape)[:, channel].detach().cpu().double()
    return values[row], values.flatten(1).amin(1)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure that is not registered with pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def noted(figure: Figure, is_uncalibrated: bool) -> Figure:
    """The figure; an uncalibrated prediction is labelled "uncalibrated" in the lower right corner."""
    if is_uncalibrated:
        figure.supxlabel("uncalibrated", x=0.99, ha="right", fontsize=9)
    return figure


def ink() -> str:
    """The text colour of the user's style, visible on dark backgrounds."""
    return str(matplotlib.rcParams["text.color"])


def legend_above(figure: Figure, axes: Axes) -> None:
    """Put the legend above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=9, columnspacing=1.2)


@dataclass(frozen=True, eq=False)
class Sample:
    """One channel of one predicted sample.

    Attributes:
        outside: Points where the truth leaves a band.
    """

    grid: Grid
    mean: Float64[Tensor, "*grid"]
    _: KW_ONLY
    truth: Float64[Tensor, "*grid"] | None = None
    draws: Float64[Tensor, "s *grid"] | tuple[()] = ()
    outside: Bool[Tensor, "*grid"] | None = None


def _curves(
    sample: Sample, shade: tuple[Float64[Tensor, "*grid"], Float64[Tensor, "*grid"], str], *, label: str, axis: str
) -> Figure:
    """Curves above their deviations from the mean, with the interval shaded in both."""
    grid, mean, truth, draws, outside = sample.grid, sample.mean, sample.truth, sample.draws, sample.outside
    *edges, name = shade
    order = grid.points[:, 0].argsort(stable=True)
    x = grid.points[order, 0].numpy()
    figure = new_figure(WIDTH, 4.8)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    for axes, centre in ((above, torch.zeros_like(mean)), (below, mean)):
        lower, upper = ((edge - centre)[order] for edge in edges)
        axes.fill_between(x, lower.numpy(), upper.numpy(), color=SKY, alpha=0.35, linewidth=0, label=name)
        for number, draw in enumerate(draws):
            axes.plot(x, (draw - centre)[order].numpy(), color=ORANGE, linewidth=0.9, label=None if number else "draws")
        axes.plot(x, (mean - centre)[order].numpy(), color=BLUE, linewidth=1.6, label="mean")
        if truth is None:
            continue
        axes.plot(x, (truth - centre)[order].numpy(), color=ink(), linewidth=1.3, linestyle=DASHED, label="truth")
        if outside is not None and bool(outside.any()):
            excluded = outside[order]
            shown = f"outside at {int(excluded.sum())} of {excluded.numel()} points"
            positions, deviations = x[excluded.numpy()], (truth - centre)[order][excluded].numpy()
            axes.plot(positions, deviations, ".", color=VERMILION, markersize=6, label=shown)
    above.set_ylabel(label)
    below.set(xlabel=axis, ylabel="deviation\nfrom the mean")
    if x[0] < x[-1]:
        below.set_xlim(x[0], x[-1])
    for axes in (above, below):
        axes.ticklabel_format(axis="y", scilimits=(-3, 4))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, min_n_ticks=4))
    legend_above(figure, above)
    return figure


def draw_planes(sample: Sample, sd: Float64[Tensor, "*grid"], *, spread: str, label: str, axes: Sequence[str]) -> Figure:
    """Maps in two rows, values above errors, one colour scale per row."""
    grid, mean, truth, outside = sample.grid, sample.mean, sample.truth, sample.outside
    values = {} if truth is None else {"truth": truth}
    values |= {"mean": mean} | dict(zip(["one draw"], sample.draws, strict=False))
    errors = {} if truth is None else {"|truth - mean|": (truth - mean).abs()}
    errors[spread] = sd
    columns = max(len(values), len(errors))
    figure = new_figure(max(WIDTH, 2.7 * columns), 5.2)
    panels = figure.subplots(2, columns, squeeze=False)
    rows = (
        (panels[0], values, VALUE_MAP, limits(values.values()), label),
        (panels[1], errors, ERROR_MAP, Normalize(0.0, max(float(part.max()) for part in errors.values()) or 1.0), label),
    )
    for row, maps, colours, scaling, name in rows:
        used = row[: len(maps)]
        for panel, (title, part) in zip(used, maps.items(), strict=True):
            image = draw_map(panel, grid, values=part.numpy(), colours=colours, scaling=scaling)
            panel.set_title(title, fontsize=10)
            panel.set_xlabel(axes[0])
        for panel in used[1:]:
            panel.tick_params(labelleft=False)
        used[0].set_ylabel(axes[1])
        scale = used[-1].inset_axes((1.04, 0.0, 0.06, 1.0))  # as tall as the map, unlike a separate colour bar
        scale.set_in_layout(len(used) == columns)  # an empty cell beside it leaves room already
        figure.colorbar(image, cax=scale, label=name)
        for panel in row[len(maps) :]:
            panel.remove()
    if outside is not None:
        x, y = grid.points[outside.flatten()].numpy().T[list(_upright(grid))]
        panels[1, 0].plot(x, y, ".", color=VERMILION, markersize=3)
        panels[1, 0].set_title(f"|truth - mean|, outside at {int(outside.sum())} of {outside.numel()}", fontsize=10)
    return figure


def limits(maps: Collection[Float64[Tensor, "*grid"]]) -> Normalize:
    """One colour scale for all maps."""
    low, high = min(float(part.min()) for part in maps), max(float(part.max()) for part in maps)
    return Normalize(low, high) if low < high else Normalize(low - 0.5, low + 0.5)


def draw_map(axes: Axes, grid: Grid, *, values: NDArray[np.float64], colours: str, scaling: Normalize) -> ScalarMappable:
    """Two-dimensional values: cells centred on uniform grid points, triangles of a mesh, dots at scattered points."""
    if not grid.is_uniform:
        x, y = grid.points.numpy().T
        axes.set_aspect(_aspect(np.ptp(x), np.ptp(y)))
        if grid.cells is not None and grid.cells.shape[1] == 3:
            return axes.tripcolor(
                Triangulation(x, y, grid.cells.numpy()), values, cmap=colours, norm=scaling, shading="gouraud"
            )
        return axes.scatter(x, y, c=values, cmap=colours, norm=scaling, s=12, linewidths=0)
    edges: list[float] = []
    for axis in (grid.axes[number] for number in _upright(grid)):
        points = axis.coordinates
        half = 0.5 * float(points[1] - points[0] if axis.size > 1 else axis.length)
        edges += [float(points[0]) - half, float(points[-1]) + half]
    west, east, bottom, top = edges
    aspect = _aspect(east - west, top - bottom)
    values = values.transpose(_upright(grid)[::-1])
    return axes.imshow(values, origin="lower", extent=(west, east, bottom, top), aspect=aspect, cmap=colours, norm=scaling)


def _aspect(width: float, height: float) -> Literal["equal", "auto"]:
    """Aspect ratio: equal units along both axes, except for elongated domains such as long space-time domains."""
    return "equal" if 1.0 <= 3.0 * width / max(height, 1e-300) <= 9.0 else "auto"


def _reliability(axes: Axes, comparison: Comparison) -> None:
    fractions = level_coverages(comparison).mean(2).cpu()  # (levels, n)
    observed, spread = _mean_and_error(fractions)
    error = float(calibration_error(comparison).mean())
    axes.plot([0, 1], [0, 1], color=ink(), linewidth=0.9, linestyle=DASHED, label="calibrated")
    low, high = np.clip((observed - spread, observed + spread), 0.0, 1.0)
    axes.fill_between(LEVELS, low, high, color=SKY, alpha=0.35, linewidth=0, label="±2 s.e.")
    axes.plot(LEVELS, observed, color=BLUE, linewidth=1.5, marker="o", markersize=3, label="observed")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="level of central interval", ylabel="fraction inside")
    axes.set_title(f"calibration error {error:.2g}", fontsize=10)
    axes.legend(loc="upper left", frameon=False, fontsize=8)


def _transform(axes: Axes, histogram: Float64[Tensor, "n c bins"]) -> None:
    """A histogram of the probability integral transform, with two standard errors over the samples."""
    density, spread = _mean_and_error(histogram.mean(1).mT.cpu())
    bins = len(density)
    centres = (np.arange(bins) + 0.5) / bins
    axes.bar(centres, density, width=1 / bins, color=SKY, edgecolor=BLUE, linewidth=0.6)
    axes.errorbar(centres, density, yerr=(np.minimum(spread, density), spread), fmt="none", ecolor=BLUE, elinewidth=1.0)
    axes.axhline(1.0, color=ink(), linewidth=0.9, linestyle=DASHED)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="probability integral transform", ylabel="density")
    axes.set_title("flat if calibrated", fontsize=10)


def _mean_and_error(fractions: Float64[Tensor, "k n"]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean over the samples and two standard errors; no error for a single sample."""
    count = fractions.shape[1]
    error = 2.0 * fractions.std(1) / count**0.5 if count > 1 else torch.zeros_like(fractions[:, 0])
    return fractions.mean(1).numpy(), error.numpy()
