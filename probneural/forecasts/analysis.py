"""Ensemble assimilation during a roll-out, and its results."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural import checks
from probneural.contexts import remembered, without_gradients
from probneural.distributions import EmpiricalField, EnsembleForecast, FieldDistribution, Predictor
from probneural.distributions.base import check_values
from probneural.distributions.forecasts.members import Members, StepInputs, drawn_starts, members_of
from probneural.errors import ArgumentError, GridError
from probneural.fields import Field, check_field
from probneural.forecasts.observations import Observation, ObservedNumbers, numbers_by_lead, update
from probneural.grids import Grid, check_grid
from probneural.grids.grid import check_same_grid
from probneural.randomness import check_seed, stream_seed
from probneural.settings import Positive, Seed, Settings

Step = Callable[[Tensor], Tensor]
"""Leads from states `(n, c, *grid)` to the next ones: an operator, a solver, or any other function."""


def check_function(step: object, inputs: StepInputs | None) -> Step:
    """Return a function of the last state only.

    Raises:
        ArgumentError: If the step cannot be called, or inputs are given.
    """
    if inputs is not None:
        raise ArgumentError(
            expected="inputs= with a predictor only", got="a function as step", remedy="let the function hold other channels"
        )
    return checks.check_callable(step, "step", remedy="give a predictor, or a function of states (n, c, *grid)")


@dataclass(frozen=True, eq=False, kw_only=True)
class FunctionMembers:
    """Ensemble members with a user-defined step.

    Args:
        function: Map from states `(n, c, *grid)` to the next ones.
        start: States at lead 0.
        initial: Distribution of the states at lead 0.
        count: Number s of members.
        seed: Seed of the starts.
        history: One state makes the next.
    """

    function: Step
    start: Field
    initial: FieldDistribution
    count: int
    seed: int
    history: int = 1

    @classmethod
    def of(
        cls,
        step: object,
        start: Field,
        initial: FieldDistribution | None,
        *,
        members: int,
        seed: int,
        inputs: StepInputs | None,
    ) -> FunctionMembers:
        """Check the start of the members.

        Raises:
            ArgumentError: If the step cannot be called, there is no initial distribution, or something beside the states.
            ShapeError: If the initial distribution is of other states.
            DataError: If start or initial distribution is of another type.
        """
        function = check_function(step, inputs)
        check_field(start, "start")
        remedy = "a step that is a function needs a distribution over the states at lead 0: else all members would be equal"
        initial = checks.check_instance(initial, FieldDistribution, "initial", remedy=remedy, error=ArgumentError)
        check_same_grid(initial.grid, start.grid, "an initial distribution", remedy="predict on that grid")
        check_values(initial.mean, tuple(start.values.shape), "the mean of initial")
        return cls(function=function, start=start.detached(), initial=initial, count=members, seed=check_seed(seed))

    @property
    def channels(self) -> int:
        """Channels c of a state."""
        return self.start.channels

    def starts(self) -> Float[Tensor, "s n c *grid"]:
        """The states at lead 0."""
        drawn = drawn_starts(self.initial, [stream_seed(self.seed, "filter starts", member) for member in range(self.count)])
        return drawn.to(self.start.values)

    def step(self, window: Float[Tensor, "s n c *grid"], lead: int) -> Float[Tensor, "s n c *grid"]:
        """The states at a lead, from those before it."""
        moved = self.function(window.flatten(0, 1))
        check_values(moved, tuple(window.flatten(0, 1).shape), f"states at lead {lead}")
        checks.check_finite(moved, f"states at lead {lead}", remedy="the step is not stable from there")
        return moved.unflatten(0, window.shape[:2])


Source = Members | FunctionMembers
"""Members of a roll-out: of a predictor, or of a function."""


class EnsembleAnalysis(EnsembleForecast):
    """An ensemble at all leads, before and after the observations of each: the result of filters and smoothers.

    It is a forecast: scores, calibrators and plots accept it. All leads are stored in memory. For methods on several
    leads, and files, are in [`EnsembleForecast`][probneural.distributions.EnsembleForecast]; they are of the analyses. Those of
    a filter know the observations up to their own lead, so what is asked of several leads of it (an average over time) is not
    the posterior given all observations: ask a smoother.

    Args:
        analyses: Members at leads 0 to `steps`, `(s, n, c, *grid)` each, given the observations.
        forecasts: The same before the observations of that lead.
        start: Start of the ensemble.
        chi2: Per lead with observations, the squared standardised residual per number of each function, `(n,)`: near 1 where
            the ensemble's covariance and the noise agree with the observations.

    Attributes:
        start: The same.
        chi2: The same.
    """

    def __init__(
        self, analyses: Sequence[Tensor], forecasts: Sequence[Tensor], *, start: Field, chi2: Mapping[int, Tensor]
    ) -> None:
        self._analyses, self._forecasts = tuple(analyses), tuple(forecasts)
        self.start = start
        self.chi2 = dict(chi2)

    @property
    def steps(self) -> int:
        """The largest lead."""
        return len(self._analyses) - 1

    @property
    def grid(self) -> Grid:
        """Grid of all states."""
        return self.start.grid

    @property
    def members(self) -> int:
        """Number of members s."""
        return len(self._analyses[0])

    @property
    def channels(self) -> int:
        """Channels c of a state."""
        return self._analyses[0].shape[2]

    def at(self, lead: int) -> EmpiricalField:
        """The members' states at a lead, given the observations: of a filter up to that lead, of a smoother all of them.

        Raises:
            ArgumentError: If the lead does not exist.
        """
        return EmpiricalField(self._analyses[checks.check_integer(lead, "lead", least=0, most=self.steps)], grid=self.grid)

    def forecast_at(self, lead: int) -> EmpiricalField:
        """The members' states at a lead, given the observations of the leads before it.

        Raises:
            ArgumentError: If the lead does not exist.
        """
        return EmpiricalField(self._forecasts[checks.check_integer(lead, "lead", least=0, most=self.steps)], grid=self.grid)

    def _until(self, last: int) -> Iterator[tuple[int, EmpiricalField]]:
        return ((lead, self.at(lead)) for lead in range(1, last + 1))

    def _attributes(self) -> dict[str, Any]:
        return {"observed_leads": sorted(self.chi2)}

    def __len__(self) -> int:
        """Number of samples n."""
        return self._analyses[0].shape[1]

    def __repr__(self) -> str:
        """A short description."""
        return f"EnsembleAnalysis({len(self)} on {self.grid!r}, {self.steps} steps, {self.members} members)"


_LARGEST = 8192
"""Maximum number of points for a distance matrix (512 MiB)."""


def gaspari_cohn(distance: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The fifth-order piecewise rational function of Gaspari and Cohn: a correlation that is zero from distance 1 on.

    It looks like a Gaussian of standard deviation √(3/40) ≈ 0.27, and is positive definite in up to three dimensions.

    Args:
        distance: Distance >= 0, as a fraction of the radius at which the correlation vanishes; dimensionless.

    Reference:
        Gaspari and Cohn (1999), Construction of correlation functions in two and three dimensions, equation 4.10, with c = 1/2.

    Examples:
        >>> [round(one, 6) for one in gaspari_cohn(torch.tensor([0.0, 0.5, 1.0, 2.0])).tolist()]
        [1.0, 0.208333, 0.0, 0.0]
    """
    z = 2.0 * checks.check_floating(distance, "distance")
    near = 1.0 + z.square() * (-5.0 / 3.0 + z * (5.0 / 8.0 + z * (0.5 - 0.25 * z)))
    inverse = torch.where(z > 0, 2.0 / (3.0 * torch.where(z > 0, z, 1.0)), 0.0)
    far = 4.0 + z * (-5.0 + z * (5.0 / 3.0 + z * (5.0 / 8.0 + z * (-0.5 + z / 12.0)))) - inverse
    return torch.where(z <= 1.0, near, torch.where(z < 2.0, far, 0.0)).clamp_min(0.0)


