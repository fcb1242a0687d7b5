"""Functions of a forecast: fans of a quantity over the leads, maps over space and time, and snapshots in the plane."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from probneural.checks import check_instance, check_integer
from probneural.distributions.base import FieldDistribution, noise_variance
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.errors import GridError
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid
from probneural.metrics.lead_alignment import TrueTrajectories, aligned
from probneural.metrics.lead_table import checked_times, spread_leads
from probneural.plots import single

_LEVELS = {0.5: 0.55, 0.9: 0.2}
"""Levels of a fan's intervals, and strength of their colour."""
_SNAPSHOTS = 4
"""Leads that a figure of maps has room for."""


def fan(
    forecast: Forecast,
    functional: Functional,
    *,
    truth: TrueTrajectories | None = None,
    index: int = 0,
    channel: int = 0,
    draws: int = 5,
    noise: float | Float[Tensor, "..."] = 0.0,
    times: Sequence[float] | Tensor | None = None,
) -> Figure:
    """Draw a quantity of one sample over the leads: its central intervals at 50 and 90 %, its mean, draws, and the truth.

    A draw is the same member, or the same latent, at all leads. The intervals are for each lead by itself. If ten true
    trajectories or more have no negative values, intervals are cut at zero, and labelled so.

    Args:
        forecast: Forecast of n samples.
        functional: The quantity, one number of a state: the value at a point, `pn.functionals.sensors(grid, [[0.25]])`, an
            integral. The first of several.
        truth: The true trajectories.
        index: Number of the sample; negative numbers count from the end.
        channel: Index of the channel.
        draws: Number of draws.
        noise: Variance of the noise of the measured quantity, in its units squared.
        times: Time of each lead, `(steps,)`, since the start; the number of the lead by default.

    Returns:
        The figure.

    Raises:
        DataError: If the forecast is invalid, or a value is not finite.
        ArgumentError: If index or channel is out of range, `draws` is negative, or the noise is unusable.
        GridError: If the functional has another grid.
        ShapeError: If there is not one time per lead.
    """
    _check_forecast(forecast)
    check_functional(functional, grid=forecast.grid)
    row, draws = single.checked_position(index, len(forecast), name="index"), check_integer(draws, "draws", least=0)
    parts: list[list[Tensor]] = []
    truths: list[Tensor] = []
    states = None if truth is None else aligned(forecast, truth)
    for lead, u in _states(forecast):
        values = u[row].apply(functional)
        column = single.checked_position(channel, values.mean.shape[1], name="channel")
        ends = [end for level in _LEVELS for end in values.interval(level, noise=noise if lead else 0.0)]
        drawn = functional(u[row].rsample(torch.Size([draws]), seed=0))[:, 0, column, 0]
        rows = [part[0, column, 0] for part in (values.mean, *ends)]
        if states is not None:
            truths.append(functional(states.at(lead)[:].values)[:, column, 0].detach().cpu().double())
            rows.append(truths[-1][row])
        parts.append([*rows, *drawn])
    curves = [torch.stack([part.detach().cpu().double() for part in column]) for column in zip(*parts, strict=True)]
    where = np.concatenate([[0.0], checked_times(times, forecast.steps).numpy()])
    figure = single.new_figure(single.WIDTH, 3.4)
    axes = figure.subplots()
    first = 1 + 2 * len(_LEVELS) + (truth is not None)
    smallest = torch.stack(truths).amin(0) if truths else None
    for number, (level, strength) in reversed([*enumerate(_LEVELS.items())]):
        ends, name = curves[1 + 2 * number : 3 + 2 * number], f"{100 * level:g} % interval"
        lower, upper, name = single.above_zero(ends, name, truth=smallest)
        axes.fill_between(where, lower.numpy(), upper.numpy(), color=single.tint(strength), linewidth=0, label=name)
    for number, draw in enumerate(curves[first:]):
        axes.plot(where, draw.numpy(), color=single.ORANGE, linewidth=0.9, label=None if number else "draws")
    axes.plot(where, curves[0].numpy(), color=single.BLUE, linewidth=1.6, label="mean")
    if truth is not None:
        axes.plot(where, curves[first - 1].numpy(), color=single.ink(), linewidth=1.3, linestyle=single.DASHED, label="truth")
    name = "value" if functional.labels is None else functional.labels[0]
    axes.set(xlabel="lead" if times is None else "time", ylabel=name, xlim=(where[0], where[-1]))
    if times is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.ticklabel_format(axis="y", scilimits=(-3, 4))
    single.legend_above(figure, axes)
    return single.noted(figure, u.is_uncalibrated)


