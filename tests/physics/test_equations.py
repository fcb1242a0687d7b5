"""Residuals of exact solutions: of the order of the differences, and never those of a wrong coefficient."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch

from probneural import problems
from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.physics import Channel, Dirichlet, Residual, equations
from probneural.problems import GaussianRandomField
from tests.helpers import normal
from tests.physics.meshes import irregular


def evolution(problem: problems.Problem, *, time: float, resolution: int | None = None) -> Callable[[int], FieldPairs]:
    """Trajectories of smooth initial values, on grids of space and time of several sizes."""

    def build(size: int) -> FieldPairs:
        times = torch.linspace(0.0, time, size, dtype=torch.float64)[1:]
        drawn = problem.trajectory(2, times=times, resolution=resolution or size, seed=0, dtype=torch.float64)  # type: ignore[attr-defined]
        pairs: FieldPairs = drawn.space_time()
        return pairs

    return build


def steady(problem: problems.Problem) -> Callable[[int], FieldPairs]:
    return lambda size: problem.sample(2, resolution=size, seed=0, dtype=torch.float64)


def travelling_wave(size: int) -> FieldPairs:
    """u = (1 - tanh((x - 3 (eps / 2)^1/2 t) / (2 (2 eps)^1/2))) / 2 for eps = .05."""
    grid = Grid.uniform((size, size), lengths=(1.0, 4.0), origin=(0.0, -2.0), periodic=False).named(["t", "x"])
    t, x = grid.points.T.reshape(2, 1, 1, *grid.shape)
    u = 0.5 * (1.0 - torch.tanh((x - 3.0 * math.sqrt(0.025) * t) / (2.0 * math.sqrt(0.1))))
    return FieldPairs(Field(u[:, :, :1].expand_as(u).contiguous(), grid), Field(u, grid))


def product(size: int) -> FieldPairs:
    """-Laplacian of sin(2 pi x) exp(y) is (4 pi^2 - 1) times it, x periodic and y between walls."""
    grid = Grid.uniform((size, size), periodic=(True, False))
    x, y = grid.points.T.reshape(2, 1, 1, *grid.shape)
    u = (2 * math.pi * x).sin() * y.exp()
    return FieldPairs(Field((4 * math.pi**2 - 1) * u, grid), Field(u, grid))


def forced(size: int) -> FieldPairs:
    """u_t = .1 u_xx + f for u = sin(t) cos(pi x)."""
    grid = Grid.uniform((size, size), periodic=False).named(["t", "x"])
    t, x = grid.points.T.reshape(2, 1, 1, *grid.shape)
    source = (t.cos() + 0.1 * math.pi**2 * t.sin()) * (math.pi * x).cos()
    return FieldPairs(Field(source, grid), Field(t.sin() * (math.pi * x).cos(), grid))


def few_modes(dimension: int, boundary: str = "periodic") -> dict[str, Any]:
    return {"random_field": GaussianRandomField(dimension, 2, sigma=5.0, boundary=boundary), "design_dim": 1}  # type: ignore[arg-type]


class Case(NamedTuple):
    pairs: Callable[[int], FieldPairs]
    equation: Callable[[Field, Field | None], torch.Tensor]
    wrong: Callable[[Field, Field | None], torch.Tensor]
    sizes: tuple[int, ...] = (17, 33, 65)


SHELL = problems.NavierStokesShell(5, viscosity=0.01, drift=(0.3, 0.1))
TWO = few_modes(2, "dirichlet")
CASES = {
    "Burgers": Case(
        evolution(problems.Burgers(0.2, **few_modes(1)), time=0.1, resolution=48),
        equations.Burgers(0.2),
        equations.Burgers(0.22),
    ),
    "heat": Case(
        evolution(problems.Heat(0.05, **few_modes(1, "dirichlet"), dimension=1, boundary="dirichlet"), time=0.2),
        equations.Heat(0.05),
        equations.Heat(0.05, source=1.0),
    ),
    "heat with a source": Case(forced, equations.Heat(0.1, source=Channel(0)), equations.Heat(0.1)),
    "advection and diffusion": Case(
        evolution(
            problems.AdvectionDiffusion((0.7, -0.3), diffusivity=0.05, dimension=2, **few_modes(2)), time=0.2, resolution=9
        ),
        equations.AdvectionDiffusion((0.7, -0.3), diffusivity=0.05),
        equations.AdvectionDiffusion((-0.3, 0.7), diffusivity=0.05),
        (9, 17, 33),
    ),
    "wave": Case(
        evolution(problems.Wave(0.8, boundary="dirichlet", **few_modes(1, "dirichlet")), time=0.3),
        equations.Wave(0.8),
        equations.Wave(0.88),
    ),
    "Allen-Cahn": Case(travelling_wave, equations.AllenCahn(0.05), equations.AllenCahn(0.06), (33, 65, 129)),
    "Navier-Stokes": Case(
        evolution(SHELL, time=0.5, resolution=9),
        equations.NavierStokes(0.01, drift=(0.3, 0.1)),
        equations.NavierStokes(0.01, drift=(0.1, 0.3)),
    ),
    "Poisson": Case(product, equations.Poisson(), equations.Poisson(source=1.0)),
    "Helmholtz": Case(steady(problems.Helmholtz(3.0, **TWO)), equations.Helmholtz(3.0), equations.Helmholtz(3.3)),
    "Darcy": Case(
        steady(problems.Darcy2D(degree=2, **TWO)),
        equations.Darcy(lambda inputs: inputs.values[:, :1] ** 2, source=Channel(1)),
        equations.Darcy(source=Channel(1)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_residuals_of_exact_solutions_have_the_order_of_the_differences(name: str) -> None:
    case = CASES[name]
    errors, wrong = [], []
    for size in case.sizes:
        pairs = case.pairs(size)
        for equation, into in ((case.equation, errors), (case.wrong, wrong)):
            into.append(float(Residual(equation)(pairs.outputs.values, pairs.inputs, pairs.outputs.grid).abs().max()))
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert orders[-1] > 3.8, (errors, orders)
    assert min(wrong) > 0.8 * wrong[0] > 100 * errors[-1], (errors, wrong)


def test_the_nonlinear_term_of_navier_stokes() -> None:
    """Two shells: the residual of a sum of eddies is v . grad w, here by hand."""
    grid = Grid.uniform((5, 16, 18), periodic=(False, True, True)).named(["t", "x", "y"])
    _, x, y = 2 * math.pi * grid.points.T.reshape(3, 1, 1, *grid.shape)
    # psi = cos x + sin 2 y / 4, in units of 1 / (2 pi)^2
    vorticity = Field(x.cos() + (2 * y).sin(), grid)
    transport = (2 * y).cos() / 2 * -x.sin() + x.sin() * 2 * (2 * y).cos()
    viscous = 4 * math.pi**2 * (x.cos() + 4 * (2 * y).sin())
    result = equations.NavierStokes(0.1, forcing=Channel(0))(vorticity, Field(0.1 * viscous, grid))
    torch.testing.assert_close(result, transport)


@pytest.mark.parametrize("helmholtz", [False, True])
def test_meshes_have_the_residual_of_finite_elements(helmholtz: bool) -> None:
    """It is affine in u: the u of zero boundary values at which it vanishes is the discrete solution, with an error O(h^2)."""
    errors = []
    for size in (9, 17):
        mesh = irregular(size)
        x, y = math.pi * mesh.points.T
        exact = x.sin() * y.sin()
        coefficient = 1.0 + 0.5 * torch.cos(x)
        # -div(a grad u) of Darcy; -Laplacian - 4 u of Helmholtz
        darcy = math.pi**2 * (2 * coefficient * exact + 0.5 * x.sin() * x.cos() * y.sin())
        source = (2 * math.pi**2 - 4.0) * exact if helmholtz else darcy
        equation = equations.Helmholtz(2.0, source=Channel(1)) if helmholtz else equations.Darcy(source=Channel(1))
        residual = Residual(equation, Dirichlet(0.0))
        inputs = Field(torch.stack([coefficient, source])[None], mesh)
        inner = (Dirichlet().distance(mesh) > 0).nonzero()[:, 0]

        def at(u: torch.Tensor, residual: Residual = residual, inputs: Field = inputs, mesh: Grid = mesh) -> torch.Tensor:
            return residual(u[None, None], inputs, mesh)[0, 0]

        columns = torch.func.jacfwd(at)(torch.zeros_like(x))
        assert not columns[[index for index in range(mesh.size) if index not in inner.tolist()]].any()
        solution = torch.zeros_like(x)
        solution[inner] = torch.linalg.solve(columns[inner][:, inner], -at(torch.zeros_like(x))[inner])
        assert residual.terms(solution[None, None], inputs, mesh)["equation"] < 1e-18
        errors.append(float((solution - exact).square().mean().sqrt()))
    assert errors[0] > 2.8 * errors[1]
    assert errors[1] < 0.02


GRID = Grid.uniform((8, 9), periodic=False).named(["t", "x"])
U = Field(normal(2, 1, 8, 9), GRID)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: equations.Burgers(0.0), ArgumentError, "viscosity"),
        (lambda: equations.Heat(1.0)(Field(U.values, Grid.uniform((8, 9), periodic=False))), GridError, 'named "t"'),
        (
            lambda: equations.Burgers(0.1)(Field(normal(1, 1, 4, 4, 4), Grid.uniform((4, 4, 4)).named(list("txy")))),
            GridError,
            "1 ax",
        ),
        (
            lambda: equations.NavierStokes(0.1)(
                Field(normal(1, 1, 8, 8, 8), Grid.uniform((8,) * 3, periodic=False).named(list("txy")))
            ),
            GridError,
            "periodic axes",
        ),
        (lambda: equations.AdvectionDiffusion((1.0, 2.0), diffusivity=0.1)(U), ArgumentError, "velocity"),
        (lambda: equations.Poisson()(U), ArgumentError, "inputs="),
        (lambda: equations.Poisson(source=Channel(3))(U, U), DataError, "channel 3"),
        (lambda: equations.Poisson(source=lambda a: a.values[..., 0])(U, U), ShapeError, "source of shape"),
        (lambda: equations.Poisson(source=lambda a: a.values * math.nan)(U, U), DataError, "NaN"),
        (lambda: equations.Poisson(source=lambda a: 1.0)(U, U), DataError, "tensor"),  # type: ignore[arg-type, return-value]
        (
            lambda: Residual(lambda u, a: u.values[..., 0])(U.values, U, GRID),
            ShapeError,
            r"what the equation returns of shape \(2, k, 8, 9\)",
        ),
        (lambda: Residual(lambda u, a: 0.0)(U.values, U, GRID), ShapeError, "float"),  # type: ignore[arg-type, return-value]
        (lambda: Residual(3.0), ArgumentError, "equation"),  # type: ignore[arg-type]
        (lambda: Residual(equations.Heat(0.1), boundary=[0.0]), ArgumentError, "Dirichlet"),  # type: ignore[list-item]
    ],
)
@pytest.mark.bad_input
def test_refusals(call: Callable[[], object], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        call()
