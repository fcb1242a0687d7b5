"""Curvature of any module: products with Hessians, Gauss-Newton and Fisher matrices, and what can be built on them.

Parameters are one real vector, complex ones as pairs. A `CurvatureProblem` says what the matrix is of; `HessianProduct.of`,
`GaussNewtonProduct.of` and their like multiply with it, differentiably; `probneural.curvature.linear_operators` wraps it for
linear_operator and SciPy; `top_eigenpairs`, `solve`, `spectral_density` and `xdiag` need nothing but products.
"""

from probneural.curvature.conjugate_gradients import LowRankPreconditioner, Solution, solve
from probneural.curvature.diagonals import Estimate, TraceEstimate, row_squares_estimate, xdiag, xtrace
from probneural.curvature.functions import (
    FisherProduct,
    GaussNewtonProduct,
    HessianProduct,
    JacobianProduct,
    TransposedJacobianProduct,
)
from probneural.curvature.jacobian import evaluate_at, gauss_newton, jacobian
from probneural.curvature.jacobian_root import Effort, JacobianRoot
from probneural.curvature.kronecker import kronecker
from probneural.curvature.kronecker_factors import KroneckerFactors, KroneckerWeights
from probneural.curvature.lanczos import Eigenpairs, top_eigenpairs
from probneural.curvature.likelihood import QuadratureGaussian
from probneural.curvature.linearisation import Linearisation
from probneural.curvature.parameters import ParameterVector
from probneural.curvature.problem import CurvatureProblem
from probneural.curvature.quadrature import SpectralMeasure, spectral_density
from probneural.curvature.rows import GaussNewtonRows
from probneural.curvature.weight_roots import DenseWeights, DiagonalWeights, LowRankWeights, WeightRoot

__all__ = [
    "CurvatureProblem",
    "DenseWeights",
    "DiagonalWeights",
    "Effort",
    "Eigenpairs",
    "Estimate",
    "FisherProduct",
    "GaussNewtonProduct",
    "GaussNewtonRows",
    "HessianProduct",
    "JacobianProduct",
    "JacobianRoot",
    "KroneckerFactors",
    "KroneckerWeights",
    "Linearisation",
    "LowRankPreconditioner",
    "LowRankWeights",
    "ParameterVector",
    "QuadratureGaussian",
    "Solution",
    "SpectralMeasure",
    "TraceEstimate",
    "TransposedJacobianProduct",
    "WeightRoot",
    "evaluate_at",
    "gauss_newton",
    "jacobian",
    "kronecker",
    "row_squares_estimate",
    "solve",
    "spectral_density",
    "top_eigenpairs",
    "xdiag",
    "xtrace",
]
