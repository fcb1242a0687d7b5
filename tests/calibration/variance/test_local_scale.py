"""Variances whose size follows position, slope and level, where the truth about the errors is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from probneural import metrics
from probneural.calibration import VarianceScale
from probneural.calibration.variance.local_fit import _Likelihood, fit_local_scale
from probneural.calibration.variance.local_scale import FINE, VarianceCurve
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField, Predictor, PredictorTraits
from probneural.fields import Field
from probneural.functionals import boundary_integral, integral, sensors
from probneural.grids import Grid
from probneural.metrics.comparison import domain_average
from probneural.pairs import FieldPairs
from probneural.problems import PoissonOnShapes
from tests.calibration.synthetic import pairs as homogeneous_pairs
from tests.helpers import PerSetPredictor, generator, normal

GRID = Grid.uniform(48, periodic=False)
RING = Grid.uniform(48)
SQUARE = Grid.uniform((12, 12), periodic=False)


class Even(PerSetPredictor):
    """Predicts its input, with a standard deviation that is one everywhere: half of it shared, half noise."""

    def __init__(self, grid: Grid, *, channels: int = 1, members: int = 0) -> None:
        variance = torch.full((channels,), 0.5, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=channels, noise=variance, domain=grid, like=variance))
        self.members = members

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        where = inputs.grid if query is None else query
        mean = inputs.resample(where).values
        x = 2 * math.pi * where.points[..., 0]
        columns = torch.stack([torch.cos(x), torch.sin(x)], -1) * math.sqrt(0.5)
        columns = columns[:, None] if where.has_points_per_sample else columns
        u = GaussianField(mean, DenseRoot(columns.expand(*mean.shape[:2], -1, -1).clone()), latent="even", grid=where)
        return EmpiricalField(u.rsample(torch.Size([self.members]), seed=0), grid=where) if self.members else u


def truths(grid: Grid, count: int, *, sd: Callable[[Tensor, Grid], Tensor], seed: int, channels: int = 1) -> FieldPairs:
    """Smooth inputs, and outputs that stray from them by sd(input, grid) times white noise."""
    x, weights = grid.points[:, 0], normal(count, channels, 2, seed=seed)
    if all(grid.periodic):
        basis = torch.stack([torch.sin(2 * math.pi * k * x + k) for k in range(1, 3)])
    else:
        basis = torch.stack([torch.cos(math.pi * k * x) for k in range(2)])
    values = weights @ basis
    drawn = sd(values, grid) * normal(count, channels, grid.size, seed=seed + 1)
    return FieldPairs(*(Field(part.unflatten(-1, grid.shape), grid) for part in (values, values + drawn)))


def by_position(values: Tensor, grid: Grid) -> Tensor:
    """Small at the ends, ten times as large between them."""
    return (0.2 * torch.exp(2.3 * torch.sin(math.pi * grid.points[:, 0]).square())).expand_as(values)


def by_slope(values: Tensor, grid: Grid) -> Tensor:
    """In proportion to the slope, and a tenth of it at least."""
    slope = (values.roll(-1, -1) - values.roll(1, -1)) * grid.shape[0] / 2
    return 0.3 + slope.abs() / 6


def evenly(values: Tensor, grid: Grid) -> Tensor:
    return torch.full_like(values, 0.7)


def standardised_squares(predictor: Predictor, data: FieldPairs) -> Tensor:
    u = predictor(data.inputs, data.outputs.grid)
    return (data.outputs.values - u.mean).square() / (u.variance + predictor.noise.reshape(-1, *(1,) * len(u.grid.shape)))


@pytest.mark.parametrize("members", [0, 6])
@pytest.mark.parametrize("channels", [1, 2])
def test_sizes_that_follow_position_are_found(members: int, channels: int) -> None:
    data, test = (truths(GRID, count, sd=by_position, seed=seed, channels=channels) for count, seed in ((80, 1), (200, 5)))
    inner = Even(GRID, channels=channels, members=members)
    scaled, even = VarianceScale().fit(inner, data), VarianceScale(local=False).fit(inner, data)
    found, before = (standardised_squares(one, test).unflatten(-1, (8, 6)).mean((0, -1)) for one in (scaled, even))
    assert before.amax() > 2.0 > 0.2 > before.amin()
    assert (found - 1.0).abs().max() < 0.25  # 1,200 squares of each eighth: their mean has a standard error of .04
    stated = scaled(test.inputs[:1]).std[0]
    torch.testing.assert_close(stated, by_position(stated, GRID), rtol=0.25, atol=0)


def test_one_function_with_large_errors_does_not_hide_where_others_err() -> None:
    data = truths(GRID, 80, sd=by_position, seed=1)
    errors = data.outputs.values - data.inputs.values
    errors[0] *= 30.0
    data = FieldPairs(data.inputs, Field(data.inputs.values + errors, GRID))
    scaled = VarianceScale().fit(Even(GRID), data)
    assert scaled.local is not None
    stated = scaled(data.inputs).std.mean(0)[0]
    assert stated[20:28].mean() > 4.0 * stated[[0, 1, 2, -3, -2, -1]].mean()  # ten times, less what one function hides


def test_sizes_that_follow_slopes_are_found() -> None:
    data, test = (truths(RING, count, sd=by_slope, seed=seed) for count, seed in ((100, 1), (100, 5)))
    scaled, even = (VarianceScale(local=local).fit(Even(RING), data) for local in (True, False))
    stated, true = (values.flatten() for values in (scaled(test.inputs).std, by_slope(test.inputs.values, RING)))
    errors = [(std / true).log().abs().mean().item() for std in (stated, even(test.inputs).std.flatten())]
    assert errors[0] < 0.75 * errors[1]  # what the average over a neighbourhood leaves
    assert torch.corrcoef(torch.stack([stated.log(), true.log()]))[0, 1] > 0.7


def test_in_two_dimensions() -> None:
    data, test = (truths(SQUARE, count, sd=by_position, seed=seed) for count, seed in ((60, 1), (300, 5)))
    found = standardised_squares(VarianceScale().fit(Even(SQUARE), data), test).mean((0, 1))
    assert (found.mean(-1) - 1.0).abs().max() < 0.25


class Proportional(Even):
    """States a standard deviation in proportion to the square of the input's amplitude."""

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        u = super()._field(inputs, query)
        assert isinstance(u, GaussianField)
        size = inputs.values.square().mean(-1, keepdim=True)
        root = DenseRoot(u.root.dense() * size[..., None])
        return GaussianField(u.mean, root, latent="proportional", grid=u.grid)


