"""A transformer on any points: meshes, scattered points, uniform grids."""

from __future__ import annotations

import math

import torch
import torch.autograd.forward_ad as forward_ad
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.contexts import is_transformed
from probneural.errors import ArgumentError
from probneural.grids import Grid
from probneural.operators.base import Operator, initial_weights
from probneural.operators.layers import ChannelNormalizer, PointwiseLinear, ReadoutLinear
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
        super().fit_normalizers(*train)
        self.box.fit(*train)


_SOFTNESS = 0.009999999776482582
"""Epsilon of layer norms: with the usual 1e-5, outputs are sharp where the channels are nearly equal. It is
0.01 in single precision, the precision of exported files."""


class AttentionBlock(nn.Module):
    """A pre-norm block of a transformer: states h at any points read a context g.

    With layer norms N without weights, and scores s_ij = (q_i . k_j) / sqrt(d) of each head:

        h'_i = h_i + O sum_j p_ij v_j,    p_ij = w_j exp(s_ij) / sum_l w_l exp(s_il),    h''_i = h'_i + F(N h'_i)

    where q = Q N h and k, v = K N g, V N g. With quadrature weights w_j the sums are integrals over the context's domain.

    Args:
        width: Channels of h and g.
        heads: Number of attention heads; a divisor of the width.

    Raises:
        ArgumentError: If a size is not a positive integer, or the heads do not divide the width.
    """

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.width, self.heads = check_integer(width, "width"), check_integer(heads, "heads")
        if self.width % self.heads:
            raise ArgumentError(
                expected=f"a multiple of {heads}, the heads, as width", got=str(width), remedy="change width or heads"
            )
        self.query, self.value, self.out = (nn.Linear(self.width, self.width) for _ in range(3))
        self.key = nn.Linear(self.width, self.width, bias=False)  # a softmax does not depend on a bias
        self.first, self.second = nn.Linear(self.width, 2 * self.width), nn.Linear(2 * self.width, self.width)

    def forward(
        self,
        states: Float[Tensor, "n q width"],
        context: Float[Tensor, "n p width"],
        log_weights: Float[Tensor, "b 1 1 p"] | None = None,
    ) -> Float[Tensor, "n q width"]:
        """Read the context.

        Args:
            states: h, `(n, q, width)`.
            context: g, `(n, p, width)`.
            log_weights: log w_j of the context, -inf for a weight of zero; equal weights by default.
        """
        source = normalised(context)
        query, key, value = self.query(normalised(states)), self.key(source), self.value(source)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (query, key, value))
        states = states + self.out(attention(query, key=key, value=value, log_weights=log_weights).transpose(1, 2).flatten(2))
        return states + self.second(nn.functional.gelu(self.first(normalised(states))))

    def extra_repr(self) -> str:
        """Sizes, for printing."""
        return f"{self.width}, heads={self.heads}"


def normalised(states: Float[Tensor, "*n q width"]) -> Float[Tensor, "*n q width"]:
    """N h: every state with mean 0 and variance 1.

    PyTorch's fused operation has wrong third derivatives, of constant mean and variance: `plain_operations` avoids it.
    """
    if torch.compiler.is_compiling() or torch.backends.mha.get_fastpath_enabled():
        return nn.functional.layer_norm(states, states.shape[-1:], eps=_SOFTNESS)
    variance, mean = torch.var_mean(states, -1, correction=0, keepdim=True)
    return (states - mean) * (variance + _SOFTNESS).rsqrt()


def attention(
    query: Float[Tensor, "n h q d"],
    *,
    key: Float[Tensor, "n h p d"],
    value: Float[Tensor, "n h p d"],
    log_weights: Float[Tensor, "b 1 1 p"] | None = None,
) -> Float[Tensor, "n h q d"]:
    """softmax(q k^T / sqrt(d) + log w) v.

    PyTorch's fused kernels, whose memory is linear in points, have no forward-mode derivative, no batch rule and no form in
    exported files: there the scores are formed.
    """
    if not (is_transformed() or forward_ad._current_level >= 0 or torch.compiler.is_exporting()):
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=log_weights)
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    return (scores if log_weights is None else scores + log_weights).softmax(-1) @ value


def log_weights_of(grid: Grid, like: Tensor) -> Float[Tensor, "b 1 1 p"]:
    """log(w_j / max w) of a grid's quadrature weights, -inf for a weight of zero; b is 1 if samples share them."""
    weights = grid.weights
    return (weights / weights.amax(-1, keepdim=True)).log().reshape(-1, 1, 1, grid.size).to(like)
