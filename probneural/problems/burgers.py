"""Burgers' equation on the circle, solved exactly by the Cole-Hopf transform at any viscosity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from probneural.errors import DataError
from probneural.grids import Grid
from probneural.problems import spectral
from probneural.problems.base import Evolution, GaussianInputProblem
from probneural.settings import Positive

_CHUNK_ELEMENTS = 2**21
"""Number of weights per chunk, fields x grid points x quadrature points (16 MiB in float64)."""

_LEAST_POINTS = 256
"""Quadrature points that are always afforded."""

_POINTS_PER_WIDTH = 2.5
"""Quadrature points per standard deviation of the narrowest weight; 1.4 would reach rounding error for a Gaussian one."""

_MOST_POINTS = 2**16
"""Maximum number of quadrature points."""


@dataclass(frozen=True)
class Burgers(Evolution, GaussianInputProblem):
    """Initial state to state at time t of the viscous Burgers equation ∂u/∂t + u ∂u/∂x = ν ∂²u/∂x², periodic on [0, 1).

    With the mean m split off, u(x, t) = m + w(x − mt, t), the solution is an average of the initial state w₀ = u₀ − m,

        w(x, t) = Σ_y p(y | x) w₀(y),   p(· | x) = softmax_y [−Φ(y)/2ν + log Σ_j exp(−(x − y + j)²/4νt)],   Φ = ∫ w₀,

    over quadrature points y and periodic images j. Because the weights are normalised as a softmax nothing cancels and
    nothing overflows, the maximum principle holds by construction, and all of it differentiates. The trapezoidal rule is
    spectrally accurate here; its number of points follows the narrowest weight, 1/√(max|∂u₀/∂x|/2ν + 1/2νt).

    Good values: viscosity 0.1 (nearly linear: a linear regression already gets within 8 %), 0.01 (a fair test, 59 %),
    0.002 (fronts, 71 %), 0.001 (fronts of width 0.004 or so; use 512 points or more to see them). Checked against a
    pseudo-spectral solver at all four.

    Failure modes: cost is proportional to grid points times quadrature points, and the latter grow like 1/√(νt) as t → 0; a
    DataError is raised where more than 65,536 would be needed. With autograd on, the weights of every field are kept for the
    backward pass (n x grid points x quadrature points): differentiate in smaller batches. The limit ν = 0 is not covered
    (its operator is not differentiable at shocks).

    Args:
        viscosity: ν, in length squared per time.
        time: Time t of the output.
        random_field: Distribution of initial states, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Coordinates of the design space, at most 2K.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Hopf (1950), The partial differential equation u_t + u u_x = μ u_xx; Cole (1951), On a quasi-linear parabolic
        equation. Both have u as a ratio of integrals with (x − y)/t inside; integrated by parts once, that is the average of
        u₀ used here. Accuracy of the rule: Trefethen and Weideman (2014), The exponentially convergent trapezoidal rule,
        section 3. Distribution of the inputs: Li et al. (2021), Fourier Neural Operator, section 5.1.

    Examples:
        >>> from probneural.fields import Field
        >>> problem = Burgers(viscosity=0.01, time=2.0)
        >>> constant = Field(torch.full((1, 1, 64), 3.0), problem.grid(64))
        >>> round(problem.solve(constant).values.mean().item(), 6)
        3.0
    """

    title: ClassVar[str] = "Burgers, viscosity {problem.viscosity:g}"
    viscosity: Positive = 0.1
    _: KW_ONLY
    time: Positive = 1.0

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return self._evolve(spectral.spectrum(values), grid)

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        # The coarsest grid already determines the input exactly, and then the work grows with the output's resolution only.
        values = self._field.evaluate(coefficients, self.grid(self._field.minimum_resolution))
        return self._evolve(spectral.spectrum(values[:, None]), grid)

    def _evolve(self, spectrum: Tensor, grid: Grid) -> Tensor:
        mean, start = self._moving_frame(spectrum)
        heights, potential = self._read_state(start)
        log_kernel = self._kernel(grid, potential)
        pieces = [_average(weights, heights[rows]) for rows, weights in self._weights(potential, log_kernel)]
        return (torch.cat(pieces) + mean)[:, None]

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        mean, start = self._moving_frame(spectral.spectrum(values))
        change = spectral.spectrum(direction)[:, 0]
        mean_change = change[:, :1].real
        # A change dm of the mean moves the frame by t dm, so the frame's initial state changes by -t dm w0' as well.
        change = spectral.without_mean(self._translate(change, mean) - self.time * mean_change * spectral.rates(start) * start)
        heights, potential = self._read_state(start)
        points = potential.shape[-1]
        height_change, score = (
            spectral.read(change, points),
            spectral.read(spectral.integrate(change), points) / (-2.0 * self.viscosity),
        )
        log_kernel = self._kernel(grid, potential)
        pieces = []
        for rows, weights in self._weights(potential, log_kernel):
            pieces.append(_average(weights, height_change[rows]) + _covariance(weights, heights[rows], score[rows, None, :]))
        return (torch.cat(pieces) + mean_change)[:, None]

    def _translate(self, spectrum: Tensor, mean: Tensor) -> Tensor:
        return spectrum * torch.exp(-self.time * mean * spectral.rates(spectrum))

    def _moving_frame(self, spectrum: Tensor) -> tuple[Tensor, Tensor]:
        """Split `(n, 1, B)` into the mean m, `(n, 1)`, and the spectrum of w₀(· − mt), `(n, B)`.

        w(x − mt, t) started from w₀ is w(x, t) started from w₀(· − mt); moving the start leaves one kernel for all fields.
        """
        mean = spectrum[:, 0, :1].real
        return mean, spectral.without_mean(self._translate(spectrum[:, 0], mean))

    def _read_state(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """w₀ and Φ at the quadrature points, `(n, points)` each."""
        points = self._count_points(start)
        return spectral.read(start, points), spectral.read(spectral.integrate(start), points)

    def _count_points(self, start: Tensor) -> int:
        """Quadrature points for the narrowest weight in a batch; its data decide, not its gradients."""
        with torch.no_grad():
            nodes = 2 * start.shape[1]
            steepest = float(spectral.read(spectral.rates(start) * start, max(2 * nodes, _LEAST_POINTS)).abs().max())
            width = (0.5 * steepest / self.viscosity + 0.5 / (self.viscosity * self.time)) ** -0.5
        points = max(_LEAST_POINTS, nodes + math.ceil(_POINTS_PER_WIDTH / width))
        if points > _MOST_POINTS:
            raise DataError(
                expected=f"initial states that {_MOST_POINTS} quadrature points resolve",
                got=f"slopes up to {steepest:.3g} at viscosity {self.viscosity:g} and time {self.time:g}, which need {points}",
                remedy="raise the viscosity or the time, or scale the inputs down",
            )
        return 32 * math.ceil(points / 32)  # a product of small primes more often than not, for the FFT

    def _kernel(self, grid: Grid, potential: Tensor) -> Tensor:
        """Logarithm of the periodic heat kernel at time t, `(N, points)`, on the device of the potential.

        Up to a constant, which cancels in the softmax.
        """
        points = potential.shape[-1]
        nodes = torch.arange(points, dtype=torch.float64, device=potential.device) / points
        distance = grid.axes[0].coordinates.to(nodes)[:, None] - nodes
        distance = distance - distance.round()
        spread = 4.0 * self.viscosity * self.time
        mass = torch.ones_like(distance)
        # Relative to the nearest image no exponent is positive, and the first image left out is below exp(-40).
        for image in range(1, math.ceil(1.0 + math.sqrt(40.0 * spread)) + 1):
            for shift in (-image, image):
                mass = mass + torch.exp(shift * (2.0 * distance + shift) / -spread)
        return mass.log() - distance.square() / spread

    def _weights(self, potential: Tensor, log_kernel: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the weights p(y | x) of chunks of fields, `(rows, N, points)`, with their rows."""
        step = max(1, _CHUNK_ELEMENTS // log_kernel.numel())
        for first in range(0, len(potential), step):
            rows = slice(first, first + step)
            yield rows, torch.softmax(log_kernel - potential[rows, None, :] / (2.0 * self.viscosity), dim=-1)


def _average(weights: Tensor, values: Tensor) -> Tensor:
    """Mean of `(rows, points)` under each of the weights `(rows, N, points)`: `(rows, N)`."""
    return (weights @ values[..., None])[..., 0]


def _covariance(weights: Tensor, values: Tensor, score: Tensor) -> Tensor:
    """Covariance of values `(rows, points)` and a score `(rows, 1, points)` under each of the weights.

    The score is centred first: it is of order 1/ν, and the difference of two raw moments would lose those digits.
    """
    centred = score - (weights * score).sum(-1, keepdim=True)
    return _average(weights * centred, values)
