"""Scales that make stated variances as large as the errors on held-out fields."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.calibration.chunks import (
    CalibrationPredictions,
    Pair,
    check_pairs,
    domain_average,
    fingerprints,
)
from probneural.calibration.decomposition import Decomposition, decompose, gaussian_of, likelihood_rows, shared_covariances
from probneural.calibration.held_out import group_numbers
from probneural.calibration.local_fit import Part, fit_local_scale
from probneural.calibration.local_scale import LocalScale
from probneural.calibration.trimmed import trimmed_mean_square
from probneural.calibration.variance_profile import MOSTLY, ROUNDING, are_rounding, likelihood_profile, standardised_squares
from probneural.checks import assign, check_flag, check_variances
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution, check_factors, noise_variance
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import digest
from probneural.distributions.mixture_predictor import MixturePredictor
from probneural.distributions.predictor import DrawsWithField, JointDraws, Predictor
from probneural.distributions.roots.base import Root, square_root
from probneural.distributions.roots.modulated import DiagonalRoot, ModulatedRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.distributions.roots.weighted import weigh
from probneural.errors import CalibrationError, DataWarning, ShapeError
from probneural.fields import Field
from probneural.grids import Grid, resample
from probneural.pairs import Dataset

FRACTIONS = (0.05, 0.95)
"""Smallest and largest fraction of the mean predictive variance that separate scales leave to the noise."""
_CANDIDATES = 91
"""Shares tried between the two: steps of one per cent."""
_SLACK = 1e-6
"""Relative difference of variances that counts as none."""
_DRAWN_POINTS = 2**18
"""Grid points of inputs at which draws are evaluated together."""


@dataclass(frozen=True)
class VarianceScale:
    """Scale covariance and noise, per channel, so that stated variances are as large as the errors on held-out fields.

    With separate scales a and b, the predictive variance a v + b n maximises the Gaussian marginal likelihood of the
    calibration fields; so chi² on them is 1, and the noise no longer hides where the field's own variance v knows the errors
    to be large. The noise keeps between 5 and 95 % of the mean predictive variance. With one common scale, a = b = chi² in
    closed form.

    Errors are rarely spread as evenly as that: they are larger at a front, smaller at a wall where the solution is given, and
    larger for inputs that are harder. A local scale h, a function of what is predicted and of the position (see
    [`LocalScale`][probneural.calibration.LocalScale]), multiplies the variance at each point. It is fitted by the same
    likelihood, and left out where functions held out in turn do not gain by it, or are fewer than ten; windows of one
    trajectory are held out together, and count as one. A channel where errors
    and stated deviations are rounding at more than four fifths of the values has no local scale, nor a robust one: the others
    say nothing of where errors are large. Where all are, there is nothing to fit: the channel's variances stay as they are,
    with a warning.

    What the head calls noise n is, on exact data, what its operator cannot express: uncertainty about the field, and
    correlated from point to point. So the calibrated field holds it, as a discrepancy of each function's own:

        covariance = h^½ (w a C + D rho D + f b n I) h^½,        D² = (1 - w) a v + (1 - f) b n,

    with C the head's covariance (of what it states as each function's own, too), h its local scale and rho the correlation of
    the standardised residuals, a stationary process whose spectrum the calibration fields give. The weights w and f maximise
    the likelihood of calibration fields, taken jointly
    over their points, given the spectrum of the others. Of the part without correlation, f b n, only the measurement noise that
    you state stays outside as `noise`. Pointwise predictions do not depend on w and f; intervals of functionals, bands of whole
    functions and densities do.

    The mean stays as it is. An ensemble becomes the Gaussian field of its mean and covariance. So does a mixture, after each of
    its predictors is calibrated by itself: what members state and what they disagree about have other scales. A calibrated
    predictor is calibrated anew from what it wraps.

    Args:
        separate: Whether covariance and noise have scales of their own. A part that is zero leaves one common scale.
        noise: Variance of the measurement noise in the calibration outputs, in physical units squared: a number, or one per
            channel `(c,)`. Zero for solutions of a solver. What exceeds the scaled noise b n is left out, with a warning. No
            variance falls below it: where a local scale would take it there, chi² on the calibration fields is less than 1.
        local: Whether variances may have a factor that varies along each function.
        robust: Whether the common factor is taken without the largest tenth of the squared standardised residuals, over all
            functions and points: their mean is 1 then where it was chi², relative to that of a Gaussian. A mean square is
            made by a few functions where tails are heavy, and varies with the calibration set; this varies less. It trades a
            bias for that: where residuals are Gaussian there is none (the variance of the factor is 1.3 times as large), and
            where tails are heavy, variances are too small for the mean square. Then chi² exceeds 1, and the largest errors
            lie further out than stated; nine tenths of the values are spread as stated. Ratio and shape, b/a and h, are still
            fitted by likelihood.

    Raises:
        ArgumentError: If the noise is negative or not finite, or a choice is no truth value.

    Reference:
        Laves et al. (2021), Recalibration of aleatoric and epistemic regression uncertainty in medical imaging (σ scaling,
        whose optimum under a Gaussian likelihood is the common scale). Deviations: averages over the domain are weighted
        by quadrature, scales per channel, and two of them. Kennedy and O'Hagan (2001), section 4.1, for the discrepancy.
    """

    separate: bool = True
    noise: float | Float[Tensor, " c"] = 0.0
    local: bool = field(default=True, kw_only=True)
    robust: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings."""
        flags = {name: check_flag(getattr(self, name), name) for name in ("separate", "local", "robust")}
        assign(self, **flags, noise=check_variances(self.noise, "noise"))

    @undisturbed()
    def fit(self, predictor: Predictor, calibration: Dataset) -> ScaledPredictor:
        """Fit the scales on fields that neither training nor testing uses, in up to eight passes, a few functions at a time.

        Args:
            predictor: What any head or calibrator returned; it is wrapped, not changed.
            calibration: Held-out pairs; outputs may live on another grid than inputs.

        Returns:
            A predictor whose covariances and noise are scaled, and which remembers these pairs, and those that stacking or
            another calibrator inside it used.

        Raises:
            CalibrationError: If there are fewer than 2 fields, no predictive variance where there are errors, or no errors
                where there is one.
            DataError: If a value is not finite.
            ShapeError: If the outputs do not have the predictor's channels.
        """
        check_pairs(predictor, calibration)
        if len(calibration) < 2:
            raise CalibrationError(
                expected="at least 2 calibration fields", got=str(len(calibration)), remedy="hold out some training fields"
            )
        inner = predictor.inner if isinstance(predictor, ScaledPredictor) else predictor
        if isinstance(inner, MixturePredictor):
            parts = zip(inner.predictors, inner.weights.tolist(), strict=True)
            inner = inner.with_predictors([self.fit(one, calibration) if weight > 0.0 else one for one, weight in parts])
        predicted = CalibrationPredictions(inner, calibration)
        noise = inner.noise.detach().to("cpu", torch.float64)
        field_variance = torch.zeros_like(noise)
        shared: list[Tensor] = []
        rows, start = likelihood_rows(calibration), 0
        for u, (stated, _) in predicted.distributions():  # what is formed for the one serves the other
            of_field = stated.variance - noise.to(stated.variance).reshape(-1, *(1,) * len(u.grid.shape))
            field_variance += domain_average(of_field, u.grid).sum(0).cpu() / len(calibration)
            shared += shared_covariances(u, rows[(rows >= start) & (rows < start + len(u))] - start)
            start += len(u)
        ratios = self._ratios(field_variance, noise)
        chi2, spread = likelihood_profile(inner, predicted, calibration=calibration, ratios=ratios)
        best = (chi2.log() + spread).argmin(dim=0, keepdim=True)
        scale, ratio = chi2.gather(0, best)[0], ratios.gather(0, best)[0]
        exact = _rounded(predicted, calibration, scale=torch.ones_like(scale), shift=torch.zeros_like(scale)) == 1.0
        scale, ratio = scale.masked_fill(exact, 1.0), ratio.masked_fill(exact, 1.0)
        if bool(exact.any()):
            warnings.warn(
                f"errors and what is stated of them in channels {exact.nonzero().flatten().tolist()} are rounding: variances "
                "stay as they are there",
                DataWarning,
                stacklevel=2,
            )
        if not bool((torch.isfinite(scale) & (scale > 0)).all()):
            raise CalibrationError(
                expected="a positive finite chi2 in every channel of the calibration fields",
                got=str(scale.tolist()),
                remedy="infinite: errors where no variance is stated, give the head noise > 0; zero: nothing to calibrate",
            )
        shift = (scale * ratio) * noise - scale * noise
        scale, local = self._local(predicted, calibration, scale=scale, shift=shift)
        unexplained = (scale * ratio) * noise
        stated_noise = noise_variance(self.noise, (1, len(scale)), scale)[0]
        measured = stated_noise.minimum(unexplained)
        if bool((stated_noise > (1.0 + _SLACK) * unexplained).any()):
            warnings.warn(
                f"the stated noise {stated_noise.tolist()} is more than errors leave for noise, {unexplained.tolist()}: the "
                "latter is taken",
                DataWarning,
                stacklevel=2,
            )
        return ScaledPredictor(
            inner,
            scale,
            noise_scale=scale * ratio,
            decomposition=decompose(
                inner,
                predicted,
                shared=shared,
                scale=scale,
                noise=unexplained,
                measured=measured,
                local=local,
            ),
            local=local,
            noise=measured.to(inner.noise),
            calibrated_on=torch.cat([inner.calibrated_on.cpu(), fingerprints(calibration)]),
        )

    def _local(
        self,
        predicted: CalibrationPredictions,
        calibration: Dataset,
        *,
        scale: Float64[Tensor, " c"],
        shift: Float64[Tensor, " c"],
    ) -> tuple[Float64[Tensor, " c"], LocalScale | None]:
        """The local scale of the predictive variance, which is a times the stated one plus a shift; a, or the robust one.

        Channels whose errors are mostly rounding have neither.
        """
        left_out = _rounded(predicted, calibration, scale=scale, shift=shift) > MOSTLY
        parts = functools.partial(_parts, predicted, calibration, scale=scale, shift=shift)
        grid, count = calibration.outputs.grid, len(calibration)
        local = None
        if self.local:
            groups = group_numbers(calibration)
            local = fit_local_scale(parts, groups=groups, grid=grid, robust=self.robust, left_out=left_out)
        if self.robust and local is None:
            trimmed = trimmed_mean_square((squares for _, _, squares in parts()), count=count, grid=grid)
            scale = scale * trimmed.masked_fill(left_out, 1.0)
        return scale, local

    def _ratios(self, field_variance: Float64[Tensor, " c"], noise: Float64[Tensor, " c"]) -> Float64[Tensor, "k c"]:
        """Candidates of b/a per channel: 1 alone, or those that leave the noise a fraction between the two bounds."""
        if not bool((field_variance + noise > 0).any()):
            raise CalibrationError(
                expected="a positive predictive variance somewhere",
                got="zero everywhere, which no scale can mend",
                remedy="use a head that is uncertain, or one with noise > 0",
            )
        if not self.separate:
            return torch.ones(1, len(noise), dtype=torch.float64)
        fractions = torch.linspace(*FRACTIONS, _CANDIDATES, dtype=torch.float64)
        ratios = (fractions / (1.0 - fractions))[:, None] * (field_variance / noise)
        both = (field_variance > ROUNDING * torch.finfo(torch.float64).eps * noise) & (noise > 0)
        return torch.where(both, ratios, torch.ones_like(ratios))


