"""The store of results: durable, honest about damage, and shared."""

from __future__ import annotations

import os
import pickle
import random
import struct
import tempfile
import warnings
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from probneural.active import ResultStore
from probneural.active.simulation.result_files import describe_grid, function_key, read_record, rebuild_grid
from probneural.active.simulation.store_files import locked, read_named, write_named
from probneural.errors import ArgumentError, DataError, FileError, GridError, ProbneuralError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from tests import file_mutations as change

GRID = Grid.uniform((8, 5), lengths=(1.0, 3.0), periodic=(True, False), origin=(0.0, -1.5))
SCATTERED = Grid.scattered(torch.linspace(0, 1, 14).reshape(7, 2), torch.linspace(0.1, 0.7, 7))


def some(count: int, *, seed: int = 0, grid: Grid = GRID, channels: int = 2, dtype: torch.dtype = torch.float32) -> Field:
    draw = torch.Generator().manual_seed(seed)
    return Field(torch.randn(count, channels, *grid.shape, generator=draw, dtype=dtype), grid)


def filled(path: Path, count: int = 3) -> tuple[ResultStore, Field, Field, list[str]]:
    inputs, outputs = some(count), some(count, seed=1, grid=SCATTERED, channels=1, dtype=torch.float64)
    store = ResultStore(path)
    keys = [store.add(inputs[row], outputs[row], seconds=float(row)) for row in range(count)]
    return store, inputs, outputs, keys


def file_of(store: ResultStore, key: str) -> Path:
    return store.path / "results" / f"{key}.safetensors"


def test_what_was_added_comes_back_in_the_order_of_the_keys(tmp_path):
    _, inputs, outputs, keys = filled(tmp_path / "a folder with spaces")
    store = ResultStore(str(tmp_path / "a folder with spaces"))
    pairs = store.pairs([keys[2], keys[0], keys[2]])
    assert torch.equal(pairs.inputs.values, inputs.values[[2, 0, 2]])
    assert torch.equal(pairs.outputs.values, outputs.values[[2, 0, 2]])
    assert pairs.inputs.grid == GRID
    assert pairs.outputs.grid == SCATTERED
    assert (pairs.inputs.dtype, pairs.outputs.dtype) == (torch.float32, torch.float64)
    assert len(store) == 3
    assert all(key in store for key in keys)
    assert "0" * 40 not in store


def test_results_on_the_sphere_come_back(tmp_path):
    sphere = Grid.latlon([-60.0, 0.0, 60.0], [0.0, 90.0, 180.0, 270.0])
    store = ResultStore(tmp_path)
    key = store.add(some(1, grid=sphere), some(1, grid=sphere), seconds=0.0)
    assert store.pairs([key]).outputs.grid == sphere
    described, tensors = describe_grid(sphere)
    for latitudes in ([], [[1.0], None], [None, [0.0, 1.0, 2.0]]):
        with pytest.raises(ProbneuralError):
            rebuild_grid(described | {"latitudes": latitudes}, tensors)


def test_adding_again_changes_nothing(tmp_path):
    store, inputs, outputs, keys = filled(tmp_path)
    before = file_of(store, keys[0]).read_bytes()
    assert store.add(inputs[0], Field(outputs.values[:1] + 1, SCATTERED), seconds=9.0) == keys[0]
    assert file_of(store, keys[0]).read_bytes() == before
    assert len(store) == 3


def test_a_result_is_synced_before_it_gets_its_name_and_its_folder_after(tmp_path, monkeypatch):
    store = ResultStore(tmp_path)
    calls = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))
        sync(descriptor)

    def rename(old: Path, new: Path) -> None:
        calls.append(("rename", new.name))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    key = store.add(some(1), some(1), seconds=0.0)
    assert [kind for kind, _ in calls] == ["sync", "rename", "sync"]
    assert calls[0][1].startswith(f".{key}")
    assert calls[1:] == [("rename", f"{key}.safetensors"), ("sync", "results")]


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4),
)
def test_keys_are_equal_exactly_where_functions_are(one, other):
    grid = Grid.uniform((4,))
    first, second = (Field(torch.tensor(values)[None, None], grid) for values in (one, other))
    assert (function_key(first) == function_key(second)) == torch.equal(first.values, second.values)


