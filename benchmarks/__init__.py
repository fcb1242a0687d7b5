"""Benchmarks, one module per claim; `python -m benchmarks` lists them."""
