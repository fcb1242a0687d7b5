"""Optimisers and schedules, and their state in tensors and JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adamw import adamw
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler

from probneural import checks
from probneural.errors import ArgumentError
from probneural.training.options import Optimization

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration; Jordan (2024) chose them for their slope at zero. Five passes take singular values to [.7, 1.2]."""
_PASSES = 5
_ROOT_MEAN_SQUARE = 0.2
"""Size of an update's entries, about that of AdamW's, so that one learning rate serves both (Liu et al. 2025)."""


class Muon(torch.optim.Optimizer):
    """Muon, momentum with orthogonalised updates, for small matrices; AdamW for the other weights.

    A matrix here is a weight of two dimensions, both above one, such as the pointwise weights of an FNO. Its update is the
    nearest matrix with equal singular values, found by five Newton-Schulz passes in the weight's own precision, over all
    matrices of one shape together. That costs some 30 m² M operations for m ≤ M rows and columns, whatever the batch, so
    matrices with m above `largest` are left to AdamW: the layers of a wide DeepONet, for which a step would take several
    times as long. Biases, vectors and spectral weights are AdamW's in any case.

    Args:
        parameters: The weights.
        lr: Learning rate, dimensionless, of both parts.
        momentum: Decay of the averaged gradient of matrices, dimensionless; in Nesterov's form.
        betas: Decays of AdamW's moments, dimensionless.
        eps: AdamW's, in units of the gradient.
        weight_decay: Share of a weight that a step removes, over the learning rate; for all weights.
        largest: Matrices with more rows and more columns than this are left to AdamW; None for no limit.

    Raises:
        ArgumentError: If a parameter is not a floating point leaf tensor, there are none, or an option is out of range.

    References:
        Jordan et al. (2024), "Muon: an optimizer for hidden layers in neural networks"; Liu et al. (2025), "Muon is scalable
        for LLM training", arXiv 2502.16982, section 2.2 (the scale of updates).

    Examples:
        >>> weight = torch.nn.Parameter(torch.eye(3))
        >>> weight.grad = torch.diag(torch.tensor([1.0, 2.0, 4.0]))
        >>> Muon([weight], lr=1.0).step()
        >>> bool((weight.detach().diagonal() < 0.8).all())
        True
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float = 3e-3,
        *,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        largest: int | None = 64,
    ) -> None:
        remedy = "give those of a module: operator.parameters()"
        weights = () if isinstance(parameters, Tensor) else checks.check_sequence(parameters, "parameters", remedy=remedy)
        if not weights or not all(isinstance(weight, Tensor) and weight.is_leaf and _is_inexact(weight) for weight in weights):
            raise ArgumentError(expected="leaf tensors as parameters, one at least", got=repr(parameters)[:200], remedy=remedy)
        decays = checks.check_sequence(betas, "betas", remedy="give two numbers")
        if len(decays) != 2:
            raise ArgumentError(expected="two numbers as betas", got=repr(betas), remedy="give betas=(0.9, 0.999)")
        options = {
            "lr": checks.check_real(lr, "lr", least=0.0),
            "momentum": checks.check_real(momentum, "momentum", least=0.0, below=1.0),
            "betas": tuple(checks.check_real(beta, "betas", least=0.0, below=1.0) for beta in decays),
            "eps": checks.check_positive(eps, "eps"),
            "weight_decay": checks.check_real(weight_decay, "weight_decay", least=0.0),
        }
        most = math.inf if largest is None else checks.check_integer(largest, "largest")
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for weight in weights:
            is_matrix = weight.ndim == 2 and 1 < min(weight.shape) <= most
            (matrices if is_matrix else others).append(weight)
        parts = {"muon": matrices, "adamw": others}
        super().__init__([{"params": tensors, "rule": rule} for rule, tensors in parts.items() if tensors], options)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Move the weights once.

        Args:
            closure: Function that evaluates the loss and its gradients, and returns the loss.

        Returns:
            The closure's result, or None without a closure.
        """
        loss = None
        if closure is not None:
            checks.check_callable(closure, "closure", remedy="give a function that returns the loss, or none")
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            (self._orthogonal if group["rule"] == "muon" else self._adaptive)(group, trained)
        return loss

    def _orthogonal(self, group: dict[str, Any], trained: list[Tensor]) -> None:
        alike: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for parameter in trained:
            state, gradient = self.state[parameter], _gradient(parameter)
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            state["momentum_buffer"].lerp_(gradient, 1.0 - group["momentum"])
            update = gradient.lerp(state["momentum_buffer"], group["momentum"])
            alike.setdefault((parameter.shape, parameter.dtype, parameter.device), []).append((parameter, update))
        for (shape, _, _), pairs in alike.items():
            updates = orthogonalized(torch.stack([update for _, update in pairs]))
            rate = group["lr"] * _ROOT_MEAN_SQUARE * math.sqrt(max(shape))
            for (parameter, _), update in zip(pairs, updates, strict=True):
                parameter.mul_(1.0 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _adaptive(self, group: dict[str, Any], trained: list[Tensor]) -> None:
        states = [self.state[parameter] for parameter in trained]
        for parameter, state in zip(trained, states, strict=True):
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        adamw(
            trained,
            [_gradient(parameter) for parameter in trained],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            has_complex=any(parameter.is_complex() for parameter in trained),
        )


def orthogonalized(matrices: Tensor) -> Tensor:
    """Bring the singular values of matrices that are not zero near one, and leave their singular vectors.

    Args:
        matrices: `(k, rows, columns)`, real or complex.

    Returns:
        Matrices of the same shape, dimensionless, with singular values of about .7 to 1.2 wherever they were above some
        hundredths of the Frobenius norm.
    """
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    orthogonal = matrices.mH if is_tall else matrices
    norms = torch.linalg.matrix_norm(orthogonal, keepdim=True)
    orthogonal = orthogonal / norms.clamp(min=torch.finfo(norms.dtype).tiny)
    first, third, fifth = _COEFFICIENTS
    for _ in range(_PASSES):
        gram = orthogonal @ orthogonal.mH
        orthogonal = first * orthogonal + (third * gram + fifth * (gram @ gram)) @ orthogonal
    return orthogonal.mH if is_tall else orthogonal


def _gradient(weight: Tensor) -> Tensor:
    if weight.grad is None:
        raise RuntimeError("a weight without a gradient was to be moved")  # callers leave those out
    return weight.grad


def _is_inexact(values: Tensor) -> bool:
    return values.is_floating_point() or values.is_complex()


def make_optimizer(parameters: list[Tensor], *, learning_rate: float, options: Optimization) -> Optimizer:
    """Return the optimiser of these parameters.

    Raises:
        ArgumentError: If a callable of the user's returns something else.
    """
    if options.optimizer == "muon":
        return Muon(parameters, learning_rate, weight_decay=options.weight_decay)
    if options.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=options.weight_decay)
    if options.optimizer == "lbfgs":
        return torch.optim.LBFGS(parameters, lr=learning_rate, line_search_fn="strong_wolfe")
    made = options.optimizer(parameters, lr=learning_rate)
    remedy = "give the class, torch.optim.SGD for example, or a function that returns its instance"
    return checks.check_instance(made, Optimizer, "what optimizer(weights, lr=...) returns", remedy=remedy, error=ArgumentError)


