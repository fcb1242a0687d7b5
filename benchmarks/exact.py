"""Operators and their posteriors against exact solutions: accuracy, honesty of error bars, resolution, shifts, bands.

For each problem: operators are trained on exact pairs; heads turn them into posteriors on the same pairs; all are scaled in
the same way on 200 calibration functions, then scored on test functions of the training grid, of a finer grid, and of each
named shift. Conformal bands are calibrated on sets of 50 from a pool of 400 further functions, and intervals of functionals
tested there. Nothing is fitted on test functions.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import re
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from tqdm.auto import tqdm

import probneural as pn
from benchmarks import environment, evaluation, recipes, report
from benchmarks.recipes import Recipe
from benchmarks.sources import SEEDS, FileSource, ProblemSource, Source
from probneural.errors import ProbneuralError

MEMBERS = 4
ENSEMBLE = f"ensemble of {MEMBERS}"
KERNEL = "kernel operator"
REGRESSION = Recipe("linear regression")


@dataclass(frozen=True)
class Case:
    """Where functions come from, and the trained operators to compare on them.

    Attributes:
        source: The functions.
        operators: Recipes of the operators that are trained, each MEMBERS times.
        is_in_slice: Whether the default run has it; the full run has all.
    """

    source: Source
    operators: tuple[Recipe, ...]
    is_in_slice: bool = True


@dataclass(frozen=True)
class Training:
    """One training run, in a worker of its own."""

    case: int
    source: Source
    recipe: Recipe
    member: int
    path: Path
    is_longer: bool = False
    """Whether it only tells what training twice as long would have brought."""


@dataclass(frozen=True)
class Evaluation:
    """All heads of one operator on one case, in a worker of its own."""

    case: int
    source: Source
    kind: str
    members: tuple[Path, ...] = ()


def cases() -> list[Case]:
    """The problems of the full run; those of the default run say so."""
    problems = pn.problems
    walls = {"embeds_position": True}
    plane = {"width": 16, "projection": 32, "continuation": "alternating"}

    def line(problem: pn.problems.Problem, points: int, *, rate: float = 1e-3, **options: Any) -> Case:
        """A problem in one dimension; the DeepONet's learning rate was chosen by validation error."""
        finer = 4 * points if problem.grid(points).periodic[0] else 4 * points - 3
        trained = recipes.fno(16, epochs=60, **options), recipes.deeponet(epochs=80, learning_rate=rate)
        return Case(ProblemSource(problem, (points,), (finer,)), trained)

    def square(problem: pn.problems.Problem, points: int, **options: Any) -> Case:
        """A problem in two dimensions, without a DeepONet: no budget of minutes does it justice on 500 rough inputs."""
        finer = 2 * points if problem.grid(points).periodic[0] else 2 * points - 1
        source = ProblemSource(problem, (points, points), (finer, finer), pairs=500, finer_fields=50)
        return Case(source, (recipes.fno(9, 9, epochs=16, **plane, **options),))

    default = [
        line(problems.Burgers(viscosity=0.1), 64),
        line(problems.Burgers(viscosity=0.01), 64, rate=3e-3),
        line(problems.Darcy1D(), 65, rate=3e-3, **walls),
        line(problems.VariableSpeedAdvection(), 64),
        square(problems.ShallowWater(), 32),
    ]
    further = [
        line(problems.Antiderivative(equation="logistic"), 65, rate=3e-3, **walls),
        square(problems.Heat(dimension=2), 32),
        square(problems.Helmholtz(), 33, **walls),
        square(problems.Darcy2D(), 33, **walls),
        Case(
            ProblemSource(problems.SignalSeparation(), (200,), None),
            (recipes.fno(24, epochs=30, width=24, **walls), recipes.deeponet(epochs=40)),
        ),
    ]
    return default + [replace(case, is_in_slice=False) for case in further]


def chosen(mode: str, *, problem: str | None = None, path: Path | None = None) -> list[Case]:
    """The cases of one run, cut down to seconds if the mode is `small`.

    Raises:
        ValueError: If no problem has that name.
    """
    if path is not None:
        source = FileSource(path)
        found = [Case(source, tuple(recipes.own_data(source.train)))]
    else:
        found = [case for case in cases() if mode == "full" or case.is_in_slice or problem is not None]
        if problem is not None:
            names = [case.source.name for case in found]
            found = [case for case in found if case.source.name == problem]
            if not found:
                raise ValueError(f"no problem is called {problem!r}; there are {', '.join(names)}")
    return [_smaller(case) for case in found] if mode == "small" else found


