"""Stationary Gaussian processes of unit variance from a power spectrum, on any grid of one domain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.checks import check_shape
from probneural.grids import Grid, check_grid
from probneural.grids.axes import Axis
from probneural.registry import stored

LARGEST_RANK = 384
"""Maximum number of modes in all channels together."""
_KEPT_POWER = 0.99999
"""Fraction of the power in the selected modes, within the maximum number."""
_CANDIDATES = 1024
"""Number of candidate modes, those of lowest frequency."""


@stored(on_cpu=("modes", "amplitudes", "lower", "lengths"))
@dataclass(frozen=True, eq=False, kw_only=True)
class StationaryProcess:
    """Gaussian process e_c(x) = sum over j of a_cj phi_cj(x) zeta_cj / norm(x), with standard normal zeta.

    The modes phi are products of one factor per axis: constant, cosines and sines on a periodic axis, where the process is
    stationary, cosines cos(pi j t) on others. The norm, (sum over j of a_cj² phi_cj(x)²)^1/2, makes the variance 1 everywhere.

    Args:
        modes: Index of the factor along each axis, `(c, r, d)`: 0 is the constant; on a periodic axis, 2 k - 1 and 2 k are
            cosine and sine of k periods; on others, j is the cosine of j half periods.
        amplitudes: a, `(c, r)`, dimensionless, not negative.
        lower: Left end of each axis, `(d,)`, in the grid's units.
        lengths: Extent of each axis, `(d,)`, in the grid's units.
        periodic: Which axes are periodic.

    Raises:
        ShapeError: If the arguments do not fit together.
    """

    modes: Int64[Tensor, "c r d"]
    amplitudes: Float64[Tensor, "c r"]
    lower: Float64[Tensor, " d"]
    lengths: Float64[Tensor, " d"]
    periodic: tuple[bool, ...]

    def __post_init__(self) -> None:
        """Check that the arguments fit together."""
        dimension, remedy = len(self.periodic), "estimate it with Waves(grid).process(power)"
        check_shape(self.modes, "modes", *self.amplitudes.shape[:2], dimension, remedy=remedy)
        check_shape(self.amplitudes, "amplitudes", "c", "r", remedy=remedy)
        for name in ("lower", "lengths"):
            check_shape(getattr(self, name), name, dimension, remedy=remedy)

    def evaluate(self, grid: Grid) -> Float64[Tensor, "*n c p r"]:
        """Root of the process on a grid, or on each grid of a batch, with rows of norm 1.

        Raises:
            GridError: If the grid has another number of dimensions.
        """
        check_grid(grid, dimension=len(self.periodic), remedy="evaluate on the outputs' domain")
        return torch.stack([self.at(points) for points in grid.points]) if grid.has_points_per_sample else self.at(grid.points)

    def at(self, points: Float64[Tensor, "p d"]) -> Float64[Tensor, "c p r"]:
        """Root of the process at some points."""
        roots = []
        for modes, amplitudes in zip(self.modes, self.amplitudes, strict=True):
            waves = evaluate_waves(modes, points, lower=self.lower, lengths=self.lengths, periodic=self.periodic) * amplitudes
            size = waves.square().sum(1, keepdim=True).sqrt()
            roots.append(torch.where(size > 0, waves / size, waves.new_ones(()) / math.sqrt(waves.shape[1])))
        return torch.stack(roots)


class Waves:
    """Fourier modes that a grid resolves, for the analysis of samples on it.

    Args:
        grid: Grid of the samples, with p points.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.lower, self.lengths = box_of(grid)
        self.candidates, self.frequencies = waves_of(grid)
        self._counts = (self.candidates.amax(0) + 1).tolist()
        self._weighted = None if grid.is_uniform or grid.has_points_per_sample else self._scattered(grid)

    def __len__(self) -> int:
        """Number K of modes."""
        return len(self.candidates)

    def coefficients(self, values: Float64[Tensor, "n c p"], grid: Grid | None = None) -> Float64[Tensor, "n c K"]:
        """Coefficients of samples by quadrature, one axis after the other, without a matrix of points and modes.

        Args:
            values: The samples.
            grid: Their grids, if each sample has its own points.
        """
        if grid is not None and grid.has_points_per_sample:
            rows = [sample @ self._scattered(grid.select(slice(i, i + 1))) for i, sample in enumerate(values)]
            return torch.stack(rows) if rows else values.new_zeros(*values.shape[:2], len(self))
        if self._weighted is not None:
            return values @ self._weighted
        spectrum = values.unflatten(-1, self.grid.shape)
        for axis, count in reversed([*zip(self.grid.axes, self._counts, strict=True)]):
            spectrum = _analysed(spectrum, axis, count).movedim(-1, 2)
        place = torch.zeros(len(self), dtype=torch.long)
        for number, count in zip(self.candidates.mT, self._counts, strict=True):
            place = place * count + number
        return spectrum.flatten(2)[..., place]

    def _scattered(self, grid: Grid) -> Float64[Tensor, "p K"]:
        points, weights = grid.points.flatten(0, -2), grid.sample_weights.flatten()
        waves = evaluate_waves(self.candidates, points, lower=self.lower, lengths=self.lengths, periodic=grid.periodic)
        return weights[:, None] * waves

    def process(self, power: Float64[Tensor, "c K"], *, most: int = LARGEST_RANK) -> StationaryProcess:
        """The process with a power spectrum, truncated to the modes with most power.

        Powers are averaged over cosine and sine of one frequency, and both are selected together, since one without the other
        is not stationary; only a maximum of one mode divides them.

        Args:
            power: Mean squared coefficients.
            most: Maximum number of modes in all channels together.
        """
        _, group = torch.unique(self.frequencies, dim=0, return_inverse=True)
        count = torch.bincount(group)
        pooled = (torch.zeros(len(power), len(count), dtype=power.dtype).index_add(1, group, power) / count)[:, group]
        first = torch.full_like(count, len(group)).scatter_reduce(0, group, torch.arange(len(group)), "amin")
        together = first[group].argsort(stable=True)  # modes of one frequency stay adjacent
        order = together[pooled[:, together].argsort(dim=1, descending=True, stable=True)]
        ordered, total = pooled.gather(1, order), pooled.sum(1, keepdim=True)
        captured = torch.where(total > 0, ordered.cumsum(1) / torch.where(total > 0, total, 1.0), 1.0)
        enough = (captured < _KEPT_POWER).sum(1, keepdim=True) + 1
        ranks = _whole_groups(group[order], enough, most=max(1, most // len(power)))
        rank = int(ranks.amax())
        return StationaryProcess(
            modes=self.candidates[order[:, :rank]],
            amplitudes=torch.where(torch.arange(rank) < ranks, ordered[:, :rank].sqrt(), 0.0),
            lower=self.lower,
            lengths=self.lengths,
            periodic=self.grid.periodic,
        )


def _whole_groups(groups: Int64[Tensor, "c K"], enough: Int64[Tensor, "c 1"], *, most: int) -> Int64[Tensor, "c 1"]:
    """Number of leading modes per channel, in whole groups: enough for one channel, and at most `most`."""
    number = torch.arange(1, groups.shape[1] + 1)
    ends = groups != torch.nn.functional.pad(groups[:, 1:], (0, 1), value=-1)
    rank = min(most, int(torch.where(ends & (number >= enough), number, groups.shape[1]).amin(1).amax()))
    counts = torch.where(ends & (number <= rank), number, 0).amax(1, keepdim=True)
    return torch.where(counts > 0, counts, rank)


def box_of(grid: Grid) -> tuple[Tensor, Tensor]:
    """Left ends and extents of the domain; for scattered points, of their bounding box."""
    if grid.is_uniform:
        origins = torch.tensor([axis.origin for axis in grid.axes], dtype=torch.float64)
        return origins, torch.tensor(grid.lengths, dtype=torch.float64)
    points = grid.points[grid.weights > 0] if grid.has_points_per_sample else grid.points
    lower, upper = points.amin(0), points.amax(0)
    return lower, torch.where(upper > lower, upper - lower, torch.ones_like(upper))


def waves_of(grid: Grid) -> tuple[Tensor, Tensor]:
    """Modes that the grid resolves, `(K, d)`, lowest frequencies first, and their frequencies in half periods."""
    if grid.is_uniform:
        counts = [2 * ((axis.size - 1) // 2) + 1 if axis.periodic else max(1, axis.size - 1) for axis in grid.axes]
    else:
        counts = [max(1, int((grid.size / 2) ** (1.0 / grid.dimension)))] * grid.dimension
    waves = torch.zeros(1, 0, dtype=torch.long)
    for axis, count in enumerate(counts):  # the lowest modes of some axes contain those of one axis more
        along = torch.arange(min(count, _CANDIDATES))
        waves = torch.cat([waves.repeat_interleave(len(along), 0), along.repeat(len(waves))[:, None]], 1)
        waves = waves[_lowest(_frequencies(waves, grid.periodic[: axis + 1])).sort().values]
    frequencies = _frequencies(waves, grid.periodic)
    _, group, present = torch.unique(frequencies, dim=0, return_inverse=True, return_counts=True)
    turned = (frequencies > 0) & torch.tensor(grid.periodic)
    is_whole = present[group] == 2 ** turned.sum(1)  # drop the last frequency if its cosine or sine is no candidate
    order = _lowest(frequencies)
    order = order[is_whole[order]]
    return waves[order], frequencies[order]


def _lowest(frequencies: Tensor) -> Tensor:
    """Indices of the candidates of lowest frequency, in increasing order of frequency."""
    return frequencies.square().sum(1).argsort(stable=True)[:_CANDIDATES]


def _frequencies(waves: Tensor, periodic: Sequence[bool]) -> Tensor:
    """Half periods of each mode along each axis."""
    return torch.stack([2 * ((along + 1) // 2) if flag else along for along, flag in zip(waves.mT, periodic, strict=True)], 1)


def evaluate_waves(waves: Tensor, points: Tensor, *, lower: Tensor, lengths: Tensor, periodic: Sequence[bool]) -> Tensor:
    """Values of modes at points, `(p, K)`; orthonormal in the average over the domain."""
    products = torch.ones(len(points), len(waves), dtype=torch.float64)
    position = (points - lower) / lengths
    for axis, flag in enumerate(periodic):
        numbers, place = waves[:, axis].unique(return_inverse=True)
        products *= _waves_along(position[:, axis], numbers, is_periodic=flag)[:, place]
    return products


def _analysed(values: Float64[Tensor, "*b m"], axis: Axis, count: int) -> Float64[Tensor, "*b k"]:
    """Coefficients of the first `count` modes along the last axis of values, by quadrature and a fast Fourier transform."""
    intervals = max(axis.size - 1, 1) if axis.endpoint else axis.size
    # Nodes lie at n / intervals of the length: cos(pi j t) has a period of twice the intervals.
    weighted = values * (axis.weights / axis.weights.sum()).to(values)
    spectrum = torch.fft.rfft(weighted, n=intervals if axis.periodic else 2 * intervals)
    if axis.periodic:  # cosine and sine of each frequency above 0
        waves = torch.stack([spectrum.real, -spectrum.imag], -1).flatten(-2)
        waves = torch.cat([waves[..., :1], waves[..., 2:]], -1)
    else:
        waves = spectrum.real
    amplitudes = torch.full((count,), math.sqrt(2.0), dtype=torch.float64).index_fill(0, torch.tensor(0), 1.0)
    return waves[..., :count] * amplitudes.to(values)


def _waves_along(position: Tensor, number: Tensor, *, is_periodic: bool) -> Tensor:
    """Factors of modes along an axis, `(p, k)`, at positions from 0 to 1."""
    frequencies = _frequencies(number[:, None], [is_periodic])[:, 0]
    is_sine = (number % 2 == 0) & (number > 0) & is_periodic
    argument = math.pi * (frequencies.to(torch.float64) * position[:, None] - 0.5 * is_sine)
    return argument.cos_().mul_(torch.where(number == 0, 1.0, math.sqrt(2.0)))
