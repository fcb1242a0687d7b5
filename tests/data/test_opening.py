"""What each format's layout is taken for, and what is said of files of another one."""

from __future__ import annotations

import importlib
import pickle
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray
import zarr

from probneural import data as pn_data
from probneural.data import StoredPairs, Trajectories
from probneural.errors import ArgumentError, DataError, DataWarning, FileError, GridError, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.data.files import (
    centres,
    labelled,
    numbers,
    opened,
    opened_inputs,
    write_hdf5,
    write_pdebench,
    write_the_well,
    write_zarr,
)


class TestTheWell:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "small.hdf5"

    def test_attributes_tell_all(self, path: Path) -> None:
        fields = write_the_well(path)
        data = opened(path)
        assert isinstance(data, Trajectories)
        assert data.grid == Grid.uniform((8, 6), lengths=(1.0, 2.0), periodic=(True, False), origin=(0.0, -1.0))
        assert data.times.tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
        moving = [
            fields["density"][:, :, None],
            np.moveaxis(fields["velocity"], -1, 2),
            np.moveaxis(fields["stress"].reshape(3, 5, 8, 6, 4), -1, 2),
        ]
        states = np.concatenate(moving, 2)
        for step in range(5):
            assert np.array_equal(data.at(step)[:].values, states[:, step])

    def test_constant_fields_are_part_of_every_input_once(self, path: Path) -> None:
        """And scalars where they are asked for, as constant functions."""
        fields = write_the_well(path)
        pairs = opened(path, inputs=["density", "mask", "profile", "viscosity", "gravity"], outputs=["density"]).windows(
            history=2
        )
        assert (len(pairs), pairs.inputs.channels, pairs.outputs.channels) == (9, 6, 1)
        read = pairs[:].inputs.values.numpy().reshape(3, 3, 6, 8, 6)
        for trajectory in range(3):
            for start in range(3):
                found = read[trajectory, start]
                assert np.array_equal(found[:2], fields["density"][trajectory, start : start + 2])
                assert np.array_equal(found[2], fields["mask"])
                assert np.array_equal(found[3], np.broadcast_to(fields["profile"][trajectory], (8, 6)))
                assert np.array_equal(found[4], np.full((8, 6), fields["viscosity"][trajectory]))
                assert np.array_equal(found[5], np.full((8, 6), fields["gravity"][0]))

    def test_scalars_of_the_file_and_of_each_time(self, path: Path) -> None:
        """A single number has no axis at all; of one per time, an input has that of its own."""
        fields = write_the_well(path)
        pairs = opened(path, inputs=["density", "ratio", "forcing"], outputs=["density"]).windows()
        found = pairs[3].inputs.values.numpy()[0]
        constants = [np.full((8, 6), fields["ratio"]), np.full((8, 6), fields["forcing"][3])]
        expected = np.stack([fields["density"][0, 3], *constants])
        assert np.array_equal(found, expected)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda file: file["t0_fields/density"].attrs.pop("time_varying"), "attribute time_varying of /t0_fields/density"),
            (lambda file: file["t0_fields"].attrs.pop("field_names"), "attribute field_names"),
            (lambda file: file["dimensions"].attrs.pop("spatial_dims"), "attribute spatial_dims"),
            (lambda file: file["t0_fields/density"].attrs.update(dim_varying=[True]), "dim_varying of 2 axes"),
            (lambda file: file["dimensions"].pop("x"), "an array dimensions/x"),
            (lambda file: file["dimensions"].pop("time"), "an array dimensions/time"),
            (lambda file: file["dimensions/x"].attrs.update(sample_varying=True), "one coordinate x"),
            (lambda file: file.attrs.update(grid_type="spherical"), "a cartesian grid.*got 'spherical'"),
        ],
    )
    def test_another_layout_is_refused(self, path: Path, change: Any, message: str) -> None:
        write_the_well(path)
        with h5py.File(path, "a") as file:
            change(file)
        with pytest.raises(DataError, match=message) as caught:
            opened(path)
        assert "t1_fields/velocity (3, 5, 8, 6, 2)" in str(caught.value)  # what was found

    def test_axes_that_no_attribute_mentions_are_refused(self, path: Path) -> None:
        write_the_well(path)
        with h5py.File(path, "a") as file:
            file["t0_fields/density"].attrs.update(sample_varying=False)
        with pytest.raises(ShapeError, match=r"density of shape \(times, 8, 6\); got \(3, 5, 8, 6\)"):
            opened(path)

    def test_unknown_names_are_refused(self, path: Path) -> None:
        write_the_well(path)
        with pytest.raises(
            DataError, match=r"a variable 'speed' of .*; got density \(3, 5, 8, 6\); mask .*; choose among density, mask"
        ):
            opened(path, inputs=["speed"])


