"""DeepONets: the formula, what channels share, sensors and points anywhere, and that they learn."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import evaluate
from probneural.grids import Grid
from probneural.heads import LastLayerLaplace
from probneural.operators import DeepONet, HiddenLayers
from probneural.operators.layers import mlp
from probneural.operators.layers.branch import GroupedLinear, SensorBranch
from probneural.operators.layers.mlp import MLP
from probneural.problems import PoissonOnShapes
from probneural.training import DataOptions, fit
from probneural.training.losses import relative_l2
from tests.helpers import generator, uniform
from tests.operators.cases import smooth

SENSORS = Grid.uniform(7, lengths=2.0)
POINTS = Grid.scattered(2.0 * torch.rand(5, 1, generator=generator("points"), dtype=torch.float64), torch.full((5,), 0.4))


def built(**options: Any) -> DeepONet:
    """Two channels in, three out, every weight at random and units of its own."""
    torch.manual_seed(0)
    layers = HiddenLayers(width=5, depth=2)
    settings = {"sensors": SENSORS, "basis": 4, "layers": layers, "frequencies": 1, **options}
    operator = DeepONet(2, 3, **settings).double()
    with torch.no_grad():
        for parameter in operator.readout.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator("readout")))
        for normalizer in (operator.branch.normalizer, operator.output_normalizer):
            normalizer.mean.copy_(torch.randn(normalizer.mean.shape, generator=generator("mean")))
            normalizer.scale.copy_(torch.rand(normalizer.scale.shape, generator=generator("scale")) + 0.5)
    return operator


class Calls(TorchDispatchMode):
    """Names of what PyTorch is asked to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


def network(mlp: nn.Module, values: Tensor) -> Tensor:
    """A two-layer network, from its weights."""
    for layer in mlp.layers[:-1]:
        values = nn.functional.gelu(values @ layer.weight.T + layer.bias)
    return values @ mlp.layers[-1].weight.T + mlp.layers[-1].bias


def test_formula() -> None:
    operator = built()
    values = smooth(SENSORS, count=3, channels=2)
    units = (values - operator.branch.normalizer.mean[:, None]) / operator.branch.normalizer.scale[:, None]
    phase = torch.pi * POINTS.points
    position = torch.cat([torch.sin(phase), torch.cos(phase)], dim=1)
    branch = network(operator.branch.network, units.flatten(1)).unflatten(1, (3, 4))
    trunk = network(operator.trunk, position).unflatten(1, (3, 4))
    weight, bias = operator.readout.weight, operator.readout.bias
    unitless = torch.einsum("ck,nck,pck->ncp", weight, branch, trunk) + bias[:, None]
    expected = unitless * operator.output_normalizer.scale[:, None] + operator.output_normalizer.mean[:, None]
    torch.testing.assert_close(operator(values, query=POINTS), expected, atol=1e-13, rtol=1e-13)


def test_channels_share_hidden_layers_and_no_products() -> None:
    """A parameter is shared if more than one output channel depends on it."""
    operator = built()
    output = operator(smooth(SENSORS, channels=2), query=POINTS)
    used = []
    for channel in range(3):
        gradients = torch.autograd.grad(output[:, channel].square().sum(), list(operator.parameters()), retain_graph=True)
        used.append({key: gradient != 0 for (key, _), gradient in zip(operator.named_parameters(), gradients, strict=True)})
    sharing = {
        "branch.network.layers.0.weight": True,
        "branch.network.layers.2.weight": False,
        "trunk.layers.0.weight": True,
        "trunk.layers.2.weight": False,
        "readout.weight": False,
        "readout.bias": False,
    }
    for key, shared in sharing.items():
        count = torch.stack([gradients[key].long() for gradients in used]).sum(0)
        assert bool((count == (3 if shared else 1)).any()), key
        assert int(count.max()) == (3 if shared else 1), key


