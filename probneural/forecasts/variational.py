"""Strong-constraint 4D-Var: the most probable start, given a Gaussian prior and observations over a window."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from probneural.checks import check_instance, check_integer, check_real
from probneural.contexts import undisturbed
from probneural.distributions import GaussianField, Predictor, Root
from probneural.distributions.base import check_values
from probneural.distributions.forecasts.members import StepInputs, members_of
from probneural.distributions.roots.sums import SideBySideRoot
from probneural.errors import DataError
from probneural.fields import Field
from probneural.forecasts.analysis import Step, check_function
from probneural.forecasts.observations import Observation, ObservedNumbers, numbers_by_lead
from probneural.linear_algebra.conjugate_gradients import line_search, solve_truncated

_HALVINGS = 12
"""Times that a step is halved before it is given up."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FourDVarAnalysis:
    """The most probable start, and the trajectory from it.

    Attributes:
        start: The states at lead 0 (and before), `(n, h * c, *grid)`, in physical units.
        states: The states at leads 0 to the last observation's, `(leads, n, c, *grid)`, in physical units.
        latents: The prior's latent vector of each sample at the start, `(n, k)`, dimensionless: the shared part of the prior,
            then the per-sample part.
        cost: |xi|² / 2 plus half the squared standardised residuals, `(n,)`.
        has_converged: Whether the gradient of each sample's cost is below the tolerance, `(n,)`.
        iterations: Gauss-Newton steps taken.
    """

    start: Field
    states: Float[Tensor, "leads n c *grid"]
    latents: Float64[Tensor, "n k"]
    cost: Float64[Tensor, " n"]
    has_converged: Bool[Tensor, " n"]
    iterations: int

    @property
    def converged(self) -> bool:
        """Whether all samples have converged."""
        return bool(self.has_converged.all())


@undisturbed()
def four_d_var(
    step: Predictor | Step,
    initial: GaussianField,
    *,
    observations: Sequence[Observation],
    iterations: int = 20,
    tolerance: float = 1e-4,
    inputs: StepInputs | None = None,
) -> FourDVarAnalysis:
    """Find the start of the most probable trajectory, if the step itself is exact: strong-constraint 4D-Var.

    With u_0 = mean + root xi and u_k+1 = m(u_k), it minimises for each sample

        |xi|² / 2 + sum over observations of (y - A u_k)² / (2 noise)

    by Gauss-Newton steps in xi, each solved by conjugate gradients with derivatives of the whole trajectory, and halved until
    the cost falls. For large residuals, the steps converge slowly; see `converged`. For affine steps the first one is
    exact, and the trajectory is the smoother's mean. For uncertain operators use
    [`propagate`][probneural.forecasts.propagate] and `condition`, which update the operator too.

    Samples are independent: each has a separate latent vector, even if they share one in the prior. If the cost has several
    minima, one of them is found.

    Args:
        step: A predictor, whose mean is used; or any differentiable function from states `(n, c, *grid)` to the next.
        initial: Prior of the states at lead 0, `(n, history * c, *grid)`.
        observations: Observations in any order.
        iterations: Maximum number of Gauss-Newton steps.
        tolerance: On the norm of the cost's gradient in xi, relative to that at the prior's mean, or to 1; dimensionless.
        inputs: Inputs of a predictor's step other than the last state, as in `predictor.rollout`.

    Returns:
        The start and its trajectory, and whether the steps converged.

    Raises:
        ArgumentError: If a number is out of range.
        ShapeError: If channels or numbers of functions do not fit.
        GridError: If grids differ.
        DataError: If a part is of a wrong kind, states are not finite, or the step has no derivatives.

    Reference:
        Le Dimet and Talagrand (1986), Variational algorithms for analysis and assimilation of meteorological observations;
        Courtier, Thépaut and Hollingsworth (1994), A strategy for operational implementation of 4D-Var (Gauss-Newton steps).
    """
    check_instance(initial, GaussianField, "initial", remedy="give the Gaussian prior of the states at lead 0")
    iterations = check_integer(iterations, "iterations")
    tolerance = check_real(tolerance, "tolerance", above=0.0, below=1.0)

    with torch.no_grad():
        advance, channels = _advance(step, initial, inputs)
        shape, device = (len(initial), channels), initial.mean.device
        numbers = numbers_by_lead(observations, initial.grid, shape=shape, steps=math.inf, taper=None, device=device)
    root = initial.root if initial.discrepancy is None else SideBySideRoot(initial.root, initial.discrepancy)
    return _Window(initial, root, advance, channels, numbers).minimised(iterations, tolerance)


