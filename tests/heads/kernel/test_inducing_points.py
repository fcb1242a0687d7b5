"""Inducing points against GPyTorch's, the exact posterior, and their own draws."""

from __future__ import annotations

from pathlib import Path as FilePath

import pytest
import torch

from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.heads import KernelOperator
from probneural.heads.kernel import kernel_operator
from probneural.heads.kernel.gaussian_processes import Covariance, InducingProcess, Process
from probneural.heads.kernel.kernel_operator import Path
from probneural.heads.kernel.search import Evidence
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.heads.cases import PERIODIC, fields
from tests.helpers import generator, normal

ONE = torch.ones((), dtype=torch.float64)


def covariance(kernel: str = "matern52") -> Covariance:
    return Covariance(kernel, torch.full((2,), 0.5).double(), torch.full((2,), 0.3).double(), ONE)


def conditioned(count: int, *, nugget: float = 0.1, kernel: str = "matern52") -> tuple[InducingProcess, float]:
    points, values = normal(40, 2), normal(40, 3, seed=1)
    return InducingProcess.fitted(covariance(kernel), nugget=nugget, points=points, values=values, count=count)


def test_is_gpytorchs() -> None:
    import gpytorch

    process, bound = conditioned(9)
    points, values, new = normal(40, 2), normal(40, 3, seed=1), normal(5, 2, seed=2)
    total = 0.0
    for column, deviation, mean in zip(values.mT, process.amplitude.tolist(), process.mean(new).mT, strict=True):
        base = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)).double()
        base.outputscale, base.base_kernel.lengthscale = deviation**2, 2.0
        likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
        likelihood.noise = process.nugget * deviation**2
        kernel = gpytorch.kernels.InducingPointKernel(base, inducing_points=process.inducing.clone(), likelihood=likelihood)
        prior = gpytorch.distributions.MultivariateNormal(torch.zeros(40).double(), kernel(points))
        total += float(likelihood(prior).log_prob(column).detach())
        added = sum(term.loss() for term in kernel.added_loss_terms() if term is not None)
        total += float(added.detach()) if isinstance(added, torch.Tensor) else 0.0
        low_rank = (
            base(points, process.inducing).to_dense()
            @ torch.linalg.inv(base(process.inducing).to_dense())
            @ base(process.inducing, points).to_dense()
            + process.nugget * deviation**2 * torch.eye(40).double()
        )
        cross = (
            base(new, process.inducing).to_dense()
            @ torch.linalg.inv(base(process.inducing).to_dense())
            @ base(process.inducing, points).to_dense()
        )
        torch.testing.assert_close(mean, (cross @ torch.linalg.solve(low_rank, column)).detach(), rtol=1e-6, atol=1e-8)
        expected = base(new).to_dense() - cross @ torch.linalg.solve(low_rank, cross.mT)
        torch.testing.assert_close(deviation**2 * process.variance(new), expected.diagonal().detach(), rtol=1e-6, atol=1e-8)
        root = process.joint_factor(new)
        torch.testing.assert_close(deviation**2 * root @ root.mT, expected.detach(), rtol=1e-6, atol=1e-8)
    matrix = covariance()(points, points)
    assert bound < Evidence.of(matrix + process.nugget * torch.eye(40), values).value


def test_all_points_are_exact() -> None:
    points, values, new = normal(40, 2), normal(40, 3, seed=1), normal(5, 2, seed=2)
    process, bound = conditioned(40)
    matrix = covariance()(points, points) + process.nugget * torch.eye(40)
    evidence = Evidence.of(matrix, values)
    exact = Process(covariance(), process.nugget, points, values, evidence.amplitude)
    assert bound == pytest.approx(evidence.value, abs=1e-6)
    torch.testing.assert_close(process.amplitude, exact.amplitude, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(process.mean(new), exact.mean(new), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(process.variance(new), exact.variance(new), rtol=1e-7, atol=1e-10)


def test_noise_takes_what_is_left_out() -> None:
    points = normal(60, 2)
    values = points.sin() + points.flip(1)
    few, many = (
        InducingProcess.fitted(covariance("rbf"), nugget=1e-10, points=points, values=values, count=m) for m in (5, 50)
    )
    assert few[0].nugget > 100 * many[0].nugget
    assert few[1] < many[1]
    for process, bound in (few, many):
        for factor in (0.1, 10.0):
            if process.nugget * factor >= 1e-10:
                again = InducingProcess.fitted(
                    covariance("rbf"), nugget=process.nugget * factor, points=points, values=values, count=len(process.inducing)
                )
                assert again[1] <= bound + 1.0  # levels are a factor of e apart


@pytest.mark.parametrize("kernel", ["rational_quadratic+linear", "matern52"])
def test_paths_have_the_posterior_distribution(kernel: str) -> None:
    process, _ = conditioned(8, kernel=kernel)
    process = InducingProcess(
        process.covariance,
        process.nugget,
        process.inducing,
        process.gram,
        process.projected[:, :1].expand(-1, 60),
        torch.full((60,), 2.0).double(),
    )
    new, seed, paths = normal(2, 2, seed=2), generator(3), 100
    draws = torch.stack([Path.drawn(process, generator=seed, features=512)(new) for _ in range(paths)])
    root = 2.0 * process.joint_factor(new)
    whitened = torch.linalg.solve_triangular(root, (draws - process.mean(new)).movedim(1, 0).flatten(1), upper=False)
    count = paths * 60
    assert float(whitened.mean(1).abs().max()) < 4.5 / count**0.5
    assert float((whitened @ whitened.mT / count - torch.eye(2)).abs().max()) < 6.0 / count**0.5


def pairs(count: int, *, seed: int) -> FieldPairs:
    inputs = fields(PERIODIC, count, 1, seed=seed)
    return FieldPairs(inputs, Field(inputs.values.square() + inputs.values, PERIODIC))


def test_a_predictor_of_inducing_points(tmp_path: FilePath, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = pairs(60, seed=0), pairs(5, seed=1)
    head = KernelOperator(groups=2, iterations=5)
    exact = head.fit(None, train)
    assert all(
        isinstance(process, Process) for process in KernelOperator(groups=1, inducing_points=60).fit(None, train).processes
    )
    monkeypatch.setattr(kernel_operator, "_EXACT", 59)
    monkeypatch.setattr(kernel_operator, "_INDUCING", 40)
    predictor = head.fit(None, train)
    assert all(isinstance(process, InducingProcess) for process in predictor.processes)
    assert [len(process.inducing) for process in predictor.processes] == [40, 40]
    assert predictor.log_evidence < exact.log_evidence
    save(predictor, tmp_path / "predictor")
    field, loaded = predictor(test.inputs), load(tmp_path / "predictor")(test.inputs)
    assert torch.equal(field.mean, loaded.mean)
    assert torch.equal(field.variance, loaded.variance)
    assert field.latent.id == loaded.latent.id
    error = (field.mean - test.outputs.values).norm() / test.outputs.values.norm()
    assert float(error) < 0.05
    drawn = predictor.evaluate_draws(test.inputs, seeds=range(200))
    assert float(((drawn.mean(0) - field.mean) / field.standard_deviation).abs().max()) < 5.0 / 200**0.5


@pytest.mark.bad_input
def test_bad_settings() -> None:
    process, _ = conditioned(5)
    for nugget in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="a finite number above 0 as nugget"):
            InducingProcess(process.covariance, nugget, process.inducing, process.gram, process.projected, process.amplitude)
