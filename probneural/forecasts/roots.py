"""Low-rank roots of forecasts, propagated through steps and truncated."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_integer
from probneural.distributions.roots.base import DenseRoot, Root
from probneural.distributions.roots.sums import CorrectedRoot
from probneural.errors import UnsupportedError
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.linear_algebra.principal_components import singular_values

_LARGEST = 2**28
"""Numbers in the columns of one lead (1 GiB in float32)."""


@dataclass(frozen=True, eq=False)
class PropagatedRoot(Root):
    """d_i = B_i V xi + C_i W_i zeta_i: propagated columns, and their latent directions.

    All samples share xi; each of the N samples of a forecast has a vector zeta_i. Both are part of one latent
    vector (xi, zeta_1, ..., zeta_N), so that an observation of sample i at one time informs zeta_i, hence the same sample
    at all other times, as well as xi. No array has the size of the latent times the number of points.

    Args:
        columns: B, `(n, c, p, r)`, in physical units.
        rows: V, `(r, k)`, orthonormal, dimensionless; None for the identity.
        own_columns: C, `(n, c, p, q)`, in physical units.
        own_rows: W, `(n, q, l)`, orthonormal for each function, dimensionless; None for the identity.
        positions: Indices of these n among the N samples, `(n,)`.
        functions: Number N of samples.
    """

    columns: Float[Tensor, "n c p r"]
    rows: Float[Tensor, "r k"] | None
    own_columns: Float[Tensor, "n c p q"]
    own_rows: Float[Tensor, "n q l"] | None
    positions: Int64[Tensor, " n"]
    functions: int

    @property
    def rank(self) -> int:
        """Number k of shared latent dimensions."""
        return self.columns.shape[3] if self.rows is None else self.rows.shape[1]

    @property
    def own_rank(self) -> int:
        """Number l of latent dimensions per sample."""
        return self.own_columns.shape[3] if self.own_rows is None else self.own_rows.shape[2]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k + N l)`."""
        inputs, channels, points, _ = self.columns.shape
        return inputs, channels, points, self.rank + self.functions * self.own_rank

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.columns

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        shared, specific = self._split(latents)
        along, own_along = self._along(shared), self._own_along(specific[:, self.positions])
        moved = torch.einsum("ncpr,sr->sncp", self.columns, along.to(self.columns))
        return moved + torch.einsum("ncpq,snq->sncp", self.own_columns, own_along.to(self.columns))

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        shared, specific = self._split(latents)
        along = self._along(shared).to(self.columns)
        selected = specific[torch.arange(len(specific), device=specific.device), self.positions]
        coefficients = self._own_along(selected[None])[0].to(self.columns)
        moved = torch.einsum("ncpr,nr->ncp", self.columns, along)
        return moved + torch.einsum("ncpq,nq->ncp", self.own_columns, coefficients)

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        values = values.to(self.columns)
        shared = self._back(torch.einsum("ncpr,sncp->sr", self.columns, values))
        coefficients = self._own_back(torch.einsum("ncpq,sncp->nsq", self.own_columns, values)).movedim(0, 1)
        specific = coefficients.new_zeros(len(values), self.functions, self.own_rank).index_add(1, self.positions, coefficients)
        return torch.cat([shared, specific.flatten(1)], dim=1)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose."""
        cotangents = cotangents.to(self.columns)
        shared = self._back(torch.einsum("ncpr,nmcp->nmr", self.columns, cotangents))
        coefficients = self._own_back(torch.einsum("ncpq,nmcp->nmq", self.own_columns, cotangents))
        return torch.cat([shared, self._placed(coefficients).flatten(2)], dim=2)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares: those of the columns, since rows are orthonormal."""
        return self.columns.square().sum(-1) + self.own_columns.square().sum(-1)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each column."""
        pushed = [DenseRoot(columns).push(functional).dense() for columns in (self.columns, self.own_columns)]
        return replace(self, columns=pushed[0], own_columns=pushed[1])

    def compose(self, transform: LowRankUpdate) -> CorrectedRoot:
        """Keep the map as thin matrices."""
        return CorrectedRoot.composed(self, transform)

    def scale(self, factors: Float[Tensor, " c"]) -> PropagatedRoot:
        """Multiply each channel's rows."""
        factors = factors.to(self.columns)[:, None, None]
        return replace(self, columns=self.columns * factors, own_columns=self.own_columns * factors)

    def select(self, index: slice | Tensor) -> PropagatedRoot:
        """Select samples; the latent remains that of all."""
        own_rows = None if self.own_rows is None else self.own_rows[index]
        columns, own_columns = self.columns[index], self.own_columns[index]
        return replace(self, columns=columns, own_columns=own_columns, own_rows=own_rows, positions=self.positions[index])

    def marginal(self, index: int) -> DenseRoot:
        """The marginal root of one sample, with one latent dimension per column."""
        return DenseRoot(torch.cat([self.columns[[index]], self.own_columns[[index]]], dim=-1))

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        shared, coefficients = self.formed()
        placed = self._placed(coefficients.flatten(1, 2)).unflatten(1, coefficients.shape[1:3])
        return torch.cat([shared, placed.flatten(3)], dim=3)

    def formed(self) -> tuple[Float[Tensor, "n c p k"], Float[Tensor, "n c p l"]]:
        """The shared and the per-sample root, with one column per latent dimension."""
        shared = self.columns if self.rows is None else self.columns @ self.rows.to(self.columns)
        if self.own_rows is None:
            return shared, self.own_columns
        return shared, self.own_columns @ self.own_rows.to(self.own_columns)[:, None]

    def _split(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Latent vectors as `(s, k)` and `(s, N, l)`, in float64."""
        latents = latents.to(self.device, torch.float64)
        shared, specific = latents[:, : self.rank], latents[:, self.rank :]
        return shared, specific.reshape(len(specific), self.functions, self.own_rank)

    def _along(self, shared: Tensor) -> Tensor:
        """V xi of vectors `(..., k)`."""
        return shared if self.rows is None else shared @ self.rows.mT

    def _own_along(self, specific: Tensor) -> Tensor:
        """W_i zeta_i of vectors `(s, n, l)`."""
        return specific if self.own_rows is None else torch.einsum("nql,snl->snq", self.own_rows, specific)

    def _back(self, shared: Tensor) -> Tensor:
        """V^T of numbers `(..., r)`, in float64."""
        shared = shared.to(torch.float64)
        return shared if self.rows is None else shared @ self.rows

    def _own_back(self, specific: Tensor) -> Tensor:
        """W_i^T of numbers `(n, m, q)`, in float64."""
        specific = specific.to(torch.float64)
        return specific if self.own_rows is None else specific @ self.own_rows

    def _placed(self, coefficients: Tensor) -> Tensor:
        """Embed each sample's latent numbers, `(n, m, l)`, among those of all, `(n, m, N, l)`."""
        placed = coefficients.new_zeros(len(coefficients), coefficients.shape[1], self.functions, coefficients.shape[2])
        placed[torch.arange(len(coefficients), device=coefficients.device), :, self.positions] = coefficients
        return placed


@dataclass(frozen=True, eq=False)
class Columns:
    """B V: the deviation of the last states as columns B, each along a direction of the latent space, a row of V.

    Args:
        columns: B, `(n, h * c, p, r)`, of the last h states, earliest first, in physical units.
        rows: V, orthonormal, `(1, r, k)` where functions share the latent, `(n, r, k)` where each has its own; None for the
            identity.
        is_shared: Whether they share it.
        dropped: The largest fraction of a standard deviation that truncation left out, root mean square over one function's
            channel; dimensionless.
    """

    columns: Float[Tensor, "n hc p r"]
    rows: Float64[Tensor, "b r k"] | None
    is_shared: bool
    dropped: float = 0.0

    @classmethod
    def of(cls, matrix: Float[Tensor, "n hc p a"], *, rank: int, is_shared: bool) -> Columns:
        """A root whose latent dimensions are the first of a latent of this rank."""
        count = matrix.shape[3]
        if count == rank:
            return cls(matrix, None, is_shared)
        unit = torch.eye(count, rank, dtype=torch.float64, device=matrix.device)
        return cls(matrix, unit.expand(1 if is_shared else len(matrix), -1, -1), is_shared)

    @property
    def count(self) -> int:
        """Number of columns r."""
        return self.columns.shape[3]

    @property
    def rank(self) -> int:
        """Dimensions k of the latent."""
        return self.count if self.rows is None else self.rows.shape[2]

    def state(self, channels: int) -> Float[Tensor, "n c p r"]:
        """The columns of the last state."""
        return self.columns[:, self.columns.shape[1] - channels :]

    def step(
        self, pushed: Float[Tensor, "n c p r"], added: Float[Tensor, "n c p a"], *, offset: int, is_fresh: bool
    ) -> Columns:
        """The columns after a step: the propagated previous columns, and a new root.

        Args:
            pushed: The propagated columns.
            added: The root, `(n, c, p, a)`.
            offset: Index of the root's first latent dimension.
            is_fresh: Whether no column before has a part along these dimensions.

        Raises:
            UnsupportedError: If the columns do not fit into memory.
        """
        channels, size = pushed.shape[1], added.shape[3]
        self._check_size(self.count + size if is_fresh and self.rows is not None else self.rank)
        older = self.columns[:, channels:]
        if is_fresh and self.rows is not None:
            newest = torch.cat([pushed, added.to(pushed)], dim=3)
            unit = self.rows.new_zeros(len(self.rows), size, self.rank)
            unit[:, torch.arange(size), offset + torch.arange(size)] = 1.0
            columns = torch.cat([torch.nn.functional.pad(older, (0, size)), newest], dim=1)
            return replace(self, columns=columns, rows=torch.cat([self.rows, unit], dim=1))
        formed = torch.cat([older, pushed], dim=1)
        formed = formed if self.rows is None else formed @ self.rows[:, None].to(pushed)
        formed[:, -channels:, :, offset : offset + size] += added.to(pushed)
        return replace(self, columns=formed, rows=None)

    def truncated(self, tolerance: float) -> Columns:
        """The same in fewer columns: by a singular value decomposition, exactly up to rounding if the tolerance is zero.

        Every channel of every function counts alike, whatever its unit. Where the tolerance is zero, and there are no more
        columns than values, these very columns are kept.

        Args:
            tolerance: Fraction of the standard deviation that may be left out, root mean square over all values of the window;
                dimensionless.
        """
        functions, channels, points, count = self.columns.shape
        batch = 1 if self.is_shared else functions
        values = functions * channels * points // batch
        if count == 0 or (tolerance == 0.0 and count <= values):
            return self
        wide = self.columns.to(torch.float64)
        sizes = wide.square().sum((2, 3), keepdim=True).sqrt()
        unit = torch.where(sizes > 0, sizes, 1.0)
        left_vectors, strengths, right = singular_values((wide / unit).reshape(batch, values, count))
        squares = strengths.square()
        beyond = squares.flip(-1).cumsum(-1).flip(-1)  # loss if this one and all smaller ones are truncated
        needed = beyond > tolerance**2 * squares.sum(-1, keepdim=True)
        rank = max(1, int(needed.sum(-1).max()))
        scaled = (left_vectors * strengths[..., None, :]).reshape(functions, channels, points, -1)
        dropped = float(scaled[..., rank:].square().sum((2, 3)).max().sqrt())
        rows = right[..., :rank, :] if self.rows is None else right[..., :rank, :] @ self.rows
        return Columns((scaled[..., :rank] * unit).to(self.columns), rows, self.is_shared, dropped)

    def _check_size(self, count: int) -> None:
        functions, channels, points, _ = self.columns.shape
        rows = 0 if self.rows is None else (1 if self.is_shared else functions) * count * self.rank
        size = max(functions * channels * points * count, rows)
        remedy = "use fewer samples, a coarser grid, a tolerance > 0, or a predictor of lower rank"
        check_integer(size, "size of one lead's columns", least=0, most=_LARGEST, remedy=remedy, error=UnsupportedError)


def narrowed(matrix: Float[Tensor, "n c p k"], *, is_shared: bool) -> Float[Tensor, "n c p r"]:
    """A root of the same covariance with no more columns than values: joint over all samples, or per sample."""
    functions, channels, points, count = matrix.shape
    batch = 1 if is_shared else functions
    values = functions * channels * points // batch
    if count <= values:
        return matrix
    triangle = torch.linalg.qr(matrix.to(torch.float64).reshape(batch, values, count).mT, mode="r").R.mT
    return triangle.reshape(functions, channels, points, values).to(matrix)
