"""Safe files: safetensors with JSON metadata and a digest, written atomically, never a pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from probneural import atomic
from probneural.errors import FileError
from probneural.fingerprints import content_of
from probneural.training import schema

FORMAT = "probneural-2"
"""Version of the file layout."""


class _Content(TypedDict):
    """Metadata of a file of tensors.

    Attributes:
        metadata: Metadata of the caller.
        complex: Names of tensors that are held as real pairs.
        orders: Axes from the slowest to the fastest in memory, where that is not the usual order.
    """

    metadata: dict[str, Any]
    complex: list[str]
    orders: dict[str, list[int]]


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], *, metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata, atomically and durably: see [`write`][probneural.atomic.write].

    Complex tensors of any precision are held as real pairs.

    Args:
        path: Path of the file; an existing file is replaced atomically.
        tensors: Tensors by name; they may share memory.
        metadata: JSON-serialisable metadata.

    Raises:
        FileError: If the folder is not writable, or the path is not that of a file.
    """
    plain = {name: _plain(tensor) for name, tensor in tensors.items()}
    orders = {name: _memory_order(tensor) for name, tensor in tensors.items()}
    content = {
        "metadata": dict(metadata),
        "complex": [name for name, tensor in tensors.items() if tensor.is_complex()],
        "orders": {name: order for name, order in orders.items() if order != sorted(order)},
    }
    header = {"format": FORMAT, "digest": _digest(plain, content), "content": json.dumps(content)}
    atomic.write(path, save(plain, metadata=header))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a file of [`write`][probneural.training.files.write], and check its digest.

    Returns:
        The tensors on the CPU, each in memory of its own with its axes in the order they had, and the metadata.

    Raises:
        FileError: If the file is missing, is not ours, or is damaged.
    """
    try:
        atomic.check_regular(path, os.stat(path))
        with safe_open(Path(path), framework="pt", device="cpu") as stream:
            header = stream.metadata() or {}
            tensors = {name: stream.get_tensor(name) for name in stream.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError) as error:
        raise FileError(
            expected=f"a safetensors file at {path}", got=str(error), remedy="give a path that pn.save or pn.fit wrote"
        ) from error
    if header.get("format") != FORMAT or "content" not in header:
        raise FileError(
            expected=f"a file of format {FORMAT}", got=str(header.get("format")), remedy="give a file written by save"
        )
    content = _content(header["content"])
    if header.get("digest") != _digest(tensors, content):
        raise FileError(expected="contents that match their digest", got="others", remedy="the file is damaged; restore it")
    return _restored(tensors, content), content["metadata"]


def _content(text: str) -> _Content:
    """Parse and validate the description of the tensors."""
    try:
        content = schema.parsed(text)
    except ValueError as error:
        raise FileError(
            expected="JSON that describes the tensors", got=str(error), remedy="the file is damaged; restore it"
        ) from error
    schema.check(content, _Content, where="the file's description")
    checked: _Content = content
    return checked


def _restored(tensors: Mapping[str, Tensor], content: _Content) -> dict[str, Tensor]:
    """The tensors as they were: complex again, and with their axes in the order they had."""
    names = content["complex"]
    if len({*names}) < len(names) or any(not _holds_pairs(tensors.get(name)) for name in names):
        schema.refuse("names of tensors that hold real pairs", names, where="complex")
    restored = {name: torch.view_as_complex(tensor.clone()) if name in {*names} else tensor for name, tensor in tensors.items()}
    for name, order in content["orders"].items():
        if name not in restored or sorted(order) != list(range(restored[name].ndim)):
            schema.refuse("an order of a tensor's axes", order, where=f"orders.{name[:80]}")
    return {name: _laid_out(tensor, content["orders"].get(name)) for name, tensor in restored.items()}


def _holds_pairs(tensor: Tensor | None) -> bool:
    kinds = (torch.float16, torch.float32, torch.float64)
    return tensor is not None and tensor.dtype in kinds and tensor.ndim > 0 and tensor.shape[-1] == 2


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
    """A copy with PyTorch's memory alignment and axes in this order."""
    if order is None:
        return tensor.clone(memory_format=torch.contiguous_format)
    moved = tensor.permute(order).clone(memory_format=torch.contiguous_format)
    return moved.permute(sorted(range(len(order)), key=order.__getitem__))


def _digest(tensors: Mapping[str, Tensor], content: object) -> str:
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(content_of(tensor))
    return total.hexdigest()
