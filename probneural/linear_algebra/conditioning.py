"""What Gaussian observations do to roots, in float64: updates, posteriors, gains and densities, from no noise to much noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.errors import ArgumentError, ConstraintError, ShapeError
from probneural.linear_algebra.first_order import Decomposition
from probneural.linear_algebra.principal_components import resolved_eigenpairs

_RANK_TOLERANCE = {torch.float64: 1e-11, torch.float32: 2e-6}
"""Singular values of row-normalised matrices below this fraction of the largest count as zero, by the field's dtype."""
_ATTAINED_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
"""An exact observation is met if it is missed by less than this fraction of the standardised residuals."""
_LIKELY = 100.0
"""Standard deviations up to which an observation is believed of a row that the size of the mean's rounding would hide."""
_GRAM_COLUMNS = 64
"""From how many columns, and rows, on a factor of the products is faster than singular values: five times at 3,072 x 500 and at
1,089 x 2,000, one thread."""
_GRAM_TRACE = 1e7
"""The largest trace of the Gram matrix of a whitened root whose Cholesky factor is right to 1e-9 of each eigenvalue of 1."""
_GRAM_BLOCK = 256
"""Columns of a Gram matrix that are formed together."""
LOG_TWO_PI = math.log(2.0 * math.pi)


@dataclass(frozen=True, eq=False)
class LowRankUpdate:
    """The symmetric map S = I + V^T (diag(factors) - 1) V of R^k: it scales r orthonormal directions and leaves the rest alone.

    What r observations do to a standard normal vector, kept in r * k numbers: the k x k matrix is never formed.

    Args:
        directions: V, orthonormal rows `(*batch, r, k)`; without batch axes one map serves all, with `(n, r, k)` each input
            has its own.
        factors: `(*batch, r)`, dimensionless; 0 where nothing is left to vary.

    Raises:
        ShapeError: If the two do not fit together.

    Examples:
        >>> transform = LowRankUpdate(torch.tensor([[0.0, 1.0]]), torch.tensor([0.5]))
        >>> transform.product(torch.tensor([4.0, 4.0])).tolist()
        [4.0, 2.0]
    """

    directions: Float[Tensor, "..."]
    factors: Float[Tensor, "..."]

    def __post_init__(self) -> None:
        """Check that directions and factors fit together."""
        if self.directions.ndim < 2 or self.directions.shape[:-1] != self.factors.shape:
            raise ShapeError(
                expected="directions (*batch, r, k) with factors (*batch, r)",
                got=f"{tuple(self.directions.shape)} and {tuple(self.factors.shape)}",
                remedy="give one factor per direction",
            )

    @property
    def rank(self) -> int:
        """Length k of the vectors it maps."""
        return self.directions.shape[-1]

    @property
    def batch_shape(self) -> torch.Size:
        """`(n,)` if each input has a map of its own, else `()`."""
        return self.directions.shape[:-2]

    def product(self, latents: Float[Tensor, "*_ k"]) -> Float[Tensor, "*_ k"]:
        """Apply to vectors `(*batch, ..., k)`, in their dtype and on their device."""
        directions, change = self.directions.to(latents), (self.factors - 1.0).to(latents)
        rows = latents.reshape(*self.batch_shape, math.prod(latents.shape[len(self.batch_shape) : -1]), self.rank)
        return (rows + ((rows @ directions.mT) * change[..., None, :]) @ directions).reshape(latents.shape)

    def dense(self) -> Float[Tensor, "*_ k k"]:
        """Form the matrix, `(*batch, k, k)`."""
        identity = torch.eye(self.rank, dtype=self.directions.dtype, device=self.directions.device)
        return self.product(identity.expand(*self.batch_shape, -1, -1))

    def to(self, like: Tensor) -> LowRankUpdate:
        """Return the map in the dtype and on the device of a tensor."""
        return LowRankUpdate(self.directions.to(like), self.factors.to(like))

    def __getitem__(self, index: int | slice | Tensor) -> LowRankUpdate:
        """Select the maps of some inputs.

        Raises:
            ShapeError: If one map serves all inputs.
        """
        if not self.batch_shape:
            raise ShapeError(
                expected="a map per input, directions (n, r, k)",
                got=str(tuple(self.directions.shape)),
                remedy="use it as it is: it serves all inputs",
            )
        return LowRankUpdate(self.directions[index], self.factors[index])


