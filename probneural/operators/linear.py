"""Function-on-function linear regression: the baseline of neural operators."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import cast, check_integer, check_scale
from probneural.errors import GridError
from probneural.fields import power_of_two
from probneural.grids import Grid, check_grid, check_unmasked, resample
from probneural.operators.base import Operator
from probneural.operators.checks import check_input, check_where
from probneural.operators.layers import PointwiseLinear
from probneural.pairs import Dataset, check_dataset, evenly_spread_rows
from probneural.registry import stored

_MOST_NUMBERS = 2**24
"""Maximum number of values per side for the fit (128 MiB in float64)."""


@stored(parts="configuration")
class LinearRegression(Operator):
    """The least-squares linear map from input values to output values, of smallest norm, on the training grids.

    Inputs on other grids are interpolated to the training grid, outputs from it. The prediction is split into the principal
    components of the training outputs, which a pointwise read-out with unit weights adds up again; so a last-layer posterior
    on it is the uncertainty of the magnitude of each component.

    Solves linear problems exactly (heat, advection), and nonlinear ones as badly as they deserve.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        in_grid: Training grid of the inputs: one for all samples. Other grids need an interpolant, as of cells.
        out_grid: Training grid of the outputs, likewise.
        components: Number of principal components per output channel; one more feature is the remainder.

    Raises:
        GridError: If grids differ between samples.
        ArgumentError: If a size is not a positive integer.
    """

    matrix: Tensor
    offset: Tensor
    basis: Tensor

    def __init__(self, in_channels: int, out_channels: int, *, in_grid: Grid, out_grid: Grid, components: int = 32) -> None:
        super().__init__()
        self.in_channels = in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = out_channels = check_integer(out_channels, "out_channels")
        self.in_grid, self.out_grid = _check_one(in_grid, "in_grid"), _check_one(out_grid, "out_grid")
        self.components = components = check_integer(components, "components")
        self.register_buffer("matrix", torch.zeros(in_channels * in_grid.size, out_channels * out_grid.size))
        self.register_buffer("offset", torch.zeros(out_channels * out_grid.size))
        self.register_buffer("basis", torch.zeros(out_channels, components, out_grid.size))
        features = components + 1
        self.readout = PointwiseLinear(out_channels * features, out_channels)
        with torch.no_grad():
            self.readout.weight.zero_().unflatten(1, (out_channels, features)).diagonal().fill_(1.0)  # a channel's own features
            self.readout.bias.zero_()

    @classmethod
    @torch.no_grad()
    def fitted(cls, train: Dataset, *, components: int = 32) -> LinearRegression:
        """Solve the least-squares problem on training data.

        Args:
            train: Pairs on one grid for all inputs, and one for all outputs. The solver needs its pairs at once: of more than
                2^24 values per side (1,024 samples of 128 x 128 points), pairs evenly spread over the data are read.
            components: See the class; at most the number of pairs.

        Returns:
            The regression, in the dtype of the data.

        Raises:
            GridError: If grids differ between samples.
            DataError: If there are fewer than two pairs, values are not finite, or their dtype does not hold the map's weights.
            ArgumentError: If `components` is not a positive integer.
        """
        check_dataset(train, least=2)
        numbers = max(side.channels * side.grid.size for side in (train.inputs, train.outputs))
        train = train[evenly_spread_rows(len(train), max(2, _MOST_NUMBERS // numbers))]
        out_grid = train.outputs.grid
        if out_grid.is_batch:
            check_unmasked(out_grid, "regression of each value")
        count = min(check_integer(components, "components"), len(train), out_grid.size)
        model = cls(
            train.inputs.channels,
            train.outputs.channels,
            in_grid=train.inputs.grid.unmasked,
            out_grid=out_grid.unmasked,
            components=count,
        ).to(train.inputs.device, train.inputs.dtype)
        inputs = train.inputs.values.to(torch.float64).flatten(1)
        outputs = train.outputs.values.to(torch.float64).flatten(1)
        units = power_of_two(torch.stack([inputs.abs().max(), outputs.abs().max()]))  # squares neither overflow nor vanish
        check_scale(units, "training data", dtype=train.inputs.dtype)
        inputs, outputs = inputs / units[0], outputs / units[1]
        centre, offset = inputs.mean(0), outputs.mean(0)
        # Directions below the rounding of the data, their mean included, carry no information; inverting them would amplify it.
        cutoff = 10.0 * torch.finfo(train.inputs.dtype).eps * torch.linalg.matrix_norm(inputs, ord=2)
        matrix = torch.linalg.pinv(inputs - centre, atol=cutoff, rtol=0.0) @ (outputs - offset)
        dtype = train.inputs.dtype
        model.matrix.copy_(cast(matrix * (units[1] / units[0]), dtype, "weights"))
        model.offset.copy_(cast((offset - centre @ matrix) * units[1], dtype, "offsets"))
        channelwise = (outputs - offset).unflatten(1, (train.outputs.channels, -1))
        for channel in range(train.outputs.channels):
            right = torch.linalg.svd(channelwise[:, channel], full_matrices=False)[2]
            model.basis[channel].copy_(right[:count])
        return model

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class. Without `query` the output appears on the grid of the inputs.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid lies in another domain.
        """
        check_input(values, channels=self.in_channels, dimension=len(self.in_grid.shape), dtype=self.matrix.dtype)
        check_where(grid, query)
        where = grid
        if where is None:
            where = self.in_grid.resized(tuple(values.shape[2:])) if self.in_grid.is_uniform else self.in_grid
        flat = resample(values, where, self.in_grid).flatten(1)
        outputs = (flat @ self.matrix + self.offset).unflatten(1, (self.out_channels, -1))
        weights = torch.einsum("ncp,crp->ncr", outputs, self.basis)
        parts = weights[..., None] * self.basis
        remainder = outputs - parts.sum(2)
        features = torch.cat([parts, remainder[:, :, None]], dim=2).flatten(1, 2).unflatten(-1, self.out_grid.shape)
        return self.readout(resample(features, self.out_grid, where if query is None else query))

    @property
    def has_units(self) -> bool:
        """Always: the least-squares map is in physical units."""
        return True

    def fit_normalizers(self, *train: Dataset) -> None:
        """Nothing to do: the least-squares map is in physical units."""


def _check_one(grid: Grid, name: str) -> Grid:
    """Return a grid, or raise a GridError if it is a batch."""
    if check_grid(grid, name).is_batch:
        raise GridError(
            expected=f"one grid for all samples as {name}", got=repr(grid), remedy="use PointFNO on one mesh per sample"
        )
    return grid
