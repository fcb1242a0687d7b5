"""Fill values that nobody declared: numbers that files hold in place of missing ones."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from probneural.errors import DataWarning
from probneural.notices import warn

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
        sides: The numbers, by what messages call them.
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
