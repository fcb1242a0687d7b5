"""Active learning and Bayesian optimisation: any predictor as a BoTorch model."""

from probneural.active.information.acquisition import FieldAcquisition, FieldInformationGain, FieldIntegratedVariance
from probneural.active.information.fidelity import CostAware, Fidelity, FidelityCost, discretisation_variance
from probneural.active.information.latent_information import information_gain, target_moments, variance_reduction
from probneural.active.information.observation import observation_weights, whitened_rows
from probneural.active.loop.history import LearningHistory, Round
from probneural.active.loop.learner import ActiveLearner
from probneural.active.loop.schedule import Growth
from probneural.active.models.coefficients import ModeCoefficients
from probneural.active.models.conditioning import reading_noise
from probneural.active.models.model import OperatorModel
from probneural.active.models.paths import OperatorDraws
from probneural.active.models.posteriors import FieldPosterior, MemberPosterior
from probneural.active.models.samplers import MemberSampler
from probneural.active.selection.greedy_selectors import CoreSetSelection, LCMDSelection
from probneural.active.selection.latent_selectors import BAITSelection, InformationGainSelection, IntegratedVarianceSelection
from probneural.active.selection.pool_features import (
    FeatureSketch,
    PoolFeatures,
    PoolRows,
    integrated_variances,
    observation_rows,
    posterior_features,
)
from probneural.active.selection.selectors import RandomSelection, Request, Selector, StochasticSelection, TopKSelection
from probneural.active.selection.space_filling import SpaceFillingSelection, space_filling_designs
from probneural.active.simulation.running import SimulationReport, simulate
from probneural.active.simulation.store import Failure, ResultStore

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
    "Request",
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
    "observation_weights",
    "posterior_features",
    "reading_noise",
    "simulate",
    "space_filling_designs",
    "target_moments",
    "variance_reduction",
    "whitened_rows",
]
