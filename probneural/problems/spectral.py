"""Fourier series: derivatives, products and transforms of periodic fields, series on [0, 1), and modes of a grid axis."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_floating, check_integer
from probneural.errors import GridError
from probneural.grids import Axis, Grid, along_axis, check_grid


def spectral_derivative(u: Tensor, grid: Grid, *, order: int = 1, axis: int = 0) -> Tensor:
    """Differentiate the trigonometric interpolant of periodic fields along one axis.

    Args:
        u: `(..., *grid.shape)`.
        grid: A uniform grid that is periodic along the axis.
        order: Order of the derivative; 0 is the field itself.
        axis: Number of the grid axis.

    Returns:
        The derivative at the grid points, in units of u per length to the power of `order`.

    Raises:
        GridError: If the axis is not periodic.
        ArgumentError: If the order is negative or the axis is out of range.

    Reference:
        Trefethen (2000), Spectral Methods in MATLAB, chapter 3. Between boundaries, differentiate with
        [`functionals.derivative`][probneural.functionals.derivative], which reads the local interpolant.

    Examples:
        >>> grid = Grid.uniform((8,), lengths=2 * math.pi)
        >>> x = grid.points[:, 0]
        >>> torch.allclose(spectral_derivative(x.sin()[None, None], grid), x.cos())
        True
    """
    check_integer(order, "order", least=0)
    check_floating(u, "u")
    check_integer(axis, "axis", least=0, most=check_grid(grid).dimension - 1)
    _check_periodic(grid, grid.periodic[axis])
    spacing = grid.axes[axis]
    dim = axis - grid.dimension
    counts = torch.arange(spacing.size // 2 + 1, dtype=u.dtype, device=u.device)
    factor = (2j * math.pi / spacing.length * counts) ** order if order else torch.ones_like(counts)
    factor = factor.reshape(-1, *(1,) * (-1 - dim))
    # The inverse transform drops an imaginary Nyquist term: the sine of that frequency vanishes at every node.
    values: Tensor = torch.fft.irfft(torch.fft.rfft(u, dim=dim) * factor, n=spacing.size, dim=dim)
    return values


def dealias(u: Tensor, grid: Grid) -> Tensor:
    """Drop the highest third of the frequencies on every axis, so that products of two fields do not alias.

    Args:
        u: `(..., *grid.shape)`.
        grid: A uniform periodic grid.

    Returns:
        The field without frequencies |k| ≥ N/3, in the units of u.

    Raises:
        GridError: If an axis is not periodic.

    Reference:
        Orszag (1971), On the elimination of aliasing in finite-difference schemes by filtering high-wavenumber components.

    Examples:
        >>> grid = Grid.uniform((12,))
        >>> waves = torch.cos(2 * math.pi * torch.tensor([[3.0], [4.0]], dtype=torch.float64) * grid.points[:, 0])
        >>> dealias(waves, grid).abs().amax(-1).round(decimals=6).tolist()
        [1.0, 0.0]
    """
    check_floating(u, "u")
    _check_periodic(grid, all(check_grid(grid).periodic))
    for number, axis in enumerate(grid.axes):
        dim = number - grid.dimension
        counts = torch.arange(axis.size // 2 + 1, device=u.device)
        mask = (3 * counts < axis.size).to(u.dtype).reshape(-1, *(1,) * (-1 - dim))
        u = torch.fft.irfft(torch.fft.rfft(u, dim=dim) * mask, n=axis.size, dim=dim)
    return u


def _check_periodic(grid: Grid, flag: bool) -> None:
    if not flag:
        raise GridError(
            expected="a uniform grid that is periodic along the axis of differentiation",
            got=repr(grid),
            remedy="between boundaries use probneural.functionals.derivative",
        )


def spectrum(values: Tensor) -> Tensor:
    """Coefficients c of the trigonometric interpolant c₀ + 2 Re Σ c_k e^(2πikx) of `(..., N)`: `(..., N // 2 + 1)`, complex.

    The Nyquist term of an even N is a cosine, so its coefficient is halved.
    """
    coefficients = torch.fft.rfft(values, norm="forward")
    if values.shape[-1] % 2:
        return coefficients
    weight = torch.ones(coefficients.shape[-1], dtype=values.dtype, device=values.device)
    weight[-1] = 0.5
    return coefficients * weight


def rates(coefficients: Tensor) -> Tensor:
    """2πik for each coefficient: the factors of a derivative."""
    return 2j * math.pi * torch.arange(coefficients.shape[-1], dtype=torch.float64, device=coefficients.device)


def without_mean(coefficients: Tensor) -> Tensor:
    """The series less its mean."""
    return torch.cat([torch.zeros_like(coefficients[..., :1]), coefficients[..., 1:]], dim=-1)


def integrate(coefficients: Tensor) -> Tensor:
    """The antiderivative of zero mean of a series, without the series' mean."""
    parts = coefficients[..., 1:] / rates(coefficients)[1:]  # so that no gradient divides by the rate of the mean, zero
    return torch.cat([torch.zeros_like(coefficients[..., :1]), parts], dim=-1)


