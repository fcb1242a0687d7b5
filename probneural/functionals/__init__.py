"""Quantities of interest: numbers that follow from a field.

A functional maps the values of a field, channel by channel, to m numbers: `(..., c, *grid) -> (..., c, m)`. Linear ones know
their grid and their adjoint, so a Gaussian field pushed through one, `u.apply(functional)`, stays an exact Gaussian: integrals,
means of regions, line integrals, sensors, derivatives, and their linear combinations. The
[`maximum`][probneural.functionals.maximum] is nonlinear, and goes through draws: `u.apply_by_draws(maximum(grid))`.
"""

from probneural.functionals.base import Functional, MatrixFunctional, stack
from probneural.functionals.integrals import average, integral, line_integral, region
from probneural.functionals.maxima import maximum
from probneural.functionals.observations import derivative, sensors

__all__ = [
    "Functional",
    "MatrixFunctional",
    "average",
    "derivative",
    "integral",
    "line_integral",
    "maximum",
    "region",
    "sensors",
    "stack",
]
