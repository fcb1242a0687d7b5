"""Neural operators: modules from `(n, c, *grid)` to `(n, c', *grid)` that evaluate anywhere."""

from probneural.operators.attention import AttentionOperator
from probneural.operators.base import Operator
from probneural.operators.deeponet import DeepONet
from probneural.operators.fno import FNO
from probneural.operators.in_context import InContextOperator, context_tasks
from probneural.operators.layers.mlp import HiddenLayers
from probneural.operators.linear import LinearRegression
from probneural.operators.neuraloperator import from_neuraloperator
from probneural.operators.pod_deeponet import PODDeepONet
from probneural.operators.point_fno import PointFNO
from probneural.operators.rollout import Rollout
from probneural.operators.suggestion import suggest

__all__ = [
    "FNO",
    "AttentionOperator",
    "DeepONet",
    "HiddenLayers",
    "InContextOperator",
    "LinearRegression",
    "Operator",
    "PODDeepONet",
    "PointFNO",
    "Rollout",
    "context_tasks",
    "from_neuraloperator",
    "suggest",
]

__dir__ = __all__.copy
