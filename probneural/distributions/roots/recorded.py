"""A root that is never formed: functionals, updates of the latent side and scales are recorded and applied later."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate, UpdateSequence

_NO_UPDATES = UpdateSequence()


@dataclass(frozen=True, eq=False)
class RecordedMaps:
    """The maps A of values and S of latent vectors that make A R S of a root R.

    Args:
        factors: One per channel, `(c,)`, dimensionless.
        functionals: Applied to the values in turn.
        updates: Applied to the latent side.
    """

    factors: Float[Tensor, " c"]
    functionals: tuple[Functional, ...] = ()
    updates: UpdateSequence = _NO_UPDATES

    def push(self, functional: Functional) -> RecordedMaps:
        """Record a functional."""
        return replace(self, functionals=(*self.functionals, functional))

    def compose(self, update: LowRankUpdate) -> RecordedMaps:
        """Record an update."""
        return replace(self, updates=self.updates.then(update))

    def scale(self, factors: Float[Tensor, " c"]) -> RecordedMaps:
        """Record factors."""
        return replace(self, factors=self.factors * factors.to(self.factors))

    def __getitem__(self, index: int | slice | Tensor) -> RecordedMaps:
        """What was done to some functions, or to one."""
        return replace(self, updates=self.updates[index])

    def size(self, points: int) -> int:
        """Number of values that p points become."""
        return self.functionals[-1].size if self.functionals else points

    def values(self, values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c p"]:
        """Apply functionals and factors."""
        for functional in self.functionals:
            values = functional(values)
        return values.flatten(2) * self.factors.to(values)[:, None]
