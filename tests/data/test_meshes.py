"""Files of meshes: against meshes in memory, volumes of split cells, bounded memory, bad files."""

from __future__ import annotations

import pickle
import weakref
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest
import torch

import probneural as pn
from probneural.command_line import main
from probneural.data import StoredPairs, meshes
from probneural.errors import ArgumentError, DataError, FileError, GridError, ProbneuralError, ShapeError

CUBE = np.array([[x, y, z] for z in (0.0, 1.0) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))])
SQUARE = np.array([[0.0, 0.0, 0.5], [2.0, 0.0, 0.5], [2.0, 1.0, 0.5], [0.0, 1.0, 0.5]])


def write(path: Path, points: np.ndarray, cells: list[tuple[str, Any]], **arrays: Any) -> Path:
    data = {name: np.asarray(values, dtype=np.float64) for name, values in arrays.items()}
    getattr(meshio, meshes.FORMATS[path.suffix]).write(path, meshio.Mesh(points, cells, point_data=data))
    return path


def shapes(folder: Path, count: int, *, suffix: str = ".vtu") -> pn.FieldPairs:
    """Write pairs on meshes of their own; each is shifted, so that meshes differ in their number of points too."""
    parts = [pn.problems.PoissonOnShapes().sample(1, resolution=30 + 7 * (n % 4), seed=n) for n in range(count)]
    for number, part in enumerate(parts):
        (grid,) = part.inputs.grid.singles()
        points = np.column_stack([grid.points.numpy(), np.zeros(grid.size)])
        assert grid.cells is not None
        cells = [("triangle", grid.cells.numpy())]
        values = {"f": part.inputs.values[0, 0], "u": part.outputs.values[0, 0]}
        write(folder / f"{number:03}{suffix}", points, cells, **values)
    pairs = pn.FieldPairs.cat(parts)
    return pn.FieldPairs(*(pn.Field(side.values, side.grid) for side in (pairs.inputs, pairs.outputs)))


def opened(path: Any, **options: Any) -> StoredPairs:
    data = pn.data.open(path, **{"inputs": ["f"], "outputs": ["u"]} | options)
    assert isinstance(data, StoredPairs)
    return data


def copied(data: StoredPairs) -> StoredPairs:
    """The data set as another process gets it, which has read nothing."""
    copy: StoredPairs = pickle.loads(pickle.dumps(data))  # noqa: S301 (made here)
    return copy


@pytest.mark.parametrize("suffix", [".vtu", ".vtk", ".msh", ".xdmf", ".med"])
def test_equals_meshes_in_memory(tmp_path: Path, suffix: str) -> None:
    memory = shapes(tmp_path, 5, suffix=suffix)
    stored = opened(str(tmp_path / f"*{suffix}"), dtype=torch.float32)
    assert stored.fingerprint == memory.fingerprint
    for rows in ([3, 0], slice(1, 4), [4]):
        first, second = stored[rows], memory[rows]
        assert first.inputs.grid == second.inputs.grid
        assert torch.equal(first.inputs.values, second.inputs.values)
        assert torch.equal(stored.subset(rows)[:].outputs.values, second.outputs.values)
    assert stored.subset([3, 0]).inputs.grid == memory[[3, 0]].inputs.grid
    assert torch.equal(copied(stored)[2].outputs.values, memory[2].outputs.values)


def test_trains_as_meshes_in_memory(tmp_path: Path) -> None:
    memory = shapes(tmp_path, 12)
    predictions = []
    for data in (memory, opened(str(tmp_path / "*.vtu"), dtype=torch.float32)):
        train, held_out = data.split(8, seed=0)
        operator = pn.operators.PointFNO(1, 1, modes=(3, 3), width=6, depth=2, seed=0)
        pn.fit(operator, train, epochs=2, seed=0, show_progress=False)
        predictor = pn.heads.LastLayerLaplace().fit(operator, train)
        predictor = pn.calibration.VarianceScale().fit(predictor, held_out)
        predictions.append(predictor(held_out[:].inputs))
    torch.testing.assert_close(predictions[1].mean, predictions[0].mean, rtol=0, atol=0)
    torch.testing.assert_close(predictions[1].standard_deviation, predictions[0].standard_deviation, rtol=0, atol=0)


