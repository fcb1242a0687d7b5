"""Quantities of interest: predicted functionals of fields, with the truth or data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from probneural.checks import check_finite, check_instance, check_integer, check_least, real_tensor
from probneural.distributions.base import FieldDistribution, check_values, index_grid, noise_variance
from probneural.errors import DataError, GridError
from probneural.fields import Field
from probneural.functionals.base import check_labels
from probneural.plots.single import BLUE, SKY, VERMILION, WIDTH, above_zero, checked_position, ink, new_figure, noted, with_unit

_MOST_PANELS = 12
"""Panels that a figure still has room for."""
_COLUMNS = 3


def quantity(
    u: FieldDistribution,
    truth: Tensor | None = None,
    *,
    channel: int = 0,
    level: float = 0.9,
    noise: float | Float[Tensor, "..."] = 0.0,
    labels: Sequence[str] | None = None,
    unit: str = "",
) -> Figure:
    """Draw central intervals of functionals of fields, with the truth or data.

    There is a pair of panels per quantity, values and their deviations from the mean, with one interval per sample, sorted by
    the truth, or else by the mean; of a single sample, one pair with one interval per quantity. Dots outside of their interval
    are marked, and the title counts those inside. If ten true values or more of a quantity are not negative, its intervals are
    cut at zero.

    Args:
        u: The result of `apply` or `apply_by_draws`: n samples, c channels, m values.
        truth: True or measured numbers, `(n, c, m)`, in the quantity's units, as `functional(truth.values)` gives them.
        channel: Index of the channel.
        level: Nominal level of the intervals, between 0 and 1.
        noise: Variance of the noise of measured numbers, in their units squared: a number, one per channel `(c,)`, or one per
            number `(n, c, m)`.
        labels: Names of the m quantities; those of the functional by default.
        unit: Unit of the values.

    Returns:
        The figure.

    Raises:
        DataError: If `u` is not a distribution, there are no samples, or a value is not finite.
        GridError: If `u` is a field rather than numbers.
        ShapeError: If the truth is not `(n, c, m)`.
        ArgumentError: If the channel is out of range, the level is not between 0 and 1, the noise is unusable, names
            are too few, or there are more than 12 quantities of several samples.
    """
    check_instance(u, FieldDistribution, "u", remedy="plot the result of u.apply(functional)")
    if u.grid != index_grid(u.grid.size):
        remedy = "push it forward first: pn.plots.quantity(u.apply(functional)); pn.plots.field draws fields"
        raise GridError(expected="the distribution of a functional's numbers", got=f"a field on {u.grid!r}", remedy=remedy)
    count, channels, size = u.mean.shape
    column = checked_position(channel, channels, name="channel")
    check_least(count, 1, "samples", remedy="predict some")
    if count > 1:
        check_integer(size, "count of quantities", most=_MOST_PANELS, remedy="plot fewer, or one sample: u[0]")
    label_list = u.labels if labels is None else labels
    names = tuple(map(str, range(size))) if label_list is None else check_labels(label_list, size)
    lower, upper = (end[:, column].detach().cpu() for end in u.interval(level, noise=noise))
    mean = u.mean[:, column].detach().cpu().double()
    for values, name in ((mean, "predicted means"), (upper - lower, "intervals")):
        check_finite(values, name)
    is_noisy = bool((noise_variance(noise, tuple(u.mean.shape), u.mean.detach())[:, column] > 0).any())
    true = None if truth is None else _checked_truth(truth, u)[:, column]
    lower, upper, interval = above_zero((lower, upper), f"{100 * level:g} % interval", truth=true)
    dots = "data" if is_noisy else "truth"
    series = _Series(mean=mean, lower=lower, upper=upper, truth=true, interval=interval, dots=dots)
    value = with_unit("value", unit)
    if count == 1:
        return noted(_one_function(series.row(0, slice(None)), names, value=value), u.is_uncalibrated)
    return noted(_many_functions(series, names, value=value), u.is_uncalibrated)


@dataclass(frozen=True, kw_only=True)
class _Series:
    """Intervals to draw, and labels of them and of the dots; tensors are `(n, m)`, or `(n,)` or `(m,)` of a row."""

    mean: Float64[Tensor, "*numbers"]
    lower: Float64[Tensor, "*numbers"]
    upper: Float64[Tensor, "*numbers"]
    truth: Float64[Tensor, "*numbers"] | None
    interval: str
    dots: str

    def row(self, index: Tensor | int, quantity: int | slice) -> _Series:
        """One quantity of samples, or one sample's quantities."""
        parts: dict[str, Any] = {name: part[index, quantity] for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **parts)

    @property
    def inside(self) -> Tensor:
        """Mask of the dots in their interval."""
        assert self.truth is not None
        return (self.lower <= self.truth) & (self.truth <= self.upper)