class TestPDEBench:
    @pytest.mark.parametrize(
        ("equation", "axes", "is_periodic"),
        [
            ("burgers", {8: 1.0}, True),
            ("compressible", {8: 1.0, 6: 1.0}, True),
            ("compressible in space", {8: 1.0, 6: 1.0, 7: 1.0}, True),
            ("incompressible", {8: 1.0, 6: 1.0}, True),
            ("diffusion-reaction", {8: 1.0, 6: 1.0}, True),
            ("diffusion-sorption", {1024: 1023 / 1024}, False),  # from the first centre to the last
            ("dam break", {8: 5.0 * 7 / 8, 6: 5.0 * 5 / 6}, False),
        ],
    )
    def test_trajectories(self, equation: str, axes: dict[int, float], is_periodic: bool, tmp_path: Path) -> None:
        """Axes are numbers of points, and lengths."""
        arrays = write_pdebench(tmp_path / "file.h5", equation)
        data = opened(tmp_path / "file.h5", periodic=is_periodic)
        assert isinstance(data, Trajectories)
        channels_last = equation == "incompressible" or "data" in arrays
        moving = {key: array for key, array in arrays.items() if key != "force"}
        states = [np.moveaxis(array, -1, 2) if channels_last else array[:, :, None] for array in moving.values()]
        expected = np.concatenate(states, 2)
        assert (len(data), data.steps) == (4, 5)
        assert torch.allclose(data.times, 0.1 * torch.arange(5.0, dtype=torch.float64))
        for step in range(5):
            assert np.array_equal(data.at(step)[[3, 1]].values, expected[[3, 1], step])
        assert (data.grid.shape, data.grid.periodic) == (tuple(axes), (is_periodic,) * len(axes))
        assert data.grid.lengths == pytest.approx(tuple(axes.values()))
        start = {"dam break": -2.5 + 2.5 / 8, "diffusion-sorption": 0.5 / 1024, "incompressible": 0.0}.get(equation, 0.5 / 8)
        assert data.grid.axes[0].origin == pytest.approx(start)
        inputs = data.windows()[2].inputs.values.numpy()[0]
        assert np.array_equal(inputs[: expected.shape[2]], expected[0, 2])
        if equation == "incompressible":
            assert np.array_equal(inputs[3:], np.moveaxis(arrays["force"], -1, 1)[0])

    def test_coefficients_and_solutions(self, tmp_path: Path) -> None:
        arrays = write_pdebench(tmp_path / "file.h5", "darcy")
        data = opened(tmp_path / "file.h5", periodic=False)
        assert isinstance(data, StoredPairs)
        assert np.array_equal(data[:].inputs.values[:, 0], arrays["nu"])
        assert np.array_equal(data[:].outputs.values, arrays["tensor"])
        assert data.inputs.grid.endpoint == (True, True)
        assert data.inputs.grid.lengths == pytest.approx((7 / 8, 5 / 6))

    def test_a_missing_last_time_does_not_matter(self, tmp_path: Path) -> None:
        write_pdebench(tmp_path / "file.h5", "burgers")
        with h5py.File(tmp_path / "file.h5", "a") as file:
            times = file["t-coordinate"][:5]
            del file["t-coordinate"]
            file["t-coordinate"] = times
        assert opened(tmp_path / "file.h5", periodic=True).steps == 5

    @pytest.mark.parametrize("equation", ["burgers", "darcy", "incompressible", "diffusion-reaction"])
    def test_boundaries_have_to_be_stated(self, equation: str, tmp_path: Path) -> None:
        write_pdebench(tmp_path / "file.h5", equation)
        with pytest.raises(ArgumentError, match="periodic=.*PDEBench do not tell"):
            opened(tmp_path / "file.h5")

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            (
                {"tensor": numbers(4, 5, 7)},
                r"tensor of shape \(samples, times, 8\); got \(4, 5, 7\); .*state the roles of the axes",
            ),
            ({"tensor": numbers(4, 5, 8, 1)}, r"tensor of shape \(samples, times, 8\)"),
            ({"t-coordinate": centres(9)}, "tensor at 9 times; got 5"),
            ({"t-coordinate": None}, "5 times in .*; got .*tensor"),
        ],
    )
    def test_another_layout_is_refused(self, changed: dict[str, np.ndarray | None], message: str, tmp_path: Path) -> None:
        write_pdebench(tmp_path / "file.h5", "burgers")
        with h5py.File(tmp_path / "file.h5", "a") as file:
            for key, array in changed.items():
                del file[key]
                if array is not None:
                    file[key] = array
        with pytest.raises((DataError, ShapeError), match=message):
            opened(tmp_path / "file.h5", periodic=True)

    def test_groups_of_different_shapes_are_refused(self, tmp_path: Path) -> None:
        write_pdebench(tmp_path / "file.h5", "diffusion-reaction")
        with h5py.File(tmp_path / "file.h5", "a") as file:
            del file["0002/data"]
            file["0002/data"] = numbers(4, 8, 6, 2)
        with pytest.raises(ShapeError, match="the same axes in each file or group; got .*1, 4, 8, 6, 2"):
            opened(tmp_path / "file.h5", periodic=True)


