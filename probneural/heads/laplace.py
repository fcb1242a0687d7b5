"""Laplace posteriors over all parameters, or chosen ones, of any operator."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.curvature import ParameterVector, gauss_newton, jacobian
from probneural.distributions import DenseRoot, GaussianField, Latent, Predictor
from probneural.distributions.latents import digest
from probneural.errors import ArgumentError, ShapeError, UnsupportedError
from probneural.fields import Field, FieldPairs, evaluate
from probneural.grids import Grid
from probneural.heads.residuals import check_pairs, check_some, effective_observations, given_per_channel, output_units
from probneural.heads.weights import weight_posterior

_STRUCTURES = ("full",)
_LARGEST = 5000
"""Parameters beyond which a dense covariance (200 MB) stops being reasonable."""


@dataclass(frozen=True)
class Laplace:
    """The linearised Laplace posterior: weights N(theta, (G + T)^-1) around the trained ones, pushed through the Jacobian.

    u(x) = f(x; theta) + J(x) (w - theta), with G the Gauss-Newton matrix of the quadrature likelihood and T the prior
    precision. Dense in the parameters: the exact reference for small models. It is exact where the operator is linear in
    the chosen parameters and the trained ones are the posterior mode; elsewhere it knows only the linearisation.

    Args:
        structure: Form of the covariance; `"full"`.
        parameters: Names of parameters or submodules; all by default. Others stay as they are.
        noise: Observation variance, in physical units squared: one number or one per channel. Learned noise is one share
            of each channel's training variance.
        prior_precision: Precision of the parameters around zero, per parameter unit squared: one number, a vector `(P,)` in
            the order of `ParameterVector`, or tensors by name in real pairs; infinity fixes a parameter.
        effective_observations: Independent observations per field, dimensionless, one number or one per channel; by
            default from the training residuals.

    Reference:
        Immer, Korzepa & Bauer (2021), Improving predictions of Bayesian neural nets via local linearization. Deviations:
        quadrature instead of sums over points, effective observations, complex parameters as real pairs.
    """

    structure: str = "full"
    parameters: Sequence[str] | None = None
    noise: float | Tensor | None = None
    prior_precision: float | Tensor | Mapping[str, Tensor] | None = None
    effective_observations: float | Tensor | None = None

    def __post_init__(self) -> None:
        """Check the structure."""
        if self.structure not in _STRUCTURES:
            raise UnsupportedError(
                expected=f"a structure among {', '.join(_STRUCTURES)}",
                got=repr(self.structure),
                remedy="use structure='full' on chosen parameters, or LastLayerLaplace",
            )

    def fit(self, operator: nn.Module, data: FieldPairs) -> LaplacePredictor:
        """Fit the posterior.

        Args:
            operator: Any module from `(n, c, *grid)` to `(n, c', *grid)`; neither it nor the data are changed.
            data: Training pairs.

        Returns:
            A predictor with its own copy of the operator.

        Raises:
            UnsupportedError: If there are too many parameters for a dense covariance.
            EvidenceError: If the evidence determines no noise or prior.
            ArgumentError: If a setting is out of range, or a name fits no parameter.
            ShapeError: If the operator's outputs do not fit the data's, or a prior its parameters.
            DataError: If the data are not finite.
        """
        check_pairs(data)
        own = copy.deepcopy(operator).eval().requires_grad_(False)
        layout = ParameterVector.of(own, self.parameters)
        if layout.size > _LARGEST:
            raise UnsupportedError(
                expected=f"at most {_LARGEST} parameters for a dense covariance",
                got=str(layout.size),
                remedy="choose parameters=, or use LastLayerLaplace",
            )
        vector = layout.flatten(dict(own.named_parameters()))
        inputs = Field(data.inputs.values.detach().to(vector), data.inputs.grid)
        outputs = Field(data.outputs.values.detach().to(vector.device), data.outputs.grid)
        grid = outputs.grid
        query = None if grid == inputs.grid else grid
        with torch.no_grad():
            predicted = evaluate(own, inputs, query)
        if predicted.shape != outputs.values.shape:
            raise ShapeError(
                expected=f"an operator with outputs {tuple(outputs.values.shape)}",
                got=str(tuple(predicted.shape)),
                remedy="check its channels",
            )
        residuals = outputs.values.to(torch.float64) - predicted.to(torch.float64)
        channels = residuals.shape[1]
        counts = given_per_channel(self.effective_observations, channels, name="effective_observations")
        if counts is None:
            counts = effective_observations(residuals, grid=grid).cpu()
        units = output_units(outputs)[1].square()
        given = given_per_channel(self.noise, channels, name="noise")
        reference = units if given is None else given.to(units)  # noise = level * reference, level 1 if given
        precision = counts.to(units) / reference
        curvature = torch.zeros(layout.size, layout.size, dtype=torch.float64, device=vector.device)
        for index in range(len(inputs)):
            rows = jacobian(own, layout, inputs[index], query=query)
            curvature += gauss_newton(rows, grid=grid, precision=precision)
        share = (grid.weights / grid.volume).to(residuals.device)
        energy = float(((residuals.square().flatten(2) @ share).sum(0) * precision).sum())
        found = weight_posterior(
            curvature,
            vector.to(torch.float64),
            observations=float(counts.sum()) * len(data),
            energy=energy,
            noise=None if given is None else 1.0,
            prior=self._prior(layout),
        )
        offset = 0.5 * len(data) * float((counts.to(reference) * reference.log()).sum())
        return LaplacePredictor(
            operator=own,
            layout=layout,
            factor=found.factor,
            noise=found.noise * reference,
            prior_precision=found.prior_precision.cpu(),
            effective_observations=counts,
            log_evidence=found.log_evidence - offset,
            data=data,
        )

    def _prior(self, layout: ParameterVector) -> Float64[Tensor, " P"] | None:
        if self.prior_precision is None:
            return None
        if isinstance(self.prior_precision, Mapping):
            missing = set(layout.names) ^ set(self.prior_precision)
            if missing:
                raise ArgumentError(
                    expected=f"a prior precision for each of {', '.join(layout.names)}",
                    got=f"a mismatch in {missing}",
                    remedy="name all",
                )
            prior = layout.flatten(self.prior_precision).to(torch.float64)
        else:
            prior = torch.as_tensor(self.prior_precision, dtype=torch.float64).detach().cpu()
        if tuple(prior.shape) not in ((), (layout.size,)):
            raise ShapeError(
                expected=f"prior_precision as a number or ({layout.size},)",
                got=str(tuple(prior.shape)),
                remedy="one per real parameter",
            )
        if not bool((prior > 0).all()):
            raise ArgumentError(expected="prior_precision > 0", got=str(float(prior.min())), remedy="a flat prior is improper")
        return prior.expand(layout.size)


class LaplacePredictor(Predictor):
    """What `Laplace` fits.

    Attributes:
        operator: The predictor's own copy of the operator.
        layout: Which parameters vary, and where they lie in the vector.
        noise: Observation variance per channel, `(c,)`, in physical units squared.
        prior_precision: `(P,)`, per parameter unit squared.
        effective_observations: Independent observations per field and channel, `(c,)`, dimensionless.
        log_evidence: In nats, of the training outputs in physical units.
        latent: The name of the weights' randomness.
    """

    def __init__(
        self,
        *,
        operator: nn.Module,
        layout: ParameterVector,
        factor: Float64[Tensor, "P k"],
        noise: Float64[Tensor, " c"],
        prior_precision: Float64[Tensor, " P"],
        effective_observations: Float64[Tensor, " c"],
        log_evidence: float,
        data: FieldPairs,
    ) -> None:
        self.operator = operator
        self.layout = layout
        self._factor = factor
        self._vector = layout.flatten(dict(operator.named_parameters()))
        self.noise = noise
        self.prior_precision = prior_precision
        self.effective_observations = effective_observations
        self.log_evidence = log_evidence
        self.domain = data.inputs.grid
        self.in_channels = data.inputs.channels
        self.out_channels = data.outputs.channels
        self.latent = Latent(id=f"laplace-full-{digest(self._vector, factor)}", rank=factor.shape[1])

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return self._vector.dtype

    @property
    def device(self) -> torch.device:
        """The parameters' device."""
        return self._vector.device

    @property
    def weight_covariance(self) -> Float64[Tensor, "P P"]:
        """Covariance of the parameters, in parameter units squared; float64."""
        return self._factor @ self._factor.mT

    def _predict(self, inputs: Field, query: Grid | None) -> GaussianField:
        check_some(inputs)
        where = inputs.grid if query is None else query
        mean = evaluate(self.operator, inputs, query)
        rows = jacobian(self.operator, self.layout, inputs, query=query)
        return GaussianField(mean, DenseRoot(rows @ self._factor.to(rows)), latent=self.latent, grid=where)
