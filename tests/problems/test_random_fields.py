"""The Gaussian random field law: its basis, its variances, and draws that do not depend on a grid."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.functionals import derivative
from probneural.grids import Grid
from probneural.problems import GaussianRandomField

LAWS = [
    GaussianRandomField(1, 31),
    GaussianRandomField(1, 6, boundary="dirichlet"),
    GaussianRandomField(2, 4, sigma=3.0, tau=2.0, alpha=1.7),
    GaussianRandomField(2, 3, boundary="dirichlet"),
    GaussianRandomField(3, 2),
    GaussianRandomField(1, 6, boundary="neumann"),
    GaussianRandomField(2, 3, tau=3.0, boundary="neumann"),
]
laws = pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.dimension}d-{law.boundary}-{law.modes}")


def natural_grid(law: GaussianRandomField, size: int | None = None) -> Grid:
    """A grid on which products of two basis functions are integrated exactly."""
    points = 2 * law.minimum_resolution if size is None else size
    return Grid.uniform((points,) * law.dimension, periodic=law.boundary == "periodic")


def basis(law: GaussianRandomField, grid: Grid) -> torch.Tensor:
    return law.evaluate(torch.eye(law.size, dtype=torch.float64), grid)


@laws
def test_number_of_coefficients(law: GaussianRandomField) -> None:
    per_axis = {"periodic": 2 * law.modes + 1, "dirichlet": law.modes, "neumann": law.modes + 1}[law.boundary]
    constant = 0 if law.boundary == "dirichlet" else 1
    assert law.size == per_axis**law.dimension - constant == len(law.eigenvalues)


@laws
def test_basis_is_orthonormal(law: GaussianRandomField) -> None:
    grid = natural_grid(law)
    functions = basis(law, grid).flatten(1)
    torch.testing.assert_close((functions * grid.weights) @ functions.T, torch.eye(law.size).double(), atol=1e-12, rtol=0)


@laws
def test_basis_diagonalises_the_laplacian_with_the_stated_eigenvalues(law: GaussianRandomField) -> None:
    # The spectral second derivative needs a periodic grid; sine and cosine modes are periodic on twice the interval.
    period = 1.0 if law.boundary == "periodic" else 2.0
    grid = Grid.uniform((4 * law.modes + 3,) * law.dimension, lengths=period)
    functions = basis(law, grid)
    minus_laplacian = -sum(
        derivative(grid, axis=axis, order=2)(functions).unflatten(-1, grid.shape) for axis in range(law.dimension)
    )
    eigenvalues = (law.eigenvalues / law.sigma**2) ** (-1.0 / law.alpha) - law.tau**2
    expected = eigenvalues.reshape(-1, *(1,) * law.dimension) * functions
    torch.testing.assert_close(minus_laplacian, expected, atol=1e-11 * eigenvalues.max().item(), rtol=0)


@laws
def test_coefficients_are_ordered(law: GaussianRandomField) -> None:
    assert bool((law.eigenvalues.diff() <= 0).all())


def test_first_coefficients_in_one_dimension_are_the_lowest_cosine_and_sine() -> None:
    law = GaussianRandomField(1, 3)
    x = torch.tensor([0.1, 0.7], dtype=torch.float64)
    values = law.evaluate_on_axes(torch.eye(6, dtype=torch.float64)[:3], [x])
    expected = math.sqrt(2) * torch.stack([(2 * math.pi * x).cos(), (2 * math.pi * x).sin(), (4 * math.pi * x).cos()])
    torch.testing.assert_close(values, expected, atol=1e-15, rtol=0)


@laws
def test_pointwise_deviation_is_that_of_the_expansion(law: GaussianRandomField) -> None:
    grid = natural_grid(law, law.minimum_resolution)
    variance = (law.eigenvalues.reshape(-1, *(1,) * law.dimension) * basis(law, grid).square()).sum(0)
    torch.testing.assert_close(law.standard_deviation(grid), variance.sqrt(), atol=1e-12, rtol=1e-12)
    if law.boundary == "periodic":  # stationary
        expected = torch.full(grid.shape, law.mean_variance, dtype=torch.float64).sqrt()
        torch.testing.assert_close(law.standard_deviation(grid), expected, atol=0, rtol=1e-12)


@laws
def test_mean_variance_is_the_integral_of_the_variance(law: GaussianRandomField) -> None:
    grid = natural_grid(law)
    integral = (law.standard_deviation(grid).square().flatten() * grid.weights).sum().item()
    assert integral == pytest.approx(law.mean_variance, rel=1e-12)


@laws
def test_draws_have_the_stated_variances_and_no_correlation(law: GaussianRandomField) -> None:
    n = 4000
    scores = law.draw(n, 0) / law.eigenvalues.sqrt()
    # Entries of the sample covariance have standard error sqrt(2/n) = .022 on the diagonal, .016 off it; the largest of
    # up to 62 * 61 / 2 stays below 4.5 standard errors.
    covariance = scores.T @ scores / n
    assert (covariance.diagonal() - 1).abs().max() < 4.5 * math.sqrt(2 / n)
    assert (covariance - covariance.diagonal().diag()).abs().max() < 4.5 / math.sqrt(n)
    assert scores.mean(0).abs().max() < 4.5 / math.sqrt(n)


@pytest.mark.parametrize(
    ("sigma", "tau", "alpha", "deviation", "largest"),
    [(25.0, 5.0, 2.0, 0.5936, 0.98), (49.0, 7.0, 2.5, 0.274, None)],
    ids=["paper", "script"],
)
def test_published_burgers_laws(sigma: float, tau: float, alpha: float, deviation: float, largest: float | None) -> None:
    # Both sets of parameters circulate under one name (PROBLEMS.md, section 0); their spreads tell them apart.
    law = GaussianRandomField(1, 31, sigma=sigma, tau=tau, alpha=alpha)
    grid = Grid.uniform((128,))
    assert law.standard_deviation(grid)[0].item() == pytest.approx(deviation, abs=0.0005)
    if largest is not None:
        mean_largest = law.evaluate(law.draw(4000, 0), grid).abs().amax(-1).mean().item()
        assert mean_largest == pytest.approx(largest, abs=0.02)  # standard error .007


@laws
def test_one_seed_is_the_same_functions_on_every_grid(law: GaussianRandomField) -> None:
    coefficients = law.draw(3, 5)
    least = law.minimum_resolution
    coarse, fine = (least, 2 * least) if law.boundary == "periodic" else (least, 2 * least - 1)
    few = law.evaluate(coefficients, natural_grid(law, coarse))
    many = law.evaluate(coefficients, natural_grid(law, fine))
    nested = many[(slice(None), *(slice(None, None, 2),) * law.dimension)]
    torch.testing.assert_close(few, nested, atol=1e-13, rtol=0)


@laws
def test_draws_repeat_and_leave_the_global_state_alone(law: GaussianRandomField) -> None:
    state = torch.get_rng_state()
    assert torch.equal(law.draw(2, 1), law.draw(2, 1))
    assert not torch.equal(law.draw(2, 1), law.draw(2, 2))
    assert torch.equal(state, torch.get_rng_state())


def test_dirichlet_draws_vanish_on_the_boundary() -> None:
    law = LAWS[3]
    values = law.evaluate(law.draw(2, 0), natural_grid(law))
    edges = torch.cat([values[:, 0], values[:, -1], values[:, :, 0], values[:, :, -1]])
    assert edges.abs().max() < 1e-14
    assert values.abs().max() > 0.1


def test_periodic_draws_have_zero_mean() -> None:
    law = LAWS[2]
    grid = natural_grid(law)
    assert (law.evaluate(law.draw(5, 0), grid).flatten(1) @ grid.weights).abs().max() < 1e-14


def test_neumann_draws_have_zero_mean_and_no_slope_across_the_boundary() -> None:
    law = LAWS[6]
    coefficients = law.draw(3, 0)
    grid = natural_grid(law)
    assert (law.evaluate(coefficients, grid).flatten(1) @ grid.weights).abs().max() < 1e-14
    step = 1e-4
    near = torch.tensor([0.0, step, 1.0 - step, 1.0], dtype=torch.float64)
    inside = torch.linspace(0.0, 1.0, 7, dtype=torch.float64)
    values = law.evaluate_on_axes(coefficients, [near, inside])
    assert values[:, [1, 2]].sub(values[:, [0, 3]]).abs().max() < 1e3 * step**2  # even: the slope's term is missing
    assert values.abs().max() > 0.1


def test_any_coordinates_and_axes_of_unequal_length() -> None:
    law = LAWS[2]
    coefficients = law.draw(2, 0)
    grid = Grid.uniform((9, 12))
    whole = law.evaluate(coefficients, grid)
    part = law.evaluate_on_axes(coefficients, [grid.axes[0].coordinates[3:5], grid.axes[1].coordinates[[7]]])
    torch.testing.assert_close(part, whole[:, 3:5, 7:8], atol=1e-14, rtol=0)


def test_dtype_of_evaluation() -> None:
    law = LAWS[0]
    coefficients, grid = law.draw(2, 0), Grid.uniform((64,))
    assert law.evaluate(coefficients, grid).dtype == torch.float64
    rounded = law.evaluate(coefficients, grid, dtype=torch.float32)
    assert torch.equal(rounded, law.evaluate(coefficients, grid).float())
    assert law.evaluate(coefficients.float(), grid).dtype == torch.float32


@given(factor=st.floats(0.1, 10.0))
def test_amplified_law_is_the_law_of_the_multiple(factor: float) -> None:
    law = LAWS[2]
    torch.testing.assert_close(law.amplified(factor).eigenvalues, factor**2 * law.eigenvalues, atol=0, rtol=1e-12)


@laws
def test_roughened_law_keeps_the_variance_and_moves_it_to_high_wavenumbers(law: GaussianRandomField) -> None:
    rough = law.roughened(4 / 3)
    assert rough.alpha == pytest.approx(0.75 * law.alpha)
    assert rough.mean_variance == pytest.approx(law.mean_variance, rel=1e-12)
    assert rough.eigenvalues[0] < law.eigenvalues[0]
    assert rough.eigenvalues[-1] > law.eigenvalues[-1]


@laws
def test_laws_are_values(law: GaussianRandomField) -> None:
    law.eigenvalues  # noqa: B018  (a cached property must not enter equality)
    copy = pickle.loads(pickle.dumps(law))  # noqa: S301  (our own bytes, of this line)
    assert copy == law
    assert hash(copy) == hash(law)
    assert law.amplified(2.0) != law


@pytest.mark.bad_input
@pytest.mark.parametrize(
    "arguments",
    [
        {"dimension": 0},
        {"modes": 0},
        {"modes": 2.5},
        {"sigma": -1.0},
        {"tau": 0.0},
        {"alpha": math.inf},
        {"alpha": math.nan},
        {"sigma": "25"},
        {"boundary": "robin"},
    ],
    ids=str,
)
def test_bad_arguments(arguments: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=f"expected .*{next(iter(arguments))}"):
        GaussianRandomField(**{"dimension": 1, "modes": 4, **arguments})


@pytest.mark.bad_input
def test_bad_calls() -> None:
    law = LAWS[2]
    coefficients = law.draw(2, 0)
    with pytest.raises(ArgumentError, match="integer of at least 1 as n"):
        law.draw(0, 0)
    with pytest.raises(GridError, match="2 dimensions"):
        law.evaluate(coefficients, Grid.uniform((16,)))
    with pytest.raises(GridError, match="uniform"):
        law.evaluate(coefficients, Grid.scattered([[0.5, 0.5]], [1.0]))
    with pytest.raises(GridError, match="2 dimensions"):
        law.standard_deviation(Grid.uniform((16,)))
    with pytest.raises(ShapeError, match=r"\(n, 80\)"):
        law.evaluate(coefficients[:, :-1], Grid.uniform((16, 16)))
    with pytest.raises(ShapeError, match="2 axes"):
        law.evaluate_on_axes(coefficients, [torch.zeros(1).double()])
    with pytest.raises(ArgumentError, match="factor"):
        law.amplified(0.0)
    with pytest.raises(ArgumentError, match="factor"):
        law.roughened(-1.0)
