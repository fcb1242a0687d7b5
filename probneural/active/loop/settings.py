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


def shared(pool: Field, reference: Field) -> int:
    """Number of samples of the pool that are in a reference, to float32 accuracy if dtypes differ.

    Args:
        pool: Candidates.
        reference: Samples to compare with.
    """
    if pool.dtype != reference.dtype:
        pool, reference = pool.to(torch.float32), reference.to(torch.float32)
    keys = ({function_key(data[row]) for row in range(len(data))} for data in (pool, reference))
    return len(set.intersection(*keys))


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
