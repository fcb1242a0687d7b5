"""Two-dimensional flow that a force keeps moving: chaos in two dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from probneural.checks import check_integer
from probneural.grids import Grid
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import PeriodicTransform
from probneural.problems.spectral_evolution import Parameter, SpectralEvolution, least, parameter_text, whole_sixteens

_STARTS = GaussianRandomField(2, 5, sigma=100.0, tau=12.0)
_COARSE = 47


@dataclass(frozen=True)
class KolmogorovFlow(SpectralEvolution):
    """Vorticity at time 0 to vorticity at time t of ∂ω/∂t + u·∇ω = ν Δω − n cos ny, periodic on [0, 2π)², on its attractor.

    u = (∂ψ/∂y, −∂ψ/∂x) with −Δψ = ω is the velocity, and the last term the curl of a force sin ny along x, Kolmogorov's. The
    laminar flow ω = −cos(ny)/(nν) balances the force against the viscosity; at the defaults it is unstable, and vortices form,
    merge and are torn up for ever. The mean vorticity is conserved, and that of the inputs is 0.

    **Inputs.** Gaussian random fields of 5 modes per axis and standard deviation 2, evolved for `spin_up`; then their standard
    deviation is 2.0 to 2.4. With `spin_up=0` they are those fields. See
    [`SpectralEvolution`][probneural.problems.SpectralEvolution] for what designs and parameters are.

    Good values: the defaults are chaotic, and 64 points resolve them. A state changes by a fifth (L2) in the default time; the
    largest Lyapunov exponent is 0.13 ± 0.02 (6 states followed for 50), so a small error grows by a factor of e in a time of
    8, fifteen default times. The published n = 4 at viscosity 1/40 needs a step of 0.015, and four times the work.

    **Accuracy.** One default time at the default step and points: relative error 2e-6 (L2, against 96 points and steps a
    fifth as long), nearly all from space; from a state off the attractor 1e-5, from time. Tested against an independent solver.

    Failure modes: steps that are long beside the time a vortex takes across the spacing of `points` blow up, with a
    DataError. A start costs a second on one core.

    Args:
        viscosity: ν, the inverse of the Reynolds number, or an interval from which every function has its own, as a second
            channel of the input.
        time: t, at which the output is read.
        wavenumber: n, of the force.
        spin_up: Time that Gaussian random fields evolve before they are inputs.
        step: Longest step in time.
        points: Points per axis of the internal grid, by default 64, and more in proportion to ν^(−1/2) below ν = 0.05.
        design_dim: Coordinates of the design space.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Chandler and Kerswell (2013), Invariant recurrent solutions embedded in a turbulent two-dimensional Kolmogorov flow
        (n = 4, viscosity 1/40 and others).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = KolmogorovFlow(0.5, wavenumber=1, time=3.0)
        >>> _, y = problem.grid(48).points.T
        >>> laminar = Field((-2.0 * torch.cos(y)).reshape(1, 1, 48, 48), problem.grid(48))  # balances the force
        >>> bool((problem.solve(laminar).values - laminar.values).abs().max() < 1e-12)
        True
    """

    lengths: ClassVar[float] = 2.0 * math.pi

    viscosity: Parameter = 0.05
    _: KW_ONLY
    time: float = 0.5
    wavenumber: int = 2
    spin_up: float = 20.0
    step: float = 0.025

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_integer(self.wavenumber, "wavenumber", most=_COARSE // 2)
        super().__post_init__()

    @property
    def name(self) -> str:
        """Name with the force's wavenumber, the time and the viscosity."""
        text = parameter_text("viscosity", self.viscosity)
        return f"Kolmogorov flow, wavenumber {self.wavenumber}, time {self.time:g}{text}"

    def _parameters(self) -> dict[str, Parameter]:
        return {"viscosity": self.viscosity}

    def _coarse_points(self) -> int:
        return _COARSE

    def _fine_points(self) -> int:
        return max(64, whole_sixteens(64.0 * math.sqrt(0.05 / least(self.viscosity))))

    def _random_states(self) -> GaussianRandomField:
        return _STARTS

    def _start(self, coefficients: Tensor, grid: Grid) -> Tensor:
        return _STARTS.evaluate_on_axes(coefficients, [axis.coordinates / axis.length for axis in grid.axes])[:, None]

    def _symbol(self, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        (viscosity,) = parameters
        return -viscosity * transform.squares

    def _rate(self, spectrum: Tensor, *, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        along, across = transform.slopes
        moves = transform.squares > 0
        stream = torch.where(moves, spectrum / torch.where(moves, transform.squares, 1.0), 0.0)
        vorticity, u, v = transform.inverse(torch.stack([spectrum, across * stream, -along * stream]))
        # u has no divergence, so u·∇ω = ∇·(uω), which takes two products.
        first, second = transform.forward(torch.stack([u * vorticity, v * vorticity]))
        force = torch.zeros_like(transform.dealiased, dtype=spectrum.dtype)
        force[0, self.wavenumber] = -0.5 * self.wavenumber
        return torch.where(transform.dealiased, force - along * first - across * second, 0.0)
