"""The spectral convolution: a matrix over channels for every retained frequency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_flag, check_integer
from probneural.errors import ResolutionError
from probneural.grids import per_axis
from probneural.operators.checks import check_input, check_modes


class SpectralConv(nn.Module):
    """(Ku)_o(x) = sum over |k| < m and i of W_oi(k) û_i(k) exp(2πi k·x): a convolution with a band-limited kernel.

    Frequencies |k| < m are kept on each axis. Transforms are pruned axis by axis, and the weights lie mode-major so that
    the product is one batched matrix product. Coefficients are normalised by the number of points, so the layer is the same
    operator on every grid that resolves its input.

    An axis that is not periodic is continued evenly beyond its ends, which keeps a continuous function continuous; its modes
    then count half periods of the domain. On a grid with both end points the mirror stands there, on every grid alike. On
    one without its right end it has to stand half a step beyond the outer points, so that the operator changes with the
    grid, by the order of one step.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        modes: m per axis.
        periodic: Whether each axis is periodic.

    Attributes:
        weight: Real pairs, `(*retained, in_channels, out_channels, 2)`, dimensionless. The last axis retains k = 0 ... m - 1,
            each other axis k = 0 ... m - 1, -(m - 1) ... -1; the imaginary part at k = 0 of a real field has no effect.

    Raises:
        ArgumentError: If a size is not a positive integer, or there is not one periodic flag per axis.

    Reference:
        Li et al. (2021), Fourier neural operator for parametric partial differential equations, section 4. Deviations: real
        pairs for weights, both signs of every frequency on all axes but the last, even continuation.
    """

    kronecker_axes: ClassVar[dict[str, str]] = {"weight": "... row column pair"}
    """One complex matrix per frequency, held as real pairs: what curvature needs to know of the layer."""

    def __init__(
        self, in_channels: int, out_channels: int, *, modes: Sequence[int], periodic: Sequence[bool] | bool = True
    ) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.modes = check_modes(modes)
        self.periodic = per_axis(periodic, len(self.modes), "periodic", check_flag)
        retained = (*(2 * mode - 1 for mode in self.modes[:-1]), self.modes[-1])
        self.weight = nn.Parameter(torch.empty(*retained, self.in_channels, self.out_channels, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights normal with variance 1/(2 in_channels) per part: retained frequencies keep their variance."""
        nn.init.normal_(self.weight, std=math.sqrt(0.5 / self.in_channels))

    def forward(
        self, values: Float[Tensor, "n in *grid"], *, endpoint: Sequence[bool] | None = None
    ) -> Float[Tensor, "n out *grid"]:
        """Convolve.

        Args:
            values: `(n, in_channels, *grid)`.
            endpoint: Whether each axis includes its right end; by default those that are not periodic do.

        Returns:
            `(n, out_channels, *grid)`.

        Raises:
            ShapeError: If the values do not have that shape.
            DataError: If they are of another dtype than the operator.
            ResolutionError: If an axis has fewer than 2m - 1 points (after its even continuation).
        """
        check_input(values, channels=self.in_channels, dimension=len(self.modes), dtype=self.weight.dtype)
        sizes = values.shape[2:]
        has_end = tuple(not flag for flag in self.periodic) if endpoint is None else tuple(endpoint)
        extended = values
        for axis, (is_periodic, closed) in enumerate(zip(self.periodic, has_end, strict=True), start=2):
            if not is_periodic:
                extended = _continue_evenly(extended, axis, closed)
        self._check_resolution(extended.shape[2:])
        out = self._convolve(extended)
        for axis, is_periodic in enumerate(self.periodic, start=2):
            if not is_periodic:
                out = out.narrow(axis, 0, sizes[axis - 2])
        return out

    def _convolve(self, values: Tensor) -> Tensor:
        sizes = values.shape[2:]
        spectrum = torch.fft.rfft(values, dim=-1, norm="forward")[..., : self.modes[-1]]
        for axis in range(-2, -len(sizes) - 1, -1):
            mode = self.modes[axis]
            full = torch.fft.fft(spectrum, dim=axis, norm="forward")
            if mode == 1:
                spectrum = full.narrow(axis, 0, 1)
            else:
                negative = full.narrow(axis, sizes[axis] - mode + 1, mode - 1)
                spectrum = torch.cat([full.narrow(axis, 0, mode), negative], dim=axis)
        weight = torch.complex(self.weight[..., 0], self.weight[..., 1]).flatten(0, len(sizes) - 1)
        retained = spectrum.shape[2:]
        mixed = torch.bmm(spectrum.flatten(2).permute(2, 0, 1), weight)
        spectrum = mixed.permute(1, 2, 0).unflatten(-1, retained)
        for axis in range(-len(sizes), -1):
            mode, size = self.modes[axis], sizes[axis]
            shape = list(spectrum.shape)
            shape[axis] = size - 2 * mode + 1
            pieces = [spectrum.narrow(axis, 0, mode), spectrum.new_zeros(shape), spectrum.narrow(axis, mode, mode - 1)]
            spectrum = torch.fft.ifft(torch.cat(pieces, dim=axis), dim=axis, norm="forward")
        return torch.fft.irfft(spectrum, n=sizes[-1], dim=-1, norm="forward")

    def _check_resolution(self, sizes: Sequence[int]) -> None:
        for axis, (size, mode) in enumerate(zip(sizes, self.modes, strict=True)):
            if size < 2 * mode - 1:
                raise ResolutionError(
                    expected=f"at least {2 * mode - 1} points along axis {axis} for {mode} modes",
                    got=str(size),
                    remedy="give the operator a finer grid, or build it with fewer modes",
                )

    def extra_repr(self) -> str:
        """Channels and modes, for printing."""
        return f"{self.in_channels}, {self.out_channels}, modes={self.modes}, periodic={self.periodic}"


def _continue_evenly(values: Tensor, axis: int, closed: bool) -> Tensor:
    """Append the mirror image: about the last point where the grid is closed, else about half a step beyond it."""
    mirror = values.flip(axis)
    if closed:
        mirror = mirror.narrow(axis, 1, max(values.shape[axis] - 2, 0))
    return torch.cat([values, mirror], dim=axis)
