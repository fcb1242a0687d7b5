"""Conditioning of the latent on observations of fields, batched over designs and fantasies, and their noise.

Everything here is in terms of y = mean + root xi with xi ~ N(0, I_k), as BoTorch batches it: a mean `b x q x m` and a root
`b x q x m x k`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_variances
from probneural.contexts import undisturbed
from probneural.distributions import Predictor, Root
from probneural.errors import ShapeError
from probneural.functionals import Functional

_LEAST_NOISE = 1e-9
"""Noise of exact observations, as a fraction of the variance that one function has of its own."""
_ROWS = 256
"""Rows of a functional's matrix formed at once."""


@undisturbed()
def observation_variance(
    predictor: Predictor, functional: Functional, *, outputs: Sequence[int] | None = None
) -> Float64[Tensor, " r"]:
    """Noise variance of each number that a functional reads from an observed field, channel by channel.

    Observed fields differ from the operator's by noise of pointwise variance s² that amounts to M effective observations on the
    domain D, at most one per point of the functional's grid. Seen through observations a with
    A u = ∫ a u, noise of that density has variance

        s² |D| / M * ∫ a².

    It is the variance of an integral or of a coefficient, but grows without bound where a narrows to a point. There noise is
    s², so no observation gets more than s² (∫ |a|)², the variance of noise that is the same all over its support; if m > M
    observations are taken of a channel, they are worth M, and the bound is m/M times that. Reading all points of a
    uniform grid is then observing the whole field. Noise of different observations is taken to be independent. Between grid
    points the interpolant's weights alternate in sign, so that sensors there get a few times s²: where you know the noise of
    your measurement, pass it.

    Where the field itself holds what the operator cannot express, as calibrated ones do, s² is the measurement noise, zero on
    exact data; a billionth of the discrepancy's variance then takes its place, since inverting needs some.

    Args:
        predictor: A predictor, which knows s² and M.
        functional: A.
        outputs: Positions of the observed numbers among the functional's values, channel by channel; all by default.

    Returns:
        One per output, in the functional's units squared, on the CPU.

    Examples:
        >>> import probneural as pn
        >>> pairs = pn.problems.Heat(dimension=1).sample(20, resolution=32, seed=0)
        >>> head = pn.heads.LastLayerLaplace(noise=0.02, effective_observations=4.0)
        >>> predictor = head.fit(pn.operators.LinearRegression.fitted(pairs), pairs)
        >>> grid = pairs.inputs.grid
        >>> both = pn.functionals.stack([pn.functionals.integral(grid), pn.functionals.sensors(grid, [[0.5]])])
        >>> [round(value, 6) for value in observation_variance(predictor, both).tolist()]
        [0.005, 0.02]
    """
    grid, channels = functional.grid, predictor.out_channels
    effective = predictor.effective_observations
    least = _LEAST_NOISE * predictor.residual_variance.to("cpu", torch.float64)
    variance = predictor.noise.detach().to("cpu", torch.float64).maximum(least).expand(channels)
    counts = torch.full((channels,), float(grid.size), dtype=torch.float64)
    if effective is not None:  # a grid cannot tell more than one observation per point
        counts = effective.detach().to("cpu", torch.float64).expand(channels).clamp_max(float(grid.size))
    chosen = torch.arange(channels * functional.size) if outputs is None else torch.tensor(outputs, dtype=torch.long)
    channel = chosen // functional.size
    read = torch.bincount(chosen.unique() // functional.size, minlength=channels)  # reading a number twice is no other number
    positions, position = torch.unique(chosen % functional.size, return_inverse=True)
    weights = grid.weights.clamp_min(torch.finfo(torch.float64).tiny)
    squares, sums = torch.zeros(2, len(positions), dtype=torch.float64)
    for start in range(0, len(positions), _ROWS):
        part = positions[start : start + _ROWS]
        rows = torch.zeros(len(part), functional.size, dtype=torch.float64)
        rows[torch.arange(len(part)), part] = 1.0
        matrix = functional.adjoint(rows).flatten(1)
        squares[start : start + _ROWS] = (matrix.square() / weights).sum(1)
        sums[start : start + _ROWS] = matrix.abs().sum(1)
    whole = squares[position] * weights.sum() / counts[channel]
    bound = sums[position].square() * (read / counts).clamp_min(1.0)[channel]
    return variance[channel] * torch.minimum(whole, bound)


def _square_root(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q and a triangular L of positive diagonal with A = Q L^T and L L^T = I + A^T A.

    They are the QR decomposition of A on top of I: that never squares A, whose rows may be in units of a tiny noise, and has
    full rank, so that its derivatives exist.
    """
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    basis, triangle = triangular(torch.cat([matrix, identity.expand(*matrix.shape[:-2], -1, -1)], dim=-2))
    return basis[..., : matrix.shape[-2], :], triangle


def triangular(stacked: Tensor) -> tuple[Tensor, Tensor]:
    """Return Q and a triangular L of positive diagonal with A = Q L^T."""
    basis, triangle = torch.linalg.qr(stacked)
    signs = torch.where(triangle.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    return basis * signs[..., None, :], triangle.mT * signs[..., None, :]


def _whitened(root: Tensor, residual: Tensor, noise: Tensor, discrepancy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Root and residual in units of each design's own covariance, discrepancy discrepancy^T + diag(noise); and noise of 1."""
    triangle = design_factor(noise, discrepancy)
    rows = root.to(torch.float64).expand(*triangle.shape[:-1], root.shape[-1])
    whitened = torch.linalg.solve_triangular(triangle, rows, upper=False)
    whitened_residual = torch.linalg.solve_triangular(triangle, residual.to(torch.float64)[..., None], upper=False)[..., 0]
    return whitened, whitened_residual, rows.new_ones(triangle.shape[:-1])


def design_factor(noise: Tensor, discrepancy: Tensor) -> Tensor:
    """Triangular factor of each design's own covariance, discrepancy discrepancy^T + diag(noise), `b x q x m x m`."""
    columns = discrepancy.to(torch.float64)
    noise_std = noise.to(torch.float64).sqrt()
    noise_std = noise_std.expand(torch.broadcast_shapes(noise_std.shape, columns.shape[:-1]))
    columns = columns.expand(*noise_std.shape, columns.shape[-1])
    return triangular(torch.cat([columns.mT, torch.diag_embed(noise_std)], dim=-2))[1]


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentPosterior:
    """The posterior of xi ~ N(0, I): xi = shift + S xi' with S = I - rows^T core rows and xi' standard normal again.

    The map S is kept as r = q m directions. It is the triangular root of Andrews (1968), not the symmetric one of
    `LowRankUpdate`: that takes a singular value decomposition of every
    design, this one a Cholesky factor, and look-ahead acquisition functions differentiate it in many designs.

    Args:
        shift: `(*f, *b, k)`, float64, dimensionless; it alone depends on what was read, so that fantasies share the rest.
        rows: `(*b, r, k)`, float64, dimensionless.
        core: `(*b, r, r)`, float64, dimensionless.

    Reference:
        Andrews (1968), A square root formulation of the Kalman covariance equations.
    """

    shift: Float64[Tensor, "..."]
    rows: Float64[Tensor, "..."]
    core: Float64[Tensor, "..."]

    @classmethod
    def of(
        cls,
        root: Float[Tensor, "..."],
        residual: Float[Tensor, "..."],
        *,
        noise: Float[Tensor, "..."],
        discrepancy: Float[Tensor, "..."] | None = None,
    ) -> LatentPosterior:
        """Condition on residual = root xi + discrepancy zeta + N(0, diag(noise)), with a zeta of each design's own.

        With R = diag(noise)^(-1/2) root and I + R R^T = L L^T, the posterior of xi has the mean R^T (L L^T)^-1 r and the root
        S = I - R^T L^-T (L + I)^-1 R of its covariance. Where observations outnumber the latent's dimensions, S = L^-T with
        I + R^T R = L L^T.

        Args:
            root: `b x q x m x k`.
            residual: Observations minus their mean, `f x b x q x m`.
            noise: Their noise variances, positive, broadcastable to `b x q x m`, or to the residual's shape.
            discrepancy: `b x q x m x r`, or None.
        """
        if discrepancy is not None:
            root, residual, noise = _whitened(root, residual, noise, discrepancy)
        inverse = noise.to(torch.float64).rsqrt()
        rows = (root.to(torch.float64) * inverse[..., None]).flatten(-3, -2)
        whitened = (residual.to(torch.float64) * inverse).flatten(-2)[..., None]
        count, rank = rows.shape[-2:]
        if count <= rank:
            basis, triangle = _square_root(rows.mT)
            identity = torch.eye(count, dtype=rows.dtype, device=rows.device)
            inner = torch.linalg.solve_triangular(triangle + identity, identity, upper=False)
            core = torch.linalg.solve_triangular(triangle.mT, inner, upper=True)
            shift = basis @ torch.linalg.solve_triangular(triangle, whitened, upper=False)
            return cls(shift=shift[..., 0], rows=rows, core=core)
        basis, triangle = _square_root(rows)
        identity = torch.eye(rank, dtype=rows.dtype, device=rows.device)
        inverse = torch.linalg.solve_triangular(triangle.mT, identity, upper=True)
        return cls(shift=(inverse @ (basis.mT @ whitened))[..., 0], rows=identity, core=identity - inverse)

    def move(self, mean: Float[Tensor, "..."], root: Float[Tensor, "..."]) -> tuple[Tensor, Tensor]:
        """Return mean and root given what was learned: float64, of batch shapes that broadcast against each other."""
        flat, outputs = root.to(torch.float64).flatten(-3, -2), root.shape[-3:-1]
        shift, rows, core = (part.to(flat.device) for part in (self.shift, self.rows, self.core))
        moved = (flat @ shift[..., None])[..., 0].unflatten(-1, outputs)
        updated = flat - (flat @ rows.mT) @ core @ rows
        return mean.to(torch.float64) + moved, updated.unflatten(-2, outputs)


@dataclass(frozen=True, eq=False, kw_only=True)
class Observation:
    """Values observed at designs, for latents that depend on all designs of a call.

    Args:
        designs: `(*b, q, d)`.
        values: `(*f, *b, q, m)`.
        noise: Their noise variances, broadcastable to the values.
        outputs: Positions of the m outputs among the functional's values.
    """

    designs: Float[Tensor, "..."]
    values: Float[Tensor, "..."]
    noise: Float[Tensor, "..."]
    outputs: Sequence[int]


def check_noise(
    noise: Float[Tensor, "..."] | float, shape: torch.Size, like: Tensor, *, positive: bool = True
) -> Float64[Tensor, "..."]:
    """Return noise variances in float64 with at least the axes q and m, or raise.

    Args:
        noise: A number, or a tensor whose last axes are `q x m`, `1 x m` or `m`.
        shape: `... x q x m`, which it has to broadcast to; more axes in front are allowed.
        like: A tensor on the device it goes to.
        positive: Whether zero is refused.

    Raises:
        ArgumentError: If it is not finite, negative, or zero where it must be positive.
        ShapeError: If it does not fit.
    """
    variance = check_variances(noise, "noise", positive=positive).to(like.device)
    try:
        fits = torch.broadcast_shapes(variance.shape, shape)[-2:] == shape[-2:]
    except RuntimeError:
        fits = False
    if not fits:
        raise ShapeError(
            expected=f"noise variances that broadcast to (..., {shape[-2]}, {shape[-1]})",
            got=str(tuple(variance.shape)),
            remedy="give one number, one per output, or one per design and output",
        )
    return variance.expand(torch.broadcast_shapes(variance.shape, shape[-2:]))


@dataclass(frozen=True, eq=False)
class OutputMoments:
    """A mean `b x q x m` and a root `b x q x m x k`, whose batches may still have to be broadcast.

    Attributes:
        mean: The mean.
        root: The root of what all designs share.
        latent: The latent's name, or None if it belongs to these designs.
        discrepancy: Root of what each design has of its own, `b x q x m x r`, or None.
    """

    mean: Tensor
    root: Tensor
    latent: str | None
    discrepancy: Tensor | None = None

    def expanded(self, batch: torch.Size) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, root and discrepancy (of rank 0 where there is none), expanded to one batch shape."""
        discrepancy = self.root.new_zeros(*self.root.shape[:-1], 0) if self.discrepancy is None else self.discrepancy
        shape = broadcast_batches(self.mean.shape[:-2], self.root.shape[:-3], discrepancy.shape[:-3], batch)
        root, misfits = (part.to(self.root).expand(*shape, *part.shape[-3:]) for part in (self.root, discrepancy))
        return self.mean.expand(*shape, *self.mean.shape[-2:]), root, misfits

    def joined(self, batch: torch.Size) -> tuple[Tensor, Tensor]:
        """Mean and whole root, `b x q x m x (k + r)`, expanded to one batch shape."""
        mean, root, misfits = self.expanded(batch)
        return mean, torch.cat([root, misfits], dim=-1)


def broadcast_batches(*shapes: torch.Size) -> torch.Size:
    """Broadcast batch shapes, or raise a ShapeError."""
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError as error:
        raise ShapeError(
            expected="batch shapes that broadcast against each other, fantasies in front",
            got=", ".join(str(tuple(shape)) for shape in shapes),
            remedy="observations f x b x q x m belong to designs b x q x d, and so do those that the result is asked about",
        ) from error


def in_batches(mean: Tensor, root: Tensor, X: Tensor, outputs: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Some outputs of `N x M` means and `N x M x k` roots, N designs put back into t-batches, on the designs' device."""
    chosen, shape = list(outputs), (*X.shape[:-1], len(outputs))
    return mean[:, chosen].to(X.device).reshape(shape), root[:, chosen].to(X.device).reshape(*shape, root.shape[-1])


def roots_in_batches(root: Root | None, X: Tensor, outputs: Sequence[int]) -> Tensor | None:
    """Some outputs of a root of N functions, put back into t-batches, on the designs' device; None of None."""
    if root is None:
        return None
    formed = root.dense().flatten(1, 2)[:, list(outputs)]
    return formed.to(X.device).reshape(*X.shape[:-1], len(outputs), formed.shape[-1])
