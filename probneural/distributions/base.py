"""The narrow waist: what every distribution over fields can do."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.errors import ArgumentError, GridError, ShapeError
from probneural.functionals import Functional, check_is_functional
from probneural.grids import Grid, check_tensor
from probneural.randomness import stream


class FieldDistribution(ABC):
    """A distribution over n functions with c channels on a grid; abstract.

    Heads produce it; scores, bands, plots and acquisition functions consume it. Observation noise is not part of it.

    Attributes:
        grid: Where the functions are evaluated.
    """

    grid: Grid

    @property
    @abstractmethod
    def mean(self) -> Float[Tensor, "n c *grid"]:
        """The mean, `(n, c, *grid.shape)`, in physical units."""

    @property
    @abstractmethod
    def variance(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise variance, `(n, c, *grid.shape)`, in physical units squared; zero is legal."""

    @property
    @abstractmethod
    def base_shape(self) -> torch.Size:
        """Shape of the base sample behind one coherent draw of all n functions."""

    @abstractmethod
    def rsample(
        self,
        sample_shape: torch.Size | Sequence[int] = (),
        *,
        seed: int | None = None,
        base_samples: Tensor | None = None,
    ) -> Float[Tensor, "*s n c *grid"]:
        """Draw coherent functions: in one draw all n functions come from the same operator.

        Args:
            sample_shape: Shape of the draws.
            seed: Makes the draws repeatable, a non-negative integer; without one they are fresh, and the global generator is
                left alone.
            base_samples: The randomness itself, `(*sample_shape, *base_shape)`; excludes `seed`.

        Returns:
            `(*sample_shape, n, c, *grid.shape)`, differentiable in the inputs of the prediction.
        """

    @abstractmethod
    def apply(self, functional: Functional) -> FieldDistribution:
        """Push forward through a linear functional: the distribution of its values, on a grid of m numbered points.

        Raises:
            GridError: If the functional lives on another grid.
        """

    @abstractmethod
    def scale(self, factors: Float[Tensor, " c"]) -> FieldDistribution:
        """Multiply the deviation from the mean by a positive factor per channel, dimensionless; the mean stays."""

    @abstractmethod
    def __getitem__(self, index: int | slice | Tensor | Sequence[int]) -> FieldDistribution:
        """Select functions; one integer selects one and keeps its batch axis."""

    def alone(self, index: int) -> FieldDistribution:
        """One function by itself: its own distribution, whose randomness need not be shared with the others."""
        return self[index]

    @property
    def standard_deviation(self) -> Float[Tensor, "n c *grid"]:
        """The pointwise standard deviation, `(n, c, *grid.shape)`, in physical units."""
        return self.variance.sqrt()

    def __len__(self) -> int:
        """Number of functions n."""
        return self.mean.shape[0]

    def __repr__(self) -> str:
        """A short description."""
        count, channels = self.mean.shape[:2]
        return f"{type(self).__name__}({count} x {channels} on {self.grid!r}, base_shape={tuple(self.base_shape)})"


def draw_stream(seed: int | None) -> torch.Generator:
    """Where all draws of one seed begin, whatever they are drawn from; without a seed, somewhere new."""
    return stream(seed, "draws")


def index_grid(size: int) -> Grid:
    """Return the grid on which m numbers live: points 0 to m - 1 with unit weights."""
    numbers = torch.arange(size, dtype=torch.float64, device="cpu")
    return Grid.scattered(numbers[:, None], torch.ones_like(numbers))


def check_functional(functional: Functional, grid: Grid) -> None:
    """Raise a GridError unless the functional lives on the grid, an ArgumentError if it is no functional."""
    check_is_functional(functional)
    if functional.grid != grid:
        raise GridError(
            expected=f"a functional on the distribution's grid {grid!r}",
            got=f"one on {functional.grid!r}",
            remedy="build the functional from the distribution's grid",
        )


def check_values(values: Tensor, shape: tuple[int, ...], name: str) -> None:
    """Raise a ShapeError unless the tensor has exactly this shape, a DataError if it is none: nothing is broadcast here."""
    check_tensor(values, name)
    if tuple(values.shape) != shape:
        raise ShapeError(expected=f"{name} of shape {shape}", got=str(tuple(values.shape)), remedy="shapes are not broadcast")


def noise_variance(noise: float | Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Expand an observation variance to `shape = (n, c, ...)`.

    Args:
        noise: One variance, one per channel `(c,)`, or one per value, in physical units squared.
        shape: Shape of the observations; the second axis is channels.
        like: Tensor whose dtype and device to take.

    Raises:
        ArgumentError: If a variance is negative, not finite, or has a shape that fits none of the three.
    """
    variance = torch.as_tensor(noise, dtype=like.dtype, device=like.device)
    if variance.ndim == 1 and variance.shape[0] == shape[1]:
        variance = variance.reshape(1, -1, *(1,) * (len(shape) - 2))
    elif variance.ndim != 0 and tuple(variance.shape) != shape:
        raise ArgumentError(
            expected=f"a noise variance that is a number, one per channel ({shape[1]},), or one per value {shape}",
            got=f"shape {tuple(variance.shape)}",
            remedy="pass predict.noise, or one number",
        )
    if not bool((torch.isfinite(variance) & (variance >= 0)).all()):
        raise ArgumentError(
            expected="finite noise variances >= 0", got=f"{float(variance.min()):g}", remedy="noise is a variance, not a sd"
        )
    return variance.expand(shape)


def sample_size(sample_shape: torch.Size | Sequence[int]) -> int:
    """Number of draws in a sample shape.

    Raises:
        ArgumentError: If it is a number instead of a shape.
    """
    if isinstance(sample_shape, int):
        raise ArgumentError(expected="a shape of draws", got=str(sample_shape), remedy=f"write ({sample_shape},)")
    return math.prod(sample_shape)
