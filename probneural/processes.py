"""The processes that share a program's work: what torchrun starts, or this one alone."""

from __future__ import annotations

import torch.distributed


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