def read(coefficients: Tensor, count: int) -> Tensor:
    """Values at `count` equispaced points from 0, more of them than twice the highest frequency."""
    return torch.fft.irfft(coefficients, n=count, norm="forward")


def evaluate(coefficients: Tensor, points: Tensor) -> Tensor:
    """Values of each series `(n, B)` at separate points `(n, ...)`, by Horner's rule, which is stable on the unit circle.

    Work grows with points times frequencies, memory with the points alone.
    """
    angle = 2.0 * math.pi * torch.remainder(points, 1.0)
    turn = torch.complex(angle.cos(), angle.sin())
    ranks = (...,) + (None,) * (points.ndim - 1)
    total = torch.zeros_like(turn)
    for frequency in range(coefficients.shape[-1] - 1, 0, -1):
        total = (total + coefficients[:, frequency][ranks]) * turn
    return coefficients[:, 0].real[ranks] + 2.0 * total.real


def modes(axis: Axis) -> tuple[Float64[Tensor, "size modes"], Float64[Tensor, " modes"], Float64[Tensor, " modes"]]:
    """The modes that an axis resolves, with their angular wavenumbers, and their reciprocal squared lengths."""
    numbers, wavenumbers = torch.arange(axis.size), torch.arange(axis.size // 2 + 1)
    if not axis.periodic:
        cells = axis.size - 1
        wavenumbers = torch.arange(1, cells)
        # Integers are reduced modulo one period before the sine, which is exact.
        turns = torch.remainder(numbers[:, None] * wavenumbers, 2 * cells).double() / cells
        waves = torch.sin(math.pi * turns)
        waves[0], waves[-1] = 0.0, 0.0
        return waves, math.pi * wavenumbers.double(), torch.full(wavenumbers.shape, 2.0 / cells, dtype=torch.float64)
    phase = 2.0 * math.pi * torch.remainder(numbers[:, None] * wavenumbers, axis.size).double() / axis.size
    weights = torch.full(wavenumbers.shape, 2.0 / axis.size, dtype=torch.float64)
    weights[0] = 1.0 / axis.size
    if axis.size % 2 == 0:
        weights[-1] = 1.0 / axis.size  # the Nyquist term is a cosine; its sine vanishes at every node
    angular = 2.0 * math.pi * wavenumbers.double()
    return torch.cat([phase.cos(), phase.sin()], dim=1), angular.repeat(2), weights.repeat(2)


def eigenvalues(grid: Grid) -> Float64[Tensor, "..."]:
    """Eigenvalue of −Δ for each product of the axes' modes, as many axes as the grid has."""
    total = torch.zeros((), dtype=torch.float64)
    for axis in grid.axes:
        total = total[..., None] + modes(axis)[1] ** 2
    return total


def divide(values: Float64[Tensor, "..."], grid: Grid, *, divisor: Float64[Tensor, "..."]) -> Float64[Tensor, "..."]:
    """Divide the coefficients of `(..., *grid.shape)` by a divisor for each product of modes, which broadcasts."""
    transforms = [modes(axis) for axis in grid.axes]
    for number, (waves, _, weights) in enumerate(transforms):
        values = along_axis(values, (waves * weights).T, number - grid.dimension)
    values = values / divisor
    for number, (waves, _, _) in enumerate(transforms):
        values = along_axis(values, waves, number - grid.dimension)
    return values
