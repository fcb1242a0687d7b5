"""Bands for whole trajectories, with a finite-sample coverage guarantee: at each lead, or at all leads together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.calibration.bands.conformal import conformal_quantile
from probneural.calibration.bands.shapes import FLOOR, BandField, domain_quantile, floored_std, ratios
from probneural.calibration.predictions import check_unused, moments
from probneural.calibration.variance.by_lead import untrained_steps, used_before
from probneural.checks import assign, check_integer, check_real, check_variances
from probneural.contexts import undisturbed
from probneural.distributions.base import FieldDistribution
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.metrics.comparison import compare
from probneural.metrics.lead_alignment import TrueTrajectories, check_leads, lead_batches


@dataclass(frozen=True)
class HorizonBand:
    """A band mean ± q sd(x, lead) that contains a whole new trajectory with probability at least `level`, by split conformal.

    The score of a trajectory is the largest standardised error over leads, channels and points; q is the ⌈(n + 1) level⌉-th
    smallest of n calibration scores. If calibration and new trajectories are exchangeable, then for any forecast, right or
    wrong,

        level <= P(inside at all leads everywhere) < level + 1/(n + 1)

    (the upper bound without ties). The probability is over calibration set and new trajectory together; given one calibration
    set, coverage follows the Beta distribution with parameters k = ⌈(n + 1) level⌉ and n + 1 - k. One q serves all leads, so
    a lead whose spread is too small next to the others' makes the band wide everywhere: fit
    [`LeadScale`][probneural.calibration.LeadScale] first, on other trajectories.

    Roll out calibration and new samples with the same seed and number of members: the forecast is then one map of the start,
    as exchangeability requires. The guarantee holds for the grid, the leads and the noise that it was calibrated with.

    Args:
        level: Nominal coverage, between 0 and 1.
        noise: Variance of the measurement noise in the trajectories that the band is for, in physical units squared: a number,
            or one per channel `(c,)`.
        floor: Least local scale, as a fraction of the scale's root mean square over the domain of the same function, channel
            and lead, from 0 to 1.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Stankevičiūtė, Alaa and van der Schaar (2021), Conformal time-series forecasting, section 4 (one score per series).
        Deviation: the largest standardised error over the leads in place of Bonferroni's correction. Diquigiovanni, Fontana
        and Vantini (2022), Conformal prediction bands for multivariate functional data, section 2.
    """

    level: float = 0.9
    _: KW_ONLY
    noise: float | Float[Tensor, " c"] = 0.0
    floor: float = FLOOR

    def __post_init__(self) -> None:
        """Validate."""
        assign(
            self,
            level=check_real(self.level, "level", above=0.0, below=1.0),
            noise=check_variances(self.noise, "noise"),
            floor=check_real(self.floor, "floor", least=0.0, most=1.0),
        )

    @undisturbed()
    @torch.no_grad()
    def fit(self, forecast: Forecast, truth: TrueTrajectories, *, allow_training_data: bool = False) -> TrajectoryBand:
        """Find the band's quantile on trajectories that neither training nor scaling has used, in one pass.

        Args:
            forecast: Forecast of the calibration samples.
            truth: True states.
            allow_training_data: Whether trajectories with steps that trained the predictor give a warning instead of an error.

        Raises:
            CalibrationError: If there are too few trajectories for the level (9 at .9, 19 at .95), too many of them have errors
                but no predictive variance, or the forecast was trained or scaled on some of them.
            DataError: If the forecast is invalid, the truth has no states by lead, or a value is not finite.
            ShapeError: If the number of samples or channels differs.
            GridError: If the grids differ.
            ArgumentError: If the truth ends before the forecast.
        """
        scores = conformal_scores_by_lead(forecast, truth, noise=self.noise, floor=self.floor)
        check_unused(untrained_steps(forecast, truth, allow_training_data=allow_training_data), used_before(forecast))
        quantile, times = conformal_quantile(scores.amax(1), self.level), getattr(forecast, "times", None)
        return TrajectoryBand(quantile, steps=scores.shape[1], method=self, times=times)


class BandCoverage(NamedTuple):
    """Fraction of trajectories inside a band.

    Attributes:
        leads: Fraction wholly inside at each lead, `(leads,)`, dimensionless.
        horizon: Fraction wholly inside at all leads.
    """

    leads: Float64[Tensor, " leads"]
    horizon: float


@dataclass(frozen=True, eq=False, repr=False)
class TrajectoryBand:
    """A calibrated band, from [`HorizonBand`][probneural.calibration.HorizonBand]; call it on forecasts of the same predictor.

    Args:
        quantile: Half width in standard deviations; dimensionless.
        steps: Number of leads that the band was calibrated at.
        method: Level, noise and floor it was calibrated with.
        times: Time of each lead since the start, `(leads,)`; None if it is unknown.
    """

    quantile: float
    _: KW_ONLY
    steps: int
    method: HorizonBand
    times: Float64[Tensor, " leads"] | None = None

    @property
    def level(self) -> float:
        """Nominal coverage."""
        return self.method.level

    def __call__(self, forecast: Forecast) -> BandTrajectory:
        """Return the bands around a forecast, lazily.

        Raises:
            DataError: If it is not a forecast.
            ArgumentError: If it has not the leads that the band was calibrated at, or has them at other times.
        """
        return BandTrajectory(check_leads(forecast, steps=self.steps, times=self.times, name="bands"), self)

    def coverage(self, forecast: Forecast, truth: TrueTrajectories) -> BandCoverage:
        """The fraction of trajectories inside, at each lead and at all leads; dimensionless.

        Raises:
            DataError: If the forecast is invalid, the truth has no states by lead, or a value is not finite.
            ShapeError: If the number of samples or channels differs.
            GridError: If the grids differ.
            ArgumentError: If the forecast has more leads than the band, or the truth fewer than the forecast.

        Warns:
            DataWarning: If some trajectories have a step that trained the predictor.
        """
        self(forecast)
        scores = conformal_scores_by_lead(forecast, truth, noise=self.method.noise, floor=self.method.floor)
        untrained_steps(forecast, truth, allow_training_data=True, purpose="coverage")
        inside = (scores <= self.quantile).to(torch.float64)
        return BandCoverage(inside.mean(0), float(inside.amin(1).mean()))

    def __repr__(self) -> str:
        """The quantile and the method."""
        return f"TrajectoryBand(quantile={self.quantile:.4g}, {self.method!r})"


class BandTrajectory:
    """Bands around n samples at every lead, from a [`TrajectoryBand`][probneural.calibration.bands.by_lead.TrajectoryBand].

    Args:
        forecast: Centre of the bands.
        band: The calibrated band.
    """

    def __init__(self, forecast: Forecast, band: TrajectoryBand) -> None:
        self.forecast, self.band = forecast, band

    @property
    def steps(self) -> int:
        """The largest lead."""
        return self.forecast.steps

    def at(self, lead: int) -> BandField:
        """The bands at one lead, from 1.

        Raises:
            ArgumentError: If the lead is out of range.
        """
        lead = check_integer(lead, "lead", most=self.steps)
        return self._around(lead, self.forecast.at(lead))

    def leads(self) -> Iterator[tuple[int, BandField]]:
        """Leads 1 to `steps` in order, each with its bands."""
        for lead, u in self.forecast.leads():
            yield lead, self._around(lead, u)

    def _around(self, lead: int, u: FieldDistribution) -> BandField:
        method = self.band.method
        predicted = moments(u, method.noise)
        scale = floored_std(predicted.variance, u.grid, floor=method.floor)
        return BandField(mean=predicted.mean, half_width=self.band.quantile * scale, grid=u.grid)

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self.forecast)


def conformal_scores_by_lead(
    forecast: Forecast, truth: TrueTrajectories, *, noise: float | Float[Tensor, "..."] = 0.0, floor: float = FLOOR
) -> Float64[Tensor, "n leads"]:
    """Score every trajectory at every lead: the supremum over channels and points of |y - mean| / sd.

    Scores of exchangeable trajectories are exchangeable, and so are their largest ones over the leads: one call serves any
    number of splits.

    Args:
        forecast: Forecast of n samples.
        truth: True states.
        noise: Variance of the measurement noise, as in [`HorizonBand`][probneural.calibration.HorizonBand].
        floor: Least local scale, likewise.

    Returns:
        `(n, leads)`, dimensionless, on the forecast's device.

    Raises:
        DataError: If the forecast is invalid, the truth has no states by lead, or a value is not finite.
        ShapeError: If the number of samples or channels differs.
        GridError: If the grids differ.
        ArgumentError: If the truth ends before the forecast, or noise or floor are unusable.
    """
    floor = check_real(floor, "floor", least=0.0, most=1.0)
    columns: list[list[Tensor]] = []
    for part in lead_batches(forecast, truth):
        comparison = compare(part.u, part.truth, noise=noise)
        scale = floored_std(comparison.variance, part.u.grid, floor=floor)
        scores = domain_quantile(ratios(comparison.residual, scale), part.u.grid, fraction=1.0)
        if part.rows.start == 0:
            columns.append([])
        columns[-1].append(scores)
    return torch.stack([torch.cat(column) for column in columns], dim=1)
