"""Error bars that widen by novelty: how much, by what, and that the result is a predictor like any other."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural import functionals
from probneural.calibration import Novelty, NoveltyScale, SimultaneousBand, VarianceScale, synthetic_shifts
from probneural.calibration.novelty.inflation import (
    SCORES,
    STEEPEST,
    WIDEST,
    Errors,
    InflatedPredictor,
    Inflation,
    fit_inflation,
)
from probneural.distributions import FieldDistribution, Predictor
from probneural.errors import CalibrationError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.calibration.synthetic import GRID, Members, Synthetic, basis, pairs, scaled_by
from tests.helpers import normal

NONE = torch.zeros(1, dtype=torch.float64)


class Constant(Synthetic):
    """States the same variance for every input."""

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        unit = Field(torch.ones_like(inputs.values), inputs.grid)
        u = super()._field(unit, query)
        return pn.distributions.GaussianField(inputs.resample(u.grid).values, u.root, latent="constant", grid=u.grid)


def wrong_by_distance(count: int, *, size: float = 1.0, seed: int = 0) -> FieldPairs:
    """Inputs of a given size, and errors of `Constant()` whose deviation grows as the square of the input's."""
    coefficients = size * normal(count, 1, 3, seed=seed)
    inputs = coefficients @ basis(GRID).mT
    growth = coefficients.square().sum(2, keepdim=True).clamp_min(3.0) / 3.0
    errors = growth * normal(count, 1, 3, seed=seed + 1) @ basis(GRID).mT
    return FieldPairs(Field(inputs, GRID), Field(inputs + errors, GRID))


def chi2(predictor: Predictor, data: FieldPairs) -> float:
    u = predictor(data.inputs)
    return float(pn.metrics.chi2(pn.metrics.compare(u, data.outputs, noise=predictor.noise)).mean())


class Wall(Synthetic):
    """Certain up to rounding of a wall's value, which is off by one unit in the last place of float32."""

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        u = super()._field(Field(torch.ones_like(inputs.values), inputs.grid), query)
        mean = 1.0 + inputs.resample(u.grid).values
        mean[..., 0] = 1.0 + 2.0**-23
        root = basis(u.grid).to(mean).clone()
        root[0] = torch.tensor([1e-9, 0.0, 0.0])
        return pn.distributions.GaussianField(
            mean, pn.distributions.DenseRoot(root.expand(len(mean), 1, *root.shape).clone()), latent="wall", grid=u.grid
        )


def at_a_wall(count: int, *, size: float = 1.0, seed: int) -> FieldPairs:
    """Inputs of a given size that are 1 at a wall, and errors of `Wall()` that do not grow with it."""
    inputs, errors = (factor * normal(count, 1, 3, seed=seed + one) @ basis(GRID).mT for one, factor in enumerate((size, 1.0)))
    return FieldPairs(Field(inputs.float(), GRID), Field((1.0 + inputs + errors).float(), GRID))


@pytest.fixture(scope="module")
def widened() -> InflatedPredictor:
    """Fitted on inputs that are twice as large."""
    return NoveltyScale().fit(Constant(noise=0.0), wrong_by_distance(400), shifted=wrong_by_distance(300, size=2.0, seed=5))


def test_errors_that_grow_with_the_distance_are_covered_beyond_what_was_tried(widened: InflatedPredictor) -> None:
    for size, plain in ((1.0, 1.5), (2.0, 20.0), (4.0, 300.0)):
        data = wrong_by_distance(400, size=size, seed=20)
        assert chi2(widened.inner, data) > plain
        assert chi2(widened, data) == pytest.approx(1.0, rel=0.45)


def test_shifts_with_errors_that_dwarf_what_is_stated_are_fitted() -> None:
    """A search that takes its first step by the slope ends where it began: squared errors are 100,000 times the variance."""
    far = NoveltyScale().fit(Constant(noise=0.0), wrong_by_distance(400), shifted=wrong_by_distance(300, size=16.0, seed=5))
    data = wrong_by_distance(400, size=16.0, seed=20)
    assert chi2(far.inner, data) > 5e4
    assert chi2(far, data) == pytest.approx(1.0, rel=0.45)


def test_bars_never_become_narrower_and_means_stay(widened: InflatedPredictor) -> None:
    data = wrong_by_distance(50, seed=30)
    factors = widened.factors(data.inputs)
    assert (factors >= 1.0).all()
    assert (factors == 1.0).any()
    u, v = widened.inner(data.inputs), widened(data.inputs)
    assert torch.equal(u.mean, v.mean)
    torch.testing.assert_close(v.variance, factors[:, None, None] * u.variance)
    assert "residual" in repr(widened)


