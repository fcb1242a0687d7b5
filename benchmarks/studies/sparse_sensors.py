"""A heat equation seen through six sensors: the exact posterior of the output, and the floor of a diagonal covariance.

u0 ~ GRF(25, 5, 2) with 32 modes, d = u0(x_s) + .05 e at 6 random sensors, v = heat(u0) at time .5 (diffusivity .01) plus .01 e
on 64 points. Given d, v is Gaussian; its covariance does not depend on d. A stated distribution N(m, S) has the expected
negative log density

    (log det 2 pi S + tr S^-1 (C + (m - m*)(m - m*)^T)) / 2,

which is least, the entropy, at the exact m* and C. Of all diagonals S = diag C at m* is best (set the derivative in each
variance to zero), so that (sum of log C_ii - log det C) / 2 is what no diagonal can fall short of.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

import probneural as pn
from probneural.randomness import stream

MODES, POINTS, SENSORS, SENSOR_NOISE, NOISE = 32, 64, 6, 0.05, 0.01
DIFFUSIVITY, TIME = 0.01, 0.5
GRID = pn.Grid.uniform(POINTS)
_WAVENUMBERS = 2.0 * math.pi * torch.arange(1, MODES + 1, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Posterior:
    """The exact posterior for one draw of sensors.

    Attributes:
        places: Of the sensors, `(6,)`.
        gain: From measurements to the mean, `(64, 6)`.
        covariance: C, `(64, 64)`, output noise included.
    """

    places: Float64[Tensor, " m"]
    gain: Float64[Tensor, "p m"]
    covariance: Float64[Tensor, "p p"]

    @classmethod
    def of(cls, seed: int) -> Posterior:
        """Draw sensors and solve in closed form."""
        places = torch.rand(SENSORS, generator=stream(seed, "sensor places"), dtype=torch.float64)
        seen, output = waves(places, 0.0), waves(GRID.points[:, 0], TIME)
        inner = seen @ seen.mT + SENSOR_NOISE**2 * torch.eye(SENSORS, dtype=torch.float64)
        gain = torch.linalg.solve(inner, seen @ output.mT).mT
        covariance = output @ output.mT - gain @ seen @ output.mT + NOISE**2 * torch.eye(POINTS, dtype=torch.float64)
        return cls(places, gain, (covariance + covariance.mT) / 2)

    @property
    def entropy(self) -> float:
        """Per point, in nats: the least expected negative log density."""
        return float(torch.logdet(2 * math.pi * math.e * self.covariance)) / (2 * POINTS)

    @property
    def floor_of_diagonals(self) -> float:
        """By how many nats per point the best diagonal covariance is worse."""
        return float((2 * math.pi * math.e * self.covariance.diagonal()).log().mean()) / 2 - self.entropy

    def pairs(self, count: int, *, seed: int, part: int) -> pn.FieldPairs:
        """Measurements, as constant channels, with one output each; float64."""
        generator = stream(seed, "sensor functions", part)
        latent = torch.randn(count, 2 * MODES, generator=generator, dtype=torch.float64)
        first = torch.randn(count, SENSORS, generator=generator, dtype=torch.float64)
        second = torch.randn(count, POINTS, generator=generator, dtype=torch.float64)
        seen = latent @ waves(self.places, 0.0).mT + SENSOR_NOISE * first
        output = latent @ waves(GRID.points[:, 0], TIME).mT + NOISE * second
        inputs = seen[:, :, None].expand(-1, -1, POINTS).contiguous()
        return pn.FieldPairs(pn.Field(inputs, GRID), pn.Field(output[:, None], GRID))

    def regret(self, u: pn.distributions.GaussianField, inputs: pn.Field) -> float:
        """Expected nats per point that stated fields lose, beside the exact posterior; exact but for the measurements."""
        stated = u.covariance.to_dense().double()
        off = u.mean[:, 0].double() - inputs.values[:, :, 0].double() @ self.gain.mT
        return float(regrets(stated, off, self.covariance.expand_as(stated)).mean())


def regrets(
    stated: Float64[Tensor, "n p p"], off: Float64[Tensor, "n p"], covariance: Float64[Tensor, "n p p"]
) -> Float64[Tensor, " n"]:
    """Expected nats per value that stated Gaussians lose, beside exact ones.

    Args:
        stated: Their covariances.
        off: Their means less the exact ones.
        covariance: The exact covariances.
    """
    triangle, exact = torch.linalg.cholesky(stated), torch.linalg.cholesky(covariance)
    second = covariance + off[:, :, None] * off[:, None, :]
    traces = torch.cholesky_solve(second, triangle).diagonal(dim1=1, dim2=2).sum(1)
    logs = [2.0 * one.diagonal(dim1=1, dim2=2).log().sum(1) for one in (triangle, exact)]
    return (logs[0] - logs[1] + traces - off.shape[1]) / (2 * off.shape[1])


class Interpolation(nn.Module):
    """m(x) = sum over sensors i and waves j of W_ij d_i t_j(x): linear in the measurements; t_j are features, too."""

    def __init__(self, *, waves: int = 12) -> None:
        super().__init__()
        self.waves = waves
        self.readout = nn.Conv1d((2 * waves + 1) * (1 + SENSORS), 1, 1).double()

    def features(self, values: Tensor) -> Tensor:
        """Waves, and waves times measurements, `(n, f, p)`."""
        turn = 2 * math.pi * torch.arange(values.shape[2], dtype=values.dtype) / values.shape[2]
        numbers = torch.arange(1, self.waves + 1, dtype=values.dtype)[:, None]
        waves = torch.cat([torch.ones(1, len(turn), dtype=values.dtype), (numbers * turn).cos(), (numbers * turn).sin()])
        products = (values[:, :, None] * waves).flatten(1, 2)
        return torch.cat([waves.expand(len(values), -1, -1), products], dim=1)

    def forward(self, values: Tensor) -> Tensor:
        """Evaluate at constant channels of measurements, `(n, 6, p)`."""
        found: Tensor = self.readout(self.features(values))
        return found

    @classmethod
    @torch.no_grad()
    def fitted(cls, data: pn.FieldPairs) -> Interpolation:
        """By least squares."""
        module = cls()
        rows = module.features(data.inputs.values).mT.flatten(0, 1)
        rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=rows.dtype)], dim=1)
        ridge = 1e-9 * len(rows) * torch.eye(rows.shape[1], dtype=rows.dtype)  # the constant is there twice
        weights = torch.linalg.solve(rows.mT @ rows + ridge, rows.mT @ data.outputs.values.flatten())
        module.readout.weight.copy_(weights[:-1].reshape(1, -1, 1))
        module.readout.bias.copy_(weights[-1:])  # type: ignore[union-attr]
        return module


def waves(points: Float64[Tensor, " p"], time: float) -> Float64[Tensor, "p k"]:
    """Waves with the standard deviations of their coefficients at a time."""
    spectrum = 25.0 * (_WAVENUMBERS.square() + 25.0).pow(-2.0)
    decayed = (2.0 * spectrum).sqrt() * torch.exp(-DIFFUSIVITY * time * _WAVENUMBERS.square())
    phase = points[:, None] * _WAVENUMBERS
    return torch.cat([decayed * phase.cos(), decayed * phase.sin()], dim=1)
