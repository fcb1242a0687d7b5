"""Distributions over the coefficients that a problem's inputs are made of, independent of any grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.distributions import Distribution, Independent, Uniform

from probneural.checks import assign, check_callable, check_floating, check_instance, check_integer, check_sequence, check_shape
from probneural.contexts import Undisturbed
from probneural.errors import ArgumentError, DataError, ShapeError, UnsupportedError
from probneural.grids import Grid
from probneural.randomness import check_seed, stream
from probneural.settings import Count, Numbers, Settings


class InputDistribution(Settings, Undisturbed, ABC):
    """A distribution of coefficient vectors of input functions on any grid; abstract.

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
            """Minimum number of points per axis for the functions."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of coefficients of one draw."""

    @property
    def factors(self) -> tuple[Distribution, ...]:
        """Independent distributions of the coefficients, side by side, of event shapes `(k,)` that sum to `size`.

        Raises:
            UnsupportedError: If the coefficients have no density in closed form.
        """
        raise UnsupportedError(
            expected="coefficients with a density in closed form",
            got=type(self).__name__,
            remedy="give a torch.distributions.Distribution",
        )

    @abstractmethod
    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Coefficients with the d leading ones at given quantiles, and the others at their medians.

        Args:
            probabilities: `(n, d)` with d up to `size`, in [0, 1], dimensionless; 0 and 1 give finite coefficients.

        Returns:
            `(n, size)`, differentiable, in the probabilities' dtype and on their device.
        """

    @abstractmethod
    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        """Draw coefficients `(n, size)`, float64, from a generator on the CPU; n is at least 1."""

    def draw(self, n: int, seed: int) -> Float64[Tensor, "n size"]:
        """Draw the coefficients of n functions, independently of any grid.

        Args:
            n: Number of functions.
            seed: Names the draw, a non-negative integer; the global generator is not touched.

        Returns:
            `(n, size)`, float64, on the CPU.

        Raises:
            ArgumentError: If n is less than 1, or the seed is invalid.
        """
        check_integer(n, "n")
        return self._coefficients(n, stream(check_seed(seed), "functions"))


@dataclass(frozen=True)
class UniformParameters(InputDistribution):
    """Independent parameters, each uniform on an interval.

    Args:
        lower: Least value of each parameter, in the parameter's units.
        upper: Largest value of each, above the least.
        dimension: Number of axes of the functions with these parameters.
        minimum_resolution: Fewest points per axis on which the functions are allowed.

    Raises:
        ArgumentError: If the bounds are not equally many, or a lower one is not below its upper one.

    Examples:
        >>> UniformParameters((0.0, 1.0), (1.0, 3.0)).quantiles(torch.tensor([[0.25]])).tolist()
        [[0.25, 2.0]]
    """

    lower: Numbers
    upper: Numbers
    _: KW_ONLY
    dimension: Count = 1
    minimum_resolution: Count = 3

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        if len(self.lower) != len(self.upper) or not all(low < high for low, high in zip(self.lower, self.upper, strict=True)):
            raise ArgumentError(
                expected="equal numbers of lower and upper bounds, each lower one below its upper one",
                got=f"{self.lower} and {self.upper}",
                remedy="give two tuples of equal length",
            )

    @property
    def size(self) -> int:
        """Number of parameters."""
        return len(self.lower)

    @property
    def factors(self) -> tuple[Distribution, ...]:
        """The uniform distribution of all parameters."""
        lower, upper = (torch.tensor(values, dtype=torch.float64) for values in (self.lower, self.upper))
        return (Independent(Uniform(lower, upper), 1),)

    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Parameters at given probabilities of their intervals; see the base class."""
        check_levels(probabilities, self.size)
        medians = probabilities.new_full((probabilities.shape[0], self.size - probabilities.shape[1]), 0.5)
        low, high = probabilities.new_tensor(self.lower), probabilities.new_tensor(self.upper)
        return low + (high - low) * torch.cat([probabilities, medians], dim=1)

    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return self.quantiles(torch.rand(n, self.size, dtype=torch.float64, generator=generator))


