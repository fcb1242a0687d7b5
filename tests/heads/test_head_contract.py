"""What every head promises, checked on every operator: see the lists in tests/heads/cases.py."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from probneural.calibration import Novelty
from probneural.distributions import GaussianField
from probneural.errors import DataError, ShapeError
from probneural.fields import Field, evaluate
from probneural.functionals import integral
from probneural.grids import Grid
from probneural.heads.last_layer import laplace as last_layer
from probneural.pairs import FieldPairs
from tests.heads.cases import (
    ALL_HEADS,
    ALL_PAIRS,
    EVIDENCE_PAIRS,
    FRESH_DRAWS,
    HEADS,
    PAIRS,
    OperatorCase,
    fields,
    fitted,
    operator_case,
    operators_of,
    parameters,
    to_dtype,
)
from tests.helpers import cross_covariance

# four draws are for contracts only
pytestmark = pytest.mark.filterwarnings("ignore:the variational posterior has not converged")

PAIR = pytest.mark.parametrize(("head", "operator"), parameters(PAIRS))
EVIDENCE_PAIR = pytest.mark.parametrize(("head", "operator"), parameters(EVIDENCE_PAIRS))
ANY_PAIR = pytest.mark.parametrize(("head", "operator"), parameters(ALL_PAIRS))
HEAD = pytest.mark.parametrize("head", HEADS)
ANY_HEAD = pytest.mark.parametrize("head", ALL_HEADS)


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Agreement relative to the largest entry."""
    assert actual.shape == expected.shape
    assert float((actual - expected).abs().max()) <= tolerance * float(expected.abs().max())


def own_output(case: OperatorCase, inputs: Field, query: Grid | None = None) -> Tensor:
    with torch.no_grad():
        return evaluate(copy.deepcopy(case.operator).eval(), inputs, query)


def finer(grid: Grid) -> Grid:
    """The grid that has one more point between any two."""
    return grid.resized([2 * size - int(end) for size, end in zip(grid.shape, grid.endpoint, strict=True)])


def coarse_part(values: Tensor, grid: Grid) -> Tensor:
    """The values at the points that the finer grid shares."""
    return values[(..., *(slice(None, None, 2) for _ in grid.shape))]


@PAIR
def test_mean_is_the_operators_own_output_and_variance_positive(head: str, operator: str) -> None:
    case, predictor = operator_case(operator), fitted(head, operator)
    field = predictor(case.inputs)
    assert isinstance(field, GaussianField)
    assert field.grid == case.inputs.grid
    torch.testing.assert_close(field.mean, own_output(case, case.inputs), rtol=1e-13, atol=0)
    assert bool((field.variance > 0).all())
    assert predictor.noise.shape == (predictor.out_channels,)
    assert bool((predictor.noise > 0).all())
    diagonal = torch.linalg.diagonal(field.covariance.to_dense()).reshape(field.variance.shape)
    torch.testing.assert_close(field.variance, diagonal, rtol=1e-9, atol=0)


@ANY_PAIR
def test_neither_operator_nor_data_changes(head: str, operator: str) -> None:
    case = operator_case(operator)
    module = copy.deepcopy(case.operator)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(module.parameters()).requires_grad_(False)
    inputs = case.data.inputs.values.clone().requires_grad_()
    data = FieldPairs(Field(inputs, case.data.inputs.grid), case.data.outputs)
    before = copy.deepcopy(module)
    values = [data.inputs.values.detach().clone(), data.outputs.values.clone()]
    state = torch.get_rng_state()
    predictor = ALL_HEADS[head].fit(module, data)
    predictor(case.inputs).rsample((2,))
    predictor.draw(3)(case.inputs.values)
    assert torch.equal(torch.get_rng_state(), state)
    assert inputs.grad is None
    assert not predictor(case.inputs).variance.requires_grad  # nothing of the training data's graph is kept
    assert torch.equal(values[0], inputs.detach())
    assert torch.equal(values[1], data.outputs.values)
    for left, right in zip(module.state_dict().values(), before.state_dict().values(), strict=True):
        assert torch.equal(left, right)
    for left, right in zip(module.parameters(), before.parameters(), strict=True):
        assert left.requires_grad == right.requires_grad
        assert torch.equal(left.grad, torch.ones_like(left))
    for left, right in zip(module.modules(), before.modules(), strict=True):
        assert left.training == right.training
        for hooks in (left._forward_hooks, left._forward_pre_hooks, left._backward_hooks):
            assert not hooks


@ANY_PAIR
def test_later_training_does_not_reach_the_predictor(head: str, operator: str) -> None:
    case = operator_case(operator)
    module = copy.deepcopy(case.operator)
    predictor = ALL_HEADS[head].fit(module, case.data)
    expected = predictor(case.inputs)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(2.0)
    again = predictor(case.inputs)
    assert torch.equal(again.mean, expected.mean)
    assert torch.equal(again.variance, expected.variance)


