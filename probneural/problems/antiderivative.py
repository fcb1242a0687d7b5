"""Ordinary differential equations driven by a random function and solved by its antiderivative."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal

import numpy
import torch
from torch import Tensor

from probneural.checks import check_real
from probneural.errors import ArgumentError
from probneural.grids import Grid
from probneural.problems.base import GaussianInputProblem

_GAUSS_POINTS = 3
"""Gauss-Legendre points per cell: exact for the interpolant, which has degree 5 there."""

_MATRIX_ELEMENTS = 2**22
"""Number of entries of the interpolation matrix per chunk (32 MiB)."""

_STARTS = {"linear": 0.0, "logistic": 0.5}


@dataclass(frozen=True)
class Antiderivative(GaussianInputProblem):
    """Drive v to state s on [0, 1], where s(0) is given and s obeys one of two equations.

    With V(x) = ∫₀ˣ v these, and their solutions, are:

    * `"linear"`: s′ = v, s = s(0) + V, the antiderivative itself.
    * `"logistic"`: s′ = v s (1 − s), s = 1 / (1 + e^−V (1 − s(0))/s(0)).

    The map is causal (s(x) depends on v up to x) and global, and smooths by one order. The distribution of v is a periodic
    Gaussian random field, integrated term by term; grids include both end points.

    Good values: the default distribution's V has a standard deviation of at most 0.18, for which both maps are nearly
    linear; with a `sigma` of 250, 1.8, the logistic one is not.

    Failure modes: `sample` is exact to rounding. `solve` knows v at the nodes and integrates the local interpolant of degree
    5 exactly: its error falls as h⁶ once the grid resolves v. Its matrix has 3 N² elements, in parts.

    Args:
        equation: Name of the equation.
        start: s(0): any number for the linear equation (0 by default), inside (0, 1) for the logistic one (1/2).
        random_field: Distribution of v, see [`GaussianRandomField`][probneural.problems.GaussianRandomField];
            by default GRF(25, 5, 2) with 31 modes.
        design_dim: Coordinates of the design space, at most 2K.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Lu et al. (2021), Learning nonlinear operators via DeepONet, where the antiderivative is the first example.

    Examples:
        >>> from probneural.fields import Field
        >>> grid = Antiderivative().grid(65)
        >>> constant = Field(torch.ones(1, 1, 65), grid)
        >>> for equation in ("linear", "logistic"):
        ...     print(round(Antiderivative(equation).solve(constant).values[0, 0, -1].item(), 4))
        1.0
        0.7311
    """

    title: ClassVar[str] = "Antiderivative, {problem.equation}, start {problem._start:g}"
    periodic: ClassVar[bool] = False
    shifted_amplitude: ClassVar[float] = 2.5
    equation: Literal["linear", "logistic"] = "linear"
    _: KW_ONLY
    start: float | None = None

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        start = check_real(self._start, "start")
        if self.equation == "logistic" and not 0.0 < start < 1.0:
            raise ArgumentError(
                expected="a start inside (0, 1) for 'logistic'",
                got=repr(start),
                remedy="choose another; from 0 and from 1 the state never moves",
            )

    @property
    def _start(self) -> float:
        return _STARTS[self.equation] if self.start is None else self.start

    def _solve(self, values: Tensor, grid: Grid) -> Tensor:
        return self._state(_integrate(values, grid))

    def _solve_coefficients(self, coefficients: Tensor, grid: Grid) -> Tensor:
        cosines, sines = coefficients.unflatten(1, (-1, 2)).unbind(2)
        angular = 2.0 * math.pi * torch.arange(1, cosines.shape[1] + 1).to(coefficients)
        periodic = self._field.evaluate(torch.stack([-sines / angular, cosines / angular], dim=2).flatten(1), grid)
        return self._state(periodic - periodic[:, :1])[:, None]

    def _differentiate(self, values: Tensor, direction: Tensor, grid: Grid) -> Tensor:
        change = _integrate(direction, grid)
        if self.equation == "linear":
            return change
        state = self._state(_integrate(values, grid))
        return state * (1.0 - state) * change

    def _state(self, integral: Tensor) -> Tensor:
        """The state s where V has the values given."""
        start = self._start
        if self.equation == "linear":
            return start + integral
        return torch.sigmoid(integral + math.log(start) - math.log1p(-start))


def _integrate(values: Tensor, grid: Grid) -> Tensor:
    """The integral from 0 of the grid's local interpolant, at the nodes: `(..., N)` to `(..., N)`."""
    axis = grid.axes[0]
    cells, step = axis.size - 1, axis.length / (axis.size - 1)
    nodes, weights = (torch.from_numpy(part) for part in numpy.polynomial.legendre.leggauss(_GAUSS_POINTS))
    points = (torch.arange(cells)[:, None] + (nodes + 1.0) / 2.0) * step
    pieces = []
    for part in points.split(max(1, _MATRIX_ELEMENTS // (_GAUSS_POINTS * axis.size))):
        interpolated = axis.matrix(part.flatten()).unflatten(0, part.shape)
        per_cell = (interpolated * (weights * step / 2.0)[:, None]).sum(1)
        pieces.append(values @ per_cell.to(values).mT)
    total = torch.cat(pieces, dim=-1).cumsum(-1)
    return torch.cat([torch.zeros_like(total[..., :1]), total], dim=-1)
