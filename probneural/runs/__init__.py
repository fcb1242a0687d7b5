"""Whole runs, from a data file to a calibrated report: what the program `probneural` does, as functions.

A [`Config`][probneural.runs.Config] says what a run is. Each step takes it and a folder, does the steps before it where they
are missing, and leaves files there: repeated, it goes on where it was.
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
from probneural.runs.inspection import info
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
    "report",
    "score",
    "train",
    "write_config",
]