@PAIR
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_is_the_operators(head: str, operator: str, dtype: torch.dtype) -> None:
    case = operator_case(operator)
    module = to_dtype(copy.deepcopy(case.operator), dtype)
    other = torch.float64 if dtype == torch.float32 else torch.float32
    predictor = HEADS[head].fit(module, case.data.to(other))
    field = predictor(case.inputs.to(other))
    assert predictor.dtype == field.mean.dtype == field.variance.dtype == field.rsample().dtype == dtype
    assert predictor.noise.dtype == torch.float64
    reference = fitted(head, operator)(case.inputs)
    close(field.variance.double(), reference.variance, 2e-2)


@PAIR
def test_predictions_on_other_grids_are_the_same_functions(head: str, operator: str) -> None:
    case, predictor = operator_case(operator), fitted(head, operator)
    grid = case.inputs.grid
    here, fine = predictor(case.inputs), predictor(case.inputs, finer(grid))
    part = Grid.scattered(grid.points[1::2], torch.ones(len(grid.points[1::2])))
    scattered = predictor(case.inputs, part)
    torch.testing.assert_close(fine.mean, own_output(case, case.inputs, finer(grid)), rtol=1e-10, atol=1e-12)
    assert here.latent.id == fine.latent.id == scattered.latent.id
    for get in (lambda field: field.mean, lambda field: field.variance, lambda field: field.rsample((2,), seed=5)):
        close(coarse_part(get(fine), grid), get(here))
        close(get(scattered), get(here).flatten(-grid.dimension)[..., 1::2])
    # the joint covariance across resolutions, at shared points, is the covariance at one
    shape = (*here.mean.shape, *fine.mean.shape)
    across = coarse_part(cross_covariance(here, fine).reshape(shape), grid)
    close(across.reshape(2 * [here.mean.numel()]), cross_covariance(here, here))


@pytest.mark.parametrize(
    ("head", "operator"), [pair for pair in PAIRS if pair[1] in ("fno-1d", "fno-outputs", "fno-2d", "complex")]
)
def test_inputs_at_another_resolution_are_the_same_functions(head: str, operator: str) -> None:
    """Of a module that is the same operator on every grid; the nonlinearity aliases a little."""
    case, predictor = operator_case(operator), fitted(head, operator)
    grid = case.inputs.grid
    refined = fields(finer(grid), 2, case.inputs.channels, seed=99)
    here, there = predictor(case.inputs), predictor(refined)
    assert here.latent.id == there.latent.id
    close(coarse_part(there.standard_deviation, grid), here.standard_deviation, 0.1)
    close(coarse_part(there.rsample(seed=1), grid), here.rsample(seed=1), 0.1)
    close(predictor.draw(1)(refined.values), there.rsample(seed=1), 1e-8)  # Jacobian products against a formed root


@ANY_PAIR
def test_a_draw_is_an_operator(head: str, operator: str) -> None:
    case, predictor = operator_case(operator), fitted(head, operator)
    draw, inputs = predictor.draw(11), case.inputs
    expected = predictor(inputs).draw([11])[0]
    assert torch.equal(evaluate(draw, inputs), expected)
    if head not in FRESH_DRAWS:
        close(expected, predictor(inputs).rsample(seed=11), 1e-8)
    assert torch.equal(evaluate(draw, inputs), evaluate(predictor.draw(11), inputs))
    close(evaluate(draw, inputs[1:]), expected[1:])  # the same function of each input, alone or in company
    others = predictor(inputs).draw(range(12, 30))  # of an ensemble, some are the same member
    assert not torch.allclose(others, expected.expand_as(others))
    query = finer(inputs.grid)
    close(coarse_part(evaluate(draw, inputs, query), inputs.grid), expected)


@ANY_PAIR
def test_gradient_in_the_inputs(head: str, operator: str) -> None:
    case, predictor = operator_case(operator), fitted(head, operator)
    grid, query = case.inputs.grid, finer(case.inputs.grid)
    probe = integral(query)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(case.inputs.values.shape, generator=generator, dtype=torch.float64)
    scale = predictor(case.inputs).standard_deviation.mean((0, *range(2, 2 + grid.dimension))).detach()

    def value(values: Tensor) -> Tensor:
        field = predictor(Field(values, grid), query)
        shape = (-1, *(1,) * grid.dimension)
        total = (field.mean / scale.reshape(shape)).sin().sum() + (field.rsample(seed=1) / scale.reshape(shape)).cos().sum()
        return total + (field.variance / scale.reshape(shape).square()).sum() + field.apply(probe).variance.sum()

    values = case.inputs.values.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(value(values), values)
    errors = []
    for step in (1e-3, 1e-4, 1e-5, 1e-6):
        with torch.no_grad():
            plus, minus = value(values + step * direction), value(values - step * direction)
        errors.append(abs(float((plus - minus) / (2 * step) - (gradient * direction).sum())))
    assert min(errors) <= 1e-4 * float((gradient * direction).abs().sum())


