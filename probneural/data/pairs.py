"""Pairs that are read on access, from files or from arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural.arrays.plausibility import check_plausible, rows_to_check, warn_of_fill_values
from probneural.arrays.reading import Mask
from probneural.checks import check_instance
from probneural.data.fields import FUNCTION, Part, StoredFields, common_dtype, stored, with_mask
from probneural.data.readers import location_of
from probneural.errors import ProbneuralError
from probneural.fields import Field, select_rows
from probneural.fingerprints import fingerprint_of_parts
from probneural.grids import Grid
from probneural.pairs import Paired, Rows, divided_rows, evenly_spread_rows, select_groups
from probneural.pairs.clocks import WindowClock, is_time, series_clock

_SAMPLE = 64
"""Pairs whose contents make the fingerprint; of so few, it is that of the same pairs in memory."""


@dataclass(frozen=True, eq=False, repr=False)
class StoredPairs(Paired):
    """n pairs of samples, read from files a few at a time: a [`Dataset`][probneural.pairs.Dataset].

    Values are checked where they are read. `fit`, heads, calibrators and scores take it as they take `FieldPairs`, and compute
    the same bits from it.

    Args:
        inputs: Input samples.
        outputs: Output samples.
        groups: Trajectory of each pair, `(n,)`; a random `split` never divides one. None if pairs are independent.
        clock: Times of the states in each pair; None if pairs have no times.

    Raises:
        ShapeError: If the two sides, or the clock's rows, are not equally many.
    """

    inputs: StoredFields
    outputs: StoredFields
    _: KW_ONLY
    groups: Int64[Tensor, " n"] | None = None
    clock: WindowClock | None = None
    constructor: ClassVar[str] = "pn.data.StoredPairs"

    def __post_init__(self) -> None:
        """Check that the sides are equally many."""
        for side, name in ((self.inputs, "inputs"), (self.outputs, "outputs")):
            check_instance(side, StoredFields, name, remedy="open a file: pn.data.open(path)")
        super().__post_init__()

    def subset(self, index: Rows) -> StoredPairs:
        """Choose some pairs without reading them, in the order of the index."""
        rows = select_rows(index, len(self))
        clock = None if self.clock is None else self.clock[index]
        groups = select_groups(self.groups, index)
        return StoredPairs(self.inputs.subset(rows), self.outputs.subset(rows), groups=groups, clock=clock)

    def split(
        self, count: int, *, seed: int | None = None, by: str = "random", embargo: int = 0
    ) -> tuple[StoredPairs, StoredPairs]:
        """Split into `count` pairs and the rest, without reading them; see `FieldPairs.split`.

        Args:
            count: Number of pairs of the first part; approximate for groups and blocks, which are not split.
            seed: Names the split.
            by: "random", "time" (the first part is the earlier one), "blocks" (of neighbouring times), or the name of a
                coordinate along the file's axis of samples, whose values stay whole.
            embargo: Number of time steps between the two parts; pairs within are omitted.

        Raises:
            ArgumentError: If either part would be empty, the coordinate does not exist, the pairs have no times to split by, or
                the seed is missing.
        """
        names = self._coordinates if by not in ("random", "time", "blocks") else {}
        first, second = divided_rows(self, count, seed=seed, by=by, embargo=embargo, coordinates=names)
        return self.subset(first), self.subset(second)

    @property
    def _coordinates(self) -> dict[str, NDArray[Any]]:
        """Coordinates of the file along its axis of samples, one value per row."""
        side, rows = self.inputs, self.inputs.places[:, FUNCTION].numpy()
        named = side.labels.coordinates.items()
        return {name: values[rows] for name, values in named if name not in side.labels.space and values.ndim == 1}

    @cached_property
    def fingerprint(self) -> str:
        """A hash of shapes, dtypes, grids, and the values of 64 pairs evenly spread, 64 hexadecimal digits."""
        rows = torch.arange(len(self), device="cpu")[evenly_spread_rows(len(self), _SAMPLE)]
        parts = [piece for side in (self.inputs, self.outputs) for piece in _pieces(side, rows)]
        if len(self) > _SAMPLE:
            parts.append(((), torch.int64, (torch.tensor(len(self), device="cpu"),)))
        return fingerprint_of_parts(parts)

    def looked_at(self, *, may_be_equal: bool = False) -> StoredPairs:
        """Itself, if some evenly spread samples are plausible, with a warning of fill values among them.

        Samples that cannot be read are left out: they are reported when they are read.
        """
        fields: dict[str, Field] = {}
        count = min(rows_to_check(len(self), side.channels, side.grid) for side in (self.inputs, self.outputs))
        rows = torch.arange(len(self), device="cpu")[evenly_spread_rows(len(self), count)].tolist() if count else []
        for name, side in (("inputs", self.inputs), ("outputs", self.outputs)):
            readable = [row for row in rows if _is_readable(side, row)]
            if len(readable) > 1:
                fields[name] = side[readable]
        warn_of_fill_values({name: field.values for name, field in fields.items()})
        samples = {name: (field.values, field.grid.unmasked) for name, field in fields.items() if not field.grid.is_masked}
        check_plausible(samples, may_be_equal=may_be_equal, summary=self.summary)
        return self

    @property
    def size_in_bytes(self) -> int:
        """Bytes that all values take when they are read."""
        return sum(
            len(side) * side.channels * side.grid.size * torch.empty((), dtype=side.dtype).element_size()
            for side in (self.inputs, self.outputs)
        )

    def to(self, target: torch.device | torch.dtype | str) -> StoredPairs:
        """The same pairs, on another device or in another dtype when they are read."""
        return replace(self, inputs=self.inputs.to(target), outputs=self.outputs.to(target))

    def detached(self) -> StoredPairs:
        """The same pairs: fields that are read have no graph."""
        return self


def _is_readable(side: StoredFields, row: int) -> bool:
    """Whether a sample can be read, its values being finite."""
    with contextlib.suppress(ProbneuralError):
        return len(side[row]) == 1
    return False


def _pieces(side: StoredFields, rows: Tensor) -> Iterator[tuple[tuple[int, ...], torch.dtype, Iterable[Tensor]]]:
    """Shape, dtype and parts of a side for its fingerprint, sample by sample."""
    shape = (len(rows), side.channels, *side.grid.shape)
    yield shape, side.dtype, (side[int(row)].values for row in rows)
    for tensor in (side.grid.points, side.grid.weights):
        yield tuple(tensor.shape), tensor.dtype, (tensor,)


def stored_pairs(
    inputs: Sequence[Part], outputs: Sequence[Part], count: int, *, grid: Grid, out_grid: Grid, dtype: torch.dtype | None = None
) -> StoredPairs:
    """Pairs of the first `count` samples of some variables, both sides of one dtype."""
    kind = dtype or common_dtype(part.variable for part in (*inputs, *outputs))
    places = torch.zeros(count, 2, dtype=torch.int64, device="cpu")
    places[:, FUNCTION] = torch.arange(count, device="cpu")
    return StoredPairs(
        stored(inputs, places, grid=grid, dtype=kind),
        stored(outputs, places, grid=out_grid, dtype=kind),
        clock=_series_clock([*inputs, *outputs], count),
    )


def _series_clock(parts: Sequence[Part], count: int) -> WindowClock | None:
    """Times of pairs along an axis of time, by its coordinate, or by position where it has none."""
    labels = parts[0].variable.labels
    if not is_time(labels.sample, labels.attributes.get(labels.sample, {})):
        return None
    times = labels.coordinates.get(labels.sample, np.arange(count))
    locations = [location_of(part.variable.reader) for part in parts]
    return series_clock(times[:count], None if None in locations else repr(locations))


def masked_pairs(pairs: StoredPairs, inputs: Mask | str, outputs: Mask | str) -> StoredPairs:
    """Pairs with masks of both sides, if some samples are plausible."""
    first, second = with_mask(pairs.inputs, inputs, partner=pairs.outputs), with_mask(pairs.outputs, outputs)
    return replace(pairs, inputs=first, outputs=second).looked_at()
