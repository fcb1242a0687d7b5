"""Training with equations: data alone, residuals, conditions by construction, and corrected predictions."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import environment, kept_units, sections
from benchmarks.names import named
from probneural import physics
from probneural.distributions import EmpiricalField, Predictor
from probneural.errors import DataWarning
from probneural.physics import equations
from probneural.randomness import stream_seed

LEVEL = 0.9
LABELS = 0, 30, 300
QUARTER, FEW = 75, 15
"""Labels of residual training that is compared with data alone and all labels, and of the trial with few labels."""
TRIAL = "Helmholtz, k = 8"
"""Problem of that trial."""
PARTS = {"train": max(LABELS), "unlabelled": 400, "last layer": 30, "calibration": 60, "test": 100}
"""Number of samples by purpose; those of the last layer replace training pairs where there are none."""
STEPS, BATCH = 240, 20
"""Optimiser steps of each training, and samples per step."""
DATA, RESIDUAL, CONSTRUCTION = "data alone", "data + residual", "by construction"
CORRECTED, ZERO = " + correction", "zero + correction"
SMALL = {"parts": 10, "steps": 4, "modes": 5}
"""Divisor of the numbers of samples, steps and modes of a smoke test."""


@dataclass(frozen=True)
class Case:
    """A problem, its residual and its operator.

    Attributes:
        sample: Function of a count and a seed that returns pairs.
        residual: Equation and conditions.
        condition: The condition that `ByConstruction` satisfies.
        operator: Returns an untrained operator.
        modes: Functions per axis of a correction.
        steps: Gauss-Newton steps from zero; corrections of operators take one.
        source: Channel of the source term, whose rms value is the unit of residuals; None: the time derivative.
    """

    sample: Callable[[int, int], pn.FieldPairs]
    residual: physics.Residual
    condition: physics.Dirichlet
    operator: Callable[[], pn.operators.Operator]
    modes: int = 12
    steps: int = 1
    source: int | None = 0

    def pairs(self, part: str, *, is_small: bool) -> pn.FieldPairs:
        """Return the samples of one purpose."""
        count = PARTS[part] // (SMALL["parts"] if is_small else 1)
        return self.sample(count, stream_seed(0, "physics functions", list(PARTS).index(part)))

    def unit(self, test: pn.FieldPairs) -> float:
        """Return the rms source, or the rms time derivative of the exact solutions."""
        field = physics.time_derivative(test.outputs).values if self.source is None else test.inputs.values[:, self.source]
        return float(field.square().mean().sqrt())


def _fno(channels: int, **options: Any) -> pn.operators.FNO:
    settings = {"modes": (10, 10), "width": 24, "depth": 4, "periodic": False, "embeds_position": True, "seed": 0}
    return pn.operators.FNO(channels, 1, **{**settings, **options})


def _line(count: int, seed: int) -> pn.FieldPairs:
    field = pn.problems.GaussianRandomField(1, 8)  # the initial layer is resolved by 64 points and 32 steps
    burgers = pn.problems.Burgers(viscosity=0.01, random_field=field)
    return burgers.trajectory(count, times=[step / 32 for step in range(1, 33)], resolution=64, seed=seed).space_time()


def _conductivity(inputs: pn.Field) -> torch.Tensor:
    return inputs.values[:, :1].square()


WALLS = physics.Dirichlet()
CASES = {
    "Helmholtz, k = 8": Case(
        lambda count, seed: pn.problems.Helmholtz().sample(count, resolution=33, seed=seed),
        physics.Residual(equations.Helmholtz(8.0), WALLS),
        WALLS,
        lambda: _fno(1, continuation="alternating"),
    ),
    "Darcy 2-D": Case(
        lambda count, seed: pn.problems.Darcy2D().sample(count, resolution=33, seed=seed),
        physics.Residual(equations.Darcy(_conductivity, source=physics.Channel(1)), WALLS),
        WALLS,
        lambda: _fno(2, continuation="alternating"),
        source=1,
    ),
    "Burgers, viscosity .01": Case(
        _line,
        physics.Residual(equations.Burgers(0.01), physics.initial()),
        physics.initial(),
        lambda: _fno(1, modes=(8, 12), width=16, periodic=(False, True)),
        modes=16,
        steps=3,
        source=None,
    ),
}


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """One training, and the correction of its predictions where the table has it.

    Attributes:
        problem: Title of the problem.
        method: DATA, RESIDUAL, CONSTRUCTION, or ZERO for the correction of a zero prediction.
        labels: Number of labelled pairs.
        commit: Commit of the code.
        is_small: Whether sizes are those of a smoke test.
    """

    problem: str
    method: str
    labels: int
    commit: str
    is_small: bool = False

    @property
    def name(self) -> str:
        """Problem, method and labels, for the progress bar."""
        return f"{self.problem}, {self.method}, {self.labels} labels"

    @property
    def settings(self) -> tuple[object, ...]:
        """Samples and steps."""
        return (*PARTS.values(), STEPS)

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit and calibrate a last layer, and score; then the same with corrected predictions."""
        del folder
        case, is_small = CASES[self.problem], self.is_small
        test, held_out = (case.pairs(part, is_small=is_small) for part in ("test", "calibration"))
        modes, first = (SMALL["modes"] if is_small else case.modes), {"problem": self.problem, "labels": self.labels}
        if self.method == ZERO:
            start = time.process_time()
            mean = corrected_zero(case, test.inputs, is_small=is_small)
            seconds = (time.process_time() - start) / len(test)
            return {"rows": [first | {"method": ZERO} | accuracy(mean, case, test) | {"correction, CPU s per sample": seconds}]}
        train = case.pairs("train", is_small=is_small)[: self.labels]
        start = time.process_time()
        operator = trained(self, case, train)
        seconds = time.process_time() - start
        last = train if self.labels else case.pairs("last layer", is_small=is_small)
        with warnings.catch_warnings():
            if not self.labels:  # the head warns that training has not seen its pairs
                warnings.simplefilter("ignore", DataWarning)
            predictor: Predictor = pn.heads.LastLayerLaplace().fit(operator, last)
        rows = [first | {"method": self.method} | scores(predictor, case, test, held_out) | {"training, CPU s": seconds}]
        if self.labels in LABELS and (self.method == DATA or (self.method == RESIDUAL and not self.labels)):
            predictor = case.residual.corrected(predictor, steps=1, modes=modes)
            start = time.process_time()
            predictor(test.inputs[:10])
            each = (time.process_time() - start) / 10
            row = first | {"method": self.method + CORRECTED} | scores(predictor, case, test, held_out)
            rows.append(row | {"training, CPU s": seconds, "correction, CPU s per sample": each})
        return {"rows": rows}


