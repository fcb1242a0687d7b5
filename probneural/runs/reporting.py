"""The report of a run: assessment, scores and figures in one file."""

from __future__ import annotations

import base64
import importlib.util
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from probneural import atomic
from probneural.checks import check_path, optional
from probneural.distributions import Predictor
from probneural.errors import FileError, UnsupportedError
from probneural.metrics.reliability import LEVELS
from probneural.metrics.scores import Scores, batch_size
from probneural.pairs import Dataset, FieldPairs, batches, evenly_spread_rows
from probneural.runs.config import Config, paths_in
from probneural.runs.folder import RunFolder
from probneural.runs.scoring import TestScores, predicted
from probneural.runs.sources import PARTS, RANDOM_IN_TIME
from probneural.runs.steps import REPORT, Calibrated, Progress, calibrated_in, read_history, score_in
from probneural.runs.toml import text_of
from probneural.training.callbacks import History

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
_SECONDS = 120
"""Time after which a program has failed."""


def printing_command(page: Path, pdf: Path) -> list[str]:
    """The command that prints an HTML file to a PDF file: of WeasyPrint if it is installed, else of a browser.

    Raises:
        UnsupportedError: If there is neither.
    """
    if importlib.util.find_spec("weasyprint") is not None:
        return [sys.executable, "-m", "weasyprint", str(page), str(pdf)]
    browser = next(filter(None, map(shutil.which, _BROWSERS)), None)
    if browser is None:
        expected, remedy = "WeasyPrint, or Chromium or Google Chrome on the PATH, to print a PDF", "pip install weasyprint"
        raise UnsupportedError(expected=expected, got="neither", remedy=f"{remedy}; or print report.html in another browser")
    return [browser, "--headless", "--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.resolve().as_uri()]


def print_page(page: Path, pdf: Path) -> None:
    """Print an HTML file to a PDF file, which is replaced in one step.

    Raises:
        UnsupportedError: If there is no program that prints.
        FileError: If the program fails or writes nothing.
    """
    with atomic.replacing(pdf) as temporary:
        command = printing_command(page, temporary)
        try:
            subprocess.run(command, capture_output=True, text=True, check=True, timeout=_SECONDS)
            if not temporary.stat().st_size:
                raise OSError("it wrote nothing")
        except (OSError, subprocess.SubprocessError) as error:
            got, remedy = f"{error} {getattr(error, 'stderr', None) or ''}", f"open {page} in a browser, and print it"
            raise FileError(expected=f"a PDF by {command[0]}", got=got.strip(), remedy=remedy) from error


_MEANINGS = (
    ("relative_l2", "relative L2 error of the mean", "0 is best"),
    ("rmse", "RMSE of the mean", "in units of the field"),
    ("crps", "CRPS", "in units of the field; smaller is better"),
    ("nll", "NLL per value, marginal", "nats; smaller is better"),
    ("joint_nll", "NLL per value, of whole functions", "nats; smaller is better"),
    ("coverage", "coverage of pointwise intervals", "the level is best"),
    ("simultaneous_coverage", "coverage of the predictor's own whole-function bands", "the level is best"),
    ("calibration_error", "mean miss in coverage over all levels", "0 is best"),
    ("interval_width", "width of the intervals", "in units of the field"),
    ("chi2", "squared standardised error per value", "1 is best"),
    ("spread_skill", "standard deviation over error", "1 is best"),
    ("rank_across", "rank correlation of stated and true errors across functions", "1 is best"),
)

_LEVELLED = ("coverage", "simultaneous_coverage", "interval_width")
"""Scores at the nominal level."""
_DRAWN_VALUES = 2**18
"""Approximate number of values in calibration plots."""
_CLEAR = 2.0
"""Number of standard errors beyond which the coverage of a band differs from its nominal coverage."""
_CLEAR_AT_ONCE = 2.81
"""The same for 19 levels at once: the 95 % quantile of the largest |coverage - level| in standard errors."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A written report.

    Attributes:
        path: Path of the HTML file.
        verdict: Assessment of the run, in sentences.
        scores: On the test pairs.
    """

    path: Path
    verdict: tuple[str, ...]
    scores: TestScores


def report(
    config: Config | None,
    folder: str | os.PathLike[str],
    *,
    pdf: str | os.PathLike[str] | None = None,
    show_progress: bool = True,
) -> Report:
    """Write the report of a run as one HTML file that needs nothing else: a verdict, scores, figures, settings.

    Args:
        config: The settings; None for those of the folder.
        folder: The run's folder; created if it does not exist.
        pdf: A PDF file to print the report to, by WeasyPrint or else by Chromium or Chrome; an existing one is replaced.
        show_progress: Whether to report progress on the standard error stream.

    Returns:
        The path of `report.html`, and its assessment.

    Raises:
        FileError: If the folder belongs to other settings or data, holds other files, or cannot be written to.
        UnsupportedError: If torchrun has started several processes, or nothing can print a PDF file.
        MissingPackageError: If Matplotlib is missing.
        ProbneuralError: If the settings or the data are unusable.
    """
    optional("probneural.plots", "a report", extra="plots")  # known before anything is trained
    if pdf is not None:
        pdf = check_path(pdf, "pdf")
        printing_command(pdf, pdf)  # an error if nothing can print
    progress = Progress(show_progress)
    with RunFolder.open(config, folder) as run:
        scores = score_in(run, progress)
        calibrated, history = calibrated_in(run), read_history(run)
        progress.say("writing the report")
        path = run.file(REPORT)
        sentences = verdict(scores, history) + _dependence(run)
        figures = _figures(run, calibrated, history, run.subset("test"))
        atomic.write(path, page(run, scores, sentences=sentences, figures=figures).encode())
    if isinstance(pdf, Path):
        print_page(path, pdf)
    return Report(path=path, verdict=tuple(sentences), scores=scores)


def verdict(scores: TestScores, history: History) -> list[str]:
    """Assess a run in sentences: the error, the error bars, and recommendations.

    Args:
        scores: On the test pairs.
        history: History of the training.
    """
    values, test = scores.scores, scores.scores.functions
    sentences = [_error(scores, test)]
    level, shown = values.level, 100 * values.level
    sentences.append(_honesty(values, test))
    if scores.band_coverage is not None:
        inside = round(scores.band_coverage * test)
        # The coverage of a band is Beta distributed over calibration sets; the test count is binomial given it.
        deviation = math.sqrt(level * (1.0 - level) * (1.0 / test + 1.0 / max(scores.band_pairs, 1)))
        holds = scores.band_coverage >= level - _CLEAR * deviation
        sentences.append(
            f"The bands of whole functions hold {inside} of {test} functions, {100 * scores.band_coverage:.1f} % where "
            f"{shown:g} % were promised{': the promise is kept, within chance' if holds else ', which is too few for chance'}."
        )
    return sentences + _advice(scores, history)


def _honesty(scores: Scores, test: int) -> str:
    """Assessment of the coverage of all levels, with the worst level."""
    stated = f"The {_held(scores.level, scores.coverage)} of the true values"
    pairs = [(scores.level, scores.coverage), *zip(LEVELS, scores.level_coverages, strict=False)]
    # (coverage - level) / sqrt(level (1 - level) / n): values within a sample are dependent, so a sample counts as one draw.
    deviations = [(coverage - level) / math.sqrt(level * (1.0 - level) / test) for level, coverage in pairs]
    worst = max(range(len(pairs)), key=lambda number: abs(deviations[number]))
    if abs(deviations[worst]) <= _CLEAR_AT_ONCE:
        return f"{stated}: the error bars are honest at all levels, as far as {test} functions can tell."
    side = "too narrow" if deviations[worst] < 0.0 else "wider than they need to be"
    if math.isclose(pairs[worst][0], scores.level):
        return f"{stated}: the error bars are {side}."
    return f"{stated}, and {_held(*pairs[worst])}: the error bars are {side} at that level."


def _held(level: float, coverage: float) -> str:
    return f"{100 * level:g} % intervals of single values hold {100 * coverage:.1f} %"


def _dependence(run: RunFolder) -> list[str]:
    """Caveats of the assessment for windows of trajectories."""
    if run.data is None:
        return []
    by, clock = run.config.split.by, run.data.clock
    if by in ("time", "blocks"):
        order = "later in time than all that was trained on" if by == "time" else "blocks of time that nothing else has seen"
        gap = run.config.split.embargo
        return [
            f"The test functions are {order}{f', with {gap} steps between the parts' if gap else ''}. Neighbours in time "
            "resemble each other, so chance is wider than these numbers of functions say, and bands hold their level only as "
            "far as calibration and test times are alike."
        ]
    if run.data.groups is None:
        return [RANDOM_IN_TIME] if clock is not None and clock.is_series else []
    test, conformal = run.independent("test"), run.independent("conformal")
    fitted = f", and bands were fitted on those of {conformal}" if conformal else ""
    sentences = [
        f"The test functions are windows of {test} trajectories{fitted}: windows of one trajectory resemble each "
        "other, so chance is wider than these numbers of functions say."
    ]
    if run.config.calibration.bands and not conformal:
        sentences.append(
            f"There are no bands of whole functions: at a level of {run.config.calibration.level:g} they need more "
            f"trajectories than the fraction {run.config.split.conformal:g} of these."
        )
    return sentences


def _error(scores: TestScores, test: int) -> str:
    values = scores.scores
    if values.relative_l2 is None or scores.baseline is None:
        return f"On {test} functions that nothing was fitted to, the root mean squared error is {values.rmse:.3g}."
    sentence = f"On {test} functions that nothing was fitted to, the relative error is {100 * values.relative_l2:.3g} %"
    errors = {"always predicting the mean training output": scores.baseline}
    if scores.persistence is not None:
        errors["persistence (the last state as the prediction)"] = scores.persistence
    for name, error in errors.items():
        if values.relative_l2 >= error:
            return f"{sentence}: no better than {name}, {100 * error:.3g} %."
    return f"{sentence}; {', and '.join(f'{name} has {100 * error:.3g} %' for name, error in errors.items())}."


def _advice(scores: TestScores, history: History) -> list[str]:
    advice = []
    if history.restored is not None:
        advice.append(
            f"Of {history.epochs} epochs, early stopping chose the weights of epoch {history.restored}, whose loss on the "
            "validation pairs was the least."
        )
    last = -1 if history.restored is None else history.restored - 1
    if history.validation and history.train and history.validation[last] > 2.0 * history.train[last]:
        advice.append(
            f"The loss on validation pairs ends at {history.validation[last] / history.train[last]:.1f} times that on training "
            "pairs: more pairs would help most."
        )
    error = scores.scores.relative_l2
    limits = [factor * limit for factor, limit in ((0.5, scores.baseline), (1.0, scores.persistence)) if limit is not None]
    if error is not None and limits and error >= min(limits):
        advice.append("Such an error is hardly useful: train longer, give more pairs, or try another operator.")
    return advice


def _figures(run: RunFolder, calibrated: Calibrated, history: History, data: Dataset) -> list[Figure]:
    from probneural import plots

    figures = [Figure("Training", "Losses by epoch.", plots.png(plots.training(history)))] if history.epochs else []
    size = max(batch_size(data.outputs), _DRAWN_VALUES // (data.outputs.channels * data.outputs.grid.size))
    sample = data[evenly_spread_rows(len(data), size)]
    words = "Coverage of intervals against their level; a flat histogram is right."
    if len(sample) < len(data):
        words += f" On {len(sample)} of {len(data)} test functions."
    drawn = plots.calibration(predicted(calibrated.predictor, sample), sample.outputs, noise=calibrated.predictor.noise)
    figures.append(Figure("Calibration", words, plots.png(drawn)))
    if data.outputs.grid.dimension > 2:
        return figures
    order = _mean_squares(calibrated.predictor, data).argsort().tolist()
    return figures + [_drawn(run, calibrated, data[[row]], title) for title, row in _chosen(order)]


@torch.no_grad()
def _mean_squares(predictor: Predictor, data: Dataset) -> Tensor:
    """Of the mean's error, for each function."""
    errors = []
    for part in batches(data, batch_size(data.outputs)):
        mean = predicted(predictor, part).mean
        error = part.outputs.grid.fill(mean - part.outputs.values.to(mean))
        errors.append(error.flatten(1).square().mean(1).cpu())
    return torch.cat(errors)


def _drawn(run: RunFolder, calibrated: Calibrated, pair: FieldPairs, title: str) -> Figure:
    """One test sample and its prediction."""
    from probneural import plots

    names, axes = run.config.data.outputs, list(run.record["outputs"]["axes"])
    label = names[0] if len(names) == pair.outputs.channels else "value"
    if calibrated.band is not None:
        query = None if pair.outputs.grid == pair.inputs.grid else pair.outputs.grid
        image = plots.band(calibrated.band(pair.inputs, query), pair.outputs, label=label, axes=axes)
        words = f"with the {100 * calibrated.band.level:g} % band of whole functions"
    else:
        u, noise = predicted(calibrated.predictor, pair), calibrated.predictor.noise
        image = plots.field(u, pair.outputs, noise=noise, level=run.config.calibration.level, label=label, axes=axes)
        words = "with its pointwise interval"
    return Figure(title, f"Truth and mean, {words}.", plots.png(image))


def _chosen(order: list[int]) -> list[tuple[str, int]]:
    """Indices of the test samples in the plots, from the smallest error to the largest."""
    if len(order) < 3:
        return [(f"Test function {number + 1}", row) for number, row in enumerate(order)]
    return [
        ("The test function of the smallest error", order[0]),
        ("One of median error", order[len(order) // 2]),
        ("The one of the largest error", order[-1]),
    ]


class Figure(NamedTuple):
    """A figure with its words.

    Attributes:
        title: Heading of the figure.
        caption: Caption of the figure.
        image: A PNG.
    """

    title: str
    caption: str
    image: bytes


def page(run: RunFolder, scores: TestScores, *, sentences: Sequence[str], figures: Iterable[Figure]) -> str:
    """The report as HTML.

    Args:
        run: The run.
        scores: On the test pairs.
        sentences: The verdict.
        figures: Figures in the order of the page.
    """
    data = run.config.data
    files = ", ".join(Path(path).name for path in (*paths_in(data.path), *paths_in(data.outputs_path)))
    title = f"{', '.join(data.inputs)} → {', '.join(data.outputs)} of {files}"
    split = run.record["split"]
    counts = ", ".join(f"{len(split[part])} {part}" for part in PARTS if split[part])
    reading = run.record["reading"]
    facts = f"{reading}. {sum(map(len, split.values()))} pairs: {counts}. {run.choice}"
    style = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    lines = (
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{style}</style></head><body><main>",
        f'<h1>{escape(title)}</h1><p class="facts">{escape(facts)}</p>',
        f'<div class="verdict">{"".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)}</div>',
        "<h2>Scores on test functions</h2>",
        _table(scores),
        *(_section(figure) for figure in figures),
        "<h2>How it was made</h2>",
        _provenance(run),
        f'<details><summary>All settings</summary><pre tabindex="0">{escape(text_of(run.config))}</pre></details>',
        "</main></body></html>\n",
    )
    return "\n".join(lines)


def _table(scores: TestScores) -> str:
    values = scores.scores
    at = f"at {values.level:g}"
    rows = [(f"{name}, {at}" if key in _LEVELLED else name, getattr(values, key), best) for key, name, best in _MEANINGS]
    rows += [
        (f"coverage of fitted bands of whole functions, {at}", scores.band_coverage, "the level or more"),
        (f"coverage of pointwise intervals before calibration, {at}", scores.uncalibrated, "the level is best"),
        ("relative L2 error of the mean training output", scores.baseline, "what has to be beaten"),
    ]
    if scores.persistence is not None:
        rows.append(("relative L2 error of persistence, the last input state", scores.persistence, "what has to be beaten"))
    shown = [(escape(name), "–" if value is None else f"{value:.4g}", escape(best)) for name, value, best in rows]
    cells = "".join(f'<tr><td>{name}</td><td class="number">{value}</td><td>{best}</td></tr>' for name, value, best in shown)
    head = '<thead><tr><th scope="col">score</th><th scope="col">value</th><th scope="col">how to read it</th></tr></thead>'
    return _scrolled("Scores", f"{head}<tbody>{cells}</tbody>")


def _scrolled(label: str, rows: str) -> str:
    """A table of HTML rows that scrolls if it is wider than the page."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table>{rows}</table></div>'


def _section(figure: Figure) -> str:
    """A figure under its heading, inside the page."""
    source = base64.b64encode(figure.image).decode()
    image = f'<img alt="{escape(figure.title)}: {escape(figure.caption)}" src="data:image/png;base64,{source}">'
    return f"<h2>{escape(figure.title)}</h2><figure>{image}<figcaption>{escape(figure.caption)}</figcaption></figure>"


def _provenance(run: RunFolder) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in run.record["versions"].items())
    rows = (
        ("data", run.config.data.path),
        ("fingerprint of the data", run.record["fingerprint"][:16]),
        ("versions", versions),
        ("again", f"probneural report --config {run.path / 'config.toml'} --folder NAME"),
    )
    cells = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(str(text))}</td></tr>' for name, text in rows)
    return _scrolled("Provenance", f"<tbody>{cells}</tbody>")
