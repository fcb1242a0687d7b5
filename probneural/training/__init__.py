"""Training."""

from probneural.training.callbacks import Callback, CSVLog, EachEpoch
from probneural.training.losses import RelativeL2, WeightedSum, relative_l2
from probneural.training.optimizers import Muon
from probneural.training.options import Checkpoint, DataOptions, EarlyStopping, Optimization, RunOptions
from probneural.training.trainer import fit
from probneural.training.unrolling import Unroll

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "DataOptions",
    "EachEpoch",
    "EarlyStopping",
    "Muon",
    "Optimization",
    "RelativeL2",
    "RunOptions",
    "Unroll",
    "WeightedSum",
    "fit",
    "relative_l2",
]
