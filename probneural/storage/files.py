"""Save and load: describe an instance in JSON and named tensors; compare a description with the annotations of constructors.

A file is read without running anything of it: constructors are called after all parts have passed the schema.
"""

from __future__ import annotations

import os
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from inspect import Parameter
from typing import Any, TypeAlias, Union, get_args, get_origin

import torch
from jaxtyping import AbstractArray, jaxtyped
from torch import Tensor, nn

from probneural import atomic
from probneural.checks import check_device, check_module, check_path
from probneural.errors import FileError, UnsupportedError
from probneural.pairs.provenance import TrainingRecord, operator_record
from probneural.registry import Kind, kind_named, kind_of
from probneural.storage import kinds
from probneural.training import files, schema

Plan: TypeAlias = Callable[[torch.device], Any]
"""Function that builds a validated object on a device."""


def load(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu", operator: nn.Module | Sequence[nn.Module] | None = None
) -> Any:
    """Load a file of [`save`][probneural.storage.save].

    Predictions of a loaded and of the saved predictor are bit-equal on the same machine; draws are the same functions, and
    the latent has the same name. No object is built that is larger than the file.

    Args:
        path: The file.
        device: Device of the result; `"auto"` selects the best available.
        operator: A module of the architecture and dtype of the saved one, which is copied, never changed. Needed for modules
            that this library does not know how to build. Names, shapes and dtypes of its state are compared, and the names of
            its classes; what a class does in `forward` cannot be. For a predictor of several operators a list: each saved
            module is a copy of the first that it fits, of its classes if there is one, and one of ours that fits none is
            built.

    Returns:
        The saved object; operators in evaluation mode.

    Warns:
        DataWarning: If an operator matches the saved tensors but has other classes, for example ReLU in place of GELU.

    Raises:
        FileError: If the file is missing, damaged, or holds something else.
        ArgumentError: If the operator is needed and not given, if the state does not fit it, or if the device does not exist.
    """
    return load_as(object, path, device=device, operator=operator)


def load_as(
    cls: type, path: str | os.PathLike[str], *, device: torch.device | str, operator: nn.Module | Sequence[nn.Module] | None
) -> Any:
    """Load an instance of a class; see [`load`][probneural.storage.load].

    Raises:
        FileError: Likewise, or if the object is of another class.
    """
    for module in operator if isinstance(operator, list | tuple) else [] if operator is None else [operator]:
        check_module(module, "operator")
    target = check_device(device)
    tensors, metadata = files.read(check_path(path, "path"))
    kind = kind_named(metadata.get("kind"))
    if not (isinstance(operator, cls) if kind is None else issubclass(kind.cls, cls)):
        remedy = "use from_pretrained of that class, or pn.load; give your own modules as operator="
        raise FileError(expected=f"a {cls.__name__}", got=str(metadata.get("kind"))[:80], remedy=remedy)
    return Reader(tensors, operator=operator).plan(metadata)(target)


