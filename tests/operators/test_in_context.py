"""The operator that learns in context: invariances, densities, tasks, and what it learns compared with Bayes' rule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import probneural as pn
from probneural.errors import DataError, GridError, ResolutionError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import InContextOperator, context_tasks
from probneural.pairs import FieldPairs
from tests.helpers import generator, normal
from tests.operators.cases import smooth

NOISE = 0.2


class Multiple:
    """u = a f + noise with a standard normal number a, for functions of 3 coefficients."""

    def __init__(self, seed: int, *, unit: float = 1.0) -> None:
        self.factor, self.unit = float(torch.randn((), generator=generator(f"factor {seed}"))), unit

    def sample(self, n: int, *, resolution: int | Sequence[int], seed: int) -> FieldPairs:
        grid, source = Grid.uniform(resolution), generator(f"pairs {seed}")
        basis = InContextOperator(1, 1, modes=(2,) * grid.dimension).basis(grid, domain=grid).float()
        f, noise = (torch.randn(n, 1, len(basis), generator=source) for _ in range(2))
        inputs, outputs = ((part @ basis).unflatten(-1, grid.shape) for part in (f, self.factor * f + NOISE * noise))
        return FieldPairs(Field(self.unit * inputs, grid), Field(1e-3 * self.unit * outputs, grid))


def operator(*channels: int, **options: object) -> InContextOperator:
    settings = {"modes": (3,), "width": 8, "depth": 2, "rank": 2, "seed": 0, **options}
    return InContextOperator(*(channels or (1, 1)), **settings).double().eval()


def coefficients(count: int, channels: int = 1, *, modes: int = 3, seed: str = "f") -> Tensor:
    values = normal(count, channels, 2 * modes, seed=seed)
    values[..., 1] = 0.0
    return values


@torch.no_grad()
def test_the_order_of_a_context_changes_nothing_unless_it_is_encoded() -> None:
    pairs, query = (coefficients(7).float(), coefficients(7, seed="u").float()), coefficients(4, seed="q").float()
    order = torch.randperm(7, generator=generator("order"))
    for ordered in (False, True):
        network = operator(ordered=ordered).float()
        first, second = (
            network.predictive(query, inputs=pairs[0][rows], outputs=pairs[1][rows]) for rows in (slice(None), order)
        )
        changes = [float((one - other).abs().max() / one.abs().max()) for one, other in zip(first, second, strict=True)]
        assert min(changes) > 1e-3 if ordered else max(changes) < 1e-6
        shorter = network.predictive(query, inputs=pairs[0][:6], outputs=pairs[1][:6])
        assert float((shorter[0] - first[0]).abs().max()) > 1e-3


@pytest.mark.parametrize(("grid", "modes"), [(Grid.uniform(9, lengths=2.0, origin=0.5), (3,)), (Grid.uniform((5, 7)), (3, 3))])
def test_a_task_is_the_same_function_on_every_grid(grid: Grid, modes: tuple[int, ...], tmp_path: Path) -> None:
    """Two channels to one, three pairs of which two count, whatever the third contains."""
    network = operator(2, 1, modes=modes)

    def task(where: Grid) -> Tensor:
        return torch.cat([smooth(where, channels=2 + 3 * 3), torch.full((2, 1, *where.shape), 2.0)], 1)

    fine = grid.resized([3 * size for size in grid.shape])
    expected = network(task(grid), grid=grid, query=fine)
    torch.testing.assert_close(network(task(fine), grid=fine), expected, rtol=1e-9, atol=1e-9)
    other = task(grid)
    other[:, 6:8], other[:, 10] = 1e3, -1e3
    torch.testing.assert_close(network(other, grid=grid, query=fine), expected, rtol=1e-9, atol=1e-9)
    f = network.coefficients(task(grid)[:1, :-1], grid)[0]
    mean, _ = network.predictive(f[None, :2], inputs=f[2:6].unflatten(0, (2, 2)), outputs=f[8:10, None])
    basis = network.basis(fine, domain=grid)
    torch.testing.assert_close((mean @ basis).unflatten(-1, fine.shape)[0], expected[0, :1], rtol=1e-9, atol=1e-9)
    pn.save(network, tmp_path / "operator")
    assert torch.equal(pn.load(tmp_path / "operator")(task(grid), grid=grid, query=fine), expected)


def test_the_loss_is_the_density_of_the_predictive_distribution() -> None:
    network, grid = operator(1, 2), Grid.uniform(8)
    network.output_normalizer.scale.copy_(torch.rand(12, generator=generator("scale"), dtype=torch.float64) + 0.1)
    network.output_normalizer.mean.copy_(normal(12, seed="mean"))
    values = torch.cat([smooth(grid, channels=1 + 3), torch.ones(2, 1, 8)], 1)
    target = smooth(grid, channels=2, name="target")
    loss = network.negative_log_density(network(values), target, grid)
    f, u, keep = network.coefficients(values[:, :-1]), network.coefficients(target), torch.arange(6) != 1
    densities = []
    for index in range(2):
        mean, root = network.predictive(f[index, None, :1], inputs=f[index, None, 1:2], outputs=f[index, None, 2:])
        root = root[0][:, keep].flatten(0, 1)
        exact = MultivariateNormal(mean[0][:, keep].flatten(), root @ root.mT)
        densities.append(exact.log_prob(u[index][:, keep].flatten()) / 10)
    torch.testing.assert_close(loss, -torch.stack(densities).mean(), rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_training_has_the_loss_of_every_layer_and_predictions_exit_early() -> None:
    """A query exits by itself, at the first layer that changes its mean by no more than the tolerance."""
    network, grid = operator(depth=4).train(), Grid.uniform(8)
    values, target = torch.cat([smooth(grid, channels=3), torch.ones(2, 1, 8)], 1), smooth(grid, channels=1, name="target")
    query, context = coefficients(5, seed="q"), {"inputs": coefficients(3), "outputs": coefficients(3, seed="u")}
    layers, losses = [], []
    for depth in range(1, 5):
        part = operator(depth=depth).eval()
        part.load_state_dict({name: value for name, value in network.state_dict().items() if name in part.state_dict()})
        losses.append(part.negative_log_density(part(values), target, grid))
        layers.append(part.predictive(query, **context))
    torch.testing.assert_close(network.negative_log_density(network(values), target, grid), torch.stack(losses).mean())
    changes = torch.stack(
        [
            ((new - old).square().sum((1, 2)) / root.square().sum((1, 2, 3))).sqrt()
            for (old, _), (new, root) in itertools.pairwise(layers)
        ]
    )
    tolerance = float(changes[0].median())
    exits = [next((int(layer) + 1 for layer in (column <= tolerance).nonzero()), 3) for column in changes.mT]
    assert len({*exits}) > 1
    mean, root = network.predictive(query, **context, tolerance=tolerance)
    for row, layer in enumerate(exits):
        torch.testing.assert_close(mean[row], layers[layer][0][row], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(root[row], layers[layer][1][row], rtol=1e-12, atol=1e-12)
    assert torch.equal(network.predictive(query, **context)[0], layers[-1][0])


def test_tasks_have_contexts_of_all_sizes_of_one_operator() -> None:
    tasks = context_tasks(Multiple, tasks=8, pairs=3, resolution=6, seed=1)
    f, context, u, size = tasks.inputs.values.split([1, 3, 3, 1], 1)
    assert size[:, 0, 0].tolist() == [0, 1, 2, 3] * 2
    assert tasks.groups is not None
    assert tasks.groups.tolist() == [0] * 4 + [1] * 4
    is_used = torch.arange(3) < size[:, 0, :1]
    for side in (context, u):
        assert torch.equal(side.abs().amax(-1) > 0, is_used)
    query = torch.cat([f, tasks.outputs.values], 1)
    assert len(query.unique(dim=0)) == 8
    for row in range(1, 4):  # the pairs after the query, in turn
        following = query[[(row + 1 + index) % 4 for index in range(row)]]
        assert torch.equal(torch.stack([context[row], u[row]], 1)[:row], following)
    again = context_tasks(Multiple, tasks=6, pairs=3, resolution=6, seed=1)
    assert torch.equal(again.inputs.values, tasks.inputs.values[:6])


@pytest.mark.slow
def test_it_learns_bayes_rule() -> None:
    """Of one normal factor, in large units: divergences from the exact distribution, and those of a prediction without context.

    The loss becomes negative, and no warning says that it rose.
    """
    unit, network = 1e4, InContextOperator(1, 1, modes=(2,), width=32, depth=2, rank=1, seed=0)
    tasks = context_tasks(partial(Multiple, unit=unit), tasks=4000, pairs=3, resolution=4)
    options = {"data": pn.training.DataOptions(batch_size=50), "learning_rate": 1e-2, "show_progress": False}
    pn.fit(network, tasks, epochs=4, loss=lambda *given: network.negative_log_density(*given) - 10.0, **options)
    keep, divergence, trivial = torch.tensor([0, 2, 3]), 0.0, 0.0
    for seed in range(40):
        pairs = Multiple(10**6 + seed, unit=unit).sample(4, resolution=4, seed=seed)
        f, u = (
            network.coefficients(side.values)[:, 0] / scale
            for side, scale in ((pairs.inputs, unit), (pairs.outputs, unit * 1e-3))
        )
        precision = float(f[:3].square().sum()) + NOISE**2
        mean, variance = float((f[:3] * u[:3]).sum()) / precision, NOISE**2 / precision
        query = f[3, keep].double()
        noise = NOISE**2 * torch.eye(3, dtype=torch.float64)
        exact = MultivariateNormal(mean * query, variance * query.outer(query) + noise)
        prior = MultivariateNormal(0.0 * query, query.outer(query) + noise)
        with torch.no_grad():
            context = {"inputs": f[:3, None] * unit, "outputs": u[:3, None] * unit * 1e-3}
            predicted, root = network.predictive(f[3:, None] * unit, **context)
        root = root[0, 0, keep].double() / (unit * 1e-3)
        model = MultivariateNormal(predicted[0, 0, keep].double() / (unit * 1e-3), root @ root.mT)
        divergence += float(torch.distributions.kl_divergence(exact, model)) / 120
        trivial += float(torch.distributions.kl_divergence(exact, prior)) / 120
    assert trivial > 0.4
    assert divergence < 0.1


def test_bad_tasks_are_refused() -> None:
    network = operator().float()
    with pytest.raises(ShapeError, match=r"1 \+ 2 N \+ 1 channels"):
        network(torch.zeros(1, 3, 8))
    with pytest.raises(ResolutionError, match="5 or more points"):
        network(torch.zeros(1, 4, 4))
    with pytest.raises(GridError, match="periodic"):
        network(torch.zeros(1, 4, 8), grid=Grid.uniform(8, periodic=False))
    with pytest.raises(DataError, match="float64"):
        network(torch.zeros(1, 4, 8, dtype=torch.float64))

    class Uneven(Multiple):
        def sample(self, n: int, *, resolution: int | Sequence[int], seed: int) -> FieldPairs:
            pairs = super().sample(n, resolution=resolution, seed=seed)
            return FieldPairs(pairs.inputs, pairs.outputs.resample(Grid.uniform(8)))

    with pytest.raises(GridError, match="outputs, as inputs are"):
        context_tasks(Uneven, tasks=2, pairs=1, resolution=6)
