"""Scores of a forecast by lead: the table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import optional, real_tensor
from probneural.displays import html_table
from probneural.distributions.base import check_values

if TYPE_CHECKING:
    import xarray

_COLUMNS = 6
"""Maximum number of leads in a printed table."""
TITLES: Mapping[str, tuple[str, str]] = {
    "relative_l2": ("relative L2 error of the mean", "1"),
    "rmse": ("RMSE of the mean", "field"),
    "spread": ("spread", "field"),
    "spread_skill": ("spread-skill ratio", "1"),
    "chi2": ("chi2 per value", "1"),
    "crps": ("CRPS, fair", "field"),
    "energy": ("energy score, fair", "field"),
    "nll": ("NLL per value, marginal", "nat"),
    "joint_nll": ("NLL per value, joint", "nat"),
    "coverage": ("coverage, pointwise", "1"),
    "simultaneous_coverage": ("coverage, simultaneous", "1"),
    "rank_deviation": ("rank histogram's deviation", "1"),
    "spectrum_error": ("power spectrum's error", "decade"),
}
"""Scores in the order of the table, with their titles and units."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LeadScore:
    """One score at every lead and over all leads.

    Attributes:
        values: Score at each lead, `(leads,)`; NaN if it does not exist.
        errors: Standard errors over samples, `(leads,)`; NaN if they do not exist.
        overall: Score over all leads; NaN if it is missing at one of them.
        overall_error: Standard error of `overall` over samples; leads of a sample are not independent.
    """

    values: Float64[Tensor, " leads"]
    errors: Float64[Tensor, " leads"]
    overall: float
    overall_error: float


