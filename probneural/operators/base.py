"""What our operators have in common beyond being an `nn.Module`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from probneural.errors import GridError, ShapeError
from probneural.fields import FieldPairs, Grid


class Operator(nn.Module, ABC):
    """A neural operator that evaluates anywhere, carries its units, and can be rebuilt from its configuration; abstract.

    Attributes:
        in_channels: Channels of its inputs.
        out_channels: Channels of its outputs.
    """

    in_channels: int
    out_channels: int

    @abstractmethod
    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Map `(n, in_channels, *grid)` to `(n, out_channels, *query)`.

        Args:
            values: Input functions, in physical units.
            grid: Where they live; by default a uniform grid on the unit domain.
            query: Where to evaluate the output; by default where the inputs live.
        """

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments, in types that JSON knows."""

    @abstractmethod
    def fit_normalizers(self, train: FieldPairs) -> None:
        """Take the units from training data; called once, by `pn.fit`, before the first step."""


def check_input(values: Tensor, *, channels: int, dimension: int) -> None:
    """Raise a ShapeError unless values are `(n, channels, *grid)` with `dimension` grid axes."""
    if values.ndim != 2 + dimension or values.shape[1] != channels:
        axes = ", ".join(["points"] * dimension)
        raise ShapeError(
            expected=f"values of shape (n, {channels}, {axes})",
            got=str(tuple(values.shape)),
            remedy="channels come second, grid axes last",
        )


def check_grid(grid: Grid, values: Tensor, *, periodic: tuple[bool, ...]) -> None:
    """Raise a GridError unless the grid is uniform, carries the values, and is periodic where the operator is."""
    if not grid.is_uniform or grid.shape != tuple(values.shape[2:]) or grid.periodic != periodic:
        raise GridError(
            expected=f"a uniform grid of shape {tuple(values.shape[2:])} with periodic={periodic}",
            got=repr(grid),
            remedy="build the operator with the periodic= of its data, and pass the values' own grid",
        )
