"""Linearised propagation: mean and root of a forecast in closed form, exact where the operator is linear."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from probneural.checks import check_choice, check_instance, check_integer, check_real
from probneural.contexts import AUTOGRAD_STATE, without_gradients
from probneural.distributions import EmpiricalField, FieldDistribution, GaussianField, Latent, Predictor, Root
from probneural.distributions.forecasts.members import Members, StepInputs, members_of, step_duration
from probneural.distributions.latent import digest
from probneural.errors import ArgumentError, LatentError, UnsupportedError
from probneural.fields import Field
from probneural.forecasts.roots import Columns, PropagatedRoot, narrowed
from probneural.forecasts.trajectories import GaussianTrajectory
from probneural.grids.grid import check_same_grid

_POINTS = 2**16
"""Number of grid points per chunk of tangents."""


@without_gradients()
def propagate(
    predictor: Predictor,
    start: Field,
    *,
    steps: int,
    initial: FieldDistribution | None = None,
    draws: str = "trajectory",
    discrepancy: str | None = None,
    tolerance: float = 0.0,
    inputs: StepInputs | None = None,
) -> GaussianTrajectory:
    """Propagate a Gaussian state through a predictor's steps in closed form: mean and root at leads 1 to `steps`.

    The step is linearised about the trajectory u_k+1 = m(u_k) from `start`,

        mean_k+1 = m(u_k) + J(u_k) (mean_k - u_k),    d_k+1 = J(u_k) d_k + R(u_k) xi + D_i(u_k) zeta_i,

    with m the predictor's mean, J its derivative in the state, R its root, and D_i the sample's discrepancy, if any. Errors of
    a step propagate through the following steps. The result is exact if m is affine and R does not depend on the state,
    otherwise correct to first order in the deviations; compare with the draws of `predictor.rollout`. The start is usually
    the mean of `initial`; for uncertain starts with accurate later observations, use the result of
    [`four_d_var`][probneural.forecasts.four_d_var]. `condition` warns where the mean of `initial` is too far from the analysis.

    All leads share one latent: an observation at lead 5 informs leads 1 to 20, by
    [`condition`][probneural.forecasts.trajectories.GaussianTrajectory.condition]. With `draws="trajectory"` and neither an
    initial distribution nor a discrepancy it is the predictor's latent, so the observation informs its predictions too.

    Cost: one forward-mode derivative of the mean per step and column. The number of columns is that of latent dimensions, at
        most that of state values: a singular value decomposition removes the excess exactly.

    Args:
        predictor: Any Gaussian head's or calibrator's; an ensemble counts as the Gaussian of its members' mean and covariance.
        start: States at lead 0, `(n, history * c, *grid)`, the earliest first; then any channels that stay constant.
        steps: Number of steps.
        initial: Distribution of the states at lead 0, `(n, history * c, *grid)`; by default they are those of `start`. If its
            latent is the predictor's, or was conditioned from it, it is the same operator that made the start.
        draws: `"trajectory"`: one operator for all steps, so that its errors accumulate. `"step"`: a new one at every step, so
            that errors of different steps are independent.
        discrepancy: The same for the per-sample discrepancy: `"trajectory"`, constant along the trajectory; `"step"`, new at
            every step; `"none"` omits it. By default as `draws`.
        tolerance: Fraction of the standard deviation of each step that truncation may remove, dimensionless.
        inputs: Inputs of a step other than the last state, as in `predictor.rollout`.

    Returns:
        The forecast, without gradients.

    Raises:
        ArgumentError: If a number or a choice is invalid.
        ShapeError: If the number of channels or samples does not match.
        GridError: If grids differ, or a prediction has another grid than its input.
        DataError: If an input is not a field, or not finite.
        UnsupportedError: If predictions are neither Gaussian nor empirical, or the columns do not fit into memory.

    Reference:
        Särkkä (2013), Bayesian filtering and smoothing, section 5.2 (the extended Kalman filter's prediction). Deviations:
        roots instead of covariances, jointly over all steps, errors of one operator at all of them.
    """
    check_instance(predictor, Predictor, "predictor", remedy="fit a head, or calibrate one")
    steps = check_integer(steps, "steps")
    discrepancy = draws if discrepancy is None else check_choice(discrepancy, ("trajectory", "step", "none"), "discrepancy")
    tolerance = check_real(tolerance, "tolerance", least=0.0, below=1.0)
    ensemble = members_of(predictor, start, draws=draws, initial=initial, inputs=inputs)
    begin = _gaussian(initial)
    window = ensemble.start.values[:, : ensemble.history * predictor.out_channels]
    mean = window if begin is None else begin.mean.to(window)
    stepper = Stepper(ensemble)
    stepper = stepper if begin is None else stepper.conditioned_on(begin.latent)
    predicted = _Predicted.of(stepper, window, steps=steps, keeps_operator=draws == "trajectory")
    plans = _plans(predicted, begin, draws=draws, discrepancy=discrepancy)
    return _assemble(stepper, predicted, plans, offset=window - mean, discrepancy=discrepancy, tolerance=tolerance)


@dataclass(frozen=True, eq=False)
class Stepper:
    """A predictor as a map from the last states, `(n, h * c, *grid)`, the earliest first, to a Gaussian field of the next.

    An ensemble counts as the Gaussian field of its members' mean and covariance.

    Args:
        ensemble: The predictor, its number of input states, and the other channels.
        latent: Posterior of the predictor's latent, or None.
    """

    ensemble: Members
    latent: Latent | None = None

    def conditioned_on(self, latent: Latent) -> Stepper:
        """The stepper given a latent that was conditioned from the predictor's; otherwise this one."""
        u = self.predict(self.inputs(self.ensemble.starts()[0], 1))
        try:
            shift, _ = latent.relative_to(u.latent)
        except LatentError:
            return self
        return self if shift is None else replace(self, latent=latent)

    def inputs(self, window: Float[Tensor, "n hc *grid"], lead: int) -> Field:
        """The inputs of the step that leads to a lead."""
        return Field(torch.cat([window, self.ensemble.extras(lead - 1)], dim=1), self.ensemble.grid)

    def predict(self, inputs: Field) -> GaussianField:
        """The distribution of the next states.

        Raises:
            UnsupportedError: If the predictor's fields are neither Gaussian nor empirical.
            GridError: If they have another grid than the inputs.
        """
        u = self.ensemble.predictor(inputs)
        if isinstance(u, EmpiricalField):
            u = u.moment_matched()
        u = check_instance(u, GaussianField, "field", remedy="use predictor.rollout", error=UnsupportedError)
        remedy = "a step leads from a grid to itself: fit it on such pairs"
        check_same_grid(u.grid, inputs.grid, "predictions, as inputs are,", remedy=remedy)
        return u if self.latent is None else u.under(self.latent)

    def tangents(self, inputs: Field, directions: Float[Tensor, "n hc p r"]) -> Float[Tensor, "n c p r"]:
        """J d for r directions d of each sample's last states, with J the derivative of the predicted mean in them.

        Samples are independent, so many tangents are evaluated in one call, as samples of a batch.
        """
        functions, channels, points, count = directions.shape
        if count == 0:
            return directions.new_zeros(functions, self.ensemble.channels, points, 0)
        pieces = []
        for piece in directions.split(max(1, _POINTS // max(1, functions * points)), dim=3):
            width = piece.shape[3]
            tangent = piece.movedim(3, 0).flatten(0, 1).unflatten(2, inputs.grid.shape).to(inputs.values)
            constant = tangent.new_zeros(len(tangent), inputs.channels - channels, *inputs.grid.shape)
            point = inputs.values.repeat(width, *(1,) * (inputs.values.ndim - 1))
            pushed = self._pushed(Field(point, inputs.grid), torch.cat([tangent, constant], dim=1))
            pieces.append(pushed.unflatten(0, (width, functions)).flatten(3))
        return torch.cat(pieces).movedim(0, -1)

    def _pushed(self, inputs: Field, tangent: Tensor) -> Tensor:
        """The derivative of the mean of each sample in one direction; by double backward if forward mode is not supported."""
        try:
            with AUTOGRAD_STATE, forward_ad.dual_level():
                mean = self.predict(Field(forward_ad.make_dual(inputs.values, tangent), inputs.grid)).mean
                primal, pushed = forward_ad.unpack_dual(mean)
                return torch.zeros_like(primal) if pushed is None else pushed.clone()
        except NotImplementedError:  # some of PyTorch's operations have no forward mode
            product = torch.autograd.functional.jvp(
                lambda values: self.predict(Field(values, inputs.grid)).mean, inputs.values.detach(), tangent
            )
            return product[1]


@dataclass(frozen=True, eq=False)
class _Predicted:
    """The mean trajectory and the predictions along it, with one latent for all steps of a fixed operator."""

    window: Tensor
    inputs: tuple[Field, ...]
    fields: tuple[GaussianField, ...]

    @classmethod
    def of(cls, stepper: Stepper, window: Tensor, *, steps: int, keeps_operator: bool) -> _Predicted:
        inputs, fields, last = [], [], window
        for lead in range(1, steps + 1):
            inputs.append(stepper.inputs(last, lead))
            fields.append(stepper.predict(inputs[-1]))
            last = torch.cat([last, fields[-1].mean.to(last)], dim=1)[:, fields[-1].mean.shape[1] :]
        if keeps_operator and steps > 1:  # one call for all steps: some heads draw a new latent in each call
            together = stepper.predict(Field.cat(inputs))
            count = len(window)
            fields = [together[slice(step * count, (step + 1) * count)] for step in range(steps)]
        return cls(window, tuple(inputs), tuple(fields))

    def discrepancies(self, kind: str) -> list[Root | None]:
        """The discrepancy of each sample at every step; empty if it is omitted.

        Raises:
            UnsupportedError: If only some predictions have a discrepancy.
        """
        if kind == "none":
            return [None] * len(self.fields)
        roots = [field.discrepancy for field in self.fields]
        if len({root is None for root in roots}) > 1:
            raise UnsupportedError(
                expected="a discrepancy at every step, or at none", got="a mixture", remedy='leave it out: discrepancy="none"'
            )
        return roots


@dataclass(frozen=True, eq=False, kw_only=True)
class _Plan:
    """Positions of the randomness of each step in a latent, shared or per sample.

    Args:
        start: Columns of the initial distribution.
        rank: Dimensions of the latent.
        offsets: The first dimension of each step's randomness.
        is_fresh: Whether each step has separate dimensions.
        is_shared: Whether samples share the latent.
    """

    start: Columns
    rank: int
    offsets: tuple[int, ...]
    is_fresh: bool
    is_shared: bool

    @classmethod
    def of(
        cls, window: Tensor, begin: Root | None, ranks: Sequence[int], *, kind: str, is_same: bool, is_shared: bool
    ) -> _Plan:
        flat, is_fresh = window.flatten(2), kind == "step"
        matrix = flat.new_zeros(*flat.shape, 0) if begin is None else begin.dense().to(flat)
        matrix = matrix if is_same else narrowed(matrix, is_shared=is_shared)
        functions, channels, points, first = matrix.shape
        values = channels * points * (functions if is_shared else 1)
        ranks = [min(rank, values) for rank in ranks] if is_fresh else list(ranks)
        first = 0 if is_same else first
        offsets = tuple(first + (sum(ranks[:step]) if is_fresh else 0) for step in range(len(ranks)))
        rank = offsets[-1] + ranks[-1]
        start = Columns.of(matrix, rank=rank, is_shared=is_shared)
        return cls(start=start, rank=rank, offsets=offsets, is_fresh=is_fresh, is_shared=is_shared)

    def step(self, columns: Columns, pushed: Tensor, root: Root | None, *, number: int) -> Columns:
        """The columns after a step that adds a root."""
        matrix = pushed[..., :0] if root is None else root.dense()
        if self.is_fresh:  # the directions have no meaning beyond this step
            matrix = narrowed(matrix, is_shared=self.is_shared)
        return columns.step(pushed, matrix, offset=self.offsets[number], is_fresh=self.is_fresh)


def _plans(predicted: _Predicted, begin: GaussianField | None, *, draws: str, discrepancy: str) -> tuple[_Plan, _Plan]:
    """Plans of the shared and of the per-sample latents."""
    latent, window = predicted.fields[0].latent, predicted.window
    is_same = begin is not None and draws != "step" and (begin.latent.id, begin.latent.rank) == (latent.id, latent.rank)
    ranks = [field.latent.rank for field in predicted.fields]
    own_ranks = [0 if root is None else root.shape[3] for root in predicted.discrepancies(discrepancy)]
    first, own_first = (None, None) if begin is None else (begin.root, begin.discrepancy)
    return (
        _Plan.of(window, first, ranks, kind=draws, is_same=is_same, is_shared=True),
        _Plan.of(window, own_first, own_ranks, kind=discrepancy, is_same=False, is_shared=False),
    )


def _assemble(
    stepper: Stepper, predicted: _Predicted, plans: tuple[_Plan, _Plan], *, offset: Tensor, discrepancy: str, tolerance: float
) -> GaussianTrajectory:
    """Push the columns through all steps, and make fields of them.

    The offset of the trajectory's start from its mean, `(n, h * c, *grid)`, goes the same way, and is taken off again.
    """
    (plan, own_plan), window, channels = plans, predicted.window, stepper.ensemble.channels
    shared, specific = plan.start, own_plan.start
    means, pairs = [(window - offset)[:, window.shape[1] - channels :]], [(shared, specific)]
    offsets = offset.flatten(2)[..., None]
    roots = predicted.discrepancies(discrepancy)
    for number, (inputs, u) in enumerate(zip(predicted.inputs, predicted.fields, strict=True)):
        narrow, own_narrow = shared.truncated(tolerance), specific.truncated(tolerance)
        together = torch.cat([narrow.columns, own_narrow.columns, offsets], dim=3)
        pushed, own_pushed, ahead = stepper.tangents(inputs, together).split([narrow.count, own_narrow.count, 1], dim=3)
        offsets = torch.cat([offsets, ahead], dim=1)[:, channels:]
        shared = plan.step(narrow, pushed, u.root, number=number)
        specific = own_plan.step(own_narrow, own_pushed, roots[number], number=number)
        means.append(u.mean - ahead.reshape(u.mean.shape))
        pairs.append((shared, specific))
    latent = predicted.fields[0].latent
    rank = plan.rank + len(window) * own_plan.rank
    is_predictors = latent.is_shared_across_calls and not plan.is_fresh and rank == latent.rank
    if not is_predictors:
        last = pairs[-1]
        name = digest(*means, *(columns.state(channels) for columns in last))
        latent = Latent(id=f"trajectory-{name}", rank=rank, is_shared_across_calls=False, source=latent.key)
    positions = torch.arange(len(window), device=window.device)
    fields = []
    for mean, (shared, specific) in zip(means, pairs, strict=True):
        rows = None if shared.rows is None else shared.rows[0]
        states = [part.state(channels) for part in (shared, specific)]
        root = PropagatedRoot(states[0], rows, states[1], specific.rows, positions, functions=len(window))
        fields.append(GaussianField(mean, root, latent=latent, grid=stepper.ensemble.grid))
    dropped = torch.tensor([max(shared.dropped, specific.dropped) for shared, specific in pairs], dtype=torch.float64)
    # steps linearised about an uncertain initial mean are tested where observations move it
    is_tested = stepper.ensemble.history == 1 and not bool(offset.any()) and pairs[0][0].count + pairs[0][1].count > 0
    error = partial(_linearisation_error, stepper, predicted) if is_tested else None
    duration = step_duration(stepper.ensemble.predictor)
    return GaussianTrajectory(fields, stepper.ensemble.start, dropped=dropped, duration=duration, linearisation_error=error)


@torch.no_grad()
def _linearisation_error(stepper: Stepper, predicted: _Predicted, start: Tensor, lead: int) -> Tensor:
    """Error v_k - u_k - J_k-1 ... J_0 (v_0 - u_0) with v_k+1 = m(v_k) from another start, for steps of one input state."""
    moved = start.to(predicted.window)
    shift = (moved - predicted.window).flatten(2)[..., None]
    for step in range(lead):
        moved = stepper.predict(stepper.inputs(moved, step + 1)).mean.to(moved)
        shift = stepper.tangents(predicted.inputs[step], shift)
    return moved - predicted.fields[lead - 1].mean - shift.reshape(moved.shape)


def _gaussian(initial: FieldDistribution | None) -> GaussianField | None:
    """The initial distribution as a Gaussian field."""
    if isinstance(initial, EmpiricalField):
        return initial.moment_matched()
    if initial is None:
        return None
    return check_instance(initial, GaussianField, "initial", remedy="state its covariance", error=ArgumentError)
