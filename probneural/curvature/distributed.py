"""Sums over the processes of torch.distributed, each of which holds its own shard of the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.distributed
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import ArgumentError, UnsupportedError
from probneural.processes import sum_over_processes

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def check_group(is_sharded: bool, group: ProcessGroup | None) -> None:
    """Check that sums over processes are possible where they are asked for.

    Raises:
        ArgumentError: If a group is given for data that are not sharded.
        UnsupportedError: If data are sharded and torch.distributed is not initialised.
    """
    if group is not None and not is_sharded:
        raise ArgumentError(expected="is_sharded=True with a group", got="False", remedy="say so, or leave the group out")
    if is_sharded and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        raise UnsupportedError(
            expected="an initialised torch.distributed for sharded data",
            got="none",
            remedy="start with torchrun and call torch.distributed.init_process_group()",
        )


def sum_of_shards(
    local: Float64[Tensor, "*shape"], *, is_sharded: bool, group: ProcessGroup | None = None
) -> Float64[Tensor, "*shape"]:
    """Add up the processes' sums in float64, or return the one sum if the data are not sharded.

    Every process must call it equally often, with equal shapes; the result is the same on each. It is not differentiable:
    the autograd.Functions call it inside, and again in their derivatives.
    """
    return sum_over_processes(local, group=group) if is_sharded else local
