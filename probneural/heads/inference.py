"""Inference by Pyro and diagnostics of its chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import missing

_SIZES = ("bulk_size_min", "bulk_size_max", "tail_size_min", "tail_size_max")
"""Names of effective sample sizes in a report."""


def chain_report(draws: Float[Tensor, "m n k"]) -> dict[str, float]:
    """Convergence of m chains of n draws of k parameters: the extremes over parameters.

    Args:
        draws: Kept draws, chains first, in any units.

    Returns:
        `r_hat_max` and `_min`: the larger one of rank-normalised split R-hat of the draws and of their distances from the
        median; 1 where chains agree. `bulk_size_min` and `_max`: effective sample size of the rank-normalised draws.
        `tail_size_min` and `_max`: the smaller one of those for the 5 % and the 95 % quantile. Parameters that are equal in
        all draws are left out; if all are, R-hat is 1 and sizes are NaN.

    Reference:
        Vehtari et al. (2021), equations 3.1 to 3.14 and section 4.

    Examples:
        >>> draws = torch.randn(4, 500, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        >>> round(chain_report(draws)["r_hat_max"], 2)
        1.0
    """
    draws = draws.to(torch.float64)
    varies = (draws != draws[:1, :1]).any(0).any(0)
    if not bool(varies.any()):
        return {**dict.fromkeys(("r_hat_min", "r_hat_max"), 1.0), **dict.fromkeys(_SIZES, math.nan)}
    draws = draws[..., varies]
    folded = (draws - draws.flatten(0, 1).median(0).values).abs()
    ranked = _rank_normalised(_split(draws))
    r_hat = torch.maximum(split_r_hat(ranked), split_r_hat(_rank_normalised(_split(folded))))
    quantiles = draws.flatten(0, 1).quantile(torch.tensor([0.05, 0.95], dtype=torch.float64), dim=0)
    tails = torch.stack([effective_size(_split((draws <= quantile).to(torch.float64))) for quantile in quantiles])
    tails = tails.nan_to_num(nan=math.inf).amin(0)  # ties may leave nothing beyond one of the quantiles
    statistics = {"r_hat": r_hat, "bulk_size": effective_size(ranked), "tail_size": tails}
    return {f"{name}_{end}": float(getattr(values, end)()) for name, values in statistics.items() for end in ("min", "max")}


def _split(draws: Float64[Tensor, "m n k"]) -> Float64[Tensor, "m2 h k"]:
    """Halves of chains as chains; of an odd number of draws the middle one is left out."""
    half = draws.shape[1] // 2
    return torch.cat([draws[:, :half], draws[:, -half:]])


def _rank_normalised(draws: Float64[Tensor, "m n k"]) -> Float64[Tensor, "m n k"]:
    """Normal scores of the ranks among all draws of a parameter; ties share the average rank."""
    from scipy.stats import rankdata  # takes long to import

    flat = draws.flatten(0, 1)
    ranks = torch.from_numpy(rankdata(flat.numpy(), axis=0))
    return torch.special.ndtri((ranks - 0.375) / (len(flat) + 0.25)).reshape(draws.shape)


def split_r_hat(chains: Float64[Tensor, "m n k"]) -> Float64[Tensor, " k"]:
    """Square root of the pooled over the within-chain variance; NaN where nothing varies."""
    within = chains.var(1).mean(0)
    return ((chains.shape[1] - 1) / chains.shape[1] + chains.mean(1).var(0) / within).sqrt()


def effective_size(chains: Float64[Tensor, "m n k"]) -> Float64[Tensor, " k"]:
    """Independent draws that would know the mean as well, by Geyer's initial monotone sequence; at most S log10 S of S.

    NaN where nothing varies.
    """
    count, length, _ = chains.shape
    centred = chains - chains.mean(1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * length, dim=1)
    covariances = torch.fft.irfft(spectrum.abs().square(), n=2 * length, dim=1)[:, :length].mean(0) / length
    within = chains.var(1).mean(0)
    pooled = within * (length - 1) / length + chains.mean(1).var(0)
    correlations = 1.0 - (within - covariances * length / (length - 1)) / pooled
    correlations[0] = 1.0
    pairs = correlations[: length // 2 * 2].unflatten(0, (-1, 2)).sum(1)
    positive = (pairs > 0).to(torch.float64).cumprod(0)
    monotone = torch.cummin(torch.where(positive > 0, pairs, torch.inf), 0).values
    time = -1.0 + 2.0 * torch.where(positive > 0, monotone, 0.0).sum(0)
    total = count * length
    return torch.where(pooled > 0, total / time.clamp_min(1.0 / math.log10(total)), math.nan)


_WINDOW = 250
"""Steps between looks at the bound."""
_RATES = (0.1, 0.03, 0.01, 0.003, 0.001)
"""Learning rates, one after the other."""


def pyro_module(head: str) -> ModuleType:
    """Pyro, which is imported when it is needed and not before.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import pyro
        import pyro.infer.autoguide
    except ModuleNotFoundError as error:
        raise missing(head, error, "pyro") from error
    module: ModuleType = pyro
    return module


def optimise(
    pyro: ModuleType,
    model: Callable[[], None],
    guide: Any,
    *,
    loss: Any,
    steps: int,
    rate: float = 1.0,
    tick: Callable[[], object],
    bound: Callable[[Sequence[float]], tuple[float, float]],
) -> tuple[Float64[Tensor, " w"], bool]:
    """Run stochastic variational inference.

    Args:
        pyro: The module.
        model: The joint density, for Pyro.
        guide: The family, for Pyro; a module.
        loss: Pyro's estimator of minus the bound.
        steps: The most steps.
        rate: What learning rates are multiplied by.
        tick: Called after every step.
        bound: From the losses of a window to the bound, in nats, and the least gain for which the rate is kept.

    Returns:
        The bound after every window, and whether it has converged.
    """
    history: list[float] = []
    parameters = list(guide.parameters())
    left = steps
    for factor in _RATES:
        step = pyro.infer.SVI(model, guide, pyro.optim.Adam({"lr": rate * factor}), loss=loss).step
        gained, least = math.inf, 0.0
        while gained >= least:
            if left == 0:
                return torch.tensor(history, dtype=torch.float64), False
            length = min(_WINDOW, left)
            sums, losses = [torch.zeros_like(parameter) for parameter in parameters], list[float]()
            for number in range(length):
                losses.append(step())
                tick()
                if number >= length // 2:
                    for total, parameter in zip(sums, parameters, strict=True):
                        total += parameter.detach()
            left -= length
            with torch.no_grad():
                for total, parameter in zip(sums, parameters, strict=True):
                    parameter.copy_(total / (length - length // 2))
                value, least = bound(losses)
                history.append(value)
            gained = history[-1] - history[-2] if len(history) > 1 else math.inf
    return torch.tensor(history, dtype=torch.float64), True
