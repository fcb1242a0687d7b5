"""By how much variances grow with scores of novelty: fitted to squared errors on ordinary and on shifted functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from probneural.calibration.novelty_scores import log_score
from probneural.errors import ArgumentError
from probneural.registry import stored

SCORES = ("components", "residual", "variance")
"""Scores that errors grow with in proportion; spectra and pooled features tell functions apart more sharply than errors do."""
KNOTS = (0.5, 0.9, 0.99)
"""Quantiles of the ordinary functions' scores from which on variances grow."""
WIDEST = 1.2
"""Largest mean factor of the deviations of ordinary functions."""
STEEPEST = 4.0
"""Largest sum of the exponents: scores are squared distances, so deviations grow by the fourth power of a distance at most."""
_OUTLIERS = 0.05
"""Ordinary functions of the largest errors that do not count for what their errors ask for."""
_ROUNDS = 20
"""Of giving more weight to sets whose errors are larger than stated."""
_LEAST = 1e-6
"""Exponents below it are zero: what is left of them is rounding."""
_STARTS = 20
"""Of the search for exponents, each from where the last one ended, at most."""
_STEPS = 500
"""Of one such search, at most."""
_SLACK = 0.02
"""By how much mean squared standardised errors may exceed 1."""
_ORDINARY = 0.5
"""Weight of ordinary functions beside shifted ones."""
_TINY = torch.finfo(torch.float64).tiny
_GAIN = 1e-13
"""Change of the likelihood at which it ends."""


