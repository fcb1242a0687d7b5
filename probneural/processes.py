"""The processes that share a program's work: those of torchrun, or a single one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch
import torch.distributed
from jaxtyping import Float64
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_IS_ALONE: ContextVar[bool] = ContextVar("is_alone", default=False)
"""Whether this process works alone, even as a member of a group."""
_ARE_TOGETHER: ContextVar[bool] = ContextVar("are_together", default=False)
"""Whether every process of the group is known to run the same code on equal data."""


def launched() -> int:
    """Number of processes that torchrun has started, from its environment variables, initialised or not.

    It is 1 without torchrun, and inside [`alone`][probneural.processes.alone].

    Examples:
        >>> launched()
        1
    """
    by_torchrun = all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))
    return int(os.environ["WORLD_SIZE"]) if by_torchrun and not _IS_ALONE.get() else 1


def world_size() -> int:
    """Number of processes that share the work: those of the default group of torch.distributed.

    It is 1 where that is not initialised, and inside [`alone`][probneural.processes.alone].

    Examples:
        >>> world_size()
        1
    """
    is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_initialized and not _IS_ALONE.get() else 1


@contextmanager
def alone() -> Iterator[None]:
    """Work inside as if there were no other process: on all data, with no sums over processes.

    Use it for work of a single process, such as the training of a member of a distributed ensemble.

    Examples:
        >>> with alone():
        ...     world_size()
        1
    """
    token = _IS_ALONE.set(True)
    try:
        yield
    finally:
        _IS_ALONE.reset(token)


@contextmanager
def together() -> Iterator[None]:
    """Declare that every process of the group runs the block on equal data, so that processes may share its work.

    A process that does not enter blocks the others. `pn.fit` enters, since distributed training takes all processes anyway;
    functions that a single process may call do not.

    Examples:
        >>> with together():
        ...     are_together()
        True
    """
    token = _ARE_TOGETHER.set(True)
    try:
        yield
    finally:
        _ARE_TOGETHER.reset(token)


def are_together() -> bool:
    """Whether all processes are inside of [`together`][probneural.processes.together].

    Examples:
        >>> are_together()
        False
    """
    return _ARE_TOGETHER.get()


def rank() -> int:
    """This process's number among them, from 0.

    Examples:
        >>> rank()
        0
    """
    return torch.distributed.get_rank() if world_size() > 1 else 0


def own_rows(count: int) -> range:
    """Indices of this process among `count`: a contiguous block, so that files are read in order.

    Blocks are disjoint, cover all, and differ in length by one at most.

    Examples:
        >>> own_rows(10)
        range(0, 10)
    """
    number, processes = rank(), world_size()
    return range(count * number // processes, count * (number + 1) // processes)


def gathered(values: Tensor) -> list[Tensor]:
    """The tensors of all processes, in the order of ranks; each makes this call, with a tensor of the same shape and dtype.

    Examples:
        >>> gathered(torch.ones(2))
        [tensor([1., 1.])]
    """
    if world_size() == 1:
        return [values]
    is_on_gpu = torch.distributed.get_backend() == "nccl"  # which takes tensors of the GPU only
    moved = values.to("cuda" if is_on_gpu else "cpu").contiguous()
    parts = [torch.empty_like(moved) for _ in range(world_size())]
    torch.distributed.all_gather(parts, moved)
    return [part.to(values.device) for part in parts]


def sum_over_processes(local: Float64[Tensor, "*shape"], *, group: ProcessGroup | None = None) -> Float64[Tensor, "*shape"]:
    """Add up the processes' tensors, in place, in float64 or int64: the result has the same bits on each.

    Each makes this call, with a tensor of the same shape. Nothing is differentiated through it.

    Args:
        local: This process's sum.
        group: The processes; those of the default group if None.

    Examples:
        >>> sum_over_processes(torch.ones(2, dtype=torch.float64)).tolist()
        [1.0, 1.0]
    """
    if world_size() > 1:
        is_on_gpu = torch.distributed.get_backend(group) == "nccl"  # which takes tensors of the GPU only
        moved = local.cuda() if is_on_gpu else local.cpu()
        torch.distributed.all_reduce(moved, group=group)
        if moved is not local:
            local.copy_(moved)
    return local
