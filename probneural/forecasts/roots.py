"""The root of a forecast: what all functions share, and what is each function's own, in few columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from probneural.distributions.roots.base import DenseRoot, Root
from probneural.distributions.roots.sums import CorrectedRoot
from probneural.errors import ShapeError
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate


@dataclass(frozen=True, eq=False)
class PropagatedRoot(Root):
    """d_i = B_i V xi + C_i W_i zeta_i: columns that were pushed through steps, and the latent directions that they stand for.

    All functions share xi; each of the N functions of a forecast has a vector zeta_i of its own. Both are part of one latent
    vector (xi, zeta_1, ..., zeta_N), so that an observation of function i at one time informs zeta_i, hence the same function
    at all other times, as well as xi. Nothing of the size of the latent is kept for every point.

    Args:
        columns: B, `(n, c, p, r)`, in physical units.
        rows: V, `(r, k)`, orthonormal, dimensionless.
        own_columns: C, `(n, c, p, q)`, in physical units.
        own_rows: W, `(n, q, l)`, orthonormal for each function, dimensionless.
        positions: Which of the N functions these n are, `(n,)`.
        functions: N.

    Raises:
        ShapeError: If they do not fit together.
    """

    columns: Float[Tensor, "..."]
    rows: Float[Tensor, "r k"]
    own_columns: Float[Tensor, "..."]
    own_rows: Float[Tensor, "..."]
    positions: Int64[Tensor, " n"]
    functions: int

    def __post_init__(self) -> None:
        """Check that they fit together."""
        left, right = tuple(self.columns.shape), tuple(self.own_columns.shape)
        fits = len(left) == 4 and left[:3] == right[:3] and left[3] == self.rows.shape[0]
        if not fits or tuple(self.own_rows.shape[:2]) != (left[0], right[3]) or len(self.positions) != left[0]:
            raise ShapeError(
                expected="columns (n, c, p, r) with rows (r, k), own columns (n, c, p, q) with rows (n, q, l), n positions",
                got=f"{left} with {tuple(self.rows.shape)}, {right} with {tuple(self.own_rows.shape)}, {len(self.positions)}",
                remedy="one row per column",
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k + N l)`."""
        inputs, channels, points, _ = self.columns.shape
        return inputs, channels, points, self.rows.shape[1] + self.functions * self.own_rows.shape[2]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.columns

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        shared, own = self._split(latents)
        return self._image(shared, own[:, self.positions])

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        shared, own = self._split(latents)
        along = (shared @ self.rows.mT).to(self.columns)
        each = torch.einsum("nql,nl->nq", self.own_rows, own[torch.arange(len(own)), self.positions]).to(self.columns)
        moved = torch.einsum("ncpr,nr->ncp", self.columns, along)
        return moved + torch.einsum("ncpq,nq->ncp", self.own_columns, each)

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        values = values.to(self.columns)
        shared = torch.einsum("ncpr,sncp->sr", self.columns, values).to(self.rows) @ self.rows
        pulled = torch.einsum("ncpq,sncp->snq", self.own_columns, values).to(self.own_rows)
        each = torch.einsum("nql,snq->snl", self.own_rows, pulled)
        own = each.new_zeros(len(values), self.functions, each.shape[2]).index_add(1, self.positions, each)
        return torch.cat([shared, own.flatten(1)], dim=1)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's own transpose."""
        cotangents = cotangents.to(self.columns)
        shared = torch.einsum("ncpr,nmcp->nmr", self.columns, cotangents).to(self.rows) @ self.rows
        each = torch.einsum("ncpq,nmcp->nmq", self.own_columns, cotangents).to(self.own_rows) @ self.own_rows
        return torch.cat([shared, self._placed(each).flatten(2)], dim=2)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares: those of the columns, since rows are orthonormal."""
        return self.columns.square().sum(-1) + self.own_columns.square().sum(-1)

    def push(self, functional: Functional) -> Root:
        """Apply the functional to each column."""
        return PropagatedRoot(
            DenseRoot(self.columns).push(functional).dense(),
            self.rows,
            DenseRoot(self.own_columns).push(functional).dense(),
            self.own_rows,
            self.positions,
            self.functions,
        )

    def compose(self, transform: LowRankUpdate) -> CorrectedRoot:
        """Keep the map as thin matrices."""
        return CorrectedRoot.composed(self, transform)

    def scale(self, factors: Float[Tensor, " c"]) -> PropagatedRoot:
        """Multiply each channel's rows."""
        factors = factors.to(self.columns)[:, None, None]
        return self._with(self.columns * factors, self.own_columns * factors)

    def select(self, index: slice | Tensor) -> PropagatedRoot:
        """Select functions; the latent stays that of all."""
        return PropagatedRoot(
            self.columns[index],
            self.rows,
            self.own_columns[index],
            self.own_rows[index],
            self.positions[index],
            self.functions,
        )

    def marginal(self, index: int) -> DenseRoot:
        """One function by itself: its columns, each a latent dimension of its own."""
        return DenseRoot(torch.cat([self.columns[[index]], self.own_columns[[index]]], dim=-1))

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        shared = self.columns @ self.rows.to(self.columns)
        each = self.own_columns @ self.own_rows.to(self.own_columns)[:, None]
        placed = self._placed(each.flatten(1, 2)).unflatten(1, each.shape[1:3])
        return torch.cat([shared, placed.flatten(3)], dim=3)

    def formed(self) -> tuple[Float[Tensor, "n c p k"], Float[Tensor, "n c p l"]]:
        """What the functions share, and what is each one's own, with a column for each latent dimension."""
        return (
            self.columns @ self.rows.to(self.columns),
            self.own_columns @ self.own_rows.to(self.own_columns)[:, None],
        )

    def _with(self, columns: Tensor, own_columns: Tensor) -> PropagatedRoot:
        return PropagatedRoot(columns, self.rows, own_columns, self.own_rows, self.positions, self.functions)

    def _split(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Latent vectors as `(s, k)` and `(s, N, l)`, in float64."""
        latents = latents.to(self.rows)
        shared, own = latents.split([self.rows.shape[1], latents.shape[1] - self.rows.shape[1]], dim=1)
        return shared, own.reshape(len(own), self.functions, self.own_rows.shape[2])

    def _image(self, shared: Tensor, own: Tensor) -> Tensor:
        """The draws of `(s, k)` shared numbers and `(s, n, l)` own ones."""
        along = (shared @ self.rows.mT).to(self.columns)
        each = torch.einsum("nql,snl->snq", self.own_rows, own).to(self.columns)
        moved = torch.einsum("ncpr,sr->sncp", self.columns, along)
        return moved + torch.einsum("ncpq,snq->sncp", self.own_columns, each)

    def _placed(self, each: Tensor) -> Tensor:
        """`(n, m, l)` of each function's own latent numbers, among those of all, `(n, m, N, l)`."""
        placed = each.new_zeros(len(each), each.shape[1], self.functions, each.shape[2])
        placed[torch.arange(len(each)), :, self.positions] = each
        return placed
