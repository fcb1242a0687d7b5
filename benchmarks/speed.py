"""Speed of operators compared with neuraloperator and DeepXDE: equal architectures and data, one process, interleaved.

Columns of libraries that are not installed are empty (`make peers`, then `.venv-peers/bin/python -m benchmarks speed`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

import probneural as pn
from benchmarks import members, sections
from benchmarks.memory import peak_memory, reset_peak_memory
from benchmarks.timing import WARM_UP, interleaved, quartiles
from benchmarks.workers import spawned
from probneural.randomness import stream

PEERS = ("neuraloperator", "deepxde")
ROUNDS = 11
LONG = 1e10
"""Operations from which three rounds are enough."""
LEARNING_RATE = 1e-3

Row = dict[str, Any]
Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Fourier:
    """An FNO with four blocks, one channel to one, and a projection of 64 channels, with its batch size."""

    shape: tuple[int, ...]
    modes: tuple[int, ...]
    width: int
    batch: int
    projection: int = 64
    depth: int = 4

    @property
    def name(self) -> str:
        """What tables call it."""
        grid = " x ".join(map(str, self.shape))
        return f"{self.batch} functions, {grid} points, {self.width} channels, {self.modes[0]} modes"

    def ours(self) -> pn.operators.FNO:
        """Build our FNO, with two activations between blocks as in neuraloperator's blocks without pointwise network."""
        return pn.operators.FNO(
            1, 1, modes=self.modes, width=self.width, depth=self.depth, projection=self.projection, seed=0
        ).train()

    def peer(self) -> nn.Module:
        """Build neuraloperator's FNO of the same architecture."""
        os.environ.setdefault("WANDB_MODE", "disabled")
        from neuralop.models import FNO

        model: nn.Module = FNO(
            n_modes=tuple(2 * mode - 1 for mode in self.modes),
            in_channels=1,
            out_channels=1,
            hidden_channels=self.width,
            n_layers=self.depth,
            lifting_channel_ratio=0,
            projection_channel_ratio=self.projection / self.width,
            positional_embedding=None,
            use_channel_mlp=False,
        )
        return model

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, normal numbers."""
        generator = stream(0, "speed inputs")
        inputs = torch.randn(self.batch, 1, *self.shape, generator=generator)
        return inputs, torch.randn(self.batch, 1, *self.shape, generator=generator)

    def operations(self) -> float:
        """Multiplications and additions of one forward evaluation, as matrix products have them."""
        values = self.batch * self.width
        block, points, inner = 0.0, math.prod(self.shape), 1.0
        for axis in reversed(range(len(self.shape))):
            points //= self.shape[axis]
            is_last = axis == len(self.shape) - 1
            kept = self.modes[axis] if is_last else 2 * self.modes[axis] - 1
            block += 2 * (4 if is_last else 8) * points * self.shape[axis] * kept * inner * values  # both transforms
            inner *= kept
        block += 8 * inner * values * self.width
        points = self.batch * math.prod(self.shape)
        block += 2 * points * self.width**2
        return self.depth * block + 2 * points * (self.width + self.width * self.projection + self.projection)

    def traffic(self) -> float:
        """Least memory traffic of one forward evaluation in bytes: one pass per layer, nothing in the cache.

        A block reads its input for the transform and for the pointwise layer, writes the convolution, reads and writes it to
        add the pointwise layer, and reads and writes for each of two activations, which the last block has not.
        """
        hidden = self.batch * math.prod(self.shape) * 4.0
        return hidden * (self.width * (self.depth * 9 - 4) + 2 + self.width * 2 + self.projection * 4)


@dataclass(frozen=True)
class Products:
    """A DeepONet with 3 x 256 hidden units and 64 products in one dimension, with its numbers of samples and points."""

    functions: int
    points: int
    sensors: int = 128
    width: int = 256
    depth: int = 3
    basis: int = 64

    @property
    def name(self) -> str:
        """What tables call it."""
        return f"{self.functions} functions x {self.points} points"

    def ours(self) -> nn.Module:
        """Build our DeepONet, whose trunk input is the coordinate on domains that are not periodic."""
        layers = pn.operators.HiddenLayers(width=self.width, depth=self.depth)
        return _OnQuery(
            pn.operators.DeepONet(1, 1, sensors=self._line(self.sensors), basis=self.basis, layers=layers, seed=0),
            self._line(self.points),
        )

    def uncached(self) -> nn.Module:
        """Build our DeepONet with a hook, for which its trunk is evaluated every time."""
        model = self.ours()
        model.operator.trunk.register_forward_hook(lambda *_: None)  # type: ignore[union-attr, operator]
        return model

    def peer(self) -> nn.Module:
        """Build DeepXDE's DeepONet for all combinations of inputs and points."""
        os.environ["DDE_BACKEND"] = "pytorch"
        import deepxde

        torch.set_default_device(None)  # DeepXDE sets CUDA as default device
        hidden = [self.width] * self.depth
        net = deepxde.nn.DeepONetCartesianProd(
            [self.sensors, *hidden, self.basis], [1, *hidden, self.basis], _gelu, "Glorot normal"
        )
        return _Cartesian(net, torch.linspace(-1.0, 1.0, self.points)[:, None])

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, normal numbers."""
        generator = stream(0, "speed inputs")
        inputs = torch.randn(self.functions, 1, self.sensors, generator=generator)
        return inputs, torch.randn(self.functions, 1, self.points, generator=generator)

    def operations(self) -> float:
        """Multiplications and additions of one forward evaluation, the products contracted as one matrix product."""
        hidden = self.width * (self.width * (self.depth - 1) + self.basis)
        branch, trunk = self.sensors * self.width + hidden, self.width + hidden
        return 2.0 * (self.functions * branch + self.points * (trunk + self.functions * self.basis))

    def traffic(self) -> float:
        """Least traffic of one forward evaluation in bytes: hidden values are written, read, activated, written and read."""
        rows = self.functions + self.points
        return 4.0 * (rows * (4 * self.width * self.depth + self.basis) + self.functions * self.points)

    def _line(self, size: int) -> pn.Grid:
        return pn.Grid.uniform(size, periodic=False)


class _OnQuery(nn.Module):
    def __init__(self, operator: nn.Module, query: pn.Grid) -> None:
        super().__init__()
        self.operator, self.query = operator, query

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.operator(values, query=self.query)
        return result


class _Cartesian(nn.Module):
    def __init__(self, net: nn.Module, points: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("points", points)

    def forward(self, values: Tensor) -> Tensor:
        result: Tensor = self.net((values[:, 0], self.points))
        return result[:, None]


Case = Fourier | Products

FOURIER = (
    Fourier((64, 64), (12, 12), 32, 16),
    Fourier((128, 128), (16, 16), 32, 8),
    Fourier((256, 256), (32, 32), 32, 4),
    Fourier((1024,), (16,), 32, 20),
    Fourier((32, 32, 32), (8, 8, 8), 16, 2),
)
PRODUCTS = (Products(256, 1000), Products(1000, 1000), Products(256, 100_000), Products(1000, 100_000))
LARGE = (
    Fourier((256, 256), (32, 32), 64, 32),
    Fourier((512, 512), (64, 64), 32, 16),
    Fourier((64, 64, 64), (16, 16, 16), 32, 4),
)
"""Cases large enough for an accelerator, which waits for the host process on the cases above."""
SMALL: tuple[tuple[Case, ...], tuple[Case, ...]] = ((Fourier((32,), (4,), 8, 2),), (Products(4, 16, sensors=8, width=8),))
BASE = FOURIER[0]
GROWTH = {
    "points": [replace(BASE, batch=4, shape=(size, size)) for size in (64, 128, 256)],
    "batch": [replace(BASE, batch=batch) for batch in (4, 16, 64)],
    "modes": [replace(BASE, shape=(128, 128), batch=4, modes=(modes, modes)) for modes in (8, 16, 32)],
}
"""Sizes that grow by a factor of four from case to case, for modes the total number; others are constant."""


def main(*, mode: str, output: Path, device: str = "cpu") -> dict[str, Any]:
    """Run all parts."""
    small = mode == "small"
    rounds = 2 if small else ROUNDS
    fourier, products = SMALL if small else (FOURIER if device == "cpu" else (*FOURIER, *LARGE), PRODUCTS)
    threads = torch.get_num_threads()
    peaks = _peaks(device, small=small)
    parts: dict[str, Callable[[], list[Row]]] = {
        "fno": lambda: [_row(case, rounds, device, peaks) for case in fourier],
        "deeponet": lambda: [_row(case, rounds, device, peaks) for case in products],
        "members": lambda: members.rows(small=small),
        "memory": lambda: [_memory_row(case) for case in (*fourier, *products)],
    }
    if not small:
        parts["growth"] = lambda: [_growth(name, cases, device) for name, cases in GROWTH.items()]
    return sections.write(
        "speed",
        {name: parts[name] for name in parts if name not in ("members", "memory") or device == "cpu"},
        mode=mode,
        output=output,
        device=device,
        peers=PEERS,
        notes=[
            f"{device}, {threads} threads. Milliseconds are medians of {rounds} rounds (3 of large cases) in which each "
            "library runs once, quartiles in brackets; float32. A step is a forward evaluation, the mean squared error, its "
            "gradient and AdamW",
            "peers: neuraloperator's FNO of the same architecture, and deepxde's DeepONetCartesianProd with GELU and as many "
            "weights but for biases",
            "forward of a DeepONet on the CPU: ours keeps the trunk's outputs while weights and points are equal; uncached: it "
            "evaluates the trunk every time, as deepxde's does, and as a step does. compiled: torch.compile with CUDA graphs",
            "roofline: time of a forward evaluation over the least that the machine's best matrix product "
            f"({peaks[0] / 1e9:.0f} GFLOP/s, 2,048 x 2,048) and copy ({peaks[1] / 1e9:.1f} GB/s, 256 MB) allow for our "
            "operations and bytes, whichever is slower",
            f"members: a training step of {members.MEMBERS} operators of one architecture, one thread: one after "
            "another (in turn), as one vectorised step (together), and in two processes that share the machine; difference: "
            "of the losses after all rounds",
            "memory: growth of the resident set by one training step in a process of its own, in MB",
            "growth: exponents of a forward evaluation's time in the number of points, functions, or modes per field",
        ],
    )


def _row(case: Case, rounds: int, device: str, peaks: tuple[float, float]) -> Row:
    inputs, targets = (part.to(device) for part in case.data())
    models = _variants(case, device)
    counts: dict[str, int] = {}
    tasks: dict[str, Callable[[], None]] = {}
    for name, build in models.items():  # weights that a step moves are not those of a forward evaluation
        evaluated, trained = build().to(device), build().to(device)
        counts[name] = sum(p.numel() * (2 if p.is_complex() else 1) for p in trained.parameters())
        optimizer = torch.optim.AdamW(trained.parameters(), lr=LEARNING_RATE)
        tasks[f"{name} forward"] = lambda model=evaluated: _forward(model, inputs)
        if name != "uncached":
            tasks[f"{name} step"] = lambda model=trained, optimizer=optimizer: _step(model, optimizer, inputs, targets)
    is_long = device == "cpu" and case.operations() > LONG
    times = interleaved(tasks, min(3, rounds) if is_long else rounds, device, warm_up=1 if is_long else WARM_UP)
    row: Row = {"case": case.name} | {f"{name}: weights": count for name, count in counts.items() if name in ("ours", "peer")}
    for kind in ("forward", "step"):
        for name in models:
            if f"{name} {kind}" in times:
                row[f"{name}: {kind} (ms)"] = quartiles(times[f"{name} {kind}"])
        for name in models if "peer" in models else ():
            if name != "peer" and f"{name} {kind}" in times:
                row[f"{kind}, peer / {name}"] = median(times[f"peer {kind}"]) / median(times[f"{name} {kind}"])
    least = max(case.operations() / peaks[0], case.traffic() / peaks[1])
    row["roofline"] = median(times.get("uncached forward", times["ours forward"])) / least
    row["GFLOP"], row["GB"] = case.operations() / 1e9, case.traffic() / 1e9
    return row


def _variants(case: Case, device: str) -> dict[str, Callable[[], Any]]:
    """Functions that build our model, those of it that are timed as well, and the other library's if it is installed."""
    models: dict[str, Callable[[], Any]] = {"ours": case.ours}
    if isinstance(case, Products) and device == "cpu":
        models["uncached"] = case.uncached
    if device != "cpu" and case in (BASE, PRODUCTS[0]):
        models["compiled"] = lambda: torch.compile(case.ours(), mode="reduce-overhead")
    return models | ({"peer": lambda: case.peer().train()} if _peer(case) else {})


