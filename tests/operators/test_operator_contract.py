"""What every operator promises, checked on every operator: add an instance to CASES and the suite runs on it."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vmap

from probneural.errors import ArgumentError, DataError, GridError, ResolutionError, ShapeError
from probneural.fields import Field, evaluate, takes_grid
from probneural.grids import Grid
from probneural.operators import FNO, LinearRegression, Operator
from probneural.operators.layers import ChannelNormalizer
from probneural.pairs import FieldPairs
from probneural.storage import load, save
from tests.helpers import generator, one_of_each
from tests.operators.cases import CASES, Case, cases, dtypes, smooth


def relative(error: Tensor, reference: Tensor) -> float:
    """Norm of an error over the spread of the reference."""
    return (error.norm() / (reference - reference.mean()).norm()).item()


def scattered(grid: Grid, count: int = 6) -> Grid:
    """Points anywhere in the domain of a uniform grid."""
    turns = torch.rand(count, grid.dimension, generator=generator("scattered"), dtype=torch.float64)
    origins = torch.tensor([axis.origin for axis in grid.axes], dtype=torch.float64)
    return Grid.scattered(origins + turns * torch.tensor(grid.lengths, dtype=torch.float64), torch.full((count,), 1.0 / count))


def scaled(grid: Grid, factor: int) -> Grid:
    """The grid with `factor` times as many intervals, whose points include the grid's."""
    return grid.resized(tuple(factor * (axis.size - 1) + 1 if axis.endpoint else factor * axis.size for axis in grid.axes))


def parameter_stack(operator: Operator, count: int) -> dict[str, Tensor]:
    """A batch of perturbed parameters."""
    return {
        name: parameter.detach() + 0.1 * torch.randn(count, *parameter.shape, generator=generator(name), dtype=parameter.dtype)
        for name, parameter in operator.named_parameters()
    }


@cases
@dtypes
def test_shapes_and_dtype(case: Case, dtype: torch.dtype) -> None:
    operator = case.operator(dtype)
    values = case.values(dtype=dtype)
    out = operator(values, grid=case.grid)
    assert out.shape == (2, operator.out_channels, *case.grid.shape)
    assert out.dtype == dtype
    assert bool(torch.isfinite(out).all())
    assert operator(values[:1], grid=case.grid, query=scattered(case.grid)).shape == (1, operator.out_channels, 6)
    exact = copy.deepcopy(operator).double()(values.double(), grid=case.grid)
    torch.testing.assert_close(out, exact.to(dtype), atol=1e-5, rtol=1e-5)


@cases
def test_what_is_computed_in_place_is_seen_nowhere(case: Case) -> None:
    """Values without gradients, in inference mode, with hooks and with dual numbers are those with gradients."""
    operator, values = case.operator(), case.values()
    expected = operator(values, grid=case.grid).detach()
    kept = values.clone()
    with torch.inference_mode():
        assert torch.equal(operator(values, grid=case.grid), expected)
    with torch.no_grad():
        assert torch.equal(operator(values, grid=case.grid), expected)
        tangent = torch.ones_like(values)
        with forward_ad.dual_level():
            slope = forward_ad.unpack_dual(operator(forward_ad.make_dual(values, tangent), grid=case.grid)).tangent
        torch.testing.assert_close(slope, jvp(lambda given: operator(given, grid=case.grid), (values,), (tangent,))[1])
        seen: list[tuple[Tensor, Tensor]] = []

        def keep(module: nn.Module, arguments: object, output: Tensor | tuple[object, ...]) -> None:
            parts = output if isinstance(output, tuple) else (output,)  # layers with memory return it, too
            seen.extend((part, part.clone()) for part in parts if isinstance(part, Tensor))

        for module in operator.modules():
            module.register_forward_hook(keep)
        torch.testing.assert_close(operator(values, grid=case.grid), expected)
    assert seen
    for output, copied in seen:
        assert torch.equal(output, copied)
    assert torch.equal(values, kept)


