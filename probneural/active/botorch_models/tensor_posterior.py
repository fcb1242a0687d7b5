"""Base class of this package's posteriors for BoTorch."""

from __future__ import annotations

from abc import ABC

import torch
from botorch.posteriors.posterior import Posterior
from jaxtyping import Float
from torch import Tensor

from probneural.contexts import Undisturbed

_ONE_DRAW = torch.Size([1])
_NO_DRAWS = torch.Size()


class TensorPosterior(Undisturbed, Posterior, ABC):
    """A distribution of `b x q x m` numbers, drawn from base samples; abstract.

    Args:
        like: A tensor of the mean's shape, dtype and device.
    """

    def __init__(self, like: Float[Tensor, "*b q m"]) -> None:
        self._like = like

    @property
    def batch_shape(self) -> torch.Size:
        """The t-batch shape b."""
        return self._like.shape[:-2]

    @property
    def batch_range(self) -> tuple[int, int]:
        """`(0, 0)`: base samples have no t-batch axes that a sampler would have to collapse."""
        return (0, 0)

    @property
    def device(self) -> torch.device:
        """Device of the mean."""
        return self._like.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the mean."""
        return self._like.dtype

    def rsample(
        self, sample_shape: torch.Size | None = None, *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... q m"]:
        """Draw, differentiably in the designs.

        Args:
            sample_shape: Shape of the draws; one draw by default, as BoTorch has it.
            generator: Source of the draws; torch's global one by default, because BoTorch's users seed that.

        Returns:
            `sample_shape x b x q x m`.
        """
        shape = _ONE_DRAW if sample_shape is None else sample_shape
        return self.rsample_from_base_samples(shape, self._base_samples(shape, generator))

    def _base_samples(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        device = self.device if generator is None else generator.device
        return torch.randn(shape + self.base_sample_shape, generator=generator, dtype=self.dtype, device=device)

    def _extended_shape(self, sample_shape: torch.Size = _NO_DRAWS) -> torch.Size:
        return sample_shape + self._like.shape