def space_time(
    forecast: Forecast,
    truth: TrueTrajectories | None = None,
    *,
    index: int = 0,
    channel: int = 0,
    noise: float | Float[Tensor, "..."] = 0.0,
    label: str = "value",
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw one sample of a forecast on a line as maps over space and time: truth, mean, a draw; error and deviation.

    The draw is the same member, or the same latent, at all leads. A forecast in the plane is drawn by
    [`snapshots`][probneural.plots.snapshots].

    Args:
        forecast: Forecast of n samples on a one-dimensional uniform grid.
        truth: The true trajectories.
        index: Number of the sample; negative numbers count from the end.
        channel: Index of the channel.
        noise: Variance of the observation noise, in physical units squared: a number, or one per channel `(c,)`.
        label: Name of the values, with their unit: "velocity (m/s)".
        axes: Name of the coordinate, with its unit: "x (m)"; that of the grid by default.

    Returns:
        The figure.

    Raises:
        DataError: If the forecast is invalid, or a value is not finite.
        GridError: If the grid is not uniform and one-dimensional.
        ArgumentError: If index or channel is out of range, or the noise is unusable.
    """
    grid = _check_forecast(forecast).grid
    if grid.dimension != 1 or not grid.is_uniform:
        raise GridError(expected="a uniform grid of one dimension", got=repr(grid), remedy="plots.snapshots(forecast)")
    names = single.axis_names(axes, grid, label=label)
    columns: dict[str, list[Tensor]] = {}
    for u, column, maps in _maps(forecast, truth, index=index, channel=channel, noise=noise, leads=range(forecast.steps + 1)):
        maps["draw"] = u.rsample(torch.Size([1]), seed=0)[0, 0, column].detach().cpu().double()
        for name, part in maps.items():
            columns.setdefault(name, []).append(part)
    (along,) = grid.axes
    plane = Grid.uniform(
        (along.size, forecast.steps + 1),
        lengths=(along.length, float(forecast.steps)),
        periodic=(along.periodic, False),
        endpoint=(along.endpoint, True),
        origin=(along.origin, 0.0),
    )
    stacked = {name: torch.stack(parts, dim=1) for name, parts in columns.items()}
    sample = single.Sample(plane, stacked["mean"], truth=stacked.get("truth"), draws=stacked["draw"][None])
    figure = single.draw_planes(sample, stacked["sd"], spread="sd", label=label, axes=(names[0], "lead"))
    return single.noted(figure, u.is_uncalibrated)


def snapshots(
    forecast: Forecast,
    truth: TrueTrajectories | None = None,
    *,
    index: int = 0,
    channel: int = 0,
    noise: float | Float[Tensor, "..."] = 0.0,
    label: str = "value",
    axes: Sequence[str] | None = None,
) -> Figure:
    """Draw one sample of a forecast in a plane as maps at up to four leads: truth, mean, error, deviation, a column per lead.

    Rows of values share one colour scale, rows of deviations another one, over all leads. Latitudes are drawn upward.

    Args:
        forecast: Forecast of n samples in two dimensions, on a uniform grid or at scattered points.
        truth: The true trajectories.
        index: Number of the sample; negative numbers count from the end.
        channel: Index of the channel.
        noise: Variance of the observation noise, in physical units squared: a number, or one per channel `(c,)`.
        label: Name of the values, with their unit: "vorticity (1/s)".
        axes: Names of the coordinates, with their units; those of the grid by default.

    Returns:
        The figure.

    Raises:
        DataError: If the forecast is invalid, or a value is not finite.
        GridError: If the grid has not two dimensions.
        ArgumentError: If index or channel is out of range, or the noise is unusable.
    """
    grid = _check_forecast(forecast).grid
    if grid.dimension != 2:
        raise GridError(expected="a grid of two dimensions", got=repr(grid), remedy="plots.space_time(forecast) on a line")
    names = single.axis_names(axes, grid, label=label)
    chosen = spread_leads(forecast.steps, most=_SNAPSHOTS)
    rows: list[dict[str, Tensor]] = []
    for u, _, maps in _maps(forecast, truth, index=index, channel=channel, noise=noise, leads=chosen):
        if "truth" in maps:
            maps["|truth - mean|"] = (maps["truth"] - maps["mean"]).abs()
        rows.append({name: maps[name] for name in ("truth", "mean", "|truth - mean|", "sd") if name in maps})
        is_uncalibrated = u.is_uncalibrated
    figure = single.new_figure(max(single.WIDTH, 2.2 * len(chosen) + 0.8), 0.4 + 2.0 * len(rows[0]))
    panels = figure.subplots(len(rows[0]), len(chosen), squeeze=False, sharex=True, sharey=True)
    values = single.limits([part[name] for part in rows for name in ("truth", "mean") if name in part])
    largest = max(float(part[name].max()) for part in rows for name in part if name not in ("truth", "mean"))
    for line, name in zip(panels, rows[0], strict=True):
        is_value = name in ("truth", "mean")
        colours = single.VALUE_MAP if is_value else single.ERROR_MAP
        scaling = values if is_value else Normalize(0.0, largest or 1.0)
        for panel, part in zip(line, rows, strict=True):
            image = single.draw_map(panel, grid, values=part[name].numpy(), colours=colours, scaling=scaling)
        line[0].set_ylabel(f"{name}\n{names[1]}")
        figure.colorbar(image, ax=list(line), label=label, pad=0.02)
    for top, bottom, lead in zip(panels[0], panels[-1], chosen, strict=True):
        top.set_title(f"lead {lead}", fontsize=10)
        bottom.set_xlabel(names[0])
    return single.noted(figure, is_uncalibrated)


def _maps(
    forecast: Forecast,
    truth: TrueTrajectories | None,
    *,
    index: int,
    channel: int,
    noise: float | Tensor,
    leads: Collection[int],
) -> Iterator[tuple[FieldDistribution, int, dict[str, Float64[Tensor, "*grid"]]]]:
    """At each of the leads the distribution of one sample, the channel's position, and mean, deviation and truth."""
    row = single.checked_position(index, len(forecast), name="index")
    states = None if truth is None else aligned(forecast, truth)
    for lead, u in _states(forecast) if 0 in leads else forecast.leads():
        if lead not in leads:
            continue
        predicted = u[row]
        column = single.checked_position(channel, predicted.mean.shape[1], name="channel")
        observed = noise_variance(noise, tuple(predicted.mean.shape), predicted.mean.detach()) if lead else 0.0
        parts = {"mean": predicted.mean, "sd": (predicted.variance.double() + observed).sqrt()}
        if states is not None:
            parts["truth"] = states.at(lead)[row].values
        yield predicted, column, {name: part[0, column].detach().cpu().double() for name, part in parts.items()}


def _check_forecast(forecast: Forecast) -> Forecast:
    return check_instance(forecast, Forecast, "forecast", remedy="roll a predictor out: predictor.rollout(...)")


def _states(forecast: Forecast) -> Iterator[tuple[int, FieldDistribution]]:
    """The start, and all leads in order."""
    yield 0, forecast.at(0)
    yield from forecast.leads()