class TestNames:
    """NetCDF and zarr, whose dimensions have names."""

    def test_what_fields_write_is_read(self, tmp_path: Path) -> None:
        pairs = FieldPairs.from_numpy(numbers(5, 2, 8, 6), numbers(5, 1, 8, 6, seed=1), periodic=(True, False))
        pairs.to_xarray().to_netcdf(tmp_path / "pairs.nc", engine="h5netcdf")
        found = opened(tmp_path / "pairs.nc", inputs=["inputs"], outputs=["outputs"])
        assert found.inputs.grid == pairs.inputs.grid
        assert found.fingerprint == pairs.fingerprint

    @pytest.mark.parametrize("suffix", [".nc", ".zarr"])
    @pytest.mark.parametrize(
        ("dim", "attributes", "time"),
        [("time", {}, None), ("t", {}, "t"), ("hour", {"axis": "T"}, None), ("hour", {"standard_name": "time"}, None)],
    )
    def test_time_is_what_says_so(
        self, dim: str, attributes: dict[str, str], time: str | None, suffix: str, tmp_path: Path
    ) -> None:
        """In any order of the dimensions; variables side by side; one that does not vary in time."""
        states, depth = numbers(8, 4, 3), numbers(8, 3, seed="depth")
        variables = {"u": (("x", dim, "sample"), states), "v": (("sample", "x", dim), states.T.swapaxes(1, 2) + 1)}
        coordinates = {"x": np.arange(8) / 8, dim: (dim, [0.0, 2.0, 4.0, 6.0], attributes)}
        made = xarray.Dataset(variables | {"depth": (("x", "sample"), depth)}, coords=coordinates)
        path = tmp_path / f"flow{suffix}"
        made.to_netcdf(path, engine="h5netcdf") if suffix == ".nc" else made.to_zarr(path, consolidated=False)
        data = opened(path, inputs=["u", "depth"], outputs=["v"], periodic=True, time=time)
        assert data.times.tolist() == [0.0, 2.0, 4.0, 6.0]
        read = data.windows()[:]
        by_hand = states.transpose(2, 1, 0)
        assert np.array_equal(read.inputs.values[:, 0], by_hand[:, :3].reshape(9, 8))
        assert np.array_equal(read.inputs.values[:, 1], np.repeat(depth.T, 3, axis=0))
        assert np.array_equal(read.outputs.values[:, 0], by_hand[:, 1:].reshape(9, 8) + 1)

    def test_trajectories_have_one_grid(self, tmp_path: Path) -> None:
        variables = {"u": (("time", "x"), numbers(4, 8)), "v": (("time", "y"), numbers(4, 6))}
        made = xarray.Dataset(variables, coords={"time": range(4), "x": range(8), "y": range(6)})
        made.to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
        with pytest.raises(GridError, match="u, v on one grid"):
            opened(tmp_path / "f.nc", inputs=["u"], outputs=["v"], periodic=True)

    def test_packed_numbers_are_unpacked(self, tmp_path: Path) -> None:
        values = np.round(numbers(4, 8), 1)
        made = xarray.Dataset({"u": (("sample", "x"), values), "v": (("sample", "x"), 2 * values)}, coords={"x": range(8)})
        made.to_netcdf(
            tmp_path / "f.nc", engine="h5netcdf", encoding={"u": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -32768}}
        )
        data = opened(tmp_path / "f.nc", inputs=["u"], outputs=["v"], periodic=True)
        np.testing.assert_allclose(data[:].inputs.values[:, 0], values, atol=1e-6)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({}, ArgumentError, "periodic="),
            ({"periodic": True, "inputs": ["b"]}, DataError, r"a variable 'b' of .*got a \(sample 4, .*choose among a, u"),
            ({"periodic": True, "inputs": None}, DataError, r"expected inputs=, a list .*got none, and it holds a \(sample 4"),
            ({"periodic": True, "lengths": 5.0}, GridError, "lengths=1"),
            ({"grid": Grid.uniform((8, 7))}, ShapeError, "a of shape"),
            ({"periodic": True, "dtype": torch.float16}, ArgumentError, "dtype float32 or float64"),
            ({"periodic": True, "inputs": "a"}, ArgumentError, "a sequence as inputs"),
            ({"grid": "uniform"}, ArgumentError, "a Grid as grid"),
        ],
    )
    @pytest.mark.bad_input
    def test_bad_arguments(self, options: dict[str, Any], error: type, message: str, tmp_path: Path) -> None:
        labelled(a=numbers(4, 1, 8, 6), u=numbers(4, 1, 8, 6)).to_netcdf(tmp_path / "f.nc", engine="h5netcdf")
        with pytest.raises(error, match=message):
            opened(tmp_path / "f.nc", **({"inputs": ["a"], "outputs": ["u"]} | options))