def test_keys_know_grid_dtype_and_shape_but_not_memory():
    field = Field(torch.zeros(1, 1, 8), Grid.uniform((8,)))
    others = [
        Field(field.values.double(), field.grid),
        Field(field.values, Grid.uniform((8,), lengths=2.0)),
        Field(field.values, Grid.uniform((8,), origin=1.0)),
        Field(field.values, Grid.uniform((8,), periodic=False)),
        Field(field.values, Grid.scattered(field.grid.points, field.grid.weights)),
        Field(field.values, Grid.scattered(field.grid.points, 2 * field.grid.weights)),
        Field(field.values.reshape(1, 2, 4), Grid.uniform((4,))),
        Field(field.values + 1, field.grid),
    ]
    assert len({function_key(other) for other in [field, *others]}) == 9
    assert function_key(Field(-field.values, Grid.uniform(8, origin=-0.0))) == function_key(field)  # -0.0 == 0.0
    wide = some(1, grid=GRID)
    turned = Field(wide.values.mT.contiguous().mT.requires_grad_(), GRID)
    assert not turned.values.is_contiguous()
    assert function_key(turned) == function_key(wide)


def test_keys_do_not_change_between_versions():
    """A store's files are named after them."""
    field = Field(torch.arange(4.0)[None, None], Grid.uniform((4,), periodic=False))
    assert function_key(field) == "f7b86361f91b0148109dbe2fa01065ff76e21935"


def test_failed_attempts_are_kept_and_counted(tmp_path):
    store, _, _, keys = filled(tmp_path, 1)
    other = some(2, seed=7)
    for reason in ("first", "second"):
        store.fail(other[0], reason=reason, seconds=1.5)
    again = ResultStore(tmp_path)
    assert [(failure.key, failure.reason, failure.seconds) for failure in again.failures()] == [
        (store.key(other[0]), "first", 1.5),
        (store.key(other[0]), "second", 1.5),
    ]
    assert (again.attempts(store.key(other[0])), again.attempts(keys[0])) == (2, 0)
    assert store.key(other[0]) not in again
    assert len(again) == 1


def test_decisions_are_kept_once(tmp_path):
    store = ResultStore(tmp_path)
    assert store.recall("round-1") is None
    store.remember("round-1", {"chosen": (3, 1), "at": 0.1})
    store.remember("round-1", {"at": 0.1, "chosen": [3, 1]})
    store.remember("nothing", None)
    with pytest.raises(ArgumentError, match=r"round-1.*decisions are kept once"):
        store.remember("round-1", {"chosen": [3, 2], "at": 0.1})
    with pytest.raises(ArgumentError, match="decisions are kept once"):
        store.remember("nothing", 0)
    assert ResultStore(tmp_path).recall("round-1") == {"chosen": [3, 1], "at": 0.1}


