"""Training data of heads: the pairs of this rank, in the operator's dtype and on its device, read in chunks."""

from __future__ import annotations

import copy
import functools
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from probneural import checks
from probneural.distributions.predictors.base import Predictor, with_records
from probneural.errors import ArgumentError, DataError, DataWarning, warn
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.grid import check_same_grid
from probneural.pairs import Dataset, FieldPairs, FieldSource, Rows, batches, check_dataset
from probneural.pairs.clocks import WindowClock
from probneural.pairs.provenance import TrainingRecord, operator_record, record_of, row_keys
from probneural.processes import own_rows, sum_over_processes, world_size
from probneural.randomness import stream
from probneural.statistics import statistics

HALF = {torch.bfloat16, torch.float16}
"""Dtypes too coarse for features, whose rounding errors would count as noise."""
FitMethod = TypeVar("FitMethod", bound=Callable[..., Predictor])


@dataclass(frozen=True, eq=False)
class Bins:
    """Boxes of equal size that values on one mesh per sample are averaged over, to compare samples.

    Attributes:
        lower: Lower corner of all points, `(d,)`.
        lengths: Their extent, `(d,)`.
        count: Number of boxes along each axis.
    """

    lower: Float64[Tensor, " d"]
    lengths: Float64[Tensor, " d"]
    count: int

    @classmethod
    def of(cls, grid: Grid) -> Bins:
        """About as many boxes as points of a sample, up to 256."""
        used = grid.weights > 0
        points = grid.points[used]
        lower, upper = points.amin(0), points.amax(0)
        size = min(_BINS, len(points) / len(used))
        return cls(lower, torch.where(upper > lower, upper - lower, 1.0), max(1, int(size ** (1.0 / grid.dimension) + 1e-9)))

    @property
    def size(self) -> int:
        """Number of boxes b."""
        return int(self.count ** len(self.lower))

    def average(self, values: Float64[Tensor, "n c p"], grid: Grid) -> tuple[Tensor, Tensor]:
        """Averages times roots of the boxes' weights, `(n, c, b)`, and these roots, `(n, 1, b)`."""
        places = ((grid.points - self.lower) / self.lengths * self.count).long().clamp(0, self.count - 1)
        strides = self.count ** torch.arange(len(self.lower))
        boxes = (places * strides).sum(-1)[:, None].to(values.device)
        weights = grid.sample_weights.to(values)
        roots = values.new_zeros(len(values), 1, self.size).scatter_add_(2, boxes, weights).sqrt()
        # rows_b = sum of w_p r_p / sqrt(sum of w_p), over the points p in box b
        sums = values.new_zeros(*values.shape[:2], self.size).scatter_add_(2, boxes.expand_as(values), weights * values)
        return torch.where(roots > 0, sums / roots, 0.0), roots


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Training pairs of a head, and their place among the pairs of all ranks.

    Attributes:
        pairs: Pairs of this rank; all pairs without torch.distributed.
        functions: Total number n of pairs of all ranks.
        first: Index of this rank's first pair.
        bins: Boxes around the points of all outputs, on one mesh per sample.
    """

    pairs: Dataset
    _: KW_ONLY
    functions: int
    first: int = 0
    bins: Bins | None = None

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
        checks.check_scale(scale, "training outputs", dtype=torch.float64, power=2)
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
        operator: Its parameters define dtype (float32 for half precision) and device; without parameters, the wider dtype of
            the two sides and the outputs' device.
        is_shared: Whether pairs are divided among ranks; by default, if there are several ranks.

    Raises:
        GridError: If the per-sample meshes of inputs and outputs differ.
        DataError: If data are not pairs, are empty, fewer than ranks, not finite, or out of range of the operator's dtype.
    """
    pairs = check_dataset(data)
    if pairs.outputs.grid.has_points_per_sample:
        remedy = "interpolate the inputs to the outputs' meshes: inputs.resample(outputs.grid)"
        check_same_grid(pairs.inputs.grid, pairs.outputs.grid, "inputs, as outputs are,", remedy=remedy)
    bins = Bins.of(pairs.outputs.grid) if pairs.outputs.grid.has_points_per_sample and len(pairs) else None
    functions, own = len(pairs), own_rows(len(pairs)) if is_shared else range(len(pairs))
    if is_shared:
        checks.check_least(functions, world_size(), "training pairs, one for each process", remedy="start fewer processes")
    if len(own) < functions:
        pairs = pairs.subset(slice(own.start, own.stop))
    pairs = pairs.detached()
    example = next(iter(() if operator is None else operator.parameters()), None)
    widest = torch.promote_types(pairs.inputs.dtype, pairs.outputs.dtype)
    dtype, device = (widest, pairs.outputs.device) if example is None else (example.dtype.to_real(), example.device)
    dtype = torch.promote_types(dtype, torch.float32)
    return TrainingData(_converted(pairs, dtype, device), functions=functions, first=own.start, bins=bins)


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


