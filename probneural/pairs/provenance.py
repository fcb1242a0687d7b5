"""Provenance of fits: integer keys of rows, and the record of the pairs that trained an operator or a predictor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from probneural.arrays.plausibility import fill_values, warn_of_counts
from probneural.contexts import undisturbed
from probneural.errors import CalibrationError, DataError, DataWarning, ProbneuralError, warn
from probneural.fields import Field
from probneural.fingerprints import row_fingerprints
from probneural.grids import Grid
from probneural.pairs.field_pairs import Dataset, FieldPairs, batches
from probneural.pairs.splits import Rows
from probneural.registry import stored

_VALUES_AT_ONCE = 2**17
"""Values that are read and hashed together."""


def no_keys() -> Int64[Tensor, " 0"]:
    """Return the empty vector of row keys."""
    return torch.zeros(0, dtype=torch.int64, device="cpu")


@undisturbed()
def row_keys(data: Dataset, *, most: int | None = None, with_inputs: bool = False) -> Int64[Tensor, "n k"]:
    """Return integer keys that identify the samples of a data set, `(n, k)`, on the CPU.

    The first key of a pair is the hash of its input and output: equal for equal pairs, in float32 or float64. Windows of
    trajectories have more: the second key is that of the trajectory, and the others, of the attribute `window_keys`, are those
    of its states. Two windows that share a state share a key.

    Args:
        data: n pairs; rows are read a few at a time.
        most: Maximum number of rows per read; by default a few MiB.
        with_inputs: Append a column, the hash of the input only.

    Warns:
        DataWarning: If rows that are read from files hold common fill values.

    Examples:
        >>> from probneural import Field, FieldPairs, Grid
        >>> side = Field(torch.tensor([[[0.0, 1.0]], [[2.0, 1.0]]]), Grid.uniform(2))
        >>> keys = row_keys(FieldPairs(side, side))
        >>> bool((keys == row_keys(FieldPairs(side, side).to(torch.float64))).all()), len(keys.unique())
        (True, 2)
    """
    row = max(1, *(side.channels * side.grid.size for side in (data.inputs, data.outputs)))
    contents: list[Tensor] = []
    counts: dict[str, Counter[float]] = {"inputs": Counter(), "outputs": Counter()}
    for part in batches(data, max(1, _VALUES_AT_ONCE // row) if most is None else most):
        values = [side.grid.fill(side.values) for side in (part.inputs, part.outputs)]
        sides = [values, values[:1]] if with_inputs else [values]
        contents.append(torch.stack([row_fingerprints(*side) for side in sides], 1))
        if not isinstance(data, FieldPairs):  # those in memory were looked at as a whole
            for name, side in (("inputs", part.inputs), ("outputs", part.outputs)):
                counts[name].update(fill_values(side.values))
    warn_of_counts(counts)
    keys = torch.cat([no_keys().new_empty(0, 1 + with_inputs), *contents])
    window_keys, clock = getattr(data, "window_keys", None), getattr(data, "clock", None)
    if not isinstance(window_keys, Tensor) or clock is None:
        return keys
    return torch.cat([keys[:, :1], clock.trajectory_keys[:, None], window_keys.cpu(), keys[:, 1:]], dim=1)


def shared_rows(keys: Int64[Tensor, "n *w k"], used: Int64[Tensor, " m"]) -> int:
    """Count the rows that were used: by the contents of a pair, or by a state of a window.

    The contents of a window count only if its trajectory was not used: a series that repeats itself has equal windows at
    different times.

    Args:
        keys: Keys of pairs, or of w windows in each row, as of [`row_keys`][probneural.pairs.provenance.row_keys].
        used: Keys of the used rows.

    Examples:
        >>> shared_rows(torch.tensor([[1], [3], [5]]), torch.tensor([2, 3, 4]))
        1
        >>> contents, trajectories, states = [1, 1, 1], [7, 7, 8], [4, 5, 6]
        >>> shared_rows(torch.tensor([contents, trajectories, states]).mT, torch.tensor([1, 7, 4]))
        2
    """
    is_used = torch.isin(keys, used.to(keys))
    if keys.shape[-1] > 1:
        is_used = (is_used[..., 0] & ~is_used[..., 1]) | is_used[..., 2:].any(-1)
    return int(is_used.flatten(1).any(1).sum() if is_used.ndim > 1 else is_used.sum())


@stored(on_cpu=("row_keys", "input_keys"))
@dataclass(frozen=True, eq=False, kw_only=True)
class TrainingRecord:
    """Record of the pairs that trained an operator or a predictor.

    Args:
        row_keys: Sorted unique keys of the training pairs, `(m,)`, see [`row_keys`][probneural.pairs.provenance.row_keys].
        history: Number of states in an input, where pairs are windows of trajectories.
        lead: Steps from the last state of an input to the output.
        step: Time per step, in the data's unit of time; None if the data have no times.
        input_units: Unit of each input channel; empty if unknown.
        output_units: Unit of each output channel; empty if unknown.
        shape: Points per axis of the outputs' grid: keys of the same samples on other grids differ; empty if unknown.
        masked: Number of points of that grid at which no training output has a value.
        input_keys: Sorted unique hashes of the training inputs, `(k,)`; None if unknown.
    """

    row_keys: Int64[Tensor, " m"]
    history: int = 1
    lead: int = 1
    step: float | None = None
    input_units: tuple[str, ...] = ()
    output_units: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    masked: int = 0
    input_keys: Int64[Tensor, " k"] | None = None

    def __str__(self) -> str:
        """Number of inputs, points of the outputs' grid, and units."""
        inputs = "pairs" if self.input_keys is None else f"{len(self.input_keys)} inputs"
        shape = f", outputs on {' x '.join(map(str, self.shape))} points" if self.shape else ""
        units = " → ".join(", ".join(part) for part in (self.input_units, self.output_units) if any(part))
        return inputs + shape + (f", units {units}" if units else "")

    def shares_rows(self, keys: Int64[Tensor, "n *w k"]) -> bool:
        """Return whether a row with one of these keys is in the record."""
        return shared_rows(keys, self.row_keys) > 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Provenance:
    """Provenance of a predicted field: records of training and calibration, and the inputs.

    Args:
        is_calibrated: Whether a calibrator was fitted to the predictor.
        trained_on: Record of the predictor's training pairs; None if unknown.
        inputs: n input samples; None if the distribution is no longer over the outputs of these inputs.
    """

    is_calibrated: bool
    trained_on: TrainingRecord | None
    inputs: Field | None

    def of_rows(self, rows: Rows) -> Provenance:
        """Return the provenance of some of the n fields."""
        return self if self.inputs is None else replace(self, inputs=self.inputs[rows])

    def of_image(self) -> Provenance:
        """Return the provenance of a functional's values."""
        return replace(self, inputs=None)


