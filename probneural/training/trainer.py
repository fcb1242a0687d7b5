"""Training: plain PyTorch, resumable bit for bit."""

from __future__ import annotations

import copy
import hashlib
import inspect
import json
import math
import os
import time
import warnings
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from probneural.checks import (
    check_callable,
    check_flag,
    check_integer,
    check_module,
    check_path,
    check_positive,
    check_real,
    described,
)
from probneural.contexts import undisturbed
from probneural.errors import ArgumentError, ConvergenceWarning, FileError, TrainingError
from probneural.fields import evaluate
from probneural.grids import Grid
from probneural.operators import Operator
from probneural.pairs import FieldPairs, check_pairs
from probneural.randomness import check_seed, seeded, stream, stream_seed
from probneural.training import atomic, checkpoints, files
from probneural.training.devices import resolve_device
from probneural.training.history import History
from probneural.training.losses import relative_l2

Loss = Callable[[Tensor, Tensor, Grid], Tensor]
"""Maps predictions and targets `(n, c, *grid)` and their grid to one number."""
_MUCH_WORSE = 3.0
"""How many times the loss at the beginning a training may end at without a warning."""


@undisturbed(keeps_autocast=True)
@torch.enable_grad()
def fit(  # noqa: PLR0913 (eleven keyword-only settings, each with a default that works)
    operator: nn.Module,
    train: FieldPairs,
    *,
    epochs: int = 50,
    seed: int = 0,
    batch_size: int = 20,
    learning_rate: float = 3e-3,
    weight_decay: float = 0.0,
    validation: float = 0.1,
    loss: Loss | None = None,
    device: str | torch.device | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    show_progress: bool = True,
    on_epoch: Callable[[int, dict[str, float]], None] | None = None,
) -> History:
    """Train an operator in place, with AdamW under a one-cycle schedule.

    The last weights are kept: the validation split (taken from the training data) is for watching only, so nothing is
    chosen by it. Operators of this library first take their units from the training part,
    unless an earlier training gave them some. The mode (train or eval) of every submodule and the global random state are left
    as they were. Data are detached, and gradients are recorded here even under `torch.no_grad`. A `ConvergenceWarning` is given
    if the training loss ends three times above that of the first batch, before any step, and above that of predicting zero (of
    the first epoch, if `loss` is your own).

    Args:
        operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`.
        train: Training pairs.
        epochs: Passes over the training part.
        seed: Names the split and the order of the batches, a non-negative integer; the same seed, data and thread count give
            the same bits.
        batch_size: Pairs a step.
        learning_rate: The cycle's peak.
        weight_decay: AdamW's decay, dimensionless.
        validation: Share of the pairs that is only watched; 0 trains on all.
        loss: Loss of a batch; by default the relative L2 error by quadrature, averaged over channels and functions.
        device: Where to train: a device, `"auto"` (CUDA, MPS or CPU), or by default the operator's own.
        checkpoint: File to write after every epoch and to resume from, at the same bits, if it exists. It knows the run by
            its data, its settings and the shapes of the weights; that `loss` is the same one is the caller's to see to.
        show_progress: Whether to show a progress bar.
        on_epoch: Called after each epoch with its number, from 1, and its losses by name.

    Returns:
        The losses by epoch.

    Raises:
        ArgumentError: If a setting is out of range, the operator is no module, or the loss takes other arguments or gives no
            number.
        DataError: If the data are fewer than two pairs or not finite, or their scale is beyond the operator's dtype.
        TrainingError: If a loss or a weight becomes NaN or infinite; the operator has the weights from before that epoch.
        FileError: If the checkpoint is damaged, or belongs to other settings or data.

    Examples:
        >>> from probneural.fields import Field
        >>> from probneural.operators import FNO
        >>> fields = Field(torch.randn(20, 1, 16, generator=torch.Generator().manual_seed(0)), Grid.uniform((16,)))
        >>> operator = FNO(1, 1, modes=(4,), width=4, depth=1, projection=4)
        >>> fit(operator, FieldPairs(fields, fields), epochs=2, show_progress=False).epochs
        2
    """
    check_module(operator, "operator")
    _check_loss(loss)
    epochs = check_integer(epochs, "epochs")
    seed = check_seed(seed)
    show_progress = check_flag(show_progress, "show_progress")
    if on_epoch is not None:
        check_callable(on_epoch, "on_epoch", remedy="give a function of the epoch's number and its losses")
    where = resolve_device(device, operator)
    operator.to(where)
    pairs = check_pairs(train, least=2).detached().to(where)
    first, second = _split(pairs, check_real(validation, "validation", least=0.0, below=1.0), seed)
    run = _Run(
        operator=operator,
        train=first,
        validation=second,
        loss=_relative_l2 if loss is None else check_callable(loss, "loss", remedy="leave it out for the relative L2 error"),
        settings=_Settings(
            epochs=epochs,
            batch_size=min(check_integer(batch_size, "batch_size"), len(first)),
            seed=seed,
            learning_rate=check_positive(learning_rate, "learning_rate"),
            weight_decay=check_real(weight_decay, "weight_decay", least=0.0),
        ),
    )
    modes = {module: module.training for module in operator.modules()}
    path = None if checkpoint is None else check_path(checkpoint, "checkpoint")
    try:
        if path is not None:
            atomic.remove_abandoned(path.resolve().parent, name=path.resolve().name)
        if path is not None and path.exists():
            run.resume(path)
        elif isinstance(operator, Operator) and not operator.has_units:
            operator.fit_normalizers(run.train)
        with tqdm(total=epochs, initial=len(run.losses), desc="training", unit="epoch", disable=not show_progress) as bar:
            while len(run.losses) < epochs:
                run.epoch()
                bar.update()
                bar.set_postfix({name: f"{value:.2e}" for name, value in run.latest().items()})
                if path is not None:
                    run.save(path)
                if on_epoch is not None:
                    on_epoch(len(run.losses), run.latest())
    finally:
        for module, mode in modes.items():
            module.training = mode
    run.warn_if_worse()
    return History(train=tuple(run.losses), validation=tuple(run.watched), seconds=tuple(run.seconds))