def _peer(case: Case) -> dict[str, nn.Module]:
    try:
        return {"peer": case.peer().train()}
    except ImportError:
        return {}


def _forward(model: Network, inputs: Tensor) -> None:
    with torch.no_grad():
        model(inputs)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()


def _gelu(values: Tensor) -> Tensor:
    return nn.functional.gelu(values)


def _peaks(device: str, *, small: bool) -> tuple[float, float]:
    """Operations and bytes per second of a large matrix product and a large copy, best of several."""
    size, count = (128, 2**12) if small else (2048, 2**25)
    left, values = torch.randn(size, size, device=device), torch.randn(count, device=device)
    result, copy = torch.empty_like(left), torch.empty_like(values)
    times = interleaved({"product": lambda: torch.mm(left, left, out=result), "copy": lambda: copy.copy_(values)}, 5, device)
    return 2.0 * size**3 / min(times["product"]), 8.0 * count / min(times["copy"])


def _memory_row(case: Case) -> Row:
    row: Row = {"case": case.name}
    for name in ("ours", *_peer(case)):
        with spawned(1) as pool:
            row[f"{name} (MB)"] = pool.submit(_peak_of_step, case, name).result()
    return row


def _peak_of_step(case: Case, name: str) -> float:
    inputs, targets = case.data()
    model = case.ours() if name == "ours" else case.peer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    before = reset_peak_memory()
    _step(model, optimizer, inputs, targets)
    return (peak_memory() - before) / 2**20


def _growth(name: str, cases: Sequence[Fourier], device: str) -> Row:
    """Slopes of log time over log size by least squares."""
    tasks: dict[str, Callable[[], None]] = {}
    for number, case in enumerate(cases):
        inputs = case.data()[0].to(device)
        for library, model in ({"ours": case.ours()} | _peer(case)).items():
            model.to(device)
            tasks[f"{library} {number}"] = lambda model=model, inputs=inputs: _forward(model, inputs)
    times = {key: median(values) for key, values in interleaved(tasks, 5, device).items()}
    row: Row = {"in": name}
    sizes = torch.arange(len(cases), dtype=torch.float64) * math.log(4.0)
    for library in dict.fromkeys(key.split()[0] for key in tasks):
        logs = torch.tensor([math.log(times[f"{library} {number}"]) for number in range(len(cases))], dtype=torch.float64)
        centred = sizes - sizes.mean()
        row[library] = float((centred @ logs) / centred.square().sum())
    return row
