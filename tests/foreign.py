"""Operators as other libraries have them: what neuraloperator's FNO asks of us, in forty lines; a U-Net, a transformer.

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


# --8<-- [start:models]
class UNet(nn.Module):
    """One level down, one up, and a skip connection."""

    def __init__(self, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        self.down, self.middle, self.up = (
            nn.Conv1d(taken, made, 5, padding="same", padding_mode="circular")
            for taken, made in ((channels, width), (width, 2 * width), (3 * width, width))
        )
        self.readout = nn.Conv1d(width, 1, 1)

    def forward(self, values: Tensor) -> Tensor:
        fine = nn.functional.gelu(self.down(values))
        coarse = nn.functional.gelu(self.middle(nn.functional.avg_pool1d(fine, 2)))
        raised = nn.functional.interpolate(coarse, scale_factor=2)
        return self.readout(nn.functional.gelu(self.up(torch.cat([fine, raised], dim=1))))


class PointTransformer(nn.Module):
    """PyTorch's encoder, with one token per point."""

    def __init__(self, channels: int = 1, width: int = 16) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True)
        self.lift, self.encoder = nn.Linear(channels + 2, width), nn.TransformerEncoder(layer, 2)
        self.readout = nn.Linear(width, 1)

    def forward(self, values: Tensor) -> Tensor:
        angle = torch.linspace(0, 2 * torch.pi, values.shape[-1] + 1)[:-1]
        place = torch.stack([angle.sin(), angle.cos()]).to(values).expand(len(values), -1, -1)
        tokens = torch.cat([values, place], dim=1).mT  # (n, p, c + 2)
        return self.readout(self.encoder(self.lift(tokens))).mT


# --8<-- [end:models]
