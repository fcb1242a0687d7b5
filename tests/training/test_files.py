"""Files: every bit, no pickle, never half a file."""

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
from torch import Tensor

from probneural.errors import FileError
from probneural.training import files
from tests.training.cases import same


def small() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"weight": (2, 3), "bias": (2,), "long.name.of.a.tensor": (4, 1)}
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {
        **tensors,
        "complex": torch.complex(tensors["bias"], tensors["bias"]).to(torch.complex128),
        "turned": tensors["weight"].mT,
    }


def write_small(path: Path) -> None:
    files.write(path, small(), metadata={"kind": "test", "numbers": [1, 0.1, 1e-30], "nested": {"text": "Σ", "flag": True}})


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
        "complex64": torch.randn(2, 3, dtype=torch.complex64).T,
        "complex128": torch.randn(3, dtype=torch.complex128),
        "conjugated": torch.randn(3, dtype=torch.complex128).conj(),
        "imaginary": torch.randn(3, dtype=torch.complex128).conj().imag,  # negated lazily
        "number": torch.tensor(1.0 + 2.0j),
        "none": torch.zeros(0, 2, dtype=torch.complex64),
    }
    metadata = {"numbers": [1, 0.1, 1e-300, float("inf")], "text": "Σ", "nested": {"none": None, "flag": True}}
    files.write(tmp_path / "file", tensors, metadata=metadata)
    read, content = files.read(tmp_path / "file")
    assert content == metadata
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        torch.testing.assert_close(read[name], tensor, atol=0, rtol=0, equal_nan=True)
    assert read["odd"][1].signbit()


def test_complex_numbers_lie_anywhere_in_a_file(tmp_path: Path) -> None:
    """Headers of any length before them: what is read in place has to be aligned as its processor wants it."""
    tensors = {"complex": torch.arange(27, dtype=torch.float64).to(torch.complex128)}
    for length in range(16):
        files.write(tmp_path / "file", tensors, metadata={"text": length * "x"})
        assert torch.equal(files.read(tmp_path / "file")[0]["complex"], tensors["complex"])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
def test_keeps_the_order_of_axes_in_memory(dtype: torch.dtype, tmp_path: Path) -> None:
    """On which the rounding of matrix products depends."""
    block = torch.randn(2, 3, 4, 5, dtype=dtype)
    tensors = {
        "plain": block,
        "turned": block[0, 0].mT,
        "cycled": block.permute(3, 0, 2, 1),
        "single": torch.ones(1, 3, dtype=dtype)[:, ::2][:, 1:],  # contiguous for PyTorch, which ignores the stride of 2
        "last": torch.empty_like(block, memory_format=torch.channels_last).copy_(block),
        "thin": block[:1, :, :1].movedim(1, -1),
    }
    files.write(tmp_path / "file", tensors, metadata={})
    read, _ = files.read(tmp_path / "file")
    for name, tensor in tensors.items():
        assert torch.equal(read[name], tensor)
        if name not in ("thin", "single"):  # strides of axes of length 1 mean nothing
            assert read[name].stride() == tensor.stride(), name


def test_what_is_read_has_memory_of_its_own(tmp_path: Path) -> None:
    """Aligned as that of any other tensor, and still there when the file is not."""
    path = tmp_path / "file"
    tensors = {str(size): torch.randn(size) for size in range(1, 9)}
    files.write(path, tensors, metadata={})
    read, _ = files.read(path)
    path.write_bytes(b"")
    assert same(read, tensors)
    assert all(tensor.data_ptr() % 64 == 0 for tensor in read.values())


def test_leaves_one_file_with_the_users_permissions(tmp_path: Path) -> None:
    for _ in range(3):
        write_small(tmp_path / "some.file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["some.file"]
    with (tmp_path / "some.file").open("rb") as old:  # a reader keeps the file it has opened
        files.write(tmp_path / "some.file", {"weight": torch.zeros(1, dtype=torch.float64)}, metadata={})
        assert safetensors.torch.load(old.read())["weight"].dtype == torch.float32
    plain = tmp_path / "plain"
    plain.write_text("")
    assert (tmp_path / "some.file").stat().st_mode == plain.stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "some"
    write_small(path)
    before = path.read_bytes()

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left on device"):
        write_small(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_byte_can_change_unnoticed(tmp_path: Path) -> None:
    """One flipped bit anywhere: an error, or (an `e` of a number turned `E`) the same contents."""
    path = tmp_path / "some"
    write_small(path)
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
    path = tmp_path / "some"
    files.write(path, {"weight": torch.zeros(2, 1)}, metadata={})
    payload = path.read_bytes()
    assert payload.count(old) == 1
    path.write_bytes(payload.replace(old, new))
    with pytest.raises(FileError, match="match their digest"):
        files.read(path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.999])
def test_a_truncated_file_is_refused(share: float, tmp_path: Path) -> None:
    path = tmp_path / "some"
    write_small(path)
    payload = path.read_bytes()
    path.write_bytes(payload[: int(share * len(payload))])
    with pytest.raises(FileError):
        files.read(path)


class Trap:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["pickle", "torch.save"])
def test_no_pickle_is_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "some"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    else:
        torch.save({"weights": Trap(tmp_path / "sprung")}, path)
    with pytest.raises(FileError, match="a safetensors file"):
        files.read(path)
    assert not (tmp_path / "sprung").exists()


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a safetensors file at .*missing"):
        files.read(tmp_path / "missing")
    with pytest.raises(FileError):
        files.read(tmp_path)
    path = tmp_path / "other"
    safetensors.torch.save_file({"weight": torch.ones(2)}, path)
    with pytest.raises(FileError, match="format probneural-2; got None"):
        files.read(path)
    safetensors.torch.save_file({"weight": torch.ones(2)}, path, metadata={"format": "probneural-1", "content": "{}"})
    with pytest.raises(FileError, match="got probneural-1"):
        files.read(path)
    safetensors.torch.save_file({"weight": torch.ones(2)}, path, metadata={"format": files.FORMAT, "content": "{"})
    with pytest.raises(FileError, match="JSON that describes the tensors"):
        files.read(path)


def test_folders_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="a folder to write some into"):
        write_small(tmp_path / "missing" / "some")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="a folder to write some into"):
        write_small(tmp_path / "file" / "some")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write anywhere")
def test_read_only_folders_are_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="Permission denied"):
        write_small(tmp_path / "some")
    tmp_path.chmod(0o700)


KILLER = """
import os, random, signal, sys, time, torch
from probneural.training import files

torch.set_num_threads(1)
path, chooser, versions = sys.argv[1], random.Random(0), set()

def write(number):
    files.write(path, {str(part): torch.full((100_000,), float(number)) for part in range(8)}, metadata={"number": number})

write(0)
for kill in range(10):
    child = os.fork()
    if not child:
        for number in range(1_000_000):
            write(1000 * (kill + 1) + number)
    before = os.stat(path).st_ino
    while os.stat(path).st_ino == before:  # until it has saved once
        pass
    time.sleep(chooser.uniform(0.0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    tensors, metadata = files.read(path)
    values = {value for tensor in tensors.values() for value in (tensor.min().item(), tensor.max().item())}
    assert values == {metadata["number"]}, (values, metadata)
    versions |= values
print(len(versions))
"""


def test_killed_while_saving_leaves_a_whole_file(tmp_path: Path) -> None:
    """SIGKILL ten times in a loop that writes and does little else: all tensors are of one version."""
    path = tmp_path / "some"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLER, str(path)]
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) > 3  # the children got to save
