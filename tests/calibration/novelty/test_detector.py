"""Novelty: uniform p-values for ordinary functions, small ones for strange functions, and what no score can see."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import probneural as pn
from benchmarks.novelty_units import auroc
from probneural.calibration import Novelty
from probneural.calibration.novelty.detector import NoveltyDetector, conformal_p_values, uncalibrated
from probneural.calibration.novelty.scores import (
    Describer,
    FittedScores,
    LeadingComponents,
    MahalanobisDistance,
    _upper_moments,
    cross_fitted_standards,
)
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import CalibrationError, DataError, DataWarning, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.problems import Burgers, GaussianRandomField, Helmholtz
from tests.calibration.synthetic import GRID, Members, Synthetic, pairs
from tests.helpers import normal

BURGERS = Burgers(random_field=GaussianRandomField(1, 15))
LINE = BURGERS.grid(32)
NAMES = ("components", "residual", "spectrum", "variance", "combined")


def paired(inputs: Field) -> FieldPairs:
    """Inputs beside outputs that are not read."""
    return FieldPairs(inputs, inputs)


def draws(count: int, *, seed: int, problem: Burgers = BURGERS) -> FieldPairs:
    """Random functions of an exact distribution."""
    return paired(problem.sample_inputs(count, resolution=32, seed=seed, dtype=torch.float64))


def bumps(count: int, center: float, *, seed: int) -> FieldPairs:
    """Bumps of random height at one place, which vary in shape a little."""
    distance = LINE.points[:, 0] - center
    shape = torch.exp(-0.5 * ((distance + distance.round().neg()) / 0.05).square())
    return paired(
        Field((1.0 + 0.1 * normal(count, 1, 1, seed=seed)) * shape + 0.01 * normal(count, 1, 32, seed=seed + 1), LINE)
    )


@pytest.fixture(scope="module")
def detector() -> NoveltyDetector:
    return Novelty().fit(Synthetic(), draws(200, seed=0))


def uniformity(p_values: Tensor, ranked: int) -> Tensor:
    """How far P(p <= t) lies above t at the values that p can have, on average over draws of the calibration functions."""
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75], dtype=torch.float64)
    allowed = (levels * (ranked + 1)).floor() / (ranked + 1)
    return (p_values[..., None] <= levels).double().mean((0, 1)) - allowed


@pytest.mark.parametrize(("referred", "ranked"), [(False, 15), (True, 20)])
def test_p_values_of_fresh_functions_are_uniform(referred: bool, ranked: int) -> None:
    """Over 80 draws of 30 calibration functions, some of which give ranks: for each score, exact up to chance."""
    found: dict[str, list[Tensor]] = {}
    reference = draws(30, seed=1000) if referred else None
    for draw in range(80):
        data = draws(60, seed=draw)
        fitted = Novelty(seed=draw).fit(Synthetic(), data[:30], reference=reference)
        for name, values in fitted.p_values(data[30:].inputs).items():
            found.setdefault(name, []).append(values)
    assert tuple(found) == NAMES
    for name, values in found.items():
        difference = uniformity(torch.stack(values), ranked)
        error = math.sqrt(0.25 / ((ranked + 1) * 80))  # a Beta variable's for each draw; more functions do not lessen it
        assert difference.abs().max() < 4 * error, (name, difference)


def test_ranks_among_the_functions_that_scores_were_fitted_on_would_not_be() -> None:
    """What the division of the calibration functions is for: their own distances are too small."""
    below = []
    for draw in range(40):
        data, predictor = draws(60, seed=draw), Synthetic()
        described = [Describer(LINE, LINE)(predictor, part.inputs) for part in (data[:30], data[30:])]
        scores = FittedScores.fit(described[0])
        old, new = (scores(part)["spectrum"] for part in described)
        below.append(conformal_p_values(new, old, groups=torch.arange(len(old))) <= 0.1)
    assert torch.stack(below).double().mean() > 0.2


@pytest.mark.parametrize("shift", ["amplitude", "roughness"])
def test_larger_and_rougher_functions_are_seen(detector: NoveltyDetector, shift: str) -> None:
    ordinary, shifted = draws(200, seed=1), draws(200, seed=2, problem=BURGERS.shifts()[shift])
    own, other = detector.scores(ordinary.inputs), detector.scores(shifted.inputs)
    for name in ("spectrum", "combined"):
        assert auroc(own[name], other[name]) > 0.97
    assert (detector(shifted.inputs) <= 0.05).double().mean() > 0.8
    assert (detector(ordinary.inputs) <= 0.05).double().mean() < 0.15


def test_moved_functions_are_seen_by_components_though_not_by_spectra() -> None:
    fitted = Novelty().fit(Synthetic(), bumps(100, 0.3, seed=0))
    own, other = (fitted.scores(bumps(100, center, seed=5).inputs) for center in (0.3, 0.7))
    assert auroc(own["residual"], other["residual"]) == 1.0
    assert auroc(own["combined"], other["combined"]) > 0.99
    assert auroc(own["spectrum"], other["spectrum"]) < 0.6


def test_nothing_sees_an_equation_that_changed_with_equal_inputs() -> None:
    """Helmholtz near resonance: the inputs are the same functions, so every p-value is the same; and errors are not."""
    problem = Helmholtz(random_field=GaussianRandomField(2, 4, boundary="dirichlet"))
    train, scaling, calibration = (
        problem.sample(count, resolution=9, seed=seed) for count, seed in ((14, 0), (40, 1), (60, 2))
    )
    head = pn.heads.LastLayerLaplace().fit(pn.operators.LinearRegression.fitted(train), train)
    scaled = pn.calibration.VarianceScale(local=False).fit(head, scaling)
    detector = Novelty().fit(scaled, calibration)
    test, changed = (one.sample(300, resolution=9, seed=3) for one in (problem, problem.shifts()["resonance"]))
    assert torch.equal(test.inputs.values, changed.inputs.values)
    for name, values in detector.p_values(changed.inputs).items():
        assert torch.equal(values, detector.p_values(test.inputs)[name])
        assert (values <= 0.5).double().mean() == pytest.approx(0.5, abs=0.25)  # Beta(15, 16): .09, to 2.8 deviations

    def coverage(data: FieldPairs) -> float:
        u = scaled(data.inputs)
        interval = u.interval(0.9, noise=scaled.noise)
        inside = (data.outputs.values >= interval.lower) & (data.outputs.values <= interval.upper)
        return float(inside[..., 1:-1, 1:-1].double().mean())  # the solution is 0 on the boundary

    assert coverage(test) > 0.8
    assert coverage(changed) < 0.2


def test_components_are_those_of_the_covariance() -> None:
    values = normal(400, 6, seed=0) * torch.tensor([3.0, 2.0, 1.0, 0.1, 0.1, 0.1]).double()
    components = LeadingComponents.fit(values)
    covariance = values.T.cov()
    assert len(components.variances) == 3
    centered = values - values.mean(0)
    vectors = torch.linalg.eigh(covariance).eigenvectors.flip(1)[:, :3]
    along = centered @ vectors
    within = (along.square() / torch.linalg.eigvalsh(covariance).flip(0)[:3]).sum(1)
    beyond = (centered - along @ vectors.T).square().sum(1) / covariance.trace()
    for found, expected in zip(components(values), (within, beyond), strict=True):
        torch.testing.assert_close(found, expected)


def test_mahalanobis_distance_is_that_of_the_covariance() -> None:
    rows = normal(5000, 3, seed=1) @ normal(3, 3, seed=2)
    distance = MahalanobisDistance.fit(rows, ridge=0.0)
    centered = rows - rows.mean(0)
    exact = ((centered @ torch.linalg.inv(rows.T.cov())) * centered).sum(1)
    torch.testing.assert_close(distance(rows), exact, rtol=5e-3, atol=0.0)  # 3/5003 of correlations are given up
    point = MahalanobisDistance.fit(torch.ones(8, 2, dtype=torch.float64), ridge=0.25)
    torch.testing.assert_close(point(torch.tensor([[1.0, 2.0]], dtype=torch.float64)), torch.tensor([4.0]).double())


def test_the_variance_is_the_heads_own() -> None:
    """Before any calibration, averaged over the domain: `Synthetic` states the input's mean square times 2."""
    data = pairs(60, channels=2)
    scaled = pn.calibration.VarianceScale().fit(Synthetic(channels=2), data)
    assert uncalibrated(scaled) is scaled.inner
    one, other = (Novelty().fit(predictor, data) for predictor in (scaled, Synthetic(channels=2)))
    fresh = pairs(10, channels=2, seed=9).inputs
    scores = one.scores(fresh)["variance"]
    assert torch.equal(scores, other.scores(fresh)["variance"])
    size = fresh.mean_square()
    reference = data.split(30, seed=0)[0].inputs.mean_square().mean(0)
    torch.testing.assert_close(scores, (size / reference).mean(1))


