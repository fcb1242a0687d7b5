"""Offsets, small and unequal scales cost no more digits than the dtype of the values takes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import probneural as pn
from probneural.distributions import DenseRoot, EmpiricalField, FieldDistribution, GaussianField, MixtureField
from probneural.distributions.roots.base import FeatureRoot
from probneural.distributions.roots.modulated import DiagonalRoot, WeightedRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import DataError
from probneural.functionals import average, derivative, sensors, stack
from probneural.grids import Grid
from tests.helpers import cross_covariance, normal

LINE = Grid.uniform((129,), periodic=False)


def smooth(grid: Grid, *, offset: float, size: float, dtype: torch.dtype, functions: int = 1) -> GaussianField:
    """Cosines around a constant, of the standard deviation `size` on average."""
    x = grid.points[:, 0]
    columns = torch.stack([torch.cos(math.pi * wave * x) / (1 + wave) ** 2 for wave in range(8)], -1)
    columns = size * columns / columns.norm(dim=-1).mean()
    root = DenseRoot(columns.to(dtype).expand(functions, 1, -1, -1).clone())
    mean = torch.full((functions, 1, *grid.shape), offset, dtype=dtype)
    return GaussianField(mean, root, latent="xi", grid=grid)


class TestMembers:
    def test_an_offset_costs_the_mean_no_digits(self) -> None:
        members = 101325.0 + normal(4096, 1, 1, 16, seed=0)
        field = EmpiricalField(members.float(), grid=Grid.uniform((16,)))
        exact = EmpiricalField(members.float().double(), grid=field.grid)
        torch.testing.assert_close(field.mean.double(), exact.mean, rtol=0, atol=0.01)
        torch.testing.assert_close(field.standard_deviation.double(), exact.standard_deviation, rtol=1e-4, atol=0)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_members_that_agree_are_certain(self, dtype: torch.dtype) -> None:
        weights = normal(100, seed=1).abs()
        field = EmpiricalField(torch.full((100, 1, 1, 4), 300.1, dtype=dtype), weights, grid=Grid.uniform((4,)))
        assert bool((field.mean == field.samples[0]).all())
        assert bool((field.variance == 0).all())

    def test_functionals_of_members_are_summed_precisely(self) -> None:
        grid = Grid.uniform((384, 384))
        members = (300.0 + 0.1 * normal(2, 1, 1, *grid.shape, seed=2)).float()
        found = EmpiricalField(members, grid=grid).apply(average(grid)).samples.flatten()
        torch.testing.assert_close(found.double(), members.double().mean((3, 4)).flatten(), rtol=0, atol=3e-5)


class TestFunctionals:
    def test_constraints_are_met_as_closely_as_the_dtype_allows(self) -> None:
        grid = Grid.uniform((384, 384))
        columns = 0.1 * torch.stack([torch.ones(grid.size), torch.cos(2 * math.pi * grid.points[:, 0]).float()], -1)
        field = GaussianField(torch.full((1, 1, *grid.shape), 300.0), DenseRoot(columns[None, None]), latent="xi", grid=grid)
        constrained = field.constrain(average(grid), torch.full((1, 1, 1), 300.05, dtype=torch.float64))
        assert constrained.mean.double().mean().item() == pytest.approx(300.05, abs=3e-5)
        conditioned = field.condition(average(grid), torch.full((1, 1, 1), 300.02, dtype=torch.float64), noise=1e-6)
        assert conditioned.apply(average(grid)).mean.item() == pytest.approx(300.02, abs=1e-4)
        assert conditioned.latent.chi2 is not None
        assert conditioned.latent.chi2 == pytest.approx(0.04, abs=0.01)  # (.02 / .1)^2

    def test_an_exact_observation_counts_beside_a_large_mean(self) -> None:
        flux = derivative(LINE, at=[[0.3]])
        field = smooth(LINE, offset=300.0, size=0.03, dtype=torch.float32)
        wanted = 0.9 * field.apply(flux).standard_deviation.item()
        found = field.constrain(flux, torch.full((1, 1, 1), wanted)).apply(flux)
        assert found.mean.item() == pytest.approx(wanted, abs=5e-3)  # the mean's own rounding over the grid's spacing
        assert found.standard_deviation.item() < 1e-6

    @pytest.mark.parametrize("offset", [0.0, 1.0, 300.0])
    def test_a_constraint_may_be_stated_twice(self, offset: float) -> None:
        grid = Grid.uniform((128, 128))
        x, y = 2.0 * math.pi * grid.points.mT
        columns = 0.1 * torch.stack([torch.ones_like(x), torch.cos(x), torch.sin(y)], -1)
        mean = offset + 0.1 * normal(1, 1, *grid.shape, seed=4)
        field = GaussianField(mean, DenseRoot(columns[None, None]), latent="xi", grid=grid)
        total = torch.full((1, 1, 1), offset + 0.1, dtype=torch.float64)
        once = field.constrain(average(grid), total)
        torch.testing.assert_close(once.constrain(average(grid), total).mean, once.mean, rtol=0, atol=1e-9)
        probe = sensors(grid, [[0.5, 0.5]])
        both = once.constrain(stack([average(grid), probe]), torch.cat([total, total], -1))
        assert probe(both.mean).item() == pytest.approx(offset + 0.1, abs=1e-9)


class TestDensities:
    @pytest.mark.parametrize(
        ("dtype", "sizes"), [(torch.float32, (1e5, 1e-3)), (torch.float64, (1e5, 1e-7)), (torch.float64, (1e-9, 1e3))]
    )
    def test_channels_have_units_of_their_own(self, dtype: torch.dtype, sizes: tuple[float, float]) -> None:
        columns = torch.eye(4, dtype=dtype).reshape(1, 2, 2, 4) * torch.tensor(sizes, dtype=dtype)[None, :, None, None]
        field = GaussianField(torch.zeros(1, 2, 2, dtype=dtype), DenseRoot(columns), latent="xi", grid=Grid.uniform((2,)))
        values = field.rsample((1,), seed=0)[0]
        torch.testing.assert_close(field.log_prob(values), field.log_prob(values, joint=False).sum((1, 2)))

    @pytest.mark.parametrize("size", [1e-18, 1e-22, 1e-23])
    def test_what_is_white_may_be_tiny(self, size: float) -> None:
        root = DiagonalRoot(torch.full((1, 1, 3), size))
        field = GaussianField(torch.zeros(1, 1, 3), root, latent="xi", grid=Grid.uniform((3,)))
        expected = -3.0 * (0.5 * math.log(2 * math.pi) + math.log(root.std[0, 0, 0].item()))
        assert field.log_prob(torch.zeros(1, 1, 3)).item() == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize(
        ("dtype", "size"), [(torch.float32, 1e-25), (torch.float32, 1e25), (torch.float64, 1e-200), (torch.float64, 1e200)]
    )
    def test_single_values_have_densities_whatever_their_size(self, dtype: torch.dtype, size: float) -> None:
        columns = size * torch.tensor([1.0, 2.0, 0.5], dtype=dtype).diag().reshape(1, 1, 3, 3)
        field = GaussianField(torch.zeros(1, 1, 3, dtype=dtype), DenseRoot(columns), latent="xi", grid=Grid.uniform((3,)))
        values = size * torch.tensor([[[0.3, -1.0, 2.0]]], dtype=dtype)
        expected = torch.distributions.Normal(0.0, torch.tensor([1.0, 2.0, 0.5]).double())
        unit = columns[0, 0, 0, 0].double()
        densities = expected.log_prob((values.double() / unit)[0, 0]) - unit.log()
        torch.testing.assert_close(field.log_prob(values, joint=False)[0, 0], densities, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(field.log_prob(values)[0], densities.sum(), rtol=1e-6, atol=1e-6)

    def test_the_derivative_by_noise_is_right_where_there_is_none(self) -> None:
        root, noise = DenseRoot(torch.full((1, 1, 1, 1), 2.0).double()), torch.zeros(1, dtype=torch.float64, requires_grad=True)
        field = GaussianField(torch.zeros(1, 1, 1).double(), root, latent="xi", grid=Grid.uniform((1,)))
        (slope,) = torch.autograd.grad(field.log_prob(torch.full((1, 1, 1), 3.0), noise=noise, joint=False).sum(), noise)
        assert slope.item() == pytest.approx(0.5 * (9.0 / 16.0 - 1.0 / 4.0), rel=1e-12)

    def test_components_without_weight_count_for_nothing(self) -> None:
        grid = Grid.uniform((3,))
        one, huge, flat = (
            GaussianField(torch.zeros(1, 1, 3), DiagonalRoot(torch.full((1, 1, 3), size)), latent=f"{size}", grid=grid)
            for size in (1.0, 1e25, 0.0)
        )
        mixture = MixtureField([one, huge, flat], torch.tensor([1.0, 0.0, 0.0]))
        torch.testing.assert_close(mixture.standard_deviation, one.standard_deviation)
        torch.testing.assert_close(mixture.log_prob(torch.ones(1, 1, 3)), one.log_prob(torch.ones(1, 1, 3)))


class TestDeviations:
    """A function's deviations are had whatever those of the functions beside it."""

    @pytest.mark.parametrize("kind", ["dense", "features", "weighted", "beside"])
    def test_of_roots(self, kind: str) -> None:
        sizes = torch.tensor([[1e-25, 1.0], [1.0, 1e-25], [1e25, 1e-25], [0.0, 1.0]])
        matrix = normal(4, 2, 5, 3, seed=3).float()
        expected = matrix.double().norm(dim=-1) * sizes.double()[..., None]
        features = FeatureRoot(torch.eye(5).expand(4, -1, -1), matrix.double() * sizes.double()[..., None, None])
        roots = {
            "dense": DenseRoot(matrix * sizes[..., None, None]),
            "features": features,
            "weighted": WeightedRoot(DenseRoot(matrix), sizes[..., None].expand(-1, -1, 5)),
            "beside": SideBySideRoot(features, DiagonalRoot(torch.zeros(4, 2, 5))),
        }
        torch.testing.assert_close(roots[kind].row_norms().double(), expected, rtol=1e-5, atol=0.0)

    def test_of_members(self) -> None:
        members = normal(8, 2, 1, 4, seed=6).float()
        field = EmpiricalField(members * torch.tensor([1e-25, 1.0])[:, None, None], grid=Grid.uniform((4,)))
        expected = EmpiricalField(members, grid=field.grid).standard_deviation
        torch.testing.assert_close(field.standard_deviation[0] * 1e25, expected[0], rtol=1e-4, atol=0.0)
        torch.testing.assert_close(field.standard_deviation[1], expected[1], rtol=1e-4, atol=0.0)

    def test_variances_are_those_of_the_dtype_beside_larger_ones(self) -> None:
        """They are refused where all of a channel are lost."""
        root = DenseRoot(torch.tensor([1e-25, 1.0]).reshape(2, 1, 1, 1))
        field = GaussianField(torch.zeros(2, 1, 1), root, latent="xi", grid=Grid.uniform((1,)))
        assert field.variance.flatten().tolist() == [0.0, 1.0]
        assert field.standard_deviation.flatten().tolist() == pytest.approx([1e-25, 1.0])
        with pytest.raises(DataError, match=r"square of 1.0e-25"):
            _ = field[:1].variance


