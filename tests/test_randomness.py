"""Streams: reproducible, distinct by seed, purpose and index, and the only ones in the package and its benchmarks."""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import math
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from probneural import randomness
from probneural.errors import ArgumentError
from probneural.randomness import check_seed, seeded, stream, stream_seed
from tests.helpers import accelerator

ROOT = Path(__file__).parents[1]
FAR = (2**31, 2**32, 2**32 + 1, 2**33, 2**63, 2**64, 2**128)
"""Seeds of which a generator of 32 or 64 bits sees too little."""


def first(generator: torch.Generator) -> int:
    """The first 62 bits that it draws."""
    return int(torch.randint(2**62, (), generator=generator))


@pytest.mark.parametrize(("seed", "indices"), [(0, ()), (7, (3,)), (2**70, (0, 5))])
def test_a_stream_is_the_mersenne_twister_whose_state_is_the_hash(seed: int, indices: tuple[int, ...]) -> None:
    """NumPy's twister, put into that state, draws the same numbers: PyTorch's format of states is what we take it for."""
    key = json.dumps(["split", *(hex(number) for number in (seed, *indices))])
    words = np.frombuffer(hashlib.shake_256(key.encode()).digest(4 * 624), "<u4")
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(2**20, (2000,), generator=stream(seed, "split", *indices))  # the low bits of a word each
    assert np.array_equal(drawn.numpy(), twister.random_raw(2000) % 2**20)


def test_no_two_streams_share_their_beginning() -> None:
    """Every purpose, seeds 0 to 200 with no index or one from 0 to 20, seeds far apart, and pairs of indices."""
    indices = [(), *((number,) for number in range(21)), (0, 0), (0, 1), (1, 0), (2**32,)]
    keys = [*itertools.product(places(), range(201), indices), *itertools.product(places(), FAR, indices)]
    assert len({randomness._digest(seed, purpose, which, size=8) for purpose, seed, which in keys}) == len(keys)


def test_integer_seeds_differ_within_a_purpose() -> None:
    for purpose in places():
        found = [stream_seed(seed, purpose, number) for seed in range(21) for number in range(21)]
        assert len({*found}) == len(found)
        assert all(0 <= one < 2**32 for one in found)


def test_streams_repeat_and_integers_of_numpy_count() -> None:
    assert first(stream(3, "ties")) == first(stream(3, "ties"))
    assert first(stream(3, "ties", 1)) != first(stream(3, "ties"))
    assert len({first(stream(None, "draws")) for _ in range(10)}) == 10


def draws() -> Tensor:
    return torch.cat([torch.rand(3), torch.randn(3), torch.randperm(20).float()])


@seeded(0, "weights")
def fail() -> None:
    torch.rand(1)
    raise ZeroDivisionError


def test_global_generators_start_at_the_stream_and_are_given_back() -> None:
    torch.manual_seed(4)
    torch.randn(1)  # leaves a normal over, which is part of the state
    state, expected = torch.get_rng_state(), torch.rand(5, generator=stream(1, "weights", 2))
    with seeded(1, "weights", 2):
        assert torch.equal(torch.rand(5), expected)
        inside = torch.get_rng_state()
        with seeded(1, "weights", 2):
            assert torch.equal(torch.rand(5), expected)
            torch.randn(1)
        assert torch.equal(torch.get_rng_state(), inside)
        begun = torch.initial_seed()
    assert torch.equal(torch.get_rng_state(), state)
    with seeded(1, "weights", 3):
        assert torch.initial_seed() != begun
    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(torch.get_rng_state(), state)


def fail_after(expected: Tensor) -> None:
    assert torch.equal(torch.rand(3), expected)
    raise ZeroDivisionError


def test_generators_are_given_back_for_a_while() -> None:
    """What is drawn in between comes from the caller's state and moves it on, also if it ends in an error."""
    torch.manual_seed(4)
    state = torch.get_rng_state()
    expected = torch.rand(9)
    torch.set_rng_state(state)
    with seeded(1, "weights", 2) as given_back:
        first = torch.rand(2)
        with given_back():
            assert torch.equal(torch.rand(3), expected[:3])
        with pytest.raises(ZeroDivisionError), given_back():
            fail_after(expected[3:6])
        assert torch.equal(torch.cat([first, torch.rand(3)]), torch.rand(5, generator=stream(1, "weights", 2)))
    assert torch.equal(torch.rand(3), expected[6:])


