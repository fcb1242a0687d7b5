"""Losses of fields: norms and scores by quadrature, so that they do not depend on the resolution.

A loss is called as `loss(predicted, target, grid)`: one of these objects or any function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.checks import assign, check_callable, check_instance, check_real, check_sequence, check_shape, described
from probneural.errors import ArgumentError, DataError, ShapeError
from probneural.fields import Field, check_field, power_of_two
from probneural.grids import Grid, check_grid

Loss: TypeAlias = Callable[..., Tensor]
"""Called as `loss(predicted, target, grid)` with `(n, c, *grid)`; returns one real number, averaged over samples.

A loss with a parameter `inputs` also gets the inputs, a `Field`, by that name.
"""


def takes_inputs(loss: Loss) -> bool:
    """Whether a loss has a parameter `inputs`."""
    try:
        return "inputs" in inspect.signature(getattr(loss, "forward", loss)).parameters
    except ValueError:  # some built-in callables have no signature
        return False


@runtime_checkable
class BalancedLoss(Protocol):
    """A loss of several terms whose weights `pn.fit` chooses, such as `pn.physics.ResidualLoss`."""

    @property
    def is_balanced(self) -> bool:
        """Whether `pn.fit` chooses the weights."""

    def terms(
        self, predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c2 *grid"], grid: Grid, *, inputs: Field
    ) -> dict[str, Tensor]:
        """The terms by name; "data" is the one that the others are balanced against, where the batch has labels."""


def balanced(loss: object) -> BalancedLoss | None:
    """A loss, if `pn.fit` chooses the weights of its terms."""
    return cast(BalancedLoss, loss) if getattr(loss, "is_balanced", False) is True else None


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
        grid: Grid of both.

    Returns:
        `(n, c)`; average it over channels first, then over samples.

    Raises:
        ShapeError: If the shapes differ.

    Examples:
        >>> grid = Grid.uniform((4,))
        >>> relative_l2(torch.full((1, 1, 4), 3.0), torch.full((1, 1, 4), 2.0), grid=grid).item()
        0.5
    """
    _check_values(predicted, target)
    remedy = "check the operator's out_channels; shapes are not broadcast"
    check_shape(predicted, "predictions", *target.shape, remedy=remedy)
    check_grid(grid)
    predicted, target = grid.fill(predicted), grid.fill(target)
    weights, largest = grid.sample_weights.to(target), target.detach().abs().flatten(2).amax(2)
    # Power-of-two units avoid overflow and underflow of squares; zero targets use the unit of the largest target.
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
    """The relative L2 error by quadrature, averaged over channels and samples: the default loss of `pn.fit`."""

    def __call__(
        self, predicted: Float[Tensor, "n c *grid"], target: Float[Tensor, "n c *grid"], grid: Grid
    ) -> Float[Tensor, ""]:
        """The loss, dimensionless."""
        return relative_l2(predicted, target, grid=grid).mean()


@dataclass(frozen=True)
class WeightedSum:
    """A sum of losses, each times its weight.

    Args:
        terms: Pairs of a weight and a loss.

    Raises:
        ArgumentError: If there are no losses, a weight is negative, or a loss is not callable.

    Examples:
        >>> loss = WeightedSum([(1.0, RelativeL2()), (0.1, lambda predicted, target, grid: (predicted - target).abs().mean())])
    """

    terms: Sequence[tuple[float, Loss]]

    def __post_init__(self) -> None:
        """Check the terms."""
        remedy = "give pairs: [(1.0, RelativeL2()), (0.1, loss)]"
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
        """The sum; terms with a parameter `inputs` get the inputs."""
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


_DECAY = 0.9
"""Decay of the running means of norms, per update."""
BALANCED_STEPS = 10
"""Steps between updates; a new term leads to one at once."""
_DATA, _EQUATION, _SCALE = "data", "equation", "initial norm of equation"


class Balance:
    """Weights lambda_i = |grad L_data| / |grad L_i|, from running means of norms over all trained parameters.

    Without labels, lambda_i = |grad L_equation| / (g_0 |grad L_i|) with the first norm g_0 of the equation's gradient, so all
    gradients are as large and the first one has norm 1.

    Attributes:
        norms: Running means of the norms by term; JSON-serialisable.
    """

    def __init__(self) -> None:
        self.norms: dict[str, float] = {}

    def has(self, terms: Mapping[str, Tensor]) -> bool:
        """Whether there is a norm of each term."""
        return set(terms) <= set(self.norms)

    def update(self, terms: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> None:
        """Update the norms with the gradients of the terms of a batch; norms of zero and NaN do not count."""
        for name, term in terms.items():
            if not term.requires_grad:
                continue
            gradients = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
            squares = [part.detach().abs().to(torch.float64).square().sum() for part in gradients if part is not None]
            norm = float(torch.stack(squares).sum().sqrt()) if squares else 0.0
            if 0.0 < norm < float("inf"):
                before = self.norms.get(name, norm)
                self.norms[name] = _DECAY * before + (1.0 - _DECAY) * norm
                if name == _EQUATION:
                    self.norms.setdefault(_SCALE, norm)

    @property
    def weights(self) -> dict[str, float]:
        """Weights by term."""
        norms = {name: norm for name, norm in self.norms.items() if name != _SCALE}
        reference = norms.get(_DATA, norms.get(_EQUATION, 1.0) / self.norms.get(_SCALE, 1.0))
        return {name: reference / norm for name, norm in norms.items()}

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """The weighted sum of the terms of a batch."""
        weights = self.weights
        return torch.stack([weights.get(name, 1.0) * term for name, term in terms.items()]).sum()