class TestLatents:
    def test_one_function_by_itself_is_known_by_its_place_in_the_prediction(self) -> None:
        pairs = pn.problems.Heat(dimension=1).sample(13, resolution=32, seed=0)
        field = pn.heads.KernelOperator(min_noise=1e-4).fit(None, pairs[:10])(pairs[10:].inputs)
        assert isinstance(field, GaussianField)
        first, again, other = field.marginal(0), field[:2].marginal(0), field[1:].marginal(0)
        assert first.latent.rank < field.latent.rank
        torch.testing.assert_close(cross_covariance(first, again), cross_covariance(first, first))
        assert first.latent.id != other.latent.id


# Gradients of deviations and intervals where a value is certain: 0 there, and right beside it

GRID = Grid.uniform(5)
CERTAIN = torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0], dtype=torch.float64)
"""Boundary values that are kept: the first point does not vary."""
VALUES = normal(2, 1, 5, seed="values")


def field(kind: str, size: Tensor) -> FieldDistribution:
    """Deviations in proportion to a number."""
    mean = size.detach() * normal(2, 1, 5, seed="mean")
    root = size * CERTAIN[:, None] * normal(2, 1, 5, 3, seed="root")
    if kind == "empirical":
        return EmpiricalField(mean + root.movedim(-1, 0), grid=GRID)
    gaussian = GaussianField(mean, DenseRoot(root), latent="certain", grid=GRID)
    if kind == "Gaussian":
        return gaussian
    other = GaussianField(mean, DenseRoot(2.0 * root), latent="other", grid=GRID)
    return MixtureField([gaussian, other], torch.tensor([0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("size", [1.0, 1e-180], ids=["", "tiny"])
@pytest.mark.parametrize("kind", ["Gaussian", "empirical", "mixture"])
def test_deviations_have_gradients_where_others_are_certain(kind: str, size: float) -> None:
    """Deviations are in proportion to the number, so they are their own derivative; so are intervals."""
    factor = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    u = field(kind, size * factor)
    interval = u.interval(0.9)
    for total in (u.standard_deviation.sum(), (interval.upper - interval.lower).sum()):
        assert float(total.detach()) > 0
        (gradient,) = torch.autograd.grad(total, factor, retain_graph=True)
        assert float(gradient) == pytest.approx(float(total.detach()), rel=1e-9)
    assert float(u.standard_deviation[:, :, 0].detach().abs().max()) <= 1e-15 * size


def by_differences(function: Callable[[Tensor], Tensor], at: float) -> float:
    """Central differences."""
    ends = [function(torch.tensor(at + step, dtype=torch.float64)) for step in (1e-5, -1e-5)]
    return float(ends[0] - ends[1]) / 2e-5


@pytest.mark.parametrize(
    "question",
    [
        lambda u: u.cdf(VALUES),
        lambda u: u.cdf(VALUES, noise=0.2),
        lambda u: u.quantile(0.8),
        lambda u: u.quantile([0.1, 0.6], noise=0.1).sin(),
    ],
    ids=["cdf", "cdf with noise", "quantile", "quantiles with noise"],
)
def test_a_mixture_has_the_gradients_of_differences(question: Callable[[MixtureField], Tensor]) -> None:
    """Means and deviations move with a number; where a value is certain, only its means do."""

    def asked(number: Tensor) -> Tensor:
        shifts, sizes = (number.sin(), number.square()), (number, 2.0 * number)
        parts = [
            GaussianField(
                normal(2, 1, 5, seed="mean") + shift,
                DenseRoot(size * CERTAIN[:, None] * normal(2, 1, 5, 3, seed="root")),
                latent="moved",
                grid=GRID,
            )
            for shift, size in zip(shifts, sizes, strict=True)
        ]
        return question(MixtureField(parts, torch.tensor([0.3, 0.7]).double())).sum()

    number = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(asked(number), number)
    assert float(gradient) == pytest.approx(by_differences(asked, 0.8), rel=1e-5)


def test_quantiles_of_many_members_with_noise_have_gradients() -> None:
    members = normal(120, 1, 1, 5, seed="members")

    def upper(factor: Tensor) -> Tensor:
        return EmpiricalField(factor * members, grid=GRID).interval(0.9, noise=0.1).upper.sum()

    factor = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(upper(factor), factor)
    assert float(gradient) == pytest.approx(by_differences(upper, 1.3), rel=1e-6)
    assert float(gradient) > 1.0
