"""Predictors on a tiny weight-space model: validation, coherent draws, dtypes and gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from probneural.distributions import FeatureRoot, FieldDistribution, GaussianField, PredictorTraits
from probneural.distributions.predictors.base import FunctionDraw
from probneural.errors import DataError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from tests.distributions.cases import normal
from tests.fitted_objects import GRID as WALLS
from tests.fitted_objects import setting
from tests.heads import cases
from tests.helpers import PerSetPredictor

DOMAIN = Grid.uniform(8)
WAVES = 3
NUMBERS = torch.arange(WAVES, dtype=torch.float64)


def moments(inputs: Field) -> Tensor:
    """Fourier coefficients of the inputs, `(n, WAVES)`: the same on every grid that resolves them."""
    waves = torch.cos(2 * math.pi * NUMBERS * inputs.grid.points)
    return (inputs.values[:, 0, :, None] * (waves * inputs.grid.weights[:, None]).to(inputs.values)).sum(1)


class WeightSpace(PerSetPredictor):
    """u(x) = sum_j phi_j(a, x) w_j for two channels, with w = factor xi: Gaussian."""

    def __init__(self, *, dtype: torch.dtype = torch.float64, domain: Grid = DOMAIN) -> None:
        like = torch.empty(0, dtype=dtype)
        super().__init__(PredictorTraits(in_channels=1, noise=torch.zeros(2), domain=domain, like=like))
        self.factor = normal("predictor", 1, 2, WAVES, 4)
        self.seen: Field | None = None

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        self.seen = inputs
        where = inputs.grid if query is None else query
        waves = torch.cos(2 * math.pi * NUMBERS * where.points[:, :1]).to(inputs.values)
        features = moments(inputs)[:, None, :] * waves
        mean = features.sum(-1)[:, None].expand(-1, 2, -1).unflatten(-1, where.shape)
        return GaussianField(mean, FeatureRoot(features, self.factor), latent="weights", grid=where)


def cosine_inputs(grid: Grid, *, dtype: torch.dtype = torch.float64) -> Field:
    """Two functions with frequencies up to 2."""
    x = grid.points[:, 0]
    return Field(torch.stack([1 + torch.cos(2 * math.pi * x), torch.cos(4 * math.pi * x) - 0.5])[:, None].to(dtype), grid)


INPUTS = cosine_inputs(DOMAIN)


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
        with pytest.raises(ShapeError, match=r"1 channels of inputs; got 3"):
            WeightSpace()(Field(torch.ones(1, 3, 8), DOMAIN))

    def test_inputs_that_are_not_finite(self) -> None:
        values = INPUTS.values.clone()
        values[1, 0, 5] = torch.nan
        for call in (WeightSpace(), lambda field: WeightSpace().draw(0)(field.values)):
            with pytest.raises(DataError, match=r"1 values that are NaN or infinite, the first at index \(1, 0, 5\)"):
                call(Field(values, DOMAIN))

    def test_draws_from_a_field_of_another_kind(self) -> None:
        class Strange(WeightSpace):
            def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
                return inputs.values

        with pytest.raises(UnsupportedError, match="a FieldDistribution as field"):
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


def test_arrays_in_and_arrays_out() -> None:
    predictor, _, new = setting()
    u, fine = predictor(new.inputs), WALLS.resized(23)
    for values in (new.inputs.values, new.inputs.values.numpy(), new.inputs.values.numpy().astype(">f8")):
        mean, std = predictor.predict(values)
        assert type(mean) is type(std) is type(values)
        assert torch.equal(torch.as_tensor(mean), u.mean)
        assert torch.equal(torch.as_tensor(std), u.variance.sqrt())
    many = new.inputs.values.repeat(30, 1, 1).float().numpy()  # several chunks
    mean = predictor.predict(many, query=fine)[0].reshape(30, -1, 1, 23)
    np.testing.assert_allclose(mean, predictor(new.inputs, fine).mean.expand(30, -1, 1, 23), atol=1e-6)
    meshes, batch = cases.fitted("last-layer-given", "meshes"), cases.operator_case("meshes").inputs
    assert torch.equal(meshes.predict(batch.values, grid=batch.grid)[0], meshes(batch).mean)
    with pytest.raises(GridError, match="grid=, the points of the inputs"):
        meshes.predict(batch.values)
    values = np.ones((2, 1, 12))
    for array, error, message in (
        ([[[1.0]]], DataError, "NumPy array"),
        (values[0], ShapeError, "3 axes of values"),
        (np.ones((2, 3, 12)), ShapeError, "1 channels"),
        (np.nan * values, DataError, "finite inputs"),
        (1j * values, DataError, "real numbers"),
    ):
        with pytest.raises(error, match=message):
            predictor.predict(array)
