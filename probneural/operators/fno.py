"""The Fourier neural operator in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_choice, check_counts, check_flag, check_integer
from probneural.contexts import unrounded
from probneural.grids import Grid, per_axis, resample
from probneural.operators import layers
from probneural.operators.base import Operator, initial_weights
from probneural.operators.checks import check_input, check_modes, check_where, grid_of_values
from probneural.operators.layers.mlp import activated
from probneural.registry import stored


@stored(parts="configuration")
class FNO(Operator):
    """Lift, `depth` blocks h -> gelu(Kh + Wh + b) with spectral convolutions K, and a two-layer pointwise projection.

    With `mixing`, a block is h -> gelu(N(gelu(Kh + Wh + b)) + g * h) with a two-layer pointwise network N and one factor g per
    channel. The last block has no activation of its results. The output is evaluated anywhere by interpolating the last hidden
    state, which is exact on periodic axes that resolve it, and projecting it there. Without a position embedding and on
    periodic axes the operator commutes with translations.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        modes: Frequencies |k| < m kept per axis; their number sets the dimension, 1 to 3.
        width: Channels of the hidden states.
        depth: Number of blocks.
        projection: Number of channels between the two projection layers, the features of a last-layer posterior.
        lifting: Number of channels between two lifting layers; by default there is one layer.
        mixing: Number of channels between the two layers of N; by default blocks have neither N nor g.
        periodic: Whether each axis is periodic.
        continuation: Continuation of non-periodic axes: `"even"`, `"odd"`, `"periodic"` (see `SpectralConv`), or
            `"alternating"`, odd in the first block, even in the second, and so on. With `"alternating"`, an odd spectral
            convolution of the inputs, whose initial weights are zero, is added to the outputs. Prefer it on elliptic problems
            in two dimensions: under half of the error of `"even"`. In one dimension try `"odd"` if inputs and outputs vanish at
            the ends; it halved the error in one test (one problem, one seed). On Darcy flow all choices were equal.
        embeds_position: Whether coordinates are added as input channels: sine and cosine of a periodic axis, or with
            `"linear"` coordinates of every axis. Off by default. Give it to problems with boundaries: the error
            was a third on the one problem and seed it was tried on.
        seed: Seed of the initial weights; by default torch's global generator is used.

    Raises:
        ArgumentError: If a size is not a positive integer, the dimension is not 1, 2 or 3, or a word is another one.

    Reference:
        Li et al. (2021), Fourier neural operator for parametric partial differential equations; blocks with pointwise
        networks, N and g: Kossaifi et al. (2024), Multi-grid tensorized Fourier neural operator for high-resolution PDEs.

    Examples:
        >>> operator = FNO(in_channels=1, out_channels=2, modes=(4, 4), width=8, depth=2)
        >>> operator(torch.zeros(3, 1, 16, 16)).shape
        torch.Size([3, 2, 16, 16])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        modes: Sequence[int],
        width: int = 32,
        depth: int = 4,
        projection: int = 64,
        lifting: int | None = None,
        mixing: int | None = None,
        periodic: bool | Sequence[bool] = True,
        continuation: Literal["even", "odd", "alternating", "periodic"] = "even",
        embeds_position: layers.Embedding = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.width = width = check_integer(width, "width")
        self.depth = depth = check_integer(depth, "depth")
        projection = check_integer(projection, "projection")
        check_counts(lifting=lifting, mixing=mixing)
        self.lifting, self.mixing = lifting, mixing
        self.modes = check_modes(modes)
        self.periodic = per_axis(periodic, len(self.modes), "periodic", check_flag)
        self.continuation = check_choice(continuation, ("even", "odd", "alternating", "periodic"), "continuation")
        self.embeds_position = layers.check_embedding(embeds_position)
        lifted = in_channels + layers.position_channels(self.embeds_position, self.periodic)
        self.input_normalizer = layers.ChannelNormalizer(in_channels)
        self.output_normalizer = layers.ChannelNormalizer(out_channels)
        with initial_weights(seed):
            self.lift = layers.PointwiseLinear(lifted, width) if lifting is None else _network(lifted, lifting, width)
            self.spectral = nn.ModuleList(self._convolution(width, width, number) for number in range(depth))
            self.pointwise = nn.ModuleList(layers.PointwiseLinear(width, width) for _ in range(depth))
            self.projection = layers.PointwiseLinear(width, projection)
            self.readout = layers.ReadoutLinear(projection, out_channels)
            has_linear_path = self.continuation == "alternating" and not all(self.periodic)
            self.linear = self._convolution(in_channels, out_channels, 0) if has_linear_path else None
            self.networks = nn.ModuleList(_network(width, mixing, width) for _ in range(depth) if mixing is not None)
        self.gates = nn.ParameterList(torch.ones(width) for _ in self.networks)
        self._clear_linear_path()

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If the grid does not fit the values or the operator's periodicity.
            ResolutionError: If an axis has fewer than 2m - 1 points.
        """
        check_input(values, channels=self.in_channels, dimension=len(self.modes), dtype=self.readout.weight.dtype)
        check_where(grid, query)
        where = grid_of_values(values, grid, periodic=self.periodic)
        hidden = normalized = self.input_normalizer(values)
        if self.embeds_position:
            position = layers.position_embedding(where, hidden, embedding=self.embeds_position, continuation=self.continuation)
            hidden = torch.cat([hidden, position.expand(hidden.shape[0], *position.shape[1:])], dim=1)
        hidden = self.lift(layers.channels_innermost(hidden))
        for number in range(self.depth):
            hidden = self._block(hidden, number, where)
        if query is not None:
            hidden = resample(hidden, where, query)
        features = activated(self.projection(hidden), self.projection)
        result = self.readout(features)
        if self.linear is not None:
            with unrounded(values.device):
                linear = self.linear(normalized, endpoint=where.endpoint)
            result = result + (linear if query is None else resample(linear, where, query))
        return self.output_normalizer.inverse(result).contiguous()

    def _convolution(self, in_channels: int, out_channels: int, number: int) -> layers.SpectralConv:
        """A spectral convolution with the continuation of one block."""
        ends = ("odd", "even")[number % 2] if self.continuation == "alternating" else self.continuation
        return layers.SpectralConv(
            in_channels, out_channels, modes=self.modes, periodic=self.periodic, continuation=cast(layers.Ends, ends)
        )

    def _clear_linear_path(self) -> None:
        """Set the weights of the linear path to zero."""
        if self.linear is not None:
            nn.init.zeros_(self.linear.weight)

    def _block(self, hidden: Tensor, number: int, where: Grid) -> Tensor:
        """Apply one block to `(n, width, *where.shape)`; the last one has no activation of its results."""
        spectral, is_last = self.spectral[number], number == self.depth - 1
        result = spectral(hidden, endpoint=where.endpoint, pointwise=self.pointwise[number])
        result = result if is_last else activated(result, spectral)
        if self.mixing is None:
            return result
        result = self.networks[number](result) + self.gates[number].reshape(-1, *(1,) * len(self.modes)) * hidden
        return result if is_last else nn.functional.gelu(result)

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments; files of versions without `lifting` and `mixing` lack those."""
        arguments = super().configuration() | {"projection": self.projection.out_channels}
        return {name: value for name, value in arguments.items() if value is not None}

    def reset_parameters(self) -> None:
        """Reinitialise all weights; normalisers keep their units."""
        for module in self.modules():
            if isinstance(module, (layers.SpectralConv, layers.PointwiseLinear)):
                module.reset_parameters()
        for gate in self.gates:
            nn.init.ones_(gate)
        self._clear_linear_path()


def _network(in_channels: int, hidden: int, out_channels: int) -> nn.Sequential:
    """A pointwise network of two layers."""
    return nn.Sequential(layers.PointwiseLinear(in_channels, hidden), nn.GELU(), layers.PointwiseLinear(hidden, out_channels))
