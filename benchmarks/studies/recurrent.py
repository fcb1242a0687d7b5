"""The recurrent operator on noisy tones, beside the exact posterior: whole signals, and what is known after so many samples."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import sections, studies
from probneural.grids import Grid
from probneural.operators import RecurrentOperator
from probneural.training import Optimization

Row = dict[str, Any]
SEEN = (1, 10, 50, 100, 200)
"""Samples after which the causal operator is read."""
KINDS = {"after all samples (smoothing)": True, "at each sample, causal": False}
"""Names in the table, and whether the operator is bidirectional."""
_TEST_SEED, _PART = 1000, 500


@dataclass(frozen=True)
class Size:
    """How much a run trains and tests.

    Attributes:
        pairs: Signals to train on, of which a tenth is watched only.
        epochs: Passes over the others.
        test: Signals to test on.
        seeds: Trainings, each on signals of its own.
    """

    pairs: int
    epochs: int
    test: int
    seeds: int


SIZES = {"default": Size(pairs=9000, epochs=4, test=4000, seeds=3), "small": Size(pairs=100, epochs=1, test=100, seeds=2)}


def main(*, mode: str, output: Path, workers: int = 2) -> dict[str, Any]:
    """Train both kinds, each seed by itself, and write how they compare with the exact posterior."""
    size = SIZES[mode]
    tasks = [[(is_bidirectional, seed, mode) for seed in range(size.seeds)] for is_bidirectional in KINDS.values()]
    measured: dict[str, list[Measured]] = {}

    def found() -> dict[str, list[Measured]]:
        if not measured:
            measured.update(zip(KINDS, sections.repeated(trained, tasks, workers=workers), strict=True))
        return measured

    return sections.write(
        "recurrent",
        {"signals": lambda: signals(found()), "causal": lambda: causal(found()["at each sample, causal"])},
        mode=mode,
        output=output,
        notes=[
            f"signal separation: 3 Hz out of 1, 3, 5 and 7 Hz, noise variance 1, 200 samples; {size.pairs} training signals, "
            f"{size.epochs} passes, {size.seeds} seeds of weights and of training signals, {size.test} test signals",
            "exact: root of the posterior's variance in closed form. On these signals: root mean square error of the posterior "
            "mean on the test signals. Ratios are to exact",
            "size and learning rate were chosen by validation error on other signals; test signals were used once",
            "minutes of one thread's processor time, training alone",
        ],
    )


@dataclass(frozen=True)
class Measured:
    """What one training came to.

    Attributes:
        errors: Mean square error on the test signals at each sample, `(200,)`.
        posterior: That of the exact posterior mean.
        variance: The exact posterior variance.
        minutes: Processor time of the training.
    """

    errors: Tensor
    posterior: Tensor
    variance: Tensor
    minutes: float


def trained(is_bidirectional: bool, seed: int, mode: str) -> Measured:
    """Train on signals of a seed, and compare on test signals."""
    torch.set_num_threads(1)
    size, problem = SIZES[mode], pn.problems.SignalSeparation()
    train = problem.sample(size.pairs, resolution=200, seed=seed)
    test = problem.sample(size.test, resolution=200, seed=_TEST_SEED)
    operator = RecurrentOperator(1, 1, is_bidirectional=is_bidirectional, seed=seed)
    start = time.process_time()
    pn.fit(
        operator,
        train,
        epochs=size.epochs,
        seed=seed,
        data=pn.training.DataOptions(batch_size=32),
        learning_rate=1e-2,
        loss=mean_square,
        optimization=Optimization(gradient_clip=1.0),
        show_progress=False,
    )
    minutes = (time.process_time() - start) / 60.0
    if is_bidirectional:
        mean, variance = problem.solve(test.inputs).values, problem.posterior(test.inputs[:1]).variance
    else:
        mean, variance = (field.values for field in problem.causal_posterior(test.inputs))
    with torch.no_grad():
        predicted = torch.cat([operator(part, grid=test.inputs.grid) for part in test.inputs.values.split(_PART)])
    errors, posterior = ((values - test.outputs.values).double().square().mean((0, 1)) for values in (predicted, mean))
    return Measured(errors=errors, posterior=posterior, variance=variance[0, 0].double(), minutes=minutes)


def mean_square(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
    """The loss that the posterior mean is least in."""
    return (predicted - target).square().mean()


def signals(found: dict[str, list[Measured]]) -> list[Row]:
    """One row per kind: errors over whole signals."""
    rows = []
    for name, runs in found.items():
        exact = math.sqrt(runs[0].variance.mean())
        rows.append(
            {
                "what is known": name,
                "exact": exact,
                "on these signals": math.sqrt(runs[0].posterior.mean()),
                **_compared([math.sqrt(run.errors.mean()) for run in runs], exact),
                "minutes": statistics.median(run.minutes for run in runs),
            }
        )
    return rows


def causal(runs: Sequence[Measured]) -> list[Row]:
    """One row per number of samples seen: errors at the last of them."""
    rows = []
    for seen in SEEN:
        exact = math.sqrt(runs[0].variance[seen - 1])
        errors = [math.sqrt(run.errors[seen - 1]) for run in runs]
        rows.append(
            {
                "samples": seen,
                "exact": exact,
                "on these signals": math.sqrt(runs[0].posterior[seen - 1]),
                **_compared(errors, exact),
            }
        )
    return rows


def _compared(errors: Sequence[float], exact: float) -> Row:
    ratios = [error / exact for error in errors]
    return {
        "RMSE": statistics.median(errors),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "largest": max(ratios),
    }


if __name__ == "__main__":
    studies.run(main)
