"""Statistics of samples, per channel: one pass over data of any size, in float64, merged over parts and processes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_count, check_least
from probneural.errors import DataError
from probneural.fields import Field, power_of_two
from probneural.pairs import FieldSource
from probneural.processes import gathered, own_rows, world_size

_CHUNK_NUMBERS = 2**21
"""Number of values per chunk (16 MiB in float64); the chunks of a source depend only on its grid and channels."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Statistics:
    """Count, mean and spread of samples, per channel, as sums that can be merged.

    Means are over samples and, by quadrature, over the domain. Samples have equal weights on any grid and volume. Sums
    are kept in units of a power of two per channel, so squares neither overflow nor vanish, and about the mean, so a channel
    that does not vary has no spread.

    Args:
        count: Number of samples n.
        units: The power of two per channel, in physical units, `(c,)`; 0 for a channel that is zero so far.
        means: Mean per channel, in those units, `(c,)`.
        squares: Sum over samples of the mean square deviation from the mean, in those units squared, `(c,)`.

    Reference:
        Chan, Golub and LeVeque (1983), Algorithms for computing the sample variance: equation 2.1, with weights.

    Examples:
        >>> from probneural.grids import Grid
        >>> field = Field(torch.tensor([[[1.0, 1.0]], [[3.0, 3.0]], [[8.0, 8.0]]]), Grid.uniform(2))
        >>> parts = Statistics.of(field[:2]).merge(Statistics.of(field[2:]))
        >>> parts.count, parts.mean.tolist(), parts.variance.tolist()
        (3, [4.0], [8.666666666666666])
    """

    count: int
    units: Float64[Tensor, " c"]
    means: Float64[Tensor, " c"]
    squares: Float64[Tensor, " c"]

    @classmethod
    def empty(cls, channels: int) -> Statistics:
        """Those of no sample."""
        zeros = torch.zeros(channels, dtype=torch.float64, device="cpu")
        return cls(count=0, units=zeros, means=zeros, squares=zeros)

    @classmethod
    def of(cls, field: Field) -> Statistics:
        """Statistics of samples in memory, in one chunk."""
        if not len(field):
            return cls.empty(field.channels)
        values = field.values.detach()
        try:
            values = values.to(torch.float64).flatten(2)
        except TypeError:  # MPS has no float64
            values = values.cpu().to(torch.float64).flatten(2)
        largest = values.abs().amax((0, 2))
        units = torch.where(largest == 0, largest, power_of_two(largest))
        values = (values / torch.where(units == 0, 1.0, units)[:, None]).contiguous()
        origin = values[0, :, 0]  # a channel that does not vary is then zero, and the rounding of its mean no spread
        values = values - origin[:, None]
        means = field.grid.mean(values).mean(0)
        squares = field.grid.mean((values - means[:, None]).square()).sum(0)
        return cls(count=len(field), units=units.cpu(), means=(means + origin).cpu(), squares=squares.cpu())

    @classmethod
    def merged(cls, parts: Iterable[Statistics]) -> Statistics:
        """Those of all samples of some parts, one part or more."""
        return reduce(cls.merge, parts)

    def merge(self, added: Statistics) -> Statistics:
        """Those of the samples of both.

        Raises:
            DataError: If the numbers of channels differ.
        """
        remedy = "give the same channels"
        check_count(len(added.means), len(self.means), "channels of functions", remedy=remedy, error=DataError)
        if not (self.count and added.count):
            return self if self.count else added
        units = torch.maximum(self.units, added.units)
        safe = torch.where(units == 0, 1.0, units)
        first, second, count = self.units / safe, added.units / safe, self.count + added.count
        difference = added.means * second - self.means * first
        means = self.means * first + difference * (added.count / count)
        between = difference.square() * (self.count * added.count / count)
        squares = self.squares * first.square() + added.squares * second.square() + between
        return Statistics(count=count, units=units, means=means, squares=squares)

    def over_processes(self) -> Statistics:
        """Those of the samples of all processes of torch.distributed, each of which makes this call.

        Every process gets the same bits: parts are merged in the order of ranks.
        """
        return Statistics.merged(_unpacked(row) for row in gathered(_packed(self)))

    @property
    def mean(self) -> Float64[Tensor, " c"]:
        """Mean per channel, in physical units."""
        return self.means * self.units

    @property
    def variance(self) -> Float64[Tensor, " c"]:
        """Mean square deviation from the mean per channel, in physical units squared."""
        return self.std.square()

    @property
    def std(self) -> Float64[Tensor, " c"]:
        """Standard deviation per channel, in physical units."""
        return (self.squares / max(self.count, 1)).sqrt() * self.units