@dataclass(frozen=True, eq=False)
class UpdateSequence:
    """S1 S2 ...: the updates that a root was composed with, each one for all functions or one per function.

    Args:
        updates: In the order in which they were composed.
    """

    updates: tuple[LowRankUpdate, ...] = ()

    @property
    def is_per_function(self) -> bool:
        """Whether any of them differs between functions."""
        return any(update.batch_shape for update in self.updates)

    def then(self, update: LowRankUpdate) -> UpdateSequence:
        """Compose with one more update."""
        return UpdateSequence((*self.updates, update))

    def product(self, latents: Float[Tensor, "*_ k"]) -> Float[Tensor, "*_ k"]:
        """S1 S2 ... xi, for vectors `(*batch, ..., k)`."""
        for update in reversed(self.updates):
            latents = update.product(latents)
        return latents

    def transposed_product(self, latents: Float[Tensor, "*_ k"]) -> Float[Tensor, "*_ k"]:
        """... S2 S1 xi: rows of a root times the sequence."""
        for update in self.updates:
            latents = update.product(latents)
        return latents

    def __getitem__(self, index: int | slice | Tensor) -> UpdateSequence:
        """The updates of some functions, or of one, which then serve all."""
        return UpdateSequence(tuple(update[index] if update.batch_shape else update for update in self.updates))


@dataclass(frozen=True, eq=False)
class LatentUpdate:
    """What observations say about xi ~ N(0, I): xi = shift + S xi', with xi' standard normal again.

    The multipliers tell how much each observation pulls: shift = root^T multipliers.
    """

    shift: Float64[Tensor, "... k"]
    transform: LowRankUpdate
    chi2: Float64[Tensor, "..."]
    multipliers: Float64[Tensor, "... m"]


class Rounding(NamedTuple):
    """What is made by rounding alone.

    Attributes:
        residuals: How large a residual may be, `(..., m)`, in the observations' units.
        rows: How large a row of the root, which does not know the mean, likewise.
    """

    residuals: Float64[Tensor, "... m"]
    rows: Float64[Tensor, "... m"]

    def flatten(self, start: int = 0) -> Rounding:
        """Both, with the axes from `start` on as one."""
        return Rounding(self.residuals.flatten(start), self.rows.flatten(start))


def posterior_root(
    root: Float64[Tensor, "*b p k"], gram: Float64[Tensor, "*b k k"], *, rounding: float = 0.0
) -> tuple[Float64[Tensor, "*b p k"], Float64[Tensor, "*b"]]:
    """R (I + M)^(-1/2) and log det(I + M): what data with the moments M = R^T G R leave of a Gaussian with the root R.

    The inverse square root is the symmetric one, which no library's choice of eigenvectors changes. It holds what is left of a
    direction up to rounding of what is left of the others.

    Args:
        root: R, of the covariance before, in any unit.
        gram: M, the Gram matrix of the data's whitened rows times R; dimensionless.
        rounding: Eigenvalues of M up to here are no information: that of G may have made them.

    Returns:
        A root of the covariance after, whose rounding cannot make variances negative; and twice the information gain, in nats.

    Examples:
        >>> root, gain = posterior_root(2.0 * torch.eye(1, dtype=torch.float64), torch.full((1, 1), 3.0, dtype=torch.float64))
        >>> root.item(), round(gain.item(), 6)
        (1.0, 1.386294)
    """
    values, vectors = resolved_eigenpairs(gram)
    values = torch.where(values > rounding, values, 0.0)
    return (root @ vectors * (1.0 + values).rsqrt()[..., None, :]) @ vectors.mT, values.log1p().sum(-1)