@cases
def test_fields_do_not_see_each_other(case: Case) -> None:
    operator, values = case.operator(), case.values(count=3)
    together = operator(values, grid=case.grid)
    alone = torch.cat([operator(row[None], grid=case.grid) for row in values])
    torch.testing.assert_close(together, alone, atol=1e-13, rtol=0)


@cases
def test_takes_plain_tensors(case: Case) -> None:
    operator, values = case.operator(), case.values()
    # The default is the unit domain; a regression knows its own. Only positions depend on it, and those are relative.
    torch.testing.assert_close(operator(values), operator(values, grid=case.grid), atol=1e-14, rtol=1e-14)
    assert takes_grid(operator)
    assert torch.equal(evaluate(operator, Field(values, case.grid)), operator(values, grid=case.grid))


@cases
def test_memory_layout_does_not_matter(case: Case) -> None:
    operator, values = case.operator(), case.values()
    strided = torch.stack([values, values], dim=-1)[..., 0].movedim(0, -1).contiguous().movedim(-1, 0)
    assert not strided.is_contiguous()
    torch.testing.assert_close(operator(strided, grid=case.grid), operator(values, grid=case.grid), atol=1e-14, rtol=1e-14)


@cases
def test_queries_agree(case: Case) -> None:
    operator, values = case.operator(), case.values()
    fine = scaled(case.grid, 3)
    on_fine = operator(values, grid=case.grid, query=fine)
    as_points = operator(values, grid=case.grid, query=Grid.scattered(fine.points, fine.weights))
    torch.testing.assert_close(on_fine.flatten(2), as_points, atol=1e-12, rtol=0)
    nested = (..., *(slice(None, None, 3),) * case.grid.dimension)
    torch.testing.assert_close(on_fine[nested], operator(values, grid=case.grid), atol=1e-12, rtol=0)
    assert torch.equal(operator(values, grid=case.grid, query=case.grid), operator(values, grid=case.grid))