def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes(tmp_path, 200)
    monkeypatch.setattr(meshes, "_CACHE", 8 * 2 * 60 * 10)  # some ten files
    alive, most, read = set[int](), 0, meshes._Mesh.arrays_of

    def counted(mesh: Any, names: Any) -> Any:
        nonlocal most
        arrays = read(mesh, names)
        for array in arrays.values():
            alive.add(id(array))
            weakref.finalize(array, alive.discard, id(array))
        most = max(most, len(alive))
        return arrays

    monkeypatch.setattr(meshes._Mesh, "arrays_of", counted)
    data = opened(str(tmp_path / "*.vtu"))
    passed = sum(len(part) for part in pn.pairs.field_pairs.batches(data, 16))
    assert passed == 200
    assert 2 * 10 <= most <= 2 * 20


CELLS = {
    "quad": (SQUARE, [[0, 1, 2, 3]], 2.0),
    "triangle": (SQUARE, [[0, 1, 2], [0, 2, 3]], 2.0),
    "hexahedron": (CUBE, [range(8)], 1.0),
    "wedge": (CUBE[[0, 1, 2, 4, 5, 6]], [range(6)], 0.5),
    "pyramid": (CUBE[[0, 1, 2, 3, 4]], [range(5)], 1.0 / 3.0),
    "tetra": (CUBE[[0, 1, 3, 4]], [range(4)], 1.0 / 6.0),
}


@pytest.mark.parametrize("order", range(4))
@pytest.mark.parametrize("kind", CELLS)
def test_split_cells_keep_their_volume(tmp_path: Path, kind: str, order: int) -> None:
    points, cells, volume = CELLS[kind]
    numbers = np.random.default_rng(order).permutation(len(points))  # where each point goes
    moved = np.empty_like(points)
    moved[numbers] = points
    write(tmp_path / "a.vtu", moved, [(kind, numbers[np.array(list(map(list, cells)))])], f=moved[:, 0], u=moved[:, 1])
    grid = opened(tmp_path / "a.vtu").inputs.grid
    assert grid.volume == pytest.approx(volume, rel=1e-14)
    assert grid.dimension == (2 if len(set(points[:, 2])) == 1 else 3)


def test_neighbours_share_the_diagonals_of_their_faces(tmp_path: Path) -> None:
    layers = np.concatenate([CUBE[:4], CUBE[4:], CUBE[4:] + np.array([0, 0, 1])])
    for seed in range(5):
        numbers = np.random.default_rng(seed).permutation(12)
        points = np.empty_like(layers)
        points[numbers] = layers
        cells = numbers[np.array([list(range(8)), list(range(4, 12))])]
        write(tmp_path / "a.vtu", points, [("hexahedron", cells)], f=points[:, 0], u=points[:, 1])
        assert len(opened(tmp_path / "a.vtu").inputs.grid.boundary) == 20  # 10 faces of the box, two triangles each


SECOND_ORDER = {
    "line3": ([[0.0], [1.0]], [(0, 1)], [], 1.0),
    "triangle6": ([[0, 0], [1, 0], [0, 1]], [(0, 1), (1, 2), (0, 2)], [], 0.5),
    "quad9": ([[0, 0], [1, 0], [1, 1], [0, 1]], [(0, 1), (1, 2), (2, 3), (3, 0)], [(0, 1, 2, 3)], 1.0),
    "tetra10": (np.eye(4, 3, -1), [(0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3)], [], 1.0 / 6.0),
}


@pytest.mark.parametrize("kind", SECOND_ORDER)
def test_second_order_cells_are_split_at_their_inner_points(tmp_path: Path, kind: str) -> None:
    corners, edges, centres, volume = SECOND_ORDER[kind]
    vertices = np.asarray(corners, dtype=float)
    points = np.stack([*vertices, *(vertices[list(ends)].mean(0) for ends in (*edges, *centres))])
    padded = np.pad(points, ((0, 0), (0, 3 - points.shape[1])))
    write(tmp_path / "a.vtu", padded, [(kind, [range(len(points))])], f=padded[:, 0], u=padded[:, 1])
    grid = opened(tmp_path / "a.vtu").inputs.grid
    assert grid.size == len(points)
    assert grid.volume == pytest.approx(volume, rel=1e-14)


