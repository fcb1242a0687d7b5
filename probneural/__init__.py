"""Posteriors over functions for neural operators.

The path through the library: a problem or your own arrays give `FieldPairs`; `fit` trains an operator; a head turns it into a
`Predictor`; calibrators keep it honest; its predictions are `FieldDistribution`s to score, draw from, constrain, condition
and optimise. `save` and `load` keep operators and fitted objects, `export` writes them for programs without this library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probneural import active as active
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
    from probneural import plots as plots
    from probneural import runs as runs
    from probneural.fields import Field
    from probneural.grids import Grid
    from probneural.pairs import FieldPairs
    from probneural.pairs.clocks import WindowClock
    from probneural.storage import load, save
    from probneural.training import fit
    from probneural.trajectories import FieldTrajectories

__version__ = "0.2.0"

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

_EXTRAS = {"plots": "plots", "runs": "cli"}
"""Subpackages that need Matplotlib or pydantic, and the extras that have these."""
_MODULES = {
    "Field": "fields",
    "FieldPairs": "pairs",
    "FieldTrajectories": "trajectories",
    "Grid": "grids",
    "WindowClock": "pairs.clocks",
    "fit": "training",
    "load": "storage",
    "save": "storage",
}
"""Modules of the classes and functions; all other names are modules."""


def __getattr__(name: str) -> object:
    """Import a module, class or function on first use."""
    path = f"probneural.{_MODULES.get(name, name)}"
    if name in _EXTRAS:
        from probneural.checks import optional

        return globals().setdefault(name, optional(path, f"pn.{name}", extra=_EXTRAS[name]))
    try:
        module = None if name.startswith("_") else importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        module = None
    if module is None:
        raise AttributeError(f"module 'probneural' has no attribute {name!r}")
    return globals().setdefault(name, getattr(module, name) if name in _MODULES else module)


def __dir__() -> list[str]:
    """All public names, those of extras included."""
    return [*__all__, "active", *_EXTRAS]
