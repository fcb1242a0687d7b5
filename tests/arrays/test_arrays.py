from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
from safetensors.numpy import save_file

from benchmarks.data import read
from probneural.errors import ArgumentError, DataError, FileError, GridError, ProbneuralError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs

A = np.arange(24.0).reshape(4, 6)
U = np.arange(48.0).reshape(4, 2, 6)


def line(x: Any, *, values: Any = None) -> xarray.DataArray:
    x = np.asarray(x)
    values = np.zeros((3, len(x))) if values is None else values
    return xarray.DataArray(values, dims=("sample", "x"), coords={"x": x})


@pytest.mark.parametrize(
    "array",
    [A, A.astype(">f8"), A.astype(">i4"), A.astype(np.uint8), np.asfortranarray(A), A[::-1, ::-1][::-1, ::-1], A.astype("f2")],
)
def test_layouts_and_kinds_of_numbers(array: Any) -> None:
    array = array.view()
    array.flags.writeable = False
    pairs = FieldPairs.from_numpy(array, U, grid=Grid.uniform(6))
    assert torch.equal(pairs.inputs.values, torch.arange(24.0, dtype=torch.float64).reshape(4, 1, 6))
    assert pairs.outputs.values.shape == (4, 2, 6)
    pairs.inputs.values.zero_()
    assert array[0, 1] == 1


@pytest.mark.parametrize(
    ("kinds", "dtype", "expected"),
    [
        (("f4", "f4"), None, torch.float32),
        (("i8", "f4"), None, torch.float32),
        (("?", "f8"), None, torch.float64),
        (("f8", "f8"), torch.float32, torch.float32),
    ],
)
def test_sides_share_a_dtype(kinds: tuple[str, str], dtype: torch.dtype | None, expected: torch.dtype) -> None:
    pairs = FieldPairs.from_numpy(A.astype(kinds[0]), U.astype(kinds[1]), grid=Grid.uniform(6), dtype=dtype)
    assert pairs.inputs.dtype == pairs.outputs.dtype == expected


def test_grids_are_built_from_options() -> None:
    pairs = FieldPairs.from_numpy(np.zeros((2, 4, 5)), np.zeros((2, 3, 8, 9)), periodic=(True, False))
    assert pairs.inputs.grid == Grid.uniform((4, 5), periodic=(True, False))
    assert pairs.outputs.grid == pairs.inputs.grid.resized((8, 9))
    assert FieldPairs.from_numpy(A, U[..., :3], grid=Grid.uniform(6), out_grid=Grid.uniform(3)).outputs.grid.shape == (3,)


PAIRS = [
    (Grid.uniform((8, 9), periodic=(True, False), lengths=(1.0, 2.0), origin=(0.1, -0.5)), None),
    (
        Grid.uniform(16, periodic=False, endpoint=False, lengths=0.3),
        Grid.uniform(32, periodic=False, endpoint=False, lengths=0.3),
    ),
    (Grid.uniform((3, 4, 5)), Grid.uniform(7, periodic=False)),
]


def test_groups_go_to_xarray_and_back(tmp_path: Path) -> None:
    """Or images and windows of one function would be divided after reading."""
    field = Field(torch.rand(4, 1, 8), Grid.uniform(8))
    pairs = FieldPairs(field, field, groups=torch.tensor([5, 0, 5, 2]))
    pairs.to_xarray().to_netcdf(tmp_path / "own.nc", format="NETCDF3_64BIT", engine="scipy")
    with xarray.open_dataset(tmp_path / "own.nc") as opened:
        found = [FieldPairs.from_xarray(opened), FieldPairs.from_xarray(opened["inputs"], -opened["outputs"])]
    for one in found:
        assert one.groups is not None
        assert one.groups.tolist() == [5, 0, 5, 2]
    whole = pairs.to_xarray().assign_coords(groups=("sample", [5.0, 0.0, 5.0, 2.0]))
    torch.testing.assert_close(FieldPairs.from_xarray(whole).groups, pairs.groups)
    assert FieldPairs.from_xarray(FieldPairs(field, field).to_xarray()).groups is None