def precision_factor(gram: Float64[Tensor, "*b k k"]) -> Float64[Tensor, "*b k k"]:
    """The lower triangular L of I + M = L L^T, for a Gram matrix M of whitened rows; dimensionless, differentiable.

    Raises:
        ArgumentError: If the rounding of M hides the identity, as it does where the noise is some 1e-15 of the variance.
    """
    try:
        return torch.linalg.cholesky(gram + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))
    except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
        largest = float(gram.detach().diagonal(dim1=-2, dim2=-1).amax())
        raise ArgumentError(
            expected="a noise that double precision can tell from nothing beside the variance of what is observed",
            got=f"variances of up to {largest:.1e} times the noise",
            remedy="give a noise of at least 1e-12 of the variance",
        ) from error


def information(gram: Float64[Tensor, "*b k k"]) -> Float64[Tensor, "*b"]:
    """Log det(I + M) / 2 in nats: the information gain of observations with the Gram matrix M of whitened rows.

    Raises:
        ArgumentError: See `precision_factor`.

    Examples:
        >>> round(information(torch.full((1, 1), 3.0, dtype=torch.float64)).item(), 6)
        0.693147
    """
    return precision_factor(gram).diagonal(dim1=-2, dim2=-1).log().sum(-1)


def condition_noisily(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"]
) -> LatentUpdate:
    """Condition xi ~ N(0, I) on residual = root xi + N(0, diag(noise)) with noise > 0.

    With R = diag(noise)^(-1/2) root = U S V^T, the posterior has mean V S/(1+S^2) U^T r and the symmetric square root
    I + V (1/sqrt(1+S^2) - 1) V^T of its covariance. S^2 is never formed: noise may be tiny.
    """
    inverse = noise.rsqrt()
    one = Decomposition.of(root * inverse[..., None])
    whitened = residual * inverse
    gain = torch.hypot(one.values, torch.ones_like(one.values))
    along = one.along(whitened.detach())
    rest = whitened.detach() - one.combined(along)
    along = along / gain
    pull, latent = rest + one.combined(along / gain), one.to_latent(one.values / gain * along)
    chi2 = along.square().sum(-1) + rest.square().sum(-1) + one.distance(whitened, pull, latent)
    pull, shift = one.solution(whitened, pull, latent, inverse=gain.square().reciprocal(), unit=1.0)
    slopes = -1.0 / (gain[..., :, None] * gain[..., None, :] * (gain[..., :, None] + gain[..., None, :]))
    factors = gain.reciprocal()
    transform = LowRankUpdate(one.directions(factors, slopes), factors)
    return LatentUpdate(shift, transform, chi2 / residual.shape[-1], inverse * pull)