def _smaller(case: Case) -> Case:
    """The same road in seconds."""
    tiny = {"FNO": {"width": 8, "depth": 2}, "DeepONet": {"layers": pn.operators.HiddenLayers(width=16, depth=2), "basis": 8}}
    operators = tuple(replace(recipe, epochs=2, options={**recipe.options, **tiny[recipe.kind]}) for recipe in case.operators)
    few = {"pairs": 40, "fields": 40, "finer_fields": None} if isinstance(case.source, ProblemSource) else {"pairs": 40}
    return replace(case, source=replace(case.source, **few), operators=operators)


def main(*, mode: str, output: Path, workers: int, problem: str | None = None, path: Path | None = None) -> dict[str, Any]:
    """Run, print the table, write results.json and the report."""
    start = time.perf_counter()
    todo = chosen(mode, problem=problem, path=path)
    assumed = [case.source.assumed for case in todo if isinstance(case.source, FileSource) and case.source.assumed]
    for sentence in assumed:  # before minutes of work on the wrong axes
        print(sentence)
    runs, figures = _run_all(todo, workers, output / "operators", mode=mode)
    flags = "" if mode == "default" else f" --{mode}"
    flags += f' --problem "{problem}"' if problem else ""
    flags += f" --data {path.name}" if path else ""
    results = {
        "benchmark": "exact",
        "command": f"python -m benchmarks exact{flags}",
        "mode": mode,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": environment.machine(),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "seeds": SEEDS,
        "wall_seconds": round(time.perf_counter() - start, 1),
        "notes": [
            "Posteriors are fitted on the training pairs and scaled on separate calibration functions of the training grid; "
            f"bands are calibrated on sets of {evaluation.SET} functions of a separate pool and tested on the test functions, "
            "intervals of functionals are tested on the pool.",
            "Seconds of training, fitting and evaluating are processor time of one core; those of the run passed on the clock.",
            f"The ensembles hold {MEMBERS} operators that differ in their initial weights and in the order of batches; the "
            "first of them is the operator of the last-layer row.",
            "Scores of whole functions (joint NLL, simultaneous coverage, energy score, rank correlations) are taken over the "
            f"first {evaluation.WHOLE[2]} functions of a place in two dimensions.",
            "twice as long (full run): the error of the first operator on the calibration functions when trained anew for "
            "twice the epochs, over its error there; below 1, longer training would have helped.",
        ],
        "runs": runs,
    }
    results["notes"] += assumed
    resumed = sum(run["train"].get("resumed", False) for run in runs)
    if resumed:
        results["notes"].append(
            f"An earlier run, cut off or smaller, trained the operators of {resumed} rows: the seconds that it took are in "
            "those of training, not in those of the run."
        )
    environment.write_json(results, output / "results.json")
    report.write_report(results, figures, output / "report.html")
    for name, images in figures.items():
        for caption, image in images.items():
            file = re.sub(r"[^a-z0-9.]+", "-", f"{name} {caption}".lower())
            environment.write_bytes(image, output / "figures" / f"{file}.png")
    print(report.terminal_table(report.rows(results)))
    print(f"\n{output / 'results.json'}\n{output / 'report.html'}\n{results['wall_seconds']:.0f} s")
    return results


