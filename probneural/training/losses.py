"""Losses of fields: norms and scores by quadrature, so that they do not depend on the resolution.

A loss is called as `loss(predicted, target, grid)`. Those here are objects; functions of yours do as well.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import (
    assign,
    check_callable,
    check_instance,
    check_integer,
    check_real,
    check_sequence,
    described,
)
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import Field, check_field, power_of_two
from probneural.grids import Grid, check_grid

Loss: TypeAlias = Callable[..., Tensor]
"""Called as `loss(predicted, target, grid)` with `(n, c, *grid)`; returns one real number, averaged over functions.

One that has a parameter `inputs` is given the input functions too, a `Field`, by that name.
"""


def takes_inputs(loss: Loss) -> bool:
    """Whether a loss has a parameter `inputs`."""
    try:
        return "inputs" in inspect.signature(getattr(loss, "forward", loss)).parameters
    except ValueError:  # some built-in callables have no signature
        return False


def check_loss(loss: Loss | None) -> Loss | None:
    """Return a loss that can be called with predictions, targets and their grid, or raise an ArgumentError."""
    if loss is None:
        return None
    if not callable(loss):
        raise ArgumentError(expected="a callable as loss", got=repr(loss), remedy="leave it out for the relative L2 error")
    try:
        signature = inspect.signature(getattr(loss, "forward", loss))
    except ValueError:  # some built-in callables have no signature
        return loss
    try:
        signature.bind(None, None, None, **({"inputs": None} if "inputs" in signature.parameters else {}))
    except TypeError as error:
        raise ArgumentError(
            expected="a loss called as loss(predicted, target, grid)",
            got=f"{described(loss)}: {error}",
            remedy="wrap one of two arguments: lambda predicted, target, grid: torch.nn.functional.mse_loss(predicted, target)",
        ) from error
    return loss


def relative_l2(
    predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c *grid"], *, grid: Grid
) -> Float[Tensor, "n c"]:
    """Relative L2 error ||predicted - target|| / ||target|| by quadrature, per function and channel, dimensionless.

    A target that is zero everywhere makes the ratio infinite or undefined; then the error is measured against the mean
    norm of that channel's targets, or in absolute terms if all are zero. Targets may be of any scale that their dtype holds:
    squares are formed in units of the target's largest value.

    Args:
        predicted: `(n, c, *grid.shape)`.
        target: The same shape: nothing is broadcast.
        grid: Where both live.

    Returns:
        `(n, c)`; average it over channels first, then over functions.

    Raises:
        ShapeError: If the shapes differ.

    Examples:
        >>> grid = Grid.uniform((4,))
        >>> relative_l2(torch.full((1, 1, 4), 3.0), torch.full((1, 1, 4), 2.0), grid=grid).item()
        0.5
    """
    _check_values(predicted, target)
    if predicted.shape != target.shape:
        raise ShapeError(
            expected=f"predictions shaped like the targets {tuple(target.shape)}",
            got=str(tuple(predicted.shape)),
            remedy="check the operator's out_channels; shapes are not broadcast",
        )
    check_grid(grid)
    predicted, target = grid.fill(predicted), grid.fill(target)
    weights, largest = grid.sample_weights.to(target), target.detach().abs().flatten(2).amax(2)
    # Powers of two in which squares neither overflow nor vanish; of a target that is zero, that of the largest.
    unit = power_of_two(torch.where(largest > 0, largest, largest.amax(0, keepdim=True)))
    square_error, square = (
        _summed((values.flatten(2) / unit[..., None]).square(), weights) for values in (predicted - target, target)
    )
    error, norm = square_error.clamp_min(torch.finfo(target.dtype).tiny).sqrt(), square.sqrt()
    # In place of a norm that is zero the mean of its channel, or 1 if all are zero.
    fallback = (norm * unit).mean(0, keepdim=True) / unit
    fallback = torch.where(fallback > 0, fallback, torch.ones_like(fallback))
    return error / torch.where(norm > 0, norm, fallback)


@dataclass(frozen=True)
class RelativeL2:
    """The relative L2 error by quadrature, averaged over channels and functions: what `pn.fit` minimises by default."""

    def __call__(
        self, predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c *grid"], grid: Grid
    ) -> Float[Tensor, ""]:
        """The loss, dimensionless."""
        return relative_l2(predicted, target, grid=grid).mean()


@dataclass(frozen=True)
class _SampleScore(ABC):
    """A score of operators that draw samples."""

    samples: int
    fairness: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        """Check the settings."""
        fairness = check_real(self.fairness, "fairness", least=0.0, most=1.0)
        assign(self, samples=check_integer(self.samples, "samples", least=2), fairness=fairness)

    @property
    def _spread_weight(self) -> float:
        """Weight of E|X - X'| / 2, taken over pairs of different samples: 1 if the score is fair, 1 - 1/M if it is not."""
        return 1.0 - (1.0 - self.fairness) / self.samples

    def __call__(
        self, predicted: Float[Tensor, "n sc *grid"], target: Float[Tensor, "n c *grid"], grid: Grid
    ) -> Float[Tensor, ""]:
        """The loss, in the targets' units.

        Raises:
            ShapeError: If predictions are not so many samples of the targets' shape.
        """
        drawn = _samples(predicted, target, self.samples)
        if check_grid(grid).is_masked:
            drawn, target = grid.fill(drawn.movedim(1, 0)).movedim(0, 1), grid.fill(target)
        return self._scored(drawn, target, grid)

    @abstractmethod
    def _scored(self, drawn: Float[Tensor, "n s c *grid"], target: Float[Tensor, "n c *grid"], grid: Grid) -> Float[Tensor, ""]:
        """The score of samples that are apart."""


