"""The slow reference: one backward pass per output value."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from probneural.contexts import plain_operations
from probneural.fields import Field, evaluate
from probneural.grids import Grid


def dense_jacobian(operator: nn.Module, inputs: Field, query: Grid | None = None) -> Tensor:
    """`(n, c, p, P)` over all parameters in order, complex ones as (real, imaginary) pairs."""
    copied = copy.deepcopy(operator).eval().requires_grad_(True)
    parameters = list(copied.parameters())
    values = evaluate(copied, inputs, query)
    rows = []
    for entry in values.flatten():
        gradients = torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)
        # of a real function, PyTorch's complex gradient is d/dRe + i d/dIm
        rows.append(
            torch.cat([torch.view_as_real(part).flatten() if part.is_complex() else part.flatten() for part in gradients])
        )
    return torch.stack(rows).reshape(*values.shape[:2], -1, len(rows[0]))


def dense_gauss_newton(jacobian: Tensor, weights: Tensor) -> Tensor:
    """Sum of weighted outer products, one at a time, from `(n, c, p, P)` and `(c, p)` or `(n, c, p)`."""
    total = torch.zeros(jacobian.shape[-1], jacobian.shape[-1], dtype=jacobian.dtype)
    for function, own in zip(jacobian, weights.expand(jacobian.shape[:3]), strict=True):
        for row, weight in zip(function.flatten(0, 1), own.flatten(), strict=True):
            total += weight * torch.outer(row, row)
    return total


def dense_fisher(jacobian: Tensor, weights: Tensor, residuals: Tensor) -> Tensor:
    """Sum over functions of the outer product of its loss's gradient, J^T diag(w) r."""
    total = torch.zeros(jacobian.shape[-1], jacobian.shape[-1], dtype=jacobian.dtype)
    for function, weighted in zip(jacobian, weights * residuals, strict=True):
        gradient = function.flatten(0, 1).mT @ weighted.flatten()
        total += torch.outer(gradient, gradient)
    return total


def dense_hessian(operator: nn.Module, inputs: Field, targets: Field, weights: Tensor, query: Grid | None = None) -> Tensor:
    """`(P, P)`: one backward pass per entry of the gradient of 1/2 sum w (f - y)^2."""
    copied = copy.deepcopy(operator).eval().requires_grad_(True)
    parameters = list(copied.parameters())
    with plain_operations():
        loss = 0.5 * (weights * (evaluate(copied, inputs, query) - targets.values).flatten(2) ** 2).sum()

    def flat(gradients: tuple[Tensor, ...]) -> Tensor:
        return torch.cat([torch.view_as_real(part).flatten() if part.is_complex() else part.flatten() for part in gradients])

    gradient = flat(torch.autograd.grad(loss, parameters, create_graph=True))
    rows = [
        flat(torch.autograd.grad(entry, parameters, retain_graph=True, materialize_grads=True)).detach() for entry in gradient
    ]
    return torch.stack(rows)
