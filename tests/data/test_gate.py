"""Hostile data files are refused by a typed error before a library reads, allocates or runs anything of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

from probneural import data as files
from probneural.data import gate
from probneural.errors import FileError
from tests.data import hostile
from tests.data.files import labelled, numbers

ROOT = Path(__file__).parents[2]
MOST = 800
"""Megabytes that a refusal may take."""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("zarr 2, objects ['vlen-utf8', 'pickle']", "codecs of the array x.*got 'pickle'"),
        ("zarr 2, objects ['pickle']", "numbers or texts in the array x.*'|O'"),
        ("zarr 2, pickle compressor", "codecs of the array x.*got 'pickle'"),
        ("zarr 3, codecs", "codecs of the array a.*got 'pickle'"),
        ("zarr 3, shards", "codecs of the array a.*got 'pickle'"),
        ("zarr 2, .zattrs deep", "JSON in .*recursion"),
        ("zarr 2, a/.zarray list", "a JSON object in"),
        ("zarr 2, numbers as dims", "texts as names of dimensions"),
        ("zarr 2, coordinate long", "the array x of at most 256 MB, or 100 times what the file stores"),
        ("zarr 2, small chunks", "the array a of at most"),
        ("zarr 2, short chunk", "a to be readable"),
        ("netcdf 4, filter", "usual filters of odd .*300"),
        ("netcdf 4, external link", "no links to other files"),
        ("netcdf 4, virtual", "values of v .*in the file itself"),
        ("netcdf 4, circle", "no links between groups"),
        ("netcdf 4, deep", "members in 32 levels"),
        ("netcdf 4, long coordinate", "the array x0 .* of at most 256 MB"),
        ("the well, group", "a readable file.*TypeError"),
        ("npz, bit", "Bad CRC-32"),
        ("npz, short entry", "EOF: reading array data"),
        ("npz, objects", "Object arrays cannot be loaded"),
        ("npy, objects", "array of numbers"),
        ("torch, expanded", "of at most 256 MB"),
    ],
)
@pytest.mark.filterwarnings("ignore::probneural.errors.DataWarning", "ignore::UserWarning")
def test_what_refuses_a_file(name: str, message: str, tmp_path: Path) -> None:
    path = hostile.cases()[name](tmp_path)
    with pytest.raises(FileError, match=message):
        hostile.read(name, path)
    assert not (tmp_path / "executed").exists()


def test_an_archive_is_bounded_by_its_size_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "_UNSTORED", 2**12)
    np.savez_compressed(tmp_path / "f.npz", a=np.zeros((2**12, 64), "f4"))
    for use in (files.list_variables, lambda path: files.open(path, inputs=["a"], outputs=["a"], periodic=(True,))):
        with pytest.raises(FileError, match="the array a in .*got 1 MB from"):
            use(tmp_path / "f.npz")


def test_texts_are_read(tmp_path: Path) -> None:
    """As coordinates in both formats of zarr; format 2 calls them objects."""
    made = labelled(a=numbers(6, 1, 8), u=numbers(6, 1, 8, seed=1)).assign_coords(sample=[f"s{number}" for number in range(6)])
    for version in (2, 3):
        made.to_zarr(tmp_path / f"{version}.zarr", zarr_format=version, consolidated=False)
        opened = files.open(tmp_path / f"{version}.zarr", inputs=["a"], outputs=["u"], periodic=True)
        assert opened.inputs.labels.coordinates["sample"].tolist() == [f"s{number}" for number in range(6)]


def test_gaps_of_a_store_in_shards_are_counted(tmp_path: Path) -> None:
    stored = zarr.open_group(tmp_path / "f.zarr", mode="w").create_array(
        "a", shape=(8, 1, 8), chunks=(1, 1, 8), shards=(2, 1, 8), dtype="f4"
    )
    stored[:4] = numbers(4, 1, 8)
    with pytest.warns(UserWarning, match="2 of 4 chunks of 'a'"):
        files.list_variables(tmp_path / "f.zarr")


def test_metadata_of_other_arrays_than_those_in_the_store_are_not_used(tmp_path: Path) -> None:
    path = hostile.cases()["zarr 2, consolidated keys"](tmp_path)
    assert {variable.name for variable in files.list_variables(path)} == {"a", "u"}


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "count"), [("cases", 360), ("mutations", 1400)])
def test_every_error_is_typed_and_none_takes_much_memory(mode: str, count: int, tmp_path: Path) -> None:
    """In a process of its own, so that one that a library kills is counted."""
    command = [sys.executable, "-m", "tests.data.hostile", mode, str(tmp_path), "0", "1400"]
    paths = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True, check=False, timeout=1800
    )
    records = [json.loads(line) for line in finished.stdout.splitlines()]
    assert finished.returncode == 0, (records[-1:], finished.stderr[-2000:])
    done = [record for record in records if "outcome" in record]
    assert len(done) >= count
    least = min(record["megabytes"] for record in done)
    bad = [one for one in done if "raw" in one["outcome"] or one["executed"] or one["megabytes"] > least + MOST]
    assert not bad


def test_whole_files_of_all_layouts_are_read(tmp_path: Path) -> None:
    """Refusals of hostile files are not those of their layouts."""
    for number, (name, write) in enumerate(hostile.BASES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        second = {"npy": "DataError", "csv": "ShapeError"}.get(name, "read")  # one array, and columns without an axis of space
        assert hostile.outcome(name, write(folder)) == f"read, {second}", name
