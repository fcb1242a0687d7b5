"""Calibration in one call: variances, a simultaneous band and novelty, from disjoint samples where required."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.calibration.bands.conformal import Band, SimultaneousBand
from probneural.calibration.novelty.detector import Novelty, NoveltyDetector, NoveltyMeasure
from probneural.calibration.predictions import check_new, distributions, group_numbers, number_of
from probneural.calibration.variance.scale_mixture import ScaleMixture, ScaleMixturePredictor
from probneural.calibration.variance.scaled_predictor import ScaledPredictor
from probneural.calibration.variance.variance_scale import VarianceScale
from probneural.checks import check_instance, check_real
from probneural.contexts import without_gradients
from probneural.distributions.base import FieldDistribution
from probneural.distributions.predictors.base import Calibrated, Predictor
from probneural.errors import CalibrationError
from probneural.fields import Field
from probneural.metrics.comparison import compare, domain_average
from probneural.metrics.reliability import coverage, simultaneous_coverage
from probneural.pairs import Dataset, split_order
from probneural.randomness import check_seed
from probneural.registry import stored

MIXTURE, BAND, NOVELTY = "scale mixture", "simultaneous band", "novelty"
"""Parts of a calibration that a small data set leaves out."""
_LEAST_SCALED = 2
"""Minimum number of samples, or groups, for the variance scale."""
_LEAST_MIXED = 10
"""Minimum number of samples, or groups, for the scale mixture."""


@stored()
@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """Sizes, variances and coverage of a calibration; printing gives a table.

    Coverage is measured on the band's samples, which the variance scale and the scale mixture have not used.

    Attributes:
        level: Nominal level of the coverages and of the band.
        sizes: Number of samples per part.
        variance_factors: Mean predictive variance after calibration relative to before, per channel, dimensionless.
        coverage: Fraction of values inside the pointwise intervals before and after; empty without a band.
        simultaneous_coverage: Fraction of samples inside the predictor's own simultaneous bands, likewise.
        left_out: Reason for each part that was left out.
    """

    level: float
    sizes: Mapping[str, int]
    variance_factors: tuple[float, ...]
    coverage: tuple[float, ...] = ()
    simultaneous_coverage: tuple[float, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Coverage and variances, then one line per part."""
        rows = [f"{'calibration':<34}{'before':>10}{'after':>10}"]
        for name, values in (("pointwise", self.coverage), ("simultaneous", self.simultaneous_coverage)):
            if values:
                rows.append(f"{f'coverage at {self.level:g}, {name}':<34}{values[0]:>10.3f}{values[1]:>10.3f}")
        for channel, factor in enumerate(self.variance_factors):
            label = "variance factor" + (f", channel {channel}" if len(self.variance_factors) > 1 else "")
            rows.append(f"{label:<34}{1:>10}{factor:>10.3g}")
        rows += [f"{name}: {size} samples" for name, size in self.sizes.items()]
        rows += [f"{name} left out: {reason}" for name, reason in self.left_out.items()]
        return "\n".join(rows)


