"""Kronecker factors against dense Gauss-Newton matrices: exact where the matrix is a Kronecker product, bounds elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from probneural.curvature import ParameterVector, jacobian
from probneural.curvature.kronecker_factorisation import kronecker, matrix_blocks
from probneural.curvature.kronecker_factors import KroneckerFactors, KroneckerWeights
from probneural.errors import ArgumentError, DataError, ShapeError, UnsupportedError
from probneural.fields import Field
from probneural.grids import Grid
from probneural.operators.layers import PointwiseLinear, SpectralConv
from tests.heads.cases import ComplexSpectral, operator_case, small_fno, to_dtype
from tests.helpers import generator

F64 = torch.float64
LINE, PLANE, SPACE = Grid.uniform(12), Grid.uniform((8, 7), lengths=(1.0, 2.0)), Grid.uniform((5, 4, 5))


def noise(grid: Grid, channels: int, *, count: int = 5) -> Field:
    """White noise, which excites every mode."""
    return Field(torch.randn(count, channels, *grid.shape, generator=generator(5), dtype=F64), grid)


def rows_of(operator: nn.Module, inputs: Field, *, names: list[str] | None = None) -> tuple[ParameterVector, Tensor]:
    """Rows with another precision in every output channel, `(r, P)`."""
    layout = ParameterVector.of(operator.eval(), names)
    derivative = jacobian(operator, layout, inputs=inputs).detach()
    precision = 1.0 + torch.arange(derivative.shape[1])
    weights = precision[:, None] * inputs.grid.weights / inputs.grid.volume
    return layout, (derivative * weights.sqrt()[:, :, None].to(derivative)).flatten(0, 2)


def stream(rows: Tensor, chunk: int = 17) -> Callable[[], Iterator[Tensor]]:
    return lambda: iter(rows.split(chunk))


def basis(factors: KroneckerFactors) -> Tensor:
    """U, formed."""
    return factors.rotate_back(torch.eye(factors.size, dtype=F64)).mT


def dense(factors: KroneckerFactors) -> Tensor:
    return basis(factors) * factors.eigenvalues @ basis(factors).mT


def relative(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


class Complex(nn.Module):
    """A linear spectral layer of complex weights `(in, out, modes)` in one dimension."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs, 4, dtype=torch.complex128))

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(values)[..., :4]
        return torch.fft.irfft(torch.einsum("nik,iok->nok", spectrum, self.weight), n=values.shape[-1])


class TwoCorners(nn.Module):
    """The original two-dimensional layer: one weight for frequencies 0 ... m - 1 of the first axis, one for -m ... -1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weights1 = nn.Parameter(torch.randn(inputs, outputs, 3, 2, dtype=torch.complex128))
        self.weights2 = nn.Parameter(torch.randn(inputs, outputs, 3, 2, dtype=torch.complex128))

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(values)
        mixed = torch.zeros(len(values), self.weights1.shape[1], *spectrum.shape[2:], dtype=spectrum.dtype)
        mixed[:, :, :3, :2] = torch.einsum("nixy,ioxy->noxy", spectrum[:, :, :3, :2], self.weights1)
        mixed[:, :, -3:, :2] = torch.einsum("nixy,ioxy->noxy", spectrum[:, :, -3:, :2], self.weights2)
        return torch.fft.irfft2(mixed, s=values.shape[-2:])


class Shifted(nn.Module):
    """One weight for frequencies -m ... m of the first axis, in that order."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs, 5, 2, dtype=torch.complex128))

    def forward(self, values: Tensor) -> Tensor:
        spectrum = torch.fft.fftshift(torch.fft.rfft2(values), dim=-2)
        start = values.shape[-2] // 2 - 2
        mixed = torch.zeros(len(values), self.weight.shape[1], *spectrum.shape[2:], dtype=spectrum.dtype)
        kept = spectrum[:, :, start : start + 5, :2]
        mixed[:, :, start : start + 5, :2] = torch.einsum("nixy,ioxy->noxy", kept, self.weight)
        return torch.fft.irfft2(torch.fft.ifftshift(mixed, dim=-2), s=values.shape[-2:])


