"""Instances in files: their parts, modules and their state, and copies of predictors on another device."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from probneural.distributions.predictors.base import Predictor, with_records, with_traits
from probneural.errors import ArgumentError, DataWarning, FileError, ProbneuralError, ShapeError, UnsupportedError, warn
from probneural.operators import Operator
from probneural.pairs.provenance import TrainingRecord
from probneural.registry import Kind, kind_named, kind_of
from probneural.training import schema
from probneural.training.options import resolve_device

_RECORD = inspect.Parameter("trained_on", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=TrainingRecord | None)
_DISCREPANCY = inspect.Parameter(
    "discrepancy_variance", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=tuple[float, ...] | None
)
"""Attributes of every predictor other than its constructor's arguments."""


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
            with_records(built, record)
            if discrepancy is not None:  # older files leave it out
                with_traits(built, discrepancy_variance=tuple(discrepancy))
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
        ArgumentError: If the device does not exist.
        UnsupportedError: If the predictor has a part that files cannot hold.
    """
    copied: Predictor = _moved(predictor, resolve_device(device, nn.Identity()))
    return copied


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


FOREIGN = "Module"
"""Kind of all modules but our operators."""
CONFIGURATION = "configuration"
"""Key of the configuration of built-in operators in a file."""
CLASSES = "classes"
"""Where a file names the classes of any other module and of the modules in it."""
RECORD = "trained_on"
"""Where the file of an operator holds the record of its training pairs, and the operator's attribute."""

_CALLS = 100, 50
"""Calls of PyTorch that building an operator may take: in any case, and for each tensor that the file holds of it."""
_REMEDY = "the operator was changed after it was built: give operator=, changed in the same way"


@dataclass(frozen=True)
class SavedModule:
    """Description of a module in a file, without its state.

    Attributes:
        kind: Kind of a built-in operator, None for any other module.
        classes: Classes of any other module and its submodules, by name; the module itself has the empty name.
        trained: Names of the parameters, tied ones once, and whether each is trained.
    """

    kind: Kind | None
    classes: Mapping[str, str]
    trained: Mapping[str, bool]

    @classmethod
    def of(cls, described: dict[str, Any], prefix: str) -> SavedModule:
        """Validate the description.

        Raises:
            FileError: If it is another.
        """
        kind = kind_named(described["kind"])
        maker = CLASSES if kind is None else CONFIGURATION
        where = f"a {described['kind']}"
        schema.check_names(described, ["kind", maker, "prefix", "parameters", RECORD], where=where, optional=[RECORD])
        if described["prefix"] != prefix:
            schema.refuse(repr(prefix), described["prefix"], where=f"{prefix}prefix")
        schema.check(described["parameters"], Mapping[str, bool], where=f"{prefix}parameters")
        if kind is None:
            schema.check(described[CLASSES], Mapping[str, str], where=f"{prefix}{CLASSES}")
        return cls(kind, described.get(CLASSES, {}), described["parameters"])

    def built(self, arguments: Mapping[str, Any], state: Mapping[str, Tensor]) -> nn.Module:
        """A built-in operator with this state, built without allocating memory.

        Raises:
            FileError: If the arguments are no operator's, or those of one that the state does not fit.
        """
        assert self.kind is not None
        with torch.device("meta"), Bounded(self.kind.name, state):
            operator: nn.Module = build_instance(self.kind, arguments)
        if parts_of(self.kind, operator) != arguments:
            schema.refuse("the configuration that an operator gives", arguments, where=f"the configuration of {self.kind.name}")
        current = operator.state_dict()
        misfits = {name for name in {*state, *current} if not _fits(state.get(name), current.get(name))}
        misfits |= self._misfits(operator)
        if misfits:
            raise FileError(expected=f"a state that fits {self.kind.name}", got=_differences(misfits), remedy=_REMEDY)
        operator.load_state_dict(state, assign=True)  # each tensor in the dtype and memory order it had
        self._set_trained(operator)
        return operator

    def filled(self, template: nn.Module | None, state: Mapping[str, Tensor]) -> nn.Module:
        """A copy of a module with this state, every tensor in the dtype and memory order it had.

        Warns:
            DataWarning: If classes are others, as of activation functions, which have no state.

        Raises:
            ArgumentError: If there is not a module, or one that the state does not fit.
        """
        if template is None:
            expected = f"operator=, a module of the architecture that was saved ({self.classes.get('', '')})"
            raise ArgumentError(expected=expected, got="None", remedy="build it as for training; the file holds its state only")
        misfits = self.misfits(template, state)
        if misfits:
            got, remedy = _differences(misfits), "give operator= in the architecture and dtype of the saved one"
            raise ArgumentError(expected=f"a state that fits {type(template).__name__}", got=got, remedy=remedy)
        other_classes = self.other_classes(template)
        if other_classes:
            shown = "; ".join(other_classes[:5])
            warn(f"operator= fits what was saved, but is of other classes: {shown}", DataWarning)
        copied = copy.deepcopy(template)
        for name, tensor in _tensors(copied).items():
            tensor.data = state[name]  # as in `Module.to`, tied tensors remain tied
        # For modules with a say of their own; not strict, since entries that are no tensors may be known to inner modules only.
        copied.load_state_dict({**copied.state_dict(), **state}, strict=False)
        self._set_trained(copied)
        return copied

    def misfits(self, template: nn.Module, state: Mapping[str, Tensor]) -> set[str]:
        """Names of entries in only one of the module and the saved module."""
        now = _tensors(template)
        same = {name for name in {*state, *now} if _fits(state.get(name), now.get(name), dtype=True)}
        return {*state, *now} - same | self._misfits(template)

    def other_classes(self, template: nn.Module) -> list[str]:
        """Description of differing classes; names of modules and packages are not compared."""
        if self.kind is not None:
            return []
        now = class_names(template)
        return [
            f"{name or 'the module'}: {now.get(name, 'none')} in place of {self.classes.get(name, 'none')}"
            for name in dict.fromkeys([*self.classes, *now])
            if _last(now.get(name)) != _last(self.classes.get(name))
        ]

    def _misfits(self, module: nn.Module) -> set[str]:
        """Parameters of one and not the other, for example tied in one only, and those that cannot be trained."""
        present = dict(module.named_parameters())
        fixed = {name for name, parameter in present.items() if not (parameter.is_floating_point() or parameter.is_complex())}
        return {*self.trained} ^ {*present} | {name for name in fixed if self.trained.get(name, False)}

    def _set_trained(self, module: nn.Module) -> None:
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(self.trained[name])


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    """The tensors of a module's state, themselves."""
    return {name: value for name, value in module.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}


