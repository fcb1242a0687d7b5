"""Curvature of any module: parameters as real vectors, Jacobians, Gauss-Newton matrices."""

from probneural.curvature.jacobian import evaluate_at, gauss_newton, jacobian
from probneural.curvature.parameters import ParameterVector

__all__ = ["ParameterVector", "evaluate_at", "gauss_newton", "jacobian"]
