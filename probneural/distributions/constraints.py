"""Nonlinear constraints residual(u) = 0 on u = mean + root xi: the most probable xi, by damped Newton steps.

Each step linearises the residual about the current u and applies the linear constraint to the *original* prior xi ~ N(0, I), as
the iterated extended Kalman filter does (Bell and Cathey, 1993), so what is found does not depend on the path. Those
Gauss-Newton steps converge slowly where the constraint is curved over the distance moved; a few conjugate-gradient iterations
add the curvature and make them Newton steps on the Lagrangian (Nocedal and Wright, 2006, section 18.1). Where a full step does
not lower the merit, it is halved. Without noise the merit is |xi|^2 / 2 + penalty * |residual|, an exact penalty function
(section 18.5 there); with noise it is minus the log posterior density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.func import vjp, vmap

from probneural.checks import check_finite, check_floating
from probneural.distributions.roots.base import Root
from probneural.errors import ArgumentError, ConstraintError, ShapeError
from probneural.linear_algebra.conditioning import LatentUpdate, LowRankUpdate, Rounding, condition_exactly, condition_noisily
from probneural.linear_algebra.conjugate_gradients import solve_truncated

Residual = Callable[[Tensor], Tensor]
"""Map from samples `(n, c, *grid)` to m residuals each, `(n, m)`, sample by sample."""

_HALVINGS = 24
"""Maximum number of halvings of a step."""
_SUFFICIENT = 1e-4
"""Fraction of the linear decrease of the merit that a step must bring (Nocedal and Wright, 2006, section 3.1)."""
_CURVATURE_ITERATIONS = 50
"""Conjugate-gradient iterations for the curvature of the constraint, at most."""
_FORCING = 1e-4
"""Relative residual of inexact Newton steps (Nocedal and Wright, 2006, section 7.1)."""
_IMPLICIT = 1e-12
"""Relative residual of the linear solves for derivatives."""
_MIXING = 1e-6
"""Tolerated change of other samples' residuals by rounding, as a fraction of the changed sample's."""
ROW_ROUNDING = 16.0
"""Ratio of the rounding error of a row of the root to that of a value after updates; observed values are up to 2.6."""


@dataclass(frozen=True, eq=False)
class Mode:
    """The most probable samples that satisfy a constraint, and the remaining uncertainty.

    Args:
        deviation: Deviation from the prior's mean, `(n, c, *grid)`, in physical units.
        transform: The posterior's square root on the latent side, one map per function.
        iterations: Steps taken.
    """

    deviation: Float64[Tensor, "n c *grid"]
    transform: LowRankUpdate
    iterations: int


@dataclass(frozen=True, eq=False)
class _Tangent:
    """A constraint linearised at the current samples: residual, derivative in xi, and the rounding error of both."""

    functions: Float[Tensor, "n c *grid"]
    residual: Float64[Tensor, "n m"]
    rows: Float64[Tensor, "n m k"]
    rounding: Rounding


@dataclass(frozen=True, eq=False)
class Constraint:
    """A nonlinear constraint on samples mean + root xi.

    Args:
        mean: `(n, c, *grid)`, in physical units.
        root: Root, `(n, c, p, k)`.
        residual: The residual.
        noise: Variance of the residuals about zero, `(n, m)`, positive; none for a constraint that holds exactly.
        magnitude: Largest deviation of the samples from their mean, `(n, c)`.
        precision: Relative rounding error of the samples' values.
        dtype: The coarser dtype of mean and root.
    """

    mean: Float[Tensor, "n c *grid"]
    root: Root
    residual: Residual
    noise: Float64[Tensor, "n m"] | None
    magnitude: Float[Tensor, "n c"]
    precision: float
    dtype: torch.dtype

    def deviation(self, latents: Float64[Tensor, "n k"]) -> Float64[Tensor, "n c *grid"]:
        """The fields root xi, in the shape of the samples."""
        return self.root.product_each(latents).unflatten(-1, self.mean.shape[2:]).to(torch.float64)

    def numbers(self, deviation: Tensor) -> Tensor:
        """The residual, `(n, m)`, float64."""
        return checked(self.residual(self._functions(deviation)), self.mean.shape[0]).to(torch.float64)

    def tangent(self, deviation: Tensor) -> _Tangent:
        """Linearise at the samples mean + deviation.

        Raises:
            DataError: If residual or derivative are not finite.
        """
        functions = self._functions(deviation)
        numbers, pull = vjp(self.residual, functions)[:2]
        unit = torch.eye(numbers.shape[1], dtype=numbers.dtype, device=numbers.device)
        rows = vmap(lambda row: pull(row.expand_as(numbers))[0])(unit).movedim(0, 1).flatten(3)  # no function sees another
        remedy = "check its domain, and square roots or divisions at zero"
        check_finite(numbers, "residuals about the mean", remedy=remedy)
        check_finite(rows, "derivatives of the residual about the mean", remedy=remedy)
        largest = self.magnitude + functions.detach().flatten(2).abs().amax(-1)
        norms = self.precision * rows.detach().norm(dim=-1).to(torch.float64)
        sizes = torch.stack([largest, ROW_ROUNDING * self.magnitude], -1).to(torch.float64)
        rounding = Rounding(*(norms @ sizes).unbind(-1))
        return _Tangent(functions, numbers.to(torch.float64), self.root.pull(rows).to(torch.float64), rounding)

    def update(self, tangent: _Tangent, latents: Float64[Tensor, "n k"]) -> LatentUpdate:
        """Apply the linearised constraint to the prior: rows xi = rows latents - residual.

        Raises:
            ConstraintError: If it cannot be met.
        """
        target = (tangent.rows @ latents[..., None])[..., 0] - tangent.residual
        if self.noise is not None:
            return condition_noisily(tangent.rows, target, self.noise)
        try:
            return condition_exactly(tangent.rows, target, rounding=tangent.rounding, dtype=self.dtype)
        except ConstraintError as error:
            raise ConstraintError(
                expected="a constraint whose linearisation has a solution",
                got=error.got,
                remedy="the derivative vanishes there or the constraint is out of reach: use another mean, or give noise > 0",
            ) from error

    def curvature(self, tangent: _Tangent, update: LatentUpdate) -> Callable[[Tensor], Tensor]:
        """The Lagrangian's second derivative by xi beyond that of the prior, sum of multiplier * residual'', as a map."""
        functions, pulls = tangent.functions.detach(), -update.multipliers.detach()

        def gradient(values: Tensor) -> Tensor:
            numbers, pull = vjp(self.residual, values)[:2]
            pulled: Tensor = pull(pulls.to(numbers))[0]
            return pulled

        transposed = vjp(gradient, functions)[1]

        def product(latents: Tensor) -> Tensor:
            with torch.no_grad():
                bent: Tensor = transposed(self.deviation(latents).to(functions))[0]  # a Hessian is symmetric
                return self.root.pull(bent.flatten(2)[:, None])[:, 0].to(latents)

        return product

    def check_independence(self) -> None:
        """Raise an ArgumentError if the first sample affects the residuals of other samples."""
        if self.mean.shape[0] < 2:
            return
        with torch.no_grad():
            before = self.numbers(torch.zeros_like(self.mean, dtype=torch.float64))
            bumped = torch.zeros_like(self.mean, dtype=torch.float64)
            bumped[0] = torch.linspace(1.0, 2.0, bumped[0].numel(), device=bumped.device).reshape(bumped[0].shape)
            changed = (self.numbers(bumped * (self.mean.abs().amax() + 1.0)) - before).abs()
            if bool((changed[1:] > _MIXING * changed[0].amax()).any()):
                raise ArgumentError(
                    expected="a residual of every function by itself, (n, c, *grid) -> (n, m)",
                    got="residuals that change with another function",
                    remedy="reduce over channels and grid axes only, not over the n samples",
                )

    def _functions(self, deviation: Tensor) -> Tensor:
        return (self.mean.to(torch.float64) + deviation).to(self.mean.dtype)


