"""Training data of heads: the pairs of this rank, in the operator's dtype and on its device, read in chunks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from probneural.checks import check_finite, check_scale
from probneural.distributions.predictors.base import Predictor, with_records
from probneural.errors import DataError, DataWarning, GridError, warn
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs, FieldSource, Rows, batches, check_dataset
from probneural.pairs.clocks import WindowClock
from probneural.pairs.provenance import TrainingRecord, operator_record, record_of, row_keys
from probneural.processes import own_rows, sum_over_processes, world_size
from probneural.statistics import statistics

FitMethod = TypeVar("FitMethod", bound=Callable[..., Predictor])


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training pairs of a head, and their place among the pairs of all ranks.

    Attributes:
        pairs: Pairs of this rank; all pairs without torch.distributed.
        functions: Total number n of pairs of all ranks.
        first: Index of this rank's first pair.
    """

    pairs: Dataset
    _: KW_ONLY
    functions: int
    first: int = 0

    @property
    def inputs(self) -> FieldSource:
        """This rank's inputs."""
        return self.pairs.inputs

    @property
    def outputs(self) -> FieldSource:
        """This rank's outputs."""
        return self.pairs.outputs

    @property
    def grid(self) -> Grid:
        """Grid of the outputs with mean weights; see `Grid.mean_weights`."""
        return self.pairs.outputs.grid

    @property
    def query(self) -> Grid | None:
        """The outputs' grid without masks, if it differs from the inputs'; else None."""
        grid = self.grid.unmasked
        return None if grid == self.pairs.inputs.grid.unmasked else grid

    @property
    def is_sharded(self) -> bool:
        """Whether pairs are divided among ranks, so that sums run over all ranks."""
        return self.functions != len(self.pairs)

    def batches(self, size: int) -> Iterator[FieldPairs]:
        """Read this rank's pairs in chunks of `size`."""
        return batches(self.pairs, size)

    def some(self, count: int) -> FieldPairs:
        """Read the first few of this rank's pairs."""
        return self.pairs[: min(count, len(self.pairs))]

    def evenly_spread(self, count: int) -> FieldPairs:
        """Read a few of this rank's pairs, evenly spaced, including the first and the last."""
        last = len(self.pairs) - 1
        return self.pairs[torch.linspace(0, last, min(count, last + 1)).round().long()]

    def summed(self, local: Tensor) -> Tensor:
        """Sum over all ranks, in place; float64."""
        return sum_over_processes(local) if self.is_sharded else local

    def with_inputs_of(self, dtype: torch.dtype) -> TrainingData:
        """The same pairs with inputs of another dtype."""
        return replace(self, pairs=_converted(self.pairs, dtype, self.outputs.device))

    def output_units(self) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
        """Mean and standard deviation of all outputs per channel, by quadrature, in physical units; float64.

        A channel that does not vary has scale 1.

        Raises:
            DataError: If their squares overflow or underflow in float64.
        """
        total = statistics(self.outputs)
        if self.is_sharded:
            total = total.over_processes()
        mean, scale = total.mean.to(self.outputs.device), total.std.to(self.outputs.device)
        scale = torch.where(scale <= torch.finfo(self.outputs.dtype).eps * mean.abs(), 1.0, scale)
        check_scale(scale, "training outputs", dtype=torch.float64, power=2)
        return mean, scale


def owned(data: TrainingData) -> Dataset:
    """Data of one dtype that a training function may change: copies of data in memory."""
    if not isinstance(data.pairs, FieldPairs):
        return data.pairs.to(data.inputs.dtype).to(data.inputs.device)
    inputs, outputs = data.pairs.inputs, data.pairs.outputs.to(data.inputs.dtype)
    copies = [Field(side.values.clone(), side.grid) for side in (inputs, outputs)]
    return replace(data.pairs, inputs=copies[0], outputs=copies[1])


def training_data(data: object, operator: nn.Module | None, *, is_shared: bool = True) -> TrainingData:
    """Return training pairs of a head: detached, on the operator's device, inputs in its real dtype.

    Args:
        data: The user's data, equal on all ranks.
        operator: Its parameters define dtype and device; without parameters, the wider dtype of the two sides and the
            outputs' device.
        is_shared: Whether pairs are divided among ranks; by default, if there are several ranks.

    Raises:
        GridError: If the per-sample meshes of inputs and outputs differ.
        DataError: If data are not pairs, are empty, fewer than ranks, not finite, or out of range of the operator's dtype.
    """
    pairs = check_dataset(data)
    if pairs.outputs.grid.has_points_per_sample and pairs.outputs.grid != pairs.inputs.grid:
        raise GridError(
            expected="inputs and outputs of each sample on the same mesh",
            got=f"{pairs.inputs.grid!r} and {pairs.outputs.grid!r}",
            remedy="interpolate the inputs to the outputs' meshes: inputs.resample(outputs.grid)",
        )
    functions, own = len(pairs), own_rows(len(pairs)) if is_shared else range(len(pairs))
    if is_shared and functions < world_size():
        raise DataError(
            expected=f"a training pair for each of the {world_size()} processes",
            got=str(functions),
            remedy="start fewer processes, or give more data",
        )
    if len(own) < functions:
        pairs = pairs.subset(slice(own.start, own.stop))
    pairs = pairs.detached()
    example = next(iter(() if operator is None else operator.parameters()), None)
    widest = torch.promote_types(pairs.inputs.dtype, pairs.outputs.dtype)
    dtype, device = (widest, pairs.outputs.device) if example is None else (example.dtype, example.device)
    return TrainingData(_converted(pairs, dtype.to_real(), device), functions=functions, first=own.start)


