"""Active learning and Bayesian optimisation: any predictor as a BoTorch model."""

from probneural.active.acquisition import FieldAcquisition, FieldInformationGain, FieldIntegratedVariance
from probneural.active.coefficients import ModeCoefficients
from probneural.active.conditioning import reading_noise
from probneural.active.fidelity import CostAware, Fidelity, FidelityCost, discretisation_variance
from probneural.active.greedy_selectors import CoreSetSelection, LCMDSelection
from probneural.active.history import LearningHistory, Round
from probneural.active.information import information_gain, target_moments, variance_reduction
from probneural.active.latent_selectors import BAITSelection, InformationGainSelection, IntegratedVarianceSelection
from probneural.active.learner import ActiveLearner
from probneural.active.model import OperatorModel
from probneural.active.paths import OperatorDraws
from probneural.active.pool_features import (
    FeatureSketch,
    PoolFeatures,
    PoolRows,
    integrated_variances,
    observation_rows,
    posterior_features,
)
from probneural.active.posteriors import FieldPosterior, MemberPosterior
from probneural.active.samplers import MemberSampler
from probneural.active.schedule import Growth
from probneural.active.selectors import RandomSelection, Selector, StochasticSelection, TopKSelection
from probneural.active.simulation import SimulationReport, simulate
from probneural.active.space_filling import SpaceFillingSelection, space_filling_designs
from probneural.active.store import Failure, ResultStore

__all__ = [
    "ActiveLearner",
    "BAITSelection",
    "CoreSetSelection",
    "CostAware",
    "Failure",
    "FeatureSketch",
    "Fidelity",
    "FidelityCost",
    "FieldAcquisition",
    "FieldInformationGain",
    "FieldIntegratedVariance",
    "FieldPosterior",
    "Growth",
    "InformationGainSelection",
    "IntegratedVarianceSelection",
    "LCMDSelection",
    "LearningHistory",
    "MemberPosterior",
    "MemberSampler",
    "ModeCoefficients",
    "OperatorDraws",
    "OperatorModel",
    "PoolFeatures",
    "PoolRows",
    "RandomSelection",
    "ResultStore",
    "Round",
    "Selector",
    "SimulationReport",
    "SpaceFillingSelection",
    "StochasticSelection",
    "TopKSelection",
    "discretisation_variance",
    "information_gain",
    "integrated_variances",
    "observation_rows",
    "posterior_features",
    "reading_noise",
    "simulate",
    "space_filling_designs",
    "target_moments",
    "variance_reduction",
]
