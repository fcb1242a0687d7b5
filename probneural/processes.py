"""The processes that share a program's work: what torchrun starts, or this one alone."""

from __future__ import annotations

import torch
import torch.distributed
from torch import Tensor


def world_size() -> int:
    """How many processes share the work: those of the default group of torch.distributed, 1 where it is not initialised.

    Examples:
        >>> world_size()
        1
    """
    is_initialized = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if is_initialized else 1


def rank() -> int:
    """This process's number among them, from 0.

    Examples:
        >>> rank()
        0
    """
    return torch.distributed.get_rank() if world_size() > 1 else 0


def own_rows(count: int) -> range:
    """Which of `count` things are this process's own: a block of neighbours, so that files are read in order.

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
