"""Bands whose width depends on more than the prediction: a quantile per group, or per likelihood ratio of the input."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from probneural.calibration.bands.conformal import BandMethod, ConformalScores, new_scores_for, weighted_quantiles
from probneural.calibration.bands.shapes import BandField, predicted_bands
from probneural.calibration.cross_validation import group_sizes
from probneural.checks import check_sequence, real_tensor
from probneural.distributions.base import check_values
from probneural.distributions.predictors.base import Predictor
from probneural.errors import ArgumentError, CalibrationError, ShapeError
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.pairs import Dataset

Labels = Sequence[Hashable] | Tensor | NDArray[Any]
"""One label per function."""
Weights = Sequence[float] | Tensor | NDArray[Any]
"""One likelihood ratio per function."""


@dataclass(frozen=True, eq=False, repr=False)
class GroupBand:
    """A band with a quantile for each group of functions, from `fit(predictor, calibration, groups=labels)`.

    Labels are functions of the input, or known with it: a regime, a geometry, an instrument. The quantile of group g is
    that of its n_g calibration scores. If the functions of a group are exchangeable with its calibration functions, then

        p <= P(inside | group g) < p + 1/(n_g + 1)        for every g

    (the upper bound without ties), whatever other groups are like. What "inside" means, and p, are the method's. A group's
    coverage given one calibration set is Beta with parameters k = ⌈(n_g + 1) p⌉ and n_g + 1 - k: small groups pay in
    variation. Labels that are chosen after looking at the errors void it.

    Args:
        predictor: The predictor it belongs to.
        quantiles: Half width in units of the local scale, by label.
        method: Level, modulation and floor it was calibrated with.

    Reference:
        Vovk (2013), Conditional validity of inductive conformal predictors (label- and object-conditional validity).
    """

    predictor: Predictor
    _: KW_ONLY
    quantiles: Mapping[Any, float]
    method: BandMethod

    @property
    def level(self) -> float:
        """Nominal coverage in each group, in the method's own sense."""
        return self.method.level

    def __call__(self, inputs: Field, query: Grid | None = None, *, groups: Labels) -> BandField:
        """Return the bands of n input functions.

        Args:
            inputs: Input functions, `(n, in_channels, *grid)`.
            query: Where to evaluate; the inputs' own grid by default.
            groups: The label of each, as in calibration.

        Raises:
            ArgumentError: If a label was not among those of calibration.
            ShapeError: If labels are not one per function, or the number of channels is not the predictor's.
            DataError: If the inputs or predictions are not finite.
        """
        quantiles = self._of(check_labels(groups, len(check_field(inputs, "inputs"))))
        return predicted_bands(self.predictor, inputs, query=query, method=self.method, quantiles=quantiles)

    def coverage(self, pairs: Dataset, *, groups: Labels) -> dict[Any, float]:
        """The fraction of functions that lie inside in each group that occurs, by label; dimensionless.

        Raises:
            ArgumentError: If a label was not among those of calibration.
            CalibrationError: If there are no pairs.
            DataError: If a value is not finite.
            ShapeError: If labels are not one per function, or the outputs do not have the predictor's channels.

        Warns:
            DataWarning: If some pairs trained the predictor.
        """
        scores = new_scores_for(self.method, self.predictor, pairs=pairs).values.cpu()
        labels = check_labels(groups, len(scores))
        inside = scores <= self._of(labels)
        return {label: float(inside[rows].to(torch.float64).mean()) for label, rows in rows_by_label(labels).items()}

    def _of(self, labels: Iterable[Hashable]) -> Float64[Tensor, " n"]:
        """The quantile of each label."""
        keys = list(labels)
        unknown = {label for label in keys if label not in self.quantiles}
        if unknown:
            raise ArgumentError(
                expected=f"labels among {list(self.quantiles)}",
                got=repr(sorted(unknown, key=repr)[0]),
                remedy="calibrate on functions of that group too",
            )
        return torch.tensor([self.quantiles[label] for label in keys], dtype=torch.float64, device="cpu")

    def __repr__(self) -> str:
        """The quantiles and how they were found."""
        shown = ", ".join(f"{label!r}: {quantile:.4g}" for label, quantile in self.quantiles.items())
        return f"GroupBand({{{shown}}}, {self.method!r})"


