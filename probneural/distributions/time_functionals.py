"""Functionals of space and time of an ensemble of trajectories, a lead at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from probneural.checks import check_finite, real_tensor
from probneural.distributions.base import index_grid
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.nonlinear import push_draws
from probneural.errors import ArgumentError, ShapeError
from probneural.functionals import Functional

MapOfSpace = Callable[[Tensor], Tensor]
"""From values `(s, n, c, *grid)` to numbers `(s, n, c', m)`."""


def applied(
    maps: Sequence[MapOfSpace],
    states: Callable[[], Iterator[tuple[int, EmpiricalField]]],
    *,
    leads: Sequence[int],
    weights: Sequence[float] | Sequence[Sequence[float]] | Tensor | None,
) -> EmpiricalField:
    """The distribution of all maps' numbers, or of weighted sums of them.

    Args:
        maps: One per row of the result, that is per lead; their numbers are equally many.
        states: Gives rows and states, each row once, in any order.
        leads: Of the rows, for their names.
        weights: `(l,)`, `(k, l)`, or None.

    Raises:
        ArgumentError: If there is not one weight, or map, per lead.
        ShapeError: If the maps give different numbers.
    """
    sums = None if weights is None else _checked_weights(weights, len(maps))
    parts: dict[int, Tensor] = {}
    total: Tensor | None = None
    labels: dict[int, tuple[str, ...] | None] = {}
    image: EmpiricalField | None = None
    for row, u in states():
        if row >= len(maps):
            raise ArgumentError(expected="one functional per lead", got=f"{len(maps)}", remedy="or one for all leads")
        one = maps[row]
        image = u.apply(one) if isinstance(one, Functional) else push_draws(u, one, draws=1, seed=0)
        labels[row] = image.labels
        if sums is None:
            parts[row] = image.samples
        else:
            term = sums[:, row].to(image.samples)[:, None] * image.samples[..., None, :]
            total = term if total is None else _alike(total, term) + term
    if sums is None:
        ordered = [parts[row] for row in range(len(maps))]
        for part in ordered[1:]:
            _alike(ordered[0], part)
        samples = torch.cat(ordered, dim=-1)
    else:
        assert total is not None  # there is one lead or more
        samples = total.flatten(-2)
    if sums is not None:
        named = labels.get(0) if len(sums) == 1 else None
    else:
        known = [(lead, labels[row]) for row, lead in enumerate(leads)]
        missing = any(own is None for _, own in known)
        named = None if missing else tuple(f"{name}, lead {lead}" for lead, own in known for name in own or ())
    assert image is not None
    return EmpiricalField(samples, grid=index_grid(samples.shape[-1]))._image_of(image, named)


def _checked_weights(weights: Sequence[float] | Sequence[Sequence[float]] | Tensor, count: int) -> Tensor:
    """Weights `(k, l)`."""
    numbers = real_tensor(weights, "weights", dtype=torch.float64)
    check_finite(numbers, "weights")
    if numbers.ndim not in (1, 2) or numbers.shape[-1] != count:
        raise ArgumentError(
            expected=f"weights of shape ({count},) or (k, {count}), one per lead",
            got=str(tuple(numbers.shape)),
            remedy="say which leads: leads=range(1, 21)",
        )
    return numbers if numbers.ndim == 2 else numbers[None]


def _alike(first: Tensor, second: Tensor) -> Tensor:
    """The first, or a ShapeError if the second has another shape."""
    if first.shape != second.shape:
        raise ShapeError(
            expected="functionals of equally many numbers at all leads",
            got=f"{first.shape[-1]} and {second.shape[-1]}",
            remedy="apply them one by one",
        )
    return first
