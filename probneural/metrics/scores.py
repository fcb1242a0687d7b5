"""All scores of a prediction in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from probneural.checks import check_integer
from probneural.distributions.base import FieldDistribution
from probneural.errors import ArgumentError, DataError, UnsupportedError
from probneural.fields import Field
from probneural.metrics.accuracy import relative_l2, rmse
from probneural.metrics.comparison import Comparison, compare
from probneural.metrics.energy import energy_score
from probneural.metrics.likelihood import joint_nll, nll
from probneural.metrics.ranked_probability import crps
from probneural.metrics.ranking import rank_correlation
from probneural.metrics.reliability import calibration_error, chi2, coverage, interval_width, simultaneous_coverage
from probneural.metrics.spread import interval_score, n_merci, sharpness, spread_skill


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores averaged over the functions, the domain and the channels; printing gives a table.

    Attributes:
        relative_l2: Relative L2 error of the mean, dimensionless; None if a true function is zero everywhere.
        rmse: Root mean squared error of the mean, in physical units.
        crps: Continuous ranked probability score, in physical units; None for distributions it has no closed form for.
        nll: Negative log density per value, in nats; None where a predictive variance is zero.
        joint_nll: Negative log density of whole functions per value, in nats; None if some direction has no variance.
        coverage: Share of values inside the central intervals at `level`, dimensionless.
        simultaneous_coverage: Share of functions wholly inside simultaneous bands at `level`, dimensionless.
        calibration_error: Mean miss in coverage over the levels .05 to .95, dimensionless.
        interval_width: Mean width of the central intervals at `level`, in physical units.
        chi2: Mean squared standardised residual, dimensionless; infinite if an error is stated to be impossible.
        interval_score: Width of those intervals plus what misses cost, in physical units.
        sharpness: Mean predictive standard deviation, in physical units.
        spread_skill: Root mean predictive variance over RMSE, corrected for the number of members, dimensionless; None if the
            RMSE is zero or a single member has no spread.
        n_merci: Whether the standard deviation follows the errors: 0 perfectly, 1 as a constant does, dimensionless; None if
            the errors have one size.
        energy: Energy score of whole functions, in physical units.
        rank_across: Rank correlation of standard deviation and error between functions, dimensionless; None for fewer than
            three functions or points.
        rank_across_attainable: What it would be on average if errors were as stated.
        rank_within: The same between the points of one function, averaged over functions.
        rank_within_attainable: What that would be on average if errors were as stated.
        level: Nominal level of the coverages, the width and the interval score.
        functions: Number n of functions scored.
        reasons: For each score that is None, why.
    """

    relative_l2: float | None
    rmse: float
    crps: float | None
    nll: float | None
    joint_nll: float | None
    coverage: float
    simultaneous_coverage: float
    calibration_error: float
    interval_width: float
    chi2: float
    interval_score: float
    sharpness: float
    spread_skill: float | None
    n_merci: float | None
    energy: float | None
    rank_across: float | None
    rank_across_attainable: float | None
    rank_within: float | None
    rank_within_attainable: float | None
    level: float
    functions: int
    reasons: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers by name, None where a score does not exist, and `reasons`; ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        """A table: one line per score, with its unit."""
        at = f"at {self.level:g}"
        lines = [
            ("relative_l2", "relative L2 error of the mean", "1"),
            ("rmse", "RMSE of the mean", "field"),
            ("crps", "CRPS", "field"),
            ("nll", "NLL per value, marginal", "nat"),
            ("joint_nll", "NLL per value, joint", "nat"),
            ("coverage", f"coverage {at}, pointwise", "1"),
            ("simultaneous_coverage", f"coverage {at}, simultaneous", "1"),
            ("calibration_error", "calibration error", "1"),
            ("interval_width", f"interval width {at}", "field"),
            ("chi2", "chi2 per value", "1"),
            ("interval_score", f"interval score {at}", "field"),
            ("sharpness", "sharpness", "field"),
            ("spread_skill", "spread-skill ratio", "1"),
            ("n_merci", "n-MeRCI", "1"),
            ("energy", "energy score", "field"),
            ("rank_across", "rank correlation across functions", "1"),
            ("rank_across_attainable", "  attainable as stated", "1"),
            ("rank_within", "rank correlation within functions", "1"),
            ("rank_within_attainable", "  attainable as stated", "1"),
        ]
        rows = [f"{f'score over {self.functions} functions':<34}{'value':>12}  unit"]
        for name, title, unit in lines:
            value = getattr(self, name)
            shown = "-" if value is None else f"{value:.4g}"
            reason = f"  ({self.reasons[name]})" if name in self.reasons else ""
            rows.append(f"{title:<34}{shown:>12}  {unit}{reason}")
        return "\n".join(rows)


