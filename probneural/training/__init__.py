"""Training."""

from probneural.training.history import History
from probneural.training.losses import relative_l2
from probneural.training.trainer import fit

__all__ = ["History", "fit", "relative_l2"]
