"""Heat on the sphere: the harmonics, the equation itself, rotation, areas; and exact posteriors of a linear map."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import probneural as pn
from probneural.errors import ArgumentError, DataError, ProbneuralError, ShapeError
from probneural.grids import Grid
from probneural.problems import SphereHeat
from probneural.problems.heat import _rotated, harmonics
from tests.helpers import normal

DEGREE = 6


def directions(count: int, *, seed: int = 0) -> Tensor:
    points = normal(count, 3, seed=seed)
    return points / points.norm(dim=1, keepdim=True)


def test_harmonics_are_orthonormal() -> None:
    """By products of Gauss-Legendre nodes of the height and equispaced longitudes, exact for their products."""
    height, weight = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(DEGREE + 1))
    longitude = 2.0 * math.pi * torch.arange(2 * DEGREE + 2, dtype=torch.float64) / (2 * DEGREE + 2)
    radius = (1.0 - height.square()).sqrt()
    points = torch.stack(
        [radius[:, None] * longitude.cos(), radius[:, None] * longitude.sin(), height[:, None].expand(-1, len(longitude))], -1
    )
    values = harmonics(points.flatten(0, 1), DEGREE)
    weights = (weight[:, None] * torch.full_like(longitude, 2.0 * math.pi / len(longitude))).flatten()
    gram = values.mT @ (weights[:, None] * values)
    torch.testing.assert_close(gram, torch.eye((DEGREE + 1) ** 2, dtype=torch.float64), rtol=0, atol=1e-12)


def test_harmonics_of_degree_one_are_coordinates() -> None:
    points = directions(9)
    expected = math.sqrt(3.0 / (4.0 * math.pi)) * points[:, [1, 2, 0]]
    torch.testing.assert_close(harmonics(points, 1)[:, 1:], expected, rtol=1e-13, atol=1e-14)


def test_it_solves_the_equation() -> None:
    """Central differences in time and around the axis; the Laplacian is that in space of x -> u(x / |x|)."""
    diffusivity, rotation, h = 0.1, 0.7, 1e-3
    points = directions(12, seed=1)
    shifts = h * torch.cat([torch.zeros(1, 3), torch.eye(3), -torch.eye(3)]).double()
    neighbours = points[:, None] + shifts
    neighbours = neighbours / neighbours.norm(dim=-1, keepdim=True)
    turned = torch.stack([_rotated(points, h), _rotated(points, -h)], 1)
    where = torch.cat([neighbours, turned], 1).flatten(0, 1)

    def state(time: float) -> Tensor:
        problem = SphereHeat(diffusivity=diffusivity, rotation=rotation, time=time)
        return problem.sample(3, points=where, seed=4, dtype=torch.float64).outputs.values.reshape(3, 12, 9)

    rate = (state(0.5 + h) - state(0.5 - h))[..., 0] / (2.0 * h)
    u = state(0.5)
    laplacian = (u[..., 1:7].sum(-1) - 6.0 * u[..., 0]) / h**2
    around = (u[..., 7] - u[..., 8]) / (2.0 * h)
    torch.testing.assert_close(rate, diffusivity * laplacian - rotation * around, rtol=1e-4, atol=1e-4)


def test_without_diffusion_it_is_a_rotation() -> None:
    problem, points = SphereHeat(diffusivity=0.0, rotation=0.4, time=2.0), directions(40)
    after = problem.sample(3, points=_rotated(points, 0.8), seed=0, dtype=torch.float64).outputs.values
    before = problem.sample(3, points=points, seed=0, dtype=torch.float64).inputs.values
    torch.testing.assert_close(after, before, rtol=0, atol=1e-13)


def test_areas_of_points_that_are_dense_on_one_side() -> None:
    """The integral of (1 + z)² is 16π/3; equal weights give 5.5 times pi and more."""
    points = normal(4000, 3, seed="points") + torch.tensor([0.0, 0.0, 0.5], dtype=torch.float64)
    points = points / points.norm(dim=1, keepdim=True)
    grid, values = SphereHeat.grid(points), (1.0 + points[:, 2]).square()
    exact = 16.0 * math.pi / 3.0
    assert abs(float(grid.weights @ values) / exact - 1.0) < 0.01
    assert abs(4.0 * math.pi * float(values.mean()) / exact - 1.0) > 0.1


def test_areas_integrate_and_heat_is_conserved() -> None:
    for grid in (SphereHeat.grid(500), SphereHeat.grid(directions(500))):
        assert grid.volume == pytest.approx(4.0 * math.pi, rel=1e-10)
        assert grid.mean(grid.points[:, 2].square()).item() == pytest.approx(1.0 / 3.0, abs=0.02)
    assert float((SphereHeat.grid(500).weights * 500.0 / (4.0 * math.pi) - 1.0).abs().max()) < 0.06  # Fibonacci: about equal
    pairs = SphereHeat().sample(5, resolution=2000, seed=0, dtype=torch.float64)
    averages = [side.grid.mean(side.values) for side in (pairs.inputs, pairs.outputs)]
    torch.testing.assert_close(*averages, rtol=0, atol=2e-3)


class DegreeFilter(nn.Module):
    """Features of the exact operator: the part of each degree of the input, turned; a readout weighs the degrees."""

    def __init__(self, grid: Grid, *, angle: float) -> None:
        super().__init__()
        before = harmonics(grid.points, DEGREE)
        parts = harmonics(_rotated(grid.points, -angle), DEGREE).split([2 * degree + 1 for degree in range(DEGREE + 1)], 1)
        rows = torch.linalg.pinv(before).split([2 * degree + 1 for degree in range(DEGREE + 1)])
        self.register_buffer("maps", torch.stack([part @ row for part, row in zip(parts, rows, strict=True)]))
        self.readout = nn.Conv1d(DEGREE + 1, 1, 1, bias=False, dtype=torch.float64)

    def features(self, values: Tensor) -> Tensor:
        return torch.einsum("kpq,nq->nkp", self.maps, values[:, 0])

    def forward(self, values: Tensor) -> Tensor:
        return self.readout(self.features(values))


def test_the_posterior_of_the_linear_operator_is_the_dense_one() -> None:
    """Bayesian linear regression from its formula, with a row per sample and point, weighted by areas."""
    problem = SphereHeat()
    noise, prior, count = 1e-4, 0.5, 80.0
    data = problem.sample(30, resolution=80, seed=0, dtype=torch.float64)
    grid = data.inputs.grid
    noisy = data.outputs.values + noise**0.5 * normal(*data.outputs.values.shape, seed="noise")
    train = pn.FieldPairs(data.inputs, pn.Field(noisy, grid))
    operator = DegreeFilter(grid, angle=problem.rotation * problem.time)
    head = pn.heads.LastLayerLaplace(noise=noise, prior_precision=prior, effective_observations=count, moves_mean=True)
    test = problem.sample(4, resolution=80, seed=1, dtype=torch.float64)
    u = head.fit(operator, train)(test.inputs)
    assert isinstance(u, pn.distributions.GaussianField)

    # precision = Φ^T diag(m w / |D|) Φ / s² + τ,   mean = precision^-1 Φ^T diag(m w / |D|) y / s²
    rows = operator.features(train.inputs.values).mT.flatten(0, 1)
    weights = (count * grid.mean_weights).repeat(len(train))
    precision = rows.mT @ (weights[:, None] * rows) / noise + prior * torch.eye(DEGREE + 1, dtype=torch.float64)
    covariance = torch.linalg.inv(precision)
    mean = covariance @ rows.mT @ (weights * noisy.flatten()) / noise
    features = operator.features(test.inputs.values).mT
    dense = features @ covariance @ features.mT
    root = u.root.dense().flatten(1, 2)
    torch.testing.assert_close(u.mean[:, 0], features @ mean, rtol=0, atol=1e-8)
    assert float((root @ root.mT - dense).norm() / dense.norm()) < 1e-8
    total = u.apply(pn.functionals.integral(u.grid))
    expected = torch.einsum("p,npq,q->n", grid.weights, dense, grid.weights)
    torch.testing.assert_close(total.variance.flatten(), expected, rtol=1e-8, atol=0)

    degrees = torch.arange(DEGREE + 1, dtype=torch.float64)
    truth = (-problem.diffusivity * problem.time * degrees * (degrees + 1.0)).exp()
    assert float(((mean - truth).square() / covariance.diagonal()).sum()) < 24.3  # chi², 7 degrees of freedom, 99.9 %


@pytest.mark.bad_input
@pytest.mark.parametrize(
    ("points", "error", "message"),
    [
        (torch.zeros(5, 2), ShapeError, r"\(p, 3\)"),
        (torch.ones(5, 3), DataError, "on the unit sphere"),
        (torch.full((5, 3), math.nan), DataError, "on the unit sphere"),
        (torch.eye(3), DataError, "four points"),
        (torch.eye(3).repeat(2, 1), DataError, "differ"),
        ("points", DataError, "points"),
    ],
)
def test_bad_points(points: object, error: type[ProbneuralError], message: str) -> None:
    with pytest.raises(error, match=message):
        SphereHeat().sample(2, points=points, seed=0)  # type: ignore[arg-type]


@pytest.mark.bad_input
def test_bad_arguments() -> None:
    for options in ({}, {"resolution": 10, "points": torch.eye(3)}):
        with pytest.raises(ArgumentError, match="resolution or points"):
            SphereHeat().sample(2, seed=0, **options)  # type: ignore[arg-type]