def test_without_growth_there_is_no_inflation() -> None:
    """Errors smaller than stated: every exponent is at its bound."""
    quiet = NoveltyScale().fit(Synthetic(), pairs(60, errors=0.5), shifted=pairs(60, errors=0.5, seed=9))
    assert torch.equal(quiet.inflation.exponents, torch.zeros(9, dtype=torch.float64))
    data = pairs(5, seed=3)
    assert torch.equal(quiet(data.inputs).variance, Synthetic()(data.inputs).variance)


@pytest.mark.parametrize(("ratio", "expected"), [(8.0, 3.0), (0.5, 0.0)])
def test_the_exponent_of_one_distance_is_in_closed_form(ratio: float, expected: float) -> None:
    """All functions log 2 beyond the knot, and squared errors `ratio` times the variance: 2^theta = ratio, or theta = 0."""
    distances = torch.full((4, 1), 2.0, dtype=torch.float64).log()
    variance = 1.0 + normal(4, 5, seed=0).square()
    blank = Inflation(names=("residual",), knots=NONE, exponents=NONE)
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    errors = Errors(distances=distances, variance=variance, squares=ratio * variance, noise=0.0 * variance)
    fitted = blank.fitted(errors, weights)
    assert float(fitted.exponents) == pytest.approx(expected, abs=1e-5)
    scores = {"residual": torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)}
    torch.testing.assert_close(fitted(scores), torch.tensor([1.0, 1.0, 2.0**expected], dtype=torch.float64))


def test_exponents_minimise_the_likelihood_with_noise() -> None:
    distances, noise = normal(60, 3, seed=1).abs(), torch.full((60, 4), 0.3, dtype=torch.float64)
    variance, weights = 1.0 + normal(60, 4, seed=2).square(), torch.full((60,), 1 / 60, dtype=torch.float64)
    truth = torch.tensor([1.5, 0.0, 0.7], dtype=torch.float64)
    squares = ((distances @ truth).exp()[:, None] * variance + noise) * normal(60, 4, seed=3).square()
    blank = Inflation(names=("a", "b", "c"), knots=NONE.expand(3), exponents=NONE.expand(3))
    errors = Errors(distances=distances, variance=variance, squares=squares, noise=noise)
    found = blank.fitted(errors, weights).exponents

    def objective(exponents: Tensor) -> float:
        total = (distances @ exponents).exp()[:, None] * variance + noise
        return float(weights @ (total.log() + squares / total).mean(1))

    best = objective(found)
    for index in range(3):
        for step in (-0.01, 0.01):
            moved = found.clone()
            moved[index] = (moved[index] + step).clamp_min(0.0)
            assert objective(moved) >= best - 1e-9


def known_errors(distances: Tensor, ratio: float) -> Errors:
    """Squared errors that are a multiple of what is stated."""
    variance = torch.ones(len(distances), 4, dtype=torch.float64)
    return Errors(distances=distances, variance=variance, squares=ratio * variance, noise=0.0 * variance)


def test_exponents_add_up_to_four_at_most() -> None:
    """Of two scores that would need eight together, the one that explains more is kept."""
    distances = torch.tensor([[1.0, 0.9], [0.5, 0.4]], dtype=torch.float64)
    blank = Inflation(names=("a", "b"), knots=NONE.expand(2), exponents=NONE.expand(2))
    squares = (8.0 * distances[:, :1]).exp().expand(2, 4)
    errors = Errors(distances=distances, variance=torch.ones_like(squares), squares=squares, noise=0.0 * squares)
    found = blank.fitted(errors, torch.full((2,), 0.5, dtype=torch.float64)).exponents
    assert float(found.sum()) == pytest.approx(STEEPEST)
    assert found.tolist() == pytest.approx([STEEPEST, 0.0], abs=1e-4)


def blank_of_nine() -> Inflation:
    return Inflation(names=SCORES * 3, knots=NONE.expand(9), exponents=NONE.expand(9))


def test_the_set_with_the_largest_errors_counts() -> None:
    """Two sets are equally far; one has errors as stated, those of the other are four times as large."""
    near, far = torch.zeros(50, 9, dtype=torch.float64), torch.zeros(50, 9, dtype=torch.float64)
    far[:, 0] = 1.0
    sets = [known_errors(far, 1.0), known_errors(far, 16.0)]
    found = fit_inflation(blank_of_nine(), known_errors(near, 1.0), shifted=sets)
    assert float(sets[1].chi2(found).mean()) == pytest.approx(1.0, abs=0.021)
    assert fit_inflation(blank_of_nine(), known_errors(near, 1.0), shifted=sets[:1]).exponents.tolist() == [0.0] * 9


