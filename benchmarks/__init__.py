"""Benchmarks, one module per claim; `python -m benchmarks` lists them."""

from benchmarks.purposes import PURPOSES
from probneural import randomness

randomness.PURPOSES.update(PURPOSES)
