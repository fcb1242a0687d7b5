"""Uncertainty heads: `.fit(operator, data)` turns any operator into a predictor of field distributions."""

from probneural.errors import ConvergenceWarning
from probneural.heads.anchored import AnchoredEnsemble
from probneural.heads.bayesian import BayesianLastLayer
from probneural.heads.ensembles import DeepEnsemble
from probneural.heads.kernel import KernelOperator, KernelPaths, KernelPredictor
from probneural.heads.laplace import Laplace, LaplacePredictor
from probneural.heads.last_layer import LastLayerLaplace, LastLayerPredictor
from probneural.heads.last_layer_predictors import SampledLastLayerPredictor, VariationalLastLayerPredictor
from probneural.heads.sampled import WeightSampledPredictor

__all__ = [
    "AnchoredEnsemble",
    "BayesianLastLayer",
    "ConvergenceWarning",
    "DeepEnsemble",
    "KernelOperator",
    "KernelPaths",
    "KernelPredictor",
    "Laplace",
    "LaplacePredictor",
    "LastLayerLaplace",
    "LastLayerPredictor",
    "SampledLastLayerPredictor",
    "VariationalLastLayerPredictor",
    "WeightSampledPredictor",
]
