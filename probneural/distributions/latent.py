"""Latents: the named randomness that makes draws coherent across inputs, grids and resolutions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from probneural.checks import check_count, check_flag, check_sequence
from probneural.errors import ConstraintError, LatentError
from probneural.linear_algebra.conditioning import LowRankUpdate
from probneural.randomness import check_seed, stream

_SHARES_NUMBERS: ContextVar[bool] = ContextVar("shares_numbers", default=False)
"""Whether draws of one seed share their random numbers across predictors."""
_HASHED = 2**20
"""Number of entries hashed at once, which are copied in double precision."""

_BATCHES: ContextVar[tuple[int, int] | None] = ContextVar("batches", default=None)
"""Number of the last inputs of a call that are in batches, and inputs of a batch."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Latent:
    """A standard normal vector xi in R^rank with a name.

    Two Gaussian fields whose latents have the same `id` depend on the same xi: their draws are one function, at other
    inputs or on other grids. A conditioned latent stores the affine map from its vector to its parent's,
    xi_parent = shift + S xi, with S symmetric and kept as the few directions that data have informed.

    Args:
        id: The name; it survives copies and files.
        rank: Length k of the vector.
        parent: The latent before conditioning.
        shift: `(rank,)`, float64, dimensionless.
        transform: S, of r directions in R^rank, float64, dimensionless.
        chi2: Squared standardised residual per observation of the data conditioned on; near 1 where prior and noise agree
            with the data.
        is_shared_across_calls: Whether all calls of the predictor share the latent. Otherwise it is specific to the samples
            of one call: processes have a dimension for every one of them.
        source: Name of the original latent or predictor, which keys random numbers; by default its `id`.
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
        total.update(str(tuple(tensor.shape)).encode())
        for part in tensor.detach().flatten().split(_HASHED):
            array = part.to("cpu", torch.float64) if part.is_floating_point() else part.cpu()
            total.update(array.contiguous().numpy().data)
    return total.hexdigest()


@contextmanager
def common_random_numbers() -> Iterator[None]:
    """Share the random numbers of draws of one seed across predictors."""
    token = _SHARES_NUMBERS.set(True)
    try:
        yield
    finally:
        _SHARES_NUMBERS.reset(token)


@contextmanager
def in_separate_batches(count: int, size: int) -> Iterator[None]:
    """Predict the last `count` inputs of a call in batches of `size`, without joint distributions of two batches.

    A latent that is specific to the inputs of a call then has dimensions for one batch, and for the inputs before all batches:
    draws at a batch do not depend on other batches.
    """
    token = _BATCHES.set((count, size) if count else None)
    try:
        yield
    finally:
        _BATCHES.reset(token)


def separate_batches() -> tuple[int, int] | None:
    """Number of the last inputs of a call that are in batches, and inputs of a batch; None where all are joint."""
    return _BATCHES.get()


def draw_keys(name: str) -> tuple[int, ...]:
    """Indices of the random streams of a name: streams of different names are independent."""
    if _SHARES_NUMBERS.get():
        return ()
    return (int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"),)


def draw_stream(seed: int | None, name: str | None = None, *, part: tuple[int, ...] = ()) -> torch.Generator:
    """Return the generator of a draw, keyed by the seed and the name of the latent or predictor; a new one without a seed."""
    return stream(seed, "draws", *(() if name is None else draw_keys(name)), *part)


@dataclass(frozen=True)
class Seeds:
    """Seeds of coherent draws from a named latent.

    Args:
        seeds: One seed per draw, or one per sample.
        name: Name of the latent, which keys its random numbers.
        of_discrepancy: Whether the vector of the discrepancy is drawn, and not the shared one.
        part: Position of a component in a sum of independent roots.
    """

    seeds: tuple[int, ...]
    name: str
    of_discrepancy: bool = False
    part: tuple[int, ...] = ()

    def of_part(self, index: int) -> Seeds:
        """The seeds of a component of a sum, whose random numbers are independent of the other components'."""
        return replace(self, part=(*self.part, index))

    def latents(self, rank: int) -> Float64[Tensor, "m k"]:
        """Standard normal vectors, one for each seed, on the CPU."""
        vectors = {
            seed: torch.randn(rank, generator=self._stream(seed), dtype=torch.float64, device="cpu")
            for seed in dict.fromkeys(self.seeds)
        }
        return torch.stack([vectors[seed] for seed in self.seeds]) if self.seeds else torch.zeros(0, rank, dtype=torch.float64)

    def _stream(self, seed: int) -> torch.Generator:
        if self.of_discrepancy:
            return stream(seed, "discrepancy draws", *draw_keys(self.name), *self.part)
        return draw_stream(seed, self.name, part=self.part)

    def rows(self) -> dict[int, list[int]]:
        """Positions of each distinct seed, in order of first appearance."""
        rows: dict[int, list[int]] = {}
        for row, seed in enumerate(self.seeds):
            rows.setdefault(seed, []).append(row)
        return rows


def checked_seeds(seeds: Sequence[int], *, each: bool, samples: int) -> tuple[int, ...]:
    """Return the seeds of draws as a tuple.

    Raises:
        ArgumentError: If a seed is not a non-negative integer.
        ShapeError: If the number of seeds per sample differs from the number of samples.
    """
    checked = tuple(check_seed(seed) for seed in check_sequence(seeds, "seeds", remedy="write draw([0, 1, 2])"))
    if check_flag(each, "each"):
        check_count(len(checked), samples, "seeds, one for each sample", remedy="leave each= out")
    return checked


class SelectedFunctions(NamedTuple):
    """Identity of the samples of a field, which identifies their discrepancies in subsets of one prediction.

    Attributes:
        prediction: The prediction of the samples; compared by identity.
        rows: Indices of the samples in the prediction, `(n,)`, on the CPU.
    """

    prediction: object
    rows: Int64[Tensor, " n"]

    def select(self, rows: slice | Tensor) -> SelectedFunctions:
        """Some of them."""
        return SelectedFunctions(self.prediction, self.rows[rows if isinstance(rows, slice) else rows.cpu()])

    def anew(self) -> SelectedFunctions:
        """The same samples in a field that shares no discrepancies with others."""
        return SelectedFunctions(object(), self.rows)

    @property
    def number(self) -> int:
        """Number of distinct samples."""
        return len(self.rows.unique())

    @property
    def places(self) -> Int64[Tensor, " n"]:
        """Index of each sample among the distinct ones, `(n,)`, in order of first occurrence."""
        _, place = self.rows.unique(return_inverse=True)
        number = torch.arange(len(place), device=place.device)
        first = torch.full_like(number[: self.number], len(number)).scatter_reduce(0, place, number, "amin")
        return first.argsort().argsort()[place]

    def check_distinct(self) -> None:
        """Raise a ConstraintError if one of them was selected twice."""
        if self.number < len(self.rows):
            raise ConstraintError(
                expected="observations of distinct samples, because each has a discrepancy",
                got=f"{len(self.rows)} of {self.number} samples",
                remedy="observe each once: average repeated observations and divide their noise, or stack their functionals",
            )