def test_tensors_are_kept_and_replaced(tmp_path):
    store = ResultStore(tmp_path)
    assert store.load_tensors("weights") is None
    store.save_tensors("weights", {"a": torch.ones(3)})
    store.save_tensors("weights", {"b": torch.arange(3), "c": torch.zeros(2, dtype=torch.complex64)})
    tensors = ResultStore(tmp_path).load_tensors("weights")
    assert tensors.keys() == {"b", "c"}
    assert torch.equal(tensors["b"], torch.arange(3))
    assert tensors["c"].dtype == torch.complex64


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "foreign", "renamed", "text"])
def test_a_damaged_result_is_set_aside(tmp_path, damage):
    store, inputs, outputs, keys = filled(tmp_path)
    path = file_of(store, keys[0])
    content = path.read_bytes()
    start = 8 + struct.unpack("<Q", content[:8])[0]
    flipped = bytearray(content)
    flipped[start + 5] ^= 1
    replacement = {
        "truncated": content[:-20],
        "empty": b"",
        "flipped": bytes(flipped),
        "renamed": file_of(store, keys[1]).read_bytes(),
        "text": b"not a result",
    }
    if damage == "foreign":
        save_file({"inputs": torch.zeros(3)}, path)
    else:
        path.write_bytes(replacement[damage])
    os.utime(path, ns=(1, 1))
    store = ResultStore(tmp_path)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert len(store) == 2
    assert keys[0] not in store
    assert path.with_name(f"{path.name}.broken").exists()
    with pytest.raises(FileError, match="simulate that function again"):
        store.pairs(keys)
    store.add(inputs[0], outputs[0], seconds=0.0)
    assert torch.equal(store.pairs(keys).outputs.values, outputs.values)


def test_damage_that_leaves_size_and_time_is_found_when_the_result_is_used(tmp_path):
    store, _, _, keys = filled(tmp_path)
    path = file_of(store, keys[0])
    state = path.stat()
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.warns(RuntimeWarning, match="cannot be used"), pytest.raises(FileError, match="simulate that function again"):
        store.pairs(keys)
    assert keys[0] not in store
    assert store.pairs(keys[1:]).inputs.grid == GRID


