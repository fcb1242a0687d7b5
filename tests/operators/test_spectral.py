"""The spectral convolution against a sum over frequencies, one at a time, and what even continuation keeps."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import jvp, vmap

from probneural.contexts import copy_for_call
from probneural.errors import ArgumentError, ResolutionError, ShapeError
from probneural.grids import Grid, resample
from probneural.operators import FNO
from probneural.operators.layers import PointwiseLinear, SpectralConv
from tests.helpers import normal


def layer(*modes: int, channels: tuple[int, int] = (2, 3), periodic: bool | tuple[bool, ...] = True) -> SpectralConv:
    return SpectralConv(*channels, modes=modes, periodic=periodic).double()


def noise(*shape: int) -> Tensor:
    return normal(*shape, seed=f"noise{shape}")


def kernel(conv: SpectralConv, frequency: tuple[int, ...]) -> Tensor:
    """W(k) as `(out, in)`, for any signs: stored where the last frequency is positive, conjugated where it is negative."""
    opposite = tuple(-k for k in frequency)
    if frequency[-1] < 0:
        return kernel(conv, opposite).conj()
    stored = torch.view_as_complex(conv.weight.detach())  # a negative index counts from the end, as frequencies do
    if frequency[-1] > 0:
        return stored[frequency].T
    return (stored[frequency].T + stored[opposite].T.conj()) / 2  # both signs stored: the output's real part


def dense(conv: SpectralConv, values: Tensor) -> Tensor:
    """Sum over |k| < m of W(k) û(k) exp(2πi k·x), by definition."""
    shape = values.shape[2:]
    points = torch.stack(torch.meshgrid(*(torch.arange(n).double() / n for n in shape), indexing="ij"), dim=-1)
    total = torch.zeros(len(values), conv.out_channels, *shape, dtype=torch.complex128)
    for frequency in itertools.product(*(range(1 - mode, mode) for mode in conv.modes)):
        wave = torch.exp(2j * math.pi * (points @ torch.tensor(frequency, dtype=torch.float64)))
        coefficient = (values * wave.conj()).flatten(2).mean(-1)
        total += torch.einsum("oi,ni->no", kernel(conv, frequency), coefficient)[(...,) + (None,) * len(shape)] * wave
    assert float(total.imag.abs().max()) < 1e-13
    return total.real


SHAPES = [
    ((1,), (1,)),
    ((1,), (4,)),
    ((3,), (5,)),
    ((3,), (6,)),
    ((4,), (16,)),
    ((2, 3), (3, 5)),
    ((3, 2), (8, 7)),
    ((1, 3), (4, 6)),
    ((3, 1), (5, 2)),
    ((2, 2, 2), (3, 4, 3)),
    ((1, 2, 3), (2, 5, 6)),
    ((70,), (150,)),  # more frequencies than are computed by matrix products
    ((34, 2), (70, 5)),
    ((2, 70), (4, 140)),
]
shapes = pytest.mark.parametrize(("modes", "shape"), SHAPES, ids=str)


@shapes
def test_is_the_sum_over_frequencies(modes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    conv = layer(*modes)
    values = noise(2, 2, *shape)
    torch.testing.assert_close(conv(values), dense(conv, values), atol=1e-13, rtol=0)


@pytest.mark.parametrize("target", [(12, 14), (18, 21), (7, 11), (5, 7), (64, 7)], ids=str)
def test_resolved_inputs_give_one_function_on_every_grid(target: tuple[int, int]) -> None:
    """Inputs of frequencies |k| < m, at the least resolution that holds them: exact up, down, even and odd."""
    conv = layer(3, 4)
    coarse = Grid.uniform((5, 7))
    values = noise(2, 2, 5, 7)
    there = coarse.resized(target)
    carried = resample(conv(values), coarse, there)
    computed = conv(resample(values, coarse, there))
    assert (carried - computed).abs().max() < 1e-12
    back = resample(computed, there, coarse)
    assert (back - conv(values)).abs().max() < 1e-12


def test_unresolved_frequencies_are_dropped() -> None:
    conv = layer(3)
    x = torch.arange(16, dtype=torch.float64) / 16
    high = torch.cos(2 * math.pi * 3 * x).expand(1, 2, 16)
    assert conv(high).abs().max() < 1e-14


@pytest.mark.parametrize("closed", [True, False], ids=["with end", "without end"])
def test_periodic_continuation_closes_axes_with_ends(closed: bool) -> None:
    conv = SpectralConv(2, 3, modes=(3, 4), periodic=(True, False), continuation="periodic").double()
    values = noise(2, 2, 8, 9)
    torch.testing.assert_close(conv(values, endpoint=(False, closed)), dense(conv, values), atol=1e-13, rtol=0)


@pytest.mark.parametrize("closed", [True, False], ids=["with end", "without end"])
def test_even_continuation_multiplies_cosines(closed: bool) -> None:
    """On cosines about the point of reflection, real weights act mode by mode, with no periodic jump."""
    conv = layer(4, channels=(1, 1), periodic=False)
    with torch.no_grad():
        conv.weight[..., 1] = 0.0
    gains = conv.weight.detach()[:, 0, 0, 0]
    for size in (7, 8, 13):
        number = torch.arange(size, dtype=torch.float64)
        turn = number / (size - 1) if closed else (number + 0.5) / size
        waves = torch.stack([torch.cos(math.pi * k * turn) for k in range(6)])[:, None]
        expected = torch.cat([gains, gains.new_zeros(2)])[:, None, None] * waves
        torch.testing.assert_close(conv(waves, endpoint=(closed,)), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("count", [4, 70], ids=["matrices", "fast transforms"])
@pytest.mark.parametrize("closed", [True, False], ids=["with end", "without end"])
def test_odd_continuation_multiplies_sines(closed: bool, count: int) -> None:
    """On sines about the point of reflection, likewise; a value on that point has no effect."""
    conv = SpectralConv(1, 1, modes=(count,), periodic=False, continuation="odd").double()
    with torch.no_grad():
        conv.weight[..., 1] = 0.0
    gains = conv.weight.detach()[:, 0, 0, 0]
    for size in (count + 3, count + 4, 2 * count + 5):
        number = torch.arange(size, dtype=torch.float64)
        turn = number / (size - 1 if closed else size)
        waves = torch.stack([torch.sin(math.pi * k * turn) for k in range(1, count + 2)])[:, None]
        expected = torch.cat([gains[1:], gains.new_zeros(2)])[:, None, None] * waves
        torch.testing.assert_close(conv(waves, endpoint=(closed,)), expected, atol=1e-12, rtol=0)
        waves[..., [0, -1] if closed else [0]] = 7.0
        torch.testing.assert_close(conv(waves, endpoint=(closed,)), expected, atol=1e-12, rtol=0)


def test_even_continuation_with_complex_weights_is_the_wave_moved() -> None:
    conv = layer(4, channels=(1, 1), periodic=False)
    turn = torch.linspace(0, 1, 9, dtype=torch.float64)
    for k in (1, 2, 3):
        real, imaginary = conv.weight.detach()[k, 0, 0]
        out = conv(torch.cos(math.pi * k * turn).expand(1, 1, 9))
        expected = real * torch.cos(math.pi * k * turn) - imaginary * torch.sin(math.pi * k * turn)
        torch.testing.assert_close(out[0, 0], expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("finer", [17, 25, 14], ids=str)
def test_cosine_series_give_one_function_on_every_closed_grid(finer: int) -> None:
    conv = layer(3, 4, periodic=(True, False))

    def evaluate(size: int, places: Tensor) -> Tensor:
        series = noise(2, 2, 3, 4)
        rows = torch.cos(2 * math.pi * torch.arange(3).double()[:, None] * torch.arange(5) / 5)
        return torch.einsum("ncjk,jx,ky->ncxy", series, rows, torch.cos(math.pi * torch.arange(4).double()[:, None] * places))

    outputs = []
    for size in (9, finer):
        places = torch.linspace(0, 1, size, dtype=torch.float64)
        out = conv(evaluate(size, places))
        # The output is a trigonometric sum of half periods; read its value at both ends, which all grids share.
        outputs.append(out[..., [0, -1]])
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-13, rtol=0)


def test_closed_axis_is_the_periodic_layer_on_the_mirrored_field() -> None:
    values = noise(2, 2, 6)
    walls, ring = layer(3, periodic=False), layer(3)
    ring.load_state_dict(walls.state_dict())
    mirrored = torch.cat([values, values[..., 1:-1].flip(-1)], dim=-1)
    torch.testing.assert_close(walls(values), ring(mirrored)[..., :6], atol=1e-14, rtol=0)
    torch.testing.assert_close(
        walls(values, endpoint=(False,)), ring(torch.cat([values, values.flip(-1)], dim=-1))[..., :6], atol=1e-14, rtol=0
    )


@shapes
def test_is_linear_and_its_adjoint_conjugates_the_weights(modes: tuple[int, ...], shape: tuple[int, ...]) -> None:
    conv = layer(*modes)
    first, second, target = noise(2, 2, *shape), noise(3, 2, *shape)[:2], noise(2, 3, *shape)
    torch.testing.assert_close(conv(first - 2.5 * second), conv(first) - 2.5 * conv(second), atol=1e-13, rtol=0)
    transposed = layer(*modes, channels=(3, 2))
    with torch.no_grad():
        swapped = conv.weight.transpose(-3, -2).clone()
        swapped[..., 1] *= -1.0
        transposed.weight.copy_(swapped)
    values = first.requires_grad_()
    (pulled,) = torch.autograd.grad(conv(values), values, target)
    torch.testing.assert_close(pulled, transposed(target).detach(), atol=1e-13, rtol=0)
    torch.testing.assert_close((target * conv(values)).sum(), (pulled * values).sum(), atol=1e-11, rtol=0)


@pytest.mark.parametrize("periodic", [(True, False), (False, False)], ids=str)
def test_adjoint_identity_with_walls(periodic: tuple[bool, bool]) -> None:
    conv = layer(2, 3, periodic=periodic)
    values, target = noise(2, 2, 6, 7).requires_grad_(), noise(2, 3, 6, 7)
    (pulled,) = torch.autograd.grad(conv(values), values, target)
    other = noise(4, 2, 6, 7)[:2]
    torch.testing.assert_close((target * conv(other)).sum(), (pulled * other).sum(), atol=1e-11, rtol=0)


@pytest.mark.parametrize("modes", [(3,), (2, 3), (70,), (34, 2), (2, 66)], ids=str)
@pytest.mark.parametrize("periodic", [True, False])
def test_a_pointwise_layer_is_added(modes: tuple[int, ...], periodic: bool) -> None:
    """The sum is that of the two layers, and so are its gradients."""
    conv, pointwise = layer(*modes, periodic=periodic), PointwiseLinear(2, 3).double()
    values = noise(2, 2, *(2 * mode + 1 for mode in modes)).requires_grad_()
    leaves = [values, *conv.parameters(), *pointwise.parameters()]
    both, apart = conv(values, pointwise=pointwise), conv(values) + pointwise(values)
    torch.testing.assert_close(both, apart, atol=1e-13, rtol=0)
    target = normal(*both.shape, seed="target")
    gradients = [torch.autograd.grad(result, leaves, target) for result in (both, apart)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=1e-12)
    kept = values.detach().clone()
    for mode in (torch.no_grad, torch.inference_mode):  # where the sum is taken in memory that is new
        with mode():
            torch.testing.assert_close(conv(values, pointwise=pointwise), both.detach(), atol=1e-13, rtol=0)
    assert torch.equal(values, kept)


@pytest.mark.parametrize("name", ["weight", "pointwise.weight", "pointwise.bias"])
def test_transforms_may_follow_one_weight_alone(name: str) -> None:
    """What is added in place elsewhere must not be so where a transform follows one summand only."""
    conv, pointwise = layer(2, 3), PointwiseLinear(2, 3).double()
    values = noise(2, 2, 5, 6)
    state = {
        "weight": conv.weight.detach(),
        "pointwise.weight": pointwise.weight.detach(),
        "pointwise.bias": pointwise.bias.detach(),
    }

    def outputs(weight: Tensor) -> Tensor:
        given = state | {name: weight}
        added = copy_for_call(pointwise, {"weight": given["pointwise.weight"], "bias": given["pointwise.bias"]})
        return copy_for_call(conv, {"weight": given["weight"]})(values, pointwise=added)

    weights = torch.stack([state[name], -2.0 * state[name], state[name] + 1.0])
    expected = torch.stack([outputs(weight) for weight in weights])
    torch.testing.assert_close(vmap(outputs)(weights), expected, atol=1e-13, rtol=0)
    tangent = normal(*state[name].shape, seed="tangent")
    value, slope = jvp(outputs, (state[name],), (tangent,))
    torch.testing.assert_close(value, expected[0], atol=1e-13, rtol=0)
    torch.testing.assert_close(slope, outputs(state[name] + tangent) - expected[0], atol=1e-12, rtol=0)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(outputs(forward_ad.make_dual(state[name], tangent))).tangent
    torch.testing.assert_close(dual, slope, atol=1e-13, rtol=0)


def test_weights_lie_mode_major() -> None:
    """The plane wave k = (-1, 2) meets `weight[-1, 2]` alone."""
    conv = layer(3, 4, channels=(2, 3))
    assert conv.weight.shape == (5, 4, 2, 3, 2)
    assert conv.weight.dtype == torch.float64
    with torch.no_grad():
        conv.weight.zero_()
        conv.weight[-1, 2, 1, 0] = torch.tensor([2.0, -3.0], dtype=torch.float64)
    rows, columns = torch.meshgrid(torch.arange(6).double() / 6, torch.arange(9).double() / 9, indexing="ij")
    phase = 2 * math.pi * (-rows + 2 * columns)
    values = torch.stack([torch.zeros_like(phase), torch.cos(phase)])[None]
    expected = torch.zeros(1, 3, 6, 9, dtype=torch.float64)
    expected[0, 0] = 2.0 * torch.cos(phase) + 3.0 * torch.sin(phase)
    torch.testing.assert_close(conv(values), expected, atol=1e-14, rtol=0)
    mirrored = torch.cos(2 * math.pi * (rows + 2 * columns)).expand(1, 2, 6, 9)
    assert float(conv(mirrored).detach().abs().max()) < 1e-14


@pytest.mark.parametrize("modes", [(3,), (2, 3), (2, 2, 2)], ids=str)
def test_imaginary_part_at_zero_has_no_effect(modes: tuple[int, ...]) -> None:
    conv = layer(*modes)
    values = noise(2, 2, *(7,) * len(modes))
    before = conv(values)
    zero = (0,) * len(modes)
    (gradient,) = torch.autograd.grad(before.square().sum(), conv.weight)
    assert float(gradient[zero][..., 1].abs().max()) < 1e-12
    assert float(gradient[zero][..., 0].abs().min()) > 1e-6
    with torch.no_grad():
        conv.weight[zero][..., 1] += 10.0
    torch.testing.assert_close(conv(values), before, atol=1e-13, rtol=0)


def test_initial_weights_keep_the_variance_of_retained_frequencies() -> None:
    torch.manual_seed(0)
    conv = SpectralConv(16, 16, modes=(33,)).double()
    values = noise(64, 16, 65)  # 65 points: every frequency is retained
    assert math.isclose(float(conv(values).detach().var()), 1.0, rel_tol=0.05)


@pytest.mark.parametrize(("modes", "periodic", "least"), [((4,), True, 7), ((4,), False, 5), ((1,), True, 1)], ids=str)
@pytest.mark.bad_input
def test_too_few_points_are_refused(modes: tuple[int, ...], periodic: bool, least: int) -> None:
    conv = layer(*modes, periodic=periodic)
    assert conv(noise(1, 2, least)).shape == (1, 3, least)
    if least > 1:
        with pytest.raises(ResolutionError, match=f"{2 * modes[0] - 1} or more points along axis 0 for {modes[0]} modes"):
            conv(noise(1, 2, least - 1))


@pytest.mark.bad_input
def test_too_few_points_on_a_later_axis_are_named() -> None:
    with pytest.raises(ResolutionError, match="5 or more points along axis 1 for 3 modes"):
        layer(2, 3)(noise(1, 2, 8, 4))


@pytest.mark.bad_input
def test_bad_arguments_are_refused() -> None:
    for modes in ((), (0,), (2, -1), 4, (1.5,), (1, 1, 1, 1)):
        with pytest.raises(ArgumentError, match="as modes|as number of axes with modes"):
            SpectralConv(1, 1, modes=modes)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="1 entries of periodic"):
        SpectralConv(1, 1, modes=(2,), periodic=(True, False))
    with pytest.raises(ArgumentError, match="in_channels; got 0"):
        SpectralConv(0, 1, modes=(2,))
    with pytest.raises(ArgumentError, match="out_channels; got 0"):
        PointwiseLinear(1, 0)
    for shape in ((1, 2, 8), (1, 3, 8, 8), (2, 8, 8)):
        with pytest.raises(ShapeError, match="expected values of shape \\(n, 2, points, points\\)"):
            layer(2, 2)(noise(*shape))


def test_alternating_blocks_begin_oddly() -> None:
    """By definition, and seen in what they compute: without the pointwise layers, values on the mirrors have no effect."""
    operator = FNO(
        1, 1, modes=(3,), width=2, depth=3, projection=2, periodic=False, continuation="alternating", seed=0
    ).double()
    assert [layer.continuation for layer in operator.spectral] == ["odd", "even", "odd"]
    with torch.no_grad():
        for layer in operator.pointwise:
            layer.weight.zero_()
    values = noise(1, 1, 9)
    changed = values.clone()
    changed[..., [0, -1]] += 1.0
    torch.testing.assert_close(operator(values), operator(changed), atol=1e-14, rtol=0)
