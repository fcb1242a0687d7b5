"""Data of any size: files and arrays that are read a few samples at a time, trajectories, and their windows."""

from __future__ import annotations

from probneural.data.contents import FileLayout
from probneural.data.opening import list_variables, open, open_inputs
from probneural.data.pairs import StoredPairs
from probneural.data.roles import from_arrays
from probneural.data.trajectories import Trajectories

__all__ = ["FileLayout", "StoredPairs", "Trajectories", "from_arrays", "list_variables", "open", "open_inputs"]

__dir__ = __all__.copy
