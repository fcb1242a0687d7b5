"""Training in the processes that torchrun starts: who they are, and the few things that they tell each other."""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterable
from datetime import timedelta

import torch
from torch import Tensor, distributed

from probneural.errors import ArgumentError
from probneural.processes import gathered, launched, world_size

TIMEOUT = timedelta(minutes=5)
"""How long a process waits for the others; one that dies is noticed at once, because its connections close."""


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
    """This process's own CUDA device, where several share a machine; other devices as they are."""
    if device.type != "cuda" or world_size() == 1 or "LOCAL_RANK" not in os.environ:
        return device
    local = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(local)
    return local


def check_batch(batch_size: int) -> None:
    """Raise an ArgumentError if a batch has less than one pair for each process."""
    if batch_size < world_size():
        raise ArgumentError(
            expected=f"a batch_size of at least {world_size()}, one pair for each process",
            got=str(batch_size),
            remedy="raise batch_size, which counts the pairs of all processes, or start fewer",
        )


def summed(value: Tensor) -> Tensor:
    """The sum of a number over all processes, in their order, on the CPU."""
    return torch.stack(gathered(value)).sum(0) if world_size() > 1 else value


def first_says(answer: bool) -> bool:
    """What the first process answers."""
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
    """Where tensors travel: on the CPU, unless the group knows nccl alone."""
    is_cuda_only = "gloo" not in str(distributed.get_backend_config())
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda_only else torch.device("cpu")