def test_begins_as_the_plain_sum() -> None:
    operator = DeepONet(1, 2, sensors=SENSORS, basis=3, layers=HiddenLayers(width=4))
    assert bool((operator.readout.weight == 1).all())
    assert not operator.readout.bias.any()
    caught: list[Tensor] = []
    operator.readout.register_forward_hook(lambda module, arguments, output: caught.extend([arguments[0], output]))
    operator(torch.ones(2, 1, 7))
    torch.testing.assert_close(caught[0].unflatten(1, (2, 3)).sum(2), caught[1])


def test_products_are_formed_for_hooks_alone() -> None:
    """What a hook on the read-out sees are all products, and the values are the same with and without it."""
    operator, values = built(), smooth(SENSORS, count=4, channels=2)
    plain = operator(values, query=POINTS)
    caught: list[Tensor] = []
    operator.readout.register_forward_hook(lambda module, arguments, output: caught.append(arguments[0]))
    torch.testing.assert_close(operator(values, query=POINTS), plain, atol=1e-13, rtol=1e-13)
    assert [tuple(features.shape) for features in caught] == [(4, 3 * operator.basis, *POINTS.shape)]


def test_each_function_at_points_of_its_own() -> None:
    """As one query per function would have it; gradients reach the points."""
    operator, values = built(), smooth(SENSORS, count=3, channels=2)
    points = uniform(3, 5, POINTS.dimension, seed="points").requires_grad_()
    result = operator.evaluate_at(values, points)
    expected = [
        operator(values[index : index + 1], query=Grid.scattered(points[index], torch.ones(5)))[0]
        for index in range(len(values))
    ]
    torch.testing.assert_close(result, torch.stack(expected), atol=1e-13, rtol=1e-13)
    (slopes,) = torch.autograd.grad(result.sum(), points)
    step = 1e-6
    moved = operator.evaluate_at(values, points + step) - operator.evaluate_at(values, points - step)
    torch.testing.assert_close(slopes.sum((1, 2)), moved.sum((1, 2)) / (2 * step), atol=1e-6, rtol=1e-6)


@pytest.mark.bad_input
def test_refuses_points_of_other_shapes_and_elsewhere() -> None:
    operator, values = built(), smooth(SENSORS, count=3, channels=2)
    for points in (torch.zeros(5, 1), torch.zeros(2, 5, 1), torch.zeros(3, 0, 1)):
        with pytest.raises(ShapeError, match="points of shape"):
            operator.evaluate_at(values, points)
    with pytest.raises(ShapeError):
        operator.evaluate_at(values, torch.zeros(3, 5, 2))
    with pytest.raises(DataError, match="finite points"):
        operator.evaluate_at(values, torch.full((3, 5, 1), float("nan")))


def test_trunk_sees_each_point_and_branch_each_input_once() -> None:
    operator = built()
    rows: list[tuple[str, int]] = []
    for name in ("branch.network", "trunk"):
        operator.get_submodule(name).register_forward_hook(
            lambda module, arguments, output, name=name: rows.append((name, len(arguments[0])))
        )
    operator(smooth(SENSORS, count=9, channels=2), query=POINTS)
    assert rows == [("branch.network", 9), ("trunk", 5)]


def test_a_known_grid_is_not_embedded_again() -> None:
    """On a small batch, what a forward evaluation computes of the grid alone takes longer than its products."""
    operator, values = built(), smooth(SENSORS, count=2, channels=2)
    seen: list[Tensor] = []
    operator.trunk.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].requires_grad_()))
    first = operator(values, query=Grid.uniform(9, lengths=2.0))
    with Calls() as calls:
        again = operator(values, query=Grid.uniform(9, lengths=2.0))
    assert torch.equal(first, again)
    assert seen[0].data_ptr() == seen[1].data_ptr()
    assert "gelu" in calls.names
    assert not {"sin", "cos", "remainder", "stack", "cat", "_to_copy"} & {*calls.names}
    first.sum().backward()  # a hook that asks for slopes along the domain changes no other call
    slopes = seen[0].grad.clone()
    again.sum().backward()
    assert torch.equal(seen[1].grad, slopes)


