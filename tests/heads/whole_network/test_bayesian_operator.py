"""Chains over all weights against exact posteriors of operators that are linear in them."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from probneural.calibration import VarianceScale
from probneural.errors import ArgumentError, ConvergenceWarning, TrainingError, UnsupportedError
from probneural.heads import SGHMC, SGLD, BayesianOperator, Iterative, Laplace
from probneural.heads.whole_network.chains import StochasticGradientMCMC
from probneural.heads.whole_network.target import NetworkTarget
from probneural.storage import load, save
from tests.heads.cases import PERIODIC, data_for, fields, operator_case

NOISE, PRIOR, OBSERVATIONS, COUNT = 0.05, 2.0, 5.0, 12
GIVEN = {"noise": NOISE, "prior_precision": PRIOR, "effective_observations": OBSERVATIONS}
DIAGONAL = Laplace("diagonal", **GIVEN, show_progress=False)
IGNORED = pytest.mark.filterwarnings("ignore:(SGLD|SGHMC) has not converged")


def linear() -> nn.Module:
    """u = w_1 a_1 + w_2 a_2: linear in its weights, which are correlated given the data."""
    operator = nn.Conv1d(2, 1, 1, bias=False).double()
    operator.weight.data = torch.tensor([[[0.7], [-0.4]]], dtype=torch.float64)
    return operator


INPUTS = fields(PERIODIC, COUNT, 2, seed=1)
INPUTS.values[:, 1] += 0.8 * INPUTS.values[:, 0]
DATA = data_for(linear(), INPUTS)


@cache
def exact() -> tuple[Tensor, Tensor]:
    """Mean and precision by dense algebra: m / s^2 times sums of means over the domain, and the prior."""
    rows, targets = INPUTS.values.movedim(1, -1).flatten(0, 1), DATA.outputs.values.flatten()
    factor = OBSERVATIONS / (NOISE * PERIODIC.size)
    precision = factor * rows.mT @ rows + PRIOR * torch.eye(2, dtype=torch.float64)
    return torch.linalg.solve(precision, factor * rows.mT @ targets), precision


def stationary(precision: Tensor, step: float) -> Tensor:
    """Covariance of SGLD with all data and the preconditioner of the diagonal approximation, by a linear system."""
    scales = precision.diagonal().reciprocal().diag()
    map_ = torch.eye(2, dtype=torch.float64) - 0.5 * step * scales @ precision
    system = torch.eye(4, dtype=torch.float64) - torch.kron(map_, map_)
    return torch.linalg.solve(system, step * scales.flatten()).unflatten(0, (2, 2))


def check_moments(draws: Tensor, mean: Tensor, covariance: Tensor, *, size: float) -> None:
    """Within five standard errors of so many independent draws."""
    deviation = covariance.diagonal().sqrt()
    assert bool(((draws.mean(0) - mean).abs() <= 5 * deviation / math.sqrt(size)).all())
    error = ((covariance.square() + deviation[:, None].square() * deviation.square()) / size).sqrt()
    assert bool(((draws.mT.cov() - covariance).abs() <= 5 * error).all())


@pytest.mark.parametrize(
    ("method", "size"),
    [
        (SGHMC(burn_in=30, draws=150, thinning=3, members=300), 100),
        (SGLD(burn_in=30, draws=120, thinning=5, members=240, step_size=0.3), 80),
        pytest.param(SGHMC(burn_in=100, draws=2000, thinning=3, members=4000), 1500, marks=pytest.mark.slow),
        pytest.param(SGLD(burn_in=100, draws=2000, thinning=5, members=4000, step_size=0.3), 1200, marks=pytest.mark.slow),
    ],
)
@IGNORED
def test_draws_are_of_the_exact_posterior(method: StochasticGradientMCMC, size: float) -> None:
    """That the batch gradient is that of all N functions, and the temperature 1, are factors 12 and more in covariances."""
    predictor = BayesianOperator(method, laplace=DIAGONAL, batch_size=COUNT, show_progress=False).fit(linear(), DATA)
    mean, precision = exact()
    assert predictor.report["bulk_size_min"] >= size
    covariance = torch.linalg.inv(precision)
    if isinstance(method, SGLD):  # whose error of known size is not noise
        biased = stationary(precision, predictor.report["step"])
        assert 1.05 < float((torch.linalg.eigvalsh(precision @ biased)).amax()) < 1.5
        covariance = biased
    check_moments(predictor.vectors, mean, covariance, size=size)
    assert predictor.report["r_hat_max"] <= 1.1
    temperature = float((precision @ covariance).trace()) / 2  # whose standard error is that of chi^2 of two degrees
    assert predictor.report["temperature"] == pytest.approx(temperature, abs=5 / size**0.5)
    assert torch.equal(predictor.noise, torch.tensor([NOISE], dtype=torch.float64))


@pytest.mark.slow
@IGNORED
def test_batches_are_allowed_for_by_a_smaller_step() -> None:
    method = SGHMC(burn_in=30, draws=200, thinning=3, members=400, step_size=0.1)
    whole, batches = (
        BayesianOperator(method, laplace=DIAGONAL, batch_size=size, show_progress=False).fit(linear(), DATA)
        for size in (COUNT, 4)
    )
    assert batches.report["largest_gradient_noise"] > 0.1 > whole.report["largest_gradient_noise"] == 0.0
    assert batches.report["step"] < 0.9 * whole.report["step"]
    assert batches.report["epochs"] == whole.report["epochs"] / 3
    mean, precision = exact()
    check_moments(batches.vectors, mean, torch.linalg.inv(precision), size=100)


def test_steps_are_adapted_in_burn_in_alone() -> None:
    """A tanh unit is steeper the larger its weights are: the step is that for the steepest place seen."""
    case = operator_case("fno-1d")
    steps = []
    for burn_in in (1, 40):
        method = SGHMC(chains=1, burn_in=burn_in, draws=4, thinning=1, members=4)
        with pytest.warns(ConvergenceWarning):
            steps.append(BayesianOperator(method, laplace=DIAGONAL, show_progress=False).fit(case.operator, case.data).report)
    assert steps[1]["largest_curvature"] > steps[0]["largest_curvature"]
    assert steps[1]["step"] < steps[0]["step"]


def test_mean_over_batches_is_the_energy_of_all_data() -> None:
    target = NetworkTarget.of(linear(), DATA, laplace=DIAGONAL, batch_size=4)
    vector = torch.tensor([0.3, 1.1], dtype=torch.float64)
    rows = target.batches(0, 0)
    seen = [next(rows) for _ in range(3)]
    assert sorted(torch.cat(seen).tolist()) == list(range(COUNT))
    mean, precision = exact()
    whole = torch.stack([target.gradient(vector, batch) for batch in seen]).mean(0)
    torch.testing.assert_close(whole, precision @ (vector - mean))
    difference = target.potential(vector, slice(None)) - target.potential(mean, slice(None))
    torch.testing.assert_close(difference, 0.5 * (vector - mean) @ precision @ (vector - mean))


def test_largest_curvature_is_that_of_the_dense_matrix() -> None:
    target = NetworkTarget.of(linear(), DATA, laplace=DIAGONAL, batch_size=4)
    root = target.root.dense()
    expected = float(torch.linalg.eigvalsh(root.mT @ exact()[1] @ root)[-1])
    assert target.largest_curvature(target.centre, iterations=60)[0] == pytest.approx(expected, rel=1e-6)
    full = NetworkTarget.of(linear(), DATA, laplace=Laplace("full", **GIVEN), batch_size=4)
    assert full.largest_curvature(full.centre)[0] == pytest.approx(1.0)


@IGNORED
def test_weights_that_the_prior_fixes_stay() -> None:
    laplace = Laplace("diagonal", noise=NOISE, prior_precision=torch.tensor([2.0, torch.inf]), show_progress=False)
    head = BayesianOperator(SGHMC(burn_in=1, draws=4, thinning=1), laplace=laplace, show_progress=False)
    predictor = head.fit(linear(), DATA)
    assert predictor.vectors[:, 1].tolist() == [-0.4] * len(predictor.vectors)
    assert len(predictor.vectors[:, 0].unique()) == 8


@IGNORED
def test_noise_and_prior_are_those_of_the_evidence_by_default() -> None:
    case = operator_case("fno-1d")
    laplace = Laplace("diagonal", parameters=["readout"], show_progress=False)
    head = BayesianOperator(SGLD(burn_in=1, draws=4, thinning=1, members=4), laplace=laplace, show_progress=False)
    predictor, closed = head.fit(case.operator, case.data), laplace.fit(case.operator, case.data)
    assert torch.equal(predictor.noise, closed.noise)
    assert torch.equal(predictor.effective_observations, closed.effective_observations)
    assert predictor.layout.names == ("readout.weight", "readout.bias")


@IGNORED
def test_saved_calibrated_and_named_by_seeds(tmp_path: Path) -> None:
    case = operator_case("fno-1d")
    settings = {"method": SGHMC(burn_in=2, draws=4, thinning=1, members=4), "laplace": DIAGONAL, "show_progress": False}
    predictor, again, other = (BayesianOperator(**settings, seed=seed).fit(case.operator, case.data) for seed in (0, 0, 1))
    assert torch.equal(predictor.vectors, again.vectors)
    assert not torch.equal(predictor.vectors, other.vectors)
    save(predictor, tmp_path / "chains")
    loaded = load(tmp_path / "chains")
    assert torch.equal(loaded(case.inputs).samples, predictor(case.inputs).samples)  # type: ignore[operator]
    assert loaded.report == predictor.report  # type: ignore[union-attr]
    assert torch.equal(loaded.effective_observations, predictor.effective_observations)  # type: ignore[arg-type, union-attr]
    held_out = data_for(case.operator.eval(), fields(PERIODIC, 8, 1, seed=31), seed=32)
    assert bool((VarianceScale(local=False).fit(predictor, held_out)(case.inputs).variance > 0).all())


def test_members_are_spread_evenly_over_chains_and_draws() -> None:
    method = SGHMC(chains=3, burn_in=0, draws=10, thinning=1, members=6)
    with pytest.warns(ConvergenceWarning, match="SGHMC has not converged"):
        predictor = BayesianOperator(method, laplace=DIAGONAL, show_progress=False).fit(linear(), DATA)
    every = SGHMC(chains=3, burn_in=0, draws=10, thinning=1, members=30)
    with pytest.warns(ConvergenceWarning):
        whole = BayesianOperator(every, laplace=DIAGONAL, show_progress=False).fit(linear(), DATA).vectors
    assert torch.equal(predictor.vectors, whole.unflatten(0, (3, 10))[:, 4::5].flatten(0, 1))
    uneven = SGHMC(chains=3, burn_in=0, draws=10, thinning=1, members=7)
    with pytest.warns(ConvergenceWarning):
        found = BayesianOperator(uneven, laplace=DIAGONAL, show_progress=False).fit(linear(), DATA).vectors
    assert torch.equal(found, torch.cat([whole[2:9:3], whole[14:20:5], whole[24:30:5]]))


@pytest.mark.bad_input
class TestBadInput:
    def test_settings(self) -> None:
        for kind in (SGLD, SGHMC):
            for settings in ({"chains": 0}, {"burn_in": -1}, {"draws": 3}, {"thinning": 0}, {"members": 1}, {"step_size": 0.0}):
                with pytest.raises(ArgumentError):
                    kind(**settings)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="friction"):
            SGHMC(friction=0.0)
        with pytest.raises(ArgumentError, match="members"):
            SGHMC(chains=3, members=2)
        for bad in ({"method": "sgld"}, {"laplace": None}, {"batch_size": 0}, {"seed": -1}, {"show_progress": 3}):
            with pytest.raises(ArgumentError):
                BayesianOperator(**bad)  # type: ignore[arg-type]

    def test_a_chain_that_leaves_the_numbers_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SGLD, "_step", lambda self, curvature, gradient_noise: 1e3)
        with pytest.raises(TrainingError, match=r"chain 0 to stay finite.*lower step_size"):
            BayesianOperator(SGLD(burn_in=500), laplace=DIAGONAL, show_progress=False).fit(linear(), DATA)

    def test_a_structure_without_factors(self) -> None:
        laplace = Laplace(Iterative(rank=2), noise=NOISE, prior_precision=PRIOR)
        with pytest.raises(UnsupportedError, match="covariance is known as a product"):
            BayesianOperator(laplace=laplace, show_progress=False).fit(linear(), DATA)
