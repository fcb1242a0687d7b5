"""Files are written whole, keep what the user gave them, and what killed writers leave is removed."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from probneural import atomic
from probneural.errors import FileError
from probneural.storage import save
from probneural.training import RunOptions, fit
from tests.training.cases import built, data


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("own", [0o600, 0o640, 0o444, 0o666, 0o755])
def test_an_existing_file_keeps_its_permissions(own: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(own)
    atomic.write(path, b"new")
    assert path.read_bytes() == b"new"
    assert mode(path) == own
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002, 0o000])
def test_a_new_file_has_the_permissions_that_the_umask_asks_for(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        atomic.write(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == 0o666 & ~umask


def test_nobody_may_read_a_private_file_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    seen = []
    monkeypatch.setattr(os, "fsync", lambda _: seen.extend(mode(entry) for entry in tmp_path.iterdir()))
    atomic.write(path, b"new")
    assert set(seen) == {0o600}


def test_links_stay_and_their_targets_are_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    target = tmp_path / "there" / "file"
    target.write_bytes(b"old")
    target.chmod(0o640)
    (tmp_path / "second").symlink_to("there/file")
    (tmp_path / "first").symlink_to(tmp_path / "second")
    atomic.write(tmp_path / "first", b"new")
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()
    assert target.read_bytes() == b"new"
    assert mode(target) == 0o640
    (tmp_path / "dangling").symlink_to(tmp_path / "there" / "made")
    atomic.write(tmp_path / "dangling", b"made")
    assert (tmp_path / "dangling").is_symlink()
    assert (tmp_path / "there" / "made").read_bytes() == b"made"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["dangling", "file", "first", "made", "second", "there"]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    with pytest.raises(FileError):
        atomic.write(tmp_path / "one", b"new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_not_replaced(kind: str, tmp_path: Path) -> None:
    path = tmp_path / kind
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(FileError, match=f"a folder to write {kind} into; got .*{kind} is no regular file"):
        atomic.write(path, b"new")
    assert not path.is_file()
    assert list(tmp_path.iterdir()) == [path]


def test_long_names_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ü" * 120)
    atomic.write(path, b"new")
    assert path.read_bytes() == b"new"


def abandoned(path: Path) -> Path:
    """The temporary file of a writer that was killed before the rename."""
    child = os.fork()
    if not child:
        os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
        atomic.write(path, b"half")
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    (left,) = path.parent.glob(f".{path.name[:40]}*")
    assert left.read_bytes() == b"half"
    return left


def test_what_a_killed_writer_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = abandoned(tmp_path / "file")
    others = [tmp_path / name for name in (".file", ".file.bak", f"file.{'0' * 16}", f".{'0' * 16}", ".file.0123456789ABCDEF")]
    for path in others:
        path.write_bytes(b"mine")
    (tmp_path / f".folder.{'0' * 16}").mkdir()
    (tmp_path / f".link.{'0' * 16}").symlink_to(others[0])
    os.mkfifo(tmp_path / f".pipe.{'0' * 16}")
    before = set(tmp_path.iterdir())
    atomic.remove_abandoned(tmp_path, name="another")
    assert set(tmp_path.iterdir()) == before
    atomic.remove_abandoned(tmp_path, name="file")
    assert set(tmp_path.iterdir()) == before - {left}
    atomic.remove_abandoned(tmp_path / "missing")


def test_what_a_live_writer_has_not_renamed_stays(tmp_path: Path) -> None:
    """A writer in another process stops before the rename, until its temporary file has been looked at."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.fsync = lambda _: os.read(reading, 1)
        atomic.write(tmp_path / "file", b"whole")
        os._exit(0)
    while not (found := list(tmp_path.iterdir())) or found[0].stat().st_size < 5:
        time.sleep(0.001)
    os.utime(found[0], (0, 0))  # age does not matter
    atomic.remove_abandoned(tmp_path)
    assert list(tmp_path.iterdir()) == found
    os.write(writing, b"go")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"whole"
    os.close(reading)
    os.close(writing)


def test_a_writer_whose_file_was_taken_for_abandoned_takes_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between making and locking its file it looks dead for a moment."""
    lock, taken = atomic.fcntl.flock, []

    def late(descriptor: int, operation: int) -> None:
        if not taken:
            taken.extend(tmp_path.iterdir())
            atomic.remove_abandoned(tmp_path)  # which locks, too
            assert not list(tmp_path.iterdir())
        lock(descriptor, operation)

    monkeypatch.setattr(atomic.fcntl, "flock", late)
    atomic.write(tmp_path / "file", b"new")
    assert len(taken) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("kind", ["no fcntl", "no locks"])
def test_without_locks_a_file_is_abandoned_after_a_day(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = abandoned(tmp_path / "file")

    def refused(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    if kind == "no fcntl":
        monkeypatch.setattr(atomic, "fcntl", None)
    else:
        monkeypatch.setattr(atomic.fcntl, "flock", refused)
    atomic.write(tmp_path / "other", b"new")
    atomic.remove_abandoned(tmp_path)
    assert left.exists()
    os.utime(left, (time.time() - 1e5,) * 2)
    atomic.remove_abandoned(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_saving_and_fitting_remove_what_was_left_of_their_file(tmp_path: Path) -> None:
    left = abandoned(tmp_path / "operator")
    save(built("FNO"), tmp_path / "operator")
    assert not left.exists()
    left = abandoned(tmp_path / "checkpoint")
    fit(built("FNO"), data(), epochs=1, run=RunOptions(checkpoint=tmp_path / "checkpoint"), show_progress=False)
    assert not left.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "operator"]


def test_a_folder_survives_an_interrupt_while_it_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the old folder's leaving and the new one's coming."""
    target = tmp_path / "store"
    target.mkdir()
    (target / "data").write_text("old")
    renamed = os.replace

    def interrupted(source: Path, destination: Path) -> None:
        if destination == target and (source / "data").read_text() == "new":
            raise KeyboardInterrupt
        renamed(source, destination)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), atomic.replacing_folder(target) as folder:
        (folder / "data").write_text("new")
    assert (target / "data").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_folders_that_killed_processes_have_left_are_removed_where_the_whole_one_exists(tmp_path: Path) -> None:
    left, target = tmp_path / f".store.{'0' * 16}", tmp_path / "store"
    left.mkdir()
    (left / "part").touch()
    atomic.remove_abandoned(tmp_path, name="store")
    assert left.exists()  # it may be the old one
    with atomic.replacing_folder(target) as folder:
        (folder / "part").touch()
    with atomic.replacing_folder(target) as folder:
        atomic.remove_abandoned(tmp_path, name="store")
        assert folder.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