def _checked_truth(truth: object, u: FieldDistribution) -> Float64[Tensor, "n c m"]:
    if isinstance(truth, Field):
        raise DataError(expected="true numbers", got=repr(truth), remedy="push it forward too: functional(truth.values)")
    values = real_tensor(truth, "truth", dtype=torch.float64, device=torch.device("cpu")).detach()
    check_values(values, tuple(u.mean.shape), "truth")
    check_finite(values, "true values")
    return values


def _many_functions(series: _Series, names: Sequence[str], *, value: str) -> Figure:
    """Per quantity, values above their deviations from the mean, samples along the abscissa in the order of the values."""
    columns = min(_COLUMNS, len(names))
    rows = math.ceil(len(names) / columns)
    figure = new_figure(max(WIDTH, 3.6 * columns), 0.6 + 4.2 * rows)
    panels = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=(3, 2) * rows)
    sorted_by = "mean" if series.truth is None else series.dots
    for number, name in enumerate(names):
        values = series.mean[:, number] if series.truth is None else series.truth[:, number]
        places = values.argsort(stable=True)
        row, column = 2 * (number // columns), number % columns
        above, below = panels[row, column], panels[row + 1, column]
        _draw_pair(above, below, series.row(places, number))
        above.set_title(_counted(name, series.row(places, number)), fontsize=10)
        above.tick_params(labelbottom=False)
        below.set_xlabel(f"functions, sorted by {sorted_by}")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        if not column:
            above.set_ylabel(value)
            below.set_ylabel("deviation\nfrom the mean")
    for spare in range(len(names), rows * columns):
        for row in (-2, -1):
            panels[row, spare % columns].remove()
    _legend(figure)
    return figure


def _one_function(series: _Series, names: Sequence[str], *, value: str) -> Figure:
    """Quantities from top to bottom, values next to their deviations from the mean."""
    figure = new_figure(WIDTH + 0.8, 1.5 + 0.35 * len(names))
    first, second = figure.subplots(1, 2, sharey=True)
    _draw_pair(first, second, series, is_upright=False)
    first.set_yticks(range(len(names)), names)
    first.set_ylim(len(names) - 0.5, -0.5)
    first.set_xlabel(value)
    second.set_xlabel("deviation from the mean")
    if series.truth is not None:
        second.set_title(_counted("", series), fontsize=10)
    _legend(figure)
    return figure


def _counted(name: str, series: _Series) -> str:
    if series.truth is None:
        return name
    return f"{name}\n{int(series.inside.sum())} of {len(series.inside)} inside".lstrip()


def _draw_pair(first: Axes, second: Axes, series: _Series, *, is_upright: bool = True) -> None:
    """Intervals with their means and the dots, outside ones marked; in the second panel less the mean."""
    count = len(series.mean)
    along, width = np.arange(count), min(6.0, max(1.0, 160.0 / count))
    size = min(5.0, max(2.5, width))
    for panel, centre in ((first, torch.zeros_like(series.mean)), (second, series.mean)):
        bars = panel.vlines if is_upright else panel.hlines
        low, high = ((end - centre).numpy() for end in (series.lower, series.upper))
        bars(along, low, high, color=SKY, alpha=0.6, linewidth=width, label=series.interval)
        marks: list[tuple[Tensor, Tensor, str, str, str]] = [
            (series.mean, torch.ones(count, dtype=torch.bool), "_" if is_upright else "|", BLUE, "mean")
        ]
        if series.truth is not None:
            marks.append((series.truth, series.inside, "o", ink(), series.dots))
            marks.append((series.truth, ~series.inside, "o", VERMILION, f"{series.dots} outside"))
        for values, chosen, marker, colour, label in marks:
            places, numbers = along[chosen.numpy()], (values - centre)[chosen].numpy()
            x, y = (places, numbers) if is_upright else (numbers, places)
            if len(places):
                panel.plot(x, y, marker, color=colour, markersize=size, label=label)
        panel.ticklabel_format(axis="y" if is_upright else "x", scilimits=(-3, 4))


def _legend(figure: Figure) -> None:
    """One entry of a kind, of all panels, below everything."""
    entries: dict[str, Artist] = {}
    for panel in figure.axes:
        handles, labels = panel.get_legend_handles_labels()
        entries |= dict(zip(labels, handles, strict=True))
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=len(entries), frameon=False, fontsize=9
    )
