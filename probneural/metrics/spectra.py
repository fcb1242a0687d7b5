"""Power spectra: whether predicted functions are as rough as true ones."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_floating, check_integer
from probneural.contexts import undisturbed
from probneural.errors import GridError, ShapeError
from probneural.grids import Grid, check_grid, check_unmasked
from probneural.metrics.comparison import Comparison
from probneural.metrics.member_pool import ObservedDraws
from probneural.randomness import stream, stream_seed

_DRAWS = 64
"""Draws behind a spectrum that members do not give."""
_ROUNDING = 8.0
"""Units in the last place of the whole power's root below which a band's is rounding."""

_LEAST_POWER = 1e-6
"""Fraction of the power below which a band does not count in the error: a thousandth of the amplitude."""


class PowerSpectrum(NamedTuple):
    """Power of functions in octaves of the wavenumber.

    Attributes:
        edges: Ends of the bands, `(bands + 1,)`, in waves over the longest side of the domain: band b holds wavenumbers from
            edges[b] up to, without, edges[b + 1].
        power: `(..., c, bands)`, in physical units squared; its sum is the variance over the domain.
    """

    edges: Float64[Tensor, " edges"]
    power: Float64[Tensor, "*batch c bands"]


@undisturbed()
def power_spectrum(values: Float[Tensor, "..."], grid: Grid) -> PowerSpectrum:
    """The power of functions in bands of the wavenumber, each an octave wide; the mean over the domain has none.

    Axes that are not periodic are continued evenly, as the cosine transform does, so their ends are no jumps.

    Args:
        values: `(..., c, *grid)`, in physical units.
        grid: A uniform one.

    Raises:
        GridError: If the grid is scattered, or has a single point.
        ShapeError: If the values are of another grid, or have no axis of channels.

    Examples:
        >>> grid = Grid.uniform(16)
        >>> wave = (2 * math.pi * 3 * grid.points[:, 0]).cos()
        >>> edges, power = power_spectrum(wave[None], grid)
        >>> edges.tolist(), [round(number, 12) for number in power[0].tolist()]
        ([1.0, 2.0, 4.0, 8.0, 16.0], [0.0, 0.5, 0.0, 0.0])
    """
    check_floating(values, "values")
    check_unmasked(check_grid(grid), "spectra")
    if not grid.is_uniform or grid.size < 2:
        raise GridError(expected="a uniform grid of two points or more", got=repr(grid), remedy="resample to one")
    dims = tuple(range(-len(grid.axes), 0))
    if values.ndim <= len(dims) or tuple(values.shape[dims[0] :]) != grid.shape:
        expected = f"values of shape (..., channels, {', '.join(map(str, grid.shape))})"
        raise ShapeError(expected=expected, got=str(tuple(values.shape)), remedy="give the grid that they live on")
    extended, longest = values.detach().to(torch.float64), max(axis.length for axis in grid.axes)
    square = torch.zeros((), dtype=torch.float64, device=values.device)
    for dim, axis in zip(dims, grid.axes, strict=True):
        if not axis.periodic:
            mirrored = extended.flip(dim)
            if axis.endpoint and axis.size > 1:
                mirrored = mirrored.narrow(dim, 1, max(axis.size - 2, 0))
            extended = torch.cat([extended, mirrored], dim=dim)
        count = extended.shape[dim]
        waves = torch.fft.fftfreq(count, 1.0 / count, dtype=torch.float64, device=values.device)
        waves = waves * (longest / axis.length) * (1.0 if axis.periodic else 0.5)
        square = square + waves.square().reshape(-1, *(1,) * (-dim - 1))
    power = torch.fft.fftn(extended, dim=dims, norm="forward").abs().square().flatten(dims[0])
    number = square.sqrt().flatten()
    lowest = math.floor(math.log2(float(number[number > 0].min())) + 1e-9)
    bands = math.floor(math.log2(float(number.max())) + 1e-9) - lowest + 1
    band = (number.clamp_min(1e-300).log2() + 1e-9).floor().long() - lowest
    sums = power.new_zeros(*power.shape[:-1], bands)
    inside = number > 0
    sums.index_add_(-1, band[inside], power[..., inside])
    return PowerSpectrum(2.0 ** torch.arange(lowest, lowest + bands + 1, dtype=torch.float64), sums)


def compared_spectra(
    comparison: Comparison, *, draws: int = _DRAWS, seed: int = 0
) -> tuple[PowerSpectrum, Float64[Tensor, "n c bands"]]:
    """The power of the truth, `(n, c, bands)`, and the mean power of the draws of what is observed.

    It is that of draws, not of the mean, which is smoother wherever the prediction is uncertain.

    Args:
        comparison: Prediction and truth.
        draws: Number of draws, where members do not give them.
        seed: Makes them repeatable.

    Raises:
        GridError: If the grid is scattered, or has a single point.
        ArgumentError: If there are no draws, or the seed is none.
    """
    true = power_spectrum(comparison.truth, comparison.grid)
    observed = ObservedDraws(
        comparison,
        draws=check_integer(draws, "draws"),
        seed=stream_seed(seed, "spectrum draws"),
        noise=stream(seed, "spectrum noise"),
        takes_members=True,
        width=comparison.truth[0].numel(),
    )
    means = [torch.tensordot(observed.weights, power_spectrum(drawn, comparison.grid).power, dims=1) for drawn, _ in observed]
    return true, torch.cat(means)


def spectrum_ratio(
    true: Float64[Tensor, "c bands"], drawn: Float64[Tensor, "c bands"], *, eps: float
) -> Float64[Tensor, " bands"]:
    """The ratio of the draws' power to the truth's in each band, a geometric mean over channels.

    Args:
        true: Power of the truth, a mean over functions, in physical units squared.
        drawn: Power of the draws.
        eps: Relative spacing of numbers in the values' dtype.

    Returns:
        `(bands,)`, dimensionless; NaN where the truth has no power but rounding.
    """
    least = (_ROUNDING * eps) ** 2 * true.sum(-1, keepdim=True)
    ratio = torch.where(true > least, drawn.clamp_min(1e-300) / true, torch.full_like(true, math.nan))
    return ratio.log().mean(0).exp()


def spectrum_error(true: Float64[Tensor, "c bands"], drawn: Float64[Tensor, "c bands"], *, eps: float) -> Float64[Tensor, ""]:
    """The root mean square, over bands that hold a millionth of the power or more, of log10 of the ratio; in decades.

    Args:
        true: Power of the truth, as in `spectrum_ratio`.
        drawn: Power of the draws.
        eps: Relative spacing of numbers in the values' dtype.
    """
    has_power = (true >= _LEAST_POWER * true.sum(-1, keepdim=True)).all(0)
    decades = spectrum_ratio(true, drawn, eps=eps).log10()
    return torch.where(has_power, decades, torch.full_like(decades, math.nan)).square().nanmean().sqrt()
