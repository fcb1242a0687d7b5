"""What an active learner is given: checked, and described so that a store can tell one loop from another."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from probneural.active.simulation.result_files import function_key
from probneural.active.simulation.store import ResultStore
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.fingerprints import content_of
from probneural.pairs import FieldPairs


def check(holds: bool, expected: str, got: object) -> None:
    """Raise an ArgumentError unless an argument is as expected."""
    if not holds:
        raise ArgumentError(expected=expected, got=repr(got), remedy="see the arguments of ActiveLearner")


def keys_of(store: ResultStore, fields: Field) -> list[str]:
    """The store's name of each function."""
    return [store.key(fields[position]) for position in range(len(fields))]


def shared(pool: Field, other: Field) -> int:
    """How many functions of the pool are among others; to a float32's accuracy, if dtypes differ.

    Args:
        pool: Functions.
        other: Others.
    """
    if pool.dtype != other.dtype:
        pool, other = pool.to(torch.float32), other.to(torch.float32)
    return len({function_key(pool[row]) for row in range(len(pool))} & {function_key(other[row]) for row in range(len(other))})


def digest(names: Sequence[str]) -> str:
    """One short text for many."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def digest_of_pairs(store: ResultStore, pairs: FieldPairs | None) -> str | None:
    """One short text for a data set."""
    return None if pairs is None else digest(keys_of(store, pairs.inputs) + keys_of(store, pairs.outputs))


def weights_of(operator: nn.Module) -> dict[str, Tensor]:
    """The state dict of a module.

    Raises:
        ArgumentError: If a part of it is no tensor.
    """
    state = operator.state_dict()
    check(all(isinstance(value, Tensor) for value in state.values()), "an operator whose state is made of tensors", operator)
    return state


def digest_of_operator(operator: nn.Module | None) -> str | None:
    """The class of a module, and one short text for the bits of its state.

    Raises:
        ArgumentError: If a part of the state is no tensor.
    """
    if operator is None:
        return None
    state: Mapping[str, Tensor] = weights_of(operator)
    return f"{type(operator).__name__} {_digest_of_tensors(state)}"


def described(thing: Any) -> str:
    """What tells things apart: their representation, without the addresses that change from process to process.

    Representations leave numbers out: those of tensors and fields within follow as one short text.
    """
    text, tensors = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing)), dict(_tensors_within(thing, ""))
    return f"{text} {_digest_of_tensors(tensors)}" if tensors else text


def _digest_of_tensors(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name, tensor in tensors.items():
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(content_of(tensor))
    return total.hexdigest()[:16]


def _tensors_within(thing: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Tensors among the parts of settings, with the way to each."""
    parts: Mapping[str, Any] = {}
    if isinstance(thing, Tensor):
        yield name, thing
    elif isinstance(thing, Field):
        parts = {"values": thing.values, "points": thing.grid.points, "weights": thing.grid.weights}
    elif isinstance(thing, nn.Module):
        parts = thing.state_dict()
    elif isinstance(thing, functools.partial):
        parts = {"arguments": thing.args, "keywords": thing.keywords}
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        parts = {one.name: getattr(thing, one.name) for one in dataclasses.fields(thing)}
    elif isinstance(thing, Mapping):
        parts = {str(key): value for key, value in thing.items()}
    elif isinstance(thing, list | tuple):
        parts = {str(number): value for number, value in enumerate(thing)}
    for key, part in parts.items():
        yield from _tensors_within(part, f"{name}.{key}")
