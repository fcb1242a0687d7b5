"""The equation of Kuramoto and Sivashinsky: chaos in one dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from probneural.checks import check_positive
from probneural.grids import Grid
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import PeriodicTransform
from probneural.problems.spectral_evolution import Parameter, SpectralEvolution


@dataclass(frozen=True)
class KuramotoSivashinsky(SpectralEvolution):
    """State at time 0 to state at time t of ∂u/∂t + u ∂u/∂x + ∂²u/∂x² + ν ∂⁴u/∂x⁴ = 0, periodic on [0, L), on its attractor.

    Long waves are unstable (those of angular wavenumber below 1/√ν), short ones are damped, and the nonlinear term carries
    energy from the ones to the others: cells of length 9 or so that merge and split for ever. The mean is conserved; that of
    the inputs is 0.

    The equation is chaotic. At the defaults the largest Lyapunov exponent is 0.084 ± 0.002 (8 states followed for 500), so a
    small error grows by a factor of e in a Lyapunov time of 12, six default times. No forecast is good for much longer than
    that times the logarithm of its accuracy; what can be forecast beyond is statistics.

    **Inputs.** Gaussian random fields of unit variance, whose shortest wave is 4.2 √ν long, evolved for `spin_up`; then their
    standard deviation is 1.27 and has forgotten the start's. With `spin_up=0` they are those fields. Designs and parameters are
    as in [`SpectralEvolution`][probneural.problems.SpectralEvolution].

    **Accuracy.** One default time at the default step and points: relative error 1e-7 (L2, against 256 points and steps ten
    times shorter). Two solvers that start alike part company like e^(λt): to within 1e-3 they agree for a time of 60 at least.
    Tested against an independent solver.

    Failure modes: below L = 13 √ν or so states are periodic or steady, not chaotic. The smaller ν in an interval decides what
    all functions cost.

    Args:
        length: L; at 22 chaos has few degrees of freedom, and their number grows with L.
        time: t, at which the output is read.
        viscosity: ν, or an interval from which every function has its own, as a second channel of the input.
        spin_up: Time that Gaussian random fields evolve before they are inputs.
        step: Longest step in time.
        points: Points of the internal grid, by default 3 L/√ν or a few more.
        design_dim: Coordinates of the design space.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Kuramoto (1978), Diffusion-induced chaos in reaction systems; Sivashinsky (1977), Nonlinear analysis of hydrodynamic
        instability in laminar flames; this form and its exponents: Edson, Bunder, Mattner and Roberts (2019), Lyapunov
        exponents of the Kuramoto-Sivashinsky PDE.

    Examples:
        >>> problem = KuramotoSivashinsky(spin_up=0.0)
        >>> pairs = problem.sample(2, resolution=128, seed=0, dtype=torch.float64)
        >>> bool(pairs.outputs.values.mean(-1).abs().max() < 1e-14)
        True
    """

    length: float = 64.0
    _: KW_ONLY
    time: float = 2.0
    viscosity: Parameter = 1.0
    spin_up: float = 100.0
    step: float = 0.025

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_positive(self.length, "length")
        super().__post_init__()

    @property
    def lengths(self) -> float:  # type: ignore[override]
        """L."""
        return self.length

    @property
    def name(self) -> str:
        """Name with length, time and viscosity."""
        low, high = self._viscosities
        text = "" if low == high == 1.0 else f", viscosity {low:g}" if low == high else f", viscosity {low:g} to {high:g}"
        return f"Kuramoto-Sivashinsky, length {self.length:g}, time {self.time:g}{text}"

    @property
    def _viscosities(self) -> tuple[float, float]:
        """The interval of the viscosity."""
        return self.viscosity if isinstance(self.viscosity, tuple) else (self.viscosity, self.viscosity)

    def _parameters(self) -> dict[str, Parameter]:
        return {"viscosity": self.viscosity}

    @property
    def _size(self) -> float:
        """The length in units in which the viscosity is 1."""
        return self.length / math.sqrt(self._viscosities[0])

    def _coarse_points(self) -> int:
        return 2 * math.ceil(0.73 * self._size) + 1

    def _fine_points(self) -> int:
        return 16 * math.ceil(3.0 * self._size / 16 - 1e-9)  # Fourier transforms of such sizes are fast

    def _random_states(self) -> GaussianRandomField:
        field = GaussianRandomField(1, max(4, round(self._size / 4.2)), tau=self._size / 1.3)
        return replace(field, sigma=field.sigma / math.sqrt(field.mean_variance))

    def _start(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return self._random_states().evaluate_on_axes(coefficients, [grid.axes[0].coordinates / self.length])[:, None]

    def _symbol(self, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        (viscosity,) = parameters
        return transform.squares - viscosity * transform.squares**2

    def _rate(self, spectrum: Tensor, *, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        (slope,) = transform.slopes
        square = transform.forward(transform.inverse(spectrum).square())
        return torch.where(transform.dealiased, -0.5 * slope * square, 0.0)
