"""The report of a run: what it is worth in words, numbers and figures, in one file."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from probneural.distributions import Predictor
from probneural.extras import missing
from probneural.metrics.reliability import LEVELS
from probneural.metrics.scores import Scores
from probneural.pairs import Dataset, FieldPairs, batches, evenly_spread_rows
from probneural.runs.config import Config
from probneural.runs.folder import RANDOM_IN_TIME, RunFolder
from probneural.runs.page import Figure, page
from probneural.runs.progress import Progress
from probneural.runs.scoring import TestScores, batch_size, predicted
from probneural.runs.steps import REPORT, Calibrated, calibrated_in, read_history, score_in
from probneural.training import atomic
from probneural.training.history import History

_DRAWN_VALUES = 2**18
"""Values whose calibration is drawn, about."""
_CLEAR = 2.0
"""Standard errors beyond which the coverage of a band is not its nominal one."""
_CLEAR_AT_ONCE = 2.81
"""The same for 19 levels at once: the 95 % quantile of the largest |coverage - level| in standard errors."""


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
        UnsupportedError: If torchrun has started several processes.
        ImportError: If Matplotlib is missing.
        ProbneuralError: If the settings or the data are unusable.
    """
    try:
        import probneural.plots  # noqa: F401 (that it is there should be known before anything is trained)
    except ModuleNotFoundError as error:
        raise missing("a report", error, "plots") from error
    progress = Progress(show_progress)
    with RunFolder.open(config, folder) as run:
        scores = score_in(run, progress)
        found, history = calibrated_in(run), read_history(run)
        progress.say("writing the report")
        path = run.file(REPORT)
        sentences = verdict(scores, history) + _dependence(run)
        figures = _figures(run, found, history, run.subset("test"))
        atomic.write(path, page(run, scores, sentences=sentences, figures=figures).encode())
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
    sentences.append(_honesty(found, test))
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


def _honesty(scores: Scores, test: int) -> str:
    """Whether the intervals of all levels hold what they promise, and which misses it most."""
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
    """What windows of trajectories mean for the verdict."""
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
    found, baseline, persistence = scores.scores, scores.baseline, scores.persistence
    if found.relative_l2 is None or baseline is None:
        return f"On {test} functions that nothing was fitted to, the root mean squared error is {found.rmse:.3g}."
    sentence = f"On {test} functions that nothing was fitted to, the relative error is {100 * found.relative_l2:.3g} %"
    if found.relative_l2 >= baseline:
        return f"{sentence}: no better than always predicting the mean training output, {100 * baseline:.3g} %."
    if persistence is not None and found.relative_l2 >= persistence:
        return f"{sentence}: no better than persistence, the last state as the prediction, {100 * persistence:.3g} %."
    if persistence is not None:
        return (
            f"{sentence}; always predicting the mean training output has {100 * baseline:.3g} %, and persistence, the last "
            f"state as the prediction, {100 * persistence:.3g} %."
        )
    return f"{sentence}; always predicting the mean training output has {100 * baseline:.3g} %."


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
    limits = [0.5 * scores.baseline] if scores.baseline is not None else []
    limits += [scores.persistence] if scores.persistence is not None else []
    if error is not None and limits and error >= min(limits):
        advice.append("Such an error is hardly useful: train longer, give more pairs, or try another operator.")
    return advice


def _figures(run: RunFolder, found: Calibrated, history: History, data: Dataset) -> list[Figure]:
    from probneural import plots

    figures = [Figure("Training", "Losses by epoch.", plots.png(plots.training(history)))] if history.epochs else []
    size = max(batch_size(data.outputs), _DRAWN_VALUES // (data.outputs.channels * data.outputs.grid.size))
    some = data[evenly_spread_rows(len(data), size)]
    words = "Coverage of intervals against their level; a flat histogram is right."
    if len(some) < len(data):
        words += f" On {len(some)} of {len(data)} test functions."
    drawn = plots.calibration(predicted(found.predictor, some), some.outputs, noise=found.predictor.noise)
    figures.append(Figure("Calibration", words, plots.png(drawn)))
    if data.outputs.grid.dimension > 2:
        return figures
    order = _mean_squares(found.predictor, data).argsort().tolist()
    return figures + [_drawn(run, found, data[[row]], title) for title, row in _chosen(order)]


@torch.no_grad()
def _mean_squares(predictor: Predictor, data: Dataset) -> Tensor:
    """Of the mean's error, for each function."""
    errors = []
    for part in batches(data, batch_size(data.outputs)):
        mean = predicted(predictor, part).mean
        error = part.outputs.grid.fill(mean - part.outputs.values.to(mean))
        errors.append(error.flatten(1).square().mean(1).cpu())
    return torch.cat(errors)


def _drawn(run: RunFolder, found: Calibrated, pair: FieldPairs, title: str) -> Figure:
    """One test function beside its prediction."""
    from probneural import plots

    names, axes = run.config.data.outputs, list(run.record["outputs"]["axes"])
    label = names[0] if len(names) == pair.outputs.channels else "value"
    if found.band is not None:
        query = None if pair.outputs.grid == pair.inputs.grid else pair.outputs.grid
        image = plots.band(found.band(pair.inputs, query), pair.outputs, label=label, axes=axes)
        words = f"with the {100 * found.band.level:g} % band of whole functions"
    else:
        u, noise = predicted(found.predictor, pair), found.predictor.noise
        image = plots.field(u, pair.outputs, noise=noise, level=run.config.calibration.level, label=label, axes=axes)
        words = "with its pointwise interval"
    return Figure(title, f"Truth and mean, {words}.", plots.png(image))


def _chosen(order: list[int]) -> list[tuple[str, int]]:
    """Test functions to be drawn, from the smallest error to the largest."""
    if len(order) < 3:
        return [(f"Test function {number + 1}", row) for number, row in enumerate(order)]
    return [
        ("The test function of the smallest error", order[0]),
        ("One of median error", order[len(order) // 2]),
        ("The one of the largest error", order[-1]),
    ]
