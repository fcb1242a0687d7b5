"""Training of ensemble members: sequential, in one vectorised step, or in two processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import stack_module_state, vmap

import probneural as pn
from benchmarks.timing import interleaved, quartiles
from benchmarks.workers import spawned
from probneural.contexts import copy_for_call
from probneural.randomness import stream

MEMBERS = 4
ROUNDS = 21
LEARNING_RATE = 1e-3


@dataclass(frozen=True)
class Members:
    """Four operators of one architecture, and the size of a batch.

    Attributes:
        shape: Points per axis.
        batch: Samples per batch.
        width: Channels of the FNO's blocks.
        modes: Modes of the FNO; none for a DeepONet.
    """

    shape: tuple[int, ...]
    batch: int
    width: int = 32
    modes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name in tables."""
        grid = " x ".join(map(str, self.shape))
        kind = f"FNO, {self.width} channels, {self.modes[0]} modes" if self.modes else "DeepONet"
        return f"{kind}, {self.batch} functions, {grid} points"

    def build(self, seed: int) -> nn.Module:
        """Build one member."""
        if self.modes:
            return pn.operators.FNO(1, 1, modes=self.modes, width=self.width, seed=seed)
        return pn.operators.DeepONet(1, 1, sensors=pn.Grid.uniform(self.shape, periodic=True), seed=seed)

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of normal random numbers."""
        generator = stream(0, "member inputs")
        inputs = torch.randn(self.batch, 1, *self.shape, generator=generator)
        return inputs, torch.randn(self.batch, 1, *self.shape, generator=generator)


CASES = (
    Members((64,), 8, modes=(16,)),
    Members((64,), 20, width=16, modes=(16,)),
    Members((64,), 20, modes=(16,)),
    Members((1024,), 20, modes=(16,)),
    Members((32, 32), 20, width=16, modes=(9, 9)),
    Members((64, 64), 16, modes=(12, 12)),
    Members((64,), 20),
)
SMALL = (Members((16,), 2, width=4, modes=(3,)),)


def rows(*, small: bool) -> list[dict[str, Any]]:
    """One row per case, in single-threaded processes: milliseconds of one training step of all members."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    rounds = 2 if small else ROUNDS
    found = []
    with spawned(2) as pool:
        for case in SMALL if small else CASES:
            times = pool.submit(_times, case, rounds).result()
            beside = [pool.submit(_times, case, rounds) for _ in range(2)]
            alone, together = median(times["in turn"]), median(times["together"])
            shared = median(second for one in beside for second in one.result()["in turn"])
            found.append(
                {
                    "case": case.name,
                    "in turn (ms)": quartiles(times["in turn"]),
                    "together (ms)": quartiles(times["together"]),
                    "in turn / together": alone / together,
                    "two processes / one": 2.0 * alone / shared,
                    "largest difference": times["difference"][0],
                }
            )
    return found


def _times(case: Members, rounds: int) -> dict[str, list[float]]:
    """Seconds of a step of all members, and the difference of losses after equal numbers of steps."""
    torch.set_num_threads(1)
    inputs, targets = case.data()
    in_turn, together = _in_turn(case, inputs, targets), _together(case, inputs, targets)
    times = interleaved({"in turn": in_turn, "together": together}, rounds)
    return times | {"difference": [float((in_turn() / together() - 1.0).abs().max())]}


def _in_turn(case: Members, inputs: Tensor, targets: Tensor) -> Callable[[], Tensor]:
    members = [case.build(seed).train() for seed in range(MEMBERS)]
    optimizers = [torch.optim.AdamW(member.parameters(), lr=LEARNING_RATE, fused=True) for member in members]

    def step() -> Tensor:
        losses = []
        for member, optimizer in zip(members, optimizers, strict=True):
            optimizer.zero_grad()
            loss = (member(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    return step


def _together(case: Members, inputs: Tensor, targets: Tensor) -> Callable[[], Tensor]:
    members = [case.build(seed).train() for seed in range(MEMBERS)]
    stacked, buffers = stack_module_state(members)
    weights = {name: value.detach().clone().requires_grad_() for name, value in stacked.items()}
    optimizer = torch.optim.AdamW(list(weights.values()), lr=LEARNING_RATE, fused=True)
    batches = inputs.expand(MEMBERS, *inputs.shape).contiguous()  # members of a deep ensemble have different batches

    def evaluate(weights: dict[str, Tensor], buffers: dict[str, Tensor], batch: Tensor) -> Tensor:
        result: Tensor = copy_for_call(members[0], {**weights, **buffers})(batch)
        return result

    def step() -> Tensor:
        optimizer.zero_grad()
        losses = (vmap(evaluate)(weights, buffers, batches) - targets).square().flatten(1).mean(1)
        losses.sum().backward()
        optimizer.step()
        return losses.detach()

    return step
