"""Variances that saturate where they are largest, so that their mean is no larger than the mean squared error."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor


def saturated(variance: Float64[Tensor, "*s"], saturation: Float64[Tensor, "*s"]) -> Float64[Tensor, "*s"]:
    """2 t / (1 + (1 + 4 s t)^1/2) of variances t: t itself where s t is small, (t/s)^1/2 where it is large.

    Args:
        variance: t, in physical units squared.
        saturation: s, not negative, in physical units to the power -2.

    Examples:
        >>> t = torch.tensor([0.01, 2.0, 1e4], dtype=torch.float64)
        >>> [round(value, 4) for value in saturated(t, torch.ones_like(t)).tolist()]
        [0.0099, 1.0, 99.5012]
    """
    return 2.0 * variance / (1.0 + (1.0 + 4.0 * saturation * variance).sqrt())


def fit_saturation(
    variances: Float64[Tensor, "n c p"], squares: Float64[Tensor, "n c p"], *, weights: Float64[Tensor, " p"]
) -> Float64[Tensor, " c"]:
    """The saturation that makes the mean variance as large as the mean squared error; 0 where it is no larger anyway.

    A likelihood fits variances relative to what they are, so those few that are largest may be wrong by a factor, and with
    them the mean. Among all variances with the right mean, those of `saturated` are the most likely ones if t were the
    expectation of the squared errors: they minimise log v + t/v + s v at every point, s being Lagrange's multiplier.

    Args:
        variances: t, in physical units squared.
        squares: Squared errors, in physical units squared.
        weights: Of averages over the domain.

    Returns:
        s of each channel, in physical units to the power -2.
    """
    from scipy.optimize import brentq

    targets = (squares @ weights).mean(0)
    found = torch.zeros_like(targets)
    for channel, target in enumerate(targets.tolist()):
        t = variances[:, channel]

        def excess(saturation: float, t: Tensor = t, target: float = target) -> float:
            return float((saturated(t, torch.full_like(t, saturation)) @ weights).mean()) - target

        if target > 0.0 and excess(0.0) > 0.0:
            most = (float((t.sqrt() @ weights).mean()) / target) ** 2  # saturated variances are at most (t/s)^1/2
            found[channel] = brentq(excess, 0.0, most, xtol=1e-12 * most, rtol=1e-12)
    return found
