"""Conformal bands of PDE residuals, calibrated without solutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from probneural.calibration.bands.conformal import conformal_quantile
from probneural.calibration.predictions import CHUNK_VALUES
from probneural.checks import assign, check_callable, check_finite, check_flag, check_instance, check_real
from probneural.contexts import undisturbed
from probneural.distributions.predictors.base import Predictor
from probneural.errors import CalibrationError, ShapeError
from probneural.fields import Field, check_field
from probneural.grids import Grid, check_grid
from probneural.pairs.provenance import check_untrained_inputs

Residual = Callable[[Tensor, Field, Grid], Tensor]
"""Map from predictions `(n, c, *grid)`, inputs and the predictions' grid to PDE residuals."""


@dataclass(frozen=True)
class ResidualBand:
    """A conformal bound q of the PDE residual, |D(û)(x)| <= q, calibrated on inputs only.

    The physics residual error of a prediction û is D(û), D being the equation with the solution at D(u) = 0. Its score is the
    supremum of |D(û)|; q is the ⌈(n + 1) level⌉-th smallest of n calibration scores. No
    solution is needed. If calibration and new inputs are exchangeable, then for any predictor

        level <= P(residual of a new prediction within ± q) < level + 1/(n + 1)

    (the upper bound without ties). **The guarantee is about residuals, not about errors.** It measures the consistency of
    in-distribution predictions with the equation; a prediction outside the band is unusual. The error e = u - û depends on the
    inverse: for a linear equation D e = D(û), so |e| <= q times the norm of the inverse, which may be large (near a
    resonance) and depends on boundary and initial values that an interior residual does not contain. Errors in the null
    space of D, such as a wrong constant or initial value, have no residual.

    Args:
        residual: Called as `residual(predicted, inputs, grid)`, as in
            [`PDEResidual`][probneural.training.losses.PDEResidual]; returns `(n, k, *grid)`. Where it is not defined, near
            boundaries, it returns 0. With k equations, give them comparable units.
        level: Nominal coverage, between 0 and 1.

    Raises:
        ArgumentError: If an argument lies outside these values.

    Reference:
        Gopakumar et al. (2025), Calibrated physics-informed uncertainty quantification, section 4 (joint conformal
        prediction). Deviations: the residual is the user's, with derivatives of any order of accuracy, and is not
        divided by its standard deviation over the calibration set, which would not leave scores exchangeable.

    Examples:
        >>> def residual(predicted, inputs, grid):  # of u' = f on a periodic grid, by differences
        ...     step = 1.0 / grid.size
        ...     return (predicted.roll(-1, -1) - predicted.roll(1, -1)) / (2 * step) - inputs.values
        >>> ResidualBand(residual, 0.9).level
        0.9
    """

    residual: Residual
    level: float = 0.9

    def __post_init__(self) -> None:
        """Validate."""
        assign(
            self,
            residual=check_callable(self.residual, "residual", remedy="give a function of prediction, inputs and grid"),
            level=check_real(self.level, "level", above=0.0, below=1.0),
        )

    @undisturbed()
    @torch.no_grad()
    def fit(
        self, predictor: Predictor, inputs: Field, *, query: Grid | None = None, allow_training_data: bool = False
    ) -> ResidualBound:
        """Calibrate the bound on held-out inputs; their solutions are not needed.

        Args:
            predictor: Predictor of any head or calibrator.
            inputs: Held-out inputs.
            query: Grid of the predictions; the inputs' grid by default. The bound holds for this grid.
            allow_training_data: Whether inputs that trained the predictor give a warning instead of an error.

        Raises:
            CalibrationError: If there are too few samples for the level, or some trained the predictor.
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample, or channels are not the predictor's.
        """
        check_instance(predictor, Predictor, "predictor", remedy="fit a head first: pn.heads.LastLayerLaplace().fit(...)")
        is_allowed = check_flag(allow_training_data, "allow_training_data")
        check_untrained_inputs(check_field(inputs, "inputs"), predictor.trained_on, allow_training_data=is_allowed)
        bound = ResidualBound(predictor, quantile=torch.inf, method=self)
        return ResidualBound(predictor, quantile=conformal_quantile(bound.scores(inputs, query), self.level), method=self)


@dataclass(frozen=True, eq=False, repr=False)
class ResidualBound:
    """A calibrated bound of residuals, from [`ResidualBand`][probneural.calibration.ResidualBand].

    Args:
        predictor: The calibrated predictor.
        quantile: The bound, in units of the residual.
        method: Residual and level it was calibrated with.
    """

    predictor: Predictor
    _: KW_ONLY
    quantile: float
    method: ResidualBand

    @property
    def level(self) -> float:
        """Nominal coverage."""
        return self.method.level

    @undisturbed()
    @torch.no_grad()
    def residuals(self, inputs: Field, query: Grid | None = None) -> Float64[Tensor, "n k *grid"]:
        """PDE residuals of the predictions, `(n, k, *grid)`, in units of the residual.

        Raises:
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample.
        """
        return torch.cat(list(self._parts(inputs, query)))

    @undisturbed()
    @torch.no_grad()
    def scores(self, inputs: Field, query: Grid | None = None) -> Float64[Tensor, " n"]:
        """The largest residual of each prediction, `(n,)`, in units of the residual.

        Raises:
            CalibrationError: If there are no samples.
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample.
        """
        parts = [part.abs().flatten(1).amax(-1) for part in self._parts(inputs, query)]
        if not parts:
            raise CalibrationError(expected="at least one input function", got="none", remedy="hold out some")
        return torch.cat(parts)

    def holds(self, inputs: Field, query: Grid | None = None) -> Bool[Tensor, " n"]:
        """Mask of the predictions whose residual is within the bound, `(n,)`.

        Raises:
            CalibrationError: If there are no samples.
            DataError: If a value is not finite.
            ShapeError: If the residual is not defined at each point of each sample.
        """
        return self.scores(inputs, query) <= self.quantile

    def _parts(self, inputs: Field, query: Grid | None) -> Iterator[Float64[Tensor, "n k *grid"]]:
        """Residuals of chunks of samples."""
        grid = check_field(inputs, "inputs").grid if query is None else check_grid(query, "query")
        rows = max(1, CHUNK_VALUES // (self.predictor.out_channels * grid.size))
        for start in range(0, len(inputs), rows):
            part = inputs[start : start + rows]
            predicted = self.predictor(part, query).mean.to(torch.float64)
            residuals = self.method.residual(predicted, Field(part.values.to(predicted), part.grid), grid)
            shape = tuple(residuals.shape) if isinstance(residuals, Tensor) else None
            if shape is None or len(shape) != predicted.ndim or shape[0] != len(part) or shape[2:] != tuple(grid.shape):
                raise ShapeError(
                    expected=f"a residual of shape ({len(part)}, k, {', '.join(map(str, grid.shape))})",
                    got=str(shape),
                    remedy="return its values on the predictions' grid",
                )
            check_finite(residuals, "residuals", remedy="return 0 where the residual is not defined")
            yield residuals.to(torch.float64)

    def __repr__(self) -> str:
        """Short description of the bound."""
        return f"ResidualBound(quantile={self.quantile:.4g}, level={self.level:g})"
