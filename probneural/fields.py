"""Fields and pairs of fields: the nouns that data is made of."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn

from probneural import checks
from probneural.arrays.layouts import layouts_of
from probneural.arrays.meshes import write_meshes
from probneural.arrays.plausibility import warn_of_fill_values
from probneural.arrays.reading import Mask, check_grid_alone, common_dtype, read_numpy, read_xarray, to_array
from probneural.contexts import Undisturbed
from probneural.errors import DataError, OperatorError, ProbneuralError
from probneural.grids import Grid, check_grid, resample
from probneural.grids.grid import check_same_grid
from probneural.registry import stored

if TYPE_CHECKING:
    import xarray

MISSING = "drop or repair those samples; where NaN means missing, Field(values, grid.masked(values.isfinite().all(1)))"
"""Remedy for values that are NaN."""


@stored()
@dataclass(frozen=True, eq=False, repr=False)
class Field(Undisturbed):
    """Functions on a grid: n of them, each with c channels.

    Args:
        values: `(n, c, *grid.shape)`, float32 or float64, in physical units. On a masked grid, values at masked points do not
            count, NaN among them: the field holds the mean of the sample's other values there, so operators see finite numbers.
        grid: Grid of the values. Of a batch of n grids, one per sample.
        names: Names of the channels, one per channel, or none at all.
        units: Units of the channels, one per channel, "" for unknown ones, or none at all.

    Raises:
        ShapeError: If the shapes do not fit together.
        DataError: If the values are not real floating point numbers.

    Examples:
        >>> grid = Grid.uniform((8,))
        >>> field = Field(torch.ones(3, 1, 8), grid)
        >>> len(field), len(field[:2]), field.norm().tolist()
        (3, 2, [[1.0], [1.0], [1.0]])
    """

    values: Float[Tensor, "..."]
    grid: Grid
    _: KW_ONLY
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Validate once, here, so that everything downstream may rely on it."""
        checks.check_floating(self.values, "values")
        check_grid(self.grid)
        remedy = "channels come second, grid axes last; one field of one channel is values[None, None]"
        checks.check_shape(self.values, "values", "n", "c", *self.grid.shape, remedy=remedy)
        for name in ("names", "units"):
            words = checks.check_sequence(getattr(self, name), name, remedy="give a tuple of texts, one per channel")
            object.__setattr__(self, name, tuple(checks.check_text(word, name) for word in words))
            if words:
                checks.check_count(len(words), self.channels, f"entries of {name}, one per channel", remedy="or leave them out")
        if self.grid.is_batch:
            things, remedy = "masks, or meshes, one for each sample", "select those of these samples: grid.select(rows)"
            checks.check_count(len(self.grid.weights), len(self.values), things, remedy=remedy)
        if self.grid.is_masked:
            object.__setattr__(self, "values", _filled(self.values, self.grid))

    def _selected(self, values: Tensor, grid: Grid) -> Field:
        """A subset of the values of this field, unchanged at masked points."""
        if not grid.is_masked:
            return replace(self, values=values, grid=grid)
        field = object.__new__(Field)
        for name, value in (*vars(self).items(), ("values", values), ("grid", grid)):
            object.__setattr__(field, name, value)
        return field

    @classmethod
    def cat(cls, parts: Sequence[Field]) -> Field:
        """Put samples on one grid one after the other.

        Args:
            parts: Fields of one grid, channels, dtype and device; at least one.

        Returns:
            All their samples, in order.

        Raises:
            DataError: If there is none, one is not a `Field`, or dtypes or devices differ.
            GridError: If the grids differ.
            ShapeError: If the numbers of channels differ.

        Examples:
            >>> field = Field(torch.zeros(3, 1, 8), Grid.uniform((8,)))
            >>> len(Field.cat([field, field[:2]]))
            5
        """
        fields = check_parts(parts, cls)
        first = fields[0]
        is_per_sample = any(field.grid.has_points_per_sample for field in fields)
        for field in fields[1:]:
            if not is_per_sample:
                check_same_grid(field.grid.unmasked, first.grid.unmasked, "fields", remedy="use field.resample(grid)")
            remedy = "stack channels with torch.cat([a.values, b.values], dim=1)"
            checks.check_count(field.channels, first.channels, "channels of each field", remedy=remedy)
            if (field.dtype, field.device) != (first.dtype, first.device):
                raise DataError(
                    expected=f"fields of {first.dtype} on {first.device}",
                    got=f"{field.dtype} on {field.device}",
                    remedy=f"convert them: field.to({first.dtype}).to({str(first.device)!r})",
                )
        grid, values = first.grid, [field.values for field in fields]
        if is_per_sample:  # padding is at the end
            grids = [
                field.grid.singles() if field.grid.has_points_per_sample else [field.grid] * len(field) for field in fields
            ]
            grid = Grid.batch([single for part in grids for single in part])
            values = [nn.functional.pad(part, (0, grid.size - part.shape[-1])) for part in values]
        elif grid.is_batch or any(field.grid != grid for field in fields):  # masks differ
            masks = [field.grid.observed.expand(len(field), *grid.shape) for field in fields]
            grid = grid.masked(torch.cat(masks))
        is_alike = all((field.names, field.units) == (first.names, first.units) for field in fields)
        labelled = first if is_alike else replace(first, names=(), units=())
        return labelled._selected(torch.cat(values), grid)

    @classmethod
    def from_numpy(
        cls,
        values: NDArray[Any],
        *,
        axes: str | None = None,
        grid: Grid | None = None,
        periodic: bool | Sequence[bool] | None = None,
        dtype: torch.dtype | None = None,
        mask: Mask = None,
    ) -> Field:
        """Copy an array of samples: new inputs to predict for.

        It follows the rules of [`FieldPairs.from_numpy`][probneural.pairs.FieldPairs.from_numpy].

        Args:
            values: `(n, *grid)` for one channel, or `(n, c, *grid)`; real and finite, in physical units.
            axes: Roles of the axes, for example `"n x y c"`.
            grid: Grid of the values. In its place, `periodic` for the unit cube.
            periodic: Whether each axis is periodic.
            dtype: float32 or float64; by default float64 if the array is of it, else float32.
            mask: Mask of missing values: True for those that are NaN, or truth values `(*grid,)` or `(n, *grid)`, True at
                missing points. A point where a channel is missing does not count in its sample: see `Grid.masked`.

        Returns:
            A copy of the values, on the CPU.

        Raises:
            DataError: If values are complex, wider than 64 bits, no numbers, masked, NaN or infinite.
            ShapeError: If the shape does not fit or is ambiguous.
            ArgumentError: If neither `grid` nor `periodic` is given, or both, or `dtype` is another one.
            GridError: If `grid` is not a Grid.

        Examples:
            >>> import numpy as np
            >>> Field.from_numpy(np.zeros((10, 8)), periodic=False).values.shape
            torch.Size([10, 1, 8])
        """
        check_grid_alone(grid, periodic)
        where = None if grid is None else check_grid(grid)
        kind = common_dtype(values) if dtype is None else dtype
        options: dict[str, Any] = {"option": "grid", "dtype": kind, "mask": mask, "periodic": periodic}
        return _looked_at(cls(*read_numpy(values, "values", layout=layouts_of(axes)[0], grid=where, **options)))

    @classmethod
    def from_xarray(
        cls,
        array: xarray.DataArray | xarray.Dataset,
        *,
        periodic: bool | Sequence[bool] | None = None,
        lengths: float | Sequence[float] | None = None,
        sample: str = "sample",
        channel: str | None = None,
        dtype: torch.dtype | None = None,
        mask: Mask = None,
    ) -> Field:
        """Read samples and their grid from a DataArray.

        It follows the rules of [`FieldPairs.from_xarray`][probneural.pairs.FieldPairs.from_xarray].

        Args:
            array: A DataArray, or a Dataset whose variables are the channels.
            periodic: Whether each dimension of space is periodic; needed unless `to_xarray` wrote the array.
            lengths: Extent of each dimension of space, in the coordinates' units.
            sample: The dimension of the n samples.
            channel: The dimension of the channels, if there is one; "channel" by default.
            dtype: float32 or float64; float64 if the array is of it, else float32, by default.
            mask: As for `from_numpy`.

        Returns:
            A copy of the values, on the CPU.

        Raises:
            DataError: If values are not real, finite numbers, or `array` is of another type.
            ShapeError: If a dimension is missing.
            GridError: If coordinates are missing, descending, not equispaced, or contradict `lengths`.
            ArgumentError: If `periodic` is missing or does not fit, or `dtype` is another one.
        """
        options = {"sample": sample, "channel": channel, "periodic": periodic, "lengths": lengths, "mask": mask}
        values, grid, labels, missing = read_xarray(array, "values", **options)  # type: ignore[arg-type]
        kind = common_dtype(values) if dtype is None else dtype
        tensor, where = read_numpy(values, "values", grid=grid, option="grid", dtype=kind, mask=missing)
        return _looked_at(cls(tensor, where, names=labels["names"], units=labels["units"]))

    def to_xarray(self) -> xarray.DataArray:
        """Return a DataArray `(sample, channel, x0, x1, ...)` with coordinates, which `from_xarray` reads back equal.

        Raises:
            GridError: If the grid is scattered.
        """
        space = [f"x{number}" for number in range(len(self.grid.shape))]
        return to_array(self.values, self.grid, sample="sample", channel="channel", space=space)

    def to_meshio(self, path: str | os.PathLike[str]) -> None:
        """Write the samples as point data of meshes that ParaView reads; needs the extra `mesh`.

        Args:
            path: A file .vtu or .vtk; of several samples, with `{}` in place of their number: `"cases/{}.vtu"`.

        Raises:
            GridError: If the grid is uniform.
            ArgumentError: If the path has another ending, or lacks `{}` for several samples.
            FileError: If a file cannot be written.
        """
        names = self.names or ("value",) * self.channels
        rows = {name: [row for row, other in enumerate(names) if other == name] for name in names}
        write_meshes(path, self.grid, {name: self.values[:, chosen] for name, chosen in rows.items()})

    @property
    def channels(self) -> int:
        """Number of channels c."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The values' dtype."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """The values' device."""
        return self.values.device

    def norm(self) -> Float[Tensor, "n c"]:
        """L2 norm over the domain by quadrature, in the values' units times the square root of the volume."""
        volume = self.grid.weights.sum(-1, keepdim=True).to(self.values) if self.grid.is_batch else self.grid.volume
        return self.mean_square().mul(volume).sqrt()

    def mean_square(self) -> Float[Tensor, "n c"]:
        """Mean square over the domain by quadrature, in the values' units squared."""
        return self.grid.mean(self.values.flatten(2).square())

    def resample(self, grid: Grid) -> Field:
        """Evaluate the interpolant on another grid: see `probneural.grids.resample`."""
        return replace(self, values=resample(self.values, self.grid, grid), grid=grid)

    def without_own_masks(self) -> Field:
        """Return the field as operators see it if masks differ between samples: on the grid without masks."""
        return Field(self.values, self.grid.unmasked) if self.grid.is_batch else self

    def detached(self) -> Field:
        """Return the field without its graph, as a tensor that autograd takes."""
        values = self.values.detach()
        return self._selected(values.clone() if values.is_inference() else values, self.grid)

    def to(self, target: torch.device | torch.dtype | str) -> Field:
        """Return the field with its values on another device or of another dtype.

        Raises:
            DataError: If the dtype is neither float32 nor float64, or does not hold the values.
            ArgumentError: If the device does not exist, or values are float64 and it is MPS, which has none.
        """
        if isinstance(target, torch.dtype):
            if target not in (torch.float32, torch.float64):
                raise DataError(expected="float32 or float64", got=str(target), remedy="fields have real floating point values")
            return self._selected(checks.cast(self.values, target, "values", dims=(0, *range(2, self.values.ndim))), self.grid)
        device = checks.check_device(target, is_double=self.values.dtype == torch.float64)
        return self._selected(self.values.to(device), self.grid)

    def __len__(self) -> int:
        """Number of fields n."""
        return self.values.shape[0]

    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> Field:
        """Select fields; one integer selects one field and keeps its batch axis."""
        rows = select_rows(index, len(self))
        return self._selected(self.values[rows], self.grid.select(rows))

    def __repr__(self) -> str:
        """A short description."""
        return f"Field({len(self)} x {self.channels} on {self.grid!r}, {self.dtype})"


