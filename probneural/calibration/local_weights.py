"""Weights of several predictors that vary along a function: which of them is right, and where."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.calibration.local_scale import (
    Quantities,
    Reader,
    interpolated,
    shape_features,
    spans,
    standardised,
    wave_numbers,
)
from probneural.errors import ShapeError
from probneural.grids import Grid, resample

_TINY = 1e-30
"""Of the sum of variances, added to each before a logarithm."""
_SHAPE_FEATURES = 5
"""Features of the mean's slope and size."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalWeights:
    """w_ck(x; u) = softmax over k of (a_ck + sum over j of b_ckj phi_cj(x; u)): the weights of m predictors at each point.

    Features phi are dimensionless and know nothing of the truth: the logarithm of each predictor's variance relative to
    their average; of the mean, averaged over predictors by `reference`, what [`LocalScale`][probneural.calibration.LocalScale]
    reads: its slope, the square of that, its size, and both along the whole function; and waves of the position. Variances and
    squares are averaged over a neighbourhood, so that weights are smooth. Features are read on the calibration grid, and
    interpolated to others, so weights are one function, seen at several resolutions. They are kept in the range that
    calibration fields span: nothing is extrapolated.

    Args:
        grid: That of the calibration outputs, uniform.
        width: Standard deviation of the Gaussian neighbourhood, in lengths of the domain along each axis.
        reference: Weights of the predictors in the mean that slope and size are read off, `(m,)`, with the sum 1.
        slopes: Root mean square of each partial derivative of that mean, `(c, d)`, in physical units per the grid's units.
        amplitudes: Root mean square distance of that mean from its average, `(c,)`, in physical units.
        standards: Mean of each feature, its standard deviation (1 where there is none), and the least and the largest
            standardised value, `(4, c, k)`.
        coefficients: a, and b for each standardised feature, `(c, m, k + 1)`, dimensionless.

    Raises:
        ShapeError: If the tensors do not fit together.
    """

    grid: Grid
    width: float
    reference: Float64[Tensor, " m"]
    slopes: Float64[Tensor, "c d"]
    amplitudes: Float64[Tensor, " c"]
    standards: Float64[Tensor, "4 c k"]
    coefficients: Float64[Tensor, "c m k1"]

    def __post_init__(self) -> None:
        """Check that the tensors fit together."""
        channels, members = len(self.amplitudes), len(self.reference)
        count = number_of_features(members, self.grid)
        tensors = (self.slopes, self.standards, self.coefficients)
        expected = [(channels, self.grid.dimension), (4, channels, count), (channels, members, count + 1)]
        found = [tuple(tensor.shape) for tensor in tensors]
        if found != expected:
            raise ShapeError(
                expected=f"slopes, standards and coefficients of shapes {expected}",
                got=str(found),
                remedy="fit them with LocalStacking",
            )

    def covers(self, grid: Grid) -> bool:
        """Whether features can be told on this grid: a uniform one that spans the calibration grid's domain."""
        return spans(grid, self.grid)

    def features(
        self, means: Sequence[Float[Tensor, "n c *grid"]], variances: Sequence[Float[Tensor, "n c *grid"]], *, reader: Reader
    ) -> Iterator[Float64[Tensor, "n c p"]]:
        """The features at all points of the reader's grid, one after another, not yet standardised.

        Args:
            means: Predicted by each of the predictors, in physical units.
            variances: Predictive variances, those of the noise included, in physical units squared.
            reader: What reads predictions on their grid.
        """
        read, levels = self.read(means, variances, reader=reader)
        total = torch.finfo(levels.dtype).tiny + _TINY * levels.sum(0)
        logs = (levels + total).log()
        yield from logs - logs.mean(0)
        yield from shape_features(read, slopes=self.slopes, amplitudes=self.amplitudes)
        for wave in read.waves.mT:
            yield wave.expand_as(read.sizes)

    def read(
        self, means: Sequence[Float[Tensor, "n c *grid"]], variances: Sequence[Float[Tensor, "n c *grid"]], *, reader: Reader
    ) -> tuple[Quantities, Float64[Tensor, "m n c p"]]:
        """What features are made of: quantities of the mean over predictors, and the level of each predictor's variance."""
        parts = (weight * mean.to(torch.float64) for weight, mean in zip(self.reference.tolist(), means, strict=True))
        return reader(functools.reduce(torch.add, parts), variances[0]), torch.stack([reader.levels(one) for one in variances])

    def linear(
        self, means: Sequence[Float[Tensor, "n c *grid"]], variances: Sequence[Float[Tensor, "n c *grid"]], *, grid: Grid
    ) -> Float64[Tensor, "m n c p"]:
        """What the features make of it on a grid that is covered: logarithms of weights, up to a and to what all have.

        They are read on the calibration grid, and interpolated.
        """
        there = self.grid.unmasked
        means = [resample(one, grid, there) for one in means]
        variances = [resample(one, grid, there).clamp_min(0.0) for one in variances]
        reader = Reader.of(self.grid, width=self.width)
        total = torch.zeros((), dtype=torch.float64, device=means[0].device)
        for index, feature in enumerate(self.features(means, variances, reader=reader)):
            slopes = self.coefficients[:, :, index + 1].mT[:, None, :, None].to(feature)
            total = total + slopes * standardised(feature, self.standards[..., index])
        return interpolated(total, source=there, target=grid)

    def weights(self, linear: Float64[Tensor, "m n c p"]) -> Float64[Tensor, "m n c p"]:
        """The weights that follow, positive, with the sum 1 over the predictors."""
        return torch.softmax(self.coefficients[:, :, 0].mT[:, None, :, None].to(linear) + linear, dim=0)


def number_of_features(members: int, grid: Grid) -> int:
    """How many features m predictors on a grid have."""
    return members + _SHAPE_FEATURES + len(wave_numbers(grid))
