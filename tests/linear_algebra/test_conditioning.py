"""Latent updates against dense algebra, in batches, with more and with fewer observations than latents."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.errors import ConstraintError, ShapeError
from probneural.linear_algebra.conditioning import (
    Rounding,
    condition_exactly,
    condition_noisily,
    discrepancy_gain,
    posterior_root,
)
from tests.distributions.cases import normal, transform

SHAPES = [(3, 5), (5, 3), (4, 4), (1, 6), (6, 1)]


def problem(observations: int, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Roots, residuals and noises of two independent problems."""
    noise = 0.1 + normal("noise", 2, observations).square()
    return normal("root", 2, observations, rank), normal("residual", 2, observations), noise


@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
@pytest.mark.parametrize("rows", [1, 2, 5])
class TestLowRankUpdate:
    def test_is_its_matrix(self, batch: tuple[int, ...], rows: int) -> None:
        one, matrix = transform("transform", *batch, rows, 5)
        assert torch.allclose(one.dense(), matrix, rtol=0, atol=1e-14)
        assert torch.equal(one.dense(), one.product(torch.eye(5, dtype=torch.float64).expand(*batch, 5, 5)))
        assert (one.rank, one.batch_shape) == (5, batch)

    @pytest.mark.parametrize("more", [(), (4,), (2, 4), (0,)])
    def test_products(self, batch: tuple[int, ...], rows: int, more: tuple[int, ...]) -> None:
        one, matrix = transform("transform", *batch, rows, 5)
        latents = normal("latents", *batch, *more, 5)
        letters = "abc"[: len(batch)]
        expected = torch.einsum(f"{letters}kl,{letters}...l->{letters}...k", matrix, latents)
        assert one.product(latents).shape == latents.shape
        assert torch.allclose(one.product(latents), expected, rtol=0, atol=1e-13)
        assert one.product(latents.float()).dtype == torch.float32

    def test_is_selected_by_input(self, batch: tuple[int, ...], rows: int) -> None:
        one, matrix = transform("transform", *batch, rows, 5)
        if not batch:
            with pytest.raises(ShapeError, match=r"directions of shape \(\.\.\., n, r, k\)"):
                one[0]
            return
        for index in (0, -1, slice(1), torch.tensor([1, 0, 1])):
            assert torch.allclose(one[index].dense(), matrix[index], rtol=0, atol=1e-14)


@pytest.mark.parametrize(("observations", "rank"), SHAPES)
class TestPosteriorRoot:
    def test_is_bayes_rule(self, observations: int, rank: int) -> None:
        rows, root = normal("rows", 2, observations, rank), normal("weights", 2, rank, 4)
        moved = rows @ root
        result, log_determinant = posterior_root(root, moved.mT @ moved)
        precision = torch.eye(4, dtype=torch.float64) + moved.mT @ moved
        assert torch.allclose(result @ result.mT, root @ torch.linalg.inv(precision) @ root.mT, rtol=1e-11, atol=1e-13)
        assert torch.allclose(log_determinant, torch.logdet(precision), rtol=1e-12)


def test_rounding_makes_no_negative_variance() -> None:
    gram = torch.tensor([[1.0, 0.0], [0.0, -3.0]], dtype=torch.float64)  # far more than rounding, to be seen
    root, log_determinant = posterior_root(torch.eye(2, dtype=torch.float64), gram)
    assert torch.allclose(root @ root.mT, torch.diag(torch.tensor([0.5, 1.0], dtype=torch.float64)), rtol=1e-14)
    assert log_determinant.exp().item() == pytest.approx(2.0)


