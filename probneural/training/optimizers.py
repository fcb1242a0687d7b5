"""Optimisers and schedules, made as the options say, and their state in tensors and JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LRScheduler, OneCycleLR

from probneural.checks import described
from probneural.errors import ArgumentError
from probneural.training.muon import Muon
from probneural.training.options import Optimization


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
    if not isinstance(made, Optimizer):
        raise ArgumentError(
            expected="an optimizer of torch.optim made by optimizer(parameters, lr=learning_rate)",
            got=described(made),
            remedy="give the class, torch.optim.SGD for example, or a function that returns its instance",
        )
    return made


def make_schedule(optimizer: Optimizer, *, steps: int, options: Optimization) -> LRScheduler:
    """Return the schedule of an optimiser over a number of steps.

    Raises:
        ArgumentError: If a callable of the user's returns something else.
    """
    if options.schedule == "one-cycle":
        peaks = [float(group["lr"]) for group in optimizer.param_groups]
        cycles = bool({"momentum", "betas"} & {*optimizer.defaults})
        return OneCycleLR(optimizer, peaks, total_steps=max(steps, 2), cycle_momentum=cycles)
    if options.schedule == "cosine":
        return CosineAnnealingLR(optimizer, T_max=steps)
    if options.schedule is None:
        return ConstantLR(optimizer, factor=1.0)
    made = options.schedule(optimizer, steps)
    if not isinstance(made, LRScheduler) or isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ArgumentError(
            expected="a schedule of torch.optim.lr_scheduler that steps without a loss, made by schedule(optimizer, steps)",
            got=described(made),
            remedy="return torch.optim.lr_scheduler.LambdaLR(...) for example",
        )
    return made


def packed(state: Mapping[Any, Mapping[str, Any]]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Sort an optimiser's state into tensors, `NUMBER.NAME` and deeper, and a JSON skeleton of all that is no tensor itself.

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


def trial_step(optimizer: Optimizer) -> None:
    """Take a step that decreases half the sum of the squares of the parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def closure() -> float:
        for parameter in parameters:
            parameter.grad = parameter.detach().clone()
        return sum(float(parameter.detach().abs().square().sum()) / 2 for parameter in parameters)

    if isinstance(optimizer, torch.optim.LBFGS):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()


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
        got=f"{described(value)} as {name}",
        remedy="train without a checkpoint, or with another optimizer",
    )


def _filled(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        return tensors[value["tensor"]]
    return [_filled(entry, tensors) for entry in value] if isinstance(value, list) else value
