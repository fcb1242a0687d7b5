"""Variance shares of a forecast: initial states, operators, their interaction, measurement noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.errors import ArgumentError
from probneural.grids import Grid

if TYPE_CHECKING:
    from probneural.distributions.trajectory import Trajectory


@dataclass(frozen=True, eq=False, kw_only=True)
class VarianceShares:
    """The variance of a forecast by its source, at leads 1 to `steps`, averaged over the domain by quadrature.

    A state is a function u(I, O) of the initial state I and the operators O, which are independent. The total variance is
    Var u = Var E[u | I] + E Var[u | I], and likewise for O, so that

        Var u = Var E[u | I] + Var E[u | O] + interaction.

    Members (I_m, O_m) have partners (I_m, O_{m+1}). Half the mean squared difference of two states that share I, or O, is an
    unbiased estimate of E Var[u | I], or E Var[u | O]; the members' own variance, with s - 1, is one of Var u. The shares are
    differences of the three: each is unbiased, and a small one may come out negative.

    Attributes:
        initial: Var E[u | I], `(steps, n, c)`, in physical units squared, float64; zeros where the start is known.
        operator: Var E[u | O], likewise.
        interaction: The rest of the states' variance, likewise.
        noise: Variance of the measurement noise, likewise.

    Reference:
        Jansen (1999), Analysis of variance designs for model output; Saltelli et al. (2010), Variance based sensitivity
        analysis of model output, table 2.
    """

    initial: Float64[Tensor, "steps n c"]
    operator: Float64[Tensor, "steps n c"]
    interaction: Float64[Tensor, "steps n c"]
    noise: Float64[Tensor, "steps n c"]

    @property
    def total(self) -> Float64[Tensor, "steps n c"]:
        """Variance of a measurement, `(steps, n, c)`, in physical units squared."""
        return self.initial + self.operator + self.interaction + self.noise

    def __repr__(self) -> str:
        """Fractions of the total at the last lead, averaged over functions."""
        last = self.total[-1].sum()
        parts = {name: float(getattr(self, name)[-1].sum() / last) for name in ("initial", "operator", "interaction", "noise")}
        return f"VarianceShares({', '.join(f'{name} {part:.0%}' for name, part in parts.items())} at lead {len(self.total)})"


def plain_shares(forecast: Trajectory) -> VarianceShares:
    """Shares where the start is known: all of the states' variance is the operators'."""
    _check_members(forecast)
    operator = torch.stack([_variance(u.samples, forecast.grid) for _, u in forecast.leads()])
    zeros = torch.zeros_like(operator)
    return VarianceShares(
        initial=zeros, operator=operator, interaction=zeros, noise=forecast.noise.to(operator).expand_as(operator).clone()
    )


def paired_shares(forecast: Trajectory, partners: Trajectory) -> VarianceShares:
    """Shares from members, and partners that have the same initial states and the operators of the next members."""
    _check_members(forecast)
    rows: dict[str, list[Tensor]] = {"initial": [], "operator": [], "interaction": []}
    for (_, own), (_, other) in zip(forecast.leads(), partners.leads(), strict=True):
        first, second, grid = own.samples, other.samples, forecast.grid
        total = (_variance(first, grid) + _variance(second, grid)) / 2
        given_initial = _average((first - second).square().mean(0), grid) / 2  # E Var[u | I]
        given_operator = _average((second - first.roll(-1, 0)).square().mean(0), grid) / 2  # E Var[u | O]
        rows["initial"].append(total - given_initial)
        rows["operator"].append(total - given_operator)
        rows["interaction"].append(given_initial + given_operator - total)
    parts = {name: torch.stack(row) for name, row in rows.items()}
    noise = forecast.noise.to(parts["initial"]).expand_as(parts["initial"]).clone()
    return VarianceShares(**parts, noise=noise)


def _check_members(forecast: Trajectory) -> None:
    if forecast.members < 2:
        raise ArgumentError(expected="two members or more", got="one", remedy="roll out more: members=32")


def _variance(samples: Tensor, grid: Grid) -> Float64[Tensor, "n c"]:
    """Unbiased variance over members, averaged over the domain."""
    return _average(samples.var(0), grid)


def _average(squares: Tensor, grid: Grid) -> Float64[Tensor, "n c"]:
    return grid.mean(squares.flatten(2).to(torch.float64)).cpu()