def _relative_l2(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
    return relative_l2(predicted, target, grid=grid).mean()


@dataclass(frozen=True, kw_only=True)
class _Settings:
    """How a run goes; a checkpoint belongs to one set of them."""

    epochs: int
    batch_size: int
    seed: int
    learning_rate: float
    weight_decay: float


@dataclass(kw_only=True)
class _Run:
    """The state of one training run: everything a checkpoint must hold, and how an epoch goes."""

    operator: nn.Module
    train: FieldPairs
    validation: FieldPairs | None
    loss: Loss
    settings: _Settings

    def __post_init__(self) -> None:
        self.begin: float | None = None
        self.losses: list[float] = []
        self.watched: list[float] = []
        self.seconds: list[float] = []
        self.steps = -(-len(self.train) // self.settings.batch_size)
        parameters = [parameter for parameter in self.operator.parameters() if parameter.requires_grad]
        if not parameters:
            raise ArgumentError(expected="an operator with parameters to train", got="none", remedy="unfreeze some")
        if any(parameter.is_inference() for parameter in parameters):
            raise ArgumentError(
                expected="an operator with parameters that autograd takes",
                got="one that was made in torch.inference_mode",
                remedy="build it outside, or under torch.no_grad",
            )
        self.optimizer = torch.optim.AdamW(parameters, lr=self.settings.learning_rate, weight_decay=self.settings.weight_decay)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, self.settings.learning_rate, total_steps=max(self.settings.epochs * self.steps, 2)
        )

    def epoch(self) -> None:
        """Train on every pair once, in an order named by seed and epoch."""
        start = time.perf_counter()
        number = len(self.losses)
        before = copy.deepcopy(self.operator.state_dict())
        with seeded(self.settings.seed, "training", number, devices=[self.train.inputs.device]):
            total = self._pass(
                torch.randperm(len(self.train), generator=stream(self.settings.seed, "batches", number), device="cpu")
            )
            mean = float(total) / len(self.train)
            self._check(before, mean)
            watched = None if self.validation is None else self._watch(self.validation)
        self.losses.append(mean)
        if watched is not None:
            self.watched.append(watched)
        self.seconds.append(time.perf_counter() - start)

    def _pass(self, order: Tensor) -> Tensor:
        """Train on every pair once, in this order; returns the sum of the losses, float64, on the CPU."""
        self.operator.train()
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        for rows in order.split(self.settings.batch_size):
            batch = self.train[rows.to(self.train.inputs.device)]
            self.optimizer.zero_grad(set_to_none=True)
            value = self._loss(batch)
            if self.begin is None:
                self.begin = float(value.detach())
            value.backward()
            self.optimizer.step()
            self.schedule.step()
            total += value.detach().to("cpu", torch.float64) * len(batch)
        return total

    def _check(self, before: dict[str, Tensor], mean: float) -> None:
        """Raise a TrainingError, with the weights from before the epoch put back, unless loss and weights are finite."""
        # The loss of the last step is from before its update, so the weights are looked at too.
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in self.operator.parameters())
        if not (finite and math.isfinite(mean)):
            self.operator.load_state_dict(before)
            after = "finite" if finite else "not finite"
            raise TrainingError(
                expected="a finite loss and finite weights",
                got=f"a mean loss of {mean} in epoch {len(self.losses)}, weights {after} after it",
                remedy="lower learning_rate, or check the data's scale; the operator is as it was before this epoch",
            )

    @torch.no_grad()
    def _watch(self, pairs: FieldPairs) -> float:
        self.operator.eval()
        total = 0.0
        for start in range(0, len(pairs), self.settings.batch_size):
            batch = pairs[start : start + self.settings.batch_size]
            total += float(self._loss(batch)) * len(batch)
        return total / len(pairs)

    def _loss(self, batch: FieldPairs) -> Tensor:
        query = None if batch.outputs.grid == batch.inputs.grid else batch.outputs.grid
        predicted = evaluate(self.operator, batch.inputs, query)
        value = self.loss(predicted, batch.outputs.values, batch.outputs.grid)
        recorded = not torch.is_grad_enabled() or (isinstance(value, Tensor) and value.requires_grad)
        if not isinstance(value, Tensor) or value.ndim != 0 or value.is_complex() or not recorded:
            raise ArgumentError(
                expected="a loss that returns one real number, as a tensor that depends on the weights",
                got=f"a tensor of shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value),
                remedy="average over functions, and leave the graph attached",
            )
        return value

    def warn_if_worse(self) -> None:
        """Give a warning if training has led away from where it began, further than training on from a good fit does."""
        trivial = 1.0 if self.loss is _relative_l2 else self.losses[0]
        if self.begin is not None and self.losses[-1] > _MUCH_WORSE * max(self.begin, trivial):
            warnings.warn(
                f"training ended at a loss of {self.losses[-1]:.3g}, having begun at {self.begin:.3g}: lower learning_rate",
                ConvergenceWarning,
                stacklevel=5,  # of whoever calls pn.fit, through its two decorators
            )

    def latest(self) -> dict[str, float]:
        """The last losses by name."""
        shown = {"train": self.losses[-1]}
        if self.watched:
            shown["validation"] = self.watched[-1]
        return shown

    @cached_property
    def fingerprint(self) -> str:
        """What must agree for a checkpoint to be resumed: data and settings."""
        total = hashlib.sha256(json.dumps(astuple(self.settings)).encode())
        for pairs in (self.train, self.validation):
            for side in () if pairs is None else (pairs.inputs, pairs.outputs):
                total.update(repr(side).encode())
                for tensor in (side.values, side.grid.points, side.grid.weights):
                    total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return total.hexdigest()

    def structure(self) -> list[list[Any]]:
        """Names, shapes and dtypes of the weights, and which of them are trained, in types that JSON knows."""
        trained = {name for name, parameter in self.operator.named_parameters() if parameter.requires_grad}
        state = self.operator.state_dict()
        return [[name, list(value.shape), str(value.dtype), name in trained] for name, value in state.items()]

    def save(self, path: Path) -> None:
        """Write weights, optimiser, schedule and history in one atomic file."""
        tensors = {f"model.{name}": value for name, value in self.operator.state_dict().items()}
        state = self.optimizer.state_dict()
        for number, moments in state["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
        metadata: dict[str, Any] = {
            "kind": "checkpoint",
            "fingerprint": self.fingerprint,
            "structure": self.structure(),
            **self._optimization(),
            "begin": self.begin,
            "losses": self.losses,
            "watched": self.watched,
            "seconds": self.seconds,
        }
        files.write(path, tensors, metadata=metadata)

    def _optimization(self) -> dict[str, Any]:
        """Settings of the optimiser and state of the schedule, in types that JSON knows."""
        schedule = {name: value for name, value in self.schedule.state_dict().items() if _is_json(value)}
        return {"groups": self.optimizer.state_dict()["param_groups"], "schedule": schedule}

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same run."""
        tensors, metadata = files.read(path)
        if metadata.get("kind") != "checkpoint" or metadata.get("fingerprint") != self.fingerprint:
            raise FileError(
                expected="a checkpoint of this run: same data, epochs, batch size, seed and rates",
                got=f"another one in {path}",
                remedy="remove the file to start anew, or name another",
            )
        if metadata.get("structure") != self.structure():
            raise FileError(
                expected=f"a checkpoint of this {type(self.operator).__name__}",
                got=f"one with other weights in {path}",
                remedy="build the operator with the same arguments and freeze the same parameters, or name another file",
            )
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        weights, moments = checkpoints.sorted_tensors(tensors, self.operator.state_dict(), parameters=parameters)
        groups, schedule = checkpoints.progress(
            metadata,
            self._optimization(),
            epochs=self.settings.epochs,
            steps=self.steps,
            has_validation=self.validation is not None,
        )
        self.operator.load_state_dict(weights)
        self.optimizer.load_state_dict({"state": moments, "param_groups": groups})
        self.schedule.load_state_dict({**self.schedule.state_dict(), **schedule})
        self.begin = metadata["begin"]
        self.losses, self.watched = list(metadata["losses"]), list(metadata["watched"])
        self.seconds = list(metadata["seconds"])


def _check_loss(loss: Loss | None) -> None:
    """Raise an ArgumentError unless a loss can be called with predictions, targets and their grid."""
    if loss is None:
        return
    try:
        inspect.signature(getattr(loss, "forward", loss)).bind(None, None, None)
    except TypeError as error:
        raise ArgumentError(
            expected="a loss called as loss(predicted, target, grid)",
            got=f"{described(loss)}: {error}",
            remedy="wrap one of two arguments: lambda predicted, target, grid: torch.nn.functional.mse_loss(predicted, target)",
        ) from error
    except ValueError:  # some built-in callables have no signature
        return


def _is_json(value: object) -> bool:
    return isinstance(value, (bool, int, float, str, list))


def _split(train: FieldPairs, fraction: float, seed: int) -> tuple[FieldPairs, FieldPairs | None]:
    count = round(fraction * len(train))
    if count == 0:
        return train, None
    if count == len(train):
        raise ArgumentError(
            expected="a validation fraction that leaves pairs to train on",
            got=f"validation={fraction} of {len(train)} pairs",
            remedy="lower it, or give more data",
        )
    second, first = train.split(count, seed=stream_seed(seed, "validation"))
    return first, second
