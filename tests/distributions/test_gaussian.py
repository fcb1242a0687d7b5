"""Gaussian fields against dense Gaussian algebra: constraints, data, densities and coherence."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import scipy.stats
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, FeatureRoot, GaussianField, Latent
from probneural.errors import ArgumentError, ConstraintError, DataError, GridError, LatentError, ShapeError
from probneural.functionals import MatrixFunctional, integral, sensors, stack
from probneural.grids import Grid
from tests.distributions.cases import (
    GRIDS,
    GaussianCase,
    assert_close,
    check_type,
    functionals,
    normal,
    observed,
    on_every_gaussian,
)
from tests.distributions.reference import Dense, joined, matrix_of
from tests.helpers import cross_covariance, generator

LINE = GRIDS["1-D"]


def joint_covariance(field: GaussianField) -> Tensor:
    """The covariance of all values of all functions."""
    root = field.root.dense().double().flatten(0, 2)
    return root @ root.mT


def assert_distribution(field: GaussianField, expected: Dense, tolerance: float) -> None:
    assert_close(field.mean.flatten(2), expected.mean, tolerance)
    assert_close(joint_covariance(field), expected.matrix, tolerance)


def companion(case: GaussianCase, name: str = "companion") -> tuple[GaussianField, Tensor, Tensor]:
    """Two functions of two channels on another grid, driven by the case's latent, with their mean and root."""
    grid, rank = GRIDS["ends"], case.root.shape[3]
    mean, root = normal(name + " mean", 2, 2, grid.size), normal(name, 2, 2, grid.size, rank)
    return GaussianField(mean, DenseRoot(root), latent=case.field.latent, grid=grid), mean, root


def measured(case: GaussianCase, count: int, name: str = "measured") -> Tensor:
    """Plausible observations of `count` functionals: those of one draw, and noise."""
    functional = observed(case.field.grid, count)
    draw = case.field.rsample(seed=11)
    return functional(draw) + 0.1 * normal(name, *draw.shape[:2], count, dtype=draw.dtype)


@on_every_gaussian
class TestCovariance:
    def test_of_each_function(self, case: GaussianCase) -> None:
        lazy = case.field.covariance
        expected = torch.einsum("ncpk,ndqk->ncpdq", case.root, case.root).flatten(1, 2).flatten(2, 3)
        assert lazy.shape == expected.shape
        assert_close(lazy.to_dense(), expected, case.tolerance)
        assert_close(lazy.diagonal(dim1=-2, dim2=-1), case.field.variance.flatten(1), 10 * case.tolerance)

    def test_across_functions_and_grids(self, case: GaussianCase) -> None:
        other, _, root = companion(case)
        expected = case.root.flatten(0, 2) @ root.flatten(0, 2).mT
        assert_close(cross_covariance(case.field, other), expected, case.tolerance)
        assert_close(cross_covariance(other, case.field), expected.mT, case.tolerance)
        assert_close(cross_covariance(case.field, case.field), case.dense.matrix, case.tolerance)

    def test_of_pushed_functions(self, case: GaussianCase) -> None:
        for functional in functionals(case.field.grid):
            assert_close(joint_covariance(case.field.apply(functional)), case.dense.push(functional).matrix, case.tolerance)


@on_every_gaussian
class TestConstrain:
    COUNT = 2

    def constrained(self, case: GaussianCase) -> tuple[GaussianField, MatrixFunctional, Tensor]:
        functional, values = observed(case.field.grid, self.COUNT), measured(case, self.COUNT)
        return case.field.constrain(functional, values), functional, values

    def test_is_the_projection_of_each_function(self, case: GaussianCase) -> None:
        field, functional, values = self.constrained(case)
        check_type(field, case)
        assert_distribution(field, case.dense.constrain(functional, values), 20 * case.tolerance)

    def test_draws_are_projected_one_by_one(self, case: GaussianCase) -> None:
        """Matheron: a constrained draw follows from the unconstrained one of the same base sample."""
        field, functional, values = self.constrained(case)
        base = normal("base", 3, *field.base_shape)
        for index, draw in enumerate(case.field.rsample((3,), base_samples=base)):
            expected = replace(case.dense, mean=draw.double().flatten(2)).constrain(functional, values).mean
            assert_close(field.rsample(base_samples=base[index]).flatten(2), expected, 20 * case.tolerance)

    def test_repeated_constraints_count_once(self, case: GaussianCase) -> None:
        field, functional, values = self.constrained(case)
        repeated = stack([functional, functional, -1.0 * functional])
        again = case.field.constrain(repeated, torch.cat([values, values, -values], dim=-1))
        assert_close(again.mean, field.mean, 10 * case.tolerance)
        assert_close(again.variance, field.variance, 10 * case.tolerance)

    @pytest.mark.bad_input
    def test_contradictions_are_refused(self, case: GaussianCase) -> None:
        field, functional, values = self.constrained(case)
        with pytest.raises(ConstraintError, match="numerical rank"):
            case.field.constrain(stack([functional, functional]), torch.cat([values, values + 1], dim=-1))
        with pytest.raises(ConstraintError, match="the freedom to meet"):
            field.constrain(functional, values + 0.01)


