"""Fields with a discrepancy of each function's own, against the dense Gaussian over the latent vectors of all functions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, FeatureRoot, GaussianField, MixtureField, Root, ScaleMixtureField
from probneural.distributions.roots.modulated import ModulatedRoot
from probneural.distributions.roots.sums import CorrectedRoot, SideBySideRoot
from probneural.errors import ConstraintError, ShapeError
from probneural.functionals import MatrixFunctional, integral, sensors, stack
from probneural.grids import Grid
from tests.distributions.cases import assert_close, normal, transform
from tests.helpers import cross_covariance

GRID = Grid.uniform(6)
INPUTS, CHANNELS, RANK, OWN = 3, 2, 4, 5
TOLERANCE = 1e-11


def roots() -> tuple[Root, Root]:
    """A root that all functions share, and one of each function's own."""
    shared = FeatureRoot(normal("features", INPUTS, GRID.size, 3), normal("factor", 1, CHANNELS, 3, RANK))
    return shared, DenseRoot(normal("own", INPUTS, CHANNELS, GRID.size, OWN))


def field() -> GaussianField:
    shared, own = roots()
    mean = normal("mean", INPUTS, CHANNELS, GRID.size)
    return GaussianField(mean, shared, latent="shared", grid=GRID, discrepancy=own)


def dense() -> GaussianField:
    """The same distribution with one latent vector (xi, zeta_1, ..., zeta_n)."""
    shared, own = (root.dense() for root in roots())
    joint = torch.zeros(INPUTS, CHANNELS, GRID.size, RANK + INPUTS * OWN, dtype=torch.float64)
    joint[..., :RANK] = shared
    for index in range(INPUTS):
        joint[index, ..., RANK + index * OWN : RANK + (index + 1) * OWN] = own[index]
    return GaussianField(field().mean, DenseRoot(joint), latent="joint", grid=GRID)


def covariance(u: GaussianField) -> Tensor:
    return cross_covariance(u, u)


def assert_same(u: GaussianField, v: GaussianField, tolerance: float = TOLERANCE) -> None:
    """Mean, covariance among all functions, variance and the densities of single functions."""
    assert_close(u.mean, v.mean, tolerance)
    assert_close(covariance(u), covariance(v), tolerance)
    assert_close(u.variance, v.variance, tolerance)
    values = v.mean + 0.1
    assert_close(u.log_prob(values, noise=0.3), v.log_prob(values, noise=0.3), tolerance)


PROBE = stack([integral(GRID), sensors(GRID, [[0.3]])])
DATA = normal("data", INPUTS, CHANNELS, PROBE.size)


def test_the_distribution_is_the_dense_one() -> None:
    u, v = field(), dense()
    assert_same(u, v)
    assert u.base_shape == v.base_shape
    for draws in (0, 1, INPUTS, 7):  # few are drawn one by one, many function by function
        base = normal("base", draws, RANK + INPUTS * OWN)
        assert_close(u.rsample((draws,), base_samples=base), v.rsample((draws,), base_samples=base), TOLERANCE)
    assert_same(u.apply(PROBE), v.apply(PROBE))
    factors = torch.tensor([2.0, 0.5], dtype=torch.float64)
    assert_same(u.scale(factors), v.scale(factors))
    assert_same(u[[2, 0]], v[[2, 0]])
    assert_close(u.marginal(1).variance, v[1].variance, TOLERANCE)
    assert_close(u.covariance.to_dense(), v.covariance.to_dense(), TOLERANCE)


@pytest.mark.parametrize("noise", [0.1, 1e-8, 0.0])
def test_conditioning(noise: float) -> None:
    assert_same(field().condition(PROBE, DATA, noise=noise), dense().condition(PROBE, DATA, noise=noise), 1e-10)


def test_conditioning_again() -> None:
    probe = sensors(GRID, [[0.1]])
    values = normal("more", INPUTS, CHANNELS, 1)
    u, v = (one.condition(PROBE, DATA, noise=0.1).condition(probe, values, noise=0.2) for one in (field(), dense()))
    assert_same(u, v)


def test_what_some_functions_say_about_another() -> None:
    u, v = field(), dense()
    seen, expected = (one[:2].condition(PROBE, DATA[:2], noise=0.1) for one in (u, v))
    other, reference = u[2:].under(seen.latent), v[2:].under(expected.latent)
    assert_same(other, reference)
    assert seen.latent.chi2 == pytest.approx(expected.latent.chi2, rel=1e-10)
    assert_close(cross_covariance(seen, other), cross_covariance(expected, reference), TOLERANCE)


