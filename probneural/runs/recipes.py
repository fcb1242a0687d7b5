"""Construction of operators, training functions and heads from settings, with defaults derived from the data."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from probneural import heads, operators
from probneural.checks import nearest
from probneural.errors import ArgumentError, ConfigurationError
from probneural.operators.suggestion import KERNEL, Suggestion, data_arguments, default_options, suggestion
from probneural.pairs import Dataset
from probneural.runs.config import NO_OPERATOR, Config, Head, Operator, Training
from probneural.training import DataOptions, EachEpoch, EarlyStopping, Optimization, RunOptions, fit
from probneural.training.callbacks import History

_WHOLE = {1: 200, 2: 20, 3: 10}
"""Number of samples for joint scores, by dimension; the cost grows with the number of points."""
MEMBER = "member-"
"""Prefix of names of members' checkpoints."""
_GIVEN = {
    "FNO": ("in_channels", "out_channels", "periodic", "seed"),
    "DeepONet": ("in_channels", "out_channels", "sensors", "domain", "layers", "seed"),
    "PODDeepONet": ("in_channels", "out_channels", "sensors", "out_grid", "layers", "seed"),
    "PointFNO": ("in_channels", "out_channels", "seed"),
    "DeepEnsemble": ("train", "reinitialise", "build", "show_progress"),
    "Laplace": ("show_progress", "variance_estimation"),
    "LastLayerLaplace": (),
    "KernelOperator": (),
}
"""Arguments of constructors that the run sets; they are not options of a configuration."""


def resolved(config: Config, data: Dataset, *, train: int) -> Config:
    """Resolve "auto" and the options that are derived from the data.

    Args:
        config: The user's configuration.
        data: All pairs; their grids and channels count.
        train: Number of training pairs.

    Returns:
        The same settings if they were resolved before.

    Raises:
        ConfigurationError: If an option is unknown.
    """
    choice = choose(config, data, train=train)
    if choice is not None:
        name: Any = NO_OPERATOR if choice.is_head else choice.name
        options = {**choice.options, **config.operator.options}
        config = replace(config, operator=replace(config.operator, name=name, options=options))
    if config.head.name == "auto":
        name = KERNEL if has_no_operator(config) else "LastLayerLaplace"
        config = replace(config, head=replace(config.head, name=name))
    grid = data.inputs.grid
    is_deeponet = config.operator.name in ("DeepONet", "PODDeepONet")
    passes = max(20, min(200, math.ceil(30_000 / train))) * (2 if is_deeponet else 1)
    chosen: dict[str, Any] = {"epochs": passes, "learning_rate": 1e-3 if is_deeponet else 3e-3}
    training = replace(config.training, **{name: chosen[name] for name in chosen if getattr(config.training, name) == "auto"})
    whole = _WHOLE[grid.dimension] if config.scores.whole == "auto" else config.scores.whole
    _check_operator(config)
    _check_options(config, heads, "head")
    sizes = {} if has_no_operator(config) else default_options(config.operator.name, data, count=train)
    operator = replace(config.operator, options={**sizes, **config.operator.options})
    ensemble = {"members": 5, "keeps_operator": True} if config.head.name == "DeepEnsemble" else {}
    head = replace(config.head, options={**ensemble, **config.head.options})
    return replace(config, operator=operator, head=head, training=training, scores=replace(config.scores, whole=whole))


def choose(config: Config, data: Dataset, *, train: int) -> Suggestion | None:
    """The suggested operator for "auto"; None if the settings name one.

    A head that is named needs an operator, as options of an operator do; `KernelOperator` does not.

    Raises:
        DataError: If the data have nothing to learn.
    """
    if config.operator.name != "auto":
        return None
    needs_operator = bool(config.operator.options) or config.head.name not in ("auto", KERNEL)
    return suggestion(data, count=train, needs_operator=needs_operator)


def has_no_operator(config: Config) -> bool:
    """Whether the head is fitted to the data alone."""
    return config.operator.name == NO_OPERATOR