class Cubic(nn.Module):
    """Features without parameters under a linear head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, values: Tensor) -> Tensor:
        return self.head(values**3 - values)


class Odd(nn.Module):
    """Parameters of unusual shapes: long and short vectors, a scalar, an empty tensor, complex numbers, a lone bias."""

    def __init__(self) -> None:
        super().__init__()
        self.long = nn.Parameter(torch.randn(600, dtype=F64))
        self.short = nn.Parameter(torch.randn(12, dtype=F64))
        self.scalar = nn.Parameter(torch.randn((), dtype=F64))
        self.empty = nn.Parameter(torch.zeros(0, 3, dtype=F64))
        self.turns = nn.Parameter(torch.randn(3, dtype=torch.complex128))
        self.layer = nn.Linear(12, 12, dtype=F64)
        self.bias = nn.Parameter(torch.randn(12, dtype=F64))

    def forward(self, values: Tensor) -> Tensor:
        waves = torch.fft.irfft(self.turns, n=12)
        mixed = self.layer(values) * self.short + self.long.reshape(50, 12).mean(0).sin() * waves
        return torch.tanh(mixed * self.scalar + self.bias)


# how many directions of a linear layer are null: (modes of a real mean, pairs) times the matrix's size
LINEAR = [
    *[(f"1d-{i}-{o}", lambda i=i, o=o: SpectralConv(i, o, modes=(4,)), LINE, i, i * o) for i, o in ((1, 1), (2, 3), (3, 2))],
    ("2d", lambda: SpectralConv(2, 3, modes=(3, 2)), PLANE, 2, 6 + 2 * 2 * 6),
    ("2d-brief", lambda: SpectralConv(2, 2, modes=(3, 3)), PLANE, 2, 20),
    ("2d-one-channel", lambda: SpectralConv(1, 1, modes=(3, 3)), PLANE, 1, 5),
    ("2d-mean", lambda: SpectralConv(2, 2, modes=(1, 1)), PLANE, 2, 4),
    ("3d", lambda: SpectralConv(1, 2, modes=(3, 2, 2)), SPACE, 1, 2 + 2 * 2 * 7),
    ("foreign-1d", lambda: Complex(2, 3), LINE, 2, 6),
    ("foreign-corners", lambda: TwoCorners(2, 3), PLANE, 2, 6 + 2 * 2 * 6),
    ("foreign-shifted", lambda: Shifted(2, 2), PLANE, 2, 4 + 2 * 2 * 4),
    ("pointwise", lambda: Cubic(PointwiseLinear(2, 3)), PLANE, 2, 0),
    ("1x1", lambda: Cubic(nn.Conv2d(2, 3, 1)), PLANE, 2, 0),
    ("no-bias", lambda: Cubic(nn.Conv2d(2, 3, 1, bias=False)), PLANE, 2, 0),
    ("kernel", lambda: Cubic(nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")), PLANE, 2, 0),
]


@pytest.mark.parametrize(("make", "grid", "channels", "null"), [case[1:] for case in LINEAR], ids=[case[0] for case in LINEAR])
def test_linear_layers_are_kronecker_products(make: Callable[[], nn.Module], grid: Grid, channels: int, null: int) -> None:
    layer = to_dtype(make(), F64)
    layout, rows = rows_of(layer, noise(grid, channels))
    exact = rows.mT @ rows
    factors = kronecker(layout, layer, rows=stream(rows))
    assert relative(dense(factors), exact) <= 1e-12
    eigenvalues = torch.linalg.eigvalsh(exact)
    assert int((factors.eigenvalues == 0).sum()) == null == int((eigenvalues <= 1e-12 * eigenvalues[-1]).sum())
    torch.testing.assert_close(factors.eigenvalues.sort().values, eigenvalues, rtol=0, atol=1e-12 * float(eigenvalues[-1]))


def test_prior_without_imaginary_parts_makes_real_blocks() -> None:
    layer = SpectralConv(1, 1, modes=(5,)).to(F64)
    layout, rows = rows_of(layer, noise(LINE, 1))
    prior_std = torch.stack([2.0 / torch.arange(1, 6, dtype=F64), torch.zeros(5, dtype=F64)], dim=1).flatten()
    factors = kronecker(layout, layer, rows=stream(rows * prior_std))
    assert relative(dense(factors), (rows * prior_std).mT @ (rows * prior_std)) <= 1e-12
    assert torch.equal(factors.eigenvalues > 0, prior_std > 0)


def test_prior_that_differs_between_k_and_minus_k_by_a_factor() -> None:
    layer = SpectralConv(2, 3, modes=(3, 2)).to(F64)
    layout, rows = rows_of(layer, noise(PLANE, 2))
    prior_std = (0.2 + torch.rand(5, 2, 1, 1, 1, generator=generator(3), dtype=F64)).expand(5, 2, 2, 3, 2).flatten()
    exact = (rows * prior_std).mT @ (rows * prior_std)
    factors = kronecker(layout, layer, rows=stream(rows * prior_std), prior_std=prior_std)
    assert int((factors.eigenvalues == 0).sum()) == 30
    assert relative(dense(factors), exact) <= 1e-12


def test_prior_that_breaks_the_coupling_leaves_the_modes_independent() -> None:
    layer = SpectralConv(2, 3, modes=(3, 2)).to(F64)
    layout, rows = rows_of(layer, noise(PLANE, 2))
    whitened = rows * (0.2 + torch.rand(layout.size, generator=generator(3), dtype=F64))
    factors = kronecker(layout, layer, rows=stream(whitened))
    assert factors.mixing.first.numel() == 0
    assert float(factors.eigenvalues.sum()) == pytest.approx(float(whitened.square().sum()), rel=1e-12)


@pytest.mark.bad_input
@pytest.mark.parametrize("channels", [1, 2])
def test_different_priors_of_real_and_imaginary_parts_are_refused(channels: int) -> None:
    layer = SpectralConv(channels, channels, modes=(3, 3)).to(F64)
    layout, rows = rows_of(layer, noise(PLANE, channels))
    prior_std = torch.ones(5, 3, channels, channels, 2, dtype=F64)
    prior_std[1, 1, 0, 0, 1] = 0.7
    with pytest.raises(UnsupportedError, match="different ones in weight; make them equal"):
        kronecker(layout, layer, rows=stream(rows * prior_std.flatten()), prior_std=prior_std.flatten())


def test_coupled_tensors_are_one_layer() -> None:
    layer = TwoCorners(2, 3)
    layout, rows = rows_of(layer, noise(PLANE, 2))
    assert kronecker(layout, layer, rows=stream(rows)).layers.unique().tolist() == [0]
    unpaired = rows.reshape(len(rows), 2, 2, 3, 3, 2, 2).clone()
    unpaired[..., 0, :] = 0.0  # without the zero plane nothing couples them
    assert kronecker(layout, layer, rows=stream(unpaired.flatten(1))).layers.unique().tolist() == [0, 1]


def test_layers_hold_for_parameters_and_coordinates() -> None:
    """U mixes no layers, and a bias goes with its weight."""
    operator = operator_case("fno-2d").operator
    layout, rows = rows_of(operator, operator_case("fno-2d").inputs)
    factors = kronecker(layout, operator, rows=stream(rows))
    owner = torch.tensor([layout.names.index(name.replace("bias", "weight")) for name in layout.names])
    sizes = torch.tensor([shape.numel() for shape in layout.shapes])
    assert torch.equal(factors.layers, owner.repeat_interleave(sizes))
    apart = factors.layers[:, None] != factors.layers
    assert float(basis(factors)[apart].abs().max()) == 0.0


class Modes(nn.Module):
    """Complex matrices `(3, 2)`, as many as one likes, of which only the shape matters."""

    def __init__(self, modes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, 2, modes, dtype=torch.complex128))


def rows_from(matrices: Tensor) -> Tensor:
    """Rows `(r, P)` for `Modes` from gradients `(r, modes, 3, 2)`."""
    return torch.view_as_real(matrices.movedim(1, -1).contiguous()).flatten(1)


def circular(seed: int) -> Tensor:
    """Gradients `(12, 3, 2)` without a preferred phase whose second moment is a product of two complex factors."""
    left = torch.randn(3, 3, dtype=torch.complex128, generator=generator(seed))
    right = torch.randn(2, 2, dtype=torch.complex128, generator=generator(seed + 1))
    products = torch.einsum("ia,jb->abij", left, right).flatten(0, 1)
    return torch.cat([products, 1j * products])


def test_complex_factors_on_both_sides() -> None:
    """Both factors Hermitian with complex entries; the third mode is a multiple of the first one's conjugate."""
    gradients = torch.zeros(24, 3, 3, 2, dtype=torch.complex128)
    gradients[:12, 0], gradients[12:, 1], gradients[:12, 2] = circular(1), circular(3), 0.3 * circular(1).conj()
    rows = rows_from(gradients)
    factors = kronecker(ParameterVector.of(Modes(3)), Modes(3), rows=stream(rows))
    assert relative(dense(factors), rows.mT @ rows) <= 1e-12
    assert int((factors.eigenvalues == 0).sum()) == 12


