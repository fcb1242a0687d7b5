"""One block over time: long short-term memory, attention over states, and a network at each step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.operators.layers.attention import StateAttention
from probneural.operators.layers.lstm import LSTM

_SOFTNESS = 0.009999999776482582
"""Added to variances of layer norms: with the usual 1e-5, fields whose channels nearly agree somewhere get sharp there. It is
0.01 in single precision, in which exported files keep it."""


@dataclass(frozen=True, kw_only=True)
class BlockState:
    """What a block remembers of the steps it has seen.

    Args:
        hidden: h of the LSTM, `(m, width)`, dimensionless.
        cell: c of the LSTM, likewise.
        sums: Sums of key times value of the attention, `(m, heads, d, d)`.
    """

    hidden: Float[Tensor, "m width"]
    cell: Float[Tensor, "m width"]
    sums: Float[Tensor, "m heads d d"]


class RecurrentBlock(nn.Module):
    """x + LSTM(N x), then x + attention(N x, x), then x + network(N x), with layer norms N.

    Args:
        width: Numbers of a state.
        heads: See `StateAttention`.
        horizon: See `StateAttention`.
        is_bidirectional: Whether each step sees later ones, too: half of the LSTM's numbers then come from the end.

    Raises:
        ArgumentError: If a size is not a positive integer, or twice the heads do not divide the width.
    """

    def __init__(self, width: int, *, heads: int, horizon: int, is_bidirectional: bool = False) -> None:
        super().__init__()
        self.attention = StateAttention(width, heads=heads, horizon=horizon, is_causal=not is_bidirectional)
        self.forwards = LSTM(width, width // 2 if is_bidirectional else width)
        self.backwards = LSTM(width, width // 2) if is_bidirectional else None
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=_SOFTNESS) for _ in range(3))
        self.first, self.second = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def reset_parameters(self) -> None:
        """Draw all weights anew."""
        for module in (self.attention, self.forwards, self.backwards, *self.norms, self.first, self.second):
            if module is not None:
                module.reset_parameters()

    def forward(
        self, values: Float[Tensor, "m t width"], *, state: BlockState | None = None, steps: int = 0
    ) -> tuple[Float[Tensor, "m t width"], BlockState]:
        """Take t steps.

        Args:
            values: `(m, t, width)`.
            state: What was returned with the steps before; None at the beginning.
            steps: Their number.

        Returns:
            `(m, t, width)`, and the state after the last step, which a bidirectional block has no use for.
        """
        first, second, third = self.norms
        normalised = first(values)
        before = {} if state is None else {"hidden": state.hidden, "cell": state.cell}
        states, hidden, cell = self.forwards(normalised, **before)
        if self.backwards is not None:
            states = torch.cat([states, self.backwards(normalised.flip(1))[0].flip(1)], dim=-1)
        values = values + states
        read, sums = self.attention(second(values), values, sums=None if state is None else state.sums, steps=steps)
        values = values + read
        values = values + self.second(nn.functional.gelu(self.first(third(values))))
        return values, BlockState(hidden=hidden, cell=cell, sums=sums)
