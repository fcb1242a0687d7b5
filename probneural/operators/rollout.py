"""A step that is repeated, as one operator."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from probneural.checks import check_flag, check_instance, check_integer, check_least, check_module
from probneural.contexts import is_transformed
from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.fields import Field, takes_grid
from probneural.grids import Grid, resample
from probneural.operators.base import Operator
from probneural.operators.checks import check_where, stated_channels
from probneural.pairs import Dataset, FieldPairs, evenly_spread_rows
from probneural.registry import stored

_MOST_PAIRS = 1024
"""Pairs that units are taken from at most."""


@stored()
class Rollout(Operator):
    """An operator G that is applied `steps` times: u_l = G(u_{l-h}, ..., u_{l-1}, a), or u_{l-1} + G(...).

    Heads, curvature, conditioning and export apply to it as to any operator, and its weights are those of G. Its inputs are
    the h states that it starts from, the earliest first, and channels a that stay constant. Without gradients it needs the
    memory of one step.

    The last layer of a repeated operator acts on all later states, so a last-layer posterior does not fit it;
    `Laplace("low_rank")` does. It fits one step, `Rollout(operator, 1, residual=True)` too, whose predictor then rolls out.

    Args:
        operator: G, from `h * c` states and the constant channels to c channels. It has the attributes
            `in_channels` and `out_channels`.
        steps: Number of applications.
        history: States h in an input of G.
        residual: Whether G gives the increment of the state.
        keeps_boundary: Whether the values at the ends of axes that are not periodic stay those of the start.
        checkpoints: Whether gradients compute each step again instead of storing its activations: one more evaluation, for
            the memory of one step and of all states.

    Raises:
        ArgumentError: If the operator is not a module, lacks these attributes, or has too few of them; or if a number is no
            positive integer.

    Reference:
        Chen et al. (2016), Training deep nets with sublinear memory cost (checkpoints).

    Examples:
        >>> double = nn.Conv1d(1, 1, 1, bias=False)
        >>> _ = nn.init.constant_(double.weight, 2.0)
        >>> Rollout(double, 3)(torch.ones(1, 1, 4))[0, :, 0].tolist()
        [8.0]
    """

    def __init__(
        self,
        operator: nn.Module,
        steps: int,
        *,
        history: int = 1,
        residual: bool = False,
        keeps_boundary: bool = False,
        checkpoints: bool = False,
    ) -> None:
        super().__init__()
        self.operator = check_module(operator, "operator")
        self._takes_grid = takes_grid(operator)
        self.steps = check_integer(steps, "steps")
        self.history = check_integer(history, "history")
        self.residual = check_flag(residual, "residual")
        self.keeps_boundary = check_flag(keeps_boundary, "keeps_boundary")
        self.checkpoints = check_flag(checkpoints, "checkpoints")
        self.channels, self.in_channels = stated_channels(operator, "out_channels"), stated_channels(operator, "in_channels")
        remedy = "its inputs are history * out_channels states and constant channels"
        least = self.history * self.channels
        check_least(self.in_channels, least, "input channels of the operator", remedy=remedy, error=ArgumentError)
        self.out_channels = self.channels

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class.

        On a query, the operator itself evaluates the last state. Where it is a sum, or has boundary values
        kept, it is interpolated.

        Raises:
            ShapeError: If the values do not have the channels of all inputs.
            GridError: If boundary values are to be kept on a grid that has no ends, or interpolated values come without their
                grid.
        """
        check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values)")
        check_where(grid, query)
        if values.ndim < 3 or values.shape[1] != self.in_channels:
            raise ShapeError(
                expected=f"values of shape (n, {self.in_channels}, points, ...)",
                got=str(tuple(values.shape)),
                remedy="axis 1 is channels: states, then constant channels",
            )
        states, constant = self._parts(values)
        inside = self._inside(values, grid) if self.keeps_boundary else None
        is_interpolated = query is not None and (self.residual or inside is not None)
        for number in range(self.steps):
            at_query = None if is_interpolated or number < self.steps - 1 else query
            state = self._step(torch.cat([states, constant], dim=1), grid=grid, query=at_query)
            if self.residual:
                state = states[:, -self.channels :] + state
            if inside is not None:
                state = torch.where(inside, state, states[:, -self.channels :])
            if number < self.steps - 1:
                states = torch.cat([states[:, self.channels :], state], dim=1)
        return _interpolated(state, grid, query) if is_interpolated else state

    def _parts(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """States, and constant channels."""
        states = self.history * self.channels
        return values[:, :states], values[:, states:]

    def _step(self, inputs: Tensor, *, grid: Grid | None, query: Grid | None) -> Tensor:
        """The operator's own output, with or without a checkpoint."""

        def evaluated(inputs: Tensor) -> Tensor:
            if self._takes_grid:
                values: Tensor = self.operator(inputs, grid=grid, query=query)
                return values
            return _interpolated(self.operator(inputs), grid, query)

        if not self.checkpoints or not torch.is_grad_enabled() or torch.compiler.is_compiling() or is_transformed():
            return evaluated(inputs)
        again: Tensor = checkpoint(evaluated, inputs, use_reentrant=False)
        return again

    @staticmethod
    def _inside(values: Tensor, grid: Grid | None) -> Tensor:
        """Mask of the points that are not at an end of an axis, `(*grid)`."""
        if grid is None or not grid.is_uniform or all(grid.periodic):
            raise GridError(
                expected="a uniform grid with an axis that is not periodic, whose boundary values are kept",
                got=repr(grid),
                remedy="pass the values' own grid, or keeps_boundary=False",
            )
        inside = torch.ones(grid.shape, dtype=torch.bool, device=values.device)
        for number, axis in enumerate(grid.axes):
            if not axis.periodic:
                along = inside.movedim(number, 0)
                along[0] = False
                if axis.endpoint:
                    along[-1] = False
        return inside

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take the operator's units from training data of this operator.

        Inputs of a step have the units of the first inputs, outputs those of the last state, or of the average increment.
        """
        if isinstance(self.operator, Operator):
            self.operator.fit_normalizers(*(self._step_pairs(data) for data in train))

    def _step_pairs(self, data: Dataset) -> FieldPairs:
        """Pairs of about the units of one step."""
        pairs = data[evenly_spread_rows(len(data), _MOST_PAIRS)]
        states, _ = self._parts(pairs.inputs.values)
        last = pairs.outputs.values
        if self.residual:
            before = resample(states[:, -self.channels :], pairs.inputs.grid, pairs.outputs.grid)
            last = (last - before) / self.steps
        return FieldPairs(pairs.inputs, Field(last, pairs.outputs.grid))


def _interpolated(values: Tensor, grid: Grid | None, query: Grid | None) -> Tensor:
    """Values on the query."""
    if query is None:
        return values
    if grid is None:
        raise GridError(expected="the values' grid together with a query", got="None", remedy="pass grid= too")
    return resample(values, grid, query)
