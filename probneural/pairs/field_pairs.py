"""Data sets of pairs of fields: their protocol, and data sets in memory."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from probneural import checks
from probneural.arrays import reading
from probneural.arrays.layouts import layouts_of
from probneural.arrays.plausibility import check_plausible, jumping_axes, rows_to_check, warn_of_fill_values
from probneural.contexts import is_transformed
from probneural.errors import ArgumentError, DataError, DataWarning, ShapeError, warn
from probneural.fields import MISSING, Field, check_field, check_parts
from probneural.fingerprints import fingerprint_of
from probneural.grids import Grid, check_grid
from probneural.pairs.clocks import WindowClock, clock_coordinates, joined_clocks, named_clock, read_clock
from probneural.pairs.splits import Rows, check_clock, check_groups, divided_rows, joined_groups, select_groups

if TYPE_CHECKING:
    import xarray


@runtime_checkable
class FieldSource(Protocol):
    """n samples on one grid, read in chunks: a `Field` in memory, or one side of a data set on disk."""

    @property
    def grid(self) -> Grid:
        """Grid of all fields."""

    @property
    def channels(self) -> int:
        """Number of channels c."""

    @property
    def dtype(self) -> torch.dtype:
        """float32 or float64: of the fields that are read."""

    @property
    def device(self) -> torch.device:
        """Device of the fields that are read."""

    def __len__(self) -> int:
        """Number of samples n."""

    def __getitem__(self, index: Rows, /) -> Field:
        """Read some samples, in the order of the index; one integer keeps the batch axis.

        Raises:
            DataError: If a value that is read is not finite.
        """

    def to(self, target: torch.device | torch.dtype | str, /) -> FieldSource:
        """The same samples, on another device or in another dtype when they are read."""


@runtime_checkable
class Dataset(Protocol):
    """n pairs of samples, read in chunks: `FieldPairs` in memory, or a lazy source of `probneural.data`.

    `fit`, heads, calibrators and `score_pairs` accept any. They read rows in chunks.
    """

    @property
    def inputs(self) -> FieldSource:
        """The n input samples."""

    @property
    def outputs(self) -> FieldSource:
        """The n output samples; their grid may differ."""

    @property
    def fingerprint(self) -> str:
        """A hash of the contents, or of a fixed sample of large contents."""

    def __len__(self) -> int:
        """Number of pairs n."""

    def __getitem__(self, index: Rows, /) -> FieldPairs:
        """Read some pairs into memory, in the order of the index."""

    def subset(self, index: Rows, /) -> Dataset:
        """Choose some pairs without reading them, in the order of the index."""

    def split(self, count: int, *, seed: int) -> tuple[Dataset, Dataset]:
        """Split at random into `count` and the remaining pairs, without reading them; in the order of `split_order`."""

    def to(self, target: torch.device | torch.dtype | str, /) -> Dataset:
        """The same pairs, on another device or in another dtype when they are read."""

    def detached(self) -> Dataset:
        """The same pairs without a graph."""


class Paired:
    """Base class of data sets of pairs: number, rows and times of their samples."""

    inputs: Any
    outputs: Any
    groups: Int64[Tensor, " n"] | None
    clock: WindowClock | None
    fingerprint: Any
    constructor: ClassVar[str]
    """Call that makes them, for messages."""

    def __post_init__(self) -> None:
        """Check the number of samples, groups and the clock, and name the trajectory of a clock without one."""
        checks.check_count(
            len(self.outputs), len(self.inputs), "output fields, as many as inputs", remedy="pair them one to one"
        )
        if self.groups is not None:
            check_groups(self.groups, len(self.inputs))
        if self.clock is not None and check_clock(self.clock, len(self.inputs)).trajectories is None:
            checks.assign(self, clock=named_clock(self.clock, self.fingerprint))

    def __len__(self) -> int:
        """Number of pairs n."""
        return len(self.inputs)

    def __getitem__(self, index: Rows) -> FieldPairs:
        """Read some pairs into memory, in the order of the index; one integer keeps the batch axis."""
        clock = None if self.clock is None else self.clock[index]
        return FieldPairs(self.inputs[index], self.outputs[index], groups=select_groups(self.groups, index), clock=clock)

    def __repr__(self) -> str:
        """A short description."""
        return f"{type(self).__name__}({self.summary}, {self.inputs.dtype})"

    @property
    def window_keys(self) -> Int64[Tensor, "n k"] | None:
        """One key per state of each pair, equal for equal trajectories and times; None for pairs without times."""
        return None if self.clock is None else self.clock.keys

    @property
    def summary(self) -> str:
        """Samples, channels, axes of space and times, in one sentence."""
        count, grid = len(self), self.inputs.grid.description
        if self.outputs.grid != self.inputs.grid:
            grid = f"inputs on {grid}; outputs on {self.outputs.grid.description}"
        channels = f"{_channels(self.inputs)} to {_channels(self.outputs)}"
        time = "none" if self.clock is None else self.clock.description
        return f"{count} sample{'s' * (count != 1)}; {channels}; {grid}; time: {time}"


@dataclass(frozen=True, eq=False, repr=False)
class FieldPairs(Paired):
    """A data set in memory: n input samples and the n output samples they map to.

    Args:
        inputs: Input samples.
        outputs: Output samples; their grid may differ from the inputs'.
        groups: Number of the trajectory of each pair, `(n,)`, where pairs are windows of trajectories; a random `split` keeps
            trajectories whole.
        clock: Times of the states in each pair, where pairs have times.

    Raises:
        ShapeError: If the numbers of fields differ, or there is not one group, or not one row of the clock, per pair.
        DataError: If a side is not a `Field`, groups are not integers, or the clock is of another kind.

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
    clock: WindowClock | None = None
    constructor: ClassVar[str] = "pn.FieldPairs"

    def __post_init__(self) -> None:
        """Check that the two sides are fields, equally many."""
        check_field(self.inputs, "inputs")
        check_field(self.outputs, "outputs")
        super().__post_init__()
        for side, name in ((self.inputs, "inputs"), (self.outputs, "outputs")):
            _warn_of_jump(side, name)

    @classmethod
    def cat(cls, parts: Sequence[FieldPairs]) -> FieldPairs:
        """Put data sets one after the other.

        Args:
            parts: Pairs whose inputs, and whose outputs, have one grid, channels, dtype and device; at least one.

        Returns:
            All their pairs, in order; trajectories of two data sets are different ones.

        Raises:
            DataError: If the list is empty, a part is not a `FieldPairs`, or dtypes or devices differ.
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
        clock = joined_clocks([part.clock for part in pairs])
        return cls(inputs, outputs, groups=joined_groups(pairs, clock), clock=clock)

    @classmethod
    def unlabelled(cls, inputs: Field, *, grid: Grid | None = None) -> FieldPairs:
        """Make a data set of inputs alone, for training with the residual of an equation: `pn.fit` only takes it.

        Args:
            inputs: Input samples.
            grid: Grid of the predictions; the inputs' grid by default.

        Returns:
            Pairs whose outputs have no channels.
        """
        check_field(inputs, "inputs")
        where = inputs.grid if grid is None else check_grid(grid)
        return cls(inputs, Field(inputs.values.new_zeros(len(inputs), 0, *where.shape), where))

    @classmethod
    def from_numpy(
        cls,
        inputs: NDArray[Any],
        outputs: NDArray[Any],
        *,
        axes: str | None = None,
        grid: Grid | None = None,
        out_grid: Grid | None = None,
        periodic: bool | Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
        mask: reading.Mask | tuple[reading.Mask, reading.Mask] = None,
    ) -> FieldPairs:
        """Make pairs of arrays.

        The number of grid axes d is the grid's, or the number of entries in `periodic`. An array of
        d + 1 axes is `(n, *grid)`, one channel; one of d + 2 axes is `(n, c, *grid)`. Where single numbers leave d open, only
        `(n, points)` and `(n, 1, *grid)` are accepted; `axes` states any other layout.

        Args:
            inputs: Input samples, real and finite, in physical units; integers become floating point numbers.
            outputs: Output samples, likewise.
            axes: Roles of the axes: n samples, c channels, - an axis of length 1, any other name an axis of space;
                `"n x y c"`, or `"n x -> n x c"` where outputs differ.
            grid: Grid of the inputs, and of the outputs without `out_grid`; or `periodic` for the unit cube.
            out_grid: Grid of the outputs.
            periodic: Whether each axis is periodic.
            dtype: float32 or float64; by default float64 if either array is of it, else float32.
            mask: Mask of missing values: True for those that are NaN, or bool `(*grid,)` or `(n, *grid)` in the
                array's order of axes, True at missing points; a tuple of two where inputs and outputs differ. A point where a
                channel is missing does not count in its sample: see `Grid.masked`.

        Returns:
            Copies of the values, on the CPU. Without `grid`, outputs of another resolution share the inputs' domain.

        Raises:
            DataError: If values are complex, wider than 64 bits, no numbers, masked, NaN or infinite.
            ShapeError: If a shape does not fit or is ambiguous, or the numbers of samples differ.
            ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.
            GridError: If `grid` or `out_grid` is not a Grid.

        Examples:
            >>> import numpy as np
            >>> pairs = FieldPairs.from_numpy(np.zeros((10, 8)), np.zeros((10, 2, 8)), grid=Grid.uniform(8))
            >>> pairs.inputs.channels, pairs.outputs.channels
            (1, 2)
        """
        reading.check_grid_alone(grid, periodic)
        kind = reading.common_dtype(inputs, outputs) if dtype is None else dtype
        for where, name in ((grid, "grid"), (out_grid, "out_grid")):
            if where is not None:
                check_grid(where, name)
        stated = layouts_of(axes)
        masks = mask if isinstance(mask, tuple) else (mask, mask)
        options: dict[str, Any] = {"dtype": kind, "periodic": periodic}
        first = reading.read_numpy(inputs, "inputs", layout=stated[0], grid=grid, option="grid", mask=masks[0], **options)
        where = out_grid or grid
        second = reading.read_numpy(
            outputs, "outputs", layout=stated[1], grid=where, option="out_grid", mask=masks[1], **options
        )
        if axes is None and grid is None:
            reading.check_not_parameters(first[1], second[1])
        return _looked_at(Field(*first), Field(*second))

    @classmethod
    def from_meshes(
        cls,
        *,
        points: Sequence[Tensor],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        cells: Sequence[Tensor] | None = None,
        weights: Sequence[Tensor] | None = None,
    ) -> FieldPairs:
        """Make pairs of samples with a mesh, or a set of points, each.

        Args:
            points: Coordinates of each sample, `(p_i, d)`.
            inputs: Values of each sample, `(c, p_i)`, in physical units.
            outputs: Likewise, `(c', p_i)`.
            cells: Simplices of each sample, `(m_i, k)`: see `Grid.mesh`.
            weights: Quadrature weights of each sample in place of cells, `(p_i,)`; without both, triangulations give them.

        Returns:
            The pairs, on a batch of grids.

        Raises:
            ArgumentError: If both cells and weights are given.
            ShapeError: If the numbers of samples or points differ.
            DataError: If a mesh is not valid, or values are not finite.

        Examples:
            >>> line, cells = torch.linspace(0.0, 1.0, 3)[:, None], torch.tensor([[0, 1], [1, 2]])
            >>> values = [torch.ones(1, 3), torch.ones(1, 3)]
            >>> pairs = FieldPairs.from_meshes(points=[line, 2.0 * line], inputs=values, outputs=values, cells=[cells, cells])
            >>> pairs.outputs.grid.weights.sum(1).tolist()
            [1.0, 2.0]
        """
        if cells is not None and weights is not None:
            raise ArgumentError(expected="cells or weights", got="both", remedy="cells determine the weights")
        count = len(checks.check_sequence(points, "points", remedy=_ONE_PER_SAMPLE))
        for name, entries in (("inputs", inputs), ("outputs", outputs), ("cells", cells), ("weights", weights)):
            if entries is None and name in ("cells", "weights"):
                continue
            length = len(checks.check_sequence(entries, name, remedy=_ONE_PER_SAMPLE))
            checks.check_count(length, count, f"entries of {name}, one per sample", remedy=_ONE_PER_SAMPLE)
        if cells is not None:
            grids = [Grid.mesh(*sample) for sample in zip(points, cells, strict=True)]
        else:
            masses: Sequence[Tensor | None] = [None] * count if weights is None else weights
            grids = [Grid.scattered(where, mass) for where, mass in zip(points, masses, strict=True)]
        grid = Grid.batch(grids)
        first, second = (_padded_values(values, grids, name) for name, values in (("inputs", inputs), ("outputs", outputs)))
        return cls(Field(first, grid), Field(second, grid))

    @classmethod
    def from_parameters(
        cls,
        parameters: NDArray[Any],
        outputs: NDArray[Any],
        *,
        as_points: bool = False,
        axes: str | None = None,
        grid: Grid | None = None,
        periodic: bool | Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
    ) -> FieldPairs:
        """Make pairs of a table of parameters and their fields.

        Args:
            parameters: `(n, k)`, one sample per row, or `(n,)`; each column in its units.
            outputs: Output samples, as in `from_numpy`.
            as_points: Whether inputs are k unordered numbers, channels at a single point, which `DeepONet`, `PODDeepONet` and
                `KernelOperator` take; by default they are k channels that are constant on the outputs' grid, which all
                operators take.
            axes: Roles of the outputs' axes, for example `"n x y c"`.
            grid: Grid of the outputs. In its place, `periodic` for the unit cube.
            periodic: Whether each axis is periodic.
            dtype: float32 or float64; by default float64 if either array is of it, else float32.

        Returns:
            Copies of the values, on the CPU.

        Raises:
            DataError: If values are complex, wider than 64 bits, no numbers, masked, NaN or infinite.
            ShapeError: If a shape does not fit or is ambiguous, or the numbers of samples differ.
            ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.

        Examples:
            >>> import numpy as np
            >>> pairs = FieldPairs.from_parameters(np.ones((10, 3)), np.zeros((10, 8)), periodic=True)
            >>> pairs.inputs.values.shape
            torch.Size([10, 3, 8])
        """
        reading.check_grid_alone(grid, periodic)
        kind = reading.common_dtype(parameters, outputs) if dtype is None else dtype
        where = None if grid is None else check_grid(grid)
        values, out_grid = reading.read_numpy(
            outputs, "outputs", layout=layouts_of(axes)[1], grid=where, option="grid", dtype=kind, periodic=periodic
        )
        table = reading.to_tensor(parameters, "parameters", dtype=kind)
        checks.check_flag(as_points, "as_points")
        if table.ndim not in (1, 2) or not table.numel():
            raise ShapeError(
                expected="parameters of shape (n, k) or (n,)", got=str(tuple(table.shape)), remedy="give one sample per row"
            )
        table = table.reshape(len(table), -1)
        in_grid = Grid.scattered([[0.0]], [1.0]) if as_points else out_grid
        inputs = table.reshape(*table.shape, *(1,) * len(in_grid.shape)).expand(*table.shape, *in_grid.shape)
        return _looked_at(Field(inputs.contiguous(), in_grid), Field(values, out_grid))

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
        mask: reading.Mask | tuple[reading.Mask, reading.Mask] = None,
    ) -> FieldPairs:
        """Make pairs of DataArrays, whose coordinates define the grid.

        Dimensions other than `sample` and `channel` are space, in the array's order. Their coordinates must be ascending and
        equispaced within 1e-4 of the spacing, checked in float64. A periodic axis extends one spacing beyond its last point;
        another one ends there, unless `lengths` extends it.

        Args:
            inputs: Input samples: a DataArray, or a Dataset whose variables are the channels. Without `outputs`, a Dataset
                with the variables "inputs" and "outputs", as `to_xarray` makes. A coordinate "groups" of whole numbers
                gives the groups of pairs. Where the dimension `sample` is time, its coordinate gives the pairs' times.
            outputs: Output samples, likewise; matched to the inputs by position.
            periodic: Whether each dimension of space is periodic; `to_xarray` records it.
            lengths: Extent of each dimension of space, in the coordinates' units.
            sample: The dimension of the n samples.
            channel: The dimension of the channels, if there is one; "channel" by default.
            dtype: float32 or float64; by default float64 if either side is of it, else float32.
            mask: Mask of missing values, as in `from_numpy`.

        Returns:
            Copies of the values, on the CPU.

        Raises:
            DataError: If values are not real, finite numbers, groups are no whole ones, or a side is of another type.
            ShapeError: If a dimension is missing, or the numbers of samples differ.
            GridError: If coordinates are missing, descending, not equispaced, or contradict `lengths`.
            ArgumentError: If `periodic` is missing or does not fit, or `dtype` is another one.
        """
        is_written = outputs is None
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
        masks = mask if isinstance(mask, tuple) else (mask, mask)
        first, grid, in_labels, in_mask = reading.read_xarray(inputs, "inputs", mask=masks[0], **options)
        order = [axis.name for axis in grid.axes]
        second, out_grid, out_labels, out_mask = reading.read_xarray(outputs, "outputs", order=order, mask=masks[1], **options)
        kind = reading.common_dtype(first, second) if dtype is None else dtype
        sides = [
            Field(
                *reading.read_numpy(values, name, grid=where, option="grid", dtype=kind, mask=part),
                names=labels["names"],
                units=labels["units"],
            )
            for values, name, where, part, labels in (
                (first, "inputs", grid, in_mask, in_labels),
                (second, "outputs", out_grid, out_mask, out_labels),
            )
        ]
        groups, clock = _read_groups(inputs), read_clock(inputs, sample)
        return _looked_at(sides[0], sides[1], may_be_equal=is_written, groups=groups, clock=clock)

    def to_xarray(self) -> xarray.Dataset:
        """Return a Dataset of the variables "inputs" and "outputs", which `from_xarray` reads back equal.

        Dimensions are `sample`, `channel` and `x0`, `x1`, ...; where the sides differ, the outputs' begin with `output_`.
        Groups, and times and trajectories of pairs that have them, are coordinates of the samples.

        Raises:
            GridError: If a grid is scattered.
        """
        checks.optional("xarray", "to_xarray", extra="xarray")
        import xarray

        space = [f"x{number}" for number in range(len(self.inputs.grid.shape))]
        out = [f"x{number}" for number in range(len(self.outputs.grid.shape))]
        out = out if self.inputs.grid.has_points_of(self.outputs.grid) else [f"output_{name}" for name in out]
        channel = "channel" if self.inputs.channels == self.outputs.channels else "output_channel"
        sides = (("inputs", self.inputs, "channel", space), ("outputs", self.outputs, channel, out))
        return xarray.Dataset(
            {
                name: reading.to_array(side.values, side.grid, sample="sample", channel=channels, space=axes)
                for name, side, channels, axes in sides
            },
            coords=({} if self.groups is None else {"groups": ("sample", self.groups.numpy())}) | clock_coordinates(self.clock),
        )

    def split(
        self, count: int, *, seed: int | None = None, by: str = "random", embargo: int = 0
    ) -> tuple[FieldPairs, FieldPairs]:
        """Split into `count` pairs and the remaining ones.

        * `by="random"`: rows, or whole groups where there are groups, in a random order.
        * `by="time"`: the first part is the earlier `count` rows. Later rows that share a state with the first part, or begin
          `embargo` steps or fewer after its last state, are left out.
        * `by="blocks"`: contiguous blocks of time are assigned at random. Rows of the second part that share a state with the
          first, or lie within `embargo` steps of it, are left out.

        Args:
            count: Number of pairs of the first part; approximate for groups and blocks, which are not split.
            seed: Names a random split, or a split by blocks.
            by: "random", "time" (the first part is the earlier one), or "blocks" (of neighbouring times).
            embargo: Number of time steps between the two parts; pairs within are omitted.

        Raises:
            ArgumentError: If either part would be empty, the pairs have no times to split by, or the seed is missing.
        """
        first, second = divided_rows(self, count, seed=seed, by=by, embargo=embargo)
        return self[first], self[second]

    @cached_property
    def fingerprint(self) -> str:
        """A content hash of values and grids, 64 hexadecimal digits."""
        return fingerprint_of(
            *(tensor for side in (self.inputs, self.outputs) for tensor in (side.values, side.grid.points, side.grid.weights))
        )

    def subset(self, index: Rows) -> FieldPairs:
        """Select pairs, as `pairs[index]` does."""
        return self[index]

    def detached(self) -> FieldPairs:
        """Return the pairs without their graph, as tensors that autograd takes."""
        return replace(self, inputs=self.inputs.detached(), outputs=self.outputs.detached())

    def to(self, target: torch.device | torch.dtype | str) -> FieldPairs:
        """Return the pairs on another device or in another dtype."""
        return replace(self, inputs=self.inputs.to(target), outputs=self.outputs.to(target))


_CHECKED = "_sides_with_checked_ends"
"""Attribute of a grid: sides whose periodic ends were checked."""


def _warn_of_jump(field: Field, name: str) -> None:
    """Give a DataWarning, once per grid, if most samples jump at the end of a periodic axis."""
    values, grid = field.values.detach(), field.grid
    checked = vars(grid).setdefault(_CHECKED, set())
    rows = rows_to_check(len(values), field.channels, grid)
    if name in checked or not rows or is_transformed() or torch.compiler.is_compiling():
        return
    checked.add(name)
    axes = jumping_axes(values[:rows], grid)
    if axes:
        names = ", ".join(grid.axes[axis].name or str(axis) for axis in axes)
        warn(
            f"most {name} jump from the last point of periodic axis {names} to the first: errors are larger than with walls. "
            "Say periodic=False; pn.Grid.uniform(shape) alone is periodic",
            DataWarning,
        )


def _looked_at(inputs: Field, outputs: Field, *, may_be_equal: bool = False, **more: Any) -> FieldPairs:
    """Pairs, if their first samples are plausible, with a warning of fill values."""
    for field in (inputs, outputs):
        vars(field.grid)[_CHECKED] = {"inputs", "outputs"}  # jumps at periodic ends are errors below
    pairs = FieldPairs(inputs, outputs, **more)
    warn_of_fill_values({"inputs": inputs.values, "outputs": outputs.values})
    sides = {"inputs": inputs, "outputs": outputs}
    rows = min(rows_to_check(len(pairs), side.channels, side.grid) for side in sides.values())
    first_rows = {name: (side.values[:rows], side.grid) for name, side in sides.items() if rows and not side.grid.is_masked}
    check_plausible(first_rows, may_be_equal=may_be_equal, summary=pairs.summary)
    return pairs


def check_dataset(data: object, name: str = "training", *, least: int = 1, may_be_unlabelled: bool = False) -> Dataset:
    """Return a data set of at least `least` pairs, or raise a DataError; values in memory must be finite.

    Lazy sources check values as they are read.
    """
    if isinstance(data, list | tuple) and data and all(map(_is_dataset, data)):
        raise DataError(
            expected=f"one Dataset as {name} data, with one grid for all samples",
            got=f"a {type(data).__name__} of {len(data)}, which only pn.fit takes",
            remedy="give the one on the grid that you predict on; sets of one grid become one by pn.FieldPairs.cat",
        )
    if not _is_dataset(data):
        raise DataError(
            expected=f"a Dataset as {name} data", got=checks.described(data), remedy="pair them: pn.FieldPairs(inputs, outputs)"
        )
    checked = cast(Dataset, data)
    checks.check_least(len(checked), least, f"{name} pairs", remedy="give more data")
    if not (checked.outputs.channels or may_be_unlabelled):
        raise DataError(
            expected=f"{name} pairs with outputs",
            got="inputs alone",
            remedy="only pn.fit takes them, with the loss of a residual: pn.physics.Residual(equation).loss()",
        )
    if isinstance(checked, FieldPairs):
        checks.check_finite(checked.inputs.values, f"{name} inputs", remedy=MISSING)
        checks.check_finite(checked.outputs.values, f"{name} outputs", remedy=MISSING)
        warn_of_fill_values({f"{name} inputs": checked.inputs.values, f"{name} outputs": checked.outputs.values})
    return checked


def _is_dataset(data: object) -> bool:
    """Whether it has all members of the protocol; up to Python 3.11, `isinstance` evaluates them, and a fingerprint reads."""
    members = (name for name in vars(Dataset) if not name.startswith("_") or name in ("__len__", "__getitem__"))
    missing = object()
    has_all = all(inspect.getattr_static(data, name, missing) is not missing for name in members)
    return has_all and not isinstance(data, type)


def batches(data: Dataset, size: int) -> Iterator[FieldPairs]:
    """Read a data set in order, in chunks of `size` pairs.

    Examples:
        >>> field = Field(torch.zeros(10, 1, 8), Grid.uniform((8,)))
        >>> [len(batch) for batch in batches(FieldPairs(field, field), 4)]
        [4, 4, 2]
    """
    for start in range(0, len(data), size):
        yield data[start : min(start + size, len(data))]


def _read_groups(inputs: xarray.DataArray | xarray.Dataset) -> Int64[Tensor, " n"] | None:
    """The coordinate "groups", in any dtype, or None."""
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


_ONE_PER_SAMPLE = "give a list with one entry per sample"


def _padded_values(values: Sequence[Tensor], grids: Sequence[Grid], name: str) -> Float[Tensor, "n c p"]:
    """Values `(c, p_i)` of samples with different points, padded to the largest number."""
    tensors = [checks.real_tensor(sample, f"{name} of sample {number}") for number, sample in enumerate(values)]
    for number, (sample, grid) in enumerate(zip(tensors, grids, strict=True)):
        remedy = "one value per channel and point of its mesh"
        checks.check_shape(sample, f"{name} of sample {number}", len(tensors[0]), grid.size, remedy=remedy)
        checks.check_finite(sample, f"{name} of sample {number}")
    return torch.nn.utils.rnn.pad_sequence([sample.mT for sample in tensors], batch_first=True).mT.contiguous()


def _channels(side: Any) -> str:
    """Number, names and units of the channels of a side."""
    count = f"{side.channels} channel{'s' * (side.channels != 1)}"
    units = side.units or ("",) * len(side.names)
    labels = dict.fromkeys(zip(side.names, units, strict=True))
    words = [f"{name} in {unit}" if unit else name for name, unit in labels]
    return f"{count} ({', '.join(words)})" if any(words) else count


def _collated(batch: Sequence[FieldPairs], *, collate_fn_map: object = None) -> FieldPairs:
    """Items of a batch as pairs; unlike in `FieldPairs.cat`, equal groups stay equal."""
    groups = [part.groups for part in batch if part.groups is not None]
    inputs, outputs = Field.cat([part.inputs for part in batch]), Field.cat([part.outputs for part in batch])
    return FieldPairs(inputs, outputs, groups=torch.cat(groups) if groups else None)


default_collate_fn_map[FieldPairs] = _collated  # so that torch's DataLoader takes any Dataset without a collate_fn