def test_a_file_that_cannot_be_opened_for_now_is_not_set_aside(tmp_path, monkeypatch):
    store, _, _, keys = filled(tmp_path)
    whole = Path.open

    def refused(path: Path, *arguments: object, **settings: object) -> object:
        if path.name.startswith(keys[0]):
            raise OSError(24, "Too many open files")
        return whole(path, *arguments, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        with pytest.raises(FileError, match="Too many open files"):
            store.pairs(keys)
        with pytest.raises(FileError, match="Too many open files"):
            len(ResultStore(tmp_path))
    assert len(ResultStore(tmp_path)) == 3
    assert not list(tmp_path.rglob("*.broken"))


def test_results_of_others_are_seen_and_deleted_ones_are_not(tmp_path):
    store, _, _, keys = filled(tmp_path / "one")
    more, others = some(2, seed=3), some(2, seed=4, grid=SCATTERED, channels=1, dtype=torch.float64)
    second = ResultStore(tmp_path / "two")
    new = [second.add(more[row], others[row], seconds=0.0) for row in range(2)]
    for key in new:
        os.replace(file_of(second, key), file_of(store, key))
    file_of(store, keys[0]).unlink()
    assert [key in store for key in (*keys, *new)] == [False, True, True, True, True]
    assert len(store) == 4
    assert len(second) == 0


def test_each_result_is_checked_once_and_none_when_a_store_is_opened(tmp_path, monkeypatch):
    keys = filled(tmp_path)[3]
    read = []
    monkeypatch.setattr(
        "probneural.active.simulation.store.read_record", lambda path: read.append(path.stem) or read_record(path)
    )
    store = ResultStore(tmp_path)
    assert read == []
    assert keys[1] in store
    assert read == [keys[1]]
    assert len(store) == 3
    assert sorted(read) == sorted(keys)


def test_half_written_files_are_ignored_and_removed_unless_they_are_being_written(tmp_path, monkeypatch):
    store, _, _, keys = filled(tmp_path)
    left = [
        tmp_path / room / f".some.{'0' * 15}{number}" for number, room in enumerate(("results", "failures", "tensors", "."))
    ]
    others = [tmp_path / "results" / name for name in (".nfs0001", ".hidden", f".{'0' * 16}")]
    for path in (*left, *others):
        path.write_bytes(b"half")
    seen = []

    def synced(descriptor: int) -> None:
        if not seen:  # at this moment the file is written and not renamed
            seen.append(len(ResultStore(tmp_path)))
            seen.append([path.exists() for path in (*left, *others)])

    monkeypatch.setattr(os, "fsync", synced)
    new = some(1, seed=8)
    store.add(new, new, seconds=0.0)
    assert seen == [3, [False] * 4 + [True] * 3]
    assert torch.equal(store.pairs([store.key(new)]).outputs.values, new.values)
    assert len(store) == 4
    assert keys[0] in store


def test_no_key_leads_out_of_the_folder(tmp_path):
    store, _, _, keys = filled(tmp_path / "store")
    victim = tmp_path / "victim.safetensors"
    victim.write_bytes(b"precious")
    (tmp_path / "store" / "results" / "deep").mkdir()
    inside = tmp_path / "store" / "results" / "deep" / f"{keys[0]}.safetensors"
    inside.write_bytes(b"precious")
    bad = ["../../victim", str(victim.with_suffix("")), "", ".", "..", "a\0b", "deep/" + keys[0], keys[0][:39], keys[0] + "0"]
    bad += [keys[0].upper(), f"{keys[0]}\n", f" {keys[0]}", "*", f"../results/{keys[0]}", "g" * 40, 5, None, b"0" * 40, ("a",)]
    for key in bad:
        assert key not in store
        for call in (store.attempts, lambda key: store.pairs([key])):
            with pytest.raises(ArgumentError, match="40 hexadecimal digits"):
                call(key)
    assert victim.read_bytes() == inside.read_bytes() == b"precious"
    assert not list(tmp_path.rglob("*.broken"))
    assert all(key in store for key in keys)


def test_links_are_set_aside_and_never_followed(tmp_path):
    store, inputs, outputs, keys = filled(tmp_path / "store")
    store.remember("round", [1])
    store.save_tensors("weights", {"a": torch.ones(2)})
    outside = tmp_path / "outside"
    outside.mkdir()
    links = [file_of(store, keys[0]), tmp_path / "store" / "decisions" / "round.safetensors"]
    links += [tmp_path / "store" / "tensors" / "weights.safetensors"]
    for path in links:
        (outside / path.name).write_bytes(path.read_bytes())
        path.unlink()
        path.symlink_to(outside / path.name)
    dangling = tmp_path / "store" / "results" / f"{store.key(some(1, seed=9))}.safetensors"
    dangling.symlink_to(outside / "new")
    kept = {path.name: path.read_bytes() for path in outside.iterdir()}
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        assert keys[0] not in store
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        assert store.recall("round") is None
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        store.save_tensors("weights", {"a": torch.zeros(2)})
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        store.add(some(1, seed=9), some(1, seed=9), seconds=0.0)
    store.add(inputs[0], outputs[0], seconds=0.0)
    store.remember("round", [2])
    assert torch.equal(store.pairs(keys).outputs.values, outputs.values)
    assert len(store) == 4
    assert {path.name: path.read_bytes() for path in outside.iterdir()} == kept
    (tmp_path / "store" / "locks" / "decisions-next").symlink_to(outside / "lock")
    with pytest.raises(FileError, match="can be written to"):
        store.remember("next", 1)
    assert not (outside / "lock").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_set_aside(tmp_path, kind):
    store, inputs, outputs, keys = filled(tmp_path)
    path = file_of(store, keys[0])
    path.unlink()
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    again = ResultStore(tmp_path)
    with pytest.warns(RuntimeWarning, match="no regular file"):
        assert len(again) == 2
    again.add(inputs[0], outputs[0], seconds=0.0)
    assert torch.equal(again.pairs(keys).outputs.values, outputs.values)


def test_a_store_that_cannot_be_written_to_leaves_damage_in_place(read_only):
    path = next((read_only / "results").glob("*.safetensors"))
    user = os.geteuid()
    os.seteuid(0) if os.getuid() == 0 else None
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    path.chmod(0o444)
    os.seteuid(user)
    with pytest.warns(RuntimeWarning, match="could not be renamed"):
        assert len(ResultStore(read_only)) == 2
    assert path.read_bytes() == b"damaged"


def test_decisions_and_tensors_know_their_names(tmp_path):
    store = ResultStore(tmp_path)
    store.remember("one", [1])
    store.save_tensors("one", {"a": torch.ones(3)})
    for room, read in (("decisions", store.recall), ("tensors", store.load_tensors)):
        (tmp_path / room / "two.safetensors").write_bytes((tmp_path / room / "one.safetensors").read_bytes())
        with pytest.warns(RuntimeWarning, match="expected the record 'two'; got 'one'"):
            assert read("two") is None
    assert store.recall("one") == [1]


@pytest.mark.bad_input
def test_decisions_with_keys_that_are_numbers_are_kept_once_too(tmp_path):
    store = ResultStore(tmp_path)
    value = {10: "a", 9: "b"}
    store.remember("round", value)
    store.remember("round", value)
    assert store.recall("round") == {"10": "a", "9": "b"}


@pytest.mark.parametrize("room", ["results", "failures", "tensors"])
def test_changed_records_are_set_aside_or_are_what_they_say(tmp_path, room):
    """Mutations of the JSON in results, failures and tensors, with digests made again."""
    store = filled(tmp_path)[0]
    failed = some(1, seed=7, grid=SCATTERED)
    store.fail(failed, reason="why", seconds=1.0)
    store.save_tensors("weights", {"a": torch.ones(2, dtype=torch.complex64)})
    path = next((tmp_path / room).glob("*.safetensors"))
    opened, draw = change.opened(path), random.Random(0)
    refused = 0
    for _ in range(60):
        change.write(path, opened, change.mutated(opened.content, draw)[1])
        os.utime(path, ns=(1, draw.randrange(10**15)))
        again = ResultStore(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            tensors = again.load_tensors("weights")
            refused += len(again) + len(again.failures()) < 4 or tensors is None
        for failure in again.failures():
            assert datetime.fromisoformat(failure.when).tzinfo is not None
        assert len(again) >= 2
    assert refused >= 36
    assert refused < 60  # a time, a reason, a duration or a value may be another


def test_locks_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path):
    ResultStore(tmp_path)
    (tmp_path / "locks" / "dead").touch()
    with locked(tmp_path, "living"):
        ResultStore(tmp_path)
        assert [path.name for path in (tmp_path / "locks").iterdir()] == ["living"]
        with locked(tmp_path, "living", wait=False) as other:
            assert not other


def test_a_store_travels_as_a_path(tmp_path):
    store, _, _, keys = filled(tmp_path)
    again = pickle.loads(pickle.dumps(store))  # noqa: S301 (made on this line)
    assert again.path == store.path
    assert keys[0] in again
    assert repr(again) == f"ResultStore('{tmp_path}')"


def test_a_lock_is_held_by_one_and_leaves_nothing(tmp_path):
    ResultStore(tmp_path)
    with locked(tmp_path, "one") as first, locked(tmp_path, "one", wait=False) as second, locked(tmp_path, "two") as third:
        assert (first, second, third) == (True, False, True)
    with locked(tmp_path, "one", wait=False) as again:
        assert again
    assert not list((tmp_path / "locks").iterdir())


def test_folders_of_others_are_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FileError, match="an empty folder"):
        ResultStore(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(FileError, match="choose another path"):
        ResultStore(tmp_path / "notes.txt")
    with pytest.raises(FileError, match="choose another path"):
        ResultStore(tmp_path / "notes.txt" / "below")
    (tmp_path / "other" / "results").mkdir(parents=True)
    (tmp_path / "other" / "results" / "mine.txt").write_text("mine")
    with pytest.raises(FileError, match="an empty folder"):
        ResultStore(tmp_path / "other")


@pytest.mark.parametrize("name", ["format", "files"])
def test_other_format_versions_are_refused_and_not_changed(tmp_path, name):
    filled(tmp_path)
    mark = tmp_path / "store.safetensors"
    value, _ = read_named(mark, mark.name)
    write_named(mark, mark.name, value=value | {name: "another-9"})
    with pytest.raises(FileError, match="another version"):
        ResultStore(tmp_path)
    assert len(list((tmp_path / "results").glob("*.safetensors"))) == 3


def test_a_store_whose_making_was_interrupted_is_made(tmp_path):
    (tmp_path / "s" / "locks").mkdir(parents=True)
    (tmp_path / "s" / "results").mkdir()
    (tmp_path / "s" / ".store.safetensors.1234").write_text("{")
    assert len(ResultStore(tmp_path / "s")) == 0


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A store in a folder that this process may not write to, whoever runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        filled(folder)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)  # permissions do not bind root
            yield folder
        finally:
            os.seteuid(user)
            for path in (folder, *folder.rglob("*")):
                path.chmod(0o777)