@PAIR
def test_latent_follows_from_operator_and_data(head: str, operator: str) -> None:
    case = operator_case(operator)
    again = HEADS[head].fit(copy.deepcopy(case.operator), case.data)
    assert again.latent.id == fitted(head, operator).latent.id
    assert HEADS[head].fit(case.operator, case.data[:4]).latent.id != again.latent.id
    field = fitted(head, operator)(case.inputs)
    assert cross_covariance(field, again(case.inputs)).shape == (field.mean.numel(), field.mean.numel())


@PAIR
def test_a_copy_predicts_the_same(head: str, operator: str) -> None:
    case, predictor = operator_case(operator), fitted(head, operator)
    field, again = predictor(case.inputs), copy.deepcopy(predictor)(case.inputs)
    assert again.latent.id == field.latent.id
    assert torch.equal(again.mean, field.mean)
    assert torch.equal(again.variance, field.variance)


@EVIDENCE_PAIR
def test_one_pair_is_enough(head: str, operator: str) -> None:
    case = operator_case(operator)
    predictor = HEADS[head].fit(case.operator, case.data[:1])
    assert bool((predictor(case.inputs).variance > 0).all())
    expected = 1.0 if HEADS[head].effective_observations is None else HEADS[head].effective_observations
    assert predictor.effective_observations.tolist() == [expected] * predictor.out_channels


@EVIDENCE_PAIR
def test_small_batches_change_nothing(head: str, operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case, expected = operator_case(operator), fitted(head, operator)
    monkeypatch.setattr(last_layer, "_BATCH_ELEMENTS", 1)
    predictor = HEADS[head].fit(case.operator, case.data)
    assert predictor.log_evidence == pytest.approx(expected.log_evidence, rel=1e-9)
    close(predictor.noise, expected.noise, 1e-6)
    close(predictor(case.inputs).mean, expected(case.inputs).mean)
    close(predictor(case.inputs).variance, expected(case.inputs).variance, 1e-6)


@ANY_PAIR
def test_prediction_without_gradients(head: str, operator: str) -> None:
    case, predictor = operator_case(operator), fitted(head, operator)
    with torch.no_grad():
        plain = predictor(case.inputs)
    with torch.inference_mode():
        inferred = predictor(case.inputs)
    assert torch.equal(plain.variance, predictor(case.inputs).variance)
    assert torch.equal(inferred.variance, plain.variance)


@HEAD
def test_outputs_may_live_on_another_grid(head: str) -> None:
    case = operator_case("fno-1d")
    query = finer(case.data.inputs.grid)
    with torch.no_grad():
        values = evaluate(case.operator, case.data.inputs, query) + 0.1 * fields(query, 6, 1, seed=7).values
    predictor = HEADS[head].fit(case.operator, FieldPairs(case.data.inputs, Field(values, query)))
    assert predictor.domain == case.data.inputs.grid
    # smooth features and residuals: quadrature on either grid, hence the posterior, is nearly the same
    close(predictor(case.inputs).variance, fitted(head, "fno-1d")(case.inputs).variance, 0.05)


@ANY_HEAD
@pytest.mark.bad_input
def test_bad_data(head: str) -> None:
    name = operators_of(head)[0]
    case = operator_case(name)
    with pytest.raises(DataError, match="FieldPairs"):
        ALL_HEADS[head].fit(case.operator, case.data.inputs)
    with pytest.raises(DataError, match="1 or more training pairs"):
        ALL_HEADS[head].fit(case.operator, case.data[:0])
    broken = case.data.outputs.values.clone()
    broken[2, 0, 3] = torch.nan
    with pytest.raises(DataError, match=r"training outputs.*\(2, 0, 3\)"):
        ALL_HEADS[head].fit(case.operator, FieldPairs(case.data.inputs, Field(broken, case.data.outputs.grid)))
    with pytest.raises(DataError, match="training inputs"):
        ALL_HEADS[head].fit(case.operator, FieldPairs(Field(broken, case.data.outputs.grid), case.data.outputs))
    with pytest.raises(DataError, match="at least one input"):
        fitted(head, name)(case.inputs[:0])
    two = Field(case.data.outputs.values.expand(-1, 2, -1), case.data.outputs.grid)
    with pytest.raises(ShapeError, match="check its channels"):
        ALL_HEADS[head].fit(case.operator, FieldPairs(case.data.inputs, two))


@pytest.mark.parametrize(("head", "operator"), list(dict(ALL_PAIRS).items()))  # one operator each
def test_novelty_of_inputs(head: str, operator: str) -> None:
    """Inputs far larger than those of calibration have the least p-value there is."""
    case, predictor = operator_case(operator), fitted(head, operator)
    calibration, fresh = (fields(case.inputs.grid, 24, case.inputs.channels, seed=seed) for seed in (31, 32))
    u = predictor(calibration)
    detector = Novelty().fit(predictor, FieldPairs(calibration, Field(u.mean, u.grid)))
    p_values = detector(Field(torch.cat([fresh.values[:3], 50.0 * fresh.values[3:5]]), fresh.grid))
    assert p_values[3:].tolist() == [1 / 13] * 2
    assert float(p_values[:3].amax()) > 1 / 13