class TestPositions:
    """Arrays whose axes have no names."""

    def test_times_of_an_array_in_the_file(self, tmp_path: Path) -> None:
        states = numbers(3, 5, 8)
        path = write_hdf5(tmp_path / "f.h5", u=states, when=np.arange(5.0))
        data = opened(path, inputs=["u"], outputs=["u"], time="when", periodic=(True,))
        assert data.times.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
        assert np.array_equal(data.at(1)[:].values[:, 0], states[:, 1])
        with pytest.raises(DataError, match="the times, one axis, as 'u'"):
            opened(path, inputs=["u"], outputs=["u"], time="u", periodic=(True,))

    @pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
    def test_archives(self, save: Any, tmp_path: Path) -> None:
        arrays = {"a": numbers(5, 1, 8), "long name": numbers(5, 2, 8, seed=1, dtype="f8")}
        save(tmp_path / "f.npz", **arrays)
        data = opened(tmp_path / "f.npz", inputs=["a"], outputs=["long name"], periodic=(True,))
        data = pickle.loads(pickle.dumps(data))  # noqa: S301
        assert np.array_equal(data[[3, 1]].outputs.values, arrays["long name"][[3, 1]])
        assert np.array_equal(data[:].inputs.values, arrays["a"])

    @pytest.mark.parametrize("kind", ["hdf5", "zarr", "npy"])
    def test_refuses(self, kind: str, tmp_path: Path) -> None:
        arrays = {"a": numbers(4, 1, 8), "u": numbers(5, 1, 8), "z": numbers(4, 1, 8).astype("c8")}
        path = tmp_path / "file"
        if kind == "npy":
            path.mkdir()
            for name, array in arrays.items():
                np.save(path / f"{name}.npy", array)
        else:
            write_hdf5(path, **arrays) if kind == "hdf5" else write_zarr(path, 2, **arrays)
        for options, error, message in (
            ({"outputs": ["u"], "periodic": True}, ShapeError, "as many samples of each variable"),
            ({"outputs": ["z"], "periodic": True}, DataError, "real z of at most 64 bits"),
            ({"outputs": ["a"]}, ArgumentError, "state whether the axes of space are periodic"),
            ({"outputs": ["b"], "periodic": True}, DataError, "choose among a, u, z"),
            ({"outputs": ["a"], "grid": Grid.uniform((1, 1, 8))}, ShapeError, "state the roles of the axes"),
            ({"outputs": ["a"], "grid": Grid.uniform(9)}, ShapeError, "a of shape"),
        ):
            with pytest.raises(error, match=message):
                opened(path, inputs=["a"], **options)


