"""Residuals of equations with their boundary conditions: as loss, score, constraint and correction."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn
from torch.func import vjp, vmap

from probneural.checks import assign, check_callable, check_count, check_instance, check_integer, check_real, check_shape
from probneural.contexts import jvp
from probneural.distributions.base import FieldDistribution, inherit
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.distributions.predictors.base import Calibrated, Predictor
from probneural.distributions.roots.base import Root
from probneural.distributions.roots.sums import CorrectedRoot
from probneural.errors import ArgumentError, DataError, ProbneuralError, UnsupportedError
from probneural.fields import Field, check_field
from probneural.fingerprints import identity_of
from probneural.grids import Grid, check_grid
from probneural.physics.conditions import ByConstruction, Condition, check_conditions, held_misfit
from probneural.physics.equations import Equation
from probneural.registry import stored
from probneural.training.losses import Loss, check_loss, relative_l2, takes_inputs

_CHUNK = 64
"""Directions of a chunk of Jacobian products."""
_CUTOFF = 1e-10
"""Singular values of J B below this fraction of the largest are treated as zero."""


def basis(grid: Grid, modes: int) -> Float64[Tensor, "p k"]:
    """Smooth functions on a grid: products of Fourier modes on periodic axes and Chebyshev polynomials on others.

    Args:
        grid: Any grid; on scattered points and meshes, the box around the points.
        modes: Functions per axis, at most the number of points of an axis.

    Examples:
        >>> basis(Grid.uniform((3, 8), periodic=(False, True)), 5).shape
        torch.Size([24, 15])
    """
    product = torch.ones(grid.size, 1, dtype=torch.float64)
    for number, coordinates in enumerate(grid.points.unbind(1)):
        axis = grid.axes[number] if grid.is_uniform else None
        low, high = (axis.origin, axis.origin + axis.length) if axis else (coordinates.min(), coordinates.max())
        s = (coordinates - low) / (high - low)
        count = min(modes, axis.size) if axis else modes
        if axis is not None and axis.periodic:
            half = (count - 1) // 2
            angles = 2.0 * math.pi * s[:, None] * torch.arange(1, half + 1)
            functions = torch.cat([torch.ones_like(s)[:, None], angles.cos(), angles.sin()], 1)
        else:
            # T_j(2 s - 1) = cos(j arccos(2 s - 1))
            functions = torch.cos((2.0 * s - 1.0).clamp(-1.0, 1.0).arccos()[:, None] * torch.arange(count))
        product = (product[:, :, None] * functions[:, None]).flatten(1)
    return product


def corrected(u: FieldDistribution, residual: Residual, *, inputs: Field | None, steps: int, modes: int) -> FieldDistribution:
    """See `Residual.correct`."""
    check_instance(u, FieldDistribution, "u", remedy="give predictor(inputs)")
    steps, modes = check_integer(steps, "steps"), check_integer(modes, "modes")
    if inputs is not None:
        check_count(len(check_field(inputs, "inputs")), len(u), "inputs, one per prediction", remedy="give those of u")
    if u.grid.is_batch:
        raise UnsupportedError(
            expected="one grid for all samples", got=repr(u.grid), remedy="correct the samples of each mesh by themselves"
        )
    u = u.moment_matched() if isinstance(u, MixtureField) else u
    functions = basis(u.grid, modes)
    maps = [
        _Correction.of(
            residual, u.mean[row : row + 1], None if inputs is None else inputs[row : row + 1], u.grid, functions, steps
        )
        for row in range(len(u))
    ]
    mean = torch.cat([part.mean for part in maps]).to(u.mean)
    columns = torch.stack([part.columns for part in maps])
    rows = torch.stack([part.rows for part in maps])
    if isinstance(u, EmpiricalField):
        deviation = (u.samples - u.mean).flatten(3).to(torch.float64)  # (s, n, c, p)
        along = torch.einsum("nqcp,sncp->snq", rows, deviation)
        moved = (deviation - torch.einsum("ncpq,snq->sncp", columns, along)).unflatten(-1, u.grid.shape)
        return inherit(EmpiricalField((mean + moved).to(u.mean), u.weights, grid=u.grid), u)
    assert isinstance(u, GaussianField)

    def mapped(root: Root) -> Root:
        # (I - B H) R = R - B (H R)
        return CorrectedRoot.of(root, -columns.to(root.like), root.pull(rows.to(root.like)).to(torch.float64))

    discrepancy = None if u.discrepancy is None else mapped(u.discrepancy)
    map_name = hashlib.blake2b(identity_of((residual, steps, modes)).encode(), digest_size=8).hexdigest()
    latent = replace(u.latent, id=f"{u.latent.id}~corrected-{map_name}", source=u.latent.key)
    return inherit(GaussianField(mean, mapped(u.root), latent=latent, grid=u.grid, discrepancy=discrepancy), u)


class _Correction:
    """The corrected mean of one sample, and the derivative I - B H of the correction.

    Attributes:
        mean: `(1, c, *grid)`, float64.
        columns: B, the basis of corrections, `(c, p, q)`.
        rows: H = (J B)^+ J, `(q, c, p)`, for the Jacobian J of residual and conditions at the last step.
    """

    def __init__(self, mean: Tensor, columns: Tensor, rows: Tensor) -> None:
        self.mean, self.columns, self.rows = mean, columns, rows

    @classmethod
    @torch.no_grad()
    def of(
        cls, residual: Residual, mean: Tensor, inputs: Field | None, grid: Grid, functions: Tensor, steps: int
    ) -> _Correction:
        """Take Gauss-Newton steps: B z, z = -(J B)^+ F(u), each block of F in units of the norm of its J B."""
        u = mean.to(torch.float64)
        start, channels = u, u.shape[1]
        inputs = None if inputs is None else Field(inputs.values.to(torch.float64), inputs.grid)
        columns = torch.block_diag(*[functions] * channels).reshape(channels, grid.size, -1).to(u.device)  # (c, p, q)
        directions = columns.movedim(-1, 0).reshape(-1, 1, channels, *grid.shape)

        def blocks(values: Tensor) -> tuple[Tensor, ...]:
            parts = [residual(values, inputs, grid)]
            parts += [condition.misfit(Field(values, grid), inputs) for condition in residual.conditions]
            held = held_misfit(Field(values - start, grid), residual.conditions)
            return tuple(part.flatten() for part in (*parts, *([] if held is None else [held])))

        for step in range(steps):
            values = blocks(u)
            if not all(bool(torch.isfinite(part).all()) for part in values):
                raise DataError(
                    expected="a finite residual", got=f"NaN or infinity at iteration {step}", remedy="check inputs and equation"
                )
            products = _jacobian_products(blocks, u, directions)
            scales = [1.0 / part.norm().clamp_min(torch.finfo(part.dtype).tiny) for part in products]
            matrix = torch.cat([part * scale for part, scale in zip(products, scales, strict=True)])
            right = torch.cat([part * scale for part, scale in zip(values, scales, strict=True)])
            inverse = torch.linalg.pinv(matrix, rtol=_CUTOFF)
            previous, u = u, u - torch.einsum("cpq,q->cp", columns, inverse @ right).reshape(u.shape)

        def scaled(values: Tensor) -> Tensor:
            return torch.cat([part * scale for part, scale in zip(blocks(values), scales, strict=True)])

        # H = (J B)^+ J, row by row through the transposed products of J
        pull = vjp(scaled, previous)[1]
        rows = torch.cat([vmap(lambda row: pull(row)[0])(part) for part in inverse.split(_CHUNK)])
        return cls(u, columns, rows.reshape(len(rows), channels, grid.size))


def _jacobian_products(
    blocks: Callable[[Tensor], tuple[Tensor, ...]], u: Tensor, directions: Float64[Tensor, "q 1 c *grid"]
) -> list[Float64[Tensor, "m q"]]:
    """J B: the Jacobian of each block times some directions."""

    def product(direction: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = jvp(blocks, (u,), (direction,))[1]
        return result

    parts = [vmap(product)(part) for part in directions.split(_CHUNK)]
    return [torch.cat(part).mT for part in zip(*parts, strict=True)]


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
        remedy = "return the residual's values on the solution's grid"
        return check_shape(residual, "what the equation returns", len(u), "k", *grid.shape, remedy=remedy)

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
