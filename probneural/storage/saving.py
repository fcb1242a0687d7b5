"""Save: describe a thing in JSON and named tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from probneural.checks import check_module, check_path
from probneural.distributions.predictors.base import Predictor
from probneural.errors import FileError, UnsupportedError
from probneural.pairs.provenance import operator_record
from probneural.registry import KINDS, kind_of
from probneural.storage.kinds import parts_of
from probneural.storage.loading import Reader
from probneural.storage.modules import CLASSES, CONFIGURATION, FOREIGN, RECORD, class_names
from probneural.training import atomic, files, schema

_REMEDY = "save the operator, and fit the head or calibrator again"


def save(thing: nn.Module | Predictor, path: str | os.PathLike[str]) -> None:
    """Save an operator, a predictor or a function draw in one safetensors file, atomically.

    Of an operator of this library the file holds configuration and weights, of any other module its state dict; see
    [`load`][probneural.storage.load]. Where the path is a symbolic link, its target is written; an existing file keeps its
    permissions. Temporary files that killed processes left of this path are removed.

    Args:
        thing: What to save; it is not changed.
        path: Where to; an existing file is replaced in one step.

    Raises:
        UnsupportedError: If it is something else, holds a state that is not made of tensors, needs its training data, as
            `Laplace(structure="iterative")` does, or is nested more deeply than files can be.
        FileError: If the folder cannot be written to, or the path is that of a folder, pipe, socket or device.
    """
    if not isinstance(thing, nn.Module | Predictor):
        raise _unknown(thing)
    path = check_path(path, "path")
    tensors: dict[str, Tensor] = {}
    metadata = _described(thing, "", tensors)
    _check(tensors, metadata)
    files.write(path, tensors, metadata=metadata)
    target = os.path.realpath(path)
    atomic.remove_abandoned(os.path.dirname(target), name=os.path.basename(target))


def _check(tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
    """Raise an UnsupportedError unless `load` would take what is going to be written."""
    try:
        if schema.is_too_deep(metadata):
            raise _too_deep()
        Reader(tensors, operator=nn.Identity()).plan(metadata)
    except FileError as error:
        raise UnsupportedError(expected=error.expected, got=error.got, remedy=_REMEDY) from error


def _too_deep() -> UnsupportedError:
    return UnsupportedError(
        expected=f"a predictor nested less deeply than files can be, {schema.DEEPEST} levels", got="more", remedy=_REMEDY
    )


def _described(thing: object, name: str, tensors: dict[str, Tensor]) -> Any:
    """Describe a thing in types that JSON knows, and collect its tensors under names that start with its own.

    Raises:
        UnsupportedError: If it is of no class that is known here.
    """
    if thing is None or isinstance(thing, bool | int | float | str):
        return thing
    if isinstance(thing, Tensor):
        tensors[name] = thing
        return {"tensor": name}
    if name.count(".") > schema.DEEPEST:
        raise _too_deep()
    prefix = f"{name}." if name else ""
    kind = kind_of(thing)
    if kind is not None and not kind.is_operator:
        return {"kind": kind.name, "parts": _all_described(parts_of(kind, thing), prefix, tensors)}
    if isinstance(thing, Mapping):
        return {"mapping": _all_described(thing, prefix, tensors)}
    if isinstance(thing, tuple | list):
        return [_described(value, f"{prefix}{number}", tensors) for number, value in enumerate(thing)]
    if isinstance(thing, nn.Module):
        check_module(thing, "operator")
        tensors |= {f"{prefix}{key}": tensor for key, tensor in _state(thing).items()}
        trained = {key: parameter.requires_grad for key, parameter in thing.named_parameters()}
        described = {**_architecture(thing, prefix, tensors), "prefix": prefix, "parameters": trained}
        record = None if name else operator_record(thing)  # predictors have records of their own
        return described if record is None else {**described, RECORD: _described(record, RECORD, tensors)}
    raise _unknown(thing)


def _all_described(things: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {key: _described(value, f"{prefix}{key}", tensors) for key, value in things.items()}


def _architecture(operator: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    kind = kind_of(operator)
    if kind is not None:
        described = _all_described(parts_of(kind, operator), f"{prefix}{CONFIGURATION}.", tensors)
        return {"kind": kind.name, CONFIGURATION: described}
    return {"kind": FOREIGN, CLASSES: class_names(operator)}


def _state(operator: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module's state dict, its own and not copies; what else some libraries add describes the architecture.

    Raises:
        UnsupportedError: If the module keeps a state that is no tensor.
    """
    state = operator.state_dict(keep_vars=True)
    for name, value in state.items():
        if name.endswith("_extra_state") and not isinstance(value, Tensor):
            raise UnsupportedError(
                expected="a module whose state is made of tensors", got=f"{type(value)} as {name}", remedy="register buffers"
            )
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _unknown(thing: object) -> UnsupportedError:
    predictors = sorted(name for name, kind in KINDS.items() if issubclass(kind.cls, Predictor))
    return UnsupportedError(
        expected=f"an nn.Module or one of {', '.join(predictors)}, made of what files can hold",
        got=type(thing).__name__,
        remedy=_REMEDY,
    )
