"""A training run: its state, steps, epochs, and the state in a checkpoint."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from probneural.errors import ArgumentError, ConvergenceWarning, ProbneuralError, TrainingError, warn
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs
from probneural.processes import rank, summed, take_from_first, world_size
from probneural.randomness import seeded
from probneural.training import optimizers, weights
from probneural.training.callbacks import History, Progress
from probneural.training.loading import BatchOrder, Loader
from probneural.training.losses import BALANCED_STEPS, Balance, Loss, balanced, relative_l2, takes_inputs
from probneural.training.options import PRECISIONS, DataOptions, Optimization
from probneural.training.unrolling import Unroll


class Objective(nn.Module):
    """The loss of an operator as a module, which `DistributedDataParallel` can wrap.

    Args:
        operator: The trained operator.
        loss: Loss of predictions, targets and their grid; None for the relative L2 error, averaged over channels and samples.
        precision: Dtype of autocast; None for the operator's own precision.
        unroll: Settings for pairs of several following states; None for pairs of one.
    """

    def __init__(self, operator: nn.Module, loss: Loss | None, *, precision: str | None, unroll: Unroll | None = None) -> None:
        super().__init__()
        self.operator = operator
        self.loss = loss
        self.set_precision(precision)
        self.unroll = unroll
        self.balance = Balance() if balanced(loss) is not None and unroll is None else None
        self.updates_balance = False

    def set_precision(self, precision: str | None) -> None:
        """Autocast from now on, or not."""
        self.precision = None if precision is None else PRECISIONS[precision]

    def forward(self, batch: FieldPairs | None, *, is_watched: bool = False) -> Float[Tensor, ""]:
        """The loss of a batch; zero, with zero gradients, of none.

        Args:
            batch: Pairs.
            is_watched: Whether this is the validation loss, the mean over all steps.

        Raises:
            ArgumentError: If the loss is not a real number that depends on the weights.
        """
        if batch is None:
            return torch.stack(
                [parameter.abs().sum() * 0.0 for parameter in self.parameters() if parameter.requires_grad]
            ).sum()
        if self.unroll is not None:
            return self._unrolled(batch, self.unroll, is_cut=self.unroll.pushforward and not is_watched)
        predicted = self._predicted(batch.inputs, batch.outputs.grid, batch.outputs.dtype)
        if self.balance is not None:
            return self._balanced(predicted, batch, self.balance, is_watched=is_watched)
        return self._loss(predicted, batch.outputs, batch.inputs)

    def _balanced(self, predicted: Tensor, batch: FieldPairs, balance: Balance, *, is_watched: bool) -> Tensor:
        """The weighted sum of the loss's terms; of watched pairs with outputs, the loss of the data alone."""
        loss = balanced(self.loss)
        assert loss is not None
        terms = loss.terms(predicted, batch.outputs.values, batch.outputs.grid, inputs=batch.inputs)
        if is_watched:
            return terms["data"] if "data" in terms else balance.total(terms)
        if self.updates_balance or not balance.has(terms):
            balance.update(terms, [parameter for parameter in self.parameters() if parameter.requires_grad])
            self.updates_balance = False  # once in a step: the evaluations of a line search have one loss
        return _checked(balance.total(terms))

    def _unrolled(self, batch: FieldPairs, unroll: Unroll, *, is_cut: bool) -> Tensor:
        """The mean loss of several steps, each from the previous step's output."""
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
        lower = contextlib.nullcontext() if self.precision is None else torch.autocast(inputs.device.type, self.precision)
        with lower:
            predicted = evaluate(self.operator, inputs, None if grid == inputs.grid else grid)
        return predicted if self.precision is None else predicted.to(dtype)

    def _loss(self, predicted: Tensor, target: Field, inputs: Field) -> Tensor:
        if self.loss is None:
            return relative_l2(predicted, target.values, grid=target.grid).mean()
        more = {"inputs": inputs} if takes_inputs(self.loss) else {}
        return _checked(self.loss(predicted, target.values, target.grid, **more))


def _checked(value: object) -> Tensor:
    """Return a loss that is one real number with a graph, where graphs are recorded."""
    recorded = not torch.is_grad_enabled() or (isinstance(value, Tensor) and value.requires_grad)
    if not isinstance(value, Tensor) or value.ndim != 0 or value.is_complex() or not recorded:
        raise ArgumentError(
            expected="a loss that returns one real number, as a tensor that depends on the weights",
            got=f"a tensor of shape {tuple(value.shape)}, {value.dtype}" if isinstance(value, Tensor) else repr(value),
            remedy="average over samples, and leave the graph attached",
        )
    return value