@dataclass(frozen=True, eq=False, repr=False)
class WeightedBand:
    """A band for inputs of another distribution than those of calibration, from `fit(predictor, calibration, weights=w)`.

    w(x) is the likelihood ratio of new over calibration inputs, up to a factor; outputs given inputs are as before (covariate
    shift). A new function of weight v gets the p-quantile of the calibration scores, each with the probability
    w_i / (Σ w + v), and the rest at infinity. If calibration pairs are independent, then for functions of the new distribution

        p <= P(inside)

    over calibration set and new pair; what "inside" means, and p, are the method's. With estimated weights ŵ of mean 1,
    the statement is for inputs of density ŵ, so coverage of others is less by at most half the mean of |ŵ - w| over
    calibration inputs, the distance in total variation.

    **Infinite bands.** Where v is more than the fraction 1 - p of Σ w + v, the quantile is infinite, and so is the band:
    no finite one could be promised for an input so unlike those of calibration. `quantiles(weights)` says for which functions.

    Args:
        predictor: The predictor it belongs to.
        scores: Calibration scores, `(n,)`.
        calibration_weights: Likelihood ratios of the calibration inputs, `(n,)`.
        method: Level, modulation and floor.

    Reference:
        Tibshirani, Barber, Candès and Ramdas (2019), Conformal prediction under covariate shift, corollary 1.
    """

    predictor: Predictor
    _: KW_ONLY
    scores: Float64[Tensor, " n"]
    calibration_weights: Float64[Tensor, " n"]
    method: BandMethod

    @property
    def level(self) -> float:
        """Nominal coverage, in the method's own sense."""
        return self.method.level

    @property
    def effective_sample_size(self) -> float:
        """How many equally weighted functions the calibration set counts for, (Σ w)² / Σ w²."""
        weights = self.calibration_weights
        return float(weights.sum().square() / weights.square().sum())

    def quantiles(self, weights: Weights) -> Float64[Tensor, " m"]:
        """Half width of the band of functions of these weights, in units of the local scale, `(m,)`; may be infinite.

        Raises:
            ArgumentError: If weights are negative, not finite, or have more than one axis.
        """
        new = check_weights(weights).to(self.scores)
        return weighted_quantiles(self.scores, self.calibration_weights, new=new, level=self.method.probability)

    def __call__(self, inputs: Field, query: Grid | None = None, *, weights: Weights) -> BandField:
        """Return the bands of n input functions.

        Args:
            inputs: Input functions, `(n, in_channels, *grid)`.
            query: Where to evaluate; the inputs' own grid by default.
            weights: The likelihood ratio of each, with the factor of the calibration weights.

        Raises:
            ArgumentError: If weights are negative or not finite.
            ShapeError: If weights are not one per function, or the number of channels is not the predictor's.
            DataError: If the inputs or predictions are not finite.
        """
        quantiles = self.quantiles(check_weights(weights, len(check_field(inputs, "inputs"))))
        return predicted_bands(self.predictor, inputs, query=query, method=self.method, quantiles=quantiles)

    def coverage(self, pairs: Dataset, *, weights: Weights) -> float:
        """The fraction of new functions that lie inside, those with infinite bands included; dimensionless.

        Raises:
            ArgumentError: If weights are negative or not finite.
            CalibrationError: If there are no pairs.
            DataError: If a value is not finite.
            ShapeError: If weights are not one per function, or the outputs do not have the predictor's channels.

        Warns:
            DataWarning: If some pairs trained the predictor.
        """
        scores = new_scores_for(self.method, self.predictor, pairs=pairs).values
        return float((scores <= self.quantiles(check_weights(weights, len(scores)))).to(torch.float64).mean())

    def __repr__(self) -> str:
        """How much it rests on, and how."""
        return f"WeightedBand({len(self.scores)} functions, {self.effective_sample_size:.4g} effective, {self.method!r})"


