"""The slow reference: one backward pass per output value."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from probneural.fields import Field, evaluate
from probneural.grids import Grid


def dense_jacobian(operator: nn.Module, inputs: Field, query: Grid | None = None) -> Tensor:
    """`(n, c, p, P)` over all parameters in order, complex ones as (real, imaginary) pairs."""
    own = copy.deepcopy(operator).eval().requires_grad_(True)
    parameters = list(own.parameters())
    values = evaluate(own, inputs, query)
    rows = []
    for entry in values.flatten():
        gradients = torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)
        # of a real function, PyTorch's complex gradient is d/dRe + i d/dIm
        rows.append(
            torch.cat([torch.view_as_real(part).flatten() if part.is_complex() else part.flatten() for part in gradients])
        )
    return torch.stack(rows).reshape(*values.shape[:2], -1, len(rows[0]))