_MUCH_WORSE = 3.0
"""Largest ratio of the final to the initial loss without a warning."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Configuration of a run, which identifies its checkpoint.

    Attributes:
        validation: The watched fraction, or the fingerprint of pairs of the user's own that are watched.
        loss: Loss of a batch; None for the relative L2 error.
        unroll: Settings for pairs of several following states; None for pairs of one.
    """

    epochs: int
    batch_size: int
    seed: int
    learning_rate: float
    validation: float | str
    loss: Loss | None
    optimization: Optimization
    unroll: Unroll | None = None

    def settings(self) -> dict[str, Any]:
        """The configuration without the loss, JSON-serialisable."""
        objects = ("loss", "optimization", "unroll")
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in objects}
        unrolled = {} if self.unroll is None else {"unroll": self.unroll.settings()}
        return plain | unrolled | self.optimization.settings()


class Run:
    """The state of a training run, and its epochs.

    Args:
        operator: The trained operator, on its device.
        train: Data sets to train on.
        validation: Data sets to watch; none without a split.
        data_fingerprint: Names the data.
        plan: Configuration of the run.
        data: Workers and prefetching.
    """

    def __init__(
        self,
        operator: nn.Module,
        *,
        train: Sequence[Dataset],
        validation: Sequence[Dataset],
        data_fingerprint: str,
        plan: Plan,
        data: DataOptions,
    ) -> None:
        self.operator, self.plan, self.data_fingerprint = operator, plan, data_fingerprint
        self.device = next((parameter.device for parameter in operator.parameters()), torch.device("cpu"))
        options = plan.optimization
        self.begin: float | None = None
        self.losses: list[float] = []
        self.watched: list[float] = []
        self.weights: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.step, self.elapsed = 0, 0.0
        self.total = torch.zeros((), dtype=torch.float64, device="cpu")
        self.last_loss, self.started = math.nan, time.perf_counter()
        self.last_rate: float | None = None
        self._given_back: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
        self.restored_random: dict[str, Tensor] = {}
        self.order, self.train = _reader(train, plan.batch_size, plan.seed, data, self.device)
        self.validation_order, self.validation = _reader(validation, plan.batch_size, None, data, self.device)
        self.steps = -(-len(self.order) // options.accumulation)
        self.parameters = _trained(operator)
        self.optimizer = optimizers.make_optimizer(self.parameters, learning_rate=plan.learning_rate, options=options)
        self.schedule = optimizers.make_schedule(self.optimizer, steps=plan.epochs * self.steps, options=options)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=options.precision == "float16")
        self.best: dict[str, Tensor] = {}
        self.objective: nn.Module = Objective(operator, plan.loss, precision=options.precision, unroll=plan.unroll)
        if world_size() > 1:
            self.objective = DistributedDataParallel(self.objective, find_unused_parameters=True)

    @contextlib.contextmanager
    def compiled(self, compiles: bool) -> Iterator[None]:
        """Compile the operator meanwhile; CUDA graphs reuse the memory of gradients, so they need steps of one forward pass."""
        before, options = self.operator._compiled_call_impl, self.plan.optimization
        is_one_pass = self.plan.unroll is None and self._judge.balance is None and options.accumulation == 1
        has_graphs = self.device.type == "cuda" and is_one_pass and options.optimizer != "lbfgs"
        if compiles and before is None:  # one that is compiled already remains as it is
            self.operator.compile(mode="reduce-overhead" if has_graphs else "default")
        try:
            yield
        finally:
            self.operator._compiled_call_impl = before

    @property
    def has_ended(self) -> bool:
        """Whether all epochs are done, or early stopping has ended the run."""
        stop = self.plan.optimization.early_stopping
        return len(self.losses) >= self.plan.epochs or (stop is not None and stop.has_ended(self.watched))

    def epoch(self, after_step: Callable[[], None]) -> None:
        """Train on every pair once, in an order named by seed and epoch.

        Args:
            after_step: Called after each step.
        """
        self.started = time.perf_counter() - self.elapsed
        number, seed = len(self.losses), self.plan.seed
        self._judge.set_precision(self.plan.optimization.precision_in(number, self.plan.epochs))
        before = weights.copied(self.operator)
        process = (rank(),) if rank() else ()
        with seeded(seed, "training", number, *process, devices=[self.device]) as given_back:
            weights.set_random_states(self.restored_random, self.device)
            self.restored_random = {}
            self._given_back = given_back
            try:
                self._pass(after_step)
            except BaseException as error:  # of a diverged step, of the loss at weights that are not finite, of a callback
                if not weights.are_finite(dict(self.operator.named_parameters())):
                    weights.put_back(self.operator, before)
                    if isinstance(error, RuntimeError) and not isinstance(error, ProbneuralError):
                        raise self._diverged(f"weights not finite within epoch {len(self.losses)}") from error
                raise
            self._given_back = contextlib.nullcontext
            count = sum(self.order.lengths)
            mean = float(summed(self.total)) / count
            take_from_first(self.operator.buffers())
            self._check(before, mean)
            watched = self._watch() if self.validation_order.lengths else None
        self.losses.append(mean)
        if self._judge.balance is not None:
            self.weights.append(self._judge.balance.weights)
        self.seconds.append(time.perf_counter() - self.started)
        self.step, self.elapsed = 0, 0.0
        self.total = torch.zeros((), dtype=torch.float64, device="cpu")
        if watched is not None:
            self.watched.append(watched)
            self._keep_best()

    def _pass(self, after_step: Callable[[], None]) -> None:
        """Take the steps of the epoch that are left."""
        self.operator.train()
        together = self.plan.optimization.accumulation
        self.order.set_epoch(len(self.losses), start=self.step * together)
        sizes = [len(rows) for _, rows in self.order.batches()][self.order.start :]
        batches = iter(self.train)
        with contextlib.closing(batches):
            for first in range(0, len(sizes), together):
                group = sizes[first : first + together]
                self._step(itertools.islice(batches, len(group)), group)
                self.step += 1
                after_step()

    def _step(self, batches: Iterator[FieldPairs | None], sizes: list[int]) -> None:
        """Move the weights once, by the gradient of the mean loss over the pairs of some batches."""
        self.last_rate = self._rate()
        self._judge.updates_balance = self.step % BALANCED_STEPS == 0
        if isinstance(self.optimizer, torch.optim.LBFGS):
            group = list(batches)
            values: list[Tensor] = []

            def closure() -> float:
                values.append(self._gradient(iter(group), sizes))
                return float(summed(values[-1])) / sum(sizes)

            self.optimizer.step(closure)
            value = values[0]
        else:
            value = self._gradient(batches, sizes)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        with warnings.catch_warnings() if self.scaler.is_enabled() else contextlib.nullcontext():
            if self.scaler.is_enabled():  # a step that the scaler leaves out, because gradients overflow, counts as one
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
            self.schedule.step()
        self.total += value
        self.last_loss = float(value) / sum(sizes)

    def _gradient(self, batches: Iterator[FieldPairs | None], sizes: list[int]) -> Tensor:
        """Set the gradients; returns the sum of this process's losses over its pairs, float64, on the CPU."""
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        for number, batch in enumerate(batches, start=1):
            count = 0 if batch is None else len(batch)
            with self._apart(number < len(sizes)):
                value = self.objective(batch)
                if self.begin is None and batch is not None:
                    self.begin = float(value.detach())
                share = world_size() * count / sum(sizes)  # DistributedDataParallel averages over processes
                self.scaler.scale(value if share == 1.0 else value * share).backward()
            total += value.detach().to("cpu", torch.float64) * count
        if self.plan.optimization.gradient_clip is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.parameters, self.plan.optimization.gradient_clip)
        return total

    def _apart(self, waits: bool) -> contextlib.AbstractContextManager[None]:
        """Leave gradients in this process until the last batch of a step."""
        if waits and isinstance(self.objective, DistributedDataParallel):
            return self.objective.no_sync()
        return contextlib.nullcontext()

    def _check(self, before: dict[str, Tensor], mean: float) -> None:
        """Raise a TrainingError, with the weights from before the epoch put back, unless loss and weights are finite."""
        # The loss of the last step is from before its update, so the weights are looked at too.
        finite = weights.are_finite(dict(self.operator.named_parameters()))
        if not (finite and math.isfinite(mean)):
            weights.put_back(self.operator, before)
            after = "finite" if finite else "not finite"
            raise self._diverged(f"a mean loss of {mean} in epoch {len(self.losses)}, weights {after} after it")

    @staticmethod
    def _diverged(got: str) -> TrainingError:
        return TrainingError(
            expected="a finite loss and finite weights",
            got=got,
            remedy="lower learning_rate, or check the data's scale; the operator is as it was before this epoch",
        )

    @torch.no_grad()
    def _watch(self) -> float:
        """The mean loss on the validation split."""
        total = torch.zeros((), dtype=torch.float64, device="cpu")
        self.operator.eval()
        for batch in self.validation:
            if batch is not None:
                total += float(self._judge(batch, is_watched=True)) * len(batch)
        return float(summed(total)) / sum(self.validation_order.lengths)

    @contextlib.contextmanager
    def interrupted(self, *, after_epoch: bool) -> Iterator[None]:
        """Let a callback act, with the caller's random state, and put the modes of all modules back afterwards.

        Args:
            after_epoch: Whether the operator is in evaluation mode.
        """
        with self._given_back(), weights.modes_kept(self.operator):
            if after_epoch:
                self.operator.eval()
            yield

    @property
    def norms(self) -> dict[str, float]:
        """Norms of the gradients of the loss's terms, where the loss is balanced."""
        return {} if self._judge.balance is None else self._judge.balance.norms

    @property
    def _judge(self) -> Objective:
        """The objective without its wrapper for distributed training."""
        held = self.objective.module if isinstance(self.objective, DistributedDataParallel) else self.objective
        assert isinstance(held, Objective)
        return held

    def _keep_best(self) -> None:
        """Copy the weights that were watched, if no epoch was better and they may be wanted back."""
        stop = self.plan.optimization.early_stopping
        if stop is not None and stop.restore_best and stop.best(self.watched) == len(self.watched) - 1:
            self.best = weights.copied(self.operator)

    def finish(self) -> History:
        """Give the operator the weights it ends with, and return the history."""
        if self.best:
            weights.put_back(self.operator, self.best)
        return self.history()

    def history(self) -> History:
        """The history so far."""
        stop = self.plan.optimization.early_stopping
        return History(
            train=tuple(self.losses),
            validation=tuple(self.watched),
            seconds=tuple(self.seconds),
            restored=stop.best(self.watched) + 1 if stop is not None and self.best else None,
            weights=tuple(self.weights),
        )

    def warn_if_worse(self) -> None:
        """Warn if the final loss is much larger than the initial one."""
        trivial = 1.0 if self.plan.loss is None else self.losses[0]
        if self.begin is not None and self.losses[-1] > max(bound := max(self.begin, trivial), _MUCH_WORSE * bound):
            warn(
                f"training ended at a loss of {self.losses[-1]:.3g}, having begun at {self.begin:.3g}: lower learning_rate",
                ConvergenceWarning,
            )

    def progress(self, *, after_epoch: bool) -> Progress:
        """Argument of callbacks."""
        return Progress(
            operator=self.operator,
            settings=self.plan.settings(),
            epoch=len(self.losses),
            epochs=self.plan.epochs,
            step=len(self.losses) * self.steps + self.step,
            losses=self.latest() if after_epoch else {"step": self.last_loss},
            learning_rate=self._rate() if self.last_rate is None else self.last_rate,
            seconds=self.seconds[-1] if after_epoch and self.seconds else time.perf_counter() - self.started,
        )

    def _rate(self) -> float:
        """The learning rate of the next step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def latest(self) -> dict[str, float]:
        """The last losses by name."""
        shown = {"train": self.losses[-1]} if self.losses else {}
        if self.watched:
            shown["validation"] = self.watched[-1]
        if self.weights:
            shown |= {f"weight of {name}": weight for name, weight in self.weights[-1].items()}
        return shown


def _reader(
    sources: Sequence[Dataset], batch_size: int, seed: int | None, options: DataOptions, device: torch.device
) -> tuple[BatchOrder, Loader]:
    """The order of batches of data sets, and the loader that reads them."""
    order = BatchOrder([len(source) for source in sources], batch_size=batch_size, seed=seed)
    return order, Loader(sources, order, options=options, device=device)


def _trained(operator: nn.Module) -> list[Tensor]:
    """The trainable parameters, or an ArgumentError if there are none."""
    parameters: list[Tensor] = [parameter for parameter in operator.parameters() if parameter.requires_grad]
    if not parameters:
        raise ArgumentError(expected="an operator with parameters to train", got="none", remedy="unfreeze some")
    if any(parameter.is_inference() for parameter in parameters):
        raise ArgumentError(
            expected="parameters that autograd takes", got="some of torch.inference_mode", remedy="build it under torch.no_grad"
        )
    return parameters
