"""Evaluation that threads can share: pure functions of modules, and locks around what PyTorch keeps once per process.

`torch.func.functional_call` puts tensors into the module it is given while it runs, and a forward hook sits on the module
until it is removed: a second thread that calls the same module meets them. Here a module is evaluated with other tensors, or
under a hook, as a copy made for that one call, so that no module is ever changed. Copies share all tensors, so that one costs
some microseconds per submodule and no memory.

Two things are the process's own, so that only a lock can keep threads apart: PyTorch has one level of forward-mode
differentiation and one patch of `nn.Module` for tracing, and one global generator per device, which weights' own initialisers,
dropout and Pyro draw from.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from probneural.errors import ArgumentError

AUTOGRAD_STATE = threading.RLock()
"""Held while PyTorch is in forward mode, or traces: both are the whole process's."""
GLOBAL_GENERATORS = threading.RLock()
"""Held while torch's global generators are seeded for a purpose, until their states are given back."""


def _free_in_child() -> None:
    """Free the locks of threads that a fork has not copied into the child."""
    for lock in (AUTOGRAD_STATE, GLOBAL_GENERATORS):
        if not lock._is_owned():  # type: ignore[attr-defined]
            lock._at_fork_reinit()  # type: ignore[attr-defined]  # as the standard library frees its own locks


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_in_child)

_PLAIN = frozenset({bool, int, float, str, type(None)})
"""Types that refer to no module."""
_HOOKS = frozenset(name for name in vars(nn.Module()) if "_hooks" in name) - {"_forward_hooks"}
"""Dictionaries that a copy shares while they are empty; it only ever gets forward hooks."""


def copy_for_call(module: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Copy a module for one call, with some of its parameters and buffers replaced by other tensors.

    The copy has submodules, hooks, lists and dictionaries of its own and shares everything else, above all the tensors that
    are not replaced. What is tied stays tied. References to submodules from plain attributes, lists and bound methods lead to
    the copy's own ones; a module that says how it is taken apart and put together (`__getstate__`, `__setstate__`), as compiled
    ones do, is copied in that way, as `copy.deepcopy` would.

    Args:
        module: Any module; it is not changed.
        tensors: Replacements by the names that `named_parameters` and `named_buffers` give; none by default. They may be
            of other shapes, and functorch's.

    Returns:
        The copy, to be called and forgotten. In training mode it updates the same buffers as the module.

    Raises:
        ArgumentError: If the module has no parameter or buffer of a given name.

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
                        copies.known[id(tensor)] = missing.pop(start + name)
    if missing:
        raise ArgumentError(
            expected=f"names of parameters and buffers of {type(module).__name__}",
            got=", ".join(missing),
            remedy="see named_parameters() and named_buffers(); a tied tensor goes by its first name",
        )
    return copies.of_module(module)


class _Copies:
    """Copies of what refers to the modules of a tree, each made once; `known` maps identities to copies or replacements."""

    def __init__(self) -> None:
        self.known: dict[int, Any] = {}
        self._alive: list[object] = []  # identities hold while what they belong to does

    def of_module(self, module: nn.Module) -> nn.Module:
        """A module of the same class and state, made of copies."""
        if id(module) in self.known:
            known: nn.Module = self.known[id(module)]
            return known
        copied = object.__new__(type(module))
        self.known[id(module)] = copied
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
        """A copy of a module or of something that may hold one, a replacement, or the thing itself."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor):
            return self.known.get(id(value), value)
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
        if id(value) not in self.known:
            copied = self.known[id(value)] = value.copy()
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                if type(part) not in _PLAIN:
                    copied[key] = self.of(part)
        return self.known[id(value)]


def jvp(function: Callable[..., Any], primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> tuple[Any, Any]:
    """`torch.func.jvp`, in one thread at a time: the level of forward mode is the process's.

    Examples:
        >>> jvp(torch.square, (torch.tensor(3.0),), (torch.tensor(1.0),))
        (tensor(9.), tensor(6.))
    """
    lock = nullcontext() if torch.compiler.is_compiling() else AUTOGRAD_STATE  # a graph knows no locks
    with lock:
        values, derivative = torch.func.jvp(function, primals, tangents)[:2]  # noqa: TID251 (the place that locks it)
    return values, derivative


@contextmanager
def plain_operations() -> Iterator[None]:
    """Attention and recurrence by operations that have second derivatives, in place of fused ones; for all threads.

    A backward pass that cannot have the lock changes nothing: of two that restore what they found, one may find the other's.
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


@contextmanager
def forward_mode() -> Iterator[bool]:
    """Keep other threads out of forward mode, and say whether this one may enter it: PyTorch cannot nest it."""
    with _autograd_state() as is_ours:
        yield is_ours and forward_ad._current_level < 0


@contextmanager
def _autograd_state() -> Iterator[bool]:
    """Hold the lock, or say that another thread does: a backward pass does not wait.

    On a GPU all threads' passes share one thread of autograd, and whoever is in forward mode may be waiting for it.
    """
    is_in_backward = torch._C._current_graph_task_id() != -1
    is_ours = AUTOGRAD_STATE.acquire(blocking=not is_in_backward)
    try:
        yield is_ours
    finally:
        if is_ours:
            AUTOGRAD_STATE.release()
