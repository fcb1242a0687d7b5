"""Long short-term memory: a state that is carried from step to step."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer


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
