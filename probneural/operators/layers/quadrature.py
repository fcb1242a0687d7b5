"""The spectral convolution by quadrature: Fourier coefficients of values at any points."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.grids import Grid
from probneural.operators.checks import check_modes


class QuadratureConv(nn.Module):
    """A convolution with a band-limited kernel on any points x_j with quadrature weights w_j.

    With the volume |B| of a box of lengths L that holds the points, for retained frequencies k:

        c_k = sum_j w_j / |B| exp(-2 pi i k.x_j / L) v_j,    d_k = R_k c_k,    (Kv)(x) = Re sum_k d_k exp(2 pi i k.x / L)

    On a uniform periodic grid it equals `SpectralConv` of the same weight. On other points it converges with the order of the
    quadrature. Points of weight zero have no influence.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        modes: Frequencies |k| < m kept per axis of the box.

    Attributes:
        weight: R as real pairs, `(*retained, in_channels, out_channels, 2)`, as in `SpectralConv`.

    Raises:
        ArgumentError: If a size is not a positive integer.
    """

    kronecker_axes: ClassVar[dict[str, str]] = {"weight": "... row column pair"}
    """One complex matrix per frequency, stored as real pairs, for curvature."""

    def __init__(self, in_channels: int, out_channels: int, *, modes: Sequence[int]) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.modes = check_modes(modes)
        retained = (*(2 * mode - 1 for mode in self.modes[:-1]), self.modes[-1])
        self.weight = nn.Parameter(torch.empty(*retained, self.in_channels, self.out_channels, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights normal with variance 1/(2 in_channels) per part: retained frequencies keep their variance."""
        nn.init.normal_(self.weight, std=math.sqrt(0.5 / self.in_channels))

    def forward(
        self,
        values: Float[Tensor, "n in p"],
        *,
        analysis: Float[Tensor, "b p k2"],
        synthesis: Float[Tensor, "b q k2"],
    ) -> Float[Tensor, "n out q"]:
        """Convolve.

        Args:
            values: At the points, `(n, in_channels, p)`.
            analysis: Weighted basis at the points: see [`FourierBasis.analysis`][probneural.operators.layers.quadrature].
            synthesis: Basis at the points of the output.
        """
        real, imaginary = (values @ analysis).chunk(2, dim=-1)  # c_k = real - i imaginary
        weight_real, weight_imaginary = self.weight.flatten(0, -4).unbind(-1)
        real_out = torch.einsum("nik,kio->nok", real, weight_real) + torch.einsum("nik,kio->nok", imaginary, weight_imaginary)
        imaginary_out = torch.einsum("nik,kio->nok", real, weight_imaginary) - torch.einsum(
            "nik,kio->nok", imaginary, weight_real
        )
        # Re (d exp(i phase)) = Re d cos(phase) - Im d sin(phase)
        return torch.cat([real_out, -imaginary_out], -1) @ synthesis.mT

    def extra_repr(self) -> str:
        """Channels and modes, for printing."""
        return f"{self.in_channels}, {self.out_channels}, modes={self.modes}"


class FourierBasis:
    """Cosines and sines of the retained frequencies on a box.

    Args:
        modes: Frequencies |k| < m kept per axis.
        origin: Lower corner of the box, `(d,)`, in the units of the coordinates.
        lengths: Lengths of the box, `(d,)`, in those units.
    """

    def __init__(self, modes: Sequence[int], origin: Float64[Tensor, " d"], lengths: Float64[Tensor, " d"]) -> None:
        axes = [[*range(mode), *range(1 - mode, 0)] for mode in modes[:-1]]
        self.frequencies = torch.tensor(list(itertools.product(*axes, range(modes[-1]))), dtype=torch.float64)
        self.origin, self.lengths = origin.cpu(), lengths.cpu()

    def synthesis(self, grid: Grid, like: Tensor) -> Float[Tensor, "b q k2"]:
        """Values of the basis at a grid's points, cosines first; frequencies of both signs of the last axis are joined."""
        waves, factors = self._waves(grid), torch.where(self.frequencies[:, -1] > 0, 2.0, 1.0)
        return (waves * factors.repeat(2)).to(like)

    def analysis(self, grid: Grid, like: Tensor) -> Float[Tensor, "b p k2"]:
        """Values of the basis at a grid's points times its quadrature weights over the volume of the box."""
        weights = grid.weights / self.lengths.prod()
        return (self._waves(grid) * (weights if grid.is_batch else weights[None])[..., None]).to(like)

    def _waves(self, grid: Grid) -> Float64[Tensor, "b p k2"]:
        points = grid.points if grid.has_own_points else grid.points[None]
        phases = 2.0 * math.pi * ((points - self.origin) / self.lengths) @ self.frequencies.mT
        return torch.cat([phases.cos(), phases.sin()], -1)
