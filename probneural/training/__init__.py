"""Training."""

from probneural.training.callbacks import Callback, CSVLog, EachEpoch, MLflowLog, TensorBoardLog, WandbLog
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
    "MLflowLog",
    "Muon",
    "Optimization",
    "RelativeL2",
    "RunOptions",
    "TensorBoardLog",
    "Unroll",
    "WandbLog",
    "WeightedSum",
    "fit",
    "relative_l2",
]

__dir__ = __all__.copy
