"""Derivatives of operators at query points: finite differences, the gradient on a fine mesh, weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from probneural.errors import ArgumentError, GridError, UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.operators import AttentionOperator, DeepONet, Operator, PointFNO
from probneural.operators.layers.box import box_of
from probneural.physics import ByConstruction, Channel, Dirichlet, derivatives_at, gradient
from tests.helpers import normal, uniform
from tests.physics.meshes import irregular, square

UNIFORM = Grid.uniform((9, 8), periodic=(True, False))
MESH = irregular(7)
BATCH = Grid.batch([irregular(7), square(6)])
POINTS = 0.1 + 0.8 * uniform(5, 2, seed=3)


def inputs_on(grid: Grid, channels: int = 2) -> Field:
    x, y = grid.points.unbind(-1)
    channel = torch.stack([(6.2831853 * x).sin() * y, y.cos() + 0.2 * x], -2)[..., :channels, :]
    rows = channel if channel.ndim == 3 else torch.stack([channel, channel.square()])
    return Field(rows.unflatten(-1, grid.shape), grid)


def point_fno(grid: Grid) -> Operator:
    operator = PointFNO(2, 2, modes=(3, 3), width=4, depth=2, projection=5, seed=0)
    operator.box.set(*box_of(grid))
    return operator.double()


def attention(grid: Grid, latents: int | None = None) -> Operator:
    operator = AttentionOperator(2, 2, dimension=2, width=8, heads=2, depth=2, latents=latents, seed=0)
    operator.box.set(*box_of(grid))
    return operator.double()


def deeponet(grid: Grid) -> Operator:
    sensors = grid if grid.is_uniform else None
    return DeepONet(
        2, 2, sensors=sensors, domain=Grid.uniform((8, 8), periodic=(grid.is_uniform, False)), basis=3, seed=0
    ).double()


def constructed(grid: Grid) -> Operator:
    return ByConstruction(point_fno(grid), [Dirichlet(Channel(1), sides=((1, "start"),)), Dirichlet(2.0, sides=((1, "end"),))])


CASES = {
    "PointFNO-uniform": (point_fno, UNIFORM, (1, 2)),
    "PointFNO-mesh": (point_fno, MESH, (1,)),
    "PointFNO-meshes": (point_fno, BATCH, (1,)),
    "attention-mesh": (attention, MESH, (1, 2)),
    "attention-latents": (lambda grid: attention(grid, 3), UNIFORM, (1, 2)),
    "DeepONet-uniform": (deeponet, UNIFORM, (1, 2)),
    "DeepONet-mesh": (deeponet, MESH, (1, 2)),
    "by construction": (constructed, UNIFORM, (1, 2)),
}
cases = pytest.mark.parametrize(
    ("build", "grid", "order"),
    [
        pytest.param(build, grid, order, id=f"{name}-{order}")
        for name, (build, grid, orders) in CASES.items()
        for order in orders
    ],
)


def at(operator: Operator, inputs: Field, points: Tensor) -> Tensor:
    return evaluate(operator, inputs, Grid.scattered(points, torch.ones(len(points)))).detach()


@cases
def test_equal_finite_differences(build: Callable[[Grid], Operator], grid: Grid, order: int) -> None:
    operator, inputs, step = build(grid), inputs_on(grid), 1e-4
    result = derivatives_at(operator, inputs, query=Grid.scattered(POINTS, torch.ones(5)), order=order).values.detach()
    shifts = step * torch.eye(2, dtype=torch.float64)
    ahead, behind = ([at(operator, inputs, POINTS + sign * shift) for shift in shifts] for sign in (1.0, -1.0))
    if order == 1:
        expected = torch.stack([(a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True)], 2).flatten(1, 2)
    else:
        middle = at(operator, inputs, POINTS)
        expected = torch.stack([(a - 2 * middle + b) / step**2 for a, b in zip(ahead, behind, strict=True)]).sum(0)
    torch.testing.assert_close(result, expected, atol=1e-5 * float(expected.abs().max()), rtol=0)
    assert float(expected.abs().max()) > 1e-3


@cases
def test_are_differentiable_in_the_weights(build: Callable[[Grid], Operator], grid: Grid, order: int) -> None:
    """PyTorch's layer norm has wrong third derivatives: attention takes another form of it here."""
    operator, inputs = build(grid), inputs_on(grid)
    weights = list(operator.parameters())
    directions = [normal(*weight.shape, seed=number) for number, weight in enumerate(weights)]

    def loss() -> Tensor:
        return derivatives_at(operator, inputs, query=Grid.scattered(POINTS, torch.ones(5)), order=order).values.square().sum()

    gradients = torch.autograd.grad(loss(), weights, allow_unused=True)
    ends = []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            for weight, direction in zip(weights, directions, strict=True):
                weight.add_(step * direction)
            ends.append(loss())
            assert not ends[-1].requires_grad
    expected = float(ends[0] - ends[1]) / 2e-5
    parts = [(slope * direction).sum() for slope, direction in zip(gradients, directions, strict=True) if slope is not None]
    assert float(torch.stack(parts).sum()) == pytest.approx(expected, rel=1e-4)