def _moved(predicted: CalibrationPredictions, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]) -> Iterator[Pair]:
    """Moments whose variances are a scale times those that are stated plus a shift, beside the truth."""
    for stated, truth in predicted:
        per_channel = (-1, *(1,) * (truth.ndim - 2))
        factor, extra = (one.reshape(per_channel).to(stated.variance) for one in (scale, shift))
        yield replace(stated, variance=factor * stated.variance + extra), truth


def _parts(
    predicted: CalibrationPredictions, calibration: Dataset, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]
) -> Iterator[Part]:
    """Means, variances times a scale plus a shift, and squares of the residuals standardised by these, on the CPU."""
    for moved, truth in _moved(predicted, scale=scale, shift=shift):
        squares = standardised_squares(moved, truth, dtype=calibration.outputs.dtype)
        yield moved.mean.cpu(), moved.variance.cpu(), squares.cpu()


def _rounded(
    predicted: CalibrationPredictions, calibration: Dataset, *, scale: Float64[Tensor, " c"], shift: Float64[Tensor, " c"]
) -> Float64[Tensor, " c"]:
    """The fraction of each channel's values where errors and deviations are rounding."""
    count = torch.zeros_like(scale)
    for moved, truth in _moved(predicted, scale=scale, shift=shift):
        count += are_rounding(moved, truth, dtype=calibration.outputs.dtype).flatten(2).sum((0, 2)).cpu()
    return count / (len(calibration) * calibration.outputs.grid.size)


