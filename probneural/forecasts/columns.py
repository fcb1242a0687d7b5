"""Columns that are pushed through steps, and their truncation: a low-rank root that grows by what every step adds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.errors import UnsupportedError
from probneural.linear_algebra.principal_components import singular_values

_LARGEST = 2**28
"""Numbers in the columns of one lead (1 GiB in float32)."""


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
        """The columns after a step, which has pushed those before and adds a root.

        Args:
            pushed: What the step has made of the columns.
            added: The root, `(n, c, p, a)`.
            offset: Which latent dimension is the root's first.
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
        beyond = squares.flip(-1).cumsum(-1).flip(-1)  # what is lost if this one and all smaller ones are left out
        needed = beyond > tolerance**2 * squares.sum(-1, keepdim=True)
        rank = max(1, int(needed.sum(-1).max()))
        scaled = (left_vectors * strengths[..., None, :]).reshape(functions, channels, points, -1)
        dropped = float(scaled[..., rank:].square().sum((2, 3)).max().sqrt())
        rows = right[..., :rank, :] if self.rows is None else right[..., :rank, :] @ self.rows
        return Columns((scaled[..., :rank] * unit).to(self.columns), rows, self.is_shared, dropped)

    def _check_size(self, count: int) -> None:
        functions, channels, points, _ = self.columns.shape
        rows = 0 if self.rows is None else (1 if self.is_shared else functions) * count * self.rank
        if max(functions * channels * points * count, rows) > _LARGEST:
            raise UnsupportedError(
                expected=f"at most {_LARGEST} numbers in the columns of one lead",
                got=f"{functions} x {channels} x {points} values with {count} columns each, of a latent of rank {self.rank}",
                remedy="take fewer functions or a coarser grid at a time, a tolerance > 0, or a predictor of lower rank",
            )


def narrowed(matrix: Float[Tensor, "n c p k"], *, is_shared: bool) -> Float[Tensor, "n c p r"]:
    """A root of the same covariance with no more columns than values: of all functions jointly, or of each by itself."""
    functions, channels, points, count = matrix.shape
    batch = 1 if is_shared else functions
    values = functions * channels * points // batch
    if count <= values:
        return matrix
    triangle = torch.linalg.qr(matrix.to(torch.float64).reshape(batch, values, count).mT, mode="r").R.mT
    return triangle.reshape(functions, channels, points, values).to(matrix)