def trained(unit: Unit, case: Case, train: pn.FieldPairs) -> pn.operators.Operator:
    """Train the operator of one unit for about STEPS steps."""
    operator, loss = case.operator(), None
    sets = [train] if unit.labels else []
    if unit.method != DATA:
        sets.append(pn.FieldPairs.unlabelled(case.pairs("unlabelled", is_small=unit.is_small).inputs))
        loss = case.residual.loss()
    if unit.method == CONSTRUCTION:
        operator, loss = physics.ByConstruction(operator, case.condition), physics.Residual(case.residual.equation).loss()
    per_epoch = sum(-(-len(part) // BATCH) for part in sets)
    epochs = max(1, round((SMALL["steps"] if unit.is_small else STEPS) / per_epoch))
    data = pn.training.DataOptions(batch_size=BATCH)
    pn.fit(operator, sets, epochs=epochs, seed=0, loss=loss, data=data, show_progress=False)
    return operator


def corrected_zero(case: Case, inputs: pn.Field, *, is_small: bool) -> torch.Tensor:
    """Return corrections of zero on the inputs' grid: solutions in the span of the basis, by least squares."""
    zero = EmpiricalField(torch.zeros(1, len(inputs), 1, *inputs.grid.shape), grid=inputs.grid)
    return case.residual.correct(zero, inputs=inputs, steps=case.steps, modes=SMALL["modes"] if is_small else case.modes).mean


def accuracy(mean: torch.Tensor, case: Case, test: pn.FieldPairs) -> dict[str, float]:
    """Return the relative L2 error of predictions, and the rms residual of the equation in the case's unit."""
    error = pn.training.relative_l2(mean, test.outputs.values, grid=test.outputs.grid).mean()
    residual = case.residual(mean, test.inputs, test.outputs.grid)
    return {"error": float(error), "residual": float(residual.square().mean().sqrt()) / case.unit(test)}


def scores(predictor: Predictor, case: Case, test: pn.FieldPairs, held_out: pn.FieldPairs) -> dict[str, float]:
    """Calibrate, and return accuracy and coverages on the test samples."""
    calibrated = pn.calibration.calibrate(predictor, held_out, level=LEVEL, seed=0)
    u = calibrated(test.inputs)
    comparison = pn.metrics.compare(u, test.outputs, noise=calibrated.noise)
    names = {"pointwise": pn.metrics.coverage, "simultaneous": pn.metrics.simultaneous_coverage}
    return accuracy(u.mean, case, test) | {name: float(score(comparison, level=LEVEL).mean()) for name, score in names.items()}


def chosen(problem: str | None) -> list[str]:
    """Return the titles of the problems that begin so, or of all."""
    return named(list(CASES), problem)


def units(*, commit: str, is_small: bool, problem: str | None = None) -> list[Unit]:
    """Return all work items."""
    todo = []
    for title in chosen(problem):
        methods = [(ZERO, 0), *((name, labels) for labels in LABELS for name in (DATA, RESIDUAL, CONSTRUCTION))]
        todo += [Unit(title, name, labels, commit, is_small) for name, labels in methods if labels or name != DATA]
        todo += [Unit(title, RESIDUAL, QUARTER, commit, is_small)]
        todo += [Unit(title, name, FEW, commit, is_small) for name in (DATA, RESIDUAL) if title == TRIAL]
    return todo


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of LABELS with each error relative to that of data alone with as many labels."""
    alone = {(row["problem"], row["labels"]): row["error"] for row in rows if row["method"] == DATA}
    table = []
    for row in rows:
        if row["labels"] in LABELS:
            key = row["problem"], row["labels"]
            ratio = row["error"] / alone[key] if key in alone else None
            table.append(
                {name: row[name] for name in ("problem", "labels", "method", "error")} | {"relative to data": ratio} | row
            )
    return table


def fewer(rows: list[dict[str, Any]], *, fewer_labels: int, labels: int) -> list[dict[str, Any]]:
    """Return a row per problem: residual training with fewer labels against data alone."""
    errors = {(row["problem"], row["method"], row["labels"]): row["error"] for row in rows}
    table = []
    for problem in [name for name, method, count in errors if (method, count) == (RESIDUAL, fewer_labels)]:
        residual, data = errors[problem, RESIDUAL, fewer_labels], errors[problem, DATA, labels]
        names = f"residual, {fewer_labels} labels", f"data alone, {labels} labels"
        row = {"problem": problem, names[0]: residual, names[1]: data, "ratio": residual / data}
        table.append(row | {"reaches it": "yes" if residual <= data else "no"})
    return table


def main(*, mode: str, output: Path, workers: int, problem: str | None = None) -> dict[str, Any]:
    """Run all problems and methods, those that are done already excepted."""
    commit, results = environment.commit(), list[dict[str, Any]]()
    notes = [
        f"Each training takes about {STEPS} steps of {BATCH} samples. residual: rms, in units of the rms source or time "
        "derivative. Coverages of 90 % intervals after calibration on 60 held-out pairs. Without labels, 30 further pairs fit "
        "the last layer.",
    ]

    def run() -> list[dict[str, Any]]:
        todo = units(commit=commit, is_small=mode == "small", problem=problem)
        kept = kept_units.spread(todo, output / "physics", workers=workers, notes=notes)
        results.extend(row for unit in todo for row in kept[unit]["rows"])
        return compared(results)

    return sections.write(
        "physics",
        {
            "methods": run,
            "a quarter of the labels": lambda: fewer(results, fewer_labels=QUARTER, labels=max(LABELS)),
            "few labels": lambda: fewer(results, fewer_labels=FEW, labels=FEW),
        },
        mode=mode,
        output=output,
        commit=commit,
        chosen={"problem": problem},
        notes=notes,
    )
