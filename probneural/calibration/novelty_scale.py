"""Error bars that widen where inputs are strange."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.calibration.chunks import CHUNK_VALUES, check_pairs, distributions, moments, untrained_keys
from probneural.calibration.inflation import Errors, Inflation, fit_inflation
from probneural.calibration.novelty import Novelty, NoveltyDetector, NoveltyMeasure, divided
from probneural.calibration.variance_profile import are_rounding
from probneural.checks import assign, check_instance
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.calibrated import Calibrated
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import digest
from probneural.distributions.mixture import MixtureField
from probneural.distributions.predictor import Predictor
from probneural.distributions.roots.base import FeatureRoot, Root
from probneural.distributions.roots.weighted import weigh
from probneural.distributions.scale_mixture import ScaleMixtureField
from probneural.errors import ArgumentError, CalibrationError, GridError, UnsupportedError
from probneural.fields import Field
from probneural.grids import check_unmasked
from probneural.pairs import Dataset, batches, check_dataset
from probneural.randomness import stream
from probneural.registry import stored

_POINTS = 64
"""Values of a function whose errors say by how much its variance is to grow."""


@dataclass(frozen=True)
class NoveltyScale:
    """Widen error bars where inputs are unlike those of calibration, by what labelled shifts show.

    All that a predictor states of a function is multiplied by one factor,

        covariance = g(s)² C,        g² = prod over j of max(1, s_j / k_j)^theta_j,

    where s are the scores `"components"`, `"residual"` and `"variance"` of [`Novelty`][probneural.calibration.Novelty], the
    knots k are their quantiles .5, .9 and .99 over ordinary functions, and theta >= 0 maximises the Gaussian likelihood
    of errors on calibration functions and on shifted ones, half the weight each. Weight moves to the set of shifted functions
    whose errors are largest beside what is stated. So bars never become narrower; those of ordinary functions widen by a fifth
    at most, on average, beyond what their own errors ask for; and exponents add up to four at most, so deviations grow by the
    fourth power of a distance at most. Means stay, and so do correlations.

    Shifts need labels: from a solver for inputs that [`synthetic_shifts`][probneural.calibration.synthetic_shifts] makes of
    calibration inputs, or measured ones. What helps against other shifts is that errors grow with the distance from what was
    seen, by whatever shift it came about; nothing guarantees that they do. A changed equation with unchanged inputs is not
    seen, and widens nothing.

    Measurement noise, which is not part of the field, stays. So calibrate first: `VarianceScale` moves what a head calls noise
    into the field.

    Args:
        novelty: How scores are fitted.

    Raises:
        ArgumentError: If `novelty` is none.
    """

    novelty: Novelty = field(default_factory=Novelty)

    def __post_init__(self) -> None:
        """Check the settings."""
        assign(self, novelty=check_instance(self.novelty, Novelty, "novelty", remedy="use Novelty()", error=ArgumentError))

    @undisturbed()
    @torch.no_grad()
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
            predictor: What any head or calibrator returned; it is wrapped, not changed. One that is inflated already is
                inflated anew from what it wraps.
            calibration: Held-out pairs of the distribution of training, which scales may have been fitted on.
            shifted: Pairs with other inputs, and true outputs on the calibration outputs' grid: one set, or several, the worst
                of which counts.
            reference: See [`Novelty.fit`][probneural.calibration.Novelty.fit].
            allow_training_data: Whether calibration or shifted pairs that trained the predictor give a warning instead of an
                error.

        Returns:
            A predictor that widens, and which remembers all these pairs.

        Raises:
            CalibrationError: If there are too few functions, no shifted ones, no variance in the predictions, or pairs trained
                the predictor.
            DataError: If a data set is none, or a value is not finite.
            ShapeError: If channels are not the predictor's.
            GridError: If shifted outputs live elsewhere than the calibration outputs.
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
        keys = [untrained_keys(inner, one, allow_training_data=allow_training_data) for one in (calibration, *sets)]
        detector = self.novelty._fitted(inner, calibration, reference=reference)
        blank = Inflation.at(detector.calibration)
        _, ordinary = divided(self.novelty, calibration, reference=reference)
        distances = [blank.distances(detector.calibration), *(_distances(detector, blank, pairs) for pairs in sets)]
        errors = [_errors(inner, pairs, one) for pairs, one in zip((ordinary, *sets), distances, strict=True)]
        inflation = fit_inflation(blank, errors[0], shifted=errors[1:])
        used = torch.cat([inner.calibrated_on, *(one.flatten() for one in keys)])
        inflated = InflatedPredictor(inner, inflation, measure=detector.measure, calibrated_on=used)
        return inflated._with_discrepancy(calibration)


@stored(on_cpu=("inflation", "measure", "calibrated_on"))
class InflatedPredictor(Calibrated):
    """A predictor whose covariances grow with the novelty of the input function; means and correlations stay.

    See [`NoveltyScale`][probneural.calibration.NoveltyScale].

    Args:
        inner: The predictor it wraps.
        inflation: g² of scores.
        measure: Scores of input functions.
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
            DataError: If the inputs are no field, or not finite.
            ShapeError: If the number of channels is not the predictor's.
            GridError: If the inputs live on another domain.
        """
        checked = self._checked(inputs, None)
        return self.inflation(self.measure.partial(self.inner, checked, asks_head=self.inflation.asks_head))

    def _map(self, inputs: Field, field: FieldDistribution) -> FieldDistribution:
        factor = self.factors(inputs).sqrt().to(field.mean)
        return self._about(field, field.mean, factor)

    def _about(
        self, u: FieldDistribution, center: Float[Tensor, "n c *grid"], factor: Float[Tensor, " n"]
    ) -> FieldDistribution:
        """A distribution, or a component of one, whose deviations from the whole mean are inflated."""
        each = factor.reshape(-1, *(1,) * (center.ndim - 1))
        mean = center + each * (u.mean - center)
        if isinstance(u, ScaleMixtureField):
            field = self._about(u.field, center, factor)
            assert isinstance(field, GaussianField)
            return ScaleMixtureField(field, u.scales, weights=u.weights)
        if isinstance(u, MixtureField):
            fields = [self._about(field, center, factor) for field in u.components]
            return MixtureField([field for field in fields if isinstance(field, GaussianField)], u.weights)
        if isinstance(u, EmpiricalField):
            return EmpiricalField(center + each * (u.samples - center), u.weights, grid=u.grid)._after(u)
        if not isinstance(u, GaussianField):
            raise UnsupportedError(
                expected="a predictor of Gaussian or empirical fields, or of mixtures",
                got=type(u).__name__,
                remedy="wrap its samples as an EmpiricalField",
            )
        return GaussianField(
            mean,
            _inflated(u.root, factor),
            latent=u.latent.renamed(f"inflated-{digest(self.inflation.knots, self.inflation.exponents, self.calibrated_on)}"),
            grid=u.grid,
            discrepancy=None if u.discrepancy is None else _inflated(u.discrepancy, factor),
        )

    def _description(self) -> str:
        """What is inflated, and how much of it."""
        exponents = ", ".join(
            f"{name} {size:.3g}" for name, size in zip(self.inflation.names, self.inflation.exponents, strict=True)
        )
        return f"InflatedPredictor({self.inner._description()}, exponents: {exponents})"


def _inflated(root: Root, factor: Float[Tensor, " n"]) -> Root:
    """The root with all rows of a function multiplied by one factor."""
    if isinstance(root, FeatureRoot):
        return FeatureRoot(root.features * factor.to(root.features)[:, None, None], root.factor)
    return weigh(root, factor[:, None, None].expand(root.shape[:3]))


def _distances(detector: NoveltyDetector, blank: Inflation, pairs: Dataset) -> Float64[Tensor, "n j"]:
    """How far shifted functions lie beyond the knots."""
    size = max(1, CHUNK_VALUES // pairs.inputs.grid.size)
    return torch.cat([blank.distances(detector.scores(part.inputs)) for part in batches(pairs, size)])


def _errors(predictor: Predictor, pairs: Dataset, distances: Float64[Tensor, "n j"]) -> Errors:
    """Errors at some values of each function, and what is stated there.

    Errors without variance are left out, and those that are rounding, as what is stated of them.

    Raises:
        CalibrationError: If no variance is stated at all.
    """
    grid, channels = check_unmasked(pairs.outputs.grid, "errors of shifted functions"), pairs.outputs.channels
    wanted = min(grid.size, max(1, _POINTS // channels))
    points = torch.randperm(grid.size, generator=stream(0, "novelty points"))[:wanted].sort().values
    noise = predictor.noise.detach().to("cpu", torch.float64)[:, None].expand(channels, wanted).flatten()
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
            got="zero everywhere, which no factor can widen",
            remedy="calibrate it first: VarianceScale moves what a head calls noise into the field",
        )
    return Errors(distances=distances, variance=stated, squares=torch.cat(squares), noise=noise.expand_as(stated))
