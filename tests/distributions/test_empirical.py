"""Empirical fields: members, their weights, and the Gaussian of the same moments."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.distributions import EmpiricalField, GaussianField
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.grids import Grid
from tests.distributions.cases import EmpiricalCase, assert_close, functionals, normal, on_every_empirical
from tests.helpers import cross_covariance

GRID = Grid.uniform(4)
MEMBERS = normal("members", 3, 2, 1, 4)


@on_every_empirical
class TestEveryEmpiricalField:
    def test_weights_are_normalised(self, case: EmpiricalCase) -> None:
        assert_close(case.field.weights, case.weights.double(), 1e-12)
        assert case.field.weights.sum().item() == pytest.approx(1.0, rel=1e-14)

    def test_base_samples_are_members(self, case: EmpiricalCase) -> None:
        count = len(case.weights)
        assert case.field.base_shape == torch.Size([])
        assert torch.equal(case.field.rsample((count,), base_samples=torch.arange(count)), case.field.samples)
        assert torch.equal(case.field.rsample(base_samples=torch.tensor(count - 1)), case.field.samples[-1])

    def test_members_come_as_often_as_their_weights_say(self, case: EmpiricalCase) -> None:
        draws, count = case.field.rsample((2000,), seed=0), 2000
        for member, weight in zip(case.field.samples, case.field.weights, strict=True):
            share = (draws == member).flatten(1).all(1).double().mean()
            assert abs(share - weight) <= 6 * (weight * (1 - weight) / count).sqrt() + 1e-12

    def test_the_moment_matched_gaussian_has_its_moments(self, case: EmpiricalCase) -> None:
        matched, dense = case.field.moment_matched(), case.dense
        assert isinstance(matched, GaussianField)
        assert_close(matched.mean.flatten(2), dense.mean, case.tolerance)
        assert_close(cross_covariance(matched, matched), dense.matrix, case.tolerance)
        assert matched.base_shape == (len(case.weights),)
        for functional in functionals(case.field.grid):
            pushed = case.field.apply(functional).moment_matched()
            assert_close(pushed.variance, matched.apply(functional).variance, 10 * case.tolerance)


def test_members_of_no_weight_are_never_drawn() -> None:
    field = EmpiricalField(MEMBERS, torch.tensor([0.0, 1.0, 0.0]), grid=GRID)
    assert torch.equal(field.rsample((50,)), MEMBERS[1].expand(50, -1, -1, -1))
    assert torch.equal(field.mean, MEMBERS[1])
    assert not field.variance.any()


def test_gaussians_of_different_members_or_weights_do_not_share_a_latent() -> None:
    fields = [
        EmpiricalField(MEMBERS, grid=GRID),
        EmpiricalField(MEMBERS.flip(0), grid=GRID),
        EmpiricalField(MEMBERS, torch.tensor([1.0, 2.0, 3.0]), grid=GRID),
    ]
    assert len({field.moment_matched().latent.id for field in fields}) == 3
    assert (
        fields[0].moment_matched().latent.id == EmpiricalField(MEMBERS, 2 * torch.ones(3), grid=GRID).moment_matched().latent.id
    )


@pytest.mark.bad_input
class TestBadInput:
    FIELD = EmpiricalField(MEMBERS, grid=GRID)

    @pytest.mark.parametrize("shape", [(2, 1, 4), (0, 2, 1, 4), (3, 2, 1, 5), (3, 2, 1, 2, 2)])
    def test_samples_of_another_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match="samples of shape|1 or more members"):
            EmpiricalField(torch.zeros(shape), grid=GRID)

    @pytest.mark.parametrize("shape", [(2,), (3, 1), ()])
    def test_weights_of_another_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ShapeError, match=r"weights of shape \(3,\)"):
            EmpiricalField(MEMBERS, torch.ones(shape), grid=GRID)

    @pytest.mark.parametrize("weights", [[1.0, -1.0, 1.0], [1.0, torch.nan, 1.0], [0.0, 0.0, 0.0], [torch.inf, 1.0, 1.0]])
    def test_weights_that_are_no_probabilities(self, weights: list[float]) -> None:
        with pytest.raises(DataError, match="finite weights >= 0"):
            EmpiricalField(MEMBERS, torch.tensor(weights), grid=GRID)

    @pytest.mark.parametrize("numbers", [torch.tensor([0.0, 1.0]), torch.tensor([0, 3]), torch.tensor([-1, 0])])
    def test_base_samples_that_are_no_member_numbers(self, numbers: Tensor) -> None:
        with pytest.raises(ArgumentError, match="member numbers from 0 to 2"):
            self.FIELD.rsample((2,), base_samples=numbers)
