"""Masks of data that are read: land, and missing values of single samples."""

from __future__ import annotations

import torch

from probneural.arrays.reading import Mask
from probneural.data.fields import StoredFields
from probneural.errors import ArgumentError, ShapeError

LAND = "land"
"""The mask of points that are NaN in all samples."""


def with_mask(side: StoredFields, mask: Mask | str, *, partner: StoredFields | None = None) -> StoredFields:
    """Samples with a mask.

    Args:
        side: The samples.
        mask: True where NaN means missing, sample by sample; "land" where the points that are NaN in the first sample are
            missing in all; or truth values `(*grid,)` in the order of the array's axes, True at points that are missing in all
            samples. None for none.
        partner: The other side of pairs, whose array gives that order if this side has no axis of space.

    Raises:
        ShapeError: If an array has another shape or holds no truth values.
        ArgumentError: If it is another word, or no array.
    """
    if mask is None or mask is False or not len(side):
        return side
    if mask is True:
        return side.with_missing()
    if isinstance(mask, str):
        if mask != LAND:
            raise ArgumentError(
                expected='mask=True, mask="land" or an array of truth values', got=repr(mask), remedy='write mask="land"'
            )
        return side.with_grid(side.with_missing()[0].grid.observed[0])
    labels = [part.variable.labels for part in (*side.parts, *(partner.parts if partner else ()))]
    turn = next((label.turned for label in labels if label.turned is not None), None)
    turned = mask if turn is None else turn(mask)
    try:
        missing = torch.as_tensor(turned)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            expected=f"truth values as mask, of shape {side.grid.shape}", got=str(error), remedy="pass a boolean tensor"
        ) from error
    if missing.dtype != torch.bool or tuple(missing.shape) != side.grid.shape:
        raise ShapeError(
            expected=f"truth values as mask, of shape {side.grid.shape}",
            got=f"{missing.dtype} of shape {tuple(missing.shape)}",
            remedy="pass mask=True where NaN means missing, sample by sample",
        )
    return side.with_grid(~missing)
