"""Residuals of equations with their boundary conditions: as loss, score, constraint and correction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from probneural.checks import assign, check_callable, check_count, check_instance, check_integer, check_real
from probneural.distributions.base import FieldDistribution
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.predictors.base import Calibrated, Predictor
from probneural.errors import ArgumentError, ProbneuralError, ShapeError
from probneural.fields import Field, check_field
from probneural.grids import Grid, check_grid
from probneural.physics.conditions import Condition, check_conditions
from probneural.physics.construction import ByConstruction
from probneural.physics.correction import corrected
from probneural.physics.equations import Equation
from probneural.registry import stored
from probneural.training.losses import Loss, check_loss, relative_l2, takes_inputs

_ROUGH_MODES = 8
"""Functions per axis of the rough solutions that scale outputs."""


@stored()
@dataclass(frozen=True)
class Residual:
    """The residual of an equation, and the misfit of its boundary and initial conditions.

    Args:
        equation: An equation of `pn.physics.equations`, or a function of the solution and the inputs, two fields, that returns
            a tensor `(n, k, *grid)`.
        boundary: Conditions `Dirichlet`, `Neumann` and `initial`; none where the operator satisfies them by construction.

    Raises:
        ArgumentError: If the equation is not callable, or a condition is of another class.

    Examples:
        >>> from probneural.physics.equations import Poisson
        >>> from probneural.physics.conditions import Dirichlet
        >>> grid = Grid.uniform((17,), periodic=False)
        >>> x = grid.points.T[None]
        >>> inputs = Field(torch.full_like(x, 2.0), grid)  # -u'' = 2, so u = x (1 - x)
        >>> residual = Residual(Poisson(), Dirichlet(0.0))
        >>> {name: round(float(value), 9) for name, value in residual.terms(x * (1 - x), inputs, grid).items()}
        {'equation': 0.0, 'Dirichlet': 0.0}
    """

    equation: Equation
    boundary: Condition | Sequence[Condition] = ()

    def __post_init__(self) -> None:
        """Validate."""
        remedy = "give an equation of pn.physics.equations, or a function of solution and inputs"
        check_callable(self.equation, "equation", remedy=remedy)
        assign(self, boundary=check_conditions(self.boundary))

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions."""
        return check_conditions(self.boundary)

    def __call__(self, predicted: Float[Tensor, "n c *grid"], inputs: Field | None, grid: Grid) -> Float[Tensor, "n k *grid"]:
        """The equation's residual at all points, in its units.

        Args:
            predicted: Solutions `(n, c, *grid)`.
            inputs: Inputs of the solutions; None if the equation has none.
            grid: Grid of the solutions.

        Raises:
            ShapeError: If the equation returns another shape.
        """
        u = Field(check_instance(predicted, Tensor, "predicted", remedy="give a tensor (n, c, *grid)"), check_grid(grid))
        result: object = self.equation(u, None if inputs is None else check_field(inputs, "inputs"))
        residual = result.values if isinstance(result, Field) else result
        shape = tuple(residual.shape) if isinstance(residual, Tensor) else ()
        if not isinstance(residual, Tensor) or len(shape) != u.values.ndim or (shape[0], *shape[2:]) != (len(u), *grid.shape):
            raise ShapeError(
                expected=f"an equation that returns ({len(u)}, k, {', '.join(map(str, grid.shape))})",
                got=str(shape) if shape else type(residual).__name__,
                remedy="return the residual's values on the solution's grid",
            )
        return residual

    def terms(self, predicted: Float[Tensor, "n c *grid"], inputs: Field | None, grid: Grid) -> dict[str, Tensor]:
        """Mean squares of the equation's residual and of the misfit of each condition, averaged over samples.

        Returns:
            By name, "equation" first; each in its units squared.
        """
        residual = self(predicted, inputs, grid)
        terms = {"equation": grid.mean(grid.fill(residual).square().flatten(2)).mean()}
        for condition in self.conditions:
            misfit = condition.misfit(Field(predicted, grid), inputs)
            name = type(condition).__name__
            terms[name if name not in terms else f"{name} {len(terms)}"] = misfit.square().mean()
        return terms

    def loss(self, *, weight: float | Literal["balanced"] = "balanced", data: Loss | None = None) -> ResidualLoss:
        """Return a loss of `pn.fit`: the loss of the data, and the mean squares of the residual and the conditions.

        Args:
            weight: Factor of the mean squares, in the inverse of their units; or `"balanced"`, for which `pn.fit` chooses a
                factor per term so that its gradient is as large as that of the data.
            data: Loss of labelled pairs; by default the square of the relative L2 error, whose gradient decreases with the
                error as those of mean squares do.
        """
        return ResidualLoss(self, weight=weight, data=data)

    def at(self, inputs: Field | None, grid: Grid, *, points: int = 64) -> Callable[[Tensor], Tensor]:
        """Return the residual as an argument of `u.constrain_residual`: values `(n, c, *grid)` to numbers `(n, m)`.

        Args:
            inputs: Inputs of the n samples.
            grid: Grid of the samples.
            points: Largest number of points at which the equation constrains the samples, a sub-grid of a uniform grid;
                conditions constrain them at all boundary points.

        Raises:
            ArgumentError: If the number of points is not positive.
        """
        indices = _sub_grid(check_grid(grid), check_integer(points, "points"))
        inputs = None if inputs is None else check_field(inputs, "inputs")

        def numbers(values: Tensor) -> Tensor:
            residual = self(values, inputs, grid).flatten(2)[..., indices.to(values.device)].flatten(1)
            misfits = [condition.misfit(Field(values, grid), inputs).flatten(1) for condition in self.conditions]
            return torch.cat([residual, *misfits], 1)

        return numbers

    def correct(
        self, u: FieldDistribution, *, inputs: Field | None = None, steps: int = 2, modes: int = 16
    ) -> FieldDistribution:
        """Correct predictions by Gauss-Newton steps on equation and conditions, the posterior included.

        With smooth functions B on the grid, each step adds B z to the mean, z = -(J B)^+ F(u), for the residual and the misfits
        of all conditions F and their Jacobian J. Covariances are pushed through the derivative I - B (J B)^+ J of the last
        step, members of an ensemble too. Walls, and the start of time, without a condition keep the predicted values. Errors
        that B does not hold remain, as do those of the differences on the grid: call `corrected` and calibrate for intervals
        that include them.

        Args:
            u: Predictions on one grid, with few points: a step takes a pseudo-inverse of size points x modes^d per sample.
            inputs: The predictor's inputs, where equation or conditions depend on them.
            steps: Gauss-Newton steps; one suffices for linear equations.
            modes: Functions per axis: Fourier modes on periodic axes, Chebyshev polynomials on others.

        Returns:
            A Gaussian field for Gaussian fields and mixtures, members for ensembles; with another latent than `u`.

        Raises:
            DataError: If the residual is not finite at an iteration.
            ShapeError: If there is not one input per prediction.
            UnsupportedError: If samples have different grids.

        Reference:
            Cao, O'Leary-Roseberry, Jha, Oden and Ghattas (2023), Residual-based error correction for neural operator
            accelerated infinite-dimensional Bayesian inverse problems, section 3; here on a basis, with covariances, and with
            the residual and each misfit in units of the norm of its J B.
        """
        return corrected(u, self, inputs=inputs, steps=steps, modes=modes)

    def corrected(self, predictor: Predictor, *, steps: int = 2, modes: int = 16) -> Predictor:
        """Return a predictor whose predictions are corrected: see `correct`.

        Calibrate it on held-out pairs: `pn.calibration.calibrate(residual.corrected(predictor), held_out)`.
        """
        check_instance(predictor, Predictor, "predictor", remedy="fit a head first")
        return CorrectedPredictor(predictor, self, steps=check_integer(steps, "steps"), modes=check_integer(modes, "modes"))


