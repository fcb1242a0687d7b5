"""Computing apart from what a caller has switched on in PyTorch for work of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from inspect import isfunction, isgeneratorfunction
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_AUTOCAST = ("cpu", "cuda", "mps")
_OPERATORS = ("__call__", "__getitem__", "__add__", "__sub__", "__mul__", "__rmul__", "__neg__", "__truediv__")
"""Special methods that compute."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T", bound=Tensor | tuple[Tensor, ...])


@contextlib.contextmanager
def undisturbed(*, keeps_autocast: bool = False) -> Iterator[None]:
    """Leave inference mode, autocast and another default device, for a while; also a decorator.

    Inference tensors would be refused by autograd later, half precision would spoil what heads measure, and tensors without a
    device of their own belong on the CPU. Whether gradients are recorded stays the caller's choice.

    Args:
        keeps_autocast: Whether a caller's autocast is left on: for training, where it may be meant.

    Examples:
        >>> with torch.device("meta"), undisturbed():
        ...     torch.zeros(1).device.type
        'cpu'
    """
    with contextlib.ExitStack() as stack:
        if torch.is_inference_mode_enabled():
            grad = torch.is_grad_enabled()
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(grad))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        for kind in () if keeps_autocast else _AUTOCAST:
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def _is_disturbed() -> bool:
    return (
        torch.is_inference_mode_enabled()
        or torch.get_default_device().type != "cpu"
        or any(torch.is_autocast_enabled(kind) for kind in _AUTOCAST)
    )


def _apart(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function, computed in [`undisturbed`][probneural.contexts.undisturbed] where anything is switched on."""

    @wraps(function)
    def computed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_dynamo_compiling() or not _is_disturbed():
            return function(*args, **kwargs)
        with undisturbed():
            return function(*args, **kwargs)

    return computed


class Undisturbed:
    """A base class whose public methods and properties compute apart from a caller's autocast, inference mode and device.

    Those of a subclass are wrapped when it is defined; generators are not, which hand control back to the caller.

    Examples:
        >>> class Number(Undisturbed):
        ...     @property
        ...     def place(self):
        ...         return torch.zeros(1).device.type
        >>> with torch.device("meta"):
        ...     Number().place
        'cpu'
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Wrap what the class defines."""
        super().__init_subclass__(**kwargs)
        for name, member in list(vars(cls).items()):
            if name.startswith("_") and name not in _OPERATORS:
                continue
            if isinstance(member, property):
                setattr(cls, name, property(_apart(member.fget), doc=member.__doc__) if member.fget else member)
            elif isinstance(member, cached_property):
                member.func = _apart(member.func)
            elif isinstance(member, classmethod | staticmethod):
                setattr(cls, name, type(member)(_apart(member.__func__)))
            elif isfunction(member) and not isgeneratorfunction(member):
                setattr(cls, name, _apart(member))


def unrounded(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Leave autocast on a device, for a layer whose results half precision would spoil."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def outside_of_export() -> Iterator[None]:
    """Leave a trace of `torch.export`, so that what depends on no input is computed, checked, and kept as a constant."""
    is_exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    with outside_of_transforms() if is_exporting else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def outside_of_transforms() -> Iterator[None]:
    """Leave functorch's transforms, tracers and fake tensors too, so that a tensor made here may be kept for other calls.

    What PyTorch makes under a transform belongs to its level, and under a tracer to its graph: a cache must hold neither.

    Examples:
        >>> kept = []
        >>> def function(x):
        ...     with outside_of_transforms():
        ...         kept.append(torch.ones(1))
        ...     return x * kept[0]
        >>> slope = torch.func.grad(lambda x: function(x).sum())(torch.ones(1))
        >>> (kept[0] + 1.0).item()
        2.0
    """
    with undisturbed(), torch._C._DisableFuncTorch(), _disable_current_modes():
        yield


def remembered(capacity: int) -> Callable[[Callable[_P, _T]], Callable[_P, _T]]:
    """Remember the last tensors that a function of hashable arguments made, apart from a caller's modes and transforms.

    `torch.compile` cannot follow a cache; there the function becomes a part of the graph.

    Args:
        capacity: Bytes of the results that are kept, at most; larger results are made anew at each call.

    Examples:
        >>> @remembered(1024)
        ... def counted(size):
        ...     return torch.arange(size)
        >>> counted(3) is counted(3)
        True
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        results: dict[Any, _T] = {}  # the least recent first; without a lock, which a fork would leave taken

        @wraps(function)
        def recalled(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if torch.compiler.is_dynamo_compiling():
                return function(*args, **kwargs)
            key = (args, *kwargs.items())
            result = results.pop(key, None)
            if result is None:
                with outside_of_transforms():
                    result = function(*args, **kwargs)
            results[key] = result
            entries = tuple(results.items())
            excess = sum(_bytes(one) for _, one in entries) - capacity
            for old, one in entries:
                if excess <= 0:
                    break
                results.pop(old, None)
                excess -= _bytes(one)
            return result

        return recalled

    return decorate


def _bytes(result: Tensor | tuple[Tensor, ...]) -> int:
    """Memory of one tensor, or of several."""
    tensors = (result,) if isinstance(result, Tensor) else result
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)
