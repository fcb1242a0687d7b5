"""Power spectra of predictions and truth."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_floating, check_integer, check_shape
from probneural.contexts import undisturbed
from probneural.errors import GridError
from probneural.grids import Grid, check_grid, check_unmasked
from probneural.metrics.comparison import Comparison
from probneural.metrics.member_pool import ObservedDraws
from probneural.randomness import stream, stream_seed

_DRAWS = 64
"""Draws of a spectrum for predictions without members."""
_ROUNDING = 8.0
"""Amplitudes of a band up to this many units in the last place of the total amplitude are rounding errors."""

_LEAST_POWER = 1e-6
"""Fraction of the power below which a band is omitted from the error: a thousandth of the amplitude."""


class PowerSpectrum(NamedTuple):
    """Power of functions in octaves of the wavenumber.

    Attributes:
        edges: Ends of the bands, `(bands + 1,)`, in periods over the longest side of the domain: band b has the wavenumbers
            edges[b] <= k < edges[b + 1].
        power: Power of each band, `(..., c, bands)`, in physical units squared; its sum is the variance over the domain.
    """

    edges: Float64[Tensor, " edges"]
    power: Float64[Tensor, "*batch c bands"]


@undisturbed()
def power_spectrum(values: Float[Tensor, "..."], grid: Grid) -> PowerSpectrum:
    """Power of functions in octaves of the wavenumber, without the mean over the domain.

    Axes that are not periodic are continued evenly, as by a cosine transform.

    Args:
        values: Values of functions, `(..., c, *grid)`, in physical units.
        grid: A uniform grid.

    Raises:
        GridError: If the grid is scattered, or has a single point.
        ShapeError: If the values have another grid or no channel axis.

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
    check_shape(values, "values", "...", "channels", *grid.shape, remedy="pass the grid of the values")
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
    """Power of the truth and mean power of draws of observations, both `(n, c, bands)`.

    The mean of an uncertain prediction is smoother than its draws, so it is not compared.

    Args:
        comparison: Prediction and truth.
        draws: Number of draws for predictions without members.
        seed: Seed of the draws.

    Raises:
        GridError: If the grid is scattered, or has a single point.
        ArgumentError: If there are no draws, or the seed is invalid.
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
    """Ratio of the power of draws to that of the truth in each band, as a geometric mean over channels.

    Args:
        true: Mean power of the truth over samples, in physical units squared.
        drawn: Mean power of the draws.
        eps: Relative spacing of numbers in the values' dtype.

    Returns:
        `(bands,)`, dimensionless; NaN where the power of the truth is a rounding error.
    """
    least = (_ROUNDING * eps) ** 2 * true.sum(-1, keepdim=True)
    ratio = torch.where(true > least, drawn.clamp_min(1e-300) / true, torch.full_like(true, math.nan))
    return ratio.log().mean(0).exp()


def spectrum_error(true: Float64[Tensor, "c bands"], drawn: Float64[Tensor, "c bands"], *, eps: float) -> Float64[Tensor, ""]:
    """Root mean square of log10 of the ratio over bands with at least a millionth of the power, in decades.

    Args:
        true: Power of the truth, as in `spectrum_ratio`.
        drawn: Power of the draws.
        eps: Relative spacing of numbers in the values' dtype.
    """
    has_power = (true >= _LEAST_POWER * true.sum(-1, keepdim=True)).all(0)
    decades = spectrum_ratio(true, drawn, eps=eps).log10()
    return torch.where(has_power, decades, torch.full_like(decades, math.nan)).square().nanmean().sqrt()