def test_layers_in_blocks_of_rows_are_those_of_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients are those of the formula, and a hook sees all rows, before activations in place."""
    layers = MLP(2, 3, layers=HiddenLayers(width=4, depth=2)).double()
    values = torch.randn(23, 2, generator=generator("rows"), dtype=torch.float64)
    monkeypatch.setattr(mlp, "_BLOCK", 5 * 4 * values.element_size() // torch.get_num_threads())
    with Calls() as calls, torch.no_grad():
        in_place = layers(values)
    assert (calls.names.count("addmm"), calls.names.count("gelu_")) == (3 * 5, 2 * 5)
    results = [
        (out, *torch.autograd.grad(out.square().sum(), [*layers.parameters()]))
        for out in (network(layers, values), layers(values))
    ]
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(in_place, results[0][0], rtol=1e-12, atol=1e-13)
    seen: list[Tensor] = []
    layers.layers[0].register_forward_hook(lambda module, arguments, output: seen.append(output))
    with torch.no_grad():
        layers(values)
    torch.testing.assert_close(seen, [nn.functional.linear(values, layers.layers[0].weight, layers.layers[0].bias)])


def test_the_trunk_is_evaluated_once_for_equal_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever changes its weights, outputs are those of an evaluation with gradients, which reads no cache."""
    operator, values, grid = built(), smooth(SENSORS, count=2, channels=2), Grid.uniform(9, lengths=2.0)
    rows: list[int] = []
    forward = MLP.forward
    monkeypatch.setattr(MLP, "forward", lambda self, values: rows.append(len(values)) or forward(self, values))

    def is_computed(operator: DeepONet = operator) -> bool:
        rows.clear()
        inputs = values.to(operator.readout.weight.dtype)
        with torch.no_grad():
            output = operator(inputs, query=grid)
        is_new = 9 in rows
        torch.testing.assert_close(output, operator(inputs, query=grid))
        return is_new

    assert [is_computed(), is_computed(), is_computed(copy.deepcopy(operator))] == [True, False, False]
    weight = operator.trunk.layers[1].weight
    for change in (weight.data, weight.detach().numpy()):  # a change of either has no version
        change[0, 0] += 1.0
        assert [is_computed(), is_computed()] == [True, False]
    assert is_computed(copy.deepcopy(operator).float())
    operator.load_state_dict(built().state_dict())
    assert not is_computed()
    weights = [{name: scale * weight for name, weight in operator.named_parameters()} for scale in (1.0, 2.0)]
    call = functools.partial(torch.func.functional_call, operator, args=(values,), kwargs={"query": grid})
    with torch.no_grad():
        together = torch.func.vmap(call)({name: torch.stack([one[name] for one in weights]) for name in weights[0]})
    torch.testing.assert_close(together, torch.stack([call(one) for one in weights]))
    operator.trunk.register_forward_hook(lambda *_: None)
    assert [is_computed(), is_computed()] == [True, True]


# Sensors and points


def scattered_sensors(domain: Grid, count: int = 11) -> Grid:
    turns = torch.rand(count, domain.dimension, generator=generator("sensors"), dtype=torch.float64)
    return Grid.scattered(turns * torch.tensor(domain.lengths, dtype=torch.float64), torch.rand(count) + 0.1)


@pytest.mark.parametrize(
    "domain", [Grid.uniform(9, lengths=2.0), Grid.uniform((6, 7), lengths=(1.0, 3.0))], ids=["line", "plane"]
)
def test_scattered_sensors_read_the_function(domain: Grid) -> None:
    """The input's interpolant is the input where the grid resolves it; at the sensors it is then what a formula says."""
    sensors = scattered_sensors(domain)
    operator = DeepONet(1, 1, sensors=sensors, domain=domain, basis=4, layers=HiddenLayers(width=6)).double()
    wave = torch.tensor([1.0, 2.0][: domain.dimension], dtype=torch.float64) / torch.tensor(domain.lengths, dtype=torch.float64)

    def function(points: Tensor) -> Tensor:
        return 0.3 + torch.sin(2 * torch.pi * (points @ wave) + 0.4)

    at_sensors = function(sensors.points)[None, None]
    expected = operator(at_sensors, grid=sensors, query=domain)
    for grid in (domain, domain.resized(tuple(size + 3 for size in domain.shape))):
        values = function(grid.points).reshape(1, 1, *grid.shape)
        torch.testing.assert_close(operator(values, grid=grid, query=domain), expected, atol=1e-12, rtol=0)
    assert torch.equal(operator(at_sensors, query=domain), expected)
    assert operator(at_sensors).shape == (1, 1, 11)  # by default at the inputs' points, which are the sensors
    assert not torch.allclose(operator(at_sensors + 0.1, query=domain), expected)


