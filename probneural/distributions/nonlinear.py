"""Nonlinear functionals of a distribution, by draws."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from probneural.checks import check_callable, check_finite, check_floating, check_integer
from probneural.distributions.base import FieldDistribution, index_grid
from probneural.distributions.empirical import EmpiricalField
from probneural.errors import GridError, ShapeError
from probneural.grids import Grid
from probneural.randomness import check_seed, stream_seed

_CHUNK_ELEMENTS = 2**21
"""Values drawn at once (16 MiB in float64)."""


def push_draws(u: FieldDistribution, function: Callable[[Tensor], Tensor], *, draws: int, seed: int) -> EmpiricalField:
    """The empirical distribution of a function's values; see `FieldDistribution.apply_by_draws`."""
    check_callable(function, "function", remedy="give a function of values (s, n, c, *grid) that returns (s, n, c, m)")
    draws, seed = check_integer(draws, "draws"), check_seed(seed)
    where = getattr(function, "grid", None)
    if isinstance(where, Grid) and where != u.grid:
        raise GridError(
            expected=f"a function on the distribution's grid {u.grid!r}",
            got=f"one on {where!r}",
            remedy="build it from the distribution's grid",
        )
    if isinstance(u, EmpiricalField):
        samples, weights = _image(function, u.samples), u.weights
    else:
        batch = min(draws, max(1, _CHUNK_ELEMENTS // max(u.mean.numel(), math.prod(u.base_shape), 1)))
        pieces = []
        for number, start in enumerate(range(0, draws, batch)):
            drawn = u.rsample((min(batch, draws - start),), seed=stream_seed(seed, "nonlinear functional draws", number))
            pieces.append(_image(function, drawn))
        samples, weights = torch.cat(pieces), None
    image = EmpiricalField(samples, weights, grid=index_grid(samples.shape[3]))
    labels = getattr(function, "labels", None)
    return image._image_of(u, labels if isinstance(labels, tuple) and len(labels) == samples.shape[3] else None)


def _image(function: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    found = check_floating(function(values), "what the function returned")
    if found.ndim != 4 or found.shape[:2] != values.shape[:2] or 0 in found.shape[2:]:
        raise ShapeError(
            expected=f"{tuple(values.shape[:2])} draws and functions, then channels and m numbers",
            got=f"shape {tuple(found.shape)}",
            remedy="keep the axes: values.flatten(3).amax(-1, keepdim=True)",
        )
    check_finite(found, "values of the function", remedy="make it finite on every draw")
    return found
