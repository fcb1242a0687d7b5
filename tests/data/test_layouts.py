"""Files of all formats open with the layout that they or the user state."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray
import zarr
from scipy.io import savemat

from probneural import data as files
from probneural.data import StoredPairs, Trajectories
from probneural.errors import ArgumentError, DataError, FileError, GridError, ShapeError
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.data.files import numbers, opened, opened_inputs, write_hdf5, write_pdebench, write_zarr

A, U = numbers(7, 6, 5, 2, seed="a"), numbers(7, 6, 5, seed="u", dtype="f8")
AXES = "n x y c -> n x y"
INPUTS = A.transpose(0, 3, 1, 2)


def npz_in_fortran_order(folder: Path) -> Path:
    np.savez(folder / "f.npz", a=np.asfortranarray(A), u=np.asfortranarray(U))
    return folder / "f.npz"


def npy_in_fortran_order(folder: Path) -> Path:
    for name, array in {"a": A, "u": U}.items():
        np.save(folder / f"{name}.npy", np.asfortranarray(array))
    return folder


def matlab(folder: Path) -> Path:
    savemat(folder / "f.mat", {"a": A, "u": U})
    return folder / "f.mat"


def matlab_73(folder: Path) -> Path:
    """HDF5 behind 512 bytes, the axes in reverse."""
    with h5py.File(folder / "f.mat", "w", userblock_size=512) as file:
        for name, array in {"a": A, "u": U}.items():
            file[name] = array.T
            file[name].attrs["MATLAB_class"] = np.bytes_("double")
    with (folder / "f.mat").open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    return folder / "f.mat"


def tensors(folder: Path) -> Path:
    torch.save({"a": torch.from_numpy(A), "u": torch.from_numpy(U), "note": "text"}, folder / "f.pt")
    return folder / "f.pt"


FORMATS: list[Callable[[Path], Path]] = [
    npz_in_fortran_order,
    npy_in_fortran_order,
    matlab,
    matlab_73,
    tensors,
    lambda folder: write_hdf5(folder / "f.h5", a=A, u=U),
    lambda folder: write_zarr(folder / "f.zarr", 2, a=A, u=U),
]


@pytest.mark.parametrize("write", FORMATS)
def test_channels_last_in_each_format(write: Callable[[Path], Path], tmp_path: Path) -> None:
    """Also in other processes, and in any order of rows."""
    data = opened(write(tmp_path), inputs=["a"], outputs=["u"], axes=AXES, periodic=True)
    data = pickle.loads(pickle.dumps(data))  # noqa: S301
    assert np.array_equal(data[[4, 0, 6]].inputs.values.numpy(), INPUTS[[4, 0, 6]])
    assert np.array_equal(data[2:5].outputs.values[:, 0], U[2:5])
    assert data.summary == "7 samples; 2 channels (a) to 1 channel (u); x 6 x y 5 over 1 x 1, periodic; time: none"


@pytest.mark.parametrize("axes", ["n t x", "t n x", "x t n"])
def test_trajectories_in_any_order_and_one_series(axes: str, tmp_path: Path) -> None:
    states = numbers(4, 5, 8)
    order = [["n", "t", "x"].index(role) for role in axes.split()]
    path = write_hdf5(tmp_path / "f.h5", s=states.transpose(order), when=np.arange(5.0))
    data = opened(path, inputs=["s"], outputs=["s"], axes=axes, time="when", periodic=True)
    assert isinstance(data, Trajectories)
    assert np.array_equal(data.at(3)[[2, 0]].values[:, 0], states[[2, 0], 3])
    path = write_hdf5(tmp_path / "g.h5", s=states[0])
    series = opened(path, inputs=["s"], outputs=["s"], axes="t x", periodic=True)
    assert (len(series), series.times.tolist()) == (1, [0.0, 1.0, 2.0, 3.0, 4.0])


def named(**dims: int) -> xarray.Dataset:
    """Variables a and u of some dimensions with coordinates."""
    arrays = {name: (tuple(dims), numbers(*dims.values(), seed=name)) for name in "au"}
    return xarray.Dataset(arrays, coords={dim: np.arange(size) * 1.5 for dim, size in dims.items()})


@pytest.mark.parametrize("dim", ["member", "realization", "number", "level", "viscosity", "single"])
def test_a_dimension_without_a_role_is_asked_for(dim: str, tmp_path: Path) -> None:
    """Each call that the message names works."""
    made = named(**({"time": 4} | {dim: 1 if dim == "single" else 3} | {"lon": 8}))
    made.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    options: dict[str, Any] = {"inputs": ["u"], "outputs": ["u"], "periodic": False}
    with pytest.raises(ArgumentError, match=f"role of axis '{dim}' of u") as caught:
        opened(tmp_path / "f.nc", **options)
    expected = {"t n lon": (3, 1, (8,)), "t c lon": (1, 3, (8,)), f"t {dim} lon": (1, 1, (3, 8))}
    if dim == "single":
        expected = {"t n lon": (1, 1, (8,)), "t c lon": (1, 1, (8,)), "t - lon": (1, 1, (8,))}
    assert caught.value.remedy.count("axes=") == len(expected)
    for axes, (count, channels, shape) in expected.items():
        assert f'axes="{axes}"' in caught.value.remedy
        data = opened(tmp_path / "f.nc", axes=axes, **options)
        assert (len(data), data.channels, data.grid.shape) == (count, channels, shape)
    if dim != "single":
        assert len(opened(tmp_path / "f.nc", sample=dim, **options)) == 3


def test_two_dimensions_without_roles_have_calls_that_work(tmp_path: Path) -> None:
    named(run=5, cell=8).rename(cell="cell [m]").to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    options: dict[str, Any] = {"inputs": ["a"], "outputs": ["u"], "periodic": False}
    with pytest.raises(ArgumentError, match="role of axis 'run', 'cell .m.' of a") as caught:
        opened(tmp_path / "f.nc", **options)
    assert 'axes="n cell__m_"' in caught.value.remedy
    assert opened(tmp_path / "f.nc", axes="n cell__m_", **options).inputs.grid.size == 8


def test_statements_that_contradict_the_names_are_refused(tmp_path: Path) -> None:
    named(sample=3, lat=6, lon=8).to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    options: dict[str, Any] = {"inputs": ["a"], "outputs": ["u"], "periodic": False}
    with pytest.raises(ArgumentError, match="'lon' as axis 1, which is 'lat'"):
        opened(tmp_path / "f.nc", axes="n lon lat", **options)
    with pytest.raises(ShapeError, match="got 'run'; name one of lat, lon, sample"):
        opened(tmp_path / "f.nc", sample="run", **options)


def test_labels_and_scales_of_plain_hdf5_are_names(tmp_path: Path) -> None:
    points = np.linspace(0.0, 2.0, 8, endpoint=False)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = points
        file["x"].make_scale("x")
        for name, array in {"a": U[:, 0], "u": 2 * U[:, 0]}.items():
            file[name] = np.tile(array, 2)[:, :8].T
            file[name].attrs["units"] = "m"
            file[name].dims[0].attach_scale(file["x"])
            file[name].dims[1].label = "sample"
    data = opened(tmp_path / "f.h5", inputs=["a"], outputs=["u"], periodic=True)
    assert (len(data), data.inputs.grid.lengths, data.inputs.units) == (7, (2.0,), ("m",))
    assert np.array_equal(data[3].inputs.values[0, 0], np.tile(U[:, 0], 2)[3, :8])


@pytest.mark.parametrize("strips", [False, True])
def test_fill_values_of_netcdf_4_with_and_without_its_marks(strips: bool, tmp_path: Path) -> None:
    made = named(sample=4, x=8)
    made["a"][1, 2] = np.nan
    encoding = {name: {"_FillValue": -999.0} for name in "au"}
    made.to_netcdf(tmp_path / "f.nc", engine="h5netcdf", encoding=encoding)
    if strips:
        with h5py.File(tmp_path / "f.nc", "a") as file:
            del file.attrs["_NCProperties"]
    data = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=True)
    assert data.inputs.grid.lengths == (12.0,)
    with pytest.raises(DataError, match="NaN or infinite in function 1; .*mask=True"):
        data[:]
    masked = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=True, mask=True)[:].inputs
    assert not bool(masked.grid.observed[1, 2])
    assert int(masked.grid.observed.sum()) == 31


def test_land_is_one_mask(tmp_path: Path) -> None:
    made = named(sample=4, x=8)
    for name in "au":
        made[name][:, 3] = np.nan
    made.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    pairs = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=True, mask="land")
    assert pairs.inputs.grid == pairs[2:].outputs.grid
    assert pairs.inputs.grid.weights.tolist() == [1.5, 1.5, 1.5, 0.0, 1.5, 1.5, 1.5, 1.5]
    assert "12% masked" in pairs.summary
    with pytest.raises(ArgumentError, match='write mask="land"'):
        opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=True, mask="sea")


def test_groups(tmp_path: Path) -> None:
    made = named(sample=4, x=8)
    made.to_netcdf(tmp_path / "f.nc", engine="h5netcdf", group="train")
    made.to_zarr(tmp_path / "f.zarr", group="train", consolidated=False)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in "au":
            file[f"train/{name}"] = made[name].to_numpy()
    for name in ("f.nc", "f.zarr", "f.h5"):
        assert "train/a" in [variable.name for variable in files.list_variables(tmp_path / name)]
        first = opened(tmp_path / name, inputs=["train/a"], outputs=["train/u"], periodic=True)
        second = opened(tmp_path / name, inputs=["a"], outputs=["u"], group="train", periodic=True)
        assert np.array_equal(first[2].inputs.values[0, 0], made["a"][2])
        assert torch.equal(first[:].outputs.values, second[:].outputs.values)
    with pytest.raises(DataError, match='its groups are train; name the group: group="train"'):
        opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=True)


class TestSeveralFiles:
    @pytest.mark.parametrize("how", ["list", "pattern"])
    def test_samples_follow_each_other(self, how: str, tmp_path: Path) -> None:
        for number in range(3):
            np.savez(tmp_path / f"part{number}.npz", a=A[2 * number : 2 * number + 2], u=U[2 * number : 2 * number + 2])
        where = sorted(tmp_path.glob("*.npz")) if how == "list" else str(tmp_path / "part*.npz")
        data = opened(where, inputs=["a"], outputs=["u"], axes=AXES, periodic=True)
        assert len(data) == 6
        for rows in ([5, 0, 3, 3], slice(1, 4), [4]):
            assert np.array_equal(data[rows].inputs.values.numpy(), INPUTS[:6][rows])

    def test_series_that_continue_are_one_and_others_are_several(self, tmp_path: Path) -> None:
        states = numbers(12, 8)
        for number in range(3):
            part = xarray.Dataset(
                {"s": (("time", "x"), states[4 * number : 4 * number + 4])},
                coords={"x": np.arange(8) / 8, "time": np.arange(4)},
            )
            part.to_netcdf(tmp_path / f"run{number}.nc", engine="h5netcdf")
            part.assign_coords(time=np.arange(4) + 4 * number).to_netcdf(tmp_path / f"year{number}.nc", engine="h5netcdf")
        options: dict[str, Any] = {"inputs": ["s"], "outputs": ["s"], "periodic": True}
        runs, years = (opened(str(tmp_path / f"{name}*.nc"), **options) for name in ("run", "year"))
        assert (len(runs), runs.steps, len(years), years.steps) == (3, 4, 1, 12)
        assert np.array_equal(runs.at(1)[[2, 0]].values[:, 0], states[[9, 1]])
        assert np.array_equal(years.windows()[3].outputs.values[0, 0], states[4])
        with pytest.raises(DataError, match="list the files in the order of their times"):
            opened([tmp_path / "year1.nc", tmp_path / "year0.nc"], **options)

    def test_files_that_do_not_fit(self, tmp_path: Path) -> None:
        named(sample=4, x=8).to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
        named(sample=4, x=9).to_netcdf(tmp_path / "b.nc", engine="h5netcdf")
        with pytest.raises(GridError, match="files on the grids of"):
            opened(str(tmp_path / "*.nc"), inputs=["a"], outputs=["u"], periodic=False)
        with pytest.raises(FileError, match="check the pattern"):
            opened(str(tmp_path / "*.h5"), inputs=["a"], outputs=["u"])


def test_a_merged_pdebench_file_opens_with_stated_axes(tmp_path: Path) -> None:
    states = numbers(1, 5, 6, 8)
    path = write_hdf5(tmp_path / "f.h5", tensor=states)
    with h5py.File(path, "a") as file:
        file["x-coordinate"], file["t-coordinate"] = (np.arange(8) + 0.5) / 8, 0.1 * np.arange(7)
    with pytest.raises(ShapeError, match=r"got \(1, 5, 6, 8\); .*state the roles of the axes"):
        opened(path, periodic=True)
    data = opened(path, axes="- n t x", periodic=True)
    assert (len(data), data.steps) == (5, 6)
    assert np.array_equal(data.at(2)[:].values[:, 0], states[0, :, 2])


def test_objects_are_never_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "f.npz", a=np.array([{}], dtype=object))
    torch.save({"a": torch.nn.Linear(2, 2)}, tmp_path / "f.pt")
    for name in ("f.npz", "f.pt"):
        with pytest.raises(FileError):
            opened(tmp_path / name, inputs=["a"], outputs=["a"], periodic=True)


class TestEarth:
    """Latitudes and longitudes in degrees."""

    def open(self, folder: Path, longitudes: np.ndarray, values: np.ndarray, **options: Any) -> StoredPairs:
        latitudes = np.linspace(90.0, -90.0, values.shape[1])
        dims = ("sample", "lat", "lon")
        made = xarray.Dataset({"a": (dims, values), "u": (dims, 2 * values)}, coords={"lat": latitudes, "lon": longitudes})
        made.to_netcdf(folder / "f.nc", engine="h5netcdf")
        return opened(folder / "f.nc", inputs=["a"], outputs=["u"], **({"periodic": (False, True)} | options))

    def test_weights_are_areas(self, tmp_path: Path) -> None:
        grid = self.open(tmp_path, np.arange(12) * 30.0, numbers(3, 37, 12)).inputs.grid
        distance = grid.points[:, 0].abs()
        caps = 0.5 * ((distance > 60.0).double() + (distance >= 60.0).double())  # half of the cells that 60 degrees cut
        assert float(grid.mean(caps)) == pytest.approx(1.0 - np.sin(np.pi / 3), abs=0.001)  # a flat mean has .32
        assert grid.volume == pytest.approx(129_600 / np.pi)

    def test_two_conventions_of_longitude_are_one_domain(self, tmp_path: Path) -> None:
        values = numbers(3, 7, 12)
        first = self.open(tmp_path, np.arange(12) * 30.0, values)[:]
        turned = self.open(tmp_path, np.arange(12) * 30.0 - 180.0, np.roll(values, 6, axis=2))
        assert turned.inputs.grid == first.inputs.grid
        assert torch.equal(turned[:].outputs.values, first.outputs.values)
        assert turned.inputs.labels.coordinates["lon"].tolist() == [*range(0, 180, 30), *range(-180, 0, 30)]

    def test_units_say_degrees_and_radians_are_none(self, tmp_path: Path) -> None:
        dims = ("sample", "y", "x")
        made = xarray.Dataset({name: (dims, factor * numbers(3, 7, 12)) for name, factor in (("a", 1), ("u", 2))})
        degrees = {"y": ("y", np.linspace(-60, 60, 7), {"units": "degrees_north"})}
        degrees["x"] = ("x", np.arange(12) * 30.0, {"units": "degrees_east"})
        made.assign_coords(degrees).to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
        grid = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=(False, True)).inputs.grid
        assert grid.axes[0].latitudes is not None
        radians = self.open(tmp_path, np.arange(12) * np.pi / 6, numbers(3, 7, 12)).inputs.grid
        assert radians.axes[0].latitudes is None

    def test_a_grid_that_is_stated_turns_nothing(self, tmp_path: Path) -> None:
        made = xarray.Dataset({"a": (("sample", "x"), A[:, :, 0, 0]), "u": (("sample", "x"), 2 * A[:, :, 0, 0])})
        made.assign_coords(x=0.3 * np.arange(1, 7)).to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
        data = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], grid=Grid.uniform(6))
        assert np.array_equal(data[:].inputs.values[:, 0], A[:, :, 0, 0])

    def test_dates_are_times_of_samples(self) -> None:
        dates = np.datetime64("2000-01-01") + np.arange(5) * np.timedelta64(6, "h")
        made = xarray.DataArray(numbers(5, 8), dims=("date", "x"), coords={"date": dates, "x": np.arange(8.0)})
        pairs = FieldPairs.from_xarray(made, 2 * made, sample="date", periodic=False)
        assert pairs.clock is not None
        assert pairs.clock.times.tolist() == [21_600.0 * step for step in range(5)]

    def test_a_repeated_longitude_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(GridError, match=r"drop the last point: array.isel\(lon=slice\(0, -1\)\)"):
            self.open(tmp_path, np.arange(13) * 30.0, numbers(3, 7, 13))

    def test_longitudes_that_start_anew_go_on(self, tmp_path: Path) -> None:
        region = np.array([340.0, 350.0, 0.0, 10.0, 20.0])
        grid = self.open(tmp_path, region, numbers(3, 7, 5), periodic=False).inputs.grid
        assert (grid.axes[1].origin, grid.axes[1].length) == (340.0, 40.0)
        values = numbers(3, 7, 12)
        turned = np.concatenate([np.arange(0, 180, 30), np.arange(-180, 0, 30)]).astype(float)
        assert torch.equal(self.open(tmp_path, turned, values)[:].inputs.values[:, 0], torch.from_numpy(values[:, ::-1].copy()))
        with pytest.raises(GridError, match=r"state each axis: periodic=\(False, True\)"):
            self.open(tmp_path, region, numbers(3, 7, 5), periodic=True)

    def test_rounded_coordinates_are_equispaced(self, tmp_path: Path) -> None:
        """Unless their error exceeds that of rounding."""
        longitudes = np.round(np.arange(27) * 40 / 3, 2)
        assert self.open(tmp_path, longitudes, numbers(3, 7, 27)).inputs.grid.lengths == (180.0, 360.0)
        longitudes[5] += 0.05
        with pytest.raises(GridError, match="equispaced"):
            self.open(tmp_path, longitudes, numbers(3, 7, 27))


class TestOrderOfSpace:
    """Axes of space in another order are the same samples."""

    A = numbers(5, 6, 6)

    def dataset(self, *dims: str) -> xarray.Dataset:
        x = np.arange(6.0)
        made = xarray.Dataset(
            {"a": (("sample", "x", "y"), self.A), "u": (("sample", "x", "y"), 2 * self.A)}, coords={"x": x, "y": x}
        )
        return made.assign(u=made["u"].transpose(*dims))

    def test_in_files_and_arrays(self, tmp_path: Path) -> None:
        made = self.dataset("y", "sample", "x")
        made.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
        turned = np.swapaxes(2 * self.A, 1, 2)
        np.savez(tmp_path / "f.npz", a=self.A, u=turned)
        axes = "n x y -> n y x"
        for pairs in (
            opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=False)[:],
            opened(tmp_path / "f.npz", inputs=["a"], outputs=["u"], axes=axes, periodic=False)[:],
            files.from_arrays(self.A, turned, axes=axes, periodic=False)[:],
            FieldPairs.from_numpy(self.A, turned, axes=axes, periodic=False),
            FieldPairs.from_xarray(made["a"], made["u"], periodic=False),
        ):
            assert np.array_equal(pairs.outputs.values, 2 * pairs.inputs.values)


@pytest.mark.parametrize(("axes", "letter"), [("n channel x y", "c"), ("n time x y", "t"), ("sample x y c", "n")])
def test_words_for_roles_are_no_axes_of_space(axes: str, letter: str) -> None:
    with pytest.raises(ArgumentError, match=f'write "{letter}" for it'):
        FieldPairs.from_numpy(A, A, axes=axes, periodic=True)


@pytest.mark.parametrize("other", ["fill", "scales", "packed"])
def test_labels_of_plain_hdf5_stay_names_beside_what_netcdf_writes(other: str, tmp_path: Path) -> None:
    stored = np.arange(24, dtype="i2").reshape(8, 3)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in "au":
            file[name] = stored
            for dim, label in zip(file[name].dims, ("x", "sample"), strict=True):
                dim.label = label
        expected = stored.T.astype("f4")
        if other == "scales":
            file["z"], file["w"] = np.arange(5.0), np.zeros(5)
            file["z"].make_scale("z")
            file["w"].dims[0].attach_scale(file["z"])
        else:
            file["a"].attrs["_FillValue"] = np.int16(7)
            expected[1, 2] = np.nan
        if other == "packed":
            file["a"].attrs.update(scale_factor=0.5, add_offset=[3.0])
            expected = 0.5 * expected + 3.0
    data = opened(tmp_path / "f.h5", inputs=["a"], outputs=["u"], periodic=False, mask=True)
    assert len(data) == 3
    observed = ~np.isnan(expected)
    assert np.array_equal(data[:].inputs.grid.observed.numpy(), observed)
    assert np.array_equal(data[:].inputs.values[:, 0].numpy()[observed], expected[observed])


def test_names_of_a_zarr_store_are_those_of_each_array(tmp_path: Path) -> None:
    made = named(x=8, sample=4)
    made.assign(origin=1.0).to_zarr(tmp_path / "f.zarr", consolidated=False)
    made.to_zarr(tmp_path / "f.zarr", group="train", mode="a", consolidated=False)
    store = zarr.open_group(tmp_path / "f.zarr", mode="a")
    for group in (store, store["train"]):
        group.create_array("helper", shape=(4, 8), dtype="f4")[...] = 5.0
        group.create_array("weights", shape=(3,), dtype="f4")[...] = 1.0
    for prefix in ("", "train/"):
        assert f"{prefix}helper (4, 8)" in [str(variable) for variable in files.list_variables(tmp_path / "f.zarr")]
        data = opened(tmp_path / "f.zarr", inputs=[f"{prefix}a"], outputs=[f"{prefix}u"], periodic=True)
        assert (len(data), data.inputs.grid.lengths) == (4, (12.0,))
        assert np.array_equal(data[:].inputs.values[:, 0], made["a"].T)
        assert len(opened(tmp_path / "f.zarr", inputs=[f"{prefix}helper"], outputs=[f"{prefix}helper"], periodic=True)) == 4


@pytest.mark.parametrize("kind", ["nc", "zarr"])
def test_a_group_has_the_coordinates_of_the_groups_around_it(kind: str, tmp_path: Path) -> None:
    made = named(time=4, x=8)
    tree = xarray.DataTree.from_dict({"/": made[["time"]], "/runs": made[["x"]], "/runs/first": made.drop_vars(["time", "x"])})
    path = tmp_path / f"f.{kind}"
    tree.to_netcdf(path, engine="h5netcdf") if kind == "nc" else tree.to_zarr(path, consolidated=False)
    data = opened(path, inputs=["u"], outputs=["u"], group="runs/first", periodic=True)
    assert data.grid.lengths == (12.0,)
    assert data.times.tolist() == [0.0, 1.5, 3.0, 4.5]


NUMBERS = [[0.5, 1.25], [2.0, -3.0], [4.0, 5.5]]


@pytest.mark.parametrize("separator", [",", ";", "\t", " "])
@pytest.mark.parametrize("comment", ["", "# by hand, in m\n"])
@pytest.mark.parametrize("names", [["height", "width"], []])
def test_tables_lose_and_gain_no_row_and_no_column(separator: str, comment: str, names: list[str], tmp_path: Path) -> None:
    rows = [[repr(number) for number in row] for row in NUMBERS]
    text = "".join(separator.join(row) + "\n" for row in [*([names] if names else []), *rows])
    (tmp_path / "q.csv").write_text(comment + text)
    np.save(tmp_path / "u.npy", U[:3])
    options: dict[str, Any] = {"outputs_path": tmp_path / "u.npy", "periodic": True}
    data = opened(tmp_path / "q.csv", axes="n c -> n x y", **options)
    assert data[:].inputs.values[:, :, 0, 0].tolist() == NUMBERS
    assert [one.name for one in files.list_variables(tmp_path / "q.csv")] == ["values", *names]
    if names:
        one = opened(tmp_path / "q.csv", inputs=[names[1]], axes="n -> n x y", **options)
        assert one[:].inputs.values[:, 0, 0, 0].tolist() == [row[1] for row in NUMBERS]


@pytest.mark.parametrize("first", ["0,1", ",height,width", ",0,1", '"",height,width'])
def test_row_and_column_numbers_of_pandas_are_refused(first: str, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(f"{first}\n0,0.5,1.25\n")
    with pytest.raises(FileError, match="name the columns|could not convert"):
        files.list_variables(tmp_path / "q.csv")


def test_tables_of_numpy_and_whole_numbers(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "q.csv", NUMBERS)
    (tmp_path / "one.csv").write_text("0\n1\n2\n")
    assert [str(one) for one in files.list_variables(tmp_path / "q.csv")] == ["values (3, 2)"]
    assert [str(one) for one in files.list_variables(tmp_path / "one.csv")] == ["values (3, 1)"]


@pytest.mark.parametrize("text", ["1,2\n3\n", "a,a\n1,2\n", "a,values\n1,2\n", "a,b\n1,2,3\n", ",a\n0,1\n1\n", ""])
def test_tables_with_names_twice_or_ragged_rows_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "q.csv").write_text(text)
    with pytest.raises(FileError, match=r"a name of its own for each column|a table of numbers"):
        files.list_variables(tmp_path / "q.csv")


class TestUnitsAndOrder:
    """Files that are opened together agree in units, times and samples."""

    def test_units_of_a_variable_differ(self, tmp_path: Path) -> None:
        made = named(sample=4, x=8)
        for name, unit in {"first": "K", "second": "degC"}.items():
            made["a"].attrs["units"] = unit
            made.to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf")
        with pytest.raises(DataError, match="a in 'K', as in .*first.nc; got 'degC' in .*second.nc"):
            opened(str(tmp_path / "*.nc"), inputs=["a"], outputs=["u"], periodic=True)

    def test_origins_of_times_differ(self, tmp_path: Path) -> None:
        """And the remedy works."""
        states = numbers(8, 8)
        for number, day in enumerate((1, 5)):
            units = {"units": f"days since 2000-01-{day:02d}"}
            made = xarray.Dataset(
                {"s": (("time", "x"), states[4 * number : 4 * number + 4])},
                coords={"x": np.arange(8) / 8, "time": ("time", np.arange(4.0), units)},
            )
            made.to_netcdf(tmp_path / f"year{number}.nc", engine="h5netcdf")
        options: dict[str, Any] = {"inputs": ["s"], "outputs": ["s"], "periodic": True}
        with pytest.raises(DataError, match="one origin of times") as caught:
            opened(str(tmp_path / "year*.nc"), **options)
        call = caught.value.remedy.partition(": ")[2]
        for number in range(2):
            names = {"path": tmp_path / f"year{number}.nc", "new": tmp_path / f"new{number}.nc", "xarray": xarray}
            eval(call, names)
        data = opened(str(tmp_path / "new*.nc"), **options)
        assert (len(data), data.times.tolist()) == (1, [*range(8)])

    @pytest.mark.parametrize("dim", ["sample", "time"])
    def test_inputs_and_outputs_in_different_orders(self, dim: str, tmp_path: Path) -> None:
        made = named(**{dim: 4, "x": 8})
        made.drop_vars("u").to_netcdf(tmp_path / "a.nc", engine="h5netcdf")
        made = made.drop_vars("a")
        made.assign_coords({dim: made[dim] + 1.0}).to_netcdf(tmp_path / "later.nc", engine="h5netcdf")
        made.isel({dim: [0, 2, 1, 3]}).to_netcdf(tmp_path / "u.nc", engine="h5netcdf")
        options: dict[str, Any] = {"inputs": ["a"], "outputs": ["u"], "periodic": True}
        for name in ("later", "u"):
            with pytest.raises(DataError, match=f"the same {dim}s of inputs and outputs in the same order"):
                opened(tmp_path / "a.nc", outputs_path=tmp_path / f"{name}.nc", **options)
        xarray.open_dataset(tmp_path / "u.nc").sortby(dim).to_netcdf(tmp_path / "sorted.nc", engine="h5netcdf")
        assert len(opened(tmp_path / "a.nc", outputs_path=tmp_path / "sorted.nc", **options)) == (4 if dim == "sample" else 1)


class TestRefusals:
    """Errors are typed and short."""

    def test_tensors_that_numpy_has_not(self, tmp_path: Path) -> None:
        values = torch.from_numpy(numbers(4, 8))
        torch.save({"a": values.bfloat16(), "u": values}, tmp_path / "f.pt")
        data = opened(tmp_path / "f.pt", inputs=["a"], outputs=["u"], periodic=True)
        assert torch.equal(data[:].inputs.values[:, 0], values.bfloat16().float())
        torch.save({"a": values.to_sparse(), "u": values}, tmp_path / "g.pt")
        with pytest.raises(FileError, match=r"dense tensors alone in .*SparseTensorImpl; save tensors"):
            opened(tmp_path / "g.pt", inputs=["a"], outputs=["u"], periodic=True)

    def test_pdebench_states_as_channels(self, tmp_path: Path) -> None:
        states = write_pdebench(tmp_path / "f.h5", "burgers")["tensor"]
        with pytest.raises(DataError, match="outputs that differ from the inputs"):
            opened(tmp_path / "f.h5", axes="n c x", periodic=True)
        assert np.array_equal(opened_inputs(tmp_path / "f.h5", axes="n c x", periodic=True)[:].values, states)

    def test_masks_of_text(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "f.npz", a=A[..., 0], u=U)
        with pytest.raises(ArgumentError, match="pass a boolean tensor"):
            opened(tmp_path / "f.npz", inputs=["a"], outputs=["u"], axes="n x y", periodic=True, mask=[["x"]])


@pytest.mark.parametrize("kind", ["npz", "npy", "nc"])
def test_files_of_one_sample_each(kind: str, tmp_path: Path) -> None:
    values = {name: numbers(12, 8, seed=name) for name in "au"}
    for number in range(12):
        one = {name: array[number] for name, array in values.items()}
        path = tmp_path / f"f{number:02d}.{kind}"
        if kind == "npz":
            np.savez(path, **one)
        elif kind == "npy":
            np.save(path, one["a"])
            np.save(tmp_path / f"u{number:02d}.npy", one["u"])
        else:
            made = {name: ("x", array) for name, array in one.items()}
            xarray.Dataset(made, coords={"x": np.arange(8) / 8}).to_netcdf(path, engine="h5netcdf")
    names = {"outputs_path": str(tmp_path / "u*.npy")} if kind == "npy" else {"inputs": ["a"], "outputs": ["u"]}
    options: dict[str, Any] = names | ({} if kind == "nc" else {"axes": "x"})
    data = opened(str(tmp_path / f"f*.{kind}"), periodic=True, **options)
    assert (len(data), data.inputs.labels.sample) == (12, "sample")
    for rows in ([11, 0, 3], slice(2, 5)):
        assert np.array_equal(data[rows].inputs.values[:, 0], values["a"][rows])
        assert np.array_equal(data[rows].outputs.values[:, 0], values["u"][rows])


class TestMasksAreTurned:
    """A mask in the order of an array's axes is turned as the array's values are."""

    MISSING = np.zeros((6, 5), dtype=bool)
    MISSING[4:, 1] = MISSING[0, 3] = True  # without symmetry
    VALUES = np.where(MISSING, -7.0, numbers(7, 6, 5, seed="turned"))

    @pytest.mark.parametrize("take", [FieldPairs.from_numpy, files.from_arrays])
    def test_arrays(self, take: Callable[..., Any]) -> None:
        inputs, outputs = self.VALUES.transpose(2, 0, 1), 2.0 * self.VALUES.transpose(2, 1, 0)
        masks = (self.MISSING.T, self.MISSING.T)
        pairs = take(inputs, outputs, axes="x n y -> x y n", periodic=False, mask=masks)[:]
        for side in (pairs.inputs, pairs.outputs):
            assert np.array_equal(~side.grid.observed.numpy(), self.MISSING.T)
        assert not (pairs.inputs.values == -7.0).any()

    def test_masks_per_sample(self) -> None:
        missing = self.VALUES == -7.0
        missing[2] = ~missing[2]
        inputs, mask = (array.transpose(2, 0, 1) for array in (self.VALUES, missing))
        pairs = FieldPairs.from_numpy(inputs, self.VALUES, axes="x n y -> n y x", periodic=False, mask=(mask, None))
        assert np.array_equal(~pairs.inputs.grid.observed.numpy(), missing.transpose(0, 2, 1))

    @pytest.mark.parametrize("kind", ["array", "labelled"])
    def test_files_with_descending_latitudes_and_longitudes_from_minus_180(self, kind: str, tmp_path: Path) -> None:
        """Longitudes are read from 0 on."""
        degrees = {"lat": np.linspace(50.0, 0.0, 6), "lon": np.arange(-180.0, 180.0, 72.0)}
        units = {"lat": "degrees_north", "lon": "degrees_east"}
        dataset = xarray.Dataset(
            {name: (("sample", "lat", "lon"), factor * self.VALUES) for name, factor in (("a", 1.0), ("u", 2.0))},
            coords={dim: (dim, points, {"units": units[dim]}) for dim, points in degrees.items()},
        )
        dataset.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
        mask = self.MISSING if kind == "array" else xarray.DataArray(self.MISSING.T, dims=("lon", "lat"))
        periodic = (False, True)
        data = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], mask=mask, periodic=periodic)
        assert data[:].inputs.grid.observed.sum() == 27
        assert not (data[:].inputs.values == -7.0).any()
        ascending = dataset.isel(lat=slice(None, None, -1))
        mask = self.MISSING[::-1] if kind == "array" else xarray.DataArray(self.MISSING[::-1].T, dims=("lon", "lat"))
        pairs = FieldPairs.from_xarray(ascending["a"], ascending["u"], mask=mask, periodic=periodic)
        assert pairs.outputs.grid == data.outputs.grid
        assert torch.equal(pairs.outputs.values, data[:].outputs.values.to(pairs.outputs.dtype))


@pytest.mark.parametrize("moves", [False, True], ids=["samples", "times"])
def test_variables_that_differ_between_files_need_an_axis(moves: bool, tmp_path: Path) -> None:
    """Whether files follow each other along samples or along times, a variable without that axis is the same in all."""
    for number, scale in enumerate((1.0, 1.0, 2.0)):
        leading = ("time",) if moves else ("sample",)
        xarray.Dataset(
            {"k": (("x",), scale * numbers(8)), "u": ((*leading, "x"), numbers(3, 8, seed=number))},
            coords={"time": 3.0 * number + np.arange(3.0)} if moves else {},
        ).to_netcdf(tmp_path / f"{number}.nc", engine="h5netcdf")
    options: dict[str, Any] = {"inputs": ["k", "u"] if moves else ["k"], "outputs": ["u"], "periodic": True}
    paths = [tmp_path / f"{number}.nc" for number in range(3)]
    assert opened(paths[:2], **options) is not None
    with pytest.raises(DataError, match=r"k, which has no axis of .*others in .*2\.nc"):
        opened(paths, **options)


def test_windows_of_inputs_without_times_are_no_map(tmp_path: Path) -> None:
    """The call in the message works."""
    coordinates = {"time": np.arange(4.0), "x": np.arange(8.0)}
    variables = {"a": (("sample", "x"), numbers(5, 8)), "u": (("sample", "time", "x"), numbers(5, 4, 8, seed=1))}
    xarray.Dataset(variables, coords=coordinates).to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    data = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], periodic=True)
    assert isinstance(data, Trajectories)
    with pytest.raises(ArgumentError, match="inputs a without times, and 3 outputs u for each") as caught:
        data.windows()
    assert "windows(lead=3)" in caught.value.remedy
    assert np.array_equal(data.windows(lead=3)[:].outputs.values[:, 0].numpy(), variables["u"][1][:, 3])
    both = opened(tmp_path / "f.nc", inputs=["a", "u"], outputs=["u"], periodic=True)
    assert isinstance(both, Trajectories)
    assert len(both.windows()) == 15
    stacked = opened(tmp_path / "f.nc", inputs=["a"], outputs=["u"], axes="n x -> n c x", periodic=True)
    assert stacked[:].outputs.channels == 4


@pytest.mark.parametrize("kind", ["netcdf", "zarr", "hdf5"])
def test_inputs_and_outputs_in_two_groups(kind: str, tmp_path: Path) -> None:
    arrays = {"a": numbers(5, 8), "u": numbers(5, 8, seed=1)}
    path = tmp_path / ("f.zarr" if kind == "zarr" else "f.nc" if kind == "netcdf" else "f.h5")
    for group, (name, array) in zip(("before", "after"), arrays.items(), strict=True):
        dataset = xarray.Dataset({name: (("sample", "x"), array)}, coords={"x": np.arange(8.0)})
        if kind == "netcdf":
            dataset.to_netcdf(path, group=group, mode="a" if group == "after" else "w", engine="h5netcdf")
        elif kind == "zarr":
            dataset.to_zarr(path, group=group, mode="a", consolidated=False)
        else:
            with h5py.File(path, "a") as file:
                file[f"{group}/{name}"] = array
    data = opened(path, inputs=["before/a"], outputs=["after/u"], periodic=True)
    assert np.array_equal(data[:].inputs.values[:, 0].numpy(), arrays["a"])
    assert np.array_equal(data[:].outputs.values[:, 0].numpy(), arrays["u"])


def test_one_number_per_sample_is_a_parameter(tmp_path: Path) -> None:
    numbers_of_samples, fields = numbers(6, 1), numbers(6, 1, seed=1) * numbers(1, 8, seed=2)
    np.savez(tmp_path / "f.npz", q=numbers_of_samples, plain=numbers_of_samples[:, 0], u=fields)
    for name in ("q", "plain"):
        data = opened(tmp_path / "f.npz", inputs=[name], outputs=["u"], periodic=(True,))
        assert data[:].inputs.values.shape == (6, 1, 8)
        assert np.array_equal(data[:].inputs.values[:, 0, 3].numpy(), numbers_of_samples[:, 0])


def test_times_without_a_coordinate_are_asked_for_with_calls_that_work(tmp_path: Path) -> None:
    arrays = {name: (("time", "lon"), numbers(9, 8, seed=name)) for name in "au"}
    xarray.Dataset(arrays, coords={"lon": 45.0 * np.arange(8)}).to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
    options: dict[str, Any] = {"inputs": ["a"], "outputs": ["u"], "periodic": True}
    with pytest.raises(DataError, match=r'write sample="time"; .*count them: axes="t lon"'):
        opened(tmp_path / "f.nc", **options)
    assert np.array_equal(opened(tmp_path / "f.nc", sample="time", **options)[:].outputs.values[:, 0].numpy(), arrays["u"][1])
    steps = opened(tmp_path / "f.nc", axes="t lon", **options)
    assert isinstance(steps, Trajectories)
    assert len(steps.windows()) == 8
