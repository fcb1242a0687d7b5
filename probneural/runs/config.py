"""Configuration of a run: one tree of settings with defaults, which pydantic validates against its annotations."""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, fields, replace
from functools import reduce
from itertools import takewhile
from typing import Annotated, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_type_hints

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError, field_validator
from pydantic.dataclasses import dataclass
from typing_extensions import TypeAliasType

from probneural.checks import check_instance, nearest
from probneural.errors import ArgumentError

T = TypeVar("T")
List = Annotated[
    tuple[T, ...], Field(strict=True), BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
]
Flag = Annotated[bool, Field(strict=True)]
Natural = Annotated[int, Field(strict=True, ge=0)]
Count = Annotated[int, Field(strict=True, ge=1)]
NonNegative = Annotated[float, Field(strict=True, ge=0.0)]
Positive = Annotated[float, Field(strict=True, gt=0.0)]
Fraction = Annotated[float, Field(strict=True, gt=0.0, lt=1.0)]
PartialFraction = Annotated[float, Field(strict=True, ge=0.0, lt=1.0)]
Integer = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
Finite = Annotated[InstanceOf[float], Field(gt=-math.inf, lt=math.inf)]
Option = TypeAliasType("Option", "Integer | Finite | Flag | str | list[Option] | dict[str, Option]")
"""A value of TOML; errors of its first alternative have a location without an identifier, which `invalid` expects."""
Auto = Literal["auto"]
"""The value is derived from the data; a run's folder records it."""
PATHS = ("path", "outputs_path", "test_path")
"""Settings that name files."""
Absent = Literal["none"]
"""Stands for None, which TOML lacks."""
NO_OPERATOR = "none"
"""Name of the operator for heads without an operator."""


def hints_of(kind: type[Any]) -> dict[str, Any]:
    """Annotations of a section's settings by name, without ranges."""
    hints = get_type_hints(kind)
    return {setting.name: hints[setting.name] for setting in fields(kind)}


def explanations(kind: type[Any]) -> dict[str, str]:
    """Descriptions of the settings of a section from `Attributes:` of its docstring, one line each.

    Examples:
        >>> explanations(EarlyStopping)["restore_best"]
        'Whether to restore the weights of the epoch with the smallest loss.'
    """
    _, _, section = (inspect.getdoc(kind) or "").partition("Attributes:\n")
    section = re.split(r"\n(?=\S)", section)[0]
    parts = re.split(r"^    (\w+): ", section, flags=re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in zip(parts[1::2], parts[2::2], strict=True)}


