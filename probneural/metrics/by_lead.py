"""Scores of a forecast by lead, in one pass that holds one lead at a time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_choice, check_flag, check_positive, check_real, check_sequence
from probneural.contexts import without_gradients
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.forecasts.trajectory import Forecast
from probneural.errors import DataError
from probneural.metrics import lead_table as table
from probneural.metrics.comparison import compare, mean_relative_l2
from probneural.metrics.lead_alignment import TrueTrajectories, lead_batches, step_keys
from probneural.metrics.member_pool import MemberPool, inside_fraction, rank_deviation, suprema
from probneural.metrics.proper_scores import crps, energy_score, joint_nll, nll
from probneural.metrics.reliability import chi2, coverage, drawn_suprema, pit_histogram, true_supremum
from probneural.metrics.scores import Accumulator, Batch
from probneural.metrics.spectra import compared_spectra, spectrum_error, spectrum_ratio
from probneural.metrics.spread import corrected_variance, size_factor
from probneural.pairs.provenance import TrainingRecord, check_untrained
from probneural.randomness import stream_seed

_DRAWS = 512
"""Draws of the simultaneous coverage for forecasts without members."""
_PIT_BINS = 20
"""Bins of the PIT that replace ranks for forecasts without members."""
_NONE = table.Estimate(*torch.full((2,), math.nan, dtype=torch.float64, device="cpu"))

_SOURCES = {
    "rmse": ("square",),
    "spread": ("square", "variance"),
    "spread_skill": ("square", "variance"),
    "rank_deviation": ("ranks",),
    "spectrum_error": ("spectra",),
    "simultaneous_coverage": ("simultaneous_coverage", "suprema"),
}
"""Statistics from which a score is computed, if their names differ from the score's."""


@without_gradients()
def score_by_lead(
    forecast: Forecast,
    truth: TrueTrajectories,
    *,
    noise: float | Float[Tensor, "..."] = 0.0,
    level: float = 0.9,
    threshold: float = 0.5,
    times: Sequence[float] | Tensor | None = None,
    scores: Collection[str] | None = None,
    allow_training_data: bool = False,
) -> table.LeadScores:
    """Score a forecast at every lead and over all leads, in one pass with one lead in memory.

    The s members are a sample of the forecast's distribution: CRPS and energy score are fair; spread, chi² and NLL use the
    variance times (s + 1)/(s - 1); coverages use the rank of the truth among the members. So if members are exchangeable with
    the truth, the spread-skill ratio is 1, ranks are flat and coverages nominal for any s. Only the mean of chi² is
    (s - 1)/(s - 3) for Gaussian members.

    Args:
        forecast: Forecast of `predictor.rollout` or of a calibrator: any
            [`Forecast`][probneural.distributions.forecasts.trajectory.Forecast].
        truth: True trajectories of its n samples, on its grid, with all of its leads. States are matched by time if both have
            times, else by lead.
        noise: Variance of the observation noise in the truth, in physical units squared: a number, or one per channel `(c,)`.
        level: Nominal level of the coverages, between 0 and 1.
        threshold: Relative L2 error up to which the mean counts as a valid prediction.
        times: Time of each lead in tables and figures, in any units; by default the forecast's times, or the lead.
        scores: Names of the scores to compute, such as `("crps", "spread_skill")`; all by default. The energy score costs
            most.
        allow_training_data: Whether trajectories with steps that trained the predictor cause a warning instead of an error.

    Returns:
        The scores, averaged over samples, domain and channels.

    Raises:
        DataError: If `forecast` is no forecast, the truth has no states by lead, a value is not finite, or steps of the
            trajectories trained the predictor.
        ShapeError: If the counts of samples or channels differ, or those of times and leads.
        GridError: If the grids differ.
        ArgumentError: If the truth ends before the forecast or lacks its times, the level is not between 0 and 1, the
            threshold is not positive, a score name is unknown, or the noise is invalid.

    Reference:
        Fortin et al. (2014), equation 15, for the factor of the variance; Ferro (2014), Fair scores for ensemble forecasts.
    """
    is_allowed = check_flag(allow_training_data, "allow_training_data")
    settings = _Settings(
        noise=noise,
        level=check_real(level, "level", above=0.0, below=1.0),
        threshold=check_positive(threshold, "threshold"),
        scores=_names(scores),
    )
    leads = _Leads(settings)
    for _, batches in itertools.groupby(lead_batches(forecast, truth), key=lambda batch: batch.lead):
        leads.add(batches)
    record: TrainingRecord | None = getattr(forecast, "trained_on", None)
    if record is not None:
        keys = step_keys(truth, forecast.steps)
        check_untrained(keys, record, allow_training_data=is_allowed, purpose="scores", error=DataError)
    lead_times = getattr(forecast, "times", None) if times is None else times
    return leads.scores(table.checked_times(lead_times, forecast.steps), count=len(truth))