def statistics(source: FieldSource, *, over_processes: bool = False) -> Statistics:
    """Read samples once, in chunks, and return their statistics.

    Chunks follow from grid and channels alone, so a source in memory and one on disk that hold equal samples give equal bits.

    Args:
        source: The samples.
        over_processes: Whether every process of torch.distributed makes this call, with equal sources: each then reads its part
            of the chunks, and all get the bits that one process would.

    Returns:
        The statistics, on the CPU.

    Examples:
        >>> from probneural.grids import Grid
        >>> statistics(Field(torch.arange(3.0)[:, None, None].expand(3, 1, 4), Grid.uniform(4))).mean.tolist()
        [1.0]
    """
    size = max(1, _CHUNK_NUMBERS // (source.channels * source.grid.size))
    starts = range(0, len(source), size)
    indices = own_rows(len(starts)) if over_processes else range(len(starts))
    equally_many = -(-len(starts) // world_size()) if over_processes else len(starts)
    rows = torch.zeros(equally_many, 3 * source.channels + 1, dtype=torch.float64, device="cpu")
    for row, number in zip(rows, indices, strict=False):  # kept in one place: small tensors between large ones break up memory
        row.copy_(_packed(Statistics.of(source[starts[number] : min(starts[number] + size, len(source))])))
    parts = gathered(rows) if over_processes and equally_many else [rows]
    return Statistics.merged([Statistics.empty(source.channels), *(_unpacked(row) for part in parts for row in part)])


def units(
    source: FieldSource | Sequence[FieldSource], *, over_processes: bool = False
) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
    """Mean and standard deviation of the values per channel, by quadrature, detached, in physical units.

    A channel that does not vary has scale 1.

    Args:
        source: The samples, or several sources side by side, whose grids may differ; each sample counts alike.
        over_processes: See [`statistics`][probneural.statistics.statistics].

    Returns:
        Mean and scale, on the CPU.

    Raises:
        DataError: If there is no sample, or sources have different channels.

    Examples:
        >>> from probneural.grids import Grid
        >>> fine = Field(torch.ones(2, 1, 8), Grid.uniform(8))
        >>> coarse = Field(-torch.ones(2, 1, 4), Grid.uniform(4))
        >>> [numbers.tolist() for numbers in units([fine, coarse])]
        [[0.0], [1.0]]
    """
    sources = source if isinstance(source, Sequence) else [source]
    parts = [statistics(part, over_processes=over_processes) for part in sources]
    check_least(sum(part.count for part in parts), 1, "functions to take units from", remedy="give more data")
    total = Statistics.merged(parts)
    mean, scale = total.mean, total.std
    rounding = max(torch.finfo(part.dtype).eps for part in sources)
    flat = scale <= rounding * mean.abs()
    return mean, torch.where(flat, 1.0, scale)


def _packed(part: Statistics) -> Float64[Tensor, " numbers"]:
    """Statistics as one row of numbers; counts below 2^53 are exact."""
    return torch.cat([part.units, part.means, part.squares, part.units.new_tensor([part.count])])


def _unpacked(row: Float64[Tensor, " numbers"]) -> Statistics:
    """The statistics of which `_packed` made a row."""
    powers, means, squares = row[:-1].reshape(3, -1)
    return Statistics(count=int(row[-1]), units=powers, means=means, squares=squares)