def frozen_copy(operator: nn.Module) -> nn.Module:
    """Copy an operator in evaluation mode without gradients; weights in half precision become float32, which is exact.

    Raises:
        ArgumentError: If it is not a module.
    """
    copied = copy.deepcopy(checks.check_module(operator, "operator")).eval().requires_grad_(False)
    return copied.float() if {tensor.dtype for tensor in copied.parameters()} & HALF else copied


def recorded(fit: FitMethod) -> FitMethod:
    """Decorate a head's `fit(operator, data)`: the predictor records the training pairs of operator and head.

    Warns:
        DataWarning: If the head does not train the operator, and the operator is untrained or was trained on other data.
    """

    @functools.wraps(fit)
    def fitted(head: Any, operator: Any, data: Any) -> Predictor:
        predictor = fit(head, operator, data)
        keys = _row_keys(data)
        new, old = record_of(data, keys=keys), operator_record(operator)
        if getattr(head, "train", None) is None:
            _warn_of_training(operator, old, new, keys=keys[:, :-1])
        return with_records(predictor, old, new)

    return typing.cast(FitMethod, fitted)


def _row_keys(data: Dataset) -> Tensor:
    """The row keys of all pairs, of which each process reads its own."""
    own = own_rows(len(data))
    if len(own) == len(data):
        return row_keys(data, with_inputs=True)
    local = row_keys(data.subset(torch.arange(own.start, own.stop)), with_inputs=True)
    keys = local.new_zeros(len(data), local.shape[1])
    keys[own.start : own.stop] = local
    return sum_over_processes(keys)


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
    checks.check_finite(
        values, "outputs of the operator", remedy="it has diverged, or its weights are not finite: train it anew"
    )


def residuals_from(predicted: Float[Tensor, "b c *grid"], outputs: Float[Tensor, "b c *grid"]) -> Float64[Tensor, "b c *grid"]:
    """Outputs minus predictions of an operator, in float64.

    Raises:
        DataError: If predictions are not finite.
        ShapeError: If their shape is another one.
    """
    checks.check_shape(predicted, "outputs of the operator", *outputs.shape, remedy="check its channels")
    check_predicted(predicted)
    return outputs.to(torch.float64) - predicted.to(torch.float64)


def in_memory(source: FieldSource) -> Field:
    """Read all samples of a source into memory."""
    return source if isinstance(source, Field) else source[:]


NOISE_FLOOR = 1e-12
"""Lower bound of the estimated noise variance, in units of the outputs' variance; with zero noise the density is undefined."""
_KEPT_FUNCTIONS = 2048
"""Maximum number of samples whose residuals are stored for all inner products."""
_KEPT_VALUES = 2**23
"""Maximum number of stored residual values (64 MiB)."""
_POINTS = 2048
"""Maximum number of points for the exact second moment of residuals: 32 MiB per channel."""
_GROUPS = 1024
"""Number of groups of points in the count sketch of the second moment: 8 MiB per channel."""
_BINS = 256
"""Maximum number of boxes, which resolve smooth residuals."""
_TINY = torch.finfo(torch.float64).tiny


