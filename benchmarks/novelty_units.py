"""Work items of the novelty benchmark: detectors and inflated error bars on one problem and seed.

The heads are the last-layer Laplace posterior of one FNO and the kernel operator. Detectors are fitted to calibration
samples, and separate test samples in distribution from those of each named shift. Error bars are scaled in
distribution, then inflated by factors fitted to synthetic shifts. Nothing is fitted to named shifts; an
inflation "of other kinds" also excludes the synthetic shifts that resemble the tested one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

import probneural as pn
from benchmarks.kept_units import noted
from benchmarks.measurements import measured, noise_variance
from benchmarks.over_seeds import Row
from benchmarks.problem_units import ProblemUnit
from probneural.calibration.novelty.detector import NoveltyDetector
from probneural.randomness import stream, stream_seed

LEVEL = 0.9
ALARM = 0.05
"""P-value up to which a sample is flagged."""
LIKE = {"amplitude": ("stretched", "superposed"), "contrast": ("stretched", "superposed"), "roughness": ("roughened",)}
"""Synthetic shifts that resemble a named one."""
PARTS = ("training", "calibration", "conformal", "test", "shifted", "synthetic")
LABELLED = 100
"""Labelled synthetic samples per kind."""
NOT_WIDENED, ALL_KINDS, OTHER_KINDS = "no", "of all kinds", "of other kinds"
COMBINED, REFERRED = "combined", "combined, reference"
"""Scores of detectors without and with training samples as reference."""
FAILED = "failed"


@dataclass(frozen=True, eq=False, kw_only=True)
class Functions:
    """Samples of a work item, with measurement noise in all outputs.

    Attributes:
        train: Training pairs.
        calibration: Pairs for detectors, scales and inflations.
        conformal: Pairs for bands.
        test: Test pairs in distribution.
        shifts: Test pairs of each named shift.
        synthetic: Labelled synthetic shifts by kind; none if the solver does not support them.
        unseen: Shifts of the equation without change of inputs.
        noise: Variance of the measurement noise, `(c,)`, in physical units squared.
    """

    train: pn.FieldPairs
    calibration: pn.FieldPairs
    conformal: pn.FieldPairs
    test: pn.FieldPairs
    shifts: Mapping[str, pn.FieldPairs]
    synthetic: Mapping[str, pn.FieldPairs]
    unseen: frozenset[str]
    noise: Float64[Tensor, " c"]


class Unit(ProblemUnit):
    """Detectors and inflations for two heads, on one problem and seed."""

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit heads, detectors and inflations, and score."""
        del folder
        found: dict[str, list[Row]] = {"detection": [], "coverage": [], FAILED: []}
        functions = self.functions(found[FAILED])
        operator, _, _ = self.case.recipe("FNO").train(
            functions.train, seed=stream_seed(self.seed, "novelty recipe"), tick=lambda: None
        )
        heads: dict[str, Callable[[], pn.distributions.Predictor]] = {
            "last-layer Laplace": lambda: pn.heads.LastLayerLaplace().fit(operator, functions.train),
            "kernel operator": lambda: pn.heads.KernelOperator().fit(None, functions.train),
        }
        for name, make in heads.items():
            for table, rows in scored(make, functions).items():
                found[table] += [{"head": name} | row for row in rows]
        whose = {"problem": self.source.name, "head": "both heads", "seed": self.seed}
        return {table: [whose | row for row in rows] for table, rows in found.items()}

    def functions(self, failed: list[Row]) -> Functions:
        """Draw, solve and add noise; synthetic shifts only if the solver supports them."""
        source, problem = self.source, self.source.problem
        shifted, count = problem.shifts(), source.fields
        train = self.sample(problem, "training", source.pairs)
        noise = noise_variance(train)

        def noisy(pairs: pn.FieldPairs, *indices: int) -> pn.FieldPairs:
            return measured(pairs, noise, stream(self.seed, "novelty noise", *indices))

        calibration, conformal, test = (
            noisy(self.sample(problem, part, count), PARTS.index(part)) for part in ("calibration", "conformal", "test")
        )
        synthetic: dict[str, pn.FieldPairs] = {}
        with noted(failed, "synthetic shifts"):
            synthetic = self.synthetic()
        return Functions(
            train=noisy(train, PARTS.index("training")),
            calibration=calibration,
            conformal=conformal,
            test=test,
            shifts={
                name: noisy(self.sample(other, "shifted", count), PARTS.index("shifted"), number)
                for number, (name, other) in enumerate(shifted.items())
            },
            synthetic={
                kind: noisy(pairs, PARTS.index("synthetic"), number) for number, (kind, pairs) in enumerate(synthetic.items())
            },
            unseen=frozenset(
                name
                for name, other in shifted.items()
                if torch.equal(*(self.sample(one, "test", 2).inputs.values for one in (problem, other)))
            ),
            noise=noise,
        )

    def sample(self, problem: pn.problems.Problem, part: str, count: int) -> pn.FieldPairs:
        """Exact pairs of one part."""
        seed = stream_seed(self.seed, "novelty functions", PARTS.index(part))
        return problem.sample(count, resolution=self.source.resolution, seed=seed)

    def synthetic(self) -> dict[str, pn.FieldPairs]:
        """Synthetic shifts, labelled by the problem's solver."""
        problem = self.source.problem
        inputs = self.sample(problem, "synthetic", min(LABELLED, self.source.fields)).inputs
        seed = stream_seed(self.seed, "novelty functions", len(PARTS))
        if isinstance(problem, pn.problems.Darcy2D):
            shifted = shifted_sources(inputs, seed=seed)
        else:
            shifted = pn.calibration.synthetic_shifts(inputs, seed=seed)
        return {kind: pn.FieldPairs(some, problem.solve(some)) for kind, some in shifted.items()}