def checked(numbers: Tensor, count: int) -> Tensor:
    """Return the residuals, or raise a ShapeError unless they are m numbers for each function."""
    check_floating(numbers, "residuals")
    if numbers.ndim != 2 or numbers.shape[0] != count or numbers.shape[1] == 0:
        raise ShapeError(
            expected=f"residuals of shape ({count}, m), m >= 1", got=str(tuple(numbers.shape)), remedy="use flatten(1)"
        )
    return numbers


def find_mode(constraint: Constraint, *, iterations: int, tolerance: float) -> Mode:
    """Return the most probable samples that satisfy a constraint, sample by sample.

    A converged sample is not updated further, so the result does not depend on the other samples. The result is once
    differentiable in mean and root, by the implicit function theorem; the steps are not recorded by autograd.

    Args:
        constraint: The constraint.
        iterations: Maximum number of steps.
        tolerance: Largest residual, as a fraction of its prior standard deviation; steps of xi are below its square root, so
            the negative log density is within it of its minimum.

    Raises:
        ConstraintError: If the steps do not converge, or the linearised constraint has no solution.
    """
    latents, deviation, update, steps = _descend(constraint, iterations=iterations, tolerance=tolerance)
    if not torch.is_grad_enabled():
        return Mode(deviation, update.transform, steps)
    tangent = constraint.tangent(constraint.deviation(latents))
    if not (tangent.rows.requires_grad or tangent.residual.requires_grad):
        return Mode(deviation, update.transform, steps)
    step = constraint.update(tangent, latents).shift
    moved = step - step.detach()  # zero, with the derivative of the linearised constraint
    product, transform = constraint.curvature(tangent, update), update.transform

    def add_curvature(gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        return gradient - product(
            transform.product(_solve(product, transform, transform.product(gradient.detach()), _IMPLICIT))
        )

    moved.register_hook(add_curvature)
    latents = latents + moved
    deviation = constraint.deviation(latents)
    return Mode(deviation, constraint.update(constraint.tangent(deviation), latents).transform, steps)


@torch.no_grad()
def _descend(constraint: Constraint, *, iterations: int, tolerance: float) -> tuple[Tensor, Tensor, LatentUpdate, int]:
    """Damped Newton steps; returns xi, root xi, the linearised constraint's update there, and the number of steps."""
    latents = torch.zeros(
        constraint.root.shape[0], constraint.root.shape[3], dtype=torch.float64, device=constraint.root.device
    )
    deviation = torch.zeros_like(constraint.mean, dtype=torch.float64)
    nearest = math.sqrt(max(tolerance, torch.finfo(constraint.dtype).eps))
    tangent = constraint.tangent(deviation)
    size = tangent.rows.norm(dim=-1)
    merit = _Merit(constraint.noise, torch.where(size > tangent.rounding.residuals, size, 1.0), torch.zeros_like(size[:, 0]))
    stuck = torch.zeros_like(merit.penalty, dtype=torch.bool)
    for iteration in range(iterations + 1):
        update = constraint.update(tangent, latents)
        step = update.shift - latents
        length = step.norm(dim=-1) / (1.0 + latents.norm(dim=-1))
        missing = (tangent.residual.abs() / (tolerance * merit.scale + tangent.rounding.residuals)).amax(-1)
        done = (length <= nearest) & ((missing <= 1.0) | (constraint.noise is not None))
        if bool(done.all()):
            return latents, deviation, update, iteration
        if iteration == iterations or bool((stuck & ~done).any()):
            break
        product = constraint.curvature(tangent, update)
        bent = _solve(product, update.transform, update.transform.product(product(step)), _FORCING)
        step = step - update.transform.product(bent)
        moved = constraint.deviation(step)
        merit, slope = merit.along(step, latents, tangent)
        merit_at = partial(_merit_along, constraint, merit, (latents, step), (deviation, moved))
        value = merit(latents, tangent.residual)
        fraction, stuck = _search(merit_at, value, slope, slack=merit.rounding(value, tangent), done=done)
        latents = latents + fraction[:, None] * step
        deviation = deviation + _per_function(fraction, deviation) * moved
        tangent = constraint.tangent(deviation)
    raise ConstraintError(
        expected=f"samples that satisfy the constraint to {tolerance:g} within {iterations} iterations",
        got=f"{int((~done).sum())} of {len(done)} that do not after {iteration}: residuals up to "
        f"{float((tangent.residual.abs() / merit.scale).max()):.1e} prior deviations, steps of {float(length.max()):.1e}",
        remedy="allow more iterations, check that the constraint can be met at all near the mean, or give noise > 0",
    )


def _solve(product: Callable[[Tensor], Tensor], transform: LowRankUpdate, right: Tensor, tolerance: float) -> Tensor:
    """Solve (I + S C S) z = right for each function, up to the first direction of negative curvature."""

    def map_latents(latents: Tensor) -> Tensor:
        return latents + transform.product(product(transform.product(latents)))

    return solve_truncated(map_latents, right, tolerance=tolerance, max_iterations=_CURVATURE_ITERATIONS)[0]


@dataclass(frozen=True, eq=False)
class _Merit:
    """Merit function of the line search, per sample."""

    noise: Tensor | None
    scale: Tensor
    penalty: Tensor

    def __call__(self, latents: Tensor, residual: Tensor) -> Tensor:
        """The merit, `(n,)`."""
        prior = latents.square().sum(-1) / 2
        if self.noise is not None:
            return prior + (residual.square() / self.noise).sum(-1) / 2
        return prior + self.penalty * (residual / self.scale).norm(dim=-1)

    def along(self, step: Tensor, latents: Tensor, tangent: _Tangent) -> tuple[_Merit, Tensor]:
        """The merit with a penalty large enough that it falls along a step, and its slope there."""
        rise = (latents * step).sum(-1)
        if self.noise is not None:
            change = (tangent.rows @ step[..., None])[..., 0]
            return self, rise + (tangent.residual * change / self.noise).sum(-1)
        size = (tangent.residual / self.scale).norm(dim=-1)
        ahead = rise + step.square().sum(-1) / 2
        needed = torch.where(size > 0, 2.0 * ahead / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)
        penalty = torch.maximum(self.penalty, needed)
        return _Merit(None, self.scale, penalty), rise - penalty * size

    def rounding(self, value: Tensor, tangent: _Tangent) -> Tensor:
        """Rounding error of the merit."""
        if self.noise is not None:
            error = (tangent.residual.abs() * tangent.rounding.residuals / self.noise).sum(-1)
        else:
            error = self.penalty * (tangent.rounding.residuals / self.scale).norm(dim=-1)
        return error + 16 * torch.finfo(value.dtype).eps * (1.0 + value)


def _merit_along(
    constraint: Constraint, merit: _Merit, latents: tuple[Tensor, Tensor], deviation: tuple[Tensor, Tensor], fraction: Tensor
) -> Tensor:
    """The merit after a fraction of a step, of latents and deviations with their steps."""
    residual = constraint.numbers(deviation[0] + _per_function(fraction, deviation[0]) * deviation[1])
    return merit(latents[0] + fraction[:, None] * latents[1], residual)


def _search(
    merit_at: Callable[[Tensor], Tensor], value: Tensor, slope: Tensor, *, slack: Tensor, done: Tensor
) -> tuple[Tensor, Tensor]:
    """Halve each sample's step until the merit falls enough; return the fractions, and a mask of failed samples."""
    fraction = torch.where(done, 0.0, torch.ones_like(value))
    lowered = done
    for _ in range(_HALVINGS):
        lowered = done | (merit_at(fraction) <= value + _SUFFICIENT * fraction * slope + slack)
        if bool(lowered.all()):
            break
        fraction = torch.where(lowered, fraction, fraction / 2)
    return fraction, ~lowered


def _per_function(numbers: Tensor, like: Tensor) -> Tensor:
    """Append axes to one number per function."""
    return numbers.reshape(-1, *[1] * (like.ndim - 1))
