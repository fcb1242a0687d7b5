"""Whether what is fitted to some functions is better on others."""

from __future__ import annotations

import math

from jaxtyping import Float64
from torch import Tensor

_ERRORS = 2.0
"""Standard errors by which the mean has to exceed zero."""
_UPPER = 0.95
"""Level of the quantile that larger gains count as."""


def is_gain(gains: Float64[Tensor, " n"]) -> bool:
    """Whether gains of functions that were held out in turn are more than chance: two standard errors more than nothing.

    Where errors have heavy tails, a few functions may gain a hundred times as much as others. They raise the mean, and the
    standard error more: one such function among two hundred would hide what all others gain. So it is enough if the mean
    exceeds two standard errors with the largest twentieth of the gains counted as the next smaller one. Losses count in full.

    Args:
        gains: One per function, in nats, or twice that.

    Examples:
        >>> import torch
        >>> gains = torch.full((200,), 0.5).double().index_fill(0, torch.tensor([0]), 150.0)
        >>> bool(gains.mean() > 2.0 * gains.std() / math.sqrt(200)), is_gain(gains), is_gain(-gains)
        (False, True, False)
    """
    capped = gains.clamp(max=float(gains.quantile(_UPPER)))
    return any(bool(one.mean() > _ERRORS * one.std() / math.sqrt(len(one))) for one in (gains, capped))
