"""One-dimensional Darcy flow against a closed form and a collocation solver."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
import torch
from scipy.integrate import solve_bvp

from probneural.fields import Field
from probneural.grids import Grid
from probneural.problems import Darcy1D, GaussianRandomField


def points(size: int) -> torch.Tensor:
    return Grid.uniform((size,), periodic=False).points[:, 0]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("shift", [None, "amplitude"])
def test_against_collocation(seed: int, shift: str | None) -> None:
    problem = Darcy1D(random_field=GaussianRandomField(1, 5), design_dim=2)
    problem = problem.shifts()[shift] if shift else problem
    assert isinstance(problem, Darcy1D)
    pairs = problem.sample(1, resolution=41, seed=seed, dtype=torch.float64)
    coefficients = problem.input_distribution.draw(1, seed)

    def right_hand_side(x: numpy.ndarray, state: numpy.ndarray) -> numpy.ndarray:
        g = problem.input_distribution.evaluate_on_axes(coefficients, [torch.from_numpy(x)])[0].numpy()
        return numpy.stack([numpy.exp(-g) * state[1], -numpy.ones_like(x)])  # (u, e^g u')

    mesh = numpy.linspace(0, 1, 201)
    solution = solve_bvp(
        right_hand_side,
        lambda left, right: numpy.array([left[0], right[0]]),
        mesh,
        numpy.zeros((2, 201)),
        tol=1e-9,
        max_nodes=50_000,
    )
    assert solution.status == 0
    expected = torch.from_numpy(solution.sol(points(41).numpy())[0])
    # The collocation solver controls its relative residual at 1e-9.
    assert (pairs.outputs.values[0, 0] - expected).abs().max() < 1e-9 * expected.abs().max()


@pytest.mark.parametrize("size", [3, 4, 17, 300])
def test_linear_log_permeability_has_a_closed_form_at_any_resolution(size: int) -> None:
    x, a = points(size), 1.7
    flow, lift = (1 - torch.exp(-a * x)) / a, (1 - (1 + a * x) * torch.exp(-a * x)) / a**2
    expected = lift[-1] / flow[-1] * flow - lift
    inputs = Field((0.3 + a * x)[None, None], Grid.uniform((size,), periodic=False))
    # The interpolant is exact for linear functions, so only rounding is left.
    torch.testing.assert_close(Darcy1D().solve(inputs).values[0, 0], math.exp(-0.3) * expected, atol=1e-15, rtol=0)


@pytest.mark.parametrize("name", [None, "amplitude", "roughness"])
def test_sampling_is_exact_to_rounding_at_the_coarsest_resolution(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Darcy1D() if name is None else Darcy1D().shifts()[name]
    rough = problem.sample(16, resolution=63, seed=0, dtype=torch.float64).outputs.values
    monkeypatch.setattr("probneural.problems.darcy._GAUSS_POINTS", 14)
    monkeypatch.setattr("probneural.problems.darcy._PANELS_PER_WAVE", 20)
    fine = problem.sample(16, resolution=63, seed=0, dtype=torch.float64).outputs.values
    assert (rough - fine).abs().max() < 1e-14 * fine.abs().max()


def test_solving_from_nodal_values_is_of_the_documented_order() -> None:
    problem = Darcy1D()
    errors = []
    for size in (257, 513, 1025):
        pairs = problem.sample(8, resolution=size, seed=0, dtype=torch.float64)
        errors.append((problem.solve(pairs.inputs).values - pairs.outputs.values).abs().max().item())
    orders = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
    assert min(orders) > 5.7, orders
    assert errors[0] < 1e-6
