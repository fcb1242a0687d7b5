"""Training."""

from probneural.training.callbacks import Callback, CSVLog, EachEpoch, History, MLflowLog, Progress, TensorBoardLog, WandbLog
from probneural.training.loading import BatchOrder
from probneural.training.losses import (
    CRPS,
    EnergyScore,
    Loss,
    PDEResidual,
    RelativeH1,
    RelativeL2,
    SpectralBands,
    WeightedSum,
    relative_l2,
)
from probneural.training.optimizers import Muon
from probneural.training.options import Checkpoint, DataOptions, EarlyStopping, Optimization, RunOptions
from probneural.training.trainer import fit
from probneural.training.unrolling import Unroll

__all__ = [
    "CRPS",
    "BatchOrder",
    "CSVLog",
    "Callback",
    "Checkpoint",
    "DataOptions",
    "EachEpoch",
    "EarlyStopping",
    "EnergyScore",
    "History",
    "Loss",
    "MLflowLog",
    "Muon",
    "Optimization",
    "PDEResidual",
    "Progress",
    "RelativeH1",
    "RelativeL2",
    "RunOptions",
    "SpectralBands",
    "TensorBoardLog",
    "Unroll",
    "WandbLog",
    "WeightedSum",
    "fit",
    "relative_l2",
]
