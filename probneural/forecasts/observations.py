"""Observations of states in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import assign, check_finite, check_instance, check_integer, check_sequence, check_variances, real_tensor
from probneural.distributions.base import check_values, noise_variance
from probneural.errors import ArgumentError, ShapeError
from probneural.forecasts.updates import ObservedNumbers
from probneural.functionals import Functional
from probneural.functionals.base import check_functional
from probneural.grids import Grid


@dataclass(frozen=True, eq=False)
class Observation:
    """Numbers that were measured at one lead: A u + N(0, noise) of each function.

    Args:
        functional: A, of size m, on the states' grid.
        values: `(n, c, m)`, in the values' units; lists and arrays will do.
        lead: When, in steps; 0 is the start.
        noise: Variance of the measurement, positive, in the values' units squared: a number, one per channel, or one per value.

    Raises:
        DataError: If the functional is none, or a value is not finite.
        ShapeError: If values are not `(n, c, m)`.
        ArgumentError: If the lead is no integer, or the noise not positive.
    """

    functional: Functional
    values: Float[Tensor, "..."]
    _: KW_ONLY
    lead: int
    noise: float | Tensor

    def __post_init__(self) -> None:
        """Check the parts."""
        check_functional(self.functional)
        values = real_tensor(self.values, "values", dtype=torch.float64)
        if values.ndim != 3 or values.shape[2] != self.functional.size:
            raise ShapeError(
                expected=f"values of shape (n, c, {self.functional.size})",
                got=str(tuple(values.shape)),
                remedy="one number per function, channel and number of the functional",
            )
        check_finite(values, "values of the functional")
        check_variances(self.noise, "noise", positive=True)
        assign(self, values=values, lead=check_integer(self.lead, "lead", least=0))


def observed_numbers(observation: Observation, grid: Grid, *, shape: tuple[int, int], taper: Tensor | None) -> ObservedNumbers:
    """An observation as numbers, for states of n functions and c channels on a grid.

    Raises:
        GridError: If the functional lives on another grid.
        ShapeError: If there are other functions or channels.
        ArgumentError: If the noise does not fit the values.
    """
    functional, values = check_functional(observation.functional, grid=grid), observation.values.cpu()
    check_values(values, (*shape, functional.size), "values of an observation")
    rows = functional.adjoint(torch.eye(functional.size, dtype=torch.float64, device="cpu")).flatten(1)
    noise = noise_variance(observation.noise, tuple(values.shape), values)
    return ObservedNumbers(rows=rows, values=values, noise=noise, taper=taper)


def by_lead(observations: Sequence[Observation], steps: int) -> dict[int, list[Observation]]:
    """Observations by lead, in the order given.

    Raises:
        DataError: If one is none.
        ArgumentError: If there are none, or one was made after the last lead.
    """
    given = check_sequence(observations, "observations", remedy="give a list of pn.forecasts.Observation")
    sorted_: dict[int, list[Observation]] = {}
    for one in given:
        check_instance(one, Observation, "an observation", remedy="pn.forecasts.Observation(functional, values, lead=, noise=)")
        sorted_.setdefault(one.lead, []).append(one)
    if not given:
        raise ArgumentError(
            expected="one observation or more", got="none", remedy="without any, roll out: predictor.rollout(start, steps=20)"
        )
    if max(sorted_) > steps:
        raise ArgumentError(
            expected=f"observations at leads 0 to {steps}", got=f"one at lead {max(sorted_)}", remedy="roll out further: steps="
        )
    return sorted_
