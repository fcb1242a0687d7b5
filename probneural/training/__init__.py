"""Training, and files of trained operators."""

from probneural.training.history import History
from probneural.training.losses import relative_l2
from probneural.training.storage import load, save
from probneural.training.trainer import fit

__all__ = ["History", "fit", "load", "relative_l2", "save"]
