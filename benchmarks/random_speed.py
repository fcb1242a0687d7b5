"""Random-speed advection: one input has many outputs, whose exact distribution can be drawn from.

u0 ~ GRF(25, 5, 2) with 12 modes on 64 points, u(x) = u0(x - c), c ~ N(1, .15^2) at time 1. Given u0, the output has the mean
u_k exp(-i k - k^2 s^2 / 2) in frequency k = 2 pi m and is far from Gaussian.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

import probneural as pn
from probneural.randomness import stream

MODES, POINTS, SPEED, SPREAD = 12, 64, 1.0, 0.15
GRID = pn.Grid.uniform(POINTS)
_WAVENUMBERS = 2.0 * math.pi * torch.arange(1, MODES + 1, dtype=torch.float64)


def coefficients(count: int, *, seed: int, part: int) -> Tensor:
    """Fourier coefficients of random input functions, `(n, 12)`, complex."""
    spectrum = 25.0 * (_WAVENUMBERS.square() + 25.0).pow(-2.0)
    pairs = torch.randn(count, MODES, 2, generator=stream(seed, "sampling functions", part), dtype=torch.float64)
    return (spectrum / 2).sqrt() * torch.view_as_complex(pairs)


def functions(spectrum: Tensor) -> Float64[Tensor, "*n p"]:
    """Values of 2 Re sum of u_k exp(ikx) at the grid's points."""
    return 2.0 * (spectrum @ torch.exp(1j * _WAVENUMBERS[:, None] * GRID.points[:, 0])).real


def outputs(spectrum: Tensor, draws: int, *, seed: int, part: int) -> Float64[Tensor, "n s p"]:
    """Exact draws of the output of each input, with a speed of their own."""
    noise = torch.randn(len(spectrum), draws, 1, generator=stream(seed, "sampling speeds", part), dtype=torch.float64)
    speeds = SPEED + SPREAD * noise
    return functions(spectrum[:, None] * torch.exp(-1j * _WAVENUMBERS * speeds))


def pairs(count: int, *, seed: int, part: int) -> pn.FieldPairs:
    """Inputs with one output each, float32."""
    spectrum = coefficients(count, seed=seed, part=part)
    drawn = outputs(spectrum, 1, seed=seed, part=part)
    return pn.FieldPairs(pn.Field(functions(spectrum)[:, None].float(), GRID), pn.Field(drawn.float(), GRID))


def moments(spectrum: Tensor) -> tuple[Float64[Tensor, "n p"], Float64[Tensor, "n p p"]]:
    """Mean and covariance of the output of each input, in closed form."""
    k, variance = _WAVENUMBERS, SPREAD**2
    mean = functions(spectrum * torch.exp(-1j * k * SPEED - k.square() * variance / 2))
    # real form: u = sum over signs of k of v_k e^{ikx}, v_-k the conjugate of v_k
    signed = torch.cat([k, -k])
    both = torch.cat([spectrum, spectrum.conj()], dim=1)
    sums, products = (signed[:, None] + signed).square(), signed.square()[:, None] + signed.square()
    factors = torch.exp(-1j * (signed[:, None] + signed) * SPEED)
    factors = factors * (torch.exp(-sums * variance / 2) - torch.exp(-products * variance / 2))
    waves = torch.exp(1j * signed[:, None] * GRID.points[:, 0])
    covariance = torch.einsum("na,nb,ab,ap,bq->npq", both, both, factors, waves, waves).real
    return mean, covariance


def energy_distance(first: Float64[Tensor, "n s p"], second: Float64[Tensor, "n t p"]) -> Float64[Tensor, " n"]:
    """2 E|X - Y| - E|X - X'| - E|Y - Y'| in the root-mean-square norm, without bias from the numbers of draws."""
    scale = math.sqrt(first.shape[-1])

    def within(draws: Tensor) -> Tensor:
        return torch.cdist(draws, draws).sum((1, 2)) / (draws.shape[1] * (draws.shape[1] - 1))

    return (2.0 * torch.cdist(first, second).mean((1, 2)) - within(first) - within(second)) / scale


def coverage(stated: Float64[Tensor, "n s p"], exact: Float64[Tensor, "n t p"], *, level: float = 0.9) -> float:
    """Probability, under the exact law, of the central intervals of stated draws, averaged over points and functions."""
    low, high = (stated.quantile(q, dim=1, keepdim=True) for q in ((1 - level) / 2, (1 + level) / 2))
    return float(((exact >= low) & (exact <= high)).double().mean())


def gaussian_draws(
    mean: Float64[Tensor, "n p"], covariance: Float64[Tensor, "n p p"], *, count: int, seed: int
) -> Float64[Tensor, "n s p"]:
    """Draws of Gaussians."""
    values, vectors = torch.linalg.eigh(covariance)
    root = vectors * values.clamp_min(0.0).sqrt()[:, None]
    normal = torch.randn(count, root.shape[2], generator=stream(seed, "sampling speeds", 4), dtype=torch.float64)
    return mean[:, None] + torch.einsum("npk,sk->nsp", root, normal)