@cases
@pytest.mark.parametrize("finer", ["2 N", "3 N", "odd"])
def test_resolution_is_consistent(case: Case, finer: str) -> None:
    grid = case.resolved
    shape = tuple((3 * size // 2) | 1 for size in grid.shape)
    target = grid.resized(shape) if finer == "odd" else scaled(grid, int(finer[0]))
    operator = case.operator()
    carried = operator(case.values(grid), grid=grid, query=target)
    computed = operator(case.values(target), grid=target)
    error = relative(carried - computed, computed)
    assert error < case.difference


@pytest.mark.parametrize(("periodic", "endpoint", "gain"), [(True, False, 100.0), (False, True, 3.8), (False, False, 1.9)])
def test_error_of_the_resolution_falls_at_the_documented_rate(periodic: bool, endpoint: bool, gain: float) -> None:
    """Four blocks, 64 and 128 points: faster than any power on a periodic axis, second order between ends that are
    points, and first order without the right one, because the mirror then stands half a step beyond the last point.
    """
    operator = FNO(1, 1, modes=(4,), width=4, depth=4, projection=8, periodic=periodic).double()
    errors = []
    for size in (64, 128):
        grid = Grid.uniform(size + endpoint, periodic=periodic, endpoint=endpoint)
        finer = scaled(grid, 2)
        computed = operator(smooth(finer), grid=finer)
        errors.append(relative(operator(smooth(grid), grid=grid, query=finer) - computed, computed))
    assert errors[0] < 0.1
    assert errors[0] / errors[1] > gain


@cases
def test_commutes_with_translations(case: Case) -> None:
    operator, values = case.operator(), case.values()
    axes = tuple(range(2, values.ndim))
    shifts = tuple(range(1, 1 + len(axes)))
    moved = operator(values.roll(shifts, axes), grid=case.grid)
    expected = operator(values, grid=case.grid).roll(shifts, axes)
    if case.equivariant:
        torch.testing.assert_close(moved, expected, atol=1e-14, rtol=1e-13)
    else:
        assert relative(moved - expected, expected) > 1e-3


@cases
@pytest.mark.parametrize("wrt", ["inputs", "parameters"])
def test_gradients(case: Case, wrt: str) -> None:
    operator = case.operator()
    values = case.values(count=1)
    names = [name for name, _ in operator.named_parameters()]
    parameters = tuple(parameter.detach().clone() for parameter in operator.parameters())

    def outputs(values: Tensor, *parameters: Tensor) -> Tensor:
        state = dict(zip(names, parameters, strict=True))
        return functional_call(operator, state, (values,), {"grid": case.grid, "query": points})

    points = scattered(case.grid, 3)
    values.requires_grad_(wrt == "inputs")
    for parameter in parameters:
        parameter.requires_grad_(wrt == "parameters")
    torch.random.manual_seed(0)  # for the random directions of the fast mode
    arguments = (values, *parameters)
    assert torch.autograd.gradcheck(outputs, arguments, fast_mode=True, check_forward_ad=True, check_batched_grad=True)
    if isinstance(operator, FNO):
        assert torch.autograd.gradgradcheck(outputs, arguments, fast_mode=True)


def test_gradients_entry_by_entry() -> None:
    case = CASES[0]
    operator = case.operator()
    values = case.values(count=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda values, *_: operator(values), (values, *operator.parameters()))


@cases
def test_every_parameter_and_input_matters(case: Case) -> None:
    operator = case.operator()
    values = case.values().requires_grad_()
    operator(values, grid=case.grid).square().sum().backward()
    for name, tensor in [("values", values), *operator.named_parameters()]:
        assert tensor.grad is not None, name
        assert float(tensor.grad.abs().max()) > 0.0, name


@cases
def test_vmap_over_parameters(case: Case) -> None:
    operator, values = case.operator(), case.values()
    stack = parameter_stack(operator, 3)

    def outputs(state: dict[str, Tensor]) -> Tensor:
        return functional_call(operator, state, (values,), {"grid": case.grid, "query": scaled(case.grid, 2)})

    expected = torch.stack([outputs({name: value[index] for name, value in stack.items()}) for index in range(3)])
    torch.testing.assert_close(vmap(outputs)(stack), expected, atol=1e-13, rtol=1e-13)


@cases
def test_forward_and_reverse_jacobians_agree(case: Case) -> None:
    operator, values = case.operator(), case.values(count=1)
    parameters = {name: parameter.detach() for name, parameter in operator.named_parameters()}
    points = scattered(case.grid, 3)

    def outputs(state: dict[str, Tensor]) -> Tensor:
        return functional_call(operator, state, (values,), {"grid": case.grid, "query": points})

    tangents = {name: value[0] for name, value in parameter_stack(operator, 1).items()}
    forward = jvp(outputs, (parameters,), (tangents,))[1]
    rows = jacrev(outputs)(parameters)
    reverse = sum(torch.tensordot(rows[name], tangents[name], dims=tangents[name].ndim) for name in parameters)
    torch.testing.assert_close(forward, reverse, atol=1e-12, rtol=1e-12)


@cases
@dtypes
def test_state_is_real_and_follows_to(case: Case, dtype: torch.dtype) -> None:
    operator = case.build().to(dtype)
    assert {tensor.dtype for tensor in operator.state_dict().values()} == {dtype}
    assert operator.float().double()(case.values()).dtype == torch.float64


@cases
def test_copies_are_independent(case: Case) -> None:
    operator, values = case.operator(), case.values()
    before = operator(values)
    twin = copy.deepcopy(operator)
    assert torch.equal(twin(values), before)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(twin(values), before)
    assert torch.equal(operator(values), before)


@cases
@dtypes
def test_files_keep_every_bit(case: Case, dtype: torch.dtype, tmp_path: Path) -> None:
    operator = case.operator(dtype)
    operator.fit_normalizers(pairs(case, dtype))
    save(operator, tmp_path / "operator")
    loaded = load(tmp_path / "operator")
    assert type(loaded) is type(operator)
    assert loaded.configuration() == operator.configuration()
    assert not loaded.training
    assert list(loaded.state_dict()) == list(operator.state_dict())
    for name, tensor in operator.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
        assert loaded.state_dict()[name].dtype == dtype
    values = case.values(dtype=dtype)
    assert torch.equal(loaded(values, grid=case.grid), operator(values, grid=case.grid))


@cases
def test_configuration_rebuilds(case: Case) -> None:
    operator = case.operator()
    twin = type(operator)(**operator.configuration()).double()
    assert twin.configuration() == operator.configuration()
    twin.load_state_dict(operator.state_dict())
    assert torch.equal(twin(case.values()), operator(case.values()))


@cases
def test_a_seed_names_the_initial_weights(case: Case) -> None:
    """They are what `reset_parameters` draws from no other stream; torch's global generator stays where it is."""
    kind, settings = type(case.operator()), case.operator().configuration()
    if kind is LinearRegression:
        pytest.skip("linear regression has no initial weights to draw")
    before = torch.random.get_rng_state()
    first, again, other = (kind(**settings, seed=seed).state_dict() for seed in (3, 3, 2**40))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)
    with pytest.raises(ArgumentError, match="seed"):
        kind(**settings, seed=-1)


def pairs(case: Case, dtype: torch.dtype = torch.float64) -> FieldPairs:
    """Training pairs on the case's grid, in units of their own."""
    channels = case.build().out_channels
    grid = case.grid
    outputs = torch.randn(8, channels, *grid.shape, generator=generator("outputs"), dtype=torch.float64) * 3.0 + 7.0
    inputs = case.values(count=8, name="train") * 0.2 - 4.0
    return FieldPairs(Field(inputs.to(dtype), grid), Field(outputs.to(dtype), grid))


@cases
def test_units_do_not_matter(case: Case) -> None:
    """Inputs or outputs in other units, and the same weights: the same function in those units."""
    train = pairs(case)
    channels = torch.arange(1, 1 + train.outputs.channels, dtype=torch.float64).reshape(1, -1, *(1,) * case.grid.dimension)
    gain, offset = 1e5 * channels, 3e4 / channels
    other = FieldPairs(
        Field(train.inputs.values * 1e-3 + 5.0, case.grid), Field(train.outputs.values * gain + offset, case.grid)
    )

    def predictor(train: FieldPairs, values: Tensor) -> Tensor:
        if isinstance(operator, LinearRegression):
            return LinearRegression.fitted(train, components=3)(values, grid=case.grid)
        operator.fit_normalizers(train)
        return operator(values, grid=case.grid)

    operator = case.operator()
    expected = predictor(train, train.inputs.values) * gain + offset
    torch.testing.assert_close(predictor(other, other.inputs.values), expected, atol=0, rtol=1e-8)


@pytest.mark.parametrize("constant", [0.1, 1.0 / 3.0, 1e6 + 0.7, -2.0, 0.0])
@pytest.mark.parametrize("size", [7, 100])
@dtypes
def test_constant_channels_keep_scale_one(constant: float, size: int, dtype: torch.dtype) -> None:
    normalizer = ChannelNormalizer(2).to(dtype)
    values = torch.randn(37, 2, size, generator=generator("varying"), dtype=torch.float64)
    values[:, 0] = constant
    normalizer.fit(Field(values.to(dtype), Grid.uniform(size, periodic=False)))
    assert normalizer.scale[0] == 1.0
    assert normalizer.mean[0] == torch.tensor(constant, dtype=dtype)
    assert 0.5 < normalizer.scale[1] < 1.5


COMPILED = ("FNO-1-D", "FNO-1-D-ends-embedded", "DeepONet-1-D", "POD-DeepONet-1-D")


# Marked so because the runtime checks, which that run leaves out, have graph breaks of their own.
@pytest.mark.bad_input
@pytest.mark.parametrize(
    "case", one_of_each([case for case in CASES if case.name in COMPILED], type), ids=lambda case: case.name
)
@pytest.mark.parametrize("queried", [False, True], ids=["inputs' grid", "query"])
def test_compiles_as_one_graph(case: Case, queried: bool) -> None:
    operator, values = case.operator(), case.values()
    query = scaled(case.grid, 2) if queried else None
    torch.compiler.reset()
    compiled = torch.compile(operator, backend="aot_eager", fullgraph=True)
    out = compiled(values, grid=case.grid, query=query)
    torch.testing.assert_close(out, operator(values, grid=case.grid, query=query), atol=1e-12, rtol=1e-12)
    out.sum().backward()
    assert all(parameter.grad is not None for parameter in operator.parameters())


@pytest.mark.bad_input
@cases
def test_refuses_other_shapes_and_grids(case: Case) -> None:
    operator, values = case.operator(), case.values()
    with pytest.raises(ShapeError, match=f"expected values of shape \\(n, {operator.in_channels}, points"):
        operator(values[0])
    with pytest.raises(ShapeError, match=f"\\(n, {operator.in_channels}, "):
        operator(torch.cat([values, values], dim=1))
    if not case.takes_points:
        with pytest.raises((GridError, ShapeError)):
            operator(torch.zeros(1, operator.in_channels, 6, dtype=torch.float64), grid=scattered(case.grid))
    with pytest.raises((GridError, ShapeError)):
        operator(values, grid=scaled(case.grid, 2))
    longer = tuple(2.0 * length for length in case.grid.lengths)
    elsewhere = Grid.uniform(case.grid.shape, lengths=longer, periodic=case.grid.periodic)
    with pytest.raises(GridError, match="domain"):
        operator(values, grid=case.grid, query=elsewhere)


@pytest.mark.bad_input
@cases
def test_refuses_other_dtypes_and_empty_batches(case: Case) -> None:
    operator, values = case.operator(), case.values()
    other = torch.float32 if values.dtype == torch.float64 else torch.float64
    with pytest.raises(DataError, match="operator's torch.float"):
        operator(values.to(other))
    with pytest.raises(ShapeError, match="at least one sample"):
        operator(values[:0])


@pytest.mark.bad_input
def test_fno_refuses_grids_of_another_kind() -> None:
    operator = FNO(1, 1, modes=(3,), width=2, depth=1)
    with pytest.raises(GridError, match=r"periodic=\(True,\)"):
        operator(torch.zeros(1, 1, 8), grid=Grid.uniform(8, periodic=False))
    with pytest.raises(ResolutionError, match="5 or more points along axis 0 for 3 modes"):
        operator(torch.zeros(1, 1, 4))
    assert operator(torch.zeros(1, 1, 5)).shape == (1, 1, 5)


@pytest.mark.bad_input
def test_normalizers_refuse_other_channels() -> None:
    case = CASES[0]
    with pytest.raises(ValueError, match="expected 2 channels of fields; got 1"):
        FNO(2, 1, modes=(2,)).fit_normalizers(pairs(case))


def test_reset_draws_weights_and_keeps_units() -> None:
    case = CASES[0]
    operator = case.operator()
    operator.fit_normalizers(pairs(case))
    before = copy.deepcopy(operator.state_dict())
    torch.manual_seed(5)
    assert isinstance(operator, FNO)
    operator.reset_parameters()
    for name, tensor in operator.state_dict().items():
        assert torch.equal(tensor, before[name]) == ("normalizer" in name), name
    torch.manual_seed(5)
    operator.reset_parameters()
    after = copy.deepcopy(operator.state_dict())
    torch.manual_seed(5)
    operator.reset_parameters()
    assert all(torch.equal(operator.state_dict()[name], tensor) for name, tensor in after.items())