@pytest.mark.parametrize("offset", [0.0, 50.0, 500.0])
def test_an_offset_of_the_units_hides_no_roughness(offset: float) -> None:
    """Kelvin in place of degrees Celsius, in standard deviations: roughness was seen by chance from 300 on."""

    def moved(data: FieldPairs) -> FieldPairs:
        return paired(Field(data.inputs.values / 0.58 + offset, LINE))

    ordinary, rough = draws(100, seed=1), draws(100, seed=2, problem=BURGERS.shifts()["roughness"])
    found = Novelty().fit(Synthetic(), moved(draws(200, seed=0)))
    for name in ("spectrum", "combined"):
        assert auroc(*(found.scores(moved(some).inputs)[name] for some in (ordinary, rough))) > 0.99


def test_calibrations_of_members_are_looked_through() -> None:
    data = pairs(40)
    mixture = MixturePredictor([Synthetic(), Synthetic(sd=2.0)], torch.tensor([0.5, 0.5]).double())
    under = uncalibrated(pn.calibration.VarianceScale().fit(mixture, data))
    assert isinstance(under, MixturePredictor)
    assert under.predictors == mixture.predictors
    assert uncalibrated(mixture) is mixture


def test_a_strange_channel_is_seen_beside_one_of_larger_units() -> None:
    """Bumps at another place, a thousand times smaller than what the other channel holds."""

    def both(count: int, center: float, *, seed: int) -> FieldPairs:
        parts = [1e-3 * bumps(count, center, seed=seed).inputs.values, draws(count, seed=seed).inputs.values]
        return paired(Field(torch.cat(parts, 1), LINE))

    found = Novelty().fit(Synthetic(channels=2), both(120, 0.3, seed=0))
    assert [name for name in found.names if "channel 0" in name] == [f"{name}, channel 0" for name in NAMES[:3]]
    own, other = (found.scores(both(100, center, seed=6).inputs) for center in (0.3, 0.7))
    assert auroc(own["residual"], other["residual"]) > 0.9  # NoveltyScale widens by it
    assert auroc(own["components, channel 0"], other["components, channel 0"]) > 0.99
    assert auroc(own["components, channel 1"], other["components, channel 1"]) == 0.5  # the same functions
    assert auroc(own["combined"], other["combined"]) > 0.99