def shifted_sources(inputs: pn.Field, *, seed: int) -> dict[str, pn.Field]:
    """Synthetic shifts of `Darcy2D`: of h = f/φ only, since the solver requires harmonic φ."""
    root, source = inputs.values[:, :1], inputs.values[:, 1:]
    shifted = pn.calibration.synthetic_shifts(pn.Field(source / root, inputs.grid), seed=seed)
    return {kind: pn.Field(torch.cat([root, root * some.values], dim=1), inputs.grid) for kind, some in shifted.items()}


def scored(make: Callable[[], pn.distributions.Predictor], functions: Functions) -> dict[str, list[Row]]:
    """Rows of both tables for one head, and failures; an error drops its own rows only."""
    found: dict[str, list[Row]] = {"detection": [], "coverage": [], FAILED: []}
    with noted(found[FAILED], "head"):
        head = make()
        with noted(found[FAILED], "detection"):
            detectors = (
                pn.calibration.Novelty().fit(head, functions.calibration, reference=reference)
                for reference in (None, functions.train)
            )
            found["detection"] = detection(functions, *detectors)
        with noted(found[FAILED], "scale"):
            scaled = pn.calibration.VarianceScale(noise=functions.noise).fit(head, functions.calibration)
            for widening, places, kinds in widenings(functions):
                with noted(found[FAILED], f"widening {widening}, {' and '.join(places)}"):
                    predictor = inflated(scaled, functions, kinds) if kinds else scaled
                    found["coverage"] += coverage(predictor, places, functions, scaled=scaled, widening=widening)
    return found


