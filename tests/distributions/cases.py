"""The list of cases: put a distribution in here, and the contract suite runs on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, FeatureRoot, FieldDistribution, GaussianField, Root
from probneural.distributions.roots.lazy import LazyFeatureRoot
from probneural.distributions.roots.modulated import weigh
from probneural.functionals import Functional, MatrixFunctional, derivative, integral, sensors, stack
from probneural.grids import Grid
from probneural.linear_algebra.conditioning import LowRankUpdate
from tests import helpers
from tests.distributions.reference import Dense
from tests.helpers import generator


def normal(name: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Normal numbers that follow from their name."""
    return helpers.normal(*shape, seed=name, dtype=dtype)


GRIDS = {
    "1-D": Grid.uniform(6),
    "ends": Grid.uniform(5, lengths=2.0, periodic=False, origin=1.0),
    "2-D": Grid.uniform((3, 4), lengths=(1.0, 2.0), periodic=(True, False)),
    "3-D": Grid.uniform((2, 3, 2), lengths=(1.0, 0.5, 3.0)),
    "scattered": Grid.scattered(torch.rand(7, 2, generator=generator("points")), torch.rand(7, generator=generator("weights"))),
}


def functionals(grid: Grid) -> list[Functional]:
    """Functionals to push a distribution through."""
    observations = MatrixFunctional(grid, normal("observations", 2, grid.size))
    if not grid.is_uniform:
        return [integral(grid), stack([observations, 2.0 * integral(grid)])]
    return [integral(grid), derivative(grid, axis=grid.dimension - 1), stack([observations, sensors(grid, grid.points[1:2])])]


def observed(grid: Grid, count: int, name: str = "observed") -> Functional:
    """A functional of some independent observations, the integral among them."""
    return MatrixFunctional(grid, torch.cat([grid.weights[None], normal(name, count - 1, grid.size)]))


@dataclass(frozen=True)
class GaussianCase:
    """A Gaussian field and, made without it, its mean and root."""

    name: str
    field: GaussianField
    mean: Tensor
    root: Tensor

    @property
    def dense(self) -> Dense:
        return Dense.gaussian(self.mean, self.root)

    @property
    def fourth_moments(self) -> Tensor:
        """E[d_i^2 d_j^2] - C_ij^2 of the deviations d, by Isserlis' theorem (Wishart)."""
        covariance = self.dense.matrix
        variance = covariance.diagonal()
        return variance[:, None] * variance + covariance.square()

    @property
    def tolerance(self) -> float:
        """Rounding to allow, of numbers of order one."""
        return 1e-12 if self.field.mean.dtype == torch.float64 else 5e-6


@dataclass(frozen=True)
class EmpiricalCase:
    """An empirical field and its samples and probabilities."""

    name: str
    field: EmpiricalField
    samples: Tensor
    weights: Tensor

    @property
    def dense(self) -> Dense:
        return Dense.empirical(self.samples, self.weights)

    @property
    def fourth_moments(self) -> Tensor:
        """E[d_i^2 d_j^2] - C_ij^2 of the deviations d, member by member."""
        squares = (self.samples.double().flatten(1) - self.dense.vector).square()
        return torch.einsum("s,si,sj->ij", self.weights.double(), squares, squares) - self.dense.matrix.square()

    @property
    def tolerance(self) -> float:
        return 1e-12 if self.samples.dtype == torch.float64 else 5e-6


Case = GaussianCase | EmpiricalCase
Change = Callable[[Root, Tensor], tuple[Root, Tensor]]


def dense_root(name: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Root, Tensor]:
    matrix = normal(name, *shape, dtype=dtype)
    return DenseRoot(matrix), matrix.double()


def shared_features(name: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Root, Tensor]:
    """Features whose weights have one factor for all inputs."""
    inputs, channels, points, rank = shape
    return feature_root(name, (inputs, points, 8), (1, channels, 8, rank), dtype)


def own_features(name: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Root, Tensor]:
    """Features whose weights have a factor per input."""
    inputs, channels, points, rank = shape
    return feature_root(name, (inputs, points, 8), (inputs, channels, 8, rank), dtype)


def feature_root(
    name: str, shape: tuple[int, int, int], factor_shape: tuple[int, int, int, int], dtype: torch.dtype
) -> tuple[Root, Tensor]:
    features, factor = normal(name, *shape, dtype=dtype), normal(name + " factor", *factor_shape) / 8**0.5
    expanded = factor.expand(shape[0], *factor_shape[1:])
    return FeatureRoot(features, factor), torch.einsum("npf,ncfk->ncpk", features.double(), expanded)


