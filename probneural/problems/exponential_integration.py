"""Exponential time differencing of fourth order, for equations with a stiff diagonal linear part."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from probneural.checks import check_floating

_TERMS = 18
"""Terms of a Taylor series that reach rounding at |z| = 1."""


class ExponentialRungeKutta:
    """The fourth-order method ETDRK4 for dv/dt = λ v + F(v), with λ diagonal and real, and steps of one length.

    The linear part may be stiff: it does not limit the step, and its error does not grow with |λ|. It is differentiable in v,
    in λ and in what F holds.

    Args:
        symbol: The symbol λ, broadcastable to v.
        step: Length of a step h.

    Reference:
        Cox and Matthews (2002), Exponential time differencing for stiff systems, equations 26 to 29. The coefficients are
        written with the functions φ of Hochbruck and Ostermann (2010), Exponential integrators, section 2.1, in place of the
        contour integrals of Kassam and Trefethen (2005).
    """

    def __init__(self, symbol: Tensor, step: float) -> None:
        whole, half = step * symbol, 0.5 * step * symbol
        first, second, third = phi_functions(whole)
        self._whole, self._half = whole.exp(), half.exp()
        self._stage = 0.5 * step * phi_functions(half)[0]
        self._start = step * (first - 3.0 * second + 4.0 * third)
        self._middle = step * (2.0 * second - 4.0 * third)
        self._end = step * (4.0 * third - second)

    def advance(self, state: Tensor, rate: Callable[[Tensor], Tensor]) -> Tensor:
        """The state one step later; `rate` is F, which is evaluated four times."""
        start = rate(state)
        coasting = self._half * state
        middle = coasting + self._stage * start
        first = rate(middle)
        second = rate(coasting + self._stage * first)
        end = rate(self._half * middle + self._stage * (2.0 * second - start))
        return self._whole * state + self._start * start + self._middle * (first + second) + self._end * end


def phi_functions(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """φ₁(z) = (e^z − 1)/z, φ₂(z) = (φ₁ − 1)/z and φ₃(z) = (φ₂ − 1/2)/z of real numbers, to rounding and differentiably.

    Examples:
        >>> [round(float(value), 12) for value in phi_functions(torch.zeros((), dtype=torch.float64))]
        [1.0, 0.5, 0.166666666667]
    """
    is_small = check_floating(z, "z").abs() < 1.0
    small, large = torch.where(is_small, z, 0.0), torch.where(is_small, 1.0, z)  # the unselected branch remains finite
    values = []
    recurrence = torch.expm1(large) / large
    for order in (1, 2, 3):
        series = torch.zeros_like(z)
        for power in reversed(range(_TERMS)):
            series = series * small + 1.0 / math.factorial(power + order)
        values.append(torch.where(is_small, series, recurrence))
        recurrence = (recurrence - 1.0 / math.factorial(order)) / large
    return values[0], values[1], values[2]