def class_names(module: nn.Module) -> dict[str, str]:
    """Classes of a module and its submodules, by name; the module itself has the empty name."""
    return {name: f"{type(submodule).__module__}.{type(submodule).__qualname__}" for name, submodule in module.named_modules()}


def _last(name: str | None) -> str | None:
    return None if name is None else name.rpartition(".")[2]


class Bounded(TorchFunctionMode):
    """Within it, building stops as soon as it asks for more than a file holds: larger tensors, or many more of them.

    Args:
        name: Name of the object.
        state: Its state in the file.
    """

    def __init__(self, name: str, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.name = name
        self.elements = sum(tensor.numel() for tensor in state.values())
        self.calls = _CALLS[0] + _CALLS[1] * len(state)

    def __torch_function__(self, function: Any, kinds: Any, arguments: Any = (), settings: Any = None) -> Any:
        """Call, and count; what draws initial weights is left out, since the file has others."""
        self.calls -= 1
        settings = settings or {}
        if getattr(function, "__module__", None) == nn.init.__name__:
            return settings["tensor"] if "tensor" in settings else arguments[0]
        try:
            result = function(*arguments, **settings)
        except (RuntimeError, TypeError) as error:  # sizes that no tensor can have
            raise self._too_large(str(error).partition("\n")[0]) from error
        if self.calls < 0 or (isinstance(result, Tensor) and result.numel() > self.elements):
            raise self._too_large("one that is larger")
        return result

    def _too_large(self, got: str) -> FileError:
        return FileError(expected=f"arguments of a {self.name} as large as the file's tensors", got=got, remedy=_REMEDY)


def _fits(saved: Tensor | None, current: Tensor | None, *, dtype: bool = False) -> bool:
    """Whether shapes are equal, and dtypes, or else their kinds where the precision is the file's choice."""
    if saved is None or current is None or saved.shape != current.shape:
        return False
    if dtype:
        return saved.dtype == current.dtype
    return (saved.is_floating_point(), saved.is_complex()) == (current.is_floating_point(), current.is_complex())


def _differences(names: set[str]) -> str:
    return f"differences in {', '.join(sorted(names)[:5])}{' and others' if len(names) > 5 else ''}"
