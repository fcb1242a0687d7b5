"""Operators and their posteriors against exact solutions: accuracy, honesty of error bars, resolution, shifts.

For each problem and operator: train on exact pairs, fit a last-layer posterior on the same pairs, scale it on 200
calibration fields, then score on test fields of the training grid, of a finer grid, and of each named shift. Bands are
calibrated and tested on a pool of 400 further fields, split 100 times in halves. Nothing is fitted on test fields.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

import probneural as pn
from benchmarks import environment, report

LEVEL = 0.9
SEEDS = {"train": 0, "calibration": 1, "test": 2, "bands": 3, "shift": 4}
SPLITS = 100


@dataclass(frozen=True)
class Case:
    """One problem with its sizes."""

    problem: pn.problems.Problem
    resolution: tuple[int, ...]
    finer: tuple[int, ...]
    modes: tuple[int, ...]
    pairs: int = 1000
    epochs: int = 100
    fields: int = 200
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """One operator on one case, in a worker of its own."""

    case: Case
    operator: str
    seed: int
    draws_figures: bool


def cases() -> list[Case]:
    """The problems of the default run."""
    return [
        Case(pn.problems.Darcy1D(), (129,), (513,), (16,), options={"embeds_position": True}),
        Case(pn.problems.Heat(dimension=2), (32, 32), (64, 64), (9, 9), pairs=500, epochs=40, options={"width": 16}),
        Case(pn.problems.Burgers(viscosity=0.1), (128,), (512,), (16,)),
        Case(pn.problems.Burgers(viscosity=0.01), (128,), (512,), (16,)),
    ]


def tasks(mode: str) -> list[Task]:
    """All runs of a mode, longest first so that the workers end together."""
    chosen = cases()
    if mode == "small":
        chosen = [
            replace(case, pairs=40, epochs=2, fields=40, options={**case.options, "width": 8, "depth": 2}) for case in chosen
        ]
    seeds = range(3) if mode == "full" else range(1)
    trained = [Task(case, "FNO", seed, seed == 0) for seed in seeds for case in chosen]
    return trained + [Task(case, "linear regression", 0, False) for case in chosen]


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run, print the table, write results.json and report.html."""
    start = time.perf_counter()
    runs, figures = _run_all(tasks(mode), workers)
    flag = "" if mode == "default" else f" --{mode}"
    results = {
        "benchmark": "exact",
        "command": f"python -m benchmarks exact{flag}",
        "mode": mode,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": environment.machine(),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "seeds": SEEDS,
        "wall_seconds": round(time.perf_counter() - start, 1),
        "notes": [
            "Posteriors are fitted on the training pairs and scaled on separate calibration fields of the training grid; "
            "bands are calibrated on half of a separate pool and tested on the other half, over 100 splits.",
            "undertrained: the validation error still fell by more than 5 % over the last fifth of training. A one-cycle "
            "schedule ends by lowering its rate, which makes the error fall then even where longer training gains little.",
        ],
        "runs": runs,
    }
    environment.write_json(results, output / "results.json")
    report.write_report(results, figures, output / "report.html")
    for problem, images in figures.items():
        for caption, image in images.items():
            name = re.sub(r"[^a-z0-9.]+", "-", f"{problem} {caption}".lower())
            environment.write_bytes(image, output / "figures" / f"{name}.png")
    print(report.terminal_table(report.rows(results)))
    print(f"\n{output / 'results.json'}\n{output / 'report.html'}\n{results['wall_seconds']:.0f} s")
    return results


