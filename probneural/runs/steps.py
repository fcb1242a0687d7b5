"""The steps of a run: train, fit, calibrate, score. Each executes missing previous steps."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from probneural import atomic
from probneural.calibration import SimultaneousBand, VarianceScale
from probneural.calibration.bands.conformal import Band
from probneural.checks import check_flag, check_instance, check_path
from probneural.data import list_variables
from probneural.data.opening import paths_of
from probneural.distributions import Predictor
from probneural.errors import ArgumentError, FileError, ProbneuralError
from probneural.runs.config import Config, paths_in, with_paths
from probneural.runs.folder import RunFolder
from probneural.runs.recipes import MEMBER, build_head, build_operator, choose, has_no_operator, resolved, train_operator
from probneural.runs.scoring import TestScores, scores_of
from probneural.runs.sources import open_pairs, resolved_split, rows_of_parts, with_names
from probneural.runs.toml import write_config
from probneural.storage import load, save
from probneural.training import schema
from probneural.training.callbacks import History

OPERATOR, HISTORY, CHECKPOINT = "operator.safetensors", "history.json", "checkpoint.safetensors"
HEAD, PREDICTOR, CALIBRATION = "head.safetensors", "predictor.safetensors", "calibration.json"
SCORES, REPORT = "scores.json", "report.html"
_ORDER = (OPERATOR, HEAD, CALIBRATION, SCORES, REPORT)
"""Files that mark completed steps, in the order of the steps."""
_LINES = 10
"""Lines of one training in a log, about."""


class Progress:
    """Progress reports on the standard error stream.

    Args:
        is_shown: Whether to print.
    """

    def __init__(self, is_shown: bool) -> None:
        self.is_shown = is_shown

    @property
    def has_bars(self) -> bool:
        """Whether there is a terminal, where bars move."""
        return self.is_shown and sys.stderr.isatty()

    def say(self, text: str) -> None:
        """Write one line."""
        if self.is_shown:
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()

    def epochs(self, total: int) -> Callable[[int, dict[str, float]], None] | None:
        """Callback after each epoch; a log gets every tenth of the run."""
        if not self.is_shown or self.has_bars:
            return None

        def tell(number: int, losses: dict[str, float]) -> None:
            if number * _LINES // total > (number - 1) * _LINES // total:
                shown = ", ".join(f"{name} {value:.3g}" for name, value in losses.items())
                self.say(f"  epoch {number} of {total}: {shown}")

        return tell


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Result of the calibration.

    Attributes:
        predictor: Predictor with variances scaled to the errors on the scaling pairs.
        band: Simultaneous band of the conformal pairs; None if disabled.
    """

    predictor: Predictor
    band: Band | None


def train(config: Config | None, folder: str | os.PathLike[str], *, show_progress: bool = True) -> History:
    """Train the operator of a run; an interrupted run resumes from its checkpoint, bit-equally.

    Args:
        config: The settings; None for those of the folder.
        folder: The run's folder, which is made if there is none.
        show_progress: Whether to say on the standard error stream how far it is.

    Returns:
        The losses by epoch. The folder holds `operator.safetensors` and `history.json`.

    Raises:
        FileError: If the folder belongs to other settings or data, holds other files, cannot be written to, or another
            process works in it.
        UnsupportedError: If torchrun has started several processes.
        ProbneuralError: If the settings or the data are unusable.
    """
    with RunFolder.open(config, folder) as run:
        return train_in(run, Progress(show_progress))


def fit(config: Config | None, folder: str | os.PathLike[str], *, show_progress: bool = True) -> Predictor:
    """Fit the head of a run to its trained operator and training pairs.

    Args:
        config: The settings; None for those of the folder.
        folder: The run's folder, which is made if there is none.
        show_progress: Whether to say on the standard error stream how far it is.

    Returns:
        The predictor, not calibrated. The folder holds it as `head.safetensors`.

    Raises:
        FileError: If the folder belongs to other settings or data, holds other files, cannot be written to, or another
            process works in it.
        UnsupportedError: If torchrun has started several processes.
        ProbneuralError: If the settings or the data are unusable.
    """
    with RunFolder.open(config, folder) as run:
        return fit_in(run, Progress(show_progress))


def calibrate(config: Config | None, folder: str | os.PathLike[str], *, show_progress: bool = True) -> Calibrated:
    """Scale a run's variances on the scaling pairs, and calibrate simultaneous bands on the conformal ones.

    Args:
        config: The settings; None for those of the folder.
        folder: The run's folder, which is made if there is none.
        show_progress: Whether to say on the standard error stream how far it is.

    Returns:
        Predictor and band. The folder holds `predictor.safetensors` and `calibration.json`.

    Raises:
        FileError: If the folder belongs to other settings or data, holds other files, cannot be written to, or another
            process works in it.
        UnsupportedError: If torchrun has started several processes.
        CalibrationError: If the held-out pairs cannot support the calibration.
        ProbneuralError: If the settings or the data are unusable.
    """
    with RunFolder.open(config, folder) as run:
        return calibrate_in(run, Progress(show_progress))