@pytest.mark.parametrize("parameter", [1e-3, 1.0, 9.81])
def test_a_parameter_that_never_varied_is_seen_to_vary(parameter: float) -> None:
    def beside(other: float, *, seed: int) -> FieldPairs:
        values = draws(60, seed=seed).inputs.values
        return paired(Field(torch.cat([torch.full_like(values, other), values], 1), LINE))

    found = Novelty().fit(Synthetic(channels=2), beside(parameter, seed=0))
    assert float(found(beside(1.2 * parameter, seed=1).inputs).max()) == 1 / 31
    same = beside(parameter, seed=1).inputs
    rounded = Field(same.values.float().double(), LINE)
    expected = found.p_values(same)
    for other in (rounded, same.resample(LINE.resized(64)), same.resample(LINE.resized(48))):
        for name, p_values in found.p_values(other).items():
            torch.testing.assert_close(p_values, expected[name], atol=2.1 / 31, rtol=0, msg=name)


def test_power_that_the_calibration_grid_does_not_resolve_is_told() -> None:
    fine = LINE.resized(128)
    steps = torch.sign(normal(90, 1, 8, seed=0)).repeat_interleave(16, 2)
    functions = Field(steps + 0.1 * normal(90, 1, 128, seed=1), fine)
    coarse = Field(functions.values[..., ::4], LINE)
    found = Novelty().fit(Synthetic(), paired(coarse[:60]))
    found(coarse[60:])
    with pytest.warns(DataWarning, match="30 of 30 samples have power that the calibration inputs' grid"):
        strange = found(functions[60:])
    assert float(strange.max()) < 0.1
    ordinary = found(functions[60:].resample(LINE))  # as the warning says
    assert float(ordinary.mean()) > 0.2


