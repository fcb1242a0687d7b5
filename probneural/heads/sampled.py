"""Operators with weights of their own, each evaluated as it is: ensembles, and posteriors that are not linearised."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.func import vmap

from probneural.checks import check_choice
from probneural.curvature import ParameterVector
from probneural.distributions import EmpiricalField, Predictor
from probneural.errors import UnsupportedError
from probneural.fields import Field, evaluate
from probneural.grids import Grid
from probneural.heads.residuals import check_some
from probneural.threads import copy_for_call

PREDICTION = ("auto", "loop", "vmap")
"""Ways to evaluate members."""

_BATCH_POINTS = 2**16
"""Members times functions times grid points evaluated at once."""
_OVERHEAD_BOUND = 5e-3
"""Seconds beyond which the overhead of an evaluation's calls, all that evaluating members together saves, no longer counts."""
_TIMED_MEMBERS, _REPEATS = 8, 3
_GAIN = 0.9
"""Evaluating members together has to measure this much faster than one by one: a coin toss keeps the loop."""


class WeightSampledPredictor(Predictor):
    """An ensemble of operators that differ in their weights; its predictions are empirical fields, one sample per member.

    Members are evaluated one after the other or, where a short measurement at the first prediction of a shape finds that
    faster, many at once (`vmap`). The two differ by rounding; `execution` fixes the way where every bit has to repeat.

    Args:
        operator: Gives everything but the chosen parameters and the buffers that differ, in evaluation mode.
        layout: Which parameters vary.
        vectors: Their values, `(s, P)`.
        noise: Observation variance per channel, `(c,)`, in physical units squared.
        domain: The grid of the training inputs.
        in_channels: Channels of the inputs.
        buffers: Buffers that differ between members (running statistics, for example) by name, `(s, *shape)` each.
        execution: `"auto"`, `"loop"` or `"vmap"`.
        report: What fitting found out, by name.

    Raises:
        ArgumentError: If there is no such way of execution.
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
        execution: str = "auto",
        report: Mapping[str, float] | None = None,
    ) -> None:
        check_choice(execution, PREDICTION, "execution")
        layout.check(operator)
        self.operator = operator
        self.layout = layout
        self.vectors = vectors
        self.noise = noise
        self.domain = domain
        self.in_channels = in_channels
        self.out_channels = len(noise)
        self.buffers = dict(buffers or {})
        self.execution = execution
        self.report = dict(report or {})
        self._widths: dict[tuple[object, ...], int] = {}

    @property
    def members(self) -> int:
        """Number of operators s."""
        return len(self.vectors)

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
        where = inputs.grid if query is None else query
        points = max(inputs.grid.size, where.size)
        step = min(max(1, _BATCH_POINTS // points), len(inputs))
        width = min(max(1, _BATCH_POINTS // (step * points)), self.members)
        width = self._chosen_width(inputs[:step], query, width)
        parts = [self._samples(inputs[start : start + step], query, width) for start in range(0, len(inputs), step)]
        return EmpiricalField(torch.cat(parts, dim=1), grid=where)

    def _evaluate(self, vector: Tensor, buffers: Mapping[str, Tensor], inputs: Field, query: Grid | None) -> Tensor:
        """One member."""
        return evaluate(copy_for_call(self.operator, {**self.layout.unflatten(vector), **buffers}), inputs, query)

    def _rows(self, rows: slice) -> tuple[Tensor, dict[str, Tensor]]:
        return self.vectors[rows], {name: values[rows] for name, values in self.buffers.items()}

    def _samples(self, inputs: Field, query: Grid | None, width: int, *, count: int | None = None) -> Float[Tensor, "..."]:
        """The first `count` members, `width` at a time."""
        last = self.members if count is None else count

        def one(vector: Tensor, buffers: Mapping[str, Tensor]) -> Tensor:
            return self._evaluate(vector, buffers, inputs, query)

        if width == 1:
            return torch.stack(
                [one(self.vectors[i], {name: values[i] for name, values in self.buffers.items()}) for i in range(last)]
            )
        together = vmap(one)
        return torch.cat([together(*self._rows(slice(start, min(start + width, last)))) for start in range(0, last, width)])

    def _chosen_width(self, inputs: Field, query: Grid | None, widest: int) -> int:
        """Members to evaluate at once, found once for every shape."""
        if self.execution == "loop" or widest == 1:
            return 1
        key = (tuple(inputs.values.shape), None if query is None else query.shape, widest)
        if key not in self._widths:
            with torch.no_grad():
                still = Field(inputs.values.detach(), inputs.grid)
                self._widths[key] = self._measured_width(still, query, widest)
        return self._widths[key]

    def _measured_width(self, inputs: Field, query: Grid | None, widest: int) -> int:
        few = min(widest, _TIMED_MEMBERS)
        one_by_one = self._samples(inputs, query, 1, count=few)
        try:
            together = self._samples(inputs, query, widest, count=widest)
        except (RuntimeError, TypeError, ValueError) as error:  # what modules that vmap cannot follow raise
            if self.execution == "vmap":
                raise UnsupportedError(
                    expected="an operator that torch.func.vmap can follow",
                    got=str(error),
                    remedy="evaluate its members with execution='loop' (prediction='loop' in the head)",
                ) from error
            return 1
        if self.execution == "vmap":
            return widest
        rounding = torch.finfo(self.dtype).eps ** 0.5 * one_by_one.abs().max()
        if not bool((together[:few] - one_by_one).abs().max() <= rounding):  # a module whose state vmap does not see
            return 1
        if self._seconds(lambda: self._samples(inputs, query, 1, count=1)) > _OVERHEAD_BOUND:
            return 1
        loops, batches = [], []
        for _ in range(_REPEATS):
            loops.append(self._seconds(lambda: self._samples(inputs, query, 1, count=few)) / few)
            batches.append(self._seconds(lambda: self._samples(inputs, query, widest, count=widest)) / widest)
        return widest if statistics.median(batches) < _GAIN * statistics.median(loops) else 1

    def _seconds(self, work: Callable[[], object]) -> float:
        """Time one call, with what it has left running on the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        start = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start
