"""Gauss-Newton correction by residuals: dense least squares, covariances, nonlinear equations, refusals."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from torch import Tensor

from probneural.distributions import DenseRoot, EmpiricalField, GaussianField, Latent
from probneural.distributions.mixture import MixtureField
from probneural.errors import ArgumentError, DataError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.operators import FNO
from probneural.pairs import FieldPairs
from probneural.physics import Channel, Dirichlet, Neumann, Residual, equations, laplacian
from probneural.physics.residual import basis
from tests.helpers import normal

GRID = Grid.uniform((14,), periodic=False, lengths=1.5)
X = GRID.points[:, 0]
MODES = 7
CHEBYSHEV = torch.from_numpy(numpy.polynomial.chebyshev.chebvander(2.0 * X.numpy() / 1.5 - 1.0, MODES - 1))
INPUTS = Field(normal(2, 2, 14, seed="inputs"), GRID)
POISSON = Residual(equations.Poisson(), [Dirichlet(Channel(1), sides=((0, "start"),)), Neumann(0.5, sides=((0, "end"),))])


def gaussian(
    *, count: int = 2, channels: int = 1, discrepancy: bool = False, dtype: torch.dtype = torch.float64
) -> GaussianField:
    shape = (count, channels, GRID.size)
    more = {"discrepancy": DenseRoot(0.1 * normal(*shape, 4, seed="discrepancy").to(dtype))} if discrepancy else {}
    root = DenseRoot(0.3 * normal(*shape, 5, seed="root").to(dtype))
    return GaussianField(normal(*shape, seed="mean").to(dtype), root, latent=Latent(id="weights", rank=5), grid=GRID, **more)


def dense(residual: Residual, mean: Tensor, inputs: Field | None, functions: Tensor) -> tuple[Tensor, Tensor]:
    """One step of weighted least squares for one channel, and its derivative I - B (J B)^+ J, by dense algebra."""

    def blocks(values: Tensor) -> list[Tensor]:
        u = values[None, None]
        misfits = [condition.misfit(Field(u, GRID), inputs) for condition in residual.conditions]
        return [part.flatten() for part in (residual(u, inputs, GRID), *misfits)]

    jacobians = [torch.func.jacrev(lambda v, index=index: blocks(v)[index])(mean) for index in range(len(blocks(mean)))]
    weights = [1.0 / (jacobian @ functions).norm() for jacobian in jacobians]
    jacobian = torch.cat([weight * part for weight, part in zip(weights, jacobians, strict=True)])
    right = torch.cat([weight * part for weight, part in zip(weights, blocks(mean), strict=True)])
    coefficients = torch.linalg.lstsq(jacobian @ functions, -right[:, None]).solution[:, 0]
    projection = functions @ torch.linalg.lstsq(jacobian @ functions, jacobian).solution
    return mean + functions @ coefficients, torch.eye(len(mean), dtype=torch.float64) - projection


def dense_covariance(u: GaussianField) -> Tensor:
    """The covariance `(n, p, p)` of one channel, discrepancy included."""
    parts = [u.root] if u.discrepancy is None else [u.root, u.discrepancy]
    dense_parts = [part.dense().double()[:, 0] for part in parts]
    return torch.stack([part @ part.mT for part in dense_parts]).sum(0)


@pytest.mark.parametrize("discrepancy", [False, True])
def test_gaussian_fields(discrepancy: bool) -> None:
    u = gaussian(discrepancy=discrepancy)
    corrected = POISSON.correct(u, inputs=INPUTS, steps=1, modes=MODES)
    assert isinstance(corrected, GaussianField)
    assert (corrected.discrepancy is not None) == discrepancy
    coarser = POISSON.correct(u, inputs=INPUTS, steps=1, modes=MODES - 1)
    assert len({field.latent.id for field in (u, corrected, coarser)}) == 3  # their draws are different functions
    for row in range(2):
        mean, along = dense(POISSON, u.mean[row, 0], INPUTS[row], CHEBYSHEV)
        torch.testing.assert_close(corrected.mean[row, 0], mean, atol=1e-10, rtol=1e-10)
        expected = along @ dense_covariance(u)[row] @ along.T
        torch.testing.assert_close(dense_covariance(corrected)[row], expected, atol=1e-10, rtol=1e-10)
        torch.testing.assert_close(corrected.variance[row, 0], expected.diagonal(), atol=1e-10, rtol=1e-10)
    twice = POISSON.correct(u, inputs=INPUTS, steps=3, modes=MODES)  # linear: one step suffices
    torch.testing.assert_close(twice.mean, corrected.mean, atol=1e-9, rtol=1e-9)


def test_ensembles() -> None:
    """Deviations of members are mapped like those of a Gaussian field; weights and number of members stay."""
    members, weights = normal(4, 2, 1, 14, seed="members"), torch.tensor([0.1, 0.2, 0.3, 0.4]).double()
    u = EmpiricalField(members, weights, grid=GRID)
    corrected = POISSON.correct(u, inputs=INPUTS, modes=MODES)
    assert isinstance(corrected, EmpiricalField)
    assert torch.equal(corrected.weights, u.weights)
    for row in range(2):
        mean, along = dense(POISSON, u.mean[row, 0], INPUTS[row], CHEBYSHEV)
        expected = mean + (members[:, row, 0] - u.mean[row, 0]) @ along.T
        torch.testing.assert_close(corrected.samples[:, row, 0], expected, atol=1e-9, rtol=1e-9)


def test_mixtures_and_single_precision() -> None:
    parts = gaussian(), gaussian(discrepancy=True)
    mixture = MixtureField(parts, torch.tensor([0.25, 0.75]).double())
    corrected = POISSON.correct(mixture, inputs=INPUTS, modes=MODES)
    expected = POISSON.correct(mixture.moment_matched(), inputs=INPUTS, modes=MODES)
    torch.testing.assert_close(corrected.mean, expected.mean)
    torch.testing.assert_close(corrected.variance, expected.variance)
    single = POISSON.correct(gaussian(dtype=torch.float32), inputs=INPUTS.to(torch.float32), modes=MODES)
    assert single.mean.dtype == torch.float32
    double = POISSON.correct(gaussian(), inputs=INPUTS, modes=MODES)
    torch.testing.assert_close(single.mean.double(), double.mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(single.variance.double(), double.variance, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("steps", [1, 2])
def test_nonlinear_equations_use_one_jacobian(steps: int) -> None:
    """-u'' + u^3 = f: the map of covariances is the derivative at the iterate where the last step starts."""

    def cubic(u: Field, inputs: Field | None) -> Tensor:
        assert inputs is not None
        return -laplacian(u).values + u.values**3 - inputs.values[:, :1]

    residual, u = Residual(cubic, Dirichlet(0.0)), gaussian(count=1)
    corrected = residual.correct(u, inputs=INPUTS[0], steps=steps, modes=MODES)
    mean = u.mean[0, 0]
    for _ in range(steps):
        mean, along = dense(residual, mean, INPUTS[0], CHEBYSHEV)
    torch.testing.assert_close(corrected.mean[0, 0], mean, atol=1e-9, rtol=1e-9)
    expected = along @ dense_covariance(u)[0] @ along.T
    torch.testing.assert_close(dense_covariance(corrected)[0], expected, atol=1e-9, rtol=1e-8)  # type: ignore[arg-type]


def test_nonlinear_equations_converge_in_a_few_steps() -> None:
    """-u'' + u^3 = f with the solution u = sin(pi x) on [0, 1], from a wrong start; errors fall quadratically to rounding."""
    grid = Grid.uniform((24,), periodic=False)
    x = grid.points.T[None]
    exact = (math.pi * x).sin()

    def cubic(u: Field, inputs: Field | None = None) -> Tensor:
        return -laplacian(u).values + u.values**3 - math.pi**2 * exact - exact**3

    start = EmpiricalField((exact + 1.5 * x * (1 - x) + 0.3)[None], grid=grid)
    residual = Residual(cubic, Dirichlet(0.0))
    errors = [float((residual.correct(start, steps=steps, modes=16).mean - exact).abs().max()) for steps in (1, 2, 3, 4)]
    assert errors[0] < 0.3
    assert errors[2] < 1e-3 * errors[0]
    assert errors[3] < 2e-5  # that of the differences
    exact_on_grid = residual.correct(start, steps=9, modes=16).mean
    steps = [float((residual.correct(start, steps=count, modes=16).mean - exact_on_grid).abs().max()) for count in (1, 2, 3)]
    assert steps[1] < steps[0] ** 2
    assert steps[2] < steps[1] ** 2


def test_boundaries_without_conditions_are_held() -> None:
    grid = Grid.uniform((8, 12), periodic=(True, False))
    x, y = grid.points.T.reshape(2, 1, 1, 8, 12)
    mean = (2 * math.pi * x).sin() * y.exp() + y**2
    u = EmpiricalField(mean[None], grid=grid)
    held = Residual(equations.Poisson(source=1.0)).correct(u, modes=12).mean
    one_sided = Residual(equations.Poisson(source=1.0), Dirichlet(0.0, sides=((1, "end"),))).correct(u, modes=12).mean
    assert float((held - mean).abs().max()) > 0.5
    for error in ((held - mean)[..., 0], (held - mean)[..., -1], one_sided[..., -1], (one_sided - mean)[..., 0]):
        assert float(error.abs().max()) < 1e-3


def test_corrected_predictors() -> None:
    """Fields and draws of `corrected` are those of `correct`; with enough modes the error falls to that of the differences."""
    grid = Grid.uniform((20,), periodic=False)
    x = grid.points.T[None]
    amplitudes = normal(6, 1, 1)
    outputs = Field(amplitudes * (math.pi * x).sin(), grid)
    pairs = FieldPairs(Field(math.pi**2 * outputs.values, grid), outputs)
    operator = FNO(1, 1, modes=(4,), width=4, depth=2, projection=4, periodic=False, seed=0).double()
    operator.fit_normalizers(pairs)
    predictor = LastLayerLaplace(noise=0.1).fit(operator, pairs)
    residual = Residual(equations.Poisson(), Dirichlet(0.0))
    corrected = residual.corrected(predictor, modes=12)
    u, expected = corrected(pairs.inputs), residual.correct(predictor(pairs.inputs), inputs=pairs.inputs, modes=12)
    assert torch.equal(u.mean, expected.mean)
    assert torch.equal(u.variance, expected.variance)
    before = float((predictor(pairs.inputs).mean - outputs.values).abs().max())
    assert float((u.mean - outputs.values).abs().max()) < 5e-4 < 1e-2 * before
    draw = corrected.draw(3)(pairs.inputs.values, grid=grid)
    assert float((draw[..., [0, -1]]).abs().max()) < 1e-3 * before
    assert float(u.variance.max()) < 1e-3 * float(predictor(pairs.inputs).variance.max())


@pytest.mark.parametrize(
    "grid", [Grid.uniform((9, 6), periodic=(True, False)), Grid.uniform((8,)), Grid.scattered(normal(9, 2), torch.ones(9))]
)
def test_basis(grid: Grid) -> None:
    """Of full rank, with constants; derivatives of Fourier modes stay in their span."""
    functions = basis(grid, 3 if not grid.is_uniform else 5)
    assert torch.linalg.matrix_rank(functions) == functions.shape[1]
    ones = torch.ones(grid.size, 1, dtype=torch.float64)
    assert (
        float(
            torch.linalg.lstsq(functions, ones, driver="gelsd").solution.sub(torch.eye(functions.shape[1])[:, :1]).abs().max()
        )
        < 1e-10
    )


def nan_after_one_step(u: Field, inputs: Field | None) -> Tensor:
    return torch.where(u.values.abs() > 100.0, math.nan, -laplacian(u).values - 1e5)


@pytest.mark.bad_input
def test_refusals() -> None:
    u = gaussian(count=1)
    with pytest.raises(DataError, match="NaN or infinity at iteration 1"):
        Residual(nan_after_one_step, Dirichlet(0.0)).correct(u, steps=2, modes=MODES)
    with pytest.raises(DataError, match="NaN or infinity at iteration 0"):
        Residual(lambda v, _: v.values / 0.0, Dirichlet(0.0)).correct(u, modes=MODES)
    with pytest.raises(ArgumentError, match="inputs="):
        POISSON.correct(u, modes=MODES)
    with pytest.raises(ArgumentError, match="steps"):
        POISSON.correct(u, inputs=INPUTS[0], steps=0)
    with pytest.raises(ArgumentError, match="modes"):
        POISSON.correct(u, inputs=INPUTS[0], modes=0)
    with pytest.raises(DataError, match="u"):
        POISSON.correct(u.mean, inputs=INPUTS[0])  # type: ignore[arg-type]
    meshes = Grid.batch([Grid.scattered(normal(4, 1), torch.ones(4))] * 2)
    with pytest.raises(UnsupportedError, match="one grid"):
        POISSON.correct(EmpiricalField(normal(3, 2, 1, 4), grid=meshes), inputs=INPUTS)
