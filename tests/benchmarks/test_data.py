"""Functions of one's own: what files say, what is assumed where they do not, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import data, exact
from probneural.errors import ShapeError
from probneural.grids import Grid

NUMBERS = np.random.default_rng(0).normal(size=(10, 12)).astype(np.float32)


def saved(folder: Path, **arrays: object) -> Path:
    path = folder / "flow.npz"
    np.savez(path, **{"inputs": NUMBERS, "outputs": 2 * NUMBERS, **arrays})
    return path


def test_two_arrays_alone_are_enough(tmp_path: Path) -> None:
    """As the guide has it; what is assumed is said."""
    loaded = data.read(saved(tmp_path))
    assert loaded.train.inputs.grid == Grid.uniform(12, periodic=False)
    assert len(loaded.train) + len(loaded.tests["in distribution"]) == 10
    assert loaded.assumed.startswith(
        "flow.npz has no array `periodic`: its axis is taken as not periodic, with a point at each end"
    )
    assert exact.FileSource(tmp_path / "flow.npz").assumed == loaded.assumed


@pytest.mark.parametrize("periodic", [True, [True], np.array([1])])
def test_what_a_file_says_is_not_assumed(tmp_path: Path, periodic: object) -> None:
    loaded = data.read(saved(tmp_path, periodic=periodic, lengths=[2.0], test_inputs=NUMBERS[:3], test_outputs=2 * NUMBERS[:3]))
    assert loaded.train.inputs.grid == loaded.tests["in distribution"].outputs.grid == Grid.uniform(12, lengths=2.0)
    assert (len(loaded.train), len(loaded.tests["in distribution"]), loaded.assumed) == (10, 3, "")


@pytest.mark.parametrize("shape", [(10, 3, 4), (10, 1, 3, 4)])
def test_more_axes_must_be_told_from_channels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {"inputs": NUMBERS.reshape(shape), "outputs": 2 * NUMBERS.reshape(shape)}
    with pytest.raises(
        ShapeError, match=r"an array `periodic` in flow.npz.*\(10, .*channels or space.*periodic=\[False, False\]"
    ):
        data.read(saved(tmp_path, **arrays))
    loaded = data.read(saved(tmp_path, **arrays, periodic=[True, False]))
    assert loaded.train.inputs.grid == Grid.uniform((3, 4), periodic=(True, False))
