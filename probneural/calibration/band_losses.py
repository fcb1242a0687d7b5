"""Losses of bands that miss the truth: between 0 and 1, never growing with the band's width."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.calibration.band_fields import BandField
from probneural.calibration.chunks import domain_average
from probneural.checks import assign, check_instance, check_integer, check_real
from probneural.distributions.base import check_values
from probneural.errors import ArgumentError
from probneural.fields import Field, check_field

BandLoss = Callable[[BandField, Field], Tensor]
"""From bands around n functions, and the truth, to n numbers between 0 and 1."""


def fraction_outside(bands: BandField, truth: Field) -> Float64[Tensor, " n"]:
    """The fraction of the domain on which the truth lies outside, averaged over channels, `(n,)`, dimensionless.

    Examples:
        >>> from probneural.grids import Grid
        >>> grid = Grid.uniform((4,))
        >>> bands = BandField(torch.zeros(1, 1, 4).double(), torch.ones(1, 1, 4).double(), grid=grid)
        >>> fraction_outside(bands, Field(torch.tensor([[[0.0, 0.5, -2.0, 1.0]]]), grid)).item()
        0.25
    """
    check_instance(bands, BandField, "bands", remedy="call a fitted band: band(inputs)")
    return 1.0 - bands.fraction_inside(truth).mean(1)


@dataclass(frozen=True)
class MissedExceedance:
    """Of the part of the domain where the truth exceeds a threshold, the fraction where the band's upper edge does not.

    It is 0 for a function that stays below the threshold: nothing is missed then.

    Args:
        threshold: In physical units.
        channel: Which of the channels.

    Raises:
        ArgumentError: If the threshold is no finite number, or the channel no number.

    Examples:
        >>> from probneural.grids import Grid
        >>> grid = Grid.uniform((4,))
        >>> bands = BandField(torch.zeros(1, 1, 4).double(), torch.tensor([[[1.0, 1.0, 3.0, 3.0]]]).double(), grid=grid)
        >>> MissedExceedance(2.0)(bands, Field(torch.tensor([[[2.5, 0.0, 2.5, 0.0]]]), grid)).item()
        0.5
    """

    threshold: float
    _: KW_ONLY
    channel: int = 0

    def __post_init__(self) -> None:
        """Validate."""
        assign(self, threshold=check_real(self.threshold, "threshold"), channel=check_integer(self.channel, "channel", least=0))

    def __call__(self, bands: BandField, truth: Field) -> Float64[Tensor, " n"]:
        """The loss of each function, `(n,)`, dimensionless.

        Raises:
            ArgumentError: If there is no such channel.
        """
        check_instance(bands, BandField, "bands", remedy="call a fitted band: band(inputs)")
        if self.channel >= check_field(truth, "truth").channels:
            raise ArgumentError(
                expected=f"a channel below {truth.channels}", got=str(self.channel), remedy="channels count from 0"
            )
        check_values(truth.values, tuple(bands.mean.shape), "truth")
        exceeds = truth.values.to(bands.mean) > self.threshold
        missed = exceeds & (bands.upper <= self.threshold)
        parts = (domain_average(part.to(torch.float64), truth.grid)[:, self.channel] for part in (missed, exceeds))
        lost, all_of_it = parts
        return torch.where(all_of_it > 0, lost / all_of_it, torch.zeros_like(lost))
