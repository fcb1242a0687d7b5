"""Interpolation matrices along one axis: trigonometric where it is periodic, local polynomials where it is not.

Everything that moves a field between grids, reads it at sensors or differentiates it goes through these two matrices, so
a value, its derivative and its adjoint always belong to the same interpolant.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
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
        points: Where to evaluate, in the units of `length`.
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
    half = size // 2
    wavenumbers = torch.arange(half + 1, dtype=torch.float64, device=points.device)
    # Reducing each phase to one turn before it meets the cosine keeps the error near machine precision at high k.
    turns = torch.remainder(wavenumbers * ((points - origin) / length)[:, None], 1.0)
    numbers = torch.arange(size, dtype=torch.float64, device=points.device)
    node_turns = torch.remainder(wavenumbers[:, None] * numbers, size) / size
    multiplicity = torch.full_like(wavenumbers, 2.0)
    multiplicity[0] = 1.0
    if size % 2 == 0:
        multiplicity[-1] = 1.0
    gain = multiplicity / size * (2.0 * math.pi / length * wavenumbers) ** order
    shift = order % 4 / 4.0  # each derivative turns the phase by a quarter
    angle, node_angle = 2.0 * math.pi * (turns + shift), 2.0 * math.pi * node_turns
    even = (torch.cos(angle) * gain) @ torch.cos(node_angle)
    return even + (torch.sin(angle) * gain) @ torch.sin(node_angle)


def polynomial_matrix(
    nodes: Float64[Tensor, " size"], points: Float64[Tensor, " m"], *, order: int = 0, degree: int = POLYNOMIAL_DEGREE
) -> Float64[Tensor, "m size"]:
    """Evaluate the local Lagrange interpolant through the `degree + 1` nodes around each point, or its derivative.

    Args:
        nodes: Increasing equispaced coordinates.
        points: Where to evaluate; outside the nodes the nearest stencil extrapolates.
        order: Derivative to evaluate; 0 is the value.
        degree: Degree of the local polynomial, lowered to what the nodes allow.

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
    size = nodes.shape[0]
    width = min(degree + 1, size)
    matrix = points.new_zeros(points.shape[0], size)
    if order >= width:
        return matrix
    step = (nodes[-1] - nodes[0]) / max(size - 1, 1)
    if size == 1:
        return matrix + 1.0
    position = (points - nodes[0]) / step
    start = torch.ceil(position - width / 2.0).clamp(0, size - width).long()
    centre = (width - 1) / 2.0
    local = position - start - centre
    powers = torch.arange(width, dtype=torch.float64, device=points.device)
    stencil = powers - centre
    vandermonde = stencil[None, :] ** powers[:, None]
    factor = points.new_tensor([math.perm(power, order) for power in range(width)])
    moments = factor[:, None] * local[None, :] ** (powers - order).clamp_min(0)[:, None]
    weights = torch.linalg.solve(vandermonde, moments).T / step**order
    return matrix.scatter(1, start[:, None] + powers.long(), weights)
