"""Boundary values by construction: exact for every operator, grid, posterior and draw, and in files."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from probneural import fit, load, save
from probneural.distributions import Predictor
from probneural.errors import ArgumentError, GridError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads import DeepEnsemble, Laplace, LastLayerLaplace
from probneural.operators import FNO, DeepONet, Operator, PointFNO
from probneural.operators.layers.box import box_of
from probneural.pairs import FieldPairs
from probneural.physics import ByConstruction, Channel, Dirichlet, Neumann, initial
from tests.operators.cases import smooth
from tests.physics.meshes import square

TIME = Grid.uniform((6, 9), lengths=(1.0, 2.0), periodic=False, origin=0.1).named(["t", "x"])
FINE = TIME.resized((13, 22))
SIDES = [initial(), Dirichlet(2.0, sides=((1, "start"),)), Dirichlet(Channel(0), sides=((1, "end"),))]
BOUND = {torch.float32: 1e-6, torch.float64: 1e-14}
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def fno(seed: int = 0) -> Operator:
    return FNO(1, 1, modes=(2, 3), width=4, depth=2, projection=4, periodic=False, seed=seed)


def deeponet(seed: int = 0) -> Operator:
    return DeepONet(1, 1, sensors=TIME, basis=4, seed=seed)


def point_fno(seed: int = 0, grid: Grid = TIME) -> Operator:
    operator = PointFNO(1, 1, modes=(2, 3), width=4, depth=2, projection=4, seed=seed)
    operator.box.set(*box_of(grid))
    return operator


def inputs_on(grid: Grid, dtype: torch.dtype, count: int = 2) -> Field:
    return Field(smooth(TIME, count=count).to(dtype), TIME).resample(grid)


def misfit(values: Tensor, inputs: Field, grid: Grid) -> float:
    """Largest misfit of values `(..., n, 1, *grid)`; the initial condition comes first, so corners have its values."""
    start = inputs.resample(grid).values
    parts = [values[..., 0, :] - start[..., 0, :], values[..., 1:, 0] - 2.0, values[..., 1:, -1] - start[..., 1:, -1]]
    return max(float(part.detach().abs().max()) for part in parts)


@dtypes
@pytest.mark.parametrize("build", [fno, deeponet, point_fno])
def test_boundary_values_are_exact(build: Callable[[], Operator], dtype: torch.dtype) -> None:
    inner = build()
    operator, inputs = ByConstruction(inner, SIDES).to(dtype), inputs_on(TIME, dtype)
    for query in (None, FINE):
        values = operator(inputs.values, grid=TIME, query=query)
        assert misfit(values, inputs, query or TIME) <= BOUND[dtype]
        change = values - inner(inputs.values, grid=TIME, query=query)
        assert float(change[..., 1:, 1:-1].detach().abs().min()) > 0.0
        assert float(values.detach()[..., 1:, 1:-1].std()) > 0.1
    points = Grid.scattered(FINE.points, torch.ones(FINE.size))
    at_points = operator(inputs.values, grid=TIME, query=points).unflatten(-1, FINE.shape)
    torch.testing.assert_close(at_points, operator(inputs.values, grid=TIME, query=FINE), atol=2e-5, rtol=1e-4)


def test_weights_of_several_conditions() -> None:
    """Where sides meet, the first condition that holds there counts; one condition alone gives g + d v."""
    grid = Grid.uniform((4, 5, 6), periodic=False).named(["t", "x", "y"])
    conditions = [
        Dirichlet(float(row), sides=(side,)) for row, side in enumerate([(0, "start"), (1, "start"), (2, "end"), (2, "start")])
    ]
    inner = FNO(1, 1, modes=(2, 2, 2), width=2, depth=1, periodic=False, seed=0).double()
    inputs = smooth(grid)
    values = ByConstruction(inner, conditions)(inputs, grid=grid)[0, 0]
    assert torch.equal(values[0], torch.zeros(5, 6).double())
    assert torch.equal(values[1:, 0], torch.ones(3, 6).double())
    assert torch.equal(values[1:, 1:, -1], torch.full((3, 4), 2.0).double())
    assert torch.equal(values[1:, 1:, 0], torch.full((3, 4), 3.0).double())
    alone = ByConstruction(inner, Dirichlet(3.0))(inputs, grid=grid)
    torch.testing.assert_close(alone, 3.0 + Dirichlet().distance(grid) * inner(inputs, grid=grid))


@pytest.mark.parametrize("per_sample", [False, True])
def test_meshes(per_sample: bool) -> None:
    grid, fine = (
        (Grid.batch([square(5), square(4)]), Grid.batch([square(9), square(6)])) if per_sample else (square(5), square(9))
    )
    inputs = Field(torch.sin(3 * grid.points[..., 0]).reshape(-1, 1, 25).expand(2, -1, -1), grid)
    condition = Dirichlet(Channel(0))
    operator = ByConstruction(point_fno(grid=grid), condition).double()
    for where in (grid, fine):
        values = operator(inputs.values, grid=grid, query=where)
        assert float(condition.misfit(Field(values, where), inputs).detach().abs().max()) <= 1e-14
    assert float((values - inputs.resample(fine).values).detach().abs().max()) > 0.01
    with pytest.raises(GridError, match="mesh"):
        operator(inputs.values, grid=grid, query=Grid.uniform((4, 4), lengths=0.5))


def trained(head: str, pairs: FieldPairs, dtype: torch.dtype) -> Predictor:
    operator = ByConstruction(fno(), SIDES).to(dtype)
    operator.fit_normalizers(pairs)
    if head == "ensemble":
        train = functools.partial(fit, epochs=1, show_progress=False)
        return DeepEnsemble(3, train=train, show_progress=False).fit(operator, pairs)
    return (LastLayerLaplace(noise=0.1) if head == "last layer" else Laplace(noise=0.1, prior_precision=1.0)).fit(
        operator, pairs
    )


@dtypes
@pytest.mark.parametrize("head", ["last layer", "Laplace", "ensemble"])
def test_posteriors_and_their_draws_are_exact(head: str, dtype: torch.dtype) -> None:
    inputs = inputs_on(TIME, dtype, count=4)
    predictor = trained(head, FieldPairs(inputs, Field(inputs.values.square(), TIME)), dtype)
    for query in (None, FINE):
        u = predictor(inputs, query=query)
        draws = [predictor.draw(seed)(inputs.values, grid=TIME, query=query).detach() for seed in range(5)]
        for values in (u.mean, u.rsample((2,)), *draws):
            assert misfit(values, inputs, query or TIME) <= BOUND[dtype]
        assert not u.variance[..., 0, :].any()
        assert float(u.variance[..., 2:, 2:-2].min()) > 0.0
        assert float(torch.stack(draws).std(0).max()) > 1e-4


@dtypes
def test_files(dtype: torch.dtype, tmp_path: Path) -> None:
    inputs = inputs_on(TIME, dtype, count=4)
    pairs = FieldPairs(inputs, Field(inputs.values.square(), TIME))
    operator = ByConstruction(fno(), SIDES).to(dtype)
    operator.fit_normalizers(pairs)
    save(operator, tmp_path / "operator")
    loaded = load(tmp_path / "operator")
    assert isinstance(loaded, ByConstruction)
    assert loaded.conditions == tuple(SIDES)
    assert torch.equal(loaded(inputs.values, grid=TIME), operator(inputs.values, grid=TIME))
    predictor = trained("last layer", pairs, dtype)
    save(predictor, tmp_path / "predictor")
    assert torch.equal(load(tmp_path / "predictor")(inputs).variance, predictor(inputs).variance)
    with pytest.raises(UnsupportedError, match="function"):
        save(ByConstruction(fno(), Dirichlet(lambda a: a.values)), tmp_path / "callable")
    assert not (tmp_path / "callable").exists()


def test_derivatives() -> None:
    operator, values = ByConstruction(fno(), SIDES).double(), smooth(TIME, count=1)
    direction = smooth(TIME, count=1, name="direction")
    forward = torch.func.jvp(lambda v: operator(v, grid=TIME), (values,), (direction,))[1]
    step = 1e-6 * direction
    numeric = (operator(values + step, grid=TIME) - operator(values - step, grid=TIME)) / 2e-6
    torch.testing.assert_close(forward, numeric, atol=1e-7, rtol=1e-5)
    jacobian = torch.func.jacrev(lambda v: operator(v, grid=TIME).flatten())(values)
    torch.testing.assert_close(jacobian.flatten(1) @ direction.flatten(), forward.flatten())
    assert operator.in_channels == operator.out_channels == 1


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: ByConstruction(torch.nn.Linear(1, 1), Dirichlet()), ArgumentError, "operator"),
        (lambda: ByConstruction(fno(), []), ArgumentError, "Dirichlet"),
        (lambda: ByConstruction(fno(), [Neumann()]), ArgumentError, "Neumann conditions become terms"),  # type: ignore[list-item]
        (lambda: ByConstruction(fno(), 0.0), ArgumentError, "conditions"),  # type: ignore[arg-type]
        (lambda: ByConstruction(FNO(1, 1, modes=(3,)), Dirichlet())(torch.ones(1, 1, 8)), GridError, "periodic domain"),
        (lambda: ByConstruction(fno(), Dirichlet())(torch.ones(1, 1)), ShapeError, "values of shape"),
    ],
)
@pytest.mark.bad_input
def test_refusals(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
