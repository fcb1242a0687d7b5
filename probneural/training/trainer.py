"""Training: plain PyTorch, resumable bit for bit."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar, cast

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from tqdm.auto import tqdm

from probneural import checks
from probneural.contexts import undisturbed
from probneural.errors import ArgumentError, DataError, DataWarning, warn
from probneural.operators import Operator
from probneural.pairs import Dataset, FieldPairs, check_dataset
from probneural.pairs.clocks import WindowClock, split_in_time
from probneural.pairs.provenance import joined_record, operator_record, record_of, row_keys
from probneural.processes import check_batch, join, own_device, own_rows, rank, sum_over_processes, together, world_size
from probneural.randomness import check_seed, stream_seed
from probneural.training import weights
from probneural.training.callbacks import Callback, History
from probneural.training.losses import Loss, check_loss
from probneural.training.options import Checkpoint, DataOptions, Optimization, RunOptions, resolve_device
from probneural.training.resuming import Keeper
from probneural.training.run import Plan, Run
from probneural.training.unrolling import FirstStep, Unroll

Option = TypeVar("Option")
_SCALED = 10
"""Number of samples whose rough solutions scale outputs without labels."""


@checks.checks_keywords
@undisturbed(keeps_autocast=True)
@torch.enable_grad()
def fit(
    operator: nn.Module,
    train: Dataset | Sequence[Dataset],
    *,
    epochs: int = 50,
    seed: int = 0,
    learning_rate: float = 3e-3,
    loss: Loss | Unroll | None = None,
    optimization: Optimization | None = None,
    data: DataOptions | None = None,
    run: RunOptions | None = None,
    show_progress: bool = True,
) -> History:
    """Train an operator in place, by default with Muon and AdamW under a cosine schedule.

    The last weights are kept: the validation split (taken from the training data) is for watching only, so nothing is
    chosen by it without early stopping. Operators of this library first take their units from the training part,
    unless an earlier training gave them some. The mode (train or eval) of every submodule and the global random state are left
    as they were. Data are read a batch at a time and detached, and gradients are recorded here even under `torch.no_grad`. A
    `ConvergenceWarning` is given if the training loss ends three times above that of the first batch, before any step, and
    above that of predicting zero (of the first epoch, if `loss` is your own). Afterwards `operator.trained_on` records the
    training pairs, which heads and calibrators compare with theirs.

    In a program that torchrun has started, all processes train one operator: each takes its share of every batch, and
    gradients are averaged by `DistributedDataParallel`. All call `fit` with the same arguments; the first one writes the
    checkpoint, shows progress and calls the callbacks. `RunOptions(compile=True)` compiles the operator for the training,
    `operator.compile()` before it for good.

    Resuming from a checkpoint is bit-equal. With more epochs than a finished run it trains for the additional ones,
    at the rates of a schedule over all epochs, so the rate of a cosine rises again. A checkpoint belongs to a run
    by its data (of stored ones, by 64 pairs), its settings, its loss and the shapes of the weights. Functions are compared by
    their names, so functions of one name must be identical.

    Args:
        operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`.
        train: Training pairs, in memory or read by rows; or several data sets side by side, of several resolutions for
            example: each batch comes from one of them, and each gives its part to the validation split. Data sets of inputs
            alone (`FieldPairs.unlabelled`) train with the residual of an equation as loss, and are not watched beside others.
        epochs: Passes over the training part.
        seed: Names the split and the order of the batches, a non-negative integer; the same seed, data, thread count and
            number of processes give the same bits.
        learning_rate: The schedule's peak, dimensionless.
        loss: Loss of a batch, `loss(predicted, target, grid)`; by default the relative L2 error by quadrature, averaged over
            channels and samples. `pn.physics.Residual(equation).loss()` adds the residual of an equation. For operators of one
            time step that will be rolled out, `Unroll(steps=4)` trains on their outputs; pairs then have 4 following states, as
            `trajectories.windows(steps=4)` makes them.
        optimization: Optimiser, schedule, precision and early stopping.
        data: Batch size, validation split, workers and prefetching.
        run: Device, checkpoint, callbacks and compilation.
        show_progress: Whether to show a progress bar.

    Returns:
        The losses by epoch.

    Raises:
        KeywordError: If a setting is unknown.
        ArgumentError: If a setting is out of range, the operator is not a module, the loss takes other arguments or gives no
            number, or there are too few trajectories to watch whole ones.
        DataError: If the data are fewer than two pairs or not finite, their scale is beyond the operator's dtype, or they lack
            the states that `unroll` requires.
        TrainingError: If a loss or a weight becomes NaN or infinite; the operator has the weights from before that epoch, or
            from the checkpoint within it that was resumed.
        FileError: If the checkpoint is damaged, or belongs to other settings or data.

    Examples:
        >>> from probneural.fields import Field
        >>> from probneural.grids import Grid
        >>> from probneural.operators import FNO
        >>> from probneural.pairs import FieldPairs
        >>> fields = Field(torch.randn(20, 1, 16, generator=torch.Generator().manual_seed(0)), Grid.uniform((16,)))
        >>> operator = FNO(1, 1, modes=(4,), width=4, depth=1, projection=4)
        >>> fit(operator, FieldPairs(fields, fields), epochs=2, show_progress=False).epochs
        2
    """
    checks.check_module(operator, "operator")
    show_progress = checks.check_flag(show_progress, "show_progress")
    reading = _checked_option(data, DataOptions, "data", remedy="give DataOptions(batch_size=64) for example")
    running = _checked_option(run, RunOptions, "run", remedy='give RunOptions(checkpoint="run.safetensors") for example')
    options = _checked_option(
        optimization, Optimization, "optimization", remedy='give Optimization(optimizer="adamw") for example'
    )
    unroll = loss if isinstance(loss, Unroll) else None
    validation = reading.validation
    plan = Plan(
        epochs=checks.check_integer(epochs, "epochs"),
        batch_size=reading.batch_size,
        seed=check_seed(seed),
        learning_rate=checks.check_positive(learning_rate, "learning_rate"),
        validation=validation if isinstance(validation, float) else validation.fingerprint,
        loss=loss.loss if isinstance(loss, Unroll) else check_loss(loss),
        optimization=options,
        unroll=unroll,
    )
    join()
    check_batch(plan.batch_size)
    operator.to(own_device(resolve_device(running.device, operator)))
    sets = _checked_data(train, has_loss=plan.loss is not None)
    if unroll is not None:
        unroll.check(sets)
    if isinstance(validation, float):
        first, second = _split(sets, validation, plan.seed)
    else:
        first, second = sets, [_check_watched(validation, sets).detached()]
    least, things = int(options.early_stopping is not None), "validation sets for early stopping to watch"
    checks.check_least(len(second), least, things, remedy="raise validation", error=ArgumentError)
    checkpoint = cast("Checkpoint | None", running.checkpoint)
    names = "" if checkpoint is None else hashlib.sha256("".join(source.fingerprint for source in sets).encode()).hexdigest()
    state = Run(operator, train=first, validation=second, data_fingerprint=names, plan=plan, data=reading)
    keeper = None if checkpoint is None else Keeper(state, checkpoint)
    with weights.modes_kept(operator), state.compiled(running.compile):
        if not (keeper is not None and keeper.resume()) and isinstance(operator, Operator) and not operator.has_units:
            with together():  # collective: DistributedDataParallel has made the buffers equal
                operator.fit_normalizers(*_scaled(operator, _first_steps(first, unroll), plan.loss))
        _train(state, keeper, running.callbacks, show_progress=show_progress)
    if rank() == 0:
        state.warn_if_worse()
    history = state.finish()
    _record(operator, [*first, *(second if options.early_stopping is not None else [])], plan)
    return history


def _record(operator: nn.Module, sets: Sequence[Dataset], plan: Plan) -> None:
    """Add the pairs that trained an operator to the record of its training, `operator.trained_on`.

    Pairs of the validation split count where early stopping chose the epoch by them. Of windows of several steps,
    the first step counts.
    """
    first_steps = _first_steps(sets, plan.unroll)
    records = [record_of(data, keys=_shared_keys(data, plan.batch_size)) for data in first_steps]
    operator.trained_on = joined_record([operator_record(operator), *records])  # type: ignore[assignment]


def _scaled(operator: nn.Module, sets: list[Dataset], loss: Loss | None) -> list[Dataset]:
    """Data sets to take units from: without labels, with rough solutions of a few samples if the loss has some."""
    approximate = getattr(loss, "approximate", None)
    if approximate is None or any(data.outputs.channels for data in sets):
        return sets
    pairs = sets[0][slice(0, _SCALED)]
    solutions = approximate(operator, pairs.inputs, pairs.outputs.grid)
    return sets if solutions is None else [*sets, FieldPairs(pairs.inputs, solutions)]


def _first_steps(sets: Sequence[Dataset], unroll: Unroll | None) -> list[Dataset]:
    """The first of the following states of pairs."""
    return list(sets) if unroll is None or unroll.steps == 1 else [FirstStep(data, unroll.steps) for data in sets]


def _shared_keys(data: Dataset, most: int) -> Int64[Tensor, "n k"]:
    """Row keys of a data set, including inputs; each rank reads a part."""
    if world_size() == 1:
        return row_keys(data, most=most, with_inputs=True)
    rows = own_rows(len(data))
    part = row_keys(data.subset(slice(rows.start, rows.stop)), most=most, with_inputs=True)
    keys = torch.zeros(len(data), part.shape[1], dtype=torch.int64)
    keys[rows.start : rows.stop] = part
    return sum_over_processes(keys)


def _train(run: Run, keeper: Keeper | None, callbacks: Sequence[Callback], *, show_progress: bool) -> None:
    """Run the remaining epochs, and call the callbacks."""
    active = () if rank() else callbacks

    def after_step() -> None:
        for callback in active:
            with run.interrupted(after_epoch=False):
                callback.on_step(run.progress(after_epoch=False))
        if keeper is not None:
            keeper.after_step()

    silent = not show_progress or rank() > 0
    try:
        for callback in active:
            with run.interrupted(after_epoch=False):
                callback.on_start(run.progress(after_epoch=True))
        with tqdm(total=run.plan.epochs, initial=len(run.losses), desc="training", unit="epoch", disable=silent) as bar:
            while not run.has_ended:
                run.epoch(after_step)
                bar.update()
                bar.set_postfix({name: f"{value:.2e}" for name, value in run.latest().items()})
                if keeper is not None:
                    keeper.write()
                for callback in active:
                    with run.interrupted(after_epoch=True):
                        callback.on_epoch(run.progress(after_epoch=True))
    finally:
        for callback in active:
            callback.on_end(run.history())


def _checked_option(value: Option | None, kind: type[Option], name: str, *, remedy: str) -> Option:
    """Return options of a class, by default all defaults, or raise an ArgumentError."""
    return kind() if value is None else checks.check_instance(value, kind, name, remedy=remedy, error=ArgumentError)


def _checked_data(train: object, *, has_loss: bool) -> list[Dataset]:
    """Return data sets, of two pairs or more together, detached; or raise a DataError."""
    parts = list(train) if isinstance(train, list | tuple) and train else [train]
    least = 2 if len(parts) == 1 else 1
    sets = [check_dataset(part, least=least, may_be_unlabelled=has_loss).detached() for part in parts]
    channels = {data.outputs.channels for data in sets} - {0}
    for data in sets:
        if not has_loss and channels and isinstance(data, FieldPairs) and not bool(data.outputs.values.any()):
            warn(
                "the outputs of the training data are zero: the operator learns to predict zero. For inputs without outputs, "
                "use FieldPairs.unlabelled(inputs) with the loss of a residual",
                DataWarning,
            )
    return sets


def _split(sets: Sequence[Dataset], fraction: float, seed: int) -> tuple[list[Dataset], list[Dataset]]:
    """Take the validation part off each data set.

    Of data sets of one length, the same rows are taken: functions that are there at several resolutions stay on one side. Of a
    data set that is one series in time, the latest rows are taken.
    """
    first: list[Dataset] = []
    second: list[Dataset] = []
    has_labels = any(data.outputs.channels for data in sets)
    for data in sets:
        count = round(fraction * len(data)) if data.outputs.channels or not has_labels else 0
        checks.check_least(len(data) - count, 1, "pairs beside those for validation", remedy="lower it", error=ArgumentError)
        if count == 0:
            first.append(data)
            continue
        clock: WindowClock | None = getattr(data, "clock", None)
        if clock is not None and clock.is_series:
            trained, watched = _split_series(data, clock, fraction)
            first.append(trained)
            second.append(watched)
            continue
        try:
            watched, trained = data.split(count, seed=stream_seed(seed, "validation"))
        except ArgumentError as error:
            groups: Tensor | None = getattr(data, "groups", None)
            if groups is None:
                raise
            number = len(groups.unique())
            raise ArgumentError(
                expected="at least one trajectory for training besides those for validation",
                got=f"validation={fraction} of {len(data)} pairs of {number} trajector{'y' if number == 1 else 'ies'}",
                remedy="give validation=0 to train on all, a smaller share, or more trajectories",
            ) from error
        first.append(trained)
        second.append(watched)
    return first, second


def _split_series(data: Dataset, clock: WindowClock, fraction: float) -> tuple[Dataset, Dataset]:
    """Take the latest rows off a series in time, without those that share a state with earlier rows."""
    count = round(fraction * len(data))
    trained, watched = split_in_time(clock, [len(data) - count, count], by="time")
    things, remedy = "later pairs to validate that share no state with training", "raise validation, or give 0 to train on all"
    checks.check_least(len(watched), 1, things, remedy=remedy, error=ArgumentError)
    return data.subset(trained.sort().values), data.subset(watched.sort().values)


def _check_watched(validation: Dataset, sets: Sequence[Dataset]) -> Dataset:
    """Return validation pairs with the channels of the training pairs, or raise a DataError."""
    inputs, remedy = sets[0].inputs.channels, "choose the same variables as for training"
    outputs = max(data.outputs.channels for data in sets)
    checks.check_count(validation.inputs.channels, inputs, "input channels to validate", remedy=remedy, error=DataError)
    checks.check_count(validation.outputs.channels, outputs, "output channels to validate", remedy=remedy, error=DataError)
    return validation
