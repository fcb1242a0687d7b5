"""The marginal likelihood of calibration fields by the ratio of noise and field variance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.chunks import Pair, PredictedMoments, domain_average
from probneural.distributions.predictor import Predictor
from probneural.pairs import Dataset

ROUNDING = 8.0
"""Units in the last place, of a function's largest value, up to which errors and deviations count as none (as in metrics)."""
MOSTLY = 0.8
"""Fraction of values that are rounding from which the others say nothing of errors."""


def likelihood_profile(
    predictor: Predictor, moments: Iterable[Pair], *, calibration: Dataset, ratios: Float64[Tensor, "k c"]
) -> tuple[Float64[Tensor, "k c"], Float64[Tensor, "k c"]]:
    """chi² and mean log variance of the calibration fields for field variance plus `ratio` times the noise.

    Their sum with a logarithm on chi² is twice the negative log likelihood at the best common scale, up to a constant.
    """
    chi2, spread = torch.zeros_like(ratios), torch.zeros_like(ratios)
    for predicted, truth in moments:
        grid = predicted.grid
        noise = predictor.noise.detach().to(predicted.variance).reshape(-1, *(1,) * len(grid.shape))
        for number, ratio in enumerate(ratios.to(predicted.variance.device)):
            extra = (ratio - 1.0).reshape(-1, *(1,) * len(grid.shape)) * noise
            moved = replace(predicted, variance=predicted.variance + extra)
            chi2[number] += (
                domain_average(standardised_squares(moved, truth, dtype=calibration.outputs.dtype), grid).sum(0).cpu()
            )
            if len(ratios) > 1:
                spread[number] += domain_average(moved.variance.log(), grid).sum(0).cpu()
    return chi2 / len(calibration), spread / len(calibration)


def standardised_squares(predicted: PredictedMoments, truth: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Standardised squared residuals; 0 where residual and deviation are both zero up to rounding."""
    residual = truth - predicted.mean
    none = are_rounding(predicted, truth, dtype=dtype)
    return torch.where(none, torch.zeros_like(residual), residual.square() / predicted.variance)


def are_rounding(predicted: PredictedMoments, truth: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Where residual and deviation are both zero up to rounding."""
    axes = tuple(range(2, truth.ndim))
    unit = ROUNDING * max(predicted.epsilon, torch.finfo(dtype).eps)
    rounding = unit * torch.maximum(predicted.mean.abs(), truth.abs()).amax(axes, keepdim=True)
    return ((truth - predicted.mean).abs() <= rounding) & (predicted.variance <= rounding.square())
