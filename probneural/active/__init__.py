"""Active learning and Bayesian optimisation: any predictor as a BoTorch model."""

from probneural.active.model import OperatorModel
from probneural.active.posteriors import FieldPosterior, MemberPosterior
from probneural.active.samplers import MemberSampler

__all__ = ["FieldPosterior", "MemberPosterior", "MemberSampler", "OperatorModel"]
