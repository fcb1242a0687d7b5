"""Construction and training of the operators of the main benchmark."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import probneural as pn
from probneural.training.callbacks import History


@dataclass(frozen=True)
class Recipe:
    """An operator and its training.

    Attributes:
        kind: Kind of operator.
        epochs: Passes over the training pairs; 0 for closed-form fits.
        learning_rate: Peak of the schedule.
        options: Arguments of the operator's constructor other than channels, modes and grids.
        weight_decay: Weight decay of the optimiser, dimensionless.
    """

    kind: str
    epochs: int = 0
    learning_rate: float = 3e-3
    options: dict[str, Any] = field(default_factory=dict)
    weight_decay: float = 0.0

    @property
    def optimization(self) -> pn.training.Optimization:
        """The default optimiser with weight decay."""
        return pn.training.Optimization(weight_decay=self.weight_decay)

    def build(self, train: pn.FieldPairs, *, seed: int) -> Any:
        """An untrained operator for pairs of this shape, on their device, with weights of the seed."""
        return self._built(train, seed=seed).to(train.inputs.device)

    def _built(self, train: pn.FieldPairs, *, seed: int) -> Any:
        channels = train.inputs.channels, train.outputs.channels
        if self.kind == "FNO":
            return pn.operators.FNO(*channels, **{"periodic": train.inputs.grid.periodic, **self.options}, seed=seed)
        if self.kind == "DeepONet":
            return pn.operators.DeepONet(*channels, **{"sensors": train.inputs.grid, **self.options}, seed=seed)
        if self.kind == "POD-DeepONet":
            grids = {"sensors": train.inputs.grid, "out_grid": train.outputs.grid}
            return pn.operators.PODDeepONet(*channels, **{**grids, **self.options}, seed=seed)
        raise ValueError(f"no recipe for {self.kind}")

    def train(
        self, train: pn.FieldPairs, *, seed: int, tick: Callable[[], None]
    ) -> tuple[torch.nn.Module, dict[str, Any], History | None]:
        """Build and train; return the operator, facts for the report, and the losses."""
        start = time.process_time()
        facts: dict[str, Any] = {"pairs": len(train), "resolution": list(train.inputs.grid.shape)}
        if self.kind == "linear regression":
            operator: torch.nn.Module = pn.operators.LinearRegression.fitted(train)
            tick()
            return operator, facts | {"epochs": 0, "seconds": time.process_time() - start}, None
        operator = self.build(train, seed=seed)
        history = pn.fit(
            operator,
            train,
            epochs=self.epochs,
            seed=seed,
            learning_rate=self.learning_rate,
            optimization=self.optimization,
            show_progress=False,
            run=pn.training.RunOptions(callbacks=[pn.training.EachEpoch(lambda progress: tick())]),
        )
        facts |= {
            "epochs": self.epochs,
            "seconds": time.process_time() - start,
            "parameters": sum(parameter.numel() for parameter in operator.parameters()),
            "history": {"train": list(history.train), "validation": list(history.validation)},
        }
        return operator, facts, history


def fno(*modes: int, epochs: int, learning_rate: float = 3e-3, weight_decay: float = 0.0, **options: Any) -> Recipe:
    """An FNO with these modes per axis."""
    chosen = {"modes": modes, **options}
    return Recipe("FNO", epochs=epochs, learning_rate=learning_rate, options=chosen, weight_decay=weight_decay)


def deeponet(*, epochs: int, learning_rate: float = 1e-3, **options: Any) -> Recipe:
    """A DeepONet with sensors at the training grid."""
    return Recipe("DeepONet", epochs=epochs, learning_rate=learning_rate, options=options)


def pod_deeponet(*, epochs: int, learning_rate: float = 1e-3, **options: Any) -> Recipe:
    """A POD-DeepONet with sensors at the training grid."""
    return Recipe("POD-DeepONet", epochs=epochs, learning_rate=learning_rate, options=options)


def ensemble(members: Sequence[torch.nn.Module], train: pn.FieldPairs) -> pn.distributions.Predictor:
    """A deep ensemble of operators trained in other processes."""
    rest = iter(members[1:])

    def recall(operator: torch.nn.Module, data: pn.FieldPairs, *, seed: int) -> None:
        operator.load_state_dict(next(rest).state_dict())

    head = pn.heads.DeepEnsemble(len(members), train=recall, keeps_operator=True, show_progress=False)
    return head.fit(members[0], train)


def own_data(train: pn.FieldPairs) -> list[Recipe]:
    """Recipes for user data, with sizes from the grid."""
    grid = train.inputs.grid
    cap = {1: 16, 2: 12, 3: 8}[grid.dimension]
    modes = tuple(min(cap, (size + 1) // 2) for size in grid.shape)
    walls = not all(grid.periodic)
    options: dict[str, Any] = {"width": 32} if grid.dimension == 1 else {"width": 16, "continuation": "alternating"}
    epochs = max(20, min(200, math.ceil(30_000 / len(train))))
    return [
        fno(*modes, epochs=epochs, embeds_position=walls, **options),
        deeponet(epochs=2 * epochs),
    ]
