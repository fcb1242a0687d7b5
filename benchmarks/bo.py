"""Bayesian optimisation over input functions with surrogates of this and other libraries, on exact simulators.

All methods start from the same random designs. All but the random ones maximise the same
acquisition function with the same effort; they differ in the surrogate. They know the solution only through
outputs of the simulator. Each finished run is stored in a file, so an interrupted benchmark continues.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from botorch.exceptions.errors import BotorchError, ModelFittingError
from linear_operator.utils.errors import NanError, NotPSDError

from benchmarks import bo_loops, bo_methods, bo_problems, environment, kept_units, sections
from benchmarks.names import named
from probneural.errors import ProbneuralError

SEEDS = {"environmental model": 10, "environmental batches": 10, "environmental constrained": 10}
"""Runs per problem; five for all others."""
MAIN_METHODS = (
    "random",
    "Sobol",
    "GP on the objective",
    "GP on its logarithm",
    "composite GPs, least noise",
    "network, last-layer Laplace",
    "kernel operator",
)
_NETWORK = ("network, last-layer Laplace", "network, last-layer regression")
METHODS = {
    "environmental model": bo_methods.names(),
    "environmental hidden target": (
        "random",
        "GP on the objective",
        "composite GPs, least noise",
        *_NETWORK,
        "kernel operator",
    ),
    "environmental batches": bo_loops.METHODS,
    "environmental constrained": bo_loops.METHODS,
    "burgers target field": (*MAIN_METHODS[:5], "HigherOrderGP", *MAIN_METHODS[5:]),
}
"""Methods by problem, and the main methods for all others: variants, HigherOrderGP (a minute per run) and regression (it needs
more features than observations) are left out there."""
QUARTILES = {"lower": 0.25, "median": 0.5, "upper": 0.75}
_GREY = {"random": "0.7", "Sobol": "0.45", bo_loops.METHODS[0]: "0.45"}
"""Colours of methods without surrogate; the others have the colour cycle."""
_LEAST_SHOWN = 1e-18
"""Least loss in figures with logarithmic axes: below rounding."""
FAILURES = (ProbneuralError, RuntimeError, BotorchError, ModelFittingError, NotPSDError, NanError)
"""Errors that end a single run. The last two are RuntimeErrors in linear_operator 0.6; they are listed in case that changes."""

NOTES = (
    "environmental model: sum of squared errors at three places and four times, without the factor sqrt(4 pi) that some "
    "authors have; 5 random designs and 30 more. Papers report 6e-6 (ensembles with randomised priors), 3e-5 (NEON), .37 "
    "(random). Their spill is the centre of the range; hidden target: another spill for every seed",
    "environmental batches and constrained: 5 first designs, then batches of four; the constraint is that no "
    "concentration exceeds .8 of the target's largest. Optimizer has its defaults, qLogNEI of the field's posterior; BoTorch "
    "has the same function of one Gaussian process for the objective and one for the constraint. Infeasible designs have the "
    "loss of a field of zeros",
    "target field: squared distance of the grid values to a target that a hidden design reaches, relative to the target's "
    "square; dissipation (largest integral of u_x squared) and peak pressure (least): how much worse than the best that "
    "gradient descent on the simulator finds. 10 random designs and 20 more",
    "start, half and end: least loss after the initial designs, after half of the others, and after all; medians over seeds, "
    "quartiles at the end. No run ends early. If a run finds less than gradient descent, the least loss of all runs is the "
    "reference",
    "to target: evaluations until the loss is 6e-6 or less (environmental model), 1e-4 (target fields), or within a "
    "hundredth of the best design's gain over the mean random one; median over seeds, empty if half did not reach it. "
    "reached: seeds that did. failed: runs that ended with an error, named below; to target counts them as not reached, "
    "all other columns omit them",
    f"noise: every Gaussian process has at least {bo_methods.MIN_NOISE:g} of its prior variance, in BoTorch of standardised "
    "outputs. Learned noise has this bound instead of BoTorch's 1e-4. BoTorch's prior on the noise, which keeps it above the "
    "bound for exact observations, is used for GPs on the objective only. 'least noise' is fixed at the bound, below "
    "GPyTorch's 1e-6. The kernel operator learns its noise like composite GPs. Last-layer Laplace counts the training error "
    "as noise, which no bound changes; last-layer regression of the same network has the common least noise, in units of "
    "the variance of the outputs, and more features than observations",
    f"every model: qLogEI, {bo_methods.Budget().draws} draws, {bo_methods.Budget().raw} random designs, of which gradients "
    f"improve {bo_methods.Budget().restarts}. Composite models predict observations of the field and "
    "use the known loss; GPs on the objective do not. Hyper-parameters of BoTorch's models are fitted with at most "
    f"{bo_methods.Budget().fit_iterations} iterations of the optimiser; those of HigherOrderGP start from the last ones, "
    f"with at most {bo_methods.Budget().slow_fit_iterations} above {bo_methods.MANY} observations, which "
    "leaves its evidence below the maximum. Its posterior at a design is computed in closed form. fit and choice: seconds of "
    "processor time per evaluation, medians over seeds",
)


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """One run of one method on one problem, in a worker process.

    Attributes:
        problem: Name of the problem.
        method: Name of the method.
        seed: Seed of initial designs, method and hidden target.
        is_small: Whether the run is a test of the script, in seconds.
        commit: Commit of the code at the start of the benchmark.
    """

    problem: str
    method: str
    seed: int
    is_small: bool
    commit: str = field(default="unknown", kw_only=True)

    @property
    def name(self) -> str:
        """Name in progress messages."""
        return f"{self.problem}, {self.method}, seed {self.seed}"

    @property
    def budget(self) -> bo_methods.Budget:
        """Effort per choice."""
        return bo_methods.SMALL if self.is_small else bo_methods.Budget()

    @property
    def settings(self) -> tuple[object, ...]:
        """Settings of the results beyond the fields."""
        return (self.budget,)

    def run(self, folder: Path) -> dict[str, Any]:
        """Optimise; a failed run returns the reason."""
        del folder
        problem = bo_problems.make(self.problem, seed=self.seed)
        count = 1 if self.is_small else None
        try:
            run = bo_loops.run if self.method in bo_loops.METHODS else bo_methods.run
            return run(self.method, problem, seed=self.seed, budget=self.budget, evaluations=count)
        except FAILURES as error:  # other runs continue
            return {"failed": f"{type(error).__name__}: {error}"}


def chosen(problem: str | None) -> tuple[str, ...]:
    """Problems of a run: all, or those whose names start with a text.

    Raises:
        ValueError: If no name starts with the text.
    """
    return tuple(named(bo_problems.names(), problem))


def units(*, small: bool, problem: str | None = None) -> list[Unit]:
    """All runs, seed by seed, so that methods are interleaved."""
    found: list[Unit] = []
    commit = environment.commit()
    for name in chosen(problem):
        for seed in range(1 if small else SEEDS.get(name, 5)):
            found.extend(Unit(name, one, seed, small, commit=commit) for one in METHODS.get(name, MAIN_METHODS))
    return found


def main(*, mode: str, output: Path, workers: int, problem: str | None = None) -> dict[str, Any]:
    """Run all problems, or those whose names start with a text; write tables, curves and a figure."""
    todo, notes = units(small=mode == "small", problem=problem), list(NOTES)

    @cache
    def run() -> dict[Unit, dict[str, Any]]:
        results = kept_units.spread(todo, output / "bo", workers=workers, notes=notes)
        notes.extend(failures(results))
        return results

    written = sections.write(
        "bo",
        sections.made_of(run, {name: partial(summary, name) for name in chosen(problem)}),
        mode=mode,
        output=output,
        notes=notes,
        commit=todo[0].commit,
        chosen={"problem": problem},
    )
    print("\n".join(notes[len(NOTES) :]))
    curves = {name: trajectories(name, run()) for name in chosen(problem)}
    stem = sections.stem("bo", chosen={"problem": problem})
    environment.write_json(
        {key: written[key] for key in ("command", "mode", "commit")} | {"curves": curves}, output / f"{stem}-curves.json"
    )
    environment.write_bytes(figure(curves), output / f"{stem}.png")
    return written


def failures(results: Mapping[Unit, Mapping[str, Any]]) -> list[str]:
    """Notes on failed runs."""
    return [
        f"failed: {unit.problem}, {unit.method}, seed {unit.seed}: {result['failed']}"
        for unit, result in results.items()
        if "failed" in result
    ]


def best_so_far(result: Mapping[str, Any], *, reference: float = 0.0) -> list[float]:
    """Least loss after each evaluation minus the reference."""
    return [loss - reference for loss in accumulate(result["losses"], min)]


def summary(problem: str, results: Mapping[Unit, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per method."""
    (reference, target), initial = scale(problem, results), bo_problems.make(problem, seed=0).initial
    rows = []
    for method, every in _by_method(problem, results).items():
        runs = _finished(every)
        failed = len(every) - len(runs)
        if not runs:
            rows.append({"method": method, "seeds": 0, "reached": 0, "failed": failed})
            continue
        curves = torch.tensor([best_so_far(run, reference=reference) for run in runs], dtype=torch.double)
        half = initial + (curves.shape[1] - initial) // 2
        reached = [next((count for count, loss in enumerate(curve, 1) if loss <= target), None) for curve in curves.tolist()]
        rows.append(
            {
                "method": method,
                "seeds": len(runs),
                "start": _quantile(curves[:, initial - 1], "median"),
                "half": _quantile(curves[:, half - 1], "median"),
                **{
                    ("end" if name == "median" else name): _quantile(curves[:, -1], name)
                    for name in ("median", "lower", "upper")
                },
                "to target": _middle([*reached, *[None] * failed]),
                "reached": sum(count is not None for count in reached),
                "failed": failed,
                "fit (s)": _quantile(torch.tensor([run["fit_seconds"] for run in runs], dtype=torch.double), "median"),
                "choice (s)": _quantile(torch.tensor([run["choice_seconds"] for run in runs], dtype=torch.double), "median"),
            }
        )
    return rows


