"""Observations of states in time, Kalman's update of ensembles by them, and the prior before any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural import checks
from probneural.distributions import DenseRoot, GaussianField
from probneural.distributions.base import check_values, noise_variance
from probneural.distributions.latent import digest
from probneural.errors import ArgumentError
from probneural.fields import Field, check_field
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
        DataError: If `functional` is not a functional, or a value is not finite.
        ShapeError: If values are not `(n, c, m)`.
        ArgumentError: If the lead is not an integer, or the noise not positive.
    """

    functional: Functional
    values: Float[Tensor, "..."]
    _: KW_ONLY
    lead: int
    noise: float | Tensor

    def __post_init__(self) -> None:
        """Check the parts."""
        check_functional(self.functional)
        values = checks.real_tensor(self.values, "values", dtype=torch.float64)
        remedy = "one number per function, channel and number of the functional"
        checks.check_shape(values, "values", "n", "c", self.functional.size, remedy=remedy)
        checks.check_finite(values, "values of the functional")
        checks.check_variances(self.noise, "noise", positive=True)
        checks.assign(self, values=values, lead=checks.check_integer(self.lead, "lead", least=0))


@dataclass(frozen=True, eq=False, kw_only=True)
class ObservedNumbers:
    """Numbers y = H u + N(0, r) of the last c channels of an ensemble's values, function by function.

    Args:
        rows: The functional's matrix, `(m, p)`.
        values: y, `(n, c, m)`, in physical units.
        noise: r, `(n, c, m)`, positive, in physical units squared.
        taper: Correlations that multiply the members' covariance, `(p, p)`, dimensionless; None for none.
    """

    rows: Float64[Tensor, "m p"]
    values: Float64[Tensor, "n c m"]
    noise: Float64[Tensor, "n c m"]
    taper: Float64[Tensor, "p p"] | None


def numbers_by_lead(
    observations: Sequence[Observation],
    grid: Grid,
    *,
    shape: tuple[int, int],
    steps: float,
    taper: Float64[Tensor, "p p"] | None,
    device: torch.device,
) -> dict[int, list[ObservedNumbers]]:
    """Observed numbers by lead, in the order given, for states of n samples and c channels, `shape`, on a grid.

    Raises:
        DataError: If an observation is none.
        GridError: If a functional has another grid.
        ShapeError: If the number of samples or channels differs.
        ArgumentError: If there are none, one was made after the last lead, or noise does not fit the values.
    """
    numbers: dict[int, list[ObservedNumbers]] = {}
    taper = None if taper is None else taper.to(device)
    for observation in checks.check_sequence(observations, "observations", remedy="give a list of pn.forecasts.Observation"):
        remedy = "pn.forecasts.Observation(functional, values, lead=, noise=)"
        checks.check_instance(observation, Observation, "an observation", remedy=remedy)
        functional, values = check_functional(observation.functional, grid=grid), observation.values.cpu()
        check_values(values, (*shape, functional.size), "values of an observation")
        rows = functional.adjoint(torch.eye(functional.size, dtype=torch.float64, device="cpu")).flatten(1)
        noise = noise_variance(observation.noise, tuple(values.shape), values)
        part = ObservedNumbers(rows=rows.to(device), values=values.to(device), noise=noise.to(device), taper=taper)
        numbers.setdefault(observation.lead, []).append(part)
    remedy = "without any, roll out: predictor.rollout(start, steps=20)"
    checks.check_least(len(numbers), 1, "observations", remedy=remedy, error=ArgumentError)
    checks.check_integer(max(numbers), "lead of an observation", least=0, most=steps, remedy="roll out further: steps=")
    return numbers


def update(
    ensemble: Float[Tensor, "s n a p"], observed: ObservedNumbers
) -> tuple[Float[Tensor, "s n a p"], Float64[Tensor, " n"]]:
    """Kalman update of all channels, including those of other leads, from observations of the last ones.

    Args:
        ensemble: Members' values, in physical units.
        observed: The observations.

    Returns:
        The updated ensemble, and the squared standardised residual per observation of each function, `(n,)`, dimensionless.
    """
    members, chi2 = [], []
    for index in range(ensemble.shape[1]):  # one sample at a time: gains have a p m numbers each
        parts = (observed.values[index], observed.noise[index])
        values, size = _square_root(ensemble[:, index].to(torch.float64), observed, *parts)
        members.append(values)
        chi2.append(size)
    return torch.stack(members, dim=1).to(ensemble), torch.stack(chi2)


def _square_root(members: Tensor, observed: ObservedNumbers, values: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """One number after the other: the mean by Kalman's gain, deviations by less of it, so that their covariance is right."""
    channels, numbers = values.shape
    mean, deviations, chi2 = members.mean(0), members - members.mean(0), values.new_zeros(())
    for number in range(channels * numbers):
        channel, row = number // numbers - channels, observed.rows[number % numbers]
        projected = deviations[:, channel] * row  # (s, p)
        along = projected.sum(1)
        covariance = _covariance(deviations, observed, projected)
        variance = covariance[channel] @ row + noise[channel, number % numbers]
        lacking = values[channel, number % numbers] - mean[channel] @ row
        gain = covariance / variance
        mean = mean + gain * lacking
        reduced = 1.0 / (1.0 + (noise[channel, number % numbers] / variance).sqrt())
        deviations = deviations - reduced * along[:, None, None] * gain
        chi2 = chi2 + lacking.square() / variance / (channels * numbers)
    return mean + deviations, chi2


def _covariance(deviations: Tensor, observed: ObservedNumbers, projected: Tensor) -> Tensor:
    """Covariance of all values with one observed number, `(a, p)`, from each point's contribution to it, `(s, p)`."""
    count = len(deviations) - 1.0
    if observed.taper is None:
        return torch.einsum("sap,s->ap", deviations, projected.sum(-1)) / count
    return torch.einsum("sap,sp->ap", deviations, projected @ observed.taper) / count


def climatology(states: Field, *, functions: int = 1) -> GaussianField:
    """Gaussian prior of states with the mean and covariance of a sample of states, independent for each of n samples.

    A start without observations. With fewer states than values the covariance is singular.

    Args:
        states: The sample, `(s, c, *grid)`, s at least 2: states at all times of training data, for example.
        functions: Number n of samples.

    Raises:
        DataError: If there are fewer than two states, or they are not a field.
        ArgumentError: If n is not positive.

    Examples:
        >>> from probneural.grids import Grid
        >>> u = climatology(Field(torch.tensor([[[1.0, 0.0]], [[3.0, 0.0]]]), Grid.uniform(2)), functions=3)
        >>> u.mean[0].tolist(), u.variance[2].tolist()
        ([[2.0, 0.0]], [[2.0, 0.0]])
    """
    functions = checks.check_integer(functions, "functions")
    checks.check_least(len(check_field(states, "states")), 2, "states", remedy="a covariance takes many")
    mean = states.values.mean(0)
    columns = ((states.values - mean) / (len(states) - 1.0) ** 0.5).flatten(2).movedim(0, -1)
    root = DenseRoot(columns.expand(functions, -1, -1, -1))
    return GaussianField(
        mean.expand(functions, *mean.shape),
        DenseRoot(columns[None, ..., :0].expand(functions, -1, -1, -1)),
        latent=f"climatology-{digest(states.values)}",
        grid=states.grid,
        discrepancy=root,
    )
