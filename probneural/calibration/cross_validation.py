"""k-fold cross-validation: groups of samples, and significance of gains."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from probneural.pairs import Dataset

FOLDS = 5
"""Parts of a calibration set, each held out once."""
_ERRORS = 2.0
"""Standard errors by which the mean has to exceed zero."""
_UPPER = 0.95
"""Level of the quantile that larger gains count as."""


def group_numbers(pairs: Dataset) -> Int64[Tensor, " n"]:
    """Which group each pair is of, numbered from 0; without groups, such as trajectories, each is one of its own.

    What is held out in turn are whole groups: windows of one trajectory resemble each other.
    """
    groups = getattr(pairs, "groups", None)
    return torch.arange(len(pairs), device="cpu") if groups is None else groups.unique(return_inverse=True)[1]


def number_of(groups: Int64[Tensor, " n"]) -> int:
    """How many groups there are."""
    return int(groups.max()) + 1 if len(groups) else 0


def mean_size(groups: Int64[Tensor, " n"]) -> float:
    """Functions per group, on average, by which penalties in functions are multiplied: a group then counts as one."""
    return len(groups) / max(1, number_of(groups))


def group_sizes(groups: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """How many functions there are in the group of each."""
    return groups.bincount()[groups]


def group_means(values: Float64[Tensor, " n"], groups: Int64[Tensor, " n"]) -> Float64[Tensor, " g"]:
    """The mean of each group.

    Examples:
        >>> group_means(torch.tensor([1.0, 3.0, 5.0]).double(), torch.tensor([0, 0, 1])).tolist()
        [2.0, 5.0]
    """
    return values.new_zeros(number_of(groups)).index_add(0, groups, values) / groups.bincount()


def is_gain(gains: Float64[Tensor, " n"]) -> bool:
    """Whether gains of functions that were held out in turn are more than chance: two standard errors more than nothing.

    Where errors have heavy tails, a few functions may gain a hundred times as much as others. They raise the mean, and the
    standard error more: one such function among two hundred would hide what all others gain. So it is enough if the mean
    exceeds two standard errors with the largest twentieth of the gains counted as the next smaller one. Losses count in full.

    Args:
        gains: One per function, or per group of functions, in nats, or twice that.

    Examples:
        >>> gains = torch.full((200,), 0.5).double().index_fill(0, torch.tensor([0]), 150.0)
        >>> bool(gains.mean() > 2.0 * gains.std() / math.sqrt(200)), is_gain(gains), is_gain(-gains)
        (False, True, False)
    """
    capped = gains.clamp(max=float(gains.quantile(_UPPER)))
    return any(bool(sample.mean() > _ERRORS * sample.std() / math.sqrt(len(sample))) for sample in (gains, capped))
