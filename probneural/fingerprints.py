"""Short names that follow from contents: equal contents, equal names."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from jaxtyping import Int64
from torch import Tensor


def row_fingerprints(*tensors: Tensor) -> Int64[Tensor, " n"]:
    """A 64-bit content hash of each row, over all tensors of n rows.

    Shapes and dtypes count as contents: a function on another grid, or in another precision, is another function.

    Examples:
        >>> values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
        >>> first, second, third = row_fingerprints(values).tolist()
        >>> (first == third, first == second)
        (True, False)
    """
    arrays = [tensor.detach().cpu().contiguous() for tensor in tensors]
    kind = repr([(tuple(array.shape[1:]), array.dtype) for array in arrays]).encode()
    rows = []
    for row in zip(*arrays, strict=True):
        total = hashlib.blake2b(kind, digest_size=8)
        for part in row:
            total.update(part.numpy().tobytes())
        rows.append(int.from_bytes(total.digest(), "little", signed=True))
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def content_of(tensor: Tensor) -> bytes:
    """The bits of a tensor's values, row by row, of any dtype and layout.

    Examples:
        >>> content_of(torch.tensor([[97, 98], [99, 100]], dtype=torch.uint8).mT)
        b'acbd'
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.is_floating_point() and plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.view(torch.int16 if plain.itemsize == 2 else torch.uint8)  # NumPy does not know them
    return plain.numpy().tobytes()


def fingerprint_of(*tensors: Tensor) -> str:
    """A content hash of tensors, shapes and dtypes included, 64 hexadecimal digits.

    Examples:
        >>> fingerprint_of(torch.zeros(2)) == fingerprint_of(torch.zeros(2, 1))
        False
    """
    return fingerprint_of_parts((tuple(tensor.shape), tensor.dtype, (tensor,)) for tensor in tensors)


def fingerprint_of_parts(tensors: Iterable[tuple[tuple[int, ...], torch.dtype, Iterable[Tensor]]]) -> str:
    """The same of tensors that come in pieces: shape, dtype, and parts one after the other along the first axis.

    Examples:
        >>> pieces = ((4,), torch.float32, (torch.zeros(3), torch.zeros(1)))
        >>> fingerprint_of_parts([pieces]) == fingerprint_of(torch.zeros(4))
        True
    """
    total = hashlib.sha256()
    for shape, dtype, parts in tensors:
        total.update(repr((shape, dtype)).encode())
        for part in parts:
            total.update(content_of(part))
    return total.hexdigest()