def test_periodic_axes_close_up_and_others_do_not() -> None:
    low = Grid.scattered([[0.3, 0.1], [0.0, 0.6]], [1.0, 1.0])
    turned = Grid.scattered([[2.3, 0.1], [2.0, 0.6]], [1.0, 1.0])
    domain = Grid.uniform((4, 4), lengths=(2.0, 1.0), periodic=(True, False))
    operator = DeepONet(1, 1, sensors=domain, basis=4, layers=HiddenLayers(width=6), frequencies=2).double()
    values = smooth(domain)
    torch.testing.assert_close(operator(values, query=low), operator(values, query=turned), atol=1e-14, rtol=0)
    ends = Grid.scattered([[0.3, 0.0], [0.3, 1.0]], [1.0, 1.0])
    first, last = operator(values, query=ends).unbind(-1)
    assert bool((first != last).all())


def test_outputs_in_another_dimension() -> None:
    """An initial state on the line to a space-time field, on a uniform grid and at its points."""
    domain = Grid.uniform((8, 5), lengths=(1.0, 0.5), periodic=(True, False))
    operator = DeepONet(1, 2, sensors=Grid.uniform(16), domain=domain, basis=4, layers=HiddenLayers(width=6)).double()
    values = smooth(Grid.uniform(16))
    query = domain.resized((6, 7))
    on_grid = operator(values, query=query)
    assert on_grid.shape == (2, 2, 6, 7)
    as_points = operator(values, query=Grid.scattered(query.points, query.weights))
    torch.testing.assert_close(as_points, on_grid.flatten(2), atol=1e-14, rtol=0)


# Inputs at any points


def from_points() -> DeepONet:
    domain = Grid.uniform((2, 2), periodic=(True, False))
    return DeepONet(1, 2, sensors=None, domain=domain, basis=4, layers=HiddenLayers(width=6, depth=1), seed=0).double()


def points_in_square(count: int, *, seed: str = "square") -> Grid:
    points = torch.rand(count, 2, generator=generator(seed), dtype=torch.float64)
    return Grid.scattered(points, torch.rand(count, generator=generator(f"{seed} weights")) / count)


def test_permuting_splitting_and_padding_input_points_changes_nothing() -> None:
    operator, grid, query = from_points(), points_in_square(30), Grid.uniform((3, 4), periodic=(True, False))
    values = uniform(2, 1, 30, seed="values")
    expected = operator(values, grid=grid, query=query)
    order = torch.randperm(30, generator=generator("order"))
    permuted = operator(values[..., order], grid=Grid.scattered(grid.points[order], grid.weights[order]), query=query)
    torch.testing.assert_close(permuted, expected, rtol=1e-12, atol=1e-13)
    weights = grid.weights
    weights[4] /= 2.0
    split = Grid.scattered(torch.cat([grid.points, grid.points[4:5]]), torch.cat([weights, weights[4:5]]))
    outputs = operator(torch.cat([values, values[..., 4:5]], -1), grid=split, query=query)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-13)
    padded = Grid.batch([grid, points_in_square(40, seed="other")])
    filled = torch.cat([nn.functional.pad(values[:1], (0, 10), value=9.0), uniform(1, 1, 40, seed="filled")])
    torch.testing.assert_close(operator(filled, grid=padded, query=query)[:1], expected[:1], rtol=1e-12, atol=1e-13)
    uneven = Grid.scattered(grid.points, torch.ones(30))
    assert not torch.allclose(operator(values, grid=uneven, query=query), expected, rtol=1e-3)


