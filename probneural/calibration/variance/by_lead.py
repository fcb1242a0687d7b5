"""Variance scales of forecasts, lead by lead."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.calibration.variance.local_fit import Part, fit_local_scale
from probneural.calibration.variance.local_scale import LocalScale
from probneural.checks import check_count, check_flag, check_instance, check_integer, check_least, check_variances
from probneural.contexts import Undisturbed, without_gradients
from probneural.distributions.base import FieldDistribution, noise_variance, spread_over
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import digest
from probneural.errors import ArgumentError, CalibrationError, GridError
from probneural.grids import Grid
from probneural.metrics.comparison import compare
from probneural.metrics.lead_alignment import TrueTrajectories, check_leads, lead_batches, step_keys
from probneural.metrics.spread import size_factor
from probneural.pairs import evenly_spread_rows
from probneural.pairs.provenance import TrainingRecord, check_untrained, no_keys
from probneural.registry import stored
from probneural.settings import Settings

_LEAST_FACTOR = 1e-4
"""Least factor of a variance, used where measurement noise explains all errors."""
_KEPT_VALUES = 2**21
"""Values per lead that are stored for the fit of a local scale, in whole samples (48 MiB)."""


@dataclass(frozen=True)
class LeadScale(Settings):
    """Scale the variances of a forecast at every lead, so that they equal its mean squared errors.

    The s members of a forecast are a sample of a distribution with variance w = v s/(s - 1). Here v is the members' variance,
    averaged over calibration samples and, by quadrature, over the domain. Their mean has a sampling error of variance w/s. With
    the mean squared error e of a lead, the factor of w is, per channel,

        a = (e - noise)/w - 1/s,

    which does not depend on s. Scaling keeps the mean and its sampling error, so the deviations of s' members, of this forecast
    or another, are multiplied by the square root of

        a' = (s' a + 1)/(s' + 1).

    A Gaussian forecast has no sampling error: a' = a = (e - noise)/v. With a' alone the
    [spread-skill ratio][probneural.metrics.spread_skill] is 1 at every lead, for any number of members. If errors are smaller
    than the sampling error of the mean, a is 1e-4 of the ratio of the two.

    A few samples with fronts can dominate the mean squared error, and one factor per lead is then wrong for the others. So each
    lead also gets a local scale h (`LocalScale`), a factor that varies in space and between samples, fitted by the Gaussian
    likelihood of pointwise values. This likelihood hardly depends on the few largest variances, which dominate the mean. So if
    the mean of the scaled variances t exceeds the mean squared error, they are replaced by

        2 t / (1 + (1 + 4 s t)^1/2),

    with the saturation s that makes both means equal. There is no local scale if k-fold cross-validation shows no gain, with
    fewer than ten samples, or on grids that are not uniform. It applies only to forecasts with the number of members of the
    fit, since it also corrects the sampling error of variances.

    Deviations from the mean are multiplied by the square root of a' h. Means and correlations between points and leads do not
    change. Positivity and exact invariants of single members are lost.

    Args:
        noise: Variance of the measurement noise in the calibration trajectories, in physical units squared: a number, or one
            per channel `(c,)`.
        local: Whether to fit local scales.

    Raises:
        ArgumentError: If the noise is negative or not finite, or `local` is no flag.

    Reference:
        Fortin et al. (2014), Why should ensemble spread match the RMSE of the ensemble mean?, equation 15, for the factor;
        Gneiting et al. (2005), Calibrated probabilistic forecasting using ensemble model output statistics, without changes of
        the mean and without an intercept of the variance.

    Examples:
        For a forecast of any predictor::

            scale = LeadScale().fit(predictor.rollout(scaling.start, steps=20, seed=0), scaling)
            forecast = scale(predictor.rollout(test.start, steps=20, seed=1))
    """

    _: KW_ONLY
    noise: Annotated[float | Float[Tensor, " c"], check_variances] = 0.0
    local: bool = True

    @without_gradients()
    def fit(self, forecast: Forecast, truth: TrueTrajectories, *, allow_training_data: bool = False) -> LeadScaling:
        """Fit the scales to held-out trajectories, in one pass.

        Args:
            forecast: Forecast of the calibration samples.
            truth: Their true trajectories.
            allow_training_data: Whether trajectories with steps that trained the predictor cause a warning instead of an error.

        Returns:
            The scales, to be called on other forecasts of the same predictor.

        Raises:
            CalibrationError: If there are fewer than 2 samples, the spread is zero where errors are not, errors do not exceed
                the noise, or steps of the trajectories trained the predictor.
            DataError: If `forecast` is no forecast, the truth has no states by lead, a value is not finite, or there is one
                member.
            ShapeError: If the counts of samples or channels differ.
            GridError: If the grids differ.
            ArgumentError: If the truth ends before the forecast.
        """
        scales, local, saturations, factor = [], [], [], 1.0
        for errors in errors_by_lead(forecast, truth, noise=self.noise, keeps=self.local):
            factor = errors.size_factor
            # Members are a sample of a distribution of variance w: a = a' - (1 - a')/s, with 1/s from (s + 1)/(s - 1).
            sampling = (factor - 1.0) / (factor + 1.0)
            scales.append((errors.scale - (1.0 - errors.scale) * sampling).maximum(_LEAST_FACTOR * errors.scale))
            fits = self.local and bool(_are_scales(errors.scale).all())
            factors, saturation = errors.local_scale() if fits else (None, torch.zeros_like(errors.scale))
            local.append(factors)
            saturations.append(saturation)
        remedy = "hold out some trajectories"
        check_least(len(truth), 2, "calibration trajectories", remedy=remedy, error=CalibrationError)
        keys = untrained_steps(forecast, truth, allow_training_data=allow_training_data)
        by_lead = torch.stack(scales)
        wrong = ~_are_scales(by_lead)
        if bool(wrong.any()):
            raise CalibrationError(
                expected="a spread above zero, and errors above the noise, at every lead and channel",
                got=f"no spread or no errors at leads {(wrong.any(1).nonzero()[:, 0] + 1).tolist()[:10]}",
                remedy="pass a forecast with spread at every lead, and the variance of the noise in the truth",
            )
        return LeadScaling(
            by_lead,
            calibrated_on=torch.cat([used_before(forecast), keys.flatten()]),
            local=local,
            saturations=torch.stack(saturations),
            noise=noise_variance(self.noise, (1, by_lead.shape[1]), by_lead)[0],
            size_factor=factor,
            times=getattr(forecast, "times", None),
        )


@stored(on_cpu=("scales", "calibrated_on", "local", "saturations", "noise", "times"))
@dataclass(frozen=True, eq=False, repr=False)
class LeadScaling(Undisturbed):
    """Variance scales by lead and channel, fitted by [`LeadScale`][probneural.calibration.LeadScale]; call it on forecasts.

    Args:
        scales: Factor a of the variance of the distribution of members, `(steps, c)`, dimensionless.
        calibrated_on: Row keys of the steps of the calibration trajectories; a conformal band needs others.
        local: Local scale h of each lead, None for h = 1; empty if h = 1 at all leads.
        saturations: Saturation s of each lead with a local scale, `(steps, c)`, in physical units to the power -2, not
            negative. None if all are 0.
        noise: Variance of the measurement noise in the fit of h, `(c,)`, in physical units squared; None for no noise.
        size_factor: (s + 1)/(s - 1) for the s members of the fit of h; 1 for a Gaussian forecast.
        times: Time of each lead since the start, `(steps,)`; None if unknown.
    """

    scales: Float64[Tensor, "steps c"]
    _: KW_ONLY
    calibrated_on: Int64[Tensor, " n"]
    local: Sequence[LocalScale | None] = ()
    saturations: Float64[Tensor, "steps c"] | None = None
    noise: Float64[Tensor, " c"] | None = None
    size_factor: float = 1.0
    times: Float64[Tensor, " steps"] | None = None

    @property
    def steps(self) -> int:
        """Number of leads with a scale."""
        return len(self.scales)

    def deviation_factors(self, lead: int, u: FieldDistribution) -> Float64[Tensor, "..."]:
        """Factors of deviations from the mean, dimensionless: `(c,)`, or `(n, c, *grid)` with a local scale.

        Args:
            lead: Lead from 1.
            u: The unscaled states at this lead.

        Raises:
            ShapeError: If the states have another number of channels.
            GridError: If the lead has a local scale that is not defined on their grid.
            ArgumentError: If the local scale was fitted with another number of members.
        """
        check_instance(u, FieldDistribution, "u", remedy="pass the states at this lead: forecast.at(lead)")
        scales = self.scales[check_integer(lead, "lead", most=self.steps) - 1]
        check_count(u.mean.shape[1], len(scales), "channels of states", remedy="fit LeadScale on such states")
        # Of s members about their mean: a' = (a + 1/s)/(1 + 1/s).
        sampling = float(u.weights.square().sum()) if isinstance(u, EmpiricalField) else 0.0
        local, scales = self.local[lead - 1] if self.local else None, (scales + sampling) / (1.0 + sampling)
        if local is None:
            return scales.sqrt()
        if not local.covers(u.grid):
            raise GridError(
                expected=f"uniform grids over the domain of {local.grid!r}, where scales were fitted",
                got=repr(u.grid),
                remedy="roll out on such a grid, or fit LeadScale(local=False)",
            )
        if not math.isclose(self.size_factor, size_factor(u), rel_tol=1e-6):
            raise ArgumentError(
                expected=f"forecasts of {_members(self.size_factor)}, as scales were fitted with",
                got=_members(size_factor(u)),
                remedy="fit LeadScale with the same number of members, or fit LeadScale(local=False)",
            )
        variance = u.variance.to(torch.float64)
        scale = spread_over(scales, variance)
        noise = spread_over(torch.zeros_like(scales) if self.noise is None else self.noise, variance)
        scaled = scale * self.size_factor * variance
        factor = local.on(u.grid)(u.mean, scaled + noise).unflatten(-1, u.grid.shape)
        if self.saturations is not None:
            saturation = spread_over(self.saturations[lead - 1], variance)
            factor = saturated(factor, saturation * (scaled + noise).clamp_min(torch.finfo(torch.float64).tiny))
        # h multiplies the predictive variance a v + n, but the noise n stays: a' (h + (h - 1) n / (a v)).
        beside = noise / scaled.clamp_min(torch.finfo(torch.float64).tiny)
        return (scale * (factor + (factor - 1.0) * beside).clamp_min(_LEAST_FACTOR)).sqrt()

    def __call__(self, forecast: Forecast) -> ScaledForecast:
        """Return the forecast with scaled deviations, evaluated lazily.

        Args:
            forecast: A forecast with at most `steps` leads.

        Raises:
            DataError: If it is no forecast.
            ArgumentError: If it has more leads, or leads at other times.
        """
        return ScaledForecast(forecast, self)

    @property
    def latent_name(self) -> str:
        """Name of the scaled latent, which all leads share and which differs from that of the unscaled forecast."""
        local = [scale.coefficients for scale in self.local if scale is not None]
        tails = [] if self.saturations is None else [self.saturations]
        return f"lead-scaled-{digest(self.scales, *local, *tails)}"

    def __repr__(self) -> str:
        """The range of the scales."""
        low, high = float(self.scales.min()), float(self.scales.max())
        count = sum(scale is not None for scale in self.local)
        description = f"LeadScaling({self.steps} leads, {self.scales.shape[1]} channels, scales from {low:.3g} to {high:.3g}"
        return f"{description}, local at {count})" if count else f"{description})"


class ScaledForecast(Undisturbed):
    """A [`Forecast`][probneural.distributions.forecasts.trajectory.Forecast] with deviations from the mean scaled by lead.

    Gaussian leads that share a latent still share one, with a new name: conditioning at one lead updates the others.

    Args:
        inner: The wrapped forecast.
        scaling: Scales of each lead.

    Raises:
        DataError: If `inner` is no forecast.
        ArgumentError: If it has more leads than the scaling, or leads at other times.
    """

    def __init__(self, inner: Forecast, scaling: LeadScaling) -> None:
        self.inner = check_leads(inner, steps=scaling.steps, times=scaling.times, name="scales")
        self.scaling = scaling

    @property
    def times(self) -> Float64[Tensor, " steps"] | None:
        """Time of each lead since the start, `(steps,)`; None if unknown."""
        times: Tensor | None = getattr(self.inner, "times", None)
        return times

    @property
    def history(self) -> int:
        """Number of states in an input, 1 if unknown."""
        return int(getattr(self.inner, "history", 1))

    @property
    def steps(self) -> int:
        """Number of leads."""
        return self.inner.steps

    @property
    def grid(self) -> Grid:
        """Grid of all states."""
        return self.inner.grid

    @property
    def calibrated_on(self) -> Int64[Tensor, " n"]:
        """Row keys of the steps of the trajectories that fitted its variance scales."""
        return torch.cat([used_before(self.inner), self.scaling.calibrated_on])

    @property
    def trained_on(self) -> TrainingRecord | None:
        """Record of the pairs that trained the predictor; None if unknown."""
        return getattr(self.inner, "trained_on", None)

    def at(self, lead: int) -> FieldDistribution:
        """Distribution of the states at a lead; lead 0 is the unscaled start.

        Raises:
            ArgumentError: If the forecast has no such lead, or its local scale was fitted with another number of members.
            ShapeError: If the scales have another number of channels.
            GridError: If the local scale is not defined on the forecast's grid.
        """
        lead = check_integer(lead, "lead", least=0, most=self.steps)
        u = self.inner.at(lead)
        return u if lead == 0 else self._scaled(lead, u)

    def leads(self) -> Iterator[tuple[int, FieldDistribution]]:
        """Leads 1 to `steps` in order, each with its distribution."""
        for lead, u in self.inner.leads():
            yield lead, self._scaled(lead, u)

    def _scaled(self, lead: int, u: FieldDistribution) -> FieldDistribution:
        scaled = u.scale(self.scaling.deviation_factors(lead, u))
        if not isinstance(u, GaussianField) or not isinstance(scaled, GaussianField):
            return scaled
        return GaussianField(
            scaled.mean,
            scaled.root,
            latent=u.latent.renamed(self.scaling.latent_name),
            grid=u.grid,
            discrepancy=scaled.discrepancy,
        )

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.inner)

    def __repr__(self) -> str:
        """The wrapped forecast and its scales."""
        inner = repr(self.inner).removesuffix(", uncalibrated")
        return f"ScaledForecast({inner}, {self.scaling!r})"


def _are_scales(scales: Float64[Tensor, "..."]) -> Tensor:
    """Return True at positive finite numbers."""
    return torch.isfinite(scales) & (scales > 0)


def _members(factor: float) -> str:
    """Description of the number of members with this size factor."""
    return "Gaussian states" if factor == 1.0 else f"{(factor + 1.0) / (factor - 1.0):.4g} members"


def untrained_steps(
    forecast: Forecast, truth: TrueTrajectories, *, allow_training_data: bool, purpose: str = "calibration"
) -> Int64[Tensor, "n *w k"]:
    """Return the row keys of the steps of trajectories that did not train the predictor.

    Raises:
        CalibrationError: If some trajectories have a step that trained it, and training data are not allowed.
        ArgumentError: If `allow_training_data` is no flag.
    """
    is_allowed = check_flag(allow_training_data, "allow_training_data")
    keys = step_keys(truth, forecast.steps)
    record: TrainingRecord | None = getattr(forecast, "trained_on", None)
    check_untrained(keys, record, allow_training_data=is_allowed, purpose=purpose)
    return keys


def used_before(forecast: Forecast) -> Int64[Tensor, " m"]:
    """Row keys of the samples that fitted the forecast's variance scales; none if not recorded."""
    used: Tensor = getattr(forecast, "calibrated_on", no_keys())
    return used


@dataclass(frozen=True, eq=False, kw_only=True)
class LeadErrors:
    """Spread and errors of n samples at one lead, without measurement noise, on the CPU.

    Attributes:
        square: Squared errors, averaged over the domain and summed over samples, `(c,)`, in physical units squared.
        variance: Variances of the distribution of members, averaged and summed likewise.
        samples: Means, predictive variances and squared errors of some samples, `(n', c, *grid)`; empty if not requested. Where
            the variance is zero, an error is zero if it is rounding, and infinite otherwise.
        grid: Grid of the samples.
        noise: Variance of the measurement noise in `samples`, `(c,)`, in physical units squared.
        size_factor: Correction (s + 1)/(s - 1) of the variance of s members; 1 for a Gaussian forecast.
    """

    square: Float64[Tensor, " c"]
    variance: Float64[Tensor, " c"]
    samples: list[Part]
    grid: Grid
    noise: Float64[Tensor, " c"]
    size_factor: float

    @property
    def scale(self) -> Float64[Tensor, " c"]:
        """Factor of variances that makes both sums equal; not finite or not positive if there is none."""
        return self.square / self.variance

    def local_scale(self) -> tuple[LocalScale | None, Float64[Tensor, " c"]]:
        """Return the local scale of the scaled variances, None without a gain, and the saturation, in units to the power -2."""
        nothing = torch.zeros_like(self.noise)
        per_channel = (-1, *(1,) * len(self.grid.shape))
        scale, noise = self.scale.reshape(per_channel), self.noise.reshape(per_channel)

        def parts() -> Iterator[Part]:
            for mean, variance, squares in self.samples:
                scaled = scale * (variance - noise) + noise
                yield mean, scaled, torch.where(squares > 0, squares / scaled, 0.0)

        if not self.grid.is_uniform or not all(bool(torch.isfinite(ratios).all()) for _, _, ratios in parts()):
            return None, nothing
        local = fit_local_scale(parts, groups=torch.arange(sum(len(mean) for mean, _, _ in self.samples)), grid=self.grid)
        if local is None:
            return None, nothing
        factor = local.on(self.grid)
        variances = torch.cat([factor(mean, variance) * variance.flatten(2) for mean, variance, _ in parts()])
        squares = torch.cat([part for _, _, part in self.samples]).flatten(2)
        return local, fit_saturation(variances, squares, weights=self.grid.mean_weights)


def errors_by_lead(forecast: Forecast, truth: TrueTrajectories, *, noise: float | Tensor, keeps: bool) -> Iterator[LeadErrors]:
    """Yield spread and errors of each lead in order.

    Args:
        forecast: Forecast of n samples.
        truth: Their true trajectories.
        noise: Variance of the measurement noise in the truth, a number or `(c,)`, in physical units squared.
        keeps: Whether to store values of some evenly spread samples.

    Raises:
        DataError, ShapeError, GridError, ArgumentError: See `LeadScale.fit`.
    """
    for _, parts in itertools.groupby(lead_batches(forecast, truth), key=lambda part: part.lead):
        sums: list[Tensor] = []
        samples: list[Part] = []
        for part in parts:
            comparison = compare(part.u, part.truth, noise=noise)
            variance, squares = (comparison.variance - comparison.noise) * size_factor(part.u), comparison.residual.square()
            sums.append(
                torch.stack([comparison.average(squares - comparison.noise).sum(0), comparison.average(variance).sum(0)]).cpu()
            )
            if keeps:
                evenly = evenly_spread_rows(len(truth), max(1, _KEPT_VALUES // variance[0].numel()))
                selection = torch.arange(len(truth), device="cpu")[evenly]
                rows = selection[(selection >= part.rows.start) & (selection < part.rows.stop)] - part.rows.start
                right = (squares <= comparison.rounding.square()) & comparison.certain
                squares = torch.where(right, 0.0, torch.where(comparison.certain, math.inf, squares))
                samples.append((comparison.mean[rows].cpu(), (variance + comparison.noise)[rows].cpu(), squares[rows].cpu()))
            grid, factor, measured = comparison.grid, size_factor(part.u), comparison.noise[0].flatten(1)[:, 0].cpu()
        square, variance = torch.stack(sums).sum(0)
        yield LeadErrors(square=square, variance=variance, samples=samples, grid=grid, noise=measured, size_factor=factor)


def saturated(variance: Float64[Tensor, "*s"], saturation: Float64[Tensor, "*s"]) -> Float64[Tensor, "*s"]:
    """Variances v with s v² + v = t: near t for small s t, near (t/s)^1/2 for large s t.

    Args:
        variance: t, in physical units squared.
        saturation: s, in physical units to the power -2, not negative.

    Examples:
        >>> t = torch.tensor([0.01, 2.0, 1e4], dtype=torch.float64)
        >>> [round(value, 4) for value in saturated(t, torch.ones_like(t)).tolist()]
        [0.0099, 1.0, 99.5012]
    """
    # v = 2 t / (1 + (1 + 4 s t)^1/2), without cancellation for small s t.
    return 2.0 * variance / (1.0 + (1.0 + 4.0 * saturation * variance).sqrt())


def fit_saturation(
    variances: Float64[Tensor, "n c p"], squares: Float64[Tensor, "n c p"], *, weights: Float64[Tensor, " p"]
) -> Float64[Tensor, " c"]:
    """Saturation that reduces the mean variance to the mean squared error.

    A likelihood fits variances relative to their size, so the few largest, and with them the mean, may be wrong by a factor. If
    t is the expected squared error, `saturated` gives the most likely variances under a constraint on their mean: it minimises
    log v + t/v + s v at every point, with Lagrange multiplier s.

    Args:
        variances: t, in physical units squared.
        squares: Squared errors, in physical units squared.
        weights: Weights of averages over the domain.

    Returns:
        s per channel, `(c,)`, in physical units to the power -2; 0 if the mean variance does not exceed the mean squared error,
        or all errors are zero.
    """
    from scipy.optimize import brentq

    targets = (squares @ weights).mean(0)
    saturations = torch.zeros_like(targets)
    for channel, target in enumerate(targets.tolist()):
        t = variances[:, channel]

        def excess(saturation: float, t: Tensor = t, target: float = target) -> float:
            return float((saturated(t, torch.full_like(t, saturation)) @ weights).mean()) - target

        if float((t @ weights).mean()) > target > 0.0:
            largest = (float((t.sqrt() @ weights).mean()) / target) ** 2  # saturated variances are at most (t/s)^1/2
            saturations[channel] = brentq(excess, 0.0, largest, xtol=1e-12 * largest, rtol=1e-12)
    return saturations
