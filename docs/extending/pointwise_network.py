"""A network that acts at every point alone."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from probneural.checks import check_integer
from probneural.grids import Grid, resample
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_where, grid_of_values
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear
from probneural.pairs import Dataset
from probneural.registry import stored


@stored(parts="configuration")
class PointwiseNetwork(Operator):
    """u(x) to W₂ tanh(W₁ u(x) + b₁) + b₂: one hidden layer over channels, the same at every point.

    It cannot represent a map that couples points.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        width: Channels of the hidden layer.
        dimension: Number of grid axes.
        seed: Random seed of the initial weights; torch's global generator by default.

    Raises:
        ArgumentError: If a size is not a positive integer.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        width: int = 32,
        dimension: int = 1,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.dimension = check_integer(dimension, "dimension")
        self.input_normalizer = ChannelNormalizer(in_channels)
        self.output_normalizer = ChannelNormalizer(out_channels)
        with initial_weights(seed):
            self.hidden = PointwiseLinear(in_channels, check_integer(width, "width"))
            self.readout = PointwiseLinear(width, out_channels)

    def forward(
        self,
        values: Float[Tensor, "n c *grid"],
        *,
        grid: Grid | None = None,
        query: Grid | None = None,
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class. The input is interpolated to the query.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid is not uniform or does not carry the values.
        """
        dtype = self.readout.weight.dtype
        check_input(values, channels=self.in_channels, dimension=self.dimension, dtype=dtype)
        check_where(grid, query)
        periodic = (True,) * self.dimension if grid is None else grid.periodic
        where = grid_of_values(values, grid, periodic=periodic)
        resampled = values if query is None else resample(values, where, query)
        features = self.hidden(self.input_normalizer(resampled)).tanh()
        return self.output_normalizer.inverse(self.readout(features))

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments."""
        return {
            "in_channels": self.in_channels,
            "out_channels": self.out_channels,
            "width": self.hidden.out_channels,
            "dimension": self.dimension,
        }

    def reset_parameters(self) -> None:
        """Draw all weights anew; normalisers keep their units."""
        self.hidden.reset_parameters()
        self.readout.reset_parameters()

    @property
    def has_units(self) -> bool:
        """Whether a normaliser has left its initial state."""
        return self.input_normalizer.is_fitted or self.output_normalizer.is_fitted

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means and scales from training data."""
        self.input_normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))