def test_converge_to_the_gradient_on_a_fine_mesh() -> None:
    """Inside the square, where both are of first order or better."""
    errors = []
    operator, inputs = deeponet(MESH), inputs_on(MESH)
    for size in (9, 17, 33):
        mesh = square(size)
        differences = gradient(Field(evaluate(operator, inputs, mesh).detach(), mesh)).values
        exact = derivatives_at(operator, inputs, query=mesh).values.detach()
        inner = ((mesh.points - 0.5).abs() < 0.4).all(1)
        errors.append(float((differences - exact)[..., inner].abs().max() / exact.abs().max()))
    assert errors[2] < 0.01
    assert errors[0] > 3 * errors[1] > 9 * errors[2]


@pytest.mark.parametrize("order", [1, 2])
def test_queries(order: int) -> None:
    """A uniform query keeps its shape; with one mesh per sample, each sample has its own points."""
    operator, inputs = deeponet(BATCH), inputs_on(BATCH)
    batch = derivatives_at(operator, inputs, query=BATCH, order=order)
    assert batch.grid == BATCH
    for row, mesh in enumerate(BATCH.singles()):
        single = derivatives_at(operator, inputs[row], query=mesh, order=order).values
        torch.testing.assert_close(batch.values[row : row + 1, :, : mesh.size], single)
    query = Grid.uniform((4, 5), periodic=False)
    result = derivatives_at(operator, inputs, query=query, order=order)
    assert result.values.shape == (2, 4 if order == 1 else 2, 4, 5)
    points = Grid.scattered(query.points, torch.ones(20))
    with torch.inference_mode():
        again = derivatives_at(operator, Field(inputs.values.clone(), BATCH), query=points, order=order).values
    torch.testing.assert_close(result.values.flatten(2), again)


SCATTERED = Grid.scattered(MESH.points, torch.ones(MESH.size))


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: derivatives_at(torch.nn.Linear(1, 1), inputs_on(MESH), query=MESH), ArgumentError, "operator"),  # type: ignore[arg-type]
        (lambda: derivatives_at(attention(MESH), inputs_on(MESH), query=MESH, order=3), ArgumentError, "order"),
        (lambda: derivatives_at(point_fno(MESH), inputs_on(MESH), query=MESH, order=2), GridError, "local term"),
        (lambda: derivatives_at(point_fno(MESH), inputs_on(SCATTERED), query=SCATTERED), GridError, "or on a mesh"),
        (lambda: derivatives_at(attention(MESH), inputs_on(MESH), query=POINTS), GridError, "query"),  # type: ignore[arg-type]
        (lambda: derivatives_at(Constant(), inputs_on(MESH), query=MESH), UnsupportedError, "by autograd"),
    ],
)
@pytest.mark.bad_input
def test_refusals(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()


class Constant(Operator):
    """An operator whose outputs do not depend on the points of the query."""

    def __init__(self) -> None:
        super().__init__()
        self.in_channels = self.out_channels = 2
        self.gain = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, values: Tensor, *, grid: Grid | None = None, query: Grid | None = None) -> Tensor:
        size = values.shape[2] if query is None else query.size
        return self.gain * values.new_ones(len(values), 2, size)

    def fit_normalizers(self, *train: object) -> None:
        """Nothing to fit."""
