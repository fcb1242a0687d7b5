"""A covariance from a second read-out, against densities and variances that are known."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.studies import sparse_sensors
from probneural.calibration import VarianceScale
from probneural.distributions import GaussianField
from probneural.errors import ArgumentError, ShapeError, TrainingError
from probneural.fields import Field, evaluate
from probneural.functionals import integral, sensors
from probneural.grids import Grid
from probneural.heads import HeteroscedasticGaussian
from probneural.heads.last_layer.heteroscedastic import HeteroscedasticPredictor, log_density_per_value
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.heads.cases import fitted, operator_case
from tests.helpers import generator

GRID = Grid.uniform(16)


class Halves(nn.Module):
    """Zero, with two features: whether a point is in the left half, and the input's value there."""

    def __init__(self) -> None:
        super().__init__()
        self.readout = nn.Conv1d(2, 1, 1).double()
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)  # type: ignore[arg-type]

    def forward(self, values: Tensor) -> Tensor:
        left = (torch.arange(values.shape[2], dtype=values.dtype) < values.shape[2] // 2).to(values).expand_as(values)
        found: Tensor = self.readout(torch.cat([left, values], dim=1))
        return found


def scattered(count: int) -> FieldPairs:
    """Constant inputs of 0 or 1; variance .25 or 1 by half, four times as much for inputs of 1, and a shared shift of .5 xi."""
    kinds = (torch.arange(count) % 2).double()[:, None, None].expand(-1, 1, 16).contiguous()
    noise = torch.randn(count, 1, 16, generator=generator("values"), dtype=torch.float64)
    shift = torch.randn(count, 1, 1, generator=generator("shifts"), dtype=torch.float64)
    std = torch.where(torch.arange(16) < 8, 0.5, 1.0).double()
    return FieldPairs(Field(kinds, GRID), Field(std * (1.0 + kinds) * noise + 0.5 * shift, GRID))


@cache
def known() -> HeteroscedasticPredictor:
    return HeteroscedasticGaussian(1, epochs=60, batch_size=50, learning_rate=0.05).fit(Halves(), scattered(300))


def test_the_density_is_that_of_the_dense_covariance() -> None:
    residual, std = (torch.randn(3, 5, generator=generator(name), dtype=torch.float64) for name in ("residual", "std"))
    factors = torch.randn(3, 5, 2, generator=generator("factors"), dtype=torch.float64)
    variance = std.exp()
    dense = torch.distributions.MultivariateNormal(
        torch.zeros(3, 5).double(), factors @ factors.mT + torch.diag_embed(variance)
    )
    torch.testing.assert_close(log_density_per_value(residual, variance, factors), dense.log_prob(residual) / 5)
    diagonal = torch.distributions.Normal(0.0, variance.sqrt()).log_prob(residual).mean(1)
    torch.testing.assert_close(log_density_per_value(residual, variance, factors[..., :0]), diagonal)
    inputs = [tensor.clone().requires_grad_() for tensor in (residual, variance, factors)]
    assert torch.autograd.gradcheck(log_density_per_value, inputs)


def test_known_variances_are_recovered() -> None:
    """Four variances, each of 150 functions with 8 points: standard errors sqrt(2 / 1200) = 4 %.

    In units of the mean square 1.81 they are softplus of -1.91, -.31, -.31 and 2.09, where a sum of two effects misses each by
    .2: at most .19 in a log variance, .14 on average. Beside these, four standard errors (one and a half for the mean of four).
    The shift has a variance of .25, which 300 functions give to 8 %, and to 10 % through the noise.
    """
    inputs = Field(torch.stack([torch.zeros(1, 16), torch.ones(1, 16)]).double(), GRID)
    u = known()(inputs)
    root = u.discrepancy
    assert root is not None
    white = root.second.row_squares()[:, 0]  # type: ignore[attr-defined]
    low_rank = root.first.row_squares()[:, 0]  # type: ignore[attr-defined]
    expected = torch.tensor([[0.25, 1.0], [1.0, 4.0]], dtype=torch.float64).repeat_interleave(8, 1)
    assert float((white / expected).log().abs().max()) < 0.35
    assert float((white / expected).log().abs().mean()) < 0.2
    assert float((low_rank.mean() / 0.25).log().abs()) < 4 * 0.1
    torch.testing.assert_close(u.variance[:, 0], white + low_rank)


def test_the_field_is_gaussian_on_any_grid() -> None:
    predictor, inputs = known(), scattered(3).inputs
    u, fine = predictor(inputs), predictor(inputs, Grid.uniform(32))
    assert isinstance(u, GaussianField)
    assert float(predictor.noise) == 0.0
    torch.testing.assert_close(u.mean, evaluate(Halves(), inputs))
    covariance = u.covariance.to_dense()
    torch.testing.assert_close(u.variance[:, 0], covariance.diagonal(dim1=1, dim2=2))
    values = scattered(3).outputs.values
    dense = torch.distributions.MultivariateNormal(u.mean[:, 0], covariance)
    torch.testing.assert_close(u.log_prob(values), dense.log_prob(values[:, 0]))
    drawn = u.rsample((4000,), seed=0)[:, :, 0]
    found = torch.einsum("snp,snq->npq", drawn, drawn) / 4000
    assert float((found - covariance).abs().max()) < 5 * float(covariance.abs().max()) * (2 / 4000) ** 0.5
    total = integral(GRID)
    weights = total.adjoint(torch.eye(1, dtype=torch.float64)).flatten()
    torch.testing.assert_close(u.apply(total).variance.flatten(), covariance @ weights @ weights)
    # features are interpolated between points; where they are smooth the variance is that of the coarse grid
    torch.testing.assert_close(fine.variance[..., 4], u.variance[..., 2], rtol=0.05, atol=0)


def test_data_on_one_function_inform_that_one_only() -> None:
    u, values = known()(scattered(2).inputs), torch.ones(1, 1, 1, dtype=torch.float64)
    probe = sensors(GRID, [[0.25]])
    alone = u[:1].condition(probe, values, noise=0.01)
    assert float((alone.mean - u.mean[:1]).abs().min()) > 0.0  # the shared shift moves all its points
    assert float(alone.variance.sum()) < float(u.variance[:1].sum())
    assert torch.equal(u.under(alone.latent).mean, u.mean)
    assert float(u.cross_covariance(u).reshape(2, 16, 2, 16)[0, :, 1].abs().max()) == 0.0


@pytest.mark.slow
def test_calibration_keeps_the_correlation() -> None:
    """A head that is right but for a factor of 4 in variance: the calibrated field is the head's, times its scale."""
    predictor, calibration = known(), scattered(60)
    doubled = FieldPairs(calibration.inputs, Field(2.0 * calibration.outputs.values, GRID))
    scaled = VarianceScale(local=False).fit(predictor, doubled)
    # 60 functions, of 16 values with some 10 degrees of freedom each: standard error sqrt(2 / 600) = 6 %, and the form's 10 %
    assert float(scaled.scale) == pytest.approx(4.0, rel=0.3)
    u, inner = scaled(calibration.inputs[:2]), predictor(calibration.inputs[:2])
    torch.testing.assert_close(u.variance, scaled.scale * inner.variance)
    if float(scaled.decomposition.root_fraction) == 1.0:
        torch.testing.assert_close(u.covariance.to_dense(), scaled.scale * inner.covariance.to_dense())
    assert float(u.covariance.to_dense()[0, 0, 12]) > 0.25  # the shift, of variance 1 now
    draws = torch.stack([evaluate(scaled.draw(seed), calibration.inputs[:1]) for seed in range(300)])
    left = inner.discrepancy.first.row_squares()[:1]  # type: ignore[union-attr]
    stated = scaled.scale * scaled.decomposition.root_fraction * left
    if float(scaled.decomposition.root_fraction) == 1.0:  # draws leave out what has no correlation
        assert float((draws.var(0)[0] / stated[0]).log().abs().max()) < 4 * (2 / 300) ** 0.5


@pytest.mark.parametrize("rank", [0, 4])
def test_the_floor_of_diagonal_covariances(rank: int) -> None:
    """On sparse sensors no diagonal comes nearer to the exact posterior than its floor, and low rank plus diagonal does."""
    posterior = sparse_sensors.Posterior.of(0)
    data, test = (posterior.pairs(count, seed=0, part=part) for part, count in enumerate((300, 40)))
    operator = sparse_sensors.Interpolation.fitted(data)
    u = HeteroscedasticGaussian(rank, epochs=8).fit(operator, data)(test.inputs)
    assert isinstance(u, GaussianField)
    floor, regret = posterior.floor_of_diagonals, posterior.regret(u, test.inputs)
    assert floor == pytest.approx(1.0832, abs=1e-4)
    assert (floor < regret) if rank == 0 else (0.0 < regret < 0.6 * floor)


def test_training_the_operator_too(tmp_path: Path) -> None:
    case = operator_case("conv")
    head = HeteroscedasticGaussian(1, trains_operator=True, beta=0.5, epochs=2, batch_size=3)
    before = copy.deepcopy(case.operator.state_dict())
    predictor = head.fit(case.operator, case.data)
    assert all(torch.equal(value, before[name]) for name, value in case.operator.state_dict().items())
    assert not torch.equal(predictor(case.inputs).mean, fitted("last-layer", "conv")(case.inputs).mean)
    again = head.fit(case.operator, case.data)
    assert torch.equal(again(case.inputs).variance, predictor(case.inputs).variance)  # same seed, same bits
    save(predictor, tmp_path / "predictor")
    loaded = load(tmp_path / "predictor", operator=case.operator)
    assert torch.equal(loaded(case.inputs).variance, predictor(case.inputs).variance)
    assert torch.equal(evaluate(loaded.draw(1), case.inputs), evaluate(predictor.draw(1), case.inputs))
    without_bias = HeteroscedasticGaussian(0, epochs=1).fit(operator_case("no-bias").operator, case.data)
    assert bool((without_bias(case.inputs).variance > 0).all())
    assert torch.equal(evaluate(without_bias.draw(1), case.inputs), without_bias(case.inputs).mean)


def test_features_may_be_evaluated_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    case = operator_case("fno-outputs")
    head = HeteroscedasticGaussian(2, epochs=2, batch_size=4)
    expected = head.fit(case.operator, case.data)
    monkeypatch.setattr("probneural.heads.last_layer.heteroscedastic._KEPT_ELEMENTS", 1)
    found = head.fit(case.operator, case.data)
    torch.testing.assert_close(found(case.inputs).variance, expected(case.inputs).variance, rtol=1e-9, atol=0)
    assert found.report["nats_per_value"] == pytest.approx(expected.report["nats_per_value"])
    density = float(found(case.data.inputs).log_prob(case.data.outputs.values).mean()) / case.data.outputs.values[0].numel()
    assert found.report["nats_per_value"] == pytest.approx(density)


def test_gradient_in_the_inputs() -> None:
    predictor = known()
    values = scattered(2).inputs.values.clone().requires_grad_()

    def spread(given: Tensor) -> Tensor:
        u = predictor(Field(given, GRID))
        return u.variance.sum() + u.rsample(seed=1).square().sum()

    assert torch.autograd.gradcheck(spread, (values,))


@pytest.mark.bad_input
def test_bad_settings() -> None:
    for settings in ({"rank": -1}, {"beta": 2.0}, {"epochs": 0}, {"learning_rate": 0.0}, {"batch_size": 0}, {"seed": -1}):
        with pytest.raises(ArgumentError):
            HeteroscedasticGaussian(**settings)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="finite density"):
        HeteroscedasticGaussian(1, learning_rate=1e300, epochs=4).fit(Halves(), scattered(4))
    predictor = known()
    with pytest.raises(ShapeError, match="weights"):
        HeteroscedasticPredictor(
            readout=predictor.readout,
            variance_weights=predictor.variance_weights[:, :1],
            factor_weights=predictor.factor_weights,
            unit=predictor.unit,
            noise=predictor.noise,
            report={},
            domain=GRID,
            in_channels=1,
        )