def test_gradients_that_are_nearly_real_have_no_null_direction() -> None:
    gradients = torch.randn(50, 2, 3, 2, dtype=torch.complex128, generator=generator(1))
    rows = rows_from(torch.complex(gradients.real, 0.3 * gradients.imag))
    factors = kronecker(ParameterVector.of(Modes(2)), Modes(2), rows=stream(rows))
    assert bool((factors.eigenvalues > 0).all())
    assert float(factors.eigenvalues.sum()) == pytest.approx(float(rows.square().sum()), rel=1e-12)


NONLINEAR = ["fno-1d", "fno-outputs", "fno-ends", "fno-2d", "conv", "channels-last", "complex", "odd"]


@cache
def nonlinear(name: str) -> tuple[nn.Module, ParameterVector, Tensor]:
    if name == "odd":
        operator, inputs = Odd(), noise(LINE, 1, count=30)
    else:
        operator, inputs = operator_case(name).operator, operator_case(name).inputs
    layout, rows = rows_of(operator, inputs)
    return operator, layout, rows


@pytest.mark.parametrize("name", NONLINEAR)
def test_nonlinear_operators(name: str) -> None:
    operator, layout, rows = nonlinear(name)
    exact = rows.mT @ rows
    factors = kronecker(layout, operator, rows=stream(rows))
    U = basis(factors)
    torch.testing.assert_close(U.mT @ U, torch.eye(layout.size, dtype=F64), rtol=0, atol=1e-12)
    assert float(factors.eigenvalues.min()) >= 0.0
    for number in factors.layers.unique():  # traces, layer by layer
        in_layer = factors.layers == number
        expected = float(exact.diagonal()[in_layer].sum())
        assert float(factors.eigenvalues[in_layer].sum()) == pytest.approx(expected, rel=1e-10)
    within_layers = exact * (factors.layers[:, None] == factors.layers)
    assert relative(dense(factors), within_layers) <= (0.2 if name != "odd" else 1.0)  # a vector of 600 is diagonal there