def test_samples_on_points_of_their_own_are_those_alone() -> None:
    """Inputs and outputs on a batch of meshes, and with the products that a last layer sees."""
    operator, grids = from_points(), [points_in_square(20), points_in_square(30, seed="other")]
    values, grid = uniform(2, 1, 30, seed="values"), Grid.batch(grids)
    together = operator(values, grid=grid)
    for row, alone in enumerate(grids):
        expected = operator(values[row : row + 1, :, : alone.size], grid=alone)
        torch.testing.assert_close(together[row : row + 1, :, : alone.size], expected, rtol=1e-12, atol=1e-13)
    operator.readout.register_forward_hook(lambda module, arguments, output: None)
    torch.testing.assert_close(operator(values, grid=grid), together, rtol=1e-12, atol=1e-13)


def test_outputs_converge_on_refined_and_graded_meshes() -> None:
    """Of one function on the square, to those of a fine grid: at second order."""
    operator, query = from_points(), Grid.uniform((3, 4), periodic=(True, False))

    def output(count: int, power: float) -> Tensor:
        x, y = (torch.linspace(0.0, 1.0, count, dtype=torch.float64) ** exponent for exponent in (1.0, power))
        lines = [Grid.mesh(t[:, None], torch.stack([torch.arange(count - 1), torch.arange(1, count)], 1)) for t in (x, y)]
        grid = Grid.scattered(torch.cartesian_prod(x, y), torch.outer(lines[0].weights, lines[1].weights).flatten())
        return operator((grid.points[:, 0] * (3.0 * grid.points[:, 1]).cos())[None, None], grid=grid, query=query).detach()

    reference = output(257, 1.0)
    errors = [float((output(count, 2.0) - reference).norm()) for count in (9, 17, 33)]
    assert errors[0] / errors[1] > 3.0
    assert errors[1] / errors[2] > 3.0


def mesh_network() -> DeepONet:
    domain = Grid.uniform((2, 2), lengths=3.4, origin=-1.7, periodic=False)
    return DeepONet(1, 1, sensors=None, domain=domain, basis=16, layers=HiddenLayers(width=64, depth=2), seed=0)


def test_a_last_layer_on_one_mesh_per_sample() -> None:
    operator, shapes = mesh_network(), PoissonOnShapes()
    predictor = LastLayerLaplace().fit(operator, shapes.sample(10, resolution=40, seed=0))
    test = shapes.sample(3, resolution=50, seed=1)
    u = predictor(test.inputs)
    with torch.no_grad():
        torch.testing.assert_close(u.mean, evaluate(predictor.operator, test.inputs), rtol=1e-4, atol=1e-5)
    assert u.variance.shape == test.outputs.values.shape
    assert bool((u.variance > 0).all())


@pytest.mark.slow
def test_learns_on_one_mesh_per_sample() -> None:
    shapes = PoissonOnShapes(degree=1, terms=1)
    train, test = shapes.sample(100, resolution=60, seed=0), shapes.sample(20, resolution=120, seed=1, graded=True)
    operator = mesh_network()
    options = DataOptions(batch_size=10, validation=0.0)
    fit(operator, train, epochs=20, learning_rate=1e-2, seed=0, show_progress=False, data=options)
    with torch.no_grad():
        values = evaluate(operator, test.inputs)
    assert float(relative_l2(values, test.outputs.values, grid=test.outputs.grid).mean()) < 0.6


@pytest.mark.bad_input
def test_refuses_points_outside_and_without_a_domain() -> None:
    operator, inside = from_points(), points_in_square(5)
    outside = Grid.scattered(inside.points + torch.tensor([0.0, 1.0]), inside.weights)
    with pytest.raises(GridError, match="inputs in the outputs' domain"):
        operator(torch.zeros(1, 1, 5).double(), grid=outside)
    with pytest.raises(ShapeError, match="3 grids, one for each sample"):
        operator(torch.zeros(3, 1, 5).double(), grid=Grid.batch([inside, inside]))
    with pytest.raises(GridError, match="as domain"):
        DeepONet(1, 1, sensors=None)


