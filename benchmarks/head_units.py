"""Work items of the comparison of heads: all heads on one problem, operator, amount of data and seed."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

import probneural as pn
from benchmarks import evaluation, exact, kept_units
from benchmarks.head_makers import DEFAULT, ENSEMBLE, HEADS, KERNEL, MEMBERS, Data, Workshop
from benchmarks.measurements import measured, noise_variance
from benchmarks.novelty_units import auroc
from probneural.distributions import Predictor
from probneural.errors import ProbneuralError
from probneural.randomness import stream, stream_seed

LEVEL = 0.9
FEW = 25
"""Training samples in the small-data regime."""
EVALUATIONS = 10
"""Largest factor of epochs for few samples, without more evaluations of samples than with all."""
RANDOM = (DEFAULT, KERNEL, ENSEMBLE, f"mixture of {MEMBERS}")
"""Heads that are also scored with a scale mixture."""
SCALED = ("whole", "coverage", "crps", "joint_nll")
"""Scores with and without scale mixture."""
SCORES = (
    "relative_l2",
    "crps",
    "energy",
    "joint_nll",
    "coverage",
    "simultaneous_coverage",
    "interval_width",
    "chi2",
    "spread_skill",
    "rank_within",
    "rank_within_attainable",
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Numbers of samples.

    Attributes:
        held_out: Samples for scales, for the weights of stacking, and for tests, each, by dimension.
        whole: Test samples with field-wise scores, by dimension.
    """

    held_out: tuple[int, int] = (200, 100)
    whole: tuple[int, int] = (200, 40)