@without_gradients()
def calibrate(predictor: Predictor, held_out: Dataset, *, level: float = 0.9, seed: int = 0) -> CalibratedPredictor:
    """Calibrate variances, fit a simultaneous band and a novelty test, in the recommended order.

    Half of the held-out samples fit `VarianceScale`, then `ScaleMixture`, which may increase variances but does not reduce
    them. The other half fits `SimultaneousBand`, whose guarantee needs samples that the scales have not used. If half is too
    few for the level, the band gets as many as it needs. `Novelty` uses all samples: its scores read inputs and the head
    alone. Windows of one trajectory stay together.

    A part with too few samples is left out, and the report states why. The guarantee of the band and of the p-values is for
    samples that are exchangeable with the held-out ones.

    Args:
        predictor: A head's predictor; `VarianceScale` and `ScaleMixture` around it are refitted.
        held_out: Pairs that neither training nor another calibration used, 40 or more for all parts at .9.
        level: Nominal coverage of the band and of the report, between 0 and 1, dimensionless.
        seed: Seed of the split, of the scale mixture and of novelty.

    Returns:
        A predictor that also has the simultaneous `band`, the test of `novelty` and a `report`, which prints as a table.

    Raises:
        CalibrationError: If there are fewer than 2 pairs, the predictor was trained or calibrated on some, or variances
            cannot be scaled; see [`VarianceScale.fit`][probneural.calibration.VarianceScale.fit].
        DataError: If a value is not finite, or an argument is of another kind.
        ShapeError: If the outputs do not have the predictor's channels.
        ArgumentError: If the level is not between 0 and 1, or the seed is not a non-negative integer.

    Examples:
        One call, for any predictor::

            predictor = pn.calibration.calibrate(predictor, held_out)
            print(predictor.report)
            band = predictor.band(test.inputs)  # band.lower, band.upper
            predictor.novelty(test.inputs)  # p-values (n,), small for unusual inputs
    """
    level, seed = check_real(level, "level", above=0.0, below=1.0), check_seed(seed)
    while isinstance(predictor, CalibratedPredictor | ScaleMixturePredictor | ScaledPredictor):
        predictor = predictor.inner
    check_new(predictor, held_out, allow_training_data=False)
    return _calibrated(predictor, held_out, level=level, seed=seed)


def _calibrated(inner: Predictor, held_out: Dataset, *, level: float, seed: int) -> CalibratedPredictor:
    """Fit all parts on checked pairs."""
    scaling, conformal, least = _split(held_out, level=level, seed=seed)
    left_out: dict[str, str] = {}
    sizes = {"variance scale": len(scaling)}
    scaled: Predictor = VarianceScale().fit(inner, scaling)
    if _count(scaling) >= _LEAST_MIXED:
        sizes[MIXTURE] = len(scaling)
        mixed = ScaleMixture(seed=seed).fit(scaled, scaling)
        # s_k / min(1, sum over k of w_k s_k²)^1/2: simultaneous coverage must not cost pointwise coverage
        scales = mixed.scales / min(1.0, mixed.variance_factor) ** 0.5
        scaled = ScaleMixturePredictor(scaled, scales, weights=mixed.weights, calibrated_on=mixed.calibrated_on)
    else:
        left_out[MIXTURE] = f"needs {_LEAST_MIXED} independent samples, got {_count(scaling)}"
    if conformal is None:
        left_out[BAND] = (
            f"needs {least} independent samples at level {level:g} and {_LEAST_SCALED} others, got {_count(held_out)}"
        )
        quantile = None
    else:
        sizes[BAND] = len(conformal)
        quantile = SimultaneousBand(level).fit(scaled, conformal).quantile
    try:
        detector = Novelty(seed=seed).fit(inner, held_out)
        sizes[NOVELTY] = len(held_out)
    except CalibrationError as error:  # too few samples, or groups
        detector, left_out[NOVELTY] = None, f"needs {error.expected}, got {error.got}"
    before, after = (
        _measured(version, scaling if conformal is None else conformal, level=level) for version in (inner, scaled)
    )
    report = CalibrationReport(
        level=level,
        sizes=sizes,
        variance_factors=tuple((after.pop("variance") / before.pop("variance")).nan_to_num(nan=1.0).tolist()),
        left_out=left_out,
        **{} if conformal is None else {name: (float(before[name]), float(after[name])) for name in before},
    )
    return CalibratedPredictor(
        scaled,
        report,
        quantile=quantile,
        measure=None if detector is None else detector.measure,
        scores=None if detector is None else detector.calibration,
        groups=None if detector is None else detector.groups,
    )


def _count(pairs: Dataset) -> int:
    """Number of independent samples: of groups, where pairs have groups."""
    return number_of(group_numbers(pairs))


