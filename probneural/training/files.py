"""Safe files: safetensors with JSON metadata and a digest, written atomically, never a pickle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from probneural.errors import FileError

FORMAT = "probneural-2"
"""Version of the file layout."""


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata so that a reader sees the old file or the new one, whenever the process dies.

    Complex tensors of any precision are held as real pairs.

    Args:
        path: Where to; an existing file is replaced in one step.
        tensors: By name; they may share memory.
        metadata: What JSON can hold.

    Raises:
        FileError: If the folder cannot be written to.
    """
    target = Path(path)
    plain = {name: _plain(tensor) for name, tensor in tensors.items()}
    orders = {name: _memory_order(tensor) for name, tensor in tensors.items()}
    content = {
        "metadata": dict(metadata),
        "complex": [name for name, tensor in tensors.items() if tensor.is_complex()],
        "orders": {name: order for name, order in orders.items() if order != sorted(order)},
    }
    header = {"format": FORMAT, "digest": _digest(plain, content), "content": json.dumps(content)}
    payload = save(plain, metadata=header)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("xb") as stream:  # unlike tempfile's, it gets the permissions the user's umask asks for
            stream.write(payload)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself must survive a power cut
        finally:
            os.close(folder)
    except OSError as error:
        raise FileError(
            expected=f"a folder to write {target.name} into", got=str(error), remedy="check path and space"
        ) from error
    finally:
        with contextlib.suppress(OSError):  # nothing is left to remove after the rename
            temporary.unlink()


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what [`write`][probneural.training.files.write] wrote, and check its digest.

    Returns:
        The tensors on the CPU, each in memory of its own with its axes in the order they had, and the metadata.

    Raises:
        FileError: If the file is missing, is not ours, or is damaged.
    """
    try:
        with safe_open(Path(path), framework="pt", device="cpu") as stream:
            header = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(
            expected=f"a safetensors file at {path}", got=str(error), remedy="give a path that pn.save or pn.fit wrote"
        ) from error
    if header.get("format") != FORMAT or "content" not in header:
        raise FileError(
            expected=f"a file of format {FORMAT}",
            got=str(header.get("format")),
            remedy="other safetensors files hold no operator",
        )
    try:
        content = json.loads(header["content"])
    except ValueError:
        content = None
    if content is None or header.get("digest") != _digest(tensors, content):
        raise FileError(expected="contents that match their digest", got="others", remedy="the file is damaged; restore it")
    for name in content["complex"]:  # a copy first: in the file numbers lie at multiples of 8 bytes, complex ones need 16
        tensors[name] = torch.view_as_complex(tensors[name].clone())
    return {name: _laid_out(tensor, content["orders"].get(name)) for name, tensor in tensors.items()}, content["metadata"]


def _plain(tensor: Tensor) -> Tensor:
    """A real contiguous copy on the CPU: safetensors refuses tensors that share memory, and those of complex128."""
    whole = tensor.detach().resolve_conj().resolve_neg()
    real = torch.view_as_real(whole) if whole.is_complex() else whole
    return real.to("cpu", copy=True).contiguous()


def _memory_order(tensor: Tensor) -> list[int]:
    """Axes from the slowest to the fastest in memory.

    A matrix product rounds differently when a factor's rows lie where its columns were.
    """
    strides = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda axis: -strides[axis])


def _laid_out(tensor: Tensor, order: list[int] | None) -> Tensor:
    """A copy, aligned as PyTorch aligns its own memory, with axes in this order."""
    if order is None:
        return tensor.clone(memory_format=torch.contiguous_format)
    moved = tensor.permute(order).clone(memory_format=torch.contiguous_format)
    return moved.permute(sorted(range(len(order)), key=order.__getitem__))


def _digest(tensors: Mapping[str, Tensor], content: object) -> str:
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()
