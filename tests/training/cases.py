"""Data and modules that the training tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators import FNO
from probneural.pairs import FieldPairs


def data(count: int = 20, *, seed: int = 0, size: int = 16, dtype: torch.dtype = torch.float32) -> FieldPairs:
    """Smooth functions and their squares."""
    generator = torch.Generator().manual_seed(seed)
    grid = Grid.uniform(size)
    phases = 2 * torch.pi * (torch.arange(1, 4)[:, None] * grid.points[:, 0])
    inputs = torch.randn(count, 1, 3, generator=generator, dtype=torch.float64) @ phases.cos() + 0.5
    return FieldPairs(Field(inputs.to(dtype), grid), Field(inputs.square().to(dtype), grid))


class Convolutional(nn.Module):
    """A module that knows nothing of us, with dropout, buffers and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 6, 5, padding=2, padding_mode="circular")
        self.norm = nn.BatchNorm1d(6)
        self.dropout = nn.Dropout(0.2)
        self.last = nn.Conv1d(6, 1, 1)
        self.gain = nn.Parameter(torch.full((1,), 2.0), requires_grad=False)

    def forward(self, values: Tensor) -> Tensor:
        return self.gain * self.last(self.dropout(torch.tanh(self.norm(self.first(values)))))


class Complex(nn.Module):
    """Weights and a buffer that are complex."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.offset = nn.Parameter(torch.zeros(1))
        self.register_buffer("turn", torch.exp(1j * torch.arange(4) / 4))

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values)[..., :4] * self.weight * self.turn
        return torch.fft.irfft(spectrum, n=values.shape[-1]) + self.offset


class Tied(nn.Module):
    """One weight under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 1, 3, padding=1)
        self.last = nn.Conv1d(1, 1, 3, padding=1)
        self.last.weight = self.first.weight

    def forward(self, values: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(values)))


def fno() -> nn.Module:
    return FNO(1, 1, modes=(4,), width=4, depth=2, projection=4)


BUILDERS = {"FNO": fno, "Convolutional": Convolutional, "Complex": Complex, "Tied": Tied}


def built(name: str, *, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return BUILDERS[name]()


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether two state dicts are equal bit for bit."""
    return list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)