@dataclass(frozen=True)
class CRPS(_SampleScore):
    """The continuous ranked probability score of an operator that draws samples, pointwise, by quadrature.

    E|X - y| - E|X - X'| / 2 without bias from the number of samples, averaged over the domain, channels and functions. The
    operator returns its samples as channels, all channels of one sample after the other: `(n, samples * c, *grid)`.

    The fair score of M samples is degenerate: where M - 1 of them equal the truth, it is the same whatever the last one is,
    which then feels no gradient. A fairness a < 1 mixes in the score of the samples themselves, which pulls it in:
    a (fair score) + (1 - a) (score of the samples). Its optimum is too narrow: with w = 1 - (1 - a) / M, that of a Gaussian
    has w / (2 - w^2)^1/2 of the standard deviation, about 1 - 2 (1 - a) / M.

    Args:
        samples: How many there are, two or more.
        fairness: a, from 0 (the score of the samples) to 1 (without bias).

    Raises:
        ArgumentError: If there are fewer, or the fairness is out of range.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and estimation, equation 21; Ferro (2014), Fair
        scores for ensemble forecasts; Lang et al. (2024), AIFS-CRPS (the almost fair CRPS, with a = 0.95).

    Examples:
        >>> CRPS(2)(torch.tensor([[[0.0], [2.0]]]), torch.tensor([[[1.0]]]), Grid.scattered([[0.5]], [1.0])).item()
        0.0
    """

    def _scored(self, drawn: Tensor, target: Tensor, grid: Grid) -> Tensor:
        error = (drawn - target[:, None]).abs().mean(1)
        below = torch.arange(1, self.samples, device=drawn.device, dtype=drawn.dtype)
        gaps = drawn.sort(1).values.diff(dim=1).movedim(1, -1)  # not the samples, whose mean would take their digits
        spread = (gaps @ (below * (self.samples - below))) / (self.samples * (self.samples - 1))
        return grid.mean((error - self._spread_weight * spread).flatten(2)).mean()


@dataclass(frozen=True)
class EnergyScore(_SampleScore):
    """The energy score of an operator that draws samples, of whole functions: E||X - y|| - E||X - X'|| / 2 in the L2 norm.

    Unlike the CRPS it sees how samples vary together. The norm is the root of the mean square over the domain and channels;
    samples are channels as for [`CRPS`][probneural.training.losses.CRPS], and their number leaves no bias.

    Args:
        samples: How many there are, two or more.
        fairness: As for the CRPS.

    Raises:
        ArgumentError: If there are fewer, or the fairness is out of range.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, prediction, and estimation, equation 22.
    """

    def _scored(self, drawn: Tensor, target: Tensor, grid: Grid) -> Tensor:
        scale = (grid.sample_weights.to(target) / target.shape[1]).sqrt()
        flat = (drawn.flatten(3) * (scale[:, None] if grid.is_batch else scale)).flatten(2)
        truth = (target.flatten(2) * scale).flatten(1)
        error = (flat - truth[:, None]).norm(dim=2).mean(1)
        gaps = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").sum((1, 2))
        return (error - self._spread_weight * gaps / (2 * self.samples * (self.samples - 1))).mean()