def _run_all(
    todo: Sequence[Case], workers: int, folder: Path, *, mode: str
) -> tuple[list[dict[str, Any]], dict[str, dict[str, bytes]]]:
    """Train everything, then evaluate everything, in single-threaded processes under one progress bar in epochs.

    Trained operators stay in the folder, and a run that was cut off goes on from them: what a training says of itself, its
    seconds among them, is kept beside it.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    context = multiprocessing.get_context("spawn")
    with (
        context.Manager() as manager,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        trainings = [
            Training(number, case.source, recipe, member, _kept(folder, case, recipe, member))
            for number, case in enumerate(todo)
            for recipe in case.operators
            for member in range(MEMBERS)
        ]
        if mode == "full":
            trainings += [_longer(one, todo[one.case], folder) for one in trainings if one.member == 0]
        evaluations = [
            Evaluation(number, case.source, kind, members)
            for number, case in enumerate(todo)
            for kind, members in [
                *((recipe.kind, _paths(trainings, number, recipe.kind)) for recipe in case.operators),
                (KERNEL, ()),
                (REGRESSION.kind, ()),
            ]
        ]
        total = sum(one.recipe.epochs for one in trainings) + len(evaluations)
        with tqdm(total=total, desc="benchmark", unit="epoch", smoothing=0.05) as bar:
            ticks = manager.Queue()
            listener = threading.Thread(target=_listen, args=(ticks, bar), daemon=True)
            listener.start()
            try:
                facts = _spread(pool, train, trainings, ticks, bar)
                by_operator = _by_operator(trainings, facts)
                done = _spread(pool, evaluate, evaluations, ticks, bar)
            finally:  # the listener must end before its queue does
                ticks.put(None)
                listener.join()
    runs: list[dict[str, Any]] = []
    figures: dict[str, dict[str, bytes]] = {}
    for one, (own, images) in zip(evaluations, done, strict=True):
        trained = by_operator.get((one.case, one.kind), [])
        runs += [_joined(run | {"in_slice": todo[one.case].is_in_slice}, trained) for run in own]
        figures.setdefault(one.source.name, {}).update(images)
    for name, images in figures.items():
        images |= _comparison([run for run in runs if run["problem"] == name])
    return runs, figures


def _longer(task: Training, case: Case, folder: Path) -> Training:
    """The same training for twice the epochs."""
    recipe = replace(task.recipe, epochs=2 * task.recipe.epochs)
    return replace(task, recipe=recipe, path=_kept(folder, case, recipe, task.member), is_longer=True)


def _by_operator(trainings: Sequence[Training], facts: Sequence[dict[str, Any]]) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Facts of the members of each operator; what training twice as long brings stands with the first of them."""
    found: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for one, fact in zip(trainings, facts, strict=True):
        members = found.setdefault((one.case, one.recipe.kind), [])
        if one.is_longer:
            members[0]["twice_as_long"] = fact["calibration_error"] / members[0]["calibration_error"]
        else:
            members.append(fact)
    return found


def _kept(folder: Path, case: Case, recipe: Recipe, member: int) -> Path:
    """Where a trained operator is kept: the name holds all that it follows from, the commit included."""
    said = f"{environment.commit()} {case.source.identity} {recipe!r} {member} {SEEDS!r} {environment.versions()!r}"
    name = re.sub(r"[^a-z0-9.]+", "-", f"{case.source.name} {recipe.kind} {member}".lower())
    return folder / f"{name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}.safetensors"


def _paths(trainings: Sequence[Training], case: int, kind: str) -> tuple[Path, ...]:
    """Files of the members of an ensemble; what was trained for twice as long is none of them."""
    return tuple(one.path for one in trainings if one.case == case and one.recipe.kind == kind and not one.is_longer)


def _joined(run: dict[str, Any], trained: list[dict[str, Any]]) -> dict[str, Any]:
    """A run with the facts of the trainings behind it: of one operator, or of all members."""
    if not trained:
        return run
    members = trained if run["head"] == ENSEMBLE else trained[:1]
    resumed = any(one.get("resumed", False) for one in members)
    return run | {"train": members[0] | {"seconds": sum(one["seconds"] for one in members), "resumed": resumed}}


def _spread(pool: ProcessPoolExecutor, work: Callable[..., Any], todo: Sequence[Any], ticks: Any, bar: tqdm) -> list[Any]:
    """Results in the order of the tasks; the largest grids begin, so that the workers end together."""
    order = sorted(range(len(todo)), key=lambda number: -todo[number].source.points)
    futures = {pool.submit(work, todo[number], ticks): number for number in order}
    results: dict[int, Any] = {}
    try:
        for future in as_completed(futures):
            number = futures[future]
            results[number] = future.result()
            what = todo[number].recipe.kind if isinstance(todo[number], Training) else todo[number].kind
            bar.set_postfix_str(f"{todo[number].source.name}, {what}: done")
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    return [results[number] for number in range(len(todo))]


def _listen(ticks: Any, bar: tqdm) -> None:
    while ticks.get() is not None:
        bar.update()


def train(task: Training, ticks: Any) -> dict[str, Any]:
    """Train one member and keep it in a file, unless this very one is there already; returns facts."""
    torch.set_num_threads(1)
    beside = task.path.with_suffix(".json")
    if beside.exists() and not environment.commit().endswith(("-modified", "unknown")):
        for _ in range(task.recipe.epochs):
            ticks.put(1)
        known: dict[str, Any] = json.loads(beside.read_text())
        return known | {"resumed": True}
    operator, facts, _ = task.recipe.train(task.source.train, seed=task.member, tick=lambda: ticks.put(1))
    facts["calibration_error"] = _error(operator, task.source.calibration)
    task.path.parent.mkdir(parents=True, exist_ok=True)
    pn.save(operator, task.path)
    environment.write_json(facts, beside)
    return facts


