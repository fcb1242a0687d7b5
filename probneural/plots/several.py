"""Several predictors, loops or forecasts side by side: spread against skill, errors by labels, scores by lead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, ScalarFormatter
from numpy.typing import NDArray
from torch import Tensor

from probneural.checks import check_choice, check_instance, check_sequence
from probneural.distributions.base import FieldDistribution
from probneural.distributions.forecasts.trajectory import VarianceShares
from probneural.errors import ArgumentError, DataError
from probneural.fields import Field
from probneural.metrics.comparison import Comparison, compare
from probneural.metrics.lead_table import TITLES, LeadScores, spread_leads
from probneural.metrics.spread import spread_skill_curve
from probneural.plots import single

if TYPE_CHECKING:
    import probneural.active.loop.history  # its package imports BoTorch

_COLOURS = (single.BLUE, single.VERMILION, "#009E73", single.ORANGE, "#CC79A7", single.SKY)
_MARKERS = "osD^vP"
_PANELS = 6
"""Maximum number of leads in a figure of rank histograms."""
_MARKED = 40
"""Maximum number of leads for markers."""

_T = TypeVar("_T")


def spread_skill(
    predictions: Mapping[str, FieldDistribution],
    truth: Field,
    *,
    channel: int = 0,
    noise: float | Float[Tensor, "..."] = 0.0,
    bins: int = 10,
    unit: str = "",
) -> Figure:
    """Draw error against predicted standard deviation, in bins of the latter; on the diagonal if calibrated.

    Args:
        predictions: Distributions over the same n samples, by name.
        truth: The true samples, `(n, c, *grid)`, on the distributions' grid.
        channel: Index of the channel.
        noise: Variance of the observation noise, in physical units squared: a number, or one per channel `(c,)`.
        bins: Number of bins of an equal fraction of the domain.
        unit: Unit of the values.

    Returns:
        The figure. An error or standard deviation of zero is left out of its logarithmic axes.

    Raises:
        DataError: If there are no predictions, one is not a distribution, `truth` is not a `Field`, or a value is not finite.
        GridError: If the grids differ.
        ShapeError: If the numbers of samples or channels differ.
        ArgumentError: If the channel is out of range, the bins are too many, or the noise is unusable.
    """
    compared = _compared(predictions, truth, noise)
    column = single.checked_position(channel, truth.channels, name="channel")
    figure = single.new_figure(single.WIDTH * 0.75, 4.2)
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
        panel.plot(diagonal, diagonal, color=single.ink(), linewidth=0.9, linestyle=single.DASHED, label="calibrated")
    panel.set_xlabel(single.with_unit("predictive standard deviation", unit))
    panel.set_ylabel(single.with_unit("root mean squared error", unit))
    panel.legend(frameon=False, fontsize=8)
    return figure


def _compared(predictions: Mapping[str, FieldDistribution], truth: Field, noise: float | Tensor) -> dict[str, Comparison]:
    if not isinstance(predictions, Mapping) or not predictions:
        raise DataError(expected="predictions by name", got=repr(predictions), remedy='{"Laplace": predict(inputs)}')
    for name, u in predictions.items():
        check_instance(u, FieldDistribution, repr(name), remedy="plot predictions of predictors")
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
        DataError: If there are no histories, one is of another type, or one has no errors.
    """
    from probneural.active.loop.history import LearningHistory

    named = _by_name(histories, LearningHistory, "error", remedy='{"random": learner.history}')
    figure = single.new_figure(single.WIDTH, 3.8)
    axes = figure.subplots()
    axes.set_xscale("log")
    axes.set_yscale("log", nonpositive="mask")
    ticks: set[int] = set()
    for number, (name, history) in enumerate(named.items()):
        rounds = [entry for entry in history.rounds if entry.errors.mean is not None]
        if not rounds:
            raise DataError(
                expected=f"errors in the history {name!r}", got="none", remedy="give the learner test= or calibration samples"
            )
        labels, colour = [entry.labels for entry in rounds], series_colour(number)
        error, high, stated = ([getattr(entry.errors, part) for entry in rounds] for part in ("mean", "quantile_95", "stated"))
        axes.plot(labels, error, color=colour, marker=series_marker(number), markersize=4, linewidth=1.5, label=name)
        axes.fill_between(labels, error, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(labels, stated, color=colour, linewidth=0.9, linestyle=single.DASHED)
        ticks |= {*labels} if len(labels) <= 8 else {labels[0], labels[-1]}
    axes.plot([], [], color=single.ink(), linewidth=0.9, linestyle=single.DASHED, label="stated")
    axes.set_xticks(sorted(ticks))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="labels", ylabel="relative L2 error")
    axes.legend(frameon=False, fontsize=9)
    return figure


