"""Forecasts: fans of a quantity over the leads, space and time, and scores by lead."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float, Float64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from probneural.checks import check_instance, check_integer, real_tensor
from probneural.distributions.base import FieldDistribution, check_values, noise_variance
from probneural.distributions.trajectory import Forecast
from probneural.errors import ArgumentError, DataError, GridError
from probneural.functionals import Functional, check_functional
from probneural.grids import Grid
from probneural.metrics.lead_pairs import TrueTrajectories
from probneural.metrics.lead_scores import TITLES, LeadScores
from probneural.plots.several import series_colour, series_marker
from probneural.plots.single import (
    BLUE,
    ORANGE,
    SKY,
    WIDTH,
    check_axis_names,
    checked_position,
    draw_planes,
    ink,
    legend_above,
    new_figure,
)

_LEVELS = (0.5, 0.9)
"""Levels of a fan's intervals."""
_PANELS = 6
"""Leads whose rank histograms a figure has room for."""
_EVEN = 1e-6
"""Deviation of an interval of time, relative to their mean, that counts as rounding."""


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
    """Draw a quantity of one function over the leads: its central intervals at 50 and 90 %, its mean, draws, and the truth.

    A draw is the same member, or the same latent, at all leads. The intervals are for each lead by itself.

    Args:
        forecast: Of n functions.
        functional: The quantity, one number of a state: the value at a point, `pn.functionals.sensors(grid, [[0.25]])`, an
            integral. The first of several.
        truth: The true trajectories.
        index: Which of the n functions; negative numbers count from the end.
        channel: Which of the c channels.
        draws: Number of draws.
        noise: Variance of the noise of the measured quantity, in its units squared.
        times: Time of each lead, `(steps,)`, since the start; the number of the lead by default.

    Returns:
        The figure.

    Raises:
        DataError: If the forecast is none, or a value is not finite.
        ArgumentError: If index or channel is out of range, `draws` is negative, or the noise is unusable.
        GridError: If the functional lives on another grid.
        ShapeError: If there is not one time per lead.
    """
    _check_forecast(forecast)
    check_functional(functional, grid=forecast.grid)
    row, draws = checked_position(index, len(forecast), name="index"), check_integer(draws, "draws", least=0)
    parts: list[list[Tensor]] = []
    for lead, u in _states(forecast):
        values = u[row].apply(functional)
        column = checked_position(channel, values.mean.shape[1], name="channel")
        ends = [end for level in _LEVELS for end in values.interval(level, noise=noise if lead else 0.0)]
        drawn = functional(u[row].rsample(torch.Size([draws]), seed=0))[:, 0, column, 0]
        kept = [part[0, column, 0] for part in (values.mean, *ends)]
        if truth is not None:
            kept.append(functional(truth.at(lead)[row].values)[0, column, 0])
        parts.append([*kept, *drawn])
    curves = [torch.stack([part.detach().cpu().double() for part in column]).numpy() for column in zip(*parts, strict=True)]
    where = np.concatenate([[0.0], _times(times, forecast.steps).numpy()])
    figure = new_figure(WIDTH, 3.4)
    axes = figure.subplots()
    for number in reversed(range(len(_LEVELS))):
        lower, upper = curves[1 + 2 * number], curves[2 + 2 * number]
        name = f"{100 * _LEVELS[number]:g} % interval"
        axes.fill_between(where, lower, upper, color=SKY, alpha=0.45 - 0.2 * number, linewidth=0, label=name)
    first = 1 + 2 * len(_LEVELS) + (truth is not None)
    for number, draw in enumerate(curves[first:]):
        axes.plot(where, draw, color=ORANGE, linewidth=0.9, label=None if number else "draws")
    axes.plot(where, curves[0], color=BLUE, linewidth=1.6, label="mean")
    if truth is not None:
        axes.plot(where, curves[first - 1], color=ink(), linewidth=1.3, linestyle=(0, (4, 2)), label="truth")
    name = "value" if functional.labels is None else functional.labels[0]
    axes.set(xlabel=_time_name(times), ylabel=name, xlim=(where[0], where[-1]))
    if times is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.ticklabel_format(axis="y", scilimits=(-3, 4))
    legend_above(figure, axes)
    return figure