def test_a_read_only_folder_can_be_read_and_not_written(read_only):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = ResultStore(read_only)
        assert len(store) == 3
        assert len(store.pairs([path.stem for path in (read_only / "results").glob("*.safetensors")])) == 3
    new = some(1, seed=5)
    for write in (
        lambda: store.add(new, new, seconds=0.0),
        lambda: store.fail(new, reason="", seconds=0.0),
        lambda: store.remember("a", 1),
        lambda: store.save_tensors("a", {"a": torch.ones(1)}),
        lambda: ResultStore(read_only / "results" / "new"),
    ):
        with pytest.raises(FileError):
            write()


@pytest.mark.parametrize("name", ["", "../x", ".hidden", "a/b", "a b", "a" * 300])
def test_names_of_decisions_are_plain(tmp_path, name):
    store = ResultStore(tmp_path)
    for call in (
        lambda: store.remember(name, 1),
        lambda: store.recall(name),
        lambda: store.save_tensors(name, {}),
        lambda: store.load_tensors(name),
    ):
        with pytest.raises(ArgumentError, match="a name of letters"):
            call()


@pytest.mark.bad_input
def test_what_is_not_one_finite_function_is_refused(tmp_path):
    store = ResultStore(tmp_path)
    two, one = some(2), some(1)
    broken = Field(one.values * torch.inf, GRID)
    for arguments in (
        (two, one),
        (one, two),
        (one, broken),
        (broken, one),
        (one.values, one),
        (one, one.values),
        (two[:0], one),
    ):
        with pytest.raises(DataError):
            store.add(*arguments, seconds=0.0)
    with pytest.raises(DataError):
        store.fail(two, reason="", seconds=0.0)
    with pytest.raises(DataError, match="one function"):
        store.key(two)
    with pytest.raises(DataError, match="1 or more keys"):
        store.pairs([])
    with pytest.raises(FileError, match="simulate that function again"):
        store.pairs(["0" * 40])
    assert store.failures() == []


def test_results_of_different_kinds_are_not_mixed(tmp_path):
    store = ResultStore(tmp_path)
    field = some(1, grid=Grid.uniform((8,)), channels=1)
    kinds = [field, Field(field.values, Grid.uniform((8,), lengths=2.0)), field.to(torch.float64)]
    keys = [store.add(kind, field, seconds=0.0) for kind in kinds]
    for pair, error in ((keys[:2], GridError), (keys[::2], DataError)):
        with pytest.raises(error, match=r"fields on Grid|fields of torch\.float"):
            store.pairs(pair)
    other = store.add(
        some(1, seed=1, grid=field.grid, channels=1), Field(field.values.repeat(1, 2, 1), field.grid), seconds=0.0
    )
    with pytest.raises(ShapeError, match="1 channels of each field"):
        store.pairs([keys[0], other])


def test_grids_of_other_kinds_are_refused():
    with pytest.raises(GridError, match="uniform or scattered"):
        rebuild_grid({"kind": "spherical"}, {})
