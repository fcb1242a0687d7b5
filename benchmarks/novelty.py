"""When not to trust: which shifts scores of novelty see, and what error bars that widen by them cover.

Per problem and seed: one FNO and its last-layer Laplace posterior, and the kernel operator. Detectors are fitted on calibration
functions, and tell test functions of the same distribution from those of each named shift. Error bars are scaled in
distribution, and then widened by inflations that are fitted on synthetic shifts. Named shifts serve for scores alone; an
inflation "of other kinds" has not even seen a synthetic shift of the kind that it is scored on.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import probneural as pn
from benchmarks import environment, exact, kept_units, sections
from benchmarks.exact import Case
from benchmarks.over_seeds import Row, grouped
from benchmarks.sources import ProblemSource
from probneural.randomness import stream_seed

SEEDS = range(3)
LEVEL = 0.9
ALARM = 0.05
"""P-value up to which a function counts as flagged."""
LIKE = {"amplitude": ("stretched", "superposed"), "contrast": ("stretched", "superposed"), "roughness": ("roughened",)}
"""Synthetic shifts that resemble a named one."""
PARTS = ("training", "calibration", "conformal", "test", "shifted", "synthetic")
LABELLED = 100
"""Synthetic functions that are solved for, per kind."""

Results = Mapping["Unit", Mapping[str, Any]]


@dataclass(frozen=True)
class Unit:
    """One problem under one seed.

    Attributes:
        problem: Its name in tables; sizes and recipes are those of `exact`.
        seed: Of functions and weights.
        commit: Of the code.
        small: Whether sizes are cut down to seconds.
    """

    problem: str
    seed: int
    commit: str
    small: bool = False

    @property
    def name(self) -> str:
        """For readers of the progress."""
        return f"{self.problem}, seed {self.seed}"

    def path(self, folder: Path) -> Path:
        """Where its results are kept."""
        return folder / environment.file_name(f"novelty {self.name}", self, self.case, suffix=".json")

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit heads, detectors and inflations, and score all."""
        del folder
        source = self.source
        (recipe,) = [recipe for recipe in self.case.operators if recipe.kind == "FNO"]
        train = self.sample(source.problem, "training", source.pairs)
        operator, _, _ = recipe.train(train, seed=stream_seed(self.seed, "novelty recipe"), tick=lambda: None)
        heads = {
            "last-layer Laplace": lambda: pn.heads.LastLayerLaplace().fit(operator, train),
            "kernel operator": lambda: pn.heads.KernelOperator().fit(None, train),
        }
        found: dict[str, list[Row]] = {"detection": [], "coverage": []}
        for name, make in heads.items():
            for table, rows in self.scored(make()).items():
                found[table] += [{"problem": source.name, "head": name, "seed": self.seed} | row for row in rows]
        return found

    @property
    def case(self) -> Case:
        """The problem, sizes and recipes."""
        return exact.chosen("small" if self.small else "full", problem=self.problem)[0]

    @property
    def source(self) -> ProblemSource:
        """Where its functions come from."""
        assert isinstance(self.case.source, ProblemSource)
        return self.case.source

    def sample(self, problem: pn.problems.Problem, part: str, count: int) -> pn.FieldPairs:
        """Functions of one part."""
        seed = stream_seed(self.seed, "novelty functions", PARTS.index(part))
        return problem.sample(count, resolution=self.source.resolution, seed=seed)

    def scored(self, head: pn.distributions.Predictor) -> dict[str, list[Row]]:
        """Rows of both tables, of one head."""
        problem, count = self.source.problem, self.source.fields
        calibration, conformal, test = (self.sample(problem, part, count) for part in PARTS[1:4])
        shifts = {name: self.sample(other, "shifted", count) for name, other in problem.shifts().items()}
        found = {"detection": detection(pn.calibration.Novelty().fit(head, calibration), test, shifts), "coverage": []}
        synthetic = self.synthetic()
        if not synthetic:
            return found
        scaled = pn.calibration.VarianceScale().fit(head, calibration)
        places = {"in distribution": test} | shifts
        predictors = {"no": dict.fromkeys(places, scaled)}
        every = inflated(scaled, calibration, synthetic)
        predictors["of all kinds"] = dict.fromkeys(places, every)
        others = {place: inflated(scaled, calibration, without(synthetic, LIKE[place])) for place in shifts if place in LIKE}
        predictors["of other kinds"] = others
        for widening, by_place in predictors.items():
            found["coverage"] += coverage(by_place, places, scaled, conformal, widening)
        return found

    def synthetic(self) -> dict[str, pn.FieldPairs]:
        """Synthetic shifts, labelled by the problem's solver; none where a solver would not give the truth."""
        problem = self.source.problem
        if isinstance(problem, pn.problems.SignalSeparation):  # whose solver gives the mean, not the tone
            return {}
        inputs = self.sample(problem, "synthetic", min(LABELLED, self.source.fields)).inputs
        shifted = pn.calibration.synthetic_shifts(inputs, seed=stream_seed(self.seed, "novelty functions", len(PARTS)))
        return {kind: pn.FieldPairs(some, problem.solve(some)) for kind, some in shifted.items()}


def inflated(
    scaled: pn.distributions.Predictor, calibration: pn.FieldPairs, synthetic: Mapping[str, pn.FieldPairs]
) -> pn.distributions.Predictor:
    """A predictor that widens, by some synthetic shifts."""
    return pn.calibration.NoveltyScale().fit(scaled, calibration, shifted=list(synthetic.values()))


