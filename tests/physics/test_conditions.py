"""Boundary and initial conditions: misfits, sides, data."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.physics import Channel, Dirichlet, Neumann, Residual, equations, initial
from probneural.physics.conditions import held_misfit, missing_sides
from tests.helpers import normal
from tests.physics.meshes import irregular, square

GRID = Grid.uniform((6, 9, 8), lengths=(1.0, 2.0, 1.0), periodic=(False, False, True)).named(["t", "x", "y"])
U = Field(normal(2, 1, 6, 9, 8), GRID)
T, X, Y = GRID.points.T.reshape(3, 1, 1, *GRID.shape)


def test_misfits_on_sides() -> None:
    inputs = Field(normal(2, 3, 6, 9, 8, seed=1), GRID)
    both = torch.cat([U.values[..., 0, :], U.values[..., -1, :]], 3).flatten(2)
    walls = Dirichlet(2.0).misfit(U, inputs)  # of x alone: t is time, and y is periodic
    assert walls.shape == (2, 1, 2 * 6 * 8)
    assert float(walls.sum()) == pytest.approx(float((both - 2.0).sum()))
    end = Dirichlet(Channel(2), sides=((1, "end"),)).misfit(U, inputs)
    assert torch.equal(end, (U.values - inputs.values[:, 2:])[:, :, :, -1].flatten(2))
    assert torch.equal(initial().misfit(U, inputs), (U.values - inputs.values[:, :1])[:, :, 0].flatten(2))
    assert torch.equal(
        initial(lambda a: 2 * a.values[:1, 1:2]).misfit(U, inputs)[1],
        (U.values[1] - 2 * inputs.values[0, 1:2])[:, 0].flatten(1),
    )
    coarse = Field(
        (T * X + X**2)[..., ::2].contiguous(), Grid.uniform((6, 9, 4), lengths=(1.0, 2.0, 1.0), periodic=(False, False, True))
    )
    assert float(Dirichlet(Channel()).misfit(Field(T * X + X**2, GRID), coarse).abs().max()) < 1e-12


def test_normal_derivatives_point_outwards() -> None:
    u = Field(X**3 + T, GRID)  # u_x is 0 at x = 0 and 12 at x = 2
    assert float(Neumann(12.0, sides=((1, "end"),)).misfit(u, None).abs().max()) < 1e-10
    assert float(Neumann(0.0, sides=((1, "start"),)).misfit(u, None).abs().max()) < 1e-10
    velocity = Neumann(-1.0, sides=((0, "start"),))  # u_t = 1 at t = 0
    assert float(velocity.misfit(u, None).abs().max()) < 1e-10
    assert Neumann().misfit(u, None).shape == (1, 1, 96)
    with pytest.raises(GridError, match="natural condition"):
        Neumann().misfit(Field(normal(1, 1, 16), square(4)), None)


def test_terms_are_mean_squares_by_name() -> None:
    conditions = [Dirichlet(1.0), Dirichlet(0.0, sides=((1, "start"),)), Neumann()]
    terms = Residual(equations.Heat(0.1, source=0.5), conditions).terms(U.values, None, GRID)
    assert list(terms) == ["equation", "Dirichlet", "Dirichlet 2", "Neumann"]
    assert float(terms["Dirichlet 2"]) == pytest.approx(float(U.values[:, :, :, 0].square().mean()))
    residual = equations.Heat(0.1, source=0.5)(U)
    assert float(terms["equation"]) == pytest.approx(float(GRID.mean(residual.square().flatten(2)).mean()))


def test_meshes_have_one_boundary() -> None:
    meshes = [square(5), irregular(4)]
    batch = Grid.batch(meshes)
    u, inputs = Field(normal(2, 1, 25), batch), Field(normal(2, 1, 25, seed=1), batch)
    misfit = Dirichlet(Channel()).misfit(u, inputs)
    assert misfit.shape == (2, 1, 16)
    for row, mesh in enumerate(meshes):
        single = Dirichlet(Channel()).misfit(*(Field(side.values[row : row + 1, :, : mesh.size], mesh) for side in (u, inputs)))
        edge = mesh.boundary.unique()
        assert torch.equal(single, (u.values - inputs.values)[row : row + 1, :, edge])
        assert torch.equal(misfit[row, :, : len(edge)], single[0])
        assert not misfit[row, :, len(edge) :].any()
        distance = Dirichlet().distance(mesh)
        assert torch.equal(distance == 0, torch.isin(torch.arange(mesh.size), edge))
        assert float(distance.max()) == 1.0
    scattered = Grid.scattered(normal(5, 2), torch.ones(5))
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: initial().misfit(u, inputs), "leave out sides="),
        (lambda: Dirichlet(sides=((0, "start"),)).distance(meshes[0]), "leave out sides="),
        (lambda: Dirichlet().misfit(Field(normal(1, 1, 5), scattered), None), "mesh"),
        (lambda: Dirichlet().distance(scattered), "mesh"),
        (lambda: Dirichlet().distance(scattered, domain=GRID), "3 coordinates"),
    ]
    for call, words in cases:
        with pytest.raises(GridError, match=words):
            call()


@pytest.mark.parametrize("origin", [0.0, 0.1, -3.7])
def test_distances_vanish_exactly_on_the_sides(origin: float) -> None:
    domain = Grid.uniform((7, 8), lengths=(0.3, 1.7), origin=origin, periodic=False).named(["t", "x"])
    for condition, zero in (
        (Dirichlet(), [(1, 0), (1, -1)]),
        (initial(), [(0, 0)]),
        (Dirichlet(sides=((0, "end"),)), [(0, -1)]),
    ):
        for grid in (domain, domain.resized((13, 30))):
            distance = condition.distance(grid)
            at_sides = torch.zeros(grid.shape, dtype=torch.bool)
            for axis, row in zero:
                at_sides.select(axis, row).fill_(True)
            assert torch.equal(distance == 0, at_sides)
            assert float(distance.min()) >= 0.0
            assert 0.9 < float(distance.max()) <= 1.0 + 1e-12
            points = Grid.scattered(grid.points, torch.ones(grid.size))
            torch.testing.assert_close(condition.distance(points, domain=domain), distance.flatten())


@pytest.mark.parametrize(
    ("conditions", "missing"),
    [
        ([], [(0, "start"), (1, "start"), (1, "end")]),
        ([initial()], [(1, "start"), (1, "end")]),
        ([Dirichlet(1.0)], [(0, "start")]),
        ([initial(), Dirichlet(sides=((1, "start"),))], [(1, "end")]),
        ([initial(), Dirichlet(sides=((1, "start"),)), Neumann(sides=((1, "end"),))], []),
    ],
)
def test_sides_without_a_condition(conditions: list[Dirichlet | Neumann], missing: list[tuple[int, str]]) -> None:
    assert missing_sides(conditions, GRID) == tuple(missing)
    held = held_misfit(U, conditions)
    if missing:
        assert held is not None
        assert torch.equal(held, Dirichlet(sides=tuple(missing)).misfit(U, None))
    else:
        assert held is None


def test_boundaries_of_meshes_are_held_as_a_whole() -> None:
    u = Field(normal(1, 1, 16), square(4))
    assert held_misfit(u, [Dirichlet()]) is None
    assert torch.equal(held_misfit(u, []), Dirichlet().misfit(u, None))  # type: ignore[arg-type]
    assert missing_sides([], Grid.uniform((8, 8))) == ()


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: Dirichlet("zero"), ArgumentError, "values"),  # type: ignore[arg-type]
        (lambda: Dirichlet(math.nan), ArgumentError, "values"),
        (lambda: Dirichlet(sides=(0, "start")), ArgumentError, "side"),  # type: ignore[arg-type]
        (lambda: Dirichlet(sides=((0, "start", 1),)), ArgumentError, "side"),  # type: ignore[arg-type]
        (lambda: Dirichlet(sides=((0, "left"),)), ArgumentError, "end"),
        (lambda: Neumann(sides=((-1, "end"),)), ArgumentError, "axis"),
        (lambda: Channel(-1), ArgumentError, "index"),
        (lambda: Channel(1)(U), DataError, "channel 1"),
        (lambda: initial().misfit(U, None), ArgumentError, "inputs="),
        (lambda: Dirichlet(lambda a: a.values[..., 0]).misfit(U, U), ShapeError, "condition of shape"),
        (lambda: Dirichlet(lambda a: a.values[[0, 0, 0]]).misfit(U, U), ShapeError, "condition of shape"),
        (lambda: Dirichlet(lambda a: a.values / 0.0).misfit(U, U), DataError, "NaN or infinite"),
        (lambda: Dirichlet(sides=((2, "start"),)).misfit(U, U), GridError, "axis 2 with walls"),
        (lambda: Dirichlet(sides=((3, "start"),)).misfit(U, U), GridError, "axis 3 with walls"),
        (lambda: Dirichlet().misfit(Field(normal(1, 1, 8), Grid.uniform(8)), None), GridError, "periodic domain"),
        (
            lambda: Dirichlet().misfit(Field(normal(1, 1, 8), Grid.uniform(8, periodic=False, endpoint=False)), None),
            GridError,
            "points at its end",
        ),
    ],
)
@pytest.mark.bad_input
def test_refusals(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
