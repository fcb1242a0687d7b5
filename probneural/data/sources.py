"""Sources: variables of a file before their axes have roles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probneural.arrays.layouts import CHANNEL, named_role
from probneural.data.readers import ArrayReader


@dataclass(frozen=True, kw_only=True)
class Source:
    """A variable of a file.

    Args:
        name: Its name.
        reader: The array, its axes in the file's order.
        dims: Names of the axes, "" where an axis has none; empty where none has.
        coordinates: Coordinates along named axes.
        attributes: Attributes of the variable.
        axis_attributes: Attributes of the coordinates.
        labels: Further coordinates by name: the axis that each belongs to, and its values.
    """

    name: str
    reader: ArrayReader
    dims: tuple[str, ...] = ()
    coordinates: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    axis_attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    labels: Mapping[str, tuple[str, NDArray[Any]]] = field(default_factory=dict)

    @property
    def has_names(self) -> bool:
        """Whether an axis has a name."""
        return any(self.dims)

    @property
    def axes(self) -> str:
        """Names and lengths of the axes: `(member 100, lon 64)`."""
        return described_axes(self.dims, self.reader.shape)

    def named_role(self, dim: str) -> str:
        """The role of an axis by its name or attributes: "n", "t", "c", the name of an axis of space, or ""."""
        if dim == self.attributes.get("channel_dimension"):
            return CHANNEL
        return named_role(dim, self.axis_attributes.get(dim, {}))

    def descends(self, dim: str) -> bool:
        """Whether the coordinate of an axis descends, as latitudes often do."""
        points = self.coordinates.get(dim, np.empty(0))
        return points.ndim == 1 and len(points) > 1 and points.dtype.kind in "iuf" and bool((np.diff(points) < 0).all())


def described_axes(dims: tuple[str, ...], shape: tuple[int, ...]) -> str:
    """Names and lengths of axes, lengths alone where they have no names."""
    if not any(dims):
        return str(tuple(shape))
    words = [f"{dim or '?'} {length}" for dim, length in zip(dims, shape, strict=True)]
    return f"({', '.join(words)})"
