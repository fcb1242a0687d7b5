"""POD-DeepONets: the basis is the principal components of the training outputs, and of nothing else."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.operators import DeepONet, HiddenLayers, PODDeepONet
from probneural.pairs import FieldPairs
from probneural.problems import Burgers
from probneural.randomness import stream_seed
from probneural.training import DataOptions, fit
from probneural.training.losses import relative_l2
from tests.helpers import generator, normal
from tests.operators.cases import smooth

SENSORS = Grid.uniform(8, lengths=2.0)
OUT = Grid.uniform(7, periodic=False)


def pairs(out: Grid = OUT, *, count: int = 12, channels: int = 2) -> FieldPairs:
    """Rough outputs about a mean function, each channel in units of its own."""
    gain = torch.tensor([1.0, 50.0], dtype=torch.float64)[:channels, None]
    outputs = gain * (3.0 + normal(channels, out.size, seed="mean") + normal(count, channels, out.size, seed="outputs"))
    return FieldPairs(Field(smooth(SENSORS, count=count), SENSORS), Field(outputs.unflatten(-1, out.shape), out))


def built(out: Grid = OUT, *, basis: int = 4, fitted: bool = True, channels: int = 2, **options: Any) -> PODDeepONet:
    torch.manual_seed(0)
    settings = {"layers": HiddenLayers(width=5, depth=2)} | options
    operator = PODDeepONet(1, channels, sensors=SENSORS, out_grid=out, basis=basis, **settings).double()
    if fitted:
        operator.fit_normalizers(pairs(out, channels=channels))
    return operator


def unitless(operator: PODDeepONet, train: FieldPairs) -> Tensor:
    """Training outputs in units of the output normaliser, `(n, c, p)`."""
    normalizer = operator.output_normalizer
    return (train.outputs.values.flatten(2) - normalizer.mean[:, None]) / normalizer.scale[:, None]


def scattered_out() -> Grid:
    """Points of very different weights, one of which is zero."""
    return Grid.scattered(normal(9, 1, seed="points"), torch.tensor([0.0, 0.1, 5.0, 1.0, 0.01, 2.0, 1.0, 1.0, 3.0]))


# The basis

GRIDS = {"ends": OUT, "plane": Grid.uniform((3, 4), lengths=(1.0, 2.0)), "scattered": scattered_out()}
grids = pytest.mark.parametrize("out", GRIDS.values(), ids=GRIDS)


@grids
def test_modes_are_principal_components_by_quadrature(out: Grid) -> None:
    """Against the eigenvectors of the weighted covariance matrix."""
    operator, train = built(out), pairs(out)
    outputs = unitless(operator, train)
    torch.testing.assert_close(operator.mean_function, outputs.mean(0), atol=1e-12, rtol=0)
    share = out.weights / out.volume
    for channel in range(2):
        rows = outputs[:, channel] - outputs[:, channel].mean(0)
        covariance = rows.T @ rows / len(train)
        values, vectors = torch.linalg.eigh(share.sqrt()[:, None] * covariance * share.sqrt())
        modes = operator.modes[channel]
        gram = modes * share @ modes.T
        torch.testing.assert_close(gram, torch.diag(values.flip(0)[:4]), atol=1e-12, rtol=0)
        overlap = (modes * share.sqrt()) @ vectors.flip(1)[:, :4] / values.flip(0)[:4].sqrt()
        torch.testing.assert_close(overlap.abs(), torch.eye(4, dtype=torch.float64), atol=1e-10, rtol=0)


@grids
def test_coefficients_have_unit_variance_and_lose_what_is_left(out: Grid) -> None:
    operator, train = built(out), pairs(out)
    share = out.weights / out.volume
    for channel in range(2):
        modes = operator.modes[channel]
        rows = unitless(operator, train)[:, channel] - operator.mean_function[channel]
        squares = (modes.square() @ share)[:, None]
        coefficients = rows * share @ (modes / squares).T
        torch.testing.assert_close(coefficients.mean(0), torch.zeros(4, dtype=torch.float64), atol=1e-10, rtol=0)
        gram = coefficients.T @ coefficients / len(train)
        torch.testing.assert_close(gram, torch.eye(4, dtype=torch.float64), atol=1e-10, rtol=0)
        rest = (rows - coefficients @ modes).square() @ share
        total = torch.linalg.svdvals(rows * share.sqrt()).square()
        torch.testing.assert_close(rest.sum(), total[4:].sum(), atol=1e-10, rtol=0)


def test_signs_are_fixed() -> None:
    modes = built().modes
    assert bool((modes.gather(-1, modes.abs().argmax(-1, keepdim=True)) > 0).all())
    flipped = pairs()
    reordered = built()
    reordered.fit_normalizers(flipped[torch.arange(11, -1, -1)])
    torch.testing.assert_close(reordered.modes, modes, atol=1e-10, rtol=0)


def test_all_modes_hold_the_training_outputs() -> None:
    """With the coefficients that the data have, the read-out returns the data."""
    operator, train = built(basis=7), pairs()
    share = OUT.weights / OUT.volume
    rows = unitless(operator, train) - operator.mean_function
    coefficients = torch.einsum("ncp,ckp,p->nck", rows, operator.modes, share) / (operator.modes.square() @ share)
    operator.branch.forward = lambda values, grid: coefficients  # type: ignore[method-assign]
    outputs = operator(train.inputs.values, grid=SENSORS, query=OUT)
    torch.testing.assert_close(outputs, train.outputs.values, atol=1e-9, rtol=0)


def test_formula() -> None:
    operator = built()
    with torch.no_grad():
        for name, parameter in operator.readout.named_parameters():
            parameter.copy_(normal(*parameter.shape, seed=name))
    values = smooth(SENSORS, count=3)
    coefficients = operator.branch(values, SENSORS)
    assert coefficients.shape == (3, 2, 4)
    weight, bias = operator.readout.weight, operator.readout.bias
    total = weight[:, :1] * operator.mean_function + torch.einsum(
        "ck,nck,ckp->ncp", weight[:, 1:], coefficients, operator.modes
    )
    normalizer = operator.output_normalizer
    expected = (total + bias[:, None]) * normalizer.scale[:, None] + normalizer.mean[:, None]
    torch.testing.assert_close(operator(values, query=OUT), expected, atol=1e-12, rtol=0)


def test_training_outputs_may_be_finer_than_the_basis() -> None:
    """Band-limited outputs: the basis of a finer grid is the same functions."""
    coarse = Grid.uniform(9)
    operators = []
    for grid in (coarse, coarse.resized(16)):
        outputs = Field(smooth(grid, count=12), grid)
        operator = built(coarse, channels=1, fitted=False)
        operator.fit_normalizers(FieldPairs(Field(smooth(SENSORS, count=12), SENSORS), outputs))
        operators.append(operator)
    torch.testing.assert_close(operators[0].modes, operators[1].modes, atol=1e-10, rtol=0)
    values = smooth(SENSORS)
    fine = coarse.resized(32)
    torch.testing.assert_close(operators[0](values, query=fine), operators[1](values, query=fine), atol=1e-10, rtol=0)


def test_the_basis_comes_from_the_training_part_only() -> None:
    """What `pn.fit` watches, and everything after the first epoch, leaves the basis alone."""
    train = pairs(count=16).to(torch.float32)
    operator = built(fitted=False).float()
    assert not operator.has_units
    fit(operator, train, epochs=2, seed=3, data=DataOptions(validation=0.25), show_progress=False)
    held, part = train.split(4, seed=stream_seed(3, "validation"))
    expected = built(fitted=False).float()
    expected.fit_normalizers(part)
    assert operator.has_units
    for name in ("mean_function", "modes"):
        assert torch.equal(getattr(operator, name), getattr(expected, name))
    other = built(fitted=False).float()
    other.fit_normalizers(held[[0, 1, 2, 3, 0, 1]])
    assert not torch.allclose(other.modes, expected.modes, atol=1e-3)
    modes = operator.modes.clone()
    fit(operator, train, epochs=1, seed=4, show_progress=False)
    assert torch.equal(operator.modes, modes)


def test_outputs_that_do_not_vary_have_no_modes() -> None:
    train = pairs()
    constant = train.outputs.values.clone()
    constant[:, 0] = constant[:1, 0]
    operator = built()
    operator.fit_normalizers(FieldPairs(train.inputs, Field(constant, OUT)))
    assert float(operator.modes[0].abs().max()) < 1e-12
    outputs = operator(smooth(SENSORS), query=OUT)
    torch.testing.assert_close(outputs[:, 0], constant[:2, 0], atol=1e-10, rtol=0)


def test_reset_keeps_the_basis() -> None:
    operator = built()
    before = copy.deepcopy(operator.state_dict())
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.fill_(torch.nan)
    torch.manual_seed(5)
    operator.reset_parameters()
    for name, tensor in operator.state_dict().items():
        assert bool(torch.isfinite(tensor).all()), name
        kept = "normalizer" in name or name.startswith(("mean_function", "modes", "readout"))
        assert torch.equal(tensor, before[name]) == kept, name


# Learning


def test_learns_a_linear_map() -> None:
    """u to its primitive, which begins at zero: an operator between a circle and an interval."""
    grid, out = Grid.uniform(8), Grid.uniform(16, periodic=False)
    weights = torch.randn(80, 4, generator=generator("weights"))
    inputs, outputs = [], []
    for k in (1, 2):
        turn, rate = 2 * torch.pi * k, 1.0 / (2 * torch.pi * k)
        inputs += [torch.cos(turn * grid.points[:, 0]), torch.sin(turn * grid.points[:, 0])]
        outputs += [rate * torch.sin(turn * out.points[:, 0]), rate * (1.0 - torch.cos(turn * out.points[:, 0]))]
    data = FieldPairs(
        Field((weights @ torch.stack(inputs).float())[:, None], grid),
        Field((weights @ torch.stack(outputs).float())[:, None], out),
    )
    torch.manual_seed(0)
    operator = PODDeepONet(1, 1, sensors=grid, out_grid=out, basis=4, layers=HiddenLayers(width=32, depth=2))
    fit(
        operator,
        data[:60],
        epochs=30,
        data=DataOptions(batch_size=10, validation=0.0),
        learning_rate=1e-2,
        show_progress=False,
    )
    with torch.no_grad():
        values = evaluate(operator, data[60:].inputs, out)
    error = float(relative_l2(values, data[60:].outputs.values, grid=out).mean())
    assert error < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "published"), [("POD", 0.0194), ("trunk", 0.0215)])
def test_learns_burgers_better_than_the_published_figure(kind: str, published: float) -> None:
    """Lu et al. (2022) at 128 points and 1000 pairs. `pn.fit` at its own settings."""
    problem = Burgers(viscosity=0.1)
    train, test = problem.sample(1000, resolution=128, seed=0), problem.sample(200, resolution=128, seed=1)
    torch.manual_seed(0)
    grid = train.inputs.grid
    operator = PODDeepONet(1, 1, sensors=grid, out_grid=grid) if kind == "POD" else DeepONet(1, 1, sensors=grid)
    fit(operator, train, show_progress=False, data=DataOptions(validation=0.0))
    with torch.no_grad():
        values = evaluate(operator, test.inputs)
    error = float(relative_l2(values, test.outputs.values, grid=test.outputs.grid).mean())
    assert error < published


# Errors


@pytest.mark.bad_input
def test_refuses_arguments() -> None:
    with pytest.raises(ArgumentError, match="an integer from 1 to 7 as basis"):
        PODDeepONet(1, 1, sensors=SENSORS, out_grid=OUT, basis=8)


@pytest.mark.bad_input
def test_refuses_training_data() -> None:
    operator, train = built(fitted=False), pairs()
    before = copy.deepcopy(operator.state_dict())
    with pytest.raises(DataError, match="5 or more training pairs"):
        operator.fit_normalizers(train[:4])
    broken = train.outputs.values.clone()
    broken[2, 1, 3] = torch.nan
    with pytest.raises(DataError, match=r"finite training outputs.*\(2, 1, 3\)"):
        operator.fit_normalizers(FieldPairs(train.inputs, Field(broken, OUT)))
    with pytest.raises(ShapeError, match="2 channels of fields; got 1"):
        operator.fit_normalizers(pairs(channels=1))
    with pytest.raises(GridError, match="source's domain"):
        operator.fit_normalizers(pairs(Grid.uniform(7)))
    with pytest.raises(GridError, match="a uniform grid"):
        operator.fit_normalizers(pairs(scattered_out()))
    assert all(torch.equal(tensor, before[name]) for name, tensor in operator.state_dict().items())


@pytest.mark.bad_input
def test_refuses_queries_elsewhere() -> None:
    values = smooth(SENSORS)
    with pytest.raises(GridError, match="a target on the source's domain"):
        built()(values)
    with pytest.raises(GridError, match="points in .0, 1. along axis 0; got 1.5"):
        built()(values, query=Grid.scattered([[1.5]], [1.0]))
    with pytest.raises(GridError, match="a uniform grid"):
        built(scattered_out())(values, query=OUT)
