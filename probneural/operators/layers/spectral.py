"""The spectral convolution: a matrix over channels for every retained frequency."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.autograd.forward_ad as forward_ad
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_choice, check_flag, check_integer
from probneural.contexts import is_transformed
from probneural.grids import per_axis
from probneural.operators.checks import check_input, check_modes, check_resolution
from probneural.operators.layers.pointwise import PointwiseLinear, functions_first, grid_first
from probneural.operators.layers.transforms import Continuation, TruncatedTransform

Ends = Literal["even", "odd", "periodic"]
"""Continuation of a non-periodic axis beyond its ends."""


class FrequencyMixing(nn.Module):
    """Base class of layers with a matrix over channels for every retained frequency.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        modes: m per axis.

    Raises:
        ArgumentError: If a size is not a positive integer.
    """

    kronecker_axes: ClassVar[dict[str, str]] = {"weight": "... row column pair"}
    """One complex matrix per frequency, stored as real pairs, for curvature."""

    def __init__(self, in_channels: int, out_channels: int, *, modes: Sequence[int]) -> None:
        super().__init__()
        self.in_channels = check_integer(in_channels, "in_channels")
        self.out_channels = check_integer(out_channels, "out_channels")
        self.modes = check_modes(modes)
        retained = (*(2 * mode - 1 for mode in self.modes[:-1]), self.modes[-1])
        self.weight = nn.Parameter(torch.empty(*retained, self.in_channels, self.out_channels, 2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights normal with variance 1/(2 in_channels) per part: retained frequencies keep their variance."""
        nn.init.normal_(self.weight, std=math.sqrt(0.5 / self.in_channels))

    def extra_repr(self) -> str:
        """Channels and modes, for printing."""
        return f"{self.in_channels}, {self.out_channels}, modes={self.modes}"