def test_a_linear_head_is_exact_within_a_nonlinear_operator() -> None:
    for name, head in (("fno-outputs", "readout"), ("complex", "head")):
        operator = operator_case(name).operator
        layout, rows = rows_of(operator, operator_case(name).inputs, names=[head])
        assert relative(dense(kronecker(layout, operator, rows=stream(rows))), rows.mT @ rows) <= 1e-12


def test_every_coordinate_is_in_one_block() -> None:
    layout = ParameterVector.of(Odd())
    blocks = matrix_blocks(layout, Odd())
    assert [tuple(block.positions.shape) for block in blocks] == [
        (600, 1, 1),
        (1, 1, 12),
        (1, 1, 1),
        (3, 1, 1, 2),
        (1, 1, 12),  # a bias of the module itself, which has no weight
        (1, 12, 13),
    ]
    assert torch.equal(torch.cat([block.positions.flatten() for block in blocks]).sort().values, torch.arange(layout.size))


def test_what_a_factor_would_be_too_large_for_is_a_diagonal() -> None:
    layer = nn.Linear(5000, 2)
    blocks = matrix_blocks(ParameterVector.of(layer), layer)
    assert [block.shape for block in blocks] == [(10002, 1, 1)]


def test_a_bias_without_its_weight_is_dense() -> None:
    layer = nn.Linear(3, 4, dtype=F64)
    layout = ParameterVector.of(layer, ["bias"])
    rows = torch.randn(9, 4, generator=generator(0), dtype=F64)
    assert relative(dense(kronecker(layout, layer, rows=stream(rows))), rows.mT @ rows) <= 1e-12