NOISES = {
    "scalar": lambda shape: 0.3,
    "per channel": lambda shape: torch.linspace(0.1, 0.5, shape[1]),
    "per value": lambda shape: torch.linspace(0.1, 0.5, math.prod(shape)).reshape(shape),
}


@on_every_gaussian
class TestCondition:
    COUNT = 2

    def observation(self, case: GaussianCase) -> tuple[MatrixFunctional, Tensor]:
        return observed(case.field.grid, self.COUNT), measured(case, self.COUNT)

    @pytest.mark.parametrize("kind", NOISES)
    def test_is_bayes_rule(self, case: GaussianCase, kind: str) -> None:
        functional, values = self.observation(case)
        noise, dense = NOISES[kind](values.shape), case.dense
        per_value = noise if kind != "per channel" else noise[None, :, None]
        variance = torch.as_tensor(per_value, dtype=torch.float64).expand(values.shape).reshape(-1)
        field, A = case.field.condition(functional, values, noise=noise), dense.observing(functional)
        check_type(field, case)
        assert_distribution(field, dense.condition(A, values, variance), 20 * case.tolerance)
        assert field.latent.chi2 == pytest.approx(dense.chi2(A, values, variance), rel=20 * case.tolerance)

    def test_exact_observations_are_met(self, case: GaussianCase) -> None:
        functional, values = self.observation(case)
        first, dense = case.field[:1], case.dense.select([0])
        field, A = first.condition(functional, values[:1]), dense.observing(functional)
        assert_distribution(field, dense.condition(A, values[:1]), 50 * case.tolerance)
        assert_close(functional(field.rsample((20,), seed=0)), values[:1].expand(20, -1, -1, -1), 20 * case.tolerance)
        assert field.latent.chi2 == pytest.approx(dense.chi2(A, values[:1]), rel=100 * case.tolerance)

    def test_moves_every_other_field(self, case: GaussianCase) -> None:
        """Conditioning one field and bringing another under its latent is joint conditioning."""
        functional, values = self.observation(case)
        other, mean, root = companion(case)
        learned = case.field.condition(functional, values, noise=0.3).latent
        everything = joined((case.mean, case.root), (mean, root))
        A = torch.nn.functional.pad(case.dense.observing(functional), (0, mean.numel()))
        expected = everything.condition(A, values, 0.3)
        moved, own = other.under(learned), case.field.under(learned)
        assert_close(moved.mean.flatten(), expected.vector[case.dense.size :], 20 * case.tolerance)
        assert_close(joint_covariance(moved), expected.matrix[case.dense.size :, case.dense.size :], 20 * case.tolerance)
        cross = cross_covariance(own, moved)
        assert_close(cross, expected.matrix[: case.dense.size, case.dense.size :], 20 * case.tolerance)

    def test_two_steps_are_one(self, case: GaussianCase) -> None:
        functional, values = self.observation(case)
        other, mean, root = companion(case)
        third, third_mean, third_root = companion(case, "third")
        probe, seen = integral(other.grid), normal("seen", 2, 2, 1)
        first = case.field.condition(functional, values, noise=0.3).latent
        second = other.under(first).condition(probe, seen, noise=0.2).latent
        everything = joined((case.mean, case.root), (mean, root), (third_mean, third_root))
        blocks = [case.dense.observing(functional), torch.kron(torch.eye(4, dtype=torch.float64), matrix_of(probe))]
        A = torch.nn.functional.pad(torch.block_diag(*blocks), (0, third_mean.numel()))
        noise = torch.tensor([0.3] * values.numel() + [0.2] * seen.numel(), dtype=torch.float64)
        expected = everything.condition(A, torch.cat([values.double().flatten(), seen.flatten()]), noise)
        rows = slice(case.dense.size + mean.numel(), None)
        for moved in (third.under(second), third.under(first).under(second)):
            assert moved.latent.id == second.id
            assert_close(moved.mean.flatten(), expected.vector[rows], 50 * case.tolerance)
            assert_close(joint_covariance(moved), expected.matrix[rows, rows], 50 * case.tolerance)
        own = case.field.under(second)
        assert_close(own.mean.flatten(), expected.vector[: case.dense.size], 50 * case.tolerance)

    def test_the_same_exact_observation_twice_is_once(self, case: GaussianCase) -> None:
        functional, values = self.observation(case)
        once = case.field[:1].condition(functional, values[:1])
        twice = once.condition(functional, values[:1])
        assert_close(twice.mean, once.mean, 20 * case.tolerance)
        assert_close(twice.variance, once.variance, 20 * case.tolerance)
        other, _, _ = companion(case)
        assert_close(other.under(twice.latent).variance, other.under(once.latent).variance, 20 * case.tolerance)

    def test_leaves_constraints_in_force(self, case: GaussianCase) -> None:
        functional, values = self.observation(case)
        constraint = MatrixFunctional(case.field.grid, functional.matrix[:1])
        bound = case.field.constrain(constraint, values[..., :1])
        for field in (
            bound.condition(functional, values, noise=0.3),
            case.field.condition(functional, values, noise=0.3).constrain(constraint, values[..., :1]),
        ):
            draws = field.rsample((20,), seed=1)
            assert_close(constraint(draws), values[..., :1].expand(20, -1, -1, -1), 20 * case.tolerance)

    def test_a_field_under_its_own_latent_is_itself(self, case: GaussianCase) -> None:
        assert case.field.under(case.field.latent) is case.field

    @pytest.mark.bad_input
    def test_latents_do_not_mix(self, case: GaussianCase) -> None:
        functional, values = self.observation(case)
        learned = case.field.condition(functional, values, noise=0.3)
        scaled = case.field.scale(torch.full((values.shape[1],), 2.0))
        with pytest.raises(LatentError, match="conditioned from"):
            scaled.under(learned.latent)
        with pytest.raises(LatentError, match="conditioned from"):
            learned.under(case.field.latent)
        assert case.field.latent.id not in (scaled.latent.id, learned.latent.id)