def test_one_function_in_detail_says_less_than_its_share_of_the_discrepancy() -> None:
    """However often one function is read, its own part stays between what is read and what is shared."""
    u = field()
    everywhere = sensors(GRID, GRID.points)
    seen = u[:1].condition(everywhere, u.mean[:1], noise=1e-9)
    assert seen.variance.max() < 1e-8
    assert (u[1:].under(seen.latent).variance >= u.discrepancy.select(slice(1, None)).row_squares()).all()


def test_constraints() -> None:
    base = normal("base", 7, RANK + INPUTS * OWN)
    u, v = field().constrain(PROBE, DATA), dense().constrain(PROBE, DATA)
    assert_close(u.mean, v.mean, TOLERANCE)
    assert_close(u.variance, v.variance, TOLERANCE)
    assert_close(u.rsample((7,), base_samples=base), v.rsample((7,), base_samples=base), TOLERANCE)
    assert_close(PROBE(u.rsample((5,), seed=0)), DATA.expand(5, -1, -1, -1), TOLERANCE)
    assert u.apply(PROBE).variance.max() < 1e-24

    def constraint(values: Tensor) -> Tensor:
        return (values.square().sum((1, 2)) - 8.0)[:, None]

    bent, reference = field().constrain_residual(constraint), dense().constrain_residual(constraint)
    assert_close(bent.mean, reference.mean, 1e-9)
    assert_close(bent.variance, reference.variance, 1e-9)


def test_too_many_exact_observations_of_a_function() -> None:
    u = field()
    flat = GaussianField(u.mean, u.root, latent="shared", grid=GRID, discrepancy=DenseRoot(normal("thin", 3, 2, 6, 1)))
    with pytest.raises(ConstraintError, match="a function's discrepancy"):
        flat.condition(PROBE, DATA)


def modulated() -> tuple[ModulatedRoot, Tensor]:
    std, modes = normal("std", INPUTS, CHANNELS, GRID.size).abs(), normal("modes", CHANNELS, GRID.size, 3)
    formed = torch.zeros(INPUTS, CHANNELS, GRID.size, CHANNELS, 3, dtype=torch.float64)
    for channel in range(CHANNELS):
        formed[:, channel, :, channel] = std[:, channel, :, None] * modes[channel]
    return ModulatedRoot(std, modes), formed.flatten(3)


def corrected() -> tuple[CorrectedRoot, Tensor]:
    base, columns, rows = roots()[0], normal("columns", INPUTS, CHANNELS, GRID.size, 2), normal("rows", INPUTS, 2, RANK)
    return CorrectedRoot(base, columns, rows), base.dense() + columns @ rows[:, None]


def side_by_side() -> tuple[SideBySideRoot, Tensor]:
    left, right = roots()[0], modulated()
    return SideBySideRoot(left, right[0]), torch.cat([left.dense(), right[1]], -1)