def test_other_cells_points_and_arrays(tmp_path: Path) -> None:
    points = np.concatenate([SQUARE, [[9.0, 9.0, 0.5]]])  # the last one is in no cell
    mesh = meshio.Mesh(
        points,
        [("triangle", [[0, 1, 2]]), ("line", [[0, 1], [1, 2]]), ("triangle", [[0, 2, 3]])],
        point_data={"f": np.arange(5.0), "velocity": np.column_stack([points[:, :2], np.zeros(5)])},
        cell_data={"kappa": [np.array([2.0]), np.array([7.0, 7.0]), np.array([4.0])]},
    )
    meshio.vtk.write(tmp_path / "a.vtk", mesh)
    data = opened(tmp_path / "a.vtk", inputs=["f", "kappa"], outputs=["velocity"])
    assert data.inputs.grid.points.tolist() == SQUARE[:, :2].tolist()
    assert data.inputs.names == ("f", "kappa")
    assert data.outputs.names == ("velocity", "velocity")
    assert data[0].inputs.values[0].tolist() == [[0.0, 1.0, 2.0, 3.0], [3.0, 2.0, 3.0, 4.0]]
    assert data[0].outputs.values[0].tolist() == SQUARE[:, :2].T.tolist()
    names = {variable.name: variable.axes for variable in pn.data.list_variables(tmp_path / "a.vtk")}
    assert names == {"kappa": "(cell 4)", "f": "(point 5)", "velocity": "(point 5, 3)"}


