"""What every test runs under: one thread, and its own seeds."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest
import torch
from hypothesis import settings

# Examples of a property are the same on every run, and a slow machine is not a failure.
settings.register_profile("gates", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("gates")

torch.set_num_threads(1)  # worker processes share the cores, see the Makefile


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """Let only marked tests see CUDA.

    In all others device="auto" is the CPU: on every machine, in fixtures that serve many, in processes that tests start.
    """
    with pytest.MonkeyPatch.context() as patch:
        if torch.cuda.is_available() and item.get_closest_marker("gpu") is None:
            patch.setattr(torch.cuda, "is_available", lambda: False)
            patch.setenv("CUDA_VISIBLE_DEVICES", "")
        return (yield)


@pytest.fixture(autouse=True)
def global_state_is_left_alone() -> Iterator[None]:
    """Start every test from one global seed, and fail the one that leaves another default dtype behind.

    Tests draw from generators of their own; the seed is for layers that initialise from the global one.
    """
    dtype = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield
    left = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    assert left == dtype, f"the default dtype was {dtype} and is now {left}"
