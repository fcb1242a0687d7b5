"""Reading batches: their order, and the loader that brings them to the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from probneural.checks import check_integer
from probneural.errors import ProbneuralError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.pairs import Dataset, FieldPairs
from probneural.processes import own_rows
from probneural.randomness import stream
from probneural.training.options import DataOptions

Item = TypeVar("Item")
Batch = tuple[int, Tensor]
"""Index of a data set, and rows in it."""
_Order = tuple[int, NDArray[np.int64]]
_Read = tuple[int, Tensor | None, Tensor | None, tuple[Grid, Grid] | None] | ProbneuralError


class BatchOrder(Sampler[_Order]):
    """The batches of an epoch, from any batch on, in an order that depends only on seed, epoch and rank.

    Each batch comes from one data set, the same on all ranks; each rank iterates over a part of its rows.

    Args:
        lengths: Pairs of each data set.
        batch_size: Pairs of a batch, over all processes; the last one of each data set may have fewer.
        seed: Names the order; None for the order of the rows.

    Examples:
        >>> order = BatchOrder([5, 2], batch_size=2, seed=None)
        >>> [(source, rows.tolist()) for source, rows in order]
        [(0, [0, 1]), (0, [2, 3]), (0, [4]), (1, [0, 1])]
        >>> order.set_epoch(0, start=3)
        >>> [(source, rows.tolist()) for source, rows in order]
        [(1, [0, 1])]
    """

    def __init__(self, lengths: Sequence[int], *, batch_size: int, seed: int | None) -> None:
        self.lengths = tuple(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch, self.start = 0, 0
        self._known: tuple[int, list[Batch]] | None = None

    def set_epoch(self, epoch: int, *, start: int = 0) -> None:
        """Choose an epoch, from 0, and the batch in it to begin with."""
        self.epoch, self.start = epoch, start

    def batches(self) -> list[Batch]:
        """All batches of the epoch, with the rows of all processes."""
        if self._known is None or self._known[0] != self.epoch:
            self._known = self.epoch, self._ordered()
        return self._known[1]

    def _ordered(self) -> list[Batch]:
        generator = None if self.seed is None else stream(self.seed, "batches", self.epoch)
        batches: list[Batch] = []
        for source, length in enumerate(self.lengths):
            order = torch.arange(length) if generator is None else torch.randperm(length, generator=generator, device="cpu")
            batches += [(source, rows) for rows in order.split(self.batch_size)]
        if generator is None or len(self.lengths) == 1:
            return batches
        return [batches[number] for number in torch.randperm(len(batches), generator=generator, device="cpu").tolist()]

    def __len__(self) -> int:
        """Number of batches of a whole epoch."""
        return sum(-(-length // self.batch_size) for length in self.lengths)

    def __iter__(self) -> Iterator[_Order]:
        """This process's share of each batch, from the chosen one on."""
        for source, rows in self.batches()[self.start :]:
            part = own_rows(len(rows))
            yield source, rows[part.start : part.stop].numpy()


class Loader:
    """Reads the batches of an order ahead of their use, with torch's own `DataLoader`, and puts them on a device.

    Args:
        sources: The data sets.
        order: Sampler of the rows of each batch.
        options: Workers and prefetching.
        device: Device of the batches.

    Raises:
        ArgumentError: If workers are used with data on an accelerator, whose memory they do not share.
    """

    def __init__(self, sources: Sequence[Dataset], order: BatchOrder, *, options: DataOptions, device: torch.device) -> None:
        self.sources = tuple(sources)
        self.device = device
        self.depth = (
            0 if options.workers or all(isinstance(source, FieldPairs) for source in self.sources) else options.prefetch
        )
        on_cpu = all(side.device.type == "cpu" for source in self.sources for side in (source.inputs, source.outputs))
        if not on_cpu:
            remedy = "leave the data on the CPU: batches are moved one by one, or set workers=0"
            check_integer(options.workers, "workers for data on an accelerator", least=0, most=0, remedy=remedy)
        wants_pinned = device.type == "cuda" if options.pin_memory is None else options.pin_memory
        self.is_pinned = wants_pinned and on_cpu and torch.cuda.is_available()
        self.batches: DataLoader[_Read] = DataLoader(
            _Reader(self.sources),
            sampler=order,
            batch_size=None,
            num_workers=options.workers,
            prefetch_factor=options.prefetch if options.workers else None,
            persistent_workers=options.workers > 0,
            pin_memory=self.is_pinned,
            collate_fn=unchanged,
            generator=stream(0, "workers"),  # not the global generator, which training uses
        )

    def __iter__(self) -> Generator[FieldPairs | None]:
        """Batches on the device; None where this process has no row of one."""
        read: Iterator[Any] = iter(self.batches)
        for item in _ahead(read, self.depth) if self.depth else read:
            if isinstance(item, ProbneuralError):
                raise item
            source, inputs, outputs, masks = item
            if inputs is None:
                yield None
                continue
            data = self.sources[source]
            grid, out_grid = (data.inputs.grid, data.outputs.grid) if masks is None else masks
            yield FieldPairs(self._placed(inputs, grid), self._placed(outputs, out_grid))

    def _placed(self, values: Tensor, grid: Grid) -> Field:
        return Field(values.to(self.device, non_blocking=self.is_pinned), grid)


class _Reader(TorchDataset[_Read]):
    """Reads the values of a batch; grids are not transferred unless masks differ, and errors are passed on unchanged."""

    def __init__(self, sources: Sequence[Dataset]) -> None:
        self.sources = sources

    def __getitem__(self, batch: _Order) -> _Read:
        source, rows = batch
        if not len(rows):
            return source, None, None, None
        data = self.sources[source]
        try:
            pairs = data[torch.from_numpy(rows).to(data.inputs.device)]
        except ProbneuralError as error:
            return error
        grids = (pairs.inputs.grid, pairs.outputs.grid)
        masks = grids if any(grid.is_batch for grid in grids) else None
        return source, pairs.inputs.values, pairs.outputs.values, masks


def unchanged(batch: Item) -> Item:
    """Identity, for `collate_fn`."""
    return batch


def _ahead(items: Iterator[Item], depth: int) -> Iterator[Item]:
    """Prefetch a number of items in a separate thread."""
    end = object()
    context = copy_context()  # distributed settings apply in the thread, too

    def following() -> Item | object:
        return context.run(lambda: next(items, end))

    pool = ThreadPoolExecutor(1, thread_name_prefix="batches")
    try:
        waiting = deque(pool.submit(following) for _ in range(depth))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(pool.submit(following))
            yield cast("Item", item)
    finally:
        pool.shutdown(cancel_futures=True)
