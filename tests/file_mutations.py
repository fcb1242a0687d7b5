"""Structural changes to files: mutations of the JSON in their metadata, with the digest made again."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

NUMBERS = (0, -1, 1, 2, 3, 20_000, 10**7, 2**31, 10**12, 2**63, 10**30, 10**400, 0.0, -1.5, 0.5, 1e308)
"""Numbers that somebody may write where there was another one."""
SPECIAL = (float("nan"), float("inf"), -float("inf"))
TEXTS = ("", "x", "../../x", "/etc/passwd", "\u0000", "\ud800", "FNO", "Grid", "full", "float32", "7", "x" * 10_000)


@dataclass(frozen=True)
class Opened:
    """A file's parts: the tensors as they lie in it, the header's fields, and the JSON content."""

    tensors: Mapping[str, Tensor]
    header: Mapping[str, str]
    content: Any


def opened(path: Path) -> Opened:
    with safe_open(path, framework="pt") as stream:
        header = dict(stream.metadata())
        tensors = {name: stream.get_tensor(name).clone() for name in stream.keys()}  # noqa: SIM118 (not a mapping)
    return Opened(tensors, header, json.loads(header["content"]))


def digest(tensors: Mapping[str, Tensor], content: object) -> str:
    """What the library writes beside contents, computed anew."""
    total = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    return total.hexdigest()


def write(path: Path, found: Opened, content: object, *, text: str | None = None) -> None:
    """Write a file with other content and a digest that fits it; `text` says how the content is written."""
    try:
        stamp = digest(found.tensors, content)
    except RecursionError:
        stamp = "0" * 64  # nobody can compute it
    header = {**found.header, "digest": stamp, "content": json.dumps(content) if text is None else text}
    path.write_bytes(save(dict(found.tensors), metadata=header))


Place = tuple[Any, Any]
"""A container, and a key or number in it."""


def places(tree: Any) -> Iterator[Place]:
    """All nodes of a JSON tree but its root."""
    entries = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in list(entries):
        yield tree, key
        yield from places(value)


def _delete(draw: random.Random, tree: Any, at: Place) -> None:
    del at[0][at[1]]


def _rename(draw: random.Random, tree: Any, at: Place) -> None:
    names = [key for container, key in places(tree) if isinstance(container, dict)]
    name = draw.choice([*TEXTS, *names, f"{at[1]}2"])
    if isinstance(at[0], dict):
        at[0][name] = at[0].pop(at[1])
    else:
        at[0][at[1]] = name


def _retype(draw: random.Random, tree: Any, at: Place) -> None:
    others = [None, True, False, 7, 1.5, "7", [], {}, [1], ["x"], [[]], {"tensor": "x"}, {"mapping": {}}, {"kind": "Grid"}]
    others += [{"kind": "Grid", "parts": {}}, {"kind": "FNO", "configuration": {}, "prefix": "", "parameters": {}}]
    at[0][at[1]] = copy.deepcopy(draw.choice(others))


def _number(draw: random.Random, tree: Any, at: Place) -> None:
    numeric = [place for place in places(tree) if type(place[0][place[1]]) in (int, float)]
    container, key = draw.choice(numeric or [at])
    container[key] = draw.choice([*NUMBERS, *SPECIAL])


def _text(draw: random.Random, tree: Any, at: Place) -> None:
    texts = [place for place in places(tree) if isinstance(place[0][place[1]], str)]
    container, key = draw.choice(texts or [at])
    container[key] = draw.choice([*TEXTS, *(container[key] for container, key in texts)])


def _flag(draw: random.Random, tree: Any, at: Place) -> None:
    flags = [place for place in places(tree) if isinstance(place[0][place[1]], bool)]
    container, key = draw.choice(flags or [at])
    container[key] = not container[key]


def _nest(draw: random.Random, tree: Any, at: Place) -> None:
    value = at[0][at[1]]
    for _ in range(draw.choice((1, 1, 2, 50, 200, 600))):
        value = [value] if draw.random() < 0.5 else {draw.choice(("mapping", "parts", "tensor", "kind", "x")): value}
    at[0][at[1]] = value


def _duplicate(draw: random.Random, tree: Any, at: Place) -> None:
    value = copy.deepcopy(at[0][at[1]])
    if isinstance(at[0], dict):
        at[0][draw.choice((f"{at[1]}2", "x", "0"))] = value
    else:
        at[0].insert(at[1], value)


def _swap(draw: random.Random, tree: Any, at: Place) -> None:
    container, key = draw.choice(list(places(tree)))
    value, other = copy.deepcopy(at[0][at[1]]), copy.deepcopy(container[key])
    at[0][at[1]] = other
    if draw.random() < 0.5 and (key in container if isinstance(container, dict) else key < len(container)):
        container[key] = value


MUTATIONS: tuple[Callable[[random.Random, Any, Place], None], ...] = (
    *(_delete, _rename, _retype, _number, _number, _text, _flag, _nest, _duplicate, _swap),
)


def mutated(content: Any, draw: random.Random) -> tuple[str, Any]:
    """Return what was done, and the content with one change, sometimes several."""
    while True:
        tree, done = copy.deepcopy(content), []
        try:
            for _ in range(draw.choice((1, 1, 1, 2, 3))):
                mutation = draw.choice(MUTATIONS)
                mutation(draw, tree, draw.choice(list(places(tree))))
                done.append(mutation.__name__)
            if json.dumps(tree) != json.dumps(content):
                return " ".join(done), tree
        except (RecursionError, ValueError, IndexError):  # a swap put a node into itself, or there is no place left
            continue


def damaged(found: Opened, draw: random.Random) -> tuple[str, Opened]:
    """Return what was done, and a file with one tensor removed, renamed, exchanged or of another shape, dtype or value."""
    tensors = dict(found.tensors)
    owners = sorted({name.partition(".")[0] for name in tensors})
    owner = draw.choice(owners)
    name = draw.choice([name for name in tensors if name.partition(".")[0] == owner])
    value, other = tensors[name], draw.choice(list(tensors))
    nothing = torch.nan if value.is_floating_point() else draw.choice((-1, 255, 10**6))
    what = draw.choice(("remove", "rename", "add", "swap", "shape", "scalar", "empty", "flat", "wide", "dtype", "value"))
    if what in ("remove", "rename"):
        del tensors[name]
    if what in ("rename", "add"):
        tensors[f"{name}x" if what == "rename" else f"{name.rpartition('.')[0]}.{other.rpartition('.')[2]}"] = value.clone()
    elif what == "swap":
        tensors[name], tensors[other] = tensors[other].clone(), value.clone()
    elif what == "dtype":
        tensors[name] = value.to(
            draw.choice((torch.float64, torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool))
        )
    elif what == "value":
        tensors[name] = torch.full_like(value, nothing if value.dtype != torch.uint8 else 255)
    elif what != "remove":
        shape = {"shape": (3, 7), "scalar": (), "empty": (0,), "flat": (value.numel(),), "wide": (*value.shape, 1)}[what]
        tensors[name] = value.reshape(shape).clone() if what in ("flat", "wide") else torch.ones(shape, dtype=value.dtype)
    pairs = [one for one in found.content["complex"] if one in tensors and tensors[one].shape[-1:] == (2,)]
    content = {**found.content, "complex": [one for one in pairs if tensors[one].is_floating_point()]}
    dims = {one: tensor.ndim - (one in content["complex"]) for one, tensor in tensors.items()}
    content["orders"] = {one: order for one, order in found.content["orders"].items() if dims.get(one) == len(order)}
    return f"{what} {name}", Opened(tensors, found.header, content)


def repeated_key(content: Any, draw: random.Random) -> str:
    """The content as text in which one object names a key twice."""
    text = json.dumps(content)
    spots = [number for number, letter in enumerate(text) if letter == "{" and text[number + 1] == '"']
    spot = draw.choice(spots)
    end = text.index('"', spot + 2)
    return f"{text[: spot + 1]}{text[spot + 1 : end + 1]}: 0, {text[spot + 1 :]}"