def condition_exactly(
    root: Float64[Tensor, "... m k"],
    residual: Float64[Tensor, "... m"],
    *,
    rounding: Rounding,
    dtype: torch.dtype,
) -> LatentUpdate:
    """Condition xi ~ N(0, I) on residual = root xi exactly.

    Args:
        root: Rows of the observed numbers.
        residual: What they still lack.
        rounding: Rows and residuals up to there count as zero. Without it, what an earlier observation left of a row, some
            1e-16, would pass for a direction of its own. A row between the two bounds counts where its observation is likely.
        dtype: Dtype that the numbers were computed in.

    Raises:
        ConstraintError: If some combination of the observations has no variance left to meet it: more independent
            observations than the rank, a functional the distribution is already certain of, or a contradiction.
    """
    size = _row_norms(root)
    is_likely = (size > rounding.rows) & (residual.detach().abs() <= _LIKELY * size.detach())
    free = (size > torch.maximum(*rounding)) | is_likely
    scale = torch.where(free, size, torch.ones_like(size))
    rows = torch.where(free[..., None], root / scale[..., None], torch.zeros_like(root))
    one = Decomposition.of(rows)
    keep = one.values > _RANK_TOLERANCE[dtype] * one.values[..., :1]
    inverse = torch.where(keep, 1.0 / torch.where(keep, one.values, torch.ones_like(one.values)), torch.zeros_like(one.values))
    wanted = torch.where(free, residual / scale, torch.zeros_like(residual))
    along = one.along(wanted.detach()) * keep
    unmet = (wanted.detach() - one.combined(along)) * scale.detach()
    missed = torch.where(free, unmet, residual).abs()
    allowed = rounding.residuals + torch.where(
        free, _ATTAINED_TOLERANCE[dtype] * scale * wanted.norm(dim=-1, keepdim=True), 0.0
    )
    if bool((missed > allowed).any()):
        raise ConstraintError(
            expected="exact observations that the distribution has the freedom to meet",
            got=f"{root.shape[-2]} observations of numerical rank {int(keep.sum(-1).min())}, "
            f"{int((missed > allowed).sum())} of which stay unmet by up to {float(missed.max()):.1e}",
            remedy="drop repeated or contradicting observations, or give them noise > 0 with condition(..., noise=...)",
        )
    standardised = along * inverse
    pull, latent = one.combined(standardised * inverse), one.to_latent(standardised)
    chi2 = (standardised.square().sum(-1) + one.distance(wanted, pull, latent)) / keep.sum(-1).clamp_min(1)
    pull, shift = one.solution(wanted, pull, latent, inverse=inverse.square(), unit=0.0)
    factors = (~keep).to(root)
    directions = one.directions(factors, torch.zeros_like(inverse[..., :, None] * inverse[..., None, :]))
    return LatentUpdate(shift, LowRankUpdate(directions, factors), chi2, torch.where(free, pull / scale, 0.0))


def _row_norms(root: Float64[Tensor, "... m k"]) -> Float64[Tensor, "... m"]:
    """Euclidean norms of rows, whose squares neither overflow nor vanish."""
    largest = root.detach().abs().amax(-1)
    unit = torch.where(largest > 0, largest, torch.ones_like(largest))
    return (root / unit[..., None]).norm(dim=-1) * unit


def discrepancy_gain(
    rows: Float64[Tensor, "n m r"], noise: Float64[Tensor, "n m"]
) -> tuple[Float64[Tensor, "n r m"], Float64[Tensor, "n m m"]]:
    """What numbers y = R zeta + N(0, diag(noise)), with rows R, say about zeta ~ N(0, I).

    The gain G = R^T N^-1, and L^-1, with N = R R^T + diag(noise) = L L^T.

    Raises:
        ConstraintError: If some combination of one function's numbers has no variance of its own in N.
    """
    covariance = rows @ rows.mT + torch.diag_embed(noise)
    size = covariance.diagonal(dim1=-2, dim2=-1)
    scale = torch.where(size > 0, size, torch.ones_like(size)).rsqrt()
    triangle, failed = torch.linalg.cholesky_ex(scale[..., :, None] * covariance * scale[..., None, :])
    smallest = triangle.diagonal(dim1=-2, dim2=-1).amin(-1) if rows.shape[1] else torch.ones_like(noise.sum(-1))
    if bool((failed > 0).any()) or not bool((smallest > _RANK_TOLERANCE[torch.float64]).all()):
        raise ConstraintError(
            expected="exact observations that leave every function's discrepancy free to meet them",
            got=f"{rows.shape[1]} observations of a function with a discrepancy of rank {rows.shape[2]}",
            remedy="give noise > 0, or drop repeated observations",
        )
    identity = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device).expand_as(triangle)
    whitened = torch.linalg.solve_triangular(triangle, identity, upper=False) * scale[..., None, :]
    return rows.mT @ (whitened.mT @ whitened), whitened


