"""By how much variances grow with scores of novelty: fitted to squared errors on ordinary and on shifted functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.novelty_scores import log_score
from probneural.errors import ArgumentError

SCORES = ("components", "residual", "variance")
"""Scores that errors grow with in proportion; spectra and pooled features tell functions apart more sharply than errors do."""
KNOTS = (0.5, 0.9, 0.99)
"""Quantiles of the ordinary functions' scores from which on variances grow."""
_SWEEPS = 400
"""Passes over the exponents, at most."""
_GAIN = 1e-6
"""Largest change of an exponent at which they end."""


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
        return (self.distances(scores) @ self.exponents).exp()

    def fitted(
        self,
        distances: Float64[Tensor, "n j"],
        *,
        variance: Float64[Tensor, "n m"],
        squares: Float64[Tensor, "n m"],
        noise: Float64[Tensor, "n m"],
        weights: Float64[Tensor, " n"],
    ) -> Inflation:
        """Exponents under which Gaussian errors of variance g² v + s are most likely; one function counts as one observation.

        Without noise s the negative log likelihood is convex in the exponents. Each is moved in turn by a Newton step with an
        upper bound of the curvature, and kept from becoming negative.

        Args:
            distances: From `distances`.
            variance: v, stated variances of the field at some points, in physical units squared.
            squares: Squared errors there.
            noise: s, of the measurements.
            weights: Of the functions, sum 1.
        """
        found = torch.zeros_like(self.exponents)
        for _ in range(_SWEEPS):
            largest = 0.0
            for index, column in enumerate(distances.mT):
                field = (distances @ found).exp()[:, None] * variance
                total = (field + noise).clamp_min(torch.finfo(torch.float64).tiny)
                fraction, ratio = field / total, squares / total
                slope = weights @ (column * (fraction * (1.0 - ratio)).mean(1))
                curvature = weights @ (column.square() * (fraction.square() * ratio.clamp_min(1.0)).mean(1))
                if not curvature > 0:
                    continue
                before = float(found[index])
                found[index] = (found[index] - slope / curvature).clamp_min(0.0)
                largest = max(largest, abs(float(found[index]) - before))
            if largest < _GAIN:
                break
        return replace(self, exponents=found)