class Reader:
    """Plans the construction of objects from a file, after validation against the schema.

    The schema of an instance is its constructor's annotations; a tensor is named after its place, and every tensor has one.

    Args:
        tensors: All tensors of the file.
        operator: Operators to copy from: one for all, a list, or None.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, operator: nn.Module | Sequence[nn.Module] | None) -> None:
        self._unused = dict(tensors)
        self._claims: list[tuple[str, Tensor, Any]] = []  # tensors of the instance that is being planned, and their annotations
        self._operator = operator

    def plan(self, metadata: dict[str, Any]) -> Plan:
        """Validate the file, and return a function that builds the saved object.

        Raises:
            FileError: If anything is not as the schema has it.
        """
        kind = metadata.get("kind")
        if kind != kinds.FOREIGN and kind_named(kind) is None:
            raise FileError(expected="a file of pn.save", got=str(kind)[:80], remedy="is this a fit's checkpoint?")
        loaded = self._instance(metadata, object, "")
        if self._unused:
            schema.refuse("no tensors but those that it describes", sorted(self._unused)[:5], where="the file")
        return loaded

    def _value(self, described: Any, annotation: Any, name: str) -> Plan:
        """Plan the named entry of an annotated type."""
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin in (Union, types.UnionType):
            return self._one_of(described, inner, name)
        if origin in (tuple, list, Sequence):
            entries = schema.instance(described, list, where=name)
            is_fixed = origin is tuple and Ellipsis not in inner
            if is_fixed and len(entries) != len(inner):
                schema.refuse(f"{len(inner)} entries", entries, where=name)
            kinds_of_entries = inner if is_fixed else [inner[0]] * len(entries)
            parts = enumerate(zip(entries, kinds_of_entries, strict=True))
            plans = [self._value(entry, kind, f"{name}.{number}") for number, (entry, kind) in parts]
            return lambda device: tuple(plan(device) for plan in plans)
        if origin in (dict, Mapping):
            outer = schema.instance(described, dict, where=name)
            schema.check_names(outer, ["mapping"], where=f"a mapping as {name}")
            items = self._all(schema.instance(outer["mapping"], dict, where=name), lambda _: inner[1], f"{name}.")
            return lambda device: {key: plan(device) for key, plan in items.items()}
        if origin is Callable:
            annotation = origin  # a class with a method `__call__`
        if isinstance(annotation, type) and issubclass(annotation, Tensor | AbstractArray):
            return self._tensor(described, annotation, name)
        if isinstance(described, dict) and isinstance(annotation, type):
            return self._instance(described, annotation, name)
        schema.check(described, annotation, where=name)
        value = float(described) if annotation is float else described
        return lambda _: value

    def _one_of(self, described: Any, members: tuple[Any, ...], name: str) -> Plan:
        unused, claims = dict(self._unused), list(self._claims)
        nothing = type(None)
        for member in [nothing] if described is None and nothing in members else [one for one in members if one is not nothing]:
            try:
                return self._value(described, member, name)
            except FileError as error:
                last, self._unused, self._claims = error, dict(unused), list(claims)
        raise last

    def _all(self, described: Mapping[str, Any], annotation_of: Callable[[str], Any], prefix: str) -> dict[str, Plan]:
        return {key: self._value(value, annotation_of(key), f"{prefix}{key}") for key, value in described.items()}

    def _tensor(self, described: Any, annotation: Any, name: str) -> Plan:
        if described != {"tensor": name}:
            schema.refuse(f"a tensor named {name}", described, where=name)
        tensor = self._unused.pop(name, None)
        if tensor is None:
            schema.refuse("a tensor", tensor, where=name)
        self._claims.append((name, tensor, annotation))
        return tensor.to

    def _instance(self, described: dict[str, Any], annotation: Any, name: str) -> Plan:
        name_of_kind = described.get("kind")
        kind = kind_named(name_of_kind)
        if kind is not None and not kind.is_operator and issubclass(kind.cls, annotation):
            schema.check_names(described, ["kind", "parts"], where=f"a {name_of_kind}")
            prefix = f"{name}." if name else ""
            plans = self._parts(schema.instance(described["parts"], dict, where=f"{prefix}parts"), kind, prefix)

            def built(device: torch.device) -> Any:
                arguments = {part: plan(_CPU if part in kind.on_cpu else device) for part, plan in plans.items()}
                with nullcontext() if kind.state is None else kinds.Bounded(kind.name, kind.state(arguments)):
                    return kinds.build_instance(kind, arguments)

            return built
        if (name_of_kind == kinds.FOREIGN or (kind is not None and kind.is_operator)) and issubclass(nn.Module, annotation):
            return self._module(described, name)
        schema.refuse(f"a {getattr(annotation, '__name__', annotation)}", name_of_kind, where=name)

    def _parts(self, described: dict[str, Any], kind: Kind, prefix: str) -> dict[str, Plan]:
        """Plan a constructor's arguments; in their annotations, sizes of equal name are equal."""
        arguments = dict(kinds.parameters(kind))
        others = [name for name, parameter in arguments.items() if parameter.kind is Parameter.VAR_KEYWORD]
        extra = arguments.pop(others[0]).annotation if others else None
        if extra is None:
            optional = [name for name, parameter in arguments.items() if parameter.default is not Parameter.empty]
            where = f"what a {kind.name} of this version is made of"
            schema.check_names(described, arguments, where=where, optional=optional)
        outer, self._claims = self._claims, []
        plans = self._all(described, lambda key: arguments[key].annotation if key in arguments else extra, prefix)
        with jaxtyped("context"):  # where axes remember their sizes from one tensor to the next
            misfits = [claim for claim in self._claims if not isinstance(claim[1], claim[2])]
        free = [claim for claim in self._claims if len(getattr(claim[2], "dtypes", ())) > 1 and claim[1].is_floating_point()]
        misfits += [
            claim
            for claim in free
            if claim[1].dtype not in _REAL or not (kind.mixes_precisions or claim[1].dtype == free[0][1].dtype)
        ]
        self._claims = outer
        for name, tensor, annotation in misfits:
            expected = f"a tensor {annotation.__name__}, sizes of equal name being equal, and its dtype that of the others,"
            schema.refuse(expected, f"{tensor.dtype} {tuple(tensor.shape)}", where=name)
        return plans

    def _module(self, described: dict[str, Any], name: str) -> Plan:
        prefix = f"{name}." if name else ""
        saved = kinds.SavedModule.of(described, prefix)
        if saved.kind is not None:
            configuration = schema.instance(described[kinds.CONFIGURATION], dict, where=f"{prefix}{kinds.CONFIGURATION}")
            plans = self._parts(configuration, saved.kind, f"{prefix}{kinds.CONFIGURATION}.")
        recorded = self._value(described.get(kinds.RECORD), TrainingRecord | None, kinds.RECORD)
        state = {key.removeprefix(prefix): self._unused.pop(key) for key in list(self._unused) if key.startswith(prefix)}
        template = self._template(saved, state)
        if template is not None or saved.kind is None:
            return lambda device: _with_record(saved.filled(template, state), recorded(_CPU)).to(device).eval()
        operator = saved.built({part: plan(_CPU) for part, plan in plans.items()}, state)
        return lambda device: _with_record(operator, recorded(_CPU)).to(device).eval()

    def _template(self, saved: kinds.SavedModule, state: Mapping[str, Tensor]) -> nn.Module | None:
        """The operator to copy a module from: in a list, the first that matches."""
        if self._operator is None or isinstance(self._operator, nn.Module):
            return self._operator
        fitting = sorted(
            (module for module in self._operator if not saved.misfits(module, state)),
            key=lambda module: bool(saved.other_classes(module)),
        )
        return next(iter(fitting or ([] if saved.kind is not None else self._operator)), None)


