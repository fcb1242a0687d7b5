"""Log densities of Gaussian vectors in float64, from the root of a covariance, with and without noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64
from torch import Tensor

from probneural.linear_algebra.conditioning import RANK_TOLERANCE, Decomposition, by_size, increment, row_norms

_GRAM_COLUMNS = 64
"""Least number of columns and rows for which a Cholesky factor of the Gram matrix is faster than singular values: five times at
3,072 x 500 and at 1,089 x 2,000, one thread."""
_GRAM_TRACE = 1e7
"""Largest trace of a whitened root's Gram matrix for which its Cholesky factor is accurate: eigenvalues of 1 to 1e-9."""
_GRAM_BLOCK = 256
"""Columns per block of a Gram matrix."""
LOG_TWO_PI = math.log(2.0 * math.pi)


def log_density(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"], *, groups: int = 1
) -> Float64[Tensor, "..."]:
    """Log density of a residual under N(0, root root^T + diag(noise)) with noise > 0.

    Let A and w be the root and the residual over the standard deviations of the noise. Then

        log p = -(q + log det(I + A^T A) + sum log noise + m log 2π) / 2,        q = min over z of |w - A z|² + |z|².

    Tall A use I + A^T A = L L^T, wide ones I + A A^T = L L^T with q = max over x of 2 w·x - |A^T x|² - |x|². Both forms of q
    have errors of second order in those of z or x. Gram matrices have eigenvalues with errors of 1e-16 of the largest. If that
    is too large, and for a few columns or rows, L^T comes from a QR decomposition of A or A^T stacked on I, in a third of the
    time of singular values. Derivatives then use singular values; if rows of A differ by a factor of 1e15, the small ones and
    the last digits of derivatives are lost.

    Args:
        root: Root of the covariance; each row has the units of its residual.
        residual: The residual, each entry in any units.
        noise: Variances of the noise, in these units squared.
        groups: Number of equal groups of rows, such as channels; columns that are zero in a group cost nothing there.
    """
    inverse = noise.rsqrt()
    rows, whitened = root * inverse[..., None], residual * inverse
    trace = rows.detach().square().sum((-2, -1))
    is_recorded = torch.is_grad_enabled() and (rows.requires_grad or whitened.requires_grad)
    if min(rows.shape[-2:]) >= _GRAM_COLUMNS and bool((trace <= _GRAM_TRACE).all()):
        is_tall = rows.shape[-1] <= rows.shape[-2]
        quadratic, log_determinant = by_gram(rows, whitened, groups=groups) if is_tall else by_covariance(rows, whitened)
    else:
        quadratic, log_determinant = _by_triangle(rows.detach(), whitened.detach())
        if is_recorded:
            slopes = _by_singular_values(rows, whitened)
            quadratic, log_determinant = quadratic + increment(slopes[0]), log_determinant + increment(slopes[1])
    return normal_log_density(quadratic, log_determinant + noise.log().sum(-1), residual)


def lower_gram(columns: Float64[Tensor, "... m k"], *, groups: int = 1) -> Float64[Tensor, "... k k"]:
    """Lower triangle of A^T A, in blocks, for a Cholesky factor; the full matrix if derivatives are recorded.

    It takes 0.6 of the time of the full product at 3,072 x 1,800, and 0.75 at 3,072 x 900. Each group of rows multiplies only
    its columns that are not zero.
    """
    size = columns.shape[-1]
    if columns.requires_grad and torch.is_grad_enabled():
        return columns.mT @ columns
    gram = columns.new_zeros(*columns.shape[:-2], size, size)
    if columns.ndim == 2 and groups > 1:
        for rows in columns.unflatten(0, (groups, -1)):
            used = (rows != 0).any(0).nonzero()[:, 0]
            gram[used[:, None], used] += lower_gram(rows[:, used])
        return gram
    for start in range(0, size, _GRAM_BLOCK):
        block = slice(start, start + _GRAM_BLOCK)
        gram[..., start:, block] = columns[..., start:].mT @ columns[..., block]
    return gram