def _converted(pairs: Dataset, dtype: torch.dtype, device: torch.device) -> Dataset:
    """The same pairs on a device, inputs in a dtype; lazily unless they are in memory."""
    if isinstance(pairs, FieldPairs):
        return replace(pairs, inputs=pairs.inputs.to(dtype).to(device), outputs=pairs.outputs.to(device))
    return _ConvertedData(pairs.data if isinstance(pairs, _ConvertedData) else pairs, dtype, device)


@dataclass(frozen=True, eq=False)
class _ConvertedData:
    """A data set that converts pairs on reading.

    Attributes:
        data: Source of the pairs.
        input_dtype: Dtype of the inputs; outputs are not converted.
        device: Device of inputs and outputs.
    """

    data: Dataset
    input_dtype: torch.dtype
    device: torch.device

    @property
    def inputs(self) -> FieldSource:
        return self.data.inputs.to(self.input_dtype).to(self.device)

    @property
    def outputs(self) -> FieldSource:
        return self.data.outputs.to(self.device)

    @property
    def groups(self) -> Int64[Tensor, " n"] | None:
        groups: Tensor | None = getattr(self.data, "groups", None)
        return groups

    @property
    def clock(self) -> WindowClock | None:
        clock: WindowClock | None = getattr(self.data, "clock", None)
        return clock

    @property
    def fingerprint(self) -> str:
        return self.data.fingerprint

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Rows) -> FieldPairs:
        read = self.data[index]
        return replace(read, inputs=read.inputs.to(self.input_dtype).to(self.device), outputs=read.outputs.to(self.device))

    def subset(self, index: Rows) -> Dataset:
        return replace(self, data=self.data.subset(index))

    def split(self, count: int, *, seed: int) -> tuple[Dataset, Dataset]:
        first, second = self.data.split(count, seed=seed)
        return replace(self, data=first), replace(self, data=second)

    def to(self, target: torch.device | torch.dtype | str) -> Dataset:
        return self.data.to(target)

    def detached(self) -> Dataset:
        return self


def recorded(fit: FitMethod) -> FitMethod:
    """Decorate a head's `fit(operator, data)`: the predictor records the training pairs of operator and head.

    Warns:
        DataWarning: If the head does not train the operator, and the operator is untrained or was trained on other data.
    """

    @functools.wraps(fit)
    def fitted(head: Any, operator: Any, data: Any) -> Predictor:
        predictor = fit(head, operator, data)
        keys = row_keys(data, with_inputs=True)
        new, old = record_of(data, keys=keys), operator_record(operator)
        if getattr(head, "train", None) is None:
            _warn_of_training(operator, old, new, keys=keys[:, :-1])
        return with_records(predictor, old, new)

    return cast(FitMethod, fitted)


def _warn_of_training(operator: object, old: TrainingRecord | None, new: TrainingRecord, *, keys: Tensor) -> None:
    """Warn if an operator is untrained, or was trained on other windows or on other pairs of the same grid.

    Args:
        operator: The head's operator.
        old: Record of the operator; None if it has none.
        new: Record of the head's data.
        keys: Row keys of the head's data, `(n, k)`: of contents, then of the trajectory and of states.
    """
    if old is None:
        if getattr(operator, "has_units", None) is False:
            warn(
                "the operator was never trained: its normalisers have their initial values; train it first: "
                "pn.fit(operator, train)",
                DataWarning,
            )
    elif old.shares_rows(keys[:, :1]):
        return
    elif old.shares_rows(keys[:, 2:].reshape(-1, 1)) and (old.history, old.lead) != (new.history, new.lead):
        warn(
            f"the operator was trained on windows of history={old.history} and lead={old.lead}, and the head is fitted on "
            f"windows of history={new.history} and lead={new.lead}; give the head windows like those",
            DataWarning,
        )
    elif old.shape == new.shape and not old.shares_rows(keys):
        warn(
            f"the operator was trained on other pairs than the {len(keys)} that the head is fitted on; give the head "
            "the training pairs",
            DataWarning,
        )


def check_predicted(values: Tensor) -> None:
    """Raise a DataError if an operator's outputs on training inputs are not finite."""
    check_finite(values, "outputs of the operator", remedy="it has diverged, or its weights are not finite: train it anew")


def in_memory(source: FieldSource) -> Field:
    """Read all samples of a source into memory."""
    return source if isinstance(source, Field) else source[:]
