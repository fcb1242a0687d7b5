from __future__ import annotations

import pytest
import torch

from probneural.errors import ArgumentError
from probneural.operators import FNO
from probneural.training.devices import resolve_device


def operator() -> FNO:
    return FNO(1, 1, modes=(2,), width=2, depth=1, projection=2)


def test_none_is_the_operators_own_and_auto_is_some() -> None:
    assert resolve_device(None, operator()) == torch.device("cpu")
    assert resolve_device(None, torch.nn.Identity()) == torch.device("cpu")
    assert resolve_device("cpu", operator()) == torch.device("cpu")
    assert resolve_device("auto", operator()).type in ("cuda", "mps", "cpu")


@pytest.mark.bad_input
@pytest.mark.parametrize("device", ["toaster", "cuda:99", 1.5])
def test_devices_that_are_not_here(device: object) -> None:
    with pytest.raises(ArgumentError, match="a device of this machine"):
        resolve_device(device, operator())  # type: ignore[arg-type]
