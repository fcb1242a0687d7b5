"""Densities against dense algebra, in batches, with more and with fewer observations than latents."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.linear_algebra import densities
from probneural.linear_algebra.conditioning import condition_noisily
from probneural.linear_algebra.densities import (
    _GRAM_TRACE,
    FactoredModes,
    _by_singular_values,
    log_density,
    log_density_of_gram,
    log_density_without_noise,
    normal_log_density,
)
from tests.distributions.cases import normal
from tests.linear_algebra.test_conditioning import SHAPES, problem, unequal_problem


@pytest.mark.parametrize(("observations", "rank"), SHAPES)
class TestLogDensity:
    def normal(self, root: Tensor, noise: Tensor) -> torch.distributions.MultivariateNormal:
        covariance = root @ root.mT + torch.diag_embed(noise)
        return torch.distributions.MultivariateNormal(torch.zeros_like(noise), covariance)

    def test_with_noise(self, observations: int, rank: int) -> None:
        root, residual, noise = problem(observations, rank)
        assert torch.allclose(log_density(root, residual, noise), self.normal(root, noise).log_prob(residual), rtol=1e-11)

    def test_from_the_gram_matrix(self, observations: int, rank: int) -> None:
        root, residual, noise = problem(observations, rank)
        units = 10.0 ** torch.arange(-8, 8, dtype=torch.float64)[:observations]
        root, residual, noise = root * units[:, None], residual * units, noise * units.square()
        gram = root @ root.mT
        density = log_density_of_gram(gram, residual, noise, dtype=torch.float64)
        assert torch.allclose(density, log_density(root, residual, noise), rtol=1e-11)
        exact = log_density_of_gram(gram, residual, 0 * noise, dtype=torch.float64)
        if observations > rank:
            assert exact.isnan().all()
        else:
            assert torch.allclose(exact, log_density_without_noise(root, residual, dtype=torch.float64), rtol=1e-9)
        half = noise * (torch.arange(observations) < 1)
        partly = log_density_of_gram(gram, residual, half, dtype=torch.float64)
        wider = torch.cat([root, torch.diag_embed(half.sqrt())], dim=-1)
        if observations <= rank + 1:
            assert torch.allclose(partly, log_density_without_noise(wider, residual, dtype=torch.float64), rtol=1e-9)
        else:
            assert partly.isnan().all()

    def test_without_noise(self, observations: int, rank: int) -> None:
        root, residual, noise = problem(observations, rank)
        density = log_density_without_noise(root, residual, dtype=torch.float64)
        if observations > rank:
            assert density.isnan().all()
        else:
            assert torch.allclose(density, self.normal(root, 0 * noise).log_prob(residual), rtol=1e-9)

    def test_without_noise_of_a_deficient_root(self, observations: int, rank: int) -> None:
        root, residual, _ = problem(observations, rank)
        root[..., -1, :] = root.sum(-2) - root[..., -1, :] if observations > 1 else 0.0
        assert log_density_without_noise(root, residual, dtype=torch.float64).isnan().all()


class TestLogDensityOfManyColumns:
    """Where a Gram matrix, the covariance, or a triangle takes the place of singular values."""

    @pytest.mark.parametrize("share", [1e-8, 1e-3, 0.999, 1.001, 1e3, 1e7])
    @pytest.mark.parametrize("decay", [0.0, 4.0, 12.0])
    @pytest.mark.parametrize("values", [200, 80, 70])
    def test_is_that_of_singular_values(self, share: float, decay: float, values: int) -> None:
        """Below and above the largest trace of a Gram matrix, along directions of much and of little variance."""
        root = normal("root", 2, values, 80) * torch.logspace(0.0, -decay, 80, dtype=torch.float64)
        root = root * (share * _GRAM_TRACE / root.square().sum((-2, -1)).max()).sqrt()
        noise = 0.1 + normal("noise", 2, values).square()
        root = root * noise.sqrt()[..., None]
        for residual in (normal("residual", 2, values), 3.0 * root[..., 0], 3.0 * root[..., -1] + noise.sqrt()):
            found = log_density(root, residual, noise)
            inverse = noise.rsqrt()
            quadratic, log_determinant = _by_singular_values(root * inverse[..., None], residual * inverse)
            expected = normal_log_density(quadratic, log_determinant + noise.log().sum(-1), residual)
            assert torch.allclose(found, expected, rtol=0.0, atol=80 * 2e-9)  # 1e-9 per eigenvalue, in twice its logarithm

    @pytest.mark.parametrize(("way", "values"), [("by_gram", 90), ("by_covariance", 70)])
    def test_larger_traces_take_triangles(self, way: str, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(densities, way, None)
        monkeypatch.setattr(densities, "_by_singular_values", None)
        root, residual = normal("root", 2, values, 80), normal("residual", 2, values)
        root = root * (1.001 * _GRAM_TRACE / root[1].square().sum()).sqrt()
        log_density(root, residual, torch.ones(2, values, dtype=torch.float64))
        with pytest.raises(TypeError, match="NoneType"):
            log_density(0.9 * root[1:], residual[1:], torch.ones(1, values, dtype=torch.float64))

    @pytest.mark.parametrize("place", [0, 1])
    def test_a_derivative_takes_singular_values(self, place: int) -> None:
        """A triangle alone has none; the value is that without a derivative."""
        inputs = [1e4 * normal("root", 1, 90, 80), normal("residual", 1, 90)]
        noise = torch.ones(1, 90, dtype=torch.float64)
        alone = log_density(*inputs, noise)
        inputs[place].requires_grad_()
        found = log_density(*inputs, noise)
        assert torch.equal(found, alone)
        found.sum().backward()
        assert bool(inputs[place].grad.abs().sum() > 0)

    @pytest.mark.parametrize(("observations", "rank"), [(12, 20), (20, 12), (30, 6)])
    @pytest.mark.parametrize("size", [1e-20, 1e-25])
    def test_precise_rows_hide_no_others(self, observations: int, rank: int, size: float) -> None:
        """The density of all is that of rows of little noise times that of the others, given these."""
        root, residual, noise, precise = unequal_problem(observations, rank, noise=size)
        first = condition_noisily(root[precise], residual[precise], noise[precise])
        left = log_density(
            first.transform.product(root[~precise]), residual[~precise] - root[~precise] @ first.shift, noise[~precise]
        )
        expected = log_density(root[precise], residual[precise], noise[precise]) + left
        torch.testing.assert_close(log_density(root, residual, noise), expected, rtol=0.0, atol=1e-9)

    def test_groups_of_rows_leave_columns_of_zeros_out(self) -> None:
        root, residual = 0.3 * normal("root", 300, 200), normal("residual", 300)
        root[:100, 50:150], root[100:200, :60], root[200:, 3::2] = 0.0, 0.0, 0.0
        noise = 0.5 + normal("noise", 300).square()
        expected = torch.distributions.MultivariateNormal(torch.zeros(300).double(), root @ root.mT + noise.diag())
        for groups in (1, 3):
            found = log_density(root, residual, noise, groups=groups)
            assert torch.allclose(found, expected.log_prob(residual), rtol=1e-12)

    @pytest.mark.parametrize(("values", "columns"), [(700, 600), (600, 700)])
    def test_blocks_of_a_gram_matrix(self, values: int, columns: int) -> None:
        root, residual = 0.1 * normal("root", 2, values, columns), normal("residual", 2, values)
        noise = 0.5 + normal("noise", 2, values).square()
        dense = torch.distributions.MultivariateNormal(torch.zeros_like(residual), root @ root.mT + torch.diag_embed(noise))
        assert torch.allclose(log_density(root, residual, noise), dense.log_prob(residual), rtol=1e-11)

    def test_no_functions_have_no_densities(self) -> None:
        none = torch.zeros(0, 90, 80, dtype=torch.float64)
        assert log_density(none, none[..., 0], 1.0 + none[..., 0]).shape == (0,)

    @pytest.mark.parametrize("columns", [70, 100])
    def test_its_gradient(self, columns: int) -> None:
        root, residual = 0.3 * normal("root", 1, 90, columns), normal("residual", 1, 90)
        noise = 0.5 + normal("noise", 1, 90).square()
        inputs = [tensor.clone().requires_grad_() for tensor in (root, residual, noise)]
        found = torch.autograd.grad(log_density(*inputs).sum(), inputs)
        covariance = inputs[0] @ inputs[0].mT + torch.diag_embed(inputs[2])
        dense = torch.distributions.MultivariateNormal(torch.zeros_like(residual), covariance)
        for one, other in zip(found, torch.autograd.grad(dense.log_prob(inputs[1]).sum(), inputs), strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-10)


def test_modes_in_common_of_channels_with_latents_of_their_own() -> None:
    modes, root, residuals = normal("modes", 2, 30, 7), normal("root", 2, 30, 5), normal("residuals", 3, 2, 30)
    root[0, :, :2] = 0.0
    covariance = torch.eye(60, dtype=torch.float64) + root.flatten(0, 1) @ root.flatten(0, 1).mT
    covariance += torch.block_diag(*(100.0 * modes @ modes.mT))
    expected = torch.distributions.MultivariateNormal(torch.zeros(60).double(), covariance).log_prob(residuals.flatten(1))
    torch.testing.assert_close(FactoredModes(10.0 * modes).log_densities(root, residuals), expected, rtol=1e-12, atol=0)
