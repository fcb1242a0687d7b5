"""Data larger than memory: training, head, calibration and scores from files, with memory and speed."""

from __future__ import annotations

import gc
import hashlib
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm

import probneural as pn
from benchmarks import sections
from benchmarks.memory import peak_memory
from benchmarks.workers import spawned

Row = dict[str, Any]
CHANNELS = {"inputs": 14, "outputs": 2}
"""Channels: fourteen states as inputs, and the first two at a later time as outputs. A pair has one megabyte."""
_HELD = 32
"""One of this many pairs is held out, half for calibration and half for scores."""
_PIECE = 32
"""Samples per write."""
_REPETITIONS = 3


@dataclass(frozen=True)
class Store:
    """Pairs in two .npy files, `(n, 14, side, side)` and `(n, 2, side, side)` float32, of the heat equation.

    Attributes:
        folder: Folder of the files.
        pairs: Number of pairs.
        side: Points along each axis.
    """

    folder: Path
    pairs: int
    side: int

    @property
    def grid(self) -> pn.Grid:
        """Grid of inputs and outputs."""
        return _problem().grid(self.side)

    @property
    def gigabytes(self) -> float:
        """Size of both files."""
        return self.pairs * _pair_bytes(self.side) / 1e9

    def paths(self) -> tuple[Path, Path]:
        """Paths of inputs and outputs."""
        return self.folder / "inputs.npy", self.folder / "outputs.npy"

    def write(self) -> None:
        """Solve and write, some samples at a time."""
        files = [
            np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(self.pairs, channels, self.side, self.side))
            for path, channels in zip(self.paths(), CHANNELS.values(), strict=True)
        ]
        grid = self.grid
        for start in tqdm(range(0, self.pairs, _PIECE), desc=f"{self.gigabytes:.2g} GB", unit="piece"):
            count = min(_PIECE, self.pairs - start)
            drawn = _problem().sample_inputs(count * CHANNELS["inputs"], resolution=self.side, seed=start)
            states = drawn.values.unflatten(0, (count, CHANNELS["inputs"]))[:, :, 0]
            later = _problem().solve(pn.Field(states[:, : CHANNELS["outputs"]].flatten(0, 1)[:, None], grid)).values
            files[0][start : start + count] = states.numpy()
            files[1][start : start + count] = later.unflatten(0, (count, CHANNELS["outputs"]))[:, :, 0].numpy()
        for file in files:
            file.flush()

    def open(self) -> Any:
        """The pairs, lazily."""
        return pn.data.from_arrays(*(np.load(path, mmap_mode="r") for path in self.paths()), grid=self.grid)

    def load(self) -> pn.FieldPairs:
        """The pairs, in memory."""
        return pn.FieldPairs.from_numpy(*(np.load(path) for path in self.paths()), grid=self.grid)


def _pair_bytes(side: int) -> int:
    return 4 * sum(CHANNELS.values()) * side**2


def _problem() -> pn.problems.Heat:
    return pn.problems.Heat(dimension=2)


def _operator() -> pn.operators.FNO:
    return pn.operators.FNO(CHANNELS["inputs"], CHANNELS["outputs"], modes=(8, 8), width=8, depth=2, projection=16, seed=0)


