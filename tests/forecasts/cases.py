"""Predictors whose forecasts are known in closed form, and the dense algebra that gives them."""

from __future__ import annotations

import torch
from torch import Tensor

from probneural.distributions import DenseRoot, GaussianField, Predictor, PredictorTraits
from probneural.fields import Field
from probneural.grids import Grid
from tests.helpers import PerSetPredictor, normal


class AffinePredictor(PerSetPredictor):
    """u -> M w + b + R xi + D zeta_i of the last h states w, on one grid: mean and covariance of all leads are dense algebra.

    M is `(c p, h c p)`, R `(c p, k)`, D `(c p, r)`, all in the order channels, points.
    """

    def __init__(
        self, grid: Grid, M: Tensor, R: Tensor, *, b: Tensor | None = None, D: Tensor | None = None, channels: int = 1
    ) -> None:
        history = M.shape[1] // M.shape[0]
        traits = PredictorTraits(
            in_channels=channels * history, noise=torch.zeros(channels, dtype=torch.float64), domain=grid, like=M
        )
        super().__init__(traits)
        self.M, self.R, self.D, self.count = M, R, D, channels
        self.b = M.new_zeros(M.shape[0]) if b is None else b

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        mean = (inputs.values.flatten(1) @ self.M.mT + self.b).reshape(len(inputs), self.count, *inputs.grid.shape)

        def root(matrix: Tensor) -> DenseRoot:
            return DenseRoot(matrix.reshape(self.count, -1, matrix.shape[1]).expand(len(inputs), -1, -1, -1))

        discrepancy = None if self.D is None else root(self.D)
        return GaussianField(mean, root(self.R), latent="affine", grid=inputs.grid, discrepancy=discrepancy)


class ScalarPredictor(PerSetPredictor):
    """u -> l u with l ~ N(m, s²) in every channel and point: a diagonal linear operator."""

    def __init__(self, grid: Grid, mean: float, std: float) -> None:
        like = torch.zeros(1, dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=torch.zeros(1, dtype=torch.float64), domain=grid, like=like))
        self.mean, self.std = mean, std

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        root = DenseRoot((self.std * inputs.values).flatten(2)[..., None])
        return GaussianField(self.mean * inputs.values, root, latent="scalar", grid=inputs.grid)


GRID = Grid.uniform(5)


def affine(*, rank: int = 3, channels: int = 1, history: int = 1, own: int = 0, grid: Grid = GRID) -> AffinePredictor:
    """A stable step with entries that follow from their names."""
    size = channels * grid.size
    M = normal(size, history * size, seed="M")
    M = 0.9 * M / torch.linalg.matrix_norm(M, 2)
    return AffinePredictor(
        grid,
        M,
        0.3 * normal(size, rank, seed="R"),
        b=0.1 * normal(size, seed="b"),
        D=0.2 * normal(size, own, seed="D") if own else None,
        channels=channels,
    )


def start_of(predictor: Predictor, count: int = 2) -> Field:
    return Field(normal(count, predictor.in_channels, *predictor.domain.shape, seed="start"), predictor.domain)


def initial_of(predictor: Predictor, count: int = 2, *, rank: int = 2, own: int = 0) -> GaussianField:
    """A distribution of the states at lead 0 with a latent of its own."""
    shape = (count, predictor.in_channels, *predictor.domain.shape)
    root = DenseRoot(0.5 * normal(*shape[:2], predictor.domain.size, rank, seed="initial"))
    discrepancy = DenseRoot(0.4 * normal(*shape[:2], predictor.domain.size, own, seed="own")) if own else None
    return GaussianField(
        normal(*shape, seed="initial mean"), root, latent="initial", grid=predictor.domain, discrepancy=discrepancy
    )


def dense_forecast(
    predictor: AffinePredictor, start: Tensor, *, steps: int, draws: str, discrepancy: str, initial: GaussianField | None = None
) -> tuple[Tensor, Tensor]:
    """Mean `(n, leads, c p)` and root `(n, leads, c p, K)` of leads 0 to `steps` in (initial, xi, own of 1, own of 2, ...).

    Written out as sums over steps: u_k = M^k u_0 + sum over j of M^(k-1-j) (b + R xi_j + D zeta_ij), for one state a step.
    """
    n, size = len(start), predictor.M.shape[0]
    M, R = predictor.M, predictor.R
    D = M.new_zeros(size, 0) if predictor.D is None or discrepancy == "none" else predictor.D
    k, r = R.shape[1], D.shape[1]
    first = 0 if initial is None else initial.root.shape[3]
    own_first = 0 if initial is None or initial.discrepancy is None else initial.discrepancy.shape[3]
    shared = first + k * (steps if draws == "step" else 1)
    each = own_first + r * (steps if discrepancy == "step" else 1)
    mean = M.new_zeros(n, steps + 1, size)
    root = M.new_zeros(n, steps + 1, size, shared + n * each)
    powers = [torch.linalg.matrix_power(M, power) for power in range(steps + 1)]
    for i in range(n):
        own = shared + i * each
        for lead in range(steps + 1):
            mean[i, lead] = powers[lead] @ (start[i] if initial is None else initial.mean[i]).flatten()
            if initial is not None:
                root[i, lead, :, :first] = powers[lead] @ initial.root.dense()[i].flatten(0, 1)
                if initial.discrepancy is not None:
                    root[i, lead, :, own : own + own_first] = powers[lead] @ initial.discrepancy.dense()[i].flatten(0, 1)
            for j in range(lead):
                power = powers[lead - 1 - j]
                mean[i, lead] += power @ predictor.b
                at = first + (j * k if draws == "step" else 0)
                root[i, lead, :, at : at + k] += power @ R
                at = own + own_first + (j * r if discrepancy == "step" else 0)
                root[i, lead, :, at : at + r] += power @ D
    return mean, root
