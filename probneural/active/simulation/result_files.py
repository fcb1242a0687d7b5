"""Files of simulation results: one safetensors file per result, written atomically, without pickle."""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import Tensor

from probneural.active.simulation.store_files import FAILURES, RESULTS, SUFFIX, DamagedError, check_readable, locked, path_of
from probneural.checks import check_count, check_finite
from probneural.errors import DataError, GridError, ProbneuralError
from probneural.fields import Field
from probneural.grids import Grid, check_unmasked
from probneural.training import files, schema

_LATEST = 253402300800.0
"""The year 10000, in seconds since 1970."""


class _Uniform(TypedDict):
    """A uniform grid."""

    kind: Literal["uniform"]
    shape: list[int]
    lengths: list[float]
    periodic: list[bool]
    endpoint: list[bool]
    origin: list[float]


class _OnSphere(_Uniform):
    """A uniform grid with axes of latitudes."""

    latitudes: list[list[float] | None]


class _Scattered(TypedDict):
    """A grid whose points and weights are tensors of the file."""

    kind: Literal["scattered"]


class _Record(TypedDict):
    """Metadata of a result or a failed attempt."""

    key: str
    grids: dict[str, _OnSphere | _Uniform | _Scattered]
    seconds: float
    when: float


class _Result(_Record):
    """Metadata of a result."""

    kind: Literal["result"]


class _Failure(_Record):
    """Metadata of a failed attempt."""

    kind: Literal["failure"]
    reason: str
    attempt: int


def function_key(inputs: Field) -> str:
    """Return the key of one input function: a digest of its values, dtype and grid.

    Args:
        inputs: One function, `(1, c, *grid)`.

    Returns:
        40 hexadecimal digits; equal functions have equal keys on every machine (-0.0 equals 0.0).

    Raises:
        DataError: If `inputs` is not one finite function.

    Examples:
        >>> import torch
        >>> field = Field(torch.zeros(2, 1, 8), Grid.uniform((8,)))
        >>> function_key(field[0]) == function_key(field[1]), function_key(field[0]) == function_key(field[0].to(torch.float64))
        (True, False)
    """
    if not isinstance(inputs, Field) or len(inputs) != 1:
        raise DataError(expected="a Field of one function", got=repr(inputs), remedy="pass inputs[i]")
    check_finite(inputs.values, "input functions")
    described, tensors = describe_grid(inputs.grid)
    head = [str(inputs.dtype), list(inputs.values.shape), described]
    total = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    for tensor in (inputs.values, *(tensors[name] for name in sorted(tensors))):
        plain = tensor.detach().to("cpu").contiguous() + 0.0  # -0.0 becomes 0.0
        total.update(plain.numpy().tobytes())
    return total.hexdigest()[:40]


