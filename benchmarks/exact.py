"""Operators and posteriors compared with exact solutions: accuracy, calibration, resolution, shifts, bands.

For each problem, operators are trained on exact pairs, and heads are fitted to the same pairs. All are calibrated
alike on 200 samples, then scored on test samples on the training grid, on a finer grid, and on each
named shift. Conformal bands are calibrated on sets of 50 from a pool of 400 further samples, which also tests intervals of
functionals. Nothing is fitted to test samples.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import probneural as pn
from benchmarks import environment, evaluation, method_figures, recipes, report
from benchmarks.evaluation import FULL, QUICK, SMALL, Extent
from benchmarks.exact_work import ENSEMBLE, KERNEL, MEMBERS, REGRESSION, Evaluation, Training, evaluate, train
from benchmarks.fingerprint import fingerprint
from benchmarks.method_figures import Sketch
from benchmarks.names import named
from benchmarks.progress import Progress
from benchmarks.recipes import Recipe
from benchmarks.scheduling import Job, run
from benchmarks.sources import SEEDS, FileSource, ProblemSource, Source
from benchmarks.workers import spawned
from probneural.training.callbacks import History

Runs = list[dict[str, Any]]
Figures = dict[str, dict[str, bytes]]


@dataclass(frozen=True)
class Case:
    """A distribution of pairs and the operators compared on it.

    Attributes:
        source: The distribution.
        operators: Recipes of the operators, each trained MEMBERS times.
        is_in_slice: Whether the case is in the default run; the full run has all.
    """

    source: Source
    operators: tuple[Recipe, ...]
    is_in_slice: bool = True

    def recipe(self, kind: str) -> Recipe:
        """The recipe of one kind of operator.

        Raises:
            ValueError: If there is not exactly one.
        """
        (recipe,) = (recipe for recipe in self.operators if recipe.kind == kind)
        return recipe


def cases() -> list[Case]:
    """Cases of the full run; `is_in_slice` marks those of the default run."""
    problems = pn.problems
    walls = {"embeds_position": True}
    plane = {"width": 16, "projection": 32, "continuation": "alternating"}

    def line(problem: pn.problems.Problem, points: int, *, rate: float = 1e-3, **options: Any) -> Case:
        """A problem in one dimension; validation error chose the DeepONet's learning rate and the FNO's weight decay."""
        finer = 4 * points if problem.grid(points).periodic[0] else 4 * points - 3
        trained = recipes.fno(16, epochs=60, **options), recipes.deeponet(epochs=60, learning_rate=rate)
        return Case(ProblemSource(problem, (points,), (finer,)), trained)

    def square(problem: pn.problems.Problem, points: int, *, rate: float = 3e-3, **options: Any) -> Case:
        """A problem in two dimensions, with learning rate and decay chosen likewise; a DeepONet would take too long."""
        finer = 2 * points if problem.grid(points).periodic[0] else 2 * points - 1
        source = ProblemSource(problem, (points, points), (finer, finer), pairs=500, finer_fields=50)
        return Case(source, (recipes.fno(9, 9, epochs=16, learning_rate=rate, **plane, **options),))

    default = [
        line(problems.Burgers(viscosity=0.01), 64, rate=3e-3),
        line(problems.Darcy1D(), 65, rate=3e-3, **walls),
        square(problems.ShallowWater(), 32, weight_decay=0.1),
    ]
    further = [
        line(problems.Burgers(viscosity=0.1), 64),
        line(problems.VariableSpeedAdvection(), 64, weight_decay=0.3),
        line(problems.Antiderivative(equation="logistic"), 65, rate=3e-3, weight_decay=0.1, **walls),
        square(problems.Heat(dimension=2), 32, rate=1e-2, weight_decay=0.6),
        square(problems.Helmholtz(), 33, rate=1e-2, weight_decay=0.6, **walls),
        square(problems.Darcy2D(), 33, rate=1e-2, weight_decay=0.6, **walls),
    ]
    return default + [replace(case, is_in_slice=False) for case in further]


def chosen(mode: str, *, problem: str | None = None, path: Path | None = None) -> list[Case]:
    """Cases of a run, or those whose names start with a text, reduced to seconds if the mode is `small`.

    Raises:
        ValueError: If no name starts with the text.
    """
    if path is not None:
        source = FileSource(path)
        found = [Case(source, tuple(recipes.own_data(source.train)))]
    else:
        found = [case for case in cases() if mode == "full" or case.is_in_slice or problem is not None]
        by_name = {case.source.name: case for case in found}
        found = [by_name[name] for name in named(list(by_name), problem)]
    return [_smaller(case) for case in found] if mode == "small" else found


def _smaller(case: Case) -> Case:
    """A small version that takes seconds."""
    tiny = {"FNO": {"width": 8, "depth": 2}, "DeepONet": {"layers": pn.operators.HiddenLayers(width=16, depth=2), "basis": 8}}
    operators = tuple(replace(recipe, epochs=2, options={**recipe.options, **tiny[recipe.kind]}) for recipe in case.operators)
    few = {"pairs": 40, "fields": 40, "finer_fields": None} if isinstance(case.source, ProblemSource) else {"pairs": 40}
    return replace(case, source=replace(case.source, **few), operators=operators)


def extent(mode: str, *, path: Path | None = None) -> Extent:
    """Extent of the evaluation: less in the default run, except for user data."""
    if mode == "small":
        return SMALL
    return QUICK if mode == "default" and path is None else FULL


def main(
    *, mode: str, output: Path, workers: int, problem: str | None = None, path: Path | None = None, is_verbose: bool = False
) -> dict[str, Any]:
    """Run; after each problem print its table and write results.json and the report; finally print a summary."""
    start = time.perf_counter()
    todo = chosen(mode, problem=problem, path=path)
    assumed = [case.source.assumed for case in todo if isinstance(case.source, FileSource) and case.source.assumed]
    for sentence in assumed:  # report assumptions on axes before a long run
        print(sentence)
    flags = "" if mode == "default" else f" --{mode}"
    flags += f' --problem "{problem}"' if problem else ""
    flags += f" --data {path.name}" if path else ""
    facts = {
        "benchmark": "exact",
        "command": f"python -m benchmarks exact{flags}",
        "mode": mode,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": environment.machine(),
        "versions": environment.versions(),
        "commit": environment.commit(),
        "code": fingerprint("benchmarks.exact"),
        "seeds": SEEDS,
    }
    asked = extent(mode, path=path)
    notes = [*_notes(asked), *assumed]

    def written(runs: Runs, figures: Figures, to_come: Sequence[str]) -> dict[str, Any]:
        """Write the results so far."""
        results = facts | {"wall_seconds": round(time.perf_counter() - start, 1), "notes": notes + _resumed(runs), "runs": runs}
        if to_come:
            results["to_come"] = list(to_come)
        environment.write_json(results, output / "results.json")
        report.write_report(results, figures, output / "report.html")
        return results

    runs, figures = _run_all(todo, workers, output, mode=mode, asked=asked, written=written)
    results = written(runs, figures, ())
    if is_verbose:
        print(f"\n{report.terminal_table(report.rows(results))}")
    print(f"\n{report.terminal_summary(results)}\n")
    print(f"{results['wall_seconds']:.0f} s; the report: {(output / 'report.html').resolve().as_uri()}")
    return results


def _notes(asked: Extent) -> list[str]:
    """Notes for readers."""
    shared = [
        "Posteriors are fitted to the training pairs and scaled on separate calibration samples on the training grid. "
        f"Bands are calibrated on sets of {evaluation.SET} samples of a separate pool and tested on the test samples; "
        "intervals of functionals are tested on the pool.",
        "Seconds of training, fit and evaluation are processor time of one core; those of the run are wall time.",
        f"Ensembles have {MEMBERS} operators with different initial weights and orders of batches; the first one is the "
        "operator of the last-layer row.",
    ]
    if asked is FULL:
        return [
            *shared,
            "Field-wise scores (joint NLL, simultaneous coverage, energy score, rank correlations) in two dimensions use the "
            f"first {asked.whole[2]} samples of a test set.",
            "twice as long (full run): error of the first operator on the calibration samples after twice the epochs, relative "
            "to its error after the epochs of the benchmark.",
        ]
    if asked is SMALL:
        return shared
    return [
        *shared,
        "Field-wise scores (joint NLL, simultaneous coverage, energy score, rank correlations) use the first "
        f"{asked.whole[1]} samples of a test set in one dimension and {asked.whole[2]} in two.",
        "The default run has the trainings of the full run, with the first shift of each problem only and without ensembles "
        "of DeepONets; `--full` has the rest.",
    ]


def _resumed(runs: Runs) -> list[str]:
    resumed = sum(run["train"].get("resumed", False) for run in runs)
    if not resumed:
        return []
    return [
        f"An earlier run, cut off or smaller, trained the operators of {resumed} rows: the seconds that it took are in "
        "those of training, not in those of the run."
    ]


def _jobs(todo: Sequence[Case], folder: Path, *, mode: str, asked: Extent) -> list[Job]:
    """Trainings and evaluations of all problems, in one group per problem; an evaluation needs its operators."""
    jobs: list[Job] = []
    for number, case in enumerate(todo):
        kinds: dict[str, tuple[int, ...]] = {}
        for recipe in case.operators:
            members = range(MEMBERS if asked.has_ensemble(recipe.kind) else 1)
            kinds[recipe.kind] = tuple(len(jobs) + member for member in members)
            tasks = [Training(number, case.source, recipe, one, _kept(folder, case, recipe, one)) for one in members]
            if mode == "full":
                tasks.append(_longer(tasks[0], case, folder))
            jobs += [Job(task.name, train, task, number, task.cost) for task in tasks]
        for kind, needs in [*kinds.items(), (KERNEL, ()), (REGRESSION.kind, ())]:
            evaluated = Evaluation(number, case.source, kind, tuple(jobs[need].task.path for need in needs), asked)
            jobs.append(Job(evaluated.name, evaluate, evaluated, number, evaluated.cost, needs))
    return jobs


def _run_all(
    todo: Sequence[Case], workers: int, output: Path, *, mode: str, asked: Extent, written: Callable[..., Any]
) -> tuple[Runs, Figures]:
    """Train and evaluate one problem after the other in single-threaded processes; print and write each result.

    Trained operators are stored, so an interrupted run continues; facts of a training, such as its
    seconds, are stored with it.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # before the workers import torch
    jobs = _jobs(todo, output / "operators", mode=mode, asked=asked)
    found: dict[int, Runs] = {}
    figures: Figures = {}
    context = multiprocessing.get_context("spawn")
    with (
        context.Manager() as manager,
        spawned(workers) as pool,
        Progress(sum(job.cost for job in jobs)) as progress,
    ):

        def on_group(number: int, results: Mapping[int, Any]) -> None:
            case = todo[number]
            found[number], sketches = _joined_runs(case, [jobs[one].task for one in results], list(results.values()))
            figures[case.source.name] = images = _figures(found[number], sketches)
            for caption, image in images.items():
                file = re.sub(r"[^a-z0-9.]+", "-", f"{case.source.name} {caption}".lower())
                environment.write_bytes(image, output / "figures" / f"{file}.png")
            progress.say(f"\n{case.source.name}\n{report.terminal_table(report.brief_rows(found[number]))}")
            to_come = [one.source.name for place, one in enumerate(todo) if place not in found]
            if to_come:
                written(_in_order(found), figures, to_come)
                progress.say(f"so far: {(output / 'report.html').resolve().as_uri()}\n")

        ticks = manager.Queue()
        listener = threading.Thread(target=progress.listen, args=(ticks,), daemon=True)
        listener.start()
        try:
            run(jobs, pool, workers=workers, ticks=ticks, on_job=lambda job, _: progress.finished(job.name), on_group=on_group)
        finally:  # end the listener before its queue
            ticks.put(None)
            listener.join()
    return _in_order(found), {case.source.name: figures[case.source.name] for case in todo}