def trajectories(problem: str, results: Mapping[Unit, Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Quartiles of the least loss so far, over seeds, by method."""
    reference, _ = scale(problem, results)
    found = {}
    for method, every in _by_method(problem, results).items():
        runs = _finished(every)
        if not runs:
            continue
        curves = torch.tensor([best_so_far(run, reference=reference) for run in runs], dtype=torch.double)
        found[method] = {name: curves.quantile(level, dim=0).tolist() for name, level in QUARTILES.items()}
    return found


def figure(curves: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]) -> bytes:
    """A panel per problem: medians of the least loss so far, with quartiles; PNG."""
    from matplotlib.figure import Figure  # costs a quarter of a second

    rows = 1 if len(curves) == 1 else 2
    image = Figure(figsize=(11.0, 1.0 + 2.7 * rows), layout="constrained")
    panels = image.subplots(rows, -(-len(curves) // rows), squeeze=False).flatten()
    models = [name for name in (*bo_methods.names(), *bo_loops.METHODS[1:]) if name not in _GREY]
    for panel, (problem, own) in zip(panels, curves.items(), strict=False):
        for method, levels in own.items():
            colour = _GREY.get(method) or f"C{models.index(method)}"
            steps = range(1, len(levels["median"]) + 1)
            shown = {name: [max(_LEAST_SHOWN, value) for value in values] for name, values in levels.items()}
            style = "--" if method in _GREY else "-"
            panel.plot(steps, shown["median"], style, color=colour, label=method, linewidth=1.2)
            panel.fill_between(steps, shown["lower"], shown["upper"], color=colour, alpha=0.12, linewidth=0)
        panel.set(title=problem, xlabel="evaluations", ylabel="loss, less the least known", yscale="log")
    handles = {label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    image.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    stream = io.BytesIO()
    image.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def scale(problem: str, results: Mapping[Unit, Mapping[str, Any]]) -> tuple[float, float]:
    """Reference that tables subtract from losses, and the largest difference that counts as reached.

    If a run finds less than gradient descent, the least loss of all runs is the reference, so that
    only that run counts as exact, and near is a hundredth of its gain.
    """
    reference, near = _reference(problem, is_small=any(unit.is_small for unit in results))
    losses = [min(run["losses"]) for unit, run in results.items() if unit.problem == problem and "failed" not in run]
    least = min([reference, *losses])
    is_given = bo_problems.make(problem, seed=0).target is not None
    return least, near if is_given else near + 0.01 * (reference - least)


@cache
def _reference(problem: str, *, is_small: bool) -> tuple[float, float]:
    """Loss found by gradient descent on the simulator."""
    steps = {"steps": 5, "starts": 2} if is_small else {}
    return bo_problems.reference(bo_problems.make(problem, seed=0), **steps)


def _by_method(problem: str, results: Mapping[Unit, Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for method in (*bo_methods.names(), *bo_loops.METHODS):
        runs = [result for unit, result in results.items() if (unit.problem, unit.method) == (problem, method)]
        if runs:
            found[method] = runs
    return found


def _finished(runs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [run for run in runs if "failed" not in run]


def _quantile(values: torch.Tensor, name: str) -> float:
    return float(values.quantile(QUARTILES[name]))


def _middle(counts: Sequence[int | None]) -> float | None:
    """Median of counts, where None counts as infinity."""
    order = sorted(counts, key=lambda count: (count is None, count))
    low, high = order[(len(order) - 1) // 2], order[len(order) // 2]
    return None if low is None or high is None else (low + high) / 2.0