def smooth_field(count: int, rank: int, *, size: int = 48, dtype: torch.dtype = torch.float64) -> GaussianField:
    """Functions of a weight-space model with a decaying spectrum, as last-layer posteriors are."""
    grid, name = Grid.uniform(size), f"smooth {count} {rank}"
    frequencies = 1.0 + torch.arange(rank, dtype=torch.float64) % 12
    phases = 6 * torch.rand(count, 1, rank, generator=generator(name)).double()
    features = torch.sin(2 * math.pi * frequencies * grid.points + phases) + 0.5 * normal(name, count, 1, rank)
    factor = torch.diag(1.0 / (1.0 + torch.arange(rank, dtype=torch.float64)))[None, None]
    mean = normal(name + " mean", count, 1, size, dtype=dtype)
    return GaussianField(mean, FeatureRoot(features.to(dtype), factor), latent=name, grid=grid)


class TestManyExactObservations:
    def test_64_integrals_on_65_latent_dimensions_hold(self) -> None:
        field = smooth_field(64, 65)
        total = integral(field.grid)
        values = total(field.rsample(seed=3))
        learned = field.condition(total, values)
        assert (total(learned.mean) - values).abs().max() <= 1e-9
        assert (total(learned.rsample((20,), seed=0)) - values).abs().max() <= 1e-9
        assert learned.latent.chi2 == pytest.approx(1.0, abs=0.6)  # 64 squares of standard normals, averaged

    @pytest.mark.bad_input
    def test_more_than_the_rank_are_refused(self) -> None:
        field = smooth_field(66, 65)
        total = integral(field.grid)
        with pytest.raises(ConstraintError, match=r"from 0 to 65 as number of exact observations.* got 66.* use constrain"):
            field.condition(total, total(field.mean))
        assert (total(field.constrain(total, total(field.mean) + 1.0).mean) - total(field.mean) - 1).abs().max() <= 1e-10

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_everything_seen_leaves_nothing_open(self, dtype: torch.dtype) -> None:
        field = smooth_field(2, 5, size=12, dtype=dtype)
        truth, everywhere = field.rsample(seed=1), sensors(field.grid, field.grid.points)
        known = field.constrain(everywhere, everywhere(truth))
        assert (known.mean - truth).abs().max() <= (1e-10 if dtype == torch.float64 else 1e-4)
        assert known.variance.max() <= (1e-20 if dtype == torch.float64 else 1e-9)

    def test_chi2_counts_independent_observations(self) -> None:
        field = smooth_field(1, 5)
        total, values = integral(field.grid), torch.full((1, 1, 1), 2.0, dtype=torch.float64)
        once = field.condition(total, values).latent.chi2
        assert field.condition(stack([total, total]), values.expand(1, 1, 2)).latent.chi2 == pytest.approx(once, rel=1e-10)


