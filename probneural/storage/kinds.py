"""The parts of stored instances, instances of their parts, and copies of predictors on another device."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from probneural.distributions.predictors.base import Predictor
from probneural.errors import FileError, ProbneuralError, ShapeError, UnsupportedError
from probneural.operators import Operator
from probneural.pairs.provenance import TrainingRecord
from probneural.registry import Kind, kind_of
from probneural.training import schema
from probneural.training.options import resolve_device

_RECORD = inspect.Parameter("trained_on", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TrainingRecord | None)
_DISCREPANCY = inspect.Parameter(
    "discrepancy_variance", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=tuple[float, ...] | None
)
"""Parts of every predictor beside its constructor's arguments."""


@cache
def parameters(kind: Kind) -> Mapping[str, inspect.Parameter]:
    """Parameters of the constructor or class method that builds a kind, by name, with evaluated annotations."""
    build = _build(kind)
    hints = get_type_hints(build if kind.build else kind.cls.__init__)  # type: ignore[misc]
    arguments = inspect.signature(build).parameters
    typed = {name: parameter.replace(annotation=hints[name]) for name, parameter in arguments.items()}
    records = {record.name: record for record in (_RECORD, _DISCREPANCY)}
    return typed | records if issubclass(kind.cls, Predictor) else typed


def parts_of(kind: Kind, thing: object) -> Mapping[str, Any]:
    """The parts of an instance."""
    if kind.parts is None:
        return {name: getattr(thing, name) for name in parameters(kind)}
    parts: Mapping[str, Any] = getattr(thing, kind.parts)()
    return parts


def build_instance(kind: Kind, parts: Mapping[str, Any]) -> Any:
    """Build an instance from parts that have passed the schema.

    Raises:
        FileError: If the class refuses their values.
    """
    try:
        arguments = dict(parts)
        record, discrepancy = (arguments.pop(name, None) for name in (_RECORD.name, _DISCREPANCY.name))
        built = _build(kind)(**arguments)
        if isinstance(built, Predictor):
            _check_inputs(built)
            built._with_records(record)
            if discrepancy is not None:  # older files leave it out
                built._with_discrepancy_variance(discrepancy)
        _check_settings(kind, parts, parts_of(kind, built))
        return built
    except FileError:
        raise
    except (ProbneuralError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise FileError(
            expected=f"parts of a {kind.name} that fit together",
            got=f"{error.got}, not {error.expected}" if isinstance(error, ProbneuralError) else repr(error)[:200],
            remedy="the file is damaged, or of another version",
        ) from error


def _build(kind: Kind) -> Callable[..., Any]:
    return kind.cls if kind.build is None else getattr(kind.cls, kind.build)


def _check_settings(kind: Kind, parts: Mapping[str, Any], built: Mapping[str, Any]) -> None:
    """Raise a FileError unless an instance has the numbers, texts and flags that it was built from."""
    for name, value in parts.items():
        if _is_setting(value) and value != built[name] and value == value:  # NaN is NaN
            schema.refuse(repr(built[name])[:80], value, where=f"{name} of a {kind.name}")


def _is_setting(value: object) -> bool:
    """Whether a part is None, a number, text or flag, or a tuple of those."""
    return all(map(_is_setting, value)) if isinstance(value, tuple) else isinstance(value, bool | int | float | str | None)


def _check_inputs(predictor: Predictor) -> None:
    """Raise a ShapeError unless a predictor has as many input channels as an operator of ours that it holds."""
    operator = getattr(getattr(predictor, "readout", predictor), "operator", None)
    channels = operator.in_channels if isinstance(operator, Operator) else max(1, predictor.in_channels)
    if predictor.in_channels != channels:
        raise ShapeError(expected=f"{channels} input channels", got=str(predictor.in_channels), remedy="use the operator's")


_CPU = torch.device("cpu")


def moved(predictor: Predictor, device: torch.device | str) -> Predictor:
    """Return a copy of a predictor on a device; see [`Predictor.to`][probneural.distributions.Predictor.to].

    Raises:
        ArgumentError: If there is no such device.
        UnsupportedError: If the predictor has a part that files cannot hold.
    """
    copied: Predictor = _moved(predictor, resolve_device(device, nn.Identity()))
    return copied


Predictor._moved = staticmethod(moved)


def _moved(thing: Any, device: torch.device) -> Any:
    if isinstance(thing, nn.Module):
        return copy.deepcopy(thing).to(device)
    if isinstance(thing, Tensor):
        return thing.to(device)
    kind = kind_of(thing)
    if kind is not None:
        parts = parts_of(kind, thing).items()
        return build_instance(kind, {name: _moved(part, _CPU if name in kind.on_cpu else device) for name, part in parts})
    if isinstance(thing, Mapping):
        return {name: _moved(part, device) for name, part in thing.items()}
    if isinstance(thing, tuple | list):
        return tuple(_moved(part, device) for part in thing)
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    raise UnsupportedError(
        expected="a predictor of this library", got=type(thing).__name__, remedy="move the operator, and fit the head again"
    )