def of_many_sizes(count: int, *, seed: int) -> FieldPairs:
    """Inputs over four orders of magnitude; errors that grow with the square of the size, but for a least and a largest one."""
    waves = torch.stack([torch.sin(2 * math.pi * k * RING.points[:, 0] + k) for k in range(1, 3)])
    values = 10.0 ** (2.0 * normal(count, 1, 1, seed=seed).clamp(-2, 2) - 1.0) * (normal(count, 1, 2, seed=seed + 1) @ waves)
    size = values.square().mean(-1, keepdim=True)
    errors = size.clamp(1e-3, 1.0) * normal(count, 1, RING.size, seed=seed + 2)
    return FieldPairs(Field(values, RING), Field(values + errors, RING))


def test_variances_are_right_at_each_order_of_magnitude() -> None:
    """The features make a power of what is stated, so the least and the largest variances would be off by orders."""
    inner = Proportional(RING)
    scaled = VarianceScale().fit(inner, of_many_sizes(200, seed=1))
    assert scaled.local is not None
    assert scaled.local.curve is not None
    straight = replace(scaled.local, curve=None)
    test = of_many_sizes(400, seed=11)
    order = test.inputs.values.square().mean((1, 2)).argsort()
    worst = []
    for local in (scaled.local, straight):
        parts = {name: getattr(scaled, name) for name in ("scale", "noise_scale", "decomposition", "noise", "calibrated_on")}
        ratios = standardised_squares(ScaledPredictor(inner, **parts, local=local), test).mean((1, 2))[order]
        worst.append(ratios.unflatten(0, (8, 50)).mean(1).log().abs().max().item())
    assert worst[0] < math.log(1.5) < math.log(4.0) < worst[1]


