"""The energy score: the ranked probability score of whole functions."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.checks import check_flag, check_integer
from probneural.metrics.comparison import Comparison, check_comparison
from probneural.metrics.observed_draws import ObservedDraws
from probneural.metrics.ranked_probability import fair_factor
from probneural.randomness import stream, stream_seed

_DRAWS = 128
"""Draws behind a Monte Carlo energy score."""


def energy_score(
    comparison: Comparison, *, draws: int = _DRAWS, seed: int = 0, is_fair: bool = False
) -> Float64[Tensor, "n c"]:
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
        is_fair: Whether members count as such draws, of the distribution that is scored, and not as that distribution itself:
            then more members are no better on average.

    Returns:
        `(n, c)`, in physical units. An estimate can be negative.

    Raises:
        ArgumentError: If there are fewer than two draws, or the seed is none.
        DataError: If a fair score is asked of one member.

    Reference:
        Gneiting and Raftery (2007), Strictly proper scoring rules, equation 21, with β = 1; Gneiting et al. (2008), Assessing
        probabilistic forecasts of multivariate quantities, equation 7. Deviation: the norm is divided by √volume.
    """
    check_comparison(comparison)
    draws = check_integer(draws, "draws", least=2)
    is_fair = check_flag(is_fair, "is_fair")
    root = comparison.grid.sample_weights.sqrt().to(comparison.truth)
    observed = ObservedDraws(
        comparison,
        draws=draws,
        seed=stream_seed(seed, "energy score draws"),
        noise=stream(seed, "energy score noise"),
        takes_members=is_fair,
        width=comparison.truth[0].numel(),
    )
    weights = observed.weights
    factor = fair_factor(weights) if is_fair or not observed.are_members else 1.0
    scores = []
    start = 0
    for drawn, truth in observed:
        weight = root[start : start + len(truth), :, None] if comparison.grid.is_batch else root
        start += len(truth)
        offsets = (drawn - truth).flatten(3).movedim(0, 2) * weight  # (b, c, m, p)
        pairs = torch.cdist(offsets, offsets, compute_mode="donot_use_mm_for_euclid_dist")
        spread = factor * torch.einsum("i,bcij,j->bc", weights, pairs, weights)
        scores.append(offsets.square().sum(-1).sqrt() @ weights - 0.5 * spread)
    return torch.cat(scores)
