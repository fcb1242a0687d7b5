"""What every distribution over fields must do, on every case."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import Tensor

from probneural.distributions import EmpiricalField, FieldDistribution
from probneural.distributions.base import index_grid, noise_variance
from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.functionals import integral
from probneural.grids import Grid
from tests.distributions.cases import (
    GRIDS,
    Case,
    assert_close,
    check_type,
    functionals,
    on_every_distribution,
    on_one_of_each_kind,
)
from tests.helpers import normal

INDICES = [
    (0, [0]),
    (-1, [-1]),
    (slice(0, 1), [0]),
    (slice(2, 2), []),
    ([-1, 0, 0], [-1, 0, 0]),
    ([], []),
    (torch.tensor(0), [0]),
    (torch.tensor([-1, 0]), [-1, 0]),
]


def base_samples(field: FieldDistribution, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if isinstance(field, EmpiricalField):
        return torch.randint(len(field.weights), shape, generator=generator)
    return torch.randn(*shape, *field.base_shape, generator=generator, dtype=torch.float64)


@on_every_distribution
class TestMoments:
    def test_mean_and_variance_are_those_of_the_reference(self, case: Case) -> None:
        field, dense = case.field, case.dense
        assert_close(field.mean.flatten(2), dense.mean, case.tolerance)
        assert_close(field.variance.flatten(2), dense.variance, case.tolerance)
        assert_close(field.standard_deviation.flatten(2), dense.variance.clamp_min(0).sqrt(), 10 * case.tolerance)
        assert field.mean.shape == field.variance.shape == (*dense.mean.shape[:2], *field.grid.shape)

    def test_pushed_moments_are_those_of_the_reference(self, case: Case) -> None:
        for functional in functionals(case.field.grid):
            pushed, dense = case.field.apply(functional), case.dense.push(functional)
            check_type(pushed, case)
            assert pushed.grid == index_grid(functional.size)
            assert_close(pushed.mean, dense.mean, case.tolerance)
            assert_close(pushed.variance, dense.variance, case.tolerance)

    def test_scaling_scales_deviations(self, case: Case) -> None:
        per_channel = torch.linspace(0.5, 2.0, case.field.mean.shape[1])
        per_value = 0.5 + normal(*case.field.mean.shape, seed="factors").abs()
        for factors in (per_channel, per_value):
            wider, dense = case.field.scale(factors), case.dense.scale(factors.flatten(2) if factors.ndim > 1 else factors)
            check_type(wider, case)
            assert_close(wider.mean.flatten(2), dense.mean, case.tolerance)
            assert_close(wider.variance.flatten(2), dense.variance, case.tolerance)
            for functional in functionals(case.field.grid):
                assert_close(wider.apply(functional).variance, dense.push(functional).variance, case.tolerance)

    def test_selecting_keeps_the_batch_axis(self, case: Case) -> None:
        for index, expected in INDICES:
            chosen, dense = case.field[index], case.dense.select([number % len(case.field) for number in expected])
            check_type(chosen, case)
            assert len(chosen) == len(expected)
            assert_close(chosen.mean.flatten(2), dense.mean, case.tolerance)
            assert_close(chosen.variance.flatten(2), dense.variance, case.tolerance)

    def test_iterating_gives_every_function_once(self, case: Case) -> None:
        together = torch.cat([field.mean for field in islice(case.field, 9)])  # type: ignore[call-overload]
        assert_close(together, case.field.mean, case.tolerance)

    def test_describes_itself(self, case: Case) -> None:
        count, channels, _ = case.dense.mean.shape
        assert repr(case.field).startswith(f"{type(case.field).__name__}({count} x {channels} on Grid.")


@on_every_distribution
class TestDraws:
    COUNT = 4000

    def test_their_moments_are_those_of_the_reference(self, case: Case) -> None:
        """Six standard deviations of every entry of the sample mean and covariance of N draws."""
        draws = case.field.rsample((self.COUNT,), seed=0).double().reshape(self.COUNT, -1)
        mean, covariance = case.dense.vector, case.dense.matrix
        sample = (draws - mean).mT @ (draws - mean) / self.COUNT
        spread = (case.fourth_moments.clamp_min(0) / self.COUNT).sqrt()
        assert ((sample - covariance).abs() <= 6 * spread + case.tolerance).all()
        spread = (covariance.diagonal().clamp_min(0) / self.COUNT).sqrt()
        assert ((draws.mean(0) - mean).abs() <= 6 * spread + case.tolerance).all()

    def test_follow_their_seed(self, case: Case) -> None:
        first, again, other = (case.field.rsample((20,), seed=seed) for seed in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other) or len(case.dense.matrix.nonzero()) == 0

    def test_without_a_seed_are_fresh_and_leave_the_global_generator_alone(self, case: Case) -> None:
        before = torch.get_rng_state()
        draws = [case.field.rsample((64,)) for _ in range(2)]
        assert not torch.equal(*draws) or len(case.dense.matrix.nonzero()) == 0
        assert torch.equal(torch.get_rng_state(), before)

    def test_have_the_shape_asked_for(self, case: Case) -> None:
        for shape in ((), (0,), (3,), (2, 3)):
            for draws in (case.field.rsample(shape, seed=0), case.field.rsample(torch.Size(shape))):
                assert draws.shape == (*shape, *case.field.mean.shape)
                assert draws.dtype == case.field.mean.dtype

    def test_follow_their_base_samples_one_by_one(self, case: Case) -> None:
        base = base_samples(case.field, 2, 3)
        draws = case.field.rsample((2, 3), base_samples=base)
        for i, j in [(0, 0), (1, 2)]:
            assert_close(case.field.rsample(base_samples=base[i, j]), draws[i, j], case.tolerance)

    def test_are_pushed_selected_and_scaled_as_the_field_is(self, case: Case) -> None:
        base = base_samples(case.field, 5)
        draws = case.field.rsample((5,), base_samples=base)
        for functional in functionals(case.field.grid):
            assert_close(case.field.apply(functional).rsample((5,), base_samples=base), functional(draws), case.tolerance)
        assert_close(case.field[[-1, 0]].rsample((5,), base_samples=base), draws[:, [-1, 0]], case.tolerance)
        for factors in (torch.full((case.field.mean.shape[1],), 2.0), torch.full(case.field.mean.shape, 2.0)):
            wider = case.field.scale(factors).rsample((5,), base_samples=base)
            assert_close(wider - case.field.mean, 2 * (draws - case.field.mean), case.tolerance)

    def test_ignore_the_default_device_and_dtype(self, case: Case) -> None:
        expected = case.field.rsample((3,), seed=5)
        with torch.device("meta"):
            assert torch.equal(case.field.rsample((3,), seed=5), expected)
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.equal(case.field.rsample((3,), seed=5), expected)
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.mark.bad_input
@on_one_of_each_kind
class TestBadInput:
    def test_functional_on_another_grid(self, case: Case) -> None:
        shape = case.field.grid.shape
        elsewhere = Grid.uniform(shape, lengths=7.0) if case.field.grid.is_uniform else GRIDS["1-D"]
        with pytest.raises(GridError, match="a functional on Grid"):
            case.field.apply(integral(elsewhere))

    def test_a_number_is_no_shape(self, case: Case) -> None:
        with pytest.raises(ArgumentError, match=r"write \(8,\)"):
            case.field.rsample(8)  # type: ignore[arg-type]

    @pytest.mark.parametrize("index", [3, -4, 100])
    def test_index_out_of_range(self, case: Case, index: int) -> None:
        with pytest.raises(IndexError, match="functions"):
            case.field[index]

    def test_seed_and_base_samples(self, case: Case) -> None:
        with pytest.raises(ArgumentError, match="a seed or base samples"):
            case.field.rsample((2,), seed=0, base_samples=base_samples(case.field, 2))

    def test_base_samples_of_another_shape(self, case: Case) -> None:
        with pytest.raises(ShapeError, match="base samples of shape"):
            case.field.rsample((3,), base_samples=base_samples(case.field, 2))

    @pytest.mark.parametrize("factor", [0.0, -1.0, torch.inf, torch.nan])
    def test_factors_that_are_not_positive(self, case: Case, factor: float) -> None:
        with pytest.raises(ArgumentError, match="positive finite factors"):
            case.field.scale(torch.full((case.field.mean.shape[1],), factor))
        with pytest.raises(ArgumentError, match="positive finite factors"):
            case.field.scale(torch.full(case.field.mean.shape, factor))

    def test_factors_of_another_number(self, case: Case) -> None:
        with pytest.raises(ShapeError, match="factors of shape"):
            case.field.scale(torch.ones(case.field.mean.shape[1] + 1))
        with pytest.raises(ShapeError, match="factors of shape"):
            case.field.scale(torch.ones(case.field.mean.shape[1:]))


class TestNoiseVariance:
    LIKE = torch.zeros((), dtype=torch.float64)

    @pytest.mark.parametrize("noise", [2.0, torch.tensor(2.0), torch.full((3,), 2.0), torch.full((4, 3, 5), 2.0)])
    def test_is_spread_over_the_values(self, noise: float | Tensor) -> None:
        assert torch.equal(noise_variance(noise, (4, 3, 5), self.LIKE), torch.full((4, 3, 5), 2.0, dtype=torch.float64))

    def test_belongs_to_channels_where_sizes_agree(self) -> None:
        spread = noise_variance(torch.tensor([1.0, 2.0]), (2, 2, 2), self.LIKE)
        assert spread[:, 0].unique().tolist() == [1.0]
        assert spread[:, 1].unique().tolist() == [2.0]
