"""The linear path of an FNO with alternating continuation."""

from __future__ import annotations

import math

import torch
from torch import nn

from probneural.operators import FNO
from probneural.problems import Helmholtz


def alternating(*modes: int) -> FNO:
    return FNO(1, 1, modes=modes, width=2, depth=1, projection=2, periodic=False, continuation="alternating", seed=0)


def test_a_linear_path_solves_an_elliptic_equation() -> None:
    """By the multiplier 1/(λ − k²) of sine modes, where the network is zero; autocast rounds nothing."""
    problem = Helmholtz()
    pairs = problem.sample(3, resolution=(33, 33), seed=0)
    operator = alternating(16, 16)
    frequencies = torch.fft.fftfreq(31, d=1.0 / 31)
    eigenvalues = math.pi**2 * (frequencies[:, None].square() + frequencies[:16].square())
    assert operator.linear is not None
    with torch.no_grad():
        operator.linear.weight[..., 0, 0, 0] = 1.0 / (eigenvalues - problem.wavenumber**2)
        operator.linear.weight[..., 1] = 0.0
        for parameter in operator.readout.parameters():
            parameter.zero_()
        with torch.autocast("cpu", torch.bfloat16):
            solution = operator(pairs.inputs.values)
    torch.testing.assert_close(solution, pairs.outputs.values, rtol=0, atol=1e-5 * float(pairs.outputs.values.abs().max()))


def test_a_linear_path_is_zero_before_training() -> None:
    operator = alternating(3, 3)
    assert operator.linear is not None
    assert not operator.linear.weight.any()
    nn.init.ones_(operator.linear.weight)
    operator.reset_parameters()
    assert not operator.linear.weight.any()


def test_an_fno_on_periodic_axes_has_no_linear_path() -> None:
    assert FNO(1, 1, modes=(3, 3), width=2, continuation="alternating").linear is None
