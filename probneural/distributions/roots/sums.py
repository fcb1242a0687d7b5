"""Compound roots: concatenations, and low-rank corrections."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_count
from probneural.distributions.latent import Seeds
from probneural.distributions.roots.base import DerivedRoot, Root
from probneural.errors import ShapeError
from probneural.functionals import Functional
from probneural.linear_algebra.conditioning import LowRankUpdate

_DENSE_ELEMENTS = 2**24
"""Largest number of entries of one sample's root for which variances are summed from the dense root (64 MiB in float32)."""


@dataclass(frozen=True, eq=False)
class SideBySideRoot(Root):
    """[L R]: the root of the sum of two independent fields, of k + r latent dimensions.

    Args:
        first: `(n, c, p, k)`.
        second: `(n, c, p, r)`, in the same units.

    Raises:
        ShapeError: If the two belong to different samples, channels or points.
    """

    first: Root
    second: Root

    def __post_init__(self) -> None:
        """Check the shapes."""
        if self.first.shape[:3] != self.second.shape[:3]:
            expected = f"two roots of the same samples, channels and points {self.first.shape[:3]}"
            raise ShapeError(expected=expected, got=str(self.second.shape[:3]), remedy="evaluate both on one grid")

    @cached_property
    def shape(self) -> tuple[int, int, int, int]:
        """`(n, c, p, k + r)`."""
        return (*self.first.shape[:3], self.first.shape[3] + self.second.shape[3])

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.first.like

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        first, second = self._split(latents)
        drawn = self.first.product(first)
        return drawn + self.second.product(second).to(drawn)

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        first, second = self._split(latents)
        drawn = self.first.product_each(first)
        return drawn + self.second.product_each(second).to(drawn)

    def latents(self, seeds: Seeds) -> Float[Tensor, "m k"]:
        """The latent vectors of both, which are independent."""
        first = self.first.latents(seeds.of_part(0))
        return torch.cat([first, self.second.latents(seeds.of_part(1)).to(first)], dim=-1)

    def draw(self, seeds: Seeds, *, each: bool = False) -> Float[Tensor, "..."]:
        """The sum of independent draws of both."""
        drawn = self.first.draw(seeds.of_part(0), each=each)
        return drawn + self.second.draw(seeds.of_part(1), each=each).to(drawn)

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        first = self.first.transposed_product(values)
        return torch.cat([first, self.second.transposed_product(values).to(first)], dim=-1)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose."""
        first = self.first.pull(cotangents)
        return torch.cat([first, self.second.pull(cotangents).to(first)], dim=-1)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares."""
        first = self.first.row_squares()
        return first + self.second.row_squares().to(first)

    def push(self, functional: Functional) -> SideBySideRoot:
        """Apply the functional to both."""
        return SideBySideRoot(self.first.push(functional), self.second.push(functional))

    def compose(self, transform: LowRankUpdate) -> SideBySideRoot:
        """[L R] (I + V^T D V) = [L + P D V_L, R + P D V_R], with P = [L R] V^T: the two blocks stay separate."""
        check_count(transform.rank, self.shape[3], "latent dimensions of the map", remedy="one for both roots")
        inputs = self.shape[0]
        directions = transform.directions.expand(inputs, -1, -1)
        along = [self.product_each(directions[:, index]) for index in range(directions.shape[1])]
        change = (transform.factors - 1.0).expand(inputs, -1)
        columns = torch.stack(along, -1) if along else self.first.row_squares().new_zeros(*self.shape[:3], 0)
        columns = columns * change.to(columns)[:, None, None, :]
        first, second = self._split(directions)
        return SideBySideRoot(CorrectedRoot.of(self.first, columns, first), CorrectedRoot.of(self.second, columns, second))

    def marginal(self, index: int) -> SideBySideRoot:
        """The concatenated per-sample roots."""
        return SideBySideRoot(self.first.marginal(index), self.second.marginal(index))

    def scale(self, factors: Float[Tensor, " c"]) -> SideBySideRoot:
        """Multiply each channel's rows of both."""
        return SideBySideRoot(self.first.scale(factors), self.second.scale(factors))

    def select(self, index: slice | Tensor) -> SideBySideRoot:
        """Select inputs."""
        return SideBySideRoot(self.first.select(index), self.second.select(index))

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        first = self.first.dense()
        return torch.cat([first, self.second.dense().to(first)], dim=-1)

    def without_white(self) -> tuple[Root | None, Float64[Tensor, "n c p"]]:
        """The root without its white noise component, and the variances of the white noise."""
        (first, white), (second, more) = self.first.without_white(), self.second.without_white()
        white = white + more.to(white)
        if first is None or second is None:
            return (second if first is None else first), white
        return SideBySideRoot(first, second), white

    def gram(self) -> Float64[Tensor, "n cp cp"]:
        """The sum of both Gram matrices."""
        first = self.first.gram()
        return first + self.second.gram().to(first)

    def _split(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        first, second = latents.split([self.first.shape[3], self.second.shape[3]], dim=-1)
        return first, second


@dataclass(frozen=True, eq=False)
class CorrectedRoot(DerivedRoot):
    """B + C W: a root with a low-rank correction, one pair of thin matrices per sample.

    Conditioning a sample on its observations, u + K (y - A u), corrects the shared root to B - K (A B).

    Args:
        base: B, `(n, c, p, k)`.
        columns: C, `(n, c, p, q)`, in the units of the field.
        rows: W, `(n, q, k)`, dimensionless.
    """

    columns: Float[Tensor, "..."]
    rows: Float[Tensor, "..."]

    @classmethod
    def of(cls, base: Root, columns: Tensor, rows: Tensor) -> CorrectedRoot:
        """Correct a root; a root that is corrected already gets more columns instead of a second layer."""
        if isinstance(base, CorrectedRoot):
            thin = torch.cat([base.columns, columns.to(base.columns)], -1)
            return cls(base.base, thin, torch.cat([base.rows, rows.to(base.rows)], 1))
        return cls(base, columns, rows)

    @classmethod
    def composed(cls, base: Root, transform: LowRankUpdate) -> CorrectedRoot:
        """Root (I + V^T D V) = root + (root V^T D) V, for a base without its own implementation."""
        directions = transform.directions.expand(base.shape[0], -1, -1)
        change = (transform.factors - 1.0).expand(base.shape[0], -1)
        columns = [base.product_each(directions[:, index]) for index in range(directions.shape[1])]
        thin = torch.stack(columns, -1) if columns else base.row_squares().new_zeros(*base.shape[:3], 0)
        return cls.of(base, thin * change.to(thin)[:, None, None, :], directions)

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s n c p"]:
        """Map s latent vectors to s coherent draws."""
        along = torch.einsum("nqk,sk->snq", self.rows, latents.to(self.rows))
        drawn = self.base.product(latents)
        return drawn + torch.einsum("ncpq,snq->sncp", self.columns, along.to(self.columns)).to(drawn)

    def product_each(self, latents: Float[Tensor, "n k"]) -> Float[Tensor, "n c p"]:
        """Map one latent vector per input."""
        along = torch.einsum("nqk,nk->nq", self.rows, latents.to(self.rows))
        drawn = self.base.product_each(latents)
        return drawn + torch.einsum("ncpq,nq->ncp", self.columns, along.to(self.columns)).to(drawn)

    def transposed_product(self, values: Float[Tensor, "s n c p"]) -> Float[Tensor, "s k"]:
        """Apply the transpose of the joint map."""
        pulled = torch.einsum("ncpq,sncp->snq", self.columns, values.to(self.columns))
        first = self.base.transposed_product(values)
        return first + torch.einsum("nqk,snq->sk", self.rows, pulled.to(self.rows)).to(first)

    def pull(self, cotangents: Float[Tensor, "n m c p"]) -> Float[Tensor, "n m k"]:
        """Apply each input's transpose."""
        pulled = torch.einsum("ncpq,nmcp->nmq", self.columns, cotangents.to(self.columns))
        first = self.base.pull(cotangents)
        return first + (pulled.to(self.rows) @ self.rows).to(first)

    def row_squares(self) -> Float[Tensor, "n c p"]:
        """Row sums of squares; from the dense root if one sample's fits into memory, which avoids cancellation."""
        inputs, channels, points, rank = self.shape
        if channels * points * rank <= _DENSE_ELEMENTS:
            step = max(1, _DENSE_ELEMENTS // max(1, channels * points * rank))
            parts = [self.select(slice(start, start + step)).dense() for start in range(0, inputs, step)]
            squares = [part.square().sum(-1) for part in parts]
            return torch.cat(squares) if squares else self.columns.new_zeros(0, channels, points)
        rows = [self.base.product_each(self.rows[:, index]) for index in range(self.rows.shape[1])]
        cross = sum((row * self.columns[..., index].to(row) for index, row in enumerate(rows)), start=torch.zeros(()))
        gram = (self.rows @ self.rows.mT).to(self.columns)
        corrections = ((self.columns @ gram[:, None]) * self.columns).sum(-1)
        base = self.base.row_squares()
        return (base + 2.0 * torch.as_tensor(cross).to(base) + corrections.to(base)).clamp_min(0.0)

    def push(self, functional: Functional) -> CorrectedRoot:
        """Apply the functional to the base and to each column."""
        columns = functional(self.columns.movedim(-1, 1).unflatten(-1, functional.grid.shape)).movedim(1, -1)
        return CorrectedRoot(self.base.push(functional), columns, self.rows)

    def compose(self, transform: LowRankUpdate) -> CorrectedRoot:
        """Multiply base and rows on the latent side."""
        rows = (
            transform.product(self.rows)
            if transform.batch_shape
            else transform.product(self.rows.flatten(0, 1)).view_as(self.rows)
        )
        return CorrectedRoot(self.base.compose(transform), self.columns, rows)

    def scale(self, factors: Float[Tensor, " c"]) -> CorrectedRoot:
        """Multiply each channel's rows."""
        return CorrectedRoot(self.base.scale(factors), self.columns * factors.to(self.columns)[:, None, None], self.rows)

    def select(self, index: slice | Tensor) -> CorrectedRoot:
        """Select inputs."""
        return CorrectedRoot(self.base.select(index), self.columns[index], self.rows[index])

    def dense(self) -> Float[Tensor, "n c p k"]:
        """Form the root."""
        formed = self.base.dense()
        return formed + (self.columns @ self.rows.to(self.columns)[:, None]).to(formed)