class ScaledPredictor(Predictor):
    """A predictor whose covariances and noise are scaled per channel, and whose misfit belongs to the field; the mean stays.

    See [`VarianceScale`][probneural.calibration.VarianceScale] for the covariance that it states.

    Args:
        inner: The predictor it wraps.
        scale: a, factor of the field's variances, `(c,)`, dimensionless.
        noise_scale: b, factor of the noise variances, `(c,)`, dimensionless.
        decomposition: w, f and rho.
        noise: Measurement noise, `(c,)`, in physical units squared; at most b n.
        calibrated_on: Fingerprints of the calibration pairs, and of those that `inner` was calibrated on, `(n,)`: a conformal
            band needs others.
        local: h, or None where it is 1 everywhere.

    Raises:
        ArgumentError: If a scale is not positive and finite.
        ShapeError: If there is not one scale per channel.
        DataError: If scales are no real numbers.
    """

    def __init__(
        self,
        inner: Predictor,
        scale: Float64[Tensor, " c"],
        *,
        noise_scale: Float64[Tensor, " c"],
        decomposition: Decomposition,
        noise: Float[Tensor, " c"],
        calibrated_on: Int64[Tensor, " n"],
        local: LocalScale | None = None,
    ) -> None:
        super().__init__(replace(inner.traits, noise=noise))
        channels = inner.out_channels
        self.inner = inner
        self.scale = check_factors(scale, channels, "scale")
        self.noise_scale = check_factors(noise_scale, channels, "noise_scale")
        if decomposition.variance.shape != (channels,):
            raise ShapeError(
                expected=f"a decomposition of {channels} channels",
                got=str(tuple(decomposition.variance.shape)),
                remedy="fit it with VarianceScale",
            )
        if local is not None and len(local.units) != channels:
            raise ShapeError(
                expected=f"a local scale of {channels} channels", got=str(len(local.units)), remedy="fit it with VarianceScale"
            )
        self.decomposition = decomposition
        self.local = local
        self.calibrated_on = calibrated_on
        self.effective_observations = inner.effective_observations

    @property
    def residual_variance(self) -> Float64[Tensor, " c"]:
        """Variance by which one value departs from the shared operator, noise and discrepancy, `(c,)`, on the CPU."""
        return self.noise.detach().to("cpu", torch.float64) + self.decomposition.variance

    def _predict(self, inputs: Field, query: Grid | None) -> GaussianField:
        return self._calibrated(inputs, query).field

    def _predict_together(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        predicted = zip(sets, self.inner._together(sets), strict=True)
        return [self._calibrated(inputs, query, inner).field for (inputs, query), inner in predicted]

    def _calibrated(self, inputs: Field, query: Grid | None, inner: FieldDistribution | None = None) -> _Calibrated:
        """The calibrated field, the part of its discrepancy that draws know, and the root of the local scale.

        Args:
            inputs: Input functions.
            query: Where to evaluate, or None for the inputs' grid.
            inner: What the inner predictor predicts there, if it is known.
        """
        with undisturbed():
            inner = self.inner(inputs, query) if inner is None else inner
            u = gaussian_of(inner)
            ratio = self._local_factor(inputs, u)
            deviation = (self.scale * self.decomposition.root_fraction).sqrt()
            root = _weighed(u.root.scale(deviation), ratio)
            smooth, white = self._discrepancies(u, ratio)
            own = None if u.discrepancy is None else _weighed(u.discrepancy.scale(deviation), ratio)
            calibrated = GaussianField(
                u.mean,
                root,
                latent=replace(u.latent, id=self._latent_id(inner, u)),
                grid=u.grid,
                discrepancy=_side_by_side(own, smooth, white),
            )
            return _Calibrated(
                calibrated, smooth, None if ratio is None else ratio.sqrt().to(u.mean).unflatten(-1, u.grid.shape)
            )

    def _latent_id(self, inner: FieldDistribution, u: GaussianField) -> str:
        """A name of its own: what data say about xi depends on the root that it came through. Members are in every call."""
        parts = self.decomposition
        shape = () if self.local is None else (self.local.coefficients,)
        content = digest(self.scale, self.noise_scale, parts.root_fraction, parts.white_fraction, self.calibrated_on, *shape)
        return f"{'members' if isinstance(inner, EmpiricalField) else u.latent.id}~scaled-{content}"

    @property
    def _unexplained(self) -> Float64[Tensor, " c"]:
        """B n, in physical units squared, on the CPU."""
        return self.noise_scale * self.inner.noise.detach().to("cpu", torch.float64)

    def _local_factor(self, inputs: Field, u: GaussianField) -> Float64[Tensor, "n c p"] | None:
        """H at the points of a prediction: read off it, or interpolated from the grid of the calibration outputs."""
        if self.local is None:
            return None
        if self.local.covers(u.grid):
            return self._ratio(self.local, u)
        there = gaussian_of(self.inner(inputs, self.local.grid))
        known = self._ratio(self.local, there).log()
        found = resample(known.unflatten(-1, there.grid.shape), there.grid, u.grid).flatten(2)
        return torch.minimum(torch.maximum(found, known.amin(-1, keepdim=True)), known.amax(-1, keepdim=True)).exp()

    def _ratio(self, local: LocalScale, u: GaussianField) -> Float64[Tensor, "n c p"]:
        per_channel = (-1, *(1,) * len(u.grid.shape))
        variance = u.variance.to(torch.float64)
        scale, noise = (part.to(variance).reshape(per_channel) for part in (self.scale, self._unexplained))
        return local.on(u.grid)(u.mean, scale * variance + noise)

    def _discrepancies(
        self, u: GaussianField, ratio: Float64[Tensor, "n c p"] | None
    ) -> tuple[ModulatedRoot | None, DiagonalRoot | None]:
        """D times the process, and what has no correlation; D needs the field's variance where the root leaves some of it."""
        parts = self.decomposition
        if parts.process is None:
            return None, None
        unexplained, noise = self._unexplained, self.noise.detach().to("cpu", torch.float64)
        shape = (*u.mean.shape[:2], u.grid.size)
        factor = torch.ones(1, 1, 1, dtype=torch.float64) if ratio is None else ratio.to("cpu")
        white = ((parts.white_fraction * unexplained)[:, None] * factor - noise[:, None]).clamp_min(0.0)
        smooth = (unexplained[:, None] * factor - white - noise[:, None]).clamp_min(0.0).to(u.mean).expand(shape)
        left = self.scale * (1.0 - parts.root_fraction)
        if bool((left > 0).any()):
            smooth = smooth + (left[:, None] * factor).to(u.mean) * u.variance.flatten(2)
        rough = square_root(white).to(u.mean).expand(shape)
        return ModulatedRoot(square_root(smooth), parts.process.evaluate(u.grid).to(u.mean)), DiagonalRoot(rough)

    def _draw(self, inputs: Field, query: Grid | None, seed: int) -> Float[Tensor, "n c *grid"]:
        """The inner predictor's draw, its deviation from the mean scaled, and one draw of the process for all functions.

        What has no correlation is left out: it is another one on every grid.
        """
        calibrated = self._calibrated(inputs, query)
        u, smooth, _ = calibrated
        drawn = self._scaled(calibrated, self.inner.draw(seed)(inputs.values, grid=inputs.grid, query=query))
        return drawn if smooth is None else drawn + self._draw_discrepancy(smooth, u, seed)

    def _draw_shared(self, inputs: Field, query: Grid | None, seed: int) -> Float[Tensor, "n c *grid"]:
        return self._scaled(self._calibrated(inputs, query), self.inner._draw_shared(inputs, query, seed))

    def _scaled(self, calibrated: _Calibrated, drawn: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
        """A draw of the inner predictor, its deviation from the mean scaled."""
        u, _, local = calibrated
        factor = (self.scale * self.decomposition.root_fraction).sqrt().to(u.mean).reshape(-1, *(1,) * len(u.grid.shape))
        factor = factor if local is None else factor * local
        return u.mean + factor * (drawn - u.mean)

    def _joint_draws(self, seeds: Sequence[int]) -> JointDraws:
        of_some = functools.cache(self._draws_with_field)  # few points at once: features of all need much memory

        def evaluated(values: Tensor, grid: Grid) -> Tensor:
            step = max(1, _DRAWN_POINTS // (values.shape[1] * grid.size))
            parts = [tuple(seeds[start : start + step]) for start in range(0, len(seeds), step)]
            return torch.cat([of_some(own)(given, grid)[0] for own, given in zip(parts, values.split(step), strict=True)])

        return evaluated

    def _draws_with_field(self, seeds: Sequence[int]) -> DrawsWithField:
        inner = self.inner._draws_with_field(seeds)

        def evaluated(values: Tensor, grid: Grid) -> tuple[Tensor, GaussianField]:
            drawn, u = inner(values, grid)
            found = self._calibrated(Field(values.flatten(0, 1), grid), None, u)
            return self._scaled_draws(found, drawn, seeds), found.field

        return evaluated

    def _scaled_draws(self, calibrated: _Calibrated, drawn: Float[Tensor, "s n c *grid"], seeds: Sequence[int]) -> Tensor:
        """What `_draw` makes of the inner predictor's draws; calibrated are all s n functions."""
        leading = drawn.shape[:2]
        u, smooth, local = calibrated
        grid = u.grid
        mean = u.mean.unflatten(0, leading)
        factor = (self.scale * self.decomposition.root_fraction).sqrt().to(mean).reshape(-1, *(1,) * len(grid.shape))
        factor = factor if local is None else factor * local.unflatten(0, leading)
        scaled = mean + factor * (drawn - mean)
        if smooth is None:
            return scaled
        latents = torch.cat([self._drawn_discrepancy(smooth.shape[3], seed) for seed in seeds])
        each = smooth.product_each(latents.to(smooth.device).repeat_interleave(leading[1], 0))
        return scaled + each.unflatten(-1, grid.shape).unflatten(0, leading).to(scaled)

    def __repr__(self) -> str:
        """The scales and what they scale."""
        return f"ScaledPredictor({self.inner!r}, scale={self.scale.tolist()}, noise_scale={self.noise_scale.tolist()})"


class _Calibrated(NamedTuple):
    """A calibrated field and what draws need beside it.

    Attributes:
        field: Calibrated.
        smooth: D times the process, or None.
        local: The root of the local scale, or None where it is 1.
    """

    field: GaussianField
    smooth: ModulatedRoot | None
    local: Float[Tensor, "n c *grid"] | None


def _weighed(root: Root, ratio: Float64[Tensor, "n c p"] | None) -> Root:
    return root if ratio is None else weigh(root, ratio.sqrt())


def _side_by_side(*roots: Root | None) -> Root | None:
    """The root of the sum of independent fields, or None of none."""
    known = [root for root in roots if root is not None]
    return functools.reduce(SideBySideRoot, known) if known else None
