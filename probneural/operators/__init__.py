"""Neural operators: modules from `(n, c, *grid)` to `(n, c', *grid)` that evaluate anywhere."""

from probneural.operators.base import Operator
from probneural.operators.deeponet import DeepONet
from probneural.operators.fno import FNO
from probneural.operators.layers import PointwiseLinear, SpectralConv
from probneural.operators.layers.mlp import HiddenLayers
from probneural.operators.linear import LinearRegression
from probneural.operators.neuraloperator import from_neuraloperator, to_neuraloperator
from probneural.operators.pod_deeponet import PODDeepONet
from probneural.operators.rollout import Rollout

__all__ = [
    "FNO",
    "DeepONet",
    "HiddenLayers",
    "LinearRegression",
    "Operator",
    "PODDeepONet",
    "PointwiseLinear",
    "Rollout",
    "SpectralConv",
    "from_neuraloperator",
    "to_neuraloperator",
]
