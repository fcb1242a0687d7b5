"""Training."""

from probneural.training.callbacks import Callback, EachEpoch
from probneural.training.loading import Loading
from probneural.training.loggers import CSVLog, MLflowLog, TensorBoardLog, WandbLog
from probneural.training.losses import (
    CRPS,
    EnergyScore,
    PDEResidual,
    RelativeH1,
    RelativeL2,
    SpectralBands,
    WeightedSum,
    relative_l2,
)
from probneural.training.muon import Muon
from probneural.training.options import Checkpoint, EarlyStopping, Optimization
from probneural.training.trainer import fit
from probneural.training.unrolling import Unroll

__all__ = [
    "CRPS",
    "CSVLog",
    "Callback",
    "Checkpoint",
    "EachEpoch",
    "EarlyStopping",
    "EnergyScore",
    "Loading",
    "MLflowLog",
    "Muon",
    "Optimization",
    "PDEResidual",
    "RelativeH1",
    "RelativeL2",
    "SpectralBands",
    "TensorBoardLog",
    "Unroll",
    "WandbLog",
    "WeightedSum",
    "fit",
    "relative_l2",
]