def invalid(error: ValidationError, kind: type[Any]) -> tuple[list[str], dict[str, str]]:
    """Keys of the first invalid setting of a section, and the parts of the message about it."""
    problems = error.errors(include_url=False)
    location = [str(key) for key in problems[0]["loc"]]
    if problems[0]["type"] == "unexpected_keyword_argument":
        *section, name = location
        expected = f"a known setting of {'.'.join(section) or kind.__name__}"
        known = vars(reduce(getattr, section, kind()))
        return location, {"expected": expected, "got": repr(name), "remedy": nearest(name, known)}
    keys = list(takewhile(str.isidentifier, location))  # an index or an alternative of a union may follow
    messages = [problem["msg"] for problem in problems if problem["loc"][: len(keys)] == problems[0]["loc"][: len(keys)]]
    reasons = " or ".join(dict.fromkeys(re.sub("^Input should be |^Value error, ", "", message) for message in messages))
    expected = f"{'.'.join(keys)}: {reasons.replace('tuple', 'list')}"
    return keys, {"expected": expected, "got": f"{problems[0]['input']!r:.100}", "remedy": "change it"}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class Section:
    """Base class of settings: its subclasses are frozen dataclasses with arguments by name, which pydantic validates.

    Raises:
        ArgumentError: If a setting is unknown, of another type or out of range.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]
    __pydantic_validator__: ClassVar[Any]

    def __init_subclass__(cls) -> None:
        """Make the dataclass."""
        dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid", allow_inf_nan=False))(cls)
        del cls.__init__

    def __init__(self, /, **settings: Any) -> None:
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in settings.items()}
        try:
            self.__pydantic_validator__.validate_python(plain, self_instance=self)
        except ValidationError as error:
            raise ArgumentError(**invalid(error, type(self))[1]) from None


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
    inputs: List[str] = ()
    outputs: List[str] = ()
    outputs_path: str = ""
    test_path: str = ""
    axes: str = ""
    group: str = ""
    periodic: List[Flag] = ()
    lengths: List[Positive] = ()
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
    embargo: Natural = 0
    test: Fraction = 0.2
    scaling: Fraction = 0.1
    conformal: Fraction = 0.1
    seed: Natural = 0


class Operator(Section):
    """The operator.

    Attributes:
        name: A class of probneural.operators; "auto" for the one that probneural.operators.suggest recommends, "none" for the
            head KernelOperator on the data alone.
        options: Arguments of its constructor other than channels, grids and seed; defaults are derived from the data.
        seed: Random seed of the initial weights.
    """

    name: Literal["auto", "none", "FNO", "DeepONet", "PODDeepONet", "PointFNO"] = "auto"
    options: dict[str, Option] = field(default_factory=dict)
    seed: Natural = 0


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
    weight_decay: NonNegative = 0.0
    schedule: Literal["cosine", "none"] = "cosine"
    gradient_clip: Positive | Absent = "none"
    accumulation: Count = 1
    precision: Literal["none", "bfloat16", "float16"] = "none"
    full_precision_tail: PartialFraction = 0.0


class EarlyStopping(Section):
    """Options of probneural.training.EarlyStopping.

    Attributes:
        patience: Number of epochs without improvement of the validation loss before training ends; "none" for never.
        restore_best: Whether to restore the weights of the epoch with the smallest loss.
    """

    patience: Count | Absent = "none"
    restore_best: Flag = True


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
    validation: PartialFraction = 0.1
    seed: Natural = 0
    device: str = "auto"
    workers: Natural = 0
    optimization: Optimization = Optimization()
    early_stopping: EarlyStopping = EarlyStopping()

    @field_validator("early_stopping")
    @classmethod
    def _check_validation(cls, value: EarlyStopping, info: Any) -> EarlyStopping:
        if value.patience != "none" and info.data.get("validation") == 0.0:
            raise ValueError('validation above 0, which early stopping needs, or patience = "none"')
        return value


class Head(Section):
    """The uncertainty head.

    Attributes:
        name: A class of probneural.heads; "auto" is LastLayerLaplace, or KernelOperator without an operator.
        options: Arguments of its constructor: structure = "low_rank" for Laplace, members = 5 for DeepEnsemble.
    """

    name: Literal["auto", "LastLayerLaplace", "Laplace", "DeepEnsemble", "KernelOperator"] = "auto"
    options: dict[str, Option] = field(default_factory=dict)


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

    scales: Flag = True
    separate: Flag = True
    noise: NonNegative = 0.0
    level: Fraction = 0.9
    bands: Flag = True
    modulation: Literal["std", "constant"] = "std"


class Scores(Section):
    """Scores on the test pairs.

    Attributes:
        whole: Number of samples for joint scores; "auto" is 200, 20 and 10 in 1, 2 and 3 dimensions.
    """

    whole: Count | Auto = "auto"


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
        values: dict[str, dict[str, Any]] = TypeAdapter(Config).dump_python(self, mode="json")
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> Config:
        """Build a configuration from plain values, with defaults for missing ones.

        Raises:
            ArgumentError: If a value is invalid, or a setting is unknown.
        """
        return cls(**check_instance(values, Mapping, "values", remedy="give settings by section", error=ArgumentError))

    def differences(self, reference: Config) -> Iterator[str]:
        """Describe the settings in which another configuration differs, as `training.epochs = 50, not 20`.

        Examples:
            >>> list(Config().differences(Config(split=Split(seed=1))))
            ['split.seed = 0, not 1']
        """
        check_instance(reference, Config, "reference", remedy="read it: runs.read_config(path)", error=ArgumentError)
        ours, theirs = (dict(_flat(config.to_dict())) for config in (self, reference))
        for name in sorted(ours | theirs):
            if ours.get(name) != theirs.get(name):
                yield f"{name} = {ours.get(name, 'left out')!r}, not {theirs.get(name, 'left out')!r}"


def _flat(tables: Mapping[str, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Values of nested tables, by their names with those of the tables."""
    for name, value in tables.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{section}{name}.")
        else:
            yield f"{section}{name}", value
