"""An operator as another library has it: what neuraloperator's FNO asks of us, in forty lines.

Complex weights held as `nn.Parameter`, drawn in constructors and nowhere else (no `reset_parameters`); coordinates appended as
a channel, in single precision; a check of dimensions by `assert`; float32 throughout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FourierLayer(nn.Module):
    """Complex weights on the lowest frequencies, and a bias."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        scale = (2.0 / (width + width)) ** 0.5
        self.weight = nn.Parameter(scale * torch.randn(width, width, modes, dtype=torch.cfloat))
        self.bias = nn.Parameter(scale * torch.randn(width, 1))

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values, norm="forward")
        kept = torch.einsum("nik,iok->nok", spectrum[..., : self.weight.shape[-1]], self.weight)
        mixed = nn.functional.pad(kept, (0, spectrum.shape[-1] - kept.shape[-1]))
        return torch.fft.irfft(mixed, n=values.shape[-1], norm="forward") + self.bias


class ForeignFNO(nn.Module):
    """Lift values and coordinate, two blocks with skips, project."""

    def __init__(self, *, width: int = 4, modes: int = 4) -> None:
        super().__init__()
        self.lifting = nn.Conv1d(2, width, 1)
        self.layers = nn.ModuleList(FourierLayer(width, modes) for _ in range(2))
        self.skips = nn.ModuleList(nn.Conv1d(width, width, 1, bias=False) for _ in range(2))
        self.projection = nn.Sequential(nn.Conv1d(width, 2 * width, 1), nn.GELU(), nn.Conv1d(2 * width, 1, 1))

    def forward(self, values: Tensor) -> Tensor:
        assert values.ndim == 3, "inputs must have the embedding's number of dimensions"
        place = torch.linspace(0.0, 1.0, values.shape[-1] + 1)[:-1].expand(len(values), 1, -1)
        hidden = self.lifting(torch.cat([values, place], dim=1))
        for layer, skip in zip(self.layers, self.skips, strict=True):
            hidden = nn.functional.gelu(layer(hidden) + skip(hidden))
        return self.projection(hidden)


def build(seed: int) -> ForeignFNO:
    """A factory: new weights for every seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ForeignFNO()
