"""Interpolation matrices against the functions they must reproduce, and their measured order elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from probneural.grids import axes
from probneural.grids.axes import Axis, read_line, transfer
from probneural.linear_algebra.interpolation import POLYNOMIAL_DEGREE, polynomial_matrix, trigonometric_matrix

LENGTH, ORIGIN = 2.5, -0.75
SIZES = [1, 2, 3, 4, 5, 8, 9, 16, 17]


def periodic_nodes(size: int) -> Tensor:
    return ORIGIN + LENGTH * torch.arange(size, dtype=torch.float64) / size


def somewhere(count: int, *, start: float = ORIGIN, length: float = LENGTH) -> Tensor:
    return start + length * torch.rand(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def wave(points: Tensor, frequency: float, phase: float, order: int = 0) -> Tensor:
    """Derivative of cos(2 pi k (x - origin) / L + phase)."""
    rate = 2 * math.pi * frequency / LENGTH
    return rate**order * torch.cos(rate * (points - ORIGIN) + phase + order * math.pi / 2)


class TestTrigonometric:
    @pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
    @pytest.mark.parametrize("size", SIZES)
    def test_is_exact_for_every_resolved_frequency(self, size: int, order: int) -> None:
        points = somewhere(7)
        matrix = trigonometric_matrix(size, points, length=LENGTH, origin=ORIGIN, order=order)
        scale = max(1.0, (math.pi * size / LENGTH) ** order)  # rounding excites the highest frequency too
        for frequency in range((size + 1) // 2):  # |k| < size / 2
            for phase in (0.0, 0.4, math.pi / 2):
                error = matrix @ wave(periodic_nodes(size), frequency, phase) - wave(points, frequency, phase, order)
                assert error.abs().max() <= 1e-12 * scale

    @pytest.mark.parametrize("size", [2, 4, 8, 16])
    def test_takes_the_nyquist_term_as_a_cosine(self, size: int) -> None:
        points, nodes = somewhere(7), periodic_nodes(size)
        alternating = wave(nodes, size // 2, 0.0)
        value = trigonometric_matrix(size, points, length=LENGTH, origin=ORIGIN)
        curvature = trigonometric_matrix(size, points, length=LENGTH, origin=ORIGIN, order=2)
        slope = trigonometric_matrix(size, nodes, length=LENGTH, origin=ORIGIN, order=1)
        assert (value @ alternating - wave(points, size // 2, 0.0)).abs().max() <= 1e-12
        assert (curvature @ alternating - wave(points, size // 2, 0.0, 2)).abs().max() <= 1e-12 * size**2 * LENGTH**-2 * 10
        assert (slope @ alternating).abs().max() <= 1e-12 * size

    def test_keeps_its_precision_at_high_frequencies(self) -> None:
        size, frequency = 4096, 2047
        points = somewhere(50, start=0.0, length=1.0)
        values = torch.cos(2 * math.pi * torch.remainder(frequency * torch.arange(size, dtype=torch.float64), size) / size)
        expected = torch.cos(2 * math.pi * torch.remainder(frequency * points, 1.0))
        assert (trigonometric_matrix(size, points, length=1.0) @ values - expected).abs().max() <= 1e-14


def equispaced(size: int) -> Tensor:
    return torch.linspace(0.5, 2.0, size, dtype=torch.float64)


class TestPolynomial:
    @pytest.mark.parametrize("order", [0, 1, 2, 3, 4, 5])
    @pytest.mark.parametrize("degree", [0, 1, 2, 3, 4, 5])
    def test_is_exact_up_to_its_degree(self, degree: int, order: int) -> None:
        nodes, points = equispaced(11), somewhere(9, start=0.5, length=1.5)
        matrix = polynomial_matrix(nodes, points, order=order)
        expected = math.perm(degree, order) * points ** max(degree - order, 0)
        assert (matrix @ nodes**degree - expected).abs().max() <= 1e-11 * 10**order

    @pytest.mark.parametrize(("order", "rate"), [(0, 6), (1, 5), (2, 4)])
    def test_converges_at_its_order(self, order: int, rate: int) -> None:
        errors = []
        for size in (41, 81):
            nodes, points = equispaced(size), somewhere(4000, start=0.5, length=1.5)
            derivative = 4.0**order * torch.sin(4 * points + order * math.pi / 2)
            errors.append((polynomial_matrix(nodes, points, order=order) @ torch.sin(4 * nodes) - derivative).abs().max())
        assert math.log2(errors[0] / errors[1]) == pytest.approx(rate, abs=0.2)

    @pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
    def test_few_nodes_lower_the_degree(self, size: int) -> None:
        nodes, points = equispaced(size), somewhere(5, start=0.5, length=1.5)
        expected = points ** (size - 1)
        assert (polynomial_matrix(nodes, points) @ nodes ** (size - 1) - expected).abs().max() <= 1e-12
        assert not polynomial_matrix(nodes, points, order=size).any()

    def test_is_local_and_centred(self) -> None:
        matrix = polynomial_matrix(equispaced(31), torch.tensor([0.5 + 14.5 * 0.05], dtype=torch.float64))
        used = matrix[0].nonzero().flatten()
        assert used.tolist() == list(range(12, 12 + POLYNOMIAL_DEGREE + 1))
        assert (matrix[0, used] - matrix[0, used].flip(0)).abs().max() <= 1e-12

    def test_extrapolates_beyond_the_last_node(self) -> None:
        points = torch.tensor([0.45, 2.05], dtype=torch.float64)
        assert (polynomial_matrix(equispaced(11), points) @ equispaced(11) ** 5 - points**5).abs().max() <= 1e-11


@pytest.mark.parametrize("mode", [torch.inference_mode, lambda: torch.device("meta")])
def test_matrices_are_float64_on_the_points_device(mode: type[torch.inference_mode]) -> None:
    points, nodes = somewhere(3), equispaced(7)
    with mode():
        matrices = [trigonometric_matrix(4, points, length=1.0), polynomial_matrix(nodes, points)]
    assert [(matrix.dtype, matrix.device) for matrix in matrices] == [(torch.float64, points.device)] * 2


@pytest.mark.parametrize("periodic", [True, False], ids=["periodic", "walls"])
@pytest.mark.parametrize(("size", "count"), [(1, 3), (2, 5), (6, 6), (7, 7), (8, 19), (9, 4), (16, 3)])
def test_fast_maps_between_axes_are_those_of_the_matrices(
    size: int, count: int, periodic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(axes, "_MATRIX_ENTRIES", 0)
    source, target = (Axis(one, LENGTH, periodic=periodic, endpoint=not periodic, origin=ORIGIN) for one in (size, count))
    values = torch.randn(2, size, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = somewhere(11)
    for order in range(4):
        matrix = source.matrix(target.coordinates, order=order)
        scale = matrix.abs().sum(1).amax() + 1.0
        moved = transfer(values, source, target, dim=1, order=order)
        assert (moved - torch.einsum("mk,bkc->bmc", matrix, values)).abs().max() <= 1e-13 * scale
        if size == count:
            back = transfer(values, source, source, dim=-2, order=order, transposed=True)
            assert (back - torch.einsum("km,bkc->bmc", matrix, values)).abs().max() <= 1e-13 * scale
    read = read_line(values.mT, source, points)
    assert (read - values.mT @ source.matrix(points).mT).abs().max() <= 1e-13
    half = transfer(values.bfloat16(), source, target, dim=1)
    assert half.dtype == torch.bfloat16
