"""The energy score: the ranked probability score of whole functions."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_integer
from probneural.distributions.empirical import EmpiricalField
from probneural.metrics.comparison import Comparison, RepeatedDraws
from probneural.randomness import stream, stream_seed

_DRAWS = 128
"""Draws behind a Monte Carlo energy score."""


def energy_score(comparison: Comparison, *, draws: int = _DRAWS, seed: int = 0) -> Float64[Tensor, "n c"]:
    """The energy score E‖X - y‖ - 1/2 E‖X - X'‖ of whole functions, in the root-mean-square norm of the domain.

    ‖f‖² is the average of f² over the domain by quadrature, so a field that is constant in space scores its CRPS. Unlike the
    CRPS it sees whether values move together. Smaller is better; it is strictly proper.

    It is exact, over all pairs of members, for an empirical field without noise. Otherwise independent draws X_1, ..., X_m of
    the *observation* give the unbiased estimate 1/m Σ ‖X_i - y‖ - 1/(2 m (m - 1)) Σ_{i≠j} ‖X_i - X_j‖. Noise is independent
    from point to point, so with much noise the score depends on the resolution.

    Args:
        comparison: Prediction and truth.
        draws: Number m of draws, where they are needed.
        seed: Makes the draws repeatable; functions whose latent vectors have one length see the same ones.

    Returns:
        `(n, c)`, in physical units. An estimate can be negative.

    Raises:
        ArgumentError: If there are fewer than two draws, or the seed is none.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, equation 21, with β = 1; Gneiting et al. (2008), Assessing
        probabilistic forecasts of multivariate quantities, equation 7. Deviation: the norm is divided by √volume.
    """
    draws = check_integer(draws, "draws", least=2)
    u = comparison.distribution
    root = comparison.grid.mean_weights.sqrt().to(comparison.truth)
    is_exact = isinstance(u, EmpiricalField) and not bool((comparison.noise > 0).any())
    repeated, noise = RepeatedDraws(stream_seed(seed, "energy score draws")), None
    if bool((comparison.noise > 0).any()):
        generator = stream(seed, "energy score noise")
        shape = (draws, *comparison.truth.shape[1:])
        noise = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(comparison.truth)
    scores = []
    for index in range(comparison.truth.shape[0]):
        if is_exact and isinstance(u, EmpiricalField):
            drawn, weights = u.samples[:, index].detach().to(comparison.truth), u.weights.to(comparison.truth)
        else:
            drawn = repeated.of(u.marginal(index), draws)[:, 0].to(comparison.truth)
            weights = drawn.new_full((draws,), 1.0 / draws)
        if noise is not None:
            drawn = drawn + comparison.noise[index].sqrt() * noise
        offsets = (drawn - comparison.truth[index]).flatten(2).movedim(1, 0) * root  # (c, m, p)
        pairs = torch.cdist(offsets, offsets, compute_mode="donot_use_mm_for_euclid_dist")
        spread = torch.einsum("i,cij,j->c", weights, pairs, weights)
        if not is_exact:
            spread = spread * draws / (draws - 1)
        scores.append(offsets.square().sum(-1).sqrt() @ weights - 0.5 * spread)
    return torch.stack(scores)
