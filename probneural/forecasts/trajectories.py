"""Gaussian trajectories: forecasts in closed form, whose leads share one latent."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_instance, check_integer, check_sequence
from probneural.contexts import Undisturbed
from probneural.distributions import GaussianField, Latent
from probneural.errors import ArgumentError, ConvergenceWarning, LatentError, warn
from probneural.fields import Field
from probneural.forecasts.roots import PropagatedRoot
from probneural.functionals import Functional
from probneural.grids import Axis, Grid

_DISPLACEMENT = 0.5
"""Standard deviations by which linearisation may displace an analysis without a warning: 90 % intervals cover 86 %."""


class GaussianTrajectory(Undisturbed):
    """States u_1, u_2, ... as one Gaussian distribution over space and time: every lead is a field of the same latent.

    The result of [`propagate`][probneural.forecasts.propagate]. An observation at one lead informs all earlier and later
    leads: smoothing. Draws of one seed are one trajectory over all leads.

    Args:
        fields: The states at leads 0 (the start), 1, 2, ..., driven by one latent.
        start: Start of the forecast: the last states, `(n, h * c, *grid)`.
        dropped: Per lead, the fraction of the standard deviation that truncation left out, `(steps + 1,)`.
        latent: Posterior latent; by default the fields' latent.
        duration: Time of one step, in the training data's units; None if it is unknown.
        linearisation_error: Error of the linearised states at a lead for other states at lead 0, `(n, c, *grid)`; None if it
            is not to be tested.

    Attributes:
        start: The same.
        dropped: The same.
        latent: Latent of all leads.
        grid: Grid of the states.
        duration: Time of one step.
    """

    def __init__(
        self,
        fields: Sequence[GaussianField],
        start: Field,
        *,
        dropped: Float[Tensor, " leads"],
        latent: Latent | None = None,
        duration: float | None = None,
        linearisation_error: Callable[[Tensor, int], Tensor] | None = None,
    ) -> None:
        self._fields = tuple(fields)
        self.start = start
        self.dropped = dropped
        self.latent = fields[0].latent if latent is None else latent
        self.grid = fields[0].grid
        self.duration = duration
        self._error = linearisation_error

    @property
    def times(self) -> Float64[Tensor, " steps"] | None:
        """Time of each lead since the start, `(steps,)`; None if it is unknown."""
        leads = torch.arange(1, self.steps + 1, dtype=torch.float64, device="cpu")
        return None if self.duration is None else self.duration * leads

    @property
    def steps(self) -> int:
        """The last lead."""
        return len(self._fields) - 1

    def at(self, lead: int) -> GaussianField:
        """The distribution of the states at a lead, given all that was learned; lead 0 is the start.

        Raises:
            ArgumentError: If the forecast does not reach so far.
        """
        return self._fields[check_integer(lead, "lead", least=0, most=self.steps)].under(self.latent)

    def leads(self) -> Iterator[tuple[int, GaussianField]]:
        """All leads from 1 on, in order, with their fields."""
        return ((lead, self.at(lead)) for lead in range(1, self.steps + 1))

    def under(self, latent: Latent) -> GaussianTrajectory:
        """The forecast given a latent that was conditioned from this one's.

        Raises:
            LatentError: If it was not.
        """
        check_instance(
            latent, Latent, "latent", remedy="take that of a conditioned forecast: forecast.latent", error=LatentError
        )
        latent.relative_to(self.latent)
        conditioned = copy.copy(self)
        conditioned.latent = latent
        return conditioned

    def condition(
        self, functional: Functional, values: Float[Tensor, "n c m"], *, lead: int, noise: float | Tensor = 0.0
    ) -> GaussianTrajectory:
        """Bayes' rule for observations at one lead: the forecast that they leave, at all leads.

        Several observations, at one lead or at different ones, are taken in one after the other, in any order. A
        ConvergenceWarning reports that steps from the initial mean are too nonlinear between it and the analysis.

        Args:
            functional: A, of size m, on the forecast's grid.
            values: The observations of A u at that lead, `(n, c, m)`.
            lead: When they were made; 0 is the start.
            noise: Noise variance, in the values' units squared: a number, one per channel, or one per value; 0 is exact.

        Raises:
            ConstraintError: If there are more exact observations than the rank of the latent, or they contradict.
            ArgumentError: If the forecast does not reach so far, or noise is negative, or zero for some values only.
            DataError: If a value is not finite.
        """
        analysis = self.under(self.at(lead).condition(functional, values, noise=noise).latent)
        displaced = self._displacement(analysis, functional, values, lead=lead, noise=noise)
        if displaced > _DISPLACEMENT:
            warn(
                f"steps to lead {lead} are nonlinear: linearisation about the initial mean displaces the analysed start by "
                f"{displaced:.2g} standard deviations, so intervals cover too little; linearise about the most probable "
                "start, propagate(predictor, four_d_var(...).start, ..., initial=...), or use pn.inverse.InverseProblem",
                ConvergenceWarning,
            )
        return analysis

    @torch.no_grad()
    def _displacement(
        self, analysis: GaussianTrajectory, functional: Functional, values: Tensor, *, lead: int, noise: float | Tensor
    ) -> float:
        """Standard deviations by which data corrected for the error e, y - A e, move the analysed start; median of samples."""
        if self._error is None or lead == 0:
            return 0.0
        begin = analysis.at(0)
        error = self._error(begin.mean, lead)
        if not bool(error.isfinite().all()):
            return float("inf")
        corrected = torch.as_tensor(values, device=error.device) - functional(error)
        moved = self.under(self.at(lead).condition(functional, corrected, noise=noise).latent).at(0)
        squares, variance = (part.flatten(1).sum(1) for part in ((moved.mean - begin.mean).square(), begin.variance))
        return float((squares / variance.clamp_min(torch.finfo(variance.dtype).tiny)).median().sqrt())

    def joint(self, leads: Sequence[int] | None = None) -> GaussianField:
        """The states of several leads as one field in time and space, for functionals, densities and constraints.

        Its grid has an axis of time in front, in steps: the state at lead 5 is at coordinate 5. So
        `pn.functionals.sensors(field.grid, [[5.0, 0.25]])` observes lead 5 at x = 0.25, and an integral is over space and time.

        Args:
            leads: Leads in ascending order; by default 1 to `steps`.

        Returns:
            A field on a grid of shape `(leads, *grid.shape)`; scattered, `(leads * p,)`, if the states' grid is. If the leads
            are not equally spaced, it is scattered too.

        Raises:
            ArgumentError: If leads are not ascending, or out of range.
        """
        chosen = self._chosen(leads)
        grid = space_time(self.grid, chosen)
        fields = [self._fields[lead] for lead in chosen]
        mean = torch.stack([field.mean for field in fields], dim=2).reshape(len(self), -1, *grid.shape)
        parts = [root.formed() for field in fields if isinstance(root := field.root, PropagatedRoot)]
        first = fields[0].root
        assert isinstance(first, PropagatedRoot)
        columns, own_columns = (torch.cat(part, dim=2) for part in zip(*parts, strict=True))
        root = PropagatedRoot(columns, None, own_columns, None, first.positions, functions=first.functions)
        return GaussianField(mean, root, latent=fields[0].latent, grid=grid).under(self.latent)

    def _chosen(self, leads: Sequence[int] | None) -> tuple[int, ...]:
        if leads is None:
            return tuple(range(1, self.steps + 1))
        numbers = check_sequence(leads, "leads", remedy="give a list of numbers")
        chosen = tuple(check_integer(lead, "lead", least=0, most=self.steps) for lead in numbers)
        if not chosen or any(later <= earlier for earlier, later in itertools.pairwise(chosen)):
            raise ArgumentError(expected="rising leads, one at least", got=repr(leads), remedy="for example [1, 5, 10]")
        return chosen

    def __len__(self) -> int:
        """Number of samples n."""
        return len(self._fields[0])

    def __repr__(self) -> str:
        """A short description."""
        count, channels = self._fields[0].mean.shape[:2]
        return f"GaussianTrajectory({count} x {channels} on {self.grid!r}, steps={self.steps}, rank={self.latent.rank})"


def space_time(grid: Grid, leads: Sequence[int]) -> Grid:
    """The grid of some leads, an axis of time in front, in steps."""
    gaps = {later - earlier for earlier, later in itertools.pairwise(leads)}
    if grid.is_uniform and len(gaps) <= 1:
        length = float(leads[-1] - leads[0]) or 1.0
        time = Axis(len(leads), length, periodic=False, endpoint=len(leads) > 1, origin=float(leads[0]))
        space = Grid.of_axes([time, *grid.axes])
        return space.masked(grid.observed.expand(space.shape)) if grid.is_masked else space
    times = torch.tensor(leads, dtype=torch.float64, device="cpu")
    points = torch.cat([times.repeat_interleave(grid.size)[:, None], grid.points.repeat(len(leads), 1)], dim=1)
    steps = torch.nn.functional.pad(0.5 * times.diff(), (1, 1))
    durations = steps[1:] + steps[:-1] if len(leads) > 1 else torch.ones_like(times)  # by the trapezoidal rule
    return Grid.scattered(points, torch.kron(durations.to(grid.weights), grid.weights))