class TestInputs:
    """Input functions alone, to predict from."""

    def test_they_are_those_of_the_pairs(self, tmp_path: Path) -> None:
        path = write_hdf5(tmp_path / "f.h5", a=numbers(4, 2, 8), u=numbers(4, 1, 8))
        fields = opened_inputs(path, inputs=["a"], periodic=(True,))
        pairs = opened(path, inputs=["a"], outputs=["u"], periodic=(True,))
        assert torch.equal(fields[:].values, pairs[:].inputs.values)
        with pytest.raises(ArgumentError, match="history=1 without times"):
            opened_inputs(path, inputs=["a"], periodic=(True,), history=2)

    def test_windows_go_up_to_the_last_step(self, tmp_path: Path) -> None:
        """Also of states beside what does not vary in time, which nobody could give as an output."""
        made = write_the_well(tmp_path / "small.hdf5")
        fields = opened_inputs(tmp_path / "small.hdf5", inputs=["density", "mask"], history=2)
        assert (len(fields), fields.channels) == (3 * 4, 3)
        assert np.array_equal(fields[3].values[0], [made["density"][0, 3], made["density"][0, 4], made["mask"]])
        assert fields.labels.space == ("x", "y")
        with pytest.raises(ArgumentError, match="count"):
            opened_inputs(tmp_path / "small.hdf5", inputs=["density"], history=6)


class TestListing:
    @pytest.mark.parametrize("kind", ["nc", "zarr", "h5", "the well", "darcy", "npz", "npy"])
    def test_what_a_file_holds(self, kind: str, tmp_path: Path) -> None:
        path, arrays = tmp_path / f"file.{kind}", {"a": numbers(4, 1, 8), "u": numbers(4, 2, 8)}
        expected = ["a (4, 1, 8)", "u (4, 2, 8)"]
        if kind in ("nc", "zarr"):
            made = labelled(**arrays)
            made.to_netcdf(path, engine="h5netcdf") if kind == "nc" else made.to_zarr(path, consolidated=False)
            expected = ["a (sample 4, channel_a 1, x0 8)", "u (sample 4, channel_u 2, x0 8)"]
        elif kind == "the well":
            write_the_well(path)
            expected = ["density (3, 5, 8, 6)", "mask (8, 6)", "velocity (3, 5, 8, 6, 2)", "gravity (1,)"]
        elif kind == "darcy":
            write_pdebench(path, kind)
            expected = ["nu (4, 8, 6)", "tensor (4, 1, 8, 6)"]
        elif kind == "npy":
            np.save(path, arrays["a"])
            expected = ["values (4, 1, 8)"]
        else:
            write_hdf5(path, **arrays) if kind == "h5" else np.savez(path, **arrays)
        found = [str(variable) for variable in pn_data.list_variables(path)]
        assert set(expected) <= set(found)
        assert kind in ("the well", "darcy") or sorted(found) == sorted(expected)

    def test_what_is_none(self, tmp_path: Path) -> None:
        with pytest.raises(FileError, match="zarr store or .npy files"):
            pn_data.list_variables(tmp_path)