def _looked_at(field: Field) -> Field:
    """A field, with a warning to who has made it if it has fill values."""
    warn_of_fill_values({"values": field.values})
    return field


def _filled(values: Float[Tensor, "n c *grid"], grid: Grid) -> Float[Tensor, "n c *grid"]:
    """Values whose masked points hold the mean of the sample's observed values of that channel."""
    zero_filled = grid.fill(values)
    counts = grid.observed.flatten(-len(grid.shape)).sum(-1).to(values.device, torch.float64)
    means = zero_filled.flatten(2).sum(-1, dtype=torch.float64) / (counts[:, None] if grid.is_batch else counts)
    observed = grid.observed.to(values.device)
    observed = observed[:, None] if grid.is_batch else observed
    return torch.where(observed, zero_filled, means.to(values)[(..., *(None,) * len(grid.shape))])


def check_parts(parts: object, kind: type[Any]) -> tuple[Any, ...]:
    """Return a sequence of things of one kind as a tuple that is not empty, or raise a DataError."""
    if not isinstance(parts, Sequence) or not parts or not all(isinstance(part, kind) for part in parts):
        entries = [checks.described(part) for part in parts] if isinstance(parts, Sequence) else checks.described(parts)
        raise DataError(
            expected=f"one or more {kind.__name__} objects", got=str(entries), remedy=f"write {kind.__name__}.cat([a, b])"
        )
    return tuple(parts)


