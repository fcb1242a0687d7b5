"""The error function in double precision from operations that every ONNX runtime has in double precision; `Erf` is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

_DEGREE = 24
"""Of the Chebyshev series; more terms change nothing in double precision."""


def complementary_error_function(values: Tensor) -> Tensor:
    """Evaluate erfc to a relative error of some 1e-15, by elementary operations.

    For z >= 0 and t = 2 / (2 + z), log(erfc(z) exp(z^2) / t) is a smooth function of t on (0, 1], and so a Chebyshev series of
    few terms; erfc(-z) = 2 - erfc(z).

    Examples:
        >>> x = torch.linspace(-6.0, 6.0, 101, dtype=torch.float64)
        >>> bool((complementary_error_function(x) / torch.special.erfc(x) - 1.0).abs().max() < 1e-14)
        True
    """
    size = values.abs()
    t = 2.0 / (2.0 + size)
    twice = 4.0 * t - 2.0  # 2 y, where y in [-1, 1] stands for t in [0, 1]
    coefficients = _coefficients()
    later, latest = torch.zeros_like(t), torch.zeros_like(t)
    for coefficient in reversed(coefficients[1:]):  # Clenshaw's recurrence
        later, latest = latest, twice * latest - later + coefficient
    logarithm = 0.5 * twice * latest - later + coefficients[0]
    tail = t * torch.exp(logarithm - size * size)
    return torch.where(values < 0.0, 2.0 - tail, tail)


@lru_cache
def _coefficients() -> tuple[float, ...]:
    from numpy.polynomial import chebyshev
    from scipy.special import erfcx  # takes a third of a second to import

    def logarithm(y: Any) -> Any:
        t = (y + 1.0) / 2.0
        return np.log(erfcx(2.0 / t - 2.0) / t)

    return tuple(chebyshev.chebinterpolate(logarithm, _DEGREE).tolist())


def decompositions() -> dict[torch._ops.OperatorBase, Callable[..., Tensor]]:
    """The operations of PyTorch that rest on the error function, in terms of elementary ones."""
    return {
        torch.ops.aten.gelu.default: _gelu,
        torch.ops.aten.erf.default: lambda values: 1.0 - complementary_error_function(values),
        torch.ops.aten.erfc.default: complementary_error_function,
    }


def _gelu(values: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (values + 0.044715 * values * values * values)
        return 0.5 * values * (1.0 + torch.tanh(inner))
    return 0.5 * values * complementary_error_function(-values / math.sqrt(2.0))
