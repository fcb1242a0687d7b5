"""Posteriors over functions for neural operators.

The path through the library: a problem or your own arrays give `FieldPairs`; `fit` trains an operator; a head turns it into a
`Predictor`; calibrators keep it honest; its predictions are `FieldDistribution`s to score, draw from, constrain, condition
and optimise. `save` and `load` keep operators and fitted objects, `export` writes them for programs without this library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from probneural import (
    augmentation,
    calibration,
    curvature,
    data,
    distributions,
    errors,
    export,
    forecasts,
    functionals,
    heads,
    inverse,
    metrics,
    operators,
    physics,
    problems,
    training,
)
from probneural.checks import missing
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.pairs.clocks import WindowClock
from probneural.storage import load, save
from probneural.training import fit
from probneural.trajectories import FieldTrajectories

if TYPE_CHECKING:
    from probneural import active as active
    from probneural import plots as plots
    from probneural import runs as runs

__version__ = "0.1.0"

__all__ = [
    "Field",
    "FieldPairs",
    "FieldTrajectories",
    "Grid",
    "WindowClock",
    "augmentation",
    "calibration",
    "curvature",
    "data",
    "distributions",
    "errors",
    "export",
    "fit",
    "forecasts",
    "functionals",
    "heads",
    "inverse",
    "load",
    "metrics",
    "operators",
    "physics",
    "problems",
    "save",
    "training",
]

_LAZY = {"active": "plots", "plots": "plots", "runs": "cli"}
"""Subpackages that need BoTorch, Matplotlib or pydantic, imported when first used, and the extras that have these."""


def __getattr__(name: str) -> object:
    """Import a lazy subpackage on first use."""
    if name in _LAZY:
        try:
            return importlib.import_module(f"probneural.{name}")
        except ModuleNotFoundError as error:
            raise missing(f"pn.{name}", error, _LAZY[name]) from error
    raise AttributeError(f"module 'probneural' has no attribute {name!r}")


def __dir__() -> list[str]:
    """All public names, the lazy ones included."""
    return [*__all__, *_LAZY]
