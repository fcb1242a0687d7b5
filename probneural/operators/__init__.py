"""Neural operators: modules from `(n, c, *grid)` to `(n, c', *grid)` that evaluate anywhere."""

from probneural.operators.base import Operator
from probneural.operators.fno import FNO
from probneural.operators.layers import PointwiseLinear, SpectralConv
from probneural.operators.linear import LinearRegression

__all__ = ["FNO", "LinearRegression", "Operator", "PointwiseLinear", "SpectralConv"]
