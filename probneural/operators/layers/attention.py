"""Attention with quadrature weights."""

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
                expected=f"a width that is a multiple of {heads}, the number of heads",
                got=str(width),
                remedy="change width or heads",
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


def normalised(states: Float[Tensor, "n q width"]) -> Float[Tensor, "n q width"]:
    """N h: every state with mean 0 and variance 1."""
    return nn.functional.layer_norm(states, states.shape[-1:], eps=_SOFTNESS)


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