def space_time(
    forecast: Forecast,
    truth: TrueTrajectories | None = None,
    *,
    index: int = 0,
    channel: int = 0,
    noise: float | Float[Tensor, "..."] = 0.0,
    times: Sequence[float] | Tensor | None = None,
    label: str = "value",
    axes: Sequence[str] = ("x",),
) -> Figure:
    """Draw one function of a forecast on a line as maps over space and time: truth, mean, a draw; error and deviation.

    The draw is the same member, or the same latent, at all leads. A forecast in the plane is drawn lead by lead:
    `pn.plots.field(forecast.at(5), truth.at(5))`.

    Args:
        forecast: Of n functions on a uniform line.
        truth: The true trajectories.
        index: Which of the n functions; negative numbers count from the end.
        channel: Which of the c channels.
        noise: Variance of the observation noise, in physical units squared: a number, or one per channel `(c,)`.
        times: Time of each lead, `(steps,)`, equally spaced from the start at 0; the number of the lead by default.
        label: What the values are, with their unit: "velocity (m/s)".
        axes: What the coordinate is, with its unit: "x (m)".

    Returns:
        The figure.

    Raises:
        DataError: If the forecast is none, or a value is not finite.
        GridError: If the grid is no uniform one of one dimension.
        ArgumentError: If index or channel is out of range, times are not equally spaced, or the noise is unusable.
        ShapeError: If there is not one time per lead.
    """
    grid = _check_forecast(forecast).grid
    if grid.dimension != 1 or not grid.is_uniform:
        raise GridError(expected="a uniform grid of one dimension", got=repr(grid), remedy="plots.field(forecast.at(lead))")
    check_axis_names(axes, grid)
    row = checked_position(index, len(forecast), name="index")
    maps: list[list[Tensor]] = []
    for lead, u in _states(forecast):
        one = u[row]
        column = checked_position(channel, one.mean.shape[1], name="channel")
        observed = noise_variance(noise, tuple(one.mean.shape), one.mean.detach()) if lead else 0.0
        parts = [one.mean, (one.variance.double() + observed).sqrt(), one.rsample(torch.Size([1]), seed=0)[0]]
        if truth is not None:
            parts.append(truth.at(lead)[row].values)
        maps.append([part[0, column].detach().cpu().double() for part in parts])
    columns = [torch.stack(column, dim=1) for column in zip(*maps, strict=True)]
    when = _times(times, forecast.steps)
    gaps = torch.diff(when, prepend=when.new_zeros(1))
    if bool(((gaps - gaps.mean()).abs() > _EVEN * gaps.mean()).any()):
        raise ArgumentError(
            expected="times that are equally spaced from the start at 0",
            got=str(when.tolist())[:100],
            remedy="leave them out, and the axis counts leads",
        )
    (along,) = grid.axes
    plane = Grid.uniform(
        (along.size, forecast.steps + 1),
        lengths=(along.length, float(when[-1])),
        periodic=(along.periodic, False),
        endpoint=(along.endpoint, True),
        origin=(along.origin, 0.0),
    )
    mean, sd, drawn = columns[:3]
    return draw_planes(
        plane,
        None if truth is None else columns[3],
        mean=mean,
        sd=sd,
        draws=drawn[None],
        spread="sd",
        label=label,
        axes=(axes[0], _time_name(times)),
    )


