"""How residuals are divided: how many waves the misfit has, and how much has no correlation at all."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from probneural.calibration import VarianceScale
from probneural.calibration.variance.discrepancy import (
    ROOT_FRACTIONS,
    START,
    WHITE_FRACTIONS,
    Example,
    SharedCovariance,
    most_likely,
    search,
)
from probneural.distributions import DenseRoot, GaussianField, PredictorTraits
from probneural.fields import Field
from probneural.functionals import MatrixFunctional
from probneural.functionals.integrals import ValuesAt
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from tests.helpers import PerSetPredictor, normal


class Noisy(PerSetPredictor):
    """Predicts its input, and states little of its own and a noise of 1, or another."""

    def __init__(self, grid: Grid, noise: float = 1.0) -> None:
        level = torch.tensor([noise], dtype=torch.float64)
        super().__init__(PredictorTraits(in_channels=1, noise=level, domain=grid, like=level))

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        assert query is None or query == inputs.grid
        root = torch.full((*inputs.values.flatten(2).shape, 1), 1e-3, dtype=torch.float64)
        return GaussianField(inputs.values, DenseRoot(root), latent="noisy", grid=inputs.grid)


class Noiseless(Noisy):
    """Predicts its input, and states a multiple of half a wave along a line, which is zero at both ends."""

    def _field(self, inputs: Field, query: Grid | None) -> GaussianField:
        assert query is None or query == inputs.grid
        root = bump(inputs.grid)[None, None, :, None].expand(len(inputs), -1, -1, -1)
        return GaussianField(inputs.values, DenseRoot(root.clone()), latent="noiseless", grid=inputs.grid)


def bump(grid: Grid) -> Tensor:
    """Half a wave along a line, zero at its ends: `(p,)`."""
    values = torch.sin(math.pi * grid.points[:, 0])
    values[[0, -1]] = 0.0
    return values


def waves(grid: Grid, count: int) -> Tensor:
    """Products of cosines, orthonormal in the mean: `(count², p)`."""
    one, other = grid.points.mT
    found = [
        torch.cos(math.pi * i * one) * torch.cos(math.pi * j * other) * 2.0 ** (0.5 * ((i > 0) + (j > 0)))
        for i, j in itertools.product(range(count), repeat=2)
    ]
    return torch.stack(found)


@pytest.mark.parametrize("points", [24, 40])
@pytest.mark.parametrize("fraction", [0.1, 0.01])
def test_what_is_rough_is_told_from_many_waves(points: int, fraction: float) -> None:
    """Errors of 144 waves and of none, on a grid whose points are all looked at, and on a larger one."""
    grid = Grid.uniform((points, points), periodic=False)
    base = normal(60, 1, grid.size, seed="base")
    smooth = normal(60, 1, 144, seed="smooth") @ waves(grid, 12) / 12.0
    errors = math.sqrt(1.0 - fraction) * smooth + math.sqrt(fraction) * normal(60, 1, grid.size, seed="rough")
    inputs = Field(base.unflatten(-1, grid.shape), grid)
    pairs = FieldPairs(inputs, Field((base + errors).unflatten(-1, grid.shape), grid))
    found = VarianceScale(separate=False, local=False).fit(Noisy(grid), pairs).decomposition
    assert 0.4 * fraction <= float(found.white_fraction) <= 2.0 * fraction


@pytest.mark.parametrize("shared", [False, True])
def test_what_is_certain_does_not_decide(shared: bool) -> None:
    """Errors are the head's own wave, or any of its size; where the domain ends, nothing is uncertain."""
    grid = Grid.uniform((24,), periodic=False)
    base, numbers = normal(40, 1, grid.size, seed="base"), normal(40, 1, 1 if shared else grid.size, seed="errors")
    pairs = FieldPairs(Field(base, grid), Field(base + numbers * bump(grid), grid))
    found = VarianceScale(separate=False, local=False).fit(Noiseless(grid, noise=0.0), pairs).decomposition
    assert float(found.root_fraction) == (1.0 if shared else 0.1)


