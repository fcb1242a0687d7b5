"""What looks odd and has to be taken: NumPy's numbers, arrays and lists, data with a graph, and PyTorch's contexts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

import probneural as pn
from probneural import active
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import FieldPairs
from probneural.training import DataOptions
from tests.bad_input.world import (
    GRID,
    Good,
    empirical,
    fno,
    gaussian,
    halve,
    laplace,
    normal,
    pairs,
    probe,
    select,
    trained,
    truth,
)

NUMBERS = [[[0.1, 0.2]]] * 3


def graph() -> FieldPairs:
    """The pairs, with values that require gradients."""
    inputs, outputs = pairs().inputs, pairs().outputs
    return FieldPairs(Field(inputs.values.clone().requires_grad_(), GRID), Field(outputs.values.clone().requires_grad_(), GRID))


def weights(context: Callable[[], Any] = contextlib.nullcontext, **changes: Any) -> Tensor:
    """What training for an epoch, in a context, makes of the small operator."""
    operator = fno()
    settings: dict[str, Any] = {"epochs": 1, "show_progress": False} | changes
    with context():
        pn.fit(operator, settings.pop("train", fresh_pairs()), **settings)
    return torch.cat([parameter.detach().flatten() for parameter in operator.parameters()])


def within(context: Callable[[], Any], call: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The call inside a context."""

    def inside() -> Tensor:
        with context():
            return call()

    return inside


def deviation(head: Any, data: FieldPairs | None = None) -> Tensor:
    """Mean and standard deviation that a head predicts, after a fit."""
    field = head.fit(trained(), pairs() if data is None else data)(pairs().inputs)
    return torch.stack([field.mean.detach(), field.standard_deviation.detach()])


HEADS: dict[str, Callable[[], Any]] = {
    "LastLayerLaplace": pn.heads.LastLayerLaplace,
    "Laplace": lambda: pn.heads.Laplace("full", parameters=["readout"]),
    "diagonal Laplace": lambda: pn.heads.Laplace("diagonal"),
    "KernelOperator": lambda: pn.heads.KernelOperator(iterations=1),
    "DeepEnsemble": lambda: pn.heads.DeepEnsemble(2, train=halve, show_progress=False),
}
CONTEXTS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "meta as default device": lambda: torch.device("meta"),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


def fresh_pairs() -> FieldPairs:
    """Pairs whose tensors are made in the caller's context, but on the CPU."""
    return FieldPairs(*(Field(side.values.clone(), side.grid) for side in (pairs().inputs, pairs().outputs)))


IN_CONTEXTS = [
    *[
        Good(
            f"{name} in {place}",
            within(context, lambda made=made: deviation(made(), fresh_pairs())),
            lambda made=made: deviation(made()),
        )
        for name, made in HEADS.items()
        for place, context in CONTEXTS.items()
    ],
    *[
        Good(f"fit in {place}", lambda context=context: weights(context), weights)
        for place, context in CONTEXTS.items()
        if place != "autocast"  # there it may be meant
    ],
    *[
        Good(f"{name} of data with a graph", lambda made=made: deviation(made(), graph()), lambda made=made: deviation(made()))
        for name, made in HEADS.items()
    ],
    Good("fit to data with a graph", lambda: weights(train=graph()), weights),
    *[
        Good(
            f"a standard deviation in {place}",
            within(context, lambda: laplace()(pairs().inputs).standard_deviation),
            lambda: laplace()(pairs().inputs).standard_deviation,
        )
        for place, context in CONTEXTS.items()
    ],
]


def as_numbers(values: Tensor) -> list[Any]:
    """Several spellings of the same numbers."""
    double = values.to(torch.float64)
    return [double.tolist(), double.numpy(), double.float().numpy(), tuple(double.tolist())]


KINDS = ("list", "array", "float32 array", "tuple")


def spelt(name: str, call: Callable[[Any], Tensor], values: Tensor) -> list[Good]:
    """One case for each spelling, against the tensor."""
    return [
        Good(f"{name} as {kind}", lambda given=given: call(given), lambda: call(values))
        for kind, given in zip(KINDS, as_numbers(values), strict=True)
    ]


