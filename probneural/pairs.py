"""Data sets of pairs of fields: what they all are, and those in memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from probneural.arrays import check_grid_alone, common_dtype, read_numpy, read_xarray, to_array, to_tensor
from probneural.checks import check_finite, check_instance, check_integer, described
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.extras import optional
from probneural.fields import Field, check_field, check_parts, select_rows
from probneural.fingerprints import fingerprint_of
from probneural.grids import Grid, check_grid
from probneural.periodicity import looked_at, warn_of_jumps
from probneural.randomness import stream

if TYPE_CHECKING:
    import xarray

Rows = int | slice | Tensor | Sequence[int]
"""Which functions: one number, a slice, integers, or truth values; negative numbers count from the end."""


@runtime_checkable
class FieldSource(Protocol):
    """n functions on one grid that are read a few at a time: a `Field` in memory, or one side of a data set on disk."""

    @property
    def grid(self) -> Grid:
        """Where all of them live."""

    @property
    def channels(self) -> int:
        """Number of channels c."""

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64: of the fields that are read."""

    @property
    def device(self) -> torch.device:
        """Where the fields that are read are put."""

    def __len__(self) -> int:
        """Number of functions n."""

    def __getitem__(self, index: Rows, /) -> Field:
        """Read some functions, in the order of the index; one integer keeps the batch axis.

        Raises:
            DataError: If a value that is read is not finite.
        """

    def to(self, target: torch.device | torch.dtype | str, /) -> FieldSource:
        """The same functions, on another device or in another dtype when they are read."""


@runtime_checkable
class Dataset(Protocol):
    """n pairs of functions that are read a few at a time: `FieldPairs` in memory, or a lazy source of `probneural.data`.

    `fit`, heads, calibrators and `score_pairs` take any. They read rows and never ask for all at once.
    """

    @property
    def inputs(self) -> FieldSource:
        """The input functions."""

    @property
    def outputs(self) -> FieldSource:
        """The output functions, as many; their grid may differ."""

    @property
    def fingerprint(self) -> str:
        """A short name that follows from the contents, or from a fixed sample of them where they are many."""

    def __len__(self) -> int:
        """Number of pairs n."""

    def __getitem__(self, index: Rows, /) -> FieldPairs:
        """Read some pairs into memory, in the order of the index."""

    def subset(self, index: Rows, /) -> Dataset:
        """Choose some pairs without reading them, in the order of the index."""

    def split(self, count: int, *, seed: int) -> tuple[Dataset, Dataset]:
        """Split at random into `count` pairs and the rest, without reading them; in the order of `split_order`."""

    def to(self, target: torch.device | torch.dtype | str, /) -> Dataset:
        """The same pairs, on another device or in another dtype when they are read."""

    def detached(self) -> Dataset:
        """The same pairs without a graph."""


