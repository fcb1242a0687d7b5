"""One field at several scales: the mixture of its components in all that is asked of it, with one field's work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, GaussianField, MixtureField, ScaleMixtureField, intervals
from probneural.distributions.roots.modulated import DiagonalRoot, ModulatedRoot
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.distributions.scale_mixture import with_shared_discrepancy
from probneural.errors import ArgumentError, ShapeError
from probneural.fields import Field
from probneural.functionals import Functional, integral, sensors, stack
from probneural.grids import Grid
from probneural.linear_algebra.densities import FactoredModes
from probneural.metrics import compare, coverage, crps, interval_width, joint_nll, nll
from tests.distributions.cases import normal

GRID = Grid.uniform(6)
SCALES = torch.tensor([0.4, 1.0, 2.5], dtype=torch.float64)
SHARED = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
EACH = torch.tensor([[0.2, 0.0, 0.6], [0.5, 1.0, 0.1], [0.3, 0.0, 0.3]], dtype=torch.float64)


class Counter:
    """A method that counts its calls."""

    def __init__(self, method: Any) -> None:
        self.method, self.calls = method, 0

    def __get__(self, instance: object, owner: type) -> Any:
        self.calls += 1
        return self.method.__get__(instance, owner)


class Counted(DenseRoot):
    """A root that counts how often it is pushed through a functional."""

    pushes = 0

    def push(self, functional: Functional) -> DenseRoot:
        Counted.pushes += 1
        return DenseRoot(super().push(functional).dense())


def gaussian(*, own: bool = False) -> GaussianField:
    return GaussianField(
        normal("mean", 3, 2, 6),
        Counted(0.5 * normal("root", 3, 2, 6, 8)),
        latent="xi",
        grid=GRID,
        discrepancy=DenseRoot(0.3 * normal("own", 3, 2, 6, 2)) if own else None,
    )


def both(weights: Tensor, *, own: bool = False) -> tuple[ScaleMixtureField, MixtureField]:
    """The field, and the same as a mixture of Gaussian fields that know nothing of each other."""
    field = gaussian(own=own)
    return ScaleMixtureField(field, SCALES, weights=weights), MixtureField(
        [field.scale(torch.full((2,), scale).double()) for scale in SCALES.tolist()], weights
    )


CASES = pytest.mark.parametrize(
    ("weights", "own"), [(SHARED, False), (SHARED, True), (EACH, False)], ids=["shared", "with a discrepancy", "by function"]
)


@CASES
def test_it_is_the_mixture_of_its_components(weights: Tensor, own: bool) -> None:
    one, other = both(weights, own=own)
    truth = normal("truth", 3, 2, 6)

    def alike(first: ScaleMixtureField, second: MixtureField, truth: Tensor) -> None:
        assert isinstance(first, ScaleMixtureField)
        assert len(first.components) == 3
        for name in ("mean", "variance", "standard_deviation", "std", "labels", "grid"):
            found, expected = getattr(first, name), getattr(second, name)
            assert found == expected if not isinstance(found, Tensor) else torch.allclose(found, expected), name
        for noise in (0.0, 0.3):
            densities = [u.log_prob(truth, noise=noise, joint=False) for u in (first, second)]
            torch.testing.assert_close(*densities)
            torch.testing.assert_close(first.cdf(truth, noise=noise), second.cdf(truth, noise=noise))
            torch.testing.assert_close(first.quantile([0.1, 0.7], noise=noise), second.quantile([0.1, 0.7], noise=noise))
            torch.testing.assert_close(
                first.log_prob(truth, noise=noise + 0.1, joint=True), second.log_prob(truth, noise=noise + 0.1, joint=True)
            )
        matched = [u.moment_matched() for u in (first, second)]
        torch.testing.assert_close(matched[0].mean, matched[1].mean)
        torch.testing.assert_close(*(u.covariance.to_dense() for u in matched))

    alike(one, other, truth)
    alike(one[1:], other[1:], truth[1:])
    alike(one.marginal(2), other.marginal(2), truth[2:])
    factors = torch.tensor([0.5, 3.0]).double()
    alike(one.scale(factors), other.scale(factors), truth)
    varying = 0.5 + normal("factors", 3, 2, 6).square()
    alike(one.scale(varying), other.scale(varying), truth)
    probe = stack([integral(GRID), sensors(GRID, [[0.3]])])
    image, expected = one.apply(probe), other.apply(probe)
    assert image.labels == expected.labels
    alike(image, expected, normal("image", 3, 2, 2))
    comparisons = [compare(u, Field(truth, GRID), noise=0.2) for u in (one, other)]
    for score in (crps, nll, joint_nll, coverage, interval_width):
        torch.testing.assert_close(*(score(comparison) for comparison in comparisons))


@CASES
def test_draws_are_those_of_the_mixture(weights: Tensor, own: bool) -> None:
    """Second and fourth moments and what draws cover; a draw with shared weights has one scale for all functions."""
    one, other = both(weights, own=own)
    draws = [u.rsample((20_000,), seed=seed) for seed, u in enumerate((one, other))]
    for power in (2, 4):
        moments = [(drawn - one.mean).pow(power).mean(0) for drawn in draws]
        torch.testing.assert_close(*moments, rtol=0.12 if power == 2 else 0.5, atol=0.01)
    torch.testing.assert_close(draws[0].var(0), one.variance, rtol=0.12, atol=0.01)
    close = [((drawn - one.mean).abs() <= 2.0 * one.standard_deviation).flatten(2).all(-1).double().mean(0) for drawn in draws]
    torch.testing.assert_close(*close, rtol=0.0, atol=0.02)
    if weights.ndim == 1 and not own:
        sizes = ((draws[0] - one.mean) / one.standard_deviation).square().mean((2, 3)).sqrt().log()
        joint = torch.corrcoef(sizes.mT)
        assert float(joint[0, 1]) > 0.5  # a common scale


def test_draws_have_gradients_and_base_samples() -> None:
    root = (0.5 * normal("root", 1, 1, 6, 4)).requires_grad_()
    u = ScaleMixtureField(
        GaussianField(torch.zeros(1, 1, 6).double(), DenseRoot(root), latent="xi", grid=GRID), SCALES, weights=SHARED
    )
    assert tuple(u.base_shape) == (5,)
    numbers = normal("numbers", 7, 5)
    drawn = u.rsample((7,), base_samples=numbers)
    (gradient,) = torch.autograd.grad(drawn.sum(), root)
    # The draw is in proportion to the root, so the sum is its own derivative along it.
    torch.testing.assert_close((gradient * root).sum(), drawn.sum())
    chosen = torch.bucketize(torch.special.ndtr(numbers[:, 0]), SHARED.cumsum(0)[:-1])
    torch.testing.assert_close(drawn[:, 0, 0], SCALES[chosen][:, None] * (numbers[:, 1:] @ root[0, 0].mT))


@pytest.mark.bad_input
def test_what_is_refused() -> None:
    for scales in ([], [1.0, 0.0], [[1.0]], [float("nan")]):
        with pytest.raises(ArgumentError, match="scales"):
            ScaleMixtureField(gaussian(), torch.tensor(scales))
    with pytest.raises(ShapeError, match="weights"):
        ScaleMixtureField(gaussian(), SCALES, weights=SHARED[:2])


def with_modes(white: Tensor) -> GaussianField:
    """A field whose discrepancy has modes in common, and white noise of these deviations."""
    std = 0.2 + normal("std", 3, 2, 24).abs()
    return GaussianField(
        normal("mean", 3, 2, 24),
        DenseRoot(0.5 * normal("root", 3, 2, 24, 4)),
        latent="xi",
        grid=Grid.uniform(24),
        discrepancy=SideBySideRoot(ModulatedRoot(std, normal("modes", 2, 24, 5)), DiagonalRoot(white * std)),
    )


@pytest.mark.parametrize("is_common", [True, False])
def test_joint_densities_with_modes_in_common(is_common: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of dense covariances; the modes are factored once for all samples, scales and values."""
    factored: list[int] = []
    monkeypatch.setattr(intervals, "FactoredModes", lambda modes: FactoredModes(modes) if factored.append(1) is None else None)
    monkeypatch.setattr(FactoredModes, "log_densities", counted := Counter(FactoredModes.log_densities))
    field, truth = (
        with_modes(0.3 * torch.ones(()) if is_common else 0.2 + normal("white", 3, 2, 24).abs()),
        normal("y", 3, 2, 24),
    )
    assert field.discrepancy is not None
    dense = torch.cat([root.dense().flatten(1, 2) for root in (field.root, field.discrepancy)], -1)
    parts = [
        torch.distributions.MultivariateNormal(field.mean.flatten(1), scale**2 * dense @ dense.mT).log_prob(truth.flatten(1))
        for scale in SCALES.tolist()
    ]
    expected = (torch.stack(parts) + SHARED.log()[:, None]).logsumexp(0)
    torch.testing.assert_close(ScaleMixtureField(field, SCALES, weights=SHARED).log_prob(truth), expected, rtol=1e-10, atol=0)
    assert (len(factored), counted.calls) == (1, 3 if is_common else 0)
    torch.testing.assert_close(field.log_prob(truth), parts[1], rtol=1e-10, atol=0)


def test_samples_that_share_a_discrepancy_keep_their_distributions() -> None:
    field = ScaleMixtureField(with_modes(torch.tensor(0.3).double()), SCALES, weights=EACH)
    shared = with_shared_discrepancy(field)
    assert shared.base_shape == field.marginal(1).base_shape
    numbers = normal("numbers", 50, *shared.base_shape)
    drawn = shared.rsample((50,), base_samples=numbers)
    for row in range(3):
        torch.testing.assert_close(drawn[:, row], field.marginal(row).rsample((50,), base_samples=numbers)[:, 0])
