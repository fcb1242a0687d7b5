"""Split conformal prediction for whole functions: scores once, quantiles as often as wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.bands.shapes import FLOOR, Modulation, check_modulation, domain_quantile, local_scale, ratios
from probneural.calibration.cross_validation import group_numbers, group_sizes, number_of
from probneural.calibration.predictions import check_pairs, distributions, domain_average, moments, untrained_keys
from probneural.checks import check_real
from probneural.distributions.predictors.base import Predictor
from probneural.errors import CalibrationError
from probneural.pairs import Dataset
from probneural.pairs.provenance import shared_rows


@dataclass(frozen=True, eq=False)
class ConformalScores:
    """How far each function strays from its prediction, in units of the band's local scale.

    Args:
        values: sup over channels and points of |y - mean| / scale, or over the given fraction of the domain, `(n,)`.
        scale: The local scale averaged over the domain, `(n, c)`; a band with quantile q has mean width 2 q scale.
        groups: Which group each function is of, such as its trajectory, `(n,)`; None if they are independent.
    """

    values: Float64[Tensor, " n"]
    scale: Float64[Tensor, "n c"]
    _: KW_ONLY
    groups: Int64[Tensor, " n"] | None = None

    def quantile(self, level: float) -> float:
        """Return the ⌈(n + 1) level⌉-th smallest score: a band of that half width covers a new function with P >= level.

        The probability is over calibration and new function together; without ties it is below level + 1/(n + 1). With
        groups see `conformal_quantile`.

        Args:
            level: Nominal coverage, between 0 and 1.

        Raises:
            ArgumentError: If the level is not between 0 and 1.
            CalibrationError: If there are too few functions or groups for the level, or the score of that rank is infinite.

        Examples:
            >>> scores = ConformalScores(torch.arange(1.0, 10.0).double(), torch.ones(9, 1).double())
            >>> scores.quantile(0.9), scores.quantile(0.5)
            (9.0, 5.0)
        """
        return conformal_quantile(self.values, level, groups=self.groups)

    def __len__(self) -> int:
        """Number of functions n."""
        return self.values.shape[0]

    def __getitem__(self, index: slice | Tensor | Sequence[int]) -> ConformalScores:
        """Select functions, for another split without another prediction."""
        rows = index if isinstance(index, (slice, Tensor)) else torch.as_tensor(index)
        groups = None if self.groups is None else self.groups[rows.cpu() if isinstance(rows, Tensor) else rows]
        return ConformalScores(self.values[rows], self.scale[rows], groups=groups)


def conformal_scores(
    predictor: Predictor, pairs: Dataset, *, modulation: Modulation = "std", floor: float = FLOOR, fraction: float = 1.0
) -> ConformalScores:
    """Score every pair: the supremum over channels and grid points of |y - mean| / scale.

    Scores of exchangeable pairs are exchangeable, since the scale is a function of one input and the predictor only. So one
    call serves any number of splits: `scores[first].quantile(level)` calibrates, `scores[second].values <= quantile` tests.

    Args:
        predictor: Fitted without these pairs.
        pairs: Inputs and outputs; the grids may differ.
        modulation: "std" for a local scale max(sd, floor * rms of sd over the domain), sd being the predictive standard
            deviation; "constant" for a scale that is the same everywhere (see
            `SimultaneousBand`).
        floor: Dimensionless, from 0 to 1.
        fraction: Which part of the domain a band has to hold, above 0 and at most 1, dimensionless. Below 1 the score is a
            quantile over the domain, by quadrature, in place of the supremum; the largest one over the channels.

    Returns:
        The scores of the n functions, on the predictor's device.

    Raises:
        ArgumentError: If the modulation, the floor or the fraction does not exist.
        CalibrationError: If a constant scale is asked of several channels without noise.
        DataError: If a value is not finite.
        ShapeError: If the outputs do not have the predictor's channels.

    Reference:
        Diquigiovanni, Fontana and Vantini (2022), Conformal prediction bands for multivariate functional data, section 2;
        Ma, Pitt, Azizzadenesheli and Anandkumar (2024), Calibrated uncertainty quantification for operator learning via
        conformal prediction (quantiles over the domain).
    """
    check_modulation(modulation, floor)
    fraction = check_real(fraction, "fraction", above=0.0, most=1.0)
    values, scales = [], []
    for u, truth, grid in distributions(predictor, pairs):
        predicted = moments(u, predictor.noise)
        scale = local_scale(predicted, predictor, modulation=modulation, floor=floor)
        values.append(domain_quantile(grid.fill(ratios(truth - predicted.mean, scale)), grid, fraction=fraction))
        scales.append(domain_average(scale, grid))
    if not values:
        raise CalibrationError(expected="at least one pair", got="none", remedy="hold out some fields")
    groups = None if getattr(pairs, "groups", None) is None else group_numbers(pairs)
    return ConformalScores(torch.cat(values), torch.cat(scales), groups=groups)


def check_new(predictor: Predictor, pairs: Dataset, *, allow_training_data: bool) -> None:
    """Raise a CalibrationError if the predictor was trained on some of these pairs, or its variances were scaled on some.

    Raises:
        CalibrationError: If so; `allow_training_data` allows pairs that trained it.
        DataError: If `predictor` or `pairs` are none.
        ShapeError: If the outputs do not have the predictor's channels.
    """
    check_pairs(predictor, pairs)
    check_unused(untrained_keys(predictor, pairs, allow_training_data=allow_training_data), predictor.calibrated_on)


def check_unused(keys: Int64[Tensor, "n *w k"], used: Int64[Tensor, " m"]) -> None:
    """Raise a CalibrationError if variances were scaled on some of these samples, given by row keys."""
    count = shared_rows(keys, used)
    if count:
        raise CalibrationError(
            expected="calibration fields that the predictor's variances were not scaled on",
            got=f"{count} of {len(keys)} that they were",
            remedy="split them: scaling, conformal = calibration.split(len(calibration) // 2, seed=0)",
        )


def conformal_quantile(scores: Float64[Tensor, " n"], level: float, *, groups: Int64[Tensor, " n"] | None = None) -> float:
    """The ⌈(n + 1) level⌉-th smallest score.

    Functions of one group, such as windows of a trajectory, resemble each other. Of K groups, n_k functions in the k-th, it is
    the level-quantile of Σ_k Σ_i δ(s_ki) / (n_k (K + 1)) + δ(∞) / (K + 1): if groups are exchangeable, and functions within
    each, a function of a new group lies below it with probability `level` or more. With groups of one it is the same as above.

    Raises:
        ArgumentError: If the level is not between 0 and 1.
        CalibrationError: If there are too few functions or groups for the level, or the score of that rank is infinite.

    Reference:
        Lee, Barber and Willett (2023), Distribution-free inference with hierarchical data, section 3, for groups.

    Examples:
        >>> scores = torch.arange(1.0, 19.0).double()  # windows of nine trajectories, two of each
        >>> conformal_quantile(scores, 0.8, groups=torch.arange(18) // 2), conformal_quantile(scores, 0.8)
        (16.0, 16.0)
        >>> conformal_quantile(scores[:10], 0.8, groups=torch.tensor([0, 1, 2, 3, 3, 3, 3, 3, 3, 3]))
        10.0
    """
    level = check_real(level, "level", above=0.0, below=1.0)
    count = len(scores) if groups is None else number_of(groups := groups.unique(return_inverse=True)[1])
    rank, things = _rank(count, level), "calibration fields" if groups is None else "groups of calibration fields"
    if rank > count:
        raise CalibrationError(
            expected=f"at least {math.ceil(level / (1.0 - level) - 1e-9)} {things} for a band at level {level:g}",
            got=str(count),
            remedy="hold out more fields, or lower the level (where functions may fail with probability delta, raise delta)",
        )
    if groups is None:
        quantile = float(scores.sort().values[max(1, rank) - 1])
    else:
        weights = 1.0 / group_sizes(groups).to(scores)
        quantile = float(weighted_quantiles(scores, weights, new=scores.new_ones(1), level=level)[0])
    if not math.isfinite(quantile):
        raise CalibrationError(
            expected=f"a finite score of rank {rank} among {count}",
            got="infinite scores: errors in functions that have no predictive variance at all",
            remedy="use a predictor that is uncertain there: VarianceScale(), or noise > 0",
        )
    return quantile


def _rank(count: int, level: float) -> int:
    """⌈(n + 1) level⌉, safe against products such as 25 * 0.56 that land just above an integer."""
    return math.ceil((count + 1) * level - 1e-9)


def weighted_quantiles(
    scores: Float64[Tensor, " n"], weights: Float64[Tensor, " n"], *, new: Float64[Tensor, " m"], level: float
) -> Float64[Tensor, " m"]:
    """The level-quantile of Σ_i w_i δ(s_i) + v δ(∞), normalised, for each weight v of a new function.

    It is infinite where v is more than the fraction 1 - level of all weight. Equal weights give the ⌈(n + 1) level⌉-th
    smallest score.

    Examples:
        >>> scores, ones = torch.arange(1.0, 10.0).double(), torch.ones(9).double()
        >>> weighted_quantiles(scores, ones, new=torch.tensor([0.0, 1.0, 2.0]).double(), level=0.9).tolist()
        [9.0, 9.0, inf]
    """
    ordered, order = scores.sort()
    reached = weights[order].cumsum(0)
    needed = level * (reached[-1] + new) * (1.0 - 1e-9)
    above = torch.searchsorted(reached, needed)
    return torch.cat([ordered, ordered.new_full((1,), torch.inf)])[above]