@dataclass(frozen=True, eq=False, repr=False)
class FieldPairs:
    """A data set: n input functions and the n output functions they map to.

    Args:
        inputs: Input functions.
        outputs: Output functions; their grid may differ from the inputs'.
        groups: Which trajectory each pair is of, `(n,)`, where pairs are windows of trajectories; `split` never divides one.

    Raises:
        ShapeError: If the numbers of fields differ, or there is not one group per pair.
        DataError: If a side is not a `Field`, or groups are no integers.

    Examples:
        >>> field = Field(torch.zeros(10, 1, 8), Grid.uniform((8,)))
        >>> first, second = FieldPairs(field, field).split(7, seed=0)
        >>> len(first), len(second)
        (7, 3)
    """

    inputs: Field
    outputs: Field
    _: KW_ONLY
    groups: Int64[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        """Check that the two sides are fields, equally many."""
        check_field(self.inputs, "inputs")
        check_field(self.outputs, "outputs")
        if len(self.inputs) != len(self.outputs):
            raise ShapeError(
                expected="as many output fields as input fields",
                got=f"{len(self.inputs)} inputs and {len(self.outputs)} outputs",
                remedy="pair them one to one",
            )
        if self.groups is not None:
            _check_groups(self.groups, len(self.inputs))

    @classmethod
    def cat(cls, parts: Sequence[FieldPairs]) -> FieldPairs:
        """Put data sets one after the other.

        Args:
            parts: Pairs whose inputs, and whose outputs, have one grid, channels, dtype and device; at least one.

        Returns:
            All their pairs, in order; trajectories of two data sets are different ones.

        Raises:
            DataError: If there is none, one is not a `FieldPairs`, or dtypes or devices differ.
            GridError: If the grids differ.
            ShapeError: If the numbers of channels differ.

        Examples:
            >>> field = Field(torch.zeros(3, 1, 8), Grid.uniform((8,)))
            >>> pairs = FieldPairs(field, field)
            >>> len(FieldPairs.cat([pairs, pairs[:2]]))
            5
        """
        pairs = check_parts(parts, cls)
        inputs, outputs = Field.cat([part.inputs for part in pairs]), Field.cat([part.outputs for part in pairs])
        return cls(inputs, outputs, groups=_joined_groups(pairs))

    @classmethod
    def from_numpy(
        cls,
        inputs: NDArray[Any],
        outputs: NDArray[Any],
        *,
        grid: Grid | None = None,
        out_grid: Grid | None = None,
        lengths: float | Sequence[float] | None = None,
        periodic: bool | Sequence[bool] | None = None,
        endpoint: bool | Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
    ) -> FieldPairs:
        """Make pairs of arrays.

        The number of grid axes d is the grid's, or the number of entries in `periodic`, `lengths` or `endpoint`. An array of
        d + 1 axes is `(n, *grid)`, one channel; one of d + 2 axes is `(n, c, *grid)`. Where single numbers leave d open, only
        `(n, points)` is accepted.

        Args:
            inputs: Input functions, real and finite, in physical units; integers become floating point numbers.
            outputs: Output functions, likewise.
            grid: Where the inputs live, and the outputs unless `out_grid` says otherwise. In its place, the next three.
            out_grid: Where the outputs live.
            lengths: Extent per axis, 1 by default.
            periodic: Whether each axis is periodic.
            endpoint: Whether the right end is a point; by default exactly on the axes that are not periodic.
            dtype: float32 or float64; by default float64 if either array is of it, else float32.

        Returns:
            Copies of the values, on the CPU. Without `grid`, outputs of another resolution share the inputs' domain.

        Raises:
            DataError: If values are complex, wider than 64 bits, no numbers, masked, NaN or infinite.
            ShapeError: If a shape does not fit or is ambiguous, or the numbers of functions differ.
            ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.
            GridError: If `grid` or `out_grid` is no Grid.

        Examples:
            >>> import numpy as np
            >>> pairs = FieldPairs.from_numpy(np.zeros((10, 8)), np.zeros((10, 2, 8)), grid=Grid.uniform(8))
            >>> pairs.inputs.channels, pairs.outputs.channels
            (1, 2)
        """
        options: dict[str, Any] = {"lengths": lengths, "periodic": periodic, "endpoint": endpoint}
        check_grid_alone(grid, **options)
        kind = common_dtype(inputs, outputs) if dtype is None else dtype
        for where, name in ((grid, "grid"), (out_grid, "out_grid")):
            if where is not None:
                check_grid(where, name)
        first = read_numpy(inputs, "inputs", grid=grid, option="grid", **options, dtype=kind)
        second = read_numpy(outputs, "outputs", grid=out_grid or grid, option="out_grid", **options, dtype=kind)
        return cls(Field(*first), Field(*second))._looked_at()

    @classmethod
    def from_xarray(
        cls,
        inputs: xarray.DataArray | xarray.Dataset,
        outputs: xarray.DataArray | xarray.Dataset | None = None,
        *,
        periodic: bool | Sequence[bool] | None = None,
        lengths: float | Sequence[float] | None = None,
        sample: str = "sample",
        channel: str | None = None,
        dtype: torch.dtype | None = None,
    ) -> FieldPairs:
        """Make pairs of DataArrays, whose coordinates give the grid.

        Dimensions other than `sample` and `channel` are space, in the array's order. Their coordinates must be ascending and
        equispaced within 1e-4 of the spacing, checked in float64. A periodic axis extends one spacing beyond its last point;
        another one ends there, unless `lengths` says that it, too, extends further.

        Args:
            inputs: Input functions: a DataArray, or a Dataset whose variables are the channels. Without `outputs`, a Dataset
                with the variables "inputs" and "outputs", as `to_xarray` makes. A coordinate "groups" of whole numbers says
                which pairs belong together.
            outputs: Output functions, likewise; matched to the inputs by position.
            periodic: Whether each dimension of space is periodic: coordinates cannot tell. `to_xarray` records it.
            lengths: Extent of each dimension of space, in the coordinates' units.
            sample: The dimension of the n functions.
            channel: The dimension of the channels, if there is one; "channel" by default.
            dtype: float32 or float64; by default float64 if either side is of it, else float32.

        Returns:
            Copies of the values, on the CPU.

        Raises:
            DataError: If values are not real, finite numbers, groups are no whole ones, or a side is of another type.
            ShapeError: If a dimension is missing, or the numbers of functions differ.
            GridError: If coordinates are missing, descending, not equispaced, or contradict `lengths`.
            ArgumentError: If `periodic` is missing or does not fit, or `dtype` is another one.
        """
        if outputs is None:
            names = {str(name) for name in getattr(inputs, "data_vars", ())}
            if not {"inputs", "outputs"} <= names:
                raise DataError(
                    expected="a Dataset with variables 'inputs' and 'outputs', or two arguments",
                    got=f"{type(inputs).__name__} with {sorted(names)}",
                    remedy="name the variables: pn.FieldPairs.from_xarray(dataset['a'], dataset['u'], periodic=...)",
                )
            inputs, outputs = inputs["inputs"], inputs["outputs"]
        options: dict[str, Any] = {"sample": sample, "channel": channel, "periodic": periodic, "lengths": lengths}
        first, grid = read_xarray(inputs, "inputs", **options)
        second, out_grid = read_xarray(outputs, "outputs", **options)
        kind = common_dtype(first, second) if dtype is None else dtype
        return cls(
            Field(to_tensor(first, "inputs", dtype=kind), grid),
            Field(to_tensor(second, "outputs", dtype=kind), out_grid),
            groups=_read_groups(inputs),
        )._looked_at()

    def _looked_at(self) -> FieldPairs:
        """Itself, with a warning to who has made it if it does not look periodic where that is said."""
        sides = {"inputs": self.inputs, "outputs": self.outputs}
        rows = {name: looked_at(len(self), side.channels, side.grid) for name, side in sides.items()}
        some = {name: (side.values[: rows[name]], side.grid) for name, side in sides.items() if rows[name]}
        warn_of_jumps(some)
        return self

    def to_xarray(self) -> xarray.Dataset:
        """Return a Dataset of the variables "inputs" and "outputs", which `from_xarray` reads back equal.

        Dimensions are `sample`, `channel` and `x0`, `x1`, ...; where the sides differ, the outputs' begin with `output_`.
        Groups are a coordinate of the samples.

        Raises:
            GridError: If a grid is scattered.
        """
        optional("xarray", "to_xarray", extra="xarray")
        import xarray

        space = [f"x{number}" for number in range(len(self.inputs.grid.shape))]
        out = [f"x{number}" for number in range(len(self.outputs.grid.shape))]
        out = out if self.inputs.grid == self.outputs.grid else [f"output_{name}" for name in out]
        channel = "channel" if self.inputs.channels == self.outputs.channels else "output_channel"
        return xarray.Dataset(
            {
                "inputs": to_array(self.inputs.values, self.inputs.grid, sample="sample", channel="channel", space=space),
                "outputs": to_array(self.outputs.values, self.outputs.grid, sample="sample", channel=channel, space=out),
            },
            coords={} if self.groups is None else {"groups": ("sample", self.groups.numpy())},
        )

    def split(self, count: int, *, seed: int) -> tuple[FieldPairs, FieldPairs]:
        """Split at random into `count` pairs and the rest.

        Pairs of one group stay together, so with groups the first part may have more than `count`, see
        [`split_rows`][probneural.pairs.split_rows].

        Raises:
            ArgumentError: If either part would be empty.
        """
        first, second = split_rows(len(self), count, seed=seed, groups=self.groups)
        return self[first], self[second]

    @cached_property
    def fingerprint(self) -> str:
        """A content hash of values and grids, 64 hexadecimal digits."""
        return fingerprint_of(
            *(tensor for side in (self.inputs, self.outputs) for tensor in (side.values, side.grid.points, side.grid.weights))
        )

    def subset(self, index: Rows) -> FieldPairs:
        """Select pairs: in memory, what `pairs[index]` does."""
        return self[index]

    def detached(self) -> FieldPairs:
        """Return the pairs without their graph, as tensors that autograd takes."""
        return replace(self, inputs=self.inputs.detached(), outputs=self.outputs.detached())

    def to(self, target: torch.device | torch.dtype | str) -> FieldPairs:
        """Return the pairs on another device or in another dtype."""
        return replace(self, inputs=self.inputs.to(target), outputs=self.outputs.to(target))

    def __len__(self) -> int:
        """Number of pairs n."""
        return len(self.inputs)

    def __getitem__(self, index: Rows) -> FieldPairs:
        """Select pairs, as in `Field`."""
        return FieldPairs(self.inputs[index], self.outputs[index], groups=select_groups(self.groups, index))

    def __repr__(self) -> str:
        """A short description."""
        return f"FieldPairs({self.inputs!r} -> {self.outputs!r})"


def check_pairs(pairs: object, name: str = "training", *, least: int = 1) -> FieldPairs:
    """Return finite pairs in memory, so many at least, or raise a DataError."""
    checked = check_instance(pairs, FieldPairs, f"{name} data", remedy="pair them: pn.FieldPairs(inputs, outputs)")
    check_dataset(checked, name, least=least)
    return checked


def check_dataset(data: object, name: str = "training", *, least: int = 1) -> Dataset:
    """Return a data set of so many pairs at least, or raise a DataError; values in memory must be finite.

    Lazy sources look at their values when they are read.
    """
    if isinstance(data, list | tuple) and data and all(map(_is_dataset, data)):
        raise DataError(
            expected=f"one Dataset as {name} data, whose functions have one grid",
            got=f"a {type(data).__name__} of {len(data)}, which only pn.fit takes",
            remedy="give the one on the grid that you predict on; sets of one grid become one by pn.FieldPairs.cat",
        )
    if not _is_dataset(data):
        raise DataError(
            expected=f"a Dataset as {name} data", got=described(data), remedy="pair them: pn.FieldPairs(inputs, outputs)"
        )
    checked = cast(Dataset, data)
    if len(checked) < least:
        raise DataError(expected=f"{least} or more {name} pairs", got=str(len(checked)), remedy="give more data")
    if isinstance(checked, FieldPairs):
        check_finite(checked.inputs.values, f"{name} inputs")
        check_finite(checked.outputs.values, f"{name} outputs")
    return checked


def _is_dataset(data: object) -> bool:
    """Whether it has all members of the protocol; up to Python 3.11, `isinstance` evaluates them, and a fingerprint reads."""
    members = (name for name in vars(Dataset) if not name.startswith("_") or name in ("__len__", "__getitem__"))
    missing = object()
    has_all = all(inspect.getattr_static(data, name, missing) is not missing for name in members)
    return has_all and not isinstance(data, type)


def batches(data: Dataset, size: int) -> Iterator[FieldPairs]:
    """Read a data set from its first pair to its last, `size` pairs at a time.

    Examples:
        >>> field = Field(torch.zeros(10, 1, 8), Grid.uniform((8,)))
        >>> [len(batch) for batch in batches(FieldPairs(field, field), 4)]
        [4, 4, 2]
    """
    for start in range(0, len(data), size):
        yield data[start : min(start + size, len(data))]


def split_order(count: int, *, seed: int) -> Tensor:
    """The random order in which `split` deals out so many things: what comes first is the first part.

    Examples:
        >>> sorted(split_order(4, seed=0).tolist())
        [0, 1, 2, 3]
    """
    return torch.randperm(count, generator=stream(seed, "split"), device="cpu")


def split_rows(
    total: int, count: int, *, seed: int, groups: Int64[Tensor, " n"] | None = None
) -> tuple[Int64[Tensor, " _"], Int64[Tensor, " _"]]:
    """Which of so many things go to the first part of a random split, and which to the second.

    Windows of one trajectory resemble each other, so with groups all of one go to one side: the first part then has as many
    whole groups as it takes to hold `count` things, and so more than `count` where a group has several, in their own order.

    Args:
        total: Number of things.
        count: Number of them in the first part.
        seed: Names the split.
        groups: Which group each is of; None if they are independent.

    Raises:
        ArgumentError: If either part would be empty.

    Examples:
        >>> first, second = split_rows(6, 1, seed=0, groups=torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> len(first), len(second)
        (3, 3)
    """
    count = check_integer(count, "count", most=total - 1)
    if groups is None:
        order = split_order(total, seed=seed)
        return order[:count], order[count:]
    _, group, sizes = groups.unique(return_inverse=True, return_counts=True)
    order = split_order(len(sizes), seed=seed)
    taken = int((sizes[order].cumsum(0) < count).sum()) + 1
    if taken == len(sizes):
        raise ArgumentError(
            expected=f"a count that leaves a trajectory of {len(sizes)} to the second part",
            got=str(count),
            remedy="windows of a trajectory stay together: choose fewer, or give more trajectories",
        )
    is_first = torch.isin(group, order[:taken])
    return is_first.nonzero()[:, 0], (~is_first).nonzero()[:, 0]


def select_groups(groups: Int64[Tensor, " n"] | None, index: Rows) -> Int64[Tensor, " m"] | None:
    """Groups of some pairs, on the CPU, wherever the index is; None where there are none.

    Raises:
        IndexError: If a number lies outside the pairs.
        DataError: If several do, or the index is of another kind.

    Examples:
        >>> select_groups(torch.tensor([4, 4, 7]), [0, -1])
        tensor([4, 7])
    """
    if groups is None:
        return None
    rows = select_rows(index, len(groups))
    return groups[rows.to(groups.device) if isinstance(rows, Tensor) else rows]


def _check_groups(groups: object, count: int) -> None:
    """Raise unless groups are integers on the CPU, one per pair."""
    remedy = "give the number of each pair's trajectory: torch.as_tensor(numbers, dtype=torch.int64), on the CPU"
    given = check_instance(groups, Tensor, "groups", remedy=remedy)
    if given.dtype != torch.int64 or given.device.type != "cpu":
        raise DataError(expected="groups of int64 on the CPU", got=f"{given.dtype} on {given.device}", remedy=remedy)
    if tuple(given.shape) != (count,):
        raise ShapeError(expected=f"groups of shape ({count},)", got=str(tuple(given.shape)), remedy=remedy)


def _read_groups(inputs: xarray.DataArray | xarray.Dataset) -> Int64[Tensor, " n"] | None:
    """The coordinate "groups", in whichever dtype; None where there is none."""
    if "groups" not in inputs.coords:
        return None
    values = inputs.coords["groups"].values
    numbers = values.astype("int64") if values.dtype.kind in "iu" or _are_whole(values) else None
    if numbers is None:
        raise DataError(
            expected="whole numbers in the coordinate 'groups'",
            got=f"{values.dtype} such as {values.flat[0] if values.size else 'nothing'}",
            remedy="number them: dataset.assign_coords(groups=('sample', numpy.unique(groups, return_inverse=True)[1]))",
        )
    return torch.as_tensor(numbers)


def _are_whole(values: NDArray[Any]) -> bool:
    """Whether floats are numbers that int64 holds exactly."""
    return values.dtype.kind == "f" and bool((abs(values) < 2.0**53).all()) and bool((values % 1 == 0).all())


def _joined_groups(parts: Sequence[FieldPairs]) -> Int64[Tensor, " n"] | None:
    """Groups of data sets that come one after the other; a pair without one is a group of its own."""
    if all(part.groups is None for part in parts):
        return None
    found, known = [], 0
    for part in parts:
        own = torch.arange(len(part), device="cpu") if part.groups is None else part.groups.unique(return_inverse=True)[1]
        found.append(own + known)
        known += int(own.max()) + 1 if len(own) else 0
    return torch.cat(found)


def evenly_spread_rows(count: int, most: int) -> slice | Tensor:
    """Which of `count` things to read if so many at most may be: evenly spread ones, or all as a slice.

    Examples:
        >>> evenly_spread_rows(10, 4)
        tensor([0, 2, 5, 7])
    """
    return slice(0, count) if count <= most else torch.arange(most, device="cpu") * count // most


def _collated(batch: Sequence[FieldPairs], *, collate_fn_map: object = None) -> FieldPairs:
    """Items of a batch as pairs; unlike in `FieldPairs.cat`, equal groups stay equal."""
    groups = [part.groups for part in batch if part.groups is not None]
    inputs, outputs = Field.cat([part.inputs for part in batch]), Field.cat([part.outputs for part in batch])
    return FieldPairs(inputs, outputs, groups=torch.cat(groups) if groups else None)


default_collate_fn_map[FieldPairs] = _collated  # so that torch's DataLoader takes any Dataset without a collate_fn