def lazy_features(name: str, shape: tuple[int, int, int, int], dtype: torch.dtype) -> tuple[Root, Tensor]:
    """Features that are evaluated in parts."""
    root, matrix = shared_features(name, shape, dtype)
    assert isinstance(root, FeatureRoot)
    features = root.features
    rows = torch.arange(shape[0])
    return LazyFeatureRoot(lambda indices: features[indices], rows, (shape[2], 8), root.factor, features), matrix


def transform(name: str, *shape: int) -> tuple[LowRankUpdate, Tensor]:
    """A map of shape `(..., r, k)` and, made without it, its matrix."""
    basis = torch.linalg.qr(normal(name, *shape[:-2], shape[-1], shape[-1]))[0]
    factors = torch.cat([torch.zeros(1, dtype=torch.float64), torch.linspace(0.3, 2.0, shape[-2] - 1, dtype=torch.float64)])
    scales = torch.cat([factors, torch.ones(shape[-1] - shape[-2], dtype=torch.float64)])
    directions = basis[..., : shape[-2]].mT.contiguous()
    return LowRankUpdate(directions, factors.expand(*shape[:-2], -1)), basis @ (scales[:, None] * basis.mT)


def composed_with_one(root: Root, matrix: Tensor) -> tuple[Root, Tensor]:
    right, dense = transform("composed", 3, matrix.shape[-1])
    return root.compose(right), torch.einsum("ncpk,kl->ncpl", matrix, dense)


def composed_with_own(root: Root, matrix: Tensor) -> tuple[Root, Tensor]:
    right, dense = transform("composed", matrix.shape[0], 2, matrix.shape[-1])
    return root.compose(right), torch.einsum("ncpk,nkl->ncpl", matrix, dense)


def scaled(root: Root, matrix: Tensor) -> tuple[Root, Tensor]:
    factors = torch.linspace(0.5, 3.0, matrix.shape[1], dtype=torch.float64)
    return root.scale(factors), torch.einsum("ncpk,c->ncpk", matrix, factors)


def weighted(root: Root, matrix: Tensor) -> tuple[Root, Tensor]:
    weights = 0.5 + normal("row weights", *matrix.shape[:3]).abs()
    return weigh(root, weights), matrix * weights[..., None]


def selected(root: Root, matrix: Tensor) -> tuple[Root, Tensor]:
    return root.select(torch.tensor([2, 0])), torch.stack([matrix[2], matrix[0]])


def gaussian(
    name: str,
    make: Callable[[str, tuple[int, int, int, int], torch.dtype], tuple[Root, Tensor]],
    where: str,
    rank: int,
    *changes: Change,
    inputs: int = 3,
    channels: int = 1,
    dtype: torch.dtype = torch.float64,
) -> GaussianCase:
    grid = GRIDS[where]
    root, matrix = make(name, (inputs, channels, grid.size, rank), dtype)
    for change in changes:
        root, matrix = change(root, matrix)
    mean = normal(name + " mean", *matrix.shape[:3], dtype=dtype)
    field = GaussianField(mean.unflatten(-1, grid.shape), root, latent=f"xi of {name}", grid=grid)
    return GaussianCase(name, field, mean.double(), matrix)


def empirical(
    name: str, where: str, *, weighted: bool, channels: int = 1, dtype: torch.dtype = torch.float64, members: int = 4
) -> EmpiricalCase:
    grid = GRIDS[where]
    samples = normal(name, members, 3, channels, grid.size, dtype=dtype)
    weights = torch.rand(members, generator=generator(name + " weights")).double() if weighted else torch.ones(members)
    field = EmpiricalField(samples.unflatten(-1, grid.shape), 3 * weights if weighted else None, grid=grid)
    return EmpiricalCase(name, field, samples, weights / weights.sum())


