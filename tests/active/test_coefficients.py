"""ModeCoefficients: projection and decoding against dense algebra, and objectives of whole fields."""

from __future__ import annotations

import pytest
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import GenericMCObjective
from botorch.sampling.get_sampler import get_sampler
from torch import Tensor

from probneural.active import ModeCoefficients, OperatorModel
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import Readings
from probneural.grids import Grid
from tests.active.predictors import FINE_GRID, INPUT_GRID, FeaturePredictor, encode, feature_root
from tests.heads.cases import fields

GRIDS = {
    "periodic": INPUT_GRID,
    "closed": Grid.uniform((9,), lengths=2.0, periodic=False, endpoint=True),
    "plane": Grid.uniform((6, 5), lengths=(1.0, 3.0), periodic=(True, False)),
    "scattered": Grid.scattered(
        torch.rand(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
        torch.linspace(0.5, 1.5, 12).double(),
    ),
}


def outputs(grid: Grid, count: int = 8, channels: int = 2) -> Field:
    generator = torch.Generator().manual_seed(3)
    values = torch.randn(count, channels, *grid.shape, generator=generator, dtype=torch.float64)
    return Field(values * torch.tensor([1.0, 100.0])[:channels].reshape(-1, *[1] * len(grid.shape)) + 3.0, grid)


@pytest.mark.parametrize("name", GRIDS)
def test_principal_modes_are_those_of_the_weighted_covariance(name: str) -> None:
    """Eigenvectors of the covariance of all channels, each in units of its own spread, under the quadrature's inner product."""
    grid, data = GRIDS[name], outputs(GRIDS[name])
    modes = ModeCoefficients.principal(data, size=3)
    deviations = (data.values - data.values.mean(0)).flatten(2)
    roots = grid.weights.sqrt()
    scaled = [d / ((d.square() @ grid.weights).mean()).sqrt() * roots for d in deviations.unbind(1)]
    _, vectors = torch.linalg.eigh(sum(d.mT @ d for d in scaled))
    expected = (vectors[:, -3:].flip(1) / roots[:, None]).mT
    found = modes.modes.flatten(1)
    signs = ((found * grid.weights) @ expected.mT).diagonal().sign()
    torch.testing.assert_close(found * signs[:, None], expected, rtol=1e-8, atol=1e-8)
    captured = torch.stack([(d @ vectors[:, -3:]).square().sum() / d.square().sum() for d in scaled])
    torch.testing.assert_close(modes.captured(data), captured)


@pytest.mark.parametrize("name", GRIDS)
def test_decoding_is_the_nearest_field_the_modes_can_hold(name: str) -> None:
    grid, data = GRIDS[name], outputs(GRIDS[name])
    modes = ModeCoefficients.principal(data, size=4)
    coefficients = modes(data.values)
    assert coefficients.shape == (8, 2, 4)
    decoded = modes.decode(coefficients.flatten(1))
    roots, basis = grid.weights.sqrt(), modes.modes.flatten(1)
    deviation = (data.values - data.values.mean(0)).flatten(2)
    fitted = torch.linalg.lstsq((basis * roots).mT, (deviation * roots).flatten(0, 1).mT).solution.mT @ basis
    expected = data.values.mean(0).flatten(1) + fitted.unflatten(0, (8, 2))
    torch.testing.assert_close(decoded.flatten(2), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(modes(decoded), coefficients, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(modes.decode(coefficients.flatten(1).reshape(2, 4, 8)), decoded.unflatten(0, (2, 4)))


def test_all_modes_hold_everything() -> None:
    data = outputs(INPUT_GRID, count=20)
    modes = ModeCoefficients.principal(data, size=16)
    torch.testing.assert_close(modes.decode(modes(data.values).flatten(1)), data.values, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(modes.captured(data), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("name", GRIDS)
def test_adjoint_and_dtype(name: str) -> None:
    modes, generator = ModeCoefficients.principal(outputs(GRIDS[name]), size=3), torch.Generator().manual_seed(1)
    u = torch.randn(2, *modes.grid.shape, generator=generator, dtype=torch.float64)
    y = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    torch.testing.assert_close((modes(u) * y).sum(), (u * modes.adjoint(y)).sum())
    assert modes(u.float()).dtype == modes.decode(y.float().flatten()).dtype == torch.float32
    assert torch.autograd.gradcheck(modes.decode, (y.flatten().requires_grad_(),))


def test_objectives_of_whole_fields_through_all_modes_equal_those_on_the_grid() -> None:
    """With as many modes as points, nothing is lost: acquisition values are those of a model of all points."""
    predict, grid = FeaturePredictor(feature_root), FINE_GRID
    modes = ModeCoefficients.principal(Field(fields(grid, 60, 1, seed=5, waves=12).values, grid), size=grid.size)
    whole = Readings(grid, torch.eye(grid.size, dtype=torch.float64))
    target = torch.cos(2 * torch.pi * grid.points[:, 0])
    X = torch.rand(4, 2, 2, generator=torch.Generator().manual_seed(6), dtype=torch.float64)

    def score(functional: Readings | ModeCoefficients, decode: object) -> Tensor:
        model = OperatorModel(predict, encode=encode, functional=functional)
        objective = GenericMCObjective(lambda Y, X: -((decode(Y) - target).square() @ grid.weights))
        sampler = get_sampler(model.posterior(X), torch.Size([32]), seed=0)
        return qLogExpectedImprovement(model, best_f=-2.0, sampler=sampler, objective=objective)(X)

    values = score(modes, lambda Y: modes.decode(Y)[..., 0, :])
    torch.testing.assert_close(values, score(whole, lambda Y: Y), rtol=1e-8, atol=1e-8)


def test_squared_distances_need_no_decoding() -> None:
    modes, data = ModeCoefficients.principal(outputs(INPUT_GRID), size=4), outputs(INPUT_GRID)
    target, coefficients = data.values[0], modes(data.values)
    near = ((modes.decode(coefficients.flatten(1)) - target).square().flatten(2) @ INPUT_GRID.weights).sum(-1)
    short = (coefficients - modes(target)).square().sum((1, 2))
    torch.testing.assert_close(near - near[0], short - short[0], rtol=1e-9, atol=1e-9)


@pytest.mark.bad_input
def test_bad_modes() -> None:
    ones = torch.ones(2, 16, dtype=torch.float64)
    with pytest.raises(ShapeError, match=r"modes of shape \(r, \*\(16,\)\); got \(2, 8\)"):
        ModeCoefficients(INPUT_GRID, ones[:, :8])
    with pytest.raises(ShapeError, match=r"modes of shape \(r, \*\(16,\)\); got \(16,\)"):
        ModeCoefficients(INPUT_GRID, ones[0])
    with pytest.raises(ShapeError, match=r"centre of shape \(c, \*\(16,\)\)"):
        ModeCoefficients(INPUT_GRID, ones[:1], ones[0])
    with pytest.raises(DataError, match="inner products 1.0e\\+00 from those"):
        ModeCoefficients(INPUT_GRID, ones)
    with pytest.raises(DataError, match="orthonormal"):
        ModeCoefficients(INPUT_GRID, ones[:1] * torch.nan)


@pytest.mark.bad_input
@pytest.mark.parametrize("size", [0, 15, 17])
def test_bad_numbers_of_modes(size: int) -> None:
    with pytest.raises(ArgumentError, match="1 to 14 modes"):
        ModeCoefficients.principal(outputs(INPUT_GRID), size=size)


@pytest.mark.bad_input
def test_bad_fields_and_coefficients() -> None:
    modes = ModeCoefficients.principal(outputs(INPUT_GRID), size=4)
    for count in (7, 4, 12):
        with pytest.raises(ShapeError, match=r"\(..., 2 \* 4\)"):
            modes.decode(torch.zeros(3, count))
    with pytest.raises(ShapeError, match=r"\(..., c \* 4\)"):
        ModeCoefficients(INPUT_GRID, modes.modes).decode(torch.zeros(3, 6))
    with pytest.raises(GridError, match="fields on"):
        modes.captured(outputs(FINE_GRID))
    with pytest.raises(DataError, match="constant channel"):
        modes.captured(Field(torch.ones(3, 2, 16), INPUT_GRID))
