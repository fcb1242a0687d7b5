"""Scoring a forecast by lead, in one pass that holds one lead at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_choice, check_flag, check_integer, check_positive, check_real, check_sequence, real_tensor
from probneural.contexts import undisturbed
from probneural.distributions.base import check_values
from probneural.distributions.trajectory import Forecast
from probneural.errors import DataError
from probneural.metrics.estimates import Estimate, over_functions
from probneural.metrics.lead_alignment import TrueTrajectories
from probneural.metrics.lead_pairs import lead_parts, step_keys
from probneural.metrics.lead_scores import TITLES, HorizonScores, LeadScore, LeadScores, RankHistograms, Spectra
from probneural.metrics.lead_sums import LeadNumbers, LeadSettings, Numbers, estimates, reasons_by_score
from probneural.metrics.member_pool import inside_fraction
from probneural.metrics.spectra import spectrum_ratio
from probneural.provenance import TrainingRecord, check_untrained

_NOTHING = Estimate(*torch.full((2,), math.nan, dtype=torch.float64, device="cpu"))


@undisturbed()
@torch.no_grad()
def score_by_lead(
    forecast: Forecast,
    truth: TrueTrajectories,
    *,
    noise: float | Float[Tensor, "..."] = 0.0,
    level: float = 0.9,
    threshold: float = 0.5,
    whole: int | None = None,
    times: Sequence[float] | Tensor | None = None,
    scores: Collection[str] | None = None,
    seed: int = 0,
    allow_training_data: bool = False,
) -> LeadScores:
    """Score a forecast at every lead and over all, in one pass that holds one lead at a time.

    Members count as a sample of the forecast's distribution: CRPS, energy and variogram score are the fair ones; spread, chi²
    and NLL have the variance multiplied by (s + 1)/(s - 1); coverages compare the truth with the members by rank. So a
    forecast whose members are exchangeable with the truth has spread-skill ratio 1, flat ranks and nominal coverages for any
    number s of members (chi² excepted, whose mean is (s - 1)/(s - 3) for Gaussian members).

    Args:
        forecast: What `predictor.rollout` returned, or a calibrator made of it: any
            [`Forecast`][probneural.distributions.trajectory.Forecast].
        truth: The true trajectories of its n functions, on its grid, with its leads or more. Where both have times, states at
            equal times are compared, else those of equal number.
        noise: Variance of the observation noise in the truth, in physical units squared: a number, or one per channel `(c,)`.
        level: Nominal level of the coverages, between 0 and 1.
        threshold: Relative L2 error up to which the mean counts as a valid prediction.
        whole: How many functions, the first ones, the scores of whole functions are computed on; all by default.
        times: Time of each lead, for tables and figures, in the user's units; by default the forecast's own, or the lead.
        scores: Names of the scores to compute, such as `("crps", "spread_skill")`; all by default. The variogram score costs
            most, then the energy score.
        seed: Makes draws repeatable, where there are no members, or noise is added to them.
        allow_training_data: Whether trajectories with steps that trained the predictor give a warning instead of an error.

    Returns:
        The scores, averaged over functions, the domain and the channels.

    Raises:
        DataError: If the forecast is none, the truth has no states by lead, a value is not finite, or steps of the
            trajectories trained the predictor.
        ShapeError: If functions or channels are not equally many, or there is not one time per lead.
        GridError: If the grids differ.
        ArgumentError: If the truth ends before the forecast or lacks its times, the level is not between 0 and 1, the
            threshold is not positive, `whole` is below 1, a score has no such name, or the noise is unusable.

    Reference:
        Fortin et al. (2014), equation 15, for the factor of the variance; Ferro (2014), Fair scores for ensemble forecasts.
    """
    is_allowed = check_flag(allow_training_data, "allow_training_data")
    settings = LeadSettings(
        noise=noise,
        level=check_real(level, "level", above=0.0, below=1.0),
        threshold=check_positive(threshold, "threshold"),
        whole=None if whole is None else check_integer(whole, "whole"),
        seed=check_integer(seed, "seed", least=0),
        scores=_names(scores),
    )
    running = _Running(settings)
    current: LeadNumbers | None = None
    lead = 0
    for part in lead_parts(forecast, truth):
        if current is None or part.lead != lead:
            running.close(current)
            current, lead = LeadNumbers(settings), part.lead
        current.add(part)
        running.is_uncalibrated |= part.u.is_uncalibrated
    running.close(current)
    record: TrainingRecord | None = getattr(forecast, "trained_on", None)
    if record is not None:
        keys = step_keys(truth, forecast.steps)
        check_untrained(keys, record, allow_training_data=is_allowed, purpose="scores", error=DataError)
    own = getattr(forecast, "times", None)
    return running.scores(_times(own if times is None else times, forecast.steps), functions=len(truth))


class _Running:
    """Estimates of all leads so far, and sums over them per function."""

    def __init__(self, settings: LeadSettings) -> None:
        self.settings = settings
        self.leads: list[dict[str, Estimate]] = []
        self.ranks: list[Estimate] = []
        self.ratios: list[Tensor] = []
        self.sums: Numbers = {}
        self.reasons = {name: "not asked for" for name in TITLES if name not in settings.scores}
        self.valid: Tensor | None = None
        self.valid_time: Tensor | None = None
        self.edges: tuple[float, ...] = ()
        self.eps = 0.0
        self.is_uncalibrated = False

    def close(self, current: LeadNumbers | None) -> None:
        """Take in a lead that is complete."""
        if current is None:
            return
        numbers = current.numbers()
        self.edges, self.eps = current.band_edges or self.edges, max(self.eps, current.eps)
        self.leads.append(estimates(numbers, eps=current.eps))
        if "ranks" in numbers:
            self.ranks.append(over_functions(numbers["ranks"]))
        if "spectra" in numbers:
            self.ratios.append(spectrum_ratio(*numbers["spectra"].mean(0), eps=current.eps))
        self.reasons = reasons_by_score(current.reasons) | self.reasons
        self._track(numbers)
        first = len(self.leads) == 1
        self.sums = {
            name: values if first else torch.maximum(self.sums[name], values) if name == "suprema" else self.sums[name] + values
            for name, values in numbers.items()
            if first or name in self.sums
        }

    def _track(self, numbers: Numbers) -> None:
        """Count the leads up to which each function is predicted well enough."""
        if "relative_l2" not in numbers:
            self.valid = self.valid_time = None
            return
        good = numbers["relative_l2"] <= self.settings.threshold
        if len(self.leads) == 1:
            self.valid, self.valid_time = good, good.to(torch.float64)
        elif self.valid is not None and self.valid_time is not None:
            self.valid = self.valid & good
            self.valid_time = self.valid_time + self.valid

    def scores(self, times: Float64[Tensor, " leads"], *, functions: int) -> LeadScores:
        """All that was found."""
        count = len(self.leads)
        means = {name: values / count for name, values in self.sums.items() if name != "suprema"}
        overall = estimates(means, eps=self.eps)
        found: dict[str, LeadScore] = {}
        for name in (name for name in TITLES if name in self.settings.scores):
            each = [lead.get(name, _NOTHING) for lead in self.leads]
            if any(one is not _NOTHING for one in each):
                together = overall.get(name, _NOTHING)
                values, errors = (torch.stack(parts) for parts in zip(*each, strict=True))
                found[name] = LeadScore(
                    values=values, errors=errors, overall=float(together.value), overall_error=float(together.error)
                )
        ranks, spectra = None, None
        if len(self.ranks) == count:
            frequencies, errors = (torch.stack(parts) for parts in zip(*self.ranks, strict=True))
            ranks = RankHistograms(frequencies=frequencies, errors=errors)
        if len(self.ratios) == count:
            spectra = Spectra(edges=self.edges, ratios=torch.stack(self.ratios))
        return LeadScores(
            scores=found,
            ranks=ranks,
            spectra=spectra,
            horizon=self._horizon(),
            times=times,
            level=self.settings.level,
            functions=functions,
            reasons=self.reasons,
            is_uncalibrated=self.is_uncalibrated,
        )

    def _horizon(self) -> HorizonScores:
        """Scores of whole trajectories."""
        coverage, valid_time, still = _NOTHING, _NOTHING, math.nan
        if "suprema" in self.sums:
            coverage = over_functions(inside_fraction(self.sums["suprema"].mT, level=self.settings.level))
        if self.valid is not None and self.valid_time is not None:
            valid_time, still = over_functions(self.valid_time), float(self.valid.to(torch.float64).mean())
        return HorizonScores(
            coverage=_pair(coverage),
            valid_time=_pair(valid_time),
            still_valid=still,
            threshold=self.settings.threshold,
        )


def _names(scores: Collection[str] | None) -> frozenset[str]:
    """The names of scores, all of them known."""
    if scores is None:
        return frozenset(TITLES)
    names = [scores] if isinstance(scores, str) else check_sequence(scores, "scores", remedy="give a list of names")
    return frozenset(check_choice(name, tuple(TITLES), "scores") for name in names)


def _pair(found: Estimate) -> tuple[float, float]:
    return float(found.value), float(found.error)


def _times(times: Sequence[float] | Tensor | None, steps: int) -> Float64[Tensor, " leads"]:
    """One time per lead."""
    if times is None:
        return torch.arange(1, steps + 1, dtype=torch.float64, device="cpu")
    given = real_tensor(times, "times", dtype=torch.float64, device=torch.device("cpu")).detach()
    check_values(given, (steps,), "times")
    return given
