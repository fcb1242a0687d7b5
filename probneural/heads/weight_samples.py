"""Sets of operators with different weights: ensembles, and samples of posteriors without linearisation."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.func import vmap

from probneural.contexts import copy_for_call
from probneural.curvature import ParameterVector
from probneural.distributions import EmpiricalField, FieldDistribution, Predictor, PredictorTraits
from probneural.distributions.empirical import LazyEmpiricalField, drawn_members
from probneural.errors import ProbneuralError, ShapeError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads.training_data import check_some
from probneural.randomness import stream
from probneural.registry import stored

_BATCH_POINTS = 2**16
"""Number of members times samples times grid points per evaluation."""
_VMAP_POINTS = 2**11
"""Maximum number of samples times grid points for vmap over members, which saves call overhead only."""


@stored(on_cpu=("effective_observations",))
class WeightSampledPredictor(Predictor):
    """An ensemble of operators that differ in their weights; its predictions are empirical fields, one sample per member.

    For few points members are evaluated together (`torch.func.vmap`), if the operator supports it; for many points
    sequentially. The choice depends on sizes only, so results are reproducible.

    Args:
        operator: Operator in evaluation mode; defines everything except `vectors` and `buffers`.
        layout: The parameters that vary.
        vectors: Values of these parameters, `(s, P)`.
        noise: Observation variance per channel, `(c,)`, in physical units squared.
        domain: The grid of the training inputs.
        in_channels: Channels of the inputs.
        buffers: Buffers that differ between members (running statistics, for example) by name, `(s, *shape)` each.
        effective_observations: Independent observations per field and channel, `(c,)`, dimensionless; None if unknown.

    Raises:
        ArgumentError: If the layout does not fit the operator.
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
        buffers: Mapping[str, Tensor] | None = None,
        effective_observations: Float64[Tensor, " c"] | None = None,
    ) -> None:
        layout.check(operator)
        layout.check_size("vectors", vectors.shape[1])
        forms = {name: (len(vectors), *one.shape, one.dtype) for name, one in operator.named_buffers()}
        for name, values in (buffers or {}).items():
            if forms.get(name) != (*values.shape, values.dtype):
                raise ShapeError(
                    expected=f"{len(vectors)} values of a buffer of {type(operator).__name__} as {name}",
                    got=f"{values.dtype} {tuple(values.shape)}",
                    remedy="see named_buffers()",
                )
        super().__init__(PredictorTraits(in_channels=in_channels, noise=noise, domain=domain, like=vectors))
        self.operator = operator
        self.layout = layout
        self.vectors = vectors
        self.buffers = dict(buffers or {})
        self.effective_observations = effective_observations

    @property
    def members(self) -> int:
        """Number of operators s."""
        return len(self.vectors)

    def operators(self) -> list[nn.Module]:
        """Copies of the operators, one per member, in evaluation mode."""
        return [with_state(self.operator, self._state(member)) for member in range(self.members)]

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        return [self._field(inputs, query) for inputs, query in sets]

    def _field(self, inputs: Field, query: Grid | None) -> EmpiricalField:
        check_some(inputs)
        where = inputs.grid if query is None else query
        return LazyEmpiricalField(
            lambda: self._all_members(inputs, query),
            draw=lambda seeds, each: self._draws(inputs, query, seeds, each=each),
            size=(self.members, len(inputs)),
            grid=where,
            like=self.vectors,
            source=self._key,
        )

    def _all_members(self, inputs: Field, query: Grid | None) -> Float[Tensor, "s n c *grid"]:
        """All members at all inputs, in chunks of bounded memory."""
        points = max(inputs.grid.size, inputs.grid.size if query is None else query.size)
        step = min(max(1, _BATCH_POINTS // points), len(inputs))
        width = 1
        if step * points <= _VMAP_POINTS and self._is_followed_by_vmap:
            width = min(_BATCH_POINTS // (step * points), self.members)
        parts = [self._samples(inputs[start : start + step], query, width) for start in range(0, len(inputs), step)]
        return torch.cat(parts, dim=1)

    def _draws(self, inputs: Field, query: Grid | None, seeds: tuple[int, ...], *, each: bool) -> Float[Tensor, "..."]:
        """The members of seeds; each operator is called once for all its inputs."""
        step = max(1, _BATCH_POINTS // max(inputs.grid.size, inputs.grid.size if query is None else query.size))
        members = drawn_members(torch.ones(self.members), seeds, name=self._key)
        outputs: dict[int, Tensor] = {}
        for member in members.unique().tolist():
            rows = torch.nonzero(members == member).flatten() if each else torch.arange(len(inputs))
            batches = (inputs[part.to(inputs.values.device)] for part in rows.split(step))
            values = torch.cat([self._evaluate(self._state(member), batch, query) for batch in batches])
            outputs |= dict(zip(rows.tolist(), values, strict=True)) if each else {member: values}
        return torch.stack([outputs[row] for row in (range(len(members)) if each else members.tolist())])

    def _evaluate(self, state: Mapping[str, Tensor], inputs: Field, query: Grid | None) -> Tensor:
        """One member."""
        return evaluate(copy_for_call(self.operator, state), inputs, query)

    def _state(self, member: int) -> dict[str, Tensor]:
        """Parameters and buffers of one member that differ from the operator's, by name."""
        return self.layout.unflatten(self.vectors[member]) | {name: values[member] for name, values in self.buffers.items()}

    def _samples(self, inputs: Field, query: Grid | None, width: int) -> Float[Tensor, "s n c *grid"]:
        """All members, in chunks of `width`."""
        if width == 1:
            return torch.stack([self._evaluate(self._state(member), inputs, query) for member in range(self.members)])

        def one(vector: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
            return self._evaluate({**self.layout.unflatten(vector), **buffers}, inputs, query)

        together = vmap(one)
        blocks = [slice(start, start + width) for start in range(0, self.members, width)]
        buffers = [{name: values[block] for name, values in self.buffers.items()} for block in blocks]
        return torch.cat([together(self.vectors[block], some) for block, some in zip(blocks, buffers, strict=True)])

    @cached_property
    def _is_followed_by_vmap(self) -> bool:
        """Whether joint and sequential evaluation of members agree at a random input."""
        shape = (1, self.in_channels, *self.domain.shape)
        values = torch.randn(shape, generator=stream(0, "vmap check"), dtype=torch.float64, device="cpu")
        inputs = Field(values.to(self.device, self.dtype), self.domain)
        with torch.no_grad():
            try:
                one_by_one, together = (self._samples(inputs, None, width) for width in (1, self.members))
            except (ProbneuralError, RuntimeError, TypeError, ValueError):  # of modules that do not accept the input, or vmap
                return False
        rounding = torch.finfo(self.dtype).eps ** 0.5 * one_by_one.abs().max()
        return bool((together - one_by_one).abs().max() <= rounding)  # vmap ignores hidden state of a module


@torch.no_grad()
def with_state(module: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy with these values of parameters and buffers; the remaining ones are unchanged."""
    copied = copy.deepcopy(module)
    for name, tensor in (*copied.named_parameters(), *copied.named_buffers()):
        if name in state:
            tensor.data = state[name].clone()  # as `Module.to` does it: what is tied stays tied
    return copied
