"""Predictors conditioned on measurements of outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_finite, check_instance, real_tensor
from probneural.distributions.base import FieldDistribution, check_values, noise_variance
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.latent import Latent
from probneural.distributions.predictors.base import Predictor, description
from probneural.errors import UnsupportedError
from probneural.fields import Field, check_field
from probneural.functionals import Functional
from probneural.functionals.base import MatrixFunctional, check_functional
from probneural.grids import Grid
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.registry import stored


@stored(on_cpu=("matrix", "values", "measurement_noise"))
class ConditionedPredictor(Predictor):
    """Predictor of `predictor.condition(...)`: all predictions are conditioned on measurements of n outputs.

    If all calls share the latent, it is updated once. With a per-call latent, as of `KernelOperator`, each call
    also predicts the measured samples, and solves for all measurements again.

    Args:
        inner: The predictor it wraps, of Gaussian fields.
        inputs: Inputs of the measured outputs, `(n, in_channels, *grid)`.
        grid: Grid of the functional's matrix.
        matrix: The functional A, `(m, p)`.
        values: Measurements of A u, `(n, c, m)`, in the functional's units.
        measurement_noise: Noise variances, `(n, c, m)`, in those units squared; either all or none are zero.

    Attributes:
        chi2: Squared standardised residual per measurement: near 1 if predictor and noise are consistent with them.

    Raises:
        UnsupportedError: If fields are not Gaussian.
        ConstraintError: If exact measurements contradict, or are more than the latent's rank.

    Examples:
        >>> import probneural as pn
        >>> pairs = pn.problems.Heat(dimension=1).sample(60, resolution=32, seed=0)
        >>> kernel = pn.heads.KernelOperator("linear", min_noise=1e-4).fit(None, pairs[:20])
        >>> probe = pn.functionals.sensors(pairs.outputs.grid, [[0.25], [0.75]])
        >>> measured = pairs[20:40]
        >>> told = kernel.condition(measured.inputs, probe, values=probe(measured.outputs.values), noise=1e-8)
        >>> bool((told(pairs[40:].inputs).variance < kernel(pairs[40:].inputs).variance).all())
        True
    """

    def __init__(
        self,
        inner: Predictor,
        *,
        inputs: Field,
        grid: Grid,
        matrix: Float64[Tensor, "m p"],
        values: Float64[Tensor, "n c m"],
        measurement_noise: Float64[Tensor, "n c m"],
    ) -> None:
        super().__init__(inner.traits)
        self.inner = inner
        self.inputs = inputs
        self.grid = grid
        self.matrix = matrix
        self.values = values
        self.measurement_noise = measurement_noise
        self.calibrated_on = inner.calibrated_on
        self.effective_observations = inner.effective_observations
        measured = self._measured(self._with_measured([])[0])  # as later calls will, beside others
        self._latent = measured if measured.is_shared_across_calls else None
        assert measured.chi2 is not None
        self.chi2 = measured.chi2

    @classmethod
    def of_measurements(
        cls, inner: Predictor, inputs: Field, *, functional: Functional, values: Tensor, noise: float | Tensor
    ) -> ConditionedPredictor:
        """Validate the arguments, and condition; see `Predictor.condition`."""
        check_field(inputs, "inputs")
        grid, size = check_functional(functional).grid, functional.size
        numbers = real_tensor(values, "values")
        check_values(numbers, (len(inputs), inner.out_channels, size), "the functional's values")
        check_finite(numbers, "values of the functional")
        numbers = numbers.detach().to("cpu", torch.float64)
        identity = torch.eye(size, dtype=torch.float64, device="cpu")
        return cls(
            inner,
            inputs=Field(inputs.values.detach().clone(), inputs.grid),
            grid=grid,
            matrix=functional.adjoint(identity).flatten(1),
            values=numbers.clone(),
            measurement_noise=noise_variance(noise, tuple(numbers.shape), numbers).detach().clone(),
        )

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        if self._latent is not None:
            return [_gaussian(u).under(self._latent) for u in self.inner._predict(sets)]
        measured, *fields = self._with_measured(sets)
        latent = self._measured(measured)
        return [u.under(latent) for u in fields]

    def _with_measured(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[GaussianField]:
        """The inner predictor's fields of the measured samples, then of other sets."""
        measured = self.inner._checked(self.inputs, self.grid)
        return [_gaussian(u) for u in self.inner._predict([(measured, self.grid), *sets])]

    def _measured(self, u: GaussianField) -> Latent:
        """The posterior of the latent given the measurements, for any other inputs, which follow the measured ones."""
        functional = MatrixFunctional(self.grid, self.matrix)
        latent = u.condition(functional, self.values.to(u.mean.device), noise=self.measurement_noise).latent
        assert latent.shift is not None
        assert latent.transform is not None
        update = LowRankUpdate(latent.transform.directions.detach(), latent.transform.factors.detach())
        return replace(latent, shift=latent.shift.detach(), transform=update)

    def _description(self) -> str:
        """Description: number of measurements, and the inner predictor."""
        functions, _, numbers = self.values.shape
        return f"ConditionedPredictor({description(self.inner)}, {numbers} measurements of each of {functions} functions)"


def _gaussian(u: FieldDistribution) -> GaussianField:
    remedy = "calibrate it first: pn.calibration.VarianceScale makes Gaussian fields of ensembles and mixtures"
    return check_instance(u, GaussianField, "field", remedy=remedy, error=UnsupportedError)


Predictor._conditioned = ConditionedPredictor.of_measurements