def lead_scores(
    scores: LeadScores | Mapping[str, LeadScores],
    *,
    names: Sequence[str] = ("relative_l2", "crps", "spread_skill", "simultaneous_coverage"),
    unit: str = "",
) -> Figure:
    """Draw scores against the lead, for one forecast or several; the shade is two standard errors over the samples.

    Args:
        scores: The result of [`score_by_lead`][probneural.metrics.score_by_lead], or several by name.
        names: Names of the scores, one panel each: "crps", "energy", "rank_deviation", ...
        unit: Unit of the values.

    Returns:
        The figure. A dashed line is the value of a calibrated forecast.

    Raises:
        DataError: If there are no scores.
        ArgumentError: If a name is not that of a score.
    """
    named = _by_name(scores, LeadScores, "", remedy="score a forecast: pn.metrics.score_by_lead(forecast, truth)")
    names = check_sequence(names, "names", remedy="give a list of scores")
    names = [check_choice(name, TITLES, "names") for name in names]
    if not names:
        raise ArgumentError(expected=f"names among {', '.join(TITLES)}", got=repr(names), remedy="choose some of them")
    columns = min(2, len(names))
    figure, panels = _grid(len(names), columns=columns, width=single.WIDTH * columns / 2, height=2.3)
    ideals = {"spread_skill": 1.0, "chi2": 1.0, "rank_deviation": 0.0, "spectrum_error": 0.0}
    for panel, name in zip(panels.flat, names, strict=False):
        for series, (title, table) in enumerate(named.items()):
            if name in table.scores:
                _draw_series(panel, table, name, colour=series_colour(series), marker=series_marker(series), label=title)
        level = next(iter(named.values())).level
        ideal = level if name.endswith("coverage") else ideals.get(name)
        if ideal is not None:
            panel.axhline(ideal, color=single.ink(), linewidth=0.9, linestyle=single.DASHED)
        title, dimension = TITLES[name]
        panel.set_title(single.with_unit(title, unit) if dimension == "field" else title, fontsize=10)
    for panel in panels[-1]:
        _name_abscissa(panel, next(iter(named.values())))
    if len(named) > 1:
        single.legend_above(figure, panels[0, 0])
    return single.noted(figure, any(table.is_uncalibrated for table in named.values()))


def lead_spread_skill(scores: LeadScores | Mapping[str, LeadScores], *, unit: str = "") -> Figure:
    """Draw spread and error against the lead, one panel per forecast: equal for a calibrated forecast.

    Args:
        scores: The result of [`score_by_lead`][probneural.metrics.score_by_lead], or several by name.
        unit: Unit of the values.

    Returns:
        The figure; shades are two standard errors over the samples, titles the ratio over all leads.

    Raises:
        DataError: If there are no scores.
    """
    named = _by_name(scores, LeadScores, "", remedy="score a forecast: pn.metrics.score_by_lead(forecast, truth)")
    figure = single.new_figure(max(single.WIDTH * 0.75, 3.2 * len(named)), 3.2)
    panels = figure.subplots(1, len(named), squeeze=False, sharey=True)[0]
    for panel, (name, table) in zip(panels, named.items(), strict=True):
        _draw_series(panel, table, "rmse", colour=series_colour(1), marker="o", label="RMSE of the mean")
        _draw_series(panel, table, "spread", colour=single.BLUE, marker="s", label="spread")
        ratio = table.scores.get("spread_skill")
        title = "" if ratio is None else f"ratio {ratio.overall:.3g}"
        panel.set_title(", ".join(part for part in (name if len(named) > 1 else "", title) if part), fontsize=10)
        _name_abscissa(panel, table)
        panel.set_ylim(bottom=0.0)
    panels[0].set_ylabel(single.with_unit("value", unit))
    single.legend_above(figure, panels[0])
    return single.noted(figure, any(table.is_uncalibrated for table in named.values()))


