"""What a posterior over all layers costs, in training epochs of its own operator: fit, calibrate on 100, score 32 functions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import probneural as pn
from benchmarks import sections, studies
from probneural.heads import Kronecker, LowRank
from probneural.heads.weight_posterior import Structure
from probneural.randomness import seeded, stream_seed

EPOCHS = 40
"""Epochs that an operator is trained for; the median of one's time counts."""

Row = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Chain:
    """An operator, its problem, and a structure; two calibrations of 100 and 32 functions, or none."""

    name: str
    problem: pn.problems.Problem
    resolution: int
    train: int
    operator: Callable[[int], nn.Module]
    structure: Structure
    scaled: int = 100
    scored: int = 32


class Convolutions(nn.Module):
    """Three convolutions of 3 x 3 points with GELU between them."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        parts = [nn.Conv2d(channels, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1), nn.GELU()]
        self.layers = nn.Sequential(*parts, nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, values: Tensor) -> Tensor:
        """Map `(n, c, height, width)` to `(n, 1, height, width)`."""
        outputs: Tensor = self.layers(values)
        return outputs


class UNet(nn.Module):
    """One level down and up again, with a connection across."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(channels, width, 3, padding=1)
        self.before = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.below = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.after = nn.Conv2d(4 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        """Map `(n, c, height, width)` to `(n, 1, height, width)`, sides even."""
        gelu = nn.functional.gelu
        above = gelu(self.before(gelu(self.enter(values))))
        below = gelu(self.below(nn.functional.avg_pool2d(above, 2)))
        raised = nn.functional.interpolate(below, scale_factor=2, mode="bilinear")
        outputs: Tensor = self.leave(gelu(self.after(torch.cat([above, raised], dim=1))))
        return outputs


def chains(*, small: bool) -> list[Chain]:
    """All of them."""
    burgers, darcy = pn.problems.Burgers(viscosity=0.1), pn.problems.Darcy2D()

    def line(seed: int) -> nn.Module:
        return pn.operators.FNO(1, 1, modes=(8,), width=16, depth=4, projection=32, seed=seed)

    def plane(seed: int) -> nn.Module:
        return pn.operators.FNO(2, 1, modes=(6, 6), width=8, depth=3, periodic=(False, False), seed=seed)

    found = [
        Chain("FNO, 64 points, low rank of 30", burgers, 64, 128, line, LowRank(rank=30)),
        Chain("FNO, 64 points, Kronecker", burgers, 64, 128, line, Kronecker(probes=16)),
        Chain("FNO, 32 x 32, low rank of 20", darcy, 32, 50, plane, LowRank(rank=20), scaled=0, scored=0),
        Chain("CNN, 32 x 32, low rank of 20", darcy, 32, 50, _seeded(Convolutions, 16), LowRank(rank=20), scaled=0, scored=0),
        Chain("U-Net, 32 x 32, low rank of 20", darcy, 32, 50, _seeded(UNet, 8), LowRank(rank=20), scaled=0, scored=0),
    ]
    if not small:
        return found
    return [replace(found[0], train=8, structure=LowRank(rank=2), scaled=4, scored=2)]


def _seeded(kind: type[nn.Module], width: int) -> Callable[[int], nn.Module]:
    def build(seed: int) -> nn.Module:
        with seeded(seed, "chains network"):
            return kind(2, width)

    return build


def main(*, mode: str, output: Path) -> dict[str, Any]:
    """Measure every chain, one after the other, on one thread."""
    small = mode == "small"
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return sections.write(
            "chains",
            {"chains": lambda: [_row(chain, seeds=1 if small else 3, small=small) for chain in chains(small=small)]},
            mode=mode,
            output=output,
            notes=[
                "one thread, float32; medians over seeds, the least and the largest in brackets. Operators are trained for "
                f"{EPOCHS} epochs of steps of 20 functions; an epoch is the median of theirs. Seconds are of processor time",
                "fit: `Laplace(structure).fit`, which learns noise and prior and traces the operator; what a process loads for "
                "tracing once does not count. scale: `VarianceScale` on 100 functions. score: predict and score 32 functions",
            ],
        )
    finally:
        torch.set_num_threads(before)


def _row(chain: Chain, *, seeds: int, small: bool) -> Row:
    _measured(replace(chain, train=4, scaled=0, scored=0), 0, epochs=2)  # what a process loads once does not count
    found = [_measured(chain, seed, epochs=3 if small else EPOCHS) for seed in range(seeds)]
    row: Row = {"chain": chain.name, "parameters": sum(part.numel() for part in chain.operator(0).parameters())}
    for heading in found[0]:
        values = [each[heading] for each in found]
        row[heading] = f"{statistics.median(values):.3g} [{min(values):.3g}, {max(values):.3g}]"
    return row


def _measured(chain: Chain, seed: int, *, epochs: int) -> dict[str, float]:
    """Seconds of every stage, and all of them in epochs."""
    train, scaling, test = (
        chain.problem.sample(max(count, 1), resolution=chain.resolution, seed=stream_seed(seed, "chains data", index))
        for index, count in enumerate((chain.train, chain.scaled, chain.scored))
    )
    operator = chain.operator(seed)
    ends = [time.process_time()]
    clock = pn.training.EachEpoch(lambda progress: ends.append(time.process_time()))
    pn.fit(operator, train, epochs=epochs, seed=seed, show_progress=False, run=pn.training.RunOptions(callbacks=[clock]))
    times = {"epoch (ms)": 1e3 * statistics.median(after - before for before, after in pairwise(ends))}
    predictor, times["fit (s)"] = _timed(lambda: pn.heads.Laplace(chain.structure, show_progress=False).fit(operator, train))
    if chain.scaled:
        calibrated, times["scale (s)"] = _timed(lambda: pn.calibration.VarianceScale().fit(predictor, scaling))
        _, times["score (s)"] = _timed(lambda: pn.metrics.score(calibrated(test.inputs), test.outputs, noise=calibrated.noise))
    seconds = sum(value for name, value in times.items() if name.endswith("(s)"))
    return times | {"in epochs": 1e3 * seconds / times["epoch (ms)"]}


def _timed(task: Callable[[], Result]) -> tuple[Result, float]:
    """What a task returns, and its seconds of processor time."""
    start = time.process_time()
    result = task()
    return result, time.process_time() - start


if __name__ == "__main__":
    studies.run(main)
