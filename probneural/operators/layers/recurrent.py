"""One block over time: long short-term memory, attention over states, and a network at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.operators.layers.attention import StateAttention

_SOFTNESS = 0.009999999776482582
"""Added to variances of layer norms: with the usual 1e-5, fields whose channels nearly agree somewhere get sharp there. It is
0.01 in single precision, in which exported files keep it."""


@dataclass(frozen=True, kw_only=True)
class BlockState:
    """State of a block after the steps so far.

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
            state: State after the previous steps; None at the beginning.
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


class LSTM(nn.Module):
    """c_t = f c_{t-1} + i tanh(u), h_t = o tanh(c_t), with gates i, f, o = sigmoid and u of W x_t + R h_{t-1} + b.

    PyTorch's own layer is one call for all steps, but it has no forward-mode derivative and no batch rule for weights, which
    posteriors over the weights need. This one is a loop of ordinary operations, of about the same speed on a CPU.

    Args:
        in_features: Numbers that come in at each step.
        width: Numbers of the state h, and of the cell c.

    Raises:
        ArgumentError: If a size is not a positive integer.

    Reference:
        Hochreiter & Schmidhuber (1997), Long short-term memory; gate f: Gers, Schmidhuber & Cummins (2000), Learning to forget.

    Examples:
        >>> layer = LSTM(3, 2)
        >>> states, hidden, cell = layer(torch.zeros(5, 4, 3))
        >>> states.shape, torch.equal(states[:, -1], hidden)
        (torch.Size([5, 4, 2]), True)
    """

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.width = check_integer(width, "width")
        self.inputs = nn.Linear(check_integer(in_features, "in_features"), 4 * self.width)
        self.recurrent = nn.Parameter(torch.empty(4 * self.width, self.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights uniform in +-1/sqrt(width), and begin with f near 1, so that states last."""
        bound = 1.0 / math.sqrt(self.width)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        with torch.no_grad():
            self.inputs.bias[self.width : 2 * self.width] += 2.0

    def forward(
        self,
        values: Float[Tensor, "m t in"],
        *,
        hidden: Float[Tensor, "m width"] | None = None,
        cell: Float[Tensor, "m width"] | None = None,
    ) -> tuple[Float[Tensor, "m t width"], Float[Tensor, "m width"], Float[Tensor, "m width"]]:
        """Take t steps.

        Args:
            values: m sequences of t steps, `(m, t, in_features)`.
            hidden: h before the first of them, `(m, width)`; zero by default.
            cell: c before the first of them, likewise.

        Returns:
            h at every step, `(m, t, width)`, and h and c after the last one.
        """
        driven = self.inputs(values)
        zeros = driven.new_zeros(values.shape[0], self.width)
        hidden, cell = zeros if hidden is None else hidden, zeros if cell is None else cell
        weight, states = self.recurrent.mT, []
        for drive in driven.unbind(1):
            admit, keep, show, new = torch.addmm(drive, hidden, weight).chunk(4, dim=1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(admit) * torch.tanh(new)
            hidden = torch.sigmoid(show) * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, dim=1), hidden, cell
