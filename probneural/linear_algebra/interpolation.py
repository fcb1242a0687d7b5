"""Interpolation along one axis: trigonometric where it is periodic, local polynomials where it is not.

Everything that moves a field between grids, reads it at sensors or differentiates it goes through these two interpolants, so
a value, its derivative and its adjoint always belong together. Between two equispaced axes, no matrix is needed: the
trigonometric interpolant is moved by fast Fourier transforms, and the polynomial one by the few entries of each row.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

POLYNOMIAL_DEGREE = 5
"""Degree of the local interpolant on axes that are not periodic: error O(h^6) for values, O(h^5) for slopes."""


def trigonometric_matrix(
    size: int, points: Float64[Tensor, " m"], *, length: float, origin: float = 0.0, order: int = 0
) -> Float64[Tensor, "m size"]:
    """Evaluate the trigonometric interpolant of `size` equispaced periodic values, or its derivative, at `points`.

    The interpolant is sum over |k| < size/2 of c_k exp(2 pi i k (x - origin) / length), the Nyquist term of an even size
    being taken as a cosine (so an odd derivative of it is zero at the nodes).

    Args:
        size: Number of nodes on one period.
        points: Points of evaluation, in the units of `length`.
        length: The period.
        origin: Coordinate of the first node.
        order: Derivative to evaluate; 0 is the value.

    Returns:
        Matrix in float64; row j holds the weights of the nodal values at `points[j]`, in units of 1 / length^order.

    Reference:
        Trefethen (2000), Spectral Methods in MATLAB, chapter 3.

    Examples:
        >>> nodes = torch.arange(5, dtype=torch.float64) / 5
        >>> matrix = trigonometric_matrix(5, torch.tensor([0.3], dtype=torch.float64), length=1.0)
        >>> round(float(matrix @ torch.sin(2 * math.pi * nodes)) - math.sin(0.6 * math.pi), 12)
        0.0
    """
    wavenumbers = torch.arange(size // 2 + 1, dtype=torch.float64, device=points.device)
    # Reducing each phase to one turn before it meets the cosine keeps the error near machine precision at high k.
    turns = torch.remainder(wavenumbers * ((points - origin) / length)[:, None], 1.0)
    shift = order % 4 / 4.0  # each derivative turns the phase by a quarter
    # Row j is the transform along the nodes of (2 pi k / length)^order exp(-2 pi i (k x_j + shift)) / size.
    gain = (2.0 * math.pi / length * wavenumbers) ** order / size
    return torch.fft.irfft(torch.polar(gain.expand_as(turns), -2.0 * math.pi * (turns + shift)), n=size, norm="forward")


def evaluate_at_fractions(
    values: Float[Tensor, "*b size"], count: int, *, length: float, order: int = 0
) -> Float[Tensor, "*b count"]:
    """Evaluate the same interpolant, or its derivative, at j / count of the period for all j, by fast Fourier transforms.

    Args:
        values: Nodal values along the last axis, of float32 or float64.
        count: Number of points.
        length: The period.
        order: Derivative to evaluate; 0 is the value.

    Examples:
        >>> evaluate_at_fractions(torch.tensor([0.0, 1.0, 0.0, -1.0]), 8, length=1.0)[:3].tolist()
        [0.0, 0.7071067690849304, 1.0]
    """
    # Wavenumbers that differ by the number of points are one wave there: fold them.
    folded = _split(_coefficients(values, length=length, order=order), count).sum(-2)
    return torch.fft.ifft(folded, norm="forward").real


def evaluate_trigonometric(
    values: Float[Tensor, "*b size"], points: Float64[Tensor, " m"], *, length: float, origin: float
) -> Float[Tensor, "*b m"]:
    """Evaluate the same interpolant at any points, without the matrix.

    With k = q a + b and q about the root of size / 2, sum_k c_k e^(ikx) = sum_a e^(iqax) (sum_b c_(qa+b) e^(ibx)): there are no
    more than m size^(1/2) phases, and a product of matrices.

    Args:
        values: Nodal values along the last axis, of float32 or float64.
        points: Points of evaluation, in the units of `length`.
        length: The period.
        origin: Coordinate of the first node.
    """
    step = math.isqrt(values.shape[-1] // 2) + 1
    blocks = _split(_coefficients(values, length=length, order=0), step)  # (*b, a, q)
    turns = (points - origin) / length

    def phases(first: int, count: int) -> Tensor:
        angles = torch.remainder(first * torch.arange(count, dtype=torch.float64, device=points.device)[:, None] * turns, 1.0)
        return torch.polar(torch.ones_like(angles), 2.0 * math.pi * angles).to(blocks)

    return ((blocks @ phases(1, step)) * phases(step, blocks.shape[-2])).sum(-2).real


def _coefficients(values: Float[Tensor, "*b size"], *, length: float, order: int) -> Tensor:
    """The c_k of the derivative sum_k Re(c_k exp(2 pi i k x / length)), for 0 <= k <= size / 2."""
    size = values.shape[-1]
    wavenumbers = torch.arange(size // 2 + 1, dtype=torch.float64, device="cpu")
    paired = (wavenumbers > 0) & (2 * wavenumbers < size)  # c_-k is the conjugate of c_k
    gain = torch.where(paired, 2.0, 1.0) * (2.0 * math.pi / length * wavenumbers) ** order * 1j**order
    spectrum = torch.fft.rfft(values, norm="forward")
    return spectrum * gain.to(spectrum)


def _split(coefficients: Tensor, count: int) -> Tensor:
    """Rows of `count` coefficients, the last one padded with zeros."""
    padding = -coefficients.shape[-1] % count
    return torch.nn.functional.pad(coefficients, (0, padding)).unflatten(-1, (-1, count))


def polynomial_matrix(
    nodes: Float64[Tensor, " size"], points: Float64[Tensor, " m"], *, order: int = 0, degree: int = POLYNOMIAL_DEGREE
) -> Float64[Tensor, "m size"]:
    """Evaluate the local Lagrange interpolant through the `degree + 1` nodes around each point, or its derivative.

    Args:
        nodes: Increasing equispaced coordinates.
        points: Points of evaluation; outside the nodes the nearest stencil extrapolates.
        order: Derivative to evaluate; 0 is the value.
        degree: Degree of the local polynomial, lowered to the number of nodes minus one.

    Returns:
        Matrix in float64 with at most `degree + 1` entries a row.

    Reference:
        Fornberg (1988), Generation of finite difference formulas on arbitrarily spaced grids (solved here as a small
        Vandermonde system in stencil coordinates, which is well conditioned at these degrees).

    Examples:
        >>> nodes = torch.linspace(0, 1, 9, dtype=torch.float64)
        >>> matrix = polynomial_matrix(nodes, torch.tensor([0.3], dtype=torch.float64), order=1)
        >>> round(float(matrix @ nodes**5), 12)
        0.0405
    """
    indices, weights = polynomial_stencils(nodes, points, order=order, degree=degree)
    return points.new_zeros(points.shape[0], nodes.shape[0]).scatter(1, indices, weights)


def polynomial_stencils(
    nodes: Float64[Tensor, " size"], points: Float64[Tensor, " m"], *, order: int = 0, degree: int = POLYNOMIAL_DEGREE
) -> tuple[Int64[Tensor, "m w"], Float64[Tensor, "m w"]]:
    """Numbers of the nodes around each point, and their weights: the entries of `polynomial_matrix`."""
    size = nodes.shape[0]
    width = min(degree + 1, size)
    step = (nodes[-1] - nodes[0]) / (size - 1) if size > 1 else torch.ones_like(nodes[0])
    position = (points - nodes[0]) / step
    start = torch.ceil(position - width / 2.0).clamp(0, size - width).long()
    centre = (width - 1) / 2.0
    local = position - start - centre if size > 1 else torch.zeros_like(points)
    powers = torch.arange(width, dtype=torch.float64, device=points.device)
    stencil = powers - centre
    vandermonde = stencil[None, :] ** powers[:, None]
    factor = points.new_tensor([math.perm(power, order) for power in range(width)])
    moments = factor[:, None] * local[None, :] ** (powers - order).clamp_min(0)[:, None]
    return start[:, None] + powers.long(), torch.linalg.solve(vandermonde, moments).T / step**order
