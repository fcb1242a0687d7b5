"""Sums behind the scores of a forecast: numbers per sample at one lead, and over all leads so far."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.distributions.empirical import EmpiricalField
from probneural.errors import ProbneuralError
from probneural.fields import Field
from probneural.metrics.accuracy import relative_l2
from probneural.metrics.comparison import compare
from probneural.metrics.energy import energy_score
from probneural.metrics.estimates import Estimate, over_functions, root_of_mean, root_of_ratio
from probneural.metrics.lead_pairs import LeadPart
from probneural.metrics.likelihood import joint_nll, nll
from probneural.metrics.member_pool import MemberPool, inside_fraction, rank_deviation, suprema
from probneural.metrics.ranked_probability import crps
from probneural.metrics.reliability import chi2, coverage, drawn_suprema, pit_histogram, true_supremum
from probneural.metrics.spectra import compared_spectra, spectrum_error
from probneural.metrics.spread import size_factor
from probneural.metrics.variogram import variogram_score
from probneural.randomness import stream_seed

_DRAWS = 512
"""Draws behind the coverage of whole functions, where there are no members."""
_PIT_BINS = 20
"""Bins that stand for ranks, where there are no members."""
_EPS = 2.0**-52

_SOURCES = {
    "rmse": ("square",),
    "spread": ("square", "variance"),
    "spread_skill": ("square", "variance"),
    "rank_deviation": ("ranks",),
    "spectrum_error": ("spectra",),
}
"""Numbers that a score follows from, where they have another name."""

Numbers = dict[str, Tensor]
"""Arrays whose first axis is functions, by name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LeadSettings:
    """How a forecast is scored.

    Attributes:
        noise: Variance of the observation noise, in physical units squared.
        level: Nominal level of the coverages.
        threshold: Relative L2 error up to which a forecast is valid.
        whole: How many functions, the first ones, the scores of whole functions are computed on; None for all.
        seed: Of draws, where they are needed.
        scores: Names of the scores to compute.
    """

    noise: float | Tensor
    level: float
    threshold: float
    whole: int | None
    seed: int
    scores: frozenset[str]

    @cached_property
    def numbers(self) -> frozenset[str]:
        """Names of the numbers per function that the scores, and those of whole trajectories, follow from."""
        return frozenset({"relative_l2", "suprema"}.union(*(_SOURCES.get(name, (name,)) for name in self.scores)))


def reasons_by_score(reasons: dict[str, str]) -> dict[str, str]:
    """Why numbers are missing, by the scores that would follow from them."""
    needed = {**_SOURCES, "simultaneous_coverage": ("suprema",)}
    told = {name: text for name, text in reasons.items() if not any(name in numbers for numbers in needed.values())}
    return told | {score: reasons[number] for score, numbers in needed.items() for number in numbers if number in reasons}


class _Compared:
    """Some functions at one lead, compared in the ways that the scores need; each once."""

    def __init__(self, part: LeadPart, settings: LeadSettings) -> None:
        self.settings, self.lead = settings, part.lead
        self.seed = stream_seed(settings.seed, "forecast scores", part.lead, part.rows.start)
        self.plain = compare(part.u, part.truth, noise=settings.noise)
        u = self.plain.distribution
        is_sample = isinstance(u, EmpiricalField) and len(u.weights) > 1
        self.factor = size_factor(self.plain.distribution) if is_sample else 1.0
        field_variance = self.plain.variance - self.plain.noise
        self.corrected = replace(self.plain, variance=self.factor * field_variance + self.plain.noise)
        is_even = isinstance(u, EmpiricalField) and bool((u.weights == u.weights[0]).all())
        self.pool = MemberPool(self.plain, seed=self.seed) if is_sample and is_even else None
        self.distances = None if self.pool is None else self.pool.distances

    def coverage(self) -> Tensor:
        if self.pool is None or self.distances is None:
            return coverage(self.corrected, level=self.settings.level)
        return self.pool.coverage(self.distances, level=self.settings.level)

    def ranks(self) -> Tensor:
        if self.pool is None:
            return pit_histogram(self.plain, bins=_PIT_BINS) / _PIT_BINS
        return self.pool.rank_histogram()

    def suprema(self) -> Float64[Tensor, "n k"]:
        """The truth's largest distance from the mean, then those of what it is exchangeable with."""
        if self.distances is not None:
            return suprema(self.distances).mT
        drawn = drawn_suprema(self.corrected, draws=_DRAWS, seed=self.settings.seed, lead=self.lead)
        return torch.cat([true_supremum(self.corrected)[None], drawn]).mT

    def joint_nll(self) -> Tensor:
        u = self.corrected.distribution
        factors = torch.full((u.mean.shape[1],), math.sqrt(self.factor), dtype=torch.float64)
        return joint_nll(self.corrected if self.factor == 1.0 else replace(self.corrected, distribution=u.scale(factors)))


