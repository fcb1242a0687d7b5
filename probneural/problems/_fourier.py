"""Real Fourier series on [0, 1): from nodal values, integrated, and read at points that differ from field to field."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def spectrum(values: Tensor) -> Tensor:
    """Coefficients c of the trigonometric interpolant c₀ + 2 Re Σ c_k e^(2πikx) of `(..., N)`: `(..., N // 2 + 1)`, complex.

    The Nyquist term of an even N is a cosine, so its coefficient is halved.
    """
    coefficients = torch.fft.rfft(values, norm="forward")
    if values.shape[-1] % 2:
        return coefficients
    weight = torch.ones(coefficients.shape[-1], dtype=values.dtype, device=values.device)
    weight[-1] = 0.5
    return coefficients * weight


def rates(coefficients: Tensor) -> Tensor:
    """2πik for each coefficient: the factors of a derivative."""
    return 2j * math.pi * torch.arange(coefficients.shape[-1], dtype=torch.float64, device=coefficients.device)


def without_mean(coefficients: Tensor) -> Tensor:
    """The series less its mean."""
    return torch.cat([torch.zeros_like(coefficients[..., :1]), coefficients[..., 1:]], dim=-1)


def integrate(coefficients: Tensor) -> Tensor:
    """The antiderivative of zero mean of a series without its own mean, which is not read."""
    parts = coefficients[..., 1:] / rates(coefficients)[1:]  # so that no gradient divides by the rate of the mean, zero
    return torch.cat([torch.zeros_like(coefficients[..., :1]), parts], dim=-1)


def read(coefficients: Tensor, count: int) -> Tensor:
    """Values at `count` equispaced points from 0, more of them than twice the highest frequency."""
    return torch.fft.irfft(coefficients, n=count, norm="forward")


def evaluate(coefficients: Tensor, points: Tensor) -> Tensor:
    """Values of each series `(n, B)` at points of its own `(n, ...)`: Horner's rule on the unit circle, which is stable there.

    Work grows with points times frequencies, memory with the points alone.
    """
    angle = 2.0 * math.pi * torch.remainder(points, 1.0)
    turn = torch.complex(angle.cos(), angle.sin())
    ranks = (...,) + (None,) * (points.ndim - 1)
    total = torch.zeros_like(turn)
    for frequency in range(coefficients.shape[-1] - 1, 0, -1):
        total = (total + coefficients[:, frequency][ranks]) * turn
    return coefficients[:, 0].real[ranks] + 2.0 * total.real
