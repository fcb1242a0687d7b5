"""Trajectories in zarr stores, read by xarray."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from probneural.distributions.forecasts import ensemble_forecast
from probneural.errors import ArgumentError, FileError, ForecastError
from probneural.fields import Field
from probneural.grids import Grid
from tests.distributions.forecasts.test_trajectory import Multiplier, constant, rolled
from tests.helpers import normal

xarray = pytest.importorskip("xarray")
zarr = pytest.importorskip("zarr")
PLANE = Grid.uniform((3, 4), lengths=(1.0, 2.0), periodic=(True, False))


def opened(path: Path) -> Any:
    with xarray.open_zarr(path, chunks=None) as dataset:
        return dataset.load()


def test_holds_all_leads_with_names_and_coordinates(tmp_path: Path) -> None:
    start = Field(normal(2, 1, 3, 4, seed="plane"), PLANE)
    forecast = Multiplier(grid=PLANE).rollout(start, steps=3, members=5, draws="step", seed=2**70)
    forecast.to_zarr(tmp_path / "forecast.zarr", times=[0.0, 0.1, 0.2, 0.4])
    dataset = opened(tmp_path / "forecast.zarr")
    assert dataset.states.dims == ("member", "sample", "time", "channel", "x0", "x1")
    assert dataset.states.shape == (5, 2, 4, 1, 3, 4)
    for lead in range(4):
        assert (dataset.states.sel(time=[0.0, 0.1, 0.2, 0.4][lead]).values == forecast.at(lead).samples.numpy()).all()
    assert dataset.lead.values.tolist() == [0, 1, 2, 3]
    assert dataset.x1.values.tolist() == PLANE.axes[1].coordinates.tolist()
    assert dataset.attrs["draws"] == "step"
    assert int(dataset.attrs["seed"]) == 2**70
    assert [path.name for path in tmp_path.iterdir()] == ["forecast.zarr"]
    member = Field.from_xarray(dataset.states.isel(member=3, time=2, drop=True))
    assert member.grid == PLANE
    assert torch.equal(member.values, forecast.at(2).samples[3])


def test_one_chunk_is_one_lead_of_as_many_members_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ensemble_forecast, "_CHUNK_BYTES", 2 * 4 * 8)
    rolled(members=5).to_zarr(tmp_path / "some")
    assert zarr.open(tmp_path / "some")["states"].chunks == (2, 1, 1, 1, 4)


def test_scattered_points(tmp_path: Path) -> None:
    grid = Grid.scattered(torch.rand(6, 2, generator=torch.Generator().manual_seed(0)), torch.full((6,), 0.5))
    rolled_out = Multiplier(grid=grid).rollout(constant(grid=grid), steps=2, members=3)
    rolled_out.to_zarr(tmp_path / "points")
    dataset = opened(tmp_path / "points")
    assert dataset.states.dims == ("member", "sample", "time", "channel", "point")
    assert dataset.x1.values.tolist() == grid.points[:, 1].tolist()
    assert dataset.weight.values.tolist() == [0.5] * 6


@pytest.mark.filterwarnings("ignore:states of a roll-out reach")
def test_a_blow_up_leaves_the_leads_before_it(tmp_path: Path) -> None:
    forecast = Multiplier(mean=0.0, std=1e60).rollout(constant(), steps=20, members=3, seed=0)
    with pytest.raises(ForecastError, match="finite states") as caught:
        forecast.to_zarr(tmp_path / "short")
    dataset = opened(tmp_path / "short")
    assert dataset.time.values.tolist() == [float(lead) for lead in range(caught.value.lead)]
    assert bool(xarray.apply_ufunc(lambda values: values == values, dataset.states).all())
    assert "finite states" in dataset.attrs["ended"]


def test_nothing_is_left_of_what_fails(tmp_path: Path) -> None:
    asked: list[int] = []

    def forcing(lead: int) -> torch.Tensor:
        asked.append(lead)
        if lead == 2:
            raise KeyError("no forcing")
        return torch.zeros(1, 4)

    with pytest.raises(KeyError):
        rolled(in_channels=2, forcing=forcing).to_zarr(tmp_path / "none")
    assert asked == [0, 1, 2]
    assert not list(tmp_path.iterdir())


@pytest.mark.bad_input
class TestBadInput:
    def test_what_is_there_is_not_replaced(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="a path that does not exist"):
            rolled().to_zarr(tmp_path)

    def test_folders_that_do_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="a folder to write .* into"):
            rolled().to_zarr(tmp_path / "none" / "forecast")

    @pytest.mark.parametrize("times", [[0.0, 1.0], [0.0, 1.0, 1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0, float("nan")]])
    def test_other_times(self, tmp_path: Path, times: list[float]) -> None:
        with pytest.raises(ArgumentError, match="5 ascending times, of leads 0 to 4"):
            rolled().to_zarr(tmp_path / "forecast", times=times)
