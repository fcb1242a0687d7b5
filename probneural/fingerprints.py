"""Short names that follow from contents: equal contents, equal names."""

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


def identity_of(setting: object) -> str:
    """What tells a setting from others, as text that is the same in every process.

    Functions and classes are known by their names, partials by their arguments too, tensors by their contents, dataclasses by
    all fields, modules by their parts and state, and other objects by their class, or representation where they have one of
    their own, and attributes that are numbers, text or tensors.

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
        return f"{{{', '.join(sorted(f'{identity_of(key)}: {identity_of(one)}' for key, one in setting.items()))}}}"
    if isinstance(setting, _PLAIN):
        return repr(setting)
    if hasattr(setting, "__qualname__"):
        return str(setting.__qualname__)
    if is_dataclass(setting):
        parts = {one.name: getattr(setting, one.name) for one in fields(setting)}
    else:
        shown = {name: one for name, one in getattr(setting, "__dict__", {}).items() if not name.startswith("_")}
        parts = {name: one for name, one in shown.items() if isinstance(one, (*_PLAIN, Tensor)) and name != "training"}
    if isinstance(setting, nn.Module):
        parts |= {name: one for name, one in setting.state_dict().items() if "." not in name}
        parts |= dict(setting.named_children())
    elif not is_dataclass(setting) and type(setting).__repr__ is not object.__repr__:
        return _called(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(setting)), (), parts)  # paths, ranges, numbers of other libraries
    return _called(type(setting).__qualname__, (), parts)


def _called(name: str, args: Sequence[object], settings: Mapping[str, object]) -> str:
    """A call as it is written."""
    named = [f"{key}={identity_of(one)}" for key, one in sorted(settings.items())]
    return f"{name}({', '.join([*map(identity_of, args), *named])})"
