"""What a step differentiates: the loss of an operator on a batch."""

from __future__ import annotations

import contextlib

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.errors import ArgumentError
from probneural.fields import evaluate
from probneural.pairs import FieldPairs
from probneural.training.losses import Loss, relative_l2, takes_inputs
from probneural.training.options import PRECISIONS


class Objective(nn.Module):
    """The loss of an operator as a module, which `DistributedDataParallel` can wrap.

    Args:
        operator: Which is trained.
        loss: Of predictions, targets and their grid; None for the relative L2 error, averaged over channels and functions.
        precision: Dtype of autocast; None for the operator's own precision.
    """

    def __init__(self, operator: nn.Module, loss: Loss | None, *, precision: str | None) -> None:
        super().__init__()
        self.operator = operator
        self.loss = loss
        self.precision = None if precision is None else PRECISIONS[precision]

    def forward(self, batch: FieldPairs | None) -> Float[Tensor, ""]:
        """The loss of a batch; zero, with zero gradients, of none.

        Raises:
            ArgumentError: If the loss is no real number that depends on the weights.
        """
        if batch is None:
            return torch.stack(
                [parameter.abs().sum() * 0.0 for parameter in self.parameters() if parameter.requires_grad]
            ).sum()
        query = None if batch.outputs.grid == batch.inputs.grid else batch.outputs.grid
        target = batch.outputs.values
        with self._autocast(target.device.type):
            predicted = evaluate(self.operator, batch.inputs, query)
        if self.precision is not None:
            predicted = predicted.to(target.dtype)
        if self.loss is None:
            return relative_l2(predicted, target, grid=batch.outputs.grid).mean()
        more = {"inputs": batch.inputs} if takes_inputs(self.loss) else {}
        return _checked(self.loss(predicted, target, batch.outputs.grid, **more))

    def _autocast(self, device: str) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext() if self.precision is None else torch.autocast(device, self.precision)


def _checked(value: object) -> Tensor:
    """Return a loss that is one real number with a graph, where graphs are recorded."""
    recorded = not torch.is_grad_enabled() or (isinstance(value, Tensor) and value.requires_grad)
    if not isinstance(value, Tensor) or value.ndim != 0 or value.is_complex() or not recorded:
        raise ArgumentError(
            expected="a loss that returns one real number, as a tensor that depends on the weights",
            got=f"a tensor of shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value),
            remedy="average over functions, and leave the graph attached",
        )
    return value
