"""Novelty of inputs relative to the calibration samples, as conformal p-values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.novelty.scores import (
    Describer,
    Descriptions,
    FittedScores,
    combined,
    cross_fitted_standards,
    described_on,
    standards,
)
from probneural.calibration.predictions import check_pairs, group_numbers, group_sizes, number_of, untrained_keys
from probneural.contexts import Undisturbed, without_gradients
from probneural.distributions.predictors.base import Predictor
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ArgumentError, CalibrationError, DataError, DataWarning, warn
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.pairs import Dataset, batches, check_dataset, evenly_spread_rows
from probneural.registry import stored
from probneural.settings import Level, Seed, Settings

COMBINED = "combined"
"""Name of the score that joins all others."""
_LEAST = 10
"""Least number of samples that scores are fitted on."""
_MOST = 1000
"""Largest number of samples that scores are fitted on."""
_HELD_OUT = 0.2
"""Fraction of the calibration samples that standardises scores fitted on a reference."""


@dataclass(frozen=True)
class Novelty(Settings):
    """Conformal test of whether an input resembles the calibration samples: one p-value per sample.

    The calibration samples are split at random. One part fits the scores. The m others give the ranks: with their scores
    s_1, ..., s_m, and the score s of a new sample,

        p = (1 + #{i: s_i >= s}) / (m + 1).

    If the new sample is exchangeable with the calibration samples, P(p <= t) <= t for every t, for any head and any scores;
    without ties p is uniform on 1/(m + 1), ..., 1. The probability is over calibration samples and the new one together. In
    pairs with groups, such as windows of trajectories, each group counts as one: m is the number of groups, and the sum runs
    over the fraction of each group with s_i >= s. Flagging p <= .05 thus raises a false alarm for at most 5 % of
    in-distribution samples. A small p means that the input is unusual, not that the prediction is wrong. A large p does not
    mean that the prediction is right: a changed equation with the same inputs cannot be detected.

    Scores are larger for more unusual samples:

    - `"components"`: squared Mahalanobis distance within the leading principal components of the inputs;
    - `"residual"`: mean square that these components leave, for samples unlike all calibration samples;
    - `"spectrum"`: Mahalanobis distance of logarithms of power in bands of wave numbers;
    - `"features"`: Mahalanobis distance of the features before the read-out, averaged over the domain, if the head has
      a last layer;
    - `"variance"`: epistemic variance of the uncalibrated head, averaged over the domain, relative to its mean over the
      fitting samples;
    - `"components, channel 0"`, `"spectrum, channel 1"` and so on, for several channels: the same scores of one channel;
    - `"combined"`: log sum exp z over all of them, where z is the logarithm of a score, standardised by mean and upper
      semideviation on samples that the score was not fitted on.

    Outputs are not used. Each p-value is valid by itself. The smallest of several is not; `"combined"` is.

    A sample has one description on every grid: it is interpolated to the calibration inputs' grid, and power that this grid
    does not resolve counts in a last band. On a finer grid the statement above holds if the calibration grid resolves
    in-distribution samples; otherwise a warning reports power that no calibration sample could have. Samples with one mesh
    each are compared on a uniform grid around all meshes, with a further channel that is 1 inside the mesh.

    Args:
        fraction: Fraction of the calibration samples that scores are fitted on, between 0 and 1.
        seed: Seed of the split.

    Raises:
        ArgumentError: If the fraction is not between 0 and 1, or the seed is not a non-negative integer.

    Reference:
        Bates et al. (2023), Testing for outliers with conformal p-values, section 1; Lee, Barber and Willett (2023),
        Distribution-free inference with hierarchical data, section 3, for groups; Hubert, Rousseeuw and Vanden Branden
        (2005), ROBPCA, for score and orthogonal distances (here without their robust estimates); Lee et al. (2018), A simple
        unified framework for detecting out-of-distribution samples, for features (here pooled over the domain, of one class).
    """

    fraction: Level = 0.5
    _: KW_ONLY
    seed: Seed = 0

    @without_gradients()
    def fit(
        self, predictor: Predictor, calibration: Dataset, *, reference: Dataset | None = None, allow_training_data: bool = False
    ) -> NoveltyDetector:
        """Fit scores, and rank those of calibration samples.

        Args:
            predictor: The predictor of any head or calibrator. Calibration and conditioning are removed, in members of a
                mixture too, so the samples may be those that scales or bands were fitted on, but not those that the weights
                of a stack were fitted on.
            calibration: Held-out pairs that the head was not fitted on; only inputs are used.
            reference: Pairs on the same grids that scores are fitted on instead, for example training pairs; at most a
                thousand are used. A fifth of the calibration samples, at least 10, then standardise the scores, since the
                head's variance is smaller on its training pairs; the others give ranks.
            allow_training_data: Whether calibration pairs that trained the predictor give a warning instead of an error.

        Returns:
            The detector; call it on inputs.

        Raises:
            CalibrationError: If scores would be fitted on fewer than 10 samples, no sample or group remains to rank, or
                calibration pairs trained the predictor.
            DataError: If an argument is not a data set, or a value is not finite.
            ShapeError: If channels are not the predictor's.
        """
        check_pairs(predictor, calibration)
        untrained_keys(predictor, calibration, allow_training_data=allow_training_data)
        return fitted_detector(self, predictor, calibration=calibration, reference=reference)


@stored(on_cpu=("fitted",))
@dataclass(frozen=True, eq=False, kw_only=True)
class NoveltyMeasure:
    """Fitted novelty scores of inputs.

    Args:
        inputs: Grid of the calibration inputs; for one mesh per sample, a uniform grid around all of them.
        outputs: Grid of the calibration outputs; None for one mesh per sample.
        fitted: The scores.
        standards: Mean and upper semideviation of each score's logarithm, by which they are combined.
    """

    inputs: Grid
    outputs: Grid | None
    fitted: FittedScores
    standards: Mapping[str, tuple[float, float]]

    def of(self, described: Descriptions) -> dict[str, Float64[Tensor, " n"]]:
        """Scores by name, from complete descriptions."""
        scores = self.fitted(described)
        return scores | {COMBINED: combined(scores, self.standards)}

    def __call__(self, predictor: Predictor, inputs: Field) -> dict[str, Float64[Tensor, " n"]]:
        """Scores by name, `(n,)`, dimensionless, float64 on the CPU.

        Args:
            predictor: The predictor of the fit; its calibration does not matter.
            inputs: `(n, in_channels, *grid)`.
        """
        described = Describer(self.inputs, self.outputs)(uncalibrated(predictor), inputs)
        if (
            self.outputs is not None and inputs.grid.unmasked != self.inputs and described_on(self.inputs) == self.inputs
        ):  # else calibration samples had such power
            self._warn_of_unresolved(described)
        return self.of(described)

    def _warn_of_unresolved(self, described: Descriptions) -> None:
        """Warn if half of the samples or more have power that no calibration sample could have."""
        assert described.powers is not None
        beyond = (described.powers[..., -1:] > self.fitted.inputs.least_power).flatten(1).any(1)
        count = int(beyond.sum())
        if count and 2 * count >= len(beyond):
            warn(
                f"{count} of {len(beyond)} samples have power that the calibration inputs' grid, {self.inputs!r}, does not "
                "resolve, which makes them unusual; to compare the resolved part alone, resample them to that grid",
                DataWarning,
            )

    def partial(self, predictor: Predictor, inputs: Field, *, asks_head: bool) -> dict[str, Float64[Tensor, " n"]]:
        """Return scores without the combined one; without those of the head unless `asks_head`."""
        describer = Describer(self.inputs, self.outputs)
        return self.fitted(describer(uncalibrated(predictor), inputs, asks_head=asks_head))


@stored(on_cpu=("measure", "calibration", "groups"))
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NoveltyDetector(Undisturbed):
    """Novelty test of inputs, from [`Novelty`][probneural.calibration.Novelty]; call it on inputs.

    Args:
        predictor: The predictor of the fit.
        measure: The scores.
        calibration: Scores of the calibration samples that new ones are ranked among, by name, `(n,)`.
        groups: Group of each of these samples, numbered from 0, `(n,)`.
    """

    predictor: Predictor
    measure: NoveltyMeasure
    calibration: Mapping[str, Float64[Tensor, " n"]]
    groups: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        """Raise a DataError unless all scores are present, and groups numbered from 0."""
        names, numbers = {*self.measure.fitted.names}, self.groups.unique().tolist()
        differences = ({*self.calibration} ^ {*names, COMBINED}) | ({*self.measure.standards} ^ names)
        if differences or numbers != list(range(len(numbers))):
            got = ", ".join(sorted(differences)) or f"groups {numbers[:5]}"
            raise DataError(expected="calibration of all scores, in groups numbered from 0", got=got, remedy="fit again")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scores, the combined one last."""
        return tuple(self.calibration)

    def __call__(self, inputs: Field) -> Float64[Tensor, " n"]:
        """Return conformal p-values of inputs by the combined score, small for unusual samples.

        Args:
            inputs: `(n, in_channels, *grid)`, on the domain of the calibration inputs.

        Returns:
            `(n,)`, in [1/(m + 1), 1], float64 on the CPU.

        Raises:
            DataError: If the inputs are not a `Field`, or not finite.
            ShapeError: If the number of channels is not the predictor's.
            GridError: If the inputs live on another domain.
        """
        return conformal_p_values(self.scores(inputs)[COMBINED], self.calibration[COMBINED], groups=self.groups)

    def p_values(self, inputs: Field) -> dict[str, Float64[Tensor, " n"]]:
        """Return the p-values of all scores by name. Each is valid by itself; the smallest of them is not."""
        scores = self.scores(inputs).items()
        return {name: conformal_p_values(score, self.calibration[name], groups=self.groups) for name, score in scores}

    @torch.no_grad()
    def scores(self, inputs: Field) -> dict[str, Float64[Tensor, " n"]]:
        """Return raw scores by name, `(n,)`, dimensionless; larger for more unusual samples, without an upper limit.

        Raises:
            DataError: If the inputs are not a field, or not finite.
        """
        return self.measure(self.predictor, check_field(inputs, "inputs"))

    def __repr__(self) -> str:
        """Names of the scores, and number of ranked samples."""
        samples, groups = len(self.groups), number_of(self.groups)
        among = f"{samples} samples" + (f" of {groups} groups" if groups < samples else "")
        return f"NoveltyDetector({', '.join(self.names)}; ranks among {among})"


def fitted_detector(
    novelty: Novelty, predictor: Predictor, *, calibration: Dataset, reference: Dataset | None
) -> NoveltyDetector:
    """Fit scores on one part of checked pairs, and rank those of the other."""
    fitting, ranked = divided(novelty, calibration, reference=reference)
    head = uncalibrated(predictor)
    inputs = calibration.inputs.grid.unmasked
    outputs = None if inputs.has_points_per_sample else calibration.outputs.grid.shared
    inputs = described_on(inputs) if outputs is None else inputs
    describer = Describer(inputs, outputs)
    fitting = fitting.subset(evenly_spread_rows(len(fitting), _MOST))
    held_out = _described(describer, head, fitting)
    if reference is None:
        fitted, units = FittedScores.fit(held_out), cross_fitted_standards(held_out, groups=group_numbers(fitting))
    else:
        described = _described(describer, head, reference.subset(evenly_spread_rows(len(reference), _MOST)))
        fitted = FittedScores.fit(described, stated=held_out)
        units = standards(fitted(held_out))
    measure = NoveltyMeasure(inputs=inputs, outputs=outputs, fitted=fitted, standards=units)
    scores = measure.of(_described(describer, head, ranked))
    return NoveltyDetector(predictor=predictor, measure=measure, calibration=scores, groups=group_numbers(ranked))


def conformal_p_values(
    scores: Float64[Tensor, " n"], calibration: Float64[Tensor, " m"], *, groups: Int64[Tensor, " m"]
) -> Float64[Tensor, " n"]:
    """(1 + #{i: s_i >= s}) / (m + 1) for each score s; ties raise p-values.

    A group counts by the fraction of its samples, and m is the number of groups.

    Examples:
        >>> scores, calibration = torch.tensor([0.5, 3.0, 9.0]).double(), torch.tensor([1.0, 2.0, 3.0]).double()
        >>> conformal_p_values(scores, calibration, groups=torch.arange(3)).tolist()
        [1.0, 0.5, 0.25]
        >>> conformal_p_values(scores, calibration, groups=torch.tensor([0, 1, 1])).tolist()
        [1.0, 0.5, 0.3333333333333333]
    """
    ordered, order = calibration.sort()
    weights = 1.0 / group_sizes(groups).to(calibration)
    count = number_of(groups)
    weight_below = torch.cat([weights.new_zeros(1), weights[order].cumsum(0)])
    below = torch.searchsorted(ordered, scores.contiguous(), right=False)
    return (1.0 + (count - weight_below[below]).clamp_min(0.0)) / (count + 1.0)


def uncalibrated(predictor: Predictor) -> Predictor:
    """Return the head's predictor below all calibrations; in a mixture, with those of the members."""
    while isinstance(inner := getattr(predictor, "inner", None), Predictor):
        predictor = inner
    if isinstance(predictor, MixturePredictor):
        members = [uncalibrated(member) for member in predictor.predictors]
        changed = any(member is not original for member, original in zip(predictor.predictors, members, strict=True))
        return predictor.with_predictors(members) if changed else predictor
    return predictor


def divided(novelty: Novelty, calibration: Dataset, *, reference: Dataset | None) -> tuple[Dataset, Dataset]:
    """Return samples that fit the scores, or standardise them if there is a reference, and samples that give ranks."""
    if reference is None:
        count = int(novelty.fraction * len(calibration) + 0.5)
        _check_counts(count, len(calibration) - count)
    else:
        check_dataset(reference, "reference", least=0)
        count = max(_LEAST, int(_HELD_OUT * len(calibration) + 0.5))
        _check_counts(len(reference), len(calibration) - count)
    try:
        return calibration.split(count, seed=novelty.seed)
    except ArgumentError as error:  # whole groups go to one side
        raise CalibrationError(
            expected=f"groups with {count} samples, and others to rank",
            got=f"{number_of(group_numbers(calibration))} groups of {len(calibration)} samples",
            remedy="hold out more groups",
        ) from error


def _described(describer: Describer, predictor: Predictor, pairs: Dataset) -> Descriptions:
    return Descriptions.cat([describer(predictor, part.inputs) for part in batches(pairs, describer.step)])


def _check_counts(fitted_on: int, ranked: int) -> None:
    if fitted_on < _LEAST or ranked < 1:
        raise CalibrationError(
            expected=f"at least {_LEAST} samples to fit scores on, and others to rank",
            got=f"{fitted_on} and {max(0, ranked)}",
            remedy="hold out more samples, or give training pairs as reference and more than 10 others",
        )
