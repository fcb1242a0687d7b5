"""Information about a Gaussian posterior: gain, and reduction of the variance of target samples.

Everything is in the units of a posterior's latent xi ~ N(0, I_k). Observing functions is seeing y = R xi + N(0, I), with R the
rows of `whitened_rows`. Gain and reduction depend on them through their moments G = RᵀR alone, so
rows never need to be in memory all at once. Where there are fewer rows than latent dimensions, R Rᵀ is the smaller matrix and
takes the place of RᵀR. All results are float64 and differentiable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.distributions import FeatureRoot, GaussianField
from probneural.errors import ArgumentError, ShapeError
from probneural.linear_algebra.conditioning import information, precision_factor

_CHUNK_ELEMENTS = 2**22
"""Entries in float64 that a sum over rows, latent dimensions or batches adds to memory at once (32 MiB)."""


def information_gain(rows: Float[Tensor, "*b m k"]) -> Float64[Tensor, "*b"]:
    """Mutual information (log det(I + R Rᵀ)) / 2 between xi and the observation of rows R xi + N(0, I).

    It does not depend on what will be observed, so it is the expected information gain, and equals what BALD computes. It holds
    to about k 1e-16 times the largest eigenvalue of R Rᵀ.

    Args:
        rows: R, whitened; dimensionless.

    Returns:
        In nats, not negative.

    Reference:
        MacKay (1992b), total information gain; Houlsby et al. (2011).

    Examples:
        >>> round(information_gain(torch.tensor([[3.0**0.5]])).exp().item(), 6)
        2.0
    """
    return _over_batch(rows, lambda part: information(_smaller_gram(part)))


def variance_reduction(
    rows: Float[Tensor, "*b m k"], *, moments: Float64[Tensor, "k k"] | None = None, targets: Float[Tensor, "t k"] | None = None
) -> Float64[Tensor, "*b"]:
    """Variance that observing R xi + N(0, I) takes off target fields T xi: tr T Tᵀ - tr T (I + RᵀR)⁻¹ Tᵀ.

    It is formed as tr T Rᵀ (I + R Rᵀ)⁻¹ R Tᵀ, or its like on the smaller side, without the difference: small reductions keep
    their digits.

    Args:
        rows: R, whitened; dimensionless.
        moments: TᵀT of the targets, as `target_moments` sums it; in the field's units squared.
        targets: T itself, for latents so long that moments would not fit; in the field's units.

    Returns:
        In the targets' units squared, not negative; `torch.trace(moments)` is the variance there was.

    Raises:
        ArgumentError: If not exactly one of moments and targets is given.
        ShapeError: If they belong to another latent.

    Reference:
        Cohn (1996); Seo et al. (2000), who take one target at a time.

    Examples:
        >>> rows, targets = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0], [0.0, 5.0]])
        >>> round(variance_reduction(rows, targets=targets).item(), 12)
        2.0
    """
    _check_targets(rows.shape[-1], moments, targets)
    return _over_batch(rows, lambda part: _reduction(part, moments, targets))


def variance_reduction_of_moments(
    observed: Float64[Tensor, "*b k k"],
    *,
    moments: Float64[Tensor, "k k"] | None = None,
    targets: Float[Tensor, "t k"] | None = None,
) -> Float64[Tensor, "*b"]:
    """The variance reduction where the rows R are known by their moments G = RᵀR only: tr T G (I + G)⁻¹ Tᵀ.

    Raises:
        ArgumentError: If not exactly one of moments and targets is given.
        ShapeError: If they belong to another latent.
    """
    _check_targets(observed.shape[-1], moments, targets)
    triangle = precision_factor(observed)
    if targets is not None:
        columns = targets.to(observed).mT
        return (torch.cholesky_solve(columns.expand(*observed.shape[:-2], -1, -1), triangle) * (observed @ columns)).sum(
            (-2, -1)
        )
    assert moments is not None
    return (torch.cholesky_solve(observed, triangle) * moments.to(observed)).sum((-2, -1))


def observation_moments(field: GaussianField, weights: Float64[Tensor, "c p"]) -> Float64[Tensor, "n k k"]:
    """Moments RᵀR of each function's own whitened rows; those of functions observed together are their sum.

    Rows are formed for one function at a time. Where features are shared by the channels, the moments follow from those of the
    features, and rows are not formed at all.

    Args:
        field: The posterior at n inputs.
        weights: Of `observation_weights` on its grid, in inverse physical units squared.

    Returns:
        Dimensionless; differentiable in the inputs.

    Raises:
        ShapeError: If the weights belong to another grid or number of channels.
    """
    _check_weights(field, weights, ())
    pieces = list(_moments(field, weights.expand(len(field), -1, -1)))
    rank = field.latent.rank
    return torch.stack(pieces) if pieces else torch.zeros(0, rank, rank, dtype=torch.float64, device=field.root.device)


def target_moments(field: GaussianField, weights: Float64[Tensor, "... c p"]) -> Float64[Tensor, "k k"]:
    """Sum over target functions of w RᵀR, with R the rows of their root: what `variance_reduction` needs of them.

    Args:
        field: The posterior at n target inputs.
        weights: Not negative: `(c, p)` for all targets, such as the grid's quadrature weights, or `(n, c, p)` with the
            distribution of the targets in it; in any unit.

    Returns:
        Its trace is the weighted sum of the variances; in the field's units squared times those of the weights.

    Raises:
        ShapeError: If the weights belong to another grid or number of channels or inputs.

    Examples:
        >>> from probneural.distributions import DenseRoot
        >>> from probneural.grids import Grid
        >>> grid = Grid.uniform((4,))
        >>> field = GaussianField(torch.zeros(2, 1, 4), DenseRoot(torch.full((2, 1, 4, 1), 3.0)), latent="xi", grid=grid)
        >>> target_moments(field, grid.weights[None]).item()
        18.0
    """
    _check_weights(field, weights, (len(field),))
    rank = field.latent.rank
    total = torch.zeros(rank, rank, dtype=torch.float64, device=field.root.device)
    for piece in _moments(field, weights.expand(len(field), *weights.shape[-2:])):
        total = total + piece
    return total


def _moments(field: GaussianField, weights: Tensor) -> Iterator[Tensor]:
    """Weighted moments of the rows of each function, `(k, k)`."""
    for index in range(len(field)):
        root = field.root.select(slice(index, index + 1))
        part_weights = weights[index].to(root.device, torch.float64)
        if isinstance(root, FeatureRoot) and root.features.shape[2] <= root.shape[3]:
            yield _feature_moments(root, part_weights)
            continue
        matrix = root.dense()[0].flatten(0, 1)
        total = torch.zeros(root.shape[3], root.shape[3], dtype=torch.float64, device=root.device)
        step = max(1, _CHUNK_ELEMENTS // max(1, root.shape[3]))
        for rows, part in zip(matrix.split(step), part_weights.flatten().split(step), strict=True):
            scaled = rows.to(torch.float64) * part.sqrt()[:, None]
            total = total + scaled.mT @ scaled
        yield total


def _feature_moments(root: FeatureRoot, weights: Tensor) -> Tensor:
    """Sum over channels of FᵀPF with P the weighted moments of the features of one function."""
    factor, features = root.factor[0].to(torch.float64), root.features[0].to(torch.float64)
    total = torch.zeros(root.shape[3], root.shape[3], dtype=torch.float64, device=root.device)
    for channel, part_weights in enumerate(weights):
        scaled = features * part_weights.sqrt()[:, None]
        total = total + factor[channel].mT @ (scaled.mT @ scaled) @ factor[channel]
    return total


def _over_batch(rows: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply to a few batch entries at a time, so that not all their Gram matrices are in memory together."""
    batch = rows.shape[:-2]
    if not batch:
        return compute(rows)
    side = max(1, min(rows.shape[-2:]))
    flat = rows.reshape(math.prod(batch), *rows.shape[-2:])
    pieces = [compute(part) for part in flat.split(max(1, _CHUNK_ELEMENTS // side**2))]
    return torch.cat(pieces).reshape(batch)


def _smaller_gram(rows: Tensor) -> Tensor:
    """RᵀR or R Rᵀ, whichever is smaller, in float64, converted and summed a few rows or columns at a time."""
    tall = rows.shape[-2] >= rows.shape[-1]
    columns = rows if tall else rows.mT
    side = columns.shape[-1]
    total = torch.zeros(*rows.shape[:-2], side, side, dtype=torch.float64, device=rows.device)
    for piece in columns.split(max(1, _CHUNK_ELEMENTS // max(1, math.prod(rows.shape[:-2]) * side)), dim=-2):
        wide = piece.to(torch.float64)
        total = total + wide.mT @ wide
    return total


def _reduction(rows: Tensor, moments: Tensor | None, targets: Tensor | None) -> Tensor:
    gram = _smaller_gram(rows)
    if rows.shape[-2] >= rows.shape[-1]:
        return variance_reduction_of_moments(gram, moments=moments, targets=targets)
    triangle, wide = precision_factor(gram), rows.to(torch.float64)
    if targets is not None:
        along = torch.linalg.solve_triangular(triangle, wide @ targets.to(wide).mT, upper=False)
        return along.square().sum((-2, -1))
    assert moments is not None
    along = torch.linalg.solve_triangular(triangle, wide, upper=False)
    return ((along @ moments.to(wide)) * along).sum((-2, -1))


def _check_targets(rank: int, moments: Tensor | None, targets: Tensor | None) -> None:
    sources = [value for value in (moments, targets) if value is not None]
    if len(sources) != 1:
        raise ArgumentError(
            expected="either moments or targets",
            got="both" if sources else "neither",
            remedy="moments= of target_moments will do",
        )
    if sources[0].shape[-1] != rank or (moments is not None and tuple(moments.shape) != (rank, rank)):
        raise ShapeError(
            expected=f"targets (t, {rank}) or their moments ({rank}, {rank})",
            got=str(tuple(sources[0].shape)),
            remedy="take targets and observations from one predictor",
        )


def _check_weights(field: GaussianField, weights: Tensor, inputs: tuple[int, ...]) -> None:
    shape = field.root.shape[1:3]
    if tuple(weights.shape) not in (shape, (*inputs, *shape)):
        raise ShapeError(
            expected=f"weights (c, p) = {shape}" + (f", or one such for each of {inputs[0]} targets" if inputs else ""),
            got=str(tuple(weights.shape)),
            remedy="take those of the field's grid",
        )