class TestCertainty:
    """Zero variance is legal."""

    def field(self, dtype: torch.dtype = torch.float64) -> GaussianField:
        """One function, certain to be 1 at the first two of six points."""
        root = normal("certain", 1, 1, 6, 8, dtype=dtype)
        root[:, :, :2] = 0.0
        mean = torch.ones(1, 1, 6, dtype=dtype)
        return GaussianField(mean, DenseRoot(root), latent="xi", grid=LINE)

    def test_is_kept_by_every_operation(self) -> None:
        field, last = self.field(), sensors(LINE, LINE.points[-1:])
        value = torch.full((1, 1, 1), 5.0, dtype=torch.float64)
        for moved in (
            field,
            field.constrain(last, value),
            field.condition(last, value, noise=0.1),
            field.scale(torch.full((1,), 3.0)),
        ):
            assert moved.variance[0, 0, :2].tolist() == [0.0, 0.0]
            assert moved.standard_deviation[0, 0, :2].tolist() == [0.0, 0.0]
            assert (moved.rsample((9,), seed=0)[..., :2] == 1.0).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_may_be_observed_to_be_what_it_is(self, dtype: torch.dtype) -> None:
        field, probe = self.field(dtype), sensors(LINE, LINE.points[[0, -1]])
        values = torch.tensor([[[1.0, 5.0]]], dtype=dtype)
        for moved in (
            field.constrain(probe, values),
            field.condition(probe, values),
            field.condition(probe, values, noise=1e-8),
        ):
            assert torch.allclose(probe(moved.mean), values, atol=1e-5)
            assert moved.variance[0, 0, 2:5].min() > 0.1

    @pytest.mark.bad_input
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_may_not_be_observed_to_be_otherwise(self, dtype: torch.dtype) -> None:
        field, probe = self.field(dtype), sensors(LINE, LINE.points[[0, -1]])
        values = torch.tensor([[[1.001, 5.0]]], dtype=dtype)
        for call in (field.constrain, field.condition):
            with pytest.raises(ConstraintError, match="1 of which stay unmet by up to 1.0e-03"):
                call(probe, values)

    def test_no_functions_at_all(self) -> None:
        none, total = self.field()[:0], integral(LINE)
        assert len(none.constrain(total, torch.zeros(0, 1, 1))) == 0
        assert none.log_prob(torch.zeros(0, 1, 6), noise=1.0).shape == (0,)
        assert none.rsample((2,)).shape == (2, 0, 1, 6)


@on_every_gaussian
class TestLogDensity:
    @pytest.mark.parametrize("kind", NOISES)
    def test_joint(self, case: GaussianCase, kind: str) -> None:
        values = case.field.rsample(seed=5)
        noise = NOISES[kind](values.shape)
        per_value = noise if kind != "per channel" else noise[None, :, *[None] * (values.ndim - 2)]
        spread = torch.as_tensor(per_value, dtype=torch.float64).expand(values.shape).flatten(1)
        density = case.field.log_prob(values, noise=noise)
        assert (density.shape, density.dtype) == ((len(case.field),), torch.float64)
        for index, residual in enumerate((values.double().flatten(2) - case.mean).flatten(1)):
            covariance = case.dense.select([index]).matrix + spread[index].diag()
            normal = torch.distributions.MultivariateNormal(torch.zeros_like(residual), covariance)
            assert_close(density[index], normal.log_prob(residual), 10 * case.tolerance)
            if index == 0:
                expected = scipy.stats.multivariate_normal(cov=covariance.numpy()).logpdf(residual.numpy())
                assert density[0].item() == pytest.approx(expected, rel=10 * case.tolerance)

    def test_marginal(self, case: GaussianCase) -> None:
        values = case.field.rsample(seed=5)
        for noise in (0.0, 0.3):
            density = case.field.log_prob(values, noise=noise, joint=False)
            normal = scipy.stats.norm(case.mean.numpy(), (case.dense.variance + noise).sqrt().numpy())
            expected = torch.from_numpy(normal.logpdf(values.double().flatten(2).numpy()))
            assert density.dtype == torch.float64
            assert_close(density.flatten(2), expected, 10 * case.tolerance)

    def test_without_noise_where_it_exists(self, case: GaussianCase) -> None:
        """Few numbers of a field have a density of their own."""
        pushed = case.field.apply(observed(case.field.grid, 2))
        values, dense = pushed.rsample(seed=5), case.dense.push(observed(case.field.grid, 2))
        density, half = pushed.log_prob(values), torch.zeros(values.shape[1:], dtype=torch.float64)
        half[..., 0] = 0.3
        partly = pushed.log_prob(values, noise=half.expand(values.shape))
        for index, residual in enumerate((values.double() - dense.mean).flatten(1)):
            for actual, noise in ((density, torch.zeros_like(residual)), (partly, half.flatten())):
                normal = torch.distributions.MultivariateNormal(
                    torch.zeros_like(residual), dense.select([index]).matrix + noise.diag()
                )
                assert_close(actual[index], normal.log_prob(residual), 100 * case.tolerance)

    @pytest.mark.bad_input
    def test_does_not_exist_without_noise_on_fewer_dimensions(self, case: GaussianCase) -> None:
        if torch.linalg.matrix_rank(case.root[0].flatten(0, 1)) == case.root[0].flatten(0, 1).shape[0]:
            assert case.field.log_prob(case.field.mean).isfinite().all()
            return
        with pytest.raises(ArgumentError, match="a positive variance in every direction"):
            case.field.log_prob(case.field.mean)