@pytest.mark.parametrize("seed", range(6))
def test_even_errors_give_no_local_scale(seed: int) -> None:
    assert VarianceScale().fit(Even(GRID), truths(GRID, 60, sd=evenly, seed=10 * seed)).local is None


def test_few_functions_or_scattered_points_give_none() -> None:
    assert VarianceScale().fit(Even(GRID), truths(GRID, 9, sd=by_position, seed=1)).local is None
    points = Grid.scattered(GRID.points, GRID.weights)
    data = truths(GRID, 40, sd=by_position, seed=1)
    elsewhere = FieldPairs(data.inputs, Field(data.outputs.values, points))
    assert VarianceScale().fit(Even(GRID), elsewhere).local is None


def near_walls(grid: Grid) -> Tensor:
    """Four smooth errors on meshes, twenty times as large at the boundary as inside: `(n, 4, p)`."""
    meshes = [(mesh.points, mesh.points[mesh.boundary].flatten(0, 1)) for mesh in grid.singles()]
    sizes = torch.stack([0.05 + torch.exp(-torch.cdist(*pair).amin(1) / 0.1) for pair in meshes])
    x, y = grid.points.unbind(-1)
    return sizes[:, None] * torch.stack([torch.ones_like(x), torch.cos(2.0 * x), torch.cos(2.0 * y), torch.sin(2.0 * x)], 1)


def test_errors_at_the_boundaries_of_meshes() -> None:
    """Variances of boundary integrals are the true ones, those of values also on finer meshes."""
    data, test, finer = (
        PoissonOnShapes().sample(count, resolution=size, seed=seed, dtype=torch.float64).inputs
        for count, size, seed in ((60, 150, 1), (20, 150, 2), (20, 600, 2))
    )
    numbers = math.sqrt(60) * torch.linalg.qr(normal(60, 4, seed="errors")).Q  # of covariance 1 in this sample
    errors = (numbers[..., None] * near_walls(data.grid)).sum(1, keepdim=True)
    scaled = VarianceScale().fit(Even(data.grid), FieldPairs(data, Field(data.values + errors, data.grid)))
    u, around = scaled(test), boundary_integral(test.grid)
    ratio = u.apply(around).variance.flatten() / around(near_walls(test.grid)).square().sum((1, 2))
    assert 0.8 < float(ratio.log().mean().exp()) < 1.25  # 0.13 without a local scale
    coarse, fine = (
        domain_average(scaled(inputs).variance, inputs.grid).sum()
        / domain_average(near_walls(inputs.grid).square(), inputs.grid).sum()
        for inputs in (test, finer)
    )
    assert float(fine) == pytest.approx(float(coarse), rel=0.1)  # distances to coarse boundaries are too large
    points = Grid.scattered(0.3 * test.grid.first.points[:3], torch.ones(3, dtype=torch.float64))
    assert bool((scaled(test, points).std < u.std.amax()).all())


def fitted(grid: Grid = GRID, channels: int = 2) -> ScaledPredictor:
    sd = by_slope if grid is RING else by_position
    return VarianceScale().fit(Even(grid, channels=channels), truths(grid, 60, sd=sd, seed=1, channels=channels))


