"""Objective of a training step: the loss of an operator on a batch."""

from __future__ import annotations

import contextlib

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.errors import ArgumentError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.training.losses import Loss, relative_l2, takes_inputs
from probneural.training.options import PRECISIONS
from probneural.training.unrolling import Unroll


class Objective(nn.Module):
    """The loss of an operator as a module, which `DistributedDataParallel` can wrap.

    Args:
        operator: Which is trained.
        loss: Of predictions, targets and their grid; None for the relative L2 error, averaged over channels and functions.
        precision: Dtype of autocast; None for the operator's own precision.
        unroll: How pairs of several following states are trained on; None for pairs of one.
    """

    def __init__(self, operator: nn.Module, loss: Loss | None, *, precision: str | None, unroll: Unroll | None = None) -> None:
        super().__init__()
        self.operator = operator
        self.loss = loss
        self.set_precision(precision)
        self.unroll = unroll

    def set_precision(self, precision: str | None) -> None:
        """Autocast from now on, or not."""
        self.precision = None if precision is None else PRECISIONS[precision]

    def forward(self, batch: FieldPairs | None, *, is_watched: bool = False) -> Float[Tensor, ""]:
        """The loss of a batch; zero, with zero gradients, of none.

        Args:
            batch: Pairs.
            is_watched: Whether this is the validation loss, the mean over all steps.

        Raises:
            ArgumentError: If the loss is no real number that depends on the weights.
        """
        if batch is None:
            return torch.stack(
                [parameter.abs().sum() * 0.0 for parameter in self.parameters() if parameter.requires_grad]
            ).sum()
        if self.unroll is not None:
            return self._unrolled(batch, self.unroll, is_cut=self.unroll.pushforward and not is_watched)
        predicted = self._predicted(batch.inputs, batch.outputs.grid, batch.outputs.dtype)
        return self._loss(predicted, batch.outputs, batch.inputs)

    def _unrolled(self, batch: FieldPairs, unroll: Unroll, *, is_cut: bool) -> Tensor:
        """The mean loss of several steps, each from where the one before has led."""
        grid, dtype = batch.outputs.grid, batch.outputs.dtype
        inputs, last = batch.inputs, unroll.steps - 1
        losses = []
        for number, target in enumerate(unroll.targets(batch.outputs.values)):
            is_judged = not is_cut or number in (0, last)
            with torch.set_grad_enabled(is_judged and torch.is_grad_enabled()):
                predicted = self._predicted(inputs, grid, dtype)
                if is_judged:
                    losses.append(self._loss(predicted, Field(target, grid), inputs))
                if number < last:
                    inputs = unroll.following(inputs, predicted.detach() if is_cut else predicted)
        return torch.stack(losses).mean()

    def _predicted(self, inputs: Field, grid: Grid, dtype: torch.dtype) -> Tensor:
        """The operator's outputs on a grid, in the data's precision."""
        with self._autocast(inputs.device.type):
            predicted = evaluate(self.operator, inputs, None if grid == inputs.grid else grid)
        return predicted if self.precision is None else predicted.to(dtype)

    def _loss(self, predicted: Tensor, target: Field, inputs: Field) -> Tensor:
        if self.loss is None:
            return relative_l2(predicted, target.values, grid=target.grid).mean()
        more = {"inputs": inputs} if takes_inputs(self.loss) else {}
        return _checked(self.loss(predicted, target.values, target.grid, **more))

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
