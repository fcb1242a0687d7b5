"""Uncertainty heads: `.fit(operator, data)` turns any operator into a predictor of field distributions."""

from probneural.errors import ConvergenceWarning
from probneural.heads.ensembles.anchored_ensemble import AnchoredEnsemble, LevenbergMarquardt
from probneural.heads.ensembles.deep_ensemble import DeepEnsemble
from probneural.heads.ensembles.mc_dropout import MCDropout
from probneural.heads.ensembles.snapshot_ensemble import SnapshotEnsemble
from probneural.heads.kernel.kernel_operator import KernelOperator, KernelPaths, KernelPredictor
from probneural.heads.laplace.laplace import Laplace, LaplacePredictor
from probneural.heads.laplace.structures import Diagonal, Full, Iterative, Kronecker, LowRank
from probneural.heads.laplace_ensemble import LaplaceEnsemble
from probneural.heads.last_layer.bayesian import NUTS, BayesianLastLayer, VariationalInference
from probneural.heads.last_layer.heteroscedastic import HeteroscedasticGaussian
from probneural.heads.last_layer.heteroscedastic_predictor import HeteroscedasticPredictor
from probneural.heads.last_layer.laplace import LastLayerLaplace, LastLayerPredictor
from probneural.heads.last_layer.predictors import SampledLastLayerPredictor, VariationalLastLayerPredictor
from probneural.heads.noise_conditioning import NoiseConditionedPredictor, NoiseConditioning
from probneural.heads.swag import SWAG
from probneural.heads.weight_samples import WeightSampledPredictor
from probneural.heads.whole_network.bayesian_operator import BayesianOperator

__all__ = [
    "NUTS",
    "SWAG",
    "AnchoredEnsemble",
    "BayesianLastLayer",
    "BayesianOperator",
    "ConvergenceWarning",
    "DeepEnsemble",
    "Diagonal",
    "Full",
    "HeteroscedasticGaussian",
    "HeteroscedasticPredictor",
    "Iterative",
    "KernelOperator",
    "KernelPaths",
    "KernelPredictor",
    "Kronecker",
    "Laplace",
    "LaplaceEnsemble",
    "LaplacePredictor",
    "LastLayerLaplace",
    "LastLayerPredictor",
    "LevenbergMarquardt",
    "LowRank",
    "MCDropout",
    "NoiseConditionedPredictor",
    "NoiseConditioning",
    "SampledLastLayerPredictor",
    "SnapshotEnsemble",
    "VariationalInference",
    "VariationalLastLayerPredictor",
    "WeightSampledPredictor",
]