def taper(grid: Grid, radius: float) -> Float64[Tensor, "p p"]:
    """Correlations of the values at any two points of a grid, by their distance; the shorter way around on periodic axes.

    Args:
        grid: Grid of p points.
        radius: Distance from which on values do not correlate, in the grid's units; at most half of a periodic axis, so that
            the correlations remain positive definite.

    Raises:
        ArgumentError: If the radius is not positive, or too large for a periodic axis.
        GridError: If the grid has more than 8192 points.
    """
    radius = checks.check_positive(radius, "localisation")
    shortest = min((axis.length for axis in check_grid(grid).axes if axis.periodic), default=float("inf"))
    checks.check_real(radius, "localisation, half of the shortest periodic axis", most=0.5 * shortest * (1.0 + 1e-12))
    remedy = "assimilate on a coarser grid, or without localisation and with more members"
    checks.check_integer(grid.size, "size of a grid to localise on", most=_LARGEST, remedy=remedy, error=GridError)
    return _taper(grid, radius)


@remembered(8 * _LARGEST**2)
def _taper(grid: Grid, radius: float) -> Tensor:
    points = grid.points
    squares = torch.zeros(grid.size, grid.size, dtype=torch.float64)
    for number in range(points.shape[1]):
        along = (points[:, None, number] - points[None, :, number]).abs()
        if grid.axes and grid.axes[number].periodic:
            along = torch.minimum(along, grid.axes[number].length - along)
        squares += along.square()
    return gaspari_cohn(squares.sqrt() / radius)


