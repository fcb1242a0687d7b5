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

from probneural.arrays.layouts import layouts_of
from probneural.arrays.plausibility import check_plausible, rows_to_check, warn_of_fill_values
from probneural.arrays.reading import Mask, array_layout, check_dtype, check_grid_alone, check_samples
from probneural.checks import check_instance
from probneural.data.fields import Part, StoredFields, stored, with_mask
from probneural.data.readers import location_of, reader_of
from probneural.data.variables import FUNCTION, Variable, common_dtype, variable_of
from probneural.errors import ArgumentError, ProbneuralError, ShapeError
from probneural.fields import Field, select_rows
from probneural.fingerprints import fingerprint_of_parts
from probneural.grids import Grid, check_grid
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


def from_arrays(
    inputs: Any,
    outputs: Any,
    *,
    axes: str | None = None,
    grid: Grid | None = None,
    out_grid: Grid | None = None,
    periodic: bool | Sequence[bool] | None = None,
    dtype: torch.dtype | None = None,
    mask: Mask | tuple[Mask, Mask] = None,
) -> StoredPairs:
    """Make a data set of arrays `(n, c, *grid)` of any kind that can be sliced, read a few samples at a time.

    A memory map of a file, `np.load(path, mmap_mode="r")`, is read by positions in the file, so that memory in use stays small.

    Args:
        inputs: A NumPy array or memory map, a tensor, a `h5py.Dataset`, a zarr array; real, in physical units.
        outputs: Outputs, likewise.
        axes: Roles of the axes, for example `"n x y c"`: see [`open`][probneural.data.open]. By default `(n, c, *grid)`, or
            `(n, *grid)` where `grid` or the entries of `periodic` state the number of axes of space.
        grid: Grid of the inputs, and of the outputs without `out_grid`; or `periodic` for the unit cube.
        out_grid: Grid of the outputs.
        periodic: Whether each axis is periodic, one entry per axis or one for all.
        dtype: float32 or float64; by default float64 if either array is of it, else float32.
        mask: Mask of missing values: True for those that are NaN, sample by sample; or bool `(*grid,)` in the
            array's order of axes, True at points that are missing in all samples, land for example. A tuple of two where inputs
            and outputs differ.

    Returns:
        The data set. Values are checked where they are read.

    Raises:
        DataError: If an argument is not an array of real numbers.
        ShapeError: If a shape does not fit or is ambiguous, or the numbers of samples differ.
        ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.

    Examples:
        >>> import numpy as np
        >>> data = from_arrays(np.zeros((10, 1, 8)), np.zeros((10, 2, 8)), axes="n c x", periodic=True)
        >>> len(data), data.outputs.channels, data[2:4].outputs.values.shape
        (10, 2, torch.Size([2, 2, 8]))
    """
    check_grid_alone(grid, periodic)
    check_dtype(dtype)
    sides: list[tuple[Variable, Grid]] = []
    stated = layouts_of(axes)
    for array, where, layout, name in (
        (outputs, grid if out_grid is None else out_grid, stated[1], "outputs"),
        (inputs, grid, stated[0], "inputs"),
    ):
        reader = reader_of(array, name)
        if where is not None:
            check_grid(where)
        roles, own_grid = array_layout(reader.shape, name, stated=layout, grid=where, periodic=periodic)
        check_samples(roles, name)
        side_grid = own_grid or (sides[0][1] if sides else None)
        if side_grid is None:
            raise ArgumentError(
                expected="an axis of space of outputs", got=f'axes="{roles}"', remedy='name it: axes="n c -> n x"'
            )
        sides.append((variable_of(reader, roles, side_grid, name), side_grid))
    (second, to_grid), (first, in_grid) = sides
    counts = [variable.count(FUNCTION) or 0 for variable in (first, second)]
    if counts[0] != counts[1]:
        raise ShapeError(
            expected="as many outputs as inputs", got=f"{counts[0]} and {counts[1]}", remedy="pair them one to one"
        )
    parts = [Part(variable=first)], [Part(variable=second)]
    pairs = stored_pairs(*parts, counts[0], grid=in_grid, out_grid=to_grid, dtype=dtype)
    masks = mask if isinstance(mask, tuple) else (mask, mask)
    inputs, outputs = with_mask(pairs.inputs, masks[0], partner=pairs.outputs), with_mask(pairs.outputs, masks[1])
    masked = replace(pairs, inputs=inputs, outputs=outputs)
    return masked.looked_at()