def test_what_was_drawn_before_leaves_no_trace() -> None:
    """A normal that was left over would be the first one drawn."""
    found = []
    for before in range(3):
        torch.randn(before)
        with seeded(0, "weights"):
            found.append(draws())
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.gpu
def test_devices_take_part_and_are_given_back() -> None:
    device = torch.device(accelerator(), 0)
    generator = torch.get_device_module(device).default_generators[0].manual_seed(1)
    state = generator.get_state()
    with seeded(0, "weights", devices=[device]):
        first_draw = torch.rand(5, device=device)
    assert torch.equal(generator.get_state(), state)
    torch.rand(3, device=device)
    with seeded(0, "weights", devices=[torch.device(device.type)]):
        assert torch.equal(torch.rand(5, device=device), first_draw)
    assert torch.equal(torch.rand(5, device=device, generator=stream(0, "weights", device=device)), first_draw)
    with seeded(0, "weights"):  # the device is in use
        assert torch.equal(torch.rand(5, device=device), first_draw)
    with seeded(1, "weights", devices=[device]):
        assert not torch.equal(torch.rand(5, device=device), first_draw)


@pytest.mark.bad_input
@pytest.mark.parametrize("seed", [-1, 1.0, True, np.True_, "0", None, math.nan, torch.tensor(1), [0]], ids=repr)
def test_what_is_no_seed_is_refused(seed: object) -> None:
    with pytest.raises(ArgumentError, match="seed as an integer of at least 0"):
        check_seed(seed)
    with pytest.raises(ArgumentError, match="seed as an integer of at least 0"):
        stream_seed(seed, "split")  # type: ignore[arg-type]


@pytest.mark.bad_input
@pytest.mark.parametrize("kind", [np.int8, np.int64, np.uint64])
def test_integers_of_numpy_are_seeds(kind: type[np.integer]) -> None:
    assert type(check_seed(kind(7))) is int
    assert stream_seed(kind(7), "split", kind(3)) == stream_seed(7, "split", 3)  # type: ignore[arg-type]
    assert check_seed(10**5000) == 10**5000
    assert stream_seed(10**5000, "split") != stream_seed(10**5000 + 1, "split")


@cache
def sources() -> list[tuple[str, ast.AST]]:
    """Every node of the package and of its benchmarks, with its file; doctests, being text, are not among them."""
    paths = sorted({*(ROOT / "probneural").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")} - {Path(randomness.__file__)})
    return [(str(path.relative_to(ROOT)), node) for path in paths for node in ast.walk(ast.parse(path.read_text()))]


def name_of(node: ast.AST) -> str:
    """The last part of a name, or nothing."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def test_randomness_comes_from_one_module() -> None:
    """Nobody else seeds a generator, makes one, or does arithmetic with seeds, by which neighbours would share streams."""
    forbidden = []
    for path, node in sources():
        called = name_of(node.func) if isinstance(node, ast.Call) else ""
        if name_of(node).startswith("manual_seed") or called in ("Generator", "default_rng", "RandomState", "SeedSequence"):
            forbidden.append((path, ast.unparse(node)))
        if isinstance(node, ast.BinOp) and {"seed", "seeds"} & {name_of(node.left), name_of(node.right)}:
            forbidden.append((path, ast.unparse(node)))
    assert forbidden == []


@cache
def places() -> dict[str, set[str]]:
    """Every purpose, and the files that use it."""
    files: dict[str, set[str]] = defaultdict(set)
    for path, node in sources():
        if isinstance(node, ast.Call) and name_of(node.func) in ("stream", "stream_seed", "seeded"):
            purpose = node.args[1]
            assert isinstance(purpose, ast.Constant), f"{path}: {ast.unparse(node)}"
            files[purpose.value].add(path)
    return files


def test_every_purpose_is_used_in_one_place() -> None:
    """Two modules that draw for one purpose would share its streams."""
    assert not {purpose for purpose, paths in places().items() if len(paths) > 1}