def log_density(
    root: Float64[Tensor, "... m k"],
    residual: Float64[Tensor, "... m"],
    noise: Float64[Tensor, "... m"],
    *,
    groups: int = 1,
) -> Float64[Tensor, "..."]:
    """Log density of residual under N(0, root root^T + diag(noise)) with noise > 0, natural units.

    With A the root over the noise's deviations, w the residual over them and I + A^T A = L L^T, the distance is the least of
    |w - A z|² + |z|², to second order in the error of z, and the determinant that of L. Where A is wide, I + A A^T = L L^T, and
    the distance is the largest of 2 w·x - |A^T x|² - |x|². Such products hold eigenvalues to 1e-16 of the largest. Where that
    is too little, L^T comes from a QR decomposition of A or A^T over I, as right as singular values in a third of their time;
    these serve where a derivative is asked for, and for a few columns or rows.

    Args:
        root: Its rows in any units.
        residual: In the units of each row.
        noise: In those units squared.
        groups: In how many groups of as many rows, such as channels, there may be columns of zeros, which then cost nothing.
    """
    inverse = noise.rsqrt()
    rows, whitened = root * inverse[..., None], residual * inverse
    trace = rows.detach().square().sum((-2, -1))
    is_recorded = torch.is_grad_enabled() and (rows.requires_grad or whitened.requires_grad)
    if min(rows.shape[-2:]) < _GRAM_COLUMNS:
        quadratic, log_determinant = _by_singular_values(rows, whitened)
    elif bool((trace <= _GRAM_TRACE).all()):
        if rows.shape[-1] <= rows.shape[-2]:
            gram = lower_gram(rows, groups=1 if is_recorded else groups)
            quadratic, log_determinant = _by_gram(rows, whitened, gram)
        else:
            quadratic, log_determinant = _by_covariance(rows, whitened, lower_gram(rows.mT))
    else:
        quadratic, log_determinant = (_by_singular_values if is_recorded else _by_triangle)(rows, whitened)
    return _normal(quadratic, log_determinant + noise.log().sum(-1), residual)


def lower_gram(columns: Float64[Tensor, "... m k"], *, groups: int = 1) -> Float64[Tensor, "... k k"]:
    """A^T A for a Cholesky factor, which reads the lower triangle: the rest is left out where no derivative is asked for.

    That takes 0.6 of the time at 3,072 x 1,800, and 0.75 at 3,072 x 900. Each group of rows adds the products of those columns
    that are not zero in it.
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


def _by_gram(
    rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"], gram: Float64[Tensor, "... k k"]
) -> tuple[Tensor, Tensor]:
    """The squared distance of `whitened` under N(0, A A^T + I), and the covariance's log determinant, from A^T A."""
    triangle = torch.linalg.cholesky(gram + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))
    latent = torch.cholesky_solve(rows.mT @ whitened[..., None], triangle)
    rest = whitened[..., None] - rows @ latent
    quadratic = rest.square().sum((-2, -1)) + latent.square().sum((-2, -1))
    return quadratic, 2.0 * triangle.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _by_covariance(
    rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"], covariance: Float64[Tensor, "... m m"]
) -> tuple[Tensor, Tensor]:
    """What `_by_gram` gives, from A A^T, which is the smaller one."""
    triangle = torch.linalg.cholesky(covariance + torch.eye(rows.shape[-2], dtype=rows.dtype, device=rows.device))
    solved = torch.cholesky_solve(whitened[..., None], triangle)
    quadratic = (
        2.0 * (whitened * solved[..., 0]).sum(-1) - (rows.mT @ solved).square().sum((-2, -1)) - solved.square().sum((-2, -1))
    )
    return quadratic, 2.0 * triangle.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _by_triangle(rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"]) -> tuple[Tensor, Tensor]:
    """What `_by_gram` gives, without any product of A; no derivatives."""
    is_wide = rows.shape[-1] > rows.shape[-2]
    narrow = rows.mT if is_wide else rows
    identity = torch.eye(narrow.shape[-1], dtype=rows.dtype, device=rows.device).expand(*rows.shape[:-2], -1, -1)
    stacked = torch.cat([narrow, identity], dim=-2)
    if is_wide:
        triangle = torch.linalg.qr(stacked, mode="r").R
        quadratic = torch.linalg.solve_triangular(triangle.mT, whitened[..., None], upper=False).square().sum((-2, -1))
    else:  # the last column's distance from the others is that of least squares
        wanted = torch.cat([whitened, whitened.new_zeros(*whitened.shape[:-1], narrow.shape[-1])], dim=-1)
        both = torch.linalg.qr(torch.cat([stacked, wanted[..., None]], dim=-1), mode="r").R
        quadratic, triangle = both[..., -1, -1].square(), both[..., :-1, :-1]
    return quadratic, 2.0 * triangle.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)