@pytest.mark.parametrize("make", [modulated, corrected, side_by_side])
def test_roots_stand_for_their_tensors(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    root, formed = make()  # type: ignore[operator]
    inputs, channels, points, rank = formed.shape
    assert root.shape == tuple(formed.shape)
    assert_close(root.dense(), formed, TOLERANCE)
    latents, values = normal("latents", 5, rank), normal("values", 5, inputs, channels, points)
    assert_close(root.product(latents), torch.einsum("ncpk,sk->sncp", formed, latents), TOLERANCE)
    assert_close(root.product_each(latents[:inputs]), torch.einsum("ncpk,nk->ncp", formed, latents[:inputs]), TOLERANCE)
    assert_close(root.transposed_product(values), torch.einsum("ncpk,sncp->sk", formed, values), TOLERANCE)
    each = values.movedim(0, 1)
    assert_close(root.pull(each), torch.einsum("ncpk,nmcp->nmk", formed, each), TOLERANCE)
    assert_close(root.row_squares(), formed.square().sum(-1), TOLERANCE)
    monkeypatch.setattr("probneural.distributions.roots.sums._DENSE_ELEMENTS", 1)
    assert_close(root.row_squares(), formed.square().sum(-1), TOLERANCE)
    assert_close(root.gram(), (formed.flatten(1, 2) @ formed.flatten(1, 2).mT), TOLERANCE)
    assert_close(root.push(PROBE).dense(), PROBE(formed.movedim(-1, 0)).movedim(0, -1), TOLERANCE)
    assert_close(root.scale(torch.tensor([2.0, 3.0])).dense()[:, 1], 3.0 * formed[:, 1], TOLERANCE)
    assert_close(root.select(torch.tensor([2, 0])).dense(), formed[[2, 0]], TOLERANCE)
    assert_close(root.marginal(1).dense(), formed[1:2], TOLERANCE)
    for one, _ in (transform("map", 2, rank), transform("map", INPUTS, 2, rank)):
        assert_close(root.compose(one).dense(), one.product(formed), TOLERANCE)
        twice = root.compose(one).compose(one)
        assert_close(twice.dense(), one.product(one.product(formed)), TOLERANCE)


@pytest.mark.bad_input
def test_roots_that_do_not_fit_together() -> None:
    shared, own = roots()
    with pytest.raises(ShapeError, match="9 latent dimensions"):
        SideBySideRoot(shared, own).compose(transform("map", 2, RANK)[0])
    with pytest.raises(ShapeError, match="the same samples"):
        GaussianField(field().mean, shared, latent="a", grid=GRID, discrepancy=own.select(slice(0, 2)))


def test_what_is_selected_from_one_prediction_shares_discrepancies() -> None:
    """Functions that two selections have in common are dependent through them, in any order, and what is applied is, too."""
    u, v = field(), dense()
    rows = (slice(None), slice(0, 2), [2, 0], [1, 1], 1)
    for first in rows:
        for second in rows:
            assert_close(cross_covariance(u[first], u[second]), cross_covariance(v[first], v[second]), TOLERANCE)
    pushed = cross_covariance(u[[0, 2]].apply(PROBE), u[1:])
    assert_close(pushed, cross_covariance(v[[0, 2]].apply(PROBE), v[1:]), TOLERANCE)
    assert_close(cross_covariance(u.marginal(-1), u), cross_covariance(v.marginal(2), v), TOLERANCE)


def test_a_function_that_is_selected_twice_is_one() -> None:
    """Its draws are, and stay so whatever is done to both; what is observed of it is to be said once."""
    twice = field()[[2, 0, 2]]
    own_rank = roots()[1].shape[3]
    factors = torch.full((twice.mean.shape[1],), 2.0, dtype=torch.float64)
    scaled = twice.scale(factors)
    constrained = twice.constrain(PROBE, PROBE(twice.mean) + 0.1)
    mixed = ScaleMixtureField(twice, torch.tensor([0.5, 2.0]))
    mixture = MixtureField([twice, field()[[2, 0, 2]]])
    matched = mixture.moment_matched()
    for u in (twice, scaled, constrained, twice.apply(PROBE), mixed, mixture.scale(factors), matched):
        drawn = u.rsample((2,), seed=0)
        torch.testing.assert_close(drawn[:, 0], drawn[:, 2], rtol=1e-14, atol=1e-14)  # products round by their place
        many = u.rsample((7,), seed=0)  # as many as functions, or fewer, are drawn in another way
        torch.testing.assert_close(many[:, 0], many[:, 2], rtol=1e-14, atol=1e-14)
        assert not torch.allclose(drawn[:, 0], drawn[:, 1])
    assert twice.base_shape == field()[[2, 0]].base_shape
    torch.testing.assert_close(twice.rsample((2,), seed=0)[:, :2], field()[[2, 0]].rsample((2,), seed=0))
    numbers = torch.zeros(1, *twice.base_shape, dtype=torch.float64)
    numbers[:, twice.latent.rank : twice.latent.rank + own_rank] = 1.0  # those of the first that was selected, number 2
    moved = (twice.rsample((1,), base_samples=numbers)[0] - twice.mean).flatten(1).abs().amax(1)
    assert (moved > 0).tolist() == [True, False, True]
    assert_close(cross_covariance(twice, twice), cross_covariance(dense()[[2, 0, 2]], dense()[[2, 0, 2]]), TOLERANCE)
    with pytest.raises(ConstraintError, match="3 of 2 samples"):
        twice.condition(PROBE, PROBE(twice.mean), noise=0.1)


def test_discrepancies_of_two_predictions_are_independent() -> None:
    u = field()
    shared = u.root.dense().flatten(0, 2)
    assert_close(cross_covariance(u, field()), shared @ shared.mT, TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exact_numbers_that_follow_from_others_are_refused_of_functions_with_a_discrepancy(dtype: torch.dtype) -> None:
    """The third is a mean of the other two: it would tell a posterior nothing but their rounding."""
    points = torch.tensor([[0.0, 1.0, 0, 0, 0, 0], [0, 0, 0, 0, 1.0, 0], [0, 0.3, 0, 0, 0.7, 0]], dtype=torch.float64)
    three, two = MatrixFunctional(GRID, points), MatrixFunctional(GRID, points[:2])
    for seed in range(10):
        root, own = normal(f"{seed} root", 1, 1, 6, 4, dtype=dtype), normal(f"{seed} own", 1, 1, 6, 6, dtype=dtype)
        mean = torch.full((1, 1, 6), 30.0, dtype=dtype)
        field = GaussianField(mean, DenseRoot(root), latent="xi", grid=GRID, discrepancy=DenseRoot(own))
        values = three(field.rsample(seed=seed))
        with pytest.raises(ConstraintError, match="none follows from the others"):
            field.condition(three, values)
        assert two(field.condition(two, values[..., :2]).mean).allclose(values[..., :2], rtol=1e-5)
