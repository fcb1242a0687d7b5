"""Heads on CUDA: the same posterior as on the CPU, from data that lie anywhere."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.heads.cases import ALL_HEADS, HEADS, OPERATORS, fitted, operator_case
from tests.heads.test_rollouts import check


@pytest.mark.gpu
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("data_device", ["cpu", "cuda"])
def test_agrees_with_the_cpu(head: str, operator: str, data_device: str) -> None:
    case = operator_case(operator)
    predictor = HEADS[head].fit(copy.deepcopy(case.operator).cuda(), case.data.to(data_device))
    field, expected = predictor(case.inputs.to(data_device)), fitted(head, operator)(case.inputs)
    assert predictor.device.type == field.mean.device.type == field.variance.device.type == "cuda"
    torch.testing.assert_close(field.mean.cpu(), expected.mean, rtol=1e-8, atol=1e-10 * float(expected.mean.abs().max()))
    torch.testing.assert_close(field.variance.cpu(), expected.variance, rtol=1e-5, atol=0)
    assert predictor.log_evidence == pytest.approx(fitted(head, operator).log_evidence, rel=1e-7)
    assert predictor.draw(1)(case.inputs.values.cuda()).device.type == "cuda"


@pytest.mark.gpu
@pytest.mark.parametrize("head", ALL_HEADS)
@pytest.mark.parametrize("draws", ["trajectory", "step"])
def test_rolls_out(head: str, draws: str) -> None:
    case = operator_case("fno-1d")
    predictor = ALL_HEADS[head].fit(copy.deepcopy(case.operator).cuda(), case.data)
    check(predictor, case.inputs.to("cuda"), draws)