@pytest.mark.bad_input
def test_wide_roots_whose_smallest_variance_drowns(monkeypatch: pytest.MonkeyPatch) -> None:
    root = normal("root", 1, 1, 6, 9)
    root[..., 5, :] = root[..., 4, :]
    field = GaussianField(torch.zeros(1, 1, 6, dtype=torch.float64), DenseRoot(root), latent="xi", grid=LINE)
    density = field.log_prob(field.mean, noise=1e-20)
    assert density.isfinite().all()
    monkeypatch.setattr("probneural.distributions.intervals._LARGEST_DENSE", 1)
    for noise in (0.0, 1e-20):
        with pytest.raises(ArgumentError, match="compared with the largest one.* pass a larger observation variance"):
            field.log_prob(field.mean, noise=noise)
    assert field.log_prob(field.mean, noise=1e-8).isfinite().all()


@pytest.fixture(scope="module", name="field")
def field_of_many_latent_dimensions() -> GaussianField:
    grid, mean = Grid.uniform(48), normal("many mean", 2, 1, 48, dtype=torch.float32)
    root = torch.empty(2, 1, 48, 200_000).normal_(generator=generator("many"))
    return GaussianField(mean, DenseRoot(root), latent="many", grid=grid)


class TestManyLatentDimensions:
    """With 200,000 of them, one k x k matrix would take 320 GB."""

    def test_constrain_and_condition(self, field: GaussianField) -> None:
        functional = observed(field.grid, 3)
        values = functional(field.mean) + 1.0
        bound = field.constrain(functional, values)
        assert (functional(bound.mean) - values).abs().max() <= 1e-3
        learned = field.condition(functional, values, noise=0.1)
        again = field.under(learned.condition(functional, values, noise=0.1).latent)
        assert (again.variance <= learned.variance * (1 + 1e-5)).all()
        assert again.apply(functional).variance.max() <= 0.1

    def test_density(self, field: GaussianField) -> None:
        """Twice the values make more entries than are formed in float64."""
        draw = field.rsample(seed=1)
        wide = GaussianField(
            field.mean.reshape(1, 2, 48), DenseRoot(field.root.dense().reshape(1, 2, 48, -1)), latent="many", grid=field.grid
        )
        for one, values in ((field, draw), (wide, draw.reshape(1, 2, 48))):
            rows = one.root.dense().double().flatten(1, 2)
            covariance = rows @ rows.mT + 0.1 * torch.eye(rows.shape[1])
            normal = torch.distributions.MultivariateNormal(one.mean.double().flatten(1), covariance)
            assert_close(one.log_prob(values, noise=0.1), normal.log_prob(values.double().flatten(1)), 1e-9)


