"""Memory on a line of many points: linear in their number, up to a logarithm, and bounded caches."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from probneural.calibration import Novelty, VarianceScale
from probneural.contexts import remembered
from probneural.functionals import derivative, sensors
from probneural.grids import Grid, resample
from tests.calibration.variance.test_local_scale import Even, evenly, truths
from tests.helpers import normal

POINTS = 4096
LINES = {"periodic": Grid.uniform(POINTS), "walls": Grid.uniform(POINTS, periodic=False)}
DATA = {name: truths(grid, 24, sd=evenly, seed=1) for name, grid in LINES.items()}
VALUES = normal(2, 1, POINTS, seed=0)
PLACES = torch.rand(POINTS, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
SCATTERED = Grid.scattered(PLACES, torch.ones(POINTS))

CALLS: dict[str, Callable[[str], object]] = {
    "sensors": lambda name: sensors(LINES[name], [[0.3]]),
    "derivative": lambda name: derivative(LINES[name])(VALUES),
    "transposed derivative": lambda name: derivative(LINES[name]).adjoint(VALUES),
    "coarser": lambda name: resample(VALUES, LINES[name], LINES[name].resized(POINTS - 3)),
    "finer": lambda name: resample(VALUES, LINES[name], LINES[name].resized(POINTS + 5)),
    "scattered": lambda name: resample(VALUES, LINES[name], SCATTERED),
    "condition": lambda name: Even(LINES[name])(DATA[name].inputs[:2]).condition(
        sensors(LINES[name], [[0.1], [0.3], [0.5], [0.7], [0.9]]), torch.zeros(2, 1, 5).double(), noise=0.1
    ),
    "scale": lambda name: VarianceScale().fit(Even(LINES[name]), DATA[name][:12]),
    "novelty": lambda name: Novelty().fit(Even(LINES[name]), DATA[name]),
}


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("call", [pytest.param(call, marks=[pytest.mark.slow] * (call == "scale")) for call in CALLS])
def test_no_tensor_is_quadratic_in_the_number_of_points(call: str, name: str) -> None:
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:  # tracers miss what caches make
        CALLS[call](name)
    largest = max(event.self_cpu_memory_usage for event in record.events())
    assert 8 * POINTS <= largest <= 8 * POINTS**2 // 8


def test_caches_are_bounded_by_bytes() -> None:
    made: list[int] = []

    @remembered(8 * 100)
    def zeros(size: int) -> Tensor:
        made.append(size)
        return torch.zeros(size, dtype=torch.float64)

    for size in (40, 50, 40, 30, 50, 40, 101, 101, 40):  # 30 drops 50, which 40 has been younger than; 101 is never kept
        zeros(size)
    assert made == [40, 50, 30, 50, 40, 101, 101, 40]