@stored()
class CorrectedPredictor(Calibrated):
    """A predictor whose fields are corrected by the residual of their equation; from `Residual.corrected`.

    Args:
        inner: The predictor.
        residual: Residual and conditions.
        steps: Gauss-Newton steps.
        modes: Basis functions per axis.
    """

    def __init__(self, inner: Predictor, residual: Residual, *, steps: int, modes: int) -> None:
        super().__init__(inner, calibrated_on=inner.calibrated_on)
        self.residual, self.steps, self.modes = residual, steps, modes

    def _map(self, inputs: Field, field: FieldDistribution) -> FieldDistribution:
        return corrected(field, self.residual, inputs=inputs, steps=self.steps, modes=self.modes)

    def _details(self) -> str:
        """Steps and modes."""
        return f"steps={self.steps}, modes={self.modes}"


def _sub_grid(grid: Grid, count: int) -> Int64[Tensor, " m"]:
    """Indices of at most `count` points: those of a sub-grid of a uniform grid, every so many points of another."""
    rows, remaining = torch.zeros(1, dtype=torch.int64), count
    # n^(1/d) points along each of the remaining d axes, the shortest first
    along = dict.fromkeys(range(len(grid.shape)), 1)
    for place, number in enumerate(sorted(along, key=lambda axis: grid.shape[axis])):
        along[number] = max(1, min(grid.shape[number], int(remaining ** (1.0 / (len(along) - place)) + 1e-9)))
        remaining //= along[number]
    for number, size in enumerate(grid.shape):
        steps = torch.linspace(0, size - 1, along[number], dtype=torch.float64).round().long()
        rows = (rows[:, None] * size + steps).flatten()
    return rows


