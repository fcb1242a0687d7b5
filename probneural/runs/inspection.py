"""Results of a run, and descriptions of files and folders by their metadata, without running anything of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from probneural.calibration.bands.conformal import Band
from probneural.checks import check_path
from probneural.data import list_variables
from probneural.data.opening import paths_of
from probneural.distributions import Predictor
from probneural.errors import FileError
from probneural.registry import kind_named, stored
from probneural.runs import steps
from probneural.runs.config import Config
from probneural.runs.folder import OF_ONE_STEP, RunFolder, check_record, read_json, read_record
from probneural.runs.scoring import TestScores
from probneural.runs.sources import PARTS
from probneural.storage import load
from probneural.storage.kinds import CONFIGURATION, FOREIGN
from probneural.training import files, schema
from probneural.training.callbacks import History


@stored()
@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """Results of a calibrated run without its data, for example `pn.save(run, "run.safetensors")`; from `read_run`.

    Attributes:
        predictor: Calibrated predictor; the operator is a part of it.
        quantile: Half width of the simultaneous band in units of the local scale; None without a band.
        history: Losses of the training.
        scores: Scores on the test pairs; None if the run was not scored.
        record: Text of `run.json`: settings, rows of each part, versions.
    """

    predictor: Predictor
    quantile: float | None
    history: History
    scores: TestScores | None
    record: str

    def __post_init__(self) -> None:
        """Validate the record."""
        self.contents, self.config  # noqa: B018

    @cached_property
    def contents(self) -> dict[str, Any]:
        """The record, parsed."""
        return check_record(schema.parsed(self.record))

    @cached_property
    def config(self) -> Config:
        """The settings."""
        return Config.from_dict(self.contents["config"])

    @property
    def band(self) -> Band | None:
        """The simultaneous band; None without one."""
        method = steps.band_method(self.config)
        return None if self.quantile is None else Band(self.predictor, quantile=self.quantile, method=method)


def read_run(path: str | os.PathLike[str]) -> Run:
    """Read the results of a run: `pn.save` writes them to one file, which `pn.load`, `read_run` and `predict` read.

    Args:
        path: Folder of a calibrated run, or a file of its results.

    Raises:
        FileError: If it is something else, or damaged.
    """
    place = check_path(path, "path")
    if place.is_file():
        loaded = load(place, device="auto")
        if not isinstance(loaded, Run):
            remedy = "save one: pn.save(pn.runs.read_run(folder), path)"
            raise FileError(expected=f"results of a run in {place}", got=type(loaded).__name__, remedy=remedy)
        return loaded
    folder = RunFolder.finished(place)
    if not folder.file(steps.CALIBRATION).exists():
        remedy = f"first: probneural calibrate --folder {place}"
        raise FileError(expected=f"a calibrated run in {place}", got="none", remedy=remedy)
    calibrated = steps.calibrated_in(folder)
    return Run(
        predictor=calibrated.predictor,
        quantile=None if calibrated.band is None else calibrated.band.quantile,
        history=steps.read_history(folder),
        scores=TestScores.from_dict(folder.read(steps.SCORES)) if folder.file(steps.SCORES).exists() else None,
        record=json.dumps(folder.record),
    )


_STEPS = (
    ("trained", steps.OPERATOR),
    ("head fitted", steps.HEAD),
    ("calibrated", steps.CALIBRATION),
    ("scored", steps.SCORES),
    ("report", steps.REPORT),
)


def info(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Describe a file or folder: a run, a saved operator or predictor, a checkpoint, or data.

    Digests of saved files are verified. No objects are constructed.

    Args:
        path: Path of a run's folder, a `.safetensors` file or a data file, or a pattern, whose first match is read.

    Returns:
        Facts by name; the first is `what`.

    Raises:
        FileError: If it is of another kind, or damaged.
    """
    place = check_path(path, "path")
    if place.suffix == ".safetensors":
        return _saved(place)
    if (place / "run.json").exists():
        return _run(place)
    try:
        files = paths_of(place)
        counts = {} if len(files) == 1 else {"files": len(files)}
        return {"what": "data", **counts, "variables": [str(variable) for variable in list_variables(files[0])]}
    except FileError as error:
        raise FileError(
            expected=f"a run's folder, a .safetensors file or data at {place}", got=error.got, remedy=error.remedy
        ) from error


def _saved(path: Path) -> dict[str, Any]:
    tensors, metadata = files.read(path)
    kind = str(metadata.get("kind"))
    facts: dict[str, Any] = {"what": "checkpoint" if kind == "checkpoint" else kind}
    if kind == "checkpoint":
        losses = metadata.get("losses", [])
        facts |= {"epochs done": len(losses), "training loss": losses[-1] if losses else None}
    else:
        registered = kind_named(kind)
        cls = registered.cls if registered else nn.Module if kind == FOREIGN else object
        is_operator = issubclass(cls, nn.Module)
        facts["is"] = "an operator" if is_operator else "a predictor" if issubclass(cls, Predictor) else "a fitted object"
        parts = list(_parts(metadata))
        if not is_operator:
            facts["made of"] = ", ".join(dict.fromkeys(part["kind"] for part in parts if part["kind"] != kind))
        for part in parts:
            settings = part.get(CONFIGURATION)
            if isinstance(settings, Mapping):
                plain = {name: value for name, value in settings.items() if not isinstance(value, Mapping)}
                facts[f"configuration of {part['kind']}"] = plain
    count = sum(tensor.numel() for name, tensor in tensors.items() if not name.startswith("optimizer."))
    dtypes = sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()})
    return facts | {"numbers": count, "dtypes": ", ".join(dtypes), "bytes": path.stat().st_size}


def _parts(described: Any) -> Iterator[Mapping[str, Any]]:
    """Everything in a file that has a kind, from the outside in."""
    if isinstance(described, Mapping) and isinstance(described.get("kind"), str):
        yield described
    entries = described.values() if isinstance(described, Mapping) else described if isinstance(described, list) else ()
    for entry in entries:
        yield from _parts(entry)


def _run(path: Path) -> dict[str, Any]:
    record = read_record(path)
    config, split = Config.from_dict(record["config"]), record["split"]
    data = config.data
    facts: dict[str, Any] = {
        "what": "run",
        "data": f"{data.path}: {', '.join(data.inputs)} -> {', '.join(data.outputs)}",
        "fingerprint": record["fingerprint"],
        "split": ", ".join(f"{len(split.get(part, ()))} {part}" for part in PARTS),
        "operator": config.operator.name,
        "head": config.head.name,
        "done": ", ".join(name for name, file in _STEPS if (path / file).exists()) or "nothing",
        "versions": ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
    }
    if (path / steps.CHECKPOINT).exists() and not (path / steps.OPERATOR).exists():
        facts["epochs done"] = f"{_saved(path / steps.CHECKPOINT)['epochs done']} of {config.training.epochs}"
    if (path / steps.HISTORY).exists():
        losses = read_json(path / steps.HISTORY, remedy=OF_ONE_STEP)
        facts["training loss"] = schema.instance(losses.get("train") or [None], list, where=steps.HISTORY)[-1]
        if losses.get("restored") is not None:
            facts["weights of epoch"] = losses["restored"]
    if (path / steps.SCORES).exists():
        facts["relative L2 error"] = read_json(path / steps.SCORES, remedy=OF_ONE_STEP).get("scores", {}).get("relative_l2")
    return facts
