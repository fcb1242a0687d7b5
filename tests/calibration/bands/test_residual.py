"""Bounds of residuals: exact coverage without solutions, and what they say about errors, which depends on the equation."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

import probneural as pn
from probneural.calibration import ResidualBand
from probneural.distributions import EmpiricalField, FieldDistribution, PredictorTraits
from probneural.errors import ArgumentError, CalibrationError, DataError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from tests.calibration.synthetic import GRID, Synthetic, pairs
from tests.helpers import PerSetPredictor


def gap(predicted: Tensor, inputs: Field, grid: Grid) -> Tensor:
    """Of the equation u = 1.3 f: what `Synthetic`, which returns f, leaves."""
    return predicted - 1.3 * inputs.resample(grid).values


def test_the_bound_is_the_conformal_quantile_of_residuals() -> None:
    predictor, data = Synthetic(channels=2), pairs(50, channels=2)
    bound = ResidualBand(gap, 0.8).fit(predictor, data.inputs)
    largest = 0.3 * data.inputs.values.abs().flatten(1).amax(1)
    assert bound.quantile == pytest.approx(largest.sort().values[40].item(), rel=1e-12)  # ⌈51 * .8⌉ = 41
    torch.testing.assert_close(bound.residuals(data.inputs), -0.3 * data.inputs.values)
    torch.testing.assert_close(bound.scores(data.inputs), largest)
    assert bound.holds(data.inputs).double().mean().item() == pytest.approx(41 / 50)
    fine = GRID.resized((48,))
    finer = ResidualBand(gap, 0.8).fit(predictor, data.inputs, query=fine)
    assert finer.residuals(data.inputs, fine).shape == (50, 2, 48)
    assert "level=0.8" in repr(bound)


def test_coverage_given_the_calibration_inputs_is_beta() -> None:
    n, sets = 19, 200
    inputs = pairs(n * sets + 4000, seed=3).inputs
    scores = ResidualBand(gap).fit(Synthetic(), inputs[:19]).scores(inputs)
    covered = [
        float((scores[-4000:] <= ResidualBand(gap, 0.8).fit(Synthetic(), inputs[start : start + n]).quantile).double().mean())
        for start in range(0, n * sets, n)
    ]
    assert scipy.stats.kstest(covered, scipy.stats.beta(16, 4).cdf).pvalue > 0.01
    assert scipy.stats.kstest(covered, scipy.stats.beta(15, 5).cdf).pvalue < 1e-6


class Wrong(PerSetPredictor):
    """Predicts the exact solution of a problem, and one error more."""

    def __init__(self, problem: pn.problems.Problem, error: Tensor, domain: Grid) -> None:
        noise = torch.zeros(1, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=noise, domain=domain, like=noise))
        self.problem, self.error = problem, error

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        mean = self.problem.solve(inputs).values + self.error
        return EmpiricalField(mean[None], grid=inputs.grid)


def test_what_a_residual_says_about_the_error_depends_on_the_equation() -> None:
    """−Δu − k²u = f: an error of the mode (2, 2) has the residual |λ - k²| = 15, and next to the resonance hardly any."""
    for wavenumber, factor in ((8.0, 8 * math.pi**2 - 64.0), (math.sqrt(8 * math.pi**2 - 0.1), 0.1)):
        problem = pn.problems.Helmholtz(wavenumber)
        inputs = problem.sample(4, resolution=65, seed=0, dtype=torch.float64).inputs
        grid = inputs.grid
        x, y = grid.points.T.reshape(2, *grid.shape)
        mode = torch.sin(2 * math.pi * x) * torch.sin(2 * math.pi * y)

        def left(predicted: Tensor, inputs: Field, grid: Grid, wavenumber: float = wavenumber) -> Tensor:
            step = 1.0 / (grid.shape[0] - 1)
            coefficients = torch.tensor([-1.0, 16.0, -30.0, 16.0, -1.0], dtype=predicted.dtype) / (12 * step**2)
            inner = predicted[..., 2:-2, 2:-2]
            second = sum(
                c * (predicted[..., k : k + inner.shape[-2], 2:-2] + predicted[..., 2:-2, k : k + inner.shape[-1]])
                for k, c in enumerate(coefficients)
            )
            found = -second - wavenumber**2 * inner - inputs.values[..., 2:-2, 2:-2]
            return torch.nn.functional.pad(found, (2, 2, 2, 2))

        exact = ResidualBand(left, 0.5).fit(Wrong(problem, 0.0 * mode, grid), inputs)
        wrong = ResidualBand(left, 0.5).fit(Wrong(problem, mode, grid), inputs)
        change = (wrong.residuals(inputs) - exact.residuals(inputs)).abs().amax((1, 2, 3))
        torch.testing.assert_close(change, torch.full((4,), factor, dtype=torch.float64), rtol=2e-3, atol=2e-3)


def test_an_error_that_the_equation_does_not_see_has_no_residual() -> None:
    problem = pn.problems.Antiderivative()
    inputs = problem.sample(20, resolution=129, seed=0, dtype=torch.float64).inputs

    def left(predicted: Tensor, inputs: Field, grid: Grid) -> Tensor:
        slope = (predicted[..., 2:] - predicted[..., :-2]) * (grid.size - 1) / 2
        return torch.nn.functional.pad(slope - inputs.values[..., 1:-1], (1, 1))

    right, wrong = (
        ResidualBand(left).fit(Wrong(problem, constant, inputs.grid), inputs) for constant in torch.tensor([0.0, 5.0]).double()
    )
    assert wrong.quantile == pytest.approx(right.quantile, rel=1e-9)
    assert right.quantile < 0.05 * inputs.values.abs().max()


def test_residuals_see_short_waves_of_the_error_best() -> None:
    """−(e^g u')' = 1 where g = ln 2: an error sin πmx has the residual 2 π² m² sin πmx."""
    grid = pn.problems.Darcy1D().grid(257)
    inputs, x = Field(torch.full((9, 1, 257), math.log(2.0), dtype=torch.float64), grid), grid.points[:, 0]

    def left(predicted: Tensor, inputs: Field, grid: Grid) -> Tensor:
        step, flux = 1 / (grid.size - 1), 0.5 * (inputs.values[..., 1:] + inputs.values[..., :-1])
        divergence = (flux.exp() * predicted.diff(dim=-1) / step).diff(dim=-1) / step
        return torch.nn.functional.pad(divergence + 1.0, (1, 1))

    for mode in (1, 4):
        error = torch.sin(math.pi * mode * x)
        bound = ResidualBand(left).fit(Wrong(pn.problems.Darcy1D(), error, grid), inputs)
        assert bound.quantile == pytest.approx(2 * math.pi**2 * mode**2, rel=2e-3)


@pytest.mark.bad_input
def test_errors() -> None:
    inputs = pairs(12).inputs
    with pytest.raises(ArgumentError, match="residual"):
        ResidualBand(3.0)
    with pytest.raises(ArgumentError, match="as level"):
        ResidualBand(gap, 1.0)
    with pytest.raises(CalibrationError, match="at least 19"):
        ResidualBand(gap, 0.95).fit(Synthetic(), inputs)
    with pytest.raises(CalibrationError, match="input function"):
        ResidualBand(gap).fit(Synthetic(), inputs).holds(inputs[:0])
    with pytest.raises(DataError, match="Predictor"):
        ResidualBand(gap).fit(None, inputs)
    with pytest.raises(DataError, match="Field"):
        ResidualBand(gap).fit(Synthetic(), inputs.values)
    for broken in (lambda u, f, grid: u[..., 1:], lambda u, f, grid: u.mean(), lambda u, f, grid: None):
        with pytest.raises(ShapeError, match=r"a residual of shape \(12, k, 16\)"):
            ResidualBand(broken).fit(Synthetic(), inputs)
    with pytest.raises(DataError, match="residuals"):
        ResidualBand(lambda u, f, grid: u * math.nan).fit(Synthetic(), inputs)