@dataclass(frozen=True)
class ResidualLoss:
    """The loss of the data, and weighted mean squares of a residual and its conditions.

    Args:
        residual: The residual.
        weight: See `Residual.loss`.
        data: Loss of labelled pairs; by default the square of the relative L2 error.

    Raises:
        ArgumentError: If the weight is negative or another word, or the loss is not callable.

    Reference:
        Wang, Teng and Perdikaris (2021), Understanding and mitigating gradient flow pathologies in physics-informed neural
        networks, section 2.4 (balanced weights; here from norms of gradients instead of their largest entries).
    """

    residual: Residual
    _: KW_ONLY
    weight: float | Literal["balanced"] = "balanced"
    data: Loss | None = None

    def __post_init__(self) -> None:
        """Validate."""
        check_instance(self.residual, Residual, "residual", remedy="write Residual(equation).loss()", error=ArgumentError)
        if self.weight != "balanced":
            check_real(self.weight, "weight", least=0.0)
        check_loss(self.data)

    @property
    def is_balanced(self) -> bool:
        """Whether `pn.fit` chooses the weights."""
        return self.weight == "balanced"

    def terms(
        self, predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c2 *grid"], grid: Grid, *, inputs: Field | None
    ) -> dict[str, Tensor]:
        """The terms by name: "data" of labelled samples, then those of the residual."""
        terms = self.residual.terms(predicted, inputs, grid)
        check_instance(target, Tensor, "target", remedy="give a tensor (n, c, *grid)")
        check_count(target.ndim, predicted.ndim, "axes of targets", remedy="give (n, c, *grid)")
        if not target.shape[1]:
            return terms
        data = _squared_error if self.data is None else self.data
        more = {"inputs": check_field(inputs, "inputs")} if takes_inputs(data) else {}
        return {"data": data(predicted, target, grid, **more), **terms}

    def approximate(self, operator: nn.Module, inputs: Field, grid: Grid) -> Field | None:
        """Rough solutions, from which `pn.fit` takes the scale of outputs without labels: corrections of zero.

        Returns:
            `(n, c, *grid)` in the inputs' dtype; None where corrections are not defined, as on one mesh per sample.
        """
        residual = self.residual
        if isinstance(operator, ByConstruction):
            residual = Residual(residual.equation, [*residual.conditions, *operator.conditions])
        channels = getattr(operator, "out_channels", 1)
        zero = EmpiricalField(inputs.values.new_zeros(1, len(inputs), channels, *grid.shape), grid=grid)
        try:
            return Field(residual.correct(zero, inputs=inputs, modes=_ROUGH_MODES).mean, grid)
        except (ProbneuralError, RuntimeError):  # of the equation, or of a singular least-squares problem
            return None

    def __call__(
        self, predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c2 *grid"], grid: Grid, *, inputs: Field | None
    ) -> Float[Tensor, ""]:
        """The sum with a constant weight.

        Raises:
            ArgumentError: If the weights are balanced by `pn.fit`.
        """
        if isinstance(self.weight, str):
            raise ArgumentError(
                expected="a weight outside of pn.fit, and within Unroll",
                got='"balanced"',
                remedy="give residual.loss(weight=1e-3), or weigh loss.terms(...) yourself",
            )
        terms = self.terms(predicted, target, grid, inputs=inputs)
        return torch.stack([value if name == "data" else self.weight * value for name, value in terms.items()]).sum()


def _squared_error(predicted: Tensor, target: Tensor, grid: Grid) -> Tensor:
    """The square of the relative L2 error, averaged over channels and samples."""
    return relative_l2(predicted, target, grid=grid).square().mean()