class TestFiles:
    @pytest.mark.parametrize(
        ("kind", "options", "name"),
        [
            ("the well", {"periodic": True}, "periodic"),
            ("the well", {"sample": "run"}, "sample"),
            ("hdf5", {"channel": "c"}, "channel"),
            ("hdf5", {"grid": Grid.uniform(8), "lengths": 2.0}, "lengths"),
            ("hdf5", {"grid": Grid.uniform(8), "periodic": False}, "periodic"),
            ("zarr", {"channel": "c"}, "channel"),
            ("folder", {"sample": "run"}, "sample"),
        ],
    )
    def test_arguments_that_mean_nothing_are_refused(
        self, kind: str, options: dict[str, Any], name: str, tmp_path: Path
    ) -> None:
        path, values = tmp_path / "file", numbers(4, 1, 8)
        if kind == "the well":
            write_the_well(path)
        elif kind == "zarr":
            write_zarr(path, 2, u=values)
        elif kind == "hdf5":
            write_hdf5(path, u=values)
        else:
            path.mkdir()
            np.save(path / "u.npy", values)
            path = path / "u.npy" if kind == "npy" else path
        with pytest.raises(ArgumentError, match=f"no {name}= beside"):
            opened(path, **options)

    @pytest.mark.parametrize("kind", ["missing", "text", "zip", "empty folder", "damaged hdf5", "damaged netcdf"])
    def test_what_is_no_data_is_refused(self, kind: str, tmp_path: Path) -> None:
        path = tmp_path / "file"
        if kind == "empty folder":
            path.mkdir()
        elif kind == "zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("letter.txt", "no numbers")
        elif kind != "missing":
            path.write_bytes({"text": b"x,y\n", "damaged hdf5": b"\x89HDF\r\n\x1a\nxx", "damaged netcdf": b"CDF\x01xx"}[kind])
        with pytest.raises(FileError, match=str(path)):
            opened(path, inputs=["a"], outputs=["u"], periodic=True)

    def test_a_file_that_vanishes_is_named_when_it_is_read(self, tmp_path: Path) -> None:
        path = write_hdf5(tmp_path / "f.h5", a=numbers(4, 1, 8), u=numbers(4, 1, 8, seed="u"))
        data = pickle.loads(pickle.dumps(opened(path, inputs=["a"], outputs=["u"], periodic=False)))  # noqa: S301
        path.unlink()
        with pytest.raises(FileError, match="expected a to be readable"):
            data[0]

    @pytest.mark.parametrize(("suffix", "module"), [("h5", "h5py"), ("nc", "xarray"), ("nc", "h5netcdf"), ("zarr", "zarr")])
    def test_a_missing_extra_is_named(self, suffix: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / f"file.{suffix}"
        made = labelled(a=numbers(4, 1, 8))
        if suffix == "h5":
            write_hdf5(path, a=numbers(4, 1, 8))
        else:
            made.to_netcdf(path, engine="h5netcdf") if suffix == "nc" else made.to_zarr(path, consolidated=False)
        real = importlib.import_module

        def without(name: str, package: str | None = None) -> Any:
            if name == module:
                raise ModuleNotFoundError(name)
            return real(name, package)

        monkeypatch.setattr(importlib, "import_module", without)
        with pytest.raises(UnsupportedError, match=rf"expected {module}, .*pip install h5netcdf h5py numcodecs xarray zarr"):
            opened(path, inputs=["a"], outputs=["a"], periodic=True)

    @pytest.mark.bad_input
    def test_arrays_that_are_none(self) -> None:
        with pytest.raises(ShapeError, match="as many samples of each variable"):
            pn_data.from_arrays(numbers(3, 1, 8), numbers(4, 1, 8), periodic=True)
        with pytest.raises(ArgumentError, match="dtype"):
            pn_data.from_arrays(numbers(3, 1, 8), numbers(3, 1, 8), periodic=True, dtype=torch.float16)
        with pytest.raises(DataError, match="real inputs of at most 64 bits"):
            pn_data.from_arrays(np.array([["a", "b"]]), numbers(1, 2), periodic=True)


class TestDamagedZarr:
    def test_missing_chunks_are_named(self, tmp_path: Path) -> None:
        path = write_zarr(tmp_path / "f.zarr", 4, a=numbers(12, 1, 8), u=numbers(12, 1, 8, seed=1))
        chunks = sorted(file for file in (path / "u").rglob("*") if file.is_file() and file.name != "zarr.json")
        chunks[1].unlink()
        with pytest.warns(DataWarning, match="1 of 3 chunks of 'u' are not there, and are read as 0.0"):
            opened(path, inputs=["a"], outputs=["u"], periodic=True)

    def test_unreadable_metadata_and_chunks_are_typed_errors(self, tmp_path: Path) -> None:
        path = write_zarr(tmp_path / "f.zarr", 4, a=numbers(12, 1, 8), u=numbers(12, 1, 8, seed=1))
        chunks = sorted(file for file in (path / "u").rglob("*") if file.is_file() and file.name != "zarr.json")
        chunks[0].write_bytes(chunks[0].read_bytes()[:20])
        data = opened(path, inputs=["a"], outputs=["u"], periodic=True)
        with pytest.raises(FileError, match="u to be readable"):
            data[:]
        (path / "zarr.json").write_text("{")
        with pytest.raises(FileError, match="it is damaged: copy it again"):
            opened(path, inputs=["a"], outputs=["u"], periodic=True)


def test_packed_arrays_of_hdf5_are_unpacked(tmp_path: Path) -> None:
    """In a file, and as an open array of h5py, as xarray does."""
    with h5py.File(tmp_path / "packed.h5", "w") as file:
        for name in ("a", "u"):
            file[name] = np.arange(24, dtype=np.int16).reshape(3, 8)
        file["u"].attrs.update(scale_factor=0.5, add_offset=2.0)
    data = opened(tmp_path / "packed.h5", inputs=["a"], outputs=["u"], periodic=False)
    assert torch.equal(data[:].outputs.values, 0.5 * data[:].inputs.values + 2.0)
    with h5py.File(tmp_path / "packed.h5") as file:
        same = pn_data.from_arrays(file["a"], file["u"], periodic=False)
    assert torch.equal(same[:].outputs.values, data[:].outputs.values)


@pytest.mark.parametrize("attributes", [{"scale_factor": 0.5}, {"add_offset": 2.0}, {"_FillValue": -9}])
def test_packed_arrays_of_zarr_are_refused(attributes: dict[str, Any], tmp_path: Path) -> None:
    write_zarr(tmp_path / "f.zarr", 2, a=numbers(4, 8), u=numbers(4, 8, seed=1))
    group = zarr.open_group(tmp_path / "f.zarr")
    assert len(pn_data.from_arrays(group["a"], group["u"], periodic=False)) == 4
    group["u"].attrs.update(attributes)
    with pytest.raises(UnsupportedError, match=f"packed ones, with {next(iter(attributes))}; open the file"):
        pn_data.from_arrays(group["a"], group["u"], periodic=False)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_arrays_without_space_are_no_samples(shape: tuple[int, ...], tmp_path: Path) -> None:
    np.save(tmp_path / "few.npy", np.ones(shape))
    with pytest.raises((ShapeError, ArgumentError)):
        opened(tmp_path / "few.npy", periodic=False)
