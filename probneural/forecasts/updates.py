"""Updates of ensembles by observations: Kalman's, with perturbed observations or square roots."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

KINDS = ("square_root", "stochastic")


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

    def to(self, device: torch.device) -> ObservedNumbers:
        """The same on a device."""
        taper = None if self.taper is None else self.taper.to(device)
        rows, values, noise = self.rows.to(device), self.values.to(device), self.noise.to(device)
        return ObservedNumbers(rows=rows, values=values, noise=noise, taper=taper)


def update(
    ensemble: Float[Tensor, "s n a p"], observed: ObservedNumbers, *, kind: str, generator: torch.Generator
) -> tuple[Float[Tensor, "s n a p"], Float64[Tensor, " n"]]:
    """Kalman's update of all channels, those of other leads included, from what is observed of the last ones.

    Args:
        ensemble: Members' values, in physical units.
        observed: The observations.
        kind: `"stochastic"` or `"square_root"`.
        generator: Of the former's perturbations.

    Returns:
        The updated ensemble, and the squared standardised residual per observation of each function, `(n,)`, dimensionless.
    """
    run = _stochastic if kind == "stochastic" else _square_root
    members, chi2 = [], []
    for index in range(ensemble.shape[1]):  # one function at a time: gains have a p m numbers each
        parts = (observed.values[index], observed.noise[index])
        values, size = run(ensemble[:, index].to(torch.float64), observed, *parts, generator)
        members.append(values)
        chi2.append(size)
    return torch.stack(members, dim=1).to(ensemble), torch.stack(chi2)


def _stochastic(
    members: Tensor, observed: ObservedNumbers, values: Tensor, noise: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Every member is moved as if it were the mean, towards observations with errors of its own.

    The errors have mean zero, so that the mean moves as Kalman's does, and their sample covariance is on average the noise's.
    """
    count, (channels, numbers) = len(members), values.shape
    deviations = members - members.mean(0)
    covariance = _covariance(deviations, observed, deviations[:, -channels:, None] * observed.rows)  # (a, p, c, m)
    states = covariance[-channels:].movedim(1, -1)  # (c, c, m, p)
    total = torch.einsum("dcmp,qp->dqcm", states, observed.rows).reshape(2 * [channels * numbers])
    total = 0.5 * (total + total.mT) + noise.flatten().diag()
    factor = torch.linalg.cholesky(total)
    errors = torch.randn(count, channels, numbers, generator=generator, dtype=torch.float64).to(members.device)
    errors = (errors - errors.mean(0)) * noise.sqrt()
    lacking = values + errors - members[:, -channels:] @ observed.rows.mT
    pulls = torch.cholesky_solve(lacking.flatten(1).mT, factor)
    moved = (covariance.flatten(2).flatten(0, 1) @ pulls).mT
    mean = torch.linalg.solve_triangular(factor, lacking.mean(0).reshape(-1, 1), upper=False)
    return members + moved.view_as(members), mean.square().mean()


def _square_root(
    members: Tensor, observed: ObservedNumbers, values: Tensor, noise: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """One number after the other: the mean by Kalman's gain, deviations by less of it, so that their covariance is right."""
    channels, numbers = values.shape
    mean, deviations, chi2 = members.mean(0), members - members.mean(0), values.new_zeros(())
    for number in range(channels * numbers):
        channel, row = number // numbers - channels, observed.rows[number % numbers]
        projected = (deviations[:, channel] * row)[:, None, None]  # (s, 1, 1, p)
        along = projected.sum((1, 2, 3))
        covariance = _covariance(deviations, observed, projected)[..., 0, 0]
        variance = covariance[channel] @ row + noise[channel, number % numbers]
        lacking = values[channel, number % numbers] - mean[channel] @ row
        gain = covariance / variance
        mean = mean + gain * lacking
        reduced = 1.0 / (1.0 + (noise[channel, number % numbers] / variance).sqrt())
        deviations = deviations - reduced * along[:, None, None] * gain
        chi2 = chi2 + lacking.square() / variance / (channels * numbers)
    return mean + deviations, chi2


def _covariance(deviations: Tensor, observed: ObservedNumbers, projected: Tensor) -> Tensor:
    """Covariance of all values with numbers, `(a, p, c, m)`, from what each point adds to each number, `(s, c, m, p)`."""
    count = len(deviations) - 1.0
    if observed.taper is None:
        return torch.einsum("sap,scm->apcm", deviations, projected.sum(-1)) / count
    return torch.einsum("sap,scmp->apcm", deviations, projected @ observed.taper) / count