def rank_histograms(scores: LeadScores) -> Figure:
    """Draw rank histograms of the truth among the members, at up to six leads: flat if calibrated.

    High at both ends: the members are too close together. High at one end: they are too low or too high. Without members,
    the bars are those of the probability integral transform.

    Args:
        scores: The result of [`score_by_lead`][probneural.metrics.score_by_lead].

    Returns:
        The figure; whiskers are two standard errors over the samples.

    Raises:
        DataError: If there are no rank histograms.
    """
    check_instance(scores, LeadScores, "scores", remedy="score a forecast: pn.metrics.score_by_lead(forecast, truth)")
    if scores.ranks is None:
        raise DataError(expected="rank histograms", got="none", remedy="give the forecast two members or more")
    chosen = spread_leads(scores.steps, most=_PANELS)
    columns = min(3, len(chosen))
    figure, panels = _grid(len(chosen), columns=columns, width=2.4 * columns, height=1.9, sharey=True)
    ranks = np.arange(scores.ranks.frequencies.shape[1])
    for panel, lead in zip(panels.flat, chosen, strict=False):
        heights, errors = (np.nan_to_num(part[lead - 1].numpy()) for part in (scores.ranks.frequencies, scores.ranks.errors))
        whiskers = np.minimum(2.0 * errors, heights), 2.0 * errors
        panel.bar(ranks, heights, width=1.0, color=single.SKY, edgecolor=single.BLUE, linewidth=0.6)
        panel.errorbar(ranks, heights, yerr=whiskers, fmt="none", ecolor=single.BLUE, elinewidth=1.0)
        panel.axhline(1.0 / len(ranks), color=single.ink(), linewidth=0.9, linestyle=single.DASHED)
        panel.set_title(f"lead {lead}", fontsize=10)
    for panel in panels[-1]:
        panel.set_xlabel("rank of the truth")
    for panel in panels[:, 0]:
        panel.set_ylabel("frequency")
    return single.noted(figure, scores.is_uncalibrated)


def variance_shares(shares: VarianceShares, *, channel: int = 0) -> Figure:
    """Draw the fractions of a forecast's variance against the lead: initial states, operators, their interaction, noise.

    Args:
        shares: The result of `forecast.variance_shares()`.
        channel: Index of the channel; negative numbers count from the end.

    Returns:
        The figure: fractions of the total variance, summed over the functions. They add up to 1; an estimate of a small one may
        be negative.

    Raises:
        DataError: If there are no shares.
        ArgumentError: If the channel is out of range, or nothing varies.
    """
    check_instance(shares, VarianceShares, "shares", remedy="forecast.variance_shares()")
    steps, _, channels = shares.total.shape
    column = single.checked_position(channel, channels, name="channel")
    total = shares.total[:, :, column].sum(1)
    if not bool((total > 0).all()):
        raise ArgumentError(expected="a variance > 0 at every lead", got=str(float(total.min())), remedy="draw another channel")
    figure = single.new_figure(single.WIDTH, 3.2)
    axes = figure.subplots()
    leads = range(1, steps + 1)
    for number, name in enumerate(("initial", "operator", "interaction", "noise")):
        fractions = (getattr(shares, name)[:, :, column].sum(1) / total).numpy()
        marker = None if steps > _MARKED else series_marker(number)
        axes.plot(leads, fractions, color=series_colour(number), linewidth=1.4, marker=marker, markersize=3, label=name)
    axes.axhline(0.0, color=single.ink(), linewidth=0.9)
    axes.set(xlabel="lead", ylabel="fraction of the variance")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    single.legend_above(figure, axes)
    return figure


def _grid(count: int, *, columns: int, width: float, height: float, sharey: bool = False) -> tuple[Figure, NDArray[Any]]:
    """A figure with a number of panels in rows of a height, a shared abscissa, and empty spare cells."""
    rows = math.ceil(count / columns)
    figure = single.new_figure(max(single.WIDTH / 2, width), 0.5 + height * rows)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=sharey)
    for spare in panels.flat[count:]:
        spare.remove()
    return figure, panels


def _draw_series(panel: Axes, table: LeadScores, name: str, *, colour: str, marker: str, label: str) -> None:
    """One score against time, with two standard errors shaded."""
    score, where = table.scores[name], table.times.numpy()
    values, errors = score.values.numpy(), 2.0 * np.nan_to_num(score.errors.numpy())
    many = len(where) > _MARKED
    least, most = -np.inf if TITLES[name][1] == "nat" else 0.0, 1.0 if name.endswith("coverage") else np.inf
    low, high = np.clip((values - errors, values + errors), least, most)
    panel.fill_between(where, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.plot(where, values, color=colour, linewidth=1.4, marker=None if many else marker, markersize=3, label=label)


def _name_abscissa(panel: Axes, table: LeadScores) -> None:
    is_lead = torch.equal(table.times, torch.arange(1, table.steps + 1).to(table.times))
    panel.set_xlabel("lead" if is_lead else "time")
    if is_lead:
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))


def _by_name(items: object, kind: type[_T], name: str, *, remedy: str) -> Mapping[str, _T]:
    """Several objects of a kind by name, or a single one under a default name."""
    named = {name: items} if isinstance(items, kind) else items
    if not isinstance(named, Mapping) or not named or not all(isinstance(part, kind) for part in named.values()):
        raise DataError(expected=f"a {kind.__name__}, or several by name", got=repr(items)[:200], remedy=remedy)
    return named
