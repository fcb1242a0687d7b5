"""Settings of an active learner, checked, and named so that a store can tell one loop from another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from probneural.active.simulation.result_files import function_key
from probneural.active.simulation.store import ResultStore
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.fingerprints import identity_of
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
    return f"{type(operator).__name__} {digest([identity_of(weights_of(operator))])}"
