"""Quantities of interest: numbers that follow from a field.

A functional maps the values of a field, channel by channel, to m numbers: `(..., c, *grid) -> (..., c, m)`. Linear ones have
a grid and an adjoint, so a Gaussian field pushed through one, `u.apply(functional)`, stays an exact Gaussian: integrals,
means of regions, integrals over lines and boundaries, sensors, derivatives, and their linear combinations. The
[`maximum`][probneural.functionals.maximum] is nonlinear, and goes through draws: `u.apply_by_draws(maximum(grid))`.
"""

from probneural.functionals.base import Functional, MatrixFunctional, stack
from probneural.functionals.integrals import average, boundary_integral, derivative, integral, line_integral, region, sensors
from probneural.functionals.regions import maximum

__all__ = [
    "Functional",
    "MatrixFunctional",
    "average",
    "boundary_integral",
    "derivative",
    "integral",
    "line_integral",
    "maximum",
    "region",
    "sensors",
    "stack",
]

__dir__ = __all__.copy
