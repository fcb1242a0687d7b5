"""What is asked of an analysis beyond single leads: functionals of several, and a file of all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from probneural.distributions import EnsembleForecast
from probneural.errors import ArgumentError, GridError
from probneural.fields import Field
from probneural.forecasts import EnsembleKalmanFilter, Observation
from probneural.forecasts.analysis import EnsembleAnalysis
from probneural.functionals import integral, maximum, sensors
from probneural.grids import Grid
from tests.forecasts.cases import GRID, affine, initial_of, start_of
from tests.helpers import normal

STEPS, MEMBERS = 4, 6


@pytest.fixture(scope="module")
def analysis() -> EnsembleAnalysis:
    predictor = affine()
    observations = [Observation(sensors(GRID, [[0.2]]), normal(2, 1, 1, seed="y"), lead=lead, noise=0.3) for lead in (3, 1)]
    return EnsembleKalmanFilter(MEMBERS).assimilate(
        predictor, start_of(predictor), observations=observations, steps=STEPS, initial=initial_of(predictor), seed=0
    )


def test_functionals_of_several_leads_are_joint_over_them(analysis: EnsembleAnalysis) -> None:
    assert isinstance(analysis, EnsembleForecast)
    total = integral(GRID)
    states = torch.stack([analysis.at(lead).samples for lead in range(STEPS + 1)])  # (leads, s, n, c, p)
    numbers = states @ GRID.weights
    joint = analysis.apply(total)
    torch.testing.assert_close(joint.samples, numbers[1:].movedim(0, -1))
    assert (joint.samples.shape, analysis.channels) == ((MEMBERS, 2, 1, STEPS), 1)
    weights = [0.5, 1.0, 2.0]
    summed = analysis.apply(total, leads=[4, 0, 2], weights=weights)
    expected = 0.5 * numbers[4] + numbers[0] + 2.0 * numbers[2]
    torch.testing.assert_close(summed.samples[..., 0], expected)
    largest = analysis.apply_by_draws(maximum(GRID), leads=[0, 3])
    peaks = torch.stack([maximum(GRID)(states[lead]) for lead in (0, 3)], dim=-1).squeeze(-2)
    torch.testing.assert_close(largest.samples, peaks)
    moving = analysis.apply([sensors(GRID, [[0.2 * number]]) for number in range(2)], leads=[1, 2])
    torch.testing.assert_close(moving.samples, torch.stack([states[1, ..., 0], states[2, ..., 1]], dim=-1))


def test_a_file_holds_the_analyses_of_all_leads(analysis: EnsembleAnalysis, tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("zarr")
    analysis.to_zarr(tmp_path / "analysis.zarr", times=[0.0, 0.1, 0.2, 0.3, 0.4])
    with xarray.open_zarr(tmp_path / "analysis.zarr", chunks=None) as opened:
        dataset = opened.load()
    assert dataset.states.dims == ("member", "sample", "time", "channel", "x0")
    for lead in range(STEPS + 1):
        assert (dataset.states.isel(time=lead).values == analysis.at(lead).samples.numpy()).all()
    assert dataset.attrs["observed_leads"] == [1, 3]
    assert dataset.time.values.tolist() == [0.0, 0.1, 0.2, 0.3, 0.4]
    member = Field.from_xarray(dataset.states.isel(member=2, time=3, drop=True))
    assert torch.equal(member.values, analysis.at(3).samples[2])
    assert not torch.equal(member.values, analysis.forecast_at(3).samples[2])


def test_leads_and_grids_are_checked(analysis: EnsembleAnalysis, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="lead"):
        analysis.apply(integral(GRID), leads=[5])
    with pytest.raises(ArgumentError, match="one lead or more"):
        analysis.apply(integral(GRID), leads=[])
    with pytest.raises(GridError):
        analysis.apply(integral(Grid.uniform(9)))
    with pytest.raises(ArgumentError, match="ascending times"):
        analysis.to_zarr(tmp_path / "analysis.zarr", times=[0.0, 1.0])