@pytest.mark.parametrize(("observations", "rank"), SHAPES)
class TestConditionNoisily:
    def test_is_bayes_rule(self, observations: int, rank: int) -> None:
        root, residual, noise = problem(observations, rank)
        update = condition_noisily(root, residual, noise)
        precision = torch.eye(rank, dtype=torch.float64) + root.mT @ (root / noise[..., None])
        shift = torch.linalg.solve(precision, (root.mT @ (residual / noise)[..., None])[..., 0])
        gram = root @ root.mT + torch.diag_embed(noise)
        chi2 = (residual * torch.linalg.solve(gram, residual)).mean(-1)
        assert torch.allclose(update.shift, shift, rtol=1e-11, atol=1e-12)
        factor = update.transform.dense()
        assert torch.allclose(factor @ factor.mT, torch.linalg.inv(precision), rtol=1e-11, atol=1e-12)
        assert torch.allclose(factor, factor.mT, rtol=0, atol=1e-14)  # the symmetric root
        assert update.transform.directions.shape == (2, min(observations, rank), rank)
        assert torch.allclose(update.chi2, chi2, rtol=1e-11)
        assert torch.allclose(update.multipliers, torch.linalg.solve(gram, residual), rtol=1e-9, atol=1e-11)

    def test_keeps_its_precision_from_no_noise_to_much(self, observations: int, rank: int) -> None:
        """The posterior variance of a single latent direction is noise / (noise + prior)."""
        for noise in (1e-12, 1e-6, 1.0, 1e12):
            root = torch.zeros(observations, rank, dtype=torch.float64)
            root[0, 0] = 2.0
            update = condition_noisily(
                root, torch.ones(observations, dtype=torch.float64), torch.full((observations,), noise).double()
            )
            assert update.transform.dense()[0, 0].square().item() == pytest.approx(noise / (noise + 4.0), rel=1e-3)
            assert update.shift[0].item() == pytest.approx(2.0 / (noise + 4.0), rel=1e-9)


