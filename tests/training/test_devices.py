from __future__ import annotations

import pytest
import torch

from probneural.checks import check_device
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO
from probneural.problems import Burgers
from probneural.training.options import resolve_device


def operator() -> FNO:
    return FNO(1, 1, modes=(2,), width=2, depth=1, projection=2)


def test_none_is_the_operators_own() -> None:
    assert resolve_device(None, operator()) == torch.device("cpu")
    assert resolve_device(None, torch.nn.Identity()) == torch.device("cpu")
    assert resolve_device("cpu", operator()) == torch.device("cpu")


@pytest.mark.parametrize(
    ("cuda", "mps", "expected"), [(True, True, "cuda"), (True, False, "cuda"), (False, True, "mps"), (False, False, "cpu")]
)
def test_auto_is_cuda_before_mps_before_cpu(cuda: bool, mps: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert resolve_device("auto", operator()) == torch.device(expected)
    assert check_device("auto", is_double=True) == torch.device(expected if expected == "cuda" else "cpu")


@pytest.mark.bad_input
def test_exact_solutions_need_double_precision() -> None:
    problem = Burgers()
    for call in (problem.sample, problem.sample_inputs):
        with pytest.raises(ArgumentError, match="float64"):
            call(2, resolution=64, seed=0, device="mps")


@pytest.mark.bad_input
def test_fields_in_double_precision_stay_off_mps(monkeypatch: pytest.MonkeyPatch) -> None:
    field = Field(torch.zeros(1, 1, 4, dtype=torch.float64), Grid.uniform((4,)))
    with pytest.raises(ArgumentError, match="float64"):
        field.to("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert field.to("auto").device == torch.device("cpu")
