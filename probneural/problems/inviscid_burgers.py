"""Burgers' equation without viscosity: shocks, placed exactly by the Lax-Oleinik formula."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import torch
from torch import Tensor

from probneural.checks import check_positive
from probneural.errors import UnsupportedError
from probneural.grids import Grid
from probneural.problems import spectral
from probneural.problems.evolution import Evolution
from probneural.problems.gaussian_input import GaussianInputProblem

_CHUNK_ELEMENTS = 2**21
"""Values of the action held at once (16 MiB in float64)."""

_LEAST_POINTS = 512
"""Places per unit length at which the action is compared, at least."""

_POINTS_PER_FREQUENCY = 16
"""Places per wavelength of the highest frequency of the state."""

_CANDIDATES = 4
"""Lowest local minima that are refined; at a shock two are equal, where two shocks meet three."""

_STEPS = 60
"""Newton steps at most, with a bisection where Newton leaves its bracket."""

_TIE = 1e-14
"""Difference in action, relative to its range, below which the left state wins."""


@dataclass(frozen=True)
class InviscidBurgers(Evolution, GaussianInputProblem):
    """Initial state to the entropy solution at time t of ∂u/∂t + ∂(u²/2)/∂x = 0, periodic on [0, 1).

    With the mean m split off, u(x, t) = m + w(x − mt, t), the Lax-Oleinik formula gives

        w(x, t) = (x − y)/t,   y = argmin_y Φ(y) + (x − y)²/2t,   Φ = ∫ w₀.

    The action is compared on a fine set of places y, its lowest local minima are refined by Newton's method on
    w₀(y) = (x − y)/t, and the lowest wins. It is the limit of [`Burgers`][probneural.problems.Burgers] as ν → 0.

    Good values: at the default time 1, after the first shocks, nearly every state is a few ramps with jumps between. Report
    errors in L1: they are proportional to a displacement of the jumps, where those in L2 go with its square root.

    Failure modes: at a shock the value is the left, larger one, and a node within rounding of a shock counts as on it. The
    places are 1/16 of a wavelength apart, 1/512 at most: a pair of minima closer than that, where a shock is being born,
    may be taken for one, with an error in u of the order of its variation over such a distance. The map is not
    differentiable at shocks: `derivative`, and `solve` on values that require gradients, raise an UnsupportedError. Cost is
    grid points times places within reach, 2t max|w₀|, of each. `trajectory` is exact at all times, but `solve` from one of its
    states is not once there are shocks, which the trigonometric interpolant of nodal values does not hold.

    Args:
        time: t, at which the output is read.
        random_field: Distribution of initial states, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Coordinates of the design space, at most 2K.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Evans (2010), Partial Differential Equations, section 3.4.2 (the Lax-Oleinik formula); Hopf (1950).

    Examples:
        >>> from probneural.fields import Field
        >>> problem = InviscidBurgers()
        >>> wave = torch.sin(2 * torch.pi * problem.grid(64).points[:, 0])
        >>> saw = problem.solve(Field(wave[None, None], problem.grid(64))).values[0, 0]
        >>> bool(saw[32] > 0 > saw[33])  # one shock, at x = 1/2, with the left value on it
        True
    """

    time: float = 1.0
    _: KW_ONLY

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_positive(self.time, "time")
        super().__post_init__()

    @property
    def name(self) -> str:
        """Name with time."""
        return f"Inviscid Burgers, time {self.time:g}"

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        if values.requires_grad:
            raise _no_derivative("values that require gradients")
        return self._evolve(spectral.spectrum(values[:, 0]), grid)

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        values = self._field.evaluate(coefficients, self.grid(self._field.minimum_resolution))
        return self._evolve(spectral.spectrum(values), grid)

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        raise _no_derivative("a call of derivative")

    def _evolve(self, spectrum: Tensor, grid: Grid) -> Tensor:
        mean = spectrum[:, :1].real
        start = spectral.without_mean(spectrum)
        targets = grid.axes[0].coordinates.to(mean) - self.time * mean
        count = max(_LEAST_POINTS, _POINTS_PER_FREQUENCY * (start.shape[1] - 1))
        potential = spectral.integrate(start)
        action, heights = spectral.read(potential, count), spectral.read(start, count)
        # |x - y| = t |w| at the minimum; between 16 places a wavelength |w0| exceeds the largest value seen by 1/cos(π/16).
        reach = math.ceil((1.02 * self.time * float(heights.abs().max()) + 1e-9) * count) + 2
        step = max(1, _CHUNK_ELEMENTS // (grid.size * (2 * reach + 1)))
        feet = [
            self._find_feet(start[rows], potential[rows], action[rows], targets[rows], reach)
            for rows in (slice(first, first + step) for first in range(0, len(start), step))
        ]
        return (mean + (targets - torch.cat(feet)) / self.time)[:, None]

    def _find_feet(self, start: Tensor, potential: Tensor, action: Tensor, targets: Tensor, reach: int) -> Tensor:
        """The y of each target x, `(rows, N)`, given Φ at equispaced places `(rows, count)`."""
        rows, count = action.shape
        offsets = torch.arange(-reach, reach + 1, device=action.device)
        places = (targets * count).round().long()[..., None] + offsets
        costs = action[torch.arange(rows, device=action.device)[:, None, None], places % count]
        costs = costs + (targets[..., None] - places.double() / count).square() / (2.0 * self.time)
        inner = costs[..., 1:-1]
        is_minimum = (inner <= costs[..., :-2]) & (inner <= costs[..., 2:])
        lowest = torch.where(is_minimum, inner, math.inf).topk(min(_CANDIDATES, inner.shape[-1]), dim=-1, largest=False)
        middle = places[..., 1:-1].gather(-1, lowest.indices).double() / count
        feet = self._refine(start, middle, targets[..., None], 1.0 / count)
        refined = spectral.evaluate(potential, feet) + (targets[..., None] - feet).square() / (2.0 * self.time)
        refined = torch.where(torch.isfinite(lowest.values), refined, math.inf)
        scale = _TIE * (1.0 + action.abs().amax(-1))[:, None, None]
        winners = refined <= refined.amin(-1, keepdim=True) + scale
        return torch.where(winners, feet, math.inf).amin(-1)

    def _refine(self, start: Tensor, feet: Tensor, targets: Tensor, spacing: float) -> Tensor:
        """Minima of the action next to `feet`, between the neighbouring places, by Newton's method on its derivative."""
        slope = spectral.rates(start) * start
        low, high = feet - spacing, feet + spacing
        for _ in range(_STEPS):
            force = spectral.evaluate(start, feet) - (targets - feet) / self.time
            low, high = torch.where(force <= 0, feet, low), torch.where(force >= 0, feet, high)
            proposal = feet - force / (spectral.evaluate(slope, feet) + 1.0 / self.time)
            proposal = torch.where((proposal >= low) & (proposal <= high), proposal, 0.5 * (low + high))
            moved = float((proposal - feet).abs().max())
            feet = proposal
            if moved <= 1e-12:  # the next step would be of the order of the square
                break
        return feet


def _no_derivative(got: str) -> UnsupportedError:
    return UnsupportedError(
        expected="no derivative of the inviscid solution, whose shocks make it jump",
        got=got,
        remedy="use Burgers at a small viscosity, or detach the values",
    )
