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
from probneural.checks import assign, check_choice, check_real
from probneural.contexts import Undisturbed, undisturbed
from probneural.distributions.predictors.base import Predictor
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.errors import ArgumentError, CalibrationError, DataWarning, ShapeError, warn
from probneural.fields import Field, check_field
from probneural.grids import Grid
from probneural.pairs import Dataset, batches, check_dataset, evenly_spread_rows
from probneural.randomness import check_seed
from probneural.registry import stored

COMBINED = "combined"
"""Name of the score that joins all others."""
_LEAST = 10
"""Functions that scores are fitted on, at least."""
_MOST = 1000
"""Functions that scores are fitted on, at most."""
_HELD_OUT = 0.2
"""Of the calibration functions, where scores are fitted on a reference: these standardise them."""


@dataclass(frozen=True)
class Novelty:
    """Test whether an input function is like those of calibration: conformal p-values, one per function.

    The calibration functions are divided at random. Scores are fitted on one part. The m others give the ranks: with scores
    s_1, ..., s_m of theirs, and s of a new function,

        p = (1 + #{i: s_i >= s}) / (m + 1).

    If the new function is exchangeable with the calibration functions, P(p <= t) <= t for every t, whatever the scores, the
    head and the distribution of the functions; without ties p is uniform on 1/(m + 1), ..., 1. The probability is over the
    calibration functions and the new one together. Of pairs with groups, such as windows of trajectories, each group counts as
    one: m is the number of groups, and in place of #{i: s_i >= s} stands the sum over groups of the fraction of their functions
    for which that holds. Flagging p <= .05 thus raises a false alarm for 5 % of ordinary functions, at most. A
    small p says that the input is strange, not that the prediction is wrong; a large one does not say that it is right: a
    changed equation with the same inputs cannot be seen.

    The scores, larger where a function is stranger:

    - `"components"`: squared Mahalanobis distance within the leading principal components of the input functions;
    - `"residual"`: mean square that these components leave, where functions look like none that was seen;
    - `"spectrum"`: squared Mahalanobis distance of the logarithms of power in bands of wave numbers, per channel. It sees
      amplitude and roughness at once, and not where in the domain something happens;
    - `"features"`: the same of averages and standard deviations over the domain of the features before the read-out, for heads
      of a last layer;
    - `"variance"`: the epistemic variance that the head states, averaged over the domain and relative to its mean over
      functions seen: before any calibration, and without noise;
    - `"components, channel 0"`, `"spectrum, channel 1"` and so on, where there are several channels: the same of each channel
      alone, which stands out where another has larger units or more components;
    - `"combined"`: log sum exp z over all of them, with z the logarithm of a score, standardised by its mean and upper
      semideviation over functions that it was not fitted on: about the largest z where one stands out, and more where
      several do.

    Outputs take no part. One p-value per score is valid by itself; the smallest of several is not, `"combined"` is. A function
    has one description on every grid: it is brought to the calibration inputs' grid, and what that one does not resolve counts
    as power in a last band; along walls, as far as it exceeds what half of the points do not resolve. So what is promised of
    p-values holds on the calibration grid, and on finer ones where the first resolves ordinary functions: otherwise they have
    power on the finer one that no calibration function could show, and a warning says so.

    Args:
        fraction: Of the calibration functions that scores are fitted on, between 0 and 1.
        seed: Of the division.

    Raises:
        ArgumentError: If the fraction is not between 0 and 1, or the seed is none.

    Reference:
        Bates et al. (2023), Testing for outliers with conformal p-values, section 1; Lee, Barber and Willett (2023),
        Distribution-free inference with hierarchical data, section 3, for groups; Hubert, Rousseeuw and Vanden Branden
        (2005), ROBPCA, for score and orthogonal distances (here without their robust estimates); Lee et al. (2018), A simple
        unified framework for detecting out-of-distribution samples, for features (here pooled over the domain, of one class).
    """

    fraction: float = 0.5
    _: KW_ONLY
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        fraction = check_real(self.fraction, "fraction", above=0.0, below=1.0)
        assign(self, fraction=fraction, seed=check_seed(self.seed))

    @undisturbed()
    @torch.no_grad()
    def fit(
        self,
        predictor: Predictor,
        calibration: Dataset,
        *,
        reference: Dataset | None = None,
        allow_training_data: bool = False,
    ) -> NoveltyDetector:
        """Fit scores, and rank those of calibration functions.

        Args:
            predictor: What any head or calibrator returned. Calibrations are looked through, those of a mixture's members too,
                and so is what was measured since: the head's own variance counts, which knows no calibration function, so
                these may be the ones that scales or bands were fitted on. The weights of a stack stay: not those ones.
            calibration: Held-out pairs that the head was not fitted on; only inputs are read.
            reference: Pairs on the same grids to fit scores on instead, those of training for example. A thousand are used at
                most. A fifth of the calibration functions, 10 at least, then standardise the scores, for a head states another
                variance where it was fitted; the others give ranks.
            allow_training_data: Whether calibration pairs that trained the predictor give a warning instead of an error.

        Returns:
            The detector: call it on input functions.

        Raises:
            CalibrationError: If scores would be fitted on fewer than 10 functions, no function or group is left to rank, or
                calibration pairs trained the predictor.
            DataError: If a data set is none, or a value is not finite.
            ShapeError: If channels are not the predictor's.
        """
        check_pairs(predictor, calibration)
        untrained_keys(predictor, calibration, allow_training_data=allow_training_data)
        return fitted_detector(self, predictor, calibration=calibration, reference=reference)