def widenings(functions: Functions) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Inflations: name, scored test sets, and synthetic kinds (none: no inflation)."""
    places, kinds = ("in distribution", *functions.shifts), tuple(functions.synthetic)
    if not kinds:
        return [(NOT_WIDENED, places, ())]
    found = [(NOT_WIDENED, places, ()), (ALL_KINDS, places, kinds)]
    for alike in dict.fromkeys(LIKE[place] for place in functions.shifts if place in LIKE):
        own = tuple(place for place in functions.shifts if LIKE.get(place) == alike)
        if others := tuple(kind for kind in kinds if kind not in alike):
            found.append((OTHER_KINDS, own, others))
    return found


def inflated(scaled: pn.distributions.Predictor, functions: Functions, kinds: Sequence[str]) -> pn.distributions.Predictor:
    """A predictor inflated by some synthetic shifts."""
    shifted = [functions.synthetic[kind] for kind in kinds]
    return pn.calibration.NoveltyScale().fit(scaled, functions.calibration, shifted=shifted)


def auroc(ordinary: Tensor, shifted: Tensor) -> float:
    """Probability that the score of a shifted sample exceeds that of one in distribution; ties count half.

    Examples:
        >>> import torch
        >>> auroc(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
        0.875
    """
    difference = shifted[:, None] - ordinary
    return float((difference > 0).double().mean() + 0.5 * (difference == 0).double().mean())


def detection(functions: Functions, detector: NoveltyDetector, referred: NoveltyDetector) -> list[Row]:
    """AUROC of each score per shift, and the fraction of samples that the combined score flags.

    Args:
        functions: Samples of the work item.
        detector: Detector fitted to calibration samples only.
        referred: Detector with scores fitted to the larger training set.
    """
    ordinary, known = (one.scores(functions.test.inputs) for one in (detector, referred))
    alarms = float((detector(functions.test.inputs) <= ALARM).double().mean())
    rows = []
    for shift, pairs in functions.shifts.items():
        scores = detector.scores(pairs.inputs)
        flagged = float((detector(pairs.inputs) <= ALARM).double().mean())
        aurocs = {name: auroc(ordinary[name], scores[name]) for name in detector.names if ", channel" not in name}
        aurocs[REFERRED] = auroc(known[COMBINED], referred.scores(pairs.inputs)[COMBINED])
        inputs = "as they were" if shift in functions.unseen else "changed"
        rows.append({"shift": shift, "inputs": inputs} | aurocs | {"flagged": flagged, "false alarms": alarms})
    return rows


def coverage(
    predictor: pn.distributions.Predictor,
    places: Sequence[str],
    functions: Functions,
    *,
    scaled: pn.distributions.Predictor,
    widening: str,
) -> list[Row]:
    """Pointwise and simultaneous coverage and width for each test set."""
    usual, at_home = mean_std(scaled, functions.test), mean_std(predictor, functions.test)
    band = pn.calibration.SimultaneousBand(LEVEL).fit(predictor, functions.conformal)
    rows = []
    for place in places:
        pairs = {"in distribution": functions.test, **functions.shifts}[place]
        u = predictor(pairs.inputs, pairs.outputs.grid)
        interval = u.interval(LEVEL, noise=predictor.noise)
        truth = pairs.outputs.values.double()
        inside = (truth >= interval.lower.double()) & (truth <= interval.upper.double())
        chi2 = pn.metrics.chi2(pn.metrics.compare(u, pairs.outputs, noise=predictor.noise))
        rows.append(
            {
                "place": place,
                "widening": widening,
                "coverage": float(inside.double().mean()),
                "band coverage": band.coverage(pairs),
                "width in distribution": float((at_home / usual).mean()),
                "width": float((mean_std(predictor, pairs) / usual).mean()),
                "chi2": float(chi2.mean()),
            }
        )
    return rows


def mean_std(predictor: pn.distributions.Predictor, pairs: pn.FieldPairs) -> Float64[Tensor, " c"]:
    """Mean standard deviation of each channel with measurement noise, `(c,)`, in physical units."""
    variance = predictor(pairs.inputs, pairs.outputs.grid).variance.double().flatten(2)
    return (variance + predictor.noise.double()[:, None]).sqrt().mean((0, 2))
