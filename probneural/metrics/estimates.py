"""Means over functions with their standard errors."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor


class Estimate(NamedTuple):
    """Means over functions and their standard errors, `(...)`; NaN where there are none."""

    value: Float64[Tensor, "*values"]
    error: Float64[Tensor, "*values"]


def over_functions(values: Float64[Tensor, "n *values"]) -> Estimate:
    """Mean and standard error over the first axis; the error of a single function is NaN.

    Examples:
        >>> mean, error = over_functions(torch.tensor([1.0, 3.0]).double())
        >>> mean.item(), error.item()
        (2.0, 1.0)
    """
    count = len(values)
    error = values.std(0) / math.sqrt(count) if count > 1 else torch.full_like(values[0], math.nan)
    return Estimate(values.mean(0), error)


def root_of_mean(squares: Float64[Tensor, "n c"]) -> Estimate:
    """√(mean over functions), averaged over channels, with its standard error to first order.

    Examples:
        >>> root_of_mean(torch.tensor([[3.0], [5.0]]).double()).value.item()
        2.0
    """
    mean = squares.mean(0)
    influence = 0.5 * mean.sqrt() * _relative(squares, mean)
    return Estimate(mean.sqrt().mean(), over_functions(influence.mean(-1)).error)


def root_of_ratio(above: Float64[Tensor, "n c"], below: Float64[Tensor, "n c"]) -> Estimate:
    """√(mean over functions / mean over functions), averaged over channels, with its standard error to first order."""
    ratio = (above.mean(0) / below.mean(0)).sqrt()
    influence = 0.5 * ratio * (_relative(above, above.mean(0)) - _relative(below, below.mean(0)))
    return Estimate(ratio.mean(), over_functions(influence.mean(-1)).error)


def _relative(values: Float64[Tensor, "n c"], mean: Float64[Tensor, " c"]) -> Float64[Tensor, "n c"]:
    """Values in units of their mean; 1 where it is zero."""
    return torch.where(mean > 0, values / mean, torch.ones_like(values))
