"""Symmetric maps of matrix-free algorithms: checked products with rows, and inner products in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from probneural.checks import check_finite, check_instance, check_shape
from probneural.errors import DataError

Map = Callable[[Tensor], Tensor]
"""A linear map of row vectors, `(s, P)` to `(s, Q)`."""

_BLOCK = 256
"""Columns summed in single precision: the rounding of their sums is a tenth of that of the numbers."""
_CHUNK = 2**12
"""Number of columns per chunk of sums in double precision."""


def apply(product: Map, rows: Float[Tensor, "s P"], *, size: int) -> Float[Tensor, "s Q"]:
    """Apply a map to rows, and check the images.

    Args:
        product: The map.
        rows: s vectors.
        size: Q, the length of each image.

    Returns:
        Images in the dtype and on the device of `rows`.

    Raises:
        ShapeError: If the images have another shape.
        DataError: If they are complex, or not finite.
    """
    images = check_instance(product(rows), Tensor, "images of a map", remedy="return a tensor of one image per row")

    check_shape(images, "images of a map", len(rows), size, remedy="map rows: one image per row")
    if not images.is_floating_point():
        raise DataError(
            expected="a product of real numbers", got=str(images.dtype), remedy="lay complex numbers out as (real, imaginary)"
        )
    images = images.to(rows)
    check_finite(images, "images of a map", remedy="check the map, or use float64")
    return images


def inner(first: Float[Tensor, "s P"], second: Float[Tensor, "t P"]) -> Float64[Tensor, "s t"]:
    """Inner products of rows, accumulated in float64 but for blocks of 256 columns.

    Examples:
        >>> inner(torch.ones(1, 3), torch.full((2, 3), 2.0)).tolist()
        [[6.0, 6.0]]
    """
    if first.dtype == torch.float64:
        return first @ second.mT
    total = torch.zeros(first.shape[0], second.shape[0], dtype=torch.float64, device=first.device)
    for left, right in zip(first.split(_BLOCK, dim=1), second.split(_BLOCK, dim=1), strict=True):
        total += left @ right.mT
    return total


def gram(rows: Float[Tensor, "s P"]) -> Float64[Tensor, "s s"]:
    """Inner products of rows with one another in float64; each is computed once.

    Examples:
        >>> gram(torch.tensor([[1.0, 2.0], [0.0, 3.0]])).tolist()
        [[5.0, 6.0], [6.0, 9.0]]
    """
    lower = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for part in rows.split(_CHUNK, dim=1):
        columns = part.to(torch.float64)
        for start in range(0, len(rows), _BLOCK):
            stop = start + _BLOCK
            lower[start:stop, :stop] += columns[start:stop] @ columns[:stop].mT
    return lower.tril() + lower.tril(-1).mT


def row_norms(rows: Float[Tensor, "s P"]) -> Float64[Tensor, " s"]:
    """Norms of rows, accumulated in float64."""
    return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)


def orthonormal(rows: Float[Tensor, "s P"], *, against: Float[Tensor, "m P"] | None = None) -> Float[Tensor, "t P"]:
    """Orthonormal rows that span rows after projection onto the complement of other, orthonormal ones.

    Rows are first scaled to norm one; the directions that most of them share come first. Rows that depend linearly on others or
    on `against`, to rounding, are left out, so t <= s.

    Examples:
        >>> orthonormal(torch.tensor([[3.0, 0.0], [6.0, 0.0]])).abs().tolist()
        [[1.0, 0.0]]
    """
    against = None if against is None else against.to(rows)
    largest = rows.abs().amax(1, keepdim=True) if rows.shape[1] else rows.new_zeros(len(rows), 1)
    rows = (rows / largest)[largest[:, 0] > 0]  # whose squares neither vanish nor overflow
    rows = _projected(rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True), against)
    if len(rows) == 0:
        return rows
    values, mixing = torch.linalg.eigh(inner(rows, rows))
    values, mixing = values.flip(0), mixing.flip(1)
    eps = torch.finfo(rows.dtype).eps
    is_resolved = values > torch.clamp(values[0] * 100.0 * eps, min=(100.0 * eps) ** 2)
    rows = _projected(
        (mixing[:, is_resolved] * values[is_resolved].rsqrt()).mT.to(rows) @ rows, against
    )  # removes the rounding
    # Cholesky orthonormalisation: QR of long float32 columns leaves norm errors of hundreds of epsilon.
    factor = torch.linalg.cholesky(inner(rows, rows))
    return torch.linalg.inv(factor).to(rows) @ rows


def _projected(rows: Tensor, against: Tensor | None) -> Tensor:
    return rows if against is None or len(against) == 0 else rows - inner(rows, against).to(rows) @ against


def gaussian(count: int, size: int, *, generator: torch.Generator, like: torch.Tensor) -> Float[Tensor, "s P"]:
    """Draw standard normal rows in float64 on the CPU, and convert them to the dtype and device of `like`."""
    return torch.randn(count, size, generator=generator, dtype=torch.float64, device="cpu").to(like)


def signs(count: int, size: int, *, generator: torch.Generator, like: torch.Tensor) -> Float[Tensor, "s P"]:
    """Draw rows of independent random signs, as `gaussian` does."""
    return (torch.randint(0, 2, (count, size), generator=generator, device="cpu") * 2 - 1).to(like)
