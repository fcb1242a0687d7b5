"""The problem behind a curvature matrix: an operator, its data and its likelihood, streamed in minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.distributed
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_count, check_least, check_shape, validated
from probneural.curvature.parameters import ParameterVector
from probneural.curvature.rows import evaluate_at
from probneural.errors import ArgumentError, DataError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.grids.grid import check_same_grid
from probneural.pairs import FieldSource
from probneural.processes import sum_over_processes
from probneural.settings import Count, Settings


@validated
@dataclass(frozen=True, eq=False)
class QuadratureGaussian:
    """-log p(y | f) = 1/2 sum over i, c, p of w_cp (f_icp - y_icp)^2 + const, with w_cp = precision_c * share_p.

    The weights are those of quadrature over the domain's volume, so that the loss is a mean over the domain and does not
    grow with the number of grid points. Its Hessian in the outputs is diag(w) for every function, whatever the targets.

    Args:
        weights: w, `(c, p)`, or `(n, c, p)` on one mesh per sample, float64, in output units to the power -2.

    Raises:
        ShapeError: If the weights have another number of axes.
        DataError: If they are not float64, not finite or negative.

    Examples:
        >>> likelihood = QuadratureGaussian.of(Grid.uniform((4,)), torch.tensor([2.0]))
        >>> likelihood.loss(torch.ones(3, 1, 4), torch.zeros(3, 1, 4)).item()
        3.0
    """

    weights: Float64[Tensor, "*n c p"]

    def __post_init__(self) -> None:
        """Check the weights."""
        if self.weights.ndim not in (2, 3):
            raise ShapeError(
                expected="weights (c, p) or (n, c, p)", got=str(tuple(self.weights.shape)), remedy="one number per value"
            )
        if not bool((torch.isfinite(self.weights) & (self.weights >= 0.0)).all()):
            raise DataError(expected="finite weights >= 0", got="others", remedy="precisions must be finite and >= 0")

    @classmethod
    def of(cls, grid: Grid, precision: Float[Tensor, " c"]) -> QuadratureGaussian:
        """Weight the points of a grid.

        Args:
            grid: Grid of the outputs, p points, or one mesh per sample; padding has weight zero.
            precision: Effective observations over noise variance, one number per channel, in output units to the power -2.

        Raises:
            ShapeError: If there is not one precision per channel.
            GridError: If masks differ between samples.
        """
        check_shape(precision, "precision", "c", remedy="one number per channel")
        mean_weights = (grid.sample_weights if grid.has_points_per_sample else grid.mean_weights).to(precision.device)
        return cls(precision.detach().to(torch.float64)[:, None] * mean_weights)

    @property
    def channels(self) -> int:
        """Number of channels c."""
        return self.weights.shape[-2]

    def select(self, rows: slice) -> QuadratureGaussian:
        """The likelihood of some samples."""
        return self if self.weights.ndim == 2 else QuadratureGaussian(self.weights[rows])

    def losses(self, values: Float[Tensor, "n c p"], targets: Float[Tensor, "n c p"]) -> Float[Tensor, " n"]:
        """Negative log likelihood of each function up to a constant, in nats.

        Raises:
            ShapeError: If values and targets are not both `(n, c, p)`; they are not broadcast.
        """
        remedy = "flatten the grid axes into one"
        check_shape(values, "values", *["n"] * (self.weights.ndim == 2), *self.weights.shape, remedy=remedy)
        check_shape(targets, "targets", *values.shape, remedy=remedy)
        return 0.5 * ((values - targets).square() * self.weights.to(values)).sum((1, 2))

    def loss(self, values: Float[Tensor, "n c p"], targets: Float[Tensor, "n c p"]) -> Float[Tensor, ""]:
        """Sum of the losses of all samples, in nats.

        Raises:
            ShapeError: If values and targets are not both `(n, c, p)`.
        """
        return self.losses(values, targets).sum()


_CHUNK_VALUES = 2**14
"""Values (functions x points) pushed at once, times vectors: 4 vectors measured best or next to best on 1-D and 2-D
operators with one thread and with two; larger chunks gain only where a minibatch is so small that overhead rules."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Minibatches(Settings):
    """Minibatches and distribution of sums over samples.

    Args:
        size: Functions per minibatch.
        chunk: Vectors pushed through a minibatch at once; by default as many as keep chunk * size * p at about 16,000 for p
            output points, 4 at least and 64 at most. It bounds memory and does not change results.
        is_sharded: Whether each process of a torch.distributed group holds other functions, so that sums run over all
            processes. Never assumed: an initialised group alone changes nothing.

    Raises:
        ArgumentError: If a number is not a positive integer.
        UnsupportedError: If `is_sharded` without an initialised torch.distributed.
    """

    size: Count = 32
    chunk: Count | None = None
    is_sharded: bool = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        super().__post_init__()
        if self.is_sharded and not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise UnsupportedError(
                expected="an initialised torch.distributed for sharded data",
                got="none",
                remedy="start with torchrun and call torch.distributed.init_process_group()",
            )

    def summed(self, local: Float64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
        """The processes' sums added up in float64, or the one sum if the data are not sharded.

        Every process calls it equally often, with equal shapes; the result is the same on each. It is not differentiable.
        """
        return sum_over_processes(local) if self.is_sharded else local


_MINIBATCHES = Minibatches()


@validated
@dataclass(frozen=True, eq=False)
class CurvatureProblem:
    """The loss L(theta) = sum over samples of -log p(y_i | f(theta, a_i)).

    Args:
        operator: Any module from fields to fields, in evaluation mode: a normalisation or dropout layer in training mode
            would make the loss depend on the minibatches.
        inputs: n inputs, read in minibatches.
        layout: The parameters theta, P real numbers.
        likelihood: Likelihood of the outputs.
        targets: n outputs. Hessian and Fisher products need them; Jacobian and Gauss-Newton products do not.
        grid: Grid of the outputs, p points; the inputs' grid by default.
        batches: Minibatches of samples.

    Raises:
        ArgumentError: If the operator is in training mode, or the layout names a parameter that it lacks.
        DataError: If there are no samples, or data and parameters differ in dtype.
        ShapeError: If inputs, targets and likelihood do not fit together.
        GridError: If the targets have another grid.
    """

    operator: nn.Module
    inputs: FieldSource
    layout: ParameterVector = field(kw_only=True)
    likelihood: QuadratureGaussian = field(kw_only=True)
    targets: FieldSource | None = field(default=None, kw_only=True)
    grid: Grid | None = field(default=None, kw_only=True)
    batches: Minibatches = field(default=_MINIBATCHES, kw_only=True)

    def __post_init__(self) -> None:
        """Validate once, so that every product may rely on it."""
        if any(module.training for module in self.operator.modules()):
            raise ArgumentError(
                expected="an operator in evaluation mode", got="one in training mode", remedy="call operator.eval() first"
            )
        self.layout.check(self.operator)
        parameters = dict(self.operator.named_parameters())
        dtypes = {parameters[name].dtype.to_real() for name in self.layout.names}
        dtypes |= {self.inputs.dtype} | ({self.targets.dtype} if self.targets is not None else set())
        if len(dtypes) > 1:
            raise DataError(
                expected="parameters and data of one dtype", got=str(sorted(map(str, dtypes))), remedy="convert with .to(dtype)"
            )
        self._check_data()

    def _check_data(self) -> None:
        check_least(len(self.inputs), 1, "input functions", remedy="pass some")
        samples = [len(self.inputs)] if self.where.has_points_per_sample else []
        remedy = "make the likelihood on the outputs' grid: QuadratureGaussian.of(grid, precision)"
        check_shape(self.likelihood.weights, "weights", *samples, "c", self.where.size, remedy=remedy)
        if self.targets is None:
            return
        check_same_grid(self.targets.grid.unmasked, self.where.unmasked, "targets", remedy="pass their grid as grid=")
        check_count(len(self.targets), len(self.inputs), "targets", remedy="pair targets with inputs one to one")
        check_count(self.targets.channels, self.likelihood.channels, "channels of targets", remedy="give a precision for each")

    @property
    def where(self) -> Grid:
        """The outputs' grid."""
        return self.inputs.grid if self.grid is None else self.grid

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.layout.size

    @property
    def parameters(self) -> Float[Tensor, " P"]:
        """The operator's parameters, detached."""
        return self.layout.flatten(dict(self.operator.named_parameters()))

    @property
    def width(self) -> int:
        """Number of vectors per pass through a minibatch."""
        if self.batches.chunk is not None:
            return self.batches.chunk
        return min(max(_CHUNK_VALUES // (min(self.batches.size, len(self.inputs)) * self.where.size), 4), 64)

    def minibatches(self) -> Iterator[slice]:
        """Rows of the samples in each minibatch."""
        for start in range(0, len(self.inputs), self.batches.size):
            yield slice(start, min(start + self.batches.size, len(self.inputs)))

    def select(self, rows: slice) -> CurvatureProblem:
        """The problem of some samples of this process."""
        return replace(
            self,
            inputs=self.inputs[rows],
            likelihood=self.likelihood.select(rows),
            targets=None if self.targets is None else self.targets[rows],
            grid=None if self.grid is None else self.grid.select(rows),
            batches=replace(self.batches, is_sharded=False),
        )

    def outputs(self, parameters: Float[Tensor, " P"], rows: slice = slice(None)) -> Float[Tensor, "b c p"]:
        """The operator's outputs at these parameters: a pure function to take derivatives of, b functions at a time.

        Raises:
            ShapeError: If the operator's channels are not the likelihood's.
        """
        return self._outputs(parameters, self.inputs[rows], None if self.grid is None else self.grid.select(rows))

    def outputs_for(self, parameters: Float[Tensor, " P"], inputs: Float[Tensor, "b c0 *grid"]) -> Float[Tensor, "b c p"]:
        """`outputs` for other inputs on the same grid, as a pure function of parameters and input values.

        Raises:
            ShapeError: If the operator's channels are not the likelihood's.
        """
        return self._outputs(parameters, Field(inputs, self.inputs.grid), self.grid)

    def _outputs(self, parameters: Tensor, inputs: Field, query: Grid | None) -> Tensor:
        values = evaluate_at(self.operator, self.layout, vector=parameters, inputs=inputs, query=query)
        remedy = "give one precision per output channel"
        check_count(values.shape[1], self.likelihood.channels, "output channels, as the likelihood has", remedy=remedy)
        return values.flatten(2)

    def check_targets(self) -> None:
        """Check that there are targets to take losses against.

        Raises:
            DataError: If there are none.
        """
        if self.targets is None:
            raise DataError(expected="targets", got="none", remedy="pass targets=, or use Gauss-Newton products")

    def losses(self, parameters: Float[Tensor, " P"], rows: slice = slice(None)) -> Float[Tensor, " b"]:
        """The loss of each function at these parameters, in nats.

        Raises:
            DataError: If there are no targets.
        """
        self.check_targets()
        assert self.targets is not None
        targets = self.targets[rows].values.flatten(2)
        return self.likelihood.select(rows).losses(self.outputs(parameters, rows), targets)

    def loss(self, parameters: Float[Tensor, " P"], rows: slice = slice(None)) -> Float[Tensor, ""]:
        """The sum of the losses of these samples, in nats, over this rank's samples only.

        Raises:
            DataError: If there are no targets.
        """
        return self.losses(parameters, rows).sum()