def _in_order(found: Mapping[int, Runs]) -> Runs:
    return [run for number in sorted(found) for run in found[number]]


def _joined_runs(case: Case, tasks: Sequence[Training | Evaluation], results: Sequence[Any]) -> tuple[Runs, list[Sketch]]:
    """Runs of one problem with facts of their trainings, and data of its figures."""
    both = sorted(zip(tasks, results, strict=True), key=lambda one: isinstance(one[0], Evaluation))
    trainings = [(task, result) for task, result in both if isinstance(task, Training)]
    by_operator = _by_operator([task for task, _ in trainings], [result for _, result in trainings])
    order = [*(recipe.kind for recipe in case.operators), KERNEL, REGRESSION.kind]
    evaluated = {task.kind: result for task, result in both if isinstance(task, Evaluation)}
    runs: Runs = []
    sketches: list[Sketch] = []
    for kind in order:
        own, sketched = evaluated[kind]
        runs += [_joined(run, by_operator.get(kind, [])) for run in own]
        sketches += sketched
    return runs, sketches


def _longer(task: Training, case: Case, folder: Path) -> Training:
    """The same training with twice the epochs."""
    recipe = replace(task.recipe, epochs=2 * task.recipe.epochs)
    return replace(task, recipe=recipe, path=_kept(folder, case, recipe, task.member), is_longer=True)