@pytest.mark.parametrize("separate", [True, False])
def test_chi2_on_the_calibration_fields_stays_one(separate: bool) -> None:
    data = truths(GRID, 60, sd=by_position, seed=1, channels=2)
    scaled = VarianceScale(separate=separate).fit(Even(GRID, channels=2), data)
    assert scaled.local is not None
    average = metrics.chi2(metrics.compare(scaled(data.inputs), data.outputs, noise=scaled.noise)).mean(0)
    torch.testing.assert_close(average, torch.ones(2, dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("grid", [GRID, RING], ids=["ends", "periodic"])
def test_it_is_one_function_on_all_grids(grid: Grid) -> None:
    scaled, inputs = fitted(grid), truths(grid, 3, sd=evenly, seed=7, channels=2).inputs
    stated = scaled(inputs).std
    fine = inputs.resample(grid.resized((4 * 47 + 1 if grid is GRID else 192,)))
    torch.testing.assert_close(scaled(fine).std[..., ::4], stated, rtol=0.02, atol=0)
    read = scaled(inputs, Grid.scattered(grid.points[[3, 20, 41]], torch.ones(3, dtype=torch.float64))).std
    torch.testing.assert_close(read, stated[..., [3, 20, 41]], rtol=1e-9, atol=0)


def test_functionals_draws_and_single_functions_agree_with_the_field() -> None:
    scaled, inputs = fitted(), truths(GRID, 3, sd=evenly, seed=7, channels=2).inputs
    u = scaled(inputs)
    root = torch.cat([u.root.dense(), u.discrepancy.dense()], -1)
    torch.testing.assert_close(root.square().sum(-1).reshape(u.variance.shape), u.variance)
    whole = u.apply(integral(GRID))
    torch.testing.assert_close(whole.variance, (GRID.weights @ root).square().sum(-1)[..., None])
    torch.testing.assert_close(scaled(inputs[1:2]).std, u.std[1:2])
    draws = u.rsample(torch.Size([4000]), seed=1)
    assert (draws.std(0) / u.std - 1.0).abs().max() < 5.0 / math.sqrt(8000)
    one = scaled.draw(3)(inputs.values, grid=GRID)
    torch.testing.assert_close(scaled.draw(3)(inputs.values[:1], grid=GRID), one[:1])


def test_draws_side_by_side_are_draws() -> None:
    scaled, inputs = fitted(channels=2), truths(GRID, 3, sd=evenly, seed=7, channels=2).inputs
    assert scaled.local is not None
    values = torch.stack([inputs.values, 2.0 * inputs.values])
    expected = torch.stack([scaled.draw(seed)(each, grid=GRID) for seed, each in zip((3, 4), values, strict=True)])
    seeds = [3] * 3 + [4] * 3
    together = scaled.evaluate_draws(Field(values.flatten(0, 1), GRID), seeds=seeds, each=True)
    torch.testing.assert_close(together, expected.flatten(0, 1))


def test_what_is_drawn_has_the_size_that_is_stated() -> None:
    """All but what has no correlation, which draws of functions leave out."""
    scaled, inputs = fitted(channels=1), truths(GRID, 2, sd=evenly, seed=7).inputs
    draws = torch.stack([scaled.draw(seed)(inputs.values, grid=GRID) for seed in range(300)])
    u = scaled(inputs)
    smooth = u.variance - u.discrepancy.second.row_squares()
    assert (draws.var(0) / smooth - 1.0).abs().max() < 6.0 * math.sqrt(2 / 300)


def test_gradients_pass() -> None:
    scaled, inputs = fitted(RING, 1), truths(RING, 1, sd=evenly, seed=7).inputs
    values = inputs.values.clone().requires_grad_(True)

    def total(values: Tensor) -> Tensor:
        return scaled(Field(values, RING)).variance.sum()

    (gradient,) = torch.autograd.grad(total(values), values)
    step = 1e-6 * normal(*values.shape, seed=3)
    difference = (total(values.detach() + step) - total(values.detach() - step)) / 2
    assert difference.item() == pytest.approx((gradient * step).sum().item(), rel=1e-5)


@pytest.mark.parametrize("fraction", [0.0, 1.0], ids=["all smooth", "all white"])
def test_gradients_pass_where_a_part_of_the_discrepancy_is_nothing(fraction: float) -> None:
    """Roots of what is nothing everywhere have no derivative, and must not make those of the rest undefined."""
    scaled = VarianceScale().fit(Even(RING), truths(RING, 60, sd=by_slope, seed=3))
    assert scaled.local is not None
    one = torch.ones_like(scaled.scale)
    parts = replace(scaled.decomposition, white_fraction=fraction * one, root_fraction=0.5 * one)
    known = {"noise": 0.0 * one, "calibrated_on": scaled.calibrated_on, "local": scaled.local}
    found = ScaledPredictor(scaled.inner, one, noise_scale=one, decomposition=parts, **known)
    inputs = truths(RING, 2, sd=by_slope, seed=5).inputs
    values = inputs.values.clone().requires_grad_(True)

    def total(values: Tensor) -> Tensor:
        u = found(Field(values, RING))
        return u.variance.sum() + u.rsample(seed=1).square().sum()

    (gradient,) = torch.autograd.grad(total(values), values)
    step = 1e-6 * normal(*values.shape, seed=6)
    difference = total(inputs.values + step) - total(inputs.values - step)
    assert float(difference) / 2 == pytest.approx(float((gradient * step).sum()), rel=1e-4)


def test_data_are_conditioned_on_in_its_units() -> None:
    scaled, inputs = fitted(channels=1), truths(GRID, 2, sd=evenly, seed=7).inputs
    u = scaled(inputs)
    middle = sensors(GRID, [[0.5]])
    seen = u.condition(middle, middle(u.mean) + 1.0, noise=1e-6)
    assert (seen.apply(middle).mean - middle(u.mean) - 1.0).abs().max() < 1e-3
    assert (seen.variance <= u.variance + 1e-9).all()


def test_nothing_is_extrapolated() -> None:
    scaled, inputs = fitted(RING, 1), truths(RING, 20, sd=by_slope, seed=7).inputs
    local = scaled.local
    assert local is not None
    factors = local.on(RING)(1e6 * inputs.values, 1e12 * torch.ones_like(inputs.values))
    known = local.on(RING)(inputs.values, torch.ones_like(inputs.values))
    assert torch.isfinite(factors).all()
    assert factors.max() < 20 * known.max()


def test_features_do_not_go_together_beyond_what_calibration_has_seen() -> None:
    """Large coefficients of either sign cancel on calibration fields, and need not elsewhere."""
    scaled, inputs = fitted(RING, 1), truths(RING, 20, sd=by_slope, seed=7).inputs
    assert scaled.local is not None
    local = replace(scaled.local, coefficients=40.0 * scaled.local.coefficients, curve=None)
    free = replace(local, limits=torch.tensor([[-math.inf], [math.inf]], dtype=torch.float64))
    mean, variance = 1e6 * inputs.values, 1e12 * torch.ones_like(inputs.values)
    assert free.on(RING)(mean, variance).log().max() > 10.0 * local.limits[1]
    within = local.on(RING)(mean, variance).log()
    assert within.max() <= local.limits[1] + 1e-12
    assert within.min() >= local.limits[0] - 1e-12


class Rough(PerSetPredictor):
    """States deviations that go up and down along the domain, where errors do not."""

    def __init__(self) -> None:
        nothing = torch.zeros(1, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=nothing, domain=RING, like=nothing))

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        shifts = 2 * math.pi * torch.rand(len(inputs), 1, 1, generator=generator(len(inputs))).double()
        deviation = 1.0 + 0.8 * torch.cos(2 * math.pi * 9 * RING.points[:, 0] + shifts)
        return GaussianField(torch.zeros_like(inputs.values), DenseRoot(deviation.diag_embed()), latent="rough", grid=RING)


def test_ups_and_downs_that_say_nothing_of_errors_are_taken_out() -> None:
    errors = normal(200, 1, RING.size, seed=1)
    data = FieldPairs(Field(errors, RING), Field(errors, RING))
    scaled = VarianceScale().fit(Rough(), data)
    before, after = (one(data.inputs).variance.log().std(-1).mean() for one in (scaled.inner, scaled))
    assert float(before) > 1.0
    assert float(after) < 0.2 * float(before)


def test_fine_ups_and_downs_do_not_grow() -> None:
    """Errors go up and down by more than is stated; the factor would make smooth residuals rough."""
    u = Rough()(Field(torch.zeros(200, 1, RING.size, dtype=torch.float64), RING))
    errors = u.variance * normal(200, 1, RING.size, seed=1)  # the square of the stated deviation
    local = VarianceScale().fit(Rough(), FieldPairs(*(Field(errors, RING),) * 2)).local
    assert local is None or float(local.coefficients[0, FINE + 1]) == 0.0


def test_the_curve_does_not_see_fine_ups_and_downs() -> None:
    data = FieldPairs(*(Field(normal(200, 1, RING.size, seed=1), RING),) * 2)
    local = VarianceScale().fit(Rough(), data).local
    assert local is not None
    knots = torch.tensor([[-20.0, 20.0]], dtype=torch.float64)
    bent = replace(local, curve=VarianceCurve(knots=knots, heights=0.5 * knots))
    u = Rough()(data.inputs)
    added = (bent.on(RING)(u.mean, u.variance) / local.on(RING)(u.mean, u.variance)).log()
    assert float(added.std(-1).mean()) < 0.1 * float(u.variance.log().std(-1).mean())


def test_errors_that_are_zero_on_a_part_of_the_domain() -> None:
    """There a likelihood would have a variance of zero: the factor stays a number."""
    squares = normal(40, 1, 48, seed=1).square() * (torch.arange(48) < 16)
    means, ones = truths(RING, 40, sd=by_slope, seed=7).inputs.values, torch.ones(40, 1, 48, dtype=torch.float64)
    local = fit_local_scale(lambda: iter([(means, ones, squares)]), groups=torch.arange(40), grid=RING)
    assert local is not None
    factor = local.on(RING)(means, ones)
    assert bool((factor > 0).all())
    assert bool(factor.isfinite().all())
    assert float((squares / factor).mean()) == pytest.approx(1.0)


def test_values_too_small_to_square_in_float32() -> None:
    """Units drop out."""
    data = homogeneous_pairs(30)
    assert VarianceScale().fit(Even(data.inputs.grid), data).local is not None
    local = fitted(RING, 1).local
    assert local is not None
    assert local.on(RING)(torch.zeros(1, 1, 48), torch.full((1, 1, 48), 1e-30)).isfinite().all()


def test_grids_of_other_domains_are_not_covered() -> None:
    local = fitted(RING, 1).local
    assert local is not None
    assert not local.covers(GRID)
    assert not local.covers(Grid.scattered(RING.points, RING.weights))


def test_coefficients_do_not_depend_on_where_the_search_begins() -> None:
    design = normal(40, 30, 3, seed=5)
    squares = normal(40, 30, seed=6).square() * (0.5 * design[..., 0]).exp()
    one = _Likelihood(design=design, squares=squares, weights=torch.full((40, 30), 1.0 / 30.0, dtype=torch.float64))
    strong, none = (torch.tensor([first, 0.3, 0.3], dtype=torch.float64) for first in (300.0, math.inf))
    mild = torch.full((3,), 0.3, dtype=torch.float64)
    cold = one.minimiser(mild)
    assert float(cold[1]) == pytest.approx(0.5, abs=4.0 * (2.0 / 1200) ** 0.5)  # four standard errors
    for start in (one.minimiser(strong), one.minimiser(none)):
        assert not torch.allclose(start, cold, rtol=0.0, atol=1e-2)
        torch.testing.assert_close(one.minimiser(mild, start=start), cold, rtol=0.0, atol=1e-4)  # ends at gains of 1e-9
    from_mild = one.minimiser(none, start=cold)
    assert float(from_mild[1]) == 0.0
    torch.testing.assert_close(from_mild, one.minimiser(none), rtol=0.0, atol=1e-4)