def test_field_data_are_constant_channels(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.vtu", SQUARE + number, [("quad", [range(4)])], u=SQUARE[:, 0])
        text = (tmp_path / f"{number}.vtu").read_text()
        array = f'<FieldData><DataArray type="Float64" Name="Re" format="ascii">{number}.5</DataArray></FieldData>'
        (tmp_path / f"{number}.vtu").write_text(text.replace("<Piece", f"{array}<Piece", 1))
    data = opened(str(tmp_path / "*.vtu"), inputs=["Re"])
    assert data[[2, 0]].inputs.values.tolist() == [[[2.5] * 4], [[0.5] * 4]]


def test_equal_meshes_are_one_grid(tmp_path: Path) -> None:
    for number in range(4):
        write(tmp_path / f"{number}.vtu", SQUARE, [("quad", [range(4)])], f=SQUARE[:, 0] + number, u=SQUARE[:, 1] * number)
    data = opened(str(tmp_path / "*.vtu"))
    assert not data.inputs.grid.is_batch
    assert data[2].inputs.values.flatten().tolist() == [2.0, 4.0, 4.0, 2.0]


QUAD = [("quad", [[0, 1, 2, 3]])]


def bad(
    kind: type[ProbneuralError], words: str, points: np.ndarray = SQUARE, cells: Any = QUAD, **arrays: Any
) -> tuple[Any, type[ProbneuralError], str]:
    """A file that is written, the error, and words of its message."""
    arrays = arrays or {"f": points[:, 0], "u": points[:, 0]}
    return (lambda path: write(path, points, cells, **arrays)), kind, words


BAD: dict[str, tuple[Any, type[ProbneuralError], str]] = {
    "surface": bad(GridError, "surface in 3", CUBE[[0, 1, 3, 4]], [("triangle", [[1, 2, 3]])]),
    "degenerate": bad(DataError, "degenerate", SQUARE[[0, 1, 1, 3]], [("triangle", [[0, 1, 3], [0, 1, 2]])]),
    "repeated": bad(DataError, "repeated", SQUARE, [("triangle", [[0, 1, 3], [1, 3, 0]])]),
    "missing": bad(DataError, "'u'", f=SQUARE[:, 0], v=SQUARE[:, 0]),
    "channels": bad(ShapeError, "1 channels of u", f=SQUARE[:, 0], u=SQUARE),
    "nan": bad(DataError, "finite f", f=SQUARE[:, 0] * np.nan, u=SQUARE[:, 0]),
    "points": bad(DataError, "finite points", SQUARE / [[0.5, np.nan, 1.0]], f=SQUARE[:, 0], u=SQUARE[:, 0]),
    "cells": bad(DataError, "0 to 9", SQUARE, [("quad", [[0, 1, 2, 9]])]),
    "no cells": bad(ProbneuralError, "1.vtu", SQUARE, []),
    "kind": bad(DataError, "quad8", CUBE, [("quad8", [range(8)])]),
    "text": (lambda path: path.write_text("no mesh"), FileError, "readable file"),
    "cut": (lambda path: path.write_bytes((path.parent / "0.vtu").read_bytes()[:700]), FileError, "readable file"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", BAD)
def test_bad_files_raise_errors_that_name_them(tmp_path: Path, name: str) -> None:
    make, kind, words = BAD[name]
    write(tmp_path / "0.vtu", SQUARE, QUAD, f=SQUARE[:, 0], u=SQUARE[:, 1])
    make(tmp_path / "1.vtu")
    with pytest.raises(kind) as caught:
        opened(str(tmp_path / "*.vtu"))[:]
    assert words in str(caught.value)
    assert "1.vtu" in str(caught.value)


@pytest.mark.bad_input
def test_arguments_without_meaning_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "0.vtu", SQUARE, QUAD, f=SQUARE[:, 0], u=SQUARE[:, 1])
    with pytest.raises(ArgumentError, match="no periodic"):
        opened(tmp_path / "0.vtu", periodic=True)
    with pytest.raises(FileError, match="match"):
        opened(str(tmp_path / "*.msh"))
    np.save(tmp_path / "a.npy", np.zeros(4))
    with pytest.raises(FileError, match="files of meshes"):
        opened([tmp_path / "0.vtu", tmp_path / "a.npy"])
    data = opened(tmp_path / "0.vtu")
    write(tmp_path / "0.vtu", CUBE, [("hexahedron", [range(8)])], f=CUBE[:, 0], u=CUBE[:, 1])
    with pytest.raises(FileError, match="when it was opened"):
        copied(data)[0]


def test_predictions_are_written_for_paraview(tmp_path: Path) -> None:
    pairs = shapes(tmp_path, 3)
    operator = pn.operators.PointFNO(1, 1, modes=(2, 2), width=4, depth=1, seed=0)
    operator.fit_normalizers(pairs)
    u = pn.heads.LastLayerLaplace().fit(operator, pairs)(pairs.inputs)
    u.to_meshio(tmp_path / "u_{}.vtu", draws=2, seed=3)
    draws = u.rsample((2,), seed=3)
    for number, grid in enumerate(u.grid.singles()):
        mesh = meshio.vtu.read(tmp_path / f"u_{number}.vtu")
        assert sorted(mesh.point_data) == ["draw_0", "draw_1", "mean", "standard_deviation"]
        for name, values in (("mean", u.mean), ("standard_deviation", u.standard_deviation), ("draw_1", draws[1])):
            assert mesh.point_data[name].tolist() == values[number, 0, : grid.size].double().tolist()
        assert mesh.points[:, :2].tolist() == grid.points.tolist()
        assert grid.cells is not None
        assert mesh.cells[0].data.tolist() == grid.cells.tolist()
    u[1].to_meshio(tmp_path / "one.vtk", draws=0)
    assert sorted(meshio.vtk.read(tmp_path / "one.vtk").point_data) == ["mean", "standard_deviation"]
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_fields_are_written_and_read_again(tmp_path: Path) -> None:
    pairs = shapes(tmp_path, 2)
    values = torch.cat([pairs.inputs.values, pairs.outputs.values, pairs.inputs.values], 1)
    pn.Field(values, pairs.inputs.grid, names=("v", "f", "v")).to_meshio(tmp_path / "again{}.vtu")
    data = opened(str(tmp_path / "again*.vtu"), inputs=["v_0", "f"], outputs=["v_1"], dtype=torch.float32)
    assert data.inputs.grid == pairs.inputs.grid
    assert torch.equal(data[1].inputs.values, values[1:, :2])
    points = pn.Grid.scattered([[0.0, 1.0], [1.0, 2.0]], [0.5, 0.5])
    pn.Field(torch.ones(1, 1, 2), points).to_meshio(tmp_path / "points.vtk")
    assert meshio.vtk.read(tmp_path / "points.vtk").cells[0].type == "vertex"


@pytest.mark.bad_input
def test_paths_and_grids_that_cannot_be_written(tmp_path: Path) -> None:
    field = pn.Field(torch.ones(2, 1, 4), pn.Grid.scattered([[0.0], [1.0], [2.0], [3.0]], [1.0] * 4))
    with pytest.raises(ArgumentError, match="for each of 2 samples"):
        field.to_meshio(tmp_path / "u.vtu")
    with pytest.raises(ArgumentError, match="vtu or .vtk"):
        field.to_meshio(tmp_path / "u_{}.csv")
    with pytest.raises(FileError, match="a folder to write"):
        field[0].to_meshio(tmp_path / "none" / "u.vtu")
    with pytest.raises(GridError, match="to_xarray"):
        pn.Field(torch.ones(1, 1, 4), pn.Grid.uniform(4)).to_meshio(tmp_path / "u.vtu")


def test_one_command_leads_from_mesh_files_to_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shapes(tmp_path, 40)
    pattern, folder = str(tmp_path / "*.vtu"), tmp_path / "run"
    assert main(["info", pattern]) == 0
    said = capsys.readouterr().out.split()
    assert said[:4] == ["what", "data", "files", "40"]
    assert "f (point" in " ".join(said)
    small = ["--operator.options", "modes=[2,2]", "width=4", "depth=1", "--training.epochs", "2"]
    assert main(["report", pattern, "--inputs", "f", "--outputs", "u", "--folder", str(folder), *small]) == 0
    page = (folder / "report.html").read_text()
    assert "PointFNO" in page
    assert page.count("<img") == 5  # losses, calibration, three test functions
    new, out = str(tmp_path / "00*.vtu"), tmp_path / "predicted"
    out.mkdir()
    for name in ("u.nc", "u.vtu", "predicted/u.vtu"):
        assert main(["predict", str(folder), new, str(tmp_path / name)]) == 1
        assert "predicted/{}.vtu" in capsys.readouterr().err
    assert main(["predict", str(folder), new, str(tmp_path / "{}.vtu")]) == 1
    assert "an output beside the inputs" in capsys.readouterr().err
    assert main(["predict", str(folder), new, str(out / "u_{}.vtu")]) == 0
    assert "10 meshes" in capsys.readouterr().out
    assert sorted(file.name for file in out.iterdir()) == [f"u_{number:03}.vtu" for number in range(10)]
    inputs = pn.data.open_inputs(new, inputs=["f"], dtype=torch.float32)[:]
    predictor = pn.load(folder / "predictor.safetensors")
    u = predictor(inputs)
    expected = {
        "mean": u.mean,
        "std": (u.variance + predictor.noise).sqrt(),
        "upper": u.interval(0.9, noise=predictor.noise).upper,
    }
    for row, mesh in enumerate(inputs.grid.singles()):
        written = meshio.read(out / f"u_{row:03}.vtu")
        assert np.allclose(written.points[:, :2], mesh.points)
        for name, values in expected.items():
            assert np.allclose(written.point_data[name], values[row, 0, : mesh.size], rtol=1e-4, atol=1e-6), name
        assert (written.point_data["band_lower"] <= written.point_data["mean"]).all()
    assert main(["predict", str(folder), str(tmp_path / "003.vtu"), str(tmp_path / "one.vtu")]) == 0
    assert np.array_equal(meshio.read(tmp_path / "one.vtu").point_data["mean"].shape, [inputs.grid.singles()[3].size])
