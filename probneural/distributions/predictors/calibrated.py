"""Calibrated predictors: maps from a predictor's fields to fields."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from jaxtyping import Int64
from torch import Tensor

from probneural.distributions.base import FieldDistribution
from probneural.distributions.predictors.base import Predictor, PredictorTraits
from probneural.fields import Field
from probneural.grids import Grid


class Calibrated(Predictor):
    """A predictor whose fields are those of another predictor, mapped one by one; abstract.

    Draws, roll-outs and conditioning follow from the mapped field: a calibrated ensemble draws from its Gaussian field, and the
    members themselves roll out by the ensemble's own `rollout`.

    Args:
        inner: The predictor it wraps.
        calibrated_on: Row keys of the calibration pairs, and of those that `inner` was calibrated on, `(m,)`.
        traits: Those of `inner` by default.
    """

    def __init__(self, inner: Predictor, *, calibrated_on: Int64[Tensor, " m"], traits: PredictorTraits | None = None) -> None:
        super().__init__(inner.traits if traits is None else traits)
        self.inner = inner
        self.calibrated_on = calibrated_on
        self.effective_observations = inner.effective_observations

    def _predict(self, sets: Sequence[tuple[Field, Grid | None]]) -> list[FieldDistribution]:
        fields = self.inner._predict(sets)
        for field in fields:
            field.source = field.source or self.inner._key
        return [self._map(inputs, field) for (inputs, _), field in zip(sets, fields, strict=True)]

    @abstractmethod
    def _map(self, inputs: Field, field: FieldDistribution) -> FieldDistribution:
        """Map the inner predictor's field of inputs `(n, in_channels, *grid)` to the calibrated field."""

    def _details(self) -> str:
        """Parameters of the map, for the description."""
        return ""

    def _description(self) -> str:
        """The class, the inner predictor and the parameters of the map."""
        return f"{type(self).__name__}({', '.join(filter(None, (self.inner._description(), self._details())))})"
