"""Training residuals: mean squares, and the effective number of observations per field."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import cast, check_variances, real_tensor
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads.training_data import TrainingData
from probneural.randomness import stream

NOISE_FLOOR = 1e-12
"""Lower bound of the estimated noise variance, in units of the outputs' variance; with zero noise the density is undefined."""
_KEPT_FUNCTIONS = 2048
"""Maximum number of samples whose residuals are stored for all inner products."""
_KEPT_VALUES = 2**23
"""Maximum number of stored residual values (64 MiB)."""
_POINTS = 2048
"""Maximum number of points for the exact second moment of residuals: 32 MiB per channel."""
_GROUPS = 1024
"""Number of groups of points in the count sketch of the second moment: 8 MiB per channel."""
_TINY = torch.finfo(torch.float64).tiny


class ResidualSums:
    """Streaming sums over the residuals of n samples; memory does not grow with n.

    The number of effective observations per field and channel, independent of the grid, is the participation ratio
    (tr C)^2 / tr C^2 of the covariance operator C of the residuals r_i with the grid's quadrature. The traces are estimated
    from pairs of different fields (a U-statistic), which removes the bias of few fields:

        m = sum over i != j of |r_i|^2 |r_j|^2 / sum over i != j of <r_i, r_j>^2.

    Up to 2,048 samples (and 8 million values) are stored, and all pairs formed. For more samples the second moment
    S = sum of r_i r_i^T is stored, whose squared norm is the sum of all <r_i, r_j>^2: the same number up to rounding.
    On grids of more than 2,048 points S is the second moment of 1,024 sums over random groups of points with random signs
    (a count sketch), corrected for the sketch's mean bias. Its standard error is about 1 % if m is up to a few hundred, and
    3 % if m is the number of points.

    With one mask per sample, inner products are divided by the mean overlap of two masks.

    Args:
        data: Data set of the residuals.
        channels: Number of channels c.
        unit: Unit of the sums of squares, `(c,)`, in physical units; by default 1.

    Attributes:
        squares: Sum over the samples so far of the mean square over the domain, `(c,)`, in units squared.

    Reference:
        The participation ratio; see docs/design.md for why it replaces the number of grid points. Charikar, Chen and
        Farach-Colton (2002), Finding frequent items in data streams, for the sketch.
    """

    def __init__(self, data: TrainingData, *, channels: int, unit: Float64[Tensor, " c"] | None = None) -> None:
        points, device = data.grid.size, data.outputs.device
        zeros = torch.zeros(channels, dtype=torch.float64, device=device)
        self.data = data
        self.unit = torch.ones_like(zeros) if unit is None else unit.to(zeros)
        self.squares = zeros.clone()
        self._roots = zeros.new_zeros(points)  # sums of roots of weights, with one mask per sample
        self._next = data.first
        self._kept: Tensor | None = None
        self._groups: tuple[Tensor, Tensor] | None = None
        if data.functions <= _KEPT_FUNCTIONS and data.functions * channels * points <= _KEPT_VALUES:
            self._kept = zeros.new_zeros(data.functions, channels, points)
            return
        size = points
        if points > _POINTS:
            generator, size = stream(0, "residual sketch"), _GROUPS
            group = torch.randint(_GROUPS, (points,), generator=generator, device="cpu")
            signs = torch.randint(2, (points,), generator=generator, device="cpu").to(zeros) * 2.0 - 1.0
            self._groups = group.to(device), signs
        self._moment = zeros.new_zeros(channels, size, size)
        self._sums = zeros.new_zeros(2, channels)  # of |r_i|^2 and of |r_i|^4
        self._at_points = zeros.new_zeros(2, channels, points)  # of r_i^2 and of r_i^4

    def add(self, residuals: Float64[Tensor, "b c *grid"], *, grid: Grid) -> None:
        """Add the residuals of the next samples, on their grid."""
        scaled = residuals.flatten(2) / self.unit[:, None]
        self.squares += grid.mean(grid.fill(scaled.unflatten(2, grid.shape)).flatten(2).square()).sum(0)
        roots = grid.sample_weights.to(scaled).sqrt()
        if grid.is_batch:
            self._roots += roots[:, 0].sum(0)
        if self._kept is not None:
            self._kept[self._next : self._next + len(residuals)] = grid.fill(residuals).flatten(2) * roots
            self._next += len(residuals)
            return
        rows = scaled * roots
        if self._groups is not None:
            group, signs = self._groups
            squares = rows.square()
            self._at_points += torch.stack([squares.sum(0), squares.square().sum(0)])
            rows = rows.new_zeros(*rows.shape[:2], _GROUPS).index_add_(2, group, rows * signs)
        by_channel = rows.movedim(1, 0)
        self._moment += by_channel.mT @ by_channel
        norms = rows.square().sum(-1)
        self._sums += torch.stack([norms.sum(0), norms.square().sum(0)])

    def finish(self) -> None:
        """Sum over all ranks: a collective call, once, after the last residuals."""
        if self.data.grid.is_batch:
            self.data.summed(self._roots)
        parts = [self._kept] if self._kept is not None else [self._moment, self._sums, self._at_points]
        for part in (self.squares, *parts):
            self.data.summed(part)

    def effective_observations(self) -> Float64[Tensor, " c"]:
        """The number m per channel, dimensionless, between 1 and the number of grid points; on the CPU."""
        grid, count = self.data.grid, self.data.functions
        points = float((grid.weights > 0).sum() if grid.is_masked and not grid.is_batch else grid.size)
        overlap = 1.0  # mean over pairs of the inner product of roots of weights, less than 1 where masks differ
        if grid.is_batch and count > 1:
            overlap = float((self._roots.square().sum() - count) / (count * (count - 1)))
        if self._kept is not None:
            return (_from_pairs(self._kept) * overlap**2).clamp(1.0, points).cpu()
        total, fourth = self._sums
        independent = total.square() - fourth
        alike = self._moment.square().sum((1, 2)) - fourth
        if self._groups is not None:
            at_points = (self._at_points[0].square() - self._at_points[1]).sum(1)
            alike = (alike - (independent - 2.0 * at_points) / _GROUPS) / (1.0 + 1.0 / _GROUPS)
        return (_ratio(independent, alike) * overlap**2).clamp(1.0, points).cpu()


