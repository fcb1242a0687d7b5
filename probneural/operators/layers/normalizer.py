"""Units: one mean and one scale per channel, fitted once on training data and part of every derivative."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_count, check_scale
from probneural.pairs import FieldSource
from probneural.processes import are_together
from probneural.statistics import units


class ChannelNormalizer(nn.Module):
    """An affine map per channel between physical units and units of the training data's spread.

    A channel that does not vary keeps scale 1.

    Args:
        channels: Number of channels.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    @property
    def is_fitted(self) -> bool:
        """Whether mean or scale differ from 0 and 1."""
        return bool((self.mean != 0).any() or (self.scale != 1).any())

    @torch.no_grad()
    def fit(self, *fields: FieldSource) -> None:
        """Set mean and scale to the quadrature mean and standard deviation of the fields, per channel.

        If all ranks are `together`, each reads a part of the fields, and all get the
        bits that one process would.

        Args:
            fields: One source, or several with different grids; those of no channels, outputs of unlabelled data, do not count.

        Raises:
            ShapeError: If the fields have another number of channels.
            DataError: If a scale is one that the normaliser's dtype does not hold.
        """
        channels = self.mean.shape[0]
        fields = tuple(source for source in fields if source.channels)
        if not fields:
            return
        for source in fields:
            check_count(source.channels, channels, "channels of fields", remedy="build the operator for them")
        mean, scale = units(fields, over_processes=are_together())
        check_scale(torch.cat([scale, torch.maximum(scale, mean.abs())]), "fields", dtype=self.scale.dtype)
        self.mean.copy_(mean)
        self.scale.copy_(scale)

    def forward(self, values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
        """Map physical values to dimensionless ones."""
        return (values - self._spread(self.mean, values)) / self._spread(self.scale, values)

    def inverse(self, values: Float[Tensor, "n c *grid"]) -> Float[Tensor, "n c *grid"]:
        """Map dimensionless values to physical ones."""
        return values * self._spread(self.scale, values) + self._spread(self.mean, values)

    @staticmethod
    def _spread(numbers: Tensor, values: Tensor) -> Tensor:
        return numbers.reshape(-1, *(1,) * (values.ndim - 2))
