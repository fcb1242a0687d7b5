from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField, MixtureField
from probneural.fields import Field
from probneural.grids import Grid
from probneural.metrics import (
    calibration_error,
    chi2,
    compare,
    coverage,
    interval_width,
    pit,
    reliability,
    simultaneous_coverage,
)
from probneural.metrics.reliability import drawn_suprema, scaled_suprema
from tests.helpers import normal
from tests.metrics.cases import GRIDS, Maker, empirical, gaussian, shares, truth_for

GRID = Grid.uniform((16,))
NOISE = torch.tensor([0.3, 1.7], dtype=torch.float64)


def own_draws(n: int, *, rank: int = 4, noise: float = 0.5, claim: float = 1.0) -> tuple[GaussianField, Field]:
    """A Gaussian field, and for each of its n functions an independent draw from it plus noise."""
    u = gaussian(GRID, n=n, c=1, rank=rank)
    drawn = u.root.product_each(normal(n, rank, seed=5)) + math.sqrt(noise) * normal(n, 1, 16, seed=6)
    claimed = GaussianField(u.mean, DenseRoot(claim * u.root.dense()), latent="claim", grid=GRID)
    return claimed, Field(u.mean + drawn, GRID)


@pytest.mark.parametrize("make", [gaussian, empirical])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
def test_moments_enter_as_the_formulas_say(grid: Grid, make: Maker) -> None:
    u = make(grid)
    truth = truth_for(u)
    comparison = compare(u, truth, noise=NOISE)
    sd = (u.variance + NOISE.reshape(1, 2, *(1,) * len(grid.shape))).sqrt()
    z = (truth.values - u.mean) / sd

    def average(values: torch.Tensor) -> torch.Tensor:
        return (values.double().flatten(2) * shares(grid)).sum(-1)

    torch.testing.assert_close(chi2(comparison), average(z.square()))
    for level in (0.5, 0.9):
        half = stats.norm.ppf(0.5 + level / 2)
        torch.testing.assert_close(coverage(comparison, level=level), average(z.abs() <= half))
        torch.testing.assert_close(interval_width(comparison, level=level), average(2 * half * sd))
    levels = torch.arange(0.05, 0.96, 0.05).double()
    shortfall = torch.stack([coverage(comparison, level=float(level)).mean(0) - level for level in levels])
    torch.testing.assert_close(calibration_error(comparison), shortfall.abs().mean(0), rtol=1e-6, atol=1e-9)


def test_a_true_distribution_is_found_reliable() -> None:
    u, truth = own_draws(2000)
    comparison = compare(u, truth, noise=0.5)
    assert chi2(comparison).mean().item() == pytest.approx(1.0, abs=0.03)
    assert calibration_error(comparison).item() < 0.01
    for level in (0.5, 0.9):
        assert coverage(comparison, level=level).mean().item() == pytest.approx(level, abs=0.015)
        assert simultaneous_coverage(comparison, level=level).mean().item() == pytest.approx(level, abs=0.05)
    thinned = pit(comparison)[:, 0, 0]  # one value per function, so that they are independent
    assert stats.kstest(thinned.numpy(), "uniform").pvalue > 0.01


def test_draws_stop_when_a_sample_is_inside_or_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    u, truth = own_draws(40)
    comparison = compare(u, truth, noise=0.5)
    monkeypatch.setattr(reliability, "_CHUNK_ELEMENTS", 16 * truth.values[0].numel())  # sixteen draws at a time
    worst, suprema = reliability.true_supremum(comparison), reliability.drawn_suprema(comparison, draws=512, seed=0)
    samples: list[int] = []
    evaluate = reliability._suprema

    def counted(part: Any, *scales: Any, **options: Any) -> torch.Tensor:
        samples.append(len(part.truth))
        return evaluate(part, *scales, **options)

    monkeypatch.setattr(reliability, "_suprema", counted)
    for level in (0.5, 0.9):
        quantile = suprema.sort(0).values[math.ceil(513 * level) - 1]
        assert torch.equal(simultaneous_coverage(comparison, level=level), (worst <= quantile).double())
    assert 40 * 2 < sum(samples) < 0.7 * 40 * 2 * 32
    assert sorted(samples[: samples.index(40, 1)], reverse=True) == samples[: samples.index(40, 1)]


