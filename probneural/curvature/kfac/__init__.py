"""Kronecker-factored Gauss-Newton matrices of any module."""