def unequal_problem(observations: int, rank: int, *, noise: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, residuals, variances of 1 and of `noise`, and which rows have the latter.

    Leading columns of these are zero: reflections of columns in turn would begin with other rows.
    """
    root, latent, rest = normal("root", observations, rank), normal("latent", rank), normal("rest", observations)
    precise = torch.arange(observations) % 7 == 4
    variance = torch.where(precise, noise, torch.ones(observations, dtype=torch.float64))
    root[precise, :2] = 0.0
    return root, root @ latent + variance.sqrt() * rest, variance, precise


@pytest.mark.parametrize(("observations", "rank"), [(12, 20), (20, 12), (30, 6)])
@pytest.mark.parametrize("noise", [1e-20, 1e-30])
def test_precise_rows_hide_no_others(observations: int, rank: int, noise: float) -> None:
    """What rows of little noise say and then those of much is what all of them say together, wherever they stand."""
    root, residual, variance, precise = unequal_problem(observations, rank, noise=noise)
    found = condition_noisily(root, residual, variance)
    first = condition_noisily(root[precise], residual[precise], variance[precise])
    left = root[~precise] @ first.transform.dense()
    then = condition_noisily(left, residual[~precise] - root[~precise] @ first.shift, variance[~precise])
    shift = first.shift + first.transform.product(then.shift)
    torch.testing.assert_close(found.shift, shift, rtol=0.0, atol=1e-12)
    both = first.transform.dense() @ then.transform.dense()
    covariance = found.transform.dense() @ found.transform.dense().mT
    torch.testing.assert_close(covariance, both @ both.mT, rtol=0.0, atol=1e-13)


def exactly(root: Tensor, residual: Tensor, rounding: float = 1e-13) -> tuple[Tensor, Tensor, Tensor]:
    update = condition_exactly(
        root, residual, rounding=Rounding(*[torch.full_like(residual, rounding)] * 2), dtype=torch.float64
    )
    return update.shift, update.transform.dense(), update.chi2


class TestConditionExactly:
    @pytest.mark.parametrize(("observations", "rank"), [(3, 5), (4, 4), (1, 6)])
    def test_is_the_limit_of_no_noise(self, observations: int, rank: int) -> None:
        root, residual, noise = problem(observations, rank)
        shift, factor, chi2 = exactly(root, residual)
        limit = condition_noisily(root, residual, 1e-14 * noise)
        assert torch.allclose(root @ shift[..., None], residual[..., None], rtol=0, atol=1e-12)
        assert torch.allclose(shift, limit.shift, rtol=0, atol=1e-9)
        assert torch.allclose(factor, limit.transform.dense(), rtol=0, atol=1e-5)
        assert torch.allclose(factor @ factor, factor, rtol=0, atol=1e-13)  # a projection
        assert torch.allclose(chi2, limit.chi2, rtol=1e-8)

    def test_multipliers(self) -> None:
        """They solve the normal equations; observations that come twice share theirs."""
        root, residual, _ = problem(3, 5)
        rounding = torch.full_like(residual, 1e-13)
        update = condition_exactly(root, residual, rounding=Rounding(rounding, rounding), dtype=torch.float64)
        assert torch.allclose(update.multipliers, torch.linalg.solve(root @ root.mT, residual), rtol=1e-9)
        twice = [torch.cat([part, part], dim=1) for part in (root, residual, rounding)]
        repeated = condition_exactly(twice[0], twice[1], rounding=Rounding(twice[2], twice[2]), dtype=torch.float64)
        assert torch.allclose(repeated.multipliers, torch.cat([update.multipliers] * 2, dim=1) / 2, rtol=1e-9)

    @pytest.mark.parametrize("scale", [1e-9, 1e9])
    def test_does_not_depend_on_units(self, scale: float) -> None:
        root, residual, _ = problem(3, 5)
        units = torch.tensor([1.0, scale, 1.0], dtype=torch.float64)
        expected, actual = exactly(root, residual), exactly(root * units[:, None], residual * units, rounding=1e-30)
        for one, other in zip(expected, actual, strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-12)

    def test_rows_of_rounding_size_are_no_directions(self) -> None:
        root, residual, _ = problem(1, 4)
        blurred, zero = torch.cat([root, 1e-15 * normal("blur", 2, 1, 4)], dim=1), torch.zeros(2, 1, dtype=torch.float64)
        expected = exactly(root, residual)
        for one, other in zip(expected, exactly(blurred, torch.cat([residual, 1e-14 + zero], dim=1)), strict=True):
            assert torch.allclose(one, other, rtol=1e-12, atol=1e-13)

    @pytest.mark.bad_input
    def test_what_cannot_be_met_is_refused(self) -> None:
        root, residual, _ = problem(5, 3)
        with pytest.raises(ConstraintError, match=r"5 observations of numerical rank 3, 10 of which stay unmet"):
            exactly(root, residual)
        attainable = (root @ normal("latent", 3))[0]
        exactly(root[0], attainable)
        with pytest.raises(ConstraintError, match="drop repeated or contradicting observations"):
            exactly(root[0], attainable + 1e-4)


@pytest.mark.parametrize("rank", [1, 4, 19])
def test_numbers_that_follow_from_others_are_refused(rank: int) -> None:
    """Whichever way the rounding of their covariance falls: without noise there are only as many as the rank."""
    for seed in range(30):
        rows = normal(f"{seed} rows", 1, rank, rank)
        mix = normal(f"{seed} mix", 1, 1, rank)
        more = torch.cat([rows, torch.zeros_like(rows)], dim=-1)
        for dependent in (torch.cat([rows, mix @ rows], dim=1), torch.cat([more, mix @ more], dim=1)):
            with pytest.raises(ConstraintError, match="none follows from the others"):
                discrepancy_gain(dependent, None, dtype=torch.float64)
        single = torch.cat([more, mix @ more], dim=1).to(torch.float32).to(torch.float64)
        with pytest.raises(ConstraintError, match="none follows from the others"):
            discrepancy_gain(single, None, dtype=torch.float32)


@pytest.mark.parametrize("noise", [1.0, 1e-8, 1e-12, 1e-16])
def test_gains_are_right_where_noise_is_small(noise: float) -> None:
    """Six numbers of three causes, against the singular values: R^T (R R^T + noise)^-1 = V S / (S^2 + noise) U^T."""
    rows = normal("gain", 2, 6, 3)
    left, values, right = torch.linalg.svd(rows, full_matrices=False)
    exact = right.mT @ ((values / (values.square() + noise))[..., None] * left.mT)
    gain, whitening = discrepancy_gain(rows, torch.full((2, 6), noise, dtype=torch.float64), dtype=torch.float64)
    torch.testing.assert_close(gain, exact, rtol=0, atol=1e-13 * float(exact.abs().max()))
    torch.testing.assert_close(whitening, whitening.tril())
    covariance = rows @ rows.mT + noise * torch.eye(6, dtype=torch.float64)
    if noise == 1.0:
        torch.testing.assert_close(whitening @ covariance @ whitening.mT, torch.eye(6, dtype=torch.float64).expand(2, -1, -1))
