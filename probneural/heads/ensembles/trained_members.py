"""Common steps of all ensembles: a copy of the operator, data, and a predictor of the trained members."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from probneural.curvature import ParameterVector
from probneural.errors import UnsupportedError
from probneural.fields import Field
from probneural.heads.ensembles.members import State
from probneural.heads.residuals import NOISE_FLOOR
from probneural.heads.training_data import TrainingData
from probneural.heads.weight_samples import WeightSampledPredictor

_BATCH_ELEMENTS = 2**22
"""Members times output values held at once while the noise is measured."""


def copied_operator(operator: nn.Module) -> nn.Module:
    """A copy without gradients.

    Raises:
        UnsupportedError: If parameters differ in precision.
    """
    copied = copy.deepcopy(operator)
    for parameter in copied.parameters():
        parameter.grad = None
    dtypes = {(value.real if value.is_complex() else value).dtype for value in copied.parameters()}
    if len(dtypes) > 1:
        raise UnsupportedError(
            expected="an operator with parameters of one precision",
            got=", ".join(sorted(map(str, dtypes))),
            remedy="convert it with .to(dtype)",
        )
    return copied


def predictor_of_members(
    operator: nn.Module, layout: ParameterVector, states: Sequence[State], data: TrainingData
) -> WeightSampledPredictor:
    """Stack what differs between members, and measure the noise."""
    operator = operator.eval().requires_grad_(False)
    names = [name for name, _ in operator.named_buffers()]
    differ = [name for name in names if not all(torch.equal(state[name], states[0][name]) for state in states)]
    shapes = {name: {tuple(state[name].shape) for state in states} for name in names}
    uneven = [name for name in names if len(shapes[name]) > 1]
    if uneven:
        raise UnsupportedError(
            expected="members with buffers of one shape", got=f"{uneven[0]} of {shapes[uneven[0]]}", remedy="fix its shape"
        )
    with torch.no_grad():
        for name, tensor in (*operator.named_parameters(), *operator.named_buffers()):
            tensor.data = states[0][name].clone()  # as `Module.to` does it: what is tied stays tied
    units = data.output_units()[1].square()

    def built(noise: Float64[Tensor, " c"]) -> WeightSampledPredictor:
        return WeightSampledPredictor(
            operator=operator,
            layout=layout,
            vectors=torch.stack([layout.flatten(state) for state in states]),
            noise=noise,
            domain=data.inputs.grid,
            in_channels=data.inputs.channels,
            buffers={name: torch.stack([state[name] for state in states]) for name in differ},
        )

    return built(torch.maximum(_mean_square_residual(built(units), data), NOISE_FLOOR * units))


@torch.no_grad()
def _mean_square_residual(predictor: WeightSampledPredictor, data: TrainingData) -> Float64[Tensor, " c"]:
    """Of the members' mean, by quadrature, per channel; some functions at a time."""
    step = max(1, _BATCH_ELEMENTS // (predictor.members * predictor.out_channels * data.grid.size))
    total = torch.zeros(predictor.out_channels, dtype=torch.float64, device=predictor.device)
    for batch in data.batches(step):
        mean = predictor(batch.inputs, data.query).mean.to(torch.float64)
        total += Field(batch.outputs.values.to(torch.float64) - mean, batch.outputs.grid).mean_square().sum(0)
    return data.summed(total) / data.functions
