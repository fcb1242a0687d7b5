"""Band-limited random fields: the noise that enters an operator, the same distribution and the same draws on every grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import assign, check_flag, check_instance, check_integer
from probneural.errors import GridError, ShapeError
from probneural.grids import Grid, check_grid, per_axis
from probneural.grids.axes import Axis
from probneural.operators.checks import check_modes
from probneural.registry import stored


@stored()
@dataclass(frozen=True)
class NoiseField:
    """z_q(x) = sum over j of a_qj e_j(x), with independent a_qj ~ N(0, 1): Gaussian noise in a band of frequencies.

    The functions e_j are products over the axes of Fourier modes |k| < m, scaled so that z has mean square 1 over the domain:
    sines and cosines of periodic axes, on which z is stationary, and cosines of half periods of others, where its variance is
    up to twice that at the ends. A draw is its coefficients, so it is the same function on every grid. Without modes z is
    constant in space: one random vector for a whole function.

    Args:
        channels: Number of independent fields q.
        modes: m per axis; by default the noise is constant in space.
        periodic: Whether each axis is periodic; without effect if there are no modes.

    Raises:
        ArgumentError: If a size is not a positive integer, or there is not one flag per axis.

    Examples:
        >>> noise = NoiseField(2, modes=(3,))
        >>> noise.size
        10
        >>> noise.evaluate(torch.ones(1, 10), Grid.uniform((8,))).shape
        torch.Size([1, 2, 8])
    """

    channels: int = 4
    _: KW_ONLY
    modes: Sequence[int] | None = None
    periodic: bool | Sequence[bool] = True

    def __post_init__(self) -> None:
        """Check the sizes."""
        assign(self, channels=check_integer(self.channels, "channels"))
        if self.modes is None:
            assign(self, periodic=check_flag(self.periodic, "periodic"))
            return
        modes = check_modes(self.modes)
        assign(self, modes=modes, periodic=per_axis(self.periodic, len(modes), "periodic", check_flag))

    @property
    def waves(self) -> int:
        """Number of functions e_j."""
        pairs = zip(self.modes or (), self._periodic, strict=True)
        return math.prod(2 * mode - 1 if is_periodic else mode for mode, is_periodic in pairs)

    @property
    def size(self) -> int:
        """Coefficients of a draw, all channels together."""
        return self.channels * self.waves

    @property
    def _periodic(self) -> tuple[bool, ...]:
        return self.periodic if isinstance(self.periodic, tuple) else ()

    def evaluate(self, coefficients: Float[Tensor, "n z"], grid: Grid) -> Float[Tensor, "n q *grid"]:
        """The noise of n draws on a grid; without modes `(n, q, 1, ...)`, which broadcasts.

        Args:
            coefficients: `(n, size)`, standard normal, channel by channel.
            grid: Where; any uniform grid with the axes of the modes, or any grid at all without modes.

        Raises:
            ShapeError: If the number of coefficients differs.
            GridError: If the grid is scattered, or its axes are not those of the modes.
        """
        check_grid(grid)
        check_instance(coefficients, Tensor, "coefficients", remedy="draw them with torch.randn(n, noise.size)")
        if coefficients.ndim != 2 or coefficients.shape[1] != self.size:
            raise ShapeError(
                expected=f"coefficients of shape (n, {self.size})", got=str(tuple(coefficients.shape)), remedy="see `size`"
            )
        by_channel = coefficients.unflatten(1, (self.channels, self.waves))
        if self.modes is None:
            return by_channel.reshape(*by_channel.shape[:2], *(1,) * len(grid.shape))
        if not grid.is_uniform or tuple(axis.periodic for axis in grid.axes) != self._periodic:
            raise GridError(
                expected=f"a uniform grid with periodic={self._periodic}, as the noise has it",
                got=repr(grid),
                remedy="give NoiseField(modes=..., periodic=...) of the data's axes, or leave out the modes",
            )
        basis = torch.ones(1, 1, dtype=torch.float64, device="cpu")
        for axis, mode in zip(grid.axes, self.modes, strict=True):
            along = _waves(axis, mode)
            basis = (basis[:, None, :, None] * along[None, :, None, :]).flatten(2).flatten(0, 1)
        return (by_channel @ basis.to(by_channel)).unflatten(-1, grid.shape)


def _waves(axis: Axis, modes: int) -> Float64[Tensor, "j p"]:
    """Waves |k| < m of an axis, with squares that add up to 1 (on average over an axis with ends)."""
    turn = math.pi * (axis.coordinates - axis.origin) / axis.length
    numbers = torch.arange(1, modes, dtype=torch.float64, device="cpu")[:, None]
    constant = torch.ones(1, axis.size, dtype=torch.float64, device="cpu")
    if not axis.periodic:
        return torch.cat([constant, math.sqrt(2.0) * torch.cos(numbers * turn)]) / math.sqrt(modes)
    phase = 2.0 * numbers * turn
    both = math.sqrt(2.0) * torch.cat([torch.cos(phase), torch.sin(phase)])
    return torch.cat([constant, both]) / math.sqrt(2 * modes - 1)
