"""Neural ordinary differential equations: latent dynamics in continuous time, with outputs at any times."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_finite, check_flag, check_instance, check_integer, real_tensor
from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.fields import Field
from probneural.grids import Grid, check_grid, check_unmasked, per_axis, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_modes, check_where, grid_of_values
from probneural.operators.integration import ODESolver
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear, SpectralConv, channels_innermost
from probneural.pairs import Dataset
from probneural.registry import stored

_SOLVER = ODESolver()


class LatentDynamics(nn.Module):
    """F: spectral layers z -> Kz + Wz + b with gelu between them.

    Args:
        width: Channels of z.
        modes: See `SpectralConv`.
        depth: Number of layers.
        periodic: Whether each axis is periodic.

    Raises:
        ArgumentError: If a size is not a positive integer, or there is not one flag per axis.
    """

    def __init__(self, width: int, *, modes: Sequence[int], depth: int, periodic: Sequence[bool]) -> None:
        super().__init__()
        self.spectral = nn.ModuleList(SpectralConv(width, width, modes=modes, periodic=periodic) for _ in range(depth))
        self.pointwise = nn.ModuleList(PointwiseLinear(width, width) for _ in range(depth))

    def reset_parameters(self) -> None:
        """Reinitialise all weights."""
        for module in (*self.spectral, *self.pointwise):
            module.reset_parameters()

    def forward(self, state: Float[Tensor, "n w *grid"], *, endpoint: Sequence[bool]) -> Float[Tensor, "n w *grid"]:
        """Return the change of a state per unit of time; `endpoint`: whether each axis includes its right end."""
        for number, (spectral, pointwise) in enumerate(zip(self.spectral, self.pointwise, strict=True)):
            state = nn.functional.gelu(state) if number else state
            state = spectral(state, endpoint=endpoint, pointwise=pointwise)
        return state


@stored(parts="configuration")
class NeuralODEOperator(Operator):
    """z(0) = E(a), dz/dt = F(z), u(t) = R(z(t)): encode the initial state, move in latent space, read at any time.

    F is `depth` spectral layers z -> Kz + Wz + b with gelu between them, the same at all times, so states at all times are one
    trajectory; E and R are two pointwise layers each.

    Time enters by the query: a grid with one more axis than the inputs have, time first, is a set of points
    in space and time. So irregular times need no special format: training outputs live at scattered points (t, x), which
    [`space_time`][probneural.operators.space_time] makes of states at given times; `pn.fit`, heads, functionals and scores see
    a field on a grid as ever, and a posterior is joint over space and time. Samples with different times are data sets
    side by side, as `pn.fit` takes them. Without a query, or with one in space, the output is the state at the solver's `time`.

    Good values: `time` near the longest time of the data, whose latent states then stay of order one. It cannot represent a
    dependence on absolute time, or on a forcing that is not part of the state.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        modes: Frequencies |k| < m kept per axis; their number sets the dimension, 1 to 3.
        width: Channels of the latent state.
        depth: Spectral layers of F; one makes the latent dynamics linear.
        periodic: Whether each axis is periodic; others are continued evenly, see `SpectralConv`.
        solver: Time integrator.
        seed: Seed of the initial weights; by default torch's global generator is used.

    Raises:
        ArgumentError: If a size is not a positive integer, the dimension is not 1, 2 or 3, or the solver is none.

    Reference:
        Chen, Rubanova, Bettencourt & Duvenaud (2018), Neural ordinary differential equations, section 5; layers: Li et al.
        (2021), Fourier neural operator.

    Examples:
        >>> operator = NeuralODEOperator(1, 1, modes=(4,), width=8, seed=0)
        >>> start = torch.zeros(3, 1, 16)
        >>> operator(start).shape, operator.at_times(start, [0.0, 0.3, 1.7]).shape
        (torch.Size([3, 1, 16]), torch.Size([3, 3, 1, 16]))
        >>> operator(start, query=Grid.scattered([[0.3, 0.5], [1.7, 0.1]], [0.5, 0.5])).shape
        torch.Size([3, 1, 2])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        modes: Sequence[int],
        width: int = 32,
        depth: int = 2,
        periodic: bool | Sequence[bool] = True,
        solver: ODESolver = _SOLVER,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.width, self.depth = check_integer(width, "width"), check_integer(depth, "depth")
        self.modes = check_modes(modes)
        self.periodic = per_axis(periodic, len(self.modes), "periodic", check_flag)
        self.solver = check_instance(solver, ODESolver, "solver", remedy="give ODESolver(time=1.0)", error=ArgumentError)
        self.input_normalizer = ChannelNormalizer(self.in_channels)
        self.output_normalizer = ChannelNormalizer(self.out_channels)
        with initial_weights(seed):
            self.lift = PointwiseLinear(self.in_channels, 2 * self.width)
            self.encode = PointwiseLinear(2 * self.width, self.width)
            self.dynamics = LatentDynamics(self.width, modes=self.modes, depth=self.depth, periodic=self.periodic)
            self.projection = PointwiseLinear(self.width, 2 * self.width)
            self.readout = ReadoutLinear(2 * self.width, self.out_channels)

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate at the query, in space, or in time (first) and space; see the class.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid does not fit the values or the operator's periodicity, or the query is in another domain, or
                at negative times.
            ResolutionError: If an axis has fewer than 2m - 1 points.
            UnsupportedError: If the solver's steps adapt under transforms of `torch.func`.
        """
        where, start = self._start(values, grid, query)
        if query is None or query.dimension == where.dimension:
            (state,) = self._states(
                start, where, _checked_times(torch.tensor([self.solver.time], dtype=torch.float64, device="cpu"))
            )
            return self._read(state if query is None else resample(state, where, query))
        if query.dimension != where.dimension + 1:
            raise GridError(
                expected=f"a query of {where.dimension} dimensions, or of {where.dimension + 1} with time first",
                got=repr(query),
                remedy="make one by space_time, or pass times to operator.at_times",
            )
        if query.is_uniform:
            times = _checked_times(query.axes[0].coordinates)
            space = Grid.of_axes(query.axes[1:])
            states = [resample(state, where, space) for state in self._states(start, where, times)]
            return self._read(torch.stack(states, dim=2))
        times, numbers = query.points[:, 0].unique(return_inverse=True)
        states, order = [], []
        for number, state in enumerate(self._states(start, where, _checked_times(times))):
            rows = (numbers == number).nonzero()[:, 0]
            points = query.points[rows, 1:]
            scattered = where if torch.equal(points, where.points) else Grid.scattered(points, torch.ones(len(rows)))
            states.append(resample(state, where, scattered).flatten(2))
            order.append(rows)
        return self._read(torch.cat(states, dim=2)[..., torch.cat(order).argsort()])

    def at_times(
        self, values: Float[Tensor, "n c *grid"], times: Float[Tensor, " t"] | Sequence[float], *, grid: Grid | None = None
    ) -> Float[Tensor, "n t c2 *grid"]:
        """Return states at given times on the inputs' grid.

        Args:
            values: Initial states, in physical units.
            times: Times in the unit of the solver's `time`, not negative, in any order.
            grid: Grid of the values; by default a uniform grid on the unit domain.

        Returns:
            `(n, t, out_channels, *grid)`, in physical units.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`, or there are no times.
            DataError: If the values are of another dtype than the operator, or times are not finite.
            GridError: If the grid does not fit, or a time is negative.
        """
        requested = _checked_times(real_tensor(times, "times", dtype=torch.float64, device=torch.device("cpu")))
        where, start = self._start(values, grid, None)
        sorted_times, numbers = requested.unique(return_inverse=True)
        outputs = [self._read(state) for state in self._states(start, where, sorted_times)]
        return torch.stack([outputs[number] for number in numbers.tolist()], dim=1)

    def _start(self, values: Tensor, grid: Grid | None, query: Grid | None) -> tuple[Grid, Tensor]:
        """Grid of the inputs, and the initial latent state."""
        check_input(values, channels=self.in_channels, dimension=len(self.modes), dtype=self.readout.weight.dtype)
        check_where(grid, query)
        where = grid_of_values(values, grid, periodic=self.periodic)
        lifted = self.lift(channels_innermost(self.input_normalizer(values)))
        return where, self.encode(nn.functional.gelu(lifted))

    def _states(self, start: Tensor, where: Grid, times: Tensor) -> list[Tensor]:
        """Latent states at ascending times."""

        def rate(state: Tensor) -> Tensor:
            change: Tensor = self.dynamics(state, endpoint=where.endpoint)
            return change

        return self.solver.states(rate, start, times=times, parameters=tuple(self.dynamics.parameters()))

    def _read(self, state: Float[Tensor, "n w *grid"]) -> Float[Tensor, "n c *grid"]:
        features = nn.functional.gelu(self.projection(channels_innermost(state)))
        return self.output_normalizer.inverse(self.readout(features)).contiguous()

    def reset_parameters(self) -> None:
        """Reinitialise all weights; normalisers keep their units."""
        for module in (self.lift, self.encode, self.dynamics, self.projection, self.readout):
            module.reset_parameters()

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means and scales from training data."""
        self.input_normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))


def space_time(values: Float[Tensor, "n t c *grid"], *, times: Float[Tensor, " t"] | Sequence[float], grid: Grid) -> Field:
    """Make one field on scattered points in time and space of states at given times, which may be irregular.

    Weights are those of the trapezoidal rule in time, times the grid's; a single time has weight 1.

    Args:
        values: States, one per time.
        times: Ascending, in the unit of the solver's `time`.
        grid: Grid of the states.

    Returns:
        Values `(n, c, t * p)` at points (t, x), time by time.

    Raises:
        ShapeError: If the values are not `(n, t, c, *grid.shape)`.
        DataError: If values or times are not finite real numbers.
        GridError: If times are negative or do not ascend.

    Examples:
        >>> field = space_time(torch.ones(1, 3, 2, 4), times=[0.1, 0.2, 0.7], grid=Grid.uniform(4))
        >>> field.values.shape, field.grid.points[4].tolist(), round(field.grid.volume, 12)
        (torch.Size([1, 2, 12]), [0.2, 0.0], 0.6)
    """
    check_grid(grid)
    moments = _checked_times(real_tensor(times, "times", dtype=torch.float64, device=torch.device("cpu")))
    check_instance(values, Tensor, "values", remedy="convert with torch.as_tensor(values)")
    if tuple(values.shape[1:2]) != tuple(moments.shape) or tuple(values.shape[3:]) != grid.shape:
        raise ShapeError(
            expected=f"values of shape (n, {len(moments)}, c, {', '.join(map(str, grid.shape))})",
            got=str(tuple(values.shape)),
            remedy="axis 1 is time, axis 2 is channels",
        )
    gaps = moments.diff()
    if not bool((gaps > 0).all()):
        raise GridError(expected="ascending times", got=str(moments.tolist()), remedy="sort states and times alike")
    weights = torch.ones(1, dtype=torch.float64, device="cpu")
    if len(moments) > 1:
        weights = 0.5 * (nn.functional.pad(gaps, (0, 1)) + nn.functional.pad(gaps, (1, 0)))
    points = torch.cat([moments.repeat_interleave(grid.size)[:, None], grid.points.repeat(len(moments), 1)], dim=1)
    product_grid = Grid.scattered(points, (weights[:, None] * check_unmasked(grid, "several times").weights).flatten())
    return Field(values.flatten(3).movedim(1, 2).flatten(2), product_grid)


def _checked_times(times: Tensor) -> Tensor:
    """Return times, or raise an error unless there are some, in one row, none of them negative."""
    if times.ndim != 1 or 0 in times.shape:
        raise ShapeError(expected="a row of times", got=str(tuple(times.shape)), remedy="give e.g. times=[0.1, 0.25]")
    check_finite(times, "times")
    if bool((times < 0).any()):
        raise GridError(
            expected="times of 0 or later", got=str(float(times.min())), remedy="inputs are states at time 0: shift the times"
        )
    return times
