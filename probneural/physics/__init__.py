"""Physics: derivatives of fields, equations, residuals and boundary conditions."""

from probneural.physics import equations
from probneural.physics.conditions import ByConstruction, Channel, Dirichlet, Neumann, initial
from probneural.physics.derivatives import curl, derivatives_at, divergence, gradient, laplacian, partial, time_derivative
from probneural.physics.residual import Residual

__all__ = [
    "ByConstruction",
    "Channel",
    "Dirichlet",
    "Neumann",
    "Residual",
    "curl",
    "derivatives_at",
    "divergence",
    "equations",
    "gradient",
    "initial",
    "laplacian",
    "partial",
    "time_derivative",
]

__dir__ = __all__.copy
