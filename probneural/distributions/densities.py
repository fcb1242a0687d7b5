"""Log densities of Gaussian fields: of a function's values one by one, and together."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.distributions.roots.base import DenseRoot, Root, root_sum_of_squares, square_root
from probneural.errors import ArgumentError
from probneural.linear_algebra.densities import LOG_TWO_PI, log_density, log_density_of_gram, log_density_without_noise

_LARGEST_DENSE = 2**24
"""Entries of one function's root up to which densities are computed from the root itself (128 MiB in float64)."""


def log_density_of_values(
    residual: Float64[Tensor, "*values"], *, std: Float64[Tensor, "*values"], noise: Float64[Tensor, "*values"]
) -> Float64[Tensor, "*values"]:
    """Log density of each value by itself, in nats.

    Args:
        residual: Distances from the mean, in physical units.
        std: Standard deviations of the field, in those units, of any size.
        noise: Variances of the observations, in those units squared.

    Raises:
        ArgumentError: If a value has no variance at all.
    """
    unit = root_sum_of_squares(std, noise.sqrt()).detach()
    _check_positive(unit)
    total = (std / unit).square() + noise / unit / unit  # about 1, where float64 may not hold squares of deviations
    return -0.5 * ((residual / unit).square() / total + total.log() + LOG_TWO_PI) - unit.log()


def log_density_of_function(
    root: Root | None, residual: Float64[Tensor, " cp"], *, noise: Float64[Tensor, " cp"], dtype: torch.dtype
) -> Float64[Tensor, ""]:
    """Log density of one function's values, in nats, from its root, or from its Gram matrix if that is much smaller.

    Args:
        root: Of that function alone, or None if all of its variance is in the noise.
        residual: Distances from the mean, channels first, in physical units.
        noise: Variances of what is independent from value to value, in those units squared.
        dtype: Dtype that root and mean were computed in.

    Raises:
        ArgumentError: If the density does not exist because some direction has no variance at all.
    """
    if root is None:
        root = DenseRoot(residual.new_zeros(1, 1, residual.shape[0], 0))
    size, rank = residual.shape[0], root.shape[3]
    if rank > size and size * rank > _LARGEST_DENSE:
        density = log_density_of_gram(root.gram()[0], residual, noise, dtype=dtype)
        if bool(density.isnan()):
            raise ArgumentError(
                expected="a variance in every direction that can be told from zero beside the largest one",
                got=f"less, in a covariance of {size} values with {rank} latent dimensions",
                remedy="pass a larger observation variance as noise, or take the density of a functional's values",
            )
        return density
    matrix = root.dense().to(torch.float64).flatten(0, 2)
    if bool((noise > 0).all()):
        return log_density(matrix, residual, noise, groups=root.shape[1])
    rows = noise.nonzero()[:, 0]
    if rank + len(rows) < size:  # fewer directions than values: nothing of size p² is formed
        _check_positive(noise)
    columns = noise.new_zeros(size, len(rows))
    columns[rows, torch.arange(len(rows))] = square_root(noise)[rows]
    density = log_density_without_noise(torch.cat([matrix, columns], dim=1), residual, dtype=dtype)
    _check_positive(~density.isnan())
    return density


def _check_positive(variance: Tensor) -> None:
    """Raise an ArgumentError unless all variances, or deviations, are positive (or all flags true)."""
    if not bool((variance > 0).all()):
        raise ArgumentError(
            expected="a positive variance in every direction", got="zero", remedy="pass the observation variance as noise > 0"
        )
