"""A block over time: long short-term memory, attention over the states so far, and a network at each step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.errors import ArgumentError

_CHUNK = 32
"""Steps whose products are formed at once; earlier ones enter through their sums."""
SOFTNESS = 0.009999999776482582
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
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=SOFTNESS) for _ in range(3))
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


class StateAttention(nn.Module):
    """a_t = W (1/t) sum over s <= t of (q_t . R_{t-s} k_s) v_s: each step reads all states up to it, by heads.

    Scores are plain products, not their softmax, so that they have both signs: a head can be a filter. R_d turns pair j of the
    query's and the key's numbers by the angle 2 pi j d / horizon, with different pairs in each head, so all heads together see
    the frequencies 0, 1, ... width / 2 - 1 over the horizon. Because of that a query is met by the sum of k_s v_s^T over all
    earlier steps, a matrix for each head, which is all that a next step needs: memory does not grow with time.

    Queries and keys are taken of normalised states, values of the states as they are, which keeps their amplitude.

    Args:
        width: Numbers of a state.
        heads: Number of attention heads; twice their number divides the width.
        horizon: Steps in which the slowest pair turns once. Angles repeat beyond it.
        is_causal: Whether later steps are left out; otherwise every step reads all states, and 1/t is one over their number.

    Raises:
        ArgumentError: If a size is not a positive integer, or the heads do not divide the width.

    Reference:
        Katharopoulos et al. (2020), Transformers are RNNs: fast autoregressive transformers with linear attention; no softmax:
        Sun et al. (2023), Retentive network: a successor to transformer for large language models, equation 5; rotations: Su et
        al. (2024), RoFormer: enhanced transformer with rotary position embedding. Deviations: harmonics of a horizon, averages
        in place of decay.

    Examples:
        >>> layer = StateAttention(8, heads=2, horizon=16)
        >>> read, sums = layer(torch.zeros(5, 3, 8), torch.zeros(5, 3, 8))
        >>> read.shape, sums.shape
        (torch.Size([5, 3, 8]), torch.Size([5, 2, 4, 4]))
    """

    def __init__(self, width: int, *, heads: int, horizon: int, is_causal: bool = True) -> None:
        super().__init__()
        self.width, self.heads = check_integer(width, "width"), check_integer(heads, "heads")
        self.horizon, self.is_causal = check_integer(horizon, "horizon"), is_causal
        if self.width % (2 * self.heads):
            raise ArgumentError(
                expected=f"a width that is a multiple of {2 * heads}, for pairs of numbers in each of {heads} heads",
                got=str(width),
                remedy="change width or heads",
            )
        self.query, self.key, self.value, self.out = (nn.Linear(self.width, self.width) for _ in range(4))

    def reset_parameters(self) -> None:
        """Draw all weights anew, as `nn.Linear` does."""
        for layer in (self.query, self.key, self.value, self.out):
            layer.reset_parameters()

    def forward(
        self,
        normalised: Float[Tensor, "m t width"],
        states: Float[Tensor, "m t width"],
        *,
        sums: Float[Tensor, "m heads d d"] | None = None,
        steps: int = 0,
    ) -> tuple[Float[Tensor, "m t width"], Float[Tensor, "m heads d d"]]:
        """Read at t steps.

        Args:
            normalised: Source of queries and keys, `(m, t, width)`.
            states: Source of values, likewise.
            sums: Of key times value over earlier steps, d = width / heads; None where there were none.
            steps: Number of earlier steps.

        Returns:
            The outputs, `(m, t, width)`, and the sums including these steps.
        """
        cosine, sine = self._turns(steps, states.shape[1], like=states)
        query, key = (_turned(self._parts(layer(normalised)), cosine, sine) for layer in (self.query, self.key))
        value = self._parts(self.value(states))
        if self.is_causal:
            read, sums = _causal(query, key, value, sums)
        else:
            sums = key.mT @ value
            read = query @ sums
        number = states.shape[1]
        counts = torch.arange(steps + 1, steps + number + 1, device=states.device) if self.is_causal else torch.tensor([number])
        scale = math.sqrt(self.width // self.heads) * counts.to(states)
        return self.out((read / scale[:, None]).transpose(1, 2).flatten(2)), sums

    def _parts(self, values: Float[Tensor, "m t width"]) -> Float[Tensor, "m heads t d"]:
        return values.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def _turns(self, first: int, count: int, *, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each head's angles at each step, `(heads, t, d / 2)`; exact however long a sequence is."""
        pairs = torch.arange(self.width // 2, device="cpu").unflatten(0, (self.heads, 1, -1))
        numbers = torch.arange(first, first + count, device="cpu")[:, None] % self.horizon
        angle = (2.0 * math.pi / self.horizon) * (pairs * numbers % self.horizon).double()
        return angle.cos().to(like), angle.sin().to(like)


def _turned(values: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turn the pairs (first half, second half) of the last axis."""
    first, second = values.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


def _causal(query: Tensor, key: Tensor, value: Tensor, sums: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sums over s <= t of (q_t . k_s) v_s at every t, and of k_s v_s^T over all s; arguments are `(m, heads, t, d)`."""
    read = []
    for first in range(0, query.shape[2], _CHUNK):
        part = slice(first, first + _CHUNK)
        queries, keys, values = query[:, :, part], key[:, :, part], value[:, :, part]
        within = torch.tril(queries @ keys.mT) @ values
        read.append(within if sums is None else within + queries @ sums)
        sums = keys.mT @ values if sums is None else sums + keys.mT @ values
    assert sums is not None  # there is at least one step
    return torch.cat(read, dim=2), sums
