"""Isolation of computations from PyTorch's modes and from other threads.

[`undisturbed`][probneural.contexts.undisturbed] suspends a caller's inference mode, autocast and default device.

`torch.func.functional_call` replaces tensors of a module during a call, and a forward hook stays on a module until it is
removed; both affect other threads that call the module. [`copy_for_call`][probneural.contexts.copy_for_call] copies a module
for one call, so that no module is changed. Copies share all tensors, so one costs some microseconds per submodule and no
memory.

Two resources are global in a process, so threads need a lock: the level of forward-mode differentiation with the patch of
`nn.Module` for tracing, and the global generator of each device, from which initialisers, dropout and Pyro draw.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial, wraps
from inspect import isfunction, isgeneratorfunction
from types import MethodType
from typing import Any, ParamSpec, TypeVar

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from probneural.errors import ArgumentError

_AUTOCAST = ("cpu", "cuda", "mps")
_OPERATORS = ("__call__", "__getitem__", "__add__", "__sub__", "__mul__", "__rmul__", "__neg__", "__truediv__")
"""Special methods that compute."""

_P = ParamSpec("_P")
_R = TypeVar("_R")
_T = TypeVar("_T", bound=Tensor | tuple[Tensor, ...])


@contextlib.contextmanager
def undisturbed(*, keeps_autocast: bool = False) -> Iterator[None]:
    """Context manager and decorator that suspends inference mode, autocast and the default device.

    Autograd refuses inference tensors later, half precision makes covariances inaccurate, and new tensors without an explicit
    device belong on the CPU. Gradient mode does not change.

    Args:
        keeps_autocast: Whether autocast stays on, as for training in half precision.

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


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Compute `undisturbed`, and record no gradients."""
    with undisturbed(), torch.no_grad():
        yield


def _is_disturbed() -> bool:
    has_device = torch._C._len_torch_function_stack() > 0 and torch.get_default_device().type != "cpu"  # a mode of that stack
    return torch.is_inference_mode_enabled() or has_device or torch._C._is_any_autocast_enabled()


def _apart(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Wrap a function in [`undisturbed`][probneural.contexts.undisturbed], entered only if a mode is on."""

    @wraps(function)
    def computed(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_dynamo_compiling() or not _is_disturbed():
            return function(*args, **kwargs)
        with undisturbed():
            return function(*args, **kwargs)

    return computed


class Undisturbed:
    """Base class whose public methods and properties suspend a caller's autocast, inference mode and default device.

    Members of a subclass are wrapped at its definition, except generators, which return control to the caller.

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
        """Wrap the methods and properties of the class."""
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


def is_transformed() -> bool:
    """Whether a transform of `torch.func` is active; its tensors cannot be changed in place."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def unrounded(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Suspend autocast on a device, for layers that half precision would make inaccurate."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def outside_of_export() -> Iterator[None]:
    """Suspend a trace of `torch.export`, so that values independent of the inputs become constants."""
    is_exporting = torch.compiler.is_exporting() and not torch.compiler.is_dynamo_compiling()
    with outside_of_transforms() if is_exporting else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def outside_of_transforms() -> Iterator[None]:
    """Also suspend functorch's transforms, tracers and fake tensors, for tensors that are cached for other calls.

    A tensor created under a transform belongs to its level, and one created under a tracer to its graph; a cache may hold
    neither.

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
    """Cache the latest tensors of a function of hashable arguments, computed outside of modes and transforms.

    Under `torch.compile` there is no cache, and the function is part of the graph.

    Args:
        capacity: Maximum size of the cache in bytes; larger results are not cached.

    Examples:
        >>> @remembered(1024)
        ... def counted(size):
        ...     return torch.arange(size)
        >>> counted(3) is counted(3)
        True
    """

    def decorate(function: Callable[_P, _T]) -> Callable[_P, _T]:
        results: dict[Any, tuple[Any, _T]] = {}  # least recent first; no lock, since a fork could copy it locked

        @wraps(function)
        def recalled(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            if torch.compiler.is_dynamo_compiling():
                return function(*args, **kwargs)
            key = (args, *kwargs.items())
            key, result = results.pop(key, (key, None))
            if result is None:
                with outside_of_transforms():
                    result = function(*args, **kwargs)
            results[key] = key, result
            entries = tuple(results.values())
            excess = sum(_bytes(value) for _, value in entries) - capacity
            for old, value in entries:
                if excess <= 0:
                    break
                results.pop(old, None)
                excess -= _bytes(value)
            return result

        return recalled

    return decorate


def _bytes(result: Tensor | tuple[Tensor, ...]) -> int:
    """Memory of one or several tensors in bytes."""
    tensors = (result,) if isinstance(result, Tensor) else result
    return sum(tensor.untyped_storage().nbytes() for tensor in tensors)


AUTOGRAD_STATE = threading.RLock()
"""Lock of forward mode and tracing, which are global in a process."""
GLOBAL_GENERATORS = threading.RLock()
"""Lock of torch's global generators while they are seeded, until their states are restored."""


def _free_in_child() -> None:
    """Release locks of threads that a fork did not copy into the child."""
    for lock in (AUTOGRAD_STATE, GLOBAL_GENERATORS):
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library does


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)

_PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types without references to modules."""
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name) - {"_forward_hooks"}
"""Dictionaries that copies share if they are empty; copies get forward hooks only."""


def copy_for_call(module: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Copy a module for one call, with some parameters and buffers replaced by other tensors.

    The copy has new submodules, hooks, lists and dictionaries, and shares everything else, such as tensors without replacement.
    Tied tensors stay tied. References to submodules from attributes, lists and bound methods refer to the copied submodules. A
    module with `__getstate__` and `__setstate__`, such as a compiled one, is copied by these.

    Args:
        module: Any module; it is not changed.
        tensors: Replacements by the names in `named_parameters` and `named_buffers`; none by default. They may have other
            shapes, and may be functorch's.

    Returns:
        The copy, for one call. In training mode it updates the same buffers as the module.

    Raises:
        ArgumentError: If the module has no parameter or buffer of a name.

    Examples:
        >>> layer = nn.Linear(1, 1)
        >>> copy_for_call(layer, {"weight": torch.ones(1, 1), "bias": torch.zeros(1)})(torch.full((1, 1), 3.0)).item()
        3.0
    """
    copies = _Copies()
    missing = dict(tensors or {})
    if missing:
        for prefix, part in module.named_modules():
            start = f"{prefix}." if prefix else ""
            for tensors_by_name in (part._parameters, part._buffers):
                for name, tensor in tensors_by_name.items():
                    if start + name in missing:
                        copies.copies[id(tensor)] = missing.pop(start + name)
    if missing:
        got, remedy = ", ".join(missing), "see named_parameters() and named_buffers(); a tied tensor has its first name"
        raise ArgumentError(expected=f"names of parameters and buffers of {type(module).__name__}", got=got, remedy=remedy)
    return copies.of_module(module)


class _Copies:
    """Copies of the modules in a tree and of references to them; `copies` maps identities to copies or replacements."""

    def __init__(self) -> None:
        self.copies: dict[int, Any] = {}
        self._alive: list[object] = []  # identities are unique while the objects live

    def of_module(self, module: nn.Module) -> nn.Module:
        """A module of the same class and state, with copied parts."""
        if id(module) in self.copies:
            copy: nn.Module = self.copies[id(module)]
            return copy
        copied = object.__new__(type(module))
        self.copies[id(module)] = copied
        state = module.__dict__.copy() if hasattr(type(module), "__deepcopy__") else module.__getstate__()
        self._alive.append(list(state.values()))
        for name, value in state.items():
            if type(value) not in _PLAIN and (name not in _HOOKS or value):
                state[name] = self.of(value)
        if hasattr(type(module), "__deepcopy__"):
            copied.__dict__.update(state)
        else:
            copied.__setstate__(state)
        return copied

    def of(self, value: Any) -> Any:
        """A copy of a module or of a container of modules, a replacement, or the value itself."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self.copies.get(id(value), value)
        if isinstance(value, nn.Module):
            return self.of_module(value)
        if isinstance(value, dict | list):
            return self._of_container(value)
        if type(value) is tuple:
            return tuple([self.of(part) for part in value])
        if isinstance(value, MethodType):
            return MethodType(value.__func__, self.of(value.__self__))
        if isinstance(value, partial):
            return partial(self.of(value.func), *map(self.of, value.args), **{k: self.of(v) for k, v in value.keywords.items()})
        return value

    def _of_container(self, value: Any) -> Any:
        if id(value) not in self.copies:
            copied = self.copies[id(value)] = value.copy()
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                if type(part) not in _PLAIN:
                    copied[key] = self.of(part)
        return self.copies[id(value)]


def jvp(function: Callable[..., Any], primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """`torch.func.jvp`, in one thread at a time, since the level of forward mode is global in a process.

    Examples:
        >>> jvp(torch.square, (torch.tensor(3.0),), (torch.tensor(1.0),))
        (tensor(9.), tensor(6.))
    """
    lock = contextlib.nullcontext() if torch.compiler.is_compiling() else AUTOGRAD_STATE  # a graph has no locks
    with lock:
        values, derivative = torch.func.jvp(function, primals, tangents)[:2]  # noqa: TID251 (called under the lock)
    return values, derivative


@contextlib.contextmanager
def plain_operations() -> Iterator[None]:
    """Use operations with second derivatives instead of fused attention and recurrence, in all threads.

    Without the lock, in a backward pass, settings do not change: two passes could restore each other's temporary settings.
    """
    libraries: tuple[Any, ...] = (torch.backends.mkldnn, torch.backends.cudnn)
    with _autograd_state() as is_ours:
        if not is_ours:
            yield
            return
        were, is_fused = [library.enabled for library in libraries], torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        for library in libraries:
            library.enabled = False
        try:
            with sdpa_kernel(SDPBackend.MATH):
                yield
        finally:
            torch.backends.mha.set_fastpath_enabled(is_fused)
            for library, was in zip(libraries, were, strict=True):
                library.enabled = was


@contextlib.contextmanager
def forward_mode() -> Iterator[bool]:
    """Hold the lock of forward mode; yields whether this thread may enter it, since PyTorch cannot nest it."""
    with _autograd_state() as is_ours:
        yield is_ours and forward_ad._current_level < 0


@contextlib.contextmanager
def _autograd_state() -> Iterator[bool]:
    """Hold the lock; a backward pass does not wait for it, and yields False if another thread holds it.

    On a GPU backward passes of all threads share one autograd thread, for which the thread in forward mode may wait.
    """
    is_in_backward = torch._C._current_graph_task_id() != -1
    is_ours = AUTOGRAD_STATE.acquire(blocking=not is_in_backward)
    try:
        yield is_ours
    finally:
        if is_ours:
            AUTOGRAD_STATE.release()