def power_of_two(sizes: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return the largest power of two up to each positive size, by which dividing is exact; 1 for zero.

    Examples:
        >>> power_of_two(torch.tensor([0.0, 5.0, 1e-30])).log2().tolist()
        [0.0, 2.0, -100.0]
    """
    mantissas = 2.0 * torch.frexp(sizes).mantissa
    usable = torch.isfinite(sizes) & (sizes > 0)
    return torch.where(usable, sizes / torch.where(usable, mantissas, torch.ones_like(sizes)), torch.ones_like(sizes))


def check_field(field: object, name: str) -> Field:
    """Return a field, or raise a DataError."""
    remedy = "wrap the tensor: pn.Field(values, grid); of pairs, take pairs.inputs or pairs.outputs"
    return checks.check_instance(field, Field, name, remedy=remedy)


def row_number(index: object, count: int) -> int:
    """Turn a number from `-count` to `count - 1` into one that counts from zero.

    Raises:
        IndexError: If it lies outside.
        DataError: If it is not an integer.
    """
    if isinstance(index, bool) or not isinstance(index, Integral):
        raise DataError(expected="an integer as index", got=checks.described(index), remedy="give a row number")
    number = int(index)
    if not -count <= number < count:
        raise IndexError(f"index {number} of {count} functions")
    return number % count


def select_rows(index: int | slice | Tensor | Sequence[int], count: int) -> slice | Tensor:
    """Turn an index over `count` things into one that keeps their axis, as a slice or a tensor.

    Raises:
        IndexError: If a number lies outside `-count` to `count - 1`; iteration relies on it.
        DataError: If several do, or the index is of another kind.
    """
    if isinstance(index, slice):  # tensors take no negative steps
        forward = index.step is None or index.step > 0
        return index if forward else torch.tensor(range(*index.indices(count)), dtype=torch.long, device="cpu")
    try:
        rows = index if isinstance(index, Tensor) else torch.as_tensor(index, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        rows = torch.empty(0, 0, device="cpu")
    rows = rows if rows.numel() else rows.long()
    if rows.ndim == 0 and not (rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool):
        number = row_number(int(rows), count)
        return slice(number, number + 1)
    if rows.dtype == torch.bool:
        fits = tuple(rows.shape) == (count,)
    else:
        whole = not (rows.is_floating_point() or rows.is_complex())
        fits = rows.ndim == 1 and whole and bool(((rows >= -count) & (rows < count)).all())
    if not fits:
        expected = f"an index over {count} functions: an integer, a slice, integers or {count} truth values"
        raise DataError(expected=expected, got=repr(index), remedy="count from zero; negative numbers count from the end")
    return rows


def evaluate(operator: nn.Module, inputs: Field, query: Grid | None = None) -> Float[Tensor, "n c *grid"]:
    """Call any operator on fields and return its values on the inputs' grid, or on `query`.

    Operators whose `forward` takes `grid=` and `query=` (ours do) are told where their input lives and evaluate anywhere
    themselves; any other module sees plain tensors, and its output is interpolated.

    Args:
        operator: A module from `(n, c, *grid)` to `(n, c', *grid)`.
        inputs: Input samples.
        query: Grid of the outputs; the inputs' grid by default.

    Returns:
        Values, `(n, c', *query.shape)`.

    Raises:
        ShapeError: If the module returns something that is not a field on the expected grid.
        OperatorError: If the module fails on the inputs; its own exception is the cause.
        DataError: If the inputs are no field.
        ArgumentError: If the operator is not a module.
    """
    checks.check_module(operator, "operator")
    check_field(inputs, "inputs")
    where = inputs.grid if query is None else query
    try:
        if takes_grid(operator):  # masks do not matter to operators
            unmasked = None if query is None else query.unmasked
            values = operator(inputs.values.clone(), grid=inputs.grid.unmasked, query=unmasked)  # some modules work in place
        else:
            values = operator(inputs.values.clone())
            if isinstance(values, Tensor) and tuple(values.shape[2:]) == inputs.grid.shape:
                values = resample(values, inputs.grid.unmasked, where.unmasked)
    except (RuntimeError, ValueError, IndexError, AssertionError) as error:  # errors of modules for unsupported shapes
        if _says_enough(error):
            raise
        raise OperatorError(
            expected=f"{type(operator).__name__} to take {inputs!r}" + ("" if query is None else f", evaluated on {query!r}"),
            got=f"{type(error).__name__}: {error}",
            remedy="give it functions of the grid, channels and dtype that it was built for (inputs.resample(grid) changes the "
            "grid, module.float() its precision), or wrap it in a module that does; if they are, the exception above this one "
            "shows where it fails",
        ) from error
    remedy = "wrap the module so that it maps (n, c, *grid) to (n, c', *grid)"
    return checks.check_shape(values, "what an operator returns", len(inputs), "channels", *where.shape, remedy=remedy)


def _says_enough(error: Exception) -> bool:
    """Whether an exception is no fault of the grid: one of ours, a want of memory, or an operation that does not exist."""
    if isinstance(error, (ProbneuralError, torch.OutOfMemoryError, NotImplementedError, RecursionError)):
        return True
    return "allocate memory" in str(error)  # message of PyTorch's CPU allocator, a plain RuntimeError


def takes_grid(operator: nn.Module) -> bool:
    """Whether the operator's `forward` accepts `grid` and `query`."""
    names = inspect.signature(operator.forward).parameters
    return "grid" in names and "query" in names
