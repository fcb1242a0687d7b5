"""The processes that share a program's work: those of torchrun, or a single one."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor, distributed

from probneural.checks import check_integer

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

_IS_ALONE: ContextVar[bool] = ContextVar("is_alone", default=False)
"""Whether this rank works independently, even as a member of a group."""
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
    is_initialized = distributed.is_available() and distributed.is_initialized()
    return distributed.get_world_size() if is_initialized and not _IS_ALONE.get() else 1


@contextmanager
def _switched_on(variable: ContextVar[bool]) -> Iterator[None]:
    token = variable.set(True)
    try:
        yield
    finally:
        variable.reset(token)


def alone() -> AbstractContextManager[None]:
    """Work inside as if there were no other process: on all data, with no sums over processes.

    Use it for work of a single process, such as the training of a member of a distributed ensemble.

    Examples:
        >>> with alone():
        ...     world_size()
        1
    """
    return _switched_on(_IS_ALONE)


def together() -> AbstractContextManager[None]:
    """Declare that every process of the group runs the block on equal data, so that processes may share its work.

    A process that does not enter blocks the others. `pn.fit` enters, since distributed training takes all processes anyway;
    functions that a single process may call do not.

    Examples:
        >>> with together():
        ...     are_together()
        True
    """
    return _switched_on(_ARE_TOGETHER)


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
    return distributed.get_rank() if world_size() > 1 else 0


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
    is_on_gpu = distributed.get_backend() == "nccl"  # which takes tensors of the GPU only
    moved = values.to("cuda" if is_on_gpu else "cpu").contiguous()
    parts = [torch.empty_like(moved) for _ in range(world_size())]
    distributed.all_gather(parts, moved)
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
        is_on_gpu = distributed.get_backend(group) == "nccl"  # which takes tensors of the GPU only
        moved = local.cuda() if is_on_gpu else local.cpu()
        distributed.all_reduce(moved, group=group)
        if moved is not local:
            local.copy_(moved)
    return local


TIMEOUT = timedelta(minutes=5)
"""Timeout of a rank that waits for the others; a dead rank is detected immediately by its closed connections."""


def join() -> None:
    """Initialise the process group if torchrun has started this process and nobody has done so yet; alone, do nothing.

    Tensors on the CPU travel by gloo, those on CUDA by nccl.
    """
    if launched() < 2 or not distributed.is_available() or distributed.is_initialized():
        return
    distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    atexit.register(leave)


def leave() -> None:
    """Destroy the process group, if there is still one."""
    if distributed.is_initialized():
        distributed.destroy_process_group()


def own_device(device: torch.device) -> torch.device:
    """This rank's CUDA device, if several ranks share a machine; other devices unchanged."""
    if device.type != "cuda" or world_size() == 1 or "LOCAL_RANK" not in os.environ:
        return device
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(local)
    return local


def check_batch(batch_size: int) -> None:
    """Raise an ArgumentError if a batch has less than one pair for each process."""
    remedy = "raise batch_size, which counts the pairs of all processes, or start fewer"
    check_integer(batch_size, "batch_size", least=world_size(), remedy=remedy)


def summed(value: Tensor) -> Tensor:
    """The sum of a number over all processes, in their order, on the CPU."""
    return torch.stack(gathered(value)).sum(0) if world_size() > 1 else value


def first_says(answer: bool) -> bool:
    """The result of rank 0."""
    if world_size() == 1:
        return answer
    said = torch.tensor([answer], dtype=torch.uint8, device=_device())
    distributed.broadcast(said, src=0)
    return bool(said.item())


def take_from_first(tensors: Iterable[Tensor]) -> None:
    """Overwrite tensors by the first process's."""
    if world_size() == 1:
        return
    for tensor in tensors:
        values = tensor.detach().to(_device(), copy=True).contiguous()
        distributed.broadcast(values, src=0)
        tensor.detach().copy_(values)


def _device() -> torch.device:
    """Device of collective operations: the CPU, unless nccl is the group's only backend."""
    is_cuda_only = "gloo" not in str(distributed.get_backend_config())
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda_only else torch.device("cpu")
