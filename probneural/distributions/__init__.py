"""Distributions over fields: the narrow waist between heads and everything that uses a posterior."""

from probneural.distributions.base import FieldDistribution
from probneural.distributions.conditioned import ConditionedPredictor
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.ensemble_forecast import EnsembleForecast
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.intervals import Interval
from probneural.distributions.latent import Latent
from probneural.distributions.mixture import MixtureField
from probneural.distributions.mixture_predictor import MixturePredictor
from probneural.distributions.predictor import FunctionDraw, Predictor, PredictorTraits
from probneural.distributions.roots.base import DenseRoot, FeatureRoot, Root
from probneural.distributions.roots.modulated import DiagonalRoot, ModulatedRoot
from probneural.distributions.scale_mixture import ScaleMixtureField
from probneural.distributions.trajectory import Forecast, Trajectory
from probneural.distributions.variance_shares import VarianceShares

__all__ = [
    "ConditionedPredictor",
    "DenseRoot",
    "DiagonalRoot",
    "EmpiricalField",
    "EnsembleForecast",
    "FeatureRoot",
    "FieldDistribution",
    "Forecast",
    "FunctionDraw",
    "GaussianField",
    "Interval",
    "Latent",
    "MixtureField",
    "MixturePredictor",
    "ModulatedRoot",
    "Predictor",
    "PredictorTraits",
    "Root",
    "ScaleMixtureField",
    "Trajectory",
    "VarianceShares",
]