def _split(held_out: Dataset, *, level: float, seed: int) -> tuple[Dataset, Dataset | None, int]:
    """Samples of the scales, samples of the band or None, and the least number of the latter, level / (1 - level)."""
    groups = group_numbers(held_out)
    total, least = number_of(groups), math.ceil(level / (1.0 - level) - 1e-9)
    count = min(total // 2, total - least)
    if count < _LEAST_SCALED:
        return held_out, None, least
    in_scaling = torch.isin(groups, split_order(total, seed=seed)[:count])
    scaling, conformal = (held_out.subset(rows.nonzero()[:, 0]) for rows in (in_scaling, ~in_scaling))
    return scaling, conformal, least


def _measured(predictor: Predictor, pairs: Dataset, *, level: float) -> dict[str, Any]:
    """Mean predictive variance per channel, `(c,)`, and coverage of values and of samples."""
    variance, pointwise, simultaneous = [], [], []
    for u, truth, grid in distributions(predictor, pairs):
        comparison = compare(u, Field(truth, grid), noise=predictor.noise)
        variance.append(domain_average(comparison.variance, grid))
        pointwise.append(coverage(comparison, level=level))
        simultaneous.append(simultaneous_coverage(comparison, level=level))
    return {
        "variance": torch.cat(variance).mean(0),
        "coverage": torch.cat(pointwise).mean(),
        "simultaneous_coverage": torch.cat(simultaneous).mean(),
    }


@stored(on_cpu=("report", "measure", "scores", "groups", "calibrated_on"))
class CalibratedPredictor(Calibrated):
    """A calibrated predictor with its simultaneous band and its novelty test, from `calibrate`.

    It predicts and draws as `inner` does.

    Args:
        inner: The predictor whose variances are calibrated.
        report: Report of the calibration.
        quantile: Half width of the band in units of the local scale, dimensionless; None without a band.
        measure: Novelty scores of inputs; None without novelty.
        scores: Novelty scores of the held-out samples that new ones are ranked among, by name, `(m,)`.
        groups: Group of each of these samples, numbered from 0, `(m,)`.
    """

    def __init__(
        self,
        inner: Predictor,
        report: CalibrationReport,
        *,
        quantile: float | None = None,
        measure: NoveltyMeasure | None = None,
        scores: Mapping[str, Float64[Tensor, " m"]] | None = None,
        groups: Int64[Tensor, " m"] | None = None,
    ) -> None:
        check_instance(inner, Predictor, "inner", remedy="use calibrate")
        super().__init__(inner, calibrated_on=inner.calibrated_on)
        self.report = check_instance(report, CalibrationReport, "report", remedy="use calibrate")
        self.quantile = quantile
        self.measure, self.scores, self.groups = measure, scores, groups
        if measure is not None:
            self.novelty  # noqa: B018 (validates scores and groups)

    @property
    def band(self) -> Band:
        """The simultaneous band at the report's level; `band(inputs)` has `lower` and `upper`.

        Raises:
            CalibrationError: If there were too few held-out samples for a band.
        """
        if self.quantile is None:
            raise self._left_out(BAND)
        return Band(self.inner, quantile=self.quantile, method=SimultaneousBand(self.report.level))

    @property
    def novelty(self) -> NoveltyDetector:
        """The novelty test; `novelty(inputs)` returns conformal p-values, `(n,)`, small for unusual inputs.

        Raises:
            CalibrationError: If there were too few held-out samples for novelty.
        """
        if self.measure is None or self.scores is None or self.groups is None:
            raise self._left_out(NOVELTY)
        return NoveltyDetector(predictor=self.inner, measure=self.measure, calibration=self.scores, groups=self.groups)

    def _left_out(self, part: str) -> CalibrationError:
        return CalibrationError(
            expected=f"enough held-out samples for {part}",
            got=self.report.left_out.get(part, "none"),
            remedy="hold out more samples, or lower the level of the band",
        )

    def _map(self, inputs: Field, field: FieldDistribution) -> FieldDistribution:
        """The calibrated field, unchanged."""
        return field

    def _details(self) -> str:
        """The level."""
        return f"level={self.report.level:g}"