def _whole_road(store: Store, loads: bool, epochs: int) -> Row:
    """Train, fit, calibrate and score in this process; return seconds, memory, and digests of the results."""
    torch.set_num_threads(1)
    data = store.load() if loads else store.open()
    rest, held = data.split(len(data) - max(8, len(data) // _HELD), seed=0)
    scaling, test = held.split(len(held) // 2, seed=1)
    seconds: dict[str, float] = {}
    peaks: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = work()
        seconds[name] = time.perf_counter() - start
        peaks[name] = peak_memory() / 1e9
        return result

    operator = _operator()
    timed("train", lambda: pn.fit(operator, rest, epochs=epochs, seed=0, show_progress=False))
    predictor = timed("last-layer fit", lambda: pn.heads.LastLayerLaplace().fit(operator, rest))
    calibrated = timed("calibrate", lambda: pn.calibration.VarianceScale().fit(predictor, scaling))
    scores = timed("score", lambda: pn.metrics.score_pairs(calibrated, test, whole=8))
    weights = b"".join(value.numpy().tobytes() for value in operator.state_dict().values())
    return {
        "pairs": {"train": len(rest), "last-layer fit": len(rest), "calibrate": len(scaling), "score": len(test)},
        "seconds": seconds,
        "peaks": peaks,
        "weights": hashlib.sha256(weights).hexdigest()[:12],
        "factor": hashlib.sha256(predictor.factor.numpy().tobytes()).hexdigest()[:12],
        "relative_l2": scores.relative_l2,
        "crps": scores.crps,
    }


def _alone(work: Callable[..., Row], *arguments: Any) -> Row:
    """Result of a function in a new process, for its peak memory."""
    with spawned(1) as pool:
        return pool.submit(work, *arguments).result()


def _large(folder: Path, *, gigabytes: float, side: int) -> list[Row]:
    """All stages on a store of this size, once."""
    store = _made(folder / "large", gigabytes=gigabytes, side=side)
    try:
        told = _alone(_whole_road, store, False, 1)
    finally:
        shutil.rmtree(store.folder)
    return [
        {
            "stage": name,
            "GB in files": round(store.gigabytes, 2),
            "pairs": told["pairs"][name],
            "seconds": round(told["seconds"][name], 1),
            "pairs per second": round(told["pairs"][name] / told["seconds"][name], 1),
            "peak memory so far, GB": round(told["peaks"][name], 3),
        }
        for name in told["seconds"]
    ]


def _both_ways(folder: Path, *, gigabytes: float, side: int, repetitions: int) -> list[Row]:
    """The stages from files and from memory in turn, on a store that fits into memory."""
    store = _made(folder / "small", gigabytes=gigabytes, side=side)
    told: dict[bool, list[Row]] = {False: [], True: []}
    try:
        for _ in range(repetitions):
            for loads, found in told.items():
                found.append(_alone(_whole_road, store, loads, 1))
                gc.collect()
    finally:
        shutil.rmtree(store.folder)
    same = {name: len({one[name] for found in told.values() for one in found}) == 1 for name in ("weights", "factor")}
    rows = []
    for name in told[False][0]["seconds"]:
        lazy, memory = ([one["seconds"][name] for one in told[loads]] for loads in (False, True))
        ratios = sorted(two / one for one, two in zip(lazy, memory, strict=True))
        rows.append(
            {
                "stage": name,
                "GB in files": round(store.gigabytes, 2),
                "from files, s": round(statistics.median(lazy), 2),
                "from memory, s": round(statistics.median(memory), 2),
                "speed of memory's": f"{statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}]",
                "same bits": {"train": same["weights"], "last-layer fit": same["factor"]}.get(name, _agree(told, name)),
            }
        )
    return rows


def _agree(told: dict[bool, list[Row]], name: str) -> bool | None:
    """Whether scores after calibration are equal."""
    if name != "score":
        return None
    return len({(one["relative_l2"], one["crps"]) for found in told.values() for one in found}) == 1


def _made(folder: Path, *, gigabytes: float, side: int) -> Store:
    folder.mkdir(parents=True)
    pairs = math.ceil(gigabytes * 1e9 / _pair_bytes(side))
    store = Store(folder, pairs, side)
    store.write()
    return store


def main(*, mode: str, output: Path, gigabytes: float = 20.0) -> dict[str, Any]:
    """Run both measurements in new single-threaded processes; remove the files."""
    small = mode == "small"
    side = 32 if small else 128
    folder = Path(tempfile.mkdtemp(prefix="probneural-"))
    try:
        return sections.write(
            "large-data",
            {
                "larger than memory": partial(_large, folder, gigabytes=0.01 if small else gigabytes, side=side),
                "from files and from memory": partial(
                    _both_ways,
                    folder,
                    gigabytes=0.01 if small else 0.5,
                    side=side,
                    repetitions=1 if small else _REPETITIONS,
                ),
            },
            mode=mode,
            output=output,
            notes=[
                "one thread, float32, one epoch; an FNO of width 8 from fourteen channels to two, states of the heat equation. "
                f"One pair of {_HELD} is held out, half of them to calibrate and half to score; peak memory is that of "
                "the process since its start, pages of files included",
                "speed of memory's: seconds from memory over seconds from files, each in a process of its own, in turn; median "
                "and extremes. The pairs then lie in the system's cache of files; same bits: weights, the root of their "
                "covariance, and scores",
            ],
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)