@dataclass(frozen=True)
class PDEResidual:
    """The mean square of what a prediction leaves of an equation, by quadrature.

    Args:
        residual: Called as `residual(predicted, inputs, grid)` with predictions `(n, c, *grid)`, the input functions (a
            `Field`) and the predictions' grid; returns `(n, k, *grid)`. It knows no target.

    Raises:
        ArgumentError: If it cannot be called.

    Reference:
        Li et al. (2024), Physics-informed neural operator for learning partial differential equations.
    """

    residual: Callable[[Tensor, Field, Grid], Tensor]

    def __post_init__(self) -> None:
        """Check the residual."""
        check_callable(self.residual, "residual", remedy="give a function of prediction, input functions and grid")

    def __call__(
        self, predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c2 *grid"], grid: Grid, *, inputs: Field
    ) -> Float[Tensor, ""]:
        """The loss, in the residual's units squared.

        Raises:
            ShapeError: If the residual has no value at each point of each function.
        """
        _check_values(predicted, target)
        if predicted.ndim < 3 or tuple(predicted.shape[2:]) != check_grid(grid).shape:
            raise ShapeError(
                expected=f"predictions (n, c, *{grid.shape})", got=str(tuple(predicted.shape)), remedy="give their own grid"
            )
        residual = check_instance(
            self.residual(predicted, check_field(inputs, "inputs"), grid), Tensor, "residual", remedy="return a tensor"
        )
        shapes = [(tensor.ndim, tensor.shape[:1], tensor.shape[2:]) for tensor in (residual, predicted)]
        if shapes[0] != shapes[1]:
            raise ShapeError(
                expected=f"a residual of shape ({predicted.shape[0]}, k, {', '.join(map(str, grid.shape))})",
                got=str(tuple(residual.shape)),
                remedy="return its values on the predictions' grid",
            )
        return grid.mean(grid.fill(residual).square().flatten(2)).mean()


@dataclass(frozen=True)
class WeightedSum:
    """A sum of losses, each times its weight.

    Args:
        terms: Pairs of a weight and a loss.

    Raises:
        ArgumentError: If there is none, a weight is negative, or a loss cannot be called.

    Examples:
        >>> loss = WeightedSum([(1.0, RelativeL2()), (0.1, lambda predicted, target, grid: (predicted - target).abs().mean())])
    """

    terms: Sequence[tuple[float, Loss]]

    def __post_init__(self) -> None:
        """Check the terms."""
        remedy = "give pairs: [(1.0, RelativeL2()), (1e-3, PDEResidual(residual))]"
        terms = check_sequence(self.terms, "terms", remedy=remedy)
        pairs = [check_sequence(term, "each term", remedy=remedy) for term in terms]
        if not pairs or any(len(pair) != 2 for pair in pairs):
            raise ArgumentError(expected="terms of a weight and a loss each", got=repr(self.terms), remedy=remedy)
        checked = tuple(
            (check_real(weight, "a weight", least=0.0), check_callable(loss, "a loss", remedy=remedy)) for weight, loss in pairs
        )
        assign(self, terms=checked)

    def __call__(
        self,
        predicted: Float[Tensor, "n c *grid"],
        target: Float[Tensor, "n c2 *grid"],
        grid: Grid,
        *,
        inputs: Field | None = None,
    ) -> Float[Tensor, ""]:
        """The sum; terms that take the input functions get them."""
        if inputs is not None:
            check_field(inputs, "inputs")
        values = [
            weight * loss(predicted, target, grid, **({"inputs": inputs} if takes_inputs(loss) else {}))
            for weight, loss in self.terms
        ]
        return torch.stack(values).sum()


def _check_values(predicted: object, target: object) -> None:
    """Raise a DataError or ShapeError unless both are tensors `(n, c, *grid)` of real numbers, of half precision too."""
    for values, name in ((predicted, "predictions"), (target, "targets")):
        checked = check_instance(values, Tensor, name, remedy="give tensors (n, c, *grid): field.values")
        if not checked.is_floating_point():
            raise DataError(expected=f"real {name}", got=str(checked.dtype), remedy="give complex fields as two channels")
        if checked.ndim < 3:
            raise ShapeError(expected=f"{name} (n, c, *grid)", got=str(tuple(checked.shape)), remedy="keep all axes")


def _summed(values: Float[Tensor, "n c m"], weights: Float[Tensor, "..."]) -> Float[Tensor, "n c"]:
    """The sum with weights `(m,)`, or `(n, 1, m)` of each sample."""
    return values @ weights if weights.ndim == 1 else (values * weights).sum(-1)


def _samples(predicted: Tensor, target: Tensor, count: int) -> Tensor:
    """Samples that are channels, apart: `(n, samples, c, *grid)`."""
    _check_values(predicted, target)
    expected = (target.shape[0], count * target.shape[1], *target.shape[2:])
    if tuple(predicted.shape) != expected:
        raise ShapeError(
            expected=f"{count} samples of the targets as channels, {expected}",
            got=str(tuple(predicted.shape)),
            remedy="return all channels of one sample after the other",
        )
    return predicted.unflatten(1, (count, target.shape[1]))
