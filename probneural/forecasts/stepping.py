"""One step of a forecast in closed form: the distribution of the next state, and tangents through its mean."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd import forward_ad

from probneural.contexts import AUTOGRAD_STATE
from probneural.distributions import EmpiricalField, GaussianField, Latent
from probneural.distributions.forecasts.members import Members
from probneural.errors import GridError, LatentError, UnsupportedError
from probneural.fields import Field

_POINTS = 2**16
"""Grid points that tangents are pushed through at once."""


@dataclass(frozen=True, eq=False)
class Stepper:
    """A predictor as a map from the last states, `(n, h * c, *grid)`, the earliest first, to a Gaussian field of the next.

    An ensemble counts as the Gaussian field of its members' mean and covariance.

    Args:
        ensemble: The predictor, how many states it takes, and the channels beside them.
        latent: What is known of the predictor's latent, or None.
    """

    ensemble: Members
    latent: Latent | None = None

    def conditioned_on(self, latent: Latent) -> Stepper:
        """The stepper after what a latent has learned, if that was conditioned from the predictor's; this one otherwise."""
        u = self.predict(self.inputs(self.ensemble.starts()[0], 1))
        try:
            shift, _ = latent.relative_to(u.latent)
        except LatentError:
            return self
        return self if shift is None else replace(self, latent=latent)

    def inputs(self, window: Float[Tensor, "n hc *grid"], lead: int) -> Field:
        """The inputs of the step that leads to a lead."""
        return Field(torch.cat([window, self.ensemble._extras(lead - 1)], dim=1), self.ensemble.grid)

    def predict(self, inputs: Field) -> GaussianField:
        """The distribution of the next states.

        Raises:
            UnsupportedError: If the predictor's fields are neither Gaussian nor empirical.
            GridError: If they live on another grid than the inputs.
        """
        u = self.ensemble.predictor(inputs)
        if isinstance(u, EmpiricalField):
            u = u.moment_matched()
        if not isinstance(u, GaussianField):
            raise UnsupportedError(
                expected="a predictor of Gaussian or empirical fields",
                got=type(u).__name__,
                remedy="roll out draws instead: predictor.rollout(...)",
            )
        if u.grid != inputs.grid:
            raise GridError(
                expected=f"predictions on the grid of the inputs, {inputs.grid!r}",
                got=repr(u.grid),
                remedy="a step leads from a grid to itself: fit it on such pairs",
            )
        return u if self.latent is None else u.under(self.latent)

    def tangents(self, inputs: Field, directions: Float[Tensor, "n hc p r"]) -> Float[Tensor, "n c p r"]:
        """J d of r changes d of each function's last states, with J the derivative of the predicted mean in them.

        Functions do not mix, so many tangents go through the mean together, as functions of one call.
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
        """The derivative of the mean at each function in one direction; by two passes back where a pass forward is missing."""
        try:
            with AUTOGRAD_STATE, forward_ad.dual_level():
                mean = self.predict(Field(forward_ad.make_dual(inputs.values, tangent), inputs.grid)).mean
                primal, pushed = forward_ad.unpack_dual(mean)
                return torch.zeros_like(primal) if pushed is None else pushed.clone()
        except NotImplementedError:  # some of PyTorch's operations have no forward mode
            with torch.enable_grad():
                values = inputs.values.detach().requires_grad_()
                mean = self.predict(Field(values, inputs.grid)).mean
                cotangent = torch.zeros_like(mean, requires_grad=True)
                (pulled,) = torch.autograd.grad(mean, values, cotangent, create_graph=True)
                (pushed,) = torch.autograd.grad(pulled, cotangent, tangent)
            return pushed