def test_transform_of_gaussian_and_mixture_against_scipy() -> None:
    u = gaussian(GRID)
    truth = truth_for(u)
    total = compare(u, truth, noise=NOISE).variance
    expected = stats.norm.cdf(truth.values.numpy(), u.mean.numpy(), total.sqrt().numpy())
    torch.testing.assert_close(pit(compare(u, truth, noise=NOISE)), torch.from_numpy(expected))
    members = empirical(GRID)
    sd = NOISE.sqrt()[:, None].numpy()
    parts = stats.norm.cdf(truth.values.numpy(), members.samples.numpy(), sd)
    expected = torch.einsum("s,sncp->ncp", members.weights, torch.from_numpy(parts))
    torch.testing.assert_close(pit(compare(members, truth, noise=NOISE)), expected)


def test_transform_takes_the_middle_of_jumps() -> None:
    grid = Grid.uniform((4,))
    members = torch.tensor([0.0, 1.0, 2.0]).double().reshape(3, 1, 1, 1).expand(3, 1, 1, 4)
    truth = Field(torch.tensor([[[-1.0, 0.0, 1.5, 2.0]]]).double(), grid)
    u = EmpiricalField(members, torch.tensor([0.5, 0.3, 0.2]), grid=grid)
    torch.testing.assert_close(pit(compare(u, truth))[0, 0], torch.tensor([0.0, 0.25, 0.8, 0.9]).double())
    sure = GaussianField(torch.zeros(1, 1, 4).double(), DenseRoot(torch.zeros(1, 1, 4, 1).double()), latent="xi", grid=grid)
    assert pit(compare(sure, truth))[0, 0].tolist() == [0.0, 0.5, 1.0, 1.0]


def test_zero_variance_with_and_without_an_error() -> None:
    grid = Grid.uniform((4,))
    root = torch.tensor([0.0, 1.0, 1.0, 1.0]).double().reshape(1, 1, 4, 1)
    u = GaussianField(torch.ones(1, 1, 4).double(), DenseRoot(root), latent="xi", grid=grid)
    right = compare(u, Field(torch.tensor([[[1.0, 3.0, 1.0, 1.0]]]).double(), grid))
    assert chi2(right).item() == 1.0
    assert coverage(right).item() == 0.75
    wrong = compare(u, Field(torch.tensor([[[1.1, 1.0, 1.0, 1.0]]]).double(), grid))
    assert chi2(wrong).item() == math.inf
    assert coverage(wrong).item() == 0.75
    assert simultaneous_coverage(wrong).item() == 0.0


def test_the_supremum_of_a_rank_one_field_is_one_normal_variable() -> None:
    u = gaussian(GRID, n=3, c=2, rank=1)
    half = stats.norm.ppf(0.95)
    for size, inside in ((half - 0.2, 1.0), (half + 0.2, 0.0)):
        moved = u.mean + size * u.root.dense()[..., 0]
        coverage = simultaneous_coverage(compare(u, Field(moved, GRID)), level=0.9, draws=4096)
        assert coverage.tolist() == [inside] * 3


def test_the_supremum_of_pure_noise_is_that_of_independent_normals() -> None:
    u = EmpiricalField(torch.zeros(1, 2, 1, 16).double(), grid=GRID)
    half = stats.norm.ppf(0.5 + 0.5 * 0.9 ** (1 / 16))  # P(all 16 inside) = 0.9
    for size, inside in ((half - 0.15, 1.0), (half + 0.15, 0.0)):
        truth = torch.zeros(2, 1, 16).double()
        truth[..., 5] = 0.7 * size
        coverage = simultaneous_coverage(compare(u, Field(truth, GRID), noise=0.49), level=0.9, draws=4096)
        assert coverage.tolist() == [inside] * 2


def test_members_of_an_ensemble_are_its_draws() -> None:
    u = empirical(GRID, n=2, c=1, members=5)
    z = ((u.samples - u.mean) / u.variance.sqrt()).abs().flatten(2).amax(-1)  # (5, 2)
    widest = u.samples[z.argmax(0), torch.arange(2)]
    assert simultaneous_coverage(compare(u, Field(widest, GRID)), level=0.999).tolist() == [1.0, 1.0]
    beyond = u.mean + 1.001 * (widest - u.mean)
    assert simultaneous_coverage(compare(u, Field(beyond, GRID)), level=0.999).tolist() == [0.0, 0.0]


