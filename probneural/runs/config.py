"""Configuration of a run: one tree of settings with defaults, each validated against its annotation."""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import re
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from probneural.checks import check_instance, check_integer, check_real, described
from probneural.errors import ArgumentError


@dataclass(frozen=True)
class Range:
    """Range of a numeric setting.

    Attributes:
        least: The smallest, included.
        most: The largest, included.
        above: A bound that is excluded.
        below: Likewise.
    """

    least: int | float = -math.inf
    most: int | float = math.inf
    above: int | float = -math.inf
    below: int | float = math.inf


def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Annotations of a dataclass's settings by name, ranges included: of the fields that are compared."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.compare}


def is_section(hint: Any) -> bool:
    """Whether an annotation is a dataclass, a section of settings."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def joined(section: str, name: str) -> str:
    """Name of a setting in messages; the section may be the whole tree, "", or "--" on a command line.

    Examples:
        >>> joined("training.optimization", "optimizer"), joined("", "training"), joined("--", "path")
        ('training.optimization.optimizer', 'training', '--path')
    """
    return f"{section}.{name}" if section.strip("-") else f"{section}{name}"


def explanations(kind: type[Any]) -> dict[str, str]:
    """Descriptions of the fields of a dataclass from `Attributes:` of its docstring, one line each.

    Examples:
        >>> explanations(Range)["least"]
        'The smallest, included.'
    """
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    parts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def convert(value: object, hint: Any, name: str) -> Any:
    """Return a value in the type of an annotation: lists become tuples, tables the dataclasses that they stand for.

    Args:
        value: Plain Python: truth values, numbers, texts, lists, dictionaries.
        hint: `bool`, `int`, `float`, `str`, a `Literal`, `tuple[..., ...]`, `dict[str, Any]`, a union of these, a dataclass,
            or one of them with a `Range`.
        name: Name of the value in messages.

    Raises:
        ArgumentError: If the value is of another type or out of range.

    Examples:
        >>> convert([1, 2.5], tuple[float, ...], "lengths")
        (1.0, 2.5)
        >>> convert("many", Annotated[int, Range(least=1)] | Literal["auto"], "epochs")
        Traceback (most recent call last):
        ...
        probneural.errors.ArgumentError: expected epochs: an integer of at least 1, or 'auto'; got 'many'; change it
    """
    try:
        return _converted(value, hint, name)
    except _OtherTypeError:
        got = repr(value) if isinstance(value, str | int | float | list | tuple) else described(value)
        raise ArgumentError(expected=f"{name}: {_said(hint)}", got=got[:100], remedy="change it") from None


class _OtherTypeError(Exception):
    """A value does not fit an annotation."""


def _converted(value: object, hint: Any, name: str) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _in_range(_converted(value, inner[0], name), inner[1])
    if origin in (Union, types.UnionType):
        return _first(value, inner, name)
    if origin is Literal:
        return _require(value, any(type(value) is type(word) and value == word for word in inner))
    if origin is tuple:
        entries = _require(value, isinstance(value, list | tuple))
        return tuple(_converted(entry, inner[0], name) for entry in entries)
    if origin is dict:
        entries = _require(value, isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
        return {key: plain(entry, f"{name}.{key}") for key, entry in entries.items()}
    if is_section(hint):
        return value if isinstance(value, hint) else _section(value, hint, name)
    return _scalar(value, hint, name)


def _section(value: object, kind: type[Any], name: str) -> Any:
    """The dataclass of a table, with defaults for missing entries."""
    hints = hints_of(kind)
    entries: Mapping[str, object] = _require(value, isinstance(value, Mapping))
    for key in entries:
        if key not in hints:
            raise ArgumentError(expected="known settings", got=joined(name, key), remedy="leave it out")
    return kind(**{key: convert(entry, hints[key], joined(name, key)) for key, entry in entries.items()})


def _scalar(value: object, hint: Any, name: str) -> Any:
    try:
        if hint is int:
            return check_integer(value, name, least=-math.inf)
        if hint is float:
            return check_real(value, name)
    except ArgumentError:
        raise _OtherTypeError from None
    return _require(value, type(value) is hint)


def _first(value: object, hint: tuple[Any, ...], name: str) -> Any:
    for alternative in hint:
        try:
            return _converted(value, alternative, name)
        except _OtherTypeError:
            continue
    raise _OtherTypeError


def _require(value: Any, fits: bool) -> Any:
    if not fits:
        raise _OtherTypeError
    return value


def _in_range(value: Any, allowed: Range) -> Any:
    if isinstance(value, int | float):
        _require(value, allowed.least <= value <= allowed.most and allowed.above < value < allowed.below)
    return value


def plain(value: object, name: str) -> Any:
    """Return TOML-compatible values, with lists for tuples.

    Raises:
        ArgumentError: If it is anything else, or a number that is not finite.
    """
    if isinstance(value, bool | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(entry, name) for entry in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain(entry, f"{name}.{key}") for key, entry in value.items()}
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return value
    if isinstance(value, float):
        return check_real(value, name)
    raise ArgumentError(
        expected=f"{name}: true, false, a number, a text, or a list or table of them", got=described(value), remedy="change it"
    )


def _said(hint: Any) -> str:
    """An annotation in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [
            f"{word} {getattr(inner[1], key):g}"
            for key, word in (("least", "at least"), ("most", "at most"), ("above", "above"), ("below", "below"))
            if math.isfinite(getattr(inner[1], key))
        ]
        return f"{_said(inner[0])}{' of ' * bool(bounds)}{' and '.join(bounds)}"
    if origin in (Union, types.UnionType):
        return ", or ".join(_said(alternative) for alternative in inner)
    if origin is Literal:
        return f"one of {', '.join(map(repr, inner))}" if len(inner) > 1 else repr(inner[0])
    if origin is tuple:
        return f"a list, each entry {_said(inner[0])}"
    words = {bool: "true or false", int: "an integer", float: "a finite number", str: "a text"}
    return words.get(hint, "a table")


