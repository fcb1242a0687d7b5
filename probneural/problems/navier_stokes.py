"""Families of exact solutions of the two-dimensional Navier-Stokes equations, to probe models trained on other data."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from probneural.checks import check_integer, check_least
from probneural.errors import ArgumentError, DataError
from probneural.grids import Grid
from probneural.problems.base import Evolution, Problem
from probneural.problems.input_distributions import InputDistribution
from probneural.problems.random_fields import CORNER_TAIL
from probneural.settings import Count, Numbers, Positive

_OUTSIDE = 1e-5
"""Tolerated relative distance of a vorticity from the shell: rounding of float32 values."""


@dataclass(frozen=True)
class GaussianShell(InputDistribution):
    """Independent Gaussian coefficients of the modes √2 cos 2πk·x and √2 sin 2πk·x with |k|² = `shell`, on [0, 1)².

    Of k and −k the lexicographically larger is taken; all coefficients have the same variance, so the distribution is
    stationary.

    Args:
        shell: |k|², a sum of two squares.
        sigma: Standard deviation of the field, in its units.

    Raises:
        ArgumentError: If an argument is out of range, or no integer vector lies on the shell.

    Examples:
        >>> [GaussianShell(shell, 1.0).size for shell in (1, 5, 25, 65)]
        [4, 8, 12, 16]
    """

    shell: Count
    sigma: Positive

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        remedy = "choose 25 or 65, for instance, on which 12 and 16 vectors lie"
        check_least(len(self.vectors), 1, f"wave vectors on the shell |k|² = {self.shell}", remedy=remedy, error=ArgumentError)

    @property
    def dimension(self) -> int:
        """Two."""
        return 2

    @property
    def vectors(self) -> Int64[Tensor, "half 2"]:
        """One of each pair of opposite wave vectors, `(size / 2, 2)`."""
        side = torch.arange(-math.isqrt(self.shell), math.isqrt(self.shell) + 1)
        every = torch.cartesian_prod(side, side)
        on_shell = every[every.square().sum(1) == self.shell]
        return on_shell[(on_shell[:, 0] > 0) | ((on_shell[:, 0] == 0) & (on_shell[:, 1] > 0))]

    @property
    def minimum_resolution(self) -> int:
        """Minimum number of points per axis that resolves the shell's modes without aliases."""
        return 2 * int(self.vectors.abs().max()) + 1

    @property
    def size(self) -> int:
        """Number of coefficients: a cosine and a sine for each pair of opposite vectors."""
        return 2 * len(self.vectors)

    @property
    def factors(self) -> tuple[Distribution, ...]:
        """Independent Gaussian coefficients of mean 0 and equal variances."""
        mean = torch.zeros(self.size, dtype=torch.float64)
        return (Independent(Normal(mean, torch.full_like(mean, self._deviation)), 1),)

    @property
    def _deviation(self) -> float:
        return self.sigma / math.sqrt(self.size)

    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Gaussian quantiles with cut tails, the other coefficients zero; see the base class."""
        leading = self._deviation * torch.special.ndtri(CORNER_TAIL + (1.0 - 2.0 * CORNER_TAIL) * probabilities)
        return torch.cat([leading, leading.new_zeros(leading.shape[0], self.size - leading.shape[1])], dim=1)

    def evaluate(self, coefficients: Float[Tensor, "n size"], grid: Grid) -> Float[Tensor, "n nx ny"]:
        """Values on a grid; coefficients are those of cosines, then those of sines."""
        phase = 2.0 * math.pi * torch.remainder(grid.points @ self.vectors.double().T, 1.0)
        waves = math.sqrt(2.0) * torch.cat([phase.cos(), phase.sin()], dim=1)
        return (coefficients @ waves.to(coefficients).T).unflatten(1, grid.shape)

    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return self._deviation * torch.randn(n, self.size, dtype=torch.float64, generator=generator)


@dataclass(frozen=True)
class NavierStokesShell(Evolution):
    """Vorticity at time 0 to vorticity at time t of ∂ω/∂t + (U + u)·∇ω = ν Δω, periodic on [0, 1)², on one shell.

    u is the velocity of zero mean that ω induces, u = (∂ψ/∂y, −∂ψ/∂x) with −Δψ = ω, and U a constant drift. If all wave
    vectors k of ω have the same length, |k|² = s, then ω = 4π²s ψ and the nonlinear term u·∇ω vanishes, whatever the
    amplitudes; each wave decays and drifts on its own,

        ω̂_k(t) = ω̂_k(0) exp(−4π²sν t − 2πi k·U t).

    These are a *probe*, not a benchmark: the restricted map is linear and easy to learn, but a model trained on other
    Navier-Stokes data has to reproduce it, at any amplitude, and no random test set contains such fields. With a drift it
    measures Galilean invariance. A constant added to ω (the rotation of the plane) is carried along unchanged.

    Good values: shells 25 and 65 with 12 and 16 vectors, whose waves look irregular; 1 and 2 are the Taylor-Green vortices. At
    the defaults a vorticity decays by a factor of e^−0.99 = 0.37. Checked against a pseudo-spectral solver.

    Failure modes: `solve` and `derivative` refuse vorticities and directions with other waves, on which the equation
    is not solved by this formula. Flows on a shell other than the lowest are unstable at small viscosity: a time-stepping
    solver departs from them after some turnover times, through rounding alone.

    Args:
        shell: s = |k|², a sum of two squares.
        viscosity: ν, in length squared per time.
        time: Time t of the output.
        drift: U, in length per time; inputs do not contain it.
        sigma: Standard deviation of the vorticity, per time.
        design_dim: Coordinates of the design space, at most the number of vectors on the shell.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Majda and Bertozzi (2002), Vorticity and Incompressible Flow, section 2.2 (eddies of one wave length are steady
        solutions without viscosity, and decay with it).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = NavierStokesShell(2, viscosity=0.01)
        >>> x, y = 2 * math.pi * problem.grid(16).points.T
        >>> vortices = Field((torch.cos(x) * torch.cos(y)).reshape(1, 1, 16, 16), problem.grid(16))  # Taylor and Green's
        >>> math.isclose(problem.solve(vortices).values.max().item(), math.exp(-0.08 * math.pi**2))
        True
    """

    shell: int = 25
    _: KW_ONLY
    viscosity: Positive = 1e-3
    time: Positive = 1.0
    drift: Numbers = (0.0, 0.0)
    sigma: float = 1.0
    design_dim: int = 4

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        if len(self.drift) != 2:
            raise ArgumentError(expected="a drift of two finite speeds", got=repr(self.drift), remedy="give a tuple (0.5, 0.0)")
        check_integer(self.design_dim, "design_dim", most=self.input_distribution.size)

    @property
    def name(self) -> str:
        """Name with shell, time and drift."""
        along, across = self.drift
        return f"Navier-Stokes shell {self.shell}, time {self.time:g}, drift ({along:g}, {across:g})"

    @property
    def input_distribution(self) -> GaussianShell:
        """Independent Gaussian amplitudes on the shell."""
        return GaussianShell(self.shell, self.sigma)

    def shifts(self) -> dict[str, Problem]:
        """`"amplitude"`: vorticities four times as large; `"drift"`: U + (0.3, 0.1); `"time"`: 2 t."""
        return {
            "amplitude": replace(self, sigma=4.0 * self.sigma),
            "drift": replace(self, drift=(self.drift[0] + 0.3, self.drift[1] + 0.1)),
            "time": replace(self, time=2.0 * self.time),
        }

    def _inputs(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self.input_distribution.evaluate(coefficients, grid)[:, None]

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        spectrum, (first, second) = torch.fft.fft2(values), _counts(grid, values.device)
        lengths = first**2 + second**2
        admitted = (lengths == self.shell) | (lengths == 0.0)
        # Without its sign the Nyquist wave of an even size has no direction to drift in.
        admitted = admitted & (2.0 * first.abs() < grid.shape[0]) & (2.0 * second.abs() < grid.shape[1])
        self._check_shell(spectrum.detach(), admitted)
        turns = self.time * (self.drift[0] * first + self.drift[1] * second)
        decay = torch.exp(-4.0 * math.pi**2 * self.viscosity * self.time * lengths)
        factor = torch.where(admitted, torch.polar(decay, -2.0 * math.pi * turns), 0.0)
        return torch.fft.ifft2(factor * spectrum).real

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        self._solve(values, grid)  # refuses inputs off the shell
        return self._solve(direction, grid)  # linear within the family

    def _check_shell(self, spectrum: Tensor, admitted: Tensor) -> None:
        size = spectrum.abs().square()
        total, outside = size.sum((1, 2, 3)), torch.where(admitted, 0.0, size).sum((1, 2, 3))
        worst = float((outside / total.clamp(min=1e-300)).max().sqrt())
        if worst > _OUTSIDE:
            raise DataError(
                expected=f"resolved vorticities whose modes all have |k|² = {self.shell}",
                got=f"a vorticity with a fraction of {worst:.3g} in other modes",
                remedy="the closed form is for one shell; refine the grid, or project the vorticity onto the shell",
            )


def _counts(grid: Grid, device: torch.device) -> tuple[Tensor, Tensor]:
    """Signed integer wavenumbers of `fft2` along both axes, to broadcast."""
    first, second = (torch.fft.fftfreq(size, 1.0 / size).double().round().to(device) for size in grid.shape)
    return first[:, None], second
