"""Weights that one training passes through: the ends of successive calls of a training function."""

from __future__ import annotations

import copy

import torch
from torch import nn
from tqdm.auto import tqdm

from probneural.heads.ensembles.members import MemberTask, State, TrainFunction
from probneural.heads.ensembles.reinitialisation import Initialisation
from probneural.heads.training_data import TrainingData, owned
from probneural.randomness import stream_seed


def training_trajectory(
    module: nn.Module, data: TrainingData, train: TrainFunction, *, calls: int, seed: int, show_progress: bool
) -> list[State]:
    """Parameters and buffers after each of some calls, each from where the last one ended.

    Args:
        module: Where the first call starts; it is not changed.
        data: Training pairs.
        train: Called as `train(operator, data, seed=seed)`, trains in place.
        calls: How many.
        seed: Random seed of the calls.
        show_progress: Whether to show a progress bar over them.

    Raises:
        TrainingError: If a call fails, or leaves the weights as they were.
    """
    pairs, current, states = owned(data), module, list[State]()
    for number in tqdm(range(calls), desc="snapshots", disable=not show_progress):
        start = copy.deepcopy(current)
        where = Initialisation(build=lambda _, start=start: start)  # type: ignore[misc]
        task = MemberTask(start, pairs, train, where, calls, data.inputs.device)
        states.append(task.run(number, stream_seed(seed, "training snapshot", number)))
        current = with_state(start, states[-1])
    return states


@torch.no_grad()
def with_state(module: nn.Module, state: State) -> nn.Module:
    """A copy with these parameters and buffers."""
    copied = copy.deepcopy(module)
    for name, tensor in (*copied.named_parameters(), *copied.named_buffers()):
        tensor.data = state[name].clone()  # as `Module.to` does it: what is tied stays tied
    return copied
