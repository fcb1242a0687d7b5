"""Predictions for a calibration set, a few functions at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_finite, check_instance, check_squares
from probneural.distributions.base import FieldDistribution, noise_variance
from probneural.distributions.predictor import Predictor
from probneural.errors import ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs

CHUNK_VALUES = 2**18
"""Output values predicted at once; heads keep up to some hundred numbers for each."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictedMoments:
    """Mean and predictive variance of n functions, float64.

    Args:
        mean: `(n, c, *grid)`, in physical units.
        variance: Variance of the field plus that of the noise, `(n, c, *grid)`, in physical units squared.
        epsilon: Relative spacing of numbers in the dtype the two came in.
    """

    mean: Float64[Tensor, "n c *grid"]
    variance: Float64[Tensor, "n c *grid"]
    epsilon: float


def moments(u: FieldDistribution, noise: float | Tensor) -> PredictedMoments:
    """Read mean and predictive variance off a distribution, detached.

    Raises:
        DataError: If either is not finite.
    """
    raw = u.mean.detach()
    mean = raw.to(torch.float64)
    variance = u.variance.detach().to(torch.float64)
    check_finite(mean, "predicted means")
    check_finite(variance, "predicted variances")
    check_squares(mean, "predicted means")
    observed = noise_variance(noise, tuple(mean.shape), mean).detach()
    return PredictedMoments(mean=mean, variance=variance + observed, epsilon=torch.finfo(raw.dtype).eps)


def distributions(predictor: Predictor, pairs: FieldPairs) -> Iterator[tuple[FieldDistribution, Float64[Tensor, "n c *grid"]]]:
    """Predict the outputs of a data set on their own grid, in chunks of bounded memory.

    Yields:
        The distribution and the observed outputs of some functions at a time, in the order of the data, on the predictor's
        device.

    Raises:
        DataError: If `pairs` is not a `FieldPairs`, or a value is not finite.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_pairs(predictor, pairs)
    grid = pairs.outputs.grid
    step = max(1, CHUNK_VALUES // (predictor.out_channels * grid.size))
    for start in range(0, len(pairs), step):
        part = pairs[start : start + step]
        u = predictor(Field(part.inputs.values.detach(), part.inputs.grid), grid)
        yield u, part.outputs.values.detach().to(u.mean.device, torch.float64)


def predictions(predictor: Predictor, pairs: FieldPairs) -> Iterator[tuple[PredictedMoments, Float64[Tensor, "n c *grid"]]]:
    """Yield the moments alone of [`distributions`][probneural.calibration.chunks.distributions], and the outputs."""
    for u, truth in distributions(predictor, pairs):
        yield moments(u, predictor.noise), truth


def check_pairs(predictor: Predictor, pairs: FieldPairs) -> None:
    """Raise unless the predictor can be held against these pairs.

    Raises:
        DataError: If `predictor` is not a `Predictor`, `pairs` not a `FieldPairs`, or an output is not finite.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_instance(
        predictor, Predictor, "predictor", remedy="fit a head first: pn.heads.LastLayerLaplace().fit(operator, train)"
    )
    check_instance(pairs, FieldPairs, "calibration data", remedy="pair them: pn.FieldPairs(inputs, outputs)")
    if pairs.outputs.channels != predictor.out_channels:
        raise ShapeError(
            expected=f"outputs of {predictor.out_channels} channels, as predicted",
            got=str(pairs.outputs.channels),
            remedy="calibrate with data of the same problem",
        )
    check_finite(pairs.outputs.values, "calibration outputs")
    check_squares(pairs.outputs.values, "calibration outputs")


def domain_average(values: Float64[Tensor, "n c *grid"], grid: Grid) -> Float64[Tensor, "n c"]:
    """Average over the domain by the grid's quadrature; points of weight zero are left out even where infinite."""
    mean_weights = grid.mean_weights.to(values)
    flat = values.flatten(2)
    return torch.where(mean_weights > 0, flat, torch.zeros_like(flat)) @ mean_weights