def make_schedule(optimizer: Optimizer, *, steps: int, options: Optimization) -> LRScheduler:
    """Return the schedule of an optimiser over a number of steps.

    Raises:
        ArgumentError: If a callable of the user's returns something else.
    """
    if options.schedule == "cosine":
        return CosineAnnealingLR(optimizer, T_max=steps)
    if options.schedule is None:
        return ConstantLR(optimizer, factor=1.0)
    made = options.schedule(optimizer, steps)
    if not isinstance(made, LRScheduler) or isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ArgumentError(
            expected="a schedule of torch.optim.lr_scheduler that steps without a loss, made by schedule(optimizer, steps)",
            got=checks.described(made),
            remedy="return torch.optim.lr_scheduler.LambdaLR(...) for example",
        )
    return made


def packed(state: Mapping[Any, Mapping[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Split an optimiser's state into tensors, `NUMBER.NAME` and deeper, and a JSON skeleton of the remaining entries.

    Raises:
        ArgumentError: If it holds something that is neither.
    """
    tensors: dict[str, Tensor] = {}
    skeleton: dict[str, Any] = {}
    for number, entries in state.items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"{number}.{name}"] = value
            else:
                skeleton.setdefault(str(number), {})[name] = _skeleton(value, f"{number}.{name}", tensors)
    return tensors, skeleton


def unpacked(tensors: Mapping[str, Tensor], skeleton: Mapping[str, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The state that `packed` took apart.

    Raises:
        KeyError: If the skeleton names a tensor that is not there.
    """
    state: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        number, _, entry = name.partition(".")
        if "." not in entry:
            state.setdefault(int(number), {})[entry] = tensor
    for text, entries in skeleton.items():
        for entry, value in entries.items():
            state.setdefault(int(text), {})[entry] = _filled(value, tensors)
    return state


def _skeleton(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, list | tuple):
        return [_skeleton(entry, f"{name}.{number}", tensors) for number, entry in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ArgumentError(
        expected="an optimizer whose state is tensors, numbers and lists of them",
        got=f"{checks.described(value)} as {name}",
        remedy="train without a checkpoint, or with another optimizer",
    )


def _filled(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        return tensors[value["tensor"]]
    return [_filled(entry, tensors) for entry in value] if isinstance(value, list) else value
