"""Scales that make the spread of a forecast as large as its errors, lead by lead."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import assign, check_instance, check_integer, check_variances
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import digest
from probneural.distributions.trajectory import Forecast
from probneural.errors import ArgumentError, CalibrationError, ShapeError
from probneural.fingerprints import row_fingerprints
from probneural.grids import Grid
from probneural.metrics.comparison import compare
from probneural.metrics.lead_pairs import TrueTrajectories, lead_parts
from probneural.metrics.spread import size_factor

_CHUNK_VALUES = 2**16
"""Values of a start that are read at once."""


@dataclass(frozen=True)
class LeadScale:
    """Scale a forecast's variance at every lead, per channel, so that spread and error are equally large.

    With the mean predictive variance v and the mean squared error e of a lead over the calibration functions and, by
    quadrature, the domain, deviations from the mean are multiplied by the root of

        a = (e - noise) / (v (s + 1)/(s - 1)).

    The factor in the denominator is for s members, which count as a sample: their variance is too small by (s - 1)/s and
    their mean has an error of its own, 1/s of the variance. So a is that of the distribution that members are drawn from,
    and holds for forecasts with more of them or fewer. A Gaussian forecast has no such factor. After it the
    [spread-skill ratio][probneural.metrics.spread_skill] is 1 at every lead.

    Members move away from their mean, or towards it: means, and correlations between points and leads, stay as they are,
    variances are multiplied by a, and covariances of two leads by the root of the product of both their scales. What depends on
    more than second moments, positivity or an exact invariant of each member, is not kept.

    Args:
        noise: Variance of the measurement noise in the calibration trajectories, in physical units squared: a number, or one
            per channel `(c,)`.

    Raises:
        ArgumentError: If the noise is negative or not finite.

    Reference:
        Fortin et al. (2014), Why should ensemble spread match the RMSE of the ensemble mean?, equation 15, for the factor;
        Gneiting et al. (2005), Calibrated probabilistic forecasting using ensemble model output statistics, with the mean and
        the intercept of the variance left as they are.

    Examples:
        Few lines do; the forecast may come from any predictor::

            scale = LeadScale().fit(predictor.rollout(scaling.start, steps=20, seed=0), scaling)
            forecast = scale(predictor.rollout(test.start, steps=20, seed=1))
    """

    _: KW_ONLY
    noise: float | Float[Tensor, " c"] = 0.0

    def __post_init__(self) -> None:
        """Check the settings."""
        assign(self, noise=check_variances(self.noise, "noise"))

    @undisturbed()
    @torch.no_grad()
    def fit(self, forecast: Forecast, truth: TrueTrajectories) -> LeadScaling:
        """Find the scales on trajectories that neither training nor testing uses, in one pass.

        Args:
            forecast: Of the calibration functions.
            truth: What they truly were.

        Returns:
            The scales: call them on other forecasts of the same predictor.

        Raises:
            CalibrationError: If there are fewer than 2 functions, no spread where there are errors, or no errors beyond noise.
            DataError: If the forecast is none, the truth has no states by lead, a value is not finite, or there is one member.
            ShapeError: If functions or channels are not equally many.
            GridError: If the grids differ.
            ArgumentError: If the truth ends before the forecast.
        """
        sums: list[Tensor] = []
        for part in lead_parts(forecast, truth):
            comparison = compare(part.u, part.truth, noise=self.noise)
            square = comparison.average(comparison.residual.square() - comparison.noise).sum(0)
            variance = comparison.average(comparison.variance - comparison.noise).sum(0) * size_factor(comparison)
            both = torch.stack([square, variance]).cpu()
            if part.lead > len(sums):
                sums.append(both)
            else:
                sums[-1] = sums[-1] + both
        if len(truth) < 2:
            raise CalibrationError(
                expected="at least 2 calibration trajectories", got=str(len(truth)), remedy="hold out some trajectories"
            )
        squares, variances = torch.stack(sums).unbind(1)
        scales = squares / variances
        wrong = ~(torch.isfinite(scales) & (scales > 0))
        if bool(wrong.any()):
            raise CalibrationError(
                expected="a spread above zero, and errors above the noise, at every lead and channel",
                got=f"neither or one at leads {(wrong.any(1).nonzero()[:, 0] + 1).tolist()[:10]}",
                remedy="give a forecast that is uncertain at every lead, and the variance of the noise in the truth",
            )
        return LeadScaling(scales, calibrated_on=torch.cat([used_before(forecast), trajectory_fingerprints(truth)]))


@dataclass(frozen=True, eq=False, repr=False)
class LeadScaling:
    """Scales of variances by lead and channel, from [`LeadScale`][probneural.calibration.LeadScale]; call it on forecasts.

    Args:
        scales: a, `(steps, c)`, dimensionless.
        calibrated_on: Fingerprints of the calibration trajectories: a conformal band needs others.

    Raises:
        ArgumentError: If a scale is not positive and finite.
    """

    scales: Float64[Tensor, "steps c"]
    _: KW_ONLY
    calibrated_on: Int64[Tensor, " n"]

    def __post_init__(self) -> None:
        """Check the scales."""
        if not bool((torch.isfinite(self.scales) & (self.scales > 0)).all()):
            raise ArgumentError(
                expected="positive finite scales", got=str(self.scales.tolist())[:200], remedy="fit them with LeadScale"
            )

    @property
    def steps(self) -> int:
        """The largest lead that has a scale."""
        return len(self.scales)

    def __call__(self, forecast: Forecast) -> ScaledForecast:
        """Return the forecast with its deviations scaled, lazily.

        Args:
            forecast: With no more leads than there are scales.

        Raises:
            DataError: If it is no forecast.
            ArgumentError: If it has more leads.
        """
        return ScaledForecast(forecast, self)

    def __repr__(self) -> str:
        """The range of the scales."""
        low, high = float(self.scales.min()), float(self.scales.max())
        return f"LeadScaling({self.steps} leads, {self.scales.shape[1]} channels, scales from {low:.3g} to {high:.3g})"


class ScaledForecast:
    """A [`Forecast`][probneural.distributions.Forecast] whose deviations from the mean are scaled by lead and channel.

    Gaussian leads that share a latent still do, under a name of its own: conditioning at one lead moves the others.

    Args:
        inner: The forecast it wraps.
        scaling: By how much.

    Raises:
        DataError: If `inner` is no forecast.
        ArgumentError: If it has more leads than the scaling.
    """

    def __init__(self, inner: Forecast, scaling: LeadScaling) -> None:
        self.inner = check_instance(inner, Forecast, "forecast", remedy="roll a predictor out: predictor.rollout(...)")
        self.scaling = scaling
        if inner.steps > scaling.steps:
            raise ArgumentError(
                expected=f"a forecast of at most {scaling.steps} leads, which the scales were fitted at",
                got=str(inner.steps),
                remedy="fit LeadScale on trajectories that are as long",
            )

    @property
    def steps(self) -> int:
        """The largest lead."""
        return self.inner.steps

    @property
    def grid(self) -> Grid:
        """Where all states live."""
        return self.inner.grid

    @property
    def calibrated_on(self) -> Int64[Tensor, " n"]:
        """Fingerprints of the trajectories that its variances were scaled on."""
        return torch.cat([used_before(self.inner), self.scaling.calibrated_on])

    def at(self, lead: int) -> FieldDistribution:
        """The distribution of the states after so many steps; lead 0 is the start, as it was.

        Raises:
            ArgumentError: If there is no such lead.
            ShapeError: If the scales are of another number of channels.
        """
        lead = check_integer(lead, "lead", least=0, most=self.steps)
        u = self.inner.at(lead)
        return u if lead == 0 else self._scaled(lead, u)

    def leads(self) -> Iterator[tuple[int, FieldDistribution]]:
        """Leads 1 to `steps` in order, each with its distribution."""
        for lead, u in self.inner.leads():
            yield lead, self._scaled(lead, u)

    def _scaled(self, lead: int, u: FieldDistribution) -> FieldDistribution:
        scales = self.scaling.scales[lead - 1]
        if u.mean.shape[1] != len(scales):
            raise ShapeError(
                expected=f"states of {len(scales)} channels", got=str(u.mean.shape[1]), remedy="fit LeadScale on such states"
            )
        scaled = u.scale(scales.sqrt())
        if not isinstance(u, GaussianField) or not isinstance(scaled, GaussianField):
            return scaled
        return GaussianField(  # one name for all leads: they are still driven by one vector, but not by the unscaled one
            scaled.mean,
            scaled.root,
            latent=u.latent.renamed(f"lead-scaled-{digest(self.scaling.scales)}"),
            grid=u.grid,
            discrepancy=scaled.discrepancy,
        )

    def __len__(self) -> int:
        """Number of functions n."""
        return len(self.inner)

    def __repr__(self) -> str:
        """What is scaled, and by how much."""
        return f"ScaledForecast({self.inner!r}, {self.scaling!r})"


def trajectory_fingerprints(truth: TrueTrajectories) -> Int64[Tensor, " n"]:
    """A content hash of each trajectory, of its start and its first step: that of its first window of one step, too."""
    starts, firsts = truth.at(0), truth.at(1)
    size = max(1, _CHUNK_VALUES // (starts.channels * starts.grid.size))
    parts = [slice(start, start + size) for start in range(0, len(firsts), size)]
    return torch.cat([row_fingerprints(starts[rows].values, firsts[rows].values) for rows in parts])


def used_before(forecast: Forecast) -> Int64[Tensor, " m"]:
    """Fingerprints of what the forecast's variances were scaled on, where it says so."""
    none = torch.zeros(0, dtype=torch.int64, device="cpu")
    return getattr(forecast, "calibrated_on", none)
