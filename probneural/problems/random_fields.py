"""Gaussian random fields drawn as coefficients, so that one draw is the same function on every grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.distributions import Distribution, Independent, Normal

from probneural.checks import check_count, check_floating, check_positive, check_sequence, check_shape
from probneural.grids import Grid, along_axis, check_grid
from probneural.problems.input_distributions import InputDistribution, check_levels, check_sample_dtype
from probneural.settings import Count, Positive

CORNER_TAIL = 1e-3
"""Probability that `quantiles` keeps between 0 or 1 and infinity: coefficients reach ±3.09 standard deviations, and the slope
of the map stays below 300 there (with 1e-6 it would be 2e5, which ruins gradient-based acquisition)."""

Boundary = Literal["periodic", "dirichlet", "neumann"]
"""Boundary conditions, which define the eigenfunctions of a Gaussian random field."""


@dataclass(frozen=True)
class GaussianRandomField(InputDistribution):
    """The distribution N(0, σ²(−Δ + τ²)^−α) on the unit cube [0, 1]^d, cut at K modes per axis.

    A draw is u(x) = Σ_k √λ_k ξ_k e_k(x), with independent ξ_k ~ N(0, 1) and e_k the real orthonormal eigenfunctions of −Δ:

    * `"periodic"`: products over the axes of 1, √2 cos 2πkx and √2 sin 2πkx for k ≤ K, without the constant function (so
      every draw has zero mean), λ_k = σ²((2π)²|k|² + τ²)^−α. The distribution is stationary.
    * `"dirichlet"`: products of √2 sin πkx for 1 ≤ k ≤ K, λ_k = σ²(π²|k|² + τ²)^−α. Draws vanish on the boundary.
    * `"neumann"`: products of 1 and √2 cos πkx for k ≤ K, without the constant function, and the same λ_k. Draws have zero
      mean, and no slope across the boundary.

    Coefficients √λ_k ξ_k are ordered by |k|, the largest eigenvalue first. Everything is dimensionless.

    In the limit of many modes this is a Matérn field of smoothness α − d/2 and length √(2α − d)/τ; for α ≤ d/2 that
    limit is not a function, and the variance of the truncated distribution grows with `modes`.

    Args:
        dimension: Number of space dimensions d.
        modes: Highest wavenumber K on each axis.
        sigma: Amplitude σ, in units of the field (the distribution's short name "GRF(25, 5, 2)" lists σ, τ, α).
        tau: Inverse length scale τ, in angular wavenumbers.
        alpha: Half the rate at which the coefficients' variance decays, larger is smoother.
        boundary: Boundary condition of the eigenfunctions.

    Raises:
        ArgumentError: If an argument is out of range.

    Reference:
        Lord, Powell and Shardlow (2014), An Introduction to Computational Stochastic PDEs, chapter 7 (Karhunen-Loève
        expansions). The default σ, τ, α are those of Li et al. (2021), Fourier Neural Operator, section 5.1.

    Examples:
        >>> field = GaussianRandomField(1, 31)
        >>> coefficients = field.draw(3, seed=0)
        >>> coarse, fine = (field.evaluate(coefficients, Grid.uniform((size,))) for size in (64, 128))
        >>> bool((coarse - fine[:, ::2]).abs().max() < 1e-14)
        True
    """

    dimension: Count
    modes: Count
    _: KW_ONLY
    sigma: Positive = 25.0
    tau: Positive = 5.0
    alpha: Positive = 2.0
    boundary: Boundary = "periodic"

    @property
    def minimum_resolution(self) -> int:
        """Minimum number of points per axis: 2K + 1.

        That is what a periodic axis needs to hold K modes. Sine modes would fit on K + 2 points, but products and
        derivatives of the draws would not, so one rule serves all.
        """
        return 2 * self.modes + 1

    @property
    def size(self) -> int:
        """Number of coefficients of one draw."""
        return self._places.shape[0]

    @property
    def factors(self) -> tuple[Distribution, ...]:
        """Independent Gaussian coefficients of mean 0."""
        return (Independent(Normal(torch.zeros_like(self.eigenvalues), self.eigenvalues.sqrt()), 1),)

    @cached_property
    def eigenvalues(self) -> Float64[Tensor, " size"]:
        """Variances of the coefficients, largest first, in the field's units squared."""
        frequency = 2.0 * math.pi if self.boundary == "periodic" else math.pi
        laplacian = frequency**2 * self._squares.flatten()[self._places].double()
        return self.sigma**2 * (laplacian + self.tau**2) ** -self.alpha

    @property
    def mean_variance(self) -> float:
        """The pointwise variance averaged over the domain (if periodic, its value everywhere), field units squared."""
        return float(self.eigenvalues.sum())

    @cached_property
    def _squares(self) -> Int64[Tensor, "..."]:
        """|k|² for each product of one-dimensional basis functions, a tensor with d axes."""
        along = {
            "periodic": (torch.arange(2 * self.modes + 1) + 1) // 2,
            "dirichlet": torch.arange(self.modes) + 1,
            "neumann": torch.arange(self.modes + 1),
        }[self.boundary]
        total = torch.zeros((), dtype=torch.int64)
        for _ in range(self.dimension):
            total = total[..., None] + along**2
        return total

    @cached_property
    def _places(self) -> Int64[Tensor, " size"]:
        """Where each coefficient sits in the flattened tensor of products; sorting integers makes ties reproducible."""
        order = torch.sort(self._squares.flatten(), stable=True).indices
        return order if self.boundary == "dirichlet" else order[1:]

    def _coefficients(self, n: int, generator: torch.Generator) -> Float64[Tensor, "n size"]:
        return torch.randn(n, self.size, dtype=torch.float64, generator=generator) * self.eigenvalues.sqrt()

    def quantiles(self, probabilities: Float[Tensor, "n d"]) -> Float[Tensor, "n size"]:
        """Leading coefficients √λ_i Φ⁻¹(ε + (1 − 2ε) s_i) with ε = 10⁻³, the other ones zero; see the base class."""
        check_levels(probabilities, self.size)
        scores = torch.special.ndtri(CORNER_TAIL + (1.0 - 2.0 * CORNER_TAIL) * probabilities)
        leading = scores * self.eigenvalues[: probabilities.shape[1]].sqrt().to(scores)
        return torch.cat([leading, leading.new_zeros(leading.shape[0], self.size - leading.shape[1])], dim=1)

    def evaluate(
        self, coefficients: Float[Tensor, "n size"], grid: Grid, *, dtype: torch.dtype | None = None
    ) -> Float[Tensor, " n *grid"]:
        """Evaluate functions on a uniform grid, exactly.

        Args:
            coefficients: `(n, size)`.
            grid: A uniform grid in d dimensions.
            dtype: Dtype of the result; the coefficients' by default. The arithmetic is in the coefficients' dtype.

        Returns:
            `(n, *grid.shape)`.

        Raises:
            GridError: If the grid is scattered or has another dimension.
            ShapeError: If the coefficients have another shape.
        """
        self._check_grid(grid)
        if dtype is not None:
            check_sample_dtype(dtype)
        values = self.evaluate_on_axes(coefficients, [axis.coordinates for axis in grid.axes])
        return values if dtype is None else values.to(dtype)

    def evaluate_on_axes(
        self, coefficients: Float[Tensor, "n size"], coordinates: Sequence[Float64[Tensor, " _"]]
    ) -> Float[Tensor, " n *grid"]:
        """Evaluate functions on the tensor product of any coordinates, exactly.

        Args:
            coefficients: `(n, size)`.
            coordinates: One vector of coordinates per axis, of any lengths.

        Returns:
            `(n, *lengths)`, in the coefficients' dtype.

        Raises:
            ShapeError: If the coefficients or the number of axes do not fit the distribution.
        """
        check_shape(check_floating(coefficients, "coefficients"), "coefficients", "n", self.size, remedy="pass draws")
        coordinates = check_sequence(coordinates, "coordinates", remedy="give one vector per axis")
        check_count(len(coordinates), self.dimension, "vectors of coordinates", remedy="give one vector per axis")
        for points in coordinates:
            check_shape(check_floating(points, "coordinates"), "coordinates of an axis", "m", remedy="give (m,) per axis")
        products = coefficients.new_zeros(coefficients.shape[0], self._squares.numel())
        products = products.index_copy(1, self._places.to(coefficients.device), coefficients)
        values = products.unflatten(1, self._squares.shape)
        for number, points in enumerate(coordinates):
            values = along_axis(values, self._basis(points), number - self.dimension)
        return values

    def standard_deviation(self, grid: Grid) -> Float64[Tensor, " *grid"]:
        """The pointwise standard deviation in closed form, `(*grid.shape)`, in the field's units.

        Raises:
            GridError: If the grid is scattered or has another dimension.
        """
        self._check_grid(grid)
        variance = torch.zeros(self._squares.numel(), dtype=torch.float64)
        variance[self._places] = self.eigenvalues
        variance = variance.reshape(self._squares.shape)
        for number, axis in enumerate(grid.axes):
            variance = along_axis(variance, self._basis(axis.coordinates).square(), number - self.dimension)
        return variance.sqrt()

    def amplified(self, factor: float) -> GaussianRandomField:
        """The distribution of `factor` times the field."""
        check_positive(factor, "factor")
        return replace(self, sigma=self.sigma * factor)

    def roughened(self, factor: float) -> GaussianRandomField:
        """The distribution with α divided by `factor`, and σ chosen to leave the mean variance as it was.

        Lowering α alone would also raise the amplitude (threefold from 2 to 1.5 at the default distribution), and an
        out-of-distribution test could not tell the two apart.
        """
        check_positive(factor, "factor")
        rough = replace(self, alpha=self.alpha / factor)
        return replace(rough, sigma=self.sigma * math.sqrt(self.mean_variance / rough.mean_variance))

    def _check_grid(self, grid: Grid) -> None:
        """Raise a GridError unless a grid is uniform and has the dimension of the field."""
        remedy = "make one with Grid.uniform; evaluate_on_axes takes coordinates of your own"
        check_grid(grid, uniform=True, dimension=self.dimension, remedy=remedy)

    def _basis(self, points: Float64[Tensor, " m"]) -> Float64[Tensor, "m basis"]:
        """One axis' basis functions at coordinates; periodic: 1, cos 1, sin 1, cos 2, sin 2, ..."""
        wavenumbers = torch.arange(1, self.modes + 1, dtype=torch.float64)
        # Reducing the phase to one turn first keeps the error near machine precision at high wavenumbers.
        if self.boundary == "dirichlet":
            return math.sqrt(2.0) * torch.sin(math.pi * torch.remainder(points[:, None] * wavenumbers, 2.0))
        if self.boundary == "neumann":
            waves = math.sqrt(2.0) * torch.cos(math.pi * torch.remainder(points[:, None] * wavenumbers, 2.0))
            return torch.cat([torch.ones_like(points)[:, None], waves], dim=1)
        phase = 2.0 * math.pi * torch.remainder(points[:, None] * wavenumbers, 1.0)
        pairs = math.sqrt(2.0) * torch.stack([phase.cos(), phase.sin()], dim=-1)
        return torch.cat([torch.ones_like(points)[:, None], pairs.flatten(1)], dim=1)
