"""Gauss-Newton correction of predictions by the residual of their equation."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.func import vjp, vmap

from probneural.checks import check_count, check_instance, check_integer
from probneural.contexts import jvp
from probneural.distributions.base import FieldDistribution, inherit
from probneural.distributions.empirical import EmpiricalField
from probneural.distributions.gaussian import GaussianField
from probneural.distributions.mixture import MixtureField
from probneural.distributions.roots.base import Root
from probneural.distributions.roots.sums import CorrectedRoot
from probneural.errors import DataError, UnsupportedError
from probneural.fields import Field, check_field
from probneural.fingerprints import identity_of
from probneural.grids import Grid
from probneural.physics.conditions import held_misfit

if TYPE_CHECKING:
    from probneural.physics.residual import Residual

_CHUNK = 64
"""Directions of a chunk of Jacobian products."""
_CUTOFF = 1e-10
"""Singular values of J B below this fraction of the largest are treated as zero."""


def basis(grid: Grid, modes: int) -> Float64[Tensor, "p k"]:
    """Smooth functions on a grid: products of Fourier modes on periodic axes and Chebyshev polynomials on others.

    Args:
        grid: Any grid; on scattered points and meshes, the box around the points.
        modes: Functions per axis, at most the number of points of an axis.

    Examples:
        >>> basis(Grid.uniform((3, 8), periodic=(False, True)), 5).shape
        torch.Size([24, 15])
    """
    product = torch.ones(grid.size, 1, dtype=torch.float64)
    for number, coordinates in enumerate(grid.points.unbind(1)):
        axis = grid.axes[number] if grid.is_uniform else None
        low, high = (axis.origin, axis.origin + axis.length) if axis else (coordinates.min(), coordinates.max())
        s = (coordinates - low) / (high - low)
        count = min(modes, axis.size) if axis else modes
        if axis is not None and axis.periodic:
            half = (count - 1) // 2
            angles = 2.0 * math.pi * s[:, None] * torch.arange(1, half + 1)
            functions = torch.cat([torch.ones_like(s)[:, None], angles.cos(), angles.sin()], 1)
        else:
            # T_j(2 s - 1) = cos(j arccos(2 s - 1))
            functions = torch.cos((2.0 * s - 1.0).clamp(-1.0, 1.0).arccos()[:, None] * torch.arange(count))
        product = (product[:, :, None] * functions[:, None]).flatten(1)
    return product


def corrected(u: FieldDistribution, residual: Residual, *, inputs: Field | None, steps: int, modes: int) -> FieldDistribution:
    """See `Residual.correct`."""
    check_instance(u, FieldDistribution, "u", remedy="give predictor(inputs)")
    steps, modes = check_integer(steps, "steps"), check_integer(modes, "modes")
    if inputs is not None:
        check_count(len(check_field(inputs, "inputs")), len(u), "inputs, one per prediction", remedy="give those of u")
    if u.grid.is_batch:
        raise UnsupportedError(
            expected="one grid for all samples", got=repr(u.grid), remedy="correct the samples of each mesh by themselves"
        )
    u = u.moment_matched() if isinstance(u, MixtureField) else u
    functions = basis(u.grid, modes)
    maps = [
        _Correction.of(
            residual, u.mean[row : row + 1], None if inputs is None else inputs[row : row + 1], u.grid, functions, steps
        )
        for row in range(len(u))
    ]
    mean = torch.cat([part.mean for part in maps]).to(u.mean)
    columns = torch.stack([part.columns for part in maps])
    rows = torch.stack([part.rows for part in maps])
    if isinstance(u, EmpiricalField):
        deviation = (u.samples - u.mean).flatten(3).to(torch.float64)  # (s, n, c, p)
        along = torch.einsum("nqcp,sncp->snq", rows, deviation)
        moved = (deviation - torch.einsum("ncpq,snq->sncp", columns, along)).unflatten(-1, u.grid.shape)
        return inherit(EmpiricalField((mean + moved).to(u.mean), u.weights, grid=u.grid), u)
    assert isinstance(u, GaussianField)

    def mapped(root: Root) -> Root:
        # (I - B H) R = R - B (H R)
        return CorrectedRoot.of(root, -columns.to(root.like), root.pull(rows.to(root.like)).to(torch.float64))

    discrepancy = None if u.discrepancy is None else mapped(u.discrepancy)
    map_name = hashlib.blake2b(identity_of((residual, steps, modes)).encode(), digest_size=8).hexdigest()
    latent = replace(u.latent, id=f"{u.latent.id}~corrected-{map_name}", source=u.latent.key)
    return inherit(GaussianField(mean, mapped(u.root), latent=latent, grid=u.grid, discrepancy=discrepancy), u)


class _Correction:
    """The corrected mean of one sample, and the derivative I - B H of the correction.

    Attributes:
        mean: `(1, c, *grid)`, float64.
        columns: B, the basis of corrections, `(c, p, q)`.
        rows: H = (J B)^+ J, `(q, c, p)`, for the Jacobian J of residual and conditions at the last step.
    """

    def __init__(self, mean: Tensor, columns: Tensor, rows: Tensor) -> None:
        self.mean, self.columns, self.rows = mean, columns, rows

    @classmethod
    @torch.no_grad()
    def of(
        cls, residual: Residual, mean: Tensor, inputs: Field | None, grid: Grid, functions: Tensor, steps: int
    ) -> _Correction:
        """Take Gauss-Newton steps: B z, z = -(J B)^+ F(u), each block of F in units of the norm of its J B."""
        u = mean.to(torch.float64)
        start, channels = u, u.shape[1]
        inputs = None if inputs is None else Field(inputs.values.to(torch.float64), inputs.grid)
        columns = torch.block_diag(*[functions] * channels).reshape(channels, grid.size, -1).to(u.device)  # (c, p, q)
        directions = columns.movedim(-1, 0).reshape(-1, 1, channels, *grid.shape)

        def blocks(values: Tensor) -> tuple[Tensor, ...]:
            parts = [residual(values, inputs, grid)]
            parts += [condition.misfit(Field(values, grid), inputs) for condition in residual.conditions]
            held = held_misfit(Field(values - start, grid), residual.conditions)
            return tuple(part.flatten() for part in (*parts, *([] if held is None else [held])))

        for step in range(steps):
            values = blocks(u)
            if not all(bool(torch.isfinite(part).all()) for part in values):
                raise DataError(
                    expected="a finite residual", got=f"NaN or infinity at iteration {step}", remedy="check inputs and equation"
                )
            products = _jacobian_products(blocks, u, directions)
            scales = [1.0 / part.norm().clamp_min(torch.finfo(part.dtype).tiny) for part in products]
            matrix = torch.cat([part * scale for part, scale in zip(products, scales, strict=True)])
            right = torch.cat([part * scale for part, scale in zip(values, scales, strict=True)])
            inverse = torch.linalg.pinv(matrix, rtol=_CUTOFF)
            previous, u = u, u - torch.einsum("cpq,q->cp", columns, inverse @ right).reshape(u.shape)

        def scaled(values: Tensor) -> Tensor:
            return torch.cat([part * scale for part, scale in zip(blocks(values), scales, strict=True)])

        # H = (J B)^+ J, row by row through the transposed products of J
        pull = vjp(scaled, previous)[1]
        rows = torch.cat([vmap(lambda row: pull(row)[0])(part) for part in inverse.split(_CHUNK)])
        return cls(u, columns, rows.reshape(len(rows), channels, grid.size))


def _jacobian_products(
    blocks: Callable[[Tensor], tuple[Tensor, ...]], u: Tensor, directions: Float64[Tensor, "q 1 c *grid"]
) -> list[Float64[Tensor, "m q"]]:
    """J B: the Jacobian of each block times some directions."""

    def product(direction: Tensor) -> tuple[Tensor, ...]:
        result: tuple[Tensor, ...] = jvp(blocks, (u,), (direction,))[1]
        return result

    parts = [vmap(product)(part) for part in directions.split(_CHUNK)]
    return [torch.cat(part).mT for part in zip(*parts, strict=True)]
