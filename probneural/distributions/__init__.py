"""Distributions over fields: the narrow waist between heads and everything that uses a posterior."""

from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.forecasts.ensemble_forecast import EnsembleForecast
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import Latent
from probneural.distributions.mixture import MixtureField
from probneural.distributions.predictors.base import Predictor, PredictorTraits
from probneural.distributions.predictors.mixture import MixturePredictor
from probneural.distributions.roots.base import DenseRoot, FeatureRoot, Root
from probneural.distributions.scale_mixture import ScaleMixtureField

__all__ = [
    "DenseRoot",
    "EmpiricalField",
    "EnsembleForecast",
    "FeatureRoot",
    "FieldDistribution",
    "GaussianField",
    "Latent",
    "MixtureField",
    "MixturePredictor",
    "Predictor",
    "PredictorTraits",
    "Root",
    "ScaleMixtureField",
]

__dir__ = __all__.copy
