"""Runs from a data file to a calibrated report: the functions of the program `probneural`.

A [`Config`][probneural.runs.Config] defines a run. Each step takes it and a folder, executes missing previous steps, and
writes its results to the folder; a repeated call continues.
"""

from probneural.runs.config import (
    Calibration,
    Config,
    Data,
    EarlyStopping,
    Head,
    Operator,
    Optimization,
    Scores,
    Split,
    Training,
)
from probneural.runs.inspection import info, read_run
from probneural.runs.prediction import predict
from probneural.runs.reporting import report
from probneural.runs.steps import calibrate, fit, init, score, train
from probneural.runs.toml import read_config, write_config

__all__ = [
    "Calibration",
    "Config",
    "Data",
    "EarlyStopping",
    "Head",
    "Operator",
    "Optimization",
    "Scores",
    "Split",
    "Training",
    "calibrate",
    "fit",
    "info",
    "init",
    "predict",
    "read_config",
    "read_run",
    "report",
    "score",
    "train",
    "write_config",
]

__dir__ = __all__.copy