@dataclass(frozen=True, eq=False, kw_only=True)
class _Settings:
    """Validated arguments of `score_by_lead`."""

    noise: float | Tensor
    level: float
    threshold: float
    scores: frozenset[str]

    def accumulator(self) -> Accumulator[_Compared]:
        """Accumulator of the statistics from which scores of leads and of whole trajectories are computed."""
        names = {"relative_l2", "suprema"}.union(*(_SOURCES.get(name, (name,)) for name in self.scores))
        pointwise, joint = ({name: group[name] for name in group if name in names} for group in (_POINTWISE, _JOINT))
        return Accumulator(partial(_Compared, settings=self), pointwise=pointwise, joint=joint)


class _Compared:
    """Comparisons of the samples of one lead with the truth, each computed once."""

    def __init__(self, batch: Batch, settings: _Settings) -> None:
        self.settings, self.lead = settings, batch.lead
        self.seed = stream_seed(0, "forecast scores", batch.lead, batch.rows.start)
        self.plain = compare(batch.u, batch.truth, noise=settings.noise)
        self.is_sample = isinstance(batch.u, EmpiricalField) and len(batch.u.weights) > 1
        self.factor = size_factor(batch.u) if self.is_sample else 1.0
        self.corrected = replace(self.plain, variance=corrected_variance(self.plain, self.factor))
        self.edges: tuple[float, ...] = ()

    @cached_property
    def pool(self) -> MemberPool | None:
        """Members of equal weight and the truth."""
        u = self.plain.distribution
        is_even = isinstance(u, EmpiricalField) and bool((u.weights == u.weights[0]).all())
        return MemberPool(self.plain, seed=self.seed) if self.is_sample and is_even else None

    @cached_property
    def distances(self) -> Tensor | None:
        """Distances of truth and members from their mean."""
        return None if self.pool is None else self.pool.distances

    def coverage(self) -> Tensor:
        """Pointwise coverage, by rank if there are members."""
        if self.pool is None or self.distances is None:
            return coverage(self.corrected, level=self.settings.level)
        return self.pool.coverage(self.distances, level=self.settings.level)

    def ranks(self) -> Tensor:
        """Rank histogram, or that of the PIT, `(n, ranks)`."""
        if self.pool is None:
            return (pit_histogram(self.plain, bins=_PIT_BINS) / _PIT_BINS).mean(1)
        return self.pool.rank_histogram().mean(1)

    @cached_property
    def suprema(self) -> Float64[Tensor, "n k"]:
        """Largest distance of the truth from the mean, then those of draws exchangeable with it."""
        if self.distances is not None:
            return suprema(self.distances).mT
        drawn = drawn_suprema(self.corrected, draws=_DRAWS, seed=0, lead=self.lead)
        return torch.cat([true_supremum(self.corrected)[None], drawn]).mT

    def joint_nll(self) -> Tensor:
        """Joint NLL with the corrected variance."""
        if self.factor == 1.0:
            return joint_nll(self.corrected)
        u = self.corrected.distribution
        factors = torch.full((u.mean.shape[1],), math.sqrt(self.factor), dtype=torch.float64)
        return joint_nll(replace(self.corrected, distribution=u.scale(factors)))

    def spectra(self) -> Float64[Tensor, "n two c bands"]:
        """Power of the truth and mean power of the draws."""
        true, drawn = compared_spectra(self.plain, seed=self.seed)
        self.edges = tuple(true.edges.tolist())
        return torch.stack([true.power, drawn], dim=1)


_POINTWISE: Mapping[str, Callable[[_Compared], Tensor]] = {
    "relative_l2": lambda c: mean_relative_l2(c.plain).mean(1),
    "crps": lambda c: crps(c.plain, is_fair=True).mean(1),
    "nll": lambda c: nll(c.corrected).mean(1),
    "chi2": lambda c: chi2(c.corrected).mean(1),
    "coverage": lambda c: c.coverage().mean(1),
    "square": lambda c: c.plain.average(c.plain.residual.square()),
    "variance": lambda c: c.plain.average(c.corrected.variance),
    "ranks": _Compared.ranks,
}
_JOINT: Mapping[str, Callable[[_Compared], Tensor]] = {
    "energy": lambda c: energy_score(c.plain, seed=c.seed, is_fair=True).mean(1),
    "joint_nll": _Compared.joint_nll,
    "suprema": lambda c: c.suprema,
    "simultaneous_coverage": lambda c: inside_fraction(c.suprema.mT, level=c.settings.level),
    "spectra": _Compared.spectra,
}


