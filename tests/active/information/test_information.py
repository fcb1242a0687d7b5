"""Information gain and variance reduction against dense Gaussian algebra."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.active.information import latent_information
from probneural.active.information.latent_information import (
    information_gain,
    observation_moments,
    target_moments,
    variance_reduction,
    variance_reduction_of_moments,
)
from probneural.active.information.observation import observation_weights, whitened_rows
from probneural.distributions import GaussianField
from probneural.errors import ArgumentError, ShapeError
from probneural.linear_algebra.conditioning import information
from tests.active.predictors import FINE_GRID, FeaturePredictor, dense_root, encode, feature_root

SHAPES = [(), (3,), (2, 3)]
SIDES = {"wide": (4, 9), "square": (6, 6), "tall": (30, 5), "one row": (1, 7), "no rows": (0, 4)}
every_shape = pytest.mark.parametrize("batch", SHAPES)
every_side = pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES.keys())


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def conditioned(rows: Tensor, targets: Tensor) -> Tensor:
    """Total prior minus total posterior variance of targets xi after rows xi + N(0, I), as Gaussian processes have it."""
    prior, cross = targets @ targets.mT, targets @ rows.mT
    posterior = prior - cross @ torch.linalg.inv(torch.eye(len(rows)).to(rows) + rows @ rows.mT) @ cross.mT
    return prior.trace() - posterior.trace()


@every_shape
@every_side
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_gain_is_half_the_log_determinant(batch: tuple[int, ...], sides: tuple[int, int], scale: float) -> None:
    rows = draw(*batch, *sides, scale=scale)
    flat = rows.reshape(math.prod(batch), *sides)
    reference = [0.5 * torch.linalg.svdvals(one).square().log1p().sum() for one in flat]
    gain = information_gain(rows)
    assert gain.shape == batch
    torch.testing.assert_close(gain.flatten(), torch.stack(reference), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(information(rows.mT @ rows), gain, rtol=1e-8, atol=1e-12)


def test_gain_is_the_mutual_information_of_a_gaussian() -> None:
    """log det of the observations' covariance less that of the noise, by LU decomposition."""
    root, noise = draw(12, 5), 0.03
    covariance = root @ root.mT + noise * torch.eye(12).double()
    reference = 0.5 * (torch.linalg.slogdet(covariance)[1] - 12 * math.log(noise))
    assert abs(information_gain(root / noise**0.5) - reference) <= 1e-10