@dataclass(frozen=True)
class EnsembleKalmanMethod(Settings, ABC):
    """Settings of ensemble Kalman methods; abstract."""

    members: Annotated[int, partial(checks.check_integer, least=2)] = 64
    _: KW_ONLY
    inflation: Annotated[float, partial(checks.check_real, least=1.0)] = 1.0
    localisation: Positive | None = None
    draws: Literal["trajectory", "step"] = "trajectory"
    seed: Seed = 0
    _is_filter: ClassVar[bool] = False
    """Whether the analysis of a lead depends only on the observations up to that lead."""

    @without_gradients()
    def assimilate(
        self,
        step: Predictor | Step,
        start: Field,
        *,
        observations: Sequence[Observation],
        steps: int,
        initial: FieldDistribution | None = None,
        inputs: StepInputs | None = None,
    ) -> EnsembleAnalysis:
        """Roll an ensemble out, and assimilate the observations at their leads.

        Samples are independent: observations of one do not inform another.

        Args:
            step: A predictor, whose draws are the members' operators; or any function from states `(n, c, *grid)` to the next
                ones, to which all members go together, as s * n functions.
            start: States at lead 0, `(n, history * c, *grid)`, the earliest first; then any channels that stay constant.
            observations: Observations in any order.
            steps: The largest lead of the analysis.
            initial: Distribution of the states at lead 0: one draw per member.
            inputs: Inputs of a predictor's step other than the last state, as in `predictor.rollout`.

        Returns:
            The members at all leads, a `Forecast`.

        Raises:
            ArgumentError: If a setting or an observation's lead is out of range, or all members would be equal.
            ShapeError: If the number of channels or samples does not match.
            GridError: If grids differ.
            DataError: If a part is of a wrong kind, or states are not finite.
            ForecastError: If a predictor's states are not finite.
        """
        steps = checks.check_integer(steps, "steps")
        settings: dict[str, Any] = {"members": self.members, "initial": initial, "inputs": inputs, "seed": self.seed}
        source: Source = (
            members_of(step, start, draws=self.draws, **settings)
            if isinstance(step, Predictor)
            else FunctionMembers.of(step, start, **settings)
        )
        correlations = None if self.localisation is None else taper(start.grid, self.localisation)
        states = dict(enumerate(source.starts().split(source.channels, dim=2), start=1 - source.history))
        shape, device = (len(start), source.channels), states[0].device
        numbers = numbers_by_lead(observations, start.grid, shape=shape, steps=steps, taper=correlations, device=device)
        return self._run(source, states, numbers, steps=steps)

    def _run(
        self, source: Source, states: dict[int, Tensor], numbers: Mapping[int, Sequence[ObservedNumbers]], *, steps: int
    ) -> EnsembleAnalysis:
        """Roll out and analyse."""
        forecasts, filtered, chi2 = [], [], {}
        for lead in range(steps + 1):
            if lead > 0:
                window = [states[earlier] for earlier in range(lead - source.history, lead)]
                states[lead] = source.step(window[0] if source.history == 1 else torch.cat(window, dim=2), lead)
            forecasts.append(states[lead])
            if lead in numbers:
                chi2[lead] = self._update(source, states, numbers[lead], lead=lead)
            filtered.append(states[lead])
        analyses = filtered if self._is_filter else [states[lead] for lead in range(steps + 1)]
        return EnsembleAnalysis(analyses, forecasts, start=source.start, chi2=chi2)

    def _update(
        self, source: Source, states: dict[int, Tensor], numbers: Sequence[ObservedNumbers], *, lead: int
    ) -> Float64[Tensor, " n"]:
        """Update the states at a lead, and those before it that are within reach or in the next input."""
        last = states[lead]
        mean = last.mean(0)
        states[lead] = mean + self.inflation * (last - mean)
        moved = [earlier for earlier in sorted(states) if not self._is_filter or earlier > lead - source.history]
        total, count = torch.zeros(last.shape[1], dtype=torch.float64, device=last.device), 0
        for observed in numbers:
            ensemble = torch.cat([states[earlier].flatten(3) for earlier in moved], dim=2)
            ensemble, chi2 = update(ensemble, observed)
            for earlier, values in zip(moved, ensemble.split(source.channels, dim=2), strict=True):
                states[earlier] = values.unflatten(3, last.shape[3:])
            total, count = total + chi2 * observed.rows.shape[0], count + observed.rows.shape[0]
        return total / count