def _from_pairs(rows: Float64[Tensor, "n c p"]) -> Float64[Tensor, " c"]:
    """The ratio from the Gram matrix of all rows, channel by channel."""
    counts = []
    for channel in range(rows.shape[1]):
        own = rows[:, channel]
        largest = own.abs().max().clamp_min(_TINY)
        gram = (own / largest) @ (own / largest).mT
        squares = gram.diagonal()
        independent = torch.outer(squares, squares).fill_diagonal_(0.0).sum()
        counts.append(_ratio(independent, gram.square().fill_diagonal_(0.0).sum()))
    return torch.stack(counts)


def _ratio(independent: Tensor, alike: Tensor) -> Tensor:
    """Ratio of the two sums; 1 for a vanishing denominator."""
    alike = alike.clamp_min(_TINY)
    return torch.where(independent > 0, independent / alike, torch.ones_like(alike))


def given_per_channel(value: float | Tensor | None, channels: int, *, name: str) -> Float64[Tensor, " c"] | None:
    """Expand a positive number, or one per channel, to `(c,)`; None stays None.

    Raises:
        ArgumentError: If it is neither, or not positive and finite.
    """
    if value is None:
        return None
    numbers = check_variances(value, name, positive=True).detach().cpu()
    if numbers.ndim > 1 or numbers.numel() not in (1, channels):
        raise ArgumentError(
            expected=f"{name} as one number or one per channel ({channels},)",
            got=f"shape {tuple(numbers.shape)}",
            remedy=f"leave {name}=None to learn it",
        )
    return numbers.reshape(-1).expand(channels).clone()


def given_noise(value: float | Tensor | None, channels: int, *, dtype: torch.dtype) -> Float64[Tensor, " c"] | None:
    """Expand a noise variance to `(c,)`, and check that the dtype of predictions represents it.

    Raises:
        ArgumentError: If it overflows or underflows, or the value is not a variance.
    """
    numbers = given_per_channel(value, channels, name="noise")
    if numbers is not None:
        cast(numbers, dtype, "noise variances", error=ArgumentError)
    return numbers


def given_precision(value: object, shapes: Sequence[tuple[int, ...]], *, remedy: str) -> Float64[Tensor, "..."]:
    """Check prior precisions, which may be infinite; on the CPU.

    Raises:
        ArgumentError: If they are not positive numbers.
        ShapeError: If they have another shape.
    """
    numbers = real_tensor(value, "prior_precision", dtype=torch.float64, error=ArgumentError).detach().cpu()
    if tuple(numbers.shape) not in ((), *shapes):
        raise ShapeError(
            expected=f"prior_precision as a number or of shape {' or '.join(map(str, shapes))}",
            got=str(tuple(numbers.shape)),
            remedy=remedy,
        )
    if not bool((numbers > 0).all()):
        raise ArgumentError(expected="prior_precision > 0", got=str(float(numbers.min())), remedy="a flat prior is improper")
    return numbers.clone()


def check_some(inputs: Field) -> None:
    """Raise a DataError for an empty batch, which operators cannot transform."""
    if len(inputs) == 0:
        raise DataError(expected="at least one input", got="none", remedy="leave out empty batches")
