"""Kronecker-factored Gauss-Newton matrices of any module, from gradients only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probneural.checks import check_finite, check_least, check_shape, validated
from probneural.curvature.kronecker_factors import BlockBases, KroneckerFactors, MatrixBlocks, PairMixing
from probneural.curvature.parameters import ParameterVector
from probneural.errors import ArgumentError, UnsupportedError
from probneural.linear_algebra.principal_components import canonical
from probneural.randomness import stream

_ROLES = ("block", "row", "column", "pair")
_LARGEST_DENSE = 512
"""Maximum length of a parameter vector with a dense block; longer vectors have a diagonal."""
_LARGEST_FACTOR = 4096
"""Maximum number of rows or columns of a parameter matrix with Kronecker factors; larger ones have a diagonal."""
_ENTRIES = 2**24
"""Number of entries per chunk of rows (128 MiB in float64)."""
_SKETCHES = 12
"""Number of random sums for the comparison of modes: modes that agree in all of them agree in every row."""
_COMPARED = 1024
"""Number of modes per comparison with all others."""
_EQUAL = 1e-9
"""Difference of ratios of prior standard deviations that is rounding."""
_ROUNDING = 1e4
"""Tolerance of equality, in units of the rows' rounding error."""


@validated
def kronecker(
    layout: ParameterVector,
    module: nn.Module,
    *,
    rows: Callable[[], Iterable[Float[Tensor, "r P"]]],
    prior_std: Float[Tensor, " P"] | None = None,
    summed: Callable[[Tensor], Tensor] | None = None,
) -> KroneckerFactors:
    """Approximate G = sum over rows of g^T g by Kronecker products, one per block of parameters, streaming over the rows.

    The part of a row that belongs to a block is an m x n matrix M (see `matrix_blocks`), and with the partial traces

        A = sum M M^H,  B = sum M^H M,  t = tr A = tr B:   sum |<M, W>|^2 ~= tr(W^H A W B) / t

    which is exact where the block's G is a Kronecker product, and always has its trace. Eigenvectors of A and B make U;
    its coordinates are U_A^H M U_B and their eigenvalues a_i b_j / t. A real row and a complex matrix W = X + iY of parameters
    have <g, (X, Y)> = Re <M, W> with M = dg/dX + i dg/dY, and where M has no preferred phase, sum M_ij M_kl = 0, G weighs
    the real and the imaginary part of each coordinate by a_i b_j / 2t. Blocks whose rows are all real, or all imaginary, have
    real bases and the eigenvalues a_i b_j / t and 0: the mean of a real field, or modes with a symmetric prior. Blocks with
    M_l = r conj(M_k) in all rows are rotated into one that carries everything and one that carries nothing.

    Both are recognised in the numbers, up to rounding, whatever the order of modes. What couples different blocks otherwise
    is lost, as is a phase that M prefers for another reason. Where prior_std breaks M_l = r conj(M_k), that is where the prior
    differs between k and -k other than by one factor, the two modes count as independent.

    Args:
        layout: The parameters.
        module: Their module, which defines the meaning of tensor axes.
        rows: Called once; yields rows in any portions.
        prior_std: The factor on each parameter that the rows hold, `(P,)`; ones by default.
        summed: Adds up tensors of several processes, in place, each of which has other rows; nothing is added by default.

    Returns:
        The factors, in float64 on the rows' device.

    Raises:
        ArgumentError: If module and layout do not fit, or a declaration of axes does not fit its tensor.
        ShapeError: If a row does not have one entry per parameter.
        UnsupportedError: If prior_std differs between real and imaginary parts of a complex matrix, and fixes neither.
        DataError: If there are no rows, or if one is not finite.

    Reference:
        Martens and Grosse (2015), Optimizing neural networks with Kronecker-factored approximate curvature, section 3;
        Van Loan and Pitsianis (1993), Approximation with Kronecker products. Deviations: factors are partial traces of the
        gradients' second moment, not products of activations and back-propagated signals, so no layer needs a rule of its own;
        complex and coupled blocks.
    """
    blocks_of_shapes = matrix_blocks(layout, module)
    if prior_std is not None:
        _check_prior(prior_std.to("cpu", torch.float64), blocks_of_shapes, layout.names)
    moments = [_Moments(blocks) for blocks in blocks_of_shapes]
    generator = stream(0, "kronecker signs")
    count, tolerance = 0, 0.0
    for piece in _checked(rows, layout.size):
        count += len(piece)
        tolerance = _ROUNDING * torch.finfo(piece.dtype).eps
        signs = torch.randn(_SKETCHES, len(piece), generator=generator, dtype=torch.float64, device="cpu").to(piece.device)
        for moment in moments:
            moment.add(piece, signs)
    if summed is not None:
        for moment in moments:
            moment.merge(summed)
    check_least(count, 1, "rows", remedy="pass a function that starts a new iteration")
    mixings = [moment.couple(tolerance) for moment in moments]
    mixing = PairMixing(*(torch.cat(parts) for parts in zip(*(vars(part).values() for part in mixings), strict=True)))
    eigenvalues = moments[0].squares.new_zeros(layout.size)
    layers = torch.zeros(layout.size, dtype=torch.int64, device=eigenvalues.device)
    bases = tuple(moment.diagonalise(tolerance, eigenvalues) for moment in moments)
    for moment in moments:
        places = moment.blocks.positions
        layers[places.flatten()] = moment.blocks.layers[:, None].expand(-1, places[0].numel()).flatten()
    return KroneckerFactors(bases=bases, mixing=mixing, eigenvalues=eigenvalues, layers=layers)


