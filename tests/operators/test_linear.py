"""Linear regression between functions: exact where the map is linear, of least norm where the data leave a choice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from probneural.distributions import GaussianField
from probneural.errors import DataError, GridError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.mesh import triangulated
from probneural.heads import LastLayerLaplace
from probneural.operators import LinearRegression
from probneural.pairs import FieldPairs
from probneural.problems import GaussianRandomField, Heat
from tests.helpers import normal


def random_pairs(count: int = 6, in_size: int = 8, out_shape: tuple[int, ...] = (7,)) -> FieldPairs:
    """Fewer pairs than input values, so that many maps fit."""
    inputs = Field(normal(count, 2, in_size, seed="inputs"), Grid.uniform(in_size))
    outputs = Field(normal(count, 3, *out_shape, seed="outputs"), Grid.uniform(out_shape))
    return FieldPairs(inputs, outputs)


@pytest.mark.parametrize("boundary", ["periodic", "dirichlet"])
def test_learns_the_heat_map(boundary: str) -> None:
    problem = Heat(0.005, dimension=1, boundary=boundary)  # type: ignore[arg-type]
    resolution = 18
    train = problem.sample(40, resolution=resolution, seed=0, dtype=torch.float64)
    test = problem.sample(10, resolution=resolution, seed=1, dtype=torch.float64)
    predicted = LinearRegression.fitted(train)(test.inputs.values, grid=test.inputs.grid)
    error = (predicted - test.outputs.values).norm() / test.outputs.values.norm()
    assert error < 1e-9


def test_learns_the_heat_map_on_every_grid() -> None:
    problem = Heat(0.005, dimension=1, random_field=GaussianRandomField(1, 6))
    operator = LinearRegression.fitted(problem.sample(40, resolution=16, seed=0, dtype=torch.float64))
    for resolution in (13, 32, 45):
        test = problem.sample(10, resolution=resolution, seed=1, dtype=torch.float64)
        predicted = operator(test.inputs.values, grid=test.inputs.grid)
        assert (predicted - test.outputs.values).norm() / test.outputs.values.norm() < 1e-9


def test_is_the_least_norm_solution() -> None:
    train = random_pairs()
    operator = LinearRegression.fitted(train)
    inputs, outputs = train.inputs.values.flatten(1), train.outputs.values.flatten(1)
    torch.testing.assert_close(inputs @ operator.matrix + operator.offset, outputs, atol=1e-12, rtol=0)
    # Least norm is no component outside the span of the centred inputs.
    centred = inputs - inputs.mean(0)
    span = torch.linalg.svd(centred, full_matrices=False)[2][:5]
    torch.testing.assert_close(span.T @ (span @ operator.matrix), operator.matrix, atol=1e-12, rtol=0)


def test_repeated_pairs_change_nothing() -> None:
    train = random_pairs()
    twice = train[[0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]]
    torch.testing.assert_close(LinearRegression.fitted(twice).matrix, LinearRegression.fitted(train).matrix, atol=1e-12, rtol=0)


def test_is_least_squares_where_the_data_contradict() -> None:
    count = 50
    inputs, outputs = normal(count, 1, 4, seed="x"), normal(count, 1, 5, seed="y")
    operator = LinearRegression.fitted(FieldPairs(Field(inputs, Grid.uniform(4)), Field(outputs, Grid.uniform(5))))
    design = torch.cat([inputs[:, 0], torch.ones(count, 1, dtype=torch.float64)], dim=1)
    solution = torch.linalg.lstsq(design, outputs[:, 0]).solution
    torch.testing.assert_close(operator.matrix, solution[:-1], atol=1e-13, rtol=0)
    torch.testing.assert_close(operator.offset, solution[-1], atol=1e-13, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rounding_about_a_large_mean_is_not_fitted(dtype: torch.dtype) -> None:
    """Degrees Kelvin: two directions vary by 0.1 about 300, and the others are rounding."""
    grid = Grid.uniform(16)
    waves = torch.cos(2 * torch.pi * torch.arange(1, 3).double()[:, None] * grid.points[:, 0])
    weights = normal(60, 2, seed="weights")
    inputs = 300.0 + 0.1 * (weights @ waves)[:, None]
    outputs = (weights[:, :1] @ waves[1:])[:, None]
    pairs = FieldPairs(Field(inputs, grid), Field(outputs, grid)).to(dtype)
    operator = LinearRegression.fitted(pairs[:12])
    rows = torch.linalg.svdvals(operator.matrix.double())
    assert rows[1] < 1e-2 * rows[0]  # the map has rank one
    error = operator(pairs[12:].inputs.values) - pairs[12:].outputs.values
    assert error.norm() / pairs[12:].outputs.values.norm() < 100.0 * 300.0 / 0.1 * torch.finfo(dtype).eps


@pytest.mark.parametrize("components", [1, 3, 100])
def test_readout_adds_up_to_the_matrix(components: int) -> None:
    train = random_pairs(out_shape=(4, 5))
    train = FieldPairs(Field(normal(6, 2, 3, 4, seed="in"), Grid.uniform((3, 4))), train.outputs)
    operator = LinearRegression.fitted(train, components=components)
    assert operator.components == min(components, 6)
    values = normal(5, 2, 3, 4, seed="new")
    expected = (values.flatten(1) @ operator.matrix + operator.offset).reshape(5, 3, 4, 5)
    got = operator(values, grid=train.inputs.grid, query=train.outputs.grid)
    torch.testing.assert_close(got, expected, atol=1e-12, rtol=0)
    features = operator.components + 1
    assert operator.readout.weight.shape == (3, 3 * features)
    assert operator.readout.weight.sum() == 3 * features
    assert not operator.readout.bias.any()


def test_components_are_orthonormal_and_hold_the_training_outputs() -> None:
    train = random_pairs()
    operator = LinearRegression.fitted(train)
    gram = torch.einsum("crp,csp->crs", operator.basis, operator.basis)
    torch.testing.assert_close(gram, torch.eye(6, dtype=torch.float64).expand(3, 6, 6), atol=1e-13, rtol=0)
    values = train.outputs.values - train.outputs.values.mean(0)
    rest = values - torch.einsum("ncp,crp,crq->ncq", values, operator.basis, operator.basis)
    assert rest.abs().max() < 1e-12


ELASTICITY = Path(__file__).parents[3] / "shared" / "data" / "elasticity" / "elasticity.safetensors"
"""Edge loads and displacements of an elastic square with a hole, made by others."""


@pytest.mark.skipif(not ELASTICITY.exists(), reason="the elasticity data are not part of the repository")
def test_the_posterior_of_a_linear_map_to_a_mesh_is_the_dense_one() -> None:
    """From loads on an edge to displacements; features are parts of the prediction, and the formula is that of regression."""
    data = {name: values.double() for name, values in load_file(ELASTICITY).items()}
    points = data["points"]
    cells = triangulated(points)
    cells = cells[(points[cells].mean(1) - 0.5).norm(dim=1) > 0.25]  # none in the hole
    edge, mesh = Grid.uniform(data["load"].shape[1], periodic=False), Grid.mesh(points, cells)
    displacements = torch.stack([data["ux"], data["uy"]], 1)
    pairs = FieldPairs(Field(data["load"][:, None], edge), Field(displacements, mesh))
    train, test = pairs[:80], pairs[80:]
    operator = LinearRegression.fitted(train, components=10)
    mean = operator(test.inputs.values, grid=edge, query=mesh).detach()
    errors = (mean - test.outputs.values).flatten(1).norm(dim=1) / test.outputs.values.flatten(1).norm(dim=1)
    assert float(errors.median()) < 1e-6

    noise, prior, count = 0.01, 0.1, 50.0
    head = LastLayerLaplace(noise=noise, prior_precision=prior, effective_observations=count)
    u = head.fit(operator, train)(test.inputs, mesh)
    assert isinstance(u, GaussianField)

    def features(inputs: Field) -> Tensor:
        """Of both channels, parts of the prediction along principal components of the outputs and the rest; 1: `(n, p, k)`."""
        columns = []
        for channel in range(2):
            predicted = operator(inputs.values, grid=edge, query=mesh)[:, channel].detach()
            centred = train.outputs.values[:, channel] - train.outputs.values[:, channel].mean(0)
            basis = torch.linalg.svd(centred, full_matrices=False)[2][:10]
            parts = (predicted @ basis.mT)[:, None] * basis.mT
            columns += [parts, (predicted - parts.sum(2))[..., None]]
        return torch.cat([*columns, torch.ones_like(columns[1])], 2)

    rows, at = features(train.inputs).flatten(0, 1), features(test.inputs)
    weights = (count * mesh.mean_weights).repeat(len(train))
    precision = rows.mT @ (weights[:, None] * rows) / noise + prior * torch.eye(rows.shape[1], dtype=torch.float64)
    dense = at @ torch.linalg.solve(precision, at.mT)
    for root in u.root.dense().unbind(1):
        assert float((root @ root.mT - dense).norm() / dense.norm()) < 1e-8
    torch.testing.assert_close(u.mean, mean, rtol=1e-12, atol=1e-12)


@pytest.mark.bad_input
def test_bad_data_are_refused() -> None:
    train = random_pairs()
    with pytest.raises(DataError, match="2 or more training pairs; got 1"):
        LinearRegression.fitted(train[:1])
    for side in ("inputs", "outputs"):
        parts = {"inputs": train.inputs, "outputs": train.outputs}
        values = parts[side].values.clone()
        values[2, 1, 3] = torch.nan
        parts[side] = Field(values, parts[side].grid)
        with pytest.raises(DataError, match=f"finite training {side}; got 1 values .* \\(2, 1, 3\\)"):
            LinearRegression.fitted(FieldPairs(**parts))
    meshes = Grid.batch([Grid.scattered([[0.1], [0.5]], [0.5, 0.5])] * 3)
    with pytest.raises(GridError, match="one grid for all samples as in_grid; got Grid.batch"):
        LinearRegression(1, 1, in_grid=meshes, out_grid=Grid.uniform(4))
    with pytest.raises(GridError, match="one grid for all samples as out_grid"):
        LinearRegression(1, 1, in_grid=Grid.uniform(4), out_grid=meshes)
