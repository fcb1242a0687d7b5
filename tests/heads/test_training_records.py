"""Predictors of heads know the pairs that trained them; heads warn of operators that were not trained on their data."""

from __future__ import annotations

import copy
import functools

import pytest
import torch

import probneural as pn
from probneural.errors import DataWarning
from probneural.heads import DeepEnsemble, KernelOperator, LastLayerLaplace
from probneural.pairs import FieldPairs
from probneural.pairs.provenance import row_keys
from tests.heads.cases import ALL_HEADS, fields, fitted, operator_case, operators_of
from tests.helpers import accelerator, held_out

pytestmark = pytest.mark.filterwarnings("ignore:the variational posterior has not converged")

GRID = pn.Grid.uniform((16,))


def keys(*sets: FieldPairs) -> torch.Tensor:
    return torch.cat([row_keys(data) for data in sets]).flatten().unique()


def data(seed: int, n: int = 12) -> FieldPairs:
    inputs = fields(GRID, n, 1, seed=seed)
    return FieldPairs(inputs, pn.Field(2.0 * inputs.values, GRID)).to(torch.float32)


def operator(*, seed: int = 0) -> pn.operators.FNO:
    return pn.operators.FNO(1, 1, modes=(3,), width=4, depth=1, seed=seed)


def trained(*sets: FieldPairs) -> pn.operators.FNO:
    one = operator()
    for pairs in sets:
        pn.fit(one, pairs, epochs=1, data=pn.training.DataOptions(validation=0.0), show_progress=False)
    return one


@pytest.mark.parametrize("head", ALL_HEADS)
def test_predictors_of_all_heads_know_their_training_pairs(head: str) -> None:
    case = operator_case(operators_of(head)[0])
    predictor = fitted(head, case.name)
    assert predictor.trained_on is not None
    assert torch.equal(predictor.trained_on.row_keys, keys(case.data))


@pytest.mark.parametrize("head", [LastLayerLaplace(), pn.heads.Laplace("full")])
def test_updates_add_pairs(head: LastLayerLaplace) -> None:
    first, second = data(0), data(1)
    predictor = head.fit(trained(first), first).update(second)
    assert predictor.trained_on is not None
    assert torch.equal(predictor.trained_on.row_keys, keys(first, second))
    assert predictor.noise.shape == (1,)


def test_pairs_that_trained_the_operator_count_too() -> None:
    first, second = data(0), data(1)
    both = FieldPairs.cat([first[:3], second])
    predictor = LastLayerLaplace().fit(trained(first), both)
    assert predictor.trained_on is not None
    assert torch.equal(predictor.trained_on.row_keys, keys(first, second))
    sampled = pn.heads.Laplace("diagonal").fit(trained(first), first).sampled(3, seed=0)
    assert sampled.trained_on is not None
    assert torch.equal(sampled.trained_on.row_keys, keys(first))


def test_heads_warn_of_operators_that_were_never_trained() -> None:
    pairs, one = data(0), operator()
    with pytest.warns(DataWarning, match=r"never trained.*pn\.fit\(operator, train\)"):
        LastLayerLaplace().fit(one, pairs)
    one.fit_normalizers(pairs)  # as a training loop of the user's does
    LastLayerLaplace().fit(one, pairs)
    LastLayerLaplace(readout="2").fit(
        torch.nn.Sequential(torch.nn.Conv1d(1, 3, 1), torch.nn.Tanh(), torch.nn.Conv1d(3, 1, 1)), pairs
    )
    train = functools.partial(pn.fit, epochs=1, show_progress=False)
    DeepEnsemble(2, train=train, show_progress=False).fit(operator(), pairs)  # which trains them
    KernelOperator().fit(None, pairs)


def test_heads_warn_of_operators_that_were_trained_on_other_pairs() -> None:
    first, second = data(0), data(1)
    one = trained(first)
    with pytest.warns(DataWarning, match="trained on other pairs than the 12"):
        LastLayerLaplace().fit(one, second)
    LastLayerLaplace().fit(one, FieldPairs.cat([second, first[:1]]))
    LastLayerLaplace().fit(trained(first, second), second)
    LastLayerLaplace().fit(one, first.to(torch.float64))


@pytest.mark.parametrize("head", ALL_HEADS)
def test_a_moved_predictor_predicts_the_same(head: str) -> None:
    case = operator_case(operators_of(head)[0])
    predictor = fitted(head, case.name)
    moved = predictor.to("cpu")
    assert moved is not predictor
    assert type(moved) is type(predictor)
    assert moved.trained_on is not None
    assert torch.equal(moved.trained_on.row_keys, predictor.trained_on.row_keys)
    assert torch.equal(moved.calibrated_on, predictor.calibrated_on)
    u, v = predictor(case.inputs), moved(case.inputs)
    assert torch.equal(u.mean, v.mean)
    assert torch.equal(u.variance, v.variance)
    assert torch.equal(predictor.draw(3)(case.inputs.values), moved.draw(3)(case.inputs.values))


def test_moved_predictors_share_no_memory() -> None:
    pairs = data(0)
    predictor = LastLayerLaplace().fit(trained(pairs), pairs)
    moved = predictor.to("cpu")
    before = predictor(pairs.inputs).mean
    with torch.no_grad():
        for parameter in moved.readout.operator.parameters():  # type: ignore[attr-defined]
            parameter.zero_()
    assert torch.equal(predictor(pairs.inputs).mean, before)


@pytest.mark.gpu
@pytest.mark.parametrize("head", ["last-layer", "full", "deep-ensemble", "residual-process", "mixture", "calibrated-scale"])
def test_predictors_move_to_a_gpu_and_back(head: str) -> None:
    case = operator_case(operators_of(head)[0])
    predictor = fitted(head, case.name)
    moved = predictor.to(accelerator())
    u, v = predictor(case.inputs), moved(case.inputs)
    assert moved.device.type == v.mean.device.type == accelerator()
    torch.testing.assert_close(v.mean.cpu(), u.mean, rtol=1e-8, atol=1e-10 * float(u.mean.abs().max()))
    torch.testing.assert_close(v.variance.cpu(), u.variance, rtol=1e-5, atol=0)
    pn.calibration.VarianceScale().fit(moved, held_out(case.data))
    back = moved.to("cpu")
    assert torch.equal(back(case.inputs).variance, copy.deepcopy(predictor)(case.inputs).variance)


@pytest.mark.parametrize("steps", [[1.0] * 5, [31.0, 29.0, 31.0, 30.0, 31.0]])
def test_heads_warn_of_operators_that_were_trained_on_other_windows(steps: list[float]) -> None:
    values = fields(GRID, 12, 1, seed=0).values.float().reshape(2, 6, 1, 16)
    times = torch.tensor([0.0, *steps]).double().cumsum(0)
    trajectories = pn.data.Trajectories.from_array(values, times=times, periodic=True)
    one, two = trajectories.windows(), trajectories.windows(lead=2)
    with pytest.warns(
        DataWarning, match="windows of history=1 and lead=1, and the head is fitted on windows of history=1 and lead=2"
    ):
        LastLayerLaplace().fit(trained(one), two)
    LastLayerLaplace().fit(trained(one), one)
    LastLayerLaplace().fit(trained(one, two), two)
    LastLayerLaplace().fit(trained(FieldPairs(two[:].inputs, two[:].outputs)), two)  # without times
