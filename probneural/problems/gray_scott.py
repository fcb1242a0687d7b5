"""The reaction of Gray and Scott: patterns of two substances that diffuse and react."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

import torch
from torch import Tensor

from probneural.checks import check_positive
from probneural.grids import Grid
from probneural.problems.random_fields import GaussianRandomField
from probneural.problems.spectral import PeriodicTransform
from probneural.problems.spectral_evolution import Parameter, SpectralEvolution, parameter_text, whole_sixteens

_STARTS = GaussianRandomField(2, 4)
_STEEPNESS, _THRESHOLD = 4.0, 0.5
_DIFFUSIVITIES = (2e-5, 1e-5)


@dataclass(frozen=True)
class GrayScott(SpectralEvolution):
    """Concentrations at time 0 to those at time t of two substances that diffuse and react, periodic on [0, L)².

    Two channels: the food u, which is fed at rate F, and v, which eats it, multiplies, and is removed at rate F + k,

        ∂u/∂t = 2·10⁻⁵ Δu − u v² + F (1 − u),   ∂v/∂t = 10⁻⁵ Δv + u v² − (F + k) v.

    u = 1, v = 0 is stable; patches of v grow, divide and form spots, stripes or waves, depending on F and k.

    **Inputs.** Patches, v = 0.25 s and u = 1 − 0.5 s with s the logistic function of 4 (g − 0.5) and g a Gaussian random
    field of unit variance and 4 modes per axis, evolved for `spin_up`: patterns that are still growing. Designs and parameters
    are as in [`SpectralEvolution`][probneural.problems.SpectralEvolution].

    Good values: at the defaults worms lengthen, meet and part. v changes by 19 % (L2) in the default time, and small errors do
    not grow: it is no chaos (the largest Lyapunov exponent is 0.000 ± 0.001). Where the feed is low or much is removed, at
    F = 0.018 and k = 0.051 for example, patches may die out, and then inputs are nearly constant.

    **Accuracy.** One default time at the default step and points: relative error 1e-6 in v (L2, against 144 points and
    steps a fifth as long), from space and time alike. Tested against an independent solver.

    Failure modes: states of your own with v far above 1 react faster than the step.

    Args:
        feed: F, per time, or an interval from which every function has its own, as a further channel of the input.
        kill: k, likewise; its channel comes behind that of the feed.
        time: t, at which the output is read.
        length: L.
        spin_up: Time that patches evolve before they are inputs.
        step: Longest step in time.
        points: Points per axis of the internal grid, by default 240 L or a few more.
        design_dim: Coordinates of the design space.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Pearson (1993), Complex patterns in a simple system (the scaling and the diffusivities); Gray and Scott (1984),
        Autocatalytic reactions in the isothermal, continuous stirred tank reactor.

    Examples:
        >>> problem = GrayScott((0.02, 0.03), spin_up=0.0, time=5.0)
        >>> truth = problem.trajectory(2, times=[5.0, 10.0], resolution=48, seed=0)
        >>> truth.channels, truth.start.channels  # feeds are a third channel of the start
        (2, 3)
    """

    out_channels: ClassVar[int] = 2

    feed: Parameter = 0.026
    kill: Parameter = 0.055
    _: KW_ONLY
    time: float = 30.0
    length: float = 0.4
    spin_up: float = 300.0
    step: float = 1.0

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
        """Name with both rates and the time."""
        return f"Gray-Scott, time {self.time:g}{parameter_text('feed', self.feed)}{parameter_text('kill', self.kill)}"

    def _parameters(self) -> dict[str, Parameter]:
        return {"feed": self.feed, "kill": self.kill}

    def _coarse_points(self) -> int:
        return 2 * math.ceil(57.0 * self.length) + 1

    def _fine_points(self) -> int:
        return whole_sixteens(240.0 * self.length)

    def _random_states(self) -> GaussianRandomField:
        return _STARTS

    def _start(self, coefficients: Tensor, grid: Grid) -> Tensor:
        field = _STARTS.evaluate_on_axes(coefficients, [axis.coordinates / axis.length for axis in grid.axes])
        patches = torch.sigmoid(_STEEPNESS * (field / math.sqrt(_STARTS.mean_variance) - _THRESHOLD))
        return torch.stack([1.0 - 0.5 * patches, 0.25 * patches], dim=1)

    def _symbol(self, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        feed, kill = parameters
        food, eater = (-diffusivity * transform.squares for diffusivity in _DIFFUSIVITIES)
        return torch.cat(torch.broadcast_tensors(food - feed + 0.0 * kill, eater - feed - kill), dim=-3)

    def _rate(self, spectrum: Tensor, *, transform: PeriodicTransform, parameters: Sequence[Tensor]) -> Tensor:
        food, eater = transform.inverse(spectrum).unbind(1)
        reaction = torch.where(transform.dealiased, transform.forward(food * eater.square()), 0.0)
        mean = torch.zeros_like(transform.dealiased, dtype=torch.float64)
        mean[0, 0] = 1.0
        return torch.stack([parameters[0][:, 0] * mean - reaction, reaction], dim=1)
