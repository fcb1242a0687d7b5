"""Plausibility of data: periodic axes, inputs that equal outputs, and fill values that nobody declared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.errors import DataError, DataWarning, warn
from probneural.grids import Grid

_FACTOR = 3.0
"""Least size of a jump, relative to the largest difference between neighbours."""
_LEAST_POINTS = 8
"""Along an axis: with fewer, neighbours may differ by anything."""
_VISIBLE, _REPEATED = 1e-5, 1e-3
"""Smallest step at an end, relative to the range of a line, and largest difference of the ends, relative to that step."""
_ROWS, _VALUES = 8, 2**25
"""Largest number of samples that are checked, and of their values."""


def _periodic_lines(values: Float[Tensor, "n c *grid"], grid: Grid) -> Iterator[tuple[int, Tensor]]:
    """Periodic axes of enough points, and the values with that axis last."""
    for axis, is_periodic in enumerate(grid.periodic if grid.is_uniform and values.numel() else ()):
        if is_periodic and grid.shape[axis] >= _LEAST_POINTS:
            yield axis, values.movedim(2 + axis, -1)


def jumping_axes(values: Float[Tensor, "n c *grid"], grid: Grid) -> tuple[int, ...]:
    """Periodic axes along which a channel jumps at the end in most samples: by more than 3 times any step inside.

    A periodic sample rarely has its largest difference between neighbours at the end of the axis: square waves jump inside as
    well, and rough samples jump everywhere. Channels that are equal in all samples, such as coordinates, are left out. Samples
    that vanish at both ends look periodic.

    Examples:
        >>> import torch
        >>> grid = Grid.uniform((32,))
        >>> x = grid.points[:, 0]
        >>> jumping_axes(torch.stack([x, 2 * x])[:, None], grid), jumping_axes(torch.stack([x.cos(), x.sign()])[:, None], grid)
        ((0,), ())
    """
    return seam_jumps(values[:, (values != values[:1]).flatten(2).any(2).any(0)], grid)


def seam_jumps(values: Float[Tensor, "n c *grid"], grid: Grid) -> tuple[int, ...]:
    """The same of all channels, one sample alone included."""
    axes = []
    for axis, lines in _periodic_lines(values, grid):
        step = lines.diff(dim=-1).abs().flatten(2).amax(2)
        jump = (lines[..., :1] - lines[..., -1:]).abs().flatten(2).amax(2)
        if bool(((jump > _FACTOR * step).double().mean(0) > 0.5).any()):
            axes.append(axis)
    return tuple(axes)


def repeating_axes(values: Float[Tensor, "n c *grid"], grid: Grid) -> tuple[int, ...]:
    """Periodic axes whose last value equals the first in all samples: a repeated end point, or walls.

    Lines that are constant or symmetric at their ends are left out.

    Examples:
        >>> import torch
        >>> grid = Grid.uniform((33,))
        >>> x = torch.linspace(0.0, 1.0, 33)
        >>> sines = torch.stack([(6.2831853 * (x + shift)).sin() for shift in (0.1, 0.2, 0.3)])[:, None]
        >>> repeating_axes(sines, grid), repeating_axes(sines[..., :-1], Grid.uniform((32,)))
        ((0,), ())
    """
    axes = []
    for axis, lines in _periodic_lines(values, grid):
        size = (lines.amax(-1) - lines.amin(-1)).clamp_min(torch.finfo(lines.dtype).tiny)
        first, second, penultimate, last = (lines[..., place] for place in (0, 1, -2, -1))
        step = torch.minimum((second - first).abs(), (last - penultimate).abs())
        is_informative = (step > _VISIBLE * size) & ((second - penultimate).abs() > _VISIBLE * size)
        repeats = (last - first).abs() <= _REPEATED * step
        samples = is_informative.flatten(1).any(1).sum()
        if int(samples) > 1 and bool(repeats[is_informative].all()):
            axes.append(axis)
    return tuple(axes)


def rows_to_check(count: int, channels: int, grid: Grid) -> int:
    """Number of first samples to check out of `count`; 0 if a single one has too many values."""
    rows = min(_ROWS, count, _VALUES // max(1, channels * grid.size))
    return rows if rows > 1 else 0


def _without_last(grid: Grid, number: int) -> str:
    """The call that drops the last point along an axis of an array whose axes of space come last, or of named axes."""
    name, place = grid.axes[number].name, number - len(grid.axes)
    call = "values[..., :-1]" if place == -1 else f"numpy.delete(values, -1, axis={place})"
    return f"array.isel({name}=slice(0, -1)), or {call}" if name.isidentifier() else call


def check_plausible(
    sides: Mapping[str, tuple[Float[Tensor, "n c *_"], Grid]], *, may_be_equal: bool = False, summary: str = ""
) -> None:
    """Raise a DataError if samples contradict their description.

    Args:
        sides: Some samples and their grid, "inputs" and "outputs" or one of them.
        may_be_equal: Whether inputs may equal outputs, as states of trajectories and data sets that `to_xarray` wrote may.
        summary: The reading that was made, for the message.

    Raises:
        DataError: If an axis is said to be periodic whose samples jump from the last point to the first or repeat their first
            point at the end, or if inputs equal outputs.
    """
    reading = f" (the reading: {summary})" if summary else ""
    for name, (values, grid) in sides.items():
        jumps, repeats = jumping_axes(values.detach(), grid), repeating_axes(values.detach(), grid)
        if repeats:
            call = _without_last(grid, repeats[0])
            raise DataError(
                expected=f"periodic axis {repeats[0]} of the {name} without its right end point",
                got=f"a last value that equals the first in all samples that were read{reading}",
                remedy=f"drop the last point along it: {call}; or say periodic=False if it has walls",
            )
        if jumps:
            raise DataError(
                expected=f"the {name} to be periodic along axis {', '.join(map(str, jumps))}",
                got=f"most samples jump from the last point to the first, by more than {_FACTOR:g} times the largest "
                f"difference between neighbours{reading}",
                remedy="say periodic=False where there are walls (pn.Grid.uniform(shape) alone is periodic)",
            )
    if may_be_equal or len(sides) < 2:
        return
    (first, in_grid), (second, out_grid) = sides.values()
    if (
        first.shape == second.shape
        and in_grid == out_grid
        and bool((first == second).all())
        and bool((first != first[:1]).any())
    ):
        raise DataError(
            expected="outputs that differ from the inputs",
            got=f"equal values in all samples that were read{reading}",
            remedy="name other variables as outputs, or the axis of time: time=; of an identity that is meant, pair fields: "
            "pn.FieldPairs(field, field)",
        )


_LARGE = (9.969209968386869e36, 1e15, 1e20, 9.999e20, 1e30, 1e34, 1e35, 1e36, 1e37, 3.4028234663852886e38)
"""Sizes, with either sign, of fill values of NetCDF, climate archives, reanalyses, ocean models and GIS."""
_NEGATIVE = (-9999.0, -9999.9, -999.0, -999.9, -999.99, -99.9, -99.99, -32768.0, -32767.0, -2147483648.0, -2147483647.0)
"""Habits of observers and instruments, and the least integers, which may also be values."""
_TOLERANCE = 1e-6
"""Relative difference that float32 and decimals of a text make."""
_ISOLATED = 100.0
"""Ratio to the largest other size above which a single one counts."""


def fill_values(values: Float[Tensor, "..."]) -> dict[float, int]:
    """Common fill values among some numbers, and how often they occur.

    A fill value is the largest or the least of all numbers. It counts where it is a hundred times larger than all others;
    a negative one of the size of measurements also where it occurs twice or more.

    Examples:
        >>> import torch
        >>> fill_values(torch.tensor([0.3, -9999.0, 0.7, -9999.0])), fill_values(torch.tensor([-99.9, 80.0]))
        ({-9999.0: 2}, {})
    """
    if not values.numel() or not values.is_floating_point():
        return {}
    low, high = (float(end) for end in values.detach().aminmax())
    counts = {}
    for number in (*_LARGE, *(-size for size in _LARGE), *_NEGATIVE):
        slack = _TOLERANCE * abs(number)
        if abs((high if number > 0 else low) - number) > slack:
            continue
        is_fill = (values.detach() - number).abs() <= slack
        count = int(is_fill.sum())
        others = values.detach()[~is_fill].abs()
        is_isolated = bool(others.numel()) and abs(number) > _ISOLATED * float(others.max())
        if is_isolated or (count > 1 and abs(number) not in _LARGE):
            counts[number] = count
    return counts


def warn_of_fill_values(sides: Mapping[str, Float[Tensor, "..."]]) -> None:
    """Give one DataWarning if there are common fill values among some numbers.

    Args:
        sides: The numbers, by their name in messages.
    """
    warn_of_counts({name: fill_values(values) for name, values in sides.items()})


def warn_of_counts(counts: Mapping[str, Mapping[float, int]]) -> None:
    """Give one DataWarning of the fill values of each side and their counts, if there are any."""
    words = [
        f"{count} {'value' if count == 1 else 'values'} of the {name} {'is' if count == 1 else 'are'} {number:g}"
        for name, numbers in counts.items()
        for number, count in numbers.items()
    ]
    if words:
        warn(
            f"{', '.join(words)}: a common fill value, which is used as a number here. If it stands for missing values, put "
            "NaN in its place and read with mask=True",
            DataWarning,
        )
