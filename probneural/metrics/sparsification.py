"""Sparsification: how fast the error falls when what is said to be uncertain is left out, beside the fastest that it could."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_choice, check_integer
from probneural.errors import DataError
from probneural.metrics.comparison import Comparison, check_comparison, flat_values, flat_weights

Unit = Literal["values", "functions"]
"""What is left out one by one: single values of all functions, or whole functions."""


class SparsificationCurve(NamedTuple):
    """Error of what remains, against the fraction that was left out.

    Attributes:
        removed: Fraction left out, `(k,)`, from 0 to less than 1, dimensionless.
        error: Root mean squared error of the rest, the most uncertain left out first, `(c, k)`, in physical units.
        oracle: The same with the largest errors left out first, `(c, k)`.
        ause: Area between the two, over the error of everything, `(c,)`, dimensionless.
    """

    removed: Float64[Tensor, " k"]
    error: Float64[Tensor, "c k"]
    oracle: Float64[Tensor, "c k"]
    ause: Float64[Tensor, " c"]


class SparsificationError(NamedTuple):
    """Areas under the sparsification error curve: 0 if uncertainties rank as errors do; smaller is better.

    Attributes:
        values: Over the values of all functions, `(c,)`, dimensionless.
        functions: Over whole functions, by root mean squares over the domain, `(c,)`, dimensionless.
        constant_values: `values` of a constant standard deviation, `(c,)`; a random order has as much, or a little less.
        constant_functions: `functions` of one, `(c,)`.
    """

    values: Float64[Tensor, " c"]
    functions: Float64[Tensor, " c"]
    constant_values: Float64[Tensor, " c"]
    constant_functions: Float64[Tensor, " c"]


def ause(comparison: Comparison) -> SparsificationError:
    """The area under the sparsification error curve (AUSE), of values and of functions.

    Values are left out in the order of their predictive standard deviation, largest first. The root mean squared error of the
    rest, over that of all, is a curve over the fraction left out, from 0 to 1; the same in the order of the errors themselves
    is the oracle's. AUSE is the area between them. It judges the order of standard deviations only: not their size, nor
    whether errors are random. Equal standard deviations share their errors, so a constant one has the area
    of a random order, 1 - the oracle's: compare each value with that.

    Args:
        comparison: Prediction and truth; the standard deviation includes the noise.

    Raises:
        DataError: If `comparison` is none, there are fewer than two functions, or a channel has no error at all.

    Reference:
        Ilg et al. (2018), Uncertainty estimates and multi-hypotheses networks for optical flow, section 5.1. Deviation: root
        mean squared errors, each value with its quadrature weight.

    Examples:
        >>> from probneural import distributions, fields, metrics
        >>> grid = fields.Grid.uniform((2,))
        >>> size = torch.tensor([1.0, 2.0]).reshape(2, 1, 1) * torch.ones(2, 1, 2)
        >>> u = distributions.EmpiricalField(torch.stack([-size, size]), grid=grid)
        >>> right, wrong = (metrics.compare(u, fields.Field(error, grid)) for error in (size - 1.0, 2.0 - size))
        >>> ause(right).functions.item(), round(ause(wrong).functions.item() / 2**0.5, 9)  # (√2 + 1)/4 + √2/2 - 1/4 = .75 √2
        (0.0, 0.75)
    """
    check_comparison(comparison)
    areas = []
    for unit in ("values", "functions"):
        std, square, weights = _units(comparison, unit)
        oracle = _area(_curve(square, square, weights))
        areas.append((_area(_curve(std, square, weights)) - oracle, 1.0 - oracle))
    (values, constant_values), (functions, constant_functions) = areas
    return SparsificationError(values, functions, constant_values, constant_functions)


def sparsification_curve(comparison: Comparison, *, over: Unit = "values", steps: int = 100) -> SparsificationCurve:
    """The curves whose areas [`ause`][probneural.metrics.sparsification.ause] compares.

    Args:
        comparison: Prediction and truth.
        over: What is left out one by one: "values" of all functions, or whole "functions".
        steps: Number of points of the curve, at equal distances of the fraction that is left out.

    Raises:
        ArgumentError: If `over` does not exist, or there are no steps.
        DataError: If `comparison` is none, there are fewer than two functions, or a channel has no error at all.
    """
    check_comparison(comparison)
    check_choice(over, ("values", "functions"), "over")
    removed = torch.arange(check_integer(steps, "steps", least=1), dtype=torch.float64, device="cpu") / steps
    std, square, weights = _units(comparison, over)
    stated, oracle = (_curve(order, square, weights) for order in (std, square))
    total = (square @ weights).sqrt()[:, None]
    at = removed.to(square).expand(len(square), -1).contiguous()
    error, best = (total * _interpolated(at, curve) for curve in (stated, oracle))
    return SparsificationCurve(at[0], error, best, _area(stated) - _area(oracle))


class _Curve(NamedTuple):
    """Nodes: fraction left out, from 0, and error of the rest over that of all; constant after the last one."""

    removed: Float64[Tensor, "c m"]
    error: Float64[Tensor, "c m"]


def _units(comparison: Comparison, over: Unit) -> tuple[Tensor, Tensor, Tensor]:
    """Variances and squared errors, `(c, m)`, and their weights, `(m,)`, which sum to one."""
    check_comparison(comparison)
    count = len(comparison.truth)
    if count < 2:
        raise DataError(expected="at least two functions", got=str(count), remedy="ranks need some")
    parts = comparison.variance, comparison.residual.square()
    if over == "functions":
        variance, square = (comparison.average(part).mT for part in parts)
        weights = square.new_full((count,), 1.0 / count)
    else:
        variance, square = (flat_values(comparison, part) for part in parts)
        weights = flat_weights(comparison) / count
    if not bool(((square @ weights) > 0).all()):
        raise DataError(expected="errors in every channel", got="none", remedy="there is nothing to rank")
    return variance, square, weights


def _curve(order: Float64[Tensor, "c m"], square: Float64[Tensor, "c m"], weights: Float64[Tensor, " m"]) -> _Curve:
    """Leave units out by decreasing `order`; those of equal order share their squared errors."""
    ranked, index = order.sort(dim=1, descending=True, stable=True)
    mass = weights[index]
    shared = torch.stack([_shared(*row) for row in zip(ranked, square.gather(1, index), mass, strict=True)])
    zero = mass.new_zeros(len(mass), 1)
    removed = torch.cat([zero, mass.cumsum(1)[:, :-1]], dim=1)
    # sums from the end: what remains is never a difference of large numbers
    rest, weight = ((part.flip(1).cumsum(1)).flip(1) for part in (shared * mass, mass))
    total = (square @ weights)[:, None]
    return _Curve(removed, (rest / weight / total).sqrt())


def _shared(order: Float64[Tensor, " m"], square: Float64[Tensor, " m"], mass: Float64[Tensor, " m"]) -> Float64[Tensor, " m"]:
    """Weighted means of squared errors over runs of equal order."""
    run = torch.unique_consecutive(order, return_inverse=True)[1]
    sums = torch.zeros(2, len(order), device="cpu").to(mass).index_add_(1, run, torch.stack([mass * square, mass]))
    return (sums[0] / sums[1])[run]


def _area(curve: _Curve) -> Float64[Tensor, " c"]:
    """Area over [0, 1]: trapezoids between nodes, and a rectangle after the last one."""
    return torch.trapezoid(curve.error, curve.removed, dim=1) + curve.error[:, -1] * (1.0 - curve.removed[:, -1])


def _interpolated(at: Float64[Tensor, "c k"], curve: _Curve) -> Float64[Tensor, "c k"]:
    """Linear between nodes, constant after the last one."""
    nodes = curve.removed.contiguous()
    right = torch.searchsorted(nodes, at, right=True).clamp(max=nodes.shape[1] - 1)
    left = (right - 1).clamp_min(0)
    low, high = nodes.gather(1, left), nodes.gather(1, right)
    fraction = ((at - low) / torch.where(high > low, high - low, torch.ones_like(low))).clamp(0.0, 1.0)
    return torch.lerp(curve.error.gather(1, left), curve.error.gather(1, right), fraction)
