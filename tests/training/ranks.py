"""A program that torchrun starts, or Python alone: what training in several processes gives, kept in files."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from probneural import statistics
from probneural.fields import Field
from probneural.pairs import FieldPairs
from probneural.processes import rank, world_size
from probneural.training import Callback, Checkpoint, DataOptions, Optimization, RunOptions, Unroll, files, fit
from probneural.training.callbacks import History, Progress
from tests.training.cases import built, data
from tests.training.lazy import lazy

OPTIONS = {
    "plain": Optimization(),
    "accumulated": Optimization(accumulation=2, gradient_clip=0.5, weight_decay=0.1),
    "lbfgs": Optimization(optimizer="lbfgs", schedule=None),
}
UNROLLED = {"unrolled": Unroll(steps=2), "pushed forward": Unroll(steps=2, pushforward=True)}
CHUNK = 4
"""Functions that statistics read at once, in place of thousands."""
SETTINGS: dict[str, Any] = {"epochs": 4, "data": DataOptions(batch_size=5), "seed": 3, "show_progress": False}


class Ends(Callback):
    """Remember who was told."""

    def __init__(self) -> None:
        self.told = False

    def on_end(self, history: History) -> None:
        self.told = True


def main(folder: Path, name: str) -> None:
    """Train; every process writes what it has read and what came out."""
    torch.set_num_threads(1)
    operator = built("FNO", seed=int(os.environ.get("RANK", "0"))).double()  # the first process's weights count
    functions = data(26, dtype=torch.float64)  # 23 to train on: the last batch of an epoch has 3 pairs
    if name in UNROLLED:
        first, grid = functions.outputs.values, functions.outputs.grid
        functions = FieldPairs(functions.inputs, Field(torch.cat([first, first.square()], dim=1), grid))
    statistics._CHUNK_NUMBERS = CHUNK * functions.inputs.channels * functions.inputs.grid.size
    pairs, ends = lazy(functions), Ends()
    options = OPTIONS["plain" if name in UNROLLED else name]
    history = fit(operator, pairs, optimization=options, loss=UNROLLED.get(name), run=RunOptions(callbacks=[ends]), **SETTINGS)
    files.write(folder / f"weights-{rank()}", operator.state_dict(), metadata={})
    facts = {
        "read": pairs.read,
        "read for units": pairs.read_alone,
        "world": world_size(),
        "told": ends.told,
        "losses": [history.train, history.validation],
    }
    (folder / f"facts-{rank()}.json").write_text(json.dumps(facts))


def die(folder: Path) -> None:
    """Train with a checkpoint of every other step; the first time, the second process is killed."""
    torch.set_num_threads(1)
    operator = built("Convolutional", seed=0)
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    callbacks: list[Callback] = []
    if not (folder / "run").exists() and (folder / "kill").exists():

        class Later(Callback):
            def on_step(self, progress: Progress) -> None:
                if progress.step == 13:
                    os.kill(int((folder / "pid-1").read_text()), signal.SIGKILL)

        callbacks = [Later()]
    fit(operator, data(26), run=RunOptions(checkpoint=Checkpoint(folder / "run", steps=2), callbacks=callbacks), **SETTINGS)
    if rank() == 0:
        files.write(folder / "weights", operator.state_dict(), metadata={})


if __name__ == "__main__":
    if sys.argv[2] == "die":
        die(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]), sys.argv[2])