Fraction = Annotated[float, Range(above=0.0, below=1.0)]
Count = Annotated[int, Range(least=1)]
Seed = Annotated[int, Range(least=0)]
Positive = Annotated[float, Range(above=0.0)]
Auto = Literal["auto"]
"""The value is derived from the data; a run's folder records it."""
PATHS = ("path", "outputs_path", "test_path")
"""Settings that name files."""
Absent = Literal["none"]
"""Stands for None, which TOML lacks."""
NO_OPERATOR = "none"
"""Name of the operator for heads without an operator."""


class Section:
    """Base class of frozen dataclasses of settings."""

    def __post_init__(self) -> None:
        """Convert each setting to its annotation, or raise an ArgumentError."""
        for name, hint in hints_of(type(self)).items():
            object.__setattr__(self, name, convert(getattr(self, name), hint, name))


@dataclass(frozen=True, kw_only=True)
class Data(Section):
    """Data files and their layout.

    Attributes:
        path: A file of NetCDF, zarr, HDF5, NumPy (.npz, .npy, a folder of them), MATLAB, PyTorch, CSV, The Well, PDEBench
            or a mesh; a pattern such as "runs/*.nc" or "cases/*.vtu", or several files separated by the system's path
            separator; in a configuration file, relative to that file.
        inputs: Names of the input variables; several are channels. The Well and PDEBench have defaults.
        outputs: Names of the output variables; several are channels.
        outputs_path: The file of the outputs, if separate.
        test_path: A separate file of test samples with the same layout; all samples of the first file are then used for
            training or calibration.
        axes: Roles of the axes in the file's order: n samples, t times, c channels, - an axis of length 1, any other name an
            axis of space; "n x y c", or "n c -> n x y" if outputs differ. By default roles follow from names in the file.
        group: Group of the file that holds the variables.
        periodic: Whether each dimension of space is periodic, or one value for all; coordinates do not contain it.
        lengths: Extent of each dimension of space in the coordinates' units; by default from the coordinates.
        sample: The dimension of samples or trajectories; "auto" takes a common name such as "sample".
        time: The dimension of time, or the array of the times if axes have no names; "auto" detects it.
        channel: The dimension of channels inside a variable, if there is one.
        history: For trajectories, number of consecutive states in an input.
        lead: For trajectories, number of steps from the last input state to the output.
        stride: For trajectories, number of steps between windows.
        mask: Meaning of NaN: "none" is an error, "land" masks the NaN points of the first sample, "samples" masks missing
            values sample by sample.
        dtype: Precision of values and weights.
    """

    path: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    outputs_path: str = ""
    test_path: str = ""
    axes: str = ""
    group: str = ""
    periodic: tuple[bool, ...] = ()
    lengths: tuple[Positive, ...] = ()
    sample: str = "auto"
    time: str = "auto"
    channel: str = "channel"
    history: Count = 1
    lead: Count = 1
    stride: Count = 1
    mask: Literal["none", "land", "samples"] = "none"
    dtype: Literal["float32", "float64"] = "float32"