def describe_grid(grid: Grid) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Split a grid into JSON values and tensors; `rebuild_grid` is the inverse."""
    check_unmasked(grid, "results of simulations")
    if not grid.is_uniform:
        return {"kind": "scattered"}, {"points": grid.points, "weights": grid.weights}
    axes = grid.axes
    return {
        "kind": "uniform",
        "shape": list(grid.shape),
        "lengths": [axis.length + 0.0 for axis in axes],
        "periodic": [axis.periodic for axis in axes],
        "endpoint": [axis.endpoint for axis in axes],
        "origin": [axis.origin + 0.0 for axis in axes],
        **({"latitudes": [axis.latitudes for axis in axes]} if any(axis.latitudes for axis in axes) else {}),
    }, {}


def rebuild_grid(described: dict[str, Any], tensors: dict[str, Tensor]) -> Grid:
    """Return the grid of a description by `describe_grid`.

    Raises:
        GridError: If this version does not support the kind of grid.
    """
    if described.get("kind") == "scattered":
        return Grid.scattered(tensors["points"], tensors["weights"])
    if described.get("kind") != "uniform":
        raise GridError(expected="a uniform or scattered grid", got=str(described.get("kind")), remedy="upgrade the package")
    grid = Grid.uniform(
        described["shape"],
        lengths=[float(length) for length in described["lengths"]],
        periodic=described["periodic"],
        endpoint=described["endpoint"],
        origin=[float(origin) for origin in described["origin"]],
    )
    if "latitudes" not in described:
        return grid
    ends = described["latitudes"]
    check_count(len(ends), grid.dimension, "ends of latitudes, of each axis", remedy="restore the file", error=GridError)
    latitudes = (None if pair is None else tuple(map(float, pair)) for pair in ends)
    return Grid.of_axes([replace(axis, latitudes=pair) for axis, pair in zip(grid.axes, latitudes, strict=True)])


def write_result(folder: Path, inputs: Field, outputs: Field, *, seconds: float) -> str:
    """Write one result durably and return its key; an existing result is not changed.

    Args:
        folder: Folder of the store.
        inputs: One function, `(1, c, *grid)`.
        outputs: Result of the simulation, `(1, c', *grid')`.
        seconds: Duration of the simulation.

    Raises:
        DataError: If either is not one finite function.
        FileError: If the folder cannot be written to.
    """
    key = function_key(inputs)
    check_result(outputs)
    with locked(folder, f"write-{key}"):
        path = path_of(folder, RESULTS, f"{key}{SUFFIX}")
        if not path.exists():
            tensors, about = _packed("result", key=key, seconds=seconds, inputs=inputs, outputs=outputs)
            files.write(path, tensors, metadata=about)
    return key


def plain_text(text: str) -> str:
    """Escape lone surrogates of undecodable file names, which terminals cannot print."""
    return text.encode("utf-8", "backslashreplace").decode()


def write_failure(folder: Path, inputs: Field, *, reason: str, seconds: float) -> str:
    """Write one failed attempt with its input function durably, and return its key.

    Raises:
        FileError: If the folder cannot be written to.
    """
    key = function_key(inputs)
    with locked(folder, f"write-{key}"):
        attempt = 1
        while (path := path_of(folder, FAILURES, f"{key}-{attempt}{SUFFIX}")).exists():
            attempt += 1
        tensors, about = _packed("failure", key=key, seconds=seconds, inputs=inputs)
        files.write(path, tensors, metadata=about | {"reason": plain_text(reason), "attempt": attempt})
    return key


def read_record(path: Path) -> tuple[dict[str, Any], dict[str, Field]]:
    """Read a result or a failure: its metadata, and its functions by name ("inputs", "outputs").

    Raises:
        DamagedError: If the file is damaged, does not match its name, or is no regular file.
        OSError: If the file cannot be read at present.
    """
    check_readable(path)
    is_result = path.parent.name == RESULTS
    try:
        tensors, about = files.read(path)
        schema.check(about, _Result if is_result else _Failure, where=f"a {'result' if is_result else 'failure'}")
        schema.check_names(about["grids"], ["inputs", "outputs"] if is_result else ["inputs"], where="the grids")
        about |= {name: float(about[name]) for name in ("seconds", "when")}
        fields = {}
        for name, described in about["grids"].items():
            names = [name, f"{name}.points", f"{name}.weights"] if described["kind"] == "scattered" else [name]
            parts = {part: tensors.pop(part) for part in names if part in tensors}
            schema.check_names(parts, names, where=f"the tensors of {name}")
            fields[name] = Field(parts.pop(name), rebuild_grid(described, {key.split(".")[1]: parts[key] for key in parts}))
        schema.check_names(tensors, [], where="no other tensors")
        key = function_key(fields["inputs"])
        expected = f"{key}{SUFFIX}" if is_result else f"{key}-{about['attempt']}{SUFFIX}"
        if path.name != expected or about["key"] != key:
            raise DataError(expected=f"a file named {expected}", got=path.name, remedy="do not rename files")
        if not 0.0 <= about["when"] < _LATEST:
            raise DataError(expected="a time before the year 10000", got=str(about["when"]), remedy="use seconds since 1970")
        if not 0.0 <= about["seconds"] < math.inf:
            raise DataError(expected="finite seconds >= 0", got=repr(about["seconds"]), remedy="write the file again")
        if is_result:
            check_result(fields["outputs"])
    except ProbneuralError as error:
        raise DamagedError(expected=f"a usable {path.name}", got=str(error), remedy="simulate that function again") from error
    return about, fields


def check_result(outputs: object) -> None:
    """Raise a DataError unless a simulator's result is one finite function."""
    if not isinstance(outputs, Field) or len(outputs) != 1:
        raise DataError(
            expected="one output function as a Field (1, c, *grid)",
            got=repr(outputs) if isinstance(outputs, Field) else str(type(outputs)),
            remedy="use a simulator that maps a Field of one function to a Field of one function",
        )
    check_finite(outputs.values, "output functions")


def _packed(kind: str, *, key: str, seconds: float, **fields: Field) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    grids = {}
    for name, field in fields.items():
        grids[name], parts = describe_grid(field.grid)
        tensors[name] = field.values
        tensors |= {f"{name}.{part}": tensor for part, tensor in parts.items()}
    return tensors, {"kind": kind, "key": key, "grids": grids, "seconds": seconds, "when": time.time()}