def test_chunks_and_company_do_not_change_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    u, truth = own_draws(40)
    whole = simultaneous_coverage(compare(u, truth, noise=0.5), level=0.6)
    alone = [simultaneous_coverage(compare(u[i], truth[i], noise=0.5), level=0.6).item() for i in range(40)]
    assert alone == whole.tolist()
    monkeypatch.setattr(reliability, "_CHUNK_ELEMENTS", 512 * 16 * 7)  # all draws, seven functions at a time
    assert simultaneous_coverage(compare(u, truth, noise=0.5), level=0.6).tolist() == whole.tolist()
    monkeypatch.setattr(reliability, "_CHUNK_ELEMENTS", 4 * 16)  # other draws, 4 at a time: nearly the same verdict
    coverage = simultaneous_coverage(compare(u, truth, noise=0.5), level=0.6)
    assert (coverage - whole).abs().sum() <= 2
    assert 0 < whole.sum() < 40


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("points", "rank"), [(16, 16), (16, 17)])
def test_noise_and_field_are_drawn_independently(sign: float, points: int, rank: int) -> None:
    """A latent as long as a function must not be met again as its noise: then one sign covers all, the other nothing."""
    grid = Grid.uniform(points)
    generator = torch.Generator().manual_seed(5)
    truth = math.sqrt(2.0) * torch.randn(2000, 1, points, generator=generator, dtype=torch.float64)
    root = sign * torch.eye(points, rank, dtype=torch.float64).expand(2000, 1, points, rank)
    u = GaussianField(torch.zeros_like(truth), DenseRoot(root), latent="xi", grid=grid)
    covered = float(simultaneous_coverage(compare(u, Field(truth, grid), noise=1.0)).mean())
    assert abs(covered - 0.9) < 0.05  # quantile of 512 draws and 2000 functions: 4 sd are about .06


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_suprema_of_scaled_draws_are_those_of_a_scaled_field(noise: float) -> None:
    """In units of the deviations before; noise is not scaled."""
    grid = Grid.uniform(6)
    u = GaussianField(normal(3, 2, 6, seed="mean"), DenseRoot(normal(3, 2, 6, 4, seed="root")), latent="scaled", grid=grid)
    comparison = compare(u, Field(normal(3, 2, 6, seed="truth"), grid), noise=noise)
    found = scaled_suprema(comparison, [0.5, 1.0, 3.0], draws=40, seed=1)
    assert found.shape == (3, 40, 3)
    for scale, suprema in zip((0.5, 1.0, 3.0), found, strict=True):
        scaled = replace(comparison, distribution=u.scale(torch.full((2,), scale, dtype=torch.float64)))
        torch.testing.assert_close(suprema, drawn_suprema(scaled, draws=40, seed=1))
    if noise == 0.0:
        torch.testing.assert_close(found[2], 6.0 * found[0])
    else:
        assert float((found[2] / found[0]).median()) < 5.9


def test_what_is_certain_and_right_lies_in_every_interval() -> None:
    """At walls, where a value in single precision is beside one in double precision."""
    grid = Grid.uniform((4,), periodic=False)
    values = torch.tensor([0.1, 0.2, 0.3, 0.1], dtype=torch.float64).reshape(1, 1, 4)
    root = DenseRoot(torch.tensor([0.0, 1.0, 1.0, 0.0]).reshape(1, 1, 4, 1))
    one = GaussianField(values.float(), root, latent="xi", grid=grid)
    members = EmpiricalField(torch.stack([values.float() + sign * root.dense()[..., 0] for sign in (-1, 1)]), grid=grid)
    for u in (one, MixtureField([one, one.scale(torch.tensor([2.0]))]), members):
        comparison = compare(u, Field(values, grid))
        torch.testing.assert_close(pit(comparison), torch.full_like(values, 0.5), rtol=0, atol=1e-6)
        assert coverage(comparison, level=0.1).item() == 1.0
        wrong = compare(u, Field(values + torch.tensor([0.1, 0.0, 0.0, 0.0]), grid))
        assert pit(wrong)[0, 0, 0] == 1.0
