"""Maxima: nonlinear, so distributions are pushed through them by draws."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from jaxtyping import Bool, Float
from numpy.typing import ArrayLike
from torch import Tensor

from probneural.checks import real_tensor
from probneural.contexts import Undisturbed, undisturbed
from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.functionals.base import check_unbatched
from probneural.functionals.regions import Corner, Indicator, fractions, points_in_box
from probneural.grids import Grid, check_grid, check_on_grid


@dataclass(frozen=True, eq=False)
class Maximum(Undisturbed):
    """The largest value at some of a grid's points; see [`maximum`][probneural.functionals.maximum].

    Args:
        grid: Where the fields live.
        inside: Which points count, `(p,)`.
        labels: The name of the number.
    """

    grid: Grid
    inside: Bool[Tensor, " p"]
    _: KW_ONLY
    labels: tuple[str, ...] | None = ("maximum",)

    def __post_init__(self) -> None:
        """Check the points against the grid."""
        if tuple(self.inside.shape) != (self.grid.size,):
            raise ShapeError(
                expected=f"truth values of shape ({self.grid.size},)", got=str(tuple(self.inside.shape)), remedy="one per point"
            )

    @property
    def size(self) -> int:
        """One number per channel."""
        return 1

    def __call__(self, values: Float[Tensor, "..."]) -> Float[Tensor, "... 1"]:
        """Find the maximum of values `(..., *grid.shape)`, in their dtype and on their device; arrays will do.

        Raises:
            DataError: If they are no real numbers.
            ShapeError: If the values do not end in the grid's shape.
        """
        numbers = real_tensor(values, "values")
        check_on_grid(numbers, self.grid)
        flat = numbers.flatten(numbers.ndim - len(self.grid.shape))
        return flat[..., self.inside.to(flat.device)].amax(-1, keepdim=True)


@undisturbed()
def maximum(
    grid: Grid, where: Indicator | ArrayLike | Tensor | None = None, *, lower: Corner | None = None, upper: Corner | None = None
) -> Maximum:
    """The largest value at the grid's points, or at those in a region; one number per channel, in the values' units.

    Masked points are left out.

    It is no linear functional. `maximum(grid)(values)` is the maximum of given fields; of a distribution,
    `u.apply_by_draws(maximum(grid))` is an empirical distribution with quantiles and intervals, and the maximum of the mean is
    not the mean of the maximum. Between points a field can be larger: predict on a finer grid by `query=`.

    Args:
        grid: Any grid.
        where: A mask of the grid's shape, or a function of points `(q, d)` that returns truth values `(q,)`; every point by
            default.
        lower: Lower corner of a box, `(d,)`, in the grid's units; ends are included. On periodic axes a box may cross the
            domain's ends.
        upper: Upper corner, likewise.

    Raises:
        ArgumentError: If both `where` and corners are given, or a corner does not have one finite number per dimension.
        GridError: If a box leaves the domain, or no point is inside.
        ShapeError: If the mask does not have the grid's shape, or the function does not return `(q,)`.
        DataError: If the mask or what the function returns are no truth values.

    Examples:
        >>> maximum(Grid.uniform((4,)), upper=[0.3])([[1.0, 2.0, 9.0, 9.0]]).item()
        2.0
    """
    check_unbatched(check_grid(grid))
    if where is not None and (lower is not None or upper is not None):
        raise ArgumentError(expected="where, or the corners of a box", got="both", remedy="drop one")
    inside = points_in_box(grid, lower, upper) if where is None else fractions(grid, where) > 0
    inside = inside & grid.observed.flatten()
    if not bool(inside.any()):
        raise GridError(
            expected=f"a region with points of {grid!r}", got="none inside", remedy="widen the region, or refine the grid"
        )
    return Maximum(grid, inside)