@every_shape
@every_side
def test_reduction_is_what_conditioning_takes_off(batch: tuple[int, ...], sides: tuple[int, int]) -> None:
    rows, targets = draw(*batch, *sides), draw(11, sides[1], seed=1)
    reference = torch.stack([conditioned(one, targets) for one in rows.reshape(math.prod(batch), *sides)]).reshape(batch)
    moments = targets.mT @ targets
    for found in (
        variance_reduction(rows, targets=targets),
        variance_reduction(rows, moments=moments),
        variance_reduction_of_moments(rows.mT @ rows, targets=targets),
        variance_reduction_of_moments(rows.mT @ rows, moments=moments),
    ):
        assert found.shape == batch
        torch.testing.assert_close(found, reference, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("width", [3, 20])
def test_small_reductions_keep_their_digits(width: int) -> None:
    """One row r takes (T r)² / (1 + r²) off, which a difference of variances would not resolve."""
    rows, targets = draw(1, width, scale=1e-9), draw(30, width, seed=1)
    reference = (targets @ rows[0]).square().sum() / (1.0 + rows.square().sum())
    for kind in ({"targets": targets}, {"moments": targets.mT @ targets}):
        torch.testing.assert_close(variance_reduction(rows, **kind), reference, rtol=1e-12, atol=0.0)
        reduction = variance_reduction_of_moments(rows.mT @ rows, **kind)
        torch.testing.assert_close(reduction, reference, rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("sides", [(3, 5), (5, 3)])
def test_derivatives(sides: tuple[int, int]) -> None:
    rows, targets = draw(2, *sides).requires_grad_(), draw(4, sides[1], seed=1)
    moments = targets.mT @ targets
    for function in (
        information_gain,
        lambda given: variance_reduction(given, targets=targets),
        lambda given: variance_reduction(given, moments=moments),
        lambda given: information(given.mT @ given),
        lambda given: variance_reduction_of_moments(given.mT @ given, moments=moments),
    ):
        assert torch.autograd.gradcheck(function, rows)
        assert torch.autograd.gradgradcheck(function, rows)


@every_side
def test_results_do_not_depend_on_how_sums_are_cut(sides: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    rows, targets = draw(5, *sides), draw(6, sides[1], seed=1)
    reference = information_gain(rows), variance_reduction(rows, targets=targets)
    monkeypatch.setattr(latent_information, "_CHUNK_ELEMENTS", 7)
    torch.testing.assert_close((information_gain(rows), variance_reduction(rows, targets=targets)), reference)


def fields(channels: int = 2) -> dict[str, tuple[FeaturePredictor, GaussianField]]:
    inputs = encode(torch.rand(4, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64))
    found = {}
    for name, kind in (("features", feature_root), ("dense", dense_root)):
        predictor = FeaturePredictor(kind, out_channels=channels)
        field = predictor(inputs, FINE_GRID)
        assert isinstance(field, GaussianField)
        found[name] = (predictor, field)
    return found


@pytest.mark.parametrize("name", ["features", "dense"])
@pytest.mark.parametrize("chunk", [None, 10])
def test_moments_are_those_of_rows(name: str, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor, field = fields()[name]
    if chunk is not None:
        monkeypatch.setattr(latent_information, "_CHUNK_ELEMENTS", chunk)
    weights = observation_weights(predictor, FINE_GRID, noise=torch.tensor([0.1, 0.2]))
    rows = whitened_rows(field, weights)
    torch.testing.assert_close(observation_moments(field, weights), rows.mT @ rows, rtol=1e-12, atol=1e-9)
    distribution = torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    reference = (distribution[:, None, None] * (rows.mT @ rows)).sum(0)
    torch.testing.assert_close(target_moments(field, distribution[:, None, None] * weights), reference, rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(target_moments(field, weights), (rows.mT @ rows).sum(0), rtol=1e-12, atol=1e-9)
    assert observation_moments(field[:0], weights).shape == (0, 7, 7)


def test_shared_features_are_used_without_forming_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the factor has more columns than rows, so that features are the smaller side."""
    predictor, field = fields()["features"]
    wide = GaussianField(field.mean, type(field.root)(field.root.features, draw(1, 2, 9, 30)), latent="wide", grid=field.grid)
    weights = observation_weights(predictor, FINE_GRID)
    rows = whitened_rows(wide, weights)
    monkeypatch.setattr(type(field.root), "dense", lambda root: pytest.fail("a dense root was formed"))
    torch.testing.assert_close(observation_moments(wide, weights), rows.mT @ rows, rtol=1e-12, atol=1e-9)


@pytest.mark.bad_input
def test_bad_input() -> None:
    rows, targets = draw(3, 4), draw(5, 4)
    for compute in (variance_reduction, variance_reduction_of_moments):
        given = rows if compute is variance_reduction else rows.mT @ rows
        with pytest.raises(ArgumentError, match="neither"):
            compute(given)
        with pytest.raises(ArgumentError, match="both"):
            compute(given, targets=targets, moments=targets.mT @ targets)
        with pytest.raises(ShapeError, match="from one predictor"):
            compute(given, targets=draw(5, 3))
        with pytest.raises(ShapeError, match="from one predictor"):
            compute(given, moments=targets)
    predictor, field = fields()["dense"]
    with pytest.raises(ShapeError, match="field's grid"):
        observation_moments(field, observation_weights(predictor, FINE_GRID)[:1])
    with pytest.raises(ShapeError, match="for each of 4 targets"):
        target_moments(field, torch.ones(3, 2, FINE_GRID.size).double())