# Learning


# Posteriors, files, resets, compilation


# Layers


def test_grouped_linear_is_a_block_diagonal_matrix() -> None:
    layer = GroupedLinear(2, 3).double()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
        layer.bias.copy_(torch.tensor([0.5, -0.5]))
    values = torch.randn(4, 6, 5, 2, generator=generator("grouped"), dtype=torch.float64)
    dense = torch.block_diag(*layer.weight.split(1))
    expected = torch.einsum("cf,nfxy->ncxy", dense, values) + layer.bias[:, None, None]
    torch.testing.assert_close(layer(values), expected, atol=1e-14, rtol=0)
    assert repr(layer) == "GroupedLinear(2, 3)"


# Errors


@pytest.mark.bad_input
def test_refuses_sensors_and_domains_that_are_none() -> None:
    with pytest.raises(GridError, match="a Grid as sensors"):
        SensorBranch(1, sensors=None, groups=1, basis=1, layers=HiddenLayers(width=1, depth=1))  # type: ignore[arg-type]
    with pytest.raises(GridError, match="as domain; got Grid.scattered.*scattered sensors do not say"):
        DeepONet(1, 1, sensors=POINTS)
    with pytest.raises(GridError, match="as domain"):
        DeepONet(1, 1, sensors=SENSORS, domain=POINTS)
    with pytest.raises(ArgumentError, match="an integer of at least 1 as groups"):
        SensorBranch(1, sensors=SENSORS, groups=0, basis=1, layers=HiddenLayers(width=1, depth=1))
    with pytest.raises(ArgumentError, match="an integer of at least 1 as features"):
        GroupedLinear(2, 0)
    with pytest.raises(ArgumentError, match="an integer of at least 1 as out_features"):
        MLP(2, 0, layers=HiddenLayers(width=1, depth=1))


@pytest.mark.bad_input
@pytest.mark.parametrize("point", [-0.1, 1.1, -1e-7])
def test_refuses_points_beyond_an_end(point: float) -> None:
    operator = DeepONet(1, 1, sensors=Grid.uniform(7, periodic=False), layers=HiddenLayers(width=2))
    assert operator(torch.zeros(1, 1, 7), query=Grid.scattered([[0.0], [1.0], [1.0 + 1e-12]], [1.0] * 3)).shape == (1, 1, 3)
    with pytest.raises(GridError, match="query in the outputs' domain"):
        operator(torch.zeros(1, 1, 7), query=Grid.scattered([[0.5], [point]], [1.0, 1.0]))


@pytest.mark.bad_input
def test_needs_a_query_where_outputs_live_elsewhere() -> None:
    operator = DeepONet(1, 1, sensors=SENSORS, domain=Grid.uniform((3, 3)), layers=HiddenLayers(width=2))
    with pytest.raises(GridError, match="query in the outputs' domain.*give query= there"):
        operator(torch.zeros(1, 1, 7))


@pytest.mark.bad_input
def test_refuses_inputs_that_do_not_reach_the_sensors() -> None:
    operator = DeepONet(
        1, 1, sensors=scattered_sensors(Grid.uniform(5, lengths=2.0)), domain=SENSORS, layers=HiddenLayers(width=2)
    )
    with pytest.raises(GridError, match=r"points in \[0, 1\] along axis 0"):
        operator(torch.zeros(1, 1, 9), grid=Grid.uniform(9, periodic=False), query=SENSORS)
    with pytest.raises(ShapeError, match=r"\(\.\.\., 11\)"):
        operator(torch.zeros(1, 1, 9), query=SENSORS)
    with pytest.raises(GridError, match="source's domain"):
        DeepONet(1, 1, sensors=SENSORS, layers=HiddenLayers(width=2))(torch.zeros(1, 1, 9), grid=Grid.uniform(9), query=SENSORS)
    with pytest.raises(GridError, match="a uniform grid"):
        DeepONet(1, 1, sensors=SENSORS, layers=HiddenLayers(width=2))(torch.zeros(1, 1, 5), grid=POINTS)