def fit_groups(method: BandMethod, predictor: Predictor, *, scores: ConformalScores, groups: Labels) -> GroupBand:
    """Take a quantile per group.

    Raises:
        ArgumentError: If labels are none.
        ShapeError: If they are not one per function.
        CalibrationError: If a group is too small for the level, or its quantile is infinite.
    """
    quantiles = {}
    for label, rows in rows_by_label(check_labels(groups, len(scores))).items():
        try:
            quantiles[label] = scores[rows].quantile(method.probability)
        except CalibrationError as error:
            raise CalibrationError(
                expected=f"{error.expected}, in the group {label!r}",
                got=error.got,
                remedy="merge groups, or hold out more of it",
            ) from error
    return GroupBand(predictor, quantiles=quantiles, method=method)


def fit_weighted(method: BandMethod, predictor: Predictor, *, scores: ConformalScores, weights: Weights) -> WeightedBand:
    """Keep scores and weights.

    Raises:
        ArgumentError: If weights are negative, not finite, or all zero.
        ShapeError: If they are not one per function.
    """
    checked = check_weights(weights, len(scores)).to(scores.values)
    if scores.groups is not None:  # functions of one trajectory share its weight
        checked = checked / group_sizes(scores.groups).to(checked)
    if not bool(checked.sum() > 0):
        raise ArgumentError(
            expected="a positive weight", got="zeros", remedy="calibrate on functions that the new distribution can give"
        )
    return WeightedBand(predictor, scores=scores.values, calibration_weights=checked, method=method)


def rows_by_label(labels: Sequence[Hashable]) -> dict[Hashable, list[int]]:
    """The positions of each label, in the order in which labels occur."""
    rows: dict[Hashable, list[int]] = {}
    for row, label in enumerate(labels):
        rows.setdefault(label, []).append(row)
    return rows


def check_labels(groups: object, count: int) -> list[Hashable]:
    """Return one label per function.

    Raises:
        ArgumentError: If they are no sequence of things that can be keys.
        ShapeError: If there are not `count` of them.
    """
    remedy = "give one text or number per function"
    sequence = groups.tolist() if isinstance(groups, Tensor | np.ndarray) else groups
    labels = [label.item() if _is_number(label) else label for label in check_sequence(sequence, "groups", remedy=remedy)]
    strange = [label for label in labels if not isinstance(label, Hashable) or isinstance(label, Tensor)]
    if strange:
        raise ArgumentError(expected="labels that can be compared and hashed", got=repr(strange[0]), remedy=remedy)
    if len(labels) != count:
        raise ShapeError(expected=f"{count} labels, one per function", got=str(len(labels)), remedy=remedy)
    return labels


def _is_number(label: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor of one number, which is hashed by identity."""
    return isinstance(label, Tensor) and label.ndim == 0


def check_weights(weights: object, count: int | None = None) -> Float64[Tensor, " n"]:
    """Return one likelihood ratio per function.

    Raises:
        ArgumentError: If they are no finite numbers >= 0, or have more than one axis.
        ShapeError: If there are not `count` of them.
    """
    checked = real_tensor(weights, "weights", dtype=torch.float64, error=ArgumentError).detach()
    if checked.ndim != 1 or not bool((torch.isfinite(checked) & (checked >= 0)).all()):
        raise ArgumentError(
            expected="finite weights >= 0, (n,)",
            got=f"shape {tuple(checked.shape)}, {checked.tolist()}"[:100],
            remedy="check them",
        )
    if count is not None:
        check_values(checked, (count,), "weights")
    return checked
