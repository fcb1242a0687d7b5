"""Active learning and Bayesian optimisation: any predictor as a BoTorch model."""

from probneural.active.botorch_models import samplers as _samplers  # noqa: F401 (registers the samplers of posteriors)
from probneural.active.botorch_models.model import OperatorModel
from probneural.active.botorch_models.paths import OperatorDraws
from probneural.active.information.acquisition import FieldAcquisition, FieldInformationGain, FieldIntegratedVariance
from probneural.active.loop.learner import ActiveLearner
from probneural.active.loop.plan import LearningPlan, OperatorTraining
from probneural.active.loop.schedule import Growth
from probneural.active.selection.greedy_selectors import LCMDSelection
from probneural.active.selection.latent_selectors import BAITSelection, IntegratedVarianceSelection
from probneural.active.selection.selectors import RandomSelection, Selector, StochasticSelection
from probneural.active.selection.space_filling import SpaceFillingSelection, space_filling_designs
from probneural.active.simulation.options import SimulationOptions
from probneural.active.simulation.running import simulate
from probneural.active.simulation.store import ResultStore

__all__ = [
    "ActiveLearner",
    "BAITSelection",
    "FieldAcquisition",
    "FieldInformationGain",
    "FieldIntegratedVariance",
    "Growth",
    "IntegratedVarianceSelection",
    "LCMDSelection",
    "LearningPlan",
    "OperatorDraws",
    "OperatorModel",
    "OperatorTraining",
    "RandomSelection",
    "ResultStore",
    "Selector",
    "SimulationOptions",
    "SpaceFillingSelection",
    "StochasticSelection",
    "simulate",
    "space_filling_designs",
]
