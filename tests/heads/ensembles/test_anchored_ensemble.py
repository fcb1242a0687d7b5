"""Anchored ensembles: draws from posteriors that are known, and stationary points where they are not."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from benchmarks.gold import least_squares
from probneural.distributions import EmpiricalField
from probneural.errors import ArgumentError, ShapeError, TrainingError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import AnchoredEnsemble, DeepEnsemble, LastLayerLaplace, LevenbergMarquardt
from probneural.operators.layers import SpectralConv
from probneural.pairs import FieldPairs
from probneural.randomness import stream
from tests.heads import test_closed_form_posteriors as gold
from tests.heads.cases import fields, operator_case
from tests.helpers import normal


def gold_layer() -> tuple[SpectralConv, Tensor]:
    layer = SpectralConv(1, 1, modes=(gold.MODES + 1,)).to(torch.float64)
    precision = torch.full_like(layer.weight, math.inf).detach()  # no imaginary parts: the operator is symmetric
    precision[0, ..., 0] = 1.0
    precision[1:, 0, 0, 0] = 1.0 / gold.PRIOR.square()
    with torch.no_grad():
        layer.weight.zero_()
    return layer, precision


def test_members_on_a_spectral_layer_are_draws_from_the_exact_posterior() -> None:
    members = 500
    mean, variance, pairs = gold.exact()
    layer, precision = gold_layer()
    head = AnchoredEnsemble(
        members, noise=gold.NOISE**2, prior_precision={"weight": precision}, effective_observations=float(gold.POINTS)
    )
    predictor = head.fit(layer, pairs)
    assert predictor.report["converged"] == 1.0
    weights = predictor.vectors.reshape(members, gold.MODES + 1, 2)
    assert float(weights[..., 1].abs().max()) == 0.0
    drawn = weights[:, 1:, 0]
    allowed = 4 / math.sqrt(2 * members)
    ratios = drawn.std(0) / variance.sqrt()
    assert float((ratios - 1).abs().max()) <= allowed
    assert float(((drawn.mean(0) - mean).abs() / variance.sqrt()).max()) <= 4 / math.sqrt(members)
    correlation = torch.corrcoef(drawn.mT) - torch.eye(gold.MODES)
    assert float(correlation.abs().max()) <= 5 / math.sqrt(members)  # the largest of 120
    assert float(weights[:, 0, 0].std()) == pytest.approx(1.0, abs=allowed)  # the prior, where the data say nothing
    features = gold.waves(gold.inputs(3, seed=9))
    field = predictor(Field(features.sum(1)[:, None], gold.GRID))
    assert isinstance(field, EmpiricalField)
    exact = torch.einsum("nkp,k->np", features.square(), variance)
    # a constant of unknown size, of which these inputs have none, adds nothing
    assert float((field.variance[:, 0] / exact - 1).abs().max()) <= 2.5 * allowed


def test_a_plain_ensemble_collapses_where_data_inform() -> None:
    _, variance, pairs = gold.exact()
    layer, _ = gold_layer()
    predictor = DeepEnsemble(3, train=least_squares, show_progress=False).fit(layer, pairs)
    weights = predictor.vectors.reshape(3, gold.MODES + 1, 2)[:, 1:, 0]
    assert float((weights.std(0) / variance.sqrt()).max()) <= 1e-2


def affine() -> tuple[nn.Module, FieldPairs]:
    """y = w_0 u_0 + w_1 u_1 + b with two outputs, on a grid whose points have different weights."""
    grid = Grid.uniform(7, periodic=False, lengths=3.0)
    inputs, outputs = fields(grid, 3, 2, seed=1), fields(grid, 3, 2, seed=2)
    module = nn.Conv1d(2, 2, 1).double()
    return module, FieldPairs(inputs, outputs)


def test_effective_observations_and_quadrature_enter_as_in_the_likelihood() -> None:
    """Against dense Bayesian regression: two channels with noise and observations of their own, weighted points."""
    module, data = affine()
    members, grid = 4000, data.inputs.grid
    noise, counts = torch.tensor([0.3, 0.02]), torch.tensor([2.5, 40.0])
    head = AnchoredEnsemble(members, noise=noise, effective_observations=counts, prior_precision=0.7, seed=3)
    predictor = head.fit(module, data)
    share = (grid.weights / grid.weights.sum()).repeat(3)
    values = data.inputs.values.movedim(1, 2).flatten(0, 1)
    design = torch.cat([values, torch.ones(len(values), 1)], dim=1)
    found = predictor.vectors.reshape(members, 6)
    for channel in range(2):
        weights = counts[channel].double() / noise[channel].double() * share
        precision = 0.7 * torch.eye(3).double() + design.mT @ (weights[:, None] * design)
        covariance = torch.linalg.inv(precision)
        mean = covariance @ design.mT @ (weights * data.outputs.values[:, channel].flatten())
        own = found[:, [2 * channel, 2 * channel + 1, 4 + channel]]
        white = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (own - mean).mT, upper=False)
        assert float(white.mean(1).abs().max()) <= 4 / math.sqrt(members)
        assert float((torch.cov(white) - torch.eye(3)).abs().max()) <= 5 * math.sqrt(2 / members)
    torch.testing.assert_close(predictor.noise, noise.double())
    across = torch.corrcoef(found.mT)[[0, 1, 4]][:, [2, 3, 5]]  # channels share nothing
    assert float(across.abs().max()) <= 4 / math.sqrt(members)


def test_an_offset_of_one_channel_does_not_stop_members_early() -> None:
    """A channel at 300 with noise of 1e-4 beside one of unit size: members are draws of the exact posterior of both."""
    grid, members = Grid.uniform(8), 100
    inputs = fields(grid, 6, 1, seed=1)
    outputs = torch.cat([inputs.values + 0.1 * normal(6, 1, 8, seed=2), 300.0 + 1e-3 * inputs.values], dim=1)
    noise, precision = torch.tensor([1e-2, 1e-8]), torch.tensor([1.0, 1.0, 1.0, 1e-5])
    head = AnchoredEnsemble(members, noise=noise, prior_precision=precision, effective_observations=8.0, show_progress=False)
    predictor = head.fit(nn.Conv1d(1, 2, 1).double(), FieldPairs(inputs, Field(outputs, grid)))
    assert predictor.report["converged"] == 1.0
    design = torch.stack([inputs.values.flatten(), torch.ones(48, dtype=torch.float64)], dim=1)
    for channel in range(2):
        own = [channel, 2 + channel]
        posterior = precision[own].double().diag() + design.mT @ design / noise[channel].double()
        mean = torch.linalg.solve(posterior, design.mT @ outputs[:, channel].flatten() / noise[channel].double())
        white = (predictor.vectors[:, own] - mean) @ torch.linalg.cholesky(posterior)
        assert float((white.mT @ white / members - torch.eye(2).double()).abs().max()) <= 5 * math.sqrt(2 / members)


@pytest.mark.slow
def test_randomised_last_layers_are_draws_from_the_posterior_of_the_last_layer() -> None:
    """On an operator that is not linear: covariances between points and inputs are those of `LastLayerLaplace`."""
    case, members = operator_case("fno-1d"), 3000
    settings = {"noise": 0.01, "prior_precision": 2.0, "effective_observations": 5.0}
    drawn = AnchoredEnsemble(members, parameters=["readout"], show_progress=False, **settings).fit(case.operator, case.data)
    assert drawn.report["converged"] == 1.0
    u = LastLayerLaplace(**settings).fit(case.operator, case.data)(case.inputs)
    deviation = (drawn(case.inputs).samples - drawn(case.inputs).mean).flatten(1)
    expected = u.cross_covariance(u)
    size = expected.diagonal()
    error = deviation.mT @ deviation / members - expected
    assert float((error.square() * members / (size[:, None] * size + expected.square())).sqrt().max()) < 5.0
    assert float(((drawn(case.inputs).variance / u.variance) - 1).abs().max()) < 5.0 * math.sqrt(2 / members)


@pytest.mark.slow
def test_members_are_stationary_points_of_their_own_problems() -> None:
    """A nonlinear network: gradients of the documented loss, with anchors and noise drawn again by hand."""
    case = operator_case("channels-last")
    head = AnchoredEnsemble(
        2,
        noise=0.05,
        effective_observations=4.0,
        prior_precision=3.0,
        seed=2,
        optimizer=LevenbergMarquardt(max_iterations=100, tolerance=1e-8),
    )
    predictor = head.fit(case.operator, case.data)
    assert predictor.report["converged"] == 1.0
    grid, outputs = case.data.outputs.grid, case.data.outputs.values
    share = grid.weights / grid.volume
    for number, vector in enumerate(predictor.vectors):
        generator = stream(2, "anchored member", number)
        anchor = torch.randn(len(vector), generator=generator, dtype=torch.float64) / 3**0.5
        deviation = (0.05 / (4.0 * share)).sqrt()
        targets = outputs + deviation * torch.randn(outputs.shape, generator=generator, dtype=torch.float64)

        def loss(theta: Tensor, targets: Tensor = targets, anchor: Tensor = anchor) -> Tensor:
            replaced = predictor.layout.unflatten(theta)
            values = torch.func.functional_call(case.operator, replaced, case.data.inputs.values)
            misfit = ((values - targets).square() * share).sum() * 4.0 / 0.05
            return 0.5 * misfit + 1.5 * (theta - anchor).square().sum()

        here, there = (torch.autograd.functional.jacobian(loss, theta, create_graph=False).norm() for theta in (vector, anchor))
        assert float(here) <= 1.01e-4 * float(there)
        assert float(loss(vector)) < float(loss(anchor))
    field = predictor(case.inputs)
    assert bool((field.variance > 0).all())


def close(found: Tensor, expected: Tensor) -> None:
    """Conjugate gradients amplify rounding."""
    assert float((found - expected).norm()) <= 1e-4 * float(expected.norm())


@pytest.mark.parametrize("name", [pytest.param("fno-1d", marks=pytest.mark.slow), "complex"])
def test_the_way_of_optimising_and_the_number_of_members_change_rounding_only(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where conjugate gradients end turns on rounding, so they end late: one step more or less then changes little.
    monkeypatch.setattr("probneural.heads.ensembles.anchored_ensemble._LOOSEST", 1e-6)
    case = operator_case(name)
    settings = {
        "noise": 0.05,
        "effective_observations": 4.0,
        "prior_precision": 2.0,
        "optimizer": LevenbergMarquardt(max_iterations=2),
    }
    together = AnchoredEnsemble(3, **settings).fit(case.operator, case.data)
    with monkeypatch.context() as patch:
        patch.setattr(AnchoredEnsemble, "_can_be_followed", lambda self, draws: False)
        loop = AnchoredEnsemble(2, **settings).fit(case.operator, case.data)
    close(loop.vectors, together.vectors[:2])
    assert not torch.allclose(together.vectors[2], together.vectors[1], rtol=0.1)
    monkeypatch.setattr(
        "probneural.heads.ensembles.anchored_ensemble._BATCH_POINTS", 2 * case.data.inputs.grid.size
    )  # two functions at a time
    small = AnchoredEnsemble(3, **settings).fit(case.operator, case.data)
    close(small.vectors, together.vectors)


def test_parameters_that_are_not_chosen_or_fixed_stay() -> None:
    case = operator_case("channels-last")
    settings = {"noise": 0.05, "effective_observations": 4.0, "optimizer": LevenbergMarquardt(max_iterations=2)}
    chosen = AnchoredEnsemble(3, prior_precision=2.0, parameters=["layers.2"], **settings).fit(case.operator, case.data)
    assert chosen.layout.names == ("layers.2.weight", "layers.2.bias")
    assert chosen.effective_observations.tolist() == [4.0] * chosen.out_channels
    precision = {name: 2.0 for name, _ in case.operator.named_parameters()} | {"layers.0.weight": math.inf}
    fixed = AnchoredEnsemble(3, prior_precision=precision, **settings).fit(case.operator, case.data)
    for vector in fixed.vectors:
        tensors = fixed.layout.unflatten(vector)
        torch.testing.assert_close(tensors["layers.0.weight"], case.operator.layers[0].weight.detach(), rtol=1e-14, atol=0)
        assert not torch.allclose(tensors["layers.0.bias"], case.operator.layers[0].bias)
    with torch.no_grad():
        hidden = case.operator.layers[:2](case.inputs.values.movedim(1, -1))
        weights = chosen.layout.unflatten(chosen.vectors[1])
        values = hidden @ weights["layers.2.weight"].mT + weights["layers.2.bias"]
    torch.testing.assert_close(chosen(case.inputs).samples[1], values.movedim(-1, 1))


def test_float32_operators_get_float32_members() -> None:
    _, _, pairs = gold.exact()
    layer, precision = gold_layer()
    settings = {
        "noise": gold.NOISE**2,
        "prior_precision": {"weight": precision},
        "effective_observations": float(gold.POINTS),
        "optimizer": LevenbergMarquardt(tolerance=1e-10),
    }
    double = AnchoredEnsemble(5, **settings).fit(layer, pairs)
    single = AnchoredEnsemble(5, **settings).fit(layer.float(), pairs.to(torch.float32))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.vectors.double(), double.vectors, rtol=1e-5, atol=1e-6)


def test_the_report_says_what_did_not_converge() -> None:
    case = operator_case("channels-last")
    predictor = AnchoredEnsemble(
        4, noise=1e-3, prior_precision=1.0, effective_observations=5.0, optimizer=LevenbergMarquardt(max_iterations=1)
    ).fit(case.operator, case.data)
    assert predictor.report["converged"] == 0.0
    assert predictor.report["largest_gain"] > 1e-4


class Unfollowable(nn.Conv1d):
    def forward(self, values: Tensor) -> Tensor:
        return super().forward(values) * (1.0 if self.weight.detach().sum().item() > -1e9 else 0.0)


def test_modules_that_vmap_cannot_follow_are_optimised_one_by_one() -> None:
    grid = Grid.uniform(6)
    data = FieldPairs(fields(grid, 3, 1, seed=1), fields(grid, 3, 1, seed=2))
    settings = {"noise": 0.1, "prior_precision": 1.0, "effective_observations": 6.0}
    expected = AnchoredEnsemble(3, **settings).fit(nn.Conv1d(1, 1, 1).double(), data)
    predictor = AnchoredEnsemble(3, **settings).fit(Unfollowable(1, 1, 1).double(), data)
    torch.testing.assert_close(predictor.vectors, expected.vectors, rtol=1e-5, atol=1e-7)


@pytest.mark.bad_input
def test_bad_settings() -> None:
    case = operator_case("fno-1d")
    given = {"noise": 0.1, "prior_precision": 1.0}
    for name, value in (
        ("members", 0),
        ("seed", -1),
        ("optimizer", "adam"),
        ("noise", None),
        ("prior_precision", None),
    ):
        with pytest.raises(ArgumentError, match=name):
            AnchoredEnsemble(**{"members": 3, **given, name: value})
    with pytest.raises(TypeError):
        AnchoredEnsemble(3)
    for name, value in (("noise", 0.0), ("prior_precision", -1.0), ("effective_observations", math.nan)):
        with pytest.raises(ArgumentError, match=f"{name} > 0"):
            AnchoredEnsemble(3, **{**given, name: value}).fit(case.operator, case.data)
    with pytest.raises(ShapeError, match="prior_precision"):
        AnchoredEnsemble(3, noise=0.1, prior_precision=torch.ones(3)).fit(case.operator, case.data)
    with pytest.raises(ArgumentError, match="named_parameters"):
        AnchoredEnsemble(3, parameters=["nowhere"], **given).fit(case.operator, case.data)
    for name, value in (("max_iterations", 0), ("tolerance", 0.0), ("tolerance", 1.0)):
        with pytest.raises(ArgumentError, match=name):
            LevenbergMarquardt(**{name: value})
    with pytest.raises(TrainingError, match="raise prior_precision"):
        AnchoredEnsemble(3, noise=0.1, prior_precision=1e-250).fit(case.operator, case.data)
