"""Curvature of any module: products with Hessians, Gauss-Newton and Fisher matrices, and algorithms based on them.

Parameters are one real vector, complex ones as pairs. A `CurvatureProblem` defines the loss;
`hessian_vector_product`, `gauss_newton_vector_product` and their like multiply with it, differentiably;
`products.linear_operators` wraps it for linear_operator and SciPy; `top_eigenpairs`, `spectral_density` and `xdiag` need
nothing but products.
"""

from probneural.curvature.diagonals import xdiag
from probneural.curvature.jacobian_root import VarianceEstimation
from probneural.curvature.kronecker_factorisation import kronecker
from probneural.curvature.lanczos import top_eigenpairs
from probneural.curvature.parameters import ParameterVector
from probneural.curvature.problem import CurvatureProblem, Minibatches, QuadratureGaussian
from probneural.curvature.products.functions import (
    fisher_vector_product,
    gauss_newton_vector_product,
    hessian_vector_product,
    jacobian_vector_product,
    vector_jacobian_product,
)
from probneural.curvature.quadrature import spectral_density
from probneural.curvature.rows import gauss_newton, jacobian

__all__ = [
    "CurvatureProblem",
    "Minibatches",
    "ParameterVector",
    "QuadratureGaussian",
    "VarianceEstimation",
    "fisher_vector_product",
    "gauss_newton",
    "gauss_newton_vector_product",
    "hessian_vector_product",
    "jacobian",
    "jacobian_vector_product",
    "kronecker",
    "spectral_density",
    "top_eigenpairs",
    "vector_jacobian_product",
    "xdiag",
]

__dir__ = __all__.copy