def score(config: Config | None, folder: str | os.PathLike[str], *, show_progress: bool = True) -> TestScores:
    """Score a run on its test pairs, which are used for nothing else.

    Args:
        config: The settings; None for those of the folder.
        folder: The run's folder, which is made if there is none.
        show_progress: Whether to say on the standard error stream how far it is.

    Returns:
        The scores; printing gives a table. The folder holds them as `scores.json`.

    Raises:
        FileError: If the folder belongs to other settings or data, holds other files, cannot be written to, or another
            process works in it.
        UnsupportedError: If torchrun has started several processes.
        ProbneuralError: If the settings or the data are unusable.
    """
    with RunFolder.open(config, folder) as run:
        return score_in(run, Progress(show_progress))


def train_in(run: RunFolder, progress: Progress) -> History:
    """Train in an open folder; see [`train`][probneural.runs.train]."""
    trains = not has_no_operator(run.config)
    if run.file(OPERATOR if trains else HISTORY).exists():
        return read_history(run)
    begin(run, OPERATOR)
    progress.say(f"data: {run.record['reading']}")
    if run.record["reason"]:
        progress.say(run.choice)
    if not trains:
        history = History(train=(), validation=(), seconds=())
        run.write(HISTORY, asdict(history))
        return history
    pairs = run.subset("train")
    operator = build_operator(run.config.operator, pairs)
    progress.say(
        f"training {run.config.operator.name} of {sum(p.numel() for p in operator.parameters()):,} parameters "
        f"on {len(pairs)} pairs, {run.config.training.epochs} epochs"
    )
    checkpoint = run.file(CHECKPOINT)
    history = train_operator(
        operator,
        pairs,
        training=run.config.training,
        checkpoint=checkpoint,
        show_progress=progress.has_bars,
        on_epoch=progress.epochs(int(run.config.training.epochs)),
    )
    run.write(HISTORY, asdict(history))
    save(operator.cpu(), run.file(OPERATOR))
    run.remove(CHECKPOINT)
    return history


def fit_in(run: RunFolder, progress: Progress) -> Predictor:
    """Fit in an open folder; see [`fit`][probneural.runs.fit]."""
    train_in(run, progress)
    if run.file(HEAD).exists():
        return _predictor(run, HEAD)
    begin(run, HEAD)
    operator = None if has_no_operator(run.config) else load(run.file(OPERATOR), device=run.config.training.device)
    pairs = run.subset("train")
    progress.say(f"fitting {run.config.head.name} to {len(pairs)} pairs")
    head = build_head(run.config.head, training=run.config.training, folder=run.path, show_progress=progress.has_bars)
    predictor: Predictor = head.fit(operator, pairs)
    save(predictor, run.file(HEAD))
    _remove_members(run)
    return predictor


def calibrate_in(run: RunFolder, progress: Progress) -> Calibrated:
    """Calibrate in an open folder; see [`calibrate`][probneural.runs.calibrate]."""
    raw = fit_in(run, progress)
    if run.file(CALIBRATION).exists():
        return calibrated_in(run)
    begin(run, CALIBRATION)
    settings, predictor, band = run.config.calibration, raw, None
    record: dict[str, Any] = {"noise": raw.noise.tolist(), "band": None}
    if settings.scales:
        pairs = run.subset("scaling")
        progress.say(f"scaling variances on {len(pairs)} pairs")
        predictor = VarianceScale(separate=settings.separate, noise=settings.noise).fit(raw, pairs)
    if settings.bands and not run.record["split"]["conformal"]:
        progress.say("fitting no bands of whole functions: there are too few trajectories for the level")
    elif settings.bands:
        pairs = run.subset("conformal")
        progress.say(f"fitting bands of whole functions on {len(pairs)} pairs")
        method = band_method(run.config)
        band = method.fit(predictor, pairs)
        record["band"] = {"quantile": band.quantile, "level": method.level, "pairs": len(pairs)}
    save(predictor, run.file(PREDICTOR))
    run.write(CALIBRATION, record)
    return Calibrated(predictor, band)


