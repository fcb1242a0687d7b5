"""Content hashes: equal contents have equal hashes."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import MethodType

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), Enum, torch.dtype, torch.device)
"""Types whose values name themselves."""


def row_fingerprints(*tensors: Tensor) -> Int64[Tensor, " n"]:
    """Return a 64-bit content hash of each row over all tensors `(n, ...)`, on the CPU.

    Shapes of rows and the order of tensors count as contents, dtypes do not: rows are hashed as float32. A row in float64 that
    float32 cannot hold at all is hashed as float64.

    Examples:
        >>> values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]])
        >>> first, second, third = row_fingerprints(values).tolist()
        >>> (first == third, first == second)
        (True, False)
        >>> row_fingerprints(values.double()).tolist() == [first, second, third]
        True
    """
    parts = [_row_hashes(tensor.detach(), number).cpu() for number, tensor in enumerate(tensors)]  # devices may differ
    return torch.stack(parts).sum(0)


def _row_hashes(values: Tensor, number: int) -> Int64[Tensor, " n"]:
    """Hashes of rows as those of the tensor of this number."""
    rows = values.flatten(1)
    narrow = rows.to(torch.float32) + 0.0  # -0 becomes 0
    bits = narrow.view(torch.int32).to(torch.int64)
    if rows.dtype == torch.float64 and rows.shape[1]:
        wide, largest = rows + 0.0, narrow.abs().amax(1)
        is_lost = ~((largest >= torch.finfo(torch.float32).tiny) & torch.isfinite(largest)) & (wide != 0).any(1)
        bits[is_lost] = wide[is_lost].view(torch.int64)
    kind = hashlib.blake2b(repr((number, tuple(values.shape[1:]))).encode(), digest_size=8).digest()
    places = torch.arange(rows.shape[1], device=rows.device) + int.from_bytes(kind, "little", signed=True)
    # hash = sum_j mix(place_j) mix(bits_j) modulo 2^64
    return _mixed(bits).mul_(_mixed(places) | 1).sum(1)


def _mixed(numbers: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """Spread each number over all 64 bits, by SplitMix64's finaliser without its second half; products wrap around."""
    numbers = (numbers >> 30).bitwise_xor_(numbers).mul_(-0x40A7B892E31B1A47)
    return (numbers >> 27).bitwise_xor_(numbers)


def content_of(tensor: Tensor) -> bytes:
    """The bits of a tensor's values, row by row, of any dtype and layout.

    Examples:
        >>> content_of(torch.tensor([[97, 98], [99, 100]], dtype=torch.uint8).mT)
        b'acbd'
    """
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    if plain.is_floating_point() and plain.dtype not in (torch.float16, torch.float32, torch.float64):
        plain = plain.view(torch.int16 if plain.itemsize == 2 else torch.uint8)  # NumPy lacks these dtypes
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


def identity_of(setting: object) -> str:
    """Text that identifies a setting, the same in every process.

    Functions and classes are identified by their names, partials by their arguments too, tensors by their contents, dataclasses
    by all fields, modules by their parts and state, and other objects by their class, or their own representation, and
    attributes that are numbers, text or tensors.

    Examples:
        >>> identity_of(functools.partial(torch.optim.SGD, momentum=0.9))
        'SGD(momentum=0.9)'
    """
    if isinstance(setting, functools.partial):
        return _called(identity_of(setting.func), setting.args, setting.keywords)
    if isinstance(setting, MethodType):
        return f"{identity_of(setting.__self__)}.{setting.__name__}"
    if isinstance(setting, Tensor):
        return f"Tensor({fingerprint_of(setting)[:16]})"
    if isinstance(setting, np.ndarray) and not setting.dtype.hasobject:
        return f"array({hashlib.sha256(repr((setting.shape, setting.dtype)).encode() + setting.tobytes()).hexdigest()[:16]})"
    if isinstance(setting, set | frozenset):
        return f"{{{', '.join(sorted(map(identity_of, setting)))}}}"
    if isinstance(setting, list | tuple):
        return _called("", setting, {})
    if isinstance(setting, Mapping):
        return f"{{{', '.join(sorted(f'{identity_of(key)}: {identity_of(value)}' for key, value in setting.items()))}}}"
    if isinstance(setting, _PLAIN):
        return repr(setting)
    if hasattr(setting, "__qualname__"):
        return str(setting.__qualname__)
    if is_dataclass(setting):
        parts = {value.name: getattr(setting, value.name) for value in fields(setting)}
    else:
        shown = {name: value for name, value in getattr(setting, "__dict__", {}).items() if not name.startswith("_")}
        parts = {name: value for name, value in shown.items() if isinstance(value, (*_PLAIN, Tensor)) and name != "training"}
    if isinstance(setting, nn.Module):
        parts |= {name: value for name, value in setting.state_dict().items() if "." not in name}
        parts |= dict(setting.named_children())
    elif not is_dataclass(setting) and type(setting).__repr__ is not object.__repr__:
        return _called(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(setting)), (), parts)  # paths, ranges, other number types
    return _called(type(setting).__qualname__, (), parts)


def _called(name: str, args: Sequence[object], settings: Mapping[str, object]) -> str:
    """The text of a call."""
    named = [f"{key}={identity_of(value)}" for key, value in sorted(settings.items())]
    return f"{name}({', '.join([*map(identity_of, args), *named])})"