def paths_in(setting: str) -> list[str]:
    """The files of a setting."""
    return [setting] if os.path.exists(setting) else [part for part in setting.split(os.pathsep) if part]


def with_paths(data: Data, change: Callable[[str], str]) -> Data:
    """The settings with each path changed."""
    changed: dict[str, Any] = {name: os.pathsep.join(map(change, paths_in(getattr(data, name)))) for name in PATHS}
    return replace(data, **changed)


@dataclass(frozen=True, kw_only=True)
class Split(Section):
    """Split of the pairs: drawn once, recorded, and disjoint. The remaining pairs are for training.

    Windows of one trajectory are not split: fractions are then fractions of trajectories. A single time series is split into
    training (earliest), scaling, conformal and test parts; pairs that share a state with an earlier part are omitted.

    Attributes:
        by: "random"; "time" for parts in temporal order; "blocks" for contiguous blocks of time, assigned at random. "auto"
            is "time" for one trajectory and if samples are times, and "random" otherwise.
        embargo: For a split by time or blocks, number of time steps between two parts; pairs within are omitted.
        test: Fraction for scores and the report.
        scaling: Fraction for the scales of the variances; at least 2 pairs.
        conformal: Fraction for the simultaneous bands; the level requires a minimum number of pairs, or of trajectories
            for windows. With fewer trajectories there are no bands.
        seed: Random seed of the split.
    """

    by: Literal["random", "time", "blocks"] | Auto = "auto"
    embargo: Annotated[int, Range(least=0)] = 0
    test: Fraction = 0.2
    scaling: Fraction = 0.1
    conformal: Fraction = 0.1
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Operator(Section):
    """The operator.

    Attributes:
        name: A class of probneural.operators; "auto" for the one that probneural.operators.suggest recommends, "none" for the
            head KernelOperator on the data alone.
        options: Arguments of its constructor other than channels, grids and seed; defaults are derived from the data.
        seed: Random seed of the initial weights.
    """

    name: Literal["auto", "none", "FNO", "DeepONet", "PODDeepONet", "PointFNO"] = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class Optimization(Section):
    """Options of probneural.training.Optimization; "none" omits an option.

    Attributes:
        optimizer: "muon" for small matrices with AdamW for other weights; "adamw" for all weights.
        weight_decay: Weight decay.
        schedule: Schedule of the learning rate: "cosine", or "none" for a constant one.
        gradient_clip: Largest norm of the gradient of all weights together.
        accumulation: Number of batches per step.
        precision: "bfloat16" or "float16" for autocast of the operator; "none" for that of the data.
        full_precision_tail: Fraction of the epochs, the last ones, without autocast.
    """

    optimizer: Literal["muon", "adamw"] = "muon"
    weight_decay: Annotated[float, Range(least=0.0)] = 0.0
    schedule: Literal["cosine", "none"] = "cosine"
    gradient_clip: Positive | Absent = "none"
    accumulation: Count = 1
    precision: Literal["none", "bfloat16", "float16"] = "none"
    full_precision_tail: Annotated[float, Range(least=0.0, below=1.0)] = 0.0


@dataclass(frozen=True, kw_only=True)
class EarlyStopping(Section):
    """Options of probneural.training.EarlyStopping.

    Attributes:
        patience: Number of epochs without improvement of the validation loss before training ends; "none" for never.
        restore_best: Whether to restore the weights of the epoch with the smallest loss.
    """

    patience: Count | Absent = "none"
    restore_best: bool = True


@dataclass(frozen=True, kw_only=True)
class Training(Section):
    """Arguments of probneural.fit.

    Attributes:
        epochs: Number of passes over the training pairs; "auto" is about 30,000 pairs in total, in 20 to 200 passes, and
            twice that for DeepONets.
        batch_size: Number of pairs per step.
        learning_rate: Peak learning rate; "auto" is 3e-3 for an FNO and 1e-3 for DeepONets.
        validation: Fraction of the training pairs for validation; 0 trains on all.
        seed: Random seed of the order of batches.
        device: Device for training and prediction: "auto" (CUDA, MPS or CPU), "cpu", "cuda:0".
        workers: Number of processes that read batches of data too large for memory; 0 reads in a thread.
        optimization: Optimisation settings.
        early_stopping: Early stopping.
    """

    epochs: Count | Auto = "auto"
    batch_size: Count = 20
    learning_rate: Positive | Auto = "auto"
    validation: Annotated[float, Range(least=0.0, below=1.0)] = 0.1
    seed: Seed = 0
    device: str = "auto"
    workers: Annotated[int, Range(least=0)] = 0
    optimization: Optimization = Optimization()
    early_stopping: EarlyStopping = EarlyStopping()

    def __post_init__(self) -> None:
        """Check the settings, and that early stopping has validation pairs."""
        super().__post_init__()
        if self.early_stopping.patience != "none" and self.validation == 0.0:
            raise ArgumentError(
                expected="validation above 0 with early stopping, which needs validation pairs",
                got=f"validation = {self.validation:g}, early_stopping.patience = {self.early_stopping.patience}",
                remedy='raise validation, or set patience = "none"',
            )


