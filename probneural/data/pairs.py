"""Pairs that are read when they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Int64
from torch import Tensor

from probneural.data.fields import Part, StoredFields, stored
from probneural.data.readers import SlicedReader
from probneural.data.variables import FUNCTION, Variable
from probneural.errors import ProbneuralError, ShapeError
from probneural.fields import Field, select_rows
from probneural.fill_values import warn_of_fill_values
from probneural.fingerprints import fingerprint_of_parts
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs, Rows, evenly_spread_rows, select_groups, split_rows
from probneural.periodicity import looked_at, warn_of_jumps

_SAMPLE = 64
"""Pairs whose contents make the fingerprint; of so few, it is that of the same pairs in memory."""


@dataclass(frozen=True, eq=False, repr=False)
class StoredPairs:
    """n pairs of functions, read from files a few at a time: a [`Dataset`][probneural.pairs.Dataset].

    Values are checked where they are read. `fit`, heads, calibrators and scores take it as they take `FieldPairs`, and compute
    the same bits from it.

    Args:
        inputs: Input functions.
        outputs: Output functions, as many.
        groups: Which trajectory each pair is of, `(n,)`; `split` never divides one. None if pairs are independent.

    Raises:
        ShapeError: If the two sides are not equally many.
    """

    inputs: StoredFields
    outputs: StoredFields
    _: KW_ONLY
    groups: Int64[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        """Check that the sides are equally many."""
        if len(self.inputs) != len(self.outputs):
            raise ShapeError(
                expected="as many output functions as input functions",
                got=f"{len(self.inputs)} inputs and {len(self.outputs)} outputs",
                remedy="pair them one to one",
            )

    def with_missing(self, *, inputs: bool = True, outputs: bool = True) -> StoredPairs:
        """The same pairs, of whose inputs or outputs NaN is a missing value: what is read has a mask per sample."""
        return replace(
            self,
            inputs=self.inputs.with_missing() if inputs else self.inputs,
            outputs=self.outputs.with_missing() if outputs else self.outputs,
        )

    def subset(self, index: Rows) -> StoredPairs:
        """Choose some pairs without reading them, in the order of the index."""
        rows = select_rows(index, len(self))
        return StoredPairs(self.inputs.subset(rows), self.outputs.subset(rows), groups=select_groups(self.groups, index))

    def split(self, count: int, *, seed: int) -> tuple[StoredPairs, StoredPairs]:
        """Split at random into `count` pairs and the rest, without reading them.

        Windows of one trajectory stay together, so the first part may have more than `count`, see
        [`split_rows`][probneural.pairs.split_rows].

        Raises:
            ArgumentError: If either part would be empty.
        """
        first, second = split_rows(len(self), count, seed=seed, groups=self.groups)
        return self.subset(first), self.subset(second)

    @cached_property
    def fingerprint(self) -> str:
        """A hash of shapes, dtypes, grids, and the values of 64 pairs evenly spread, 64 hexadecimal digits."""
        rows = torch.arange(len(self), device="cpu")[evenly_spread_rows(len(self), _SAMPLE)]
        parts = [piece for side in (self.inputs, self.outputs) for piece in _pieces(side, rows)]
        if len(self) > _SAMPLE:
            parts.append(((), torch.int64, (torch.tensor(len(self), device="cpu"),)))
        return fingerprint_of_parts(parts)

    def looked_at(self) -> StoredPairs:
        """Itself, with a warning of fill values in the first functions, and if these do not look periodic where that is said.

        Functions that cannot be read are left out: they are reported when they are read.
        """
        read = {}
        for name, side in {"inputs": self.inputs, "outputs": self.outputs}.items():
            rows = looked_at(len(self), side.channels, side.grid)
            with contextlib.suppress(ProbneuralError):
                if rows:
                    read[name] = (side[:rows].values, side.grid)
        warn_of_fill_values({name: values for name, (values, _) in read.items()})
        warn_of_jumps(read)
        return self

    @property
    def size_in_bytes(self) -> int:
        """Bytes that all values take when they are read."""
        return sum(
            len(side) * side.channels * side.grid.size * torch.empty((), dtype=side.dtype).element_size()
            for side in (self.inputs, self.outputs)
        )

    def in_memory(self) -> Dataset:
        """Read all values at once: the same pairs, which know their trajectories as before."""
        pairs = self[:]
        if self.groups is None:
            return pairs
        return StoredPairs(_held(pairs.inputs, self.inputs), _held(pairs.outputs, self.outputs), groups=self.groups)

    def to(self, target: torch.device | torch.dtype | str) -> StoredPairs:
        """The same pairs, on another device or in another dtype when they are read."""
        return replace(self, inputs=self.inputs.to(target), outputs=self.outputs.to(target))

    def detached(self) -> StoredPairs:
        """The same pairs: what is read has no graph."""
        return self

    def __len__(self) -> int:
        """Number of pairs n."""
        return len(self.inputs)

    def __getitem__(self, index: Rows) -> FieldPairs:
        """Read some pairs into memory, in the order of the index."""
        return FieldPairs(self.inputs[index], self.outputs[index], groups=select_groups(self.groups, index))

    def __repr__(self) -> str:
        """A short description."""
        return f"StoredPairs({self.inputs!r} -> {self.outputs!r})"


def _held(values: Field, side: StoredFields) -> StoredFields:
    """What was read of a side, as a source of its own, NaN where values are missing."""
    reader = SlicedReader(values.grid.fill(values.values, float("nan")).cpu().numpy())
    variable = Variable(
        name=side.parts[0].variable.name,
        reader=reader,
        leading=(FUNCTION,),
        channel_axes=(0,),
        grid_shape=side.grid.shape,
        labels=side.labels,
    )
    places = torch.zeros(len(values), 2, dtype=torch.int64, device="cpu")
    places[:, FUNCTION] = torch.arange(len(values), device="cpu")
    return replace(stored([Part(variable=variable)], places, grid=side.grid, dtype=side.dtype), device=side.device)


def _pieces(side: StoredFields, rows: Tensor) -> Iterator[tuple[tuple[int, ...], torch.dtype, Iterable[Tensor]]]:
    """What a fingerprint of functions is made of, a function at a time."""
    shape = (len(rows), side.channels, *side.grid.shape)
    yield shape, side.dtype, (side[int(row)].values for row in rows)
    for tensor in (side.grid.points, side.grid.weights):
        yield tuple(tensor.shape), tensor.dtype, (tensor,)


def stored_pairs(
    inputs: Sequence[Part],
    outputs: Sequence[Part],
    count: int,
    *,
    grid: Grid,
    out_grid: Grid,
    dtype: torch.dtype | None = None,
) -> StoredPairs:
    """Pairs of the first `count` functions of some variables, both sides of one dtype."""
    is_double = any(part.variable.dtype == torch.float64 for part in (*inputs, *outputs))
    kind = dtype or (torch.float64 if is_double else torch.float32)
    places = torch.zeros(count, 2, dtype=torch.int64, device="cpu")
    places[:, FUNCTION] = torch.arange(count, device="cpu")
    return StoredPairs(
        stored(inputs, places, grid=grid, dtype=kind),
        stored(outputs, places, grid=out_grid, dtype=kind),
    )