def build_operator(settings: Operator, data: Dataset) -> nn.Module:
    """An untrained operator for these grids and channels.

    Raises:
        ArgumentError: If an option is out of range.
    """
    make: Callable[..., nn.Module] = partial(getattr(operators, settings.name), **data_arguments(settings.name, data))
    operator = _called(partial(make, seed=settings.seed), settings.options, settings.name)
    return operator.to(data.inputs.dtype)


def train_operator(
    operator: nn.Module,
    data: Dataset,
    *,
    training: Training,
    checkpoint: Path | None = None,
    show_progress: bool = False,
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> History:
    """Train with the settings of a run; the one place that calls `fit`."""
    callbacks = () if on_epoch is None else (EachEpoch(lambda progress: on_epoch(progress.epoch, dict(progress.losses))),)
    options: dict[str, Any] = {name: None if value == "none" else value for name, value in vars(training.optimization).items()}
    if training.early_stopping.patience != "none":
        options["early_stopping"] = EarlyStopping(**vars(training.early_stopping))
    return fit(
        operator,
        data,
        epochs=int(training.epochs),
        learning_rate=float(training.learning_rate),
        seed=training.seed,
        optimization=Optimization(**options),
        data=DataOptions(batch_size=training.batch_size, validation=training.validation, workers=training.workers),
        run=RunOptions(device=training.device, checkpoint=checkpoint, callbacks=callbacks),
        show_progress=show_progress,
    )


@dataclass(frozen=True)
class MemberTraining:
    """Training function of an ensemble member that resumes from a checkpoint.

    Completed members are read from their checkpoints; the others resume bit-equally.

    Attributes:
        training: The settings.
        folder: Folder of the checkpoints, named by the members' seeds.
    """

    training: Training
    folder: Path

    def __call__(self, operator: nn.Module, data: Dataset, *, seed: int, show_progress: bool = True) -> History:
        """Train in place."""
        training, checkpoint = replace(self.training, seed=seed), self.folder / f"{MEMBER}{seed}.safetensors"
        return train_operator(operator, data, training=training, checkpoint=checkpoint, show_progress=show_progress)


def build_head(settings: Head, *, training: Training, folder: Path, show_progress: bool) -> Any:
    """The head of the settings; checkpoints of its training are in the folder.

    Raises:
        ArgumentError: If an option is out of range.
    """
    arguments: dict[str, Any] = {}
    if settings.name == "DeepEnsemble":
        arguments = {"train": MemberTraining(training, folder), "show_progress": show_progress}
    elif settings.name == "Laplace":
        arguments = {"show_progress": show_progress}
    return _called(partial(getattr(heads, settings.name), **arguments), settings.options, settings.name)


def _called(make: Callable[..., Any], options: Mapping[str, Any], name: str) -> Any:
    """Call a constructor with a run's options."""
    try:
        return make(**{key: tuple(value) if isinstance(value, list) else value for key, value in options.items()})
    except (TypeError, RuntimeError) as error:  # arguments that constructors do not validate
        raise ArgumentError(
            expected=f"options that {name} takes", got=f"{dict(options)}: {error}", remedy="see its documentation"
        ) from error


def _check_operator(config: Config) -> None:
    """Raise a ConfigurationError if options of the operator are unknown, or the head needs an operator and has none."""
    if not has_no_operator(config):
        _check_options(config, operators, "operator")
    elif config.head.name != KERNEL or config.operator.options:
        raise ConfigurationError(
            expected=f"an operator for {config.head.name}" if config.head.name != KERNEL else "an operator for its options",
            got=f'operator.name = "{NO_OPERATOR}"',
            remedy=f'name one, "FNO" or "auto", or take the head "{KERNEL}"',
        )


def _check_options(config: Config, room: Any, section: str) -> None:
    """Raise a ConfigurationError if an option of a section is not an argument of the class, or is set by the run."""
    settings = getattr(config, section)
    names = set(inspect.signature(getattr(room, settings.name)).parameters) - {*_GIVEN[settings.name]}
    for option in settings.options:
        if option not in names:
            expected, remedy = f"options of {settings.name}", nearest(option, sorted(names)) if names else "it has none"
            raise ConfigurationError(expected=expected, got=f"{option!r} in {section}.options", remedy=remedy)
