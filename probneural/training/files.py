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

FORMAT = "probneural-1"
"""Version of the file layout."""


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> None:
    """Write tensors and JSON metadata so that a reader sees the old file or the new one, whenever the process dies.

    Raises:
        FileError: If the folder cannot be written to.
    """
    target = Path(path)
    # Copies, because safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "digest": _digest(plain, metadata), "content": json.dumps(metadata)}
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


def read(path: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what [`write`][probneural.training.files.write] wrote, and check its digest.

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
    return {name: tensor.to(device) for name, tensor in tensors.items()}, content


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> str:
    total = hashlib.sha256(json.dumps(metadata, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()
