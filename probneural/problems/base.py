"""Base class of exactly solvable problems: input distribution, exact solution operator, design space."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from probneural import checks
from probneural.contexts import Undisturbed, jvp
from probneural.errors import ArgumentError, DataError, GridError, ResolutionError, ShapeError
from probneural.fields import Field, check_field
from probneural.grids import Grid, check_grid, per_axis
from probneural.grids.grid import check_same_grid
from probneural.pairs import FieldPairs
from probneural.problems.input_distributions import InputDistribution, check_sample_dtype
from probneural.problems.random_fields import GaussianRandomField
from probneural.settings import Settings
from probneural.trajectories import FieldTrajectories, check_times

_CHUNK_ELEMENTS = 2**22
"""Number of grid values per chunk of solves in sampling (32 MiB in float64)."""

Dimension = Annotated[int, partial(checks.check_integer, most=3)]
"""Number of axes of space."""
_CUBE_SLACK = 1e-9
"""Tolerated distance of a design from the closed unit cube: rounding of optimisers."""


class Problem(Settings, Undisturbed, ABC):
    """An operator between functions on a box with exact solutions and a distribution of inputs; abstract.

    Inputs and outputs have one grid. A problem draws *coefficients*, so one seed gives the same functions on every grid; a
    resolution below that of the distribution (2K + 1 points on an axis for K modes) raises an error. Solutions are
    computed in float64 and then rounded to the requested dtype. All quantities are dimensionless unless documented.

    Attributes:
        title: Format of the name, of fields of the problem: "Heat, diffusivity {problem.diffusivity:g}".
        in_channels: Channels of an input.
        out_channels: Channels of an output.
        lengths: Extent of the box on every axis.
        origin: Lower end of the box on every axis.
        periodic: Whether the grid's axes are periodic, one bool for all or one per axis; non-periodic axes include both ends.
        is_linear: Whether the solution operator is linear, and hence equal to its derivative.
        design_dim: Number d of coordinates of the design space, see [`encode`][probneural.problems.Problem.encode].
    """

    title: ClassVar[str]
    in_channels: ClassVar[int] = 1
    out_channels: ClassVar[int] = 1
    lengths: ClassVar[float] = 1.0
    origin: ClassVar[float] = 0.0
    periodic: ClassVar[bool | tuple[bool, ...]] = True
    is_linear: ClassVar[bool] = False
    design_dim: int

    @property
    def name(self) -> str:
        """Name of the problem in tables, with the parameter of its equation."""
        return self.title.format(problem=self)

    @property
    @abstractmethod
    def input_distribution(self) -> InputDistribution:
        """The distribution of the inputs' coefficients."""

    @abstractmethod
    def shifts(self) -> dict[str, Problem]:
        """Out-of-distribution versions by name: usually the same operator under another distribution of inputs.

        Returns:
            At least one. Where inputs are Gaussian random fields, `"amplitude"` (larger inputs) and `"roughness"` (less smooth
            inputs of the same mean variance) are among them.
        """

    @abstractmethod
    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        """Map float64 inputs `(n, in_channels, *grid)` to outputs `(n, out_channels, *grid)`, differentiably.

        The grid is one that `_check_grid` lets pass, and the values are finite.
        """

    @abstractmethod
    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        """Map coefficients `(n, input_distribution.size)` to inputs `(n, in_channels, *grid)` of the coefficients' dtype.

        Differentiable where designs are to be optimised by gradients, and the same functions on every grid.
        """

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        """Map float64 inputs and directions `(n, in_channels, *grid)` to the derivative `(n, out_channels, *grid)`.

        Override it if a closed form is cheaper, or if there is no derivative (an UnsupportedError).
        """
        if self.is_linear:
            return self._solve(direction, grid)
        moved: Tensor = jvp(lambda at: self._solve(at, grid), (values,), (direction,))[1]
        return moved

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        """Map coefficients `(n, input_distribution.size)` to outputs `(n, out_channels, *grid)`, in float64.

        Override where nodal values do not determine inputs, or where coefficients give the solution without interpolation.
        """
        return self._solve(self._inputs(coefficients, grid), grid)

    @property
    def dimension(self) -> int:
        """Number of axes of the grid."""
        return self.input_distribution.dimension

    @property
    def minimum_resolution(self) -> tuple[int, ...]:
        """Fewest points on each axis."""
        return (self.input_distribution.minimum_resolution,) * self.dimension

    def grid(self, resolution: int | Sequence[int]) -> Grid:
        """Return the grid of some resolution.

        Args:
            resolution: Points per axis, end points included; one number stands for all axes.

        Returns:
            A uniform grid of the problem's box.

        Raises:
            ResolutionError: If an axis has fewer points than the distribution needs.
            ShapeError: If a sequence does not name every axis.
            ArgumentError: If a resolution is not an integer.
        """
        dimension = self.dimension
        if isinstance(resolution, Sequence):
            checks.check_count(
                len(resolution), dimension, "numbers as resolution, one per axis", remedy="give one number per axis"
            )
        sizes = per_axis(resolution, dimension, "resolution", partial(checks.check_integer, least=-math.inf))
        self._check_resolution(sizes)
        return self._uniform(sizes)

    def sample(
        self,
        n: int,
        *,
        resolution: int | Sequence[int],
        seed: int,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> FieldPairs:
        """Draw inputs from the distribution and solve for each.

        Args:
            n: Number of pairs.
            resolution: Points per axis.
            seed: Seed of the draws; the same seed and n give the same functions at every resolution.
            dtype: Dtype of the returned values; the arithmetic is float64.
            device: Device of the solver, `"auto"` for CUDA if available. Coefficients are drawn on the CPU, so a seed gives
                the same functions on every device.

        Returns:
            Pairs on one grid, on the device.

        Raises:
            ArgumentError: If n is less than 1, or the device does not exist here that computes in float64.
            ResolutionError: If an axis has fewer points than the distribution needs.
        """
        grid, parts = self._drawn(n, resolution=resolution, seed=seed, dtype=dtype, device=device)
        inputs, outputs = [], []
        for part in parts:
            inputs.append(self._inputs(part, grid).to(dtype))
            outputs.append(self._solve_coefficients(part, grid).to(dtype))
        return FieldPairs(Field(torch.cat(inputs), grid), Field(torch.cat(outputs), grid))

    def sample_inputs(
        self,
        n: int,
        *,
        resolution: int | Sequence[int],
        seed: int,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
    ) -> Field:
        """Draw inputs from the distribution without solving for any: candidates for simulation.

        Args:
            n: Number of functions.
            resolution: Points per axis.
            seed: Seed of the draw.
            dtype: Dtype of the returned values.
            device: Device of the evaluation; `"auto"` for CUDA if available.

        Returns:
            The inputs that `sample` draws with the same arguments, on the device.

        Raises:
            ArgumentError: If n is less than 1, or the device does not exist here that computes in float64.
            ResolutionError: If an axis has fewer points than the distribution needs.
        """
        grid, parts = self._drawn(n, resolution=resolution, seed=seed, dtype=dtype, device=device)
        return Field(torch.cat([self._inputs(part, grid).to(dtype) for part in parts]), grid)

    def inputs(self, coefficients: Float[Tensor, "*batch size"], *, grid: Grid) -> Field:
        """Map coefficients of the input distribution to input functions: `encode` of an inverse problem.

        Args:
            coefficients: `(..., input_distribution.size)`, as `input_distribution.draw` returns them.
            grid: A grid of the kind that `grid` returns.

        Returns:
            `(n, in_channels, *grid)` in the coefficients' dtype, where n is the product of the leading axes; differentiable
            where `encode` is.

        Raises:
            ShapeError: If the last axis does not have length `input_distribution.size`.
            GridError: If the grid is not of the problem's kind (a ResolutionError if it is too coarse).
        """
        size = self.input_distribution.size
        remedy = "pass draws of input_distribution; encode takes points of the unit cube"
        checks.check_shape(checks.check_floating(coefficients, "coefficients"), "coefficients", "...", size, remedy=remedy)
        self._check_grid(grid)
        self._check_resolution(grid.shape)
        return Field(self._inputs(coefficients.reshape(-1, size), grid), grid)

    def _drawn(
        self, n: int, *, resolution: int | Sequence[int], seed: int, dtype: torch.dtype, device: str | torch.device
    ) -> tuple[Grid, tuple[Tensor, ...]]:
        """The grid and chunks of the coefficients of random inputs."""
        check_sample_dtype(dtype)
        grid = self.grid(resolution)
        coefficients = self.input_distribution.draw(n, seed).to(checks.check_device(device, is_double=True))
        return grid, self._chunks(coefficients, grid)

    def solve(self, inputs: Field) -> Field:
        """Apply the solution operator to inputs of your own, as the grid's interpolant defines them between the points.

        Differentiable by autograd with respect to `inputs.values`. Any number of points will do: the least resolution is about
        the distribution, not about the operator.

        Args:
            inputs: `(n, in_channels, *grid)` on a uniform grid of the kind that `grid` returns.

        Returns:
            `(n, out_channels, *grid)` on the inputs' grid, in their dtype.

        Raises:
            GridError: If the grid is not of that kind.
            ShapeError: If the number of channels differs, or there are no fields.
            DataError: If a value is not finite.
        """
        self._check_field(inputs, "inputs")
        return Field(self._solve(inputs.values.double(), inputs.grid).to(inputs.dtype), inputs.grid)

    def derivative(self, inputs: Field, direction: Field) -> Field:
        """The Fréchet derivative of the solution operator at `inputs`, applied to `direction`, exactly.

        Args:
            inputs: Inputs at which to differentiate, as in `solve`.
            direction: Perturbation of the inputs, of the same shape on the same grid.

        Returns:
            `(n, out_channels, *grid)`, linear in `direction`, in the inputs' dtype.

        Raises:
            GridError: If the grids differ, or are not of the problem's kind.
            ShapeError: If the shapes or the number of channels differ, or there are no fields.
            DataError: If a value is not finite.
            UnsupportedError: If the solution operator has no derivative.
        """
        self._check_field(inputs, "inputs")
        self._check_field(direction, "direction")
        check_same_grid(direction.grid, inputs.grid, "a direction, as the inputs are,", remedy="resample it")
        checks.check_count(len(direction), len(inputs), "directions, one per input", remedy="pair them one to one")
        moved = self._differentiate(inputs.values.double(), direction.values.double(), inputs.grid)
        return Field(moved.to(inputs.dtype), inputs.grid)

    def encode(self, design: Float[Tensor, "*batch d"], *, grid: Grid) -> Field:
        """Map points of the closed unit cube to input functions, differentiably.

        Coordinate i puts the i-th leading coefficient of the distribution at quantile u_i, see
        [`quantiles`][probneural.problems.InputDistribution.quantiles]; the other coefficients stay at their medians. Uniform
        designs are thus draws of the leading coefficients (those of Gaussian distributions with tails cut at 3.09 standard
        deviations), and the corners of the cube are finite.

        Args:
            design: `(..., design_dim)` in [0, 1], float32 or float64.
            grid: A grid of the kind that `grid` returns.

        Returns:
            Functions `(n, in_channels, *grid)` in the design's dtype, where n is the product of the leading axes (1 if
            there are none).

        Raises:
            ShapeError: If the last axis does not have length `design_dim`.
            DataError: If a coordinate is outside [0, 1] by more than 1e-9, NaN, or not a floating point number.
            GridError: If the grid is not of the problem's kind (a ResolutionError if it is too coarse).

        Examples:
            >>> from probneural.problems import Burgers
            >>> problem = Burgers(design_dim=2)
            >>> problem.encode(torch.full((4, 3, 2), 0.5), grid=problem.grid(64)).values.abs().max().item()
            0.0
        """
        checks.check_floating(design, "design")
        remedy = "design_dim of the problem is the last axis"
        checks.check_shape(design, "a design", "...", self.design_dim, remedy=remedy)
        where = design.detach()
        outside = ~((where >= -_CUBE_SLACK) & (where <= 1.0 + _CUBE_SLACK))  # so written, NaN is outside too
        if bool(outside.any()):
            raise DataError(
                expected="a design in the closed unit cube",
                got=f"{int(outside.sum())} coordinates outside, the first {float(where[outside][0]):g}",
                remedy="scale designs to [0, 1], for instance with botorch.utils.transforms.normalize",
            )
        self._check_grid(grid)
        self._check_resolution(grid.shape)
        flat = design.reshape(-1, self.design_dim)
        return Field(self._inputs(self.input_distribution.quantiles(flat.clamp(0.0, 1.0)), grid), grid)

    def _uniform(self, sizes: tuple[int, ...]) -> Grid:
        """The grid of the problem's box with this many points per axis; override where axes differ in length."""
        return Grid.uniform(sizes, lengths=self.lengths, origin=self.origin, periodic=self.periodic)

    def _chunks(self, coefficients: Tensor, grid: Grid) -> tuple[Tensor, ...]:
        """Coefficients in the chunks of sampling."""
        return coefficients.split(max(1, _CHUNK_ELEMENTS // grid.size))

    def _check_resolution(self, sizes: Sequence[int]) -> None:
        """Raise a ResolutionError unless every axis has the points that the distribution needs."""
        remedy = "raise the resolution, or give the problem a distribution of fewer modes"
        for axis, (size, least) in enumerate(zip(sizes, self.minimum_resolution, strict=True)):
            things = f"points per axis for the distribution of the inputs, along axis {axis}"
            checks.check_least(size, least, things, remedy=remedy, error=ResolutionError)

    def _check_grid(self, grid: Grid) -> None:
        """Raise a GridError unless a grid of `solve` is a grid of the problem, at any resolution."""
        check_grid(grid)
        dimension = self.dimension
        if not grid.is_uniform or grid.dimension != dimension or grid != self._uniform(grid.shape):
            axes = self._uniform((3,) * dimension).axes
            is_unit = all((axis.origin, axis.length) == (0.0, 1.0) for axis in axes)
            ends = " x ".join(f"[{axis.origin:g}, {axis.origin + axis.length:g}]" for axis in axes)
            raise GridError(
                expected=f"a uniform grid of {'the unit cube' if is_unit else ends} in {dimension} dimensions, "
                f"periodic={self.periodic}; axes that are not periodic have both end points",
                got=repr(grid),
                remedy="make it with problem.grid(resolution)",
            )
        for flag, size in zip(grid.periodic, grid.shape, strict=True):
            least, remedy = 1 if flag else 3, "two of them are the end points"
            checks.check_least(size, least, "points per axis", remedy=remedy, error=ResolutionError)

    @staticmethod
    def _check_positive(values: Tensor, name: str, *, remedy: str) -> None:
        """Raise a DataError unless all values are positive."""
        least = float(values.detach().min())
        if least <= 0.0:
            raise DataError(expected=f"a positive {name}", got=f"a minimum of {least:.3g}", remedy=remedy)

    def _check_field(self, field: Field, name: str) -> None:
        check_field(field, name)
        self._check_grid(field.grid)
        checks.check_count(field.channels, self.in_channels, f"channels of {name}", remedy="axis 1 is channels")
        if not len(field):
            raise ShapeError(expected=f"at least one field as {name}", got="none", remedy="skip empty batches")
        checks.check_finite(field.values, name)


def shifted_fields(distribution: GaussianRandomField, *, amplitude: float) -> dict[str, GaussianRandomField]:
    """The shifts that problems share: inputs `amplitude` times as large, and inputs with α reduced by a quarter (2 to 1.5).

    Examples:
        >>> {name: other.alpha for name, other in shifted_fields(GaussianRandomField(1, 4), amplitude=2.0).items()}
        {'amplitude': 2.0, 'roughness': 1.5}
    """
    return {"amplitude": distribution.amplified(amplitude), "roughness": distribution.roughened(4.0 / 3.0)}


class Evolution(Problem):
    """A problem whose output is the state at `time` of an evolution equation with the input as initial state; abstract.

    The state at any time is the input's first `out_channels` channels moved on, the solution operators are a semigroup,
    S(s + t) = S(s) S(t), and further channels of an input are parameters that do not vary in time.

    Attributes:
        time: Time t of the output; trajectories take explicit times.
        state_first: Whether an input's channels are the state's followed by the parameters.
    """

    state_first: ClassVar[bool] = True
    time: float

    def trajectory(
        self,
        n: int,
        *,
        times: Sequence[float] | NDArray[Any] | Tensor,
        resolution: int | Sequence[int],
        seed: int,
        dtype: torch.dtype = torch.float32,
    ) -> FieldTrajectories:
        """Draw inputs from the distribution and give the state at each of some times, as exactly as `sample` gives it at one.

        The problem's own `time` is not used. Channels of the start are the state's, then parameters, whichever order an input
        of the problem has them in.

        Args:
            n: Number of trajectories.
            times: Times since the start, positive and ascending, in the problem's units.
            resolution: Points per axis.
            seed: Seed of the draws; the same seed and n give the same functions at every resolution and in `sample`.
            dtype: Dtype of the returned values; the arithmetic is float64.

        Returns:
            States on one grid, on the CPU, computed in chunks of inputs.

        Raises:
            ArgumentError: If n is less than 1, or the times are not finite, positive and ascending.
            ResolutionError: If an axis has fewer points than the distribution needs.
            UnsupportedError: If the output of the problem is not a state at one time.

        Examples:
            >>> from probneural.problems import Heat
            >>> truth = Heat(0.1, dimension=1).trajectory(3, times=[0.1, 0.2], resolution=32, seed=0)
            >>> later = Heat(0.1, dimension=1, time=0.1).solve(truth.at(1))
            >>> bool((later.values - truth.at(2).values).abs().max() < 1e-6)
            True
        """
        check_sample_dtype(dtype)
        n, when, grid = checks.check_integer(n, "n"), check_times(times), self.grid(resolution)
        coefficients = self.input_distribution.draw(n, seed)
        starts = torch.empty(n, self.in_channels, *grid.shape, dtype=dtype)
        values = torch.empty(n, len(when), self.out_channels, *grid.shape, dtype=dtype)
        done = 0
        for part in self._chunks(coefficients, grid):
            rows = slice(done, done + len(part))
            starts[rows] = self._inputs(part, grid)
            for number, states in enumerate(self._solve_coefficients_at(part, grid, when)):
                values[rows, number] = states
            done = rows.stop
        if not self.state_first:
            starts = starts.roll(self.out_channels, dims=1)
        return FieldTrajectories(Field(starts, grid), values, times=when)

    def _solve_coefficients_at(self, coefficients: Tensor, grid: Grid, times: Tensor) -> Iterator[Tensor]:
        """Map coefficients to the states `(n, out_channels, *grid)` at each of ascending times, in order and in float64.

        Override where later states are cheaper from earlier ones.
        """
        for time in times.tolist():
            yield self._at(time)._solve_coefficients(coefficients, grid)

    def _at(self, time: float) -> Evolution:
        """The same problem with another output time."""
        moved: Evolution = replace(self, time=time)  # type: ignore[type-var]
        return moved


@dataclass(frozen=True, kw_only=True)
class GaussianInputProblem(Problem):
    """A problem whose inputs are a Gaussian random field or a transformation of one; abstract.

    A subclass says what it is called, how it is solved, and what its field is by default. The dimension and the boundary of
    the default are those of every field that it takes.

    Args:
        random_field: Distribution of the inputs; by default the subclass's own.
        design_dim: Coordinates of the design space, at most the number of coefficients of the inputs.

    Attributes:
        shifted_amplitude: Factor on the field in the shift `"amplitude"`.
    """

    shifted_amplitude: ClassVar[float] = 2.0
    _default_field: ClassVar[GaussianRandomField] = GaussianRandomField(1, 31)
    random_field: GaussianRandomField | None = None
    design_dim: int = 8

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        check_random_field(self._field, "random_field", like=self._default_field)
        checks.check_integer(self.design_dim, "design_dim", most=self.input_distribution.size)

    @property
    def input_distribution(self) -> InputDistribution:
        """The Gaussian random field of the inputs."""
        return self._field

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: fields larger by `shifted_amplitude`; `"roughness"`: α reduced by a quarter at equal mean variance."""
        shifted = shifted_fields(self._field, amplitude=self.shifted_amplitude)
        return {name: replace(self, random_field=field) for name, field in shifted.items()}

    @property
    def _field(self) -> GaussianRandomField:
        return self._default_field if self.random_field is None else self.random_field

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        """One channel for each part of as many coefficients as the field has."""
        return torch.stack([self._field.evaluate(part, grid) for part in coefficients.split(self._field.size, dim=1)], dim=1)


def check_random_field(field: object, name: str, *, like: GaussianRandomField) -> None:
    """Raise an ArgumentError unless `field` is a Gaussian random field with the dimension and the boundary of another."""
    remedy = f"for instance {like!r}"
    prior = checks.check_instance(field, GaussianRandomField, name, remedy=remedy, error=ArgumentError)
    if (prior.dimension, prior.boundary) != (like.dimension, like.boundary):
        raise ArgumentError(
            expected=f"a {name} of dimension {like.dimension} with boundary {like.boundary!r}", got=repr(prior), remedy=remedy
        )