def score(
    u: FieldDistribution, truth: Field, *, noise: float | Tensor = 0.0, level: float = 0.9, whole: int | None = None
) -> Scores:
    """Score a distribution over fields against the true fields.

    Averages over the domain use the grid's quadrature weights, so they converge as the grid is refined instead of depending on
    it; the joint NLL alone counts values. Everything is computed in float64. Zero variance is legal, and each score then
    takes its limit, or says why it has none.

    Args:
        u: The distribution, of n functions with c channels, without observation noise.
        truth: The true functions, `(n, c, *grid)`, on the distribution's grid.
        noise: Variance of the observation noise in `truth`, in physical units squared: a number, or one per channel `(c,)`
            as in `predictor.noise`. The predictive variance is `u.variance + noise`.
        level: Nominal level of the coverages and of the interval width, between 0 and 1.
        whole: How many functions, the first ones, the scores of whole functions are computed on: joint NLL, simultaneous
            coverage, energy score and rank correlations; all by default. Each function costs them work in proportion to
            points times rank squared.

    Returns:
        The scores, averaged over channels.

    Raises:
        DataError: If `u` is not a `FieldDistribution` or `truth` not a `Field`, if there are no functions, or if a value is
            not finite.
        GridError: If the grids differ.
        ShapeError: If the shapes differ; nothing is broadcast.
        ArgumentError: If the noise is negative or of another shape, the level is not between 0 and 1, or `whole` is below 1.

    Examples:
        >>> import torch
        >>> from probneural.distributions import EmpiricalField
        >>> from probneural.fields import Grid
        >>> grid = Grid.uniform((4,))
        >>> truth = Field(torch.ones(3, 1, 4), grid)
        >>> members = torch.tensor([0.5, 1.5]).reshape(2, 1, 1, 1).expand(2, 3, 1, 4)
        >>> print(score(EmpiricalField(members, grid=grid), truth, noise=0.75))
        score over 3 functions                   value  unit
        relative L2 error of the mean                0  1
        ...
    """
    whole = None if whole is None else check_integer(whole, "whole")
    comparison = compare(u, truth, noise=noise)
    some = comparison if whole is None or whole >= len(truth) else compare(u[:whole], truth[:whole], noise=noise)
    mean = Field(comparison.mean, comparison.grid)
    reasons: dict[str, str] = {}

    def average(name: str, compute: Callable[[], Tensor]) -> float | None:
        """The mean of a score, or None and its reason."""
        try:
            return float(compute().mean())
        except (ArgumentError, DataError, UnsupportedError) as missing:
            reasons[name] = str(missing)
            return None

    return Scores(
        **_ranks(some, reasons),
        energy=average("energy", lambda: energy_score(some)),
        coverage=float(coverage(comparison, level=level).mean()),
        simultaneous_coverage=float(simultaneous_coverage(some, level=level).mean()),
        calibration_error=float(calibration_error(comparison).mean()),
        interval_width=float(interval_width(comparison, level=level).mean()),
        chi2=float(chi2(comparison).mean()),
        interval_score=float(interval_score(comparison, level=level).mean()),
        sharpness=float(sharpness(comparison).mean()),
        spread_skill=average("spread_skill", lambda: spread_skill(comparison)),
        n_merci=average("n_merci", lambda: n_merci(comparison)),
        rmse=float(rmse(mean, truth).mean()),
        relative_l2=average("relative_l2", lambda: relative_l2(mean, truth)),
        crps=average("crps", lambda: crps(comparison)),
        nll=average("nll", lambda: nll(comparison)),
        joint_nll=average("joint_nll", lambda: joint_nll(some)),
        level=level,
        functions=len(truth),
        reasons=reasons,
    )


def _ranks(comparison: Comparison, reasons: dict[str, str]) -> dict[str, float | None]:
    """The four rank correlations by name, averaged over channels; None, and why, where there are none."""
    names = ("rank_across", "rank_within", "rank_across_attainable", "rank_within_attainable")
    try:
        return {name: float(value.mean()) for name, value in zip(names, rank_correlation(comparison), strict=True)}
    except DataError as missing:
        reasons.update(dict.fromkeys(names, str(missing)))
        return dict.fromkeys(names)
