"""Active learning and Bayesian optimisation: any predictor as a BoTorch model."""

from probneural.active.botorch_models.conditioning import LatentPosterior, Observation, observation_variance
from probneural.active.botorch_models.model import OperatorModel
from probneural.active.botorch_models.paths import OperatorDraws
from probneural.active.botorch_models.posteriors import FieldPosterior, MemberPosterior
from probneural.active.botorch_models.samplers import MemberSampler
from probneural.active.information.acquisition import FieldAcquisition, FieldInformationGain, FieldIntegratedVariance
from probneural.active.information.latent_information import information_gain, target_moments, variance_reduction
from probneural.active.information.observation import observation_weights, whitened_rows
from probneural.active.loop.history import LearningHistory, Round, RoundErrors, RoundSeconds, SimulationCounts
from probneural.active.loop.learner import ActiveLearner
from probneural.active.loop.plan import Growth, LearningPlan, OperatorTraining
from probneural.active.selection.greedy_selectors import LCMDSelection, SpaceFillingSelection, space_filling_designs
from probneural.active.selection.latent_selectors import BAITSelection, IntegratedVarianceSelection
from probneural.active.selection.pool_features import (
    FeatureSketch,
    PoolFeatures,
    PoolRows,
    integrated_variances,
    observation_rows,
    posterior_features,
)
from probneural.active.selection.selectors import RandomSelection, Request, Selector, StochasticSelection
from probneural.active.simulation.running import SimulationReport, simulate
from probneural.active.simulation.store import Failure, ResultStore
from probneural.active.simulation.worker_pools import SimulationOptions

__all__ = [
    "ActiveLearner",
    "BAITSelection",
    "Failure",
    "FeatureSketch",
    "FieldAcquisition",
    "FieldInformationGain",
    "FieldIntegratedVariance",
    "FieldPosterior",
    "Growth",
    "IntegratedVarianceSelection",
    "LCMDSelection",
    "LatentPosterior",
    "LearningHistory",
    "LearningPlan",
    "MemberPosterior",
    "MemberSampler",
    "Observation",
    "OperatorDraws",
    "OperatorModel",
    "OperatorTraining",
    "PoolFeatures",
    "PoolRows",
    "RandomSelection",
    "Request",
    "ResultStore",
    "Round",
    "RoundErrors",
    "RoundSeconds",
    "Selector",
    "SimulationCounts",
    "SimulationOptions",
    "SimulationReport",
    "SpaceFillingSelection",
    "StochasticSelection",
    "information_gain",
    "integrated_variances",
    "observation_rows",
    "observation_variance",
    "observation_weights",
    "posterior_features",
    "simulate",
    "space_filling_designs",
    "target_moments",
    "variance_reduction",
    "whitened_rows",
]
