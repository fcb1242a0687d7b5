"""Distributions over fields: the narrow waist between heads and everything that uses a posterior."""

from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latents import Latent
from probneural.distributions.linear_algebra import Shrink
from probneural.distributions.modulated_root import DiagonalRoot, ModulatedRoot
from probneural.distributions.predictor import FunctionDraw, Predictor
from probneural.distributions.roots import DenseRoot, FeatureRoot, Root

__all__ = [
    "DenseRoot",
    "DiagonalRoot",
    "EmpiricalField",
    "FeatureRoot",
    "FieldDistribution",
    "FunctionDraw",
    "GaussianField",
    "Latent",
    "ModulatedRoot",
    "Predictor",
    "Root",
    "Shrink",
]
