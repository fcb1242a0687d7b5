"""The matrices among a module's parameters, and orthogonal changes of basis that act on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor, nn

from probneural.curvature.parameters import ParameterVector
from probneural.errors import ArgumentError

_ROLES = ("block", "row", "column", "pair")
_LARGEST_DENSE = 512
"""Entries of a vector of parameters up to which it is one dense block; a longer one is a diagonal."""
_LARGEST_FACTOR = 4096
"""Rows or columns up to which a matrix of parameters has Kronecker factors; a larger one is a diagonal."""


@dataclass(frozen=True, eq=False)
class MatrixBlocks:
    """b blocks of parameters, each an m x n matrix, real or complex: where their entries lie in the parameter vector.

    Attributes:
        positions: `(b, m, n)`, or `(b, m, n, 2)` for complex matrices, held as (real, imaginary) pairs.
        layers: Which of the layout's names each block belongs to, `(b,)`.
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


def matrix_blocks(layout: ParameterVector, module: nn.Module) -> list[MatrixBlocks]:
    """Find the matrices among parameters, tensor by tensor; every coordinate belongs to exactly one block.

    What the axes of a tensor mean is, in this order,

    - what its own module declares in a class attribute `kronecker_axes`, from parameter names to one word per axis:
      `"row"`, `"column"` or `"block"`, with `"..."` for any number of block axes, and `"pair"` last where a real tensor
      holds complex numbers as (real, imaginary) pairs: `{"weight": "... row column pair"}`;
    - for a complex tensor `"row column ..."`: inputs, outputs, modes; with a single axis, numbers on their own;
    - for a real tensor of two or more axes, rows along the first and columns along the others: outputs against inputs times
      kernel. A `bias` beside such a `weight`, as long as its first axis, is one more column;
    - for other real tensors a single row, hence a dense matrix, up to 512 entries, beyond that numbers on their own.

    Complex matrices of equal shape come as one batch, whichever tensors they belong to.

    Args:
        layout: Which parameters.
        module: Their module.

    Raises:
        ArgumentError: If the module lacks one of the parameters, or a declaration does not fit its tensor.
    """
    _check(layout, module)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    ends = torch.tensor([math.prod(shape) for shape in layout.shapes]).cumsum(0).tolist()
    entries = {
        name: torch.arange(end - math.prod(shape), end).reshape(shape)
        for (name, shape), end in zip(shapes.items(), ends, strict=True)
    }
    complex_names = {name for name, flag in zip(layout.names, layout.is_complex, strict=True) if flag}
    declared = {name: _declared(module, name) for name in layout.names}
    plain = {name for name in layout.names if declared[name] is None and name not in complex_names}
    bias_of = {}
    for name in plain:
        owner, _, parameter = name.rpartition(".")
        bias = f"{owner}.bias" if owner else "bias"
        if parameter == "weight" and len(shapes[name]) > 1 and bias in plain and shapes[bias] == shapes[name][:1]:
            bias_of[name] = bias
    collected = []
    for layer, name in enumerate(layout.names):
        if name in bias_of.values() or 0 in shapes[name]:
            continue
        if name in plain and len(shapes[name]) < 2:
            dense = entries[name].numel() <= _LARGEST_DENSE
            positions = entries[name].reshape((1, 1, -1) if dense else (-1, 1, 1))
        else:
            positions = _arrange(entries[name], _roles(name, declared[name], shapes[name], name in complex_names))
            if name in bias_of:
                positions = torch.cat([positions, entries[bias_of[name]][None, :, None]], dim=2)
        if max(positions.shape[1:3]) > _LARGEST_FACTOR:
            positions = positions.flatten(0, 2)[:, None, None]
        collected.append(MatrixBlocks(positions, torch.full((len(positions),), layer)))
    return _merge(collected)


def _merge(collected: list[MatrixBlocks]) -> list[MatrixBlocks]:
    """Put complex blocks of equal shape together: modes of different tensors can be coupled."""
    groups: dict[tuple[int, ...], list[MatrixBlocks]] = {}
    for number, blocks in enumerate(collected):
        groups.setdefault(blocks.shape[1:] if blocks.is_complex else (number,), []).append(blocks)
    return [
        MatrixBlocks(torch.cat([blocks.positions for blocks in group]), torch.cat([blocks.layers for blocks in group]))
        for group in groups.values()
    ]