def _run_all(todo: list[Task], workers: int) -> tuple[list[dict[str, Any]], dict[str, dict[str, bytes]]]:
    """Spread the tasks over single-threaded processes, under one progress bar in epochs."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    context = multiprocessing.get_context("spawn")
    total = sum(task.case.epochs if task.operator == "FNO" else 1 for task in todo)
    done: dict[int, tuple[dict[str, Any], dict[str, bytes]]] = {}
    with context.Manager() as manager, tqdm(total=total, desc="benchmark", unit="epoch", smoothing=0.05) as bar:
        ticks = manager.Queue()
        listener = threading.Thread(target=_listen, args=(ticks, bar), daemon=True)
        listener.start()
        try:
            with ProcessPoolExecutor(workers, mp_context=context) as pool:
                futures = {pool.submit(run, task, ticks): number for number, task in enumerate(todo)}
                for future in as_completed(futures):
                    done[futures[future]] = future.result()
                    task = todo[futures[future]]
                    bar.set_postfix_str(f"{task.case.problem.name}, {task.operator}: done")
        finally:  # the listener must end before its queue does
            ticks.put(None)
            listener.join()
    runs = [done[number][0] for number in range(len(todo))]
    figures: dict[str, dict[str, bytes]] = {}
    for number, task in enumerate(todo):
        figures.setdefault(task.case.problem.name, {}).update(done[number][1])
    return runs, figures


def _listen(ticks: Any, bar: tqdm) -> None:
    while ticks.get() is not None:
        bar.update()


def run(task: Task, ticks: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    """One operator on one case: train, fit the head, calibrate, evaluate."""
    torch.set_num_threads(1)
    case = task.case
    train = _sample(case.problem, "train", case.pairs, case.resolution)
    calibration = _sample(case.problem, "calibration", case.fields, case.resolution)
    operator, training, history = _train(task, train, lambda: ticks.put(1))
    start = time.perf_counter()
    raw = pn.heads.LastLayerLaplace().fit(operator, train)
    predict = pn.calibration.VarianceScale().fit(raw, calibration)
    fitted = {
        "seconds": time.perf_counter() - start,
        "effective_observations": raw.effective_observations.tolist(),
        "noise": raw.noise.tolist(),
        "log_evidence": raw.log_evidence,
        "scale": predict.scale.tolist(),
    }
    evaluations = []
    places = [("in distribution", case.problem, case.resolution, "test"), ("finer grid", case.problem, case.finer, "test")]
    places += [(name, shifted, case.resolution, "shift") for name, shifted in case.problem.shifts().items()]
    figures: dict[str, bytes] = {}
    for name, problem, resolution, purpose in places:
        pairs = _sample(problem, purpose, case.fields, resolution)
        u = predict(pairs.inputs)
        scores = pn.metrics.score(u, pairs.outputs, noise=predict.noise, level=LEVEL).to_dict()
        evaluations.append({"on": name, "resolution": list(resolution), "fields": len(pairs), "scores": scores})
        if task.draws_figures and name in ("in distribution", "finer grid"):
            figures |= _figures(name, u, pairs.outputs, predict.noise)
        if name == "in distribution":
            evaluations[-1]["constrained"] = _constrained(u, pairs.outputs, predict.noise)
            common = pn.calibration.VarianceScale(separate=False).fit(raw, calibration)
            alike = pn.metrics.score(common(pairs.inputs), pairs.outputs, noise=common.noise, level=LEVEL).to_dict()
            evaluations[-1]["common_scale"] = {key: alike[key] for key in ("crps", "nll", "joint_nll", "calibration_error")}
    pool = _sample(case.problem, "bands", 2 * case.fields, case.resolution)
    evaluations[0]["bands"] = _bands(predict, pool)
    evaluations[0]["common_scale"]["width_ratio"] = _bands(common, pool)["width_ratio"]
    if history is not None and task.draws_figures:
        figures["training of the FNO"] = pn.plots.png(pn.plots.training(history))
    return {
        "problem": case.problem.name,
        "operator": task.operator,
        "head": "last-layer Laplace",
        "seed": task.seed,
        "train": training,
        "head_fit": fitted,
        "evaluations": evaluations,
    }, figures


def _sample(problem: pn.problems.Problem, purpose: str, count: int, resolution: tuple[int, ...]) -> pn.FieldPairs:
    return problem.sample(count, resolution=resolution, seed=SEEDS[purpose])


def _train(task: Task, train: pn.FieldPairs, tick: Callable[[], None]) -> tuple[Any, dict[str, Any], Any]:
    case = task.case
    facts: dict[str, Any] = {"pairs": len(train), "resolution": list(case.resolution)}
    start = time.perf_counter()
    if task.operator == "linear regression":
        operator: Any = pn.operators.LinearRegression.fitted(train)
        tick()
        return operator, facts | {"epochs": 0, "seconds": time.perf_counter() - start, "undertrained": False}, None
    torch.manual_seed(task.seed)
    operator = pn.operators.FNO(1, 1, modes=case.modes, periodic=case.problem.periodic, **case.options)
    history = pn.fit(
        operator, train, epochs=case.epochs, seed=task.seed, show_progress=False, on_epoch=lambda number, losses: tick()
    )
    facts |= {
        "epochs": case.epochs,
        "seconds": time.perf_counter() - start,
        "parameters": sum(parameter.numel() for parameter in operator.parameters()),
        "last_fall": history.last_fall,
        "undertrained": history.is_undertrained,
        "history": {"train": list(history.train), "validation": list(history.validation)},
    }
    return operator, facts, history


def _constrained(u: pn.distributions.GaussianField, truth: pn.Field, noise: torch.Tensor) -> dict[str, Any]:
    """What a known law does to accuracy: the integral where the domain is periodic, the boundary values elsewhere."""
    grid = truth.grid
    ends = [[axis.origin for axis in grid.axes], [axis.origin + axis.length for axis in grid.axes]]
    law = pn.functionals.integral(grid) if all(grid.periodic) else pn.functionals.sensors(grid, ends)
    wanted = law(truth.values)
    v = u.constrain(law, wanted)
    before, after = (pn.metrics.score(field, truth, noise=noise, level=LEVEL).relative_l2 for field in (u, v))
    size = wanted.abs().max().clamp_min(truth.values.abs().max())
    return {
        "law": "integral" if all(grid.periodic) else "boundary values",
        "residual_before": float((law(u.mean) - wanted).abs().max() / size),
        "residual_after": float((law(v.mean) - wanted).abs().max() / size),
        "relative_l2_ratio": after / before if before and after else None,
    }


def _bands(predict: pn.distributions.Predictor, pool: pn.FieldPairs) -> dict[str, float]:
    """Coverage and mean width of conformal bands over random halvings of a pool, against constant-width bands."""
    half = len(pool) // 2
    kinds = {kind: pn.calibration.conformal_scores(predict, pool, modulation=kind) for kind in ("deviation", "constant")}
    coverage: dict[str, list[float]] = {kind: [] for kind in kinds}
    width: dict[str, list[float]] = {kind: [] for kind in kinds}
    for split in range(SPLITS):
        order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(split))
        for kind, scores in kinds.items():
            quantile = scores[order[:half]].quantile(LEVEL)
            rest = scores[order[half:]]
            coverage[kind].append(float((rest.values <= quantile).double().mean()))
            width[kind].append(2.0 * quantile * float(rest.scale.mean()))
    mean = {kind: (sum(coverage[kind]) / SPLITS, sum(width[kind]) / SPLITS) for kind in kinds}
    return {
        "splits": SPLITS,
        "level": LEVEL,
        "coverage": mean["deviation"][0],
        "width": mean["deviation"][1],
        "constant_coverage": mean["constant"][0],
        "constant_width": mean["constant"][1],
        "width_ratio": mean["deviation"][1] / mean["constant"][1],
    }


def _figures(where: str, u: pn.distributions.FieldDistribution, truth: pn.Field, noise: torch.Tensor) -> dict[str, bytes]:
    figures = {f"one field, {where}": pn.plots.png(pn.plots.field(u, truth, noise=noise))}
    if where == "in distribution":
        figures[f"calibration, {where}"] = pn.plots.png(pn.plots.calibration(u, truth, noise=noise))
    return figures
