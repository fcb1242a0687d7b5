"""Random streams: one way from a seed, a purpose and indices to random numbers that nothing else sees.

A seed names an experiment, not a stream: the functions that are drawn, their split and the batches of a training may all have
seed 0 and must not share their numbers. So every stream is the hash (SHAKE-256) of its purpose, its seed and its indices,
written without ambiguity. Seeds are not added up: neighbours would share streams.

PyTorch's CPU generator, a Mersenne Twister, reads 32 bits of the seed it is given, so seeds that are 2^32 apart are one stream.
Here its whole state of 19,968 bits is taken from the hash, and two streams are as distinct as two hashes. Generators of other
devices take 64 bits. Code that wants an integer gets 32, as `stream_seed` says.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Iterator
from numbers import Integral

import numpy as np
import torch

from probneural.contexts import GLOBAL_GENERATORS
from probneural.errors import ArgumentError

_WORDS = 624
"""Words of 32 bits in the state of a Mersenne Twister."""
_FRESH = torch.Generator("cpu").manual_seed(0).get_state().numpy().copy()
"""A state in the format of PyTorch's files, none of whose words has been drawn: the seed in 8 bytes, 16 more, the words in 8
bytes each, and the cache of normals."""


def check_seed(seed: object) -> int:
    """Return a seed as a plain integer.

    Args:
        seed: Any non-negative integer, of NumPy too; there is no upper limit.

    Raises:
        ArgumentError: If it is another value, or a truth value.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise ArgumentError(expected="seed as an integer of at least 0", got=repr(seed), remedy="for example seed=0")
    return int(seed)


def stream_seed(seed: int, purpose: str, *indices: int) -> int:
    """An integer seed for a stream, for code that takes nothing else: recipes, SciPy, BoTorch.

    It has 32 bits, all that PyTorch's CPU generator reads and NumPy's legacy one accepts, so two of them agree by accident with
    probability 2^-32.

    Args:
        seed: Names the experiment; a non-negative integer.
        purpose: Name of what the numbers are for; each purpose belongs to one module.
        indices: Tell the streams of one purpose from each other.

    Raises:
        ArgumentError: If the seed is invalid.

    Examples:
        >>> stream_seed(0, "ensemble member", 0) == stream_seed(0, "ensemble member", 1)
        False
    """
    return int.from_bytes(_digest(seed, purpose, indices, size=4), "little")


def stream(seed: int | None, purpose: str, *indices: int, device: torch.device | str = "cpu") -> torch.Generator:
    """Return a generator at the start of a stream.

    Args:
        seed: Names the experiment; a non-negative integer, or None for a fresh one from the operating system.
        purpose: Name of what the numbers are for; each purpose belongs to one module.
        indices: Tell the streams of one purpose from each other.
        device: Device of the generator.

    Raises:
        ArgumentError: If the seed is invalid.

    Examples:
        >>> first, again, other = stream(0, "split"), stream(0, "split"), stream(0, "batches")
        >>> float(torch.rand((), generator=first)) == float(torch.rand((), generator=again))
        True
        >>> float(torch.rand((), generator=again)) == float(torch.rand((), generator=other))
        False
    """
    generator = torch.Generator(device)
    _start(generator, secrets.randbits(128) if seed is None else seed, purpose, indices)
    return generator


@contextlib.contextmanager
def seeded(
    seed: int, purpose: str, *indices: int, devices: Iterable[torch.device] = ()
) -> Iterator[Callable[[], contextlib.AbstractContextManager[None]]]:
    """Start torch's global generators at a stream, and give them back as they were.

    It is for code that draws from them: constructors of layers, dropout, recipes, Pyro. One thread at a time. What it yields
    gives them back for a while, `with given_back():`, to code of the caller's in between; what that draws is drawn.

    Args:
        seed: Names the experiment; a non-negative integer.
        purpose: Name of what the numbers are for; each purpose belongs to one module.
        indices: Tell the streams of one purpose from each other.
        devices: Whose generators take part beside the CPU's. The current device of a GPU in use takes part too.

    Raises:
        ArgumentError: If the seed is invalid.
    """
    with GLOBAL_GENERATORS:
        generators = _global_generators(devices)
        states = [generator.get_state() for generator in generators]

        def exchange() -> None:
            for number, generator in enumerate(generators):
                state = generator.get_state()
                generator.set_state(states[number])
                states[number] = state

        @contextlib.contextmanager
        def given_back() -> Iterator[None]:
            exchange()
            try:
                yield
            finally:
                exchange()

        try:
            for generator in generators:
                _start(generator, seed, purpose, indices)
            yield given_back
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)


def _digest(seed: int, purpose: str, indices: Iterable[int], *, size: int) -> bytes:
    """Bytes of a stream; fewer of them are the beginning of more."""
    key = json.dumps([purpose, *map(hex, (check_seed(seed), *indices))])
    return hashlib.shake_256(key.encode()).digest(size)


def _start(generator: torch.Generator, seed: int, purpose: str, indices: Iterable[int]) -> None:
    """Put a generator at the start of a stream."""
    if generator.device.type != "cpu":
        generator.manual_seed(int.from_bytes(_digest(seed, purpose, indices, size=8), "little"))
        return
    words = _digest(seed, purpose, indices, size=4 * _WORDS)
    state = _FRESH.copy()
    state[:8] = np.frombuffer(words, np.uint8, 8)  # the value of `initial_seed`
    state[24 : 24 + 8 * _WORDS].view("<u8")[:] = np.frombuffer(words, "<u4")
    generator.set_state(torch.from_numpy(state))


def global_generator(device: torch.device) -> torch.Generator:
    """PyTorch's global generator of a device."""
    if device.type in ("cpu", "meta"):
        return torch.default_generator
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    module = torch.get_device_module(device)
    module.init()
    return module.default_generators[module.current_device() if device.index is None else device.index]


def _global_generators(devices: Iterable[torch.device]) -> list[torch.Generator]:
    """PyTorch's global generators of the CPU, of the devices and of a GPU in use, each once."""
    places = [torch.device("cpu"), *devices]
    gpu = torch.accelerator.current_accelerator()
    if gpu is not None and gpu.type != "mps" and torch.get_device_module(gpu).is_initialized():
        places.append(gpu)
    generators = [global_generator(place) for place in places]
    return list({id(generator): generator for generator in generators}.values())
