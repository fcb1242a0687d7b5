"""Uncertainty heads: `.fit(operator, data)` turns any operator into a predictor of field distributions."""

from probneural.heads.ensembles.deep_ensemble import DeepEnsemble
from probneural.heads.ensembles.laplace_ensemble import LaplaceEnsemble
from probneural.heads.in_context import InContext
from probneural.heads.kernel.kernel_operator import KernelOperator
from probneural.heads.laplace.laplace import Laplace
from probneural.heads.laplace.structures import Diagonal, Full, Kronecker, LowRank
from probneural.heads.last_layer.laplace import LastLayerLaplace
from probneural.heads.variational import BayesianOperator

__all__ = [
    "BayesianOperator",
    "DeepEnsemble",
    "Diagonal",
    "Full",
    "InContext",
    "KernelOperator",
    "Kronecker",
    "Laplace",
    "LaplaceEnsemble",
    "LastLayerLaplace",
    "LowRank",
]

__dir__ = __all__.copy