SINGLE = torch.float32
GAUSSIAN_CASES = [
    gaussian("dense, low rank", dense_root, "1-D", 4),
    gaussian("dense, high rank", dense_root, "1-D", 9),
    gaussian("dense, ends", dense_root, "ends", 5),
    gaussian("dense, 2-D, two channels", dense_root, "2-D", 7, channels=2),
    gaussian("dense, 3-D, high rank", dense_root, "3-D", 15),
    gaussian("dense, scattered", dense_root, "scattered", 5),
    gaussian("dense, one input", dense_root, "1-D", 5, inputs=1),
    gaussian("dense, float32", dense_root, "2-D", 6, channels=2, dtype=SINGLE),
    gaussian("dense, composed", dense_root, "1-D", 7, composed_with_one),
    gaussian("dense, composed per input", dense_root, "2-D", 7, composed_with_own, channels=2),
    gaussian("dense, scaled", dense_root, "2-D", 6, scaled, channels=2),
    gaussian("dense, selected", dense_root, "scattered", 6, selected),
    gaussian("features, low rank", shared_features, "1-D", 4),
    gaussian("features, high rank", shared_features, "1-D", 9),
    gaussian("features, 2-D, two channels", shared_features, "2-D", 16, channels=2),
    gaussian("features, 3-D", shared_features, "3-D", 8),
    gaussian("features, scattered", shared_features, "scattered", 8),
    gaussian("features, one input", shared_features, "1-D", 5, inputs=1),
    gaussian("features, float32", shared_features, "scattered", 8, channels=2, dtype=SINGLE),
    gaussian("features per input", own_features, "2-D", 6, channels=2),
    gaussian("features per input, high rank", own_features, "2-D", 11, channels=2),
    gaussian("lazy features", lazy_features, "2-D", 16, channels=2),
    gaussian("lazy features, float32", lazy_features, "ends", 6, dtype=SINGLE),
    gaussian("lazy features, all changes", lazy_features, "1-D", 7, selected, composed_with_own, scaled, channels=2),
    gaussian("lazy features, weighted", lazy_features, "1-D", 7, composed_with_one, weighted, channels=2),
    gaussian("features, composed", shared_features, "1-D", 8, composed_with_one),
    gaussian("features, composed per input", shared_features, "2-D", 8, composed_with_own, channels=2),
    gaussian("features, scaled", shared_features, "2-D", 6, scaled, channels=2),
    gaussian("dense, weighted", dense_root, "2-D", 6, weighted, channels=2),
    gaussian("features, weighted", shared_features, "1-D", 5, weighted),
    gaussian("features, weighted, two channels", shared_features, "2-D", 6, weighted, channels=2),
    gaussian("features, weighted, float32", shared_features, "ends", 6, weighted, channels=2, dtype=SINGLE),
    gaussian("features, weighted, changed", own_features, "2-D", 6, weighted, selected, composed_with_own, scaled, channels=2),
    gaussian("features, selected", shared_features, "scattered", 6, selected),
    gaussian("features per input, all changes", own_features, "ends", 7, selected, composed_with_own, scaled, channels=2),
]
EMPIRICAL_CASES = [
    empirical("equal weights", "1-D", weighted=False),
    empirical("unequal weights", "2-D", weighted=True, channels=2),
    empirical("unequal weights, 3-D", "3-D", weighted=True),
    empirical("one member", "1-D", weighted=False, members=1),
    empirical("scattered, float32", "scattered", weighted=True, dtype=SINGLE),
]


REPEATED = (
    *("dense, ends", "dense, 3-D, high rank", "dense, one input", "features, 2-D, two channels", "features, 3-D"),
    *("features, scattered", "features, composed", "features, composed per input", "features, scaled", "features, selected"),
    *("features, weighted, two channels", "unequal weights, 3-D"),
)
"""Cases whose grid and change another case has with the other kind of root: `make test-all` runs them."""


def parametrize(cases: list[GaussianCase] | list[EmpiricalCase] | list[Case]) -> pytest.MarkDecorator:
    """Run a test, or a class of tests, on every case."""
    slow = {name: [pytest.mark.slow] for name in REPEATED}
    return pytest.mark.parametrize("case", [pytest.param(case, id=case.name, marks=slow.get(case.name, [])) for case in cases])


on_every_distribution = parametrize([*GAUSSIAN_CASES, *EMPIRICAL_CASES])
on_one_of_each_kind = parametrize([GAUSSIAN_CASES[3], EMPIRICAL_CASES[1]])
on_every_gaussian = parametrize(GAUSSIAN_CASES)
on_every_empirical = parametrize(EMPIRICAL_CASES)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Equal shapes, and values equal up to a tolerance relative to the largest."""
    assert actual.shape == expected.shape
    if expected.numel():
        assert (actual.double() - expected.double()).abs().max() <= tolerance * (1 + expected.abs().max())


def check_type(field: FieldDistribution, case: Case) -> None:
    """The result of an operation is of the same kind and dtype."""
    assert type(field) is type(case.field)
    assert field.mean.dtype == field.variance.dtype == case.field.mean.dtype
