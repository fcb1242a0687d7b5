"""Spectra of symmetric matrices by products: eigenpairs, traces of functions, diagonals, solutions."""