@stored(on_cpu=("fitted",))
@dataclass(frozen=True, eq=False, kw_only=True)
class NoveltyMeasure:
    """Scores of input functions, fitted on some.

    Args:
        inputs: Grid of the calibration inputs; for one mesh per sample, a uniform grid around all of them.
        outputs: Grid of the calibration outputs; None for one mesh per sample.
        fitted: The scores.
        standards: Mean and upper semideviation of each score's logarithm, by which they are combined.

    Raises:
        ShapeError: If scores and grid do not fit together.
    """

    inputs: Grid
    outputs: Grid | None
    fitted: FittedScores
    standards: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        """Check that the scores are those of functions on this grid."""
        values, points = len(self.fitted.inputs.components.center), described_on(self.inputs).size
        if values % points or not self.standards or any(len(both) != 2 for both in self.standards.values()):
            raise ShapeError(
                expected=f"components of functions on {points} points, and two standards for each score",
                got=f"{values} values and {dict(self.standards)}",
                remedy="fit it with Novelty",
            )

    def of(self, described: Descriptions) -> dict[str, Float64[Tensor, " n"]]:
        """Scores by name, of functions whose descriptions are complete."""
        scores = self.fitted(described)
        return scores | {COMBINED: combined(scores, self.standards)}

    def __call__(self, predictor: Predictor, inputs: Field) -> dict[str, Float64[Tensor, " n"]]:
        """Scores by name, `(n,)`, dimensionless, float64 on the CPU.

        Args:
            predictor: The one that they were fitted for; its calibrations do not matter.
            inputs: `(n, in_channels, *grid)`.
        """
        described = Describer(self.inputs, self.outputs)(uncalibrated(predictor), inputs)
        if (
            self.outputs is not None and inputs.grid.unmasked != self.inputs and described_on(self.inputs) == self.inputs
        ):  # else calibration functions had such power
            self._warn_of_unresolved(described)
        return self.of(described)

    def _warn_of_unresolved(self, described: Descriptions) -> None:
        """Say so where half of the functions or more have power that no calibration function could have."""
        assert described.powers is not None
        beyond = (described.powers[..., -1:] > self.fitted.inputs.least_power).flatten(1).any(1)
        count = int(beyond.sum())
        if count and 2 * count >= len(beyond):
            warn(
                f"{count} of {len(beyond)} functions have power that the calibration inputs' grid, {self.inputs!r}, does not "
                "resolve, and count as strange for that; to compare the rest alone, resample them there",
                DataWarning,
            )

    def partial(self, predictor: Predictor, inputs: Field, *, asks_head: bool) -> dict[str, Float64[Tensor, " n"]]:
        """The same without the combined score, and without those that the head is asked for where it is not to be."""
        describer = Describer(self.inputs, self.outputs)
        return self.fitted(describer(uncalibrated(predictor), inputs, asks_head=asks_head))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class NoveltyDetector(Undisturbed):
    """How strange input functions are, from [`Novelty`][probneural.calibration.Novelty]; call it on inputs.

    Args:
        predictor: What it was fitted for.
        measure: The scores.
        calibration: Scores of the calibration functions that new ones are ranked among, by name, `(n,)`.
        groups: Which group each of these is of, numbered from 0, `(n,)`.
    """

    predictor: Predictor
    measure: NoveltyMeasure
    calibration: Mapping[str, Float64[Tensor, " n"]]
    groups: Int64[Tensor, " n"]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scores, the combined one last."""
        return tuple(self.calibration)

    def __call__(self, inputs: Field, *, score: str = COMBINED) -> Float64[Tensor, " n"]:
        """Conformal p-values of input functions: small where a function is unlike those of calibration.

        Args:
            inputs: `(n, in_channels, *grid)`, on the domain of the calibration inputs.
            score: Which; see [`Novelty`][probneural.calibration.Novelty].

        Returns:
            `(n,)`, in [1/(m + 1), 1], float64 on the CPU.

        Raises:
            ArgumentError: If there is no such score; a head without a last layer has no `"features"`.
            DataError: If the inputs are no `Field`, or not finite.
            ShapeError: If the number of channels is not the predictor's.
            GridError: If the inputs live on another domain.
        """
        check_choice(score, self.names, "score")
        return conformal_p_values(self.scores(inputs)[score], self.calibration[score], groups=self.groups)

    def p_values(self, inputs: Field) -> dict[str, Float64[Tensor, " n"]]:
        """P-values of all scores by name, as in a call. Each is valid by itself, the smallest of them is not."""
        scores = self.scores(inputs).items()
        return {name: conformal_p_values(score, self.calibration[name], groups=self.groups) for name, score in scores}

    @torch.no_grad()
    def scores(self, inputs: Field) -> dict[str, Float64[Tensor, " n"]]:
        """Raw scores by name, `(n,)`, dimensionless; larger is stranger, beyond the largest of calibration too.

        Raises:
            DataError: If the inputs are no field, or not finite.
        """
        return self.measure(self.predictor, check_field(inputs, "inputs"))

    def __repr__(self) -> str:
        """Its scores, and among how many functions it ranks."""
        functions, groups = len(self.groups), number_of(self.groups)
        among = f"{functions} functions" + (f" of {groups} groups" if groups < functions else "")
        return f"NoveltyDetector({', '.join(self.names)}; ranks among {among})"


def fitted_detector(
    novelty: Novelty, predictor: Predictor, *, calibration: Dataset, reference: Dataset | None
) -> NoveltyDetector:
    """Fit scores on checked pairs, and rank those of some of them."""
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
    """(1 + #{i: s_i >= s}) / (m + 1) for each score s; ties count against the function, so they cannot lower a p-value.

    Of the functions of a group their fraction counts, and m is the number of groups.

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
    """A head's own predictor, under all calibrations; of a mixture, with members' own."""
    while isinstance(inner := getattr(predictor, "inner", None), Predictor):
        predictor = inner
    if isinstance(predictor, MixturePredictor):
        members = [uncalibrated(member) for member in predictor.predictors]
        changed = any(member is not original for member, original in zip(predictor.predictors, members, strict=True))
        return predictor.with_predictors(members) if changed else predictor
    return predictor


def divided(novelty: Novelty, calibration: Dataset, *, reference: Dataset | None) -> tuple[Dataset, Dataset]:
    """Calibration functions that scores are fitted on, or standardised by where there is a reference; those that give ranks."""
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
            expected=f"groups with {count} functions, and others to rank",
            got=f"{number_of(group_numbers(calibration))} groups of {len(calibration)} functions",
            remedy="hold out more groups",
        ) from error


def _described(describer: Describer, predictor: Predictor, pairs: Dataset) -> Descriptions:
    return Descriptions.cat([describer(predictor, part.inputs) for part in batches(pairs, describer.step)])


def _check_counts(fitted_on: int, ranked: int) -> None:
    if fitted_on < _LEAST or ranked < 1:
        raise CalibrationError(
            expected=f"at least {_LEAST} functions to fit scores on, and others to rank",
            got=f"{fitted_on} and {max(0, ranked)}",
            remedy="hold out more functions, or give training pairs as reference beside more than 10 others",
        )
