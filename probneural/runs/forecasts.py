"""The report of a forecast: its scores by lead in words, numbers and figures, in one file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_path, check_text, missing
from probneural.distributions.forecasts.trajectory import Forecast, Trajectory
from probneural.functionals import Functional, integral, sensors
from probneural.grids import Grid
from probneural.metrics.by_lead import score_by_lead
from probneural.metrics.lead_alignment import TrueTrajectories
from probneural.metrics.lead_table import TITLES, LeadScores
from probneural.runs.reporting import Figure, document, figure_section, table_section
from probneural.training import atomic

_FAIR = (0.9, 1.1)
"""Spread-skill ratios that count as right."""


@dataclass(frozen=True, kw_only=True)
class ForecastReport:
    """A written report.

    Attributes:
        path: Of the HTML file.
        verdict: What the forecast is worth, in sentences.
        scores: By lead.
    """

    path: Path
    verdict: tuple[str, ...]
    scores: LeadScores


def report_forecast(
    forecast: Forecast,
    truth: TrueTrajectories,
    *,
    path: str | os.PathLike[str],
    noise: float | Float[Tensor, "..."] = 0.0,
    level: float = 0.9,
    times: Sequence[float] | Tensor | None = None,
    title: str = "Forecast",
) -> ForecastReport:
    """Score a forecast and write the report as one HTML file that needs nothing else: a verdict, scores, figures.

    Figures are of scores by lead, spread and error, ranks; of the first function, a fan of its value in the middle of the
    domain (of its integral, at scattered points), and maps over space and time, or in the plane at some leads; and of the
    shares of the variance, where `forecast` is a `Trajectory` from an initial distribution: that takes another roll-out.

    Args:
        forecast: What is scored, on trajectories that neither training nor calibration used.
        truth: The true trajectories.
        path: Of the file; an existing one is replaced.
        noise: Variance of the observation noise in the truth, in physical units squared: a number, or one per channel `(c,)`.
        level: Nominal level of the coverages, between 0 and 1.
        times: Time of each lead, for tables and figures, in the user's units.
        title: Above the page.

    Returns:
        The path, what the page says in words, and the scores.

    Raises:
        FileError: If the file cannot be written.
        ImportError: If Matplotlib is missing.
        ProbneuralError: If forecast and truth do not fit together; see
            [`score_by_lead`][probneural.metrics.by_lead.score_by_lead].
    """
    try:
        import probneural.plots  # noqa: F401 (that it is there should be known before anything is scored)
    except ModuleNotFoundError as error:
        raise missing("a report", error, "plots") from error
    target, title = check_path(path, "path"), check_text(title, "title")
    scores = score_by_lead(forecast, truth, noise=noise, level=level, times=times)
    sentences = forecast_verdict(scores)
    figures = (*_score_figures(scores), *_state_figures(forecast, truth, noise=noise, times=times))
    sections = ("<h2>Scores by lead</h2>", _table(scores), *(figure_section(figure) for figure in figures))
    facts = f"{scores.functions} functions, {scores.steps} leads"
    atomic.write(target, document(title, facts, sentences=sentences, sections=sections).encode())
    return ForecastReport(path=target, verdict=tuple(sentences), scores=scores)


def forecast_verdict(scores: LeadScores) -> list[str]:
    """Say in sentences what a forecast is worth: how long it is right, and whether it knows."""
    sentences, horizon = [], scores.horizon
    if not math.isnan(horizon.valid_time[0]):
        least = "at least " if horizon.still_valid else ""
        sentences.append(
            f"The mean stays within a relative L2 error of {horizon.threshold:g} for {least}{horizon.valid_time[0]:.3g} of "
            f"{scores.steps} leads."
        )
    if "spread_skill" in scores.scores:
        ratios = scores["spread_skill"].values
        fair = int(((ratios >= _FAIR[0]) & (ratios <= _FAIR[1])).sum())
        sentences.append(
            f"Spread and error are equally large, within {100 * (_FAIR[1] - 1):.0f} %, at {fair} of {scores.steps} leads; "
            f"the ratio lies between {float(ratios.min()):.3g} and {float(ratios.max()):.3g}."
        )
        if fair < scores.steps:
            sentences.append("LeadScale, fitted on other trajectories, scales them lead by lead.")
    if not math.isnan(horizon.coverage[0]):
        sentences.append(
            f"{100 * horizon.coverage[0]:.1f} % of whole trajectories are as close to the mean as {100 * scores.level:g} % of "
            "the forecast's are."
        )
    return sentences


def _table(scores: LeadScores) -> str:
    """A row per score, a column per lead, and all leads together."""
    leads = range(1, scores.steps + 1)
    heads = "".join(f'<th scope="col">{lead}</th>' for lead in leads)
    rows = []
    for name, (title, unit) in TITLES.items():
        if name in scores.scores:
            score = scores[name]
            numbers = "".join(f'<td class="number">{_cell(value)}</td>' for value in (*score.values.tolist(), score.overall))
            rows.append(f'<tr><th scope="row">{escape(title)}</th>{numbers}<td>{escape(unit)}</td></tr>')
    head = f'<thead><tr><th scope="col">lead</th>{heads}<th scope="col">all</th><th scope="col">unit</th></tr></thead>'
    return table_section("Scores", f"{head}<tbody>{''.join(rows)}</tbody>")


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


def _score_figures(scores: LeadScores) -> Iterator[Figure]:
    from probneural import plots

    names = [name for name in ("relative_l2", "crps", "spread_skill", "simultaneous_coverage") if name in scores.scores]
    if names:
        caption = "Shades are two standard errors over the functions, dashes what a calibrated forecast has."
        yield Figure("Scores by lead", caption, plots.png(plots.lead_scores(scores, names=names)))
    if "spread" in scores.scores:
        caption = "Equal if the forecast knows how wrong it is."
        yield Figure("Spread and error", caption, plots.png(plots.lead_spread_skill(scores)))
    if scores.ranks is not None:
        caption = "Flat if truth and members cannot be told apart; high at both ends if members are too close together."
        yield Figure("Ranks of the truth among the members", caption, plots.png(plots.rank_histograms(scores)))


def _state_figures(
    forecast: Forecast,
    truth: TrueTrajectories,
    *,
    noise: float | Tensor,
    times: Sequence[float] | Tensor | None,
) -> Iterator[Figure]:
    from probneural import plots

    functional, variance, words = _quantity(forecast.grid, noise)
    caption = f"The first function, {words}: truth, mean, draws, and intervals of each lead at 50 and 90 %."
    drawn = plots.fan(forecast, functional, truth=truth, noise=variance, times=times)
    yield Figure("A quantity over the leads", caption, plots.png(drawn))
    if forecast.grid.is_uniform and forecast.grid.dimension == 1:
        caption = "The first function: truth, mean and one draw on one scale; error and standard deviation on another."
        yield Figure("One function over space and time", caption, plots.png(plots.space_time(forecast, truth, noise=noise)))
    if forecast.grid.dimension == 2:
        caption = "The first function: truth and mean on one scale; error and standard deviation on another."
        yield Figure(
            "One function at some leads", caption, plots.png(plots.snapshots(forecast, truth, noise=noise, times=times))
        )
    if isinstance(forecast, Trajectory) and forecast.ensemble.initial is not None and forecast.members > 1:
        shares = forecast.variance_shares(noise=noise)
        varying = (shares.total.sum(1) > 0).all(0).nonzero()[:, 0].tolist()  # a static channel has no shares
        if varying:
            caption = (
                "Fractions of the variance, over all functions: of the start, of the operator, of both together, of the noise."
            )
            drawn = plots.variance_shares(shares, channel=varying[0], times=times)
            yield Figure("Where the variance comes from", caption, plots.png(drawn))


def _quantity(grid: Grid, noise: float | Tensor) -> tuple[Functional, float | Tensor, str]:
    """The quantity of the fan, the variance of its noise, and its words."""
    if not grid.is_uniform:
        return integral(grid), 0.0, "its integral"
    middle = [float(axis.coordinates[axis.size // 2]) for axis in grid.axes]
    return sensors(grid, [middle]), noise, "in the middle of the domain"
