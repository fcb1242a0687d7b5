"""Base class of operators."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import checks_keywords
from probneural.grids import Grid
from probneural.operators.layers.normalizer import ChannelNormalizer
from probneural.pairs import Dataset
from probneural.pretrained import Pretrained
from probneural.randomness import seeded


class Operator(Pretrained, nn.Module, ABC):
    """A neural operator that evaluates anywhere, carries its units, and can be rebuilt from its configuration; abstract.

    Attributes:
        in_channels: Channels of its inputs.
        out_channels: Channels of its outputs.
    """

    in_channels: int
    out_channels: int
    input_normalizer: ChannelNormalizer
    output_normalizer: ChannelNormalizer

    def __init_subclass__(cls, **options: Any) -> None:
        """Unknown keywords of the constructor are named with those that were meant."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = checks_keywords(cls.__init__)  # type: ignore[method-assign]

    @abstractmethod
    def forward(
        self, values: Float[Tensor, "n c *grid"], *, grid: Grid | None = None, query: Grid | None = None
    ) -> Float[Tensor, "n c2 *query"]:
        """Map `(n, in_channels, *grid)` to `(n, out_channels, *query)`.

        Args:
            values: Inputs, in physical units.
            grid: Grid of the inputs; by default a uniform grid on the unit domain.
            query: Grid of the outputs; the inputs' grid by default.
        """

    def configuration(self) -> dict[str, Any]:
        """The constructor's arguments but for the seed: `type(operator)(**operator.configuration())` is an untrained twin.

        An operator has each argument as an attribute of the argument's name, or overrides this method.
        """
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters if name != "seed"}

    @property
    def has_units(self) -> bool:
        """Whether units have been taken from data already, so that a normaliser left its initial state; training keeps them."""
        return any(module.is_fitted for module in self.modules() if isinstance(module, ChannelNormalizer))

    def fit_normalizers(self, *train: Dataset) -> None:
        """Fit the normalisers to one or several training data sets; called by `pn.fit` before the first step.

        By default these are `input_normalizer` and `output_normalizer`.
        """
        self.input_normalizer.fit(*(data.inputs for data in train))
        self.output_normalizer.fit(*(data.outputs for data in train))


def initial_weights(seed: int | None) -> AbstractContextManager[object]:
    """Draw the weights of the layers made in this context from a seed, or from torch's global generator if it is None.

    Raises:
        ArgumentError: If the seed is not a non-negative integer.
    """
    return nullcontext() if seed is None else seeded(seed, "weights")