def test_grids_that_are_described_on_coarser_ones_need_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibration functions have power beyond the description's grid, too. A warning would be an error here."""
    monkeypatch.setattr("probneural.calibration.novelty.scores._POINTS", 32)
    grid = Grid.uniform((50,))
    functions = Field(normal(40, 1, 50, seed=0), grid)
    found = Novelty().fit(Synthetic(), paired(functions[:30]))
    assert float(found(functions[30:].resample(grid.resized(60))).mean()) > 0.2


def test_the_combined_score_sums_exponentials_in_units_of_functions_it_was_not_fitted_on(detector: NoveltyDetector) -> None:
    seen = Describer(LINE, LINE)(Synthetic(), draws(200, seed=0).split(100, seed=0)[0].inputs)
    units = cross_fitted_standards(seen, groups=torch.arange(100))
    scores = detector.scores(draws(5, seed=8).inputs)
    logs = torch.stack([(scores[name].log() - mean) / spread for name, (mean, spread) in units.items()])
    torch.testing.assert_close(scores["combined"], logs.exp().sum(0).log())


def test_scores_are_compared_in_upper_semideviations() -> None:
    assert _upper_moments(torch.tensor([0.0, 0.0, 0.0, 4.0])) == (1.0, 3.0)
    assert _upper_moments(torch.tensor([2.0, 2.0])) == (2.0, 1.0)


@pytest.mark.parametrize("kind", [Synthetic, Members])
def test_any_predictor_and_any_reference(kind: type[Synthetic]) -> None:
    reference, calibration = draws(100, seed=0), draws(39, seed=1)
    found = Novelty().fit(kind(), calibration, reference=reference)
    assert found.names == NAMES
    assert "29" in repr(found)
    values = found(draws(7, seed=2).inputs)
    assert values.shape == (7,)
    torch.testing.assert_close(values * 30, (values * 30).round())  # ranks among all but 10, which standardise


def test_training_functions_as_reference_do_not_mislead_a_gaussian_process() -> None:
    """Its variance nearly vanishes where it was fitted; what is usual elsewhere sets the unit of that score."""
    train, calibration, fresh = (BURGERS.sample(60, resolution=32, seed=seed) for seed in range(3))
    strange = BURGERS.shifts()["roughness"].sample(100, resolution=32, seed=3).inputs
    head = pn.heads.KernelOperator().fit(None, train)
    found = Novelty().fit(head, calibration, reference=train)
    variance = found.scores(calibration.split(12, seed=0)[0].inputs)["variance"]
    torch.testing.assert_close(variance.mean(), torch.tensor(1.0, dtype=torch.float64))
    assert head(train.inputs).variance.mean() < 0.5 * head(fresh.inputs).variance.mean()
    ordinary, shifted = (found.scores(inputs) for inputs in (fresh.inputs, strange))
    assert auroc(ordinary["variance"], shifted["variance"]) < 0.9
    assert auroc(ordinary["combined"], shifted["combined"]) > 0.95


def test_features_of_a_read_out_are_a_score_of_their_own() -> None:
    train = pairs(20)
    operator = pn.operators.FNO(1, 1, modes=(3,), width=4, depth=1, seed=0).double()
    head = pn.heads.LastLayerLaplace().fit(operator, train)
    found = Novelty().fit(head, pairs(60, seed=5))
    assert found.names == (*NAMES[:3], "features", *NAMES[3:])
    ordinary = pairs(40, seed=8).inputs
    loud = Field(6.0 * ordinary.values, GRID)
    assert auroc(found.scores(ordinary)["features"], found.scores(loud)["features"]) > 0.9


def test_large_grids_are_described_on_coarser_ones() -> None:
    grid = Grid.uniform((128, 128))
    describer = Describer(grid, grid)
    assert describer.grid.shape == (64, 64)
    assert Describer(LINE, LINE).grid == LINE


def test_bad_settings_and_data(detector: NoveltyDetector) -> None:
    for count, reference in ((18, None), (2, None), (20, draws(9, seed=0)), (10, draws(20, seed=0))):
        with pytest.raises(CalibrationError, match="at least 10"):
            Novelty().fit(Synthetic(), draws(count, seed=0), reference=reference)
    with pytest.raises(ShapeError, match="channels"):
        detector(Field(normal(2, 2, 32), LINE))
    with pytest.raises(GridError, match="domain"):
        detector(Field(normal(2, 1, 32), Grid.uniform((32,), lengths=2.0)))
    broken = draws(2, seed=0).inputs
    with pytest.raises(DataError, match="finite"):
        detector(replace(broken, values=broken.values * math.nan))
