"""How much of spread over skill is chance: what is told of a forecast whose variances are right on average.

A few functions make most of the squared errors of a network that is rolled out, so a mean over some hundred of them is far
from the one over all. Here ensembles forecast many trajectories; factors per lead are fitted on some of them and spread over
skill is measured on others, drawn anew many times, all of one distribution. What departs from 1 is chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

import probneural as pn
from benchmarks import environment, forecast_cases, forecast_recipes, kept_units, recipes, sections, studies
from benchmarks.forecast import SEEDS, SKILL_RANGE
from benchmarks.forecast_cases import Case, evenly_spread
from benchmarks.forecast_units import POSTERIORS
from benchmarks.over_seeds import Row, mean
from probneural.distributions import EmpiricalField
from probneural.randomness import stream, stream_seed

POOL = 1500
"""Trajectories that are forecast; a fifth of them on the problem that has fewest."""
COUNTS = (60, 300, 1000)
"""Trajectories that factors are fitted on, and as many others that are scored."""
SPLITS = 400
HEAD, NOTHING = "ensemble", "one variance for all functions"
SHOWN = (1, 5, 20)
LARGEST = 0.01
CHAOTIC = "kuramoto-sivashinsky"


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """Forecasts of one problem under one seed.

    Attributes:
        case: The equation.
        pool: How many trajectories are forecast.
        seed: Of functions, weights, draws and splits.
        commit: Of the code.
    """

    case: Case
    pool: int
    seed: int
    commit: str

    @property
    def name(self) -> str:
        """Name in progress messages."""
        return f"{self.case.name}, seed {self.seed}"

    def path(self, folder: Path) -> Path:
        """Where its results are kept."""
        return folder / environment.file_name(f"chance {self.name}", self, suffix=".json")

    def run(self, folder: Path) -> dict[str, Any]:
        """Forecast, and measure what splits make of it."""
        variances, squares = self._forecast(folder)
        largest = squares.sum(2).sort(0, descending=True).values
        few = max(1, round(LARGEST * len(largest)))
        found: dict[str, Any] = {"largest": (largest[:few].sum(0) / largest.sum(0)).tolist()}
        for kind, stated in ((HEAD, variances), (NOTHING, torch.ones_like(variances))):
            for count in COUNTS:
                found[f"{kind}, {count}"] = ratios(stated, squares, count=count, splits=SPLITS, seed=self.seed).tolist()
        return found

    def _forecast(self, folder: Path) -> tuple[Float64[Tensor, "n leads c"], Float64[Tensor, "n leads c"]]:
        """Variances and squared errors of an ensemble with fresh draws, averaged over the domain."""
        sizes, recipe = self.case.sizes, POSTERIORS[0]
        trained = [
            forecast_recipes.trained(
                self.case, recipe, seed=self.seed, number=number, folder=folder / "networks", commit=self.commit
            )
            for number in range(sizes.networks)
        ]
        windows = self.case.truth("train", seed=self.seed).windows()
        raw = recipes.ensemble([network for network, _ in trained], windows)
        some = evenly_spread(self.case.truth("scaling", seed=self.seed).windows(), sizes.steps)
        predictor = pn.calibration.VarianceScale().fit(raw, some)
        truth = replace(self.case, sizes=replace(sizes, test=self.pool)).truth("test", seed=self.seed)
        forecast = predictor.rollout(
            truth.at(0),
            steps=sizes.leads,
            members=sizes.members,
            draws="step",
            seed=stream_seed(self.seed, "chance of draws"),
            show_progress=False,
        )
        variances, squares = [], []
        for lead, u in forecast.leads():
            assert isinstance(u, EmpiricalField)
            error = (u.mean - truth.at(lead).values).double().square()
            variances.append(truth.grid.mean(u.variance.double().flatten(2)))
            squares.append(truth.grid.mean(error.flatten(2)))
        return torch.stack(variances, 1), torch.stack(squares, 1)


def ratios(
    variances: Float64[Tensor, "n leads c"], squares: Float64[Tensor, "n leads c"], *, count: int, splits: int, seed: int
) -> Float64[Tensor, "splits leads"]:
    """Spread over skill of as many trajectories as those whose factors make it 1, both drawn with replacement; per split.

    Args:
        variances: Stated, of each trajectory.
        squares: Squared errors.
        count: Trajectories to fit on, and others to score.
        splits: How often.
        seed: Of the draws.
    """
    generator = stream(seed, "chance of splits", count)
    found = []
    for _ in range(splits):
        first, second = torch.randint(len(squares), (2, count), generator=generator)
        factors = squares[first].mean(0) / variances[first].mean(0)
        found.append((factors * variances[second].mean(0) / squares[second].mean(0)).sqrt().mean(-1))
    return torch.stack(found)


def main(*, mode: str, output: Path, workers: int) -> dict[str, Any]:
    """Run all exact semigroups."""
    small, commit = mode == "small", environment.commit()
    todo = units(small=small, commit=commit)
    results: dict[Unit, dict[str, Any]] = {}

    def rows() -> list[Row]:
        results.update(kept_units.spread(todo, output / "forecast-chance", workers=workers, notes=notes))
        return table(results)

    notes = [
        "Ensembles of the forecast benchmark, trained on single steps, with fresh draws, and "
        f"{todo[0].pool} trajectories of each seed (shallow water: a fifth). {SPLITS} times, factors per lead are fitted on "
        "some trajectories, and spread over skill is measured on as many others, both drawn from these. sd: standard "
        f"deviation of its logarithm, mean over seeds. worst lead: 90 % of the means over {len(SEEDS)} seeds lie there, at the "
        f"lead where each is furthest from 1. met: how many of these means are within {SKILL_RANGE[0]:g} to "
        f"{SKILL_RANGE[1]:g} at every lead. largest: part of all squared errors at the last lead that the largest "
        f"{LARGEST:.0%} of the trajectories make.",
        f"{NOTHING}: the same if stated variances did not differ. Heads that know hard functions leave less to chance.",
    ]
    return sections.write("forecast-chance", {"chance": rows}, mode=mode, output=output, notes=notes, commit=commit)


def units(*, small: bool, commit: str) -> list[Unit]:
    """Of all exact semigroups, seed by seed."""
    cases = [case for case in forecast_cases.chosen(None, small=small) if case.name != CHAOTIC]
    pools = {case.name: 12 if small else POOL if case.sizes.test >= 300 else POOL // 5 for case in cases}
    return [Unit(case, pools[case.name], seed, commit) for seed in SEEDS[: 1 if small else None] for case in cases]


def table(results: Mapping[Unit, Mapping[str, Any]]) -> list[Row]:
    """One row per problem, number of trajectories and what is known of them."""
    rows = []
    for name in dict.fromkeys(unit.case.name for unit in results):
        runs = [found for unit, found in results.items() if unit.case.name == name]
        largest = mean(run["largest"][-1] for run in runs)
        for kind in (HEAD, NOTHING):
            for count in COUNTS:
                each = torch.tensor([run[f"{kind}, {count}"] for run in runs], dtype=torch.float64)
                rows.append({"problem": name, "stated": kind, "trajectories": count} | chance(each) | {"largest": largest})
    return rows


def chance(each: Float64[Tensor, "seeds splits leads"]) -> Row:
    """What splits say of one row."""
    spread = each.log().std(1).mean(0)
    leads = [lead for lead in SHOWN if lead <= each.shape[2]]
    over_seeds = each.mean(0)
    worst = over_seeds.gather(1, over_seeds.log().abs().argmax(1, keepdim=True))[:, 0]
    low, high = worst.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).tolist()
    inside = ((over_seeds >= SKILL_RANGE[0]) & (over_seeds <= SKILL_RANGE[1])).all(1)
    row: Row = {f"sd {lead}": float(spread[lead - 1]) for lead in leads}
    return row | {"worst lead": f"{low:.2f} to {high:.2f}", "met": float(inside.double().mean())}


if __name__ == "__main__":
    studies.run(main)