@dataclass(frozen=True)
class EnsembleKalmanFilter(EnsembleKalmanMethod):
    """Ensemble Kalman filter: the state at each lead, given the observations up to that lead.

    Members are rolled out; at leads with observations, each member is updated by the Kalman gain with the covariance P,

        u <- u + P A^T (A P A^T + R)^-1 (y - A u).

    For linear steps, Gaussian errors and many members, it is the Kalman filter. With few members the covariance is inaccurate:
    spurious between distant points, which `localisation` removes, and too small, which `inflation` corrects.
    Numbers are assimilated serially, and the deviations are contracted so that the covariance is exactly the Kalman filter's,
    given P. The update changes states; a member's operator is fixed. The closed form,
    [`propagate`][probneural.forecasts.propagate] and `condition`, updates operators too.

    Args:
        members: Number s of members, at least 2.
        inflation: Factor of the members' deviations before each update, at least 1; dimensionless.
        localisation: Distance beyond which covariances are zero, in the grid's units; None for no localisation. Covariances
            are multiplied by Gaspari and Cohn's correlation, for sensors and any other functionals.
        draws: `"trajectory"`: one operator per member for all steps. `"step"`: a new one at every step.
        seed: Seed of draws and starts.

    Raises:
        ArgumentError: If a setting is out of range.

    References:
        Evensen (1994), Sequential data assimilation with a nonlinear quasi-geostrophic model; Whitaker and Hamill (2002),
        Ensemble data assimilation without perturbed observations (square root); Houtekamer and Mitchell (2001), A sequential
        ensemble Kalman filter for atmospheric data assimilation (localisation).
    """

    _is_filter: ClassVar[bool] = True


@dataclass(frozen=True)
class EnsembleKalmanSmoother(EnsembleKalmanMethod):
    """Ensemble Kalman smoother: the states at all leads, given all observations.

    The filter, whose update moves the members' states at earlier leads too, by their covariance with what is observed.

    Args:
        members: Number s of members, at least 2.
        inflation: Factor of the deviations of the state at the lead of an observation before each update.
        localisation: Distance from which on covariances count as zero, in the grid's units, at all leads alike; None for none.
        draws: Draws, as in [`EnsembleKalmanFilter`][probneural.forecasts.EnsembleKalmanFilter].
        seed: Seed, as in the filter.

    Raises:
        ArgumentError: If a setting is out of range.

    Reference:
        Evensen and van Leeuwen (2000), An ensemble Kalman smoother for nonlinear dynamics.
    """