@dataclass(frozen=True, eq=False)
class RankHistograms:
    """Frequency of each rank of the truth among the members, by lead; bins of the PIT for forecasts without members.

    Attributes:
        frequencies: Frequencies with sum 1 over ranks, `(leads, ranks)`, dimensionless; 1 / ranks if calibrated.
        errors: Standard errors over samples.
    """

    frequencies: Float64[Tensor, "leads ranks"]
    errors: Float64[Tensor, "leads ranks"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Spectra:
    """Power of the forecast's draws over that of the truth, by lead and octave of the wavenumber.

    Attributes:
        edges: Ends of the bands, `(bands + 1,)`, in periods over the longest side of the domain.
        ratios: Ratios of power, `(leads, bands)`, dimensionless; below 1: too smooth; NaN if the power of the truth is
            rounding.
    """

    edges: tuple[float, ...]
    ratios: Float64[Tensor, "leads bands"]


@dataclass(frozen=True, eq=False, kw_only=True)
class HorizonScores:
    """Scores of whole trajectories.

    Attributes:
        coverage: Fraction of trajectories inside the simultaneous band at `level` at all leads and points, and its standard
            error; NaN if it does not exist.
        valid_time: Mean number of leads until the relative L2 error of the mean exceeds the threshold, and its standard error;
            a lower bound if some samples do not exceed it.
        still_valid: Fraction of samples that do not exceed it.
        threshold: Relative L2 error up to which a forecast is valid.
    """

    coverage: tuple[float, float]
    valid_time: tuple[float, float]
    still_valid: float
    threshold: float


@dataclass(frozen=True, eq=False, kw_only=True)
class LeadScores:
    """Scores of a forecast by lead; `print` shows a table, and `scores["crps"].values` has all leads of one score.

    Standard errors treat samples as independent. Errors of the operator, which all samples share, are not in them.

    Attributes:
        scores: Existing scores by name, see `TITLES`.
        ranks: Rank histograms, or None.
        spectra: Power spectra; None on scattered points.
        horizon: Scores of whole trajectories.
        times: Time of each lead, `(leads,)`, in the user's units; the lead by default.
        level: Nominal level of the coverages.
        functions: Number n of samples.
        reasons: Reason for each score that is missing at some lead.
        is_uncalibrated: Whether neither the forecast nor its predictor was calibrated.
    """

    scores: Mapping[str, LeadScore]
    ranks: RankHistograms | None
    spectra: Spectra | None
    horizon: HorizonScores
    times: Float64[Tensor, " leads"]
    level: float
    functions: int
    reasons: Mapping[str, str] = field(default_factory=dict)
    is_uncalibrated: bool = False

    def __getitem__(self, name: str) -> LeadScore:
        """One score by name."""
        return self.scores[name]

    @property
    def steps(self) -> int:
        """Number of leads."""
        return len(self.times)

    def to_dict(self) -> dict[str, Any]:
        """Return numbers and lists for JSON by name, None for missing values."""
        numbers: dict[str, Any] = _plain(asdict(self))
        return numbers

    def to_xarray(self) -> xarray.Dataset:
        """Return a Dataset over `lead`, with the coordinate `time`, a variable per score and its `_error`; needs `xarray`.

        Rank histograms have the dimension `rank`, spectral ratios the dimension `band` with the lower end as coordinate. Scores
        over all leads are attributes.
        """
        optional("xarray", "to_xarray", extra="xarray")
        import xarray

        variables: dict[str, Any] = {}
        for name, score in self.scores.items():
            variables[name] = ("lead", score.values.numpy(), {"unit": TITLES[name][1], "overall": score.overall})
            variables[f"{name}_error"] = ("lead", score.errors.numpy())
        coordinates: dict[str, Any] = {"lead": range(1, self.steps + 1), "time": ("lead", self.times.numpy())}
        if self.ranks is not None:
            variables["rank_histogram"] = (("lead", "rank"), self.ranks.frequencies.numpy())
        if self.spectra is not None:
            variables["spectrum_ratio"] = (("lead", "band"), self.spectra.ratios.numpy())
            coordinates["band"] = list(self.spectra.edges[:-1])
        attributes = {
            "level": self.level,
            "threshold": self.horizon.threshold,
            "functions": self.functions,
            "horizon_coverage": self.horizon.coverage[0],
            "valid_time": self.horizon.valid_time[0],
            "still_valid": self.horizon.still_valid,
        }
        return xarray.Dataset(variables, coords=coordinates, attrs=attributes)

    def __str__(self) -> str:
        """A table with one line per score, at some leads and over all leads."""
        lines = [f"{title:<30}{''.join(f'{cell:>9}' for cell in cells)}  {unit}" for title, *cells, unit in self._cells()]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        """The same table."""
        return html_table("Scores by lead", [*self._cells(), *((note,) for note in self._notes())])

    def _cells(self) -> Iterator[tuple[str, ...]]:
        """The heading, and title, values at some leads and over all leads, and unit of each score."""
        leads, horizon = spread_leads(self.steps, most=_COLUMNS), self.horizon
        yield f"{self.functions} functions, lead", *map(str, leads), "all", "unit"
        for name, (title, unit) in TITLES.items():
            if name in self.scores:
                score = self.scores[name]
                yield title, *(_cell(float(score.values[lead - 1])) for lead in leads), _cell(score.overall), unit
            else:
                yield title, "-", self.reasons.get(name, "")
        padding = ("",) * len(leads)
        yield "coverage, whole trajectory", *padding, _cell(horizon.coverage[0]), "1"
        most = f"; {horizon.still_valid:.0%} to the end" if horizon.still_valid else ""
        yield "valid prediction time", *padding, _cell(horizon.valid_time[0]), f"leads{most}"

    def _notes(self) -> list[str]:
        """Levels of the table, and that nothing was calibrated."""
        notes = [f"coverages at {self.level:g}; valid up to a relative L2 error of {self.horizon.threshold:g}"]
        return [*notes, "uncalibrated: fit pn.calibration.LeadScale() to held-out trajectories"][: 1 + self.is_uncalibrated]


def checked_times(times: Sequence[float] | Tensor | None, steps: int) -> Float64[Tensor, " leads"]:
    """Validated times of the leads; the leads themselves by default.

    Raises:
        ShapeError: If the counts of times and leads differ.
    """
    numbers = range(1, steps + 1) if times is None else times
    lead_times = real_tensor(numbers, "times", dtype=torch.float64, device=torch.device("cpu")).detach()
    check_values(lead_times, (steps,), "times")
    return lead_times


def spread_leads(steps: int, *, most: int) -> list[int]:
    """Up to `most` leads, evenly spread."""
    count = min(most, steps)
    return sorted({round(1 + (steps - 1) * number / max(count - 1, 1)) for number in range(count)})


def _plain(value: Any) -> Any:
    """Nested lists and numbers, None for numbers that are not finite."""
    if isinstance(value, Tensor):
        return _plain(value.tolist())
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cell(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3g}"


class Estimate(NamedTuple):
    """Means over samples and their standard errors, `(...)`; NaN if they do not exist."""

    value: Float64[Tensor, "*values"]
    error: Float64[Tensor, "*values"]


def over_functions(values: Float64[Tensor, "n *values"]) -> Estimate:
    """Mean and standard error over the first axis; the error of a single sample is NaN.

    Examples:
        >>> mean, error = over_functions(torch.tensor([1.0, 3.0]).double())
        >>> mean.item(), error.item()
        (2.0, 1.0)
    """
    count = len(values)
    error = values.std(0) / math.sqrt(count) if count > 1 else torch.full_like(values[0], math.nan)
    return Estimate(values.mean(0), error)


def root_of_mean(squares: Float64[Tensor, "n c"]) -> Estimate:
    """√(mean over samples), averaged over channels, with its standard error to first order.

    Examples:
        >>> root_of_mean(torch.tensor([[3.0], [5.0]]).double()).value.item()
        2.0
    """
    mean = squares.mean(0)
    influence = 0.5 * mean.sqrt() * _relative(squares)
    return Estimate(mean.sqrt().mean(), over_functions(influence.mean(-1)).error)


def root_of_ratio(above: Float64[Tensor, "n c"], below: Float64[Tensor, "n c"]) -> Estimate:
    """√(mean over samples / mean over samples), averaged over channels, with its standard error to first order."""
    ratio = (above.mean(0) / below.mean(0)).sqrt()
    influence = 0.5 * ratio * (_relative(above) - _relative(below))
    return Estimate(ratio.mean(), over_functions(influence.mean(-1)).error)


def _relative(values: Float64[Tensor, "n c"]) -> Float64[Tensor, "n c"]:
    """Values over their mean; 1 where the mean is zero."""
    mean = values.mean(0)
    return torch.where(mean > 0, values / mean, torch.ones_like(values))