def _with_record(operator: nn.Module, record: TrainingRecord | None) -> nn.Module:
    """The operator with the record of its training pairs."""
    setattr(operator, kinds.RECORD, record)
    return operator


_CPU = torch.device("cpu")
_REAL = (torch.float32, torch.float64)
"""Dtypes of fields, and of the tensors of predictors."""


_REMEDY = "save the operator, and fit the head or calibrator again"


def save(thing: object, path: str | os.PathLike[str]) -> None:
    """Save an operator or a result of fitting in one safetensors file, atomically.

    Results are predictors, function draws, bands, novelty detectors, lead scales, histories, scores and runs.

    Of an operator of this library the file holds configuration and weights, of any other module its state dict; see
    [`load`][probneural.storage.load]. Where the path is a symbolic link, its target is written; an existing file keeps its
    permissions. Temporary files that killed processes left of this path are removed.

    Args:
        thing: The object to save; it is not changed.
        path: Path of the file; an existing file is replaced atomically.

    Raises:
        UnsupportedError: If it is something else, holds a state that is not made of tensors, or is nested more deeply than
            files can be.
        FileError: If the folder cannot be written to, or the path is that of a folder, pipe, socket or device.
    """
    if kind_of(thing) is None and not isinstance(thing, nn.Module):
        raise _unknown(thing)
    path = check_path(path, "path")
    tensors: dict[str, Tensor] = {}
    metadata = _described(thing, "", tensors)
    _check(tensors, metadata)
    files.write(path, tensors, metadata=metadata)
    target = os.path.realpath(path)
    atomic.remove_abandoned(os.path.dirname(target), name=os.path.basename(target))


def _check(tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
    """Raise an UnsupportedError unless `load` would accept the file."""
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
    """Describe an object in JSON types, and collect its tensors under names with its name as prefix.

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
        return {"kind": kind.name, "parts": _all_described(kinds.parts_of(kind, thing), prefix, tensors)}
    if isinstance(thing, Mapping):
        return {"mapping": _all_described(thing, prefix, tensors)}
    if isinstance(thing, tuple | list):
        return [_described(value, f"{prefix}{number}", tensors) for number, value in enumerate(thing)]
    if isinstance(thing, nn.Module):
        check_module(thing, "operator")
        tensors |= {f"{prefix}{key}": tensor for key, tensor in _state(thing).items()}
        trained = {key: parameter.requires_grad for key, parameter in thing.named_parameters()}
        described = {**_architecture(thing, prefix, tensors), "prefix": prefix, "parameters": trained}
        record = None if name else operator_record(thing)  # predictors have separate records
        return described if record is None else {**described, kinds.RECORD: _described(record, kinds.RECORD, tensors)}
    raise _unknown(thing)


def _all_described(things: Mapping[str, Any], prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    return {key: _described(value, f"{prefix}{key}", tensors) for key, value in things.items()}


def _architecture(operator: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    kind = kind_of(operator)
    if kind is not None:
        described = _all_described(kinds.parts_of(kind, operator), f"{prefix}{kinds.CONFIGURATION}.", tensors)
        return {"kind": kind.name, kinds.CONFIGURATION: described}
    return {"kind": kinds.FOREIGN, kinds.CLASSES: kinds.class_names(operator)}


def _state(operator: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module's state dict, not copied, without the non-tensor entries that some libraries add.

    Raises:
        UnsupportedError: If the module keeps a state that is not a tensor.
    """
    state = operator.state_dict(keep_vars=True)
    for name, value in state.items():
        if name.endswith("_extra_state") and not isinstance(value, Tensor):
            raise UnsupportedError(
                expected="a module whose state is made of tensors", got=f"{type(value)} as {name}", remedy="register buffers"
            )
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _unknown(thing: object) -> UnsupportedError:
    return UnsupportedError(
        expected="an nn.Module, or a fitted object of this library without functions or classes of your own",
        got=type(thing).__name__,
        remedy=_REMEDY,
    )
