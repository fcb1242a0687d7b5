"""Variances whose largest ones fall or grow, so that their mean is the mean squared error."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor


def saturated(
    variance: Float64[Tensor, "*s"], saturation: Float64[Tensor, "*s"], *, largest: Float64[Tensor, "*s"] | None = None
) -> Float64[Tensor, "*s"]:
    """Variances v with s v² + v = t; where s < 0, t (1 + |s| min(t, T)), which grow as those fall.

    With s > 0, v = 2 t / (1 + (1 + 4 s t)^1/2) is t itself where s t is small, and (t/s)^1/2 where it is large.

    Args:
        variance: t, in physical units squared.
        saturation: s, in physical units to the power -2.
        largest: T, in physical units squared: no variance beyond it grows by a larger factor. None for no bound.

    Examples:
        >>> t = torch.tensor([0.01, 2.0, 1e4], dtype=torch.float64)
        >>> [round(value, 4) for value in saturated(t, torch.ones_like(t)).tolist()]
        [0.0099, 1.0, 99.5012]
        >>> saturated(t, -torch.ones_like(t), largest=torch.full_like(t, 3.0)).tolist()
        [0.0101, 6.0, 40000.0]
    """
    bounded = variance if largest is None else torch.minimum(variance, largest)
    shrunk = 2.0 * variance / (1.0 + (1.0 + 4.0 * saturation.clamp_min(0.0) * variance).sqrt())
    return torch.where(saturation < 0, variance * (1.0 - saturation * bounded), shrunk)


def fit_saturation(
    variances: Float64[Tensor, "n c p"], squares: Float64[Tensor, "n c p"], *, weights: Float64[Tensor, " p"]
) -> tuple[Float64[Tensor, " c"], Float64[Tensor, " c"]]:
    """The saturation that makes the mean variance as large as the mean squared error, and the largest variance.

    A likelihood fits variances relative to what they are, so those few that are largest may be wrong by a factor, and with
    them the mean. Among all variances with a smaller mean, those of `saturated` are the most likely ones if t were the
    expectation of the squared errors: they minimise log v + t/v + s v at every point, s being Lagrange's multiplier. For a
    larger mean the same rule cannot more than double a variance, so the largest ones grow by its inverse.

    Args:
        variances: t, in physical units squared.
        squares: Squared errors, in physical units squared.
        weights: Of averages over the domain.

    Returns:
        s of each channel, in physical units to the power -2, negative where the mean has to grow, and T, in physical units
        squared. s is 0 where all errors are, or all variances.
    """
    from scipy.optimize import brentq

    targets = (squares @ weights).mean(0)
    largest = variances.amax((0, 2))
    found = torch.zeros_like(targets)
    for channel, target in enumerate(targets.tolist()):
        t = variances[:, channel]
        mean = float((t @ weights).mean())

        def excess(saturation: float, t: Tensor = t, target: float = target) -> float:
            return float((saturated(t, torch.full_like(t, saturation)) @ weights).mean()) - target

        if mean > target > 0.0:
            most = (float((t.sqrt() @ weights).mean()) / target) ** 2  # saturated variances are at most (t/s)^1/2
            found[channel] = brentq(excess, 0.0, most, xtol=1e-12 * most, rtol=1e-12)
        elif target > mean > 0.0:
            relative = t / largest[channel]  # squares of variances may be too large or small for a number
            found[channel] = (mean - target) / largest[channel] / (relative.square() @ weights).mean() / largest[channel]
    return found, largest
