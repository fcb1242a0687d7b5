"""Grids: points, quadrature weights, and interpolation between grids."""

from probneural.grids.axes import Axis as Axis
from probneural.grids.grid import Grid
from probneural.grids.grid import check_grid as check_grid
from probneural.grids.grid import check_on_grid as check_on_grid
from probneural.grids.grid import check_unmasked as check_unmasked
from probneural.grids.grid import per_axis as per_axis
from probneural.grids.resampling import along_axis as along_axis
from probneural.grids.resampling import interpolation_matrix as interpolation_matrix
from probneural.grids.resampling import resample as resample

__all__ = ["Grid"]

__dir__ = __all__.copy
