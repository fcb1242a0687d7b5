"""The error function beside SciPy's, and what rests on it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import erfc

from probneural.export.programs import complementary_error_function, decompositions

VALUES = torch.linspace(-7.0, 7.0, 1401, dtype=torch.float64)


def test_relative_error_is_rounding() -> None:
    found = complementary_error_function(VALUES).numpy()
    np.testing.assert_allclose(found, erfc(VALUES.numpy()), rtol=1e-14, atol=0.0)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate: str) -> None:
    found = decompositions()[torch.ops.aten.gelu.default](VALUES, approximate=approximate)
    torch.testing.assert_close(found, torch.nn.functional.gelu(VALUES, approximate=approximate), rtol=0.0, atol=2e-15)


def test_others() -> None:
    table = decompositions()
    torch.testing.assert_close(table[torch.ops.aten.erf.default](VALUES), torch.erf(VALUES), rtol=0.0, atol=1e-15)
    torch.testing.assert_close(table[torch.ops.aten.erfc.default](VALUES), torch.erfc(VALUES), rtol=1e-14, atol=0.0)
