"""Columns that are pushed through steps, and their truncation: a low-rank root that grows by what every step adds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.errors import UnsupportedError
from probneural.linear_algebra.principal_components import singular_values

_LARGEST = 2**28
"""Entries of the columns of one lead (1 GiB in float32)."""


@dataclass(frozen=True, eq=False)
class Columns:
    """B V: the deviation of the last states as columns B, each along a direction of the latent space, a row of V.

    Args:
        columns: B, `(n, h * c, p, r)`, of the last h states, earliest first, in physical units.
        rows: V, orthonormal, `(1, r, k)` where functions share the latent, `(n, r, k)` where each has its own.
        dropped: The largest fraction of a standard deviation that truncation left out, root mean square over one function's
            channel; dimensionless.
    """

    columns: Float[Tensor, "n hc p r"]
    rows: Float64[Tensor, "b r k"]
    dropped: float = 0.0

    @classmethod
    def none(cls, window: Tensor, *, rank: int, is_shared: bool) -> Columns:
        """No deviation of a window `(n, h * c, *grid)`, in a latent of this rank."""
        flat = window.flatten(2)
        batch = 1 if is_shared else len(flat)
        return cls(flat.new_zeros(*flat.shape, 0), flat.new_zeros(batch, 0, rank, dtype=torch.float64))

    @classmethod
    def of(cls, matrix: Float[Tensor, "n hc p k"], *, rank: int, is_shared: bool) -> Columns:
        """A root whose latent dimensions are the first of a latent of this rank."""
        unit = torch.eye(matrix.shape[3], rank, dtype=torch.float64, device=matrix.device)
        return cls(matrix, unit.expand(1 if is_shared else len(matrix), -1, -1))

    @property
    def count(self) -> int:
        """Number of columns r."""
        return self.columns.shape[3]

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
        channels, rank = pushed.shape[1], self.rows.shape[2]
        count = self.columns.shape[3] + added.shape[3] if is_fresh else rank
        if self.columns[..., :1].numel() * count > _LARGEST:
            raise UnsupportedError(
                expected=f"at most {_LARGEST} numbers in the columns of one lead",
                got=f"{tuple(self.columns.shape[:3])} values with {count} columns each",
                remedy="take fewer functions or a coarser grid at a time, a tolerance > 0, or a predictor of lower rank",
            )
        if is_fresh:
            older = torch.nn.functional.pad(self.columns[:, channels:], (0, added.shape[3]))
            newest = torch.cat([pushed, added.to(pushed)], dim=3)
            unit = torch.eye(rank, dtype=torch.float64, device=pushed.device)[offset : offset + added.shape[3]]
            rows = torch.cat([self.rows, unit.expand(len(self.rows), -1, -1)], dim=1)
            return Columns(torch.cat([older, newest], dim=1), rows, self.dropped)
        formed = torch.cat([self.columns[:, channels:], pushed], dim=1) @ self.rows[:, None].to(pushed)
        formed[:, -channels:, :, offset : offset + added.shape[3]] += added.to(pushed)
        unit = torch.eye(rank, dtype=torch.float64, device=pushed.device)
        return Columns(formed, unit.expand(len(self.rows), -1, -1), self.dropped)

    def truncated(self, tolerance: float) -> Columns:
        """The same in fewer columns: by a singular value decomposition, exactly up to rounding if the tolerance is zero.

        Every channel of every function counts alike, whatever its unit. Where the tolerance is zero, and there are no more
        columns than values, these very columns are kept.

        Args:
            tolerance: Fraction of the standard deviation that may be left out, root mean square over all values of the window;
                dimensionless.
        """
        functions, channels, points, count = self.columns.shape
        batch = len(self.rows)
        values = functions * channels * points // batch
        if count == 0 or (tolerance == 0.0 and count <= values):
            return self
        wide = self.columns.to(torch.float64)
        sizes = wide.square().sum((2, 3), keepdim=True).sqrt()
        unit = torch.where(sizes > 0, sizes, 1.0)
        left, strengths, right = singular_values((wide / unit).reshape(batch, values, count))
        squares = strengths.square()
        beyond = squares.flip(-1).cumsum(-1).flip(-1)  # what is lost if this one and all smaller ones are left out
        needed = beyond > tolerance**2 * squares.sum(-1, keepdim=True)
        kept = max(1, int(needed.sum(-1).max()))
        columns = (left[..., :kept] * strengths[..., None, :kept]).reshape(functions, channels, points, kept) * unit
        lost = (left[..., kept:] * strengths[..., None, kept:]).reshape(functions, channels, points, -1)
        dropped = float(lost.square().sum((2, 3)).max().sqrt()) if lost.numel() else 0.0
        return Columns(columns.to(self.columns), right[..., :kept, :] @ self.rows, dropped)
