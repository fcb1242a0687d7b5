"""A transformer on any points: meshes, scattered points, uniform grids."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.grids import Grid
from probneural.operators.base import Operator, initial_weights
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear
from probneural.operators.layers.attention import AttentionBlock, log_weights_of, normalised
from probneural.operators.layers.box import Box
from probneural.operators.layers.mlp import MLP, HiddenLayers
from probneural.pairs import Dataset
from probneural.registry import stored

_FREQUENCIES = 4
"""Harmonics of each axis of the box, inputs of the networks of coordinates. With half of them, the error of Poisson's equation
on shapes was 14 % larger."""


@stored(parts="configuration")
class AttentionOperator(Operator):
    """A pre-norm transformer over points, whose attention is an integral by quadrature weights.

    A point's first state is the sum of a linear map of its values and a network of the cosines and sines of its coordinates.
    `depth` blocks follow, see `AttentionBlock`. In all but the last, points read each other. In the last, the points of the
    query read them; those have a network of their coordinates for a state, so they may be any.

    Scores have the term log w_j with the quadrature weight of the point that is read: refined and graded meshes have the same
    integrals, a point that is split into two of half the weight changes nothing, and padding has no influence.

    Full attention takes p^2 * width operations a block, and is meant for up to some 2,000 points. With `latents`, the first
    block has M learned states read the points, the next ones work among these, and the query reads them: p * M * width
    operations, and memory linear in p.

    Good values: the defaults and those of `pn.fit` with a learning rate of 1e-2.

    Args:
        in_channels: Channels of the inputs.
        out_channels: Channels of the outputs.
        dimension: Number of coordinates of a point.
        width: Channels of the hidden states, a multiple of the heads, and of the features of a last-layer posterior.
        depth: Number of blocks; 2 or more with latents.
        heads: Number of attention heads.
        latents: M, the number of learned states between input and output; None for full attention.
        seed: Seed of the initial weights; by default torch's global generator is used.

    Attributes:
        box: The box around all points, with `origin` and `lengths`, `(d,)`, in the units of the coordinates. `pn.fit` takes it
            from the training data: the extent of a periodic axis, elsewhere the range of the coordinates with a margin.

    Raises:
        ArgumentError: If a size is not a positive integer, or the heads do not divide the width.

    Reference:
        Vaswani et al. (2017), Attention is all you need; latents: Jaegle et al. (2022), Perceiver IO: a general architecture
        for structured inputs and outputs, section 3. Deviations: log w_j in the scores, layer norms without weights.

    Examples:
        >>> operator = AttentionOperator(in_channels=1, out_channels=1, dimension=2, width=8, heads=2, depth=2)
        >>> grid = Grid.scattered(torch.rand(50, 2), torch.full((50,), 0.02))
        >>> operator(torch.zeros(3, 1, 50), grid=grid, query=Grid.uniform((4, 4))).shape
        torch.Size([3, 1, 4, 4])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        dimension: int,
        width: int = 64,
        depth: int = 4,
        heads: int = 4,
        latents: int | None = None,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.dimension, self.width = check_integer(dimension, "dimension"), check_integer(width, "width")
        self.latents = None if latents is None else check_integer(latents, "latents")
        self.depth = check_integer(depth, "depth", least=1 if latents is None else 2)
        self.heads = check_integer(heads, "heads")
        self.box = Box(self.dimension)
        self.input_normalizer = ChannelNormalizer(in_channels)
        self.output_normalizer = ChannelNormalizer(out_channels)
        layers = HiddenLayers(width=width, depth=1)
        with initial_weights(seed):
            self.lift = nn.Linear(in_channels, width)
            self.source, self.target = (MLP(2 * dimension * _FREQUENCIES, width, layers=layers) for _ in range(2))
            self.tokens = None if self.latents is None else nn.Embedding(self.latents, width)
            self.blocks = nn.ModuleList(AttentionBlock(width, heads=heads) for _ in range(self.depth))
            self.projection = PointwiseLinear(width, width)
            self.readout = ReadoutLinear(width, out_channels)

    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Evaluate; see the base class.

        Args:
            values: `(n, in_channels, *grid)`, in physical units.
            grid: Grid of the inputs: one for all samples or a batch; by default a uniform periodic grid of the box.
            query: Grid of the outputs: one or a batch of n; any points in the box.

        Raises:
            ShapeError: If the values are not `(n, in_channels, *grid)`.
            DataError: If they are of another dtype than the operator.
            GridError: If a grid has another number of dimensions, or points outside of the box.
        """
        dtype = self.readout.weight.dtype
        where, target = self.box.locate(values, grid, query=query, channels=self.in_channels, dtype=dtype)
        states = self.lift(self.input_normalizer(values).flatten(2).mT)
        states = states + self._position(self.source, where, states)
        log_weights: Tensor | None = log_weights_of(where, states)
        *blocks, last = self.blocks
        if self.tokens is not None:
            first, *blocks = blocks
            states = first(self.tokens.weight.expand(states.shape[0], -1, -1), states, log_weights)
            log_weights = None
        for block in blocks:
            states = block(states, states, log_weights)
        at_query = self._position(self.target, target, states).expand(states.shape[0], -1, -1)
        hidden = normalised(last(at_query, states, log_weights)).mT.unflatten(-1, target.shape)
        features = nn.functional.gelu(self.projection(hidden))
        return self.output_normalizer.inverse(self.readout(features))

    def _position(self, network: MLP, grid: Grid, like: Tensor) -> Float[Tensor, "b p width"]:
        """A network of cos(2 pi k x / L) and sin(2 pi k x / L) along each axis of the box, k = 1, 2, ..."""
        phases = 2.0 * math.pi * self.box.turns(grid)[..., None] * torch.arange(1, _FREQUENCIES + 1, device="cpu")
        features = torch.cat([phases.cos(), phases.sin()], -1).flatten(-2).to(like)
        result: Tensor = network(features.flatten(0, 1)).unflatten(0, features.shape[:2])
        return result

    def fit_normalizers(self, *train: Dataset) -> None:
        """Take means, scales and the box from training data."""
        self.input_normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))
        self.box.fit(*train)