def test_where_not_all_sets_can_be_had_the_worst_is_as_small_as_it_can_be() -> None:
    """Logarithms of 3 and 4 are asked for and add up to 4 at most: 1.5 and 2.5 leave both sets 1.5 short.

    The first of them is asked for twice, so that the likelihood of all alike is largest at 1.85 and 2.15.
    """
    near = torch.zeros(50, 9, dtype=torch.float64)
    one, other = near.clone(), near.clone()
    one[:, 0], other[:, 1] = 1.0, 1.0
    sets = [known_errors(one, math.exp(3.0)), known_errors(one, math.exp(3.0)), known_errors(other, math.exp(4.0))]
    found = fit_inflation(blank_of_nine(), known_errors(near, 1.0), shifted=sets)
    assert float(found.exponents.sum()) == pytest.approx(STEEPEST)
    assert max(float(each.chi2(found).mean()) for each in sets) == pytest.approx(math.exp(1.5), rel=0.02)


def test_ordinary_functions_widen_by_a_fifth_at_most() -> None:
    """Shifted functions are no farther than ordinary ones, so nothing tells which bars to widen."""
    distances = torch.full((50, 9), 0.7, dtype=torch.float64)
    ordinary, shifted = known_errors(distances, 1.0), known_errors(distances, 100.0)
    found = fit_inflation(blank_of_nine(), ordinary, shifted=[shifted])
    assert ordinary.width(found) == pytest.approx(WIDEST, abs=0.01)
    assert ordinary.width(found) <= WIDEST
    ordinary.squares[0, 0] = 1e6  # one outlier asks for nothing
    assert ordinary.width(fit_inflation(blank_of_nine(), ordinary, shifted=[shifted])) <= WIDEST
    needy = known_errors(distances, 4.0)  # whose own errors ask for twice the width
    assert needy.width(fit_inflation(blank_of_nine(), needy, shifted=[shifted])) > 2.0


def test_what_is_right_to_rounding_widens_nothing() -> None:
    """A wall's value counted as an error of a hundred deviations, and ordinary functions widened by nineteen times."""
    predictor = Wall(noise=0.0, dtype=torch.float32)
    found = NoveltyScale().fit(predictor, at_a_wall(200, seed=0), shifted=at_a_wall(200, size=2.0, seed=50))
    assert found.factors(at_a_wall(200, seed=90).inputs).mean() < 1.05


def test_draws_and_members_move_away_from_the_mean() -> None:
    calibration, shifted = pairs(60, errors=2.0), pairs(60, errors=4.0, seed=9)
    large = FieldPairs(Field(3.0 * shifted.inputs.values, GRID), Field(9.0 * shifted.outputs.values, GRID))
    for inner in (Synthetic(), Members()):
        found = NoveltyScale().fit(inner, calibration, shifted=large)
        data = Field(4.0 * pairs(5, seed=3).inputs.values, GRID)
        factors = found.factors(data)[:, None, None]
        assert (factors > 1.5).any()
        u, v = inner(data), found(data)
        torch.testing.assert_close(v.variance, factors * u.variance)
        drawn = found.draw(7)(data.values)
        torch.testing.assert_close(drawn - v.mean, factors.sqrt() * (inner.draw(7)(data.values) - u.mean))
        both = found.evaluate_draws(data, seeds=[7, 8])
        torch.testing.assert_close(both[0], drawn)
    probe = functionals.integral(GRID)
    measured = found if isinstance(found, Synthetic) else NoveltyScale().fit(Synthetic(), calibration, shifted=large)
    field = measured(data)
    informed = measured(data[:2]).condition(probe, probe(field.mean[:2]), noise=0.1)
    assert (field.under(informed.latent).variance <= field.variance + 1e-9).all()


def test_it_composes_with_scales_and_bands(tmp_path: Path) -> None:
    train, scaling, conformal, shifted = pairs(20), pairs(40, seed=11), pairs(19, seed=21), pairs(30, errors=3.0, seed=31)
    operator = pn.operators.FNO(1, 1, modes=(3,), width=4, depth=1, seed=0).double()
    scaled = VarianceScale(local=False).fit(pn.heads.LastLayerLaplace().fit(operator, train), scaling)
    found = NoveltyScale().fit(scaled, scaling, shifted=[shifted, shifted[:10]])
    fresh = pairs(6, seed=41).inputs
    for used in (scaling[:19], shifted[:19]):
        with pytest.raises(CalibrationError, match="not scaled on"):
            SimultaneousBand().fit(found, used)
    band = SimultaneousBand().fit(found, conformal)
    assert band(fresh).half_width.shape == (6, 1, 16)
    above = VarianceScale(local=False).fit(found, conformal)
    scores = pn.metrics.score(above(conformal.inputs), conformal.outputs, noise=above.noise)
    assert scores.chi2 == pytest.approx(1.0, rel=1e-3)
    anew = NoveltyScale().fit(found, scaling, shifted=[shifted, shifted[:10]])
    assert anew.inner is scaled
    assert torch.equal(anew.inflation.exponents, found.inflation.exponents)
    pn.save(found, tmp_path / "found")
    loaded = pn.load(tmp_path / "found")
    assert torch.equal(loaded(fresh).variance, found(fresh).variance)
    assert loaded(fresh).latent.id == found(fresh).latent.id
    assert torch.equal(loaded.calibrated_on, found.calibrated_on)
    p_values = [Novelty().fit(one, conformal, reference=scaling)(fresh) for one in (loaded, scaled)]
    assert torch.equal(*p_values)


