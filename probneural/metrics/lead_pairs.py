"""A forecast beside the true trajectories, lead by lead and a few functions at a time."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from probneural.distributions.base import FieldDistribution
from probneural.distributions.trajectory import Forecast
from probneural.errors import ArgumentError
from probneural.fields import Field
from probneural.fingerprints import row_fingerprints
from probneural.metrics.lead_alignment import TrueTrajectories, aligned
from probneural.pairs import Dataset
from probneural.pairs.provenance import row_keys

_BATCH_VALUES = 2**16
"""Values of a lead that are compared at once, each with all its members."""


@dataclass(frozen=True, eq=False, kw_only=True)
class LeadPart:
    """Some functions at one lead.

    Attributes:
        lead: From 1.
        rows: Which of the n functions.
        u: Their distribution.
        truth: What they truly were.
    """

    lead: int
    rows: slice
    u: FieldDistribution
    truth: Field


def lead_parts(forecast: Forecast, truth: TrueTrajectories) -> Iterator[LeadPart]:
    """Go through all leads in order, and at each through all functions.

    Raises:
        DataError: If the forecast is none, or the truth has no states by lead.
        ShapeError: If the two have different numbers of functions.
        ArgumentError: If the truth ends before the forecast does, or has no states at the forecast's times.
    """
    truth = aligned(forecast, truth)
    for lead, u in forecast.leads():
        try:
            source = truth.at(lead)
        except ArgumentError as error:
            raise ArgumentError(
                expected=f"true states at lead {lead}, as the forecast has",
                got=f"none: {error}",
                remedy="roll out fewer steps, or give longer trajectories",
            ) from error
        size = max(1, _BATCH_VALUES // max(1, source.channels * source.grid.size))
        for start in range(0, len(source), size):
            rows = slice(start, min(start + size, len(source)))
            yield LeadPart(lead=lead, rows=rows, u=u[rows], truth=source[rows])


def step_keys(truth: TrueTrajectories, steps: int) -> Int64[Tensor, "n *w k"]:
    """Return the row keys of the steps of trajectories, those of `truth.windows()`, or of states where times are uneven.

    Args:
        truth: n trajectories.
        steps: Number of steps from the start, where the trajectories make no windows.

    Returns:
        `(n, w, k)`, the keys of the windows of a trajectory in a row; or `(n, k)`, of a window in a row, if trajectories have
        different numbers of windows.

    Raises:
        ArgumentError: If the trajectories are shorter.
    """
    windows: Callable[[], Dataset] | None = getattr(truth, "windows", None)
    if windows is not None:
        with contextlib.suppress(ArgumentError):  # uneven times make no windows
            keys = row_keys(windows())
            return keys if len(keys) % len(truth) else keys.unflatten(0, (len(truth), -1))
    states = [truth.at(lead) for lead in range(steps + 1)]
    size = max(1, _BATCH_VALUES // (states[0].channels * states[0].grid.size))
    parts = [slice(start, min(start + size, len(truth))) for start in range(0, len(truth), size)]
    columns = [
        torch.cat([row_fingerprints(one[rows].values, following[rows].values) for rows in parts])
        for one, following in itertools.pairwise(states)
    ]
    window_keys = getattr(truth, "window_keys", None)
    return torch.stack([*columns, *([] if window_keys is None else window_keys.unbind(1))], 1)[..., None]