def _advance(
    step: Predictor | Step, initial: GaussianField, inputs: StepInputs | None
) -> tuple[Callable[[Tensor, int], Tensor], int]:
    """The mean of the next states from the last ones, and their channels."""
    if not isinstance(step, Predictor):
        function = check_function(step, inputs)

        def moved(states: Tensor, lead: int) -> Tensor:
            values = function(states)
            check_values(values, tuple(states.shape), f"states at lead {lead}")
            return values

        return moved, initial.mean.shape[1]
    ensemble = members_of(step, Field(initial.mean.detach(), initial.grid), initial=initial, inputs=inputs)

    def predicted(states: Tensor, lead: int) -> Tensor:
        return step(Field(torch.cat([states, ensemble.extras(lead - 1).to(states)], dim=1), initial.grid)).mean

    return predicted, step.out_channels


@dataclass(frozen=True, eq=False)
class _Window:
    """The cost of the starts of all samples, and its Gauss-Newton steps."""

    initial: GaussianField
    root: Root
    advance: Callable[[Tensor, int], Tensor]
    channels: int
    numbers: Mapping[int, Sequence[ObservedNumbers]]

    def trajectory(self, latents: Float64[Tensor, "n k"]) -> tuple[Tensor, list[Tensor]]:
        """The start, and the states at leads 0 to the last observation's."""
        mean = self.initial.mean.detach()
        start = mean + self.root.product_each(latents).unflatten(-1, self.initial.grid.shape).to(mean)
        window, states = start, [start[:, start.shape[1] - self.channels :]]
        for lead in range(1, max(self.numbers) + 1):
            states.append(self.advance(window, lead))
            if window.requires_grad and not states[-1].requires_grad:
                raise DataError(
                    expected="a step with derivatives",
                    got=f"states at lead {lead} that do not depend on those before, as autograd sees it",
                    remedy="do not detach, nor convert to NumPy, within the step",
                )
            window = torch.cat([window, states[-1].to(window)], dim=1)[:, self.channels :]
        return start, states

    def residuals(self, latents: Float64[Tensor, "n k"]) -> Float64[Tensor, "n m"]:
        """Standardised residuals of all observations."""
        _, states = self.trajectory(latents)
        parts = []
        for lead, simultaneous in self.numbers.items():
            values = states[lead].flatten(2).to(torch.float64)
            residuals = [(observed.values - values @ observed.rows.mT) / observed.noise.sqrt() for observed in simultaneous]
            parts += [residual.flatten(1) for residual in residuals]
        return torch.cat(parts, dim=1)

    @torch.no_grad()
    def cost(self, latents: Tensor) -> Float64[Tensor, " n"]:
        """The cost of each sample's start."""
        return 0.5 * (latents.square().sum(1) + self.residuals(latents).square().sum(1))

    def minimised(self, iterations: int, tolerance: float) -> FourDVarAnalysis:
        """Take Gauss-Newton steps until all gradients are small."""
        count, rank = len(self.initial), self.root.shape[3]
        latents = torch.zeros(count, rank, dtype=torch.float64, device=self.initial.mean.device)
        cost, scale, iteration = self.cost(latents), None, 0
        while True:
            gradient, direction = self._direction(latents)
            size = gradient.norm(dim=1)
            scale = size.clamp_min(1.0) if scale is None else scale
            done = size <= tolerance * scale
            if bool(done.all()) or iteration == iterations:
                break
            iteration += 1
            slope = (gradient * direction).sum(1)
            moved, lower = line_search(self.cost, latents, direction, value=cost, slope=slope, halvings=_HALVINGS)
            if not bool((lower < cost).any()):
                break
            latents, cost = moved, lower
        with torch.no_grad():
            start, states = self.trajectory(latents)
        return FourDVarAnalysis(
            start=Field(start, self.initial.grid),
            states=torch.stack(states),
            latents=latents,
            cost=cost,
            has_converged=done,
            iterations=iteration,
        )

    @torch.enable_grad()
    def _direction(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient, `(n, k)`, and the Gauss-Newton step, from one graph of the whole window."""
        at = latents.clone().requires_grad_()
        residuals = self.residuals(at)
        cotangents = torch.zeros_like(residuals, requires_grad=True)
        (pulled,) = torch.autograd.grad(residuals, at, cotangents, create_graph=True)

        def transposed(values: Tensor) -> Tensor:
            return torch.autograd.grad(residuals, at, values, retain_graph=True)[0]

        def product(rows: Tensor) -> Tensor:  # a derivative forward is the transpose of the transpose
            (forward,) = torch.autograd.grad(pulled, cotangents, rows, retain_graph=True)
            return transposed(forward)

        gradient = latents + transposed(residuals.detach())
        step, _ = solve_truncated(product, -gradient, shift=1.0, tolerance=1e-12, max_iterations=2 * latents.shape[1] + 10)
        return gradient, step
