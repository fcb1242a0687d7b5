"""Laws over the coefficients that a problem's inputs are made of, independent of any grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import assign, check_integer, check_real, check_sequence
from probneural.errors import ArgumentError
from probneural.randomness import stream


class Law(ABC):
    """A distribution of coefficient vectors, from which a problem builds its input functions on any grid; abstract.

    Attributes:
        dimension: Number of axes of the functions.
        minimum_resolution: Fewest points per axis on which the functions are allowed.
    """

    if TYPE_CHECKING:  # at run time a dataclass would take an inherited property for the default of its field

        @property
        def dimension(self) -> int:
            """Number of axes of the functions."""

        @property
        def minimum_resolution(self) -> int:
            """Fewest points per axis on which the functions are allowed."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of coefficients of one draw."""

    @abstractmethod
    def quantiles(self, shares: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Coefficients of which the d leading ones lie at given quantiles, and the others at their medians.

        Args:
            shares: `(n, d)` with d up to `size`, in [0, 1], dimensionless; 0 and 1 give finite coefficients.

        Returns:
            `(n, size)`, differentiable, in the shares' dtype and on their device.
        """

    @abstractmethod
    def _draw(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        """Draw from a generator on the CPU."""

    def draw(self, n: int, seed: int) -> Float64[Tensor, "n size"]:
        """Draw the coefficients of n functions, independently of any grid.

        Args:
            n: Number of functions.
            seed: Names the draw, a non-negative integer; the global generator is not touched.

        Returns:
            `(n, size)`, float64, on the CPU.

        Raises:
            ArgumentError: If n is less than 1, or the seed is none.
        """
        check_integer(n, "n")
        return self._draw(n, stream(seed, "functions"))


@dataclass(frozen=True)
class UniformParameters(Law):
    """Independent parameters, each uniform on an interval.

    Args:
        lower: Least value of each parameter, in the parameter's units.
        upper: Largest value of each, above the least.
        dimension: Number of axes of the functions that the parameters describe.
        minimum_resolution: Fewest points per axis on which the functions are allowed.

    Raises:
        ArgumentError: If the bounds are not equally many, or a lower one is not below its upper one.

    Examples:
        >>> UniformParameters((0.0, 1.0), (1.0, 3.0)).quantiles(torch.tensor([[0.25]])).tolist()
        [[0.25, 2.0]]
    """

    lower: tuple[float, ...]
    upper: tuple[float, ...]
    _: KW_ONLY
    dimension: int = 1
    minimum_resolution: int = 3

    def __post_init__(self) -> None:
        """Validate the arguments."""
        check_integer(self.dimension, "dimension")
        check_integer(self.minimum_resolution, "minimum_resolution")
        for name in ("lower", "upper"):
            bounds = check_sequence(getattr(self, name), name, remedy="give a tuple of numbers")
            assign(self, **{name: tuple(check_real(bound, name) for bound in bounds)})
        if len(self.lower) != len(self.upper) or not all(low < high for low, high in zip(self.lower, self.upper, strict=True)):
            raise ArgumentError(
                expected="as many lower bounds as upper ones, each below its upper one",
                got=f"{self.lower} and {self.upper}",
                remedy="give two tuples of equal length",
            )

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.lower)

    def quantiles(self, shares: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Parameters at given shares of their intervals; see the base class."""
        rest = shares.new_full((shares.shape[0], self.size - shares.shape[1]), 0.5)
        low, high = shares.new_tensor(self.lower), shares.new_tensor(self.upper)
        return low + (high - low) * torch.cat([shares, rest], dim=1)

    def _draw(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return self.quantiles(torch.rand(n, self.size, dtype=torch.float64, generator=generator))


@dataclass(frozen=True)
class IndependentLaws(Law):
    """Several laws side by side: the coefficients of each, one after the other.

    Quantiles are dealt out in turn, so the leading coordinates of a design reach every part.

    Args:
        parts: The laws, over functions of one dimension.

    Raises:
        ArgumentError: If there are none, or their dimensions differ.
    """

    parts: tuple[Law, ...]

    def __post_init__(self) -> None:
        """Validate the arguments."""
        if not self.parts or len({part.dimension for part in self.parts}) != 1:
            raise ArgumentError(
                expected="at least one law, all of one dimension",
                got=str([part.dimension for part in self.parts]),
                remedy="give a tuple of laws over functions of equally many axes",
            )

    @property
    def dimension(self) -> int:
        """Number of axes, which all parts share."""
        return self.parts[0].dimension

    @property
    def minimum_resolution(self) -> int:
        """The finest that any part asks for."""
        return max(part.minimum_resolution for part in self.parts)

    @property
    def size(self) -> int:
        """Number of all coefficients."""
        return sum(part.size for part in self.parts)

    def split(self, coefficients: Float[Tensor, "n size"]) -> Sequence[Float[Tensor, "n _"]]:
        """The coefficients of each part."""
        return coefficients.split([part.size for part in self.parts], dim=1)

    def quantiles(self, shares: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Quantiles dealt out in turn; see the base class."""
        hands: list[list[Tensor]] = [[] for _ in self.parts]
        owner = 0
        for share in shares.unbind(1):
            while len(hands[owner]) == self.parts[owner].size:
                owner = (owner + 1) % len(self.parts)
            hands[owner].append(share)
            owner = (owner + 1) % len(self.parts)
        dealt = [torch.stack(hand, dim=1) if hand else shares[:, :0] for hand in hands]
        return torch.cat([part.quantiles(hand) for part, hand in zip(self.parts, dealt, strict=True)], dim=1)

    def _draw(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return torch.cat([part._draw(n, generator) for part in self.parts], dim=1)