@stored(on_cpu=("knots", "exponents"))
@dataclass(frozen=True, eq=False, kw_only=True)
class Inflation:
    """g(s)² = prod over j of max(1, s_j / k_j)^theta_j, with theta_j >= 0: never below 1, and larger for stranger functions.

    Args:
        names: Which score each factor follows.
        knots: k, logarithms of scores, `(j,)`.
        exponents: theta, `(j,)`, dimensionless.

    Raises:
        ArgumentError: If there is not one name, knot and exponent for each factor, or an exponent is negative or not finite.
    """

    names: tuple[str, ...]
    knots: Float64[Tensor, " j"]
    exponents: Float64[Tensor, " j"]

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        count = len(self.names)
        fits = self.knots.shape == self.exponents.shape == (count,)
        if not fits or not bool((self.exponents.isfinite() & (self.exponents >= 0)).all()):
            raise ArgumentError(
                expected=f"{count} knots and exponents that are not negative",
                got=f"{self.knots.tolist()} and {self.exponents.tolist()}",
                remedy="fit them with NoveltyScale",
            )

    @classmethod
    def at(cls, ordinary: Mapping[str, Float64[Tensor, " n"]]) -> Inflation:
        """No inflation yet, with knots at quantiles of the scores of ordinary functions."""
        pairs = [(name, knot) for name in SCORES for knot in KNOTS]
        knots = [float(log_score(ordinary[name]).quantile(knot)) for name, knot in pairs]
        zeros = torch.zeros(len(pairs), dtype=torch.float64)
        return cls(names=tuple(name for name, _ in pairs), knots=torch.tensor(knots, dtype=torch.float64), exponents=zeros)

    @property
    def asks_head(self) -> bool:
        """Whether it follows what the head states, and not the inputs alone."""
        used = {name for name, exponent in zip(self.names, self.exponents.tolist(), strict=True) if exponent > 0}
        return "variance" in used

    def distances(self, scores: Mapping[str, Float64[Tensor, " n"]]) -> Float64[Tensor, "n j"]:
        """How far the logarithm of each score lies above its knot, not below zero; zero where a score is not given."""
        some = next(iter(scores.values()))
        columns = [log_score(scores[name]) if name in scores else torch.full_like(some, -torch.inf) for name in self.names]
        return (torch.stack(columns, 1) - self.knots).clamp_min(0.0)

    def __call__(self, scores: Mapping[str, Float64[Tensor, " n"]]) -> Float64[Tensor, " n"]:
        """The factor g² of variances, `(n,)`, dimensionless."""
        return self.growth(self.distances(scores))

    def growth(self, distances: Float64[Tensor, "n j"]) -> Float64[Tensor, " n"]:
        """The factor g² at these distances, `(n,)`, dimensionless."""
        return (distances @ self.exponents).exp()

    def fitted(self, errors: Errors, weights: Float64[Tensor, " n"]) -> Inflation:
        """Exponents under which Gaussian errors of variance g² v + s are most likely, among those whose sum is bounded.

        One function counts as one observation. Without noise s the negative log likelihood is convex in the exponents.

        Args:
            errors: Of n functions.
            weights: Of the functions, sum 1.
        """

        def objective(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            """Twice the negative log likelihood, and its gradient."""
            field = (errors.distances @ torch.from_numpy(at)).exp()[:, None] * errors.variance
            total = (field + errors.noise).clamp_min(_TINY)
            ratio = errors.squares / total
            slope = weights * (field / total * (1.0 - ratio)).mean(1) @ errors.distances
            return float(weights @ (total.log() + ratio).mean(1)), slope.numpy()

        at = np.zeros(len(self.exponents))
        value = objective(at)[0]
        for _ in range(_STARTS):  # far from the minimum the search may end where it began, or outside of the bounds
            moved = _searched(objective, at)
            lower = objective(moved)[0]
            if not lower < value - _GAIN * abs(value):
                break
            at, value = moved, lower
        exponents = torch.from_numpy(at)
        return replace(self, exponents=torch.where(exponents > _LEAST, exponents, 0.0))


def _searched(
    objective: Callable[[NDArray[np.float64]], tuple[float, NDArray[np.float64]]], start: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A point of lower value within the bounds, or the start: sequential quadratic programming, in units of the first slope."""
    from scipy.optimize import LinearConstraint, minimize  # takes a third of a second to import

    unit = max(1.0, float(np.abs(objective(start)[1]).max()))

    def scaled(at: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        value, slope = objective(at)
        return value / unit, slope / unit

    found = minimize(
        scaled,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, STEEPEST)] * len(start),
        constraints=LinearConstraint(np.ones((1, len(start))), -math.inf, STEEPEST),
        options={"maxiter": _STEPS, "ftol": _GAIN},
    )
    if not np.isfinite(found.x).all():
        return start
    within: NDArray[np.float64] = found.x.clip(0.0)
    return within * (STEEPEST / max(float(within.sum()), STEEPEST))


@dataclass(frozen=True, eq=False, kw_only=True)
class Errors:
    """Errors of n functions at m values, beside what is stated there.

    Attributes:
        distances: From `Inflation.distances`.
        variance: v, stated variances of the field, in physical units squared.
        squares: Squared errors.
        noise: s, variance of the measurements' noise.
    """

    distances: Float64[Tensor, "n j"]
    variance: Float64[Tensor, "n m"]
    squares: Float64[Tensor, "n m"]
    noise: Float64[Tensor, "n m"]

    @classmethod
    def together(cls, sets: Sequence[Errors]) -> Errors:
        """All functions of several sets."""
        names = ("distances", "variance", "squares", "noise")
        return cls(**{name: torch.cat([getattr(one, name) for one in sets]) for name in names})

    def chi2(self, inflation: Inflation) -> Float64[Tensor, " n"]:
        """Mean squared standardised error of each function, inflated."""
        total = inflation.growth(self.distances)[:, None] * self.variance + self.noise
        return (self.squares / total.clamp_min(_TINY)).mean(1)

    def width(self, inflation: Inflation) -> float:
        """Mean factor of the deviations."""
        return float(inflation.growth(self.distances).sqrt().mean())


def fit_inflation(blank: Inflation, ordinary: Errors, *, shifted: Sequence[Errors]) -> Inflation:
    """Fit exponents to ordinary functions and to sets of shifted ones, half the weight each, for the worst of the sets.

    Sets count alike at first. Then weight moves to those whose errors are larger than stated, as long as there are any. Where
    ordinary functions would widen, on average, by more than a fifth beyond what their own errors ask for, all exponents are
    reduced until they do not.

    Args:
        blank: With knots, and no exponents yet.
        ordinary: Errors of ordinary functions.
        shifted: Of each set of shifted ones.
    """
    own = ordinary.chi2(blank).sort().values[: max(1, round((1.0 - _OUTLIERS) * len(ordinary.squares)))]
    widest = WIDEST * math.sqrt(max(1.0, float(own.mean())))
    found = _for_the_worst(blank, ordinary, shifted)
    if ordinary.width(found) <= widest:
        return found
    low, high = 0.0, 1.0
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        narrower = replace(found, exponents=middle * found.exponents)
        low, high = (middle, high) if ordinary.width(narrower) <= widest else (low, middle)
    return replace(found, exponents=low * found.exponents)


def _for_the_worst(blank: Inflation, ordinary: Errors, shifted: Sequence[Errors]) -> Inflation:
    """Exponents under which no set of shifted functions has errors larger than stated, if they can be had."""
    every = Errors.together([ordinary, *shifted])
    shares = torch.full((len(shifted),), 1.0 / len(shifted), dtype=torch.float64)
    best, least = blank, math.inf
    for _ in range(_ROUNDS):
        parts = [_ORDINARY, *((1.0 - _ORDINARY) * shares).tolist()]
        counts = [len(one.squares) for one in (ordinary, *shifted)]
        weights = [torch.full((count,), part / count, dtype=torch.float64) for part, count in zip(parts, counts, strict=True)]
        found = blank.fitted(every, torch.cat(weights))
        chi2 = torch.stack([one.chi2(found).mean() for one in shifted])
        if float(chi2.max()) < least:
            best, least = found, float(chi2.max())
        if least <= 1.0 + _SLACK or len(shifted) == 1:
            break
        shares = shares * chi2.clamp_min(_TINY).sqrt()
        shares = shares / shares.sum()
    return best