class ResidualSums:
    """Streaming sums over the residuals of n samples; memory does not grow with n.

    The number of effective observations per field and channel, independent of the grid, is the participation ratio
    (tr C)^2 / tr C^2 of the covariance operator C of the residuals r_i with the grid's quadrature. The traces are estimated
    from pairs of different fields (a U-statistic), which removes the bias of few fields:

        m = sum over i != j of |r_i|^2 |r_j|^2 / sum over i != j of <r_i, r_j>^2.

    Up to 2,048 samples (and 8 million values) are stored, and all pairs formed. For more samples the second moment
    S = sum of r_i r_i^T is stored, whose squared norm is the sum of all <r_i, r_j>^2: the same number up to rounding.
    On grids of more than 2,048 points S is the second moment of 1,024 sums over random groups of points with random signs
    (a count sketch), corrected for the sketch's mean bias. Its standard error is about 1 % if m is up to a few hundred, and
    3 % if m is the number of points.

    With one mask per sample, inner products are divided by the mean overlap of two masks. On one mesh per sample, inner
    products are those of averages over boxes, whatever the order of points.

    Args:
        data: Data set of the residuals.
        channels: Number of channels c.
        unit: Unit of the sums of squares, `(c,)`, in physical units; by default 1.

    Attributes:
        squares: Sum over the samples so far of the mean square over the domain, `(c,)`, in units squared.

    Reference:
        The participation ratio; see docs/design.md for why it replaces the number of grid points. Charikar, Chen and
        Farach-Colton (2002), Finding frequent items in data streams, for the sketch.
    """

    def __init__(self, data: TrainingData, *, channels: int, unit: Float64[Tensor, " c"] | None = None) -> None:
        points, device = data.grid.size if data.bins is None else data.bins.size, data.outputs.device
        zeros = torch.zeros(channels, dtype=torch.float64, device=device)
        self.data = data
        self.unit = torch.ones_like(zeros) if unit is None else unit.to(zeros)
        self.squares = zeros.clone()
        self._roots = zeros.new_zeros(points)  # sums of roots of weights, with one mask or mesh per sample
        self._next = data.first
        self._kept: Tensor | None = None
        self._groups: tuple[Tensor, Tensor] | None = None
        if data.functions <= _KEPT_FUNCTIONS and data.functions * channels * points <= _KEPT_VALUES:
            self._kept = zeros.new_zeros(data.functions, channels, points)
            return
        size = points
        if points > _POINTS:
            generator, size = stream(0, "residual sketch"), _GROUPS
            group = torch.randint(_GROUPS, (points,), generator=generator, device="cpu")
            signs = torch.randint(2, (points,), generator=generator, device="cpu").to(zeros) * 2.0 - 1.0
            self._groups = group.to(device), signs
        self._moment = zeros.new_zeros(channels, size, size)
        self._sums = zeros.new_zeros(2, channels)  # of |r_i|^2 and of |r_i|^4
        self._at_points = zeros.new_zeros(2, channels, points)  # of r_i^2 and of r_i^4

    def add(self, residuals: Float64[Tensor, "b c *grid"], *, grid: Grid) -> None:
        """Add the residuals of the next samples, on their grid."""
        scaled = residuals.flatten(2) / self.unit[:, None]
        self.squares += grid.mean(grid.fill(scaled.unflatten(2, grid.shape)).flatten(2).square()).sum(0)
        values = scaled if self._kept is None else grid.fill(residuals).flatten(2)
        if self.data.bins is None:
            roots = grid.sample_weights.to(scaled).sqrt()
            rows = values * roots
        else:
            rows, roots = self.data.bins.average(values, grid)
        if grid.is_batch:
            self._roots += roots[:, 0].sum(0)
        if self._kept is not None:
            self._kept[self._next : self._next + len(residuals)] = rows
            self._next += len(residuals)
            return
        if self._groups is not None:
            group, signs = self._groups
            squares = rows.square()
            self._at_points += torch.stack([squares.sum(0), squares.square().sum(0)])
            rows = rows.new_zeros(*rows.shape[:2], _GROUPS).index_add_(2, group, rows * signs)
        by_channel = rows.movedim(1, 0)
        self._moment += by_channel.mT @ by_channel
        norms = rows.square().sum(-1)
        self._sums += torch.stack([norms.sum(0), norms.square().sum(0)])

    def finish(self) -> None:
        """Sum over all ranks: a collective call, once, after the last residuals."""
        if self.data.grid.is_batch:
            self.data.summed(self._roots)
        parts = [self._kept] if self._kept is not None else [self._moment, self._sums, self._at_points]
        for part in (self.squares, *parts):
            self.data.summed(part)

    def effective_observations(self) -> Float64[Tensor, " c"]:
        """The number m per channel, dimensionless, between 1 and the number of grid points; on the CPU."""
        grid, count = self.data.grid, self.data.functions
        points = float((grid.weights > 0).sum() if grid.is_masked and not grid.is_batch else self._roots.numel())
        overlap = 1.0  # mean over pairs of the inner product of roots of weights, less than 1 where masks differ
        if grid.is_batch and count > 1:
            overlap = float((self._roots.square().sum() - count) / (count * (count - 1)))
        if self._kept is not None:
            return (_from_pairs(self._kept) * overlap**2).clamp(1.0, points).cpu()
        total, fourth = self._sums
        independent = total.square() - fourth
        alike = self._moment.square().sum((1, 2)) - fourth
        if self._groups is not None:
            at_points = (self._at_points[0].square() - self._at_points[1]).sum(1)
            alike = (alike - (independent - 2.0 * at_points) / _GROUPS) / (1.0 + 1.0 / _GROUPS)
        return (_ratio(independent, alike) * overlap**2).clamp(1.0, points).cpu()


