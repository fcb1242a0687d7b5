from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.fingerprints import content_of, fingerprint_of, identity_of, row_fingerprints


class Norm(Enum):
    MEAN = "mean"
    MAXIMUM = "maximum"


class Weighted:
    """A loss that is no dataclass and no module."""

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights

    def of(self, values: Tensor) -> Tensor:
        return (self.weights * values).sum()


@dataclass(frozen=True)
class Target:
    field: pn.Field
    norm: Norm = Norm.MEAN


def field(values: Tensor, **options: bool) -> pn.Field:
    return pn.Field(values, pn.Grid.uniform((4,), **options))


def network(activation: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), activation)


def test_equal_rows_have_equal_names_and_no_others() -> None:
    values = torch.arange(12.0).reshape(4, 3)
    names = row_fingerprints(values, 2.0 * values)
    assert len(set(names.tolist())) == 4
    assert torch.equal(row_fingerprints(values[2:], 2.0 * values[2:]), names[2:])
    assert torch.equal(row_fingerprints(values.clone().mT.contiguous().mT, 2.0 * values), names)
    others = [
        (values, values),
        (values.flip(1), 2.0 * values),
        (values.reshape(4, 3, 1), 2.0 * values),
        (2.0 * values, values),
    ]
    for other in others:
        assert not torch.isin(row_fingerprints(*other)[1:], names).any()


def test_rows_that_differ_in_few_bits_have_different_names() -> None:
    """All 4096 rows of six numbers out of four, whose floats have their last 20 bits in common."""
    rows = torch.cartesian_prod(*[torch.tensor([0.0, 0.5, 1.0, 2.0])] * 6)
    assert len(row_fingerprints(rows).unique()) == 4096


def test_names_of_rows_do_not_depend_on_the_dtype() -> None:
    rows = torch.randn(50, 1, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows[3] = 0.0
    rows[4, 0, 2] = -0.0
    rows[5, 0, 0] = 1e-60  # float32 has 0 there
    single = row_fingerprints(rows.float())
    assert torch.equal(row_fingerprints(rows), single)
    rows[4, 0, 2] = 0.0
    assert torch.equal(row_fingerprints(rows), single)


@pytest.mark.parametrize("unit", [1e-60, 1e60])
def test_rows_beyond_float32_have_names_of_their_own(unit: float) -> None:
    rows = torch.arange(24.0, dtype=torch.float64).reshape(8, 3) * unit
    assert len(row_fingerprints(rows).unique()) == 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.int8])
def test_contents_do_not_depend_on_layout(dtype: torch.dtype) -> None:
    block = torch.arange(-6, 6).reshape(3, 4).to(dtype)
    for tensor in (block.mT.contiguous().mT, torch.stack([block, block], -1)[..., 0], block[:, 1:][:1, ::3]):
        assert content_of(tensor) == content_of(tensor.clone(memory_format=torch.contiguous_format))
        assert fingerprint_of(tensor) != fingerprint_of(tensor.logical_not())
    assert len(content_of(block)) == block.numel() * block.itemsize


def test_contents_of_conjugates_are_their_values() -> None:
    numbers = torch.tensor([1.0 + 2.0j, -3.0j])
    assert content_of(numbers.conj()) == content_of(numbers.conj().resolve_conj()) != content_of(numbers)


SETTINGS: list[Callable[[], object]] = [
    lambda: functools.partial(torch.optim.SGD, momentum=0.9),
    lambda: functools.partial(torch.optim.SGD, momentum=0.8),
    lambda: torch.optim.SGD,
    lambda: Weighted(torch.ones(2)),
    lambda: Weighted(torch.ones(3)),
    lambda: Weighted(torch.ones(3)).of,
    lambda: Target(field(torch.zeros(1, 1, 4))),
    lambda: Target(field(torch.ones(1, 1, 4))),
    lambda: Target(field(torch.ones(1, 1, 4), periodic=False)),
    lambda: Target(field(torch.ones(1, 1, 4)), norm=Norm.MAXIMUM),
    lambda: [Target(field(torch.ones(1, 1, 4)))],
    lambda: {"target": Target(field(torch.ones(1, 1, 4)))},
    lambda: {"one", "two"},
    lambda: {1: "one", "two": 2, Norm.MEAN: None},
    lambda: {"1": "one", "two": 2, Norm.MEAN: None},
    lambda: np.arange(2000.0),
    lambda: np.arange(2000.0) + (np.arange(2000) == 1000),
    lambda: np.float32(0.5),
    lambda: np.float32(0.25),
    lambda: Path("one"),
    lambda: Path("two"),
    lambda: range(3),
    lambda: network(nn.ReLU()),
    lambda: network(nn.LeakyReLU(0.1)),
    lambda: network(nn.LeakyReLU(0.2)),
    lambda: network(nn.LeakyReLU(0.2)).double(),
]


@pytest.mark.parametrize("make", SETTINGS)
def test_the_same_settings_are_one(make: Callable[[], object]) -> None:
    assert identity_of(make()) == identity_of(make()) == identity_of(copy.deepcopy(make()))


def test_settings_are_told_from_others() -> None:
    names = [identity_of(make()) for make in SETTINGS]
    assert len({*names}) == len(names)
    assert not any(" at 0x" in name for name in names)