def test_random_projections_converge() -> None:
    """One projection per function at a time: relative errors fall like the root of their number."""
    operator, layout, rows = nonlinear("fno-2d")
    exact = dense(kronecker(layout, operator, rows=stream(rows)))
    errors = []
    for count in (100, 1600, 25600):
        draws = torch.randn(count, len(rows), generator=generator(1), dtype=F64) @ rows / count**0.5
        factors = kronecker(layout, operator, rows=stream(draws, 800))
        assert torch.equal(factors.mixing.second, kronecker(layout, operator, rows=stream(rows)).mixing.second)
        errors.append(relative(dense(factors), exact))
    assert errors[2] <= 0.02
    assert errors[0] / errors[2] >= 6.0


def test_single_precision_rows_find_the_same_pairs() -> None:
    operator, layout, rows = nonlinear("fno-2d")
    exact = kronecker(layout, operator, rows=stream(rows))
    single = to_dtype(small_fno(modes=(2, 2), depth=1)(), torch.float32)
    single.load_state_dict(operator.state_dict())
    inputs = operator_case("fno-2d").inputs
    own, single_rows = rows_of(single, Field(inputs.values.float(), inputs.grid))
    assert single_rows.dtype == torch.float32
    factors = kronecker(own, single, rows=stream(single_rows))
    assert factors.eigenvalues.dtype == F64
    assert torch.equal(factors.mixing.first, exact.mixing.first)
    assert torch.equal(factors.mixing.second, exact.mixing.second)
    assert relative(dense(factors), dense(exact)) <= 1e-5


@cache
def root(name: str = "fno-2d") -> KroneckerWeights:
    operator, layout, rows = nonlinear(name)
    prior_std = torch.full((layout.size,), 0.7, dtype=F64)
    prior_std[5:9] = 0.0
    factors = kronecker(layout, operator, rows=stream(rows * prior_std))
    scale = 0.5 + torch.rand(len(layout.names), generator=generator(2), dtype=F64)
    return KroneckerWeights(factors, prior_std=prior_std, noise_scale=0.3, scale=scale[factors.layers])


def test_root_of_the_posterior_covariance() -> None:
    weights = root()
    curvature = dense(weights.factors) / 0.3 + torch.diag(weights.scale)  # U mixes no layers, so scales commute with it
    expected = torch.linalg.inv(curvature) * weights.prior_std * weights.prior_std[:, None]
    assert relative(weights.covariance(), expected) <= 1e-12
    assert weights.rank == weights.size == len(expected)
    assert float(weights.covariance()[5:9].abs().max()) == 0.0


def test_the_exact_posterior_of_a_linear_layer() -> None:
    layer = SpectralConv(2, 3, modes=(3, 2)).to(F64)
    layout, rows = rows_of(layer, noise(PLANE, 2))
    prior_std = torch.full((layout.size,), 0.1, dtype=F64)
    factors = kronecker(layout, layer, rows=stream(rows * prior_std))
    weights = KroneckerWeights(factors, prior_std=prior_std, noise_scale=0.2, scale=torch.ones(layout.size, dtype=F64))
    expected = torch.linalg.inv(rows.mT @ rows / 0.2 + torch.diag(prior_std**-2))
    assert relative(weights.covariance(), expected) <= 1e-12
    draws = weights.product(torch.randn(40000, weights.rank, generator=generator(8), dtype=F64))
    assert relative(draws.mT @ draws / len(draws), expected) <= 0.1  # sqrt(P / draws) = 0.055


