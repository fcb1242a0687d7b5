"""Save and load operators and predictors, bit for bit: one safetensors file, written atomically, never a pickle.

Everything is kept as what its constructor takes: a class registered here holds, or gives as a property, each of its
constructor's arguments under the argument's own name. Those can be numbers, texts, tensors, operators, and what is registered
in its turn, so a calibrated predictor is a file's worth of nested arguments. Operators of this library are rebuilt from their
configuration; of any other module a file holds the state, and whoever loads it brings the module.
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from probneural.calibration.scale import ScaledPredictor
from probneural.calibration.stationary_process import StationaryProcess
from probneural.checks import check_module, check_path
from probneural.curvature.iterative_weights import IterativeWeights
from probneural.curvature.jacobian_root import Effort
from probneural.curvature.kronecker_factors import KroneckerWeights
from probneural.curvature.parameters import ParameterVector
from probneural.curvature.weight_roots import DenseWeights, DiagonalWeights, LowRankWeights
from probneural.distributions.predictor import FunctionDraw, Predictor
from probneural.errors import ArgumentError, FileError, UnsupportedError
from probneural.grids import Axis, Grid
from probneural.heads.kernel import KernelPaths, KernelPredictor
from probneural.heads.laplace import LaplacePredictor
from probneural.heads.last_layer import LastLayerPredictor
from probneural.heads.last_layer_predictors import SampledLastLayerPredictor, VariationalLastLayerPredictor
from probneural.heads.principal import PrincipalComponents
from probneural.heads.processes import Covariance, Process
from probneural.heads.readout import Readout
from probneural.heads.sampled import WeightSampledPredictor
from probneural.heads.weights import Hyperparameters
from probneural.operators import FNO, DeepONet, LinearRegression, Operator, PODDeepONet
from probneural.training import files
from probneural.training.devices import resolve_device

_OPERATORS: dict[str, type[Operator]] = {
    "DeepONet": DeepONet,
    "FNO": FNO,
    "LinearRegression": LinearRegression,
    "PODDeepONet": PODDeepONet,
}
"""Operators that are rebuilt from their configuration."""
_FOREIGN = "Module"
"""Kind of all other modules."""


@dataclass(frozen=True)
class _Kind:
    """How instances of a class are taken apart and put together.

    Attributes:
        cls: The class.
        parts: From an instance to what a file must hold, by name; by default its constructor's arguments.
        build: From the parts to an instance; by default the constructor.
        on_cpu: Parts that stay on the CPU, wherever the rest goes.
    """

    cls: type
    parts: Callable[[Any], Mapping[str, Any]] | None = None
    build: Callable[..., Any] | None = None
    on_cpu: tuple[str, ...] = ()

    def taken_apart(self, thing: object) -> Mapping[str, Any]:
        if self.parts is not None:
            return self.parts(thing)
        return {name: getattr(thing, name) for name in inspect.signature(self.cls).parameters}

    def put_together(self, parts: Mapping[str, Any]) -> Any:
        make = self.cls if self.build is None else self.build
        try:
            inspect.signature(make).bind(**parts)
        except TypeError as error:
            raise FileError(
                expected=f"what a {self.cls.__name__} of this version is made of",
                got=str(error),
                remedy="load the file with the version of probneural that wrote it",
            ) from error
        return make(**parts)


def _layout(names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], is_complex: tuple[bool, ...]) -> ParameterVector:
    return ParameterVector(names=names, shapes=tuple(map(torch.Size, shapes)), is_complex=is_complex)


def _kronecker_weights(**tensors: Tensor) -> KroneckerWeights:
    return KroneckerWeights.from_tensors(tensors)


_KINDS: dict[str, _Kind] = {
    kind.cls.__name__: kind
    for kind in (
        _Kind(LastLayerPredictor, on_cpu=("prior_precision", "effective_observations")),
        _Kind(LaplacePredictor),
        _Kind(KernelPredictor),
        _Kind(KernelPaths),
        _Kind(PrincipalComponents),
        _Kind(Process),
        _Kind(Covariance),
        _Kind(SampledLastLayerPredictor, on_cpu=("prior_factors", "prior_precision", "effective_observations")),
        _Kind(VariationalLastLayerPredictor, on_cpu=("history",)),
        _Kind(WeightSampledPredictor),
        _Kind(
            ScaledPredictor,
            on_cpu=("scale", "noise_scale", "root_fraction", "white_fraction", "discrepancy_variance", "calibrated_on"),
        ),
        _Kind(StationaryProcess, on_cpu=("modes", "amplitudes", "lower", "lengths")),
        _Kind(FunctionDraw),
        _Kind(Readout),
        _Kind(Hyperparameters, on_cpu=("prior_precision", "effective_observations")),
        _Kind(ParameterVector, build=_layout),
        _Kind(Effort),
        _Kind(DenseWeights),
        _Kind(DiagonalWeights),
        _Kind(LowRankWeights),
        _Kind(KroneckerWeights, parts=KroneckerWeights.tensors, build=_kronecker_weights),
        _Kind(IterativeWeights, parts=IterativeWeights.tensors),  # which says why not
        _Kind(Grid, on_cpu=("_points", "_weights")),
        _Kind(Axis),
    )
}


def save(thing: nn.Module | Predictor, path: str | os.PathLike[str]) -> None:
    """Save an operator, a predictor or a function draw in one safetensors file, atomically.

    Of an operator of this library the file holds configuration and weights, of any other module its state dict; see
    [`load`][probneural.storage.load].

    Args:
        thing: What to save; it is not changed.
        path: Where to; an existing file is replaced in one step.

    Raises:
        UnsupportedError: If it is something else, holds a state that is not made of tensors, or needs its training data,
            as `Laplace(structure="iterative")` does.
        FileError: If the folder cannot be written to.
    """
    if not isinstance(thing, nn.Module | Predictor):
        raise _unknown(thing)
    path = check_path(path, "path")
    tensors: dict[str, Tensor] = {}
    metadata = _described(thing, "", tensors)
    files.write(path, tensors, metadata)


def load(
    path: str | os.PathLike[str], *, device: torch.device | str = "cpu", operator: nn.Module | None = None
) -> nn.Module | Predictor:
    """Load what [`save`][probneural.storage.save] wrote.

    A loaded predictor predicts what the saved one did, to the last bit where the machine is the same; its draws are the
    same functions, and its latent has the same name.

    Args:
        path: The file.
        device: Where to put it; `"auto"` takes the best there is.
        operator: A module of the architecture and dtype of the saved one, which is copied, never changed. Needed for modules
            that this library does not know how to build. Names, shapes and dtypes of its state are compared; what holds no
            state, an activation function for example, cannot be.

    Returns:
        What was saved; operators in evaluation mode.

    Raises:
        FileError: If the file is missing, damaged, or holds something else.
        ArgumentError: If the operator is needed and not given, if the state does not fit it, or if there is no such device.
    """
    if operator is not None:
        check_module(operator, "operator")
    place = resolve_device(device, nn.Identity())
    tensors, metadata = files.read(check_path(path, "path"))
    kind = metadata.get("kind")
    if kind not in (*_OPERATORS, _FOREIGN, *_KINDS):
        raise FileError(expected="an operator or a predictor", got=str(kind), remedy="is this a fit's checkpoint?")
    found: nn.Module | Predictor = _Reader(tensors, place, operator).value(metadata)
    return found


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
    prefix = f"{name}." if name else ""
    kind = _KINDS.get(type(thing).__name__)
    if kind is not None and type(thing) is kind.cls:
        parts = kind.taken_apart(thing)
        described = {part: _described(value, f"{prefix}{part}", tensors) for part, value in parts.items()}
        return {"kind": kind.cls.__name__, "parts": described}
    if isinstance(thing, Mapping):
        return {"mapping": {key: _described(value, f"{prefix}{key}", tensors) for key, value in thing.items()}}
    if isinstance(thing, tuple | list):
        return [_described(value, f"{prefix}{number}", tensors) for number, value in enumerate(thing)]
    if isinstance(thing, nn.Module):
        tensors |= {f"{prefix}{key}": tensor for key, tensor in _state(thing).items()}
        return {**_architecture(thing), "prefix": prefix, "parameters": _parameters(thing)}
    raise _unknown(thing)


def _architecture(operator: nn.Module) -> dict[str, Any]:
    cls = type(operator)
    if isinstance(operator, Operator) and _OPERATORS.get(cls.__name__) is cls:
        return {"kind": cls.__name__, "configuration": operator.configuration()}
    return {"kind": _FOREIGN, "class": f"{cls.__module__}.{cls.__qualname__}"}


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


def _parameters(operator: nn.Module) -> dict[str, bool]:
    """Which parameters there are, tied ones once, and whether each is trained."""
    return {name: parameter.requires_grad for name, parameter in operator.named_parameters()}


@dataclass(frozen=True)
class _Reader:
    """Puts together what was described.

    Attributes:
        tensors: All tensors of the file.
        device: Where to put them.
        operator: What to copy operators from, or None.
    """

    tensors: Mapping[str, Tensor]
    device: torch.device
    operator: nn.Module | None

    def value(self, described: Any) -> Any:
        """The thing that was described."""
        if isinstance(described, list):
            return tuple(self.value(part) for part in described)
        if not isinstance(described, dict):
            return described
        if "tensor" in described:
            return self.tensors[described["tensor"]].to(self.device)
        if "mapping" in described:
            return {key: self.value(part) for key, part in described["mapping"].items()}
        if "prefix" in described:
            return self._module(described)
        kind = _KINDS[described["kind"]]
        host = _Reader(self.tensors, torch.device("cpu"), self.operator)
        return kind.put_together(
            {name: (host if name in kind.on_cpu else self).value(part) for name, part in described["parts"].items()}
        )

    def _module(self, described: dict[str, Any]) -> nn.Module:
        """A module with the state that was saved, every tensor in the dtype and memory order it had."""
        own = self._untrained(described)
        prefix = described["prefix"]
        saved = {name.removeprefix(prefix): tensor for name, tensor in self.tensors.items() if name.startswith(prefix)}
        state = _state(own)
        misfits = {name for name in {*saved, *state} if not self._fits(saved.get(name), state.get(name))}
        misfits |= {*described["parameters"]} ^ {*_parameters(own)}  # tied in one and not in the other
        if misfits:
            raise self._misfit(sorted(misfits), own)
        for name, tensor in state.items():
            tensor.data = saved[name]  # as `Module.to` does it: what is tied stays tied
        own.load_state_dict({**own.state_dict(), **saved})  # for modules with a say of their own
        for name, parameter in own.named_parameters():
            parameter.requires_grad_(described["parameters"][name])
        return own.to(self.device).eval()

    def _untrained(self, described: dict[str, Any]) -> nn.Module:
        if self.operator is not None:
            return copy.deepcopy(self.operator)
        if described["kind"] == _FOREIGN:
            raise ArgumentError(
                expected=f"operator=, a module of the architecture that was saved ({described['class']})",
                got="None",
                remedy="build it as for training; the file holds its state only",
            )
        with torch.random.fork_rng(devices=[]):  # building draws weights that the file replaces
            return _OPERATORS[described["kind"]].from_configuration(described["configuration"])

    def _fits(self, saved: Tensor | None, own: Tensor | None) -> bool:
        """Whether shapes are equal, and dtypes where they are the user's choice."""
        if saved is None or own is None or saved.shape != own.shape:
            return False
        return self.operator is None or saved.dtype == own.dtype

    def _misfit(self, names: list[str], own: nn.Module) -> ArgumentError | FileError:
        expected = f"a state that fits {type(own).__name__}"
        got = f"differences in {', '.join(names[:5])}{' and others' if len(names) > 5 else ''}"
        if self.operator is None:
            remedy = "the operator was changed after it was built: give operator=, changed in the same way"
            return FileError(expected=expected, got=got, remedy=remedy)
        remedy = "give operator= in the architecture and dtype of the saved one"
        return ArgumentError(expected=expected, got=got, remedy=remedy)


def _unknown(thing: object) -> UnsupportedError:
    predictors = [name for name, kind in _KINDS.items() if issubclass(kind.cls, Predictor)]
    return UnsupportedError(
        expected=f"an nn.Module or one of {', '.join(predictors)}, made of what files can hold",
        got=type(thing).__name__,
        remedy="save the operator, and fit the head or calibrator again",
    )