def _from_pairs(rows: Float64[Tensor, "n c p"]) -> Float64[Tensor, " c"]:
    """The ratio from the Gram matrix of all rows, channel by channel."""
    counts = []
    for channel in range(rows.shape[1]):
        own = rows[:, channel]
        largest = own.abs().max().clamp_min(_TINY)
        gram = (own / largest) @ (own / largest).mT
        squares = gram.diagonal()
        independent = torch.outer(squares, squares).fill_diagonal_(0.0).sum()
        counts.append(_ratio(independent, gram.square().fill_diagonal_(0.0).sum()))
    return torch.stack(counts)


def _ratio(independent: Tensor, alike: Tensor) -> Tensor:
    """Ratio of the two sums; 1 for a vanishing denominator."""
    alike = alike.clamp_min(_TINY)
    return torch.where(independent > 0, independent / alike, torch.ones_like(alike))


def given_per_channel(value: float | Tensor | None, channels: int, *, name: str) -> Float64[Tensor, " c"] | None:
    """Expand a positive number, or one per channel, to `(c,)`; None stays None.

    Raises:
        ArgumentError: If it is neither, or not positive and finite.
    """
    if value is None:
        return None
    numbers = checks.check_variances(value, name, positive=True).detach().cpu()
    checks.check_shape_among(numbers, name, (), (1,), (channels,), remedy=f"leave {name}=None to learn it", error=ArgumentError)
    return numbers.reshape(-1).expand(channels).clone()


def given_noise(value: float | Tensor | None, channels: int, *, dtype: torch.dtype) -> Float64[Tensor, " c"] | None:
    """Expand a noise variance to `(c,)`, and check that the dtype of predictions represents it.

    Raises:
        ArgumentError: If it overflows or underflows, or the value is not a variance.
    """
    numbers = given_per_channel(value, channels, name="noise")
    if numbers is not None:
        checks.cast(numbers, dtype, "noise variances", error=ArgumentError)
    return numbers


def given_precision(value: object, shapes: Sequence[tuple[int, ...]], *, remedy: str) -> Float64[Tensor, "..."]:
    """Check prior precisions, which may be infinite; on the CPU.

    Raises:
        ArgumentError: If they are not positive numbers.
        ShapeError: If they have another shape.
    """
    numbers = checks.real_tensor(value, "prior_precision", dtype=torch.float64, error=ArgumentError).detach().cpu()
    checks.check_shape_among(numbers, "prior_precision", (), *shapes, remedy=remedy)
    if not bool((numbers > 0).all()):
        raise ArgumentError(expected="prior_precision > 0", got=str(float(numbers.min())), remedy="a flat prior is improper")
    return numbers.clone()


def check_some(inputs: Field) -> None:
    """Raise a DataError for an empty batch, which operators cannot transform."""
    if len(inputs) == 0:
        raise DataError(expected="at least one input", got="none", remedy="leave out empty batches")
