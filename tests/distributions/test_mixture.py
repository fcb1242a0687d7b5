"""Mixtures of Gaussian fields against closed forms, SciPy and their own draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField, MixtureField, ScaleMixtureField
from probneural.errors import ArgumentError, ConstraintError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import MatrixFunctional, integral, sensors, stack
from probneural.grids import Grid
from probneural.metrics import compare, crps
from probneural.metrics.proper_scores import mixture_crps
from tests.distributions.cases import normal

GRID = Grid.uniform(6)
NOISE = 0.2


def gaussian(name: str, *, rank: int = 8, functions: int = 3, own: bool = False, grid: Grid = GRID) -> GaussianField:
    shape = (functions, 1, grid.size)
    return GaussianField(
        normal(name, *shape),
        DenseRoot(0.5 * normal(name + " root", *shape, rank)),
        latent=name,
        grid=grid,
        discrepancy=DenseRoot(0.3 * normal(name + " own", *shape, 2)) if own else None,
    )


FIRST, SECOND = gaussian("first"), gaussian("second", rank=7, own=True)
WEIGHTS = torch.tensor([0.3, 0.7], dtype=torch.float64)
MIXED = MixtureField([FIRST, SECOND], WEIGHTS)
EACH = MixtureField([FIRST, SECOND], torch.tensor([[0.1, 0.5, 1.0], [0.9, 0.5, 0.0]], dtype=torch.float64))
TRUTH = normal("truth", 3, 1, 6)


def by_scipy(values: Tensor, what: str) -> np.ndarray:
    """Σ w_k of a function of every value under component k, observed with noise."""
    total = np.zeros(tuple(values.shape))
    for weight, field in zip(WEIGHTS.tolist(), (FIRST, SECOND), strict=True):
        distribution = stats.norm(field.mean.numpy(), (field.variance + NOISE).sqrt().numpy())
        total += weight * getattr(distribution, what)(values.numpy())
    return total


@pytest.mark.parametrize("noise", [0.0, NOISE])
def test_measurements_of_what_has_the_moments_are_those_of_a_dense_root(noise: float) -> None:
    """Its root has parts side by side, as that of a field with a discrepancy, and here it has none."""
    u = MixtureField([FIRST, gaussian("third", rank=4)], WEIGHTS).moment_matched()
    dense = GaussianField(u.mean, DenseRoot(u.root.dense()), latent="dense", grid=GRID)
    probe = sensors(GRID, [[0.2], [0.7]])
    told = [field.condition(probe, probe(TRUTH), noise=noise) for field in (u, dense)]
    held = [field.constrain(probe, probe(TRUTH)) for field in (u, dense)]
    for found, expected in (told, held):
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.covariance.to_dense(), expected.covariance.to_dense())


def test_density_of_whole_functions_is_the_sum_over_components() -> None:
    expected = np.zeros(3)
    for weight, field in zip(WEIGHTS.tolist(), (FIRST, SECOND), strict=True):
        for row in range(3):
            covariance = field.covariance[row].to_dense().numpy() + NOISE * np.eye(6)
            expected[row] += weight * stats.multivariate_normal(field.mean[row, 0].numpy(), covariance).pdf(
                TRUTH[row, 0].numpy()
            )
    np.testing.assert_allclose(MIXED.log_prob(TRUTH, noise=NOISE).exp().numpy(), expected, rtol=1e-10)


def test_density_and_distribution_function_of_values_are_those_of_scipy() -> None:
    np.testing.assert_allclose(MIXED.log_prob(TRUTH, noise=NOISE, joint=False).exp(), by_scipy(TRUTH, "pdf"), rtol=1e-12)
    np.testing.assert_allclose(MIXED.cdf(TRUTH, noise=NOISE), by_scipy(TRUTH, "cdf"), rtol=1e-12)


@pytest.mark.parametrize("field", [MIXED, EACH])
def test_quantiles_invert_the_distribution_function(field: MixtureField) -> None:
    levels = [1e-9, 0.05, 0.5, 0.95]
    for level, values in zip(levels, field.quantile(levels, noise=NOISE), strict=True):
        torch.testing.assert_close(field.cdf(values, noise=NOISE), torch.full_like(values, level), rtol=1e-6, atol=1e-13)
    lower, upper = field.interval(0.9, noise=NOISE)
    torch.testing.assert_close(lower, field.quantile(0.05, noise=NOISE), rtol=1e-12, atol=1e-12)
    assert bool((upper > lower).all())


def constant(value: float, std: float, *, functions: int = 1) -> GaussianField:
    """A field that is constant in space."""
    root = DenseRoot(torch.full((functions, 1, 6, 1), std).double())
    return GaussianField(torch.full((functions, 1, 6), value).double(), root, latent="xi", grid=GRID)


def test_quantiles_of_two_far_components_are_theirs() -> None:
    """With half of the mass on each side, the quartiles are the components' medians: a Gaussian's would be elsewhere."""
    field = MixtureField([constant(-1.0, 0.01), constant(1.0, 0.01)])
    quartiles = field.quantile([0.25, 0.75])
    torch.testing.assert_close(quartiles[0], torch.full((1, 1, 6), -1.0).double(), rtol=0, atol=1e-9)
    torch.testing.assert_close(quartiles[1], torch.full((1, 1, 6), 1.0).double(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("field", [MIXED, EACH])
def test_moments_are_those_of_the_draws_and_of_the_matched_gaussian(field: MixtureField) -> None:
    draws = field.rsample((20_000,), seed=0)
    spread = (field.variance / len(draws)).sqrt()
    assert bool(((draws.mean(0) - field.mean).abs() <= 5 * spread).all())
    matched = field.moment_matched()
    torch.testing.assert_close(matched.mean, field.mean)
    torch.testing.assert_close(matched.variance, field.variance)
    torch.testing.assert_close(field.standard_deviation, field.variance.sqrt())
    for row in range(3):
        covariance = matched.covariance[row].to_dense()
        scale = covariance.diagonal().sqrt()
        error = torch.cov(draws[:, row, 0].mT) - covariance
        assert float((error / scale / scale[:, None]).abs().max()) <= 0.06  # kurtosis included


def test_functionals_go_component_by_component() -> None:
    functional = integral(GRID)
    image, draws = MIXED.apply(functional), functional(MIXED.rsample((20_000,), seed=3))
    assert isinstance(image, MixtureField)
    torch.testing.assert_close(image.variance, MIXED.moment_matched().apply(functional).variance)
    for level in (0.1, 0.5, 0.9):
        below = (draws <= image.quantile(level)).double().mean(0)
        assert float((below - level).abs().max()) <= 5 * math.sqrt(level * (1 - level) / len(draws))
    labelled = MIXED.apply(sensors(GRID, [[0.0]]))
    assert labelled.std.shape == (3, 1, 1)


def test_crps_is_that_of_many_draws_and_of_one_gaussian() -> None:
    truth = Field(TRUTH, GRID)
    exact = crps(compare(MIXED, truth))
    draws = EmpiricalField(MIXED.rsample((1000,), seed=5), grid=GRID)
    sampled = crps(compare(draws, truth), is_fair=True)
    assert float((exact - sampled).abs().max()) <= 0.06
    members = torch.stack([FIRST.mean, SECOND.mean])
    blurred = mixture_crps(members, TRUTH, weights=WEIGHTS, variance=torch.full_like(TRUTH, NOISE))
    points = [GaussianField(one, DenseRoot(torch.zeros(3, 1, 6, 1).double()), latent="xi", grid=GRID) for one in members]
    mixed = crps(compare(MixtureField(points, WEIGHTS), truth, noise=NOISE))
    torch.testing.assert_close(mixed, blurred.mean(-1))


def test_scaling_widens_about_the_mixtures_mean() -> None:
    wider = MIXED.scale(torch.tensor([2.0]))
    torch.testing.assert_close(wider.mean, MIXED.mean)
    torch.testing.assert_close(wider.moment_matched().covariance.to_dense(), 4 * MIXED.moment_matched().covariance.to_dense())
    factors = 0.5 + torch.rand(MIXED.mean.shape, generator=torch.Generator().manual_seed(0)).double()
    varied = MIXED.scale(factors)
    torch.testing.assert_close(varied.mean, MIXED.mean)
    torch.testing.assert_close(varied.variance, factors.square() * MIXED.variance)


@pytest.mark.parametrize("field", [MIXED, EACH])
def test_selection_keeps_what_is_said_of_each_function(field: MixtureField) -> None:
    for rows in ([2, 0], slice(1, 3), 1, slice(3, 3)):
        chosen = field[rows]
        index = [rows] if isinstance(rows, int) else rows
        torch.testing.assert_close(chosen.variance, field.variance[index])
        torch.testing.assert_close(chosen.log_prob(TRUTH[index], noise=NOISE), field.log_prob(TRUTH, noise=NOISE)[index])
    torch.testing.assert_close(field.marginal(2).variance, field.variance[2:])


def test_mixtures_of_mixtures_are_flat() -> None:
    outer = MixtureField([MIXED, FIRST], torch.tensor([0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(outer.weights, torch.tensor([0.15, 0.35, 0.5], dtype=torch.float64))
    each = MixtureField([EACH, FIRST], torch.tensor([0.5, 0.5], dtype=torch.float64))
    torch.testing.assert_close(each.variance, MixtureField([*EACH.components, FIRST], each.weights).variance)
    assert each.weights.shape == (3, 3)


@pytest.mark.bad_input
@pytest.mark.parametrize("u", [MIXED, EACH, ScaleMixtureField(SECOND, torch.tensor([0.4, 2.0]), weights=WEIGHTS)])
def test_what_is_known_of_a_function_weighs_its_components(u: MixtureField) -> None:
    """p(B u | A u = y) = p(A u = y, B u) / p(A u = y): both sides are densities of mixtures."""
    known, asked = (MatrixFunctional(GRID, normal(name, count, 6)) for name, count in (("A", 2), ("B", 3)))
    values, others = normal("y", 3, 1, 2), normal("b", 3, 1, 3)
    constrained = u.constrain(known, values)
    assert isinstance(constrained, type(u))
    torch.testing.assert_close(constrained.rsample((4,), seed=0) @ known.matrix.mT, values.expand(4, 3, 1, 2))
    together = u.apply(stack([known, asked])).log_prob(torch.cat([values, others], dim=2))
    expected = together - u.apply(known).log_prob(values)
    torch.testing.assert_close(constrained.apply(asked).log_prob(others), expected)
    changed = values.clone()
    changed[1:] += 1.0  # other functions learn nothing
    torch.testing.assert_close(u.constrain(known, changed).weights[:, 0], constrained.weights[:, 0])
    assert float((u.constrain(known, changed).weights - constrained.weights).abs().max()) > 0.01
    with pytest.raises(ConstraintError, match="follows from the others"):
        u.constrain(stack([known, known]), torch.cat([values, values], dim=2))


class TestBadInput:
    def test_components(self) -> None:
        with pytest.raises(DataError, match="at least one component"):
            MixtureField([])
        with pytest.raises(DataError, match="GaussianField as component"):
            MixtureField([FIRST, EmpiricalField(TRUTH[None], grid=GRID)])
        with pytest.raises(GridError, match="components on Grid"):
            MixtureField([FIRST, gaussian("other", grid=Grid.uniform(5))])
        with pytest.raises(ShapeError, match="mean of a component"):
            MixtureField([FIRST, FIRST[:2]])

    def test_weights(self) -> None:
        with pytest.raises(ShapeError, match=r"weights \(2,\)"):
            MixtureField([FIRST, SECOND], torch.ones(3))
        for weights in ([1.0, -1.0], [0.0, 0.0], [math.nan, 1.0]):
            with pytest.raises(DataError, match="finite weights >= 0"):
                MixtureField([FIRST, SECOND], torch.tensor(weights))

    def test_values(self) -> None:
        with pytest.raises(ShapeError, match="values of shape"):
            MIXED.cdf(TRUTH[:1])
        with pytest.raises(ArgumentError, match="a seed or base samples"):
            MIXED.rsample((1,), seed=0, base_samples=torch.zeros(1, *MIXED.base_shape))


def test_nothing_asked_is_nothing_answered() -> None:
    for u in (MIXED, EACH, ScaleMixtureField(FIRST, torch.tensor([0.5, 2.0]), weights=torch.tensor([0.5, 0.5]))):
        assert u.rsample((0,)).shape == (0, 3, 1, 6)
        assert u.quantile([]).shape == (0, 3, 1, 6)


@pytest.mark.parametrize("own", [False, True])
def test_no_functions_are_a_field(own: bool) -> None:
    """Nothing is known from observations of none."""
    u = gaussian("some", own=own)
    probe = sensors(GRID, [[0.2], [0.7]])
    scales = torch.tensor([0.5, 2.0])
    fields = (u, MixtureField([u, FIRST]), ScaleMixtureField(u, scales), ScaleMixtureField(u, scales, weights=torch.ones(2, 3)))
    for none in (field[:0] for field in fields):
        assert none.rsample((2,), seed=0).shape == (2, 0, 1, 6)
        assert none.log_prob(none.mean, noise=NOISE).shape == (0,)
        assert none.constrain(probe, torch.zeros(0, 1, 2)).mean.shape == (0, 1, 6)
        assert none.scale(torch.ones(1)).variance.shape == (0, 1, 6)
        if isinstance(none, MixtureField):
            assert none.moment_matched().variance.shape == (0, 1, 6)
    for noise in (0.0, NOISE):
        told = u[:0].condition(probe, torch.zeros(0, 1, 2), noise=noise).latent
        after = u.under(told)
        torch.testing.assert_close(after.mean, u.mean)
        torch.testing.assert_close(after.variance, u.variance)


def test_marginals_count_from_either_end() -> None:
    for u in (FIRST, SECOND, MIXED, EACH, ScaleMixtureField(FIRST, torch.tensor([0.5, 2.0]), weights=torch.tensor([0.5, 0.5]))):
        assert torch.equal(u.marginal(-1).mean, u.mean[2:])
        torch.testing.assert_close(u.marginal(-3).variance, u.variance[:1])
        for index in (3, -4):
            with pytest.raises(IndexError):
                u.marginal(index)


@pytest.mark.parametrize("size", [1.0, 3.0])
def test_weights_have_the_derivatives_of_their_shares(size: float) -> None:
    """Where they sum to 1, too: a common factor of all changes nothing."""
    weights = (size * WEIGHTS).requires_grad_()
    density = MixtureField([FIRST, SECOND], weights).log_prob(TRUTH, noise=NOISE).sum()
    (slope,) = torch.autograd.grad(density, weights)
    assert abs(float(slope @ weights.detach())) < 1e-12 * float(slope.abs().sum())
    assert torch.equal(MixtureField([FIRST, SECOND], WEIGHTS).weights, WEIGHTS)


def alone(value: float, std: float, *, functions: int = 1) -> GaussianField:
    """Functions of one point, which have one distribution."""
    mean = torch.full((functions, 1, 1), value, dtype=torch.float64)
    return GaussianField(mean, DenseRoot(torch.full_like(mean, std)[..., None]), latent="xi", grid=Grid.uniform(1))


class TestNoWeight:
    """Components that have none, for some functions or for all, count for nothing."""

    FAR = MixtureField(
        [alone(0.0, 1.0, functions=2), alone(1e16, 1.0, functions=2), alone(1e200, 1e200, functions=2)],
        torch.tensor([[0.4, 1.0], [0.6, 0.0], [0.0, 0.0]], dtype=torch.float64),
    )

    def test_moments(self) -> None:
        certain = MixtureField([alone(0.0, 1.0), alone(0.0, 1e200)], torch.tensor([1.0, 0.0]))
        assert certain.variance.item() == 1.0
        assert MixtureField([alone(0.0, 1.0), alone(1e200, 1.0)], torch.tensor([1.0, 0.0])).variance.item() == 1.0
        assert self.FAR.variance[1].item() == pytest.approx(1.0)
        assert self.FAR.variance[0].item() == pytest.approx(0.24e32)

    @pytest.mark.parametrize("level", [0.1, 0.3, 0.5, 0.9])
    def test_quantiles(self, level: float) -> None:
        found = self.FAR.quantile(level)
        assert found[1].item() == pytest.approx(stats.norm.ppf(level), abs=1e-14)
        expected = stats.norm.ppf(level / 0.4) if level < 0.4 else 1e16
        assert found[0].item() == pytest.approx(expected, rel=1e-13)

    def test_densities_have_derivatives_by_weights(self) -> None:
        """A weight of zero that grows adds its component's share."""
        weights = torch.tensor([[1.0, 0.4], [0.0, 0.6]], dtype=torch.float64, requires_grad=True)
        for value, expected in ((0.5, 0.0), (1.0, math.exp(0.5) - 1.0)):
            u = MixtureField([alone(0.0, 1.0, functions=2), alone(1.0, 1.0, functions=2)], weights)
            values = torch.full((2, 1, 1), value, dtype=torch.float64)
            for joint in (True, False):
                (slope,) = torch.autograd.grad(u.log_prob(values, joint=joint).sum(), weights, retain_graph=True)
                assert slope[:, 0].tolist() == pytest.approx([0.0, expected], abs=1e-12)

    def test_derivatives_by_the_weight_of_a_component_that_no_function_has(self) -> None:
        """Of N(0, 1) with a little of N(3, 4): the variance is w 4 + (1 - w) + 9 w (1 - w)."""
        weights = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
        for read, slope in (("variance", 12.0), ("standard_deviation", 6.0), ("mean", 3.0)):
            u = MixtureField([alone(0.0, 1.0), alone(3.0, 2.0)], weights)
            (found,) = torch.autograd.grad(getattr(u, read).sum(), weights)
            assert found.tolist() == pytest.approx([0.0, slope])
        u = MixtureField([alone(0.0, 1.0), alone(1.0, 1.0)], weights)
        (found,) = torch.autograd.grad(u.log_prob(torch.ones(1, 1, 1, dtype=torch.float64)).sum(), weights)
        assert found.tolist() == pytest.approx([0.0, math.exp(0.5) - 1.0])

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_scales(self, dtype: torch.dtype) -> None:
        one = GaussianField(
            torch.zeros(2, 1, 1, dtype=dtype), DenseRoot(torch.ones(2, 1, 1, 1, dtype=dtype)), latent="xi", grid=Grid.uniform(1)
        )
        scales = torch.tensor([1.0, 1e30 if dtype == torch.float32 else 1e200], dtype=torch.float64)
        for weights in (torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 1.0], [0.0, 0.0]])):
            u = ScaleMixtureField(one, scales, weights=weights)
            assert u.variance.flatten().tolist() == [1.0, 1.0]
            assert u.standard_deviation.flatten().tolist() == [1.0, 1.0]
            assert u.moment_matched().variance.flatten().tolist() == [1.0, 1.0]
            assert crps(compare(u, Field(torch.zeros(2, 1, 1, dtype=dtype), u.grid))).isfinite().all()

    def test_what_no_component_with_weight_has_a_density_for_is_as_unlikely_as_it_is(self) -> None:
        u = MixtureField([alone(0.0, 1.0), alone(100.0, 1.0)], torch.tensor([[1.0], [0.0]], dtype=torch.float64))
        far = torch.full((1, 1, 1), 100.0, dtype=torch.float64)
        assert u.log_prob(far).item() == pytest.approx(-5000.0 - 0.5 * math.log(2.0 * math.pi))


def test_weights_of_any_size_are_shares() -> None:
    for size in (1e308, 1e-308, 5e-324):
        u = MixtureField([alone(0.0, 1.0), alone(1.0, 1.0)], torch.tensor([size, size], dtype=torch.float64))
        assert u.weights.tolist() == [0.5, 0.5]


class Elsewhere(GaussianField):
    """A field of stated deviations, on a device that need not be there."""

    @property
    def standard_deviation(self) -> Tensor:
        return torch.ones_like(self.mean)


def test_deviations_on_a_device_take_weights_from_the_cpu() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        mean, root = torch.zeros(2, 1, 6, device="cuda"), DenseRoot(torch.ones(2, 1, 6, 3, device="cuda"))
        field = MixtureField([Elsewhere(mean, root, latent=name, grid=GRID) for name in ("first", "second")])
        assert field.weights.device.type == "cpu"
        assert field.standard_deviation.device.type == "cuda"
