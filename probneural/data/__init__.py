"""Data of any size: files and arrays that are read a few functions at a time, trajectories, and windows of them."""

from __future__ import annotations

from probneural.data.arrays import from_arrays
from probneural.data.listing import list_variables
from probneural.data.opening import open, open_inputs
from probneural.data.pairs import StoredPairs
from probneural.data.trajectories import Trajectories

__all__ = [
    "StoredPairs",
    "Trajectories",
    "from_arrays",
    "list_variables",
    "open",
    "open_inputs",
]