SMALL = Sizes(held_out=(12, 12), whole=(6, 3))


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """All heads on one operator.

    Attributes:
        problem: Name in `exact`.
        kind: Kind of operator.
        pairs: Number of training samples, or None for all.
        seed: Seed of samples, weights and batches.
        commit: Commit of the code.
        sizes: Numbers of samples; `SMALL` also trains for seconds only.
        heads: Names in `HEADS`.
        shifts: Number of leading shifts of the problem.
    """

    problem: str
    kind: str
    pairs: int | None
    seed: int
    commit: str
    sizes: Sizes = Sizes()
    heads: tuple[str, ...] = tuple(HEADS)
    shifts: int = 2

    @property
    def name(self) -> str:
        """Name in progress messages."""
        return f"{self.problem}, {self.kind}, {self.regime}, seed {self.seed}"

    @property
    def regime(self) -> str:
        """Number of training samples in words."""
        return "all functions" if self.pairs is None else f"{self.pairs} functions"

    def run(self, folder: Path) -> dict[str, Any]:
        """Train, fit and scale all heads, and score; then score some with a scale mixture."""
        source, recipe = _case(self.problem, self.kind, is_small=self.sizes == SMALL)
        if self.pairs is not None:
            times = max(1, min(EVALUATIONS, source.pairs // self.pairs))
            recipe = replace(recipe, epochs=times * recipe.epochs)
        held_out = self.sizes.held_out[min(source.dimension, 2) - 1]
        exact = [
            source.problem.sample(count, resolution=source.resolution, seed=stream_seed(self.seed, "heads functions", part))
            for part, count in enumerate((self.pairs or source.pairs, *[held_out] * 3))
        ]
        places = ["in distribution"]
        for name, problem in list(source.problem.shifts().items())[: self.shifts]:
            own = stream_seed(self.seed, "heads functions", len(exact))
            places.append(name)
            exact.append(problem.sample(held_out, resolution=source.resolution, seed=own))
        noise = noise_variance(exact[0])
        train, scaling, weighing, *tests = (
            measured(pairs, noise, stream(self.seed, "heads noise", part)) for part, pairs in enumerate(exact)
        )
        shop = Workshop(recipe, Data(train, scaling, weighing, noise), seed=self.seed)
        rows, randomly = [], []
        for head in self.heads:
            row: dict[str, Any] = {"problem": self.problem, "operator": self.kind, "regime": self.regime, "head": head}
            try:
                predictor, found = self._judged(head, shop, dict(zip(places, tests, strict=True)))
                rows += [row | {"seed": self.seed} | one for one in found]
                if head in RANDOM:
                    mixed = pn.calibration.ScaleMixture(seed=self.seed).fit(predictor, scaling)
                    random = self._few_scores(mixed(tests[0].inputs), tests[0], noise=mixed.noise)
                    both = {"scale": (predictor, found[0]), "random": (mixed, random)}
                    each: dict[str, float] = {}
                    for scale, (one, known) in both.items():
                        known = known | {"whole": evaluation.whole_coverage(one, tests[0])}
                        each |= {f"{name}, {scale}": known[name] for name in SCALED}
                    randomly.append(row | {"seed": self.seed} | each)
            except (ProbneuralError, RuntimeError) as error:  # stored as a failed row, so that others continue
                traceback.print_exc()
                rows.append(row | {"seed": self.seed, "on": "in distribution", "failed": f"{type(error).__name__}: {error}"})
        return {"rows": rows, "random scale": randomly}

    def _judged(self, head: str, shop: Workshop, places: Mapping[str, pn.FieldPairs]) -> tuple[Predictor, list[dict[str, Any]]]:
        """The scaled head, and one row per test set."""
        made = shop.head(head)
        raw = made.predictor
        facts: dict[str, Any] = {"training_seconds": made.trainings, "fit_seconds": made.fit}
        test = next(iter(places.values()))
        comparison = pn.metrics.compare(raw(test.inputs), test.outputs, noise=raw.noise)
        facts["raw_chi2"] = float(pn.metrics.chi2(comparison).mean())
        predictor = shop.data.scale().fit(raw, shop.data.scaling)
        facts["scale"] = float(predictor.scale.max())
        ordinary = _stated(predictor, test)
        found = []
        for place, pairs in places.items():
            start = time.process_time()
            u = predictor(pairs.inputs)
            row = facts | {"on": place} | self._scores(u, pairs, noise=predictor.noise)
            row["seconds"] = time.process_time() - start
            if found:  # AUROC of the predicted variance for shifted samples
                row["auroc"] = auroc(ordinary, _stated(predictor, pairs))
            found.append(row)
        return predictor, found

    def _scores(self, u: pn.distributions.FieldDistribution, pairs: pn.FieldPairs, *, noise: torch.Tensor) -> dict[str, float]:
        """Pointwise scores of all samples, field-wise scores of some."""
        scores = pn.metrics.score(u, pairs.outputs, noise=noise, level=LEVEL, whole=self._whole(pairs)).to_dict()
        return {name: scores[name] for name in SCORES}

    def _few_scores(
        self, u: pn.distributions.FieldDistribution, pairs: pn.FieldPairs, *, noise: torch.Tensor
    ) -> dict[str, float]:
        """Scores of `SCALED` without draws."""
        some = slice(self._whole(pairs))
        comparison = pn.metrics.compare(u, pairs.outputs, noise=noise)
        together = pn.metrics.compare(u[some], pairs.outputs[some], noise=noise)
        return {
            "coverage": float(pn.metrics.coverage(comparison, level=LEVEL).mean()),
            "crps": float(pn.metrics.crps(comparison).mean()),
            "joint_nll": float(pn.metrics.joint_nll(together).mean()),
        }

    def _whole(self, pairs: pn.FieldPairs) -> int:
        """Number of samples with field-wise scores."""
        return self.sizes.whole[min(pairs.outputs.grid.dimension, 2) - 1]


@lru_cache
def _case(problem: str, kind: str, *, is_small: bool) -> tuple[Any, Any]:
    """Distribution of the samples and recipe of the operator."""
    (case,) = exact.chosen("small" if is_small else "full", problem=problem)
    return case.source, case.recipe(kind)


def _stated(predictor: Predictor, pairs: pn.FieldPairs) -> torch.Tensor:
    """Predicted variance of each sample, averaged over domain and channels, in physical units squared."""
    u = predictor(pairs.inputs)
    variance = u.variance.double().flatten(2)
    return u.grid.mean(variance).mean(1)
