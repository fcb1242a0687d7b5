"""What a run is: one tree of settings, each with a default that works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from probneural.errors import ArgumentError
from probneural.runs.values import Range, convert, hints_of

Fraction = Annotated[float, Range(above=0.0, below=1.0)]
Count = Annotated[int, Range(least=1)]
Seed = Annotated[int, Range(least=0)]
Auto = Literal["auto"]
"""The value follows from the data; a run's folder holds what it was."""


def _check(section: Any) -> None:
    """Convert each field to its annotation, or raise an ArgumentError."""
    for name, wanted in hints_of(type(section)).items():
        object.__setattr__(section, name, convert(getattr(section, name), wanted, name))


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which functions are learned from.

    Attributes:
        path: A file of NetCDF, zarr, HDF5, NumPy (.npz, .npy, a folder of them), The Well or PDEBench; in a configuration
            file, relative to that file.
        inputs: Names of the input variables; several are channels. The Well and PDEBench have a choice of their own.
        outputs: Names of the output variables; several are channels.
        periodic: Whether each dimension of space is periodic, or one answer for all; coordinates cannot tell.
        lengths: Extent of each dimension of space in the coordinates' units; by default what the coordinates say.
        sample: The dimension that counts functions or trajectories; "auto" takes "sample", or else the only one without
            coordinates.
        time: The dimension of time, or the array of the times where axes have no names; "auto" takes what says so.
        channel: The dimension of channels inside a variable, if there is one.
        history: Of trajectories: neighbouring steps in an input.
        lead: Of trajectories: steps from the last one of the input to the output.
        stride: Of trajectories: steps between the windows of one of them.
        dtype: Precision of values and weights.
    """

    path: str = ""
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    periodic: tuple[bool, ...] = ()
    lengths: tuple[Annotated[float, Range(above=0.0)], ...] = ()
    sample: str = "auto"
    time: str = "auto"
    channel: str = "channel"
    history: Count = 1
    lead: Count = 1
    stride: Count = 1
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        """Check the settings."""
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Split:
    """Who sees which pairs: drawn once, recorded, and disjoint. What is left is trained on.

    Windows of one trajectory stay together: of trajectories, fractions count those.

    Attributes:
        test: Fraction that only scores and the report see.
        scaling: Fraction that the scales of the variances are fitted on; at least 2 pairs.
        conformal: Fraction that the bands of whole functions are fitted on; at least as many pairs as the level needs.
        seed: Random seed of the split.
    """

    test: Fraction = 0.2
    scaling: Fraction = 0.1
    conformal: Fraction = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Operator:
    """What is trained.

    Attributes:
        name: A class of probneural.operators.
        options: Arguments of its constructor beside channels, grids and seed; those left out follow from the data.
        seed: Random seed of the initial weights.
    """

    name: Literal["FNO", "DeepONet", "PODDeepONet"] = "FNO"
    options: dict[str, Any] = field(default_factory=dict)
    seed: Seed = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is trained: arguments of probneural.fit.

    Attributes:
        epochs: Passes over the training pairs; "auto" takes some 30,000 pairs in all, in 20 to 200 passes, and DeepONets twice
            that.
        batch_size: Pairs a step.
        learning_rate: The schedule's peak; "auto" is 3e-3 for an FNO and 1e-3 for DeepONets.
        optimizer: "muon" moves small matrices by Muon and the rest by AdamW; "adamw" all weights.
        weight_decay: Decay of either.
        validation: Fraction of the training pairs that is only watched; 0 trains on all.
        seed: Random seed of the order of batches.
        device: Where to train and predict: "auto" (CUDA, MPS or CPU), "cpu", "cuda:0".
        workers: Processes that read batches of data too large for memory; 0 reads in a thread.
        keeps_checkpoint: Whether the checkpoint stays in the folder when training is done.
    """

    epochs: Count | Auto = "auto"
    batch_size: Count = 20
    learning_rate: Annotated[float, Range(above=0.0)] | Auto = "auto"
    optimizer: Literal["muon", "adamw"] = "muon"
    weight_decay: Annotated[float, Range(least=0.0)] = 0.0
    validation: Annotated[float, Range(least=0.0, below=1.0)] = 0.1
    seed: Seed = 0
    device: str = "auto"
    workers: Annotated[int, Range(least=0)] = 0
    keeps_checkpoint: bool = False

    def __post_init__(self) -> None:
        """Check the settings."""
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Head:
    """What turns the trained operator into a distribution over operators.

    Attributes:
        name: A class of probneural.heads.
        options: Arguments of its constructor: structure = "low_rank" for Laplace, members = 5 for DeepEnsemble.
    """

    name: Literal["LastLayerLaplace", "Laplace", "DeepEnsemble", "KernelOperator"] = "LastLayerLaplace"
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the settings."""
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How error bars are made honest, on pairs that training has not seen.

    Attributes:
        scales: Whether variances are scaled to the errors on the scaling pairs.
        separate: Whether covariance and noise have scales of their own.
        noise: Variance of the measurement noise in the outputs, in physical units squared; 0 for a solver's solutions.
        level: Nominal coverage of intervals and bands, in scores and predictions too.
        bands: Whether bands that hold whole functions are fitted on the conformal pairs.
        modulation: Width of a band: "std" follows the standard deviation, "constant" is one width everywhere.
    """

    scales: bool = True
    separate: bool = True
    noise: Annotated[float, Range(least=0.0)] = 0.0
    level: Fraction = 0.9
    bands: bool = True
    modulation: Literal["std", "constant"] = "std"

    def __post_init__(self) -> None:
        """Check the settings."""
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What is computed on the test pairs.

    Attributes:
        whole: Functions that scores of whole functions are computed on; "auto" takes 200, 20 and 10 in 1, 2 and 3 dimensions.
    """

    whole: Count | Auto = "auto"

    def __post_init__(self) -> None:
        """Check the settings."""
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Config:
    """A run: which data, how they are split, what is trained, fitted, calibrated and scored.

    Attributes:
        data: Which functions are learned from.
        split: Who sees which pairs.
        operator: What is trained.
        training: How it is trained.
        head: What turns the trained operator into a distribution over operators.
        calibration: How error bars are made honest.
        scores: What is computed on the test pairs.

    Raises:
        ArgumentError: If a setting is of another type or out of range; each section checks its own.

    Examples:
        >>> Config(data=Data(path="flow.nc", inputs=("a",), outputs=("u",), periodic=(True,))).data.periodic
        (True,)
    """

    data: Data = Data()
    split: Split = Split()
    operator: Operator = field(default_factory=Operator)
    training: Training = Training()
    head: Head = field(default_factory=Head)
    calibration: Calibration = Calibration()
    scores: Scores = Scores()

    def __post_init__(self) -> None:
        """Check the sections."""
        _check(self)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values by section and name, lists for tuples."""
        return {
            section: {name: list(value) if isinstance(value, tuple) else value for name, value in vars(part).items()}
            for section, part in vars(self).items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> Config:
        """Build it of plain values, defaults for those that are left out.

        Raises:
            ArgumentError: If a value does not fit its setting, or there is no such setting.
        """
        kinds = hints_of(cls)
        sections = {}
        for section, entries in values.items():
            hints = hints_of(kinds[section]) if section in kinds else {}
            for name in entries:
                if name not in hints:
                    raise ArgumentError(expected="known settings", got=f"{section}.{name}", remedy="leave it out")
            sections[section] = kinds[section](**{name: convert(value, hints[name], name) for name, value in entries.items()})
        return cls(**sections)

    def differences(self, other: Config) -> Iterator[str]:
        """Say in which settings another one differs, as `training.epochs = 50, not 20`.

        Examples:
            >>> list(Config().differences(Config(split=Split(seed=1))))
            ['split.seed = 0, not 1']
        """
        ours, theirs = self.to_dict(), other.to_dict()
        for section, entries in ours.items():
            for name, value in entries.items():
                if value != theirs[section][name]:
                    yield from _apart(f"{section}.{name}", value, theirs[section][name])


def _apart(name: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if one.get(key) != other.get(key):
                yield from _apart(f"{name}.{key}", one.get(key, "left out"), other.get(key, "left out"))
    else:
        yield f"{name} = {one!r}, not {other!r}"