class SpectralConv(FrequencyMixing):
    """(Ku)_o(x) = sum over |k| < m and i of W_oi(k) û_i(k) exp(2πi k·x): a convolution with a band-limited kernel.

    Frequencies |k| < m are kept on each axis. Transforms go axis by axis and compute no other frequencies; the weights lie
    mode-major, so that the product is a batched matrix product. Coefficients are normalised by the number of points, so the
    layer is the same operator on every grid that resolves its input. All arithmetic is real.

    A non-periodic axis is continued beyond its ends, and its modes then count half periods of the domain. Even: a
    continuous function remains continuous, and its coefficients are those of cosines. Odd: its coefficients are those of
    sines, in which solutions that vanish on the boundary are smooth; other values jump at the boundary. Real and imaginary
    weights both give outputs of both kinds. Periodic, as in other libraries: values jump at the ends, modes count periods,
    and the number of steps per period is the number of points.

    On grids with both end points the mirror is at the end points. On grids without the right end an odd mirror is at the
    domain's end, where the function is zero, and an even mirror half a step beyond the outer points: the operator then
    depends on the grid, to first order in the step. With periodic continuation it depends on the grid in all cases.

    Args:
        in_channels: Channels of the input.
        out_channels: Channels of the output.
        modes: m per axis.
        periodic: Whether each axis is periodic.
        continuation: Continuation of non-periodic axes, `"even"`, `"odd"` or `"periodic"`.

    Attributes:
        weight: Real pairs, `(*retained, in_channels, out_channels, 2)`, dimensionless. The last axis retains k = 0 ... m - 1,
            each other axis k = 0 ... m - 1, -(m - 1) ... -1; the imaginary part at k = 0 of a real field has no effect.

    Raises:
        ArgumentError: If a size is not a positive integer, there is not one periodic flag per axis, or the continuation is
            another word.

    Reference:
        Li et al. (2021), Fourier neural operator for parametric partial differential equations, section 4. Deviations: real
        pairs for weights, both signs of every frequency on all axes but the last, continuations.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        modes: Sequence[int],
        periodic: Sequence[bool] | bool = True,
        continuation: Ends = "even",
    ) -> None:
        super().__init__(in_channels, out_channels, modes=modes)
        self.periodic = per_axis(periodic, len(self.modes), "periodic", check_flag)
        check_choice(continuation, get_args(Ends), "continuation")
        self.continuation: Ends = continuation

    def forward(
        self,
        values: Float[Tensor, "n in *grid"],
        *,
        endpoint: Sequence[bool] | None = None,
        pointwise: PointwiseLinear | None = None,
    ) -> Float[Tensor, "n out *grid"]:
        """Convolve: Ku; or Ku + Wu + b, in fewer passes over memory than the sum of two layers.

        Args:
            values: `(n, in_channels, *grid)`.
            endpoint: Whether each axis includes its right end; by default those that are not periodic do.
            pointwise: The layer Wu + b with the same channels; none by default.

        Returns:
            `(n, out_channels, *grid)`, in the memory layout of `channels_innermost`.

        Raises:
            ShapeError: If the values do not have that shape.
            DataError: If they are of another dtype than the operator.
            ResolutionError: If an axis has fewer than 2m - 1 points (after its continuation).
        """
        if torch.is_autocast_enabled(values.device.type) and values.dtype in (torch.bfloat16, torch.float16):
            values = values.to(self.weight.dtype)  # the layer before rounded; products below are autocast again
        check_input(values, channels=self.in_channels, dimension=len(self.modes), dtype=self.weight.dtype)
        sizes = values.shape[2:]
        transforms = self._transforms(sizes, endpoint)
        check_resolution([transform.period for transform in transforms], self.modes)
        flat = grid_first(values).contiguous()
        hidden = flat
        inner = hidden.shape[-2] * hidden.shape[-1]
        for axis in reversed(range(len(sizes))):  # (*before, points * pair, inner) -> (*before, pair * frequencies, inner)
            hidden = transforms[axis].analyse(hidden.reshape(math.prod(sizes[:axis]), -1, inner))
            inner *= transforms[axis].retained
        bias = None if pointwise is None else pointwise.bias
        hidden = self._mix(hidden.reshape(2, -1, values.shape[0], self.in_channels), bias)
        inner = inner // self.in_channels * self.out_channels
        for axis, transform in enumerate(transforms):
            inner //= transform.retained
            hidden = transform.synthesise(hidden.reshape(math.prod(sizes[:axis]), -1, inner))
        if pointwise is not None:
            hidden = _add_product(hidden, flat.reshape(-1, self.in_channels), pointwise.weight)
        return functions_first(hidden.reshape(*sizes, values.shape[0], self.out_channels))

    def _transforms(self, sizes: Sequence[int], endpoint: Sequence[bool] | None) -> list[TruncatedTransform]:
        has_end = [not flag for flag in self.periodic] if endpoint is None else endpoint
        without: dict[Ends, Continuation] = {"even": "even without end", "odd": "odd without end", "periodic": "periodic"}
        transforms: list[TruncatedTransform] = []
        for size, mode, is_periodic, closed in zip(sizes, self.modes, self.periodic, has_end, strict=True):
            continuation = "periodic" if is_periodic else self.continuation if closed else without[self.continuation]
            is_last = len(transforms) == len(sizes) - 1
            transforms.append(TruncatedTransform(size, mode, continuation=continuation, is_real=is_last))
        return transforms

    def _mix(self, spectrum: Float[Tensor, "2 k n in"], bias: Tensor | None) -> Float[Tensor, "2 k n out"]:
        """Multiply by one complex matrix per frequency, in real arithmetic; a bias is the coefficient of a constant."""
        # Batched products need contiguous matrices: on strided ones PyTorch runs them one by one.
        weight = self.weight.flatten(0, -4).movedim(-1, 0).contiguous()
        (real, imaginary), (weight_real, weight_imaginary) = spectrum.unbind(), weight.unbind()
        if bias is None:
            first = torch.bmm(real, weight_real)
        else:
            at_zero = nn.functional.pad(bias[None, None], (0, 0, 0, 0, 0, len(real) - 1))
            first = torch.baddbmm(at_zero.expand(-1, real.shape[1], -1), real, weight_real)
        return torch.stack(
            [
                torch.baddbmm(first, imaginary, weight_imaginary, alpha=-1),
                torch.baddbmm(torch.bmm(real, weight_imaginary), imaginary, weight_real),
            ]
        )

    def extra_repr(self) -> str:
        """Channels and modes, for printing."""
        return f"{super().extra_repr()}, periodic={self.periodic}, {self.continuation}"


def _add_product(
    values: Float[Tensor, "b points inner"], inputs: Float[Tensor, "m in"], weight: Float[Tensor, "out in"]
) -> Tensor:
    """Add `inputs @ weight.mT` to temporary values, in place unless a transform is active.

    A transform may follow the product and not the values (such as a batch of weights), whose memory cannot hold the sum then.
    """
    rounds = torch.is_autocast_enabled(values.device.type)
    if (
        torch.compiler.is_compiling()
        or is_transformed()
        or forward_ad._current_level >= 0
        or rounds
        or values._is_view()
        or not values.is_contiguous()  # inference mode has no views
    ):
        return torch.addmm(values.reshape(inputs.shape[0], -1), inputs, weight.mT)
    if not torch.is_grad_enabled():
        values.view(len(inputs), -1).addmm_(inputs, weight.mT)
        return values
    result: Tensor = _AddProduct.apply(values, inputs, weight)
    return result


class _AddProduct(torch.autograd.Function):
    """The sum of values and a product, in the values' memory; autograd's own `addmm_` on a view of them copies gradients.

    A `setup_context` apart from `forward` would serve transforms, which never come here, and read a signature in every call.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        values.view(len(inputs), -1).addmm_(inputs, weight.mT)
        ctx.mark_dirty(values)
        ctx.save_for_backward(inputs, weight)
        return values

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        inputs, weight = ctx.saved_tensors
        flat = gradient.reshape(len(inputs), -1)
        wants = ctx.needs_input_grad
        return gradient, flat @ weight if wants[1] else None, flat.mT @ inputs if wants[2] else None
