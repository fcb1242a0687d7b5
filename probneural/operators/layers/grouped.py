"""A read-out with separate features for each output channel."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_integer
from probneural.contexts import unrounded
from probneural.operators.layers.normalizer import ChannelNormalizer


class GroupedLinear(nn.Module):
    """u_c(x) = sum over k of W_ck phi_ck(x) + b_c: pointwise, and channel c sees the features of channel c only.

    It begins as the plain sum over k, so only the features are drawn at random. A last-layer posterior varies the
    weights of a channel for its own features only.

    Args:
        channels: Number of output channels c.
        features: Features per channel; they come channel by channel.

    Raises:
        ArgumentError: If a size is not a positive integer.

    Examples:
        >>> GroupedLinear(2, 3)(torch.ones(1, 6, 4))[0, :, 0].tolist()
        [3.0, 3.0]
    """

    def __init__(self, channels: int, features: int) -> None:
        super().__init__()
        self.channels = check_integer(channels, "channels")
        self.features = check_integer(features, "features")
        self.weight = nn.Parameter(torch.empty(self.channels, self.features))
        self.bias = nn.Parameter(torch.empty(self.channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Return to the plain sum."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, values: Float[Tensor, "n features *grid"]) -> Float[Tensor, "n c *grid"]:
        """Map `(n, channels * features, *grid)` to `(n, channels, *grid)`."""
        grouped = values.flatten(2).unflatten(1, (self.channels, self.features))
        flat = torch.matmul(self.weight[:, None], grouped)[:, :, 0] + self.bias[:, None]
        return flat.unflatten(-1, values.shape[2:])

    def contract(
        self,
        coefficients: Float[Tensor, "n c features"],
        functions: Float[Tensor, "c features *grid"],
        *,
        units: ChannelNormalizer,
    ) -> Float[Tensor, "n c *grid"]:
        """Apply the layer, and the units of its outputs, to products of coefficients and functions.

        The products are n x c x features x p numbers. A hook on the layer sees them, so where there is one they are formed;
        elsewhere weights and units go into the coefficients, and one matrix product is left. Autocast leaves it alone: means
        may be far larger than deviations from them.

        Args:
            coefficients: `(n, c, features)`.
            functions: `(c, features, *grid)`.
            units: Normaliser of the outputs, whose inverse is applied.

        Returns:
            `(n, c, *grid)`, in the units' units.
        """
        with unrounded(functions.device):
            return self._contract(coefficients.to(self.weight.dtype), functions.to(self.weight.dtype), units=units)

    def _contract(self, coefficients: Tensor, functions: Tensor, *, units: ChannelNormalizer) -> Tensor:
        shape = functions.shape[2:]
        flat = functions.flatten(2)
        if self._forward_hooks or self._forward_pre_hooks:
            products = coefficients[..., None] * flat
            return units.inverse(self(products.flatten(1, 2).unflatten(-1, shape)))
        weighted = coefficients * (self.weight * units.scale[:, None])
        bias = torch.addcmul(units.mean, self.bias, units.scale)[:, None]
        if self.channels == 1:
            return torch.addmm(bias, weighted[:, 0], flat[0])[:, None].unflatten(-1, shape)
        return torch.baddbmm(bias[:, None], weighted.movedim(1, 0), flat).movedim(0, 1).unflatten(-1, shape)

    def extra_repr(self) -> str:
        """Sizes, for printing."""
        return f"{self.channels}, {self.features}"
