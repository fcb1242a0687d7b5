"""Split conformal prediction for whole functions: scores once, quantiles as often as wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.chunks import domain_average, predictions
from probneural.checks import check_choice, check_real
from probneural.distributions.base import check_values
from probneural.distributions.predictor import Predictor
from probneural.errors import CalibrationError
from probneural.grids import Grid
from probneural.pairs import Dataset

Modulation = Literal["std", "constant"]
FLOOR = 0.1
"""Default floor of a band's local scale, as a fraction of its root mean square over the domain."""


@dataclass(frozen=True, eq=False)
class ConformalScores:
    """How far each function strays from its prediction, in units of the band's local scale.

    Args:
        values: sup over channels and points of |y - mean| / scale, `(n,)`.
        scale: The local scale averaged over the domain, `(n, c)`; a band with quantile q has mean width 2 q scale.

    Raises:
        ShapeError: If the two do not describe the same functions.
    """

    values: Float64[Tensor, " n"]
    scale: Float64[Tensor, "n c"]

    def __post_init__(self) -> None:
        """Check that the two fit together."""
        check_values(self.scale, (len(self.values), *self.scale.shape[1:]), "scale")

    def quantile(self, level: float) -> float:
        """Return the ⌈(n + 1) level⌉-th smallest score: a band of that half width covers a new function with P >= level.

        The probability is over calibration and new function together; without ties it is below level + 1/(n + 1).

        Args:
            level: Nominal coverage, between 0 and 1.

        Raises:
            ArgumentError: If the level is not between 0 and 1.
            CalibrationError: If there are too few functions for the level, or the score of that rank is infinite.

        Examples:
            >>> scores = ConformalScores(torch.arange(1.0, 10.0).double(), torch.ones(9, 1).double())
            >>> scores.quantile(0.9), scores.quantile(0.5)
            (9.0, 5.0)
        """
        return conformal_quantile(self.values, level)

    def __len__(self) -> int:
        """Number of functions n."""
        return self.values.shape[0]

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> ConformalScores:
        """Select functions, for another split without another prediction."""
        rows = index if isinstance(index, (slice, Tensor)) else torch.as_tensor(index)
        return ConformalScores(self.values[rows], self.scale[rows])


def conformal_scores(
    predictor: Predictor, pairs: Dataset, *, modulation: Modulation = "std", floor: float = FLOOR
) -> ConformalScores:
    """Score every pair: the supremum over channels and grid points of |y - mean| / scale.

    Scores of exchangeable pairs are exchangeable, since the scale is a function of one input and the predictor only. So one
    call serves any number of splits: `scores[first].quantile(level)` calibrates, `scores[second].values <= quantile` tests.

    Args:
        predictor: Fitted without these pairs.
        pairs: Inputs and outputs; the grids may differ.
        modulation: "std" for a local scale max(sd, floor * rms of sd over the domain), sd being the predictive standard
            deviation; "constant" for a scale that is the same everywhere (see `SimultaneousBand`).
        floor: Dimensionless, from 0 to 1.

    Returns:
        The scores of the n functions, on the predictor's device.

    Raises:
        ArgumentError: If the modulation or the floor does not exist.
        CalibrationError: If a constant scale is asked of several channels without noise.
        DataError: If a value is not finite.
        ShapeError: If the outputs do not have the predictor's channels.

    Reference:
        Diquigiovanni, Fontana and Vantini (2022), Conformal prediction bands for multivariate functional data, section 2.
    """
    check_modulation(modulation, floor)
    values, scales = [], []
    for predicted, truth in predictions(predictor, pairs):
        scale = local_scale(predicted.variance, predictor, grid=pairs.outputs.grid, modulation=modulation, floor=floor)
        values.append(largest_ratio(truth - predicted.mean, scale))
        scales.append(domain_average(scale, pairs.outputs.grid))
    if not values:
        raise CalibrationError(expected="at least one pair", got="none", remedy="hold out some fields")
    return ConformalScores(torch.cat(values), torch.cat(scales))


def conformal_quantile(scores: Float64[Tensor, " n"], level: float) -> float:
    """The ⌈(n + 1) level⌉-th smallest score.

    Raises:
        ArgumentError: If the level is not between 0 and 1.
        CalibrationError: If there are too few functions for the level, or the score of that rank is infinite.
    """
    level = check_real(level, "level", above=0.0, below=1.0)
    rank, count = _rank(len(scores), level), len(scores)
    if rank > count:
        raise CalibrationError(
            expected=f"at least {math.ceil(level / (1.0 - level) - 1e-9)} calibration fields for a band at level {level:g}",
            got=str(count),
            remedy="hold out more fields, or lower the level",
        )
    quantile = float(scores.sort().values[rank - 1])
    if not math.isfinite(quantile):
        raise CalibrationError(
            expected=f"a finite score of rank {rank} among {count}",
            got="infinite scores: errors in functions that have no predictive variance at all",
            remedy="use modulation='constant', or a predictor with noise > 0",
        )
    return quantile


def largest_ratio(residual: Float64[Tensor, "n c *grid"], scale: Float64[Tensor, "n c *grid"]) -> Float64[Tensor, " n"]:
    """The supremum of |residual| / scale over channels and points of each function."""
    size = residual.abs()
    # 0 / 0 is a value predicted with certainty, and right; a positive residual over 0 stays infinite.
    return torch.where(size > 0, size / scale, torch.zeros_like(size)).flatten(1).amax(-1)


def floored_std(variance: Float64[Tensor, "n c *grid"], grid: Grid, *, floor: float) -> Float64[Tensor, "n c *grid"]:
    """The standard deviation, at least the fraction `floor` of its root mean square over the domain."""
    least = floor * domain_average(variance, grid).sqrt()
    return torch.maximum(variance.sqrt(), least.reshape(*least.shape, *(1,) * (variance.ndim - 2)))


def local_scale(
    variance: Float64[Tensor, "n c *grid"], predictor: Predictor, *, grid: Grid, modulation: Modulation, floor: float
) -> Float64[Tensor, "n c *grid"]:
    """The scale a band's half width is proportional to at each point, a function of one input and the predictor only."""
    ones = (1,) * (variance.ndim - 2)
    if modulation == "std":
        return floored_std(variance, grid, floor=floor)
    channels = variance.shape[1]
    unit = predictor.residual_variance.to(variance).sqrt() if channels > 1 else variance.new_ones(1)
    if not bool((unit > 0).all()):
        raise CalibrationError(
            expected="a positive noise variance in every channel, whose roots are the units of a constant band",
            got=str(predictor.residual_variance.tolist()),
            remedy="use modulation='std', or a predictor with noise > 0",
        )
    return unit.reshape(1, -1, *ones).expand(variance.shape)


def check_modulation(modulation: str, floor: float) -> None:
    """Raise an ArgumentError unless the modulation exists and the floor lies between 0 and 1."""
    check_choice(modulation, ("std", "constant"), "modulation")
    check_real(floor, "floor", least=0.0, most=1.0)


def _rank(count: int, level: float) -> int:
    """⌈(n + 1) level⌉, safe against products such as 25 * 0.56 that land just above an integer."""
    return math.ceil((count + 1) * level - 1e-9)