def without(synthetic: Mapping[str, pn.FieldPairs], kinds: Sequence[str]) -> dict[str, pn.FieldPairs]:
    """Synthetic shifts but those of some kinds."""
    return {kind: pairs for kind, pairs in synthetic.items() if kind not in kinds}


def auroc(ordinary: Tensor, shifted: Tensor) -> float:
    """Probability that a shifted function's score is above an ordinary one's, ties counted half.

    Examples:
        >>> import torch
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    difference = shifted[:, None] - ordinary
    return float((difference > 0).double().mean() + 0.5 * (difference == 0).double().mean())


def detection(detector: pn.calibration.NoveltyDetector, test: pn.FieldPairs, shifts: Mapping[str, pn.FieldPairs]) -> list[Row]:
    """AUROC of each score per shift, and how many functions are flagged by the combined one."""
    ordinary = detector.scores(test.inputs)
    alarms = float((detector(test.inputs) <= ALARM).double().mean())
    rows = []
    for shift, pairs in shifts.items():
        scores = detector.scores(pairs.inputs)
        flagged = float((detector(pairs.inputs) <= ALARM).double().mean())
        aurocs = {name: auroc(ordinary[name], scores[name]) for name in detector.names}
        rows.append({"shift": shift} | aurocs | {"flagged": flagged, "false alarms": alarms})
    return rows


def coverage(
    predictors: Mapping[str, pn.distributions.Predictor],
    places: Mapping[str, pn.FieldPairs],
    scaled: pn.distributions.Predictor,
    conformal: pn.FieldPairs,
    widening: str,
) -> list[Row]:
    """Coverage and width at points and of whole functions, where functions come from each place."""
    usual = mean_std(scaled, places["in distribution"])
    rows = []
    for place, predictor in predictors.items():
        pairs = places[place]
        u = predictor(pairs.inputs, pairs.outputs.grid)
        interval = u.interval(LEVEL, noise=predictor.noise)
        truth = pairs.outputs.values.double()
        inside = (truth >= interval.lower.double()) & (truth <= interval.upper.double())
        chi2 = pn.metrics.chi2(pn.metrics.compare(u, pairs.outputs, noise=predictor.noise))
        at_home, here = mean_std(predictor, places["in distribution"]), mean_std(predictor, pairs)
        band = pn.calibration.SimultaneousBand(LEVEL).fit(predictor, conformal)
        rows.append(
            {
                "place": place,
                "widening": widening,
                "coverage": float(inside.double().mean()),
                "band coverage": band.coverage(pairs),
                "width in distribution": at_home / usual,
                "width": here / usual,
                "chi2": float(chi2.mean()),
            }
        )
    return rows


def mean_std(predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> float:
    """Average standard deviation, in units of each channel's root mean square."""
    std = predictor(pairs.inputs, pairs.outputs.grid).std.double().flatten(2)
    unit = pairs.outputs.values.double().flatten(2).square().mean((0, 2)).sqrt()
    return float((std.mean((0, 2)) / unit).mean())


def main(*, mode: str, output: Path, workers: int, problem: str | None = None) -> dict[str, Any]:
    """Run all problems and seeds, those that are done already excepted, and average."""
    todo = units(mode, problem)
    results = kept_units.spread(todo, output / "novelty", workers=workers)
    resumed = sum(bool(one.get("resumed")) for one in results.values())
    return sections.write(
        "novelty",
        {table: lambda table=table: averaged(results, table) for table in ("detection", "coverage")},
        mode=mode,
        output=output,
        commit=todo[0].commit,
        problem=problem,
        notes=[
            "Problems, sizes and recipes as in `exact`; functions and weights are drawn anew for each seed. Means over seeds.",
            f"Detection: AUROC of each score against test functions in distribution; flagged: combined p-value <= {ALARM}.",
            f"Coverage of pointwise intervals, and of whole functions by a band, both stated for {LEVEL}; bands are calibrated "
            "in distribution. Width: mean standard deviation, here and in distribution, over that of the unwidened predictor "
            "in distribution.",
            "Widening of other kinds: no synthetic shift that resembles the place's took part "
            f"({'; '.join(name + ': ' + ' and '.join(kinds) for name, kinds in LIKE.items())}).",
            *([f"{resumed} of {len(todo)} units {sections.RESUMED}"] if resumed else []),
        ],
    )


def chosen(problem: str | None) -> list[Case]:
    """The problems of a run.

    Raises:
        ValueError: If no problem's name begins so.
    """
    return [case for case in exact.chosen("full", problem=problem) if isinstance(case.source, ProblemSource)]


def units(mode: str, problem: str | None) -> list[Unit]:
    """Units of a run: of one problem and seed if it is small."""
    commit, names = environment.commit(), [case.source.name for case in chosen(problem)]
    if mode == "small":
        return [Unit(names[0], 0, commit, small=True)]
    return [Unit(name, seed, commit) for name in names for seed in SEEDS]


def averaged(results: Results, table: str) -> list[Row]:
    """Means over seeds."""
    keys = ("problem", "head", "shift", "place", "widening")
    rows = []
    for own in grouped((row for result in results.values() for row in result[table]), keys).values():
        named = {key: own[0][key] for key in keys if key in own[0]}
        measured = [name for name in own[0] if name not in (*keys, "seed")]
        rows.append(named | {"seeds": len(own)} | {name: statistics.fmean(row[name] for row in own) for name in measured})
    return rows