def _estimates(values: Mapping[str, Tensor], *, eps: float) -> dict[str, table.Estimate]:
    """Scores computed from the statistics, with standard errors over samples."""
    scores = {name: table.over_functions(values[name]) for name in table.TITLES if name in values}
    if "square" in values:
        scores["rmse"] = table.root_of_mean(values["square"])
    if "variance" in values:
        scores["spread"] = table.root_of_mean(values["variance"])
        if bool((values["square"].mean(0) > 0).all()):
            scores["spread_skill"] = table.root_of_ratio(values["variance"], values["square"])
    if "ranks" in values:
        deviation = rank_deviation(values["ranks"].mean(0))
        scores["rank_deviation"] = table.Estimate(deviation, torch.full_like(deviation, math.nan))
    if "spectra" in values:
        error = spectrum_error(*values["spectra"].mean(0), eps=eps)
        scores["spectrum_error"] = table.Estimate(error, torch.full_like(error, math.nan))
    return scores


class _Leads:
    """Estimates of the leads so far, and statistics of each sample summed over these leads."""

    def __init__(self, settings: _Settings) -> None:
        self.settings = settings
        self.estimates: list[dict[str, table.Estimate]] = []
        self.ranks: list[table.Estimate] = []
        self.ratios: list[Tensor] = []
        self.sums: dict[str, Tensor] = {}
        self.reasons = {name: "not asked for" for name in table.TITLES if name not in settings.scores}
        self.valid: list[Tensor] = []
        self.edges: tuple[float, ...] = ()
        self.eps = torch.finfo(torch.float64).eps
        self.is_uncalibrated = False

    def add(self, batches: Iterable[Batch]) -> None:
        """Add a lead."""
        accumulator = self.settings.accumulator()
        for batch in batches:
            first = accumulator.add(batch)
            self.edges = first.edges if first is not None and first.edges else self.edges
            self.eps = max(self.eps, batch.eps)
            self.is_uncalibrated |= batch.u.is_uncalibrated
        values, reasons = accumulator.values(), accumulator.reasons
        self.estimates.append(_estimates(values, eps=self.eps))
        if "ranks" in values:
            self.ranks.append(table.over_functions(values["ranks"]))
        if "spectra" in values:
            self.ratios.append(spectrum_ratio(*values["spectra"].mean(0), eps=self.eps))
        for name in table.TITLES:
            for source in _SOURCES.get(name, (name,)):
                if source in reasons:
                    self.reasons.setdefault(name, reasons[source])
        if "relative_l2" in values:
            self.valid.append(values["relative_l2"] <= self.settings.threshold)
        if len(self.estimates) == 1:
            self.sums = values
        else:
            joined = {name: torch.maximum if name == "suprema" else torch.add for name in self.sums.keys() & values.keys()}
            self.sums = {name: joined[name](total, values[name]) for name, total in self.sums.items() if name in joined}

    def scores(self, times: Float64[Tensor, " leads"], *, count: int) -> table.LeadScores:
        """The scores at each lead and over all leads."""
        steps = len(self.estimates)
        means = {name: values / steps for name, values in self.sums.items() if name != "suprema"}
        overall = _estimates(means, eps=self.eps)
        scores: dict[str, table.LeadScore] = {}
        for name in (name for name in table.TITLES if name in self.settings.scores):
            by_lead = [estimates.get(name, _NONE) for estimates in self.estimates]
            if any(estimate is not _NONE for estimate in by_lead):
                values, errors = (torch.stack(parts) for parts in zip(*by_lead, strict=True))
                value, error = map(float, overall.get(name, _NONE))
                scores[name] = table.LeadScore(values=values, errors=errors, overall=value, overall_error=error)
        return table.LeadScores(
            scores=scores,
            ranks=table.RankHistograms(*map(torch.stack, zip(*self.ranks, strict=True))) if len(self.ranks) == steps else None,
            spectra=table.Spectra(edges=self.edges, ratios=torch.stack(self.ratios)) if len(self.ratios) == steps else None,
            horizon=self._horizon(),
            times=times,
            level=self.settings.level,
            functions=count,
            reasons=self.reasons,
            is_uncalibrated=self.is_uncalibrated,
        )

    def _horizon(self) -> table.HorizonScores:
        """Scores of whole trajectories."""
        coverage, valid_time, still_valid = _NONE, _NONE, math.nan
        if "suprema" in self.sums:
            coverage = table.over_functions(inside_fraction(self.sums["suprema"].mT, level=self.settings.level))
        if len(self.valid) == len(self.estimates):
            valid = torch.stack(self.valid).to(torch.float64).cumprod(0)
            valid_time, still_valid = table.over_functions(valid.sum(0)), float(valid[-1].mean())
        return table.HorizonScores(
            coverage=(float(coverage.value), float(coverage.error)),
            valid_time=(float(valid_time.value), float(valid_time.error)),
            still_valid=still_valid,
            threshold=self.settings.threshold,
        )


def _names(scores: Collection[str] | None) -> frozenset[str]:
    """Validated names of scores."""
    if scores is None:
        return frozenset(table.TITLES)
    names = [scores] if isinstance(scores, str) else check_sequence(scores, "scores", remedy="give a list of names")
    return frozenset(check_choice(name, tuple(table.TITLES), "scores") for name in names)
