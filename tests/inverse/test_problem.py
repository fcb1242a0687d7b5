"""Priors, arguments, predictors of every kind, and warnings of inverse problems."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, distributions

import probneural as pn
from probneural.distributions import Predictor
from probneural.errors import (
    ArgumentError,
    ConstraintError,
    ConvergenceWarning,
    DataError,
    DataWarning,
    ShapeError,
    UnsupportedError,
)
from probneural.fields import Field
from probneural.inverse import InverseProblem
from probneural.inverse.model import Prior
from tests.inverse.linear import linear_problem

QUIET: dict[str, Any] = {"show_progress": False}
CORRELATED = torch.tensor([[2.0, 0.5], [0.5, 1.0]])
PRIORS: dict[str, Any] = {
    "normal": distributions.Normal(1.0, 2.0),
    "box": distributions.Independent(distributions.Uniform(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 3.0])), 1),
    "multivariate": distributions.MultivariateNormal(torch.zeros(2), CORRELATED),
    "low rank": distributions.LowRankMultivariateNormal(torch.zeros(2), torch.ones(2, 1), torch.ones(2)),
    "log-normal": distributions.LogNormal(0.0, 0.5),
    "exponential": distributions.Exponential(2.0),
    "several": [
        distributions.Normal(1.0, 2.0),
        distributions.Uniform(0.0, 1.0),
        distributions.MultivariateNormal(torch.zeros(2), CORRELATED),
    ],
    "random field": pn.problems.GaussianRandomField(1, 3),
    "field and scalar": [pn.problems.GaussianRandomField(1, 2), distributions.LogNormal(0.0, 0.5)],
    "two parts": pn.problems.IndependentDistributions(
        (pn.problems.UniformParameters((0.0,), (2.0,)), pn.problems.GaussianRandomField(1, 1))
    ),
}


@pytest.mark.parametrize("name", PRIORS)
def test_priors_map_standard_normal_numbers_to_draws(name: str) -> None:
    """The density of T(z) is that of z over |det T'(z)|; so draws and densities belong together."""
    prior = Prior(PRIORS[name])
    z = torch.randn(5, prior.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta = prior.from_normal(z)
    for row, value in zip(z, theta, strict=True):
        jacobian = torch.autograd.functional.jacobian(prior.from_normal, row)
        normal = -0.5 * (row.square().sum() + prior.size * torch.log(torch.tensor(2 * torch.pi)))
        expected = normal - torch.linalg.slogdet(jacobian)[1]
        assert torch.allclose(prior.log_prob(value), expected, rtol=0, atol=1e-5)


def test_priors_have_no_density_outside_their_support() -> None:
    prior = Prior([distributions.Uniform(0.0, 1.0), distributions.LogNormal(0.0, 1.0)])
    assert prior.log_prob(torch.tensor([[1.5, 1.0], [0.5, -1.0]])).tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize(
    "wrong", [None, [], "normal", distributions.Normal(torch.zeros(3), torch.ones(3)), [1.0], torch.zeros(3)]
)
def test_other_priors_are_refused(wrong: Any) -> None:
    with pytest.raises(ArgumentError, match="prior"):
        Prior(wrong)


def test_priors_without_an_inverse_distribution_function_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="icdf"):
        Prior(distributions.Gamma(2.0, 1.0))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"noise": [1.0, 2.0]}, ShapeError, "noise as a number"),
        ({"data": [[1.0, float("nan"), 0.0]]}, DataError, "finite data"),
        ({"data": []}, ShapeError, "data of shape"),
        ({"data": [1.0, 2.0]}, ShapeError, "data of shape"),
    ],
)
def test_wrong_arguments_raise_typed_errors(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        linear_problem("joint", **changes)


def test_wrong_results_of_encode_and_solvers_raise_typed_errors() -> None:
    for encode, error in ((lambda theta: theta, DataError), (lambda theta: Field(torch.zeros(1, 1, 4), GRID), ShapeError)):
        problem, _, _ = linear_problem("joint", encode=encode)
        with pytest.raises(error):
            problem.map()
    problem, _, _ = linear_problem("mean")
    detached, _, _ = linear_problem("mean", encode=lambda theta: Field(theta.detach()[:, None], GRID))
    with pytest.raises(DataError, match="differentiable"):
        detached.map()
    with pytest.raises(ShapeError, match=r"parameters of shape"):
        problem.log_likelihood(torch.zeros(3))
    with pytest.raises(DataError, match="theta"):
        problem.log_posterior(torch.full((4,), torch.nan))
    with pytest.raises(DataError, match="solver's result"):
        problem.sample("pcn", exact=lambda inputs: inputs.values, draws=4, warm_up=1, **QUIET)
    with pytest.raises(ArgumentError, match="no uncertainty"):
        linear_problem("mean")[0].__class__(
            lambda inputs: inputs,
            prior=PRIORS["normal"],
            encode=lambda theta: Field(theta[:, None].expand(-1, 1, 4), GRID),
            functional=problem.functional,
            data=problem.data,
            noise=1.0,
        )
    with pytest.raises(ArgumentError):
        problem.sample("smc", path="x", **QUIET)
    with pytest.raises(ArgumentError, match="exact="):
        linear_problem("draws")[0].sample("pcn", exact=lambda inputs: inputs, **QUIET)


GRID = pn.Grid.uniform((4,), periodic=False)


def test_contradictory_data_are_refused_and_misfits_reported() -> None:
    """Two sensors at one place that differ by many standard deviations; and data that no parameters explain."""
    twice = pn.functionals.sensors(GRID, [[0.4], [0.4]])
    with pytest.raises(ConstraintError, match="agree within their noise"):
        linear_problem("mean", functional=twice, data=[0.0, 1.0], noise=1e-4)
    linear_problem("mean", functional=twice, data=[0.0, 0.02], noise=1e-4)
    problem, _, _ = linear_problem(
        "mean", data=[1e3, -1e3, 1e3], noise=1e-2, prior=distributions.MultivariateNormal(torch.zeros(4), 1e-4 * torch.eye(4))
    )
    with pytest.warns(DataWarning, match="no parameters explain the data"):
        problem.map()


@cache
def darcy() -> tuple[pn.problems.Darcy1D, pn.FieldPairs, pn.FieldPairs]:
    problem = pn.problems.Darcy1D(
        random_field=pn.problems.GaussianRandomField(1, 2, alpha=2.0, tau=5.0, sigma=25.0), design_dim=4
    )
    return problem, problem.sample(40, resolution=33, seed=0), problem.sample(40, resolution=33, seed=1)


def train(operator: pn.operators.FNO, pairs: pn.FieldPairs, seed: int) -> None:
    pn.fit(operator, pairs, epochs=60, seed=seed, show_progress=False)


@cache
def operator(seed: int = 0) -> pn.operators.FNO:
    made = pn.operators.FNO(in_channels=1, out_channels=1, modes=(6,), width=8, depth=2, periodic=False, seed=seed)
    train(made, darcy()[1], seed)
    return made


@cache
def last_layer(seed: int = 0) -> Predictor:
    return pn.heads.LastLayerLaplace().fit(operator(seed), darcy()[1])


@cache
def calibrated() -> Predictor:
    return pn.calibration.calibrate(last_layer(), darcy()[2])


PREDICTORS: dict[str, Callable[[], Predictor]] = {
    "last layer": last_layer,
    "calibrated": calibrated,
    "ensemble": lambda: pn.heads.DeepEnsemble(members=3, train=train).fit(operator(), darcy()[1]),
    "mixture": lambda: pn.distributions.MixturePredictor([last_layer(0), last_layer(1)]),
    "kernel operator": lambda: pn.heads.KernelOperator().fit(None, darcy()[1]),
}


def inverse_darcy(predictor: Predictor, likelihood: str, scale: float = 1.0) -> tuple[InverseProblem, Tensor]:
    """Four coefficients of the log-permeability from five sensors, and the exact coefficients."""
    problem, pairs, _ = darcy()
    grid = pairs.inputs.grid
    theta = scale * problem.input_distribution.draw(1, seed=7)
    sensors = pn.functionals.sensors(grid, [[0.1], [0.3], [0.5], [0.7], [0.9]])
    data = sensors(problem.solve(problem.inputs(theta, grid=grid)).values)[0]
    return (
        InverseProblem(
            predictor,
            prior=problem.input_distribution,
            encode=lambda theta: problem.inputs(theta, grid=grid),
            functional=sensors,
            data=data,
            noise=1e-5,
            likelihood=likelihood,
            operator_draws=3,
        ),
        theta[0],
    )


@pytest.mark.parametrize("likelihood", ["mean", "joint", "draws"])
@pytest.mark.parametrize("name", PREDICTORS)
def test_every_predictor_infers_its_input(name: str, likelihood: str) -> None:
    """A nonlinear map; the truth is within the posterior's spread, and the input and output fields have its draws."""
    problem, theta = inverse_darcy(PREDICTORS[name](), likelihood)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", DataWarning)  # 15 epochs: data may fit badly
        posterior = problem.sample("pcn", draws=24, warm_up=20, **QUIET)
    assert posterior.theta.shape == (24, 4)
    assert posterior.inputs.samples.shape == posterior.outputs.samples.shape == (24, 1, 1, 33)
    if likelihood != "mean" and name in ("calibrated", "kernel operator"):
        assert bool(((posterior.mean - theta).abs() < 4 * posterior.std + 0.1).all())
    if likelihood == "joint":  # the output given the data is near the data
        observed = problem.functional(posterior.outputs.mean.double())[0, 0]
        assert float((observed - problem.data).abs().max()) < 0.01


def test_outputs_of_operator_draws_agree_with_the_data() -> None:
    """A calibrated predictor is a mixture with a discrepancy, which takes up what the drawn operator does not explain."""
    problem, _ = inverse_darcy(calibrated(), "draws")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", DataWarning)
        posterior = problem.laplace(draws=60)
    residual = problem.functional(posterior.outputs.samples[:, 0].double())[:, 0] - problem.data
    assert float(residual.square().mean()) < 4 * float(problem.noise[0])


def test_a_solver_that_fails_raises_a_typed_error() -> None:
    problem, _ = inverse_darcy(lambda inputs: Field(inputs.values * torch.nan, inputs.grid), "mean")  # type: ignore[arg-type]
    for solve in (lambda: problem.sample("smc", draws=20, **QUIET), problem.map):
        with pytest.raises(DataError, match="log likelihood"):
            solve()
    with pytest.raises(ShapeError, match="data of shape"):
        InverseProblem(
            darcy()[0].solve,
            prior=PRIORS["normal"],
            encode=problem.encode,
            functional=problem.functional,
            data=[],  # type: ignore[arg-type]
            noise=1.0,
            likelihood="mean",
        )


def test_an_exact_solver_takes_the_place_of_a_predictor() -> None:
    problem, theta = inverse_darcy(darcy()[0].solve, "mean")  # type: ignore[arg-type]
    posterior = problem.laplace(draws=500)
    assert bool(((posterior.mean - theta).abs() < 4 * posterior.std).all())


def test_a_mesh_is_a_grid_as_any_other() -> None:
    problem = pn.problems.PoissonOnShapes()
    pairs = problem.sample(20, resolution=60, seed=0)
    made = pn.operators.PointFNO(in_channels=pairs.inputs.channels, out_channels=1, modes=(3, 3), width=8, depth=2, seed=0)
    pn.fit(made, pairs, epochs=3, seed=0, show_progress=False)
    predictor = pn.heads.LastLayerLaplace().fit(made, pairs)
    mesh = pairs.inputs.grid.select(slice(0, 1)).first
    base = pairs.inputs.values[0, :, : mesh.size].double()
    sensors = pn.functionals.sensors(mesh, mesh.points[[10, 20, 30]])
    inverse = InverseProblem(
        predictor,
        prior=distributions.Normal(0.0, 1.0),
        encode=lambda theta: Field(theta[:, :, None] * base, mesh),
        functional=sensors,
        data=sensors(pairs.outputs.values[:1, :, : mesh.size])[0],
        noise=1e-2,
    )
    posterior = inverse.laplace(draws=10)
    assert posterior.outputs.samples.shape == (10, 1, 1, mesh.size)
    assert bool(posterior.std > 0)


def test_a_posterior_far_from_the_training_inputs_warns() -> None:
    problem, _ = inverse_darcy(calibrated(), "joint")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = problem.laplace(draws=20)
    assert not inside.is_unusual
    assert "as in training" in repr(inside)
    far, _ = inverse_darcy(calibrated(), "joint", scale=4.0)
    far.prior = Prior(distributions.MultivariateNormal(torch.zeros(4), 25 * torch.eye(4)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outside = far.laplace(draws=20)
    assert any("was not trained" in str(warning.message) for warning in caught)
    assert outside.is_unusual
    assert repr(outside).startswith("WARNING")


def test_the_result_has_diagnostics_and_fields() -> None:
    problem, _, _ = linear_problem("joint")
    posterior = problem.sample("pcn", draws=40, warm_up=20, **QUIET)
    lower, upper = posterior.interval(0.8)
    assert bool((lower < posterior.mean).all() and (posterior.mean < upper).all())
    assert bool(torch.isfinite(posterior.r_hat).all())
    assert bool((posterior.effective_samples > 0).all())
    assert posterior.evaluations > 40
    assert posterior.seconds > 0
    assert torch.equal(problem.sample("pcn", draws=40, warm_up=20, **QUIET).theta, posterior.theta)
    assert not torch.equal(problem.sample("pcn", draws=40, warm_up=20, seed=1, **QUIET).theta, posterior.theta)
    assert problem.map().std.tolist() == [0.0] * 4
    with pytest.raises(ArgumentError, match="4 or more draws per chain"):
        problem.sample("pcn", draws=4, warm_up=2, **QUIET).r_hat  # noqa: B018


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_arviz_reads_the_chains() -> None:
    posterior = linear_problem("joint")[0].sample("pcn", draws=40, warm_up=5, **QUIET)
    arviz = pytest.importorskip("arviz")
    assert posterior.to_arviz().posterior["theta"].dims[:2] == ("chain", "draw")
    assert abs(float(arviz.summary(posterior.to_arviz())["mean"].iloc[0]) - float(posterior.mean[0])) < 1e-2