def test_the_factor_is_differentiable(widened: InflatedPredictor) -> None:
    values = (3.0 * pairs(2, seed=3).inputs.values).requires_grad_()
    variance = widened(Field(values, GRID)).variance.sum()
    (gradient,) = torch.autograd.grad(variance, values)
    moved = widened(Field((values + 1e-6 * gradient).detach(), GRID)).variance.sum()
    assert float(moved - variance.detach()) == pytest.approx(1e-6 * float(gradient.square().sum()), rel=1e-3)


def test_what_was_widened_may_be_scaled(widened: InflatedPredictor) -> None:
    data = wrong_by_distance(40, seed=60)
    assert chi2(VarianceScale(local=False).fit(widened, data), data) == pytest.approx(1.0)


@pytest.mark.bad_input
def test_factors_take_what_predictions_take(widened: InflatedPredictor) -> None:
    inputs = pairs(3).inputs
    for bad, error in (
        (inputs.values, DataError),
        (Field(inputs.values * math.nan, GRID), DataError),
        (Field(inputs.values.repeat(1, 2, 1), GRID), ShapeError),
        (Field(inputs.values, Grid.uniform((16,), lengths=2.0)), GridError),
    ):
        with pytest.raises(error):
            widened.factors(bad)  # type: ignore[arg-type]


def test_bad_data() -> None:
    data = pairs(40)
    for shifted in ([], [data, data[:0]]):
        with pytest.raises(CalibrationError, match="shifted pairs"):
            NoveltyScale().fit(Synthetic(), data, shifted=shifted)
    with pytest.raises(ShapeError, match="channels"):
        NoveltyScale().fit(Synthetic(), data, shifted=pairs(4, channels=2))
    with pytest.raises(CalibrationError, match="has a variance"):
        NoveltyScale().fit(Synthetic(sd=0.0), data, shifted=data)
    with pytest.raises(GridError, match="shifted outputs on the calibration outputs' grid"):
        NoveltyScale().fit(Synthetic(), data, shifted=pairs(20, grid=GRID.resized(32)))
    assert isinstance(NoveltyScale().fit(scaled_by(2.0, Synthetic()), data, shifted=data), InflatedPredictor)


def test_synthetic_shifts_are_larger_and_rougher() -> None:
    burgers = pn.problems.Burgers(random_field=pn.problems.GaussianRandomField(1, 15))
    inputs = burgers.sample_inputs(200, resolution=32, seed=0, dtype=torch.float64)
    found = synthetic_shifts(inputs, seed=1)
    assert list(found) == ["stretched", "superposed", "roughened"]
    sizes = {kind: float(field.mean_square().mean() / inputs.mean_square().mean()) for kind, field in found.items()}
    assert sizes["stretched"] == pytest.approx(1.9375, rel=0.1)  # the mean of (1 + 0.75 U)²
    assert sizes["superposed"] == pytest.approx(2.0, rel=0.1)
    assert sizes["roughened"] == pytest.approx(1.0, rel=0.1)

    def rough(field: Field) -> float:
        slopes = torch.fft.rfft(field.values).abs().square() * torch.arange(17).square()
        return float(slopes.sum() / torch.fft.rfft(field.values).abs().square().sum())

    assert rough(found["roughened"]) > 1.2 * rough(inputs)
    assert rough(found["stretched"]) == pytest.approx(rough(inputs), rel=0.1)
    assert not torch.equal(synthetic_shifts(inputs, seed=2)["stretched"].values, found["stretched"].values)


def test_synthetic_shifts_keep_what_is_positive_and_what_is_constant() -> None:
    grid = Grid.uniform((17,), periodic=False)
    values = torch.cat([normal(30, 1, 17, seed=0).exp(), normal(30, 1, 1, seed=1).expand(30, 1, 17)], 1)
    for field in synthetic_shifts(Field(values, grid)).values():
        assert (field.values[:, 0] > 0).all()
        assert torch.equal(field.values[:, 1], values[:, 1])
        assert not torch.equal(field.values[:, 0], values[:, 0])
    with pytest.raises(CalibrationError, match="2 functions"):
        synthetic_shifts(Field(values[:1], grid))
    loose = Grid.scattered([[0.1], [0.4]], [0.5, 0.5])
    with pytest.raises(GridError, match="uniform"):
        synthetic_shifts(Field(normal(3, 1, 2, seed=0), loose))
