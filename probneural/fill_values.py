"""Fill values that nobody declared: numbers that files hold in place of missing ones."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor

from probneural.errors import DataWarning
from probneural.notices import warn

_LARGE = (9.969209968386869e36, 1e20)
"""Defaults of NetCDF and of climate archives: no physical value is like that."""
_NEGATIVE = (-9999.0, -9999.9, -999.0, -999.9, -999.99, -99.9, -99.99)
"""Habits of observers and instruments, which may also be values."""
_TOLERANCE = 1e-6
"""Relative difference that float32 and decimals of a text make."""
_ISOLATED = 100.0
"""How many times all other sizes a single negative one has to be."""


def fill_values(values: Float[Tensor, "..."]) -> dict[float, int]:
    """Common fill values among some numbers, and how often they occur.

    One is enough of those that no physical value is like. A negative one counts where it is the least of all numbers, and
    occurs twice or more, or once and is a hundred times larger than all others.

    Examples:
        >>> import torch
        >>> fill_values(torch.tensor([0.3, -9999.0, 0.7, -9999.0])), fill_values(torch.tensor([-99.9, 80.0]))
        ({-9999.0: 2}, {})
    """
    if not values.numel() or not values.is_floating_point():
        return {}
    low, high = (float(end) for end in values.detach().aminmax())
    counts = {}
    for number in (*_LARGE, *_NEGATIVE):
        slack = _TOLERANCE * abs(number)
        if abs((high if number > 0 else low) - number) > slack:
            continue
        is_fill = (values.detach() - number).abs() <= slack
        count = int(is_fill.sum())
        others = values.detach()[~is_fill].abs()
        is_isolated = bool(others.numel()) and abs(number) > _ISOLATED * float(others.max())
        if number > 0 or count > 1 or is_isolated:
            counts[number] = count
    return counts


def warn_of_fill_values(sides: Mapping[str, Float[Tensor, "..."]]) -> None:
    """Give one DataWarning if there are common fill values among some numbers.

    Args:
        sides: The numbers, by what messages call them.
    """
    told = [
        f"{count} {'value' if count == 1 else 'values'} of the {name} {'is' if count == 1 else 'are'} {number:g}"
        for name, values in sides.items()
        for number, count in fill_values(values).items()
    ]
    if told:
        warn(
            f"{', '.join(told)}: a common fill value, which is used as a number here. If it stands for missing values, put NaN "
            "in its place and read with mask=True",
            DataWarning,
        )
