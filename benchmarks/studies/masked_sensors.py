"""A heat equation seen through sensors at random places: an exact posterior whose covariance depends on where they are.

The fields are those of `sparse_sensors`, and so are the noises; but every function has sensors of its own, two to twelve, at
points of the grid. An operator reads where they are (a channel of zeros and ones) and what they measure (zero elsewhere).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

import probneural as pn
from benchmarks.studies.sparse_sensors import GRID, MODES, NOISE, POINTS, SENSOR_NOISE, TIME, regrets, waves
from probneural.randomness import stream

FEWEST, MOST = 2, 12
"""Sensors of a function; all numbers between are as likely."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Masked:
    """Functions seen through sensors, each with its exact posterior.

    Attributes:
        places: Numbers of the grid points where sensors may be, `(n, 12)`.
        present: Which of them there are, `(n, 12)`, 1 or 0.
        measured: What they measure, `(n, 12)`; 0 of those that there are not.
        outputs: One output each, `(n, 64)`, noise included.
    """

    places: Int64[Tensor, "n m"]
    present: Float64[Tensor, "n m"]
    measured: Float64[Tensor, "n m"]
    outputs: Float64[Tensor, "n p"]

    @classmethod
    def drawn(cls, count: int, *, seed: int, part: int) -> Masked:
        """Functions, places and noises of a part of the data."""
        generator = stream(seed, "masked sensors", part)
        places = torch.rand(count, POINTS, generator=generator, dtype=torch.float64).argsort(1)[:, :MOST]
        counts = torch.randint(FEWEST, MOST + 1, (count, 1), generator=generator)
        present = (torch.arange(MOST) < counts).double()
        latent = torch.randn(count, 2 * MODES, generator=generator, dtype=torch.float64)
        first = torch.randn(count, MOST, generator=generator, dtype=torch.float64)
        second = torch.randn(count, POINTS, generator=generator, dtype=torch.float64)
        start = latent @ waves(GRID.points[:, 0], 0.0).mT
        outputs = latent @ waves(GRID.points[:, 0], TIME).mT + NOISE * second
        measured = present * (start.gather(1, places) + SENSOR_NOISE * first)
        return cls(places=places, present=present, measured=measured, outputs=outputs)

    @property
    def pairs(self) -> pn.FieldPairs:
        """What an operator is given: a mask and the measurements in it; float32."""
        mask, seen = (torch.zeros(len(self.places), POINTS, dtype=torch.float64) for _ in range(2))
        mask.scatter_(1, self.places, self.present)
        seen.scatter_(1, self.places, self.measured)
        inputs = torch.stack([mask, seen], dim=1)
        return pn.FieldPairs(pn.Field(inputs.float(), GRID), pn.Field(self.outputs[:, None].float(), GRID))

    def posterior(self) -> tuple[Float64[Tensor, "n p"], Float64[Tensor, "n p p"]]:
        """Mean and covariance of the outputs given places and measurements, output noise included."""
        seen, output = waves(GRID.points[:, 0], 0.0)[self.places], waves(GRID.points[:, 0], TIME)
        seen = seen * self.present[..., None]  # a sensor that reads noise alone says nothing
        inner = seen @ seen.mT + SENSOR_NOISE**2 * torch.eye(MOST, dtype=torch.float64)
        cross = seen @ output.mT  # (n, m, p)
        gain = torch.linalg.solve(inner, cross).mT
        covariance = output @ output.mT - gain @ cross + NOISE**2 * torch.eye(POINTS, dtype=torch.float64)
        return (gain @ self.measured[..., None])[..., 0], (covariance + covariance.mT) / 2


def floors(covariance: Float64[Tensor, "n p p"]) -> dict[str, float]:
    """Nats per value that the best diagonals lose, and the best covariance that does not know where sensors are.

    The best diagonal of a function is its exact variances; the best covariance for all is the mean of the exact ones.
    """
    means = torch.zeros(covariance.shape[:2], dtype=torch.float64)
    diagonals = torch.diag_embed(covariance.diagonal(dim1=1, dim2=2))
    same = covariance.mean(0).expand_as(covariance)
    return {
        "best diagonal": float(regrets(diagonals, means, covariance).mean()),
        "best covariance that ignores the places": float(regrets(same, means, covariance).mean()),
    }


def scores(
    stated: tuple[Float64[Tensor, "n p"], Float64[Tensor, "n p p"]],
    exact: tuple[Float64[Tensor, "n p"], Float64[Tensor, "n p p"]],
) -> dict[str, float | None]:
    """How far stated means and covariances are from the exact ones; each dimensionless.

    regret: expected nats per value that are lost; None where a stated covariance is singular. mean error: root mean square,
    in exact deviations. sd ratio: root of the ratio of mean variances. covariance error: Frobenius norm of the difference over
    that of the exact one, a mean over functions.
    sd correlation: of the logarithms of deviations, over functions and points.
    """
    (mean, covariance), (true_mean, true_covariance) = stated, exact
    variance, true_variance = (one.diagonal(dim1=1, dim2=2) for one in (covariance, true_covariance))
    logs = torch.stack([one.clamp_min(torch.finfo(torch.float64).tiny).log().flatten() for one in (variance, true_variance)])
    distance = torch.linalg.matrix_norm(covariance - true_covariance) / torch.linalg.matrix_norm(true_covariance)
    has_density = not bool(torch.linalg.cholesky_ex(covariance).info.any())
    return {
        "regret": float(regrets(covariance, mean - true_mean, true_covariance).mean()) if has_density else None,
        "mean error": float(((mean - true_mean).square() / true_variance).mean().sqrt()),
        "sd ratio": math.sqrt(float(variance.mean() / true_variance.mean())),
        "covariance error": float(distance.mean()),
        "sd correlation": float(torch.corrcoef(logs)[0, 1]),
    }
