"""Times of interleaved tasks, so that other load of the machine affects all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch

WARM_UP = 2
"""Rounds before the measured ones."""


def interleaved(
    tasks: Mapping[str, Callable[[], object]], rounds: int, device: str = "cpu", *, warm_up: int = WARM_UP
) -> dict[str, list[float]]:
    """Seconds of each task, run once per round, after warm-up rounds."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds + warm_up):
        for name, task in tasks.items():
            wait(device)
            start = time.perf_counter()
            task()
            wait(device)
            if number >= warm_up:
                times[name].append(time.perf_counter() - start)
    return times


def wait(device: str) -> None:
    """Wait until a device has finished its work."""
    if device != "cpu":
        torch.accelerator.synchronize(device)


def quartiles(seconds: Sequence[float]) -> str:
    """Median and quartiles in milliseconds, as text."""
    low, middle, high = (1e3 * value for value in statistics.quantiles(seconds, n=4, method="inclusive"))
    return f"{middle:.3g} [{low:.3g}, {high:.3g}]"
