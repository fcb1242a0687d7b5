"""Distributions whose functions differ in difficulty: equations whose parameters vary from function to function.

Each distribution was fixed before any selector ran on it. Selection cannot help in a pool of equally difficult functions.
So, as in AL4PDE, a parameter of the equation varies and is an input channel, constant in
space; where the coefficient function is itself the parameter (Darcy, variable speed), its amplitude varies instead,
log-uniformly:

| problem | what varies | distribution | input channels |
|---|---|---|---|
| Burgers | viscosity ν | log-uniform on [1e-3, 1], AL4PDE's | initial state, log ν |
| Darcy 1-D | amplitude of the log-permeability | log-uniform on [1/4, 1] | log-permeability |
| advection-diffusion | velocity c, diffusivity ν | uniform on [0, 1/2], log-uniform on [1e-3, 1e-1] | initial state, c, log ν |
| variable-speed advection | amplitude of the log slowness | log-uniform on [1/4, 2] | slowness, initial state |
| heat 2-D | diffusivity ν | log-uniform on [1e-4, 1e-1] | initial state, log ν |
| shallow water | rotation f | log-uniform on [1, 16] | height, two velocities, log f |

Random fields are those of the problems. (Darcy's amplitude is at most that of the problem: for larger ones the log-normal tail
of single functions dominates mean squared errors.) Parameter channels are scaled to [-1, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

import probneural as pn
from probneural.randomness import stream


@dataclass(frozen=True)
class Parameter:
    """Parameter of the equation that varies between functions.

    Attributes:
        name: Argument of the problem.
        low: Least value.
        high: Largest value.
        is_logarithmic: Whether its logarithm is uniform and an input of the operator, instead of the value.
    """

    name: str
    low: float
    high: float
    _: KW_ONLY
    is_logarithmic: bool = True

    def at(self, share: float) -> float:
        """Value at a position in the interval, from 0 to 1."""
        if self.is_logarithmic:
            return math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        return self.low + share * (self.high - self.low)


@dataclass(frozen=True)
class VariedSource:
    """Functions of a problem with varying parameters; exact outputs are solved for on request.

    Attributes:
        name: Name in tables.
        problem: The problem; its values of varying parameters are not used.
        resolution: Points per axis.
        channel_parameters: Parameters of the equation; each is an input channel after those of the problem.
        amplitude: Range of a log-uniform factor on the leading coefficients of the distribution, or None.
        amplified: Number of leading coefficients with that factor, all by default.
    """

    name: str
    problem: pn.problems.Problem
    resolution: tuple[int, ...]
    channel_parameters: tuple[Parameter, ...] = ()
    amplitude: tuple[float, float] | None = None
    amplified: int | None = None

    @property
    def grid(self) -> pn.Grid:
        """Grid of inputs and outputs."""
        return self.problem.grid(self.resolution)

    def draw(self, count: int, *, seed: int) -> VariedInputs:
        """Draw input functions without outputs.

        Args:
            count: Number of functions.
            seed: Seed of coefficients and parameters.
        """
        coefficients = self.problem.input_distribution.draw(count, seed)
        shares = torch.rand(count, len(self.channel_parameters) + 1, generator=stream(seed, "benchmark parameters"))
        if self.amplitude is not None:
            factor = Parameter("amplitude", *self.amplitude)
            factors = torch.tensor([factor.at(share) for share in shares[:, -1].tolist()], dtype=torch.float64)
            reached = slice(self.amplified)
            coefficients[:, reached] = coefficients[:, reached] * factors[:, None]
        return VariedInputs(self, coefficients, shares[:, :-1])


@dataclass(frozen=True)
class VariedInputs:
    """Drawn functions, with labels on request.

    Attributes:
        source: Distribution of the functions.
        coefficients: Coefficients with their amplitude, `(n, size)`.
        shares: Position of each parameter in its interval, `(n, parameters)`, from 0 to 1.
    """

    source: VariedSource
    coefficients: Float64[Tensor, "n size"]
    shares: Float[Tensor, "n parameters"]

    @property
    def inputs(self) -> pn.Field:
        """All inputs, float32: the problem's channels, then one constant channel per parameter, in [-1, 1]."""
        grid = self.source.grid
        functions = self.source.problem._inputs(self.coefficients, grid).float()
        ranks = (None,) * grid.dimension
        constants = (2.0 * self.shares - 1.0)[(..., *ranks)].expand(-1, -1, *grid.shape)
        return pn.Field(torch.cat([functions, constants.to(functions)], dim=1), grid)

    def problem(self, index: int) -> pn.problems.Problem:
        """Problem of one function, with its parameters."""
        values = self.shares[index].tolist()
        changes = {one.name: one.at(share) for one, share in zip(self.source.channel_parameters, values, strict=True)}
        return replace(self.source.problem, **changes)

    def label(self, indices: Sequence[int]) -> pn.FieldPairs:
        """Solve for some functions, one by one, exactly in float64; outputs are rounded to float32."""
        grid = self.source.grid
        rows = [int(index) for index in indices]
        solutions = [self.problem(row)._solve_coefficients(self.coefficients[row : row + 1], grid) for row in rows]
        return pn.FieldPairs(self.inputs[rows], pn.Field(torch.cat(solutions).float(), grid))


def sources() -> tuple[VariedSource, ...]:
    """All distributions."""
    problems = pn.problems
    speed = problems.VariableSpeedAdvection()
    return (
        VariedSource("Burgers", problems.Burgers(), (64,), (Parameter("viscosity", 1e-3, 1.0),)),
        VariedSource("Darcy 1-D", problems.Darcy1D(), (65,), amplitude=(0.25, 1.0)),
        VariedSource(
            "variable-speed advection", speed, (64,), amplitude=(0.25, 2.0), amplified=speed.input_distribution.parts[0].size
        ),
        VariedSource(
            "advection-diffusion",
            problems.AdvectionDiffusion(),
            (64,),
            (Parameter("velocity", 0.0, 0.5, is_logarithmic=False), Parameter("diffusivity", 1e-3, 1e-1)),
        ),
        VariedSource("heat 2-D", problems.Heat(dimension=2), (32, 32), (Parameter("diffusivity", 1e-4, 1e-1),)),
        VariedSource("shallow water", problems.ShallowWater(), (32, 32), (Parameter("rotation", 1.0, 16.0),)),
    )
