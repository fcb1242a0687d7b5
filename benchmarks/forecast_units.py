"""Work items of the forecast benchmark, each stored in a file when finished."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import probneural as pn
from benchmarks import forecast_recipes, kept_units, recipes
from benchmarks.forecast_cases import Case, Truth, evenly_spread
from benchmarks.forecast_recipes import RECIPES, DressedForecast, StepRegression
from probneural.distributions import Predictor
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.errors import ProbneuralError
from probneural.pairs import evenly_spread_rows
from probneural.randomness import stream_seed

LEVEL = 0.9
VALID = 0.1
"""Relative L2 error up to which a roll-out counts as valid."""
BOUND = 3.0
"""Largest norm of a state in a stable roll-out, relative to the largest norm of a true state."""
DRAWS = ("trajectory", "step")
POSTERIORS = ("one step", "pushed forward")
"""Recipes of networks with posteriors."""
BASELINES = "baselines"
ONE_FACTOR = "one factor"
"""Key of results with one factor per lead."""
CHOICE = "CRPS on the trajectories for scaling"
"""Score that selects the best head without test trajectories."""
KEPT = ("relative_l2", "rmse", "spread_skill", "crps", "energy", "coverage")
"""Scores stored by lead."""
FAILURES = (ProbneuralError, RuntimeError)


@dataclass(frozen=True)
class Unit(kept_units.Unit):
    """Forecasts of one problem and seed by one recipe or without networks, or the accuracy of one recipe.

    Attributes:
        case: The equation.
        kind: `"posteriors"`, `"baselines"` or `"recipes"`.
        recipe: A name of `RECIPES`, or an empty text.
        seed: Seed of functions, weights and draws.
        commit: Commit of the code at the start of the benchmark.
    """

    case: Case
    kind: str
    recipe: str
    seed: int
    commit: str

    @property
    def name(self) -> str:
        """Name in progress messages."""
        return f"{self.case.name}, {self.kind}{', ' * bool(self.recipe)}{self.recipe}, seed {self.seed}"

    @property
    def settings(self) -> tuple[object, ...]:
        """Settings of the results beyond the fields."""
        return (RECIPES,)

    def run(self, folder: Path) -> dict[str, Any]:
        """Compute the results, with networks stored in a folder."""
        return {"posteriors": _posteriors, "baselines": _baselines, "recipes": _recipe}[self.kind](self, folder)

    def trained(self, folder: Path, number: int = 0) -> tuple[Any, dict[str, Any]]:
        """A network of the recipe, with facts of its training."""
        return forecast_recipes.trained(
            self.case, self.recipe, seed=self.seed, number=number, folder=folder / "networks", commit=self.commit
        )

    def truth(self, part: str) -> Truth:
        """Exact trajectories of one part."""
        return self.case.truth(part, seed=self.seed)


def units(todo: list[Case], *, seeds: Sequence[int], commit: str) -> list[Unit]:
    """All work items by problem and seed, so that methods are interleaved."""
    found: list[Unit] = []
    for case in todo:
        for seed in seeds:
            found += [Unit(case, "recipes", recipe, seed, commit) for recipe in RECIPES]
            found.append(Unit(case, BASELINES, "", seed, commit))
            found += [Unit(case, "posteriors", recipe, seed, commit) for recipe in POSTERIORS]
    return found


def _posteriors(unit: Unit, folder: Path) -> dict[str, Any]:
    """Scores of every head and kind of draws with networks of one recipe, and of one network with its residuals."""
    sizes, train = unit.case.sizes, unit.truth("train")
    networks = [unit.trained(folder, number) for number in range(sizes.networks)]
    pairs, first = train.windows(), networks[0][0]
    makers: dict[str, Callable[[], Predictor]] = {
        "last layer": lambda: pn.heads.LastLayerLaplace().fit(first, pairs),
        f"ensemble of {sizes.networks}": lambda: recipes.ensemble([network for network, _ in networks], pairs),
    }
    methods: dict[str, Any] = {"residuals": _dressed(unit, partial(forecast_recipes.rolled_out, first))}
    for head, make in makers.items():
        methods |= _heads(unit, head, make)
    return {"methods": methods, "training_seconds": [facts["seconds"] for _, facts in networks]}


def _heads(unit: Unit, head: str, make: Callable[[], Predictor], *, kinds: tuple[str, ...] = DRAWS) -> dict[str, Any]:
    """Scores of a head by kind of draws, or the reason of a failure.

    Its variance of one step is scaled before the roll-out: too wide draws leave the states of the training data.
    """
    start = time.process_time()
    try:
        steps = unit.truth("scaling").windows()
        predictor = pn.calibration.VarianceScale().fit(make(), evenly_spread(steps, unit.case.sizes.steps))
    except FAILURES as error:
        return {f"{head}, {draws} draws": {"failed": _said(error)} for draws in kinds}
    fitting = time.process_time() - start
    found: dict[str, Any] = {}
    for draws in kinds:
        start = time.process_time()
        name = f"{head}, {draws} draws"
        try:
            found[name] = _calibrated(unit, predictor, draws=draws)
        except FAILURES as error:
            found[name] = {"failed": _said(error)}
        found[name] |= {"fit_seconds": fitting, "seconds": time.process_time() - start}
    return found


def _calibrated(unit: Unit, predictor: Predictor, *, draws: str) -> dict[str, Any]:
    """Scores of a predictor's roll-outs: raw, with one factor per lead, and with local scales, fitted to other trajectories.

    All roll-outs have one seed: a forecast is then one function of the start, as conformal bands require.
    """
    sizes, seed = unit.case.sizes, stream_seed(unit.seed, "forecast draws")

    def forecast(part: str) -> Forecast:
        options: dict[str, Any] = {"steps": sizes.leads, "members": sizes.members, "draws": draws, "seed": seed}
        return predictor.rollout(unit.truth(part).at(0), **options, show_progress=False)

    raw, scaling, test = forecast("test"), forecast("scaling"), unit.truth("test")
    even, scale = (pn.calibration.LeadScale(local=local).fit(scaling, unit.truth("scaling")) for local in (False, True))
    seen = pn.metrics.score_by_lead(scale(scaling), unit.truth("scaling"), scores=("crps",))
    found = _scored(unit, lambda part: scale(raw if part == "test" else forecast(part)))
    return found | {"raw": _scores(raw, test), ONE_FACTOR: _scores(even(raw), test), CHOICE: seen["crps"].overall}


def _dressed(unit: Unit, roll_out: Callable[[Truth], Tensor]) -> dict[str, Any]:
    """Scores of one state per lead plus its errors on the scaling trajectories."""
    scaling = unit.truth("scaling")
    try:
        errors = scaling.values - roll_out(scaling).to(scaling.values)
        errors = errors[evenly_spread_rows(len(errors), unit.case.sizes.residuals)]

        def forecast(part: str) -> Forecast:
            truth = unit.truth(part)
            return DressedForecast(roll_out(truth).to(truth.values), errors, grid=truth.grid)

        return _scored(unit, forecast)
    except FAILURES as error:
        return {"failed": _said(error)}


def _scored(unit: Unit, forecast: Callable[[str], Forecast]) -> dict[str, Any]:
    """Scores of forecasts of the test trajectories, and the coverage of a band fitted to others."""
    bands, test, found = unit.truth("bands"), unit.truth("test"), forecast("test")
    band = pn.calibration.HorizonBand(LEVEL).fit(forecast("bands"), bands)
    return _scores(found, test) | {"band": band.coverage(found, test).horizon}


def _baselines(unit: Unit, folder: Path) -> dict[str, Any]:
    """Scores without a network: persistence, climatology, step regression, Gaussian process."""
    train = unit.truth("train")
    start = time.process_time()
    regression = StepRegression.fitted(train, unit.truth("scaling"))
    seconds = time.process_time() - start
    methods = {
        "persistence": _dressed(unit, forecast_recipes.persistence),
        "climatology": _dressed(unit, forecast_recipes.climatology),
        "regression of the step": _dressed(unit, regression.rolled_out) | {"fit_seconds": seconds, "ridge": regression.ridge},
    }
    some = evenly_spread(train.windows(), unit.case.sizes.kernel)
    methods |= _heads(unit, "kernel operator", lambda: pn.heads.KernelOperator().fit(None, some), kinds=DRAWS[:1])
    return {"methods": methods}


def _recipe(unit: Unit, folder: Path) -> dict[str, Any]:
    """Accuracy of one network by lead without posterior, and stability of long roll-outs."""
    operator, facts = unit.trained(folder)
    test = unit.truth("test")
    states = forecast_recipes.rolled_out(operator, test)
    errors = torch.stack(
        [
            pn.metrics.relative_l2(pn.Field(states[:, lead - 1], test.grid), test.at(lead)).mean(1)
            for lead in range(1, test.steps + 1)
        ],
        dim=1,
    ).double()
    valid = (errors <= VALID).cumprod(1).sum(1)
    last = forecast_recipes.rolled_out(operator, test, steps=unit.case.sizes.long)[:, -1]
    norms, largest = (test.grid.mean(some.double().square().flatten(2)) for some in (last, test.values.flatten(0, 1)))
    stable = (norms <= BOUND**2 * largest.amax(0)).all(1)  # False for NaN
    return facts | {
        "errors": errors.mean(0).tolist(),
        "valid": float(valid.double().mean()),
        "stable": float(stable.double().mean()),
    }


def _scores(forecast: Forecast, truth: Truth) -> dict[str, Any]:
    """Scores by lead and over all leads."""
    found = pn.metrics.score_by_lead(forecast, truth, level=LEVEL, threshold=VALID, scores=KEPT).to_dict()
    scores: Mapping[str, Any] = found["scores"]
    kept = {name: {key: scores[name][key] for key in ("values", "overall")} for name in KEPT if name in scores}
    return {"scores": kept, "horizon": found["horizon"]}


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
