"""Heads on CUDA: the same posterior as on the CPU, from data that lie anywhere."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.heads.cases import ALL_HEADS, HEADS, OPERATORS, fitted, operator_case, operators_of, parameters
from tests.heads.test_rollouts import check
from tests.helpers import accelerator

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:the variational posterior has not converged"),
]


@pytest.mark.parametrize(("head", "operator"), parameters([(head, operator) for head in HEADS for operator in OPERATORS]))
@pytest.mark.parametrize("data_device", ["cpu", "accelerator"])
def test_agrees_with_the_cpu(head: str, operator: str, data_device: str) -> None:
    case, device = operator_case(operator), accelerator()
    data_device = data_device.replace("accelerator", device)
    predictor = HEADS[head].fit(copy.deepcopy(case.operator).to(device), case.data.to(data_device))
    field, expected = predictor(case.inputs.to(data_device)), fitted(head, operator)(case.inputs)
    assert predictor.device.type == field.mean.device.type == field.variance.device.type == device
    torch.testing.assert_close(field.mean.cpu(), expected.mean, rtol=1e-8, atol=1e-10 * float(expected.mean.abs().max()))
    torch.testing.assert_close(field.variance.cpu(), expected.variance, rtol=1e-5, atol=0)
    drawn, expected_draws = field.rsample((2,), seed=1), expected.rsample((2,), seed=1)
    torch.testing.assert_close(drawn.cpu(), expected_draws, rtol=0, atol=1e-5 * float(expected_draws.abs().max()))
    drawn, expected_draws = predictor.draw(1)(case.inputs.values.to(device)), fitted(head, operator).draw(1)(case.inputs.values)
    assert drawn.device.type == device
    torch.testing.assert_close(drawn.cpu(), expected_draws, rtol=0, atol=1e-5 * float(expected_draws.abs().max()))
    evidence, error = fitted(head, operator).log_evidence, getattr(fitted(head, operator), "log_evidence_error", 0.0)
    assert predictor.log_evidence == pytest.approx(evidence, rel=1e-7, abs=5.0 * error)  # some heads estimate it


@pytest.mark.parametrize("head", ALL_HEADS)
@pytest.mark.parametrize("draws", ["trajectory", pytest.param("step", marks=pytest.mark.slow)])
def test_rolls_out(head: str, draws: str) -> None:
    case = operator_case(operators_of(head)[0])
    predictor = ALL_HEADS[head].fit(copy.deepcopy(case.operator).to(accelerator()), case.data)
    check(predictor, case.inputs.to(accelerator()), draws)