def lead_scores(
    scores: LeadScores | Mapping[str, LeadScores],
    *,
    names: Sequence[str] = ("relative_l2", "crps", "spread_skill", "simultaneous_coverage"),
    unit: str = "",
) -> Figure:
    """Draw scores against the lead, for one forecast or several; the shade is two standard errors over the functions.

    Args:
        scores: What [`score_by_lead`][probneural.metrics.score_by_lead] returned, or several of them by name.
        names: Which scores, a panel each, in the names of their table: "crps", "energy", "rank_deviation", ...
        unit: Unit of the values.

    Returns:
        The figure. A dashed line is what a calibrated forecast has.

    Raises:
        DataError: If there are no scores.
        ArgumentError: If there is no score of such a name.
    """
    named = _named(scores)
    unknown = [name for name in names if name not in TITLES]
    if unknown or not names:
        raise ArgumentError(expected=f"names among {', '.join(TITLES)}", got=repr(names), remedy="choose some of them")
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    figure = new_figure(max(WIDTH / 2, WIDTH * columns / 2), 0.5 + 2.3 * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True)
    ideals = {"spread_skill": 1.0, "chi2": 1.0, "rank_deviation": 0.0, "spectrum_error": 0.0}
    for number, name in enumerate(names):
        panel = panels[number // columns, number % columns]
        for series, (title, found) in enumerate(named.items()):
            if name in found.scores:
                _draw_series(panel, found, name, colour=series_colour(series), marker=series_marker(series), label=title)
        level = next(iter(named.values())).level
        ideal = level if name.endswith("coverage") else ideals.get(name)
        if ideal is not None:
            panel.axhline(ideal, color=ink(), linewidth=0.9, linestyle=(0, (4, 2)))
        title, dimension = TITLES[name]
        panel.set_title(f"{title} ({unit})" if unit and dimension == "field" else title, fontsize=10)
    for spare in range(len(names), rows * columns):
        panels[spare // columns, spare % columns].remove()
    for panel in panels[-1]:
        _name_abscissa(panel, next(iter(named.values())))
    if len(named) > 1:
        legend_above(figure, panels[0, 0])
    return figure


def lead_spread_skill(scores: LeadScores | Mapping[str, LeadScores], *, unit: str = "") -> Figure:
    """Draw spread and error against the lead, one panel per forecast: equal if the forecast knows how wrong it is.

    Args:
        scores: What [`score_by_lead`][probneural.metrics.score_by_lead] returned, or several of them by name.
        unit: Unit of the values.

    Returns:
        The figure; shades are two standard errors over the functions, titles the ratio over all leads.

    Raises:
        DataError: If there are no scores.
    """
    named = _named(scores)
    figure = new_figure(max(WIDTH * 0.75, 3.2 * len(named)), 3.2)
    panels = figure.subplots(1, len(named), squeeze=False, sharey=True)[0]
    for panel, (name, found) in zip(panels, named.items(), strict=True):
        _draw_series(panel, found, "rmse", colour=series_colour(1), marker="o", label="RMSE of the mean")
        _draw_series(panel, found, "spread", colour=BLUE, marker="s", label="spread")
        ratio = found.scores.get("spread_skill")
        title = "" if ratio is None else f"ratio {ratio.overall:.3g}"
        panel.set_title(", ".join(part for part in (name if len(named) > 1 else "", title) if part), fontsize=10)
        _name_abscissa(panel, found)
        panel.set_ylim(bottom=0.0)
    panels[0].set_ylabel(f"value ({unit})" if unit else "value")
    legend_above(figure, panels[0])
    return figure


def rank_histograms(scores: LeadScores, *, leads: Sequence[int] | None = None) -> Figure:
    """Draw how often the truth has each rank among the members, at several leads: flat if calibrated.

    High at both ends: the members are too close together. High at one end: they are too low or too high. Without members,
    the bars are those of the probability integral transform.

    Args:
        scores: What [`score_by_lead`][probneural.metrics.score_by_lead] returned.
        leads: Which; up to six of them, evenly spread, by default.

    Returns:
        The figure; whiskers are two standard errors over the functions.

    Raises:
        DataError: If there are no rank histograms.
        ArgumentError: If there is no such lead.
    """
    check_instance(scores, LeadScores, "scores", remedy="score a forecast: pn.metrics.score_by_lead(forecast, truth)")
    if scores.ranks is None:
        raise DataError(expected="rank histograms", got="none", remedy="give the forecast two members or more")
    steps = scores.steps
    if leads is None:
        count = min(_PANELS, steps)
        leads = sorted({round(1 + (steps - 1) * number / max(count - 1, 1)) for number in range(count)})
    chosen = [check_integer(lead, "lead", most=steps) for lead in leads]
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    figure = new_figure(max(WIDTH / 2, 2.4 * columns), 0.4 + 1.9 * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    ranks = np.arange(scores.ranks.frequencies.shape[1])
    for number, lead in enumerate(chosen):
        panel = panels[number // columns, number % columns]
        heights, errors = (part[lead - 1].numpy() for part in (scores.ranks.frequencies, scores.ranks.errors))
        panel.bar(ranks, heights, width=1.0, color=SKY, edgecolor=BLUE, linewidth=0.6)
        panel.errorbar(ranks, heights, yerr=2.0 * np.nan_to_num(errors), fmt="none", ecolor=BLUE, elinewidth=1.0)
        panel.axhline(1.0 / len(ranks), color=ink(), linewidth=0.9, linestyle=(0, (4, 2)))
        panel.set_title(f"lead {lead}", fontsize=10)
    for spare in range(len(chosen), rows * columns):
        panels[spare // columns, spare % columns].remove()
    for panel in panels[-1]:
        panel.set_xlabel("rank of the truth")
    for panel in panels[:, 0]:
        panel.set_ylabel("frequency")
    return figure


def _check_forecast(forecast: Forecast) -> Forecast:
    return check_instance(forecast, Forecast, "forecast", remedy="roll a predictor out: predictor.rollout(...)")


def _states(forecast: Forecast) -> Iterator[tuple[int, FieldDistribution]]:
    """The start, and all leads in order."""
    yield 0, forecast.at(0)
    yield from forecast.leads()


def _named(scores: LeadScores | Mapping[str, LeadScores]) -> Mapping[str, LeadScores]:
    named = {"": scores} if isinstance(scores, LeadScores) else scores
    if not isinstance(named, Mapping) or not named or not all(isinstance(one, LeadScores) for one in named.values()):
        raise DataError(
            expected="scores by lead, or several by name",
            got=repr(scores)[:200],
            remedy="score a forecast: pn.metrics.score_by_lead(forecast, truth)",
        )
    return named


def _draw_series(panel: Axes, found: LeadScores, name: str, *, colour: str, marker: str, label: str) -> None:
    """One score against time, with two standard errors shaded."""
    score, where = found.scores[name], found.times.numpy()
    values, errors = score.values.numpy(), 2.0 * np.nan_to_num(score.errors.numpy())
    many = len(where) > 40
    panel.fill_between(where, values - errors, values + errors, color=colour, alpha=0.2, linewidth=0)
    panel.plot(where, values, color=colour, linewidth=1.4, marker=None if many else marker, markersize=3, label=label)


def _name_abscissa(panel: Axes, found: LeadScores) -> None:
    is_lead = torch.equal(found.times, torch.arange(1, found.steps + 1).to(found.times))
    panel.set_xlabel("lead" if is_lead else "time")
    if is_lead:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _times(times: Sequence[float] | Tensor | None, steps: int) -> Float64[Tensor, " steps"]:
    given = range(1, steps + 1) if times is None else times
    where = real_tensor(list(given), "times", dtype=torch.float64, device=torch.device("cpu")).detach()
    check_values(where, (steps,), "times")
    return where


def _time_name(times: Sequence[float] | Tensor | None) -> str:
    return "lead" if times is None else "time"