_VALUES: dict[str, Callable[[_Compared], Tensor]] = {
    "relative_l2": lambda c: relative_l2(Field(c.plain.mean, c.plain.grid), Field(c.plain.truth, c.plain.grid)),
    "crps": lambda c: crps(c.plain, is_fair=True),
    "nll": lambda c: nll(c.corrected),
    "chi2": lambda c: chi2(c.corrected),
    "coverage": _Compared.coverage,
}
"""Scores of values, of each function and channel: their means are reported."""
_WHOLE: dict[str, Callable[[_Compared], Tensor]] = {
    "energy": lambda c: energy_score(c.plain, seed=c.seed, is_fair=True),
    "variogram": lambda c: variogram_score(c.plain, seed=c.seed, is_fair=True),
    "joint_nll": _Compared.joint_nll,
}
"""The same of whole functions."""
MEANS = (*_VALUES, *_WHOLE, "simultaneous_coverage")
"""Numbers per function whose mean is the score."""


class LeadNumbers:
    """What is known of each function at one lead, or summed over leads.

    Args:
        settings: How the forecast is scored.
    """

    def __init__(self, settings: LeadSettings) -> None:
        self._settings = settings
        self._parts: dict[str, list[Tensor]] = {}
        self.reasons: dict[str, str] = {}
        self.band_edges: tuple[float, ...] = ()
        self.eps = _EPS

    def add(self, part: LeadPart) -> None:
        """Compare some functions, and keep their numbers."""
        compared = _Compared(part, self._settings)
        self.eps = max(self.eps, torch.finfo(part.u.mean.dtype).eps, torch.finfo(part.truth.dtype).eps)
        for name, score in _VALUES.items():
            self._put(name, lambda score=score: _over_channels(score(compared)))  # type: ignore[misc]
        plain, corrected = compared.plain, compared.corrected
        self._put("square", lambda: plain.average(plain.residual.square()))
        self._put("variance", lambda: plain.average(corrected.variance))
        self._put("ranks", lambda: compared.ranks().mean(1))
        left = len(part.truth) if self._settings.whole is None else self._settings.whole - part.rows.start
        if left <= 0:
            return
        if left < len(part.truth):
            kept = slice(0, left)
            few = replace(part, u=part.u[kept], truth=part.truth[kept])
            compared = _Compared(few, self._settings)
        for name, score in _WHOLE.items():
            self._put(name, lambda score=score: _over_channels(score(compared)))  # type: ignore[misc]
        self._put("suprema", compared.suprema)
        if "suprema" in self._parts:
            distances = self._parts["suprema"][-1].mT
            self._put("simultaneous_coverage", lambda: inside_fraction(distances, level=self._settings.level))
        self._put("spectra", lambda: self._spectra(compared))

    def _spectra(self, compared: _Compared) -> Tensor:
        true, drawn = compared_spectra(compared.plain, seed=compared.seed)
        self.band_edges = tuple(true.edges.tolist())
        return torch.stack([true.power, drawn], dim=1)

    def _put(self, name: str, compute: Callable[[], Tensor]) -> None:
        if name in self.reasons or name not in self._settings.numbers:
            return
        try:
            self._parts.setdefault(name, []).append(compute().detach().to("cpu"))
        except ProbneuralError as missing:
            self.reasons[name] = str(missing)

    def numbers(self) -> Numbers:
        """All numbers per function, those left out that some function lacks."""
        return {name: torch.cat(parts) for name, parts in self._parts.items() if parts and name not in self.reasons}


def _over_channels(scores: Tensor) -> Tensor:
    return scores if scores.ndim == 1 else scores.mean(1)


def estimates(numbers: Numbers, *, eps: float) -> dict[str, Estimate]:
    """Every score that the numbers give, with its standard error over the functions."""
    found = {name: over_functions(numbers[name]) for name in MEANS if name in numbers}
    if "square" in numbers:
        found["rmse"] = root_of_mean(numbers["square"])
    if "variance" in numbers:
        found["spread"] = root_of_mean(numbers["variance"])
        if bool((numbers["square"].mean(0) > 0).all()):
            found["spread_skill"] = root_of_ratio(numbers["variance"], numbers["square"])
    if "ranks" in numbers:
        deviation = rank_deviation(numbers["ranks"].mean(0))
        found["rank_deviation"] = Estimate(deviation, torch.full_like(deviation, math.nan))
    if "spectra" in numbers:
        true, drawn = numbers["spectra"].mean(0)
        error = spectrum_error(true, drawn, eps=eps)
        found["spectrum_error"] = Estimate(error, torch.full_like(error, math.nan))
    return found
