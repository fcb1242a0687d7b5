"""Variance inflation: a factor of predictive variances that grows with the novelty of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from torch import Tensor

from probneural.calibration.novelty.detector import Novelty, NoveltyDetector, NoveltyMeasure, divided, fitted_detector
from probneural.calibration.novelty.scores import log_score
from probneural.calibration.predictions import CHUNK_VALUES, are_rounding, check_pairs, distributions, moments, untrained_keys
from probneural.checks import check_instance
from probneural.contexts import without_gradients
from probneural.distributions.base import FieldDistribution, inherit
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import digest
from probneural.distributions.mixture import MixtureField
from probneural.distributions.predictors.base import Calibrated, Predictor, with_discrepancy
from probneural.distributions.roots.base import FeatureRoot, Root
from probneural.distributions.roots.modulated import weigh
from probneural.distributions.scale_mixture import ScaleMixtureField
from probneural.errors import CalibrationError, GridError, UnsupportedError
from probneural.fields import Field
from probneural.grids import check_unmasked
from probneural.pairs import Dataset, batches, check_dataset
from probneural.randomness import stream
from probneural.registry import stored

_POINTS = 64
"""Maximum number of values per sample in the fit."""
SCORES = ("components", "residual", "variance")
"""Scores that are proportional to errors; spectra and pooled features are more sensitive to novelty than errors are."""
KNOTS = (0.5, 0.9, 0.99)
"""Quantiles of the in-distribution scores that are knots, above which variances grow."""
WIDEST = 1.2
"""Largest mean factor of in-distribution deviations."""
STEEPEST = 4.0
"""Largest sum of the exponents: scores are squared distances, so deviations grow by the fourth power of a distance at most."""
_OUTLIERS = 0.05
"""Fraction of in-distribution samples, those of the largest errors, omitted from the required inflation."""
_ROUNDS = 20
"""Maximum number of reweighting steps of the sets of shifted samples."""
_LEAST = 1e-6
"""Exponents below it are rounding and set to zero."""
_STARTS = 20
"""Maximum number of restarts of the search for exponents, each from the previous result."""
_STEPS = 500
"""Maximum number of iterations of a search."""
_SLACK = 0.02
"""Tolerated excess of mean squared standardised errors over 1."""
_ORDINARY = 0.5
"""Weight of in-distribution samples relative to shifted ones."""
_TINY = torch.finfo(torch.float64).tiny
_GAIN = 1e-13
"""Change of the likelihood below which the search ends."""


@dataclass(frozen=True)
class NoveltyScale:
    """Inflate the variance of out-of-distribution inputs, fitted to labelled shifted samples.

    The deviations of each sample are multiplied by one factor,

        covariance = g(s)² C,        g² = prod over j of max(1, s_j / k_j)^theta_j,

    where s are the scores `"components"`, `"residual"` and `"variance"` of [`Novelty`][probneural.calibration.Novelty], the
    knots k are their quantiles .5, .9 and .99 over in-distribution samples, and theta >= 0 maximises the Gaussian likelihood
    of errors on calibration and on shifted samples, half the weight each. Weight moves to the shifted set with the largest
    standardised errors. Intervals never shrink; those of in-distribution samples grow on average by at most a fifth beyond
    the inflation that their errors require. The sum of exponents is at most four, so deviations grow at most by the fourth
    power of a distance. Means and correlations are unchanged.

    Shifted samples need outputs: from a solver for inputs of [`synthetic_shifts`][probneural.calibration.synthetic_shifts],
    or measured ones. For other shifts, the inflation is useful if errors grow with the distance from the training data;
    there is no guarantee. A changed equation with unchanged inputs is not detected.

    Measurement noise, which is not part of the field, stays. So calibrate first: `VarianceScale` moves what a head calls noise
    into the field.
    """

    @without_gradients()
    def fit(
        self,
        predictor: Predictor,
        calibration: Dataset,
        *,
        shifted: Dataset | Sequence[Dataset],
        reference: Dataset | None = None,
        allow_training_data: bool = False,
    ) -> InflatedPredictor:
        """Fit scores and the factor.

        Args:
            predictor: Predictor of any head or calibrator; it is wrapped, not changed. The inflation of an inflated predictor
                is replaced.
            calibration: Held-out in-distribution pairs; they may have been used for variance scaling.
            shifted: Pairs with other inputs, and true outputs on the calibration outputs' grid: one set, or several, the worst
                of which counts.
            reference: See [`Novelty.fit`][probneural.calibration.Novelty.fit].
            allow_training_data: Whether calibration or shifted pairs that trained the predictor give a warning instead of an
                error.

        Returns:
            An inflated predictor, with a record of all these pairs.

        Raises:
            CalibrationError: If there are too few samples, no shifted ones, no variance in the predictions, or pairs trained
                the predictor.
            DataError: If a data set is of another type, or a value is not finite.
            ShapeError: If the channels differ from the predictor's.
            GridError: If the grids of shifted and calibration outputs differ.
        """
        inner = predictor.inner if isinstance(predictor, InflatedPredictor) else predictor
        sets = tuple(shifted) if isinstance(shifted, list | tuple) else (shifted,)
        check_dataset(calibration, "calibration")
        for pairs in sets:
            check_pairs(inner, pairs)
            if pairs.outputs.grid != calibration.outputs.grid:
                raise GridError(
                    expected=f"shifted outputs on the calibration outputs' grid {calibration.outputs.grid!r}",
                    got=repr(pairs.outputs.grid),
                    remedy="solve for them there, or resample them",
                )
        if not sets or not all(len(pairs) for pairs in sets):
            raise CalibrationError(
                expected="shifted pairs",
                got=f"{len(sets)} sets of {[len(pairs) for pairs in sets]}",
                remedy="label synthetic shifts: pn.calibration.synthetic_shifts(calibration.inputs, seed=0)",
            )
        check_pairs(inner, calibration)
        keys = [untrained_keys(inner, data, allow_training_data=allow_training_data) for data in (calibration, *sets)]
        detector = fitted_detector(Novelty(), inner, calibration=calibration, reference=reference)
        initial = Inflation.at(detector.calibration)
        _, ordinary = divided(Novelty(), calibration, reference=reference)
        distances = [initial.distances(detector.calibration), *(_distances(detector, initial, pairs) for pairs in sets)]
        errors = [_errors(inner, pairs, one) for pairs, one in zip((ordinary, *sets), distances, strict=True)]
        inflation = fit_inflation(initial, errors[0], shifted=errors[1:])
        used = torch.cat([inner.calibrated_on, *(one.flatten() for one in keys)])
        inflated = InflatedPredictor(inner, inflation, measure=detector.measure, calibrated_on=used)
        return with_discrepancy(inflated, calibration)


@stored(on_cpu=("inflation", "measure", "calibrated_on"))
class InflatedPredictor(Calibrated):
    """A predictor whose covariances grow with the novelty of the input; means and correlations are unchanged.

    See [`NoveltyScale`][probneural.calibration.NoveltyScale].

    Args:
        inner: The predictor it wraps.
        inflation: g² of scores.
        measure: Scores of inputs.
        calibrated_on: Row keys of the calibration and shifted pairs, and of those that `inner` was calibrated on, `(n,)`: a
            conformal band needs others.
    """

    def __init__(
        self, inner: Predictor, inflation: Inflation, *, measure: NoveltyMeasure, calibrated_on: Int64[Tensor, " n"]
    ) -> None:
        super().__init__(inner, calibrated_on=calibrated_on)
        self.inflation = inflation
        self.measure = measure

    def factors(self, inputs: Field) -> Float64[Tensor, " n"]:
        """The factor g² >= 1 of the variances of each function, `(n,)`, dimensionless, on the CPU.

        Args:
            inputs: `(n, in_channels, *grid)`.

        Raises:
            DataError: If the inputs are not a field, or not finite.
            ShapeError: If the number of channels is not the predictor's.
            GridError: If the inputs have another domain.
        """
        checked = self._checked(inputs, None)
        return self.inflation(self.measure.partial(self.inner, checked, asks_head=self.inflation.asks_head))

    def _map(self, inputs: Field, field: FieldDistribution) -> FieldDistribution:
        factor = self.factors(inputs).sqrt().to(field.mean)
        return self._about(field, field.mean, factor)

    def _about(
        self, u: FieldDistribution, center: Float[Tensor, "n c *grid"], factor: Float[Tensor, " n"]
    ) -> FieldDistribution:
        """A distribution or mixture component with inflated deviations from the overall mean."""
        factors = factor.reshape(-1, *(1,) * (center.ndim - 1))
        mean = center + factors * (u.mean - center)
        if isinstance(u, ScaleMixtureField):
            field = self._about(u.field, center, factor)
            assert isinstance(field, GaussianField)
            return ScaleMixtureField(field, u.scales, weights=u.weights)
        if isinstance(u, MixtureField):
            fields = [self._about(field, center, factor) for field in u.components]
            return MixtureField([field for field in fields if isinstance(field, GaussianField)], u.weights)
        if isinstance(u, EmpiricalField):
            return inherit(EmpiricalField(center + factors * (u.samples - center), u.weights, grid=u.grid), u)
        u = check_instance(u, GaussianField, "field", remedy="wrap its samples as an EmpiricalField", error=UnsupportedError)
        return GaussianField(
            mean,
            _inflated(u.root, factor),
            latent=u.latent.renamed(f"inflated-{digest(self.inflation.knots, self.inflation.exponents, self.calibrated_on)}"),
            grid=u.grid,
            discrepancy=None if u.discrepancy is None else _inflated(u.discrepancy, factor),
        )

    def _details(self) -> str:
        """The exponents of the scores."""
        sizes = zip(self.inflation.names, self.inflation.exponents, strict=True)
        return f"exponents: {', '.join(f'{name} {size:.3g}' for name, size in sizes)}"


def _inflated(root: Root, factor: Float[Tensor, " n"]) -> Root:
    """The root with one factor per sample."""
    if isinstance(root, FeatureRoot):
        return FeatureRoot(root.features * factor.to(root.features)[:, None, None], root.factor)
    return weigh(root, factor[:, None, None].expand(root.shape[:3]))


def _distances(detector: NoveltyDetector, inflation: Inflation, pairs: Dataset) -> Float64[Tensor, "n j"]:
    """Distances of the scores of shifted samples beyond the knots."""
    size = max(1, CHUNK_VALUES // pairs.inputs.grid.size)
    return torch.cat([inflation.distances(detector.scores(part.inputs)) for part in batches(pairs, size)])


def _errors(predictor: Predictor, pairs: Dataset, distances: Float64[Tensor, "n j"]) -> Errors:
    """Errors at some values of each sample, and the predicted variances.

    Errors without predicted variance and errors at rounding level are omitted.

    Raises:
        CalibrationError: If all predicted variances are zero.
    """
    grid, channels = check_unmasked(pairs.outputs.grid, "errors of shifted functions"), pairs.outputs.channels
    count = min(grid.size, max(1, _POINTS // channels))
    points = torch.randperm(grid.size, generator=stream(0, "novelty points"))[:count].sort().values
    noise = predictor.noise.detach().to("cpu", torch.float64)[:, None].expand(channels, count).flatten()
    variances, squares = [], []
    for u, truth, _ in distributions(predictor, pairs):
        none = are_rounding(moments(u, predictor.noise), truth, dtype=pairs.outputs.dtype)
        error = torch.where(none, 0.0, truth - u.mean)
        variance, error = (
            part.detach().to("cpu", torch.float64).flatten(2)[..., points].flatten(1) for part in (u.variance, error)
        )
        variances.append(variance)
        squares.append(torch.where(variance + noise > 0, error.square(), 0.0))
    stated = torch.cat(variances)
    if not bool((stated > 0).any()):
        raise CalibrationError(
            expected="a predictor whose field has a variance",
            got="zero everywhere, which no factor can inflate",
            remedy="calibrate it first: VarianceScale moves estimated noise into the field",
        )
    return Errors(distances=distances, variance=stated, squares=torch.cat(squares), noise=noise.expand_as(stated))


@stored(on_cpu=("knots", "exponents"))
@dataclass(frozen=True, eq=False, kw_only=True)
class Inflation:
    """g(s)² = prod over j of max(1, s_j / k_j)^theta_j, with theta_j >= 0: at least 1, and increasing with novelty.

    Args:
        names: Score of each factor.
        knots: k, logarithms of scores, `(j,)`.
        exponents: theta, `(j,)`, dimensionless.
    """

    names: tuple[str, ...]
    knots: Float64[Tensor, " j"]
    exponents: Float64[Tensor, " j"]

    @classmethod
    def at(cls, ordinary: Mapping[str, Float64[Tensor, " n"]]) -> Inflation:
        """Zero exponents, with knots at quantiles of the in-distribution scores."""
        pairs = [(name, knot) for name in SCORES for knot in KNOTS]
        knots = [float(log_score(ordinary[name]).quantile(knot)) for name, knot in pairs]
        zeros = torch.zeros(len(pairs), dtype=torch.float64)
        return cls(names=tuple(name for name, _ in pairs), knots=torch.tensor(knots, dtype=torch.float64), exponents=zeros)

    @property
    def asks_head(self) -> bool:
        """Whether a score depends on the head's prediction, not on the inputs only."""
        used = {name for name, exponent in zip(self.names, self.exponents.tolist(), strict=True) if exponent > 0}
        return "variance" in used

    def distances(self, scores: Mapping[str, Float64[Tensor, " n"]]) -> Float64[Tensor, "n j"]:
        """max(0, log score - log knot) of each score; zero for missing scores."""
        example = next(iter(scores.values()))
        columns = [log_score(scores[name]) if name in scores else torch.full_like(example, -torch.inf) for name in self.names]
        return (torch.stack(columns, 1) - self.knots).clamp_min(0.0)

    def __call__(self, scores: Mapping[str, Float64[Tensor, " n"]]) -> Float64[Tensor, " n"]:
        """The factor g² of variances, `(n,)`, dimensionless."""
        return self.growth(self.distances(scores))

    def growth(self, distances: Float64[Tensor, "n j"]) -> Float64[Tensor, " n"]:
        """The factor g² at these distances, `(n,)`, dimensionless."""
        return (distances @ self.exponents).exp()

    def fitted(self, errors: Errors, weights: Float64[Tensor, " n"]) -> Inflation:
        """Maximum-likelihood exponents for Gaussian errors of variance g² v + s, with a bounded sum.

        One sample counts as one observation. Without noise s the negative log likelihood is convex in the exponents.

        Args:
            errors: Errors of n samples.
            weights: Weights of the samples, sum 1.
        """

        def objective(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            """Twice the negative log likelihood, and its gradient."""
            field = (errors.distances @ torch.from_numpy(at)).exp()[:, None] * errors.variance
            total = (field + errors.noise).clamp_min(_TINY)
            ratio = errors.squares / total
            slope = weights * (field / total * (1.0 - ratio)).mean(1) @ errors.distances
            return float(weights @ (total.log() + ratio).mean(1)), slope.numpy()

        at = np.zeros(len(self.exponents))
        value = objective(at)[0]
        for _ in range(_STARTS):  # far from the minimum the search may fail to move, or leave the bounds
            moved = _searched(objective, at)
            lower = objective(moved)[0]
            if not lower < value - _GAIN * abs(value):
                break
            at, value = moved, lower
        exponents = torch.from_numpy(at)
        return replace(self, exponents=torch.where(exponents > _LEAST, exponents, 0.0))


def _searched(
    objective: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]], start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A point of lower value within the bounds, or the start: sequential quadratic programming, in units of the first slope."""
    from scipy.optimize import LinearConstraint, minimize  # takes a third of a second to import

    unit = max(1.0, float(np.abs(objective(start)[1]).max()))

    def scaled(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = objective(at)
        return value / unit, slope / unit

    optimum = minimize(
        scaled,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, STEEPEST)] * len(start),
        constraints=LinearConstraint(np.ones((1, len(start))), -math.inf, STEEPEST),
        options={"maxiter": _STEPS, "ftol": _GAIN},
    )
    if not np.isfinite(optimum.x).all():
        return start
    within: NDArray[np.float64] = optimum.x.clip(0.0)
    return within * (STEEPEST / max(float(within.sum()), STEEPEST))


@dataclass(frozen=True, eq=False, kw_only=True)
class Errors:
    """Errors of n samples at m values, and the predicted variances.

    Attributes:
        distances: Result of `Inflation.distances`.
        variance: v, predicted variances of the field, in physical units squared.
        squares: Squared errors.
        noise: s, variance of the measurements' noise.
    """

    distances: Float64[Tensor, "n j"]
    variance: Float64[Tensor, "n m"]
    squares: Float64[Tensor, "n m"]
    noise: Float64[Tensor, "n m"]

    @classmethod
    def together(cls, sets: Sequence[Errors]) -> Errors:
        """All samples of several sets."""
        names = ("distances", "variance", "squares", "noise")
        return cls(**{name: torch.cat([getattr(errors, name) for errors in sets]) for name in names})

    def chi2(self, inflation: Inflation) -> Float64[Tensor, " n"]:
        """Mean squared standardised error of each function, inflated."""
        total = inflation.growth(self.distances)[:, None] * self.variance + self.noise
        return (self.squares / total.clamp_min(_TINY)).mean(1)

    def width(self, inflation: Inflation) -> float:
        """Mean factor of the deviations."""
        return float(inflation.growth(self.distances).sqrt().mean())


def fit_inflation(initial: Inflation, ordinary: Errors, *, shifted: Sequence[Errors]) -> Inflation:
    """Fit exponents to in-distribution and shifted samples, half the weight each, for the worst of the shifted sets.

    Sets have equal weight at first. Then weight moves to those with errors larger than predicted. If in-distribution
    deviations grow, on average, by more than a fifth beyond the inflation that their errors require, all exponents are reduced.

    Args:
        initial: Inflation with knots and zero exponents.
        ordinary: Errors of in-distribution samples.
        shifted: Errors of each shifted set.
    """
    typical = ordinary.chi2(initial).sort().values[: max(1, round((1.0 - _OUTLIERS) * len(ordinary.squares)))]
    widest = WIDEST * math.sqrt(max(1.0, float(typical.mean())))
    inflation = _for_the_worst(initial, ordinary, shifted)
    if ordinary.width(inflation) <= widest:
        return inflation
    low, high = 0.0, 1.0
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        narrower = replace(inflation, exponents=middle * inflation.exponents)
        low, high = (middle, high) if ordinary.width(narrower) <= widest else (low, middle)
    return replace(inflation, exponents=low * inflation.exponents)


def _for_the_worst(initial: Inflation, ordinary: Errors, shifted: Sequence[Errors]) -> Inflation:
    """Exponents under which no shifted set has larger errors than predicted, if such exponents exist."""
    every = Errors.together([ordinary, *shifted])
    shares = torch.full((len(shifted),), 1.0 / len(shifted), dtype=torch.float64)
    best, least = initial, math.inf
    for _ in range(_ROUNDS):
        parts = [_ORDINARY, *((1.0 - _ORDINARY) * shares).tolist()]
        counts = [len(errors.squares) for errors in (ordinary, *shifted)]
        weights = [torch.full((count,), part / count, dtype=torch.float64) for part, count in zip(parts, counts, strict=True)]
        inflation = initial.fitted(every, torch.cat(weights))
        chi2 = torch.stack([errors.chi2(inflation).mean() for errors in shifted])
        if float(chi2.max()) < least:
            best, least = inflation, float(chi2.max())
        if least <= 1.0 + _SLACK or len(shifted) == 1:
            break
        shares = shares * chi2.clamp_min(_TINY).sqrt()
        shares = shares / shares.sum()
    return best
