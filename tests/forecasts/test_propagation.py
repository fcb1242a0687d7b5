"""Linearised propagation: dense algebra where the step is affine, closed forms of a diagonal operator, smoothing."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField, Latent
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.distributions.latent import digest
from probneural.errors import ArgumentError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.forecasts import StepInputs, propagate, roots
from probneural.forecasts.roots import PropagatedRoot
from probneural.forecasts.trajectories import GaussianTrajectory
from probneural.grids import Grid
from tests.forecasts.cases import GRID, AffinePredictor, ScalarPredictor, affine, dense_forecast, initial_of, start_of
from tests.helpers import PerSetPredictor, normal

STEPS = 4
CHOICES = [
    (draws, own, has_initial)
    for draws, own, has_initial in itertools.product(("trajectory", "step"), ("trajectory", "step", "none"), (False, True))
]


def gap(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


def stacked(forecast: GaussianTrajectory) -> tuple[Tensor, Tensor]:
    """Mean and root of leads 0 to `steps`, `(n, leads, c p)` and `(n, leads, c p, k)`."""
    fields = [forecast.at(lead) for lead in range(forecast.steps + 1)]
    means = torch.stack([field.mean.flatten(1) for field in fields], dim=1)
    return means, torch.stack([field.root.dense().flatten(1, 2) for field in fields], dim=1)


@pytest.mark.parametrize(("draws", "own", "has_initial"), CHOICES)
def test_affine_steps_are_dense_algebra(draws: str, own: str, has_initial: bool) -> None:
    """Joint over leads, functions and channels; the rank exceeds the number of values, so columns are also left out exactly."""
    predictor = affine(rank=7, channels=2, own=3)
    start = start_of(predictor)
    initial = initial_of(predictor, own=2) if has_initial else None
    forecast = propagate(predictor, start, steps=STEPS, initial=initial, draws=draws, discrepancy=own)
    mean, root = dense_forecast(predictor, start.values.flatten(1), steps=STEPS, draws=draws, discrepancy=own, initial=initial)
    means, roots = stacked(forecast)
    assert forecast.latent.rank == root.shape[3]
    assert gap(means, mean) <= 1e-12
    assert gap(torch.einsum("nlpk,mjqk->nlpmjq", roots, roots), torch.einsum("nlpk,mjqk->nlpmjq", root, root)) <= 1e-12
    variances = torch.stack([forecast.at(lead).variance.flatten(1) for lead in range(STEPS + 1)], dim=1)
    assert gap(variances, root.square().sum(-1)) <= 1e-12


@pytest.mark.parametrize("draws", ["trajectory", "step"])
def test_a_diagonal_operator(draws: str) -> None:
    """u_n = l^n u_0: to first order in s l^n has sd n m^(n-1) s for one l, and √n m^(n-1) s for fresh ones."""
    mean, std = 0.9, 0.05
    predictor = ScalarPredictor(GRID, mean, std)
    start = Field(normal(3, 1, GRID.size), GRID)
    forecast = propagate(predictor, start, steps=20, draws=draws)
    for lead, u in forecast.leads():
        growth = lead if draws == "trajectory" else lead**0.5
        expected = growth * abs(mean) ** (lead - 1) * std * start.values.abs()
        assert gap(u.mean, mean**lead * start.values) <= 1e-13
        assert gap(u.standard_deviation, expected) <= 1e-13


def test_it_meets_the_protocol() -> None:
    predictor = affine()
    forecast = propagate(predictor, start_of(predictor), steps=3)
    assert isinstance(forecast, Forecast)
    assert len(forecast) == 2
    assert forecast.grid == GRID
    assert [lead for lead, _ in forecast.leads()] == [1, 2, 3]
    with pytest.raises(ArgumentError):
        forecast.at(4)


def test_several_states_in_an_input() -> None:
    """A step of two states is one of both, u_k and u_k+1, whose second half is new: dense algebra of the companion matrix."""
    predictor, steps = affine(history=2, rank=2), 4
    size = GRID.size
    companion = torch.zeros(2 * size, 2 * size, dtype=torch.float64)
    companion[:size, size:] = torch.eye(size, dtype=torch.float64)
    companion[size:] = predictor.M
    pad = torch.nn.functional.pad
    both = AffinePredictor(GRID, companion, pad(predictor.R, (0, 0, size, 0)), b=pad(predictor.b, (size, 0)), channels=2)
    start, initial = start_of(predictor), initial_of(predictor)
    for draws in ("trajectory", "step"):
        forecast = propagate(predictor, start, steps=steps, initial=initial, draws=draws, inputs=StepInputs(history=2))
        reference = propagate(both, start, steps=steps, initial=initial, draws=draws)
        for lead in range(steps + 1):
            assert gap(forecast.at(lead).mean, reference.at(lead).mean[:, 1:]) <= 1e-13
            one, other = forecast.at(lead).root.dense(), reference.at(lead).root.dense()[:, 1:]
            assert gap(torch.einsum("ncpk,mdqk->ncpmdq", one, one), torch.einsum("ncpk,mdqk->ncpmdq", other, other)) <= 1e-12


def test_parameters_and_forcing_are_inputs_without_uncertainty() -> None:
    """A step of (u, a, f_k) -> M (u + a + f_k): its forecast is that of u -> M u with these added before each step."""
    size = GRID.size
    M = affine().M
    predictor = AffinePredictor(GRID, torch.cat([M, M, M], dim=1), affine().R)
    start, parameters = Field(normal(2, 1, size, seed="u"), GRID), Field(normal(2, 1, size, seed="a"), GRID)

    def forcing(lead: int) -> Tensor:
        return (lead + 1.0) * normal(1, size, seed="f")

    forecast = propagate(predictor, start, steps=3, inputs=StepInputs(parameters=parameters, forcing=forcing))
    state = start.values
    for lead, u in forecast.leads():
        state = (state + parameters.values + forcing(lead - 1)) @ M.mT
        assert gap(u.mean, state) <= 1e-13
    without = propagate(affine(), start, steps=3)
    assert gap(forecast.at(3).variance, without.at(3).variance) <= 1e-13


@pytest.mark.parametrize("tolerance", [1e-3, 0.05])
def test_what_is_left_out_stays_below_the_tolerance(tolerance: float) -> None:
    """Fewer columns, means as they were, and standard deviations that miss no more than each step may leave out."""
    predictor = affine(rank=4, own=3, grid=Grid.uniform(12))
    start, steps = start_of(predictor), 8
    exact = propagate(predictor, start, steps=steps, draws="step")
    fewer = propagate(predictor, start, steps=steps, draws="step", tolerance=tolerance)
    assert float(fewer.dropped.max()) <= tolerance * 2**0.5  # of one of two functions, where both share what is left out
    assert float(fewer.dropped.max()) > 0.0
    assert float(exact.dropped.max()) == 0.0
    one, other = exact.at(steps), fewer.at(steps)
    assert gap(one.mean, other.mean) == 0.0
    assert isinstance(one.root, PropagatedRoot)
    assert isinstance(other.root, PropagatedRoot)
    assert other.root.columns.shape[3] < one.root.columns.shape[3]
    total = [float(u.variance.sum().sqrt()) for u in (one, other)]
    assert (1 - steps * tolerance) * total[0] <= total[1] <= total[0] * (1 + 1e-12)


class PerCall(PerSetPredictor):
    """An operator whose calls have latents of their own, as Gaussian processes have: every input has its own number."""

    def __init__(self) -> None:
        super().__init__(affine().traits)

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        flat = inputs.values.flatten(1)
        correlation = torch.exp(-0.5 * torch.cdist(flat, flat).square())
        factor = torch.linalg.cholesky(correlation + 1e-12 * torch.eye(len(flat), dtype=torch.float64))
        root = DenseRoot(factor[:, None, None, :].expand(-1, 1, GRID.size, -1))
        latent = Latent(id=f"call-{digest(flat)}", rank=len(flat), is_shared_across_calls=False)
        return GaussianField(0.5 * inputs.values, root, latent=latent, grid=GRID)


def test_an_operator_with_a_latent_for_each_call_is_one_operator_at_all_steps() -> None:
    """Errors of two steps are as correlated as the process says of their inputs."""
    start = Field(normal(1, 1, GRID.size), GRID)
    forecast = propagate(PerCall(), start, steps=2)
    mean = [start.values.flatten(), 0.5 * start.values.flatten()]
    correlation = torch.exp(-0.5 * (mean[0] - mean[1]).square().sum())
    expected = 0.25 + 1.0 + 2 * 0.5 * correlation  # e_2 + e_1 / 2
    assert gap(forecast.at(2).variance, expected.expand(1, 1, GRID.size)) <= 1e-9
    apart = propagate(PerCall(), start, steps=2, draws="step")
    assert gap(apart.at(2).variance, torch.full((1, 1, GRID.size), 1.25)) <= 1e-9


def test_an_ensemble_counts_as_the_gaussian_of_its_moments() -> None:
    samples = torch.stack([0.8 * affine().M, 1.1 * affine().M])

    class Pair(PerSetPredictor):
        def _field(self, inputs: Field, query: Grid | None) -> EmpiricalField:
            return EmpiricalField(torch.einsum("spq,ncq->sncp", samples, inputs.values), grid=GRID)

    start = start_of(affine())
    forecast = propagate(Pair(affine().traits), start, steps=2)
    M, D = samples.mean(0), (samples[1] - samples[0]) / 2
    column = start.values @ (M @ D + D @ M).mT
    assert gap(forecast.at(2).mean, start.values @ (M @ M).mT) <= 1e-13
    assert gap(forecast.at(2).variance, column.square()) <= 1e-13


@pytest.mark.bad_input
def test_other_fields_and_grids_are_refused() -> None:
    class Fixed(PerSetPredictor):
        def __init__(self, field: object) -> None:
            super().__init__(affine().traits)
            self.field = field

        def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
            return self.field  # type: ignore[return-value]

    start = start_of(affine())
    coarse = Grid.uniform(3)
    elsewhere = GaussianField(torch.zeros(2, 1, 3), DenseRoot(torch.zeros(2, 1, 3, 1)), latent="xi", grid=coarse)
    with pytest.raises(GridError, match="a step leads from a grid to itself"):
        propagate(Fixed(elsewhere), start, steps=1)
    with pytest.raises(UnsupportedError, match="a GaussianField as field"):
        propagate(Fixed(start), start, steps=1)


def test_choices_are_checked() -> None:
    predictor, start = affine(), start_of(affine())
    for wrong in ({"steps": 0}, {"draws": "both"}, {"discrepancy": "some"}, {"tolerance": 1.0}, {"tolerance": -0.1}):
        with pytest.raises(ArgumentError):
            propagate(predictor, start, **{"steps": 1, **wrong})  # type: ignore[arg-type]


def test_columns_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "_LARGEST", 60)
    with pytest.raises(UnsupportedError, match="a tolerance > 0"):
        propagate(affine(), start_of(affine()), steps=9, draws="step")


def test_where_steps_are_linearised() -> None:
    """Of affine steps it does not matter; elsewhere the mean is that of the tangents at the trajectory given."""
    predictor = affine(own=2)
    start, initial = start_of(predictor), initial_of(predictor)
    about = Field(normal(2, 1, GRID.size, seed="about"), GRID)
    one = propagate(predictor, start, steps=3, initial=initial)
    other = propagate(predictor, about, steps=3, initial=initial)
    for lead in range(4):
        assert gap(one.at(lead).mean, other.at(lead).mean) <= 1e-13
        assert gap(one.at(lead).variance, other.at(lead).variance) <= 1e-13

    class Square(PerSetPredictor):
        def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
            root = DenseRoot(torch.zeros_like(inputs.values)[..., None])
            return GaussianField(inputs.values**2, root, latent="square", grid=GRID)

    square = propagate(Square(affine().traits), about, steps=2, initial=initial)
    x, deviation = about.values, about.values - initial.mean
    assert gap(square.at(1).mean, x**2 - 2 * x * deviation) <= 1e-13
    assert gap(square.at(2).mean, x**4 - 4 * x**3 * deviation) <= 1e-12
    assert gap(square.at(2).variance, (4 * x**3) ** 2 * initial.variance) <= 1e-12
    with pytest.raises(GridError):
        propagate(predictor, Field(torch.zeros(2, 1, 7), Grid.uniform(7)), steps=1, initial=initial)
    with pytest.raises(ShapeError):
        propagate(predictor, about[:1], steps=1, initial=initial)


def test_more_dimensions_than_values_are_as_many_as_values() -> None:
    """Of what no other step shares, the latent holds no more dimensions than values; the covariance of leads is the same."""
    predictor = affine(rank=7, own=8)
    start, initial = start_of(predictor, 1), initial_of(predictor, 1, rank=9, own=6)
    forecast = propagate(predictor, start, steps=3, initial=initial, draws="step")
    _, root = dense_forecast(predictor, start.values.flatten(1), steps=3, draws="step", discrepancy="step", initial=initial)
    _, roots = stacked(forecast)
    assert forecast.latent.rank == 2 * GRID.size * 4  # of the start and three steps, shared and own
    assert root.shape[3] == 9 + 3 * 7 + 6 + 3 * 8
    assert gap(torch.einsum("nlpk,mjqk->nlpmjq", roots, roots), torch.einsum("nlpk,mjqk->nlpmjq", root, root)) <= 1e-12
