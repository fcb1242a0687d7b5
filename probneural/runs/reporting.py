"""The report of a run: what it is worth in words, numbers and figures, in one file."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

from probneural.pairs import FieldPairs
from probneural.runs.config import Config
from probneural.runs.folder import RunFolder
from probneural.runs.page import Figure, page
from probneural.runs.progress import Progress
from probneural.runs.scoring import TestScores, predicted
from probneural.runs.steps import REPORT, Calibrated, calibrated_in, read_history, score_in
from probneural.training import History, atomic

_CLEAR = 2.0
"""Standard errors beyond which a coverage is not what was stated."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A written report.

    Attributes:
        path: Of the HTML file.
        verdict: What the run is worth, in sentences.
        scores: On the test pairs.
    """

    path: Path
    verdict: tuple[str, ...]
    scores: TestScores


def report(config: Config | None, folder: str | os.PathLike[str], *, show_progress: bool = True) -> Report:
    """Write the report of a run as one HTML file that needs nothing else: a verdict, scores, figures, settings.

    Args:
        config: The settings; None for those of the folder.
        folder: The run's folder, which is made if there is none.
        show_progress: Whether to say on the standard error stream how far it is.

    Returns:
        The path of `report.html`, and what it says in words.

    Raises:
        FileError: If the folder belongs to other settings or data, holds other files, or cannot be written to.
        ImportError: If Matplotlib is missing.
        ProbneuralError: If the settings or the data are unusable.
    """
    try:
        import probneural.plots  # noqa: F401 (that it is there should be known before anything is trained)
    except ModuleNotFoundError as error:
        raise ImportError(f"a report needs {error.name}: pip install 'probneural[cli]'") from error
    run, progress = RunFolder.open(config, folder), Progress(show_progress)
    scores = score_in(run, progress)
    found, history = calibrated_in(run), read_history(run)
    progress.say("writing the report")
    pairs = run.part("test")[:]
    path = run.file(REPORT)
    sentences = verdict(scores, history)
    atomic.write(path, page(run, scores, sentences=sentences, figures=_figures(run, found, history, pairs)).encode())
    return Report(path=path, verdict=tuple(sentences), scores=scores)


def verdict(scores: TestScores, history: History) -> list[str]:
    """Say in sentences what a run is worth: the error, the error bars, and what would help.

    Args:
        scores: On the test pairs.
        history: Of the training.
    """
    found, test = scores.scores, scores.scores.functions
    sentences = [_error(scores, test)]
    level, shown = found.level, 100 * found.level
    stated = f"{shown:g} % intervals of single values hold {100 * found.coverage:.1f} % of the true values"
    # Values within a function are dependent: as if each function were one draw, which is the widest that chance can be.
    chance = _CLEAR * math.sqrt(level * (1.0 - level) / test)
    if abs(found.coverage - level) <= chance:
        sentences.append(f"The {stated}: the error bars are honest, as far as {test} functions can tell.")
    else:
        side = "too narrow" if found.coverage < level else "wider than they need to be"
        sentences.append(f"The {stated}: the error bars are {side}.")
    if scores.band_coverage is not None:
        inside = round(scores.band_coverage * test)
        # The coverage that a band has varies with the pairs behind it, as a Beta variable; then test functions are drawn.
        deviation = math.sqrt(level * (1.0 - level) * (1.0 / test + 1.0 / max(scores.band_pairs, 1)))
        kept = scores.band_coverage >= level - _CLEAR * deviation
        sentences.append(
            f"The bands of whole functions hold {inside} of {test} functions, {100 * scores.band_coverage:.1f} % where "
            f"{shown:g} % were promised{': the promise is kept, within chance' if kept else ', which is too few for chance'}."
        )
    return sentences + _advice(scores, history)


def _error(scores: TestScores, test: int) -> str:
    found, baseline = scores.scores, scores.baseline
    if found.relative_l2 is None or baseline is None:
        return f"On {test} functions that nothing was fitted to, the root mean squared error is {found.rmse:.3g}."
    sentence = f"On {test} functions that nothing was fitted to, the relative error is {100 * found.relative_l2:.3g} %"
    if found.relative_l2 >= baseline:
        return f"{sentence}: no better than always predicting the mean training output, {100 * baseline:.3g} %."
    return f"{sentence}; always predicting the mean training output has {100 * baseline:.3g} %."


def _advice(scores: TestScores, history: History) -> list[str]:
    advice = []
    if history.validation and history.train and history.validation[-1] > 2.0 * history.train[-1]:
        advice.append(
            f"The loss on validation pairs ends at {history.validation[-1] / history.train[-1]:.1f} times that on training "
            "pairs: more pairs would help most."
        )
    error, baseline = scores.scores.relative_l2, scores.baseline
    if error is not None and baseline is not None and error >= 0.5 * baseline:
        advice.append("Such an error is hardly useful: train longer, give more pairs, or try another operator.")
    return advice


def _figures(run: RunFolder, found: Calibrated, history: History, pairs: FieldPairs) -> list[Figure]:
    from probneural import plots

    figures = [Figure("Training", "Losses by epoch.", plots.png(plots.training(history)))]
    u, noise = predicted(found.predictor, pairs), found.predictor.noise
    drawn = plots.calibration(u, pairs.outputs, noise=noise)
    figures.append(
        Figure("Calibration", "Coverage of intervals against their level; a flat histogram is right.", plots.png(drawn))
    )
    if pairs.outputs.grid.dimension > 2:
        return figures
    error = (u.mean - pairs.outputs.values.to(u.mean)).flatten(1).square().mean(1)
    order = error.argsort().tolist()
    query = None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid
    names, axes = run.config.data.outputs, list(run.record["outputs"]["axes"])
    for title, row in _chosen(order):
        label = names[0] if len(names) == u.mean.shape[1] else "value"
        one, truth = u[row], pairs.outputs[row]
        if found.band is not None:
            image = plots.band(found.band(pairs.inputs[row], query), truth, label=label, axes=axes)
            words = f"with the {100 * found.band.level:g} % band of whole functions"
        else:
            image = plots.field(one, truth, noise=noise, level=run.config.calibration.level, label=label, axes=axes)
            words = "with its pointwise interval"
        figures.append(Figure(title, f"Truth and mean, {words}.", plots.png(image)))
    return figures


def _chosen(order: list[int]) -> list[tuple[str, int]]:
    """Test functions to be drawn, from the smallest error to the largest."""
    if len(order) < 3:
        return [(f"Test function {number + 1}", row) for number, row in enumerate(order)]
    return [
        ("The test function of the smallest error", order[0]),
        ("One of median error", order[len(order) // 2]),
        ("The one of the largest error", order[-1]),
    ]
