"""Training."""

from probneural.training.callbacks import Callback, EachEpoch, Progress
from probneural.training.history import History
from probneural.training.loading import BatchOrder, Loading
from probneural.training.losses import Loss, relative_l2
from probneural.training.options import Checkpoint, EarlyStopping, Optimization
from probneural.training.trainer import fit

__all__ = [
    "BatchOrder",
    "Callback",
    "Checkpoint",
    "EachEpoch",
    "EarlyStopping",
    "History",
    "Loading",
    "Loss",
    "Optimization",
    "Progress",
    "fit",
    "relative_l2",
]
