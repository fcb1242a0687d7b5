"""Pairs that trained a predictor are refused by everything that needs held-out pairs, unless the caller insists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import probneural as pn
from probneural.distributions.predictors.base import with_records
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ArgumentError, CalibrationError, DataError, DataWarning
from probneural.metrics import score, score_by_lead, score_pairs
from probneural.pairs import FieldPairs
from probneural.pairs.provenance import record_of
from tests.calibration.synthetic import GRID, Synthetic, pairs
from tests.helpers import normal

C = pn.calibration
TRAIN, NEW = pairs(30), pairs(60, seed=11)
CALIBRATORS: dict[str, Callable[..., Any]] = {
    "scale": C.VarianceScale(local=False).fit,
    "scale of a mixture": lambda one, data, **flag: C.VarianceScale(local=False).fit(
        MixturePredictor([one, Synthetic(sd=2.0)]), data, **flag
    ),
    "scale mixture": C.ScaleMixture(draws=50).fit,
    "stacking": lambda one, data, **flag: C.Stacking().fit([Synthetic(sd=2.0), one], data, **flag),
    "simultaneous band": C.SimultaneousBand(0.8).fit,
    "pointwise band": C.PointwiseBand(0.8, delta=0.2).fit,
    "novelty": C.Novelty().fit,
    "novelty scale": lambda one, data, **flag: C.NoveltyScale().fit(one, data, shifted=pairs(30, errors=3.0, seed=31), **flag),
    "shifted pairs": lambda one, data, **flag: C.NoveltyScale().fit(one, pairs(30, seed=41), shifted=data, **flag),
    "residual band": lambda one, data, **flag: C.ResidualBand(lambda u, f, grid: u - f.values).fit(one, data.inputs, **flag),
    "scores of pairs": score_pairs,
    "scores": lambda one, data, **flag: score(one(data.inputs), data.outputs, noise=one.noise, **flag),
    "scores of some": lambda one, data, **flag: score(one(data.inputs)[5:], data.outputs[5:], **flag),
}


def trained() -> Synthetic:
    return with_records(Synthetic(), record_of(TRAIN))


@pytest.mark.parametrize("name", CALIBRATORS)
def test_training_pairs_are_refused_and_others_are_not(name: str) -> None:
    use, predictor = CALIBRATORS[name], trained()
    error = DataError if name.startswith("scores") else CalibrationError
    with pytest.raises(error, match="30 of 30 that trained it|25 of 25 that trained it") as raised:
        use(predictor, TRAIN)
    assert "hold pairs out" in raised.value.remedy
    assert "allow_training_data=True" in raised.value.remedy
    with pytest.raises(error, match="1 of (60|55) that trained it"):
        use(predictor, FieldPairs.cat([NEW[:59], TRAIN[:1].to(torch.float32).to(torch.float64)]))
    use(predictor, NEW)
    use(Synthetic(), TRAIN)  # whose training pairs are unknown


@pytest.mark.parametrize("name", CALIBRATORS)
def test_who_insists_is_warned_once(name: str) -> None:
    with pytest.warns(DataWarning, match="trained the predictor: errors on them are smaller") as warned:
        CALIBRATORS[name](trained(), TRAIN, allow_training_data=True)
    assert len(warned) == 1
    with pytest.raises(ArgumentError, match="allow_training_data"):
        CALIBRATORS[name](trained(), NEW, allow_training_data="no")


BANDS: dict[str, Callable[[Synthetic, FieldPairs], Any]] = {
    "simultaneous band": lambda one, data: C.SimultaneousBand(0.8).fit(one, NEW).coverage(data),
    "pointwise band": lambda one, data: C.PointwiseBand(0.8, delta=0.2).fit(one, NEW).coverage(data),
}


@pytest.mark.parametrize("name", BANDS)
def test_coverage_of_training_pairs_warns(name: str) -> None:
    with pytest.warns(DataWarning, match="30 of 30 pairs for coverage trained the predictor") as warned:
        coverage = BANDS[name](trained(), TRAIN)
    assert len(warned) == 1
    assert coverage == BANDS[name](Synthetic(), TRAIN)  # whose training pairs are unknown
    BANDS[name](trained(), pairs(30, seed=51))


def test_a_predictor_that_was_calibrated_or_measured_since_is_the_same() -> None:
    scaled = C.VarianceScale(local=False).fit(trained(), NEW)
    probe = pn.functionals.integral(GRID)
    measured = scaled.condition(NEW.inputs[:2], probe, values=probe(NEW.outputs.values[:2]), noise=0.1)
    for predictor in (scaled, measured, C.ScaleMixture(draws=50).fit(scaled, NEW)):
        with pytest.raises(CalibrationError, match="30 of 30 that trained it"):
            C.SimultaneousBand().fit(predictor, TRAIN)


class Step(Synthetic):
    """A step of time: half of the state, more or less."""

    def _draw(self, inputs: pn.Field, query: pn.Grid | None, seed: int) -> torch.Tensor:
        return 0.5 * inputs.values + 0.1 * normal(*inputs.values.shape, seed=seed)


def trajectories(n: int, *, seed: int = 0, steps: int = 4) -> pn.FieldTrajectories:
    states = [normal(n, 1, GRID.size, seed=f"start {seed}")]
    for step in range(steps):
        states.append(0.5 * states[-1] + 0.1 * normal(n, 1, GRID.size, seed=f"{seed} {step}"))
    times = torch.arange(1.0, steps + 1.0, dtype=torch.float64)
    return pn.FieldTrajectories(pn.Field(states[0], GRID), torch.stack(states[1:], 1), times=times)


@pytest.mark.parametrize("name", ["scale", "band", "scores"])
def test_trajectories_with_a_step_that_trained_the_predictor_are_refused(name: str) -> None:
    truth, new = trajectories(12), trajectories(12, seed=1)
    error = DataError if name == "scores" else CalibrationError
    use = {"scale": C.LeadScale().fit, "band": C.HorizonBand().fit, "scores": score_by_lead}[name]
    predictor = with_records(Step(), record_of(truth[:5].windows()[[2, 7]]))  # a later step of trajectories 0 and 1

    def forecast(of: pn.FieldTrajectories) -> Any:
        return predictor.rollout(of.start, steps=4, members=4, show_progress=False)

    with pytest.raises(error, match="2 of 12 that trained it"):
        use(forecast(truth), truth)
    with pytest.raises(error, match="2 of 12 that trained it"):
        use(C.LeadScale().fit(forecast(new), new)(forecast(truth)), truth)
    with pytest.warns(DataWarning, match="2 of 12"):
        use(forecast(truth), truth, allow_training_data=True)
    use(forecast(new), new)
    if name == "band":
        with pytest.warns(DataWarning, match="2 of 12 pairs for coverage"):
            use(forecast(new), new).coverage(forecast(truth), truth)


def test_results_of_a_predictor_that_nobody_calibrated_say_so() -> None:
    raw, truth = Synthetic(), trajectories(12)
    scaled = C.VarianceScale(local=False).fit(raw, NEW)
    assert repr(raw).endswith(", uncalibrated")
    for predictor in (scaled, C.ScaleMixture(draws=50).fit(raw, NEW), C.Stacking().fit([raw, Synthetic(sd=2.0)], NEW)):
        assert "uncalibrated" not in repr(predictor)
    mixture = MixturePredictor([raw])
    assert repr(mixture).count("uncalibrated") == 1
    test = pairs(20, seed=51)
    probe = pn.functionals.integral(GRID)
    for predictor in (raw, mixture, scaled):
        u = predictor(test.inputs)
        numbers = pn.Field(probe(test.outputs.values), u.apply(probe).grid)
        tables = [score(u, test.outputs, noise=0.1), score_pairs(predictor, test), score(u.apply(probe), numbers)]
        for table in tables:
            assert ("uncalibrated" in str(table)) == (predictor is not scaled)
            assert table.to_dict()["is_uncalibrated"] == (predictor is not scaled)
    exact = pn.distributions.EmpiricalField(normal(5, 20, 1, 16), grid=GRID)
    assert "uncalibrated" not in str(score(exact, test.outputs))
    forecast = Step().rollout(truth.start, steps=4, members=4, show_progress=False)
    assert repr(forecast).endswith(", uncalibrated")
    by_lead = C.LeadScale().fit(forecast, truth)(forecast)
    assert "uncalibrated" not in repr(by_lead)
    assert [("uncalibrated" in str(score_by_lead(one, truth))) for one in (forecast, by_lead)] == [True, False]
    assert score_by_lead(forecast, truth).to_dict()["is_uncalibrated"]


def test_figures_of_a_predictor_that_nobody_calibrated_say_so() -> None:
    test, truth, raw = pairs(20, seed=51), trajectories(12), Synthetic()
    scaled = C.VarianceScale(local=False).fit(raw, NEW)
    forecast = Step().rollout(truth.start, steps=4, members=4, show_progress=False)
    probe, plots = pn.functionals.integral(GRID), pn.plots

    def words(figure: Any) -> str:
        figure.canvas.draw()
        texts = [one.get_text() for panel in figure.axes for one in panel.findobj(lambda part: hasattr(part, "get_text"))]
        return " ".join([figure.get_supxlabel(), *texts])

    for predictor in (raw, scaled):
        u = predictor(test.inputs)
        figures = [plots.field(u), plots.calibration(u, test.outputs), plots.quantity(u.apply(probe))]
        assert [("uncalibrated" in words(figure)) for figure in figures] == [predictor is raw] * len(figures)
    by_lead = C.LeadScale().fit(forecast, truth)(forecast)
    for one in (forecast, by_lead):
        scores = score_by_lead(one, truth)
        figures = [plots.fan(one, probe), plots.space_time(one), plots.lead_scores(scores), plots.rank_histograms(scores)]
        assert [("uncalibrated" in words(figure)) for figure in figures] == [one is forecast] * len(figures)