def _check_prior(prior_std: Tensor, blocks_of_shapes: Sequence[MatrixBlocks], names: Sequence[str]) -> None:
    """Raise an UnsupportedError if real and imaginary parts of a matrix have different priors, and neither is fixed."""
    for blocks in blocks_of_shapes:
        if blocks.is_complex:
            std = prior_std[blocks.positions].flatten(1, 2)  # (b, m n, 2)
            is_equal = ((std[..., 0] - std[..., 1]).abs() <= _EQUAL * std.amax(-1)).all(1)
            is_unsupported = ~is_equal & (std > 0).any(1).all(1)
            if bool(is_unsupported.any()):
                raise UnsupportedError(
                    expected="one prior precision for the real and the imaginary part of each number in a complex matrix",
                    got=f"different ones in {names[int(blocks.layers[is_unsupported][0])]}",
                    remedy="make them equal, fix one part by infinity, or use the structure 'full' or 'low_rank'",
                )


def _checked(rows: Callable[[], Iterable[Tensor]], size: int) -> Iterator[Tensor]:
    for piece in rows():
        check_shape(piece, "rows", "r", size, remedy="use the layout of the factors")
        check_finite(piece, "gradients", remedy="look for overflow in the operator or its inputs")
        yield from piece.detach().split(max(1, _ENTRIES // size))


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
        layout: The parameters.
        module: Their module.

    Raises:
        ArgumentError: If the module lacks one of the parameters, or a declaration does not fit its tensor.
    """
    layout.check(module)
    shapes = dict(zip(layout.names, layout.shapes, strict=True))
    ends = torch.tensor([math.prod(shape) for shape in layout.shapes]).cumsum(0).tolist()
    entries = {
        name: torch.arange(end - math.prod(shape), end).reshape(shape)
        for (name, shape), end in zip(shapes.items(), ends, strict=True)
    }
    complex_names = {name for name, flag in zip(layout.names, layout.is_complex, strict=True) if flag}
    declared: dict[str, str | None] = {}
    for name in layout.names:
        owner, _, parameter = name.rpartition(".")
        declared[name] = getattr(module.get_submodule(owner), "kronecker_axes", {}).get(parameter)
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


class _Moments:
    """Second moments of the matrices of one batch of blocks, accumulated in float64."""

    def __init__(self, blocks: MatrixBlocks) -> None:
        self.blocks = blocks
        count, rows, columns = blocks.shape
        dtype = torch.complex128 if blocks.is_complex else torch.float64
        self.rows = torch.zeros(count, rows, rows, dtype=dtype)
        self.columns = torch.zeros(count, columns, columns, dtype=dtype)
        self.squares = torch.zeros(count, 2, dtype=torch.float64)  # sums of squares of real and imaginary parts
        self.sketch = torch.zeros(count, _SKETCHES, dtype=dtype)
        generator = stream(0, "kronecker weights")
        self.weights = torch.randn(_SKETCHES, rows, columns, generator=generator, dtype=torch.float64, device="cpu").to(dtype)

    def add(self, piece: Tensor, signs: Tensor) -> None:
        """Add the rows `(r, P)`, and their sums with `signs` `(q, r)` to the sketch."""
        if self.rows.device != piece.device:
            self.blocks = self.blocks.to(piece.device)
            for name in ("rows", "columns", "squares", "sketch", "weights"):
                setattr(self, name, getattr(self, name).to(piece.device))
        matrices = self.blocks.gather(piece).to(self.rows.dtype)
        if self.blocks.is_complex:
            self.squares += torch.view_as_real(matrices).square().sum((0, 2, 3))
            sums = torch.einsum("qr,rbij->qbij", signs.to(matrices), matrices)
            self.sketch += torch.einsum("qbij,qij->bq", sums, self.weights)
        self.rows += torch.einsum("rbik,rbjk->bij", matrices, matrices.conj())
        self.columns += torch.einsum("rbki,rbkj->bij", matrices.conj(), matrices)

    def merge(self, summed: Callable[[Tensor], Tensor]) -> None:
        """Add up the moments of several processes; each has other rows."""
        for name in ("rows", "columns", "squares", "sketch"):
            local = getattr(self, name)
            summed(torch.view_as_real(local) if local.is_complex() else local)

    def diagonalise(self, tolerance: float, eigenvalues: Tensor) -> BlockBases:
        """Bases of all blocks; their eigenvalues go into `eigenvalues` `(P,)`."""
        trace = self.rows.diagonal(dim1=1, dim2=2).real.sum(1)
        along, rows = canonical(*torch.linalg.eigh(self.rows))
        across, columns = canonical(*torch.linalg.eigh(self.columns))
        fraction = torch.ones_like(trace)[:, None]
        if self.blocks.is_complex:
            fraction = self.squares / self.squares.sum(1, keepdim=True).clamp_min(torch.finfo(trace.dtype).tiny)
            is_real = fraction.amin(1) <= tolerance**2  # or imaginary
            along[is_real], vectors = canonical(*torch.linalg.eigh(self.rows[is_real].real))
            rows[is_real] = vectors.to(rows)
            across[is_real], vectors = canonical(*torch.linalg.eigh(self.columns[is_real].real))
            columns[is_real] = vectors.to(columns)
            fraction = torch.where(is_real[:, None], (fraction > 0.5).to(fraction), 0.5)
        scale = torch.where(trace > 0, 1.0 / trace, 0.0)
        grid = along[:, :, None] * across[:, None, :] * scale[:, None, None]
        values = grid[..., None] * fraction[:, None, None, :]
        eigenvalues[self.blocks.positions.flatten()] = values.flatten()
        if self.blocks.is_complex:
            rows, columns = (torch.view_as_real(basis.resolve_conj().contiguous()) for basis in (rows, columns))
        return BlockBases(self.blocks, rows.contiguous(), columns.contiguous())

    def couple(self, tolerance: float) -> PairMixing:
        """Find blocks with M_l = r conj(M_k), and give the moments of l to k; see `PairMixing`."""
        first, second = _conjugates(self.sketch, tolerance) if self.blocks.is_complex else 2 * [self.blocks.layers[:0]]
        first_squares, second_squares = self.squares[first].sum(1), self.squares[second].sum(1)
        self.rows[first] += self.rows[second].conj()
        self.columns[first] += self.columns[second].conj()
        self.squares[first] += self.squares[second]
        for moment in (self.rows, self.columns, self.squares):
            moment[second] = 0.0
        self.blocks = replace(self.blocks, layers=_merged(self.blocks.layers, first, second))
        entries = self.blocks.positions[0].numel()
        sign = torch.ones(entries, dtype=first_squares.dtype, device=first_squares.device)
        sign[1::2] = -1.0
        return PairMixing(
            first=self.blocks.positions[first].flatten(),
            second=self.blocks.positions[second].flatten(),
            cosine=(first_squares / (first_squares + second_squares)).sqrt().repeat_interleave(entries),
            sine=(second_squares / (first_squares + second_squares)).sqrt().repeat_interleave(entries),
            sign=sign.repeat(len(first)),
        )


def _merged(layers: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Layers of blocks `(b,)` where the pairs `(first, second)` share one."""
    while True:
        lower, upper = torch.minimum(layers[first], layers[second]), torch.maximum(layers[first], layers[second])
        unequal = (lower < upper).nonzero()
        if not len(unequal):
            return layers
        layers = torch.where(layers == upper[unequal[0]], lower[unequal[0]], layers)


def _conjugates(sketch: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Pairs k < l of rows `(K, q)` of which one is a positive multiple of the other's conjugate."""
    sizes = torch.linalg.vector_norm(sketch, dim=1, keepdim=True)
    unit = sketch / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)
    places = torch.arange(len(unit), device=unit.device)
    best = torch.empty_like(places)
    for piece in places.split(_COMPARED):
        likeness = (unit[piece] @ unit.mT).real
        likeness[places[: len(piece)], piece] = -2.0  # not itself: a real one is its own conjugate
        best[piece] = likeness.argmax(1)
    equal = (torch.linalg.vector_norm(unit[best] - unit.conj(), dim=1) <= tolerance) & (sizes[:, 0] > 0)
    chosen = places[equal & (best[best] == places) & (places < best)]
    return chosen, best[chosen]