@dataclass(frozen=True, kw_only=True)
class Head(Section):
    """The uncertainty head.

    Attributes:
        name: A class of probneural.heads; "auto" is LastLayerLaplace, or KernelOperator without an operator.
        options: Arguments of its constructor: structure = "low_rank" for Laplace, members = 5 for DeepEnsemble.
    """

    name: Literal["auto", "LastLayerLaplace", "Laplace", "DeepEnsemble", "KernelOperator"] = "auto"
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Calibration(Section):
    """Calibration on held-out pairs.

    Attributes:
        scales: Whether to scale variances to the errors on the scaling pairs.
        separate: Whether covariance and noise have separate scales.
        noise: Variance of the measurement noise in the outputs, in physical units squared; 0 for a solver's solutions.
        level: Nominal coverage of intervals and bands, also in scores and predictions.
        bands: Whether to calibrate simultaneous bands on the conformal pairs.
        modulation: Width of a band: "std" is proportional to the standard deviation, "constant" is uniform.
    """

    scales: bool = True
    separate: bool = True
    noise: Annotated[float, Range(least=0.0)] = 0.0
    level: Fraction = 0.9
    bands: bool = True
    modulation: Literal["std", "constant"] = "std"


@dataclass(frozen=True, kw_only=True)
class Scores(Section):
    """Scores on the test pairs.

    Attributes:
        whole: Number of samples for joint scores; "auto" is 200, 20 and 10 in 1, 2 and 3 dimensions.
    """

    whole: Count | Auto = "auto"


@dataclass(frozen=True, kw_only=True)
class Config(Section):
    """Configuration of a run: data, split, operator, training, head, calibration and scores.

    Attributes:
        data: Data files and their layout.
        split: Split of the pairs.
        operator: The operator.
        training: Training.
        head: The uncertainty head.
        calibration: Calibration.
        scores: Scores on the test pairs.

    Raises:
        ArgumentError: If a setting is of another type or out of range; each section checks its own.

    Examples:
        >>> Config(data=Data(path="flow.nc", inputs=("a",), outputs=("u",), periodic=(True,))).data.periodic
        (True,)
    """

    data: Data = Data()
    split: Split = Split()
    operator: Operator = field(default_factory=Operator)
    training: Training = field(default_factory=Training)
    head: Head = field(default_factory=Head)
    calibration: Calibration = Calibration()
    scores: Scores = Scores()

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values by section and name: lists for tuples, dictionaries for sections."""
        return _plain(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> Config:
        """Build a configuration from plain values, with defaults for missing ones.

        Raises:
            ArgumentError: If a value is invalid, or a setting is unknown.
        """
        config: Config = convert(values, cls, "")
        return config

    def differences(self, reference: Config) -> Iterator[str]:
        """Describe the settings in which another configuration differs, as `training.epochs = 50, not 20`.

        Examples:
            >>> list(Config().differences(Config(split=Split(seed=1))))
            ['split.seed = 0, not 1']
        """
        check_instance(reference, Config, "reference", remedy="read it: runs.read_config(path)", error=ArgumentError)
        ours, theirs = self.to_dict(), reference.to_dict()
        for section, entries in ours.items():
            for name, value in entries.items():
                if value != theirs[section][name]:
                    yield from _apart(f"{section}.{name}", value, theirs[section][name])


def _plain(section: Any) -> dict[str, Any]:
    """The settings of a dataclass as plain values."""
    values = {name: getattr(section, name) for name in hints_of(type(section))}
    return {
        name: _plain(value) if is_dataclass(value) else list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
    }


def _apart(name: str, first: Any, second: Any) -> Iterator[str]:
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted({*first, *second}):
            if first.get(key) != second.get(key):
                yield from _apart(f"{name}.{key}", first.get(key, "left out"), second.get(key, "left out"))
    else:
        yield f"{name} = {first!r}, not {second!r}"