class TestDifferentiability:
    def test_of_densities(self) -> None:
        values, root = normal("values", 1, 1, 6), normal("root", 1, 1, 6, 3)

        def density(values: Tensor, root: Tensor) -> Tensor:
            field = GaussianField(torch.zeros(1, 1, 6, dtype=torch.float64), DenseRoot(root), latent="xi", grid=LINE)
            return field.log_prob(values, noise=0.3) + field.log_prob(values, noise=0.3, joint=False).sum()

        assert torch.autograd.gradcheck(density, (values.requires_grad_(), root.requires_grad_()))

    def test_of_draws_variances_and_updates(self) -> None:
        mean, root, value = normal("mean", 2, 1, 6), normal("root", 2, 1, 6, 4), normal("value", 2, 1, 1)

        def numbers(mean: Tensor, root: Tensor, value: Tensor) -> list[Tensor]:
            field = GaussianField(mean, DenseRoot(root), latent="xi", grid=LINE)
            bound, learned = field.constrain(integral(LINE), value), field.condition(integral(LINE), value, noise=0.1)
            return [u for f in (field, bound, learned) for u in (f.mean, f.variance, f.rsample(seed=0))]

        tensors = [tensor.requires_grad_() for tensor in (mean, root, value)]
        assert torch.autograd.gradcheck(numbers, tensors)


@pytest.mark.bad_input
class TestBadInput:
    MEAN, ROOT = torch.zeros(2, 1, 6, dtype=torch.float64), DenseRoot(normal("root", 2, 1, 6, 4))
    FIELD = GaussianField(MEAN, ROOT, latent="xi", grid=LINE)
    TOTAL = integral(LINE)
    VALUES = torch.zeros(2, 1, 1)

    @pytest.mark.parametrize(
        "wrong",
        [
            {"mean": torch.zeros(2, 6)},
            {"mean": torch.zeros(1, 1, 6)},
            {"mean": torch.zeros(2, 2, 6)},
            {"grid": Grid.uniform(7)},
            {"grid": Grid.uniform((2, 3))},
            {"latent": Latent(id="xi", rank=5)},
        ],
    )
    def test_parts_that_do_not_fit(self, wrong: dict[str, object]) -> None:
        parts = {"mean": self.MEAN, "root": self.ROOT, "latent": "xi", "grid": LINE} | wrong
        mean, root = parts.pop("mean"), parts.pop("root")
        with pytest.raises(ShapeError, match="a latent of rank k"):
            GaussianField(mean, root, **parts)

    def test_functional_on_another_grid(self) -> None:
        for call in (self.FIELD.constrain, self.FIELD.condition):
            with pytest.raises(GridError, match="a functional on Grid"):
                call(integral(Grid.uniform(6, lengths=2.0)), self.VALUES)

    @pytest.mark.parametrize("shape", [(), (1,), (2, 1), (1, 1, 1), (2, 1, 2)])
    def test_values_of_another_shape(self, shape: tuple[int, ...]) -> None:
        for call in (self.FIELD.constrain, self.FIELD.condition):
            with pytest.raises(ShapeError, match="the functional's values of shape"):
                call(self.TOTAL, torch.zeros(shape))

    def test_values_that_are_not_finite(self) -> None:
        for call in (self.FIELD.constrain, self.FIELD.condition):
            with pytest.raises(DataError, match="2 values that are NaN or infinite, the first at index"):
                call(self.TOTAL, torch.full((2, 1, 1), torch.nan))

    def test_noise_that_is_zero_here_and_there(self) -> None:
        with pytest.raises(ArgumentError, match="positive everywhere, or zero everywhere"):
            self.FIELD.condition(self.TOTAL, self.VALUES, noise=torch.tensor([[[0.0]], [[1.0]]]))

    def test_densities_of_other_shapes_or_values(self) -> None:
        with pytest.raises(ShapeError, match="values of shape"):
            self.FIELD.log_prob(self.MEAN[:1], noise=1.0)
        with pytest.raises(DataError, match="12 values that are NaN"):
            self.FIELD.log_prob(self.MEAN + torch.nan, noise=1.0)

    def test_marginal_densities_of_certain_values(self) -> None:
        certain = GaussianField(self.MEAN, DenseRoot(torch.zeros(2, 1, 6, 4)), latent="xi", grid=LINE)
        with pytest.raises(ArgumentError, match="pass the observation variance as noise > 0"):
            certain.log_prob(self.MEAN, joint=False)

    def test_fields_of_one_name_but_different_rank(self) -> None:
        other = GaussianField(self.MEAN, DenseRoot(normal("root", 2, 1, 6, 5)), latent="xi", grid=LINE)
        with pytest.raises(LatentError, match="conditioned from"):
            self.FIELD.under(other.condition(self.TOTAL, self.VALUES, noise=1.0).latent)
