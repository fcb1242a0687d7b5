"""Curvature in the eigenbasis of Kronecker products, and the root of the weights' posterior covariance made of it."""

from __future__ import annotations

import itertools
from dataclasses import KW_ONLY, dataclass

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor

from probneural.curvature.weights import WeightRoot
from probneural.distributions.latent import digest
from probneural.errors import ShapeError
from probneural.registry import stored

_REMEDY = "build factors by kronecker()"


@stored()
@dataclass(frozen=True, eq=False)
class MatrixBlocks:
    """b blocks of parameters, each an m x n matrix, real or complex: where their entries lie in the parameter vector.

    Attributes:
        positions: `(b, m, n)`, or `(b, m, n, 2)` for complex matrices, held as (real, imaginary) pairs.
        layers: Index of the layout's name of each block, `(b,)`.
    """

    positions: Int64[Tensor, "b m n *pair"]
    layers: Int64[Tensor, " b"]

    @property
    def is_complex(self) -> bool:
        """Whether the matrices are complex."""
        return self.positions.ndim == 4

    @property
    def shape(self) -> tuple[int, int, int]:
        """`(b, m, n)`."""
        blocks, rows, columns = self.positions.shape[:3]
        return blocks, rows, columns

    def gather(self, vectors: Float[Tensor, "s P"]) -> Shaped[Tensor, "s b m n"]:
        """Read the matrices out of s vectors."""
        entries = vectors.index_select(1, self.positions.flatten()).unflatten(1, self.positions.shape)
        return torch.view_as_complex(entries) if self.is_complex else entries

    def scatter(self, matrices: Shaped[Tensor, "s b m n"], into: Float[Tensor, "s P"]) -> None:
        """Write the matrices into s vectors, in place."""
        entries = torch.view_as_real(matrices) if self.is_complex else matrices
        into.index_copy_(1, self.positions.flatten(), entries.flatten(1))

    def to(self, device: torch.device) -> MatrixBlocks:
        """The same blocks on a device."""
        return MatrixBlocks(self.positions.to(device), self.layers.to(device))


@stored()
@dataclass(frozen=True, eq=False)
class BlockBases:
    """Orthonormal bases of the rows and columns of matrices M: their coordinates are U_A^H M U_B.

    Attributes:
        blocks: The matrices; those of rotated vectors have the same positions.
        rows: U_A, `(b, m, m)`, or `(b, m, m, 2)` for complex matrices.
        columns: U_B, `(b, n, n)`, or `(b, n, n, 2)`.
    """

    blocks: MatrixBlocks
    rows: Float[Tensor, "b m m *pair"]
    columns: Float[Tensor, "b n n *pair"]

    def forward(self, matrices: Shaped[Tensor, "s b m n"]) -> Shaped[Tensor, "s b m n"]:
        """U_A^H M U_B."""
        rows, columns = self._unpaired()
        return torch.einsum("sbkj,bjl->sbkl", torch.einsum("bik,sbij->sbkj", rows.conj(), matrices), columns)

    def backward(self, coordinates: Shaped[Tensor, "s b m n"]) -> Shaped[Tensor, "s b m n"]:
        """U_A C U_B^H."""
        rows, columns = self._unpaired()
        return torch.einsum("sbil,bjl->sbij", torch.einsum("bik,sbkl->sbil", rows, coordinates), columns.conj())

    def _unpaired(self) -> tuple[Tensor, Tensor]:
        """U_A and U_B, complex for complex matrices."""
        if self.blocks.is_complex:
            return torch.view_as_complex(self.rows), torch.view_as_complex(self.columns)
        return self.rows, self.columns


