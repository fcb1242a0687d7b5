"""Latents: the named randomness that makes draws coherent across inputs, grids and resolutions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from probneural.errors import LatentError
from probneural.linear_algebra.conditioning import LowRankUpdate


@dataclass(frozen=True, eq=False, kw_only=True)
class Latent:
    """A standard normal vector xi in R^rank with a name.

    Two Gaussian fields whose latents have the same `id` are driven by the same xi: they are the same function draw, at other
    inputs or on other grids. A conditioned latent remembers how its parent's vector follows from its own,
    xi_parent = shift + S xi, with S symmetric and kept as the few directions that data have informed.

    Args:
        id: The name; it survives copies and files.
        rank: Length k of the vector.
        parent: What this latent was conditioned from.
        shift: `(rank,)`, float64, dimensionless.
        transform: S, of r directions in R^rank, float64, dimensionless.
        chi2: Squared standardised residual per observation of the data conditioned on; near 1 where prior and noise agree
            with the data.
        is_shared_across_calls: Whether later calls of the predictor have the same latent. Otherwise it belongs to the functions
            of one call: processes have a dimension for every one of them.
        source: Name of the latent or predictor that this one comes from, which keys random numbers; by default its `id`.
    """

    id: str
    rank: int
    parent: Latent | None = None
    shift: Float[Tensor, " k"] | None = None
    transform: LowRankUpdate | None = None
    chi2: float | None = None
    is_shared_across_calls: bool = True
    source: str | None = None

    @property
    def key(self) -> str:
        """Name that keys random numbers: equal for all latents of one source, so that a seed stays differentiable."""
        return self.id if self.source is None else self.source

    def conditioned(self, shift: Float[Tensor, " k"], transform: LowRankUpdate, *, chi2: float) -> Latent:
        """Return the latent after an observation that moves xi to shift + S xi."""
        name = f"{self.id}|{digest(shift, transform.directions, transform.factors)}"
        return replace(self, id=name, parent=self, shift=shift, transform=transform, chi2=chi2, source=self.key)

    def renamed(self, suffix: str) -> Latent:
        """Return an unrelated latent of the same rank, named after this one.

        A calibrated field is driven by a vector of its own: what data say about xi depends on the root it came through, so
        posteriors of the two must not be mixed.
        """
        return replace(self, id=f"{self.id}~{suffix}", source=self.key, parent=None, shift=None, transform=None, chi2=None)

    def relative_to(self, ancestor: Latent) -> tuple[Tensor | None, tuple[LowRankUpdate, ...]]:
        """Return (shift, (S1, S2, ...)) with xi_ancestor = shift + S1 S2 ... xi, the order in which a root is composed.

        For the ancestor itself the shift is None, and there are no maps.

        Raises:
            LatentError: If no ancestor has that name and rank.
        """
        shift: Tensor | None = None
        transforms: tuple[LowRankUpdate, ...] = ()
        latent: Latent | None = self
        while latent is not None and latent.id != ancestor.id:
            if latent.parent is None or latent.shift is None or latent.transform is None:
                latent = None
                break
            shift = latent.shift if shift is None else latent.shift.to(shift) + latent.transform.product(shift)
            transforms = (latent.transform.to(shift), *transforms)
            latent = latent.parent
        if latent is None or latent.rank != ancestor.rank:
            raise LatentError(
                expected=f"a latent that was conditioned from {ancestor!r}",
                got=repr(self),
                remedy="use fields predicted by one and the same predictor",
            )
        return shift, transforms

    def __repr__(self) -> str:
        """The name and the rank."""
        return f"Latent({self.id!r}, rank={self.rank})"


def digest(*tensors: Tensor) -> str:
    """Return a short name that follows from the tensors' contents: equal contents, equal names."""
    total = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        array = tensor.detach().to("cpu", torch.float64) if tensor.is_floating_point() else tensor.detach().cpu()
        total.update(str(tuple(array.shape)).encode())
        total.update(array.contiguous().numpy().tobytes())
    return total.hexdigest()
