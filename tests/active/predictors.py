"""Small predictors with exact features, and designs that encode into their inputs.

The input of design x is u(s) = sum_j x_j phi_j(s); the output field is a smooth nonlinear function of u(s) with random
weights, pointwise in s, so that it can be evaluated on any grid.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from probneural.distributions import (
    DenseRoot,
    EmpiricalField,
    FeatureRoot,
    FieldDistribution,
    GaussianField,
    Latent,
    Predictor,
    PredictorTraits,
)
from probneural.errors import ShapeError
from probneural.fields import Field
from probneural.functionals import Functional, integral, sensors, stack
from probneural.grids import Grid
from probneural.heads import KernelOperator
from probneural.pairs import FieldPairs
from tests.helpers import PerSetPredictor

DIMENSION = 2
FEATURES = 9
RANK = 7
INPUT_GRID = Grid.uniform((16,))
FINE_GRID = Grid.uniform((24,))


def encode(designs: Tensor) -> Field:
    """The input functions of designs in [0, 1]^2, `(..., 2)`."""
    if designs.shape[-1] != DIMENSION:
        raise ShapeError(
            expected=f"designs (..., {DIMENSION})", got=str(tuple(designs.shape)), remedy="one number per mode of the input"
        )
    angle = 2 * torch.pi * INPUT_GRID.points[:, 0].to(designs)
    return Field((designs @ torch.stack([angle.sin() + 0.5, angle.cos()]))[:, None], INPUT_GRID)


class FeaturePredictor(PerSetPredictor):
    """Bayesian regression on fixed features sin(a_f u(s) + b_f); what it returns is up to `output`."""

    def __init__(
        self,
        output: Callable[[Tensor, Tensor, Grid], FieldDistribution],
        *,
        out_channels: int = 1,
        noise: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        generator = torch.Generator().manual_seed(20)
        noise = torch.full((out_channels,), 1e-2) if noise is None else noise
        like = torch.empty(0, dtype=dtype)
        super().__init__(PredictorTraits(in_channels=1, noise=noise, domain=INPUT_GRID, like=like))
        self.output = output
        draw = {"generator": generator, "dtype": torch.float64}
        self.slopes = (1.5 * torch.randn(FEATURES, **draw)).to(dtype)
        self.shifts = (3.0 * torch.rand(FEATURES, **draw)).to(dtype)
        self.weights = torch.randn(out_channels, FEATURES, **draw).to(dtype)

    def features(self, inputs: Field, grid: Grid) -> Tensor:
        values = inputs.resample(grid).values[:, 0]
        return torch.sin(values[..., None] * self.slopes + self.shifts)

    def _field(self, inputs: Field, query: Grid | None) -> FieldDistribution:
        grid = query or inputs.grid
        features = self.features(inputs, grid)
        return self.output(features, torch.einsum("npf,cf->ncp", features, self.weights), grid)


def factor(channels: int, *, rank: int = RANK) -> Tensor:
    """One factor per channel, `(1, c, f, k)`: the channels are correlated through the common latent."""
    generator = torch.Generator().manual_seed(21)
    return 0.4 * torch.randn(1, channels, FEATURES, rank, generator=generator, dtype=torch.float64)


def feature_root(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
    return GaussianField(mean, FeatureRoot(features, factor(mean.shape[1])), latent="weights", grid=grid)


@cache
def kernel(out_channels: int = 1) -> Predictor:
    """Processes fitted to few noisy functions: a latent for every call, and draws of their own."""
    generator = torch.Generator().manual_seed(50)
    inputs = encode(torch.rand(5, DIMENSION, generator=generator, dtype=torch.float64))
    outputs = FeaturePredictor(feature_root, out_channels=out_channels)(inputs).mean
    outputs = outputs + 0.05 * torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    head = KernelOperator("matern52", output_components=3, groups=1, iterations=5)
    return head.fit(None, FieldPairs(inputs, Field(outputs, INPUT_GRID)))


def single_call_root(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
    """The same joint distribution within a call, driven by another latent in every call, as processes have it."""
    matrix = features[:, None] @ factor(mean.shape[1]).to(features)
    direction = matrix.detach()[0, 0, 0]
    turned, _ = torch.linalg.qr(torch.eye(RANK).to(matrix) + direction.outer(matrix.detach().mean((0, 1, 2))))
    named = Latent(id=f"weights of {float(features.detach().sum())}", rank=RANK, is_shared_across_calls=False)
    return GaussianField(mean, DenseRoot(matrix @ turned), latent=named, grid=grid)


def dense_root(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
    matrix = features[:, None] @ factor(mean.shape[1]).to(features)
    return GaussianField(mean, DenseRoot(matrix), latent="weights", grid=grid)


def certain(features: Tensor, mean: Tensor, grid: Grid) -> GaussianField:
    """A Gaussian field without any variance, as exact constraints leave it."""
    return GaussianField(mean, DenseRoot(torch.zeros(*mean.shape, 3).to(mean)), latent="nothing", grid=grid)


def members(features: Tensor, mean: Tensor, grid: Grid) -> EmpiricalField:
    """Twelve equally probable draws of the Gaussian predictor."""
    base = torch.randn(12, RANK, generator=torch.Generator().manual_seed(22), dtype=torch.float64)
    return EmpiricalField(feature_root(features, mean, grid).rsample((12,), base_samples=base), grid=grid)


def weighted_members(features: Tensor, mean: Tensor, grid: Grid) -> EmpiricalField:
    return EmpiricalField(members(features, mean, grid).samples, torch.arange(1.0, 13.0), grid=grid)


KINDS = {"feature root": feature_root, "dense root": dense_root, "members": members}
GAUSSIAN = {"feature root": feature_root, "dense root": dense_root}


def one_number(grid: Grid = INPUT_GRID) -> Functional:
    return integral(grid)


def three_numbers(grid: Grid = INPUT_GRID) -> Functional:
    return stack([integral(grid), sensors(grid, [[0.1], [0.6]])])