def score_in(run: RunFolder, progress: Progress) -> TestScores:
    """Score in an open folder; see [`score`][probneural.runs.score]."""
    calibrated = calibrate_in(run, progress)
    if run.file(SCORES).exists():
        return TestScores.from_dict(run.read(SCORES))
    begin(run, SCORES)
    pairs = run.subset("test")
    progress.say(f"scoring {len(pairs)} test functions")
    scores = scores_of(
        calibrated.predictor,
        pairs,
        raw=_predictor(run, HEAD),
        band=calibrated.band,
        train=run.subset("train"),
        band_pairs=run.independent("conformal"),
        config=run.config,
        persists=run.persists,
    )
    run.write(SCORES, scores.to_dict())
    return scores


def calibrated_in(run: RunFolder) -> Calibrated:
    """Read the result of the calibration.

    Raises:
        FileError: If it has not been done, or a file is damaged.
    """
    record = run.read(CALIBRATION)
    predictor = _predictor(run, PREDICTOR)
    band = record.get("band")
    method = band_method(run.config)
    return Calibrated(predictor, None if band is None else Band(predictor, quantile=band["quantile"], method=method))


def read_history(run: RunFolder) -> History:
    """The losses of a trained run, and the epoch of the restored weights with early stopping.

    Raises:
        FileError: If the file is damaged.
    """
    record = run.read(HISTORY)
    names = ("train", "validation", "seconds")
    train, validation, seconds = (tuple(schema.instance(record.get(name, []), list, where=HISTORY)) for name in names)
    return History(train=train, validation=validation, seconds=seconds, restored=record.get("restored"))


def band_method(config: Config) -> SimultaneousBand:
    """The settings of a run's band."""
    return SimultaneousBand(config.calibration.level, modulation=config.calibration.modulation)


def _predictor(run: RunFolder, name: str) -> Predictor:
    loaded = load(run.file(name), device=run.config.training.device)
    if not isinstance(loaded, Predictor):
        raise FileError(expected=f"a predictor in {name}", got=type(loaded).__name__, remedy="remove the file, and repeat")
    return loaded


def _remove_members(run: RunFolder) -> None:
    run.remove(*(file.name for file in run.path.glob(f"{MEMBER}*.safetensors")))


def begin(run: RunFolder, done: str) -> None:
    """Remove the outdated results of later steps."""
    run.remove(*_ORDER[_ORDER.index(done) :])
    if done == OPERATOR:
        _remove_members(run)
    atomic.remove_abandoned(run.path)


def init(config: Config, path: str | os.PathLike[str], *, overwrite: bool = False) -> Config:
    """Write a TOML file with every setting, its default and description; some values are derived from the data.

    Where inputs, outputs and periodicity are given, settings that follow from the data get their numbers. Otherwise comments
    say which variables there are, and what only the user can know.

    Args:
        config: Settings; by default none, at least a data path to derive values.
        path: The file to write.
        overwrite: Whether an existing file is replaced.

    Returns:
        The settings that were written; the path of the data is relative to the file.

    Raises:
        FileError: If there is such a file, it cannot be written, or the data are missing or cannot be read.
        ProbneuralError: If the settings do not fit the data.
    """
    check_instance(config, Config, "config", remedy="begin with Config()", error=ArgumentError)
    file = check_path(path, "path")
    if not check_flag(overwrite, "overwrite") and file.exists():
        raise FileError(expected=f"no file at {file}", got="one", remedy="name another by --output, or say --overwrite")
    config, notes = initial_config(config)
    config = dataclasses.replace(config, data=with_paths(config.data, lambda path: os.path.relpath(path, file.parent)))
    write_config(config, file, notes=notes)
    return config


def initial_config(config: Config) -> tuple[Config, dict[str, str]]:
    """Derive settings from the data; also return notes by `section.name`."""
    if not config.data.path:
        return config, {}
    variables = list_variables(paths_of(paths_in(config.data.path))[0])
    notes = {
        "data.inputs": f"The file holds {'; '.join(map(str, variables)) or 'no variables'}.",
        "data.periodic": "To be stated: [true] or [false], or one entry for each dimension of space.",
    }
    names = {variable.name for variable in variables}
    data = config.data
    if {"inputs", "outputs"} <= names and not data.inputs and not data.outputs:
        data = dataclasses.replace(data, inputs=("inputs",), outputs=("outputs",))
        config = dataclasses.replace(config, data=data)
    try:
        pairs = open_pairs(config.data)
    except ProbneuralError:
        if data.inputs and data.outputs and data.periodic:
            raise
        return config, notes
    config = dataclasses.replace(config, data=with_names(data, pairs), split=resolved_split(config.split, pairs))
    rows = rows_of_parts(pairs, config)
    del notes["data.periodic"]
    choice = choose(config, pairs, train=len(rows["train"]))
    if choice is not None:
        notes["operator.name"] = f"Chosen because {choice.reason}."
    return resolved(config, pairs, train=len(rows["train"])), notes