@stored()
@dataclass(frozen=True, eq=False)
class PairMixing:
    """Rotations by which two parameters W_k, W_l that act only through a sum become that sum and a null direction.

        V_+ = c W_k + s conj(W_l),   V_- = -s W_k + c conj(W_l),   c^2 + s^2 = 1

    A real field cannot tell a mode k on the zero plane of a halved axis from the conjugate of mode -k. V_+ takes the places of
    W_k and V_- those of W_l.

    Attributes:
        first: Places of the coordinates of W_k, `(t,)`.
        second: Places of those of W_l.
        cosine: c for each of them.
        sine: s.
        sign: -1 at imaginary parts, which conjugation turns, else 1.
    """

    first: Int64[Tensor, " t"]
    second: Int64[Tensor, " t"]
    cosine: Float[Tensor, " t"]
    sine: Float[Tensor, " t"]
    sign: Float[Tensor, " t"]

    def forward(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """From W to V."""
        first, second = vectors[:, self.first], vectors[:, self.second] * self.sign
        mixed = vectors.clone()
        mixed[:, self.first] = self.cosine * first + self.sine * second
        mixed[:, self.second] = self.cosine * second - self.sine * first
        return mixed

    def backward(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """From V to W."""
        plus, minus = vectors[:, self.first], vectors[:, self.second]
        unmixed = vectors.clone()
        unmixed[:, self.first] = self.cosine * plus - self.sine * minus
        unmixed[:, self.second] = (self.sine * plus + self.cosine * minus) * self.sign
        return unmixed


@stored()
@dataclass(frozen=True, eq=False, kw_only=True)
class KroneckerFactors:
    """G ~= U diag(eigenvalues) U^T with an orthogonal U made of Kronecker products, one per block of parameters.

    Coordinates of rotated vectors keep their blocks' places, so `layers` holds for parameters and coordinates alike. All are
    real numbers: a complex coordinate of a complex block counts as two.

    Attributes:
        bases: Bases of the blocks of each parameter tensor.
        mixing: Rotations of coupled modes, done first.
        eigenvalues: `(P,)`, in units of the rows squared; zero along null directions.
        layers: Which of the layout's names each coordinate belongs to, `(P,)`: a bias goes with its weight, and tensors with
            coupled modes with the first of them. Names without coordinates can occur.

    Raises:
        ShapeError: If the blocks do not cover every coordinate exactly once, places lie outside, or dtypes differ.
    """

    bases: tuple[BlockBases, ...]
    mixing: PairMixing
    eigenvalues: Float[Tensor, " P"]
    layers: Int64[Tensor, " P"]

    def __post_init__(self) -> None:
        """Check the cover."""
        size = len(self.eigenvalues)
        places = torch.cat([bases.blocks.positions.flatten() for bases in self.bases] or [self.layers[:0]])
        mixed = torch.cat([self.mixing.first, self.mixing.second])
        parts = [*vars(self.mixing).values(), *(part for bases in self.bases for part in (bases.rows, bases.columns))]
        dtypes = {part.dtype for part in parts if part.is_floating_point()}
        fits = dtypes <= {self.eigenvalues.dtype} and bool(((mixed >= 0) & (mixed < size)).all())
        if not fits or not torch.equal(places.sort().values, torch.arange(size, device=places.device)):
            raise ShapeError(
                expected=f"factors of one dtype whose blocks cover each of {size} coordinates once",
                got=f"{len(places)} places and {', '.join(map(str, dtypes))}",
                remedy=_REMEDY,
            )

    @property
    def size(self) -> int:
        """Number of parameters P."""
        return self.eigenvalues.shape[0]

    def rotate(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """U^T w: from parameters to eigen-coordinates."""
        mixed = self.mixing.forward(vectors.to(self.eigenvalues))
        rotated = torch.empty_like(mixed)
        for bases in self.bases:
            bases.blocks.scatter(bases.forward(bases.blocks.gather(mixed)), into=rotated)
        return rotated

    def rotate_back(self, coordinates: Float[Tensor, "s P"]) -> Float[Tensor, "s P"]:
        """U z: from eigen-coordinates to parameters."""
        coordinates = coordinates.to(self.eigenvalues)
        mixed = torch.empty_like(coordinates)
        for bases in self.bases:
            bases.blocks.scatter(bases.backward(bases.blocks.gather(coordinates)), into=mixed)
        return self.mixing.backward(mixed)


@stored()
@dataclass(frozen=True, eq=False)
class KroneckerWeights(WeightRoot):
    """R = diag(prior_std) U diag(eigenvalues / noise_scale + scale)^(-1/2): a root of the posterior covariance of the weights.

    With rows that the prior's standard deviations have whitened, `scale` 1 stands for that prior; other values, one for each
    layer for example, for priors `scale` times as precise. The latent vector lives in eigen-coordinates.

    Args:
        factors: U and the eigenvalues.
        prior_std: Factor on each parameter, `(P,)`: the one of the rows. Zero fixes a parameter.
        noise_scale: Noise variance that divides the curvature; 1 if the rows hold it already.
        scale: Prior precision of each eigen-coordinate in whitened units, `(P,)`; `precisions[factors.layers]`.
    """

    factors: KroneckerFactors
    _: KW_ONLY
    prior_std: Float[Tensor, " P"]
    noise_scale: float
    scale: Float[Tensor, " P"]

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and on the device of products."""
        return self.factors.eigenvalues

    @property
    def std(self) -> Float[Tensor, " P"]:
        """Posterior standard deviation of each eigen-coordinate, in whitened units."""
        return (self.factors.eigenvalues / self.noise_scale + self.scale.to(self.factors.eigenvalues)).rsqrt()

    def product(self, latents: Float[Tensor, "s k"]) -> Float[Tensor, "s P"]:
        """Scale each eigen-coordinate, rotate back, scale by the prior."""
        std = self.std
        return self.factors.rotate_back(latents.to(std) * std) * self.prior_std.to(std)

    def transposed_product(self, vectors: Float[Tensor, "s P"]) -> Float[Tensor, "s k"]:
        """The same in reverse order."""
        std = self.std
        return self.factors.rotate(vectors.to(std) * self.prior_std.to(std)) * std

    def fingerprint(self) -> str:
        """A short name that follows from the contents: equal roots, equal names."""
        factors, noise_scale = self.factors, torch.tensor(self.noise_scale, dtype=torch.float64, device="cpu")
        bases = [(part.blocks.positions, part.blocks.layers, part.rows, part.columns) for part in factors.bases]
        parts = (self.prior_std, self.scale, noise_scale, factors.eigenvalues, factors.layers, *vars(factors.mixing).values())
        return digest(*parts, *itertools.chain.from_iterable(bases))