@torch.no_grad()
def _error(operator: torch.nn.Module, pairs: pn.FieldPairs) -> float:
    """Mean relative L2 error of an operator."""
    where = None if pairs.outputs.grid == pairs.inputs.grid else pairs.outputs.grid
    predicted = operator.eval()(pairs.inputs.values, grid=pairs.inputs.grid, query=where)
    return float(pn.metrics.relative_l2(pn.Field(predicted, pairs.outputs.grid), pairs.outputs).mean())


def evaluate(task: Evaluation, ticks: Any) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Fit every head of one operator, calibrate and score each; returns runs and figures."""
    torch.set_num_threads(1)
    source = task.source
    pairs, places = source.train, source.places()
    members = [pn.load(path) for path in task.members]
    training: dict[str, Any] = {"pairs": len(pairs), "resolution": list(pairs.inputs.grid.shape)}
    makers: dict[str, Callable[[], pn.distributions.Predictor]]
    if task.kind == KERNEL:
        makers = {"Gaussian process": lambda: pn.heads.KernelOperator().fit(None, pairs)}
    elif task.kind == REGRESSION.kind:
        operator, training, _ = REGRESSION.train(pairs, seed=0, tick=lambda: None)
        makers = {"last-layer Laplace": lambda: pn.heads.LastLayerLaplace().fit(operator, pairs)}
    else:
        makers = {
            "last-layer Laplace": lambda: pn.heads.LastLayerLaplace().fit(members[0], pairs),
            ENSEMBLE: lambda: recipes.ensemble(members, pairs),
        }
    runs: list[dict[str, Any]] = []
    figures: dict[str, bytes] = {}
    for head, make in makers.items():
        start = time.process_time()
        run = {"problem": source.name, "operator": task.kind, "head": head, "seed": 0, "train": training}
        try:
            raw = make()
            fitted: dict[str, Any] = {"seconds": time.process_time() - start}
            if isinstance(raw, pn.heads.LastLayerPredictor):
                fitted |= {"effective_observations": raw.effective_observations.tolist(), "log_evidence": raw.log_evidence}
            more, evaluations, images = evaluation.evaluate(
                raw,
                source,
                places,
                compares_scales=task.kind == "FNO" and not runs,
                draws_figures=task.kind in ("FNO", KERNEL),
            )
        except (ProbneuralError, RuntimeError) as error:  # must not cost the work on all others: the row says why
            traceback.print_exc()
            runs.append(run | {"head_fit": {"seconds": time.process_time() - start, "failed": str(error)}, "evaluations": []})
            continue
        if head == ENSEMBLE:
            for one in evaluations:
                one["member_errors"] = [_error(member, places[one["on"]]) for member in members]
        figures |= {f"{task.kind}, {head}: {caption}": image for caption, image in images.items()}
        runs.append(run | {"head_fit": fitted | more, "evaluations": evaluations})
    ticks.put(1)
    return runs, figures


def _comparison(runs: Sequence[dict[str, Any]]) -> dict[str, bytes]:
    """Figures over all runs of one problem: score against cost, and how training went."""
    figures = {}
    histories = {run["operator"]: run["train"]["history"] for run in runs if "history" in run["train"]}
    for operator, losses in histories.items():
        history = pn.training.History(train=tuple(losses["train"]), validation=tuple(losses["validation"]), seconds=())
        figures[f"training of the {operator}"] = pn.plots.png(pn.plots.training(history), dpi=120.0)
    points = {}
    for run in runs:
        seconds = run["train"].get("seconds", 0.0) + run["head_fit"]["seconds"]
        for one in run["evaluations"][:1]:
            points[f"{run['operator']}, {run['head']}"] = (seconds, one["scores"]["crps"])
    known = {name: point for name, point in points.items() if all(isinstance(number, float) for number in point)}
    if known:
        cost = pn.plots.cost(known, score="CRPS, lower is better", axis="training and fitting (s of one core)")
        figures["score against cost"] = pn.plots.png(cost, dpi=120.0)
    return figures
