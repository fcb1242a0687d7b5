"""Whole fields through a few coefficients: a functional that projects onto modes, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.errors import ArgumentError, DataError, GridError, ShapeError
from probneural.fields import Field
from probneural.functionals import Functional
from probneural.grids import Grid

ORTHONORMAL_TOLERANCE = 1e-6
"""How far inner products of modes may be from 0 and 1."""


@dataclass(frozen=True, eq=False)
class ModeCoefficients(Functional):
    """The coefficients c_j = ∫ φ_j u of each channel in r orthonormal modes, and `decode`, u ≈ rest + Σ_j c_j φ_j.

    With it a model has c r outputs instead of c p, and an objective of whole fields decodes its draws:

        modes = ModeCoefficients.principal(train.outputs, size=20)
        model = OperatorModel(predict, encode=encode, functional=modes)
        objective = GenericMCObjective(lambda Y, X: -(modes.decode(Y) - target).square().sum((-2, -1)))

    What the modes cannot hold is replaced by `rest`, the same for all fields, and its variance is left out: see
    [`captured`][probneural.active.ModeCoefficients.captured].

    Memory: the posterior of b t-batches of q designs with a latent of k numbers holds b q c r (k + 1) numbers, where the field
    at all points takes b q c p (k + 1); s draws take s b q c r, and decoding s b q c p for as long as the objective needs it. A
    squared distance need not decode: ∫ (decode(c) - t)² = Σ_j (c_j - t_j)² plus a constant, t_j the coefficients of t.

    Args:
        grid: Where the modes and the fields live.
        modes: φ, `(r, *grid)`, float64, orthonormal under the grid's quadrature, in units of 1 / sqrt(volume).
        centre: A field whose part outside the modes completes a decoded one, `(c, *grid)`, float64; zero by default.

    Raises:
        ShapeError: If modes or centre do not live on the grid.
        DataError: If the modes are not orthonormal.

    Examples:
        >>> grid = Grid.uniform((8,))
        >>> wave = (2 * torch.pi * grid.points[:, 0]).sin()
        >>> modes = ModeCoefficients(grid, 2**0.5 * wave[None])
        >>> coefficients = modes(3 * wave[None])
        >>> (
        ...     [round(value, 9) for value in coefficients.flatten().tolist()],
        ...     torch.allclose(modes.decode(coefficients[0]), 3 * wave),
        ... )
        ([2.121320344], True)
    """

    grid: Grid
    modes: Float64[Tensor, "..."]
    centre: Float64[Tensor, "..."] | None = None

    def __post_init__(self) -> None:
        """Check shapes and inner products."""
        shape, axes = self.grid.shape, 1 + len(self.grid.shape)
        for name, values in (("modes", self.modes), ("centre", self.centre)):
            if values is not None and (values.ndim != axes or tuple(values.shape[1:]) != shape):
                raise ShapeError(
                    expected=f"{name} of shape ({'r' if name == 'modes' else 'c'}, *{shape})",
                    got=str(tuple(values.shape)),
                    remedy="evaluate them on the grid",
                )
        products = self._readings @ self.modes.flatten(1).to(torch.float64).mT
        identity = torch.eye(self.size, dtype=torch.float64, device=products.device)
        error = float((products - identity).abs().max()) if self.size else 0.0
        if not error <= ORTHONORMAL_TOLERANCE:
            raise DataError(
                expected="modes that are orthonormal under the grid's quadrature",
                got=f"inner products {error:.1e} from those",
                remedy="multiply by the square roots of grid.weights, take a QR decomposition, and divide again",
            )

    @classmethod
    def principal(cls, outputs: Field, *, size: int) -> ModeCoefficients:
        """Return the r modes that hold most of the variance of training outputs, with their mean as the centre.

        All channels share the modes, each weighing as much as the others whatever its unit.

        Args:
            outputs: Training outputs, `(n, c, *grid)`; never test data.
            size: r, at most the number of grid points, and of fields times channels less one per channel.

        Raises:
            ArgumentError: If there are not that many modes.
        """
        values, grid = outputs.values.detach().to("cpu", torch.float64), outputs.grid
        centre = values.mean(0)
        deviations = (values - centre).flatten(2)
        largest = min(grid.size, (deviations.shape[0] - 1) * deviations.shape[1])
        if not 1 <= size <= largest:
            raise ArgumentError(expected=f"1 to {largest} modes", got=str(size), remedy="give more training outputs")
        spread = ((deviations.square() @ grid.weights).mean(0)).sqrt()
        roots = grid.weights.sqrt()
        rows = deviations / torch.where(spread > 0, spread, 1.0)[:, None] * roots
        _, _, directions = torch.linalg.svd(rows.flatten(0, 1), full_matrices=False)
        return cls(grid, (directions[:size] / roots).unflatten(-1, grid.shape), centre)

    @property
    def size(self) -> int:
        """Number of modes r."""
        return self.modes.shape[0]

    @property
    def _readings(self) -> Tensor:
        """The functional's matrix, `(r, p)`."""
        return self.modes.flatten(1).to(torch.float64) * self.grid.weights.to(self.modes.device)

    def _forward(self, values: Tensor) -> Tensor:
        return values.flatten(values.ndim - len(self.grid.shape)) @ self._readings.to(values).mT

    def _adjoint(self, numbers: Tensor) -> Tensor:
        return (numbers @ self._readings.to(numbers)).unflatten(-1, self.grid.shape)

    def decode(self, coefficients: Float[Tensor, "... cr"]) -> Float[Tensor, "..."]:
        """Return fields, differentiably.

        Args:
            coefficients: A model's outputs or draws of them, `(..., c * r)`, channel by channel.

        Returns:
            `(..., c, *grid)`, in the coefficients' dtype and on their device.

        Raises:
            ShapeError: If the last axis is no multiple of r, or not that of the centre's channels.
        """
        channels = 1 if not self.size else coefficients.shape[-1] // self.size
        wanted = channels if self.centre is None else self.centre.shape[0]
        if channels * self.size != coefficients.shape[-1] or channels != wanted or not channels:
            raise ShapeError(
                expected=f"coefficients (..., {'c' if self.centre is None else wanted} * {self.size})",
                got=str(tuple(coefficients.shape)),
                remedy="decode all outputs of the model, not a subset",
            )
        modes = self.modes.flatten(1).to(coefficients)
        fields = coefficients.unflatten(-1, (channels, self.size)) @ modes
        if self.centre is not None:
            centre = self.centre.to(torch.float64)
            rest = centre.flatten(1) - self._forward(centre) @ self.modes.flatten(1).to(centre)
            fields = fields + rest.to(fields)
        return fields.unflatten(-1, self.grid.shape)

    def captured(self, outputs: Field) -> Float64[Tensor, " c"]:
        """Share of the variance of fields about their mean that the modes hold, per channel, from 0 to 1.

        Args:
            outputs: Fields on the modes' grid, `(n, c, *grid)`, n at least 2.

        Raises:
            GridError: If they live on another grid.
            DataError: If a channel does not vary.
        """
        if outputs.grid != self.grid:
            raise GridError(
                expected=f"fields on {self.grid!r}", got=repr(outputs.grid), remedy="resample them: outputs.resample(grid)"
            )
        deviations = (outputs.values - outputs.values.mean(0)).to(torch.float64)
        total = (deviations.flatten(2).square() @ self.grid.weights.to(deviations)).sum(0)
        if not bool((total > 0).all()):
            raise DataError(expected="fields that vary", got="a constant channel", remedy="give two different fields or more")
        return self(deviations).square().sum((0, 2)) / total