@undisturbed()
def record_of(data: Dataset, *, keys: Int64[Tensor, "n k"] | None = None) -> TrainingRecord:
    """Return the record of training on the pairs of a data set; row keys, with inputs, are computed unless they are given."""
    keys = row_keys(data, with_inputs=True) if keys is None else keys
    clock, grid = getattr(data, "clock", None), data.outputs.grid
    times = {name: getattr(clock, name) for name in ("history", "lead", "step") if hasattr(clock, name)}
    return TrainingRecord(
        row_keys=keys[:, :-1].unique(),
        input_keys=keys[:, -1].unique(),
        input_units=tuple(getattr(data.inputs, "units", ()) or ()),
        output_units=tuple(getattr(data.outputs, "units", ()) or ()),
        shape=tuple(grid.shape),
        masked=0 if grid.is_batch else int((~grid.observed).sum()),
        **times,
    )


def joined_record(records: Iterable[TrainingRecord | None]) -> TrainingRecord | None:
    """Return the union of records: all keys, and times and units of the first record; None if there is no record."""
    present = [record for record in records if record is not None]
    if len(present) < 2:
        return present[0] if present else None
    inputs = [record.input_keys.cpu() for record in present if record.input_keys is not None]
    return replace(
        present[0],
        row_keys=torch.cat([record.row_keys.cpu() for record in present]).unique(),
        input_keys=torch.cat(inputs).unique() if inputs else None,
    )


def check_untrained(
    keys: Int64[Tensor, "n *w k"],
    record: TrainingRecord | None,
    *,
    allow_training_data: bool,
    purpose: str,
    error: type[ProbneuralError] = CalibrationError,
) -> None:
    """Raise an error if rows trained the predictor, or warn if the caller allows training data.

    Args:
        keys: Row keys.
        record: Training record of the predictor; None skips the check.
        allow_training_data: Whether training rows give a warning in place of the error.
        purpose: Purpose of the rows in the message: "calibration", "scores".
        error: Class of the error.

    Warns:
        DataWarning: If some rows trained the predictor and the caller allows it.
    """
    count = 0 if record is None else shared_rows(keys, record.row_keys)
    if not count:
        return
    if not allow_training_data:
        raise error(
            expected=f"pairs for {purpose} that did not train the predictor",
            got=f"{count} of {len(keys)} that trained it",
            remedy="hold pairs out before training: held_out, train = pairs.split(count, seed=0); "
            "or pass allow_training_data=True to insist",
        )
    warn(
        f"{count} of {len(keys)} pairs for {purpose} trained the predictor: errors on them are smaller than on new pairs",
        DataWarning,
    )


def check_untrained_inputs(inputs: Field, record: TrainingRecord | None, *, allow_training_data: bool) -> None:
    """Raise a CalibrationError if inputs trained the predictor, or warn if the caller allows training data."""
    if record is not None and record.input_keys is not None:
        keys = row_fingerprints(inputs.grid.fill(inputs.values))[:, None]
        inputs_alone = replace(record, row_keys=record.input_keys)
        check_untrained(keys, inputs_alone, allow_training_data=allow_training_data, purpose="calibration")


def check_units(record: TrainingRecord | None, side: Any, *, name: str = "input") -> None:
    """Raise a DataError if a channel has another unit than in training.

    Args:
        record: Training record of the predictor.
        side: Inputs or outputs; its `units`, if it has any, are compared. An empty unit is unknown.
        name: "input" or "output".
    """
    expected: Sequence[str] = () if record is None else getattr(record, f"{name}_units")
    units = tuple(getattr(side, "units", ()) or ())
    for channel, (trained, unit) in enumerate(zip(expected, units, strict=False)):
        if trained and unit and trained != unit:
            raise DataError(
                expected=f"{name} channel {channel} in {trained!r}, the unit of the training {name}s",
                got=f"{unit!r}",
                remedy="convert the values and set their unit; units are compared as text and never converted",
            )


def warn_of_mask(record: TrainingRecord | None, grid: Grid) -> None:
    """Warn of predictions on the grid of the training outputs, without the mask that those had."""
    if record is not None and record.masked and grid.shape == record.shape and not grid.is_masked:
        warn(
            f"the training outputs have no values at {record.masked} of {grid.size} points, and predictions there mean "
            "nothing. Give inputs with that mask, mask=, or a query with it, Grid.masked(observed)",
            DataWarning,
        )


def operator_record(operator: nn.Module | None) -> TrainingRecord | None:
    """Return the record that `pn.fit` left on an operator, or None."""
    record = getattr(operator, "trained_on", None)
    return record if isinstance(record, TrainingRecord) else None