ARRAYS = [
    *spelt("constrain", lambda v: gaussian().constrain(probe(), v).mean, torch.tensor(NUMBERS)),
    *spelt("condition", lambda v: gaussian().condition(probe(), v, noise=0.1).mean, torch.tensor(NUMBERS)),
    *spelt("condition's noise", lambda v: gaussian().condition(probe(), NUMBERS, noise=v).mean, torch.full((3, 1, 2), 0.5)),
    *spelt("noise per channel", lambda v: gaussian().condition(probe(), NUMBERS, noise=v).mean, torch.tensor([0.5])),
    *spelt("scale", lambda v: gaussian().scale(v).variance, torch.tensor([2.0])),
    *spelt("scale of members", lambda v: empirical().scale(v).variance, torch.tensor([2.0])),
    *spelt("log_prob", lambda v: gaussian().log_prob(v, noise=0.5), torch.full((3, 1, 16), 0.5)),
    *spelt("base samples", lambda v: gaussian().rsample((2,), base_samples=v), torch.full((2, 5), 0.5)),
    *spelt(
        "weights",
        lambda v: pn.distributions.EmpiricalField(normal(4, 3, 1, 16), v, grid=GRID).mean,
        torch.tensor([0.25, 0.5, 0.125, 0.125]),
    ),
    *spelt("a functional's values", lambda v: probe()(v).float(), torch.full((1, 1, 16), 0.5)),
    *spelt("sensors", lambda v: pn.functionals.sensors(GRID, v)(truth().values), torch.tensor([[0.25], [0.5]])),
    *spelt("scattered points", lambda v: Grid.scattered(v, [1.0, 1.0]).points, torch.tensor([[0.25], [0.5]])),
    *spelt("a head's noise", lambda v: pn.heads.LastLayerLaplace(noise=v).fit(trained(), pairs()).noise, torch.tensor([0.25])),
    *spelt("a score's noise", lambda v: torch.tensor(pn.metrics.score(gaussian(), truth(), noise=v).crps), torch.tensor([0.5])),
]


def trained_by(name: str, value: object) -> Good:
    """A setting of `fit` as NumPy's number."""
    plain = value.item() if isinstance(value, np.generic) else value
    return Good(f"{name}={value!r}", lambda: weights(**{name: value}), lambda: weights(**{name: plain}))


SCALARS = [
    trained_by("epochs", np.int64(2)),
    trained_by("epochs", np.int32(1)),
    trained_by("epochs", np.uint8(1)),
    Good(
        "batch_size", lambda: weights(data=DataOptions(batch_size=np.int64(4))), lambda: weights(data=DataOptions(batch_size=4))
    ),
    trained_by("seed", np.int64(3)),
    trained_by("learning_rate", np.float64(1e-3)),
    trained_by("learning_rate", np.float32(0.25) / 64),
    trained_by("learning_rate", 1),
    trained_by("show_progress", np.bool_(False)),
    Good("shape", lambda: Grid.uniform((np.int64(8),)).points, lambda: Grid.uniform(8).points),
    Good("length", lambda: Grid.uniform(8, lengths=np.float32(2.0)).points, lambda: Grid.uniform(8, lengths=2).points),
    Good("periodic", lambda: Grid.uniform(8, periodic=np.bool_(False)).points, lambda: Grid.uniform(8, periodic=False).points),  # type: ignore[arg-type]
    Good("modes", lambda: weights_of(fno(modes=(np.int64(3),))), lambda: weights_of(fno(modes=(3,)))),
    Good("width", lambda: weights_of(fno(width=np.int64(4))), lambda: weights_of(fno(width=4))),
    Good("saved", lambda: saved(fno(width=np.int64(4), depth=np.int32(1))), lambda: weights_of(fno())),
    Good("members", lambda: ensemble_of(np.int64(2)), lambda: ensemble_of(2)),
    Good("ensemble's seed", lambda: ensemble_of(2, seed=np.int64(1)), lambda: ensemble_of(2, seed=1)),
    Good("factor", lambda: (probe() * np.float64(2.0))(truth().values), lambda: (probe() * 2.0)(truth().values)),
    Good("index", lambda: pairs().inputs[np.int64(3)].values, lambda: pairs().inputs[3].values),
    Good("indices", lambda: pairs().inputs[np.array([3, -1])].values, lambda: pairs().inputs[[3, -1]].values),
    Good("mask", lambda: pairs().inputs[np.arange(12) > 9].values, lambda: pairs().inputs[10:].values),
    Good(
        "count", lambda: select(active.RandomSelection(), count=np.int64(2)), lambda: select(active.RandomSelection(), count=2)
    ),
]


def weights_of(operator: torch.nn.Module) -> Tensor:
    """All parameters."""
    return torch.cat([parameter.detach().flatten() for parameter in operator.parameters()])


def saved(operator: torch.nn.Module) -> Tensor:
    """All parameters, after a trip through a file."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        pn.save(operator, Path(folder) / "operator")
        return weights_of(pn.load(Path(folder) / "operator"))  # type: ignore[arg-type]


def ensemble_of(members: Any, *, seed: Any = 0) -> Tensor:
    """Means of an ensemble."""
    return deviation(pn.heads.DeepEnsemble(members, train=halve, seed=seed, show_progress=False))


CASES = [*IN_CONTEXTS, *ARRAYS, *SCALARS]