def by_gram(rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"], *, groups: int = 1) -> tuple[Tensor, Tensor]:
    """Squared Mahalanobis distance of w under N(0, A A^T + I), and the covariance's log determinant, from A^T A."""
    gram = lower_gram(rows, groups=groups)
    # z = (I + A^T A)^-1 A^T w, distance |w - A z|^2 + |z|^2
    triangle = torch.linalg.cholesky(gram + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))
    latent = torch.cholesky_solve(rows.mT @ whitened[..., None], triangle)
    remainder = whitened[..., None] - rows @ latent
    quadratic = remainder.square().sum((-2, -1)) + latent.square().sum((-2, -1))
    return quadratic, 2.0 * triangle.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def by_covariance(rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"]) -> tuple[Tensor, Tensor]:
    """The same as `by_gram`, from A A^T, for a wide A."""
    covariance = lower_gram(rows.mT)
    # x = (I + A A^T)^-1 w, distance 2 w·x - |A^T x|^2 - |x|^2
    triangle = torch.linalg.cholesky(covariance + torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device))
    solved = torch.cholesky_solve(whitened[..., None], triangle)
    quadratic = (
        2.0 * (whitened * solved[..., 0]).sum(-1) - (rows.mT @ solved).square().sum((-2, -1)) - solved.square().sum((-2, -1))
    )
    return quadratic, 2.0 * triangle.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _by_triangle(rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"]) -> tuple[Tensor, Tensor]:
    """The same as `by_gram`, without products of A and without derivatives."""
    order = by_size(rows)
    whitened = whitened.take_along_dim(order, -1)
    rows = torch.linalg.qr(rows.take_along_dim(order[..., None], -2).mT, mode="r").R.mT  # see Decomposition.of
    is_wide = rows.shape[-1] > rows.shape[-2]
    narrow = rows.mT if is_wide else rows
    identity = torch.eye(narrow.shape[-1], dtype=rows.dtype, device=rows.device).expand(*rows.shape[:-2], -1, -1)
    stacked = torch.cat([narrow, identity], dim=-2)
    if is_wide:
        triangle = torch.linalg.qr(stacked, mode="r").R  # I + A A^T = R^T R, distance |R^-T w|^2
        quadratic = torch.linalg.solve_triangular(triangle.mT, whitened[..., None], upper=False).square().sum((-2, -1))
    else:  # the last diagonal entry of R is the distance of least squares
        target = torch.cat([whitened, whitened.new_zeros(*whitened.shape[:-1], narrow.shape[-1])], dim=-1)
        both = torch.linalg.qr(torch.cat([stacked, target[..., None]], dim=-1), mode="r").R
        quadratic, triangle = both[..., -1, -1].square(), both[..., :-1, :-1]
    return quadratic, 2.0 * triangle.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def _by_singular_values(rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"]) -> tuple[Tensor, Tensor]:
    """The same as `by_gram`, with first derivatives: A = U S V^T, log det(I + A A^T) = sum log(1 + S^2)."""
    svd = Decomposition.of(rows)
    gain, _, _, quadratic = svd.with_unit_noise(whitened)
    return quadratic, 2.0 * gain.log().sum(-1) + svd.inner(2.0 * svd.values / gain.square())


def log_density_without_noise(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], *, dtype: torch.dtype
) -> Float64[Tensor, "..."]:
    """Log density of a residual under N(0, root root^T); NaN unless the numerical rank of the root is m."""
    if root.shape[-1] < root.shape[-2]:
        return torch.full_like(residual.sum(-1), math.nan)
    size = row_norms(root)
    size = torch.where(size > 0, size, torch.ones_like(size))
    # Rows of norm 1, as for correlations: root = diag(size) U S V^T, distance |S^-1 U^T (residual / size)|^2
    svd, target = Decomposition.of(root / size[..., None]), residual / size
    standardised = svd.along(target.detach()) / svd.values
    pull, latent = svd.combined(standardised / svd.values), svd.to_latent(standardised)
    quadratic = standardised.square().sum(-1) + svd.distance(target, pull, latent)
    log_determinant = 2.0 * (svd.values.log().sum(-1) + size.log().sum(-1)) + svd.inner(2.0 / svd.values)
    density = normal_log_density(quadratic, log_determinant, residual)
    return torch.where(svd.values[..., -1] > RANK_TOLERANCE[dtype] * svd.values[..., 0], density, math.nan)


def log_density_of_gram(
    gram: Float64[Tensor, "... m m"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"], *, dtype: torch.dtype
) -> Float64[Tensor, "..."]:
    """Log density of a residual under N(0, gram + diag(noise)), for the Gram matrix of a wide root.

    Variances in a Gram matrix have errors of about 1e-16 of the largest. So the density is NaN if the smallest eigenvalue of
    the correlation matrix, noise included, is zero up to rounding.
    """
    total = gram + torch.diag_embed(noise)
    size = total.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(total.dtype).tiny).sqrt()
    # total = diag(size) L L^T diag(size), distance |L^-1 (residual / size)|^2
    correlations = total / (size[..., :, None] * size[..., None, :])
    spectrum = torch.linalg.eigvalsh(correlations.detach())
    resolved = residual.shape[-1] * torch.finfo(total.dtype).eps
    least = torch.where((noise > 0).all(-1), resolved, max(resolved, RANK_TOLERANCE[dtype] ** 2))
    triangle, _ = torch.linalg.cholesky_ex(correlations)  # differentiable also at equal eigenvalues
    whitened = torch.linalg.solve_triangular(triangle, (residual / size)[..., None], upper=False)[..., 0]
    log_determinant = 2.0 * (triangle.diagonal(dim1=-2, dim2=-1).log() + size.log()).sum(-1)
    density = normal_log_density(whitened.square().sum(-1), log_determinant, residual)
    return torch.where(spectrum[..., 0] > least * spectrum[..., -1], density, math.nan)


@dataclass(frozen=True, eq=False)
class FactoredModes:
    """Covariance I + M M^T of whitened values, factored once for the log densities of many samples.

    Args:
        modes: M, `(c, p, r)`, dimensionless; channels are independent.
    """

    modes: Float64[Tensor, "c p r"]

    @cached_property
    def triangle(self) -> Float64[Tensor, "c r r"]:
        """Lower Cholesky factors L of I + M^T M."""
        identity = torch.eye(self.modes.shape[2], dtype=self.modes.dtype, device=self.modes.device)
        return torch.linalg.cholesky(self.modes.mT @ self.modes + identity)

    def log_densities(self, root: Float64[Tensor, "c p k"], residuals: Float64[Tensor, "m c p"]) -> Float64[Tensor, " m"]:
        """Log densities of whitened residuals under N(0, I + M M^T + A A^T), for the whitened root A of one sample."""
        # S = I + A^T (I + M M^T)^-1 A, and g = A^T (I + M M^T)^-1 w, with (I + M M^T)^-1 = I - M L^-T L^-1 M^T
        rank, values = root.shape[2], residuals.movedim(0, -1)
        system = torch.eye(rank + values.shape[2], dtype=root.dtype, device=root.device)
        projected = system.new_zeros(*self.triangle.shape[:2], len(system))
        for channel, columns in enumerate(torch.cat([root, values], 2)):
            used = (columns != 0).any(0).nonzero()[:, 0]  # a channel may have latent dimensions of its own
            columns = columns[:, used]
            part = torch.linalg.solve_triangular(self.triangle[channel], self.modes[channel].mT @ columns, upper=False)
            system[used[:, None], used] += columns.mT @ columns - part.mT @ part
            projected[channel][:, used] = part
        factor = torch.linalg.cholesky(system[:rank, :rank])
        latent = torch.cholesky_solve(system[:rank, rank:], factor)  # z_A = S^-1 g
        # z_M = L^-T L^-1 M^T (w - A z_A), distance |w - A z_A - M z_M|^2 + |z_A|^2 + |z_M|^2
        along = projected[..., rank:] - projected[..., :rank] @ latent
        along = torch.linalg.solve_triangular(self.triangle.mT, along, upper=True)
        remainder = values - root @ latent - self.modes @ along
        quadratic = remainder.square().sum((0, 1)) + latent.square().sum(0) + along.square().sum((0, 1))
        halves = [part.diagonal(dim1=-2, dim2=-1).log().sum() for part in (factor, self.triangle)]
        return normal_log_density(quadratic, 2.0 * (halves[0] + halves[1]), residuals.flatten(1))


def normal_log_density(quadratic: Tensor, log_determinant: Tensor, residual: Tensor) -> Tensor:
    """Log density of a normal vector from its squared Mahalanobis distance and the log determinant of its covariance."""
    return -0.5 * (quadratic + log_determinant + residual.shape[-1] * LOG_TWO_PI)