@pytest.mark.parametrize(("grid", "out_grid"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_xarray_and_back(grid: Grid, out_grid: Grid | None, dtype: torch.dtype, tmp_path: Path) -> None:
    other = grid if out_grid is None else out_grid
    pairs = FieldPairs(
        Field(torch.rand(5, 1, *grid.shape, dtype=dtype), grid), Field(torch.rand(5, 2, *other.shape, dtype=dtype), other)
    )
    dataset = pairs.to_xarray()
    dataset.to_netcdf(tmp_path / "own.nc", format="NETCDF3_64BIT", engine="scipy")
    with xarray.open_dataset(tmp_path / "own.nc") as opened:
        for found in (FieldPairs.from_xarray(dataset), FieldPairs.from_xarray(opened)):
            for back, side in ((found.inputs, pairs.inputs), (found.outputs, pairs.outputs)):
                assert back.grid == side.grid
                assert torch.equal(back.values, side.values)
    field = Field.from_xarray(pairs.outputs.to_xarray())
    assert field.grid == other
    assert torch.equal(field.values, pairs.outputs.values)
    data = read(tmp_path / "own.nc")
    assert (data.name, len(data.train), len(data.tests["in distribution"])) == ("own", 4, 1)


@pytest.mark.parametrize("latitude_first", [True, False])
def test_areas_of_the_sphere_go_to_xarray_and_back(latitude_first: bool, tmp_path: Path) -> None:
    grid = Grid.latlon(np.linspace(-90, 90, 7), np.arange(12) * 30.0, latitude_first=latitude_first).resized((5, 5))
    Field(torch.rand(2, 1, 5, 5), grid).to_xarray().to_netcdf(tmp_path / "sphere.nc", engine="scipy")
    assert Field.from_xarray(xarray.open_dataarray(tmp_path / "sphere.nc")).grid == grid


@pytest.mark.parametrize(
    ("x", "periodic", "lengths", "expected"),
    [
        ([0.5, 0.75, 1.0, 1.25], True, None, Grid.uniform(4, origin=0.5)),
        ([0.5, 0.75, 1.0], False, None, Grid.uniform(3, periodic=False, lengths=0.5, origin=0.5)),
        ([0.0, 0.25, 0.5, 0.75], False, 1.0, Grid.uniform(4, periodic=False, endpoint=False)),
        ([0.0, 0.25, 0.5, 0.75], False, 0.75, Grid.uniform(4, periodic=False, lengths=0.75)),
        ([0, 1, 2], True, 3.0, Grid.uniform(3, lengths=3.0)),
        (np.linspace(100, 101, 11)[:-1].astype("f4"), True, 1.0, Grid.uniform(10, origin=100.0)),
        ([2.0], True, 3.0, Grid.uniform(1, lengths=3.0, origin=2.0)),
    ],
)
def test_coordinates_give_the_grid(x: Any, periodic: bool, lengths: float | None, expected: Grid) -> None:
    assert Field.from_xarray(line(x), periodic=periodic, lengths=lengths).grid == expected


def test_dimensions_are_found_by_name_and_variables_are_channels() -> None:
    values = np.arange(24.0).reshape(2, 3, 4)  # x, run, component
    array = xarray.DataArray(values, dims=("x", "run", "component"), coords={"x": [0.0, 1.0]})
    field = Field.from_xarray(array, periodic=False, sample="run", channel="component")
    np.testing.assert_array_equal(field.values, values.transpose(1, 2, 0))
    dataset = xarray.Dataset({"u": line([0.0, 1.0]), "v": line([0.0, 1.0]).transpose() + 1.0})
    assert Field.from_xarray(dataset, periodic=False).values[0, :, 0].tolist() == [0.0, 1.0]


def test_npz_and_safetensors_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "flow.npz", inputs=np.zeros((10, 4, 5)), outputs=np.ones((10, 4, 5)), periodic=[True, False])
    data = read(tmp_path / "flow.npz")
    assert (data.name, len(data.train), len(data.tests["in distribution"])) == ("flow", 8, 2)
    assert data.train.inputs.grid == Grid.uniform((4, 5), periodic=(True, False))
    for name, size in (("train_4", 4), ("test_8", 8), ("test_4", 4)):
        arrays = {"x": np.ones((6, size, size), np.uint8), "y": np.zeros((6, size, size), np.float32)}
        save_file(arrays, tmp_path / f"darcy_{name}.safetensors")
    data = read(tmp_path / "darcy")
    assert (data.name, len(data.train), list(data.tests)) == ("darcy", 6, ["in distribution", "grid 8 x 8"])
    assert data.train.inputs.grid == Grid.uniform((4, 4), periodic=False, endpoint=False)


def test_grids_without_right_end_halve_exactly() -> None:
    fine, coarse = (Grid.uniform((size, size), periodic=False, endpoint=False) for size in (32, 16))
    values = torch.rand(2, 1, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(Field(values, fine).resample(coarse).values, values[..., ::2, ::2])
    x, y = coarse.points.T
    smooth = Field((x**5 - y**4 * x).reshape(1, 1, 16, 16), coarse).resample(fine)
    x, y = fine.points.T
    torch.testing.assert_close(smooth.values.flatten(), x**5 - y**4 * x)


HOLE = np.where(A == 5.0, np.nan, A)
GRID = Grid.uniform(6)
RECORDED = Field(torch.zeros(3, 1, 6), GRID).to_xarray()


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: FieldPairs.from_numpy(HOLE, A, grid=GRID), DataError, "1 values that are NaN or infinite"),
        (lambda: FieldPairs.from_numpy(A, A * 1e40, grid=GRID, dtype=torch.float32), DataError, "finite outputs"),
        (lambda: FieldPairs.from_numpy(A * 1j, A, grid=GRID), DataError, "two channels"),
        (lambda: FieldPairs.from_numpy(A.astype(object), A, grid=GRID), DataError, "real inputs"),
        (lambda: FieldPairs.from_numpy(A.astype(np.longdouble), A, grid=GRID), DataError, "at most 64 bits"),
        (lambda: FieldPairs.from_numpy(np.ma.masked_equal(A, 3.0), A, grid=GRID), DataError, "masked"),
        (lambda: FieldPairs.from_numpy((2**25 + A).astype(int), A.astype("f4"), grid=GRID), DataError, "integers that"),
        (lambda: FieldPairs.from_numpy(A, A, grid=GRID, dtype=torch.int64), ArgumentError, "float32 or float64"),
        (lambda: FieldPairs.from_numpy(A, A), ArgumentError, "periodic= to build one"),
        (lambda: FieldPairs.from_numpy(A, A, grid=GRID, periodic=True), ArgumentError, "grid= alone"),
        (lambda: FieldPairs.from_numpy(U, U, periodic=True), ShapeError, "may be channels on a line or a grid"),
        (lambda: FieldPairs.from_numpy(A, A, periodic=(True, True)), ShapeError, "2 grid axes"),
        (lambda: FieldPairs.from_numpy(A[0], A, grid=GRID), ShapeError, "state the roles of the axes"),
        (lambda: FieldPairs.from_numpy(A, A[:, :3], grid=GRID), ShapeError, "out_grid="),
        (lambda: Field.from_xarray(line([0.0, 1.0])), ArgumentError, "coordinates cannot tell"),
        (lambda: Field.from_xarray(line([1.0, 0.0]), periodic=True), GridError, "ascending"),
        (lambda: Field.from_xarray(line([0.0, 1.0, 3.0]), periodic=True), GridError, "equispaced"),
        (lambda: Field.from_xarray(line([0.0, np.nan]), periodic=True), GridError, "finite numbers"),
        (lambda: Field.from_xarray(line([0.0, 0.5, 1.0]), periodic=True, lengths=1.0), GridError, "repeated last point"),
        (lambda: Field.from_xarray(line([0.0, 0.5, 1.0]), periodic=False, lengths=7.0), GridError, "units"),
        (lambda: Field.from_xarray(line([0.0]), periodic=True), GridError, "one point"),
        (lambda: Field.from_xarray(line([0.0, 1.0]), periodic=(True, True)), ArgumentError, "one entry per space"),
        (
            lambda: Field.from_xarray(line([0.0, 1.0]).rename(x="level"), periodic=True),
            ArgumentError,
            "role of dimension 'level'",
        ),
        (lambda: Field.from_xarray(line([0.0, 1.0]), periodic=True, sample="run"), ShapeError, "dimension 'run'"),
        (lambda: Field.from_xarray(RECORDED[..., :3]), GridError, "another grid"),
        (lambda: Field.from_xarray(A, periodic=True), DataError, "DataArray or Dataset"),
        (lambda: Field.from_xarray(xarray.Dataset(), periodic=True), ShapeError, "same dimensions"),
        (lambda: Field.from_xarray(RECORDED.to_dataset(name="u"), periodic=True), ShapeError, "scalar variables"),
        (lambda: FieldPairs.from_xarray(line([0.0, 1.0]), periodic=True), DataError, "two arguments"),
        (lambda: Field(torch.zeros(1, 1, 1), Grid.scattered([[0.0]], [1.0])).to_xarray(), GridError, "uniform"),
    ],
)
def test_bad_input(call: Any, kind: type[ProbneuralError], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


@pytest.mark.bad_input
def test_bad_files(tmp_path: Path) -> None:
    for name in ("none.npz", "none.nc", "none", "none.zarr"):
        with pytest.raises(FileError, match="functions in none"):
            read(tmp_path / name)
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "text.nc").write_text("no")
    (tmp_path / "train.safetensors").write_text("no")
    for name in ("text.npz", "text.nc", "train"):
        with pytest.raises(FileError, match="functions in"):
            read(tmp_path / name)
    np.savez(tmp_path / "one.npz", inputs=A)
    with pytest.raises(DataError, match="add outputs"):
        read(tmp_path / "one.npz")
    np.savez(tmp_path / "evil.npz", inputs=np.array([{}]), outputs=A)
    with pytest.raises(FileError, match="functions in evil"):
        read(tmp_path / "evil.npz")
    np.savez(tmp_path / "few.npz", inputs=A, outputs=2 * A, periodic=True)
    with pytest.raises(DataError, match="at least 5 pairs"):
        read(tmp_path / "few.npz")
    for arrays, message in (({"a": A}, "x and y"), ({"x": A[0], "y": A[0]}, "space comes last")):
        save_file(arrays, tmp_path / "train.safetensors")
        with pytest.raises(DataError, match=message):
            read(tmp_path / "train")
