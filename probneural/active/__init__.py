"""Active learning and Bayesian optimisation: any predictor as a BoTorch model."""

from probneural.active.botorch_models.draws import OperatorDraws
from probneural.active.botorch_models.model import OperatorModel
from probneural.active.loop.learner import ActiveLearner
from probneural.active.loop.optimizer import Optimizer
from probneural.active.loop.plan import Growth, LearningPlan, OperatorTraining
from probneural.active.selectors import RandomSelection, Selector, StochasticSelection
from probneural.active.simulation.running import simulate
from probneural.active.simulation.store import ResultStore
from probneural.active.simulation.worker_pools import SimulationOptions

__all__ = [
    "ActiveLearner",
    "Growth",
    "LearningPlan",
    "OperatorDraws",
    "OperatorModel",
    "OperatorTraining",
    "Optimizer",
    "RandomSelection",
    "ResultStore",
    "Selector",
    "SimulationOptions",
    "StochasticSelection",
    "simulate",
]

__dir__ = __all__.copy