class _Joined(InputDistribution):
    """Base class of distributions of the coefficients of several parts."""

    parts: tuple[InputDistribution, ...]

    @property
    def dimension(self) -> int:
        """Number of axes of all parts."""
        return self.parts[0].dimension

    @property
    def minimum_resolution(self) -> int:
        """Maximum over the parts."""
        return max(part.minimum_resolution for part in self.parts)

    @property
    def size(self) -> int:
        """Number of all coefficients."""
        return sum(part.size for part in self.parts)

    @property
    def factors(self) -> tuple[Distribution, ...]:
        """Those of all parts."""
        return tuple(factor for part in self.parts for factor in part.factors)

    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Alternately assigned quantiles; see the base class."""
        check_levels(probabilities, self.size)
        hands: list[list[Tensor]] = [[] for _ in self.parts]
        owner = 0
        for probability in probabilities.unbind(1):
            while len(hands[owner]) == self.parts[owner].size:
                owner = (owner + 1) % len(self.parts)
            hands[owner].append(probability)
            owner = (owner + 1) % len(self.parts)
        dealt = [torch.stack(hand, dim=1) if hand else probabilities[:, :0] for hand in hands]
        return torch.cat([part.quantiles(hand) for part, hand in zip(self.parts, dealt, strict=True)], dim=1)

    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return torch.cat([part._coefficients(n, generator) for part in self.parts], dim=1)


@dataclass(frozen=True)
class IndependentDistributions(_Joined):
    """Several distributions side by side: the coefficients of each, one after the other.

    Quantiles are assigned to the parts alternately, so the leading coordinates of a design affect every part.

    Args:
        parts: The distributions, over functions of one dimension.

    Raises:
        ArgumentError: If there are no parts, or their dimensions differ.
    """

    parts: tuple[InputDistribution, ...]

    def __post_init__(self) -> None:
        """Validate the arguments."""
        remedy = "give a tuple of distributions"
        assign(self, parts=check_sequence(self.parts, "parts", remedy=remedy))
        for part in self.parts:
            check_instance(part, InputDistribution, "a part", remedy=remedy, error=ArgumentError)
        if not self.parts or len({part.dimension for part in self.parts}) != 1:
            raise ArgumentError(
                expected="at least one distribution, all of one dimension",
                got=str([part.dimension for part in self.parts]),
                remedy="give a tuple of distributions over functions of equal dimension",
            )

    def split(self, coefficients: Float[Tensor, "n size"]) -> Sequence[Float[Tensor, "n _"]]:
        """The coefficients of each part."""
        check_shape(check_floating(coefficients, "coefficients"), "coefficients", "n", self.size, remedy="pass draws")
        return coefficients.split([part.size for part in self.parts], dim=1)


@dataclass(frozen=True)
class StateDistribution(_Joined):
    """A distribution of coefficients, and the function that makes fields of them.

    Args:
        coefficients: The distribution of coefficients.
        build: Maps coefficients `(n, coefficients.size)` and a grid to fields `(n, channels, *grid.shape)`, differentiably.
        channels: Number of channels of the fields.

    Raises:
        ArgumentError: If an argument is of another kind, or `channels` is less than 1.

    Examples:
        >>> heights = UniformParameters((0.0,), (1.0,))
        >>> constant = StateDistribution(heights, lambda values, grid: values[:, :, None].expand(-1, 1, grid.size))
        >>> constant.size, constant.channels
        (1, 1)
    """

    coefficients: InputDistribution
    build: Callable[[Tensor, Grid], Tensor]
    _: KW_ONLY
    channels: Count = 1

    def __post_init__(self) -> None:
        """Validate the arguments."""
        super().__post_init__()
        check_callable(self.build, "build", remedy="give a function of coefficients and a grid")

    @property
    def parts(self) -> tuple[InputDistribution, ...]:  # type: ignore[override]
        """The distribution of the coefficients alone."""
        return (self.coefficients,)

    def evaluate(self, coefficients: Float[Tensor, "n size"], grid: Grid) -> Float[Tensor, "n c *grid"]:
        """Fields on a grid.

        Raises:
            ShapeError: If `build` returns another shape.
        """
        states, sizes = self.build(coefficients, grid), (len(coefficients), self.channels, *grid.shape)
        return check_shape(states, "states from build", *sizes, remedy="axis 1 is channels")


def describe_tensor(value: object) -> str:
    """Shape and dtype of a tensor, or the type of anything else, for messages."""
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else str(type(value))


def check_sample_dtype(dtype: torch.dtype) -> None:
    """Raise an ArgumentError unless a dtype is one of those that samples may have."""
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError(expected="dtype torch.float32 or torch.float64", got=repr(dtype), remedy="the default is float32")


def check_levels(probabilities: Float[Tensor, "n d"], size: int) -> None:
    """Raise a typed error unless probabilities are `(n, d)` numbers in [0, 1], d at most `size`."""
    check_shape(check_floating(probabilities, "probabilities"), "probabilities", "n", "d", remedy="give (n, d)")
    check_integer(probabilities.shape[1], "number of probabilities", least=0, most=size, error=ShapeError)
    if not bool(((probabilities >= 0) & (probabilities <= 1)).all()):
        raise DataError(
            expected="probabilities from 0 to 1", got="others, or NaN", remedy="clamp them: probabilities.clamp(0, 1)"
        )