def test_fewer_waves_where_they_are_more_likely() -> None:
    """Nine waves and much noise: more waves would only be those of the noise in the calibration fields."""
    grid = Grid.uniform((32, 32), periodic=False)
    base = normal(8, 1, grid.size, seed="base")
    errors = normal(8, 1, 9, seed="smooth") @ waves(grid, 3) / 3.0 + normal(8, 1, grid.size, seed="rough")
    inputs = Field(base.unflatten(-1, grid.shape), grid)
    pairs = FieldPairs(inputs, Field((base + errors).unflatten(-1, grid.shape), grid))
    found = VarianceScale(separate=False, local=False).fit(Noisy(grid), pairs).decomposition
    assert found.process is not None
    assert found.process.modes.shape[1] == 32


@pytest.mark.parametrize("top", [(0, 0), (5, 11), (2, 7), (4, 1)])
@pytest.mark.parametrize("start", [(2, 5), (0, 11), (5, 0)])
def test_the_search_climbs_along_both(top: tuple[int, int], start: tuple[int, int]) -> None:
    """Of a ridge that lies across both directions it finds the highest place."""

    def height(weight: float, fraction: float) -> float:
        row, column = ROOT_FRACTIONS.index(weight) - top[0], WHITE_FRACTIONS.index(fraction) - top[1]
        return -(row**2 + column**2 + 0.5 * row * column)

    assert most_likely(height, start) == (top, 0.0)


@pytest.mark.parametrize("noise", [0.3, 0.0])
@pytest.mark.parametrize("rank", [3, 30])
def test_densities_are_those_of_the_covariance(rank: int, noise: float) -> None:
    """From few latent dimensions and from a matrix alike; one value is certain."""
    points, scale = 80, torch.tensor([1.0, 2.0], dtype=torch.float64)
    stated = normal(1, 2, points, rank, seed="root")[0] / math.sqrt(rank)
    process = torch.nn.functional.normalize(normal(1, 2, points, 20, seed="process")[0], dim=-1)
    stated[1, 7] = 0.0
    explained = scale[:, None] * stated.square().sum(-1)
    variances = torch.full((2,), noise, dtype=torch.float64)
    residual = normal(1, 2, points, seed="residual")[0] * (explained > 0)
    example = Example(side=0, residual=residual, shared=SharedCovariance.of(stated), explained=explained)
    waves = [[torch.full_like(process, math.nan)], [process]]
    found, height = search([example], waves, scale=scale, noise=variances, starts=[START, START])
    total = 0.0
    for channel, (row, column) in enumerate(found):
        weight, fraction = ROOT_FRACTIONS[row], WHITE_FRACTIONS[column]
        variance = (1.0 - weight) * explained[channel] + noise
        std = ((1.0 - fraction) * variance).sqrt()
        covariance = weight * scale[channel] * stated[channel] @ stated[channel].mT
        covariance = covariance + std[:, None] * (process[channel] @ process[channel].mT) * std
        covariance = covariance + (fraction * variance + 1e-9 * (explained[channel] + noise)).diag()
        seen = explained[channel] + noise > 0
        assert int(seen.sum()) == points - (channel == 1 and noise == 0.0)
        normal_law = torch.distributions.MultivariateNormal(torch.zeros(int(seen.sum())).double(), covariance[seen][:, seen])
        total += float(normal_law.log_prob(residual[channel, seen])) + 0.5 * int(seen.sum()) * math.log(2.0 * math.pi)
    assert height == pytest.approx(total, rel=1e-5)


def test_values_at_points_are_those_of_their_matrix() -> None:
    grid, points = Grid.uniform((4, 5), periodic=False), torch.tensor([3, 7, 19])
    found, expected = ValuesAt(grid, points), MatrixFunctional(grid, torch.eye(20, dtype=torch.float64)[points])
    values, numbers = normal(2, 3, 4, 5, seed="values"), normal(2, 3, 3, seed="numbers")
    assert torch.equal(found(values), expected(values))
    assert torch.equal(found.adjoint(numbers), expected.adjoint(numbers))