@given(seed=st.integers(0, 1000), name=st.sampled_from(NONLINEAR))
def test_rotations_are_orthogonal(seed: int, name: str) -> None:
    weights = root(name)
    one, other = torch.randn(2, 3, weights.size, generator=generator(seed), dtype=F64)
    rotated = weights.factors.rotate(one)
    torch.testing.assert_close(weights.factors.rotate_back(rotated), one, rtol=0, atol=1e-12)
    torch.testing.assert_close(rotated.norm(dim=1), one.norm(dim=1), rtol=1e-12, atol=0)
    torch.testing.assert_close((rotated * other).sum(), (one * weights.factors.rotate_back(other)).sum(), rtol=1e-9, atol=1e-9)
    adjoint = (weights.transposed_product(other) * one).sum()
    torch.testing.assert_close((weights.product(one) * other).sum(), adjoint, rtol=1e-9, atol=1e-9)


@pytest.mark.bad_input
def test_bad_rows() -> None:
    layer = nn.Linear(2, 3, dtype=F64)
    layout = ParameterVector.of(layer)
    good = torch.ones(4, 9, dtype=F64)
    with pytest.raises(ShapeError, match=r"rows of shape \(r, 9\); got \(4, 8\)"):
        kronecker(layout, layer, rows=lambda: [good[:, :8]])
    with pytest.raises(ShapeError, match=r"rows of shape \(r, 9\); got \(9,\)"):
        kronecker(layout, layer, rows=lambda: good)
    with pytest.raises(DataError, match="finite gradients"):
        kronecker(layout, layer, rows=lambda: [good, good * torch.nan])
    with pytest.raises(DataError, match="1 or more rows"):
        kronecker(layout, layer, rows=list)


@pytest.mark.bad_input
def test_modules_that_do_not_fit() -> None:
    layout = ParameterVector.of(nn.Linear(2, 3))
    for module, message in ((nn.Linear(3, 3), r"of shapes .*3, 2"), (nn.Sequential(nn.Linear(2, 3)), "among 0.weight")):
        with pytest.raises(ArgumentError, match=message):
            matrix_blocks(layout, module)
    for words in ("row", "row column column", "row pair column", "rows columns", "row ... column ...", "... row column pair"):
        layer = nn.Linear(2, 3)
        layer.kronecker_axes = {"weight": words}
        with pytest.raises(ArgumentError, match="kronecker_axes of weight"):
            matrix_blocks(layout, layer)
    layer.kronecker_axes = {"weight": "row pair"}
    with pytest.raises(ArgumentError, match=r"each of its axes \(2, 3\)"):
        matrix_blocks(ParameterVector.of(nn.Linear(3, 2)), _with(nn.Linear(3, 2), "row pair"))


def _with(module: nn.Module, words: str) -> nn.Module:
    module.kronecker_axes = {"weight": words}
    return module


def test_declared_axes() -> None:
    layout = ParameterVector.of(nn.Linear(2, 3))
    shapes = {
        "row column": [(1, 3, 2), (1, 1, 3)],  # a declared weight keeps its bias apart
        "column row": [(1, 2, 3), (1, 1, 3)],
        "block column": [(3, 1, 2), (1, 1, 3)],
        "...": [(6, 1, 1), (1, 1, 3)],
        "row pair": [(1, 3, 1), (1, 1, 3)],
        "row ... column": [(1, 3, 2), (1, 1, 3)],
    }
    for words, expected in shapes.items():
        assert [block.shape for block in matrix_blocks(layout, _with(nn.Linear(2, 3), words))] == expected
    other = nn.ConvTranspose1d(2, 3, 4)  # (in, out, kernel): its bias belongs to no row
    assert [block.shape for block in matrix_blocks(ParameterVector.of(other), other)] == [(1, 2, 12), (1, 1, 3)]
    foreign = ComplexSpectral()
    assert [block.shape for block in matrix_blocks(ParameterVector.of(foreign), foreign)] == [(3, 1, 4), (1, 1, 5)]


@pytest.mark.bad_input
def test_bad_roots() -> None:
    weights = root()
    size = weights.size
    factors = weights.factors
    with pytest.raises(ShapeError, match="cover each"):
        replace(factors, eigenvalues=factors.eigenvalues[1:])
    with pytest.raises(ShapeError, match="one dtype"):
        replace(factors, mixing=replace(factors.mixing, sine=factors.mixing.sine.float()))
    with pytest.raises(ShapeError, match="cover each"):
        replace(factors, mixing=replace(factors.mixing, first=factors.mixing.first + size))
