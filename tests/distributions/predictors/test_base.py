"""Predictors on a tiny weight-space model: validation, coherent draws, dtypes and gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from probneural.distributions import EmpiricalField, FeatureRoot, FieldDistribution, GaussianField, Predictor, PredictorTraits
from probneural.distributions.predictors.base import FunctionDraw
from probneural.errors import DataError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field, evaluate, takes_grid
from probneural.grids import Grid, resample
from tests.distributions.cases import normal

DOMAIN = Grid.uniform(8)
WAVES = 3
NUMBERS = torch.arange(WAVES, dtype=torch.float64)


def moments(inputs: Field) -> Tensor:
    """Fourier coefficients of the inputs, `(n, WAVES)`: the same on every grid that resolves them."""
    waves = torch.cos(2 * math.pi * NUMBERS * inputs.grid.points)
    return (inputs.values[:, 0, :, None] * (waves * inputs.grid.weights[:, None]).to(inputs.values)).sum(1)


class WeightSpace(Predictor):
    """u(x) = sum_j phi_j(a, x) w_j for two channels, with w = factor xi: Gaussian."""

    def __init__(self, *, dtype: torch.dtype = torch.float64, domain: Grid = DOMAIN) -> None:
        like = torch.empty(0, dtype=dtype)
        super().__init__(PredictorTraits(in_channels=1, noise=torch.zeros(2), domain=domain, like=like))
        self.factor = normal("predictor", 1, 2, WAVES, 4)
        self.seen: Field | None = None

    def _predict(self, sets: list[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        self.seen = inputs
        where = inputs.grid if query is None else query
        waves = torch.cos(2 * math.pi * NUMBERS * where.points[:, :1]).to(inputs.values)
        features = moments(inputs)[:, None, :] * waves
        mean = features.sum(-1)[:, None].expand(-1, 2, -1).unflatten(-1, where.shape)
        return GaussianField(mean, FeatureRoot(features, self.factor), latent="weights", grid=where)


class Ensemble(WeightSpace):
    """Three members of unequal weight."""

    def _predict(self, sets: list[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        gaussian = super()._field(inputs, query)
        weights = torch.tensor([0.2, 0.3, 0.5])
        return EmpiricalField(gaussian.rsample((3,), seed=0), weights, grid=gaussian.grid)


def cosine_inputs(grid: Grid, *, dtype: torch.dtype = torch.float64) -> Field:
    """Two functions with frequencies up to 2."""
    x = grid.points[:, 0]
    return Field(torch.stack([1 + torch.cos(2 * math.pi * x), torch.cos(4 * math.pi * x) - 0.5])[:, None].to(dtype), grid)


PREDICTORS = [WeightSpace, Ensemble]
INPUTS = cosine_inputs(DOMAIN)


@pytest.mark.parametrize("make", PREDICTORS)
class TestCalling:
    def test_predicts_on_the_inputs_grid_or_at_the_query(self, make: Callable[..., Predictor]) -> None:
        predictor, query = make(), Grid.scattered([[0.1], [0.6]], [0.5, 0.5])
        assert predictor(INPUTS).mean.shape == (2, 2, 8)
        assert predictor(INPUTS, query).mean.shape == (2, 2, 2)
        assert predictor(INPUTS, query).grid == query

    @pytest.mark.parametrize("of_operator", [torch.float32, torch.float64])
    @pytest.mark.parametrize("of_inputs", [torch.float32, torch.float64])
    def test_computes_in_the_operators_dtype(
        self, make: Callable[..., Predictor], of_operator: torch.dtype, of_inputs: torch.dtype
    ) -> None:
        predictor, inputs = make(dtype=of_operator), cosine_inputs(DOMAIN, dtype=of_inputs)
        field = predictor(inputs)
        assert predictor.seen is not None  # type: ignore[attr-defined]
        assert predictor.seen.dtype == of_operator  # type: ignore[attr-defined]
        assert field.mean.dtype == field.variance.dtype == field.rsample().dtype == of_operator
        assert predictor.draw(0)(inputs.values).dtype == of_operator
        assert inputs.dtype == of_inputs

    def test_is_differentiable_in_the_inputs(self, make: Callable[..., Predictor]) -> None:
        predictor = make()

        def outputs(values: Tensor) -> list[Tensor]:
            field = predictor(Field(values, DOMAIN))
            return [field.mean, field.variance, field.rsample((2,), seed=1), predictor.draw(3)(values)]

        assert torch.autograd.gradcheck(outputs, INPUTS.values.clone().requires_grad_())


@pytest.mark.parametrize("make", PREDICTORS)
class TestDraws:
    def test_are_operators(self, make: Callable[..., Predictor]) -> None:
        draw = make().draw(0)
        assert isinstance(draw, nn.Module)
        assert takes_grid(draw)
        assert not list(draw.parameters())
        assert torch.equal(evaluate(draw, INPUTS), draw(INPUTS.values))

    def test_are_equal_across_calls_and_predictors(self, make: Callable[..., Predictor]) -> None:
        predictor = make()
        first, again, other = predictor.draw(4), make().draw(4), predictor.draw(5)
        assert torch.equal(first(INPUTS.values), first(INPUTS.values))
        assert torch.equal(first(INPUTS.values), again(INPUTS.values))
        assert len({float(predictor.draw(seed)(INPUTS.values).sum()) for seed in range(30)}) >= 3
        assert other.seed == 5

    def test_are_the_fields_own_draws(self, make: Callable[..., Predictor]) -> None:
        predictor = make()
        for seed in range(10):
            assert torch.equal(predictor.draw(seed)(INPUTS.values), predictor(INPUTS).rsample(seed=seed))

    def test_are_one_function_at_every_grid_and_query(self, make: Callable[..., Predictor]) -> None:
        draw, fine = make().draw(4), Grid.uniform(21)
        scattered = Grid.scattered(torch.rand(5, 1, generator=torch.Generator().manual_seed(0)), torch.ones(5))
        coarse = draw(INPUTS.values)
        same_inputs = cosine_inputs(fine).values
        assert (draw(same_inputs) - resample(coarse, DOMAIN, fine)).abs().max() <= 1e-12
        assert (draw(same_inputs, query=DOMAIN) - coarse).abs().max() <= 1e-12
        assert (draw(INPUTS.values, grid=DOMAIN, query=scattered) - resample(coarse, DOMAIN, scattered)).abs().max() <= 1e-12

    def test_are_one_function_among_other_inputs(self, make: Callable[..., Predictor]) -> None:
        draw = make().draw(4)
        assert (draw(INPUTS.values[1:]) - draw(INPUTS.values)[1:]).abs().max() <= 1e-14

    def test_have_the_moments_of_the_field(self, make: Callable[..., Predictor]) -> None:
        predictor, count = make(), 400
        draws = torch.stack([predictor.draw(seed)(INPUTS.values) for seed in range(count)])
        field = predictor(INPUTS)
        assert ((draws.mean(0) - field.mean).abs() <= 6 * field.standard_deviation / count**0.5 + 1e-12).all()
        assert ((draws.var(0) / field.variance - 1).abs() <= 6 * (3 / count) ** 0.5).all()

    def test_leave_global_randomness_alone(self, make: Callable[..., Predictor]) -> None:
        before = torch.get_rng_state()
        make().draw(0)(INPUTS.values)
        assert torch.equal(torch.get_rng_state(), before)


def test_a_scattered_domain_serves_values_of_its_own_shape() -> None:
    points = Grid.scattered(torch.linspace(0, 0.9, 8).double()[:, None], torch.full((8,), 0.125))
    draw = WeightSpace(domain=points).draw(1)
    assert torch.equal(draw(INPUTS.values), draw(INPUTS.values, grid=points))


@pytest.mark.bad_input
class TestBadInput:
    def test_inputs_that_are_no_field(self) -> None:
        with pytest.raises(DataError, match=r"a Field as inputs.* wrap the tensor"):
            WeightSpace()(INPUTS.values)  # type: ignore[arg-type]

    def test_inputs_of_other_channels(self) -> None:
        with pytest.raises(ShapeError, match=r"inputs of 1 channels; got 3"):
            WeightSpace()(Field(torch.ones(1, 3, 8), DOMAIN))

    def test_inputs_that_are_not_finite(self) -> None:
        values = INPUTS.values.clone()
        values[1, 0, 5] = torch.nan
        for call in (WeightSpace(), lambda field: WeightSpace().draw(0)(field.values)):
            with pytest.raises(DataError, match=r"1 values that are NaN or infinite, the first at index \(1, 0, 5\)"):
                call(Field(values, DOMAIN))

    def test_draws_from_a_field_of_another_kind(self) -> None:
        class Strange(WeightSpace):
            def _predict(self, sets: list[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
                return [self._field(inputs, query) for inputs, query in sets]

            def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
                return inputs.values

        with pytest.raises(UnsupportedError, match="a predictor of field distributions; got Tensor"):
            FunctionDraw(Strange(), seed=0)(INPUTS.values)


def test_is_frozen_and_says_what_it_is() -> None:
    predictor = WeightSpace()
    with pytest.raises(AttributeError, match="WeightSpace is frozen: noise"):
        predictor.noise = torch.ones(2)
    assert repr(predictor).startswith("WeightSpace(1 -> 2 channels on Grid.uniform((8,)")


@pytest.mark.bad_input
class TestForeignGrids:
    @pytest.mark.parametrize("changed", [{"lengths": 2.0}, {"origin": 5.0}, {"periodic": False}])
    def test_another_domain_is_refused(self, changed: dict[str, object]) -> None:
        grid = Grid.uniform(8, **changed)  # type: ignore[arg-type]
        with pytest.raises(GridError, match="domain of the training inputs"):
            WeightSpace()(Field(INPUTS.values, grid))

    @pytest.mark.parametrize("query", [64, (64,), "grid"])
    def test_a_query_is_a_grid(self, query: object) -> None:
        with pytest.raises(GridError, match="a Grid as query"):
            WeightSpace()(INPUTS, query)  # type: ignore[arg-type]

    def test_draws_are_not_converted(self) -> None:
        with pytest.raises(UnsupportedError, match="convert the operator before"):
            WeightSpace().draw(0).double()