def _check(layout: ParameterVector, module: nn.Module) -> None:
    sizes = {
        name: torch.view_as_real(part).shape if part.is_complex() else part.shape for name, part in module.named_parameters()
    }
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if sizes.get(name) != shape:
            raise ArgumentError(
                expected=f"a module with a parameter {name} of real shape {tuple(shape)}",
                got=str(tuple(sizes[name])) if name in sizes else f"one with {', '.join(sizes)}",
                remedy="pass the module that the layout was made of",
            )


def _declared(module: nn.Module, name: str) -> str | None:
    owner, _, parameter = name.rpartition(".")
    words: str | None = getattr(module.get_submodule(owner), "kronecker_axes", {}).get(parameter)
    return words


def _roles(name: str, declared: str | None, shape: torch.Size, is_complex: bool) -> list[str]:
    """One word per axis of the real tensor."""
    count = len(shape)
    if declared is None:
        if not is_complex:
            return ["row"] + (count - 1) * ["column"]
        declared = "..." if count <= 2 else "row column ..."
    words = declared.split() + (["pair"] if is_complex else [])
    if words.count("...") == 1 and len(words) - 1 <= count:
        position = words.index("...")
        words[position : position + 1] = (count - len(words) + 1) * ["block"]
    fits = len(words) == count and all(word in _ROLES for word in words) and "pair" not in words[:-1]
    if not fits or (words[-1] == "pair" and shape[-1] != 2):
        raise ArgumentError(
            expected=f"kronecker_axes of {name} with one of {', '.join(_ROLES)} for each of its axes {tuple(shape)}",
            got=repr(declared),
            remedy='write for example "... row column pair", where the pair is last and of length 2',
        )
    return words


def _arrange(entries: Tensor, roles: list[str]) -> Tensor:
    """Bring the axes into the order of blocks, rows, columns, pair."""
    order = [axis for role in _ROLES for axis, present in enumerate(roles) if present == role]
    sizes = [
        math.prod(size for size, present in zip(entries.shape, roles, strict=True) if present == role) for role in _ROLES[:3]
    ]
    return entries.permute(order).reshape(*sizes, *([2] if roles[-1] == "pair" else []))


@dataclass(frozen=True, eq=False)
class BlockBases:
    """Orthonormal bases of the rows and columns of matrices M: their coordinates are U_A^H M U_B.

    Attributes:
        blocks: Which matrices; those of rotated vectors lie in the same places.
        rows: U_A, `(b, m, m)`, real or complex like the matrices.
        columns: U_B, `(b, n, n)`.
    """

    blocks: MatrixBlocks
    rows: Shaped[Tensor, "b m m"]
    columns: Shaped[Tensor, "b n n"]

    def forward(self, matrices: Shaped[Tensor, "s b m n"]) -> Shaped[Tensor, "s b m n"]:
        """U_A^H M U_B."""
        rotated = torch.einsum("bik,sbij->sbkj", self.rows.conj(), matrices)
        return torch.einsum("sbkj,bjl->sbkl", rotated, self.columns)

    def backward(self, coordinates: Shaped[Tensor, "s b m n"]) -> Shaped[Tensor, "s b m n"]:
        """U_A C U_B^H."""
        rotated = torch.einsum("bik,sbkl->sbil", self.rows, coordinates)
        return torch.einsum("sbil,bjl->sbij", rotated, self.columns.conj())

    def to(self, dtype: torch.dtype, device: torch.device) -> BlockBases:
        """The same bases in another real dtype and on another device."""
        factor_dtype = dtype.to_complex() if self.blocks.is_complex else dtype
        return BlockBases(self.blocks.to(device), self.rows.to(device, factor_dtype), self.columns.to(device, factor_dtype))


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

    def parts(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The five tensors, in order."""
        return self.first, self.second, self.cosine, self.sine, self.sign

    def to(self, dtype: torch.dtype, device: torch.device) -> PairMixing:
        """The same rotations in another dtype and on another device."""
        return PairMixing(*(part.to(device, dtype if part.is_floating_point() else part.dtype) for part in self.parts()))