def _by_operator(trainings: Sequence[Training], facts: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Facts of the members of each operator; the first has the result of training twice as long."""
    found: dict[str, list[dict[str, Any]]] = {}
    for one, fact in zip(trainings, facts, strict=True):
        members = found.setdefault(one.recipe.kind, [])
        if one.is_longer:
            members[0]["twice_as_long"] = fact["calibration_error"] / members[0]["calibration_error"]
        else:
            members.append(fact)
    return found


def _kept(folder: Path, case: Case, recipe: Recipe, member: int) -> Path:
    """Path of a trained operator; its name has all settings and the commit."""
    said = f"{environment.commit()} {case.source.identity} {recipe!r} {member} {SEEDS!r} {environment.versions()!r}"
    name = re.sub(r"[^a-z0-9.]+", "-", f"{case.source.name} {recipe.kind} {member}".lower())
    return folder / f"{name}-{hashlib.sha256(said.encode()).hexdigest()[:12]}.safetensors"


def _joined(run: dict[str, Any], trained: list[dict[str, Any]]) -> dict[str, Any]:
    """A run with facts of its training, or of the trainings of all members."""
    if not trained:
        return run
    members = trained if run["head"] == ENSEMBLE else trained[:1]
    resumed = any(one.get("resumed", False) for one in members)
    return run | {"train": members[0] | {"seconds": sum(one["seconds"] for one in members), "resumed": resumed}}


def _figures(runs: Runs, sketches: Sequence[Sketch]) -> dict[str, bytes]:
    """Figures of one problem: methods, calibration, cost and training histories."""
    points: dict[str, tuple[float, float]] = {}
    densities: dict[str, float] = {}
    for one in runs:
        name = f"{one['operator']}, {one['head']}"
        for evaluated in one["evaluations"][:1]:
            scores = evaluated["scores"]
            seconds = one["train"].get("seconds", 0.0) + one["head_fit"]["seconds"]
            if isinstance(scores["crps"], float):
                points[name] = (seconds, scores["crps"])
            if isinstance(scores["joint_nll"], float):
                densities[name] = scores["joint_nll"]
    best = min(densities, key=densities.__getitem__, default=None)
    figures = method_figures.drawn(sketches, best=best, cost=points)
    histories = {one["operator"]: one["train"]["history"] for one in runs if "history" in one["train"]}
    for operator, losses in histories.items():
        history = History(train=tuple(losses["train"]), validation=tuple(losses["validation"]), seconds=())
        figures[f"training of the {operator}"] = pn.plots.png(pn.plots.training(history), dpi=110.0)
    return figures
