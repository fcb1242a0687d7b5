"""Files of operators: every bit, no pickle, never half a file."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

from probneural.errors import FileError, UnsupportedError
from probneural.operators import FNO
from probneural.training import files, fit, load, save
from tests.training.cases import BUILDERS, data, same


def small() -> FNO:
    torch.manual_seed(0)
    return FNO(1, 1, modes=(2,), width=2, depth=1, projection=2)


def test_writes_every_dtype_and_shared_memory(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    tensors = {
        "half": torch.randn(3).half(),
        "bits": torch.tensor([True, False]),
        "whole": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "odd": torch.tensor([float("nan"), -0.0, float("inf")], dtype=torch.float64),
        "view": flat[2:8].reshape(2, 3).T,
        "other": flat[2:8],
        "again": flat,
        "spread": torch.ones(1, 4).expand(3, 4),
    }
    metadata = {"numbers": [1, 0.1, 1e-300, float("inf")], "text": "Σ", "nested": {"none": None, "flag": True}}
    files.write(tmp_path / "file", tensors, metadata)
    read, content = files.read(tmp_path / "file")
    assert content == metadata
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        torch.testing.assert_close(read[name], tensor, atol=0, rtol=0, equal_nan=True)
    assert read["odd"][1].signbit()


def test_leaves_one_file_with_the_users_permissions(tmp_path: Path) -> None:
    for _ in range(3):
        save(small(), tmp_path / "operator.file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["operator.file"]
    with (tmp_path / "operator.file").open("rb") as old:  # a reader keeps the file it has opened
        save(small().double(), tmp_path / "operator.file")
        assert safetensors.torch.load(old.read())["lift.bias"].dtype == torch.float32
    plain = tmp_path / "plain"
    plain.write_text("")
    assert (tmp_path / "operator.file").stat().st_mode == plain.stat().st_mode


def test_load_leaves_the_random_state_alone(tmp_path: Path) -> None:
    save(small(), str(tmp_path / "operator"))
    state = torch.get_rng_state()
    assert same(load(str(tmp_path / "operator")).state_dict(), small().state_dict())
    torch.set_rng_state(state)
    load(tmp_path / "operator")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "operator"
    save(small(), path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device"):
        save(small(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_byte_can_change_unnoticed(tmp_path: Path) -> None:
    """One flipped bit anywhere: an error, or (an `e` of a number turned `E`) the same contents."""
    path = tmp_path / "operator"
    save(small(), path)
    tensors, metadata = files.read(path)
    payload = path.read_bytes()
    header = 8 + int.from_bytes(payload[:8], "little")
    chooser = random.Random(0)
    positions = [*range(header), *range(header, len(payload))]
    unnoticed = 0
    for position in positions:
        damaged = bytearray(payload)
        damaged[position] ^= 1 << chooser.randrange(8)
        path.write_bytes(damaged)
        try:
            read, content = files.read(path)
        except FileError:
            continue
        unnoticed += 1
        assert content == metadata
        assert same(read, {name: tensors[name] for name in read})
    assert unnoticed <= 5


@pytest.mark.parametrize(("old", "new"), [(b'"F32"', b'"I32"'), (b"[2,1]", b"[1,2]")], ids=["dtype", "shape"])
def test_the_digest_covers_dtypes_and_shapes(old: bytes, new: bytes, tmp_path: Path) -> None:
    path = tmp_path / "operator"
    files.write(path, {"weight": torch.zeros(2, 1)}, {})
    payload = path.read_bytes()
    assert payload.count(old) == 1
    path.write_bytes(payload.replace(old, new))
    with pytest.raises(FileError, match="match their digest"):
        files.read(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    path = tmp_path / "operator"
    save(small(), path)
    payload = path.read_bytes()
    path.write_bytes(payload[: int(share * len(payload))])
    with pytest.raises(FileError):
        load(path)


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["pickle", "torch.save"])
def test_no_pickle_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "operator"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    else:
        torch.save({"weights": Trap(tmp_path / "sprung")}, path)
    with pytest.raises(FileError, match="a safetensors file"):
        load(path)
    assert not (tmp_path / "sprung").exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a safetensors file at .*missing"):
        load(tmp_path / "missing")
    with pytest.raises(FileError):
        load(tmp_path)
    path = tmp_path / "other"
    safetensors.torch.save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(FileError, match="format probneural-1; got None"):
        load(path)
    safetensors.torch.save_file({"weight": torch.ones(2)}, path, metadata={"format": "probneural-0", "content": "{}"})
    with pytest.raises(FileError, match="got probneural-0"):
        load(path)
    safetensors.torch.save_file({"weight": torch.ones(2)}, path, metadata={"format": files.FORMAT, "content": "{"})
    with pytest.raises(FileError, match="match their digest"):
        load(path)
    for name in ("pn", "fit"):
        checkpoint = tmp_path / name
        if name == "fit":
            fit(small(), data(), epochs=1, checkpoint=checkpoint, show_progress=False)
        else:
            files.write(checkpoint, {}, {"kind": "something"})
        with pytest.raises(FileError, match="an operator, one of FNO, LinearRegression; got (checkpoint|something)"):
            load(checkpoint)


def test_folders_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a folder to write operator into"):
        save(small(), tmp_path / "missing" / "operator")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a folder to write operator into"):
        save(small(), tmp_path / "file" / "operator")
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError, match="a folder to write folder into"):
        save(small(), tmp_path / "folder")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_read_only_folders_are_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="Permission denied"):
        save(small(), tmp_path / "operator")
    tmp_path.chmod(0o700)


class Mine(FNO):
    """A subclass: what its constructor takes is unknown."""


@pytest.mark.parametrize("name", ["Linear", "Convolutional", "Mine"])
def test_modules_of_others_are_refused(name: str, tmp_path: Path) -> None:
    module = {"Linear": lambda: nn.Linear(1, 1), "Mine": lambda: Mine(1, 1, modes=(2,)), **BUILDERS}[name]()
    with pytest.raises(UnsupportedError, match=f"one of FNO, LinearRegression; got {name}; .*save_model"):
        save(module, tmp_path / "operator")
    assert not list(tmp_path.iterdir())


KILLER = """
import os, random, signal, sys, time, torch
from probneural.operators import FNO
from probneural.training import load, save

torch.set_num_threads(1)
path, chooser, versions = sys.argv[1], random.Random(0), set()

def fill(number):
    for tensor in operator.parameters():
        torch.nn.init.constant_(tensor, number)

operator = FNO(1, 1, modes=(16,), width=48, depth=2)
fill(0)
save(operator, path)
for kill in range(10):
    child = os.fork()
    if not child:
        for number in range(1_000_000):
            fill(1000 * (kill + 1) + number)
            save(operator, path)
    time.sleep(chooser.uniform(0.02, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    values = {value for tensor in load(path).parameters() for value in (tensor.min().item(), tensor.max().item())}
    assert len(values) == 1, values
    versions |= values
print(len(versions))
"""


def test_killed_while_saving_leaves_a_whole_file(tmp_path: Path) -> None:
    """SIGKILL ten times in a loop that saves and does little else: all weights are of one version."""
    path = tmp_path / "operator"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLER, str(path)]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) > 3  # the children got to save
