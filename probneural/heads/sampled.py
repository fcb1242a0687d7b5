"""Operators with weights drawn from a posterior, each evaluated as it is: the predictor that is not linearised."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from probneural.curvature import ParameterVector, evaluate_at
from probneural.distributions import EmpiricalField, Predictor
from probneural.fields import Field
from probneural.grids import Grid
from probneural.heads.residuals import check_some


class WeightSampledPredictor(Predictor):
    """An ensemble of operators that differ in their weights.

    Args:
        operator: Gives everything but the chosen parameters.
        layout: Which parameters vary.
        vectors: Their values, `(s, P)`.
        noise: Observation variance per channel, `(c,)`, in physical units squared.
        domain: The grid of the training inputs.
        in_channels: Channels of the inputs.
    """

    def __init__(
        self,
        *,
        operator: nn.Module,
        layout: ParameterVector,
        vectors: Float[Tensor, "s P"],
        noise: Float64[Tensor, " c"],
        domain: Grid,
        in_channels: int,
    ) -> None:
        self.operator = operator
        self.layout = layout
        self.vectors = vectors
        self.noise = noise
        self.domain = domain
        self.in_channels = in_channels
        self.out_channels = len(noise)

    @property
    def dtype(self) -> torch.dtype:
        """The parameters' dtype."""
        return self.vectors.dtype

    @property
    def device(self) -> torch.device:
        """The parameters' device."""
        return self.vectors.device

    def _predict(self, inputs: Field, query: Grid | None) -> EmpiricalField:
        check_some(inputs)
        samples = torch.stack([evaluate_at(self.operator, self.layout, vector, inputs, query) for vector in self.vectors])
        return EmpiricalField(samples, grid=inputs.grid if query is None else query)