def _by_singular_values(rows: Float64[Tensor, "... m k"], whitened: Float64[Tensor, "... m"]) -> tuple[Tensor, Tensor]:
    one = Decomposition.of(rows)
    along = one.along(whitened.detach())
    rest = whitened.detach() - one.combined(along)
    gain = torch.hypot(one.values, torch.ones_like(one.values))
    along = along / gain
    pull, latent = rest + one.combined(along / gain), one.to_latent(one.values / gain * along)
    quadratic = along.square().sum(-1) + rest.square().sum(-1) + one.distance(whitened, pull, latent)
    return quadratic, 2.0 * gain.log().sum(-1) + one.inner(2.0 * one.values / gain.square())


def log_density_without_noise(
    root: Float64[Tensor, "... m k"], residual: Float64[Tensor, "... m"], *, dtype: torch.dtype
) -> Float64[Tensor, "..."]:
    """Log density of residual under N(0, root root^T), natural units; NaN unless the numerical rank of root is m."""
    if root.shape[-1] < root.shape[-2]:
        return torch.full_like(residual.sum(-1), math.nan)
    size = _row_norms(root)
    size = torch.where(size > 0, size, torch.ones_like(size))  # unit-free, as correlations are
    one, wanted = Decomposition.of(root / size[..., None]), residual / size
    standardised = one.along(wanted.detach()) / one.values
    pull, latent = one.combined(standardised / one.values), one.to_latent(standardised)
    quadratic = standardised.square().sum(-1) + one.distance(wanted, pull, latent)
    log_determinant = 2.0 * (one.values.log().sum(-1) + size.log().sum(-1)) + one.inner(2.0 / one.values)
    density = _normal(quadratic, log_determinant, residual)
    return torch.where(one.values[..., -1] > _RANK_TOLERANCE[dtype] * one.values[..., 0], density, math.nan)


def log_density_of_gram(
    gram: Float64[Tensor, "... m m"], residual: Float64[Tensor, "... m"], noise: Float64[Tensor, "... m"], *, dtype: torch.dtype
) -> Float64[Tensor, "..."]:
    """Log density of residual under N(0, gram + diag(noise)), natural units, where the root behind the Gram matrix is wide.

    A Gram matrix holds variances to some 1e-16 of the largest only, its root to the square of that. Hence NaN where the
    smallest variance of the correlations, noise included, cannot be told from zero.
    """
    total = gram + torch.diag_embed(noise)
    size = total.diagonal(dim1=-2, dim2=-1).clamp_min(torch.finfo(total.dtype).tiny).sqrt()  # unit-free, as correlations are
    correlations = total / (size[..., :, None] * size[..., None, :])
    spectrum = torch.linalg.eigvalsh(correlations.detach())
    resolved = residual.shape[-1] * torch.finfo(total.dtype).eps
    least = torch.where((noise > 0).all(-1), resolved, max(resolved, _RANK_TOLERANCE[dtype] ** 2))
    triangle, _ = torch.linalg.cholesky_ex(correlations)  # its derivative, unlike that of eigenvectors, takes equal eigenvalues
    whitened = torch.linalg.solve_triangular(triangle, (residual / size)[..., None], upper=False)[..., 0]
    log_determinant = 2.0 * (triangle.diagonal(dim1=-2, dim2=-1).log() + size.log()).sum(-1)
    density = _normal(whitened.square().sum(-1), log_determinant, residual)
    return torch.where(spectrum[..., 0] > least * spectrum[..., -1], density, math.nan)


def _normal(quadratic: Tensor, log_determinant: Tensor, residual: Tensor) -> Tensor:
    """Log density of a normal vector from its Mahalanobis distance squared and its covariance's log determinant."""
    return -0.5 * (quadratic + log_determinant + residual.shape[-1] * LOG_TWO_PI)
