"""What our operators have in common beyond being an `nn.Module`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from probneural.fields import FieldPairs
from probneural.grids import Grid


class Operator(nn.Module, ABC):
    """A neural operator that evaluates anywhere, carries its units, and can be rebuilt from its configuration; abstract.

    Attributes:
        in_channels: Channels of its inputs.
        out_channels: Channels of its outputs.
    """

    in_channels: int
    out_channels: int

    @abstractmethod
    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Map `(n, in_channels, *grid)` to `(n, out_channels, *query)`.

        Args:
            values: Input functions, in physical units.
            grid: Where they live; by default a uniform grid on the unit domain.
            query: Where to evaluate the output; by default where the inputs live.
        """

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments: `type(operator)(**operator.configuration())` is an untrained twin."""

    @property
    @abstractmethod
    def has_units(self) -> bool:
        """Whether units have been taken from data already; training again keeps them."""

    @abstractmethod
    def fit_normalizers(self, train: FieldPairs) -> None:
        """Take the units from training data; called once, by `pn.fit`, before the first step."""
